//! Traces that end before what is in them does: what has not ended waits, or runs, until the end of the
//! trace.

use estafette_report::attribution::attribute;
use estafette_report::model::{
    Access, AccessMode, Lease, Operation, OperationKind, Outcome, Track, TrackKind,
};
use estafette_report::{Trace, report};

const MAIN: usize = 0;
const WORKER: usize = 1;
const SECOND: u64 = 1_000_000_000;

fn tracks() -> Vec<Track> {
    vec![
        Track { name: "main".into(), kind: TrackKind::Thread },
        Track { name: "worker 0".into(), kind: TrackKind::Worker },
    ]
}

/// Submitted by the program, and nothing more.
fn unfinished(id: u64, name: &str, kind: OperationKind, submitted: u64, mode: AccessMode) -> Operation {
    Operation {
        id,
        name: name.into(),
        kind,
        submitter: Some(MAIN),
        submitted,
        accesses: vec![Access { variable: 1, mode }],
        ..Operation::default()
    }
}

fn trace(operations: Vec<Operation>, leases: Vec<Lease>) -> Trace {
    let mut trace = Trace { duration: SECOND, tracks: tracks(), operations, leases, ..Trace::default() };
    attribute(&mut trace);
    trace
}

/// The times that the run time was spent on sum up to the whole.
fn assert_whole(trace: &Trace) {
    let rows = report(trace).run_time;
    assert_eq!(rows.iter().map(|row| row.time_ns).sum::<u64>(), trace.duration, "{rows:?}");
}

#[test]
fn a_wait_that_never_ends_is_named_with_the_lease_that_holds_it_up() {
    let mut export = unfinished(1, "lease", OperationKind::Export, 1_000, AccessMode::Read);
    (export.granted, export.ready, export.began) = (Some(1_000), Some(1_000), Some(1_000));
    (export.issued, export.done, export.outcome) = (Some(1_000), Some(1_000), Outcome::Ok);
    let lease = Lease {
        id: 1,
        variable: 1,
        access: AccessMode::Read,
        library: None,
        owner: "the plotter".into(),
        site: None,
        opened: 1_000,
        closed: None,
    };
    let writer = unfinished(2, "writer", OperationKind::Operation, 2_000, AccessMode::Write);
    let wait = unfinished(3, "ready", OperationKind::Await, 3_000, AccessMode::Read);
    let trace = trace(vec![export, writer, wait], vec![lease]);
    let headline = report(&trace).headline;
    assert!(
        headline.contains("100 % of the run time of 1.00 s: leased (a lease taken by the plotter)"),
        "{headline}"
    );
    assert!(headline.contains("`writer` waited 1000 ms for a lease"), "{headline}");
    assert_whole(&trace);
}

#[test]
fn a_wait_for_what_still_runs_lasts_until_the_end() {
    let mut stuck = unfinished(1, "stuck", OperationKind::Operation, 1_000, AccessMode::Read);
    (stuck.granted, stuck.ready, stuck.began) = (Some(1_000), Some(1_000), Some(2_000));
    stuck.track = Some(WORKER);
    let writer = unfinished(2, "writer", OperationKind::Operation, 3_000, AccessMode::Write);
    let wait = unfinished(3, "ready", OperationKind::Await, 4_000, AccessMode::Read);
    let trace = trace(vec![stuck, writer, wait], vec![]);
    let headline = report(&trace).headline;
    assert!(headline.contains("computing (`stuck`)"), "{headline}");
    assert!(headline.contains("because `stuck` was still computing"), "{headline}");
    assert_whole(&trace);
}

#[test]
fn what_waits_for_something_before_the_trace_is_named() {
    let trace =
        trace(vec![unfinished(1, "behind", OperationKind::Operation, 1_000, AccessMode::Write)], vec![]);
    let headline = report(&trace).headline;
    assert!(
        headline.contains("queued (something unknown)") && headline.contains("`behind` waited"),
        "{headline}"
    );
    assert_whole(&trace);
}

#[test]
fn a_future_that_was_dropped_does_not_wait_until_the_end() {
    let mut dropped = unfinished(2, "ready", OperationKind::Await, 1_000, AccessMode::Read);
    (dropped.done, dropped.outcome) = (Some(2_000), Outcome::Cancelled);
    let stuck = unfinished(1, "behind", OperationKind::Operation, 500, AccessMode::Write);
    let trace = trace(vec![stuck, dropped], vec![]);
    let report = report(&trace);
    assert!(report.worst.iter().all(|row| row.waiter != 2 || row.waited_ns == 1_000), "{:?}", report.worst);
}

#[test]
fn the_run_time_of_a_trace_without_operations_is_the_programs_own() {
    let trace = trace(vec![], vec![]);
    let report = report(&trace);
    assert_eq!(report.run_time.len(), 1, "{:?}", report.run_time);
    assert_eq!(report.run_time[0].what, "the program did something else");
    assert_eq!(
        (report.headline.as_str(), report.advice.len()),
        ("Nothing waited.", 0),
        "{:?}",
        report.advice
    );
    assert_whole(&trace);
}
