//! The data of the page: the report, and the trace in columns. Numbers of operations and leases ("nodes") run
//! through both: operations first.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Value, json};

use super::column::Columns;
use super::wait_parts::WaitParts;
use crate::analysis::critical_path::critical_path;
use crate::analysis::lock::with_holders;
use crate::analysis::place::{self, Row};
use crate::analysis::roots::{Root, each_wait};
use crate::analysis::sentences;
use crate::analysis::summary::{Report, WorstRow};
use crate::format::facts::Word;
use crate::model::{
    Blocker, Cause, Counter, Edge, Lease, Operation, OperationId, OperationKind, Outcome, Site, Trace,
};

/// Waits that the keys go through.
const WALKED: usize = 500;

/// Everything, for `script/data.js`: JSON that says where its columns are, and the columns.
pub fn of(trace: &Trace, report: &Report) -> (Value, Columns) {
    let mut columns = Columns::default();
    let trace = &*with_holders(Cow::Borrowed(trace));
    let view = View::of(trace);
    let mut texts = Texts::default();
    let mut sites = Texts::default();
    let mut outcomes = Texts::default();
    let mut parts = WaitParts::default();
    each_wait(trace, |wait| parts.add(wait));
    let (share, roots) = (parts.share(), parts.parts);
    let worst: Vec<usize> = report.worst.iter().filter_map(|row| main_root(&roots, row)).collect();
    let mut longest: Vec<usize> = (0..roots.len()).collect();
    longest.sort_by_key(|&root| std::cmp::Reverse(roots[root].duration()));
    longest.truncate(WALKED);
    let path = critical_path(trace);
    let path = path.operations.iter().filter_map(|id| view.node(*id)).map(|node| node as u64);
    let operations = view.operations(&mut columns, &mut texts, &mut sites, &mut outcomes);
    let leases = view.leases(&mut columns, &mut texts, &mut sites);
    let json = json!({
        "program": trace.program,
        // Milliseconds, the unit of JavaScript's dates.
        "started": trace.started_unix_ns / 1_000_000,
        "duration": trace.duration,
        "tracks": trace.tracks.iter().map(|track| json!([track.name, track.kind.word()])).collect::<Value>(),
        "libraries": trace.libraries,
        "kinds": OperationKind::WORDS.iter().map(|(_, word)| word).collect::<Vec<_>>(),
        "tensors": view.tensors(),
        "operations": operations,
        "leases": leases,
        "stalls": view.stalls(&mut columns, &roots),
        // Of how small a part of a wait nothing is drawn, if so.
        "part": share,
        "edges": view.edges(&mut columns),
        "counters": counters(&mut columns, trace),
        "critical": columns.steps(path),
        "names": texts.list,
        "sites": sites.list,
        "outcomes": outcomes.list,
        "worst": worst,
        "longest": longest,
        "longestOfCells": report.matrix.longest(trace, &roots),
        "report": report,
    });
    (json, columns)
}

/// The longest interval of a wait that the report mentions.
fn main_root(roots: &[Root], row: &WorstRow) -> Option<usize> {
    let of_wait = roots.iter().enumerate().filter(|(_, root)| root.waiter == row.waiter);
    let of_cause = of_wait.filter(|(_, root)| root.cause.name() == row.cause);
    of_cause.max_by_key(|(_, root)| root.duration()).map(|(index, _)| index)
}

/// Texts that occur often, each once.
#[derive(Default)]
struct Texts {
    list: Vec<String>,
    index: HashMap<String, usize>,
}

impl Texts {
    fn add(&mut self, text: &str) -> usize {
        if let Some(&index) = self.index.get(text) {
            return index;
        }
        self.index.insert(text.to_owned(), self.list.len());
        self.list.push(text.to_owned());
        self.list.len() - 1
    }

    fn site(&mut self, site: Option<&Site>) -> Option<usize> {
        let site = site?;
        let function =
            if site.function.is_empty() { String::new() } else { format!(" in {}", site.function) };
        Some(self.add(&format!("{}{function}", sentences::place(site))))
    }
}

/// A trace, with numbers by which the columns refer to its parts.
struct View<'a> {
    trace: &'a Trace,
    operations: HashMap<OperationId, usize>,
    leases: HashMap<OperationId, usize>,
    tensors: HashMap<u64, usize>,
}

impl<'a> View<'a> {
    fn of(trace: &'a Trace) -> Self {
        let first_lease = trace.operations.len();
        let numbered = |(index, lease): (usize, &Lease)| (lease.id, first_lease + index);
        Self {
            trace,
            operations: trace.operations.iter().enumerate().map(|(index, it)| (it.id, index)).collect(),
            leases: trace.leases.iter().enumerate().map(numbered).collect(),
            tensors: trace.variables.iter().enumerate().map(|(index, it)| (it.id, index)).collect(),
        }
    }

    /// An operation, or else a lease. (An export and its lease have the same identity.)
    fn node(&self, id: OperationId) -> Option<usize> {
        self.operations.get(&id).or_else(|| self.leases.get(&id)).copied()
    }

    fn tensor(&self, id: u64) -> Option<usize> {
        self.tensors.get(&id).copied()
    }

    fn operations(
        &self,
        columns: &mut Columns,
        texts: &mut Texts,
        sites: &mut Texts,
        outcomes: &mut Texts,
    ) -> Value {
        let all = &self.trace.operations;
        let placed = place::operations(self.trace);
        let since_submission = |columns: &mut Columns, time: fn(&Operation) -> Option<u64>| {
            columns.times(all.iter().map(|it| (it.submitted, time(it))))
        };
        let row = |row: Row| match row {
            Row::Track(track) => Some(track),
            Row::Library(_) => None,
        };
        let known_track = |track: Option<usize>| track.filter(|&track| track < self.trace.tracks.len());
        let accesses = || all.iter().flat_map(|it| &it.accesses);
        json!({
            "id": columns.steps(all.iter().map(|it| it.id)),
            "name": columns.indices(all.iter().map(|it| Some(texts.add(&it.name)))),
            "kind": columns.indices(all.iter().map(|it| it.kind.number())),
            "library": columns.indices(all.iter().map(|it| place::known(self.trace, it.library))),
            "track": columns.indices(all.iter().map(|it| known_track(it.track.or(it.submitter)))),
            "site": columns.indices(all.iter().map(|it| sites.site(it.site.as_ref()))),
            "outcome": columns.indices(all.iter().map(|it| outcome(&it.outcome).map(|words| outcomes.add(&words)))),
            "row": columns.indices(placed.iter().map(|placed| row(placed.row))),
            "from": columns.times(all.iter().zip(&placed).map(|(it, placed)| (it.submitted, Some(placed.from)))),
            "to": columns.times(placed.iter().map(|placed| (placed.from, placed.to))),
            "submitted": columns.steps(all.iter().map(|it| it.submitted)),
            "granted": since_submission(columns, |it| it.granted),
            "began": since_submission(columns, |it| it.began),
            "issued": since_submission(columns, |it| it.issued),
            "done": since_submission(columns, |it| it.done),
            "observed": since_submission(columns, |it| it.observed),
            "resumed": since_submission(columns, |it| it.resumed),
            "accesses": columns.plain(all.iter().map(|it| it.accesses.len() as i64)),
            "tensor": columns.indices(accesses().map(|access| self.tensor(access.variable))),
            "mode": columns.indices(accesses().map(|access| access.mode.number())),
        })
    }

    fn leases(&self, columns: &mut Columns, texts: &mut Texts, sites: &mut Texts) -> Value {
        let all = &self.trace.leases;
        let end = |lease: &Lease| place::lease(self.trace, lease).to;
        json!({
            "id": columns.steps(all.iter().map(|it| it.id)),
            "tensor": columns.indices(all.iter().map(|it| self.tensor(it.variable))),
            "mode": columns.indices(all.iter().map(|it| it.access.number())),
            "library": columns.indices(all.iter().map(|it| place::known(self.trace, it.library))),
            "owner": columns.indices(all.iter().map(|it| Some(texts.add(&it.owner)))),
            "site": columns.indices(all.iter().map(|it| sites.site(it.site.as_ref()))),
            "opened": columns.steps(all.iter().map(|it| it.opened)),
            "to": columns.times(all.iter().map(|it| (it.opened, end(it)))),
            "open": columns.indices(all.iter().map(|it| it.closed.is_none().then_some(0))),
        })
    }

    fn stalls(&self, columns: &mut Columns, roots: &[Root]) -> Value {
        let tensor = |root: &Root| self.tensor(self.trace.access(root.waiter, root.access)?.variable);
        let (blame, which): (Vec<usize>, Vec<Option<usize>>) =
            roots.iter().map(|root| self.blame(root.blocker)).unzip();
        let waiters = || roots.iter().map(|root| self.operations.get(&root.waiter).copied());
        let cause = |root: &Root| Cause::ALL.iter().position(|&cause| cause == root.cause);
        json!({
            "waiter": columns.steps(waiters().map(|waiter| waiter.map_or(0, |waiter| waiter as u64 + 1))),
            "tensor": columns.indices(roots.iter().map(tensor)),
            "from": columns.steps(roots.iter().map(|root| root.from)),
            "to": columns.times(roots.iter().map(|root| (root.from, Some(root.to)))),
            "cause": columns.indices(roots.iter().map(cause)),
            "hazard": columns.indices(roots.iter().map(|root| root.direct.and_then(Word::number))),
            // Before the waiter by so many, which are few.
            "via": columns.plain(roots.iter().zip(waiters()).map(|(root, waiter)| self.before(root, waiter).unwrap_or(0))),
            "blame": columns.indices(blame.into_iter().map(Some)),
            "which": columns.indices(which.into_iter()),
        })
    }

    /// The distance from a waiter back to the operation that an interval of waiting came by.
    fn before(&self, root: &Root, waiter: Option<usize>) -> Option<i64> {
        Some(waiter? as i64 - self.node(root.via?)? as i64)
    }

    /// The number of a kind of blocker in `script/words.js`, and which one it is.
    fn blame(&self, blocker: Blocker) -> (usize, Option<usize>) {
        let node = |node: Option<&usize>| node.map_or((0, None), |&node| (1, Some(node)));
        let track = |kind, track: usize| {
            if track < self.trace.tracks.len() { (kind, Some(track)) } else { (0, None) }
        };
        match blocker {
            Blocker::None => (0, None),
            Blocker::Operation(id) => node(self.operations.get(&id)),
            Blocker::Lease(id) => node(self.leases.get(&id)),
            Blocker::Pool => (2, None),
            Blocker::Queue(id) => track(3, id),
            Blocker::Observer => (4, None),
            Blocker::Interpreter => (5, None),
            Blocker::EventLoop => (6, None),
            Blocker::Thread(id) => track(7, id),
            Blocker::LockOwner(id) => track(8, id),
        }
    }

    /// Those with both ends.
    fn edges(&self, columns: &mut Columns) -> Value {
        let known = |edge: &Edge| Some((self.node(edge.from)?, self.node(edge.to)?, *edge));
        let all: Vec<_> = self.trace.edges.iter().filter_map(known).collect();
        json!({
            "from": columns.indices(all.iter().map(|&(from, ..)| Some(from))),
            "to": columns.indices(all.iter().map(|&(_, to, _)| Some(to))),
            "tensor": columns.indices(all.iter().map(|(.., edge)| self.tensor(edge.variable))),
            "hazard": columns.indices(all.iter().map(|(.., edge)| edge.hazard.number())),
        })
    }

    fn tensors(&self) -> Value {
        json!({ "name": self.trace.variables.iter().map(|it| it.name.as_str()).collect::<Vec<_>>() })
    }
}

fn counters(columns: &mut Columns, trace: &Trace) -> Value {
    let mut counter = |counter: &Counter| {
        json!({
            "name": counter.name,
            "unit": counter.unit,
            "time": columns.steps(counter.samples.iter().map(|&(time, _)| time)),
            "value": columns.steps(counter.samples.iter().map(|&(_, value)| value as u64)),
        })
    };
    trace.counters.iter().map(&mut counter).collect()
}

/// Its outcome, unless it ended well.
fn outcome(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Ok => None,
        Outcome::Failed(why) => Some(format!("failed: {why}")),
        Outcome::Cancelled => Some("cancelled".to_owned()),
        Outcome::Skipped(why) => Some(format!("skipped: {why}")),
        Outcome::Unfinished => Some("not ended".to_owned()),
    }
}
