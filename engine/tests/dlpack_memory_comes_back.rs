//! Imports and exports with random drops: every deleter runs once and resident memory stays flat.

mod dlpack;

use std::sync::Arc;
use std::time::Duration;

use estafette::{Access, Engine, ExportOptions, ManagedTensor, Tensor};

/// How many tensors pass through. `ESTAFETTE_TENSORS` sets another number, for slow tools like memcheck.
const TENSORS: usize = 100_000;

/// What one thread keeps alive at most, tensors and exports each.
const KEPT: usize = 64;

/// Elements of each tensor.
const ELEMENTS: i64 = 1024;

/// Passes after the first. A leak grows with each of them; what is resident for a while only, as deleters lag behind, does not.
const PASSES: usize = 3;

/// The growth of resident memory in a pass that is still called flat. Leaking one in ten would be 12 MiB.
const SLACK: usize = 4 << 20;

#[test]
fn every_deleter_runs_once_and_memory_stays_flat() {
    let tensors = std::env::var("ESTAFETTE_TENSORS").map_or(TENSORS, |text| text.parse().unwrap());
    let deletions = Arc::<dlpack::Deletions>::default();
    let engine = Engine::builder().workers(2).build().unwrap();
    // The first pass warms up every pool.
    let warm = tensors / 10;
    pass(&engine, warm, &deletions);
    let (mut made, mut growth) = (warm, usize::MAX);
    let mut resident = settled(&deletions, made);
    for _ in 0..PASSES {
        let count = (tensors - warm) / PASSES;
        pass(&engine, count, &deletions);
        made += count;
        let now = settled(&deletions, made);
        growth = growth.min(now.saturating_sub(resident));
        resident = now;
    }
    assert!(growth < SLACK, "resident memory grew by {growth} bytes or more with every pass");
    let stats = estafette::bindings::reaper().stats();
    assert_eq!((stats.leaked, stats.pending), (0, 0));
    assert!(stats.released >= made as u64);
}

/// Resident memory after all of the deleters have run, each once.
fn settled(deletions: &dlpack::Deletions, made: usize) -> usize {
    deletions.wait_for(made);
    assert!(estafette::exchange::flush_deleters(Duration::from_secs(30)));
    assert_eq!(deletions.count(), made, "exactly once");
    resident_bytes()
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
                        let options = ExportOptions::from(access);
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

/// Resident memory of this process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("as it always did");
    line.trim().strip_suffix("kB").expect("in kB").trim().parse::<usize>().expect("a number") * 1024
}
