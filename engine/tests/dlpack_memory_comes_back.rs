//! Imports and exports with random drops: every deleter runs once and resident memory stays flat.

mod dlpack;

use std::sync::Arc;
use std::time::Duration;

use estafette::{Access, Engine, ExportOptions, ManagedTensor, Tensor};

/// How many tensors pass through. `ESTAFETTE_TENSORS` sets another number, for slow tools like memcheck.
const TENSORS: usize = 100_000;

/// What one thread keeps alive at most, tensors and exports each.
const KEPT: usize = 64;

/// Elements of each tensor: leaking one in ten would show as 40 MiB.
const ELEMENTS: i64 = 1024;

/// The growth of resident memory that is still called flat: allocators and thread pools breathe.
const SLACK: usize = 16 << 20;

#[test]
fn every_deleter_runs_once_and_memory_stays_flat() {
    let tensors = std::env::var("ESTAFETTE_TENSORS").map_or(TENSORS, |text| text.parse().unwrap());
    let deletions = Arc::default();
    let engine = Engine::builder().workers(2).build().unwrap();
    // The first tenth warms up every pool; what it leaves resident is the measure.
    let warm = tensors / 10;
    pass(&engine, warm, &deletions);
    deletions.wait_for(warm);
    let before = resident_bytes();
    pass(&engine, tensors - warm, &deletions);
    deletions.wait_for(tensors);
    assert!(estafette::exchange::reaper().flush(Duration::from_secs(30)));
    assert_eq!(deletions.count(), tensors, "exactly once");
    if let (Some(before), Some(after)) = (before, resident_bytes()) {
        assert!(after < before + SLACK, "resident memory grew from {before} to {after} bytes");
    }
    let stats = estafette::exchange::reaper().stats();
    assert_eq!((stats.leaked, stats.pending), (0, 0));
    assert!(stats.released >= tensors as u64);
}

/// Sends `count` tensors through the engine from two threads and drops everything at the end.
fn pass(engine: &Engine, count: usize, deletions: &Arc<dlpack::Deletions>) {
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                let mut dice = Dice(thread as u64 + 1);
                let mut tensors: Vec<Tensor> = Vec::new();
                let mut exports: Vec<ManagedTensor> = Vec::new();
                for _ in 0..count / 2 + (count % 2) * thread {
                    // SAFETY: a fresh tensor that describes its memory truly.
                    let x = unsafe { engine.import(dlpack::tensor(&[ELEMENTS], deletions)) }
                        .expect("a good tensor");
                    if dice.roll(3) == 0 {
                        engine
                            .op("touch")
                            .updates([&x])
                            .run(|[], [], [mut x]| {
                                x.as_mut_slice::<f32>()?[0] += 1.0;
                                Ok(())
                            })
                            .expect("the engine runs");
                    }
                    if dice.roll(2) == 0 {
                        let access = if dice.roll(2) == 0 { Access::Read } else { Access::Alias };
                        let options = ExportOptions::new(access);
                        exports.push(x.export_wait(&options).expect("nobody holds a write lease"));
                    }
                    tensors.push(x);
                    while tensors.len() > dice.roll(KEPT) {
                        tensors.swap_remove(dice.roll(tensors.len()));
                    }
                    while exports.len() > dice.roll(KEPT) {
                        exports.swap_remove(dice.roll(exports.len()));
                    }
                }
            });
        }
    });
}

/// A small generator with a fixed seed: failures repeat.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// Resident memory of this process, where the system tells it cheaply.
fn resident_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? * 1024)
}
