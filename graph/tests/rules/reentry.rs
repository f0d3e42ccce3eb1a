//! Closures that run under a variable's lock and use the graph again: refused, never two of them at the
//! state, and no hang.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::{Graph, Value, Var, complete, none};
use estafette_graph::AccessMode;

/// Runs `test` on a thread of its own; one that has not ended after a minute has failed.
fn watched(test: impl FnOnce() + Send + 'static) {
    let (ended, end) = channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = ended.send(());
    });
    match end.recv_timeout(Duration::from_secs(60)) {
        Ok(()) => {}
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it has not ended well"))
        }
    }
}

/// Asserts that `f` is refused, and not by anything else that panics.
fn refused<R>(f: impl FnOnce() -> R) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(f)) else { panic!("it was let in") };
    let text = panic.downcast_ref::<&str>().copied().unwrap_or_default();
    assert!(text.contains("used the graph again"), "{text}");
}

/// A graph that the calling thread has for itself, where there is such a thing, and a shared one.
fn graphs() -> [Graph; 2] {
    let shared = Graph::immortal();
    shared.share();
    [Graph::immortal(), shared]
}

#[test]
fn a_closure_gets_no_second_reference_to_the_state_that_it_has() {
    watched(|| {
        for graph in graphs() {
            let x = graph.var("first".into());
            let y = x.clone();
            x.with_state(|outer, _| {
                let seen: &str = &outer.name;
                refused(|| y.with_state(|inner, _| *inner = Value::default()));
                refused(|| y.with_ordering_state(|inner, _| *inner = Value::default()));
                refused(|| y.with_each_state(|inner, _| *inner = Value::default()));
                assert_eq!(seen, "first");
            });
            assert!(x.with_state(|state, _| state.name == "first"), "the graph goes on");
        }
    });
}

/// In the portable form no thread has a graph for itself.
#[cfg(not(estafette_portable))]
#[test]
fn a_closure_in_a_graph_that_one_thread_has_for_itself_can_do_nothing_with_it() {
    watched(|| {
        let graph = Graph::immortal();
        let (x, y) = (graph.var(1.into()), graph.var(2.into()));
        x.with_state(|_, _| {
            refused(|| y.with_state(|_, _| ()));
            refused(|| y.try_pin(|_, _| true));
            refused(|| y.queued());
            refused(|| graph.op(Value::default(), [(&y, AccessMode::Write)]).submit_unreferenced());
            refused(|| graph.snapshot(|_| ()));
            refused(|| graph.var(Value::default()));
            refused(|| graph.share());
            let last = y.clone();
            drop(last);
        });
        let last = graph.var(3.into());
        x.with_state(|_, _| refused(|| drop(last)));
        assert!(y.try_pin(|_, _| true), "none of that has left anything behind");
        y.unpin(|_, _| (), |_| ());
    });
}

/// In the portable form no thread has a graph for itself.
#[cfg(not(estafette_portable))]
#[test]
fn a_refused_closure_does_not_let_another_thread_in() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    watched(|| {
        let graph = Graph::immortal();
        let (x, y) = (graph.var(1.into()), graph.var(2.into()));
        let changed = Arc::new(AtomicBool::new(false));
        let other = x.with_state(|state, _| {
            refused(|| y.with_state(|_, _| ()));
            let (its, changed_there) = (x.clone(), Arc::clone(&changed));
            let other = std::thread::spawn(move || {
                its.with_state(|state, _| state.number = 7);
                changed_there.store(true, Ordering::Release);
            });
            for _ in 0..1_000 {
                std::thread::yield_now();
                assert!(!changed.load(Ordering::Acquire) && state.number == 1, "two threads are inside");
            }
            // The other thread waits until this one is outside. That it does must not keep this one from
            // being refused.
            refused(|| y.with_state(|_, _| ()));
            refused(|| graph.share());
            other
        });
        other.join().expect("the other thread gets in once this one is out");
        assert_eq!(x.with_state(|state, _| state.number), 7);
    });
}

#[test]
fn what_completes_and_what_describes_holds_is_refused_as_well() {
    watched(|| {
        for graph in graphs() {
            let x = graph.var(1.into());
            let granted = graph
                .op(Value::default(), [(&x, AccessMode::Write)])
                .submit_unreferenced()
                .expect("nothing is in the way");
            for access in granted.accesses() {
                access.with_state(|_, _| refused(|| x.with_state(|_, _| ())));
            }
            granted.complete(|_| refused(|| x.with_state(|_, _| ())), |_| ());
            assert!(x.try_pin(|_, _| true));
            graph.snapshot_with(
                |_| (),
                |_, _| {
                    refused(|| x.with_state(|_, _| ()));
                    refused(|| graph.var(Value::default()));
                },
            );
            x.unpin(|_, _| (), |_| ());
        }
    });
}

#[test]
fn a_closure_may_use_another_graph() {
    let [(graph, x), (_other, y)]: [(Graph, Var); 2] = graphs().map(|graph| {
        let var = graph.var(1.into());
        (graph, var)
    });
    x.with_state(|_, _| {
        y.with_state(|state, _| state.number = 2);
        refused(|| graph.var(Value::default()));
    });
    assert_eq!(y.with_state(|state, _| state.number), 2);
}

#[test]
fn a_panic_in_a_closure_of_a_snapshot_leaves_the_graph_usable() {
    let graph = Graph::new();
    let x = graph.var(Value::default());
    assert!(x.try_pin(|_, _| true));
    let snapshot = catch_unwind(AssertUnwindSafe(|| graph.snapshot_with(|_| (), |_, _| panic!("describe"))));
    assert!(snapshot.is_err());
    let y = graph.var(Value::default());
    assert!(graph.snapshot(|_| ()).ops.is_empty());
    drop(y);
    x.unpin(|_, _| (), |_| ());
    let written = graph.op(Value::default(), [(&x, AccessMode::Write)]).submit_unreferenced();
    none(complete(written.expect("nothing is in the way")));
}

#[test]
fn a_hold_whose_closure_panics_is_none() {
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let _ = catch_unwind(AssertUnwindSafe(|| x.try_pin(|_, _| panic!("accept"))));
    let written = graph.op(Value::default(), [(&x, AccessMode::Write)]).submit_unreferenced();
    none(complete(written.expect("nothing holds the variable")));
}

#[test]
fn a_closure_that_panics_is_not_taken_for_one_that_still_runs() {
    let seen = Mutex::new(0);
    for graph in graphs() {
        let x = graph.var(Value::default());
        let _ = catch_unwind(AssertUnwindSafe(|| x.with_state(|_, _| panic!("state"))));
        x.with_state(|_, _| *seen.lock().unwrap() += 1);
        drop(graph.var(Value::default()));
    }
    assert_eq!(*seen.lock().unwrap(), 2);
}
