//! Split: part of a running operation goes on as an operation of its own, and nothing gets in between.

use std::sync::Arc;

use estafette_graph::{Granted, Graph, Mode, Var};

type G = Graph<Option<Arc<()>>, &'static str>;
type Token = Granted<Option<Arc<()>>, &'static str>;

fn complete(granted: Token) -> Vec<Token> {
    let mut ready = Vec::new();
    granted.complete(|_| (), |granted| ready.push(granted));
    ready
}

fn only(mut granted: Vec<Token>) -> Token {
    assert_eq!(granted.len(), 1, "{granted:?}");
    granted.pop().expect("one")
}

fn none(granted: Vec<Token>) {
    assert!(granted.is_empty(), "{granted:?}");
}

#[test]
fn a_writer_waits_for_the_operation_and_what_was_split_off() {
    for lease_first in [true, false] {
        let graph = G::new();
        let x = graph.var(None);
        let running = graph.op("running", [(&x, Mode::Write)]).submit_unreferenced().expect("idle");
        assert!(graph.op("next", [(&x, Mode::Write)]).submit_unreferenced().is_none());
        let lease = running.split("lease", &[&x], Mode::Write);
        let order = if lease_first { [lease, running] } else { [running, lease] };
        let [first, second] = order;
        none(complete(first));
        assert!(x.has_unfinished_write());
        none(complete(only(complete(second))));
        assert!(x.is_quiet());
    }
}

#[test]
fn a_reader_does_not_join_a_split_off_read_while_the_write_still_runs() {
    let graph = G::new();
    let x = graph.var(None);
    let running = graph.op("running", [(&x, Mode::Write)]).submit_unreferenced().expect("idle");
    let lease = running.split("lease", &[&x], Mode::Read);
    assert!(graph.op("reader", [(&x, Mode::Read)]).submit_unreferenced().is_none(), "the write is not done");
    let reader = only(complete(running));
    assert_eq!(*reader.payload(), "reader", "and joins the lease once it is");
    assert!(graph.op("writer", [(&x, Mode::Write)]).submit_unreferenced().is_none());
    none(complete(lease));
    none(complete(only(complete(reader))));
}

#[test]
fn readers_wait_for_every_writer_that_was_split() {
    let graph = G::new();
    let x = graph.var(None);
    let running = graph.op("running", [(&x, Mode::Write)]).submit_unreferenced().expect("idle");
    let (write, read) =
        (running.split("write", &[&x], Mode::Write), running.split("read", &[&x], Mode::Read));
    assert!(graph.op("reader", [(&x, Mode::Read)]).submit_unreferenced().is_none());
    assert!(graph.op("writer", [(&x, Mode::Update)]).submit_unreferenced().is_none());
    none(complete(write));
    let reader = only(complete(running));
    none(complete(reader));
    none(complete(only(complete(read))));
}

#[test]
fn a_picture_names_the_operation_and_the_lease_as_blockers() {
    let graph = G::new();
    let x = graph.var(None);
    let running = graph.op("running", [(&x, Mode::Write)]).submit_unreferenced().expect("idle");
    let lease = running.split("lease", &[&x], Mode::Read);
    assert!(graph.op("waits", [(&x, Mode::Write)]).submit_unreferenced().is_none());
    let snapshot = graph.snapshot(|name| *name);
    let waits = snapshot.ops.iter().find(|op| op.label == "waits").expect("queued").id;
    assert_eq!(snapshot.leaves(waits), [running.id(), lease.id()]);
    none(complete(running));
    none(complete(only(complete(lease))));
}

#[test]
fn a_split_of_a_collapsed_variable_follows_to_the_group_that_is_used() {
    let graph = G::new();
    let (member, group) = (graph.var(None), graph.var(None));
    let before = graph.op("before", [(&member, Mode::Write)]).submit_unreferenced().expect("idle");
    assert!(graph.collapse("collapse", &[&member], &group).is_none());
    let lease = before.split("lease", &[&member], Mode::Write);
    none(complete(before));
    let collapse = only(complete(lease));
    none(complete(collapse));
    let after = graph.op("after", [(&member, Mode::Write)]).submit_unreferenced().expect("idle");
    let lease = after.split("lease", &[&member], Mode::Write);
    none(complete(after));
    assert!(graph.op("waits", [(&group, Mode::Read)]).submit_unreferenced().is_none());
    none(complete(only(complete(lease))));
}

#[test]
fn a_split_does_not_free_a_parked_member_early() {
    let graph = G::new();
    let witness = Arc::new(());
    let (member, group): (Var<_, _>, Var<_, _>) = (graph.var(Some(witness.clone())), graph.var(None));
    none(complete(graph.collapse("collapse", &[&member], &group).expect("idle")));
    let running = graph.op("running", [(&group, Mode::Write)]).submit_unreferenced().expect("idle");
    assert!(graph.op("through the member", [(&member, Mode::Read)]).submit_unreferenced().is_none());
    drop(member);
    let lease = running.split("lease", &[&group], Mode::Write);
    none(complete(running));
    let last = only(complete(lease));
    assert_eq!(Arc::strong_count(&witness), 2, "the read through the member is not done");
    none(complete(last));
    assert_eq!(Arc::strong_count(&witness), 1);
}

#[test]
#[should_panic(expected = "op 1 reads var 1 and cannot be split into a writer of it")]
fn a_reader_cannot_be_split_into_a_writer() {
    let graph = G::new();
    let x = graph.var(None);
    let running = graph.op("running", [(&x, Mode::Read)]).submit_unreferenced().expect("idle");
    let _ = running.split("lease", &[&x], Mode::Write);
}

/// However many there are, and in whatever order they are asked for.
#[test]
fn each_variable_of_an_operation_is_split_off_on_its_own() {
    for count in [1, 2, 3, 4, 5, 7, 8, 33_usize] {
        let graph = G::new();
        let vars: Vec<Var<_, _>> = (0..count).map(|_| graph.var(None)).collect();
        let running = graph
            .op("running", vars.iter().map(|var| (var, Mode::Write)))
            .submit_unreferenced()
            .expect("idle");
        let stranger = graph.var(None);
        // 13 has no divisor in common with any of these counts.
        let split = |at| running.split("lease", &[&vars[at * 13 % count]], Mode::Read);
        let leases: Vec<_> = (0..count).map(split).collect();
        let foreign = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            running.split("lease", &[&stranger], Mode::Read)
        }));
        assert!(foreign.is_err(), "it does not use this one");
        none(complete(running));
        assert!(vars.iter().all(|var| !var.has_unfinished_write()));
        leases.into_iter().for_each(|lease| none(complete(lease)));
        assert!(vars.iter().all(Var::is_quiet));
    }
}
