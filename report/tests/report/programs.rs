//! Traces of programs, written down as they run.

use estafette_report::attribution::attribute;
use estafette_report::model::*;
use estafette_report::{Report, report};

pub const MAIN: TrackId = 0;
pub const MS: u64 = 1_000_000;

/// Writes down a program as it runs.
pub struct Program(pub Trace);

impl Program {
    pub fn new(tensors: &[&str]) -> Self {
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

    pub fn part(
        &mut self,
        name: &str,
        kind: OperationKind,
        submitted: u64,
        uses: &[(u64, AccessMode)],
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
    pub fn ran(
        &mut self,
        name: &str,
        worker: usize,
        submitted: u64,
        times: (u64, u64),
        uses: &[(u64, AccessMode)],
    ) {
        let part = self.part(name, OperationKind::Operation, submitted, uses);
        let (began, done) = (Some(times.0), Some(times.1));
        (part.granted, part.ready, part.awake, part.began) = (began, began, began, began);
        (part.issued, part.done, part.observed) = (done, done, done);
        part.track = Some(1 + worker);
    }

    /// The program waits for a tensor.
    pub fn waited(&mut self, from: u64, to: u64, tensor: u64, line: u32) {
        let part = self.part("wait", OperationKind::Wait, from, &[(tensor, AccessMode::Read)]);
        (part.granted, part.observed, part.resumed) = (Some(to), Some(to), Some(to));
        part.site = Some(Site { file: "program.py".into(), line, function: "main".into() });
    }

    /// The program waits for an operation.
    pub fn waited_for(&mut self, from: u64, to: u64, operation: OperationId) {
        let part = self.part("wait", OperationKind::Wait, from, &[]);
        (part.granted, part.observed, part.resumed) = (Some(to), Some(to), Some(to));
        part.waits_for = Some(operation);
    }

    pub fn report(mut self, duration: u64) -> Report {
        self.0.duration = duration;
        attribute(&mut self.0);
        report(&self.0)
    }
}
