//! Exports that nothing stands in the way of: they are as ordered as any other, and give up instead of waiting.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::sync::atomic::{AtomicBool, Ordering};

use estafette::{Access, ExportOptions, ManagedTensor, Status, Tensor};
use tests::gate::Gate;
use tests::ops::{engine, get, set, tensor};
use tests::watchdog::Watchdog;

fn at_once(tensor: &Tensor, access: Access) -> Option<ManagedTensor> {
    let options = ExportOptions { taker: Some("at once".into()), ..ExportOptions::new(access) };
    tensor.export_at_once(options).unwrap()
}

#[test]
fn a_reader_that_was_let_in_at_once_keeps_writers_out_and_is_named() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let first = at_once(&x, Access::Read).unwrap();
    let second = at_once(&x, Access::Read).unwrap();
    assert!(first.read_only() && !first.is_copied());
    let op = set(&engine, &x, 2.0);
    let diagnosis = engine.diagnose();
    let held = |op: &&estafette::Waiting| matches!(op.status, Status::Held(_));
    assert_eq!(diagnosis.operations.iter().filter(held).count(), 2, "{diagnosis}");
    assert!(diagnosis.to_string().contains("read lease taken by at once"), "{diagnosis}");
    drop(first);
    assert!(!op.is_done());
    drop(second);
    op.wait().unwrap();
    assert_eq!(get(&x), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn what_would_have_to_wait_gives_up_and_leaves_nothing_behind() {
    let engine = engine(2);
    let x = tensor(&engine, 1.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    assert!(at_once(&x, Access::Read).is_none(), "a write is under way");
    gate.open();
    x.wait().unwrap();
    assert!(at_once(&x, Access::Write).is_none(), "a writer takes its place in the queue");
    assert!(
        x.export_at_once(ExportOptions { copy: true, ..ExportOptions::new(Access::Read) }).unwrap().is_none()
    );
    set(&engine, &x, 2.0).wait().unwrap();
    assert!(engine.diagnose().operations.is_empty());
}

#[test]
fn a_failed_version_is_left_to_those_who_say_why() {
    let engine = engine(1);
    let x = tensor(&engine, 1.0);
    let failed = engine.op("fail").writes([&x]).run(|[], [_]| Err("broken".into())).unwrap();
    failed.wait().unwrap_err();
    assert!(at_once(&x, Access::Read).is_none());
    assert!(x.export_wait(&ExportOptions::new(Access::Read)).unwrap_err().to_string().contains("broken"));
}

#[test]
fn an_alias_is_to_be_had_whatever_is_under_way() {
    let engine = engine(1);
    let x = tensor(&engine, 1.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let alias = at_once(&x, Access::Alias).unwrap();
    assert!(!alias.read_only());
    gate.open();
    set(&engine, &x, 2.0).wait().unwrap();
    drop(alias);
}

#[test]
fn an_import_from_inside_such_a_lease_is_derived() {
    let engine = engine(1);
    let x = tensor(&engine, 1.0);
    let lent = at_once(&x, Access::Read).unwrap();
    // SAFETY: the engine's own memory, under the lease that the struct keeps.
    let derived = unsafe { engine.import(lent) }.unwrap();
    assert!(derived.is_read_only().unwrap());
    let op = set(&engine, &x, 2.0);
    assert_eq!(get(&derived), 1.0);
    assert!(!op.is_done());
    drop(derived);
    op.wait().unwrap();
}

#[test]
fn a_copy_for_a_consumer_is_flagged_and_holds_no_lease() {
    let engine = engine(1);
    let x = tensor(&engine, 1.0);
    let copy = x.export_as_copy(&ExportOptions::new(Access::Alias)).unwrap();
    assert!(copy.is_copied() && !copy.read_only());
    set(&engine, &x, 2.0).wait().unwrap();
}

#[test]
fn readers_that_come_and_go_never_see_a_writer_at_work() {
    const ROUNDS: usize = 2_000;
    let engine = engine(2);
    let x = tensor(&engine, 0.0);
    let writing = std::sync::Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut let_in = 0;
                    for _ in 0..ROUNDS {
                        let Some(lent) = at_once(&x, Access::Read) else { continue };
                        assert!(!writing.load(Ordering::SeqCst), "let in while a writer was at work");
                        let_in += 1;
                        drop(lent);
                    }
                    let_in
                })
            })
            .collect();
        for _ in 0..ROUNDS / 10 {
            let at_work = std::sync::Arc::clone(&writing);
            let op = engine.op("write").writes([&x]).run(move |[], [_]| {
                at_work.store(true, Ordering::SeqCst);
                std::hint::spin_loop();
                at_work.store(false, Ordering::SeqCst);
                Ok(())
            });
            op.unwrap().wait().unwrap();
        }
        let let_in: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(let_in > 0, "no reader was ever let in");
    });
    assert!(engine.diagnose().operations.is_empty());
}
