//! The changes that Estafette would make in programs that were only observed, whose truth can be computed by
//! hand: the traces are as observe mode writes them.

use estafette_report::attribution::attribute;
use estafette_report::model::*;
use estafette_report::with_graph::GraphChange;
use estafette_report::{Report, report};

use crate::programs::{MAIN, MS};

pub(crate) const CONSUMER: TrackId = 1;

const JAX: LibraryId = 0;
const NUMPY: LibraryId = 1;

/// Writes down what was seen of a program; its one variable is memory of JAX.
pub(crate) struct Seen(pub(crate) Trace);

impl Seen {
    pub(crate) fn new() -> Self {
        let track = |name: &str| Track { name: name.into(), kind: TrackKind::Thread };
        let memory =
            Variable { id: 1, name: "float32[4] of jax".into(), bytes: Some(16), library: Some(JAX) };
        Self(Trace {
            program: "program.py".into(),
            tracks: vec![track("MainThread"), track("consumer")],
            libraries: vec!["jax".into(), "numpy".into()],
            variables: vec![memory],
            ..Trace::default()
        })
    }

    fn add(&mut self, operation: Operation) -> OperationId {
        let id = self.0.operations.len() as u64 + 1;
        self.0.operations.push(Operation { id, outcome: Outcome::Ok, ..operation });
        id
    }

    /// Something that a thread did at once, or waited for.
    pub(crate) fn did(
        &mut self,
        name: &str,
        track: TrackId,
        (from, to): (u64, u64),
        about: Operation,
    ) -> OperationId {
        let (from, to) = (from * MS, to * MS);
        let (began, done) = (Some(from), Some(to));
        self.add(Operation {
            name: name.into(),
            submitter: Some(track),
            track: Some(track),
            submitted: from,
            granted: began,
            ready: began,
            began,
            issued: done,
            done,
            observed: done,
            ..about
        })
    }

    pub(crate) fn waited(
        &mut self,
        name: &str,
        line: u32,
        (from, to): (u64, u64),
        waits_for: OperationId,
        library: Option<LibraryId>,
    ) {
        self.add(Operation {
            name: name.into(),
            kind: OperationKind::Wait,
            library,
            site: Some(Site { file: "program.py".into(), line, function: "main".into() }),
            submitter: Some(MAIN),
            submitted: from * MS,
            resumed: Some(to * MS),
            waits_for: Some(waits_for),
            ..Operation::default()
        });
    }

    /// The program waits for the work of JAX.
    fn synchronized(&mut self, times: (u64, u64), line: u32) {
        let work = Operation { library: Some(JAX), ..Operation::default() };
        let work = self.did("work of jax", MAIN, times, work);
        self.waited("jax.Array.block_until_ready", line, times, work, None);
    }

    fn handed_over(&mut self, kind: OperationKind, name: &str, times: (u64, u64)) -> OperationId {
        let accesses = vec![Access { variable: 1, mode: AccessMode::Read }];
        let resumed = (kind == OperationKind::Export).then_some(times.1 * MS);
        self.did(
            name,
            MAIN,
            times,
            Operation { kind, accesses, resumed, library: Some(NUMPY), ..Operation::default() },
        )
    }

    pub(crate) fn report(mut self, milliseconds: u64) -> Report {
        self.0.duration = milliseconds * MS;
        attribute(&mut self.0);
        report(&self.0)
    }
}

fn only(report: &Report) -> &GraphChange {
    assert_eq!(report.with_graph.changes.len(), 1, "{:?}", report.with_graph);
    &report.with_graph.changes[0]
}

#[test]
fn a_synchronize_inside_a_loop() {
    // jax  |--20--|    |--20--|          without: one work behind the other, the host beside them
    // host        |-15-|      |-15-|
    let mut seen = Seen::new();
    for turn in 0..4 {
        seen.synchronized((turn * 35, turn * 35 + 20), 7);
    }
    let told = seen.report(140);
    let change = only(&told);
    assert_eq!((change.change.as_str(), change.count, change.waited_ns), ("no wait", 4, 80 * MS));
    assert_eq!((change.producer.as_str(), change.consumer.as_str()), ("jax", "host"));
    assert_eq!((change.saves_ns, told.with_graph.saves_ns), (140 * MS - 4 * 20 * MS, 60 * MS));
    assert_eq!(
        change.sentence(),
        "`jax.Array.block_until_ready` at program.py:7 would not have waited for `work of jax` (4 times, 80.0 ms)"
    );
    let advice = &told.advice[0];
    assert!(
        advice.change.starts_with("continue without waiting: `jax.Array.block_until_ready` at program.py:7")
    );
    assert_eq!(advice.saves_ns, 60 * MS);
}

#[test]
fn what_is_handed_over_next_comes_after_the_work() {
    // As above, but each turn NumPy takes the result after 5 ms: without the wait it waits there.
    let mut seen = Seen::new();
    for turn in 0..4 {
        seen.synchronized((turn * 35, turn * 35 + 20), 7);
        seen.handed_over(OperationKind::Export, "numpy.asarray", (turn * 35 + 25, turn * 35 + 25));
    }
    // Of the 20 ms that it waited, the 5 ms until the hand-over are saved.
    assert_eq!(only(&seen.report(140)).saves_ns, 4 * 5 * MS);
}

#[test]
fn a_copy_between_two_libraries_need_not_be_made() {
    let mut seen = Seen::new();
    for turn in 0..4 {
        let times = (turn * 40 + 10, turn * 40 + 40);
        let copy = seen.handed_over(OperationKind::Copy, "copy from jax to numpy", times);
        seen.waited("numpy.array", 9, times, copy, Some(NUMPY));
    }
    let told = seen.report(160);
    let change = only(&told);
    assert_eq!((change.change.as_str(), change.saves_ns), ("no copy", 4 * 30 * MS));
    assert_eq!((change.producer.as_str(), change.consumer.as_str()), ("jax", "numpy"));
}

#[test]
fn a_slow_consumer_stays_the_longest_way() {
    // The queue has room for one: main puts the third when the first is consumed.
    let mut seen = Seen::new();
    for turn in 0..3 {
        let own =
            seen.did("consume before Queue.get", CONSUMER, (turn * 20, turn * 20 + 20), Operation::default());
        seen.waited("Queue.put", 5, (turn * 20, turn * 20 + 20), own, None);
    }
    let rest = seen.did("consumer until its end", CONSUMER, (60, 100), Operation::default());
    seen.waited("Thread.join", 6, (60, 100), rest, None);
    let told = seen.report(100);
    let most = "60 % of the run time of 100 ms: computing (`consume before Queue.get`)";
    assert!(told.headline.starts_with(most), "{}", told.headline);
    let change = only(&told);
    assert_eq!(
        (change.call.as_str(), change.waited_ns, change.saves_ns),
        ("`Queue.put` at program.py:5", 60 * MS, 0)
    );
    assert!(told.advice.iter().all(|advice| !advice.change.contains("Queue.put")), "{:?}", told.advice);
    let text = estafette_report::terminal::text(&told, estafette_report::terminal::Style::default());
    assert!(text.contains("the run takes as long, since something else holds it up"), "{text}");
}

#[test]
fn functions_of_an_executor_that_are_awaited_one_by_one() {
    // produce |10|      |10|           without: beside each other
    // pool        |-20-|    |-20-|
    let mut seen = Seen::new();
    for turn in 0..4 {
        let times = (turn * 30 + 10, turn * 30 + 30);
        let work = seen.did("consume", CONSUMER, times, Operation::default());
        seen.0.operations.last_mut().unwrap().submitter = Some(MAIN);
        seen.waited("Future.result", 8, times, work, None);
    }
    // The executor's thread ends a moment after its last function, and is waited for.
    let rest = seen.did("pool until its end", CONSUMER, (120, 121), Operation::default());
    seen.waited("Thread.join", 9, (120, 121), rest, None);
    // 10 ms until the first, then four times 20.
    assert_eq!(only(&seen.report(121)).saves_ns, 121 * MS - 91 * MS);
}

#[test]
fn a_trace_of_an_engine_has_none() {
    assert_eq!(report(&crate::made_up::trace(200)).with_graph.changes, []);
}

#[test]
fn what_a_thread_waited_for_until_its_end_is_not_hidden_by_the_wait_for_its_end() {
    // consumer |-10-|-wait for jax 40-|-10-|       main joins it from 5 on.
    let mut seen = Seen::new();
    let rest = seen.did("consumer until its end", CONSUMER, (5, 60), Operation::default());
    seen.waited("Thread.join", 6, (5, 60), rest, None);
    let work = Operation { library: Some(JAX), ..Operation::default() };
    let work = seen.did("work of jax", CONSUMER, (10, 50), work);
    seen.waited("jax.Array.block_until_ready", 7, (10, 50), work, None);
    seen.0.operations.last_mut().unwrap().submitter = Some(CONSUMER);
    let told = seen.report(60);
    let spent: Vec<_> = told.run_time.iter().map(|row| (row.what.as_str(), row.time_ns / MS)).collect();
    let rest = ("`consumer until its end` ran", 15);
    assert_eq!(spent, [("`work of jax` ran", 40), rest, ("the program did something else", 5)]);
    assert!(
        told.headline.starts_with("67 % of the run time of 60.0 ms: computing (`work of jax`)"),
        "{}",
        told.headline
    );
}
