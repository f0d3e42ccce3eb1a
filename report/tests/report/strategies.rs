//! Traces of every shape that the model allows, likely or not.

use estafette_report::model::*;
use proptest::prelude::*;

const TRACKS: usize = 4;
const LIBRARIES: usize = 3;

fn string() -> BoxedStrategy<String> {
    prop_oneof!["[a-z.]{0,12}", ".{0,8}", Just("</script><b>\"&'\u{2028}".to_owned())].boxed()
}

fn text() -> BoxedStrategy<Text> {
    string().prop_map(Text::from).boxed()
}

fn time() -> BoxedStrategy<Nanos> {
    prop_oneof![0..2_000_u64, 0..(1_u64 << 50)].boxed()
}

fn maybe_time() -> BoxedStrategy<Option<Nanos>> {
    prop::option::of(time()).boxed()
}

fn site() -> BoxedStrategy<Option<Site>> {
    prop::option::of((text(), any::<u32>(), text()).prop_map(|(file, line, function)| Site {
        file,
        line,
        function,
    }))
    .boxed()
}

fn track_kind() -> BoxedStrategy<TrackKind> {
    use TrackKind::*;
    prop::sample::select(vec![Worker, Thread, EventLoop, Queue, Reactor, Reaper]).boxed()
}

fn operation_kind() -> BoxedStrategy<OperationKind> {
    use OperationKind::*;
    prop::sample::select(vec![Operation, Wait, Await, Copy, Export, Import]).boxed()
}

fn mode() -> BoxedStrategy<AccessMode> {
    prop::sample::select(vec![AccessMode::Read, AccessMode::Write, AccessMode::Update]).boxed()
}

fn hazard() -> BoxedStrategy<Hazard> {
    prop::sample::select(vec![Hazard::Raw, Hazard::War, Hazard::Waw]).boxed()
}

fn outcome() -> BoxedStrategy<Outcome> {
    prop_oneof![
        Just(Outcome::Ok),
        text().prop_map(Outcome::Failed),
        Just(Outcome::Cancelled),
        text().prop_map(Outcome::Skipped),
        Just(Outcome::Unfinished),
    ]
    .boxed()
}

fn blocker() -> BoxedStrategy<Blocker> {
    prop_oneof![
        (0..24_u64).prop_map(Blocker::Operation),
        (0..24_u64).prop_map(Blocker::Lease),
        (0..TRACKS).prop_map(Blocker::Queue),
        (0..TRACKS).prop_map(Blocker::Thread),
        prop::sample::select(vec![
            Blocker::None,
            Blocker::Pool,
            Blocker::Observer,
            Blocker::Interpreter,
            Blocker::EventLoop
        ]),
    ]
    .boxed()
}

fn access() -> BoxedStrategy<Access> {
    (0..8_u64, mode()).prop_map(|(variable, mode)| Access { variable, mode }).boxed()
}

fn library() -> BoxedStrategy<Option<LibraryId>> {
    prop::option::of(0..LIBRARIES).boxed()
}

fn track() -> BoxedStrategy<Option<TrackId>> {
    prop::option::of(0..TRACKS).boxed()
}

fn operation() -> BoxedStrategy<Operation> {
    let first = (text(), operation_kind(), library(), site(), track(), track(), outcome());
    let times = (time(), prop::array::uniform8(maybe_time()));
    let uses =
        (prop::collection::vec(access(), 0..4), prop::option::of(0..24_u64), disorder(), import_origin());
    (first, times, uses)
        .prop_map(|(first, times, (accesses, waits_for, disorder, origin))| {
            let (name, kind, library, site, submitter, track, outcome) = first;
            let (submitted, [granted, ready, awake, began, issued, done, observed, resumed]) = times;
            Operation {
                id: 0,
                name,
                kind,
                library,
                site,
                submitter,
                track,
                submitted,
                granted,
                ready,
                awake,
                began,
                issued,
                ran: began.zip(done),
                done,
                observed,
                resumed,
                outcome,
                accesses,
                waits_for,
                disorder: disorder.map(Box::new),
                origin: origin.map(Box::new),
                engine: 0,
            }
        })
        .boxed()
}

fn disorder() -> BoxedStrategy<Option<Disorder>> {
    let some = (any::<bool>(), site(), text());
    prop::option::weighted(0.2, some.prop_map(|(is_known, after, why)| Disorder { is_known, after, why }))
        .boxed()
}

/// Keys that leases of one of the processes may have.
fn import_origin() -> BoxedStrategy<Option<ImportOrigin>> {
    let clock =
        (prop::sample::select(vec!["this boot", "another boot"]), -(1_i64 << 46)..1 << 46, 0..1_u64 << 40);
    let clock = clock.prop_map(|(clock, ahead_ns, uncertainty_ns)| ClockOffset {
        clock: clock.into(),
        ahead_ns,
        uncertainty_ns,
    });
    let some = (any::<u32>(), 100..124_u64, prop::option::of(clock));
    prop::option::weighted(0.2, some.prop_map(|(process, key, clock)| ImportOrigin { process, key, clock }))
        .boxed()
}

fn process() -> BoxedStrategy<Process> {
    (any::<u32>(), any::<u64>(), 0..(1_u64 << 55), text())
        .prop_map(|(number, key, started_ns, clock)| Process { number, key, started_ns, clock })
        .boxed()
}

fn lease() -> BoxedStrategy<Lease> {
    (0..8_u64, mode(), library(), text(), site(), time(), maybe_time())
        .prop_map(|(variable, access, library, owner, site, opened, closed)| Lease {
            id: 0,
            variable,
            access,
            library,
            owner,
            site,
            opened,
            closed,
        })
        .boxed()
}

fn stall() -> BoxedStrategy<Stall> {
    let cause = prop::sample::select(Cause::ALL.to_vec());
    let blame = (cause, prop::option::of(hazard()), blocker(), any::<bool>());
    (0..24_u64, 0..4_usize, time(), 1..1_000_u64, blame)
        .prop_map(|(waiter, access, from, length, blame)| {
            let (cause, hazard, blocker, critical) = blame;
            Stall { waiter, access, from, to: from + length, cause, hazard, blocker, critical }
        })
        .boxed()
}

fn edge() -> BoxedStrategy<Edge> {
    (0..24_u64, 0..24_u64, 0..8_u64, hazard())
        .prop_map(|(from, to, variable, hazard)| Edge { from, to, variable, hazard })
        .boxed()
}

fn counter() -> BoxedStrategy<Counter> {
    let samples = prop::collection::vec((time(), any::<i64>()), 1..6);
    (text(), prop_oneof![Just(Text::from("bytes")), text()], samples)
        .prop_map(|(name, unit, mut samples)| {
            samples.sort_by_key(|&(time, _)| time);
            Counter { name, unit, samples }
        })
        .boxed()
}

fn variable() -> BoxedStrategy<Variable> {
    (text(), prop::option::of(0..(1_u64 << 50)), library())
        .prop_map(|(name, bytes, library)| Variable { id: 0, name, bytes, library })
        .boxed()
}

fn losses() -> BoxedStrategy<Losses> {
    let lost = (0..TRACKS, any::<u64>()).prop_map(|(track, count)| LostRecords { track, count });
    (prop::collection::vec(lost, 0..3), prop::collection::vec(string(), 0..2))
        .prop_map(|(records, damage)| Losses { records, damage })
        .boxed()
}

/// As a file has them.
fn workers() -> BoxedStrategy<Workers> {
    let made = |(count, least)| Workers { count, at_once: vec![(0, least)], ..Workers::default() };
    any::<(u32, u32)>().prop_map(made).boxed()
}

/// Operations and leases share their numbers: a lease may have that of the export that it began with.
pub fn trace() -> BoxedStrategy<Trace> {
    let tracks = prop::collection::vec(
        (text(), track_kind()).prop_map(|(name, kind)| Track { name, kind }),
        TRACKS..=TRACKS,
    );
    let head = (
        any::<u64>(),
        time(),
        text(),
        prop::collection::vec(process(), 0..3),
        tracks,
        prop::collection::vec(text(), LIBRARIES..=LIBRARIES),
        (prop::collection::vec(string(), 0..2), losses(), prop::collection::vec(workers(), 0..3)),
    );
    let things = (
        prop::collection::vec(variable(), 0..8),
        prop::collection::vec(operation(), 1..16),
        prop::collection::vec(lease(), 0..6),
        prop::collection::vec(stall(), 0..12),
        prop::collection::vec(edge(), 0..12),
        prop::collection::vec(counter(), 0..3),
    );
    (head, things)
        .prop_map(|(head, things)| {
            let (started_unix_ns, duration, program, processes, tracks, libraries, rest) = head;
            let (clocks, losses, workers) = rest;
            let (mut variables, mut operations, mut leases, mut stalls, mut edges, counters) = things;
            variables.iter_mut().enumerate().for_each(|(id, variable)| variable.id = id as u64);
            operations.iter_mut().enumerate().for_each(|(id, operation)| operation.id = id as u64);
            leases.iter_mut().enumerate().for_each(|(id, lease)| lease.id = 12 + id as u64);
            stalls.sort_by_key(|stall| (stall.waiter, stall.from, stall.access, stall.to));
            edges.sort_by_key(|edge| edge.to);
            Trace {
                started_unix_ns,
                duration,
                program,
                processes,
                tracks,
                libraries,
                variables,
                operations,
                leases,
                stalls,
                edges,
                counters,
                clocks,
                ends: Vec::new(),
                losses,
                began_amid_bodies: false,
                workers,
            }
        })
        .boxed()
}
