//! What would help, of programs whose truth can be computed by hand: each trace has an engine of two workers and no time lost
//! between an end and what it allows.

use estafette_report::attribution::attribute;
use estafette_report::model::*;
use estafette_report::{Report, report};

const MAIN: TrackId = 0;
const MS: u64 = 1_000_000;

/// Writes down a program as it runs.
struct Program(Trace);

impl Program {
    fn new(tensors: &[&str]) -> Self {
        let track = |name: &str, kind| Track { name: name.into(), kind };
        let worker = |at| track(&format!("worker {at}"), TrackKind::Worker);
        let variable = |(at, name): (usize, &&str)| Variable {
            id: at as u64 + 1,
            name: (*name).into(),
            bytes: Some(4),
            library: None,
        };
        Self(Trace {
            program: "program.py".into(),
            tracks: vec![track("main", TrackKind::Thread), worker(0), worker(1)],
            variables: tensors.iter().enumerate().map(variable).collect(),
            ..Trace::default()
        })
    }

    fn part(
        &mut self,
        name: &str,
        kind: OperationKind,
        submitted: u64,
        uses: &[(u64, Mode)],
    ) -> &mut Operation {
        let id = self.0.operations.len() as u64 + 1;
        self.0.operations.push(Operation {
            id,
            name: name.into(),
            kind,
            submitter: Some(MAIN),
            submitted,
            outcome: Outcome::Ok,
            accesses: uses
                .iter()
                .map(|(variable, mode)| Access { variable: *variable, mode: *mode })
                .collect(),
            ..Operation::default()
        });
        self.0.operations.last_mut().unwrap()
    }

    /// An operation that was ready when it began.
    fn ran(&mut self, name: &str, worker: usize, submitted: u64, times: (u64, u64), uses: &[(u64, Mode)]) {
        let part = self.part(name, OperationKind::Operation, submitted, uses);
        let (began, done) = (Some(times.0), Some(times.1));
        (part.granted, part.ready, part.awake, part.began) = (began, began, began, began);
        (part.issued, part.done, part.observed) = (done, done, done);
        part.track = Some(1 + worker);
    }

    /// The program waits for a tensor.
    fn waited(&mut self, from: u64, to: u64, tensor: u64, line: u32) {
        let part = self.part("wait", OperationKind::Wait, from, &[(tensor, Mode::Read)]);
        (part.granted, part.observed, part.resumed) = (Some(to), Some(to), Some(to));
        part.site = Some(Site { file: "program.py".into(), line, function: "main".into() });
    }

    fn report(mut self, duration: u64) -> Report {
        self.0.duration = duration;
        attribute(&mut self.0);
        report(&self.0)
    }
}

fn saves(report: &Report, change: &str) -> Option<u64> {
    let mut found = report.advice.iter().filter(|advice| advice.change.contains(change));
    found.next().map(|advice| advice.saves_ns)
}

#[test]
fn two_branches_that_share_a_scratch_tensor_should_have_two() {
    // blur  |--10--|      |--10--|
    // edges        |--10--|      |--10--|      with two of it: side by side, in half the time
    let (scratch, left, right) = (1, 2, 3);
    let mut program = Program::new(&["scratch", "left", "right"]);
    for turn in 0..4 {
        let (name, own) = if turn % 2 == 0 { ("blur", left) } else { ("edges", right) };
        let times = (turn * 10 * MS, (turn + 1) * 10 * MS);
        program.ran(name, turn as usize % 2, 0, times, &[(scratch, Mode::Write), (own, Mode::Update)]);
    }
    let told = program.report(40 * MS);
    assert_eq!(saves(&told, "use two of `scratch` in turn"), Some(20 * MS), "{:?}", told.advice);
    assert!(told.advice[0].change.starts_with("use two of `scratch`"), "{:?}", told.advice);
    assert_eq!(saves(&told, "`left`"), None, "what is updated cannot be in two places");
}

#[test]
fn a_program_that_looks_at_each_result_should_look_later() {
    // load  |-8-|          |-8-|
    // train     |--10--|       |--10--|        without waiting: load beside train
    let mut program = Program::new(&["even", "odd", "loss"]);
    for turn in 0..4_u64 {
        let (batch, begin) = (1 + turn % 2, turn * 18 * MS);
        program.ran("load", 0, begin, (begin, begin + 8 * MS), &[(batch, Mode::Write)]);
        let train = (begin + 8 * MS, begin + 18 * MS);
        program.ran("train", 1, begin, train, &[(batch, Mode::Read), (3, Mode::Update)]);
        program.waited(begin, begin + 18 * MS, 3, 41);
    }
    let told = program.report(72 * MS);
    // 8 to load the first batch, four times 10 to train.
    let expected = 72 * MS - 48 * MS;
    assert_eq!(saves(&told, "go on without waiting at program.py:41"), Some(expected), "{:?}", told.advice);
}

#[test]
fn a_wait_at_the_end_is_no_advice() {
    let mut program = Program::new(&["loss"]);
    program.ran("train", 0, 0, (0, 10 * MS), &[(1, Mode::Update)]);
    program.ran("train", 0, 0, (10 * MS, 20 * MS), &[(1, Mode::Update)]);
    program.waited(0, 20 * MS, 1, 50);
    let told = program.report(20 * MS);
    assert_eq!(told.advice.len(), 1, "{:?}", told.advice);
    assert_eq!((told.advice[0].change.as_str(), told.advice[0].saves_ns), ("make `train` faster", 20 * MS));
}

#[test]
fn a_program_that_does_everything_itself_is_told_so_first() {
    let mut program = Program::new(&["loss"]);
    for turn in 0..3_u64 {
        let begin = (turn * 20 + 17) * MS;
        program.ran("train", 0, begin, (begin, begin + 3 * MS), &[(1, Mode::Update)]);
        program.waited(begin, begin + 3 * MS, 1, 50);
    }
    let told = program.report(60 * MS);
    assert!(
        told.headline.starts_with("The program itself took 85 % of 60.0 ms, while nothing was under way. "),
        "{}",
        told.headline
    );
    assert_eq!(saves(&told, "submit earlier"), Some(51 * MS));
}

#[test]
fn a_worker_that_sleeps_is_not_one_that_is_busy() {
    // worker 0 |--10--| 5 |-1-|     worker 1 |-----12-----|
    let mut program = Program::new(&["a", "b", "c"]);
    program.ran("one", 0, 0, (0, 10 * MS), &[(1, Mode::Write)]);
    program.ran("two", 1, 0, (0, 12 * MS), &[(2, Mode::Write)]);
    // Submitted when both are busy; one is free from 10 on, and takes it at 15.
    program.ran("three", 0, 5 * MS, (15 * MS, 16 * MS), &[(3, Mode::Write)]);
    let part = program.0.operations.last_mut().unwrap();
    (part.granted, part.ready) = (Some(5 * MS), Some(5 * MS));
    let told = program.report(16 * MS);
    let waited = |cause: &str| told.causes.iter().find(|row| row.cause == cause).unwrap().waited_ns;
    assert_eq!((waited("no worker"), waited("not resumed")), (5 * MS, 5 * MS));
    assert_eq!(saves(&told, "use more workers"), Some(5 * MS), "{:?}", told.advice);
    assert_eq!(saves(&told, "a worker with nothing to do sleeps"), Some(5 * MS), "{:?}", told.advice);
}
