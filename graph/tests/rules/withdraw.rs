//! Withdrawal: an operation that waits leaves its queues at once, and what waited behind it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Driver, Graph, Value, Var, complete, none, r, w};
use estafette_graph::AccessMode;

/// Nothing to wait for.
const NONE: [&str; 0] = [];

#[test]
fn readers_behind_a_write_that_is_withdrawn_join_the_granted_reads() {
    let mut driver = Driver::new(1);
    driver.submit("held", &[r(0)]);
    let write = driver.submit_ref("write", &[w(0)]);
    driver.submit("a", &[r(0)]);
    driver.submit("b", &[r(0)]);
    driver.submit("later", &[w(0)]);
    assert_eq!(driver.granted(), ["held"]);
    assert_eq!(driver.withdraw(&write).expect("it waits"), ["a", "b"]);
    assert!(driver.vars[0].has_unfinished_write(), "that of `later`");
    assert_eq!(driver.complete("held"), NONE);
    assert_eq!(driver.complete("a"), NONE);
    assert_eq!(driver.complete("b"), ["later"]);
}

#[test]
fn readers_behind_a_withdrawn_write_join_the_holds() {
    let mut driver = Driver::new(1);
    assert!(driver.vars[0].try_pin(|_, _| true));
    let write = driver.submit_ref("write", &[w(0)]);
    driver.submit("reader", &[r(0)]);
    let second = driver.submit_ref("second", &[w(0)]);
    assert_eq!(driver.withdraw(&write).expect("it waits"), ["reader"]);
    driver.complete("reader");
    assert_eq!(driver.withdraw(&second).expect("the hold keeps it out"), NONE);
    assert!(driver.vars[0].is_quiet());
    driver.vars[0].unpin(|_, _| (), |_| unreachable!("nothing is left"));
}

#[test]
fn readers_behind_a_withdrawn_write_still_wait_for_the_write_before_it() {
    let mut driver = Driver::new(1);
    driver.submit("first", &[w(0)]);
    let write = driver.submit_ref("write", &[w(0)]);
    driver.submit("reader", &[r(0)]);
    assert_eq!(driver.withdraw(&write).expect("it waits"), NONE);
    assert_eq!(driver.complete("first"), ["reader"]);
}

#[test]
fn a_write_in_the_middle_of_those_that_wait_is_skipped() {
    let mut driver = Driver::new(1);
    driver.submit("first", &[r(0)]);
    driver.submit("second", &[w(0)]);
    let write = driver.submit_ref("write", &[w(0)]);
    driver.submit("reader", &[r(0)]);
    assert_eq!(driver.withdraw(&write).expect("it waits"), NONE);
    assert_eq!(driver.complete("first"), ["second"]);
    assert_eq!(driver.complete("second"), ["reader"]);
}

#[test]
fn a_variable_whose_only_waiting_write_is_withdrawn_is_quiet() {
    let mut driver = Driver::new(1);
    driver.submit("held", &[r(0)]);
    let write = driver.submit_ref("write", &[w(0)]);
    assert!(!driver.vars[0].is_quiet());
    driver.withdraw(&write).expect("it waits");
    assert!(driver.vars[0].is_quiet());
    driver.submit("reader", &[r(0)]);
    assert_eq!(driver.granted(), ["held", "reader"]);
}

/// Of five variables, so that the accesses are spilled.
#[test]
fn what_was_granted_of_a_withdrawn_operation_is_given_up_too() {
    let mut driver = Driver::new(5);
    driver.submit("held", &[r(2)]);
    let all = driver.submit_ref("all", &[w(0), w(1), w(2), w(3), w(4)]);
    driver.submit("reads", &[r(0), r(1)]);
    driver.submit("writes", &[w(3), w(4)]);
    driver.submit("joins", &[w(0), r(2)]);
    assert_eq!(driver.granted(), ["held"]);
    let mut granted = driver.withdraw(&all).expect("it waits");
    granted.sort_unstable();
    assert_eq!(granted, ["reads", "writes"]);
    assert_eq!(driver.complete("reads"), ["joins"]);
    driver.drain();
    assert!(driver.vars.iter().all(Var::is_quiet));
}

#[test]
fn an_operation_that_is_granted_or_over_or_withdrawn_cannot_be_withdrawn() {
    let mut driver = Driver::new(1);
    let granted = driver.submit_ref("granted", &[w(0)]);
    let waits = driver.submit_ref("waits", &[r(0)]);
    assert!(driver.withdraw(&granted).is_none());
    assert!(driver.withdraw(&waits).is_some());
    assert!(driver.withdraw(&waits).is_none(), "once");
    driver.complete("granted");
    assert!(driver.withdraw(&granted).is_none());
    let nothing = driver.submit_ref("nothing", &[]);
    assert!(driver.withdraw(&nothing).is_none(), "waits for nothing");
}

#[test]
fn a_withdrawn_operation_is_in_no_picture() {
    let mut driver = Driver::new(2);
    driver.submit("held", &[r(0)]);
    let write = driver.submit_ref("write", &[w(0), r(1)]);
    driver.withdraw(&write).expect("it waits");
    let picture = driver.graph.snapshot(|op| op.name.clone());
    assert_eq!(picture.ops.iter().map(|op| op.label.as_str()).collect::<Vec<_>>(), ["held"]);
    assert!(driver.graph.waiting().is_empty());
    let queued: Vec<_> = driver.vars[0].queued().iter().map(|op| op.payload().name.clone()).collect();
    assert_eq!(queued, ["held"]);
}

#[test]
fn an_operation_that_was_queued_before_a_collapse_leaves_the_member() {
    let mut driver = Driver::new(2);
    driver.submit("held", &[r(0)]);
    let before = driver.submit_ref("before", &[w(0)]);
    driver.collapse("collapse", &[0], 1);
    let after = driver.submit_ref("after", &[w(0)]);
    driver.submit("reader", &[r(1)]);
    assert_eq!(driver.withdraw(&before).expect("on the member"), NONE);
    assert_eq!(driver.withdraw(&after).expect("on the group"), NONE);
    assert_eq!(driver.complete("held"), ["collapse"]);
    assert_eq!(driver.complete("collapse"), ["reader"]);
}

#[test]
fn reads_of_a_write_that_was_split_are_joined() {
    let mut driver = Driver::new(1);
    let x = driver.vars[0].clone();
    let running =
        driver.graph.op("running".into(), [(&x, AccessMode::Write)]).submit_unreferenced().expect("idle");
    let lease = running.split("lease".into(), &[&x], AccessMode::Read);
    none(complete(running));
    let write = driver.submit_ref("write", &[w(0)]);
    driver.submit("reader", &[r(0)]);
    assert_eq!(driver.withdraw(&write).expect("the lease keeps it out"), ["reader"]);
    none(complete(lease));
}

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_payload_of_a_withdrawn_operation_is_dropped_with_its_last_reference() {
    let drops = Arc::new(AtomicUsize::new(0));
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let held = graph.op(Value::default(), [(&x, AccessMode::Write)]).submit_unreferenced().expect("idle");
    let (request, _) = graph.op(Value::of(Counted(Arc::clone(&drops))), [(&x, AccessMode::Read)]).submit();
    let another = request.clone();
    assert!(request.withdraw(|_| unreachable!("nothing waits behind it")));
    drop(request);
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    drop(another);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    none(complete(held));
}

#[test]
fn a_variable_may_go_after_the_withdrawal() {
    let drops = Arc::new(AtomicUsize::new(0));
    let graph = Graph::new();
    let x = graph.var(Value::of(Counted(Arc::clone(&drops))));
    let held = graph.op(Value::default(), [(&x, AccessMode::Read)]).submit_unreferenced().expect("idle");
    let (request, _) = graph.op(Value::default(), [(&x, AccessMode::Write)]).submit();
    assert!(request.withdraw(|_| ()));
    drop((x, graph));
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    none(complete(held));
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert!(!request.withdraw(|_| ()));
}

/// A member without handles lives until the accesses that were submitted through it are through. Writes of
/// the group that are withdrawn, before or behind those, must make it end neither early nor late.
#[test]
fn a_parked_member_ends_with_its_last_access_whatever_is_withdrawn() {
    let drops = Arc::new(AtomicUsize::new(0));
    let graph = Graph::new();
    let member = graph.var(Value::of(Counted(Arc::clone(&drops))));
    let group = graph.var(Value::default());
    none(complete(graph.collapse("collapse".into(), &[&member], &group).expect("idle")));
    let dropped = || drops.load(Ordering::SeqCst);

    let first = graph.op("first".into(), [(&group, AccessMode::Write)]).submit_unreferenced().expect("idle");
    let (ahead, _) = graph.op("ahead".into(), [(&group, AccessMode::Write)]).submit();
    assert!(graph.op("second".into(), [(&group, AccessMode::Write)]).submit_unreferenced().is_none());
    assert!(
        graph.op("through the member".into(), [(&member, AccessMode::Read)]).submit_unreferenced().is_none()
    );
    drop(member);
    let (behind, _) = graph.op("behind".into(), [(&group, AccessMode::Write)]).submit();
    assert!(graph.op("last".into(), [(&group, AccessMode::Write)]).submit_unreferenced().is_none());
    assert!(graph.op("more".into(), [(&group, AccessMode::Write)]).submit_unreferenced().is_none());
    assert!(behind.withdraw(|_| ()));
    assert!(ahead.withdraw(|_| ()));
    let mut next = Some(first);
    for (name, ended) in [("first", 0), ("second", 0), ("through the member", 0), ("last", 1), ("more", 1)] {
        let granted = next.take().expect("one after the other");
        assert_eq!(granted.payload().name, name);
        next = complete(granted).pop();
        assert_eq!(dropped(), ended, "after `{name}`");
    }
    assert!(next.is_none());
}

#[test]
fn a_parked_member_ends_when_a_withdrawal_empties_the_queue() {
    let drops = Arc::new(AtomicUsize::new(0));
    let graph = Graph::new();
    let member = graph.var(Value::of(Counted(Arc::clone(&drops))));
    let (group, other) = (graph.var(Value::default()), graph.var(Value::default()));
    none(complete(graph.collapse("collapse".into(), &[&member], &group).expect("idle")));
    let held = graph.op("held".into(), [(&other, AccessMode::Read)]).submit_unreferenced().expect("idle");
    // Granted on the group, waits on the other.
    let (request, _) =
        graph.op("request".into(), [(&member, AccessMode::Write), (&other, AccessMode::Write)]).submit();
    drop(member);
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    assert!(request.withdraw(|_| ()));
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    none(complete(held));
}

#[test]
fn a_variable_without_handles_ends_when_its_last_access_is_withdrawn() {
    let drops = Arc::new(AtomicUsize::new(0));
    let graph = Graph::new();
    let (x, other) = (graph.var(Value::of(Counted(Arc::clone(&drops)))), graph.var(Value::default()));
    let held = graph.op(Value::default(), [(&other, AccessMode::Read)]).submit_unreferenced().expect("idle");
    let (request, _) =
        graph.op(Value::default(), [(&x, AccessMode::Write), (&other, AccessMode::Write)]).submit();
    drop(x);
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    assert!(request.withdraw(|_| ()));
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    none(complete(held));
}

#[test]
fn a_million_requests_that_are_withdrawn_leave_nothing() {
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let held = graph.op(Value::default(), [(&x, AccessMode::Write)]).submit_unreferenced().expect("idle");
    for _ in 0..1_000_000 {
        let (request, granted) = graph.op(Value::default(), [(&x, AccessMode::Read)]).submit();
        assert!(granted.is_none());
        assert!(request.withdraw(|_| unreachable!("nothing waits")));
    }
    assert_eq!(x.queued().len(), 1);
    assert_eq!(graph.snapshot(|_| ()).ops.len(), 1);
    none(complete(held));
}

#[test]
fn an_operation_that_gives_its_reads_up_waits_for_its_writes_only() {
    let mut driver = Driver::new(3);
    driver.submit("held", &[r(0)]);
    driver.submit("writing", &[w(1)]);
    let op = driver.submit_ref("op", &[r(2), r(1), w(0)]);
    driver.submit("behind its reads", &[w(2)]);
    driver.submit("behind all", &[r(0), r(1)]);
    assert_eq!(driver.granted(), ["held", "writing"]);
    assert_eq!(driver.withdraw_reads(&op), (false, vec!["behind its reads".into()]));
    assert_eq!(driver.withdraw_reads(&op), (false, vec![]), "it has none any more");
    driver.complete("writing");
    assert_eq!(driver.complete("held"), ["op"]);
    assert_eq!(driver.accesses("op"), [w(0)]);
    assert_eq!(driver.complete("op"), ["behind all"]);
}

#[test]
fn an_operation_that_waited_for_its_reads_only_is_granted_when_it_gives_them_up() {
    let mut driver = Driver::new(2);
    driver.submit("writing", &[w(0)]);
    let op = driver.submit_ref("op", &[r(0), w(1)]);
    assert_eq!(driver.withdraw_reads(&op), (false, vec!["op".into()]));
    assert_eq!(driver.withdraw_reads(&op), (false, vec![]), "it is granted");
    assert_eq!(driver.accesses("op"), [w(1)]);
}

#[test]
fn an_operation_that_only_reads_is_over_when_it_gives_its_reads_up() {
    let mut driver = Driver::new(2);
    driver.submit("writing", &[w(0)]);
    let op = driver.submit_ref("op", &[r(0), r(1)]);
    driver.submit("behind it", &[w(1)]);
    assert_eq!(driver.withdraw_reads(&op), (true, vec!["behind it".into()]));
    assert!(driver.withdraw(&op).is_none());
}

/// Accesses are spilled beyond four: before, or before and after.
#[test]
fn the_writes_of_an_operation_stay_in_order_wherever_its_accesses_are_kept() {
    for vars in [2, 4, 5, 8, 9, 12] {
        for reads in 1..vars {
            let mut driver = Driver::new(vars);
            driver.submit("before", &(0..vars).map(w).collect::<Vec<_>>());
            // Every variable is read or written, mixed.
            let mode = |var| if (var * 5 + reads) % vars < reads { r(var) } else { w(var) };
            let accesses: Vec<_> = (0..vars).map(mode).collect();
            let op = driver.submit_ref("op", &accesses);
            let behind: Vec<String> = (0..vars).map(|var| format!("behind on {var}")).collect();
            for (var, name) in behind.iter().enumerate() {
                driver.submit(name, &[w(var)]);
            }
            assert_eq!(driver.withdraw_reads(&op), (false, vec![]));
            let mut writes: Vec<_> = accesses.into_iter().filter(|(_, mode)| mode.is_exclusive()).collect();
            writes.sort_unstable();
            let at_once = driver.complete("before");
            assert_eq!(at_once.len(), 1 + vars - writes.len());
            assert_eq!(driver.accesses("op"), writes);
            assert_eq!(driver.complete("op").len(), writes.len());
            assert_eq!(driver.drain(), vars);
            assert!(driver.vars.iter().all(Var::is_quiet));
        }
    }
}
