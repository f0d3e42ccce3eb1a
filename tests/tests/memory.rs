//! Memory comes back: every deleter exactly once, and resident memory stays flat. Other tests would take
//! memory of the same process.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::any::Any;

use estafette::bindings;
use estafette::{Access, ExportOptions, Lease, ManagedTensor, Tensor};
use futures::executor::block_on;
use tests::churn::{churn, resident_bytes};
use tests::dice::from_environment;
use tests::foreign::{self, Deleted};
use tests::ops::{add, engine, exclusive, read};
use tests::watchdog::Watchdog;

/// Imports and exports of the flatness test. `ESTAFETTE_TENSORS` sets another number.
const TENSORS: u64 = 100_000;

/// The growth of resident memory that is still called flat. Each tensor has 4 KiB, so that leaking one in a
/// hundred would show.
const SLACK: usize = 4 << 20;

#[test]
fn with_random_drops_every_deleter_runs_once_and_resident_memory_stays_flat() {
    let _alone = exclusive();
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let tensors = from_environment("ESTAFETTE_TENSORS", TENSORS) as usize;
    let mut imported = 0;
    let mut round = |seed: u64, count: usize| {
        let shares = std::thread::scope(|scope| {
            let (engine, deleted) = (&engine, &deleted);
            let threads =
                [0, 1].map(|thread| scope.spawn(move || churn(engine, count / 2, seed + thread, deleted)));
            threads.map(|thread| thread.join().unwrap().unwrap())
        });
        for share in shares {
            assert!(share.imported == count / 2 && share.exported > 0 && share.derived > 0, "{share:?}");
            imported += share.imported;
        }
        engine.wait_all(None).unwrap();
        deleted.settle_at(imported);
    };
    // Memory that the first fifth leaves resident is in pools.
    round(1, tensors / 5);
    let before = resident_bytes().expect("Linux tells resident memory");
    for seed in 2..6 {
        round(seed * 10, tensors / 5);
    }
    let after = resident_bytes().expect("Linux tells resident memory");
    assert!(after < before + SLACK, "resident memory grew from {before} to {after} bytes");
    assert_eq!(deleted.count(), tensors);
    let stats = engine.stats();
    assert_eq!((stats.leaked, stats.releasing, stats.in_flight), (0, 0, 0));
    assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
    assert!(watchdog.still_watches());
}

/// Everything that can keep a tensor's memory alive.
enum Keeper {
    Handle(Tensor),
    Clone(Tensor),
    Export(ManagedTensor),
    Derived(Tensor),
    Lease(Lease),
    #[expect(dead_code, reason = "only dropped")]
    Other(Box<dyn Any>),
}

impl Keeper {
    /// True if the memory must live as long as this does.
    fn keeps(&self) -> bool {
        match self {
            Self::Handle(tensor) | Self::Clone(tensor) | Self::Derived(tensor) => {
                bindings::tensor::is_defined(tensor)
            }
            Self::Export(exported) => !exported.data().is_null(),
            Self::Lease(lease) => bindings::tensor::is_defined(lease.tensor()),
            Self::Other(_) => false,
        }
    }
}

fn keepers(deleted: &Deleted) -> Vec<Keeper> {
    let engine = engine(1);
    // SAFETY: a fresh tensor that describes its own memory.
    let x = unsafe { engine.import(foreign::tensor(&[1.0], deleted)) }.expect("a good tensor");
    let export = || x.export_wait(&ExportOptions::from(Access::Read)).expect("no thread writes");
    // SAFETY: the lease keeps the memory, which this test owns.
    let derived = unsafe { engine.import(export()) }.expect("a good tensor");
    let lease = block_on(x.lease(Access::Read, "a keeper")).expect("no thread writes");
    let (exported, done) = (export(), read(&engine, &x));
    done.wait().expect("readers share");
    // Waits for all the leases, and keeps the tensor until it has run.
    let queued = add(&engine, &x, 1.0);
    vec![
        Keeper::Clone(x.clone()),
        Keeper::Handle(x),
        Keeper::Export(exported),
        Keeper::Derived(derived),
        Keeper::Lease(lease),
        Keeper::Other(Box::new(done)),
        Keeper::Other(Box::new(queued)),
        Keeper::Other(Box::new(engine)),
    ]
}

/// Calls `each` with every order of the numbers below `count`.
fn permutations(count: usize, each: &mut impl FnMut(&[usize])) {
    fn heap(order: &mut [usize], left: usize, each: &mut impl FnMut(&[usize])) {
        if left <= 1 {
            return each(order);
        }
        for at in 0..left {
            heap(order, left - 1, each);
            order.swap(if left.is_multiple_of(2) { at } else { 0 }, left - 1);
        }
    }
    heap(&mut (0..count).collect::<Vec<_>>(), count, each);
}

#[test]
fn in_every_order_of_drops_the_deleter_runs_exactly_once_and_only_after_the_last_use() {
    let _alone = exclusive();
    let watchdog = Watchdog::alone();
    let mut order_number = 0_usize;
    permutations(8, &mut |order| {
        // All 40,320 orders take long; every 37th is each keeper in each place, many times over.
        order_number += 1;
        if !order_number.is_multiple_of(37) {
            return;
        }
        let deleted = Deleted::default();
        let mut keepers: Vec<Option<Keeper>> = keepers(&deleted).into_iter().map(Some).collect();
        for &next in order {
            let kept = keepers.iter().flatten().any(Keeper::keeps);
            assert!(!kept || deleted.count() == 0, "released too early in {order:?}");
            keepers[next] = None;
        }
        deleted.settle_at(1);
    });
    assert_eq!(order_number, 40_320);
    assert!(watchdog.still_watches());
}

#[test]
fn deleters_run_on_the_reaper_and_may_use_the_engine() {
    let _alone = exclusive();
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (said, heard) = std::sync::mpsc::channel();
    let inner = engine.clone();
    let x = tests::ops::tensor(&engine, 1.0);
    let lease = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    // An owner whose end submits, exports, waits, and drops the lease of another tensor.
    let owner = Owner(Some(Box::new(move || {
        let fresh = tests::ops::tensor(&inner, 2.0);
        drop(fresh.export_wait(&ExportOptions::from(Access::Write)).unwrap());
        add(&inner, &fresh, 1.0).wait().unwrap();
        drop(lease);
        said.send(std::thread::current().name().map(str::to_owned)).unwrap();
    })));
    let made = engine.op("made").produce(move |[]| Ok(owner.tensor())).unwrap();
    made.wait().unwrap();
    drop(made);
    assert_eq!(heard.recv().unwrap().as_deref(), Some("estafette-reaper"));
    add(&engine, &x, 1.0).wait().unwrap();
    assert!(watchdog.still_watches());
}

/// Memory whose end runs a closure.
struct Owner(Option<Box<dyn FnOnce() + Send>>);

impl Owner {
    fn tensor(mut self) -> ManagedTensor {
        let end = self.0.take().expect("used once");
        let values = Box::leak(Box::new([1.0_f32]));
        let data: *mut f32 = values.as_mut_ptr();
        let layout =
            estafette::Layout::contiguous(estafette::DType::F32, estafette::devices::DLDevice::CPU, &[1]);
        let flags = estafette::exchange::ExportFlags { read_only: false, is_copied: false };
        let address = data as usize;
        // SAFETY: the array lives until the closure frees it, once.
        unsafe {
            estafette::exchange::export(
                &layout.expect("one element"),
                data.cast(),
                flags,
                estafette::exchange::Abi::Versioned,
                move || {
                    drop(Box::from_raw(address as *mut [f32; 1]));
                    end();
                },
            )
        }
    }
}
