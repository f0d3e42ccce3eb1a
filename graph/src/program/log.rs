//! StepKind happened, as a log fed from outside, and what can be learned from it afterwards.
//!
//! A [`ProgramLog`] is told of each operation's submission and of the moments in its life, with times that the caller
//! took from whatever clock it has (nanoseconds; only differences matter). It turns them into a petgraph graph of the
//! operations with an edge for every dependence that kept order, and analyses that. It never looks at a live graph.
//!
//! ```
//! use estafette_graph::program::ProgramLog;
//! use estafette_graph::{Mode, OpId, VarId};
//!
//! let (x, y) = (VarId::new(1), VarId::new(2));
//! let mut log = ProgramLog::new();
//! log.submitted(OpId::new(1), "load", [(x, Mode::Write)], 0);
//! log.submitted(OpId::new(2), "sum", [(x, Mode::Read), (y, Mode::Write)], 10);
//! log.started(OpId::new(1), 5);
//! log.done(OpId::new(1), 105);
//! log.started(OpId::new(2), 110);
//! log.done(OpId::new(2), 140);
//!
//! assert_eq!(log.check_topological().expect("in order"), [OpId::new(1), OpId::new(2)]);
//! assert_eq!(log.critical_path().length_ns, 130);
//! assert!(log.to_dot().contains("RAW on var 1"));
//! ```

use std::collections::HashMap;

use crate::id::{OpId, VarId};
use crate::operation::access::Mode;

/// The log: operations in the order of their submission.
#[derive(Clone, Debug, Default)]
pub struct ProgramLog {
    ops: Vec<LoggedOp>,
    indices: HashMap<OpId, usize>,
    ignored: u64,
}

/// One recorded operation. Times are in nanoseconds on the caller's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedOp {
    /// The operation.
    pub id: OpId,
    /// StepKind the caller calls it.
    pub name: String,
    /// Each distinct variable once, ascending; several uses of one variable are merged as the graph merges them.
    pub accesses: Vec<(VarId, Mode)>,
    /// When it was submitted.
    pub submitted_ns: u64,
    /// When all its accesses were granted.
    pub granted_ns: Option<u64>,
    /// When its body began.
    pub started_ns: Option<u64>,
    /// When it was handed to its device queue (for a host operation: when its body ended).
    pub issued_ns: Option<u64>,
    /// When its work was finished.
    pub done_ns: Option<u64>,
}

impl ProgramLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a submission. The order of these calls is taken as the order of submission. A second submission of a
    /// known operation is ignored and counted.
    pub fn submitted(
        &mut self,
        id: OpId,
        name: impl Into<String>,
        accesses: impl IntoIterator<Item = (VarId, Mode)>,
        at_ns: u64,
    ) {
        if self.indices.contains_key(&id) {
            self.ignored += 1;
            return;
        }
        let mut accesses: Vec<_> = accesses.into_iter().collect();
        accesses.sort_unstable_by_key(|(var, _)| *var);
        accesses.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 = kept.1.merge(later.1);
            }
            same
        });
        self.indices.insert(id, self.ops.len());
        self.ops.push(LoggedOp {
            id,
            name: name.into(),
            accesses,
            submitted_ns: at_ns,
            granted_ns: None,
            started_ns: None,
            issued_ns: None,
            done_ns: None,
        });
    }

    /// Notes that all accesses of the operation were granted.
    pub fn granted(&mut self, id: OpId, at_ns: u64) {
        self.note(id, at_ns, |op| &mut op.granted_ns);
    }

    /// Notes that the operation's body began.
    pub fn started(&mut self, id: OpId, at_ns: u64) {
        self.note(id, at_ns, |op| &mut op.started_ns);
    }

    /// Notes that the operation was handed to its device queue, or that its host body ended.
    pub fn issued(&mut self, id: OpId, at_ns: u64) {
        self.note(id, at_ns, |op| &mut op.issued_ns);
    }

    /// Notes that the operation's work was finished.
    pub fn done(&mut self, id: OpId, at_ns: u64) {
        self.note(id, at_ns, |op| &mut op.done_ns);
    }

    /// The operations in submission order.
    pub fn ops(&self) -> &[LoggedOp] {
        &self.ops
    }

    /// The record of one operation.
    pub fn op(&self, id: OpId) -> Option<&LoggedOp> {
        self.indices.get(&id).map(|index| &self.ops[*index])
    }

    /// Events that were not used: of operations submitted before the log began, or noted twice.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    fn note(&mut self, id: OpId, at_ns: u64, moment: impl FnOnce(&mut LoggedOp) -> &mut Option<u64>) {
        let index = self.indices.get(&id).map(|index| moment(&mut self.ops[*index]));
        match index {
            Some(index @ None) => *index = Some(at_ns),
            _ => self.ignored += 1,
        }
    }
}

impl LoggedOp {
    /// From the beginning of the body to the end of the work; zero if either is unknown.
    pub fn duration_ns(&self) -> u64 {
        match (self.started_ns, self.done_ns) {
            (Some(started), Some(done)) => done.saturating_sub(started),
            _ => 0,
        }
    }
}
