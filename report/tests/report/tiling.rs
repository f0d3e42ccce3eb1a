//! Whatever a trace says, true or not: the intervals of each access tile a time that begins with its
//! submission, and what is built on them neither fails nor loses a nanosecond.

use std::collections::HashMap;

use estafette_report::Trace;
use estafette_report::attribution::attribute;
use estafette_report::model::{
    Access, AccessMode, Blocker, Cause, IN_FLIGHT_LIMIT, Lease, LostRecords, Operation, OperationKind,
    Outcome, Stall, Track, TrackKind, Workers,
};
use estafette_report::roots::roots;
use estafette_report::walk::walk;
use proptest::prelude::*;

const DURATION: u64 = 1_000;

fn moment() -> BoxedStrategy<Option<u64>> {
    prop_oneof![1 => Just(None), 4 => (0..DURATION).prop_map(Some)].boxed()
}

fn mode() -> BoxedStrategy<AccessMode> {
    prop_oneof![Just(AccessMode::Read), Just(AccessMode::Write), Just(AccessMode::Update)].boxed()
}

fn kind() -> BoxedStrategy<OperationKind> {
    prop_oneof![
        4 => Just(OperationKind::Operation),
        1 => Just(OperationKind::Wait),
        1 => Just(OperationKind::Await),
        1 => Just(OperationKind::Export),
    ]
    .boxed()
}

/// An operation whose moments come in any order, some of them lost.
fn operation() -> BoxedStrategy<Operation> {
    let moments = (moment(), moment(), moment(), moment(), moment(), moment(), moment(), moment());
    let accesses = prop::collection::vec((1..5_u64, mode()), 0..4);
    let about =
        (kind(), prop::option::of(0..4_usize), prop::option::of(0..4_usize), prop::option::of(1..40_u64));
    (0..DURATION, moments, accesses, about)
        .prop_map(|(submitted, moments, mut accesses, about)| {
            accesses.sort_by_key(|(variable, _)| *variable);
            accesses.dedup_by_key(|(variable, _)| *variable);
            let accesses: Vec<Access> =
                accesses.into_iter().map(|(variable, mode)| Access { variable, mode }).collect();
            let (granted, ready, awake, began, issued, done, observed, resumed) = moments;
            Operation {
                id: 0,
                name: "op".into(),
                kind: about.0,
                library: None,
                site: None,
                submitter: about.1,
                track: about.2,
                submitted,
                granted,
                ready,
                awake,
                began,
                issued,
                // As a device may report, or a damaged file.
                ran: began.zip(done),
                done,
                observed,
                resumed,
                outcome: Outcome::Ok,
                waits_for: if accesses.is_empty() { about.3 } else { None },
                disorder: None,
                origin: None,
                engine: 0,
                accesses,
            }
        })
        .boxed()
}

fn trace() -> BoxedStrategy<Trace> {
    (prop::collection::vec(operation(), 1..40), any::<bool>())
        .prop_map(|(mut operations, lost)| {
            let kinds = [TrackKind::Worker, TrackKind::Thread, TrackKind::Queue, TrackKind::EventLoop];
            let mut trace = Trace {
                duration: DURATION,
                tracks: kinds.map(|kind| Track { name: format!("{kind:?}").into(), kind }).into(),
                ..Trace::default()
            };
            for (at, operation) in operations.iter_mut().enumerate() {
                operation.id = at as u64 + 1;
                if let (OperationKind::Export, Some(opened), Some(access)) =
                    (operation.kind, operation.began, operation.accesses.first())
                {
                    trace.leases.push(Lease {
                        id: operation.id,
                        variable: access.variable,
                        access: access.mode,
                        library: None,
                        owner: "a reader".into(),
                        site: None,
                        opened,
                        closed: operation.issued.filter(|closed| *closed >= opened),
                    });
                }
            }
            trace.operations = operations;
            if lost {
                trace.losses.records.push(LostRecords { track: 0, count: 7 });
            }
            trace
        })
        .boxed()
}

/// Joins intervals that follow each other; `None` if two overlap.
fn joined(stalls: &[&Stall]) -> Option<Vec<(u64, u64)>> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for stall in stalls {
        if stall.from >= stall.to {
            return None;
        }
        match joined.last_mut() {
            Some(last) if stall.from < last.1 => return None,
            Some(last) if stall.from == last.1 => last.1 = stall.to,
            _ => joined.push((stall.from, stall.to)),
        }
    }
    Some(joined)
}

/// An operation that ran: when it was submitted, ready, taken and over, and its track.
fn ran(id: u64, [submitted, ready, awake, issued, track]: [u64; 5]) -> Operation {
    Operation {
        id,
        name: "op".into(),
        track: Some(track as usize),
        submitted,
        granted: Some(submitted),
        ready: Some(ready),
        awake: Some(awake),
        began: Some(awake),
        issued: Some(issued),
        done: Some(issued),
        observed: Some(issued),
        outcome: Outcome::Ok,
        accesses: vec![Access { variable: id, mode: AccessMode::Write }],
        ..Operation::default()
    }
}

#[test]
fn what_a_waiting_thread_runs_lacked_a_worker_only_while_all_were_busy() {
    let mut trace = Trace {
        duration: 10_000_000,
        tracks: vec![
            Track { name: "worker 0".into(), kind: TrackKind::Worker },
            Track { name: "main".into(), kind: TrackKind::Thread },
        ],
        operations: vec![
            ran(1, [0, 0, 0, 1_000, 0]),
            ran(2, [1_000_000, 1_000_000, 1_300_000, 1_400_000, 1]),
            ran(3, [2_000_000, 2_000_000, 2_000_000, 3_000_000, 0]),
            ran(4, [2_500_000, 2_500_000, 2_600_000, 2_700_000, 1]),
        ],
        ..Trace::default()
    };
    attribute(&mut trace);
    let stalls = |waiter: u64| -> Vec<_> {
        let of_it = trace.stalls.iter().filter(|stall| stall.waiter == waiter);
        of_it.map(|stall| (stall.cause, stall.blocker, stall.duration())).collect()
    };
    assert_eq!(stalls(2), [(Cause::NotResumed, Blocker::Pool, 300_000)]);
    assert_eq!(stalls(4), [(Cause::NoWorker, Blocker::Pool, 100_000)]);
}

#[test]
fn a_lease_that_its_holder_was_late_for_is_open_from_then_on() {
    let mut trace = Trace {
        duration: 10_000_000,
        tracks: vec![
            Track { name: "worker 0".into(), kind: TrackKind::Worker },
            Track { name: "main".into(), kind: TrackKind::Thread },
        ],
        operations: vec![
            // Granted at once, to a task that is polled at three milliseconds.
            Operation {
                kind: OperationKind::Export,
                accesses: vec![Access { variable: 1, mode: AccessMode::Write }],
                resumed: Some(3_000_000),
                awake: None,
                ..ran(1, [0, 0, 0, 4_000_000, 1])
            },
            Operation {
                accesses: vec![Access { variable: 1, mode: AccessMode::Write }],
                granted: Some(4_000_000),
                ..ran(2, [1_000_000, 4_000_000, 4_000_000, 5_000_000, 0])
            },
        ],
        leases: vec![Lease {
            id: 1,
            variable: 1,
            access: AccessMode::Write,
            opened: 0,
            closed: Some(4_000_000),
            library: None,
            owner: "task".into(),
            site: None,
        }],
        ..Trace::default()
    };
    attribute(&mut trace);
    let roots = roots(&trace).into_iter().filter(|root| root.waiter == 2);
    let roots: Vec<_> = roots.map(|root| (root.cause, root.blocker, root.duration())).collect();
    let truth =
        [(Cause::NotResumed, Blocker::Thread(1), 2_000_000), (Cause::Leased, Blocker::Lease(1), 1_000_000)];
    assert_eq!(roots, truth);
}

#[test]
fn what_a_wait_is_for_before_its_submission_had_not_been_submitted_yet() {
    let mut trace = Trace {
        duration: 10_000_000,
        tracks: vec![Track { name: "worker 0".into(), kind: TrackKind::Worker }],
        operations: vec![
            ran(1, [3_000_000, 3_000_000, 3_000_000, 4_000_000, 0]),
            Operation {
                id: 2,
                name: IN_FLIGHT_LIMIT.into(),
                kind: OperationKind::Await,
                waits_for: Some(1),
                resumed: Some(4_000_000),
                ..Operation::default()
            },
        ],
        ..Trace::default()
    };
    attribute(&mut trace);
    let worst = estafette_report::report(&trace).worst;
    let sentence = "because `op` had not been submitted yet";
    assert!(worst[0].sentence.ends_with(sentence), "{:?}", worst[0].sentence);
}

#[test]
fn a_worker_of_another_engine_that_is_busy_is_no_reason() {
    // Two engines, whose workers have the same name, with one worker each.
    let worker = || Track { name: "worker 0".into(), kind: TrackKind::Worker };
    let mut trace = Trace {
        duration: 10_000_000,
        tracks: vec![worker(), worker(), Track { name: "main".into(), kind: TrackKind::Thread }],
        operations: vec![
            ran(1, [0, 0, 0, 5_000_000, 0]),
            // Its own worker is idle until it begins.
            ran(2, [1_000_000, 1_000_000, 1_400_000, 3_000_000, 1]),
            // Its own worker is busy with the one before it.
            ran(3, [2_000_000, 2_000_000, 3_000_000, 3_500_000, 1]),
            // A waiting thread runs it.
            ran(4, [6_000_000, 6_000_000, 6_500_000, 7_000_000, 2]),
        ],
        ..Trace::default()
    };
    attribute(&mut trace);
    let stalls = |waiter: u64| -> Vec<_> {
        let of_it = trace.stalls.iter().filter(|stall| stall.waiter == waiter);
        of_it.map(|stall| (stall.cause, stall.blocker, stall.duration())).collect()
    };
    assert_eq!(stalls(2), [(Cause::NotResumed, Blocker::Thread(1), 400_000)]);
    assert_eq!(stalls(3), [(Cause::NoWorker, Blocker::Pool, 1_000_000)]);
    assert_eq!(stalls(4), [(Cause::NoWorker, Blocker::None, 500_000)]);
    let sentences: Vec<String> =
        estafette_report::report(&trace).worst.into_iter().map(|row| row.sentence).collect();
    assert!(sentences.iter().all(|sentence| !sentence.contains("all 2")), "{sentences:?}");
    assert!(sentences.iter().any(|it| it.ends_with("no worker of its engine was free, as far as is known")));
}

#[test]
fn what_no_worker_ran_lacked_one_of_its_own_engine() {
    let worker = || Track { name: "worker 0".into(), kind: TrackKind::Worker };
    let workers = |engine, track| Workers { engine, count: 1, tracks: vec![track], ..Workers::default() };
    let of = |engine, operation| Operation { engine, ..operation };
    let mut trace = Trace {
        duration: 10_000_000,
        tracks: vec![worker(), worker(), Track { name: "main".into(), kind: TrackKind::Thread }],
        workers: vec![workers(7, 0), workers(9, 1)],
        operations: vec![
            of(7, ran(1, [0, 0, 0, 5_000_000, 0])),
            of(9, ran(2, [0, 0, 0, 1_000_000, 1])),
            of(7, ran(3, [2_000_000, 2_000_000, 3_000_000, 3_100_000, 2])),
            of(9, ran(4, [3_500_000, 3_500_000, 4_000_000, 4_100_000, 2])),
        ],
        ..Trace::default()
    };
    attribute(&mut trace);
    let stalls = |waiter: u64| -> Vec<_> {
        let of_it = trace.stalls.iter().filter(|stall| stall.waiter == waiter);
        of_it.map(|stall| (stall.cause, stall.blocker, stall.duration())).collect()
    };
    assert_eq!(stalls(3), [(Cause::NoWorker, Blocker::Pool, 1_000_000)]);
    assert_eq!(stalls(4), [(Cause::NotResumed, Blocker::Pool, 500_000)]);
}

#[test]
fn workers_that_take_turns_one_by_one_do_not_fill_a_pool_that_runs_two_at_once() {
    const TURN: u64 = 20_000;
    let worker = |name: &str| Track { name: name.into(), kind: TrackKind::Worker };
    let mut operations = vec![ran(1, [1_000_000, 1_000_000, 4_000_000, 5_000_000, 0])];
    operations.extend((0..200).map(|turn| {
        let from = turn * TURN;
        ran(turn + 2, [from, from, from, from + TURN, turn % 2])
    }));
    let mut trace = Trace {
        duration: 10_000_000,
        tracks: vec![worker("worker 0"), worker("worker 1")],
        operations,
        workers: vec![Workers { count: 3, at_once: vec![(0, 2)], tracks: vec![0, 1], ..Workers::default() }],
        ..Trace::default()
    };
    attribute(&mut trace);
    let own = trace.stalls.iter().filter(|stall| stall.waiter == 1);
    let told: Vec<_> = own.map(|stall| (stall.cause, stall.duration())).collect();
    assert_eq!(told, [(Cause::NotResumed, 3_000_000)]);
}

/// The causes for which the operation 2 waited, and for how long, in an engine of these workers. It is ready
/// at one millisecond; the operation 1 runs until five.
fn waited_for(workers: Workers, others: Vec<Operation>) -> Vec<(Cause, u64)> {
    let worker = |name: &str| Track { name: name.into(), kind: TrackKind::Worker };
    let mut operations =
        vec![ran(1, [0, 0, 0, 5_000_000, 0]), ran(2, [1_000_000, 1_000_000, 5_000_000, 6_000_000, 0])];
    operations.extend(others);
    let mut trace = Trace {
        duration: 10_000_000,
        tracks: vec![worker("worker 0"), worker("worker 1")],
        operations,
        workers: vec![workers],
        ..Trace::default()
    };
    attribute(&mut trace);
    let of_it = trace.stalls.iter().filter(|stall| stall.waiter == 2);
    of_it.map(|stall| (stall.cause, stall.duration())).collect()
}

#[test]
fn a_worker_is_free_only_where_the_engine_lets_one_more_run() {
    let workers = |count, at_once: &[(u64, u32)]| Workers {
        count,
        at_once: at_once.to_vec(),
        tracks: vec![0, 1],
        ..Workers::default()
    };
    // The second one is a spare worker, or was there before.
    let [no_worker, late] = [Cause::NoWorker, Cause::NotResumed];
    assert_eq!(waited_for(workers(1, &[(0, 1)]), Vec::new()), [(no_worker, 4_000_000)]);
    assert_eq!(waited_for(workers(2, &[(0, 2)]), Vec::new()), [(late, 4_000_000)]);
    let fewer = workers(2, &[(0, 1), (3_000_000, 2)]);
    assert_eq!(waited_for(fewer, Vec::new()), [(no_worker, 2_000_000), (late, 2_000_000)]);
    // The body that runs waits for something, and the spare worker had time.
    let wait = Operation {
        id: 3,
        kind: OperationKind::Wait,
        submitter: Some(0),
        submitted: 2_000_000,
        resumed: Some(4_000_000),
        ..Operation::default()
    };
    let both = [(no_worker, 1_000_000), (late, 2_000_000), (no_worker, 1_000_000)];
    assert_eq!(waited_for(workers(1, &[(0, 1)]), vec![wait.clone()]), both);
    // It helps meanwhile.
    let helped = ran(4, [2_000_000, 2_000_000, 2_000_000, 4_000_000, 0]);
    assert_eq!(waited_for(workers(1, &[(0, 1)]), vec![wait, helped]), [(no_worker, 4_000_000)]);
}

#[test]
fn an_operation_that_is_ready_while_the_pool_fills_thousands_of_times_has_few_stalls_of_the_exact_sums() {
    const FILLS: u64 = 5_000;
    // Longer than what counts as a pause, and of lengths of their own.
    let (period, length) = (200_000, |fill: u64| 10_000 + fill);
    let duration = (FILLS + 1) * period;
    let mut operations = vec![ran(1, [0, 0, duration, duration + 1, 0])];
    for fill in 0..FILLS {
        let from = fill * period;
        operations.push(ran(fill + 2, [from, from, from, from + length(fill), 0]));
    }
    let mut trace = Trace {
        duration: duration + 1,
        tracks: vec![Track { name: "worker 0".into(), kind: TrackKind::Worker }],
        operations,
        ..Trace::default()
    };
    attribute(&mut trace);
    let stalls: Vec<&Stall> = trace.stalls.iter().filter(|stall| stall.waiter == 1).collect();
    assert!(stalls.len() <= 20, "{} stalls", stalls.len());
    assert_eq!(joined(&stalls), Some(vec![(0, duration)]));
    let waited = |cause: Cause| -> u64 {
        stalls.iter().filter(|stall| stall.cause == cause).map(|stall| stall.duration()).sum()
    };
    let full = (0..FILLS).map(length).sum();
    assert_eq!((waited(Cause::NoWorker), waited(Cause::NotResumed)), (full, duration - full));
}

proptest! {
    #[test]
    fn intervals_tile_the_time_that_was_waited(mut trace in trace()) {
        attribute(&mut trace);
        let mut accesses: HashMap<(u64, usize), Vec<&Stall>> = HashMap::new();
        let mut critical: HashMap<u64, Vec<&Stall>> = HashMap::new();
        for stall in &trace.stalls {
            accesses.entry((stall.waiter, stall.access)).or_default().push(stall);
            if stall.critical {
                critical.entry(stall.waiter).or_default().push(stall);
            }
        }
        for ((waiter, _), stalls) in &accesses {
            let operation = trace.operation(*waiter).unwrap();
            let joined = joined(stalls);
            prop_assert!(joined.is_some(), "{stalls:?}");
            // Once before it began and once on a queue, each time without a gap.
            let joined = joined.unwrap();
            let device = operation.track == Some(2) && operation.began.is_some();
            prop_assert!(joined.len() <= 1 + usize::from(device), "{joined:?} of {operation:?}");
            let first = joined[0].0;
            prop_assert!(device || first == operation.submitted, "since {first}: {operation:?}");
            prop_assert!(joined.iter().all(|(_, to)| *to <= DURATION));
        }
        for (waiter, stalls) in &critical {
            let operation = trace.operation(*waiter).unwrap();
            let device = operation.track == Some(2) && operation.began.is_some();
            if !device {
                prop_assert!(joined(stalls).is_some_and(|joined| joined.len() == 1), "{stalls:?}");
            }
        }
    }

    #[test]
    fn roots_are_as_long_as_the_stalls_that_they_are_of(mut trace in trace()) {
        attribute(&mut trace);
        let waited: u64 = trace.stalls.iter().filter(|stall| stall.critical).map(Stall::duration).sum();
        let roots: u64 = roots(&trace).iter().map(|root| root.duration()).sum();
        prop_assert_eq!(waited, roots);
    }

    #[test]
    fn the_walk_has_no_gap(mut trace in trace()) {
        attribute(&mut trace);
        for pair in walk(&trace).windows(2) {
            prop_assert_eq!(pair[0].to, pair[1].from);
        }
    }

    #[test]
    fn a_report_is_made_of_anything(mut trace in trace()) {
        attribute(&mut trace);
        let report = estafette_report::report(&trace);
        let json = serde_json::to_string(&report).unwrap();
        prop_assert_eq!(&serde_json::from_str::<estafette_report::Report>(&json).unwrap(), &report);
        for width in [10, 40, 80, 200] {
            let style = estafette_report::terminal::Style { width, ..Default::default() };
            let text = estafette_report::terminal::text(&report, style);
            prop_assert!(text.ends_with('\n') && !text.contains('\x1b'));
            let table = text.lines().filter(|line| line.chars().count() > width.max(40)).count();
            // Only a word, or a row of numbers, that is longer than the terminal is wide.
            prop_assert!(width < 80 || table == 0, "{text}");
        }
        let same = estafette_report::diff::difference(&report, &report);
        prop_assert!(same.operations.is_empty() && same.causes.is_empty());
    }
}
