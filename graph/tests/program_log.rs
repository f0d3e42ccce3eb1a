//! Recordings: dependences, order, critical path.

use estafette_graph::program::{Dependence, ProgramLog};
use estafette_graph::{Hazard, Mode, OpId, VarId};
use petgraph::visit::{EdgeRef, IntoEdgeReferences};

const READ: Mode = Mode::Read;
const WRITE: Mode = Mode::Write;

fn op(number: u64) -> OpId {
    OpId::new(number)
}

fn submit(log: &mut ProgramLog, number: u64, accesses: &[(u64, Mode)]) {
    let accesses = accesses.iter().map(|(var, mode)| (VarId::new(*var), *mode));
    log.submitted(op(number), format!("step {number}"), accesses, number);
}

fn run(log: &mut ProgramLog, number: u64, from_ns: u64, to_ns: u64) {
    log.granted(op(number), from_ns);
    log.started(op(number), from_ns);
    log.issued(op(number), to_ns);
    log.done(op(number), to_ns);
}

fn edges(log: &ProgramLog) -> Vec<(u64, u64, Hazard, u64)> {
    let graph = log.graph();
    let mut edges: Vec<_> = graph
        .edge_references()
        .map(|edge| {
            let Dependence { var, kind } = *edge.weight();
            (graph[edge.source()].get(), graph[edge.target()].get(), kind, var.get())
        })
        .collect();
    edges.sort_unstable();
    edges
}

#[test]
fn only_dependences_that_do_not_follow_from_others_are_edges() {
    let mut log = ProgramLog::new();
    submit(&mut log, 1, &[(1, WRITE)]);
    submit(&mut log, 2, &[(1, READ)]);
    submit(&mut log, 3, &[(1, READ)]);
    submit(&mut log, 4, &[(1, WRITE)]);
    submit(&mut log, 5, &[(1, Mode::Update)]);
    submit(&mut log, 6, &[(1, READ), (2, WRITE)]);
    assert_eq!(
        edges(&log),
        [
            (1, 2, Hazard::Raw, 1),
            (1, 3, Hazard::Raw, 1),
            (2, 4, Hazard::War, 1),
            (3, 4, Hazard::War, 1),
            (4, 5, Hazard::Waw, 1),
            (5, 6, Hazard::Raw, 1),
        ]
    );
}

#[test]
fn accesses_are_merged_as_the_graph_merges_them() {
    let mut log = ProgramLog::new();
    submit(&mut log, 1, &[(2, READ), (1, READ), (2, WRITE), (1, READ)]);
    let merged = [(VarId::new(1), READ), (VarId::new(2), Mode::Update)];
    assert_eq!(log.op(op(1)).expect("recorded").accesses, merged);
    assert_eq!(edges(&log), []);
}

#[test]
fn a_run_in_order_is_accepted_and_sorted() {
    let mut log = ProgramLog::new();
    submit(&mut log, 1, &[(1, WRITE)]);
    submit(&mut log, 2, &[(2, WRITE)]);
    submit(&mut log, 3, &[(1, READ), (2, READ)]);
    run(&mut log, 2, 0, 10);
    run(&mut log, 1, 5, 20);
    run(&mut log, 3, 20, 30);
    let order = log.check_topological().expect("in order");
    assert_eq!(order.len(), 3);
    assert_eq!(order[2], op(3));
}

#[test]
fn an_operation_granted_too_early_is_found() {
    let mut log = ProgramLog::new();
    submit(&mut log, 1, &[(1, WRITE)]);
    submit(&mut log, 2, &[(1, READ)]);
    run(&mut log, 1, 0, 20);
    run(&mut log, 2, 19, 30);
    let violation = log.check_topological().expect_err("the read came before the write was issued");
    assert_eq!((violation.first, violation.second), (op(1), op(2)));
    assert_eq!(
        violation.to_string(),
        "op 2 was granted at 19 ns, before op 1 was issued at 20 ns (RAW on var 1)"
    );
}

#[test]
fn the_critical_path_is_the_longest_chain_and_others_have_slack() {
    let mut log = ProgramLog::new();
    // A diamond: 1 → {2, 3} → 4, where 3 is slow, and 5 on its own.
    submit(&mut log, 1, &[(1, WRITE)]);
    submit(&mut log, 2, &[(1, READ), (2, WRITE)]);
    submit(&mut log, 3, &[(1, READ), (3, WRITE)]);
    submit(&mut log, 4, &[(2, READ), (3, READ)]);
    submit(&mut log, 5, &[(9, WRITE)]);
    run(&mut log, 1, 0, 10);
    run(&mut log, 2, 10, 15);
    run(&mut log, 3, 10, 110);
    run(&mut log, 4, 120, 123);
    run(&mut log, 5, 0, 13);
    let path = log.critical_path();
    assert_eq!(path.ops, [op(1), op(3), op(4)]);
    assert_eq!(path.length_ns, 113);
    let slack: Vec<_> = (1..=5).map(|number| path.slack_ns(op(number)).expect("recorded")).collect();
    assert_eq!(slack, [0, 95, 0, 0, 100]);
    assert_eq!(path.slack_ns(op(6)), None);
}

#[test]
fn an_empty_recording_has_an_empty_path() {
    let path = ProgramLog::new().critical_path();
    assert!(path.ops.is_empty());
    assert_eq!(path.length_ns, 0);
}

#[test]
fn events_of_unknown_operations_and_repeated_ones_are_counted() {
    let mut log = ProgramLog::new();
    log.done(op(7), 1);
    submit(&mut log, 1, &[(1, WRITE)]);
    submit(&mut log, 1, &[(2, WRITE)]);
    log.started(op(1), 5);
    log.started(op(1), 6);
    assert_eq!(log.ignored(), 3);
    assert_eq!(log.op(op(1)).expect("recorded").started_ns, Some(5));
    assert_eq!(log.ops().len(), 1);
}

#[test]
fn dot_names_operations_durations_and_dependences() {
    let mut log = ProgramLog::new();
    log.submitted(op(1), "say \"hi\"", [(VarId::new(1), WRITE)], 0);
    submit(&mut log, 2, &[(1, WRITE)]);
    run(&mut log, 1, 0, 42);
    let dot = log.to_dot();
    assert!(dot.starts_with("digraph {"), "{dot}");
    assert!(dot.contains(r#"op 1 say \"hi\""#), "{dot}");
    assert!(dot.contains("42 ns"), "{dot}");
    assert!(dot.contains(r#"0 -> 1 [ label = "WAW on var 1" ]"#), "{dot}");
}
