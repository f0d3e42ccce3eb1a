//! Reads without an operation.

use crate::common::{Graph, Value, Var, complete, none, only};
use estafette_graph::{AccessMode, Hazard, OpId};

fn pin(graph: &Graph, var: &Var) -> OpId {
    let id = graph.next_id();
    let held = var.try_pin(|state, _| {
        state.pins.push(id);
        true
    });
    assert!(held, "nothing is in the way");
    id
}

/// Unpins and returns the names of the operations that are granted by that, completed in turn.
fn end(var: &Var, id: OpId) -> Vec<String> {
    let mut granted = Vec::new();
    var.unpin(|state, _| state.pins.retain(|pin| *pin != id), |op| granted.push(op));
    let mut names = Vec::new();
    while let Some(op) = granted.pop() {
        names.push(op.payload().name.clone());
        granted.extend(complete(op));
    }
    names
}

#[test]
fn a_write_waits_for_every_hold_and_reads_do_not() {
    let graph = Graph::new();
    let var = graph.var(Value::default());
    let (first, second) = (pin(&graph, &var), pin(&graph, &var));
    assert!(var.is_quiet(), "a reader leaves no write behind");
    let read = graph
        .op("read".into(), [(&var, AccessMode::Read)])
        .submit_unreferenced()
        .expect("readers do not wait for readers");
    assert!(graph.op("write".into(), [(&var, AccessMode::Write)]).submit_unreferenced().is_none());
    assert!(
        graph.op("late".into(), [(&var, AccessMode::Read)]).submit_unreferenced().is_none(),
        "no writer starves"
    );
    assert!(!var.try_pin(|_, _| unreachable!("not asked")), "a hold does not overtake a writer either");
    assert!(end(&var, second).is_empty());
    assert!(end(&var, first).is_empty(), "a reader is left");
    let write = only(complete(read));
    assert!(!var.try_pin(|_, _| true), "a write is under way");
    none(complete(only(complete(write))));
}

#[test]
fn the_last_hold_lets_the_writer_in_when_it_is_later_than_the_last_read() {
    let graph = Graph::new();
    let var = graph.var(Value::default());
    let id = pin(&graph, &var);
    let read = graph.op("read".into(), [(&var, AccessMode::Read)]).submit_unreferenced().expect("granted");
    assert!(graph.op("write".into(), [(&var, AccessMode::Update)]).submit_unreferenced().is_none());
    none(complete(read));
    assert_eq!(end(&var, id), ["write"]);
    assert!(var.is_quiet());
}

#[test]
fn a_hold_may_be_refused_by_what_the_variable_carries() {
    let graph = Graph::new();
    let var = graph.var(Value::default());
    var.with_state(|_, flags| *flags = 5);
    assert!(!var.try_pin(|_, flags| flags == 0));
    let write = graph.op("write".into(), [(&var, AccessMode::Write)]).submit_unreferenced();
    none(complete(write.expect("not held")));
    assert!(var.try_pin(|_, flags| flags == 5));
    var.unpin(|_, flags| *flags = 0, |_| unreachable!());
    assert_eq!(var.flags(), 0);
}

#[test]
fn what_was_collapsed_and_its_group_cannot_be_held() {
    let graph = Graph::new();
    let (member, group) = (graph.var(Value::default()), graph.var(Value::default()));
    let id = pin(&graph, &member);
    assert!(graph.collapse("collapse".into(), &[&member], &group).is_none(), "the collapse is a write");
    assert!(!member.try_pin(|_, _| true) && !group.try_pin(|_, _| true));
    assert_eq!(end(&member, id), ["collapse"], "a hold ends where it began");
    assert!(!member.try_pin(|_, _| true) && !group.try_pin(|_, _| true));
}

#[test]
#[should_panic(expected = "a pin is released once")]
fn a_pin_that_is_not_there_cannot_be_released() {
    Graph::new().var(Value::default()).unpin(|_, _| (), |_| ());
}

#[test]
fn a_picture_names_the_holders_that_block_a_write() {
    let graph = Graph::new();
    let (held, free) = (graph.var(Value::default()), graph.var(Value::default()));
    let ids = [pin(&graph, &held), pin(&graph, &held)];
    let picture = || {
        let label = |state: &mut Value, found: &mut Vec<_>| {
            found.extend(state.pins.iter().map(|id| (*id, "hold".to_owned())))
        };
        graph.snapshot_with(|op| op.name.clone(), label)
    };
    let idle = picture();
    assert_eq!((idle.ops.len(), idle.vars.len()), (2, 1));
    assert!(
        graph
            .op("write".into(), [(&held, AccessMode::Write), (&free, AccessMode::Write)])
            .submit_unreferenced()
            .is_none()
    );
    let snapshot = picture();
    let write = snapshot.ops.iter().find(|op| op.label == "write").expect("queued").id;
    let mut leaves = snapshot.leaves(write);
    leaves.sort();
    assert_eq!(leaves, ids);
    assert!(
        snapshot
            .dependencies(write)
            .iter()
            .all(|dependency| dependency.hazard == Hazard::War && dependency.var == held.id())
    );
    assert!(ids.iter().all(|id| snapshot.op(*id).is_some_and(|op| op.granted && op.label == "hold")));
    assert_eq!(end(&held, ids[0]), [""; 0]);
    assert_eq!(end(&held, ids[1]), ["write"]);
    assert!(picture().ops.is_empty());
}
