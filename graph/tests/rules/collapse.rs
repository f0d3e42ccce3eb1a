//! Collapse: accesses to members become accesses to the group.

use std::sync::Arc;

use crate::common::{Driver, Graph, Value, complete, none, only, r, w};
use estafette_graph::AccessMode;

#[test]
fn accesses_to_members_are_ordered_against_each_other_after_a_collapse() {
    let mut driver = Driver::new(3);
    driver.collapse("collapse", &[0, 1], 2);
    driver.submit("w0", &[w(0)]);
    driver.submit("r1", &[r(1)]);
    driver.submit("r2", &[r(2)]);
    assert_eq!(driver.granted(), ["collapse"]);
    assert_eq!(driver.complete("collapse"), ["w0"]);
    assert_eq!(driver.accesses("w0"), [(2, AccessMode::Write)], "the state of the group");
    assert_eq!(driver.complete("w0"), ["r1", "r2"]);
    assert_eq!(driver.vars[0].with_state(|state, _| state.number), 0, "a member keeps its own state");
    assert_eq!(driver.vars[0].ordering(), driver.vars[2]);
}

#[test]
fn a_collapse_waits_for_what_its_members_have_queued() {
    let mut driver = Driver::new(3);
    driver.submit("w0", &[w(0)]);
    driver.submit("r1", &[r(1)]);
    driver.collapse("collapse", &[0, 1], 2);
    driver.submit("after", &[r(0)]);
    assert_eq!(driver.granted(), ["r1", "w0"]);
    let waiting: Vec<_> = driver.graph.waiting().iter().map(|op| op.payload().name.clone()).collect();
    assert_eq!(waiting, ["after"], "a collapse is in no list");
    assert_eq!(driver.complete("w0"), [""; 0]);
    assert_eq!(driver.complete("r1"), ["collapse"]);
    assert_eq!(driver.complete("collapse"), ["after"]);
}

#[test]
fn the_state_that_a_writer_ends_on_is_found_also_after_a_collapse() {
    let mut driver = Driver::new(3);
    driver.submit("w0", &[w(0)]);
    driver.submit("waits", &[w(0)]);
    driver.collapse("collapse", &[0, 1], 2);
    driver.submit("after", &[w(1)]);
    let id = |name: &str| {
        let queued = driver.vars[0].queued();
        queued.iter().find(|op| op.payload().name == name).map(|op| op.id()).expect("queued")
    };
    let (w0, waits, after) = (id("w0"), id("waits"), id("after"));
    let number = |driver: &Driver, op, number| {
        driver.vars[0].with_state_of_writer(op, |payload, state, _| {
            state.number = number;
            payload.name.clone()
        })
    };
    assert_eq!(number(&driver, w0, 7).as_deref(), Some("w0"));
    assert_eq!(driver.vars[0].with_state(|state, _| state.number), 7, "the writer ends on the member");
    assert_eq!(number(&driver, waits, 8), None, "it is not granted");
    driver.complete("w0");
    assert_eq!(number(&driver, w0, 8), None, "it is over");
    driver.complete("waits");
    driver.complete("collapse");
    let before = driver.vars[2].with_state(|state, _| state.number);
    assert_eq!(number(&driver, after, before + 9).as_deref(), Some("after"));
    assert_eq!(
        driver.vars[2].with_state(|state, _| state.number),
        before + 9,
        "the writer ends on the group"
    );
}

#[test]
fn order_questions_of_a_member_are_answered_by_the_group() {
    let mut driver = Driver::new(3);
    driver.collapse("collapse", &[0, 1], 2);
    assert!(driver.vars[0].has_unfinished_write());
    driver.complete("collapse");
    assert!(driver.vars.iter().all(|var| var.is_quiet()));
    driver.submit("w1", &[w(1)]);
    assert!(driver.vars.iter().all(|var| !var.is_quiet()));
    driver.complete("w1");
    driver.vars[2].with_state(|_, flags| *flags = 5);
    assert_eq!(driver.vars[0].flags(), 5);
}

#[test]
fn duplicate_members_and_the_group_among_its_members_are_merged() {
    let mut driver = Driver::new(2);
    driver.collapse("collapse", &[0, 0, 1, 0], 1);
    assert_eq!(driver.accesses("collapse").len(), 2);
    driver.complete("collapse");
    driver.collapse("again", &[0, 1], 1);
    assert_eq!(driver.accesses("again"), [(1, AccessMode::Write)]);
    driver.complete("again");
    driver.collapse("upside down", &[1], 0);
    assert_eq!(driver.accesses("upside down"), [(1, AccessMode::Write)], "one group already");
}

#[test]
fn two_members_of_one_group_in_one_operation_are_one_access() {
    let mut driver = Driver::new(3);
    driver.collapse("collapse", &[0, 1], 2);
    driver.complete("collapse");
    driver.submit("both", &[r(0), w(1)]);
    assert_eq!(driver.accesses("both"), [(2, AccessMode::Update)]);
}

#[test]
fn groups_collapse_into_larger_groups() {
    let mut driver = Driver::new(5);
    driver.collapse("left", &[0], 1);
    driver.collapse("right", &[2], 3);
    driver.submit("w0", &[w(0)]);
    driver.collapse("both", &[0, 3], 4);
    driver.submit("w2", &[w(2)]);
    driver.submit("r1", &[r(1)]);
    assert_eq!(driver.complete("left"), ["w0"]);
    assert_eq!(driver.complete("right"), [""; 0]);
    assert_eq!(driver.complete("w0"), ["both"]);
    assert_eq!(
        driver.accesses("both"),
        [(1, AccessMode::Write), (3, AccessMode::Write), (4, AccessMode::Write)]
    );
    assert_eq!(driver.complete("both"), ["w2"]);
    assert_eq!(driver.complete("w2"), ["r1"]);
    assert!((0..4).all(|member| driver.vars[member].ordering() == driver.vars[4]));
}

#[test]
fn a_long_chain_of_groups_is_dropped_without_recursion() {
    const LENGTH: usize = 4_000;
    let on_a_small_stack = || {
        let graph = Graph::new();
        let witness = Arc::new(());
        let first = graph.var(Value::of(witness.clone()));
        let mut last = first.clone();
        for _ in 0..LENGTH {
            let next = graph.var(Value::of(witness.clone()));
            none(complete(graph.collapse(Value::default(), &[&last], &next).expect("idle")));
            last = next;
        }
        assert_eq!(first.ordering(), last);
        drop(last);
        assert_eq!(Arc::strong_count(&witness), LENGTH + 2, "the member holds them all");
        drop(first);
        assert_eq!(Arc::strong_count(&witness), 1);
    };
    let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(on_a_small_stack);
    thread.expect("a thread").join().expect("no overflow, no failed assertion");
}

#[test]
fn a_member_dropped_while_its_accesses_queue_on_the_group_lives_until_they_are_through() {
    let graph = Graph::new();
    let witness = Arc::new(());
    let alive = || Arc::strong_count(&witness) == 2;
    let member = graph.var(Value::of(witness.clone()));
    let group = graph.var(Value::default());
    let collapse = graph.collapse("collapse".into(), &[&member], &group).expect("idle");
    assert!(
        graph.op("through the member".into(), [(&member, AccessMode::Write)]).submit_unreferenced().is_none()
    );
    drop(member);
    assert!(graph.op("later".into(), [(&group, AccessMode::Write)]).submit_unreferenced().is_none());
    let mut next = Some(collapse);
    let mut step = || {
        let granted = next.take().expect("a chain");
        next = complete(granted).pop();
    };
    step();
    assert!(alive(), "the write through the member is not done");
    step();
    step();
    assert!(!alive());
}

#[test]
fn a_parked_member_goes_when_a_later_write_of_a_busy_group_completes() {
    let graph = Graph::new();
    let witness = Arc::new(());
    let member = graph.var(Value::of(witness.clone()));
    let group = graph.var(Value::default());
    none(complete(graph.collapse("collapse".into(), &[&member], &group).expect("idle")));
    let (slow, quick) = (
        graph.op("slow".into(), [(&member, AccessMode::Read)]).submit_unreferenced().expect("idle"),
        graph
            .op("quick".into(), [(&group, AccessMode::Read)])
            .submit_unreferenced()
            .expect("readers together"),
    );
    drop(member);
    assert!(graph.op("write".into(), [(&group, AccessMode::Write)]).submit_unreferenced().is_none());
    assert!(
        graph
            .op("keeps the queue busy".into(), [(&group, AccessMode::Write)])
            .submit_unreferenced()
            .is_none()
    );
    none(complete(quick));
    assert_eq!(Arc::strong_count(&witness), 2);
    let last = only(complete(only(complete(slow))));
    assert_eq!(Arc::strong_count(&witness), 1, "everything queued when the member was dropped is done");
    none(complete(last));
}

#[test]
fn a_member_dropped_before_its_collapse_completes_waits_for_it() {
    let graph = Graph::new();
    let witness = Arc::new(());
    let member = graph.var(Value::of(witness.clone()));
    let group = graph.var(Value::default());
    let ahead = graph.op("ahead".into(), [(&member, AccessMode::Read)]).submit_unreferenced().expect("idle");
    assert!(graph.collapse("collapse".into(), &[&member], &group).is_none());
    drop((member, group));
    assert_eq!(graph.snapshot(|_| ()).ops.len(), 2);
    let collapse = only(complete(ahead));
    assert_eq!(Arc::strong_count(&witness), 2);
    none(complete(collapse));
    assert_eq!(Arc::strong_count(&witness), 1);
}
