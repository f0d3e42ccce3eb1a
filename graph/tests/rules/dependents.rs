//! Steps along the queues: what looks at the writes of an operation, and whose writes it looks at.

use crate::common::{Driver, OpRef, Value, complete, r, w};
use estafette_graph::AccessMode;

/// False for what holds a variable alone and leaves its version as it is.
fn makes_version(op: &Value) -> bool {
    !op.name.contains("lease")
}

fn behind(op: &OpRef) -> Vec<String> {
    let mut found = Vec::new();
    op.dependents(|_, mode| mode.reads(), makes_version, &mut found);
    found.iter().map(|op| op.payload().name.clone()).collect()
}

fn ahead(op: &OpRef) -> Vec<String> {
    let mut found = Vec::new();
    op.sources(AccessMode::reads, makes_version, |op| op.name.starts_with("known"), &mut found);
    found.iter().map(|op| op.payload().name.clone()).collect()
}

const NONE: [&str; 0] = [];

fn u(var: usize) -> crate::common::Access {
    (var, AccessMode::Update)
}

#[test]
fn a_write_is_looked_at_until_the_next_one_which_looks_itself_if_it_updates() {
    let mut driver = Driver::new(2);
    driver.submit("locked", &[r(0), r(1)]);
    let write = driver.submit_ref("write", &[w(0), w(1)]);
    let read = driver.submit_ref("read", &[r(0)]);
    let update = driver.submit_ref("update", &[u(0)]);
    let healing = driver.submit_ref("healing", &[r(0), w(1)]);
    let last = driver.submit_ref("last", &[r(1)]);
    assert_eq!(behind(&write), ["read", "update"]);
    assert_eq!(behind(&update), ["healing"]);
    assert_eq!(behind(&read), NONE);
    assert_eq!(ahead(&last), ["healing"]);
    assert_eq!(ahead(&healing), ["update"]);
    assert_eq!(ahead(&update), ["write"], "past the reads in between");
    assert_eq!(ahead(&write), NONE, "it replaces what is there");
}

#[test]
fn the_search_for_a_write_ends_at_a_read_that_is_known() {
    let mut driver = Driver::new(1);
    driver.submit("locked", &[r(0)]);
    driver.submit("write", &[w(0)]);
    let first = driver.submit_ref("known", &[r(0)]);
    let second = driver.submit_ref("second", &[r(0)]);
    assert_eq!(ahead(&first), ["write"]);
    assert_eq!(ahead(&second), NONE);
}

#[test]
fn the_last_of_several_writes_is_found_from_either_end() {
    let mut driver = Driver::new(1);
    driver.submit("locked", &[r(0)]);
    driver.submit("first", &[w(0)]);
    driver.submit("second", &[w(0)]);
    for name in ["a", "b", "c", "d", "e"] {
        let read = driver.submit_ref(name, &[r(0)]);
        assert_eq!(ahead(&read), ["second"]);
    }
    let update = driver.submit_ref("update", &[u(0)]);
    assert_eq!(ahead(&update), ["second"], "and not itself");
    driver.submit("third", &[w(0)]);
    assert_eq!(ahead(&update), ["second"], "and nothing behind it");
}

#[test]
fn both_searches_pass_over_writes_that_make_no_version() {
    let mut driver = Driver::new(1);
    driver.submit("locked", &[r(0)]);
    let write = driver.submit_ref("write", &[w(0)]);
    let lease = driver.submit_ref("lease", &[u(0)]);
    let read = driver.submit_ref("read", &[r(0)]);
    driver.submit("second lease", &[u(0)]);
    let next = driver.submit_ref("next", &[u(0)]);
    let last = driver.submit_ref("last", &[r(0)]);
    assert_eq!(behind(&write), ["lease", "read", "second lease", "next"]);
    assert_eq!(behind(&next), ["last"]);
    for op in [&lease, &read, &next] {
        assert_eq!(ahead(op), ["write"]);
    }
    assert_eq!(ahead(&last), ["next"]);
    driver.submit("known lease", &[u(0)]);
    assert_eq!(ahead(&driver.submit_ref("behind it", &[r(0)])), NONE);
}

#[test]
fn with_writes_that_make_no_version_alone_ahead_nothing_is_found() {
    let mut driver = Driver::new(1);
    driver.submit("locked", &[r(0)]);
    driver.submit("lease", &[u(0)]);
    for name in ["a", "b", "c", "d"] {
        let read = driver.submit_ref(name, &[r(0)]);
        assert_eq!(ahead(&read), NONE);
    }
}

#[test]
fn one_that_was_completed_or_withdrawn_is_in_no_queue_and_finds_nothing() {
    let mut driver = Driver::new(1);
    let first = driver.submit_ref("first", &[w(0)]);
    let second = driver.submit_ref("second", &[u(0)]);
    let read = driver.submit_ref("read", &[r(0)]);
    assert_eq!(behind(&first), ["second"], "granted, and not completed");
    assert_eq!(ahead(&read), ["second"]);
    driver.withdraw(&second).expect("it waits");
    assert_eq!((behind(&second), ahead(&second)), (Vec::new(), Vec::new()));
    assert_eq!((behind(&first), ahead(&read)), (vec!["read".to_owned()], vec!["first".to_owned()]));
    driver.complete("first");
    assert_eq!((behind(&first), ahead(&read)), (Vec::new(), Vec::new()));
    // Variables may be gone by the time it is asked.
    driver.complete("read");
    driver.vars.clear();
    assert_eq!(behind(&first), NONE);
}

/// Steps are taken by one thread while others submit and complete what it steps along.
#[test]
fn steps_among_operations_that_come_and_go() {
    let driver = Driver::new(0);
    let graph = driver.graph.clone();
    let variables: Vec<_> = (0..3).map(|index| graph.var(index.into())).collect();
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::sync_channel::<OpRef>(8);
        scope.spawn(move || {
            for round in 0..20_000 {
                let fresh = graph.var(9.into());
                let accesses = [
                    (&variables[round % 3], AccessMode::Update),
                    (&variables[(round + 1) % 3], AccessMode::Read),
                    (&fresh, AccessMode::Write),
                ];
                let (op, granted) = graph.op("some".into(), accesses).submit();
                let behind = graph
                    .op(
                        "behind".into(),
                        [(&fresh, AccessMode::Read), (&variables[round % 3], AccessMode::Update)],
                    )
                    .submit();
                drop(fresh);
                if send.send(op).is_err() {
                    break;
                }
                let mut ready: Vec<_> = granted.into_iter().chain(behind.1).collect();
                while let Some(granted) = ready.pop() {
                    ready.extend(complete(granted));
                }
            }
        });
        for op in receive {
            let mut found = Vec::new();
            let pinned = op.clone();
            pinned.dependents(|_, _| true, |_| true, &mut found);
            pinned.sources(|_| true, |_| true, |_| false, &mut found);
            assert!(found.iter().all(|op| ["some", "behind"].contains(&op.payload().name.as_str())));
        }
    });
}
