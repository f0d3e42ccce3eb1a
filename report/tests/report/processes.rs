//! Traces of several processes as one: from several files, or from files that were put behind each other.

use estafette_report::attribution::attribute;
use estafette_report::critical_path::critical_path;
use estafette_report::model::*;
use estafette_report::roots::roots;
use estafette_report::sentences::sentence;
use estafette_report::summary::OperationRow;
use estafette_report::terminal::{Style, text};
use estafette_report::{chrome, html, merge, perfetto, report};
use proptest::prelude::*;

use crate::{made_up, strategies};

const LATER: Nanos = 7_000_000;

fn process(number: u32, started_ns: Nanos) -> Process {
    Process {
        number,
        key: u64::from(number) << 33 | u64::from(number),
        started_ns,
        clock: "this boot".into(),
    }
}

/// A pipeline in one process, and one that another process has begun a little later.
fn two() -> [Trace; 2] {
    let [mut first, mut second] = [700, 350].map(made_up::trace);
    first.processes = vec![process(4711, 1_000_000_000)];
    second.processes = vec![process(4712, 1_000_000_000 + LATER)];
    [first, second]
}

fn bytes(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    perfetto::write(trace, &mut bytes).unwrap();
    bytes
}

#[test]
fn two_processes_have_one_axis_of_time_and_names_of_their_own() {
    let [first, second] = two();
    // The order of the files does not matter to their times.
    for both in [merge(vec![first.clone(), second.clone()]), merge(vec![second.clone(), first.clone()])] {
        let both = both.unwrap();
        assert_eq!(both.duration, first.duration.max(second.duration + LATER));
        assert_eq!(both.started_unix_ns, first.started_unix_ns);
        let of =
            |label: &str| both.operations.iter().filter(|it| it.name.ends_with(label)).collect::<Vec<_>>();
        let [of_first, of_second] = ["@4711", "@4712"].map(of);
        assert_eq!((of_first.len(), of_second.len()), (700, 350));
        assert_eq!(of_first[5].submitted, first.operations[5].submitted);
        assert_eq!(of_second[5].submitted, second.operations[5].submitted + LATER);
        let worker = |operation: &Operation| both.tracks[operation.track.unwrap()].name.to_string();
        let ran = of_second.iter().find(|it| *it.name == *"augment @4712").unwrap();
        assert!(worker(ran).starts_with("worker ") && worker(ran).ends_with(" @4712"), "{}", worker(ran));
    }
    let both = merge(vec![first.clone(), second.clone()]).unwrap();
    assert_eq!(both.program, *"pipeline.py @4711, pipeline.py @4712");
    let (one, other, both_report) = (report(&first), report(&second), report(&both));
    assert_eq!(both_report.totals.waited_ns, one.totals.waited_ns + other.totals.waited_ns);
    assert_eq!(both_report.totals.operations, one.totals.operations + other.totals.operations);
    for (single, label) in [(&one, "@4711"), (&other, "@4712")] {
        for row in &single.operations {
            let is_own = |it: &&OperationRow| it.name.replace(&format!(" {label}"), "") == row.name;
            let own = both_report.operations.iter().find(is_own).unwrap();
            assert_eq!(
                (own.count, own.running_ns, own.waited_ns),
                (row.count, row.running_ns, row.waited_ns)
            );
        }
    }
    let libraries = &both_report.matrix.libraries;
    assert!(libraries.contains(&"numpy @4711".to_owned()) && libraries.contains(&"numpy @4712".to_owned()));
    let shown = text(&both_report, Style::default());
    assert!(shown.contains("pipeline.py @4711, pipeline.py @4712"), "{shown}");
}

#[test]
fn files_behind_each_other_are_read_as_one_trace() {
    let [first, second] = two();
    let file = [bytes(&first), bytes(&second)].concat();
    assert!(perfetto::read(&file) == merge(vec![first.clone(), second.clone()]).unwrap());
    // The end of the second is cut off, and more than nothing is left of it.
    let cut = perfetto::read(&file[..file.len() - 5_000]);
    assert!(cut.operations.len() > 700 && cut.operations.len() < 1_050, "{}", cut.operations.len());
    assert!(cut.losses.damage.iter().any(|damage| damage.contains("truncated")), "{:?}", cut.losses);
}

#[test]
fn what_cannot_be_put_together_says_why_and_what_to_do() {
    let [first, second] = two();
    let refused = |change: &dyn Fn(&mut Trace)| {
        let mut other = second.clone();
        change(&mut other);
        let why = merge(vec![first.clone(), other.clone()]).unwrap_err();
        let file = perfetto::read(&[bytes(&first), bytes(&other)].concat());
        (why, file)
    };
    type Change<'a> = &'a dyn Fn(&mut Trace);
    let cases: [(Change<'_>, &str); 3] = [
        (&|it| it.processes.clear(), "an earlier version made it"),
        (&|it| it.processes[0].started_ns = 1 << 60, "more than three days"),
        (&|it| it.processes.push(process(1, 0)), "of several processes already"),
    ];
    for (change, words) in cases {
        let (why, file) = refused(change);
        assert!(why.contains(words) && why.contains("pipeline.py"), "{why}");
        // In one file the first is shown.
        assert!(file.operations == first.operations);
        assert!(file.losses.damage.iter().any(|it| it.contains(words)), "{:?}", file.losses.damage);
    }
    let (why, _) = refused(&|it| it.processes.clone_from(&first.processes));
    assert!(why.contains("two traces are of process 4711"), "{why}");
    assert!(merge(vec![first.clone(), first.clone()]).is_err());
}

#[test]
fn a_trace_that_a_file_has_twice_is_counted_once() {
    let [first, second] = two();
    for other in [first.clone(), Trace { processes: first.processes.clone(), ..second.clone() }] {
        let file = [bytes(&first), bytes(&other), bytes(&second)].concat();
        let mut read = perfetto::read(&file);
        let damage = std::mem::take(&mut read.losses.damage);
        assert!(read == merge(vec![first.clone(), second.clone()]).unwrap());
        assert!(damage.len() == 1 && damage[0].contains("begins the same trace again"), "{damage:?}");
    }
    // Two traces of before processes were noted cannot be distinguished.
    let [mut first, mut second] = [first, second];
    (first.processes, second.processes) = (Vec::new(), Vec::new());
    second.started_unix_ns += 1;
    let mut read = perfetto::read(&[bytes(&first), bytes(&second)].concat());
    let damage = std::mem::take(&mut read.losses.damage);
    assert!(read == first);
    assert!(damage.len() == 1 && damage[0].contains("give each as a file of its own"), "{damage:?}");
}

#[test]
fn processes_of_one_number_are_distinguished() {
    let [first, mut second] = two();
    second.processes[0].number = 4711;
    let both = merge(vec![first, second]).unwrap();
    assert_eq!(both.program, *"pipeline.py @4711, pipeline.py @4711-2");
}

fn operation(
    id: u64,
    name: &str,
    kind: OperationKind,
    times: [Nanos; 3],
    uses: (u64, AccessMode),
) -> Operation {
    let [submitted, began, done] = times;
    Operation {
        id,
        name: name.into(),
        kind,
        submitter: Some(0),
        track: (kind == OperationKind::Operation).then_some(1),
        submitted,
        granted: Some(began),
        ready: Some(began),
        began: Some(began),
        issued: Some(done),
        done: Some(done),
        observed: Some(done),
        outcome: Outcome::Ok,
        accesses: vec![Access { variable: uses.0, mode: uses.1 }],
        ..Operation::default()
    }
}

fn program(number: u32, started_ns: Nanos, operations: Vec<Operation>) -> Trace {
    let track = |name: &str, kind| Track { name: name.into(), kind };
    let x = Variable { id: 1, name: "x".into(), bytes: Some(8), library: None };
    Trace {
        duration: 1_000,
        program: format!("{number}.py").into(),
        processes: vec![process(number, started_ns)],
        tracks: vec![track("main", TrackKind::Thread), track("worker", TrackKind::Worker)],
        variables: vec![x],
        operations,
        ..Trace::default()
    }
}

/// ```text
/// owner     produce 0 ──────── 100        lease 100 ─────────── 300   overwrite (from 150) 300 ── 310
/// consumer        (50 later)  import 50 ·········· 110   use 110 ── 200
/// ```
fn handed_over() -> [Trace; 2] {
    use OperationKind::{Export, Import, Operation};
    let export = operation(2, "lease", Export, [20, 100, 100], (1, AccessMode::Read));
    let mut owner = program(
        1,
        5_000,
        vec![
            operation(1, "produce", Operation, [0, 0, 100], (1, AccessMode::Write)),
            export,
            operation(3, "overwrite", Operation, [150, 300, 310], (1, AccessMode::Write)),
        ],
    );
    owner.leases.push(Lease {
        id: 2,
        variable: 1,
        access: AccessMode::Read,
        library: None,
        owner: "process 2".into(),
        site: None,
        opened: 100,
        closed: Some(300),
    });
    let mut import = operation(1, "tensor of process 1", Import, [0, 0, 60], (1, AccessMode::Write));
    import.origin = Some(Box::new(ImportOrigin { process: 1, key: owner.processes[0].key + 2, clock: None }));
    import.site = Some(Site { file: "/home/worker.py".into(), line: 38, function: "work".into() });
    let used = operation(2, "use", Operation, [10, 60, 150], (1, AccessMode::Read));
    let mut consumer = program(2, 5_050, vec![import, used]);
    [&mut owner, &mut consumer].into_iter().for_each(attribute);
    [owner, consumer]
}

/// The waits of what is called `name`.
fn waits(trace: &Trace, name: &str) -> Vec<String> {
    let waiter = trace.operations.iter().find(|it| *it.name == *name).unwrap().id;
    let roots = roots(trace).into_iter().filter(|root| root.waiter == waiter);
    roots.map(|root| sentence(trace, &root, &format!("{} ns", root.duration()))).collect()
}

#[test]
fn a_wait_for_another_process_names_its_operation_and_a_lease_there_its_line() {
    let [owner, consumer] = handed_over();
    let alone = waits(&consumer, "use").concat();
    assert!(alone.contains("waited 50 ns") && alone.contains("in another process (process 1)"), "{alone}");
    assert!(waits(&owner, "overwrite").concat().contains("a lease taken by process 2 was still open"));
    let both = merge(vec![owner, consumer]).unwrap();
    let wanted = [
        // The 40 ns until the owner had it, and the 10 ns until that was known here.
        "`use @2` waited 40 ns for a lease of 2.py @2 on `x @2`, read after write, because `produce @1` was still computing",
        "`use @2` waited 10 ns on `x @2`, read after write, because the end of its input had not been observed yet",
    ];
    assert_eq!(waits(&both, "use @2"), wanted);
    let wanted = [
        "`overwrite @1` waited 150 ns for a lease on `x @1`, write after read, because a lease taken by 2.py @2 at worker.py:38 was \
          still open",
    ];
    assert_eq!(waits(&both, "overwrite @1"), wanted);
    let path = critical_path(&both);
    let path: Vec<&str> = path.operations.iter().map(|id| &*both.operation(*id).unwrap().name).collect();
    assert_eq!(path, ["produce @1", "lease @1", "overwrite @1"]);
}

/// As `handed_over`, but the consumer's clock is behind by three days or so, which the owner's answers say.
fn handed_over_to_another_machine() -> [Trace; 2] {
    const BEHIND: Nanos = 300_000_000_000_000;
    let [mut owner, mut consumer] = handed_over();
    owner.processes[0].started_ns += BEHIND;
    consumer.processes[0].clock = "another boot".into();
    let clock = ClockOffset { clock: "this boot".into(), ahead_ns: BEHIND as i64, uncertainty_ns: 2_000 };
    consumer.operations[0].origin.as_mut().unwrap().clock = Some(clock);
    [owner, consumer]
}

#[test]
fn traces_of_two_machines_are_on_one_axis_with_the_difference_and_its_uncertainty() {
    let [owner, consumer] = handed_over_to_another_machine();
    let alone = waits(&consumer, "use").concat();
    assert!(alone.contains("had not come from another machine yet (process 1 there)"), "{alone}");
    for (traces, pair) in [
        (vec![owner.clone(), consumer.clone()], ["`1.py` (process 1)", "`2.py` (process 2)"]),
        (vec![consumer, owner], ["`2.py` (process 2)", "`1.py` (process 1)"]),
    ] {
        let [first, second] = pair;
        let both = merge(traces).unwrap();
        let wanted = [
            "`use @2` waited 40 ns for a lease of 2.py @2 on `x @2`, read after write, because `produce @1` was still computing",
            "`use @2` waited 10 ns for `tensor of process 1 @2` on `x @2`, read after write, because its input had not come from another \
              machine yet (process 1 there)",
        ];
        assert_eq!(waits(&both, "use @2"), wanted);
        let difference = format!(
            "the clocks of {first} and {second} differ by 300000 s ± 2.00 µs, and their times are shifted by that"
        );
        assert_eq!(both.clocks, std::slice::from_ref(&difference));
        let both_report = report(&both);
        assert!(both_report.missing.is_empty());
        assert!(text(&both_report, Style::default()).replace("\n        ", " ").contains(&difference));
        let mut page = Vec::new();
        html::write(&both, &both_report, &mut page).unwrap();
        assert_eq!(perfetto::read(&bytes(&both)).clocks, both.clocks);
    }
}

#[test]
fn traces_between_whose_clocks_nothing_is_known_are_side_by_side_and_say_so() {
    for clock in ["another boot", ""] {
        let [owner, mut consumer] = handed_over();
        consumer.processes[0].clock = clock.into();
        let both = merge(vec![owner.clone(), consumer.clone()]).unwrap();
        assert!(both.clocks[0].contains("`1.py` (process 1) and `2.py` (process 2)"), "{:?}", both.clocks);
        assert!(both.clocks[0].contains("cannot be compared"), "{:?}", both.clocks);
        let shown = text(&report(&both), Style::default());
        assert!(shown.contains("clocks: nothing is known"), "{shown}");
        // Each begins at 0, and no wait of one is for what the other did at a time.
        assert_eq!(both.duration, 1_000);
        let times = |process: usize| both.operations.iter().filter(move |it| it.id >> 50 == process as u64);
        assert!(times(0).zip(&owner.operations).all(|(both, own)| both.done == own.done));
        assert!(times(1).zip(&consumer.operations).all(|(both, own)| both.done == own.done));
        assert!(waits(&both, "use @2").concat().contains("in another process (process 1)"));
    }
    let [first, mut second] = two();
    second.processes[0].clock = "another boot".into();
    let file = [bytes(&first), bytes(&second)].concat();
    assert!(perfetto::read(&file) == merge(vec![first, second]).unwrap());
}

#[test]
fn a_key_that_many_claim_costs_no_more_than_there_are() {
    let [mut owner, mut consumer] = handed_over();
    let (edge, import) = (owner.edges[0], consumer.operations[0].clone());
    owner.edges = vec![Edge { to: 2, ..edge }; 20_000];
    consumer.operations = (1..20_000).map(|id| Operation { id, ..import.clone() }).collect();
    let both = merge(vec![owner, consumer]).unwrap();
    assert!(both.edges.len() < 20 * 20_000, "{} edges", both.edges.len());
    // A process claims a lease of its own.
    let [mut owner, _] = handed_over();
    owner.operations[0].origin = import.origin;
    let other = program(2, 5_000, Vec::new());
    assert_eq!(merge(vec![owner.clone(), other]).unwrap().stalls, owner.stalls);
}

#[test]
fn what_a_process_left_unfinished_ends_with_its_own_trace() {
    use OperationKind::{Operation, Wait};
    // The first process is killed at 1,000, in a body and in a wait, and with a lease of what it had.
    let [mut killed, _] = handed_over();
    let body = operation(10, "body", Operation, [400, 500, 0], (1, AccessMode::Read));
    let wait = operation(11, "wait", Wait, [600, 600, 0], (1, AccessMode::Read));
    for it in [body, wait] {
        let outcome = Outcome::Unfinished;
        killed.operations.push(estafette_report::model::Operation {
            issued: None,
            done: None,
            observed: None,
            outcome,
            ..it
        });
    }
    killed.leases[0].closed = None;
    let mut other =
        program(2, 5_050, vec![operation(1, "last", Operation, [0, 10, 90_000], (1, AccessMode::Write))]);
    other.duration = 100_000;
    for (traces, label) in
        [(vec![killed.clone(), other.clone()], "first"), (vec![other.clone(), killed.clone()], "second")]
    {
        let both = merge(traces).unwrap();
        assert_eq!(both.duration, 100_050, "{label}");
        let both_report = report(&both);
        let ran = both_report.operations.iter().find(|row| row.name == "`body @1`").unwrap().running_ns;
        let alone = report(&killed).operations.iter().find(|row| row.name == "`body`").unwrap().running_ns;
        assert_eq!((alone, ran), (500, 500), "{label}");
        let leased = both_report.tensors.iter().find(|row| row.name == "x @1").unwrap().leased_ns;
        assert_eq!(leased, 900, "{label}");
        // The end of the run waited for the body only while the body ran.
        let of_body =
            both_report.run_time.iter().find(|row| row.what.contains("body")).map_or(0, |row| row.time_ns);
        assert!(of_body <= 500, "{label}: {:?}", both_report.run_time);
        let mut drawn = Vec::new();
        chrome::write(&both, &mut drawn).unwrap();
        let drawn: serde_json::Value = serde_json::from_slice(&drawn).unwrap();
        let ends = |name: &str| {
            let events = drawn["traceEvents"].as_array().unwrap();
            let its = events.iter().find(|event| event["name"] == name && event["ph"] == "X").unwrap();
            its["ts"].as_f64().unwrap() + its["dur"].as_f64().unwrap()
        };
        assert_eq!([ends("body @1"), ends("wait @1")], [1.0, 1.0], "{label}");
    }
}

#[test]
fn a_barrier_waits_for_its_own_process() {
    use OperationKind::{Operation, Wait};
    let waits = program(1, 5_000, vec![operation(1, "wait", Wait, [500, 500, 600], (1, AccessMode::Read))]);
    let works =
        program(2, 5_000, vec![operation(1, "long", Operation, [0, 10, 900_000], (1, AccessMode::Write))]);
    let alone = report(&waits).barriers;
    assert_eq!(report(&merge(vec![waits, works]).unwrap()).barriers, alone);
    assert_eq!((alone.hand_overs, alone.extra_ns), (1, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_two_traces_say_they_are_reported(first in strategies::trace(), second in strategies::trace()) {
        let (mut first, mut second) = (first, second);
        first.processes = vec![process(1, 1 << 40)];
        second.processes = vec![Process { key: 100, clock: "another boot".into(), ..process(1, 3) }];
        // Identities that no process gives.
        second.operations.iter_mut().for_each(|it| it.id |= it.submitted << 50);
        second.operations.sort_by_key(|it| it.id);
        let both = merge(vec![first.clone(), second]).unwrap();
        prop_assert!(both.operations.len() >= first.operations.len());
        prop_assert!(both.operations.is_sorted_by(|a, b| a.id < b.id));
        let told = report(&both);
        let _ = text(&told, Style::default());
        let mut page = Vec::new();
        html::write(&both, &told, &mut page).unwrap();
        prop_assert_eq!(perfetto::read(&bytes(&both)).operations.len(), both.operations.len());
    }
}
