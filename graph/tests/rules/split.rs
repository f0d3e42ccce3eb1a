//! Split: part of a running operation goes on as an operation of its own, and nothing gets in between.

use std::sync::Arc;

use crate::common::{Graph, Value, Var, complete, none, only};
use estafette_graph::AccessMode;

#[test]
fn a_writer_waits_for_the_operation_and_what_was_split_off() {
    for lease_first in [true, false] {
        let graph = Graph::new();
        let x = graph.var(Value::default());
        let running =
            graph.op("running".into(), [(&x, AccessMode::Write)]).submit_unreferenced().expect("idle");
        assert!(graph.op("next".into(), [(&x, AccessMode::Write)]).submit_unreferenced().is_none());
        let lease = running.split("lease".into(), &[&x], AccessMode::Write);
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
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let running = graph.op("running".into(), [(&x, AccessMode::Write)]).submit_unreferenced().expect("idle");
    let lease = running.split("lease".into(), &[&x], AccessMode::Read);
    assert!(
        graph.op("reader".into(), [(&x, AccessMode::Read)]).submit_unreferenced().is_none(),
        "the write is not done"
    );
    let reader = only(complete(running));
    assert_eq!(reader.payload().name, "reader", "and joins the lease once it is");
    assert!(graph.op("writer".into(), [(&x, AccessMode::Write)]).submit_unreferenced().is_none());
    none(complete(lease));
    none(complete(only(complete(reader))));
}

#[test]
fn readers_wait_for_every_writer_that_was_split() {
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let running = graph.op("running".into(), [(&x, AccessMode::Write)]).submit_unreferenced().expect("idle");
    let (write, read) = (
        running.split("write".into(), &[&x], AccessMode::Write),
        running.split("read".into(), &[&x], AccessMode::Read),
    );
    assert!(graph.op("reader".into(), [(&x, AccessMode::Read)]).submit_unreferenced().is_none());
    assert!(graph.op("writer".into(), [(&x, AccessMode::Update)]).submit_unreferenced().is_none());
    none(complete(write));
    let reader = only(complete(running));
    none(complete(reader));
    none(complete(only(complete(read))));
}

#[test]
fn a_picture_names_the_operation_and_the_lease_as_dependencies() {
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let running = graph.op("running".into(), [(&x, AccessMode::Write)]).submit_unreferenced().expect("idle");
    let lease = running.split("lease".into(), &[&x], AccessMode::Read);
    assert!(graph.op("waits".into(), [(&x, AccessMode::Write)]).submit_unreferenced().is_none());
    let snapshot = graph.snapshot(|op| op.name.clone());
    let waits = snapshot.ops.iter().find(|op| op.label == "waits").expect("queued").id;
    assert_eq!(snapshot.leaves(waits), [running.id(), lease.id()]);
    none(complete(running));
    none(complete(only(complete(lease))));
}

#[test]
fn a_split_of_a_collapsed_variable_follows_to_the_group_that_is_used() {
    let graph = Graph::new();
    let (member, group) = (graph.var(Value::default()), graph.var(Value::default()));
    let before =
        graph.op("before".into(), [(&member, AccessMode::Write)]).submit_unreferenced().expect("idle");
    assert!(graph.collapse("collapse".into(), &[&member], &group).is_none());
    let lease = before.split("lease".into(), &[&member], AccessMode::Write);
    none(complete(before));
    let collapse = only(complete(lease));
    none(complete(collapse));
    let after = graph.op("after".into(), [(&member, AccessMode::Write)]).submit_unreferenced().expect("idle");
    let lease = after.split("lease".into(), &[&member], AccessMode::Write);
    none(complete(after));
    assert!(graph.op("waits".into(), [(&group, AccessMode::Read)]).submit_unreferenced().is_none());
    none(complete(only(complete(lease))));
}

#[test]
fn a_split_does_not_free_a_parked_member_early() {
    let graph = Graph::new();
    let witness = Arc::new(());
    let (member, group): (Var, Var) = (graph.var(Value::of(witness.clone())), graph.var(Value::default()));
    none(complete(graph.collapse("collapse".into(), &[&member], &group).expect("idle")));
    let running =
        graph.op("running".into(), [(&group, AccessMode::Write)]).submit_unreferenced().expect("idle");
    assert!(
        graph.op("through the member".into(), [(&member, AccessMode::Read)]).submit_unreferenced().is_none()
    );
    drop(member);
    let lease = running.split("lease".into(), &[&group], AccessMode::Write);
    none(complete(running));
    let last = only(complete(lease));
    assert_eq!(Arc::strong_count(&witness), 2, "the read through the member is not done");
    none(complete(last));
    assert_eq!(Arc::strong_count(&witness), 1);
}

#[test]
#[should_panic(expected = "op 1 reads var 1 and cannot be split into a writer of it")]
fn a_reader_cannot_be_split_into_a_writer() {
    let graph = Graph::new();
    let x = graph.var(Value::default());
    let running = graph.op("running".into(), [(&x, AccessMode::Read)]).submit_unreferenced().expect("idle");
    let _ = running.split("lease".into(), &[&x], AccessMode::Write);
}

/// However many there are, and in whatever order they are asked for.
#[test]
fn each_variable_of_an_operation_is_split_off_on_its_own() {
    for count in [1, 2, 3, 4, 5, 7, 8, 33_usize] {
        let graph = Graph::new();
        let vars: Vec<Var> = (0..count).map(|_| graph.var(Value::default())).collect();
        let running = graph
            .op("running".into(), vars.iter().map(|var| (var, AccessMode::Write)))
            .submit_unreferenced()
            .expect("idle");
        let stranger = graph.var(Value::default());
        // 13 has no divisor in common with any of these counts.
        let split = |at| running.split("lease".into(), &[&vars[at * 13 % count]], AccessMode::Read);
        let leases: Vec<_> = (0..count).map(split).collect();
        let foreign = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            running.split("lease".into(), &[&stranger], AccessMode::Read)
        }));
        assert!(foreign.is_err(), "it does not use this one");
        none(complete(running));
        assert!(vars.iter().all(|var| !var.has_unfinished_write()));
        leases.into_iter().for_each(|lease| none(complete(lease)));
        assert!(vars.iter().all(Var::is_quiet));
    }
}
