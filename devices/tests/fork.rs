//! A forked child has none of the threads that observe fences. This test is alone in its process.
#![cfg(unix)]

use std::time::Duration;

use estafette_devices::{Reactor, host};
use estafette_sync::platform::child::in_forked_child;

#[test]
fn a_forked_child_is_told_so_and_the_parent_goes_on() {
    let (completer, fence) = host::promise("parent's work");
    let (done, finished) = host::promise("finished before");
    done.complete();
    // The reactor belongs to the parent.
    let (told, telling) = std::sync::mpsc::channel();
    Reactor::global().when_settled([&fence], move |outcome| told.send(outcome.is_ok()).unwrap());

    assert!(in_forked_child(|| {
        let refused = fence.wait_timeout(Some(Duration::from_secs(60)));
        let refused = refused
            .is_some_and(|outcome| outcome.is_err_and(|error| error.message().starts_with("forked child")));
        let (told, telling) = std::sync::mpsc::channel();
        Reactor::global().when_settled([&fence], move |outcome| told.send(outcome.is_err()).unwrap());
        refused
            && telling.try_recv() == Ok(true)
            && finished.wait_timeout(None).is_some_and(|outcome| outcome.is_ok())
    }));

    assert!(telling.try_recv().is_err());
    completer.complete();
    assert!(telling.recv().unwrap());
    assert!(fence.is_done());
}
