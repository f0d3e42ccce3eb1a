//! A forked child has none of the threads that observe fences. This test is alone in its process.
#![cfg(unix)]

use std::time::Duration;

use estafette_devices::{FenceState, Reactor, host};
use estafette_sync::platform::child::in_forked_child;

#[test]
fn a_forked_child_gets_an_error_and_the_parent_goes_on() {
    let (completer, fence) = host::promise("parent's work");
    let (done, finished) = host::promise("finished before");
    done.complete();
    // The reactor belongs to the parent.
    let (told, parents) = std::sync::mpsc::channel();
    Reactor::global().when_settled([&fence], move |outcome| told.send(outcome.is_ok()).unwrap());
    let (unused, unfinished) = host::promise("unused");
    let mut held = Some((completer, unused));

    assert!(in_forked_child(|| {
        let refused = fence.wait_timeout(Some(Duration::from_secs(60)));
        let refused = refused
            .is_some_and(|outcome| outcome.is_err_and(|error| error.message().starts_with("forked child")));
        let (told, telling) = std::sync::mpsc::channel();
        Reactor::global().when_settled([&fence], move |outcome| told.send(outcome.is_err()).unwrap());
        // Neither settles anything here, nor calls a subscriber of the parent.
        let (completed, dropped) = held.take().unwrap();
        completed.complete();
        drop(dropped);
        refused
            && parents.try_recv().is_err()
            && telling.try_recv() == Ok(true)
            && !fence.is_done()
            && matches!(unfinished.state(), FenceState::Pending)
            && finished.wait_timeout(None).is_some_and(|outcome| outcome.is_ok())
    }));

    assert!(parents.try_recv().is_err());
    let (completer, unused) = held.take().unwrap();
    completer.complete();
    assert!(parents.recv().unwrap());
    assert!(fence.is_done());
    drop(unused);
    assert!(matches!(unfinished.state(), FenceState::Failed(_)));
}
