//! The report as data: what the terminal and JSON show, and what two reports are compared by.
//!
//! Names of fields are those of the JSON; `docs/report.md` explains them to readers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::Trace;
use crate::analysis::advice::{advice, walked};
use crate::analysis::barrier::{Barriers, barriers};
use crate::analysis::critical_path::{critical_path, own_time};
use crate::analysis::exchanges::{Exchange, Exchanges};
use crate::analysis::hand_overs::{HandOver, hand_overs};
use crate::analysis::idle::idle;
use crate::analysis::lock::with_holders;
use crate::analysis::matrix::{Matrix, Sums};
use crate::analysis::roots::{Root, each_wait};
use crate::analysis::sentences;
use crate::analysis::walk::{Step, What, walk};
use crate::analysis::with_graph::{WithGraph, with_graph};
use crate::format::facts::Word;
use crate::model::sane::sane;
use crate::model::shown::shown;
use crate::model::{Blocker, Cause, Nanos, OperationId, OperationKind, Outcome, TrackId};

/// Stalls that are written as sentences.
const WORST: usize = 10;

const FAILURES: usize = 10;

/// Version of the JSON; grows when a field changes its meaning or goes.
pub const SCHEMA: u32 = 2;

/// A report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`] of the version that made the report.
    pub schema: u32,
    /// The cause that held up most of the run.
    pub headline: String,
    /// The program that was recorded.
    pub program: String,
    /// Run time.
    pub duration_ns: Nanos,
    /// Numbers of what was recorded.
    pub totals: Totals,
    /// The first failures, equal ones as one.
    #[serde(default)]
    pub failures: Vec<FailureRow>,
    /// Waiting time by cause at the root, in the order of [`Cause::ALL`].
    pub causes: Vec<CauseRow>,
    /// The worst waits, equal ones as one, those that took most time together first.
    pub worst: Vec<WorstRow>,
    /// The waits by waiter and blocker.
    pub matrix: Matrix,
    /// The hand-overs from library to library, longest waits first.
    pub exchanges: Vec<Exchange>,
    /// Hand-overs of device memory that nothing ordered after the work that made it, or that may not have been.
    #[serde(default)]
    pub hand_overs: Vec<HandOver>,
    /// The changes by Estafette in a program that was only observed.
    #[serde(default)]
    pub with_graph: WithGraph,
    /// By name, most waiting first.
    pub operations: Vec<OperationRow>,
    /// By name, most waiting first.
    pub tensors: Vec<TensorRow>,
    /// The longest chain of work.
    pub critical_path: PathRow,
    /// The uses of the run time, most first.
    pub run_time: Vec<RunTimeRow>,
    /// The cost of barriers.
    pub barriers: Barriers,
    /// The changes that would help most.
    pub advice: Vec<Advice>,
    /// The differences of several machines' clocks, in words.
    #[serde(default)]
    pub clocks: Vec<String>,
    /// The losses, in words.
    pub missing: Vec<String>,
}

/// Numbers of what was recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Operations with a body.
    pub operations: usize,
    /// Operations, copies and imports that failed themselves.
    pub failed: usize,
    /// Those that were cancelled.
    #[serde(default)]
    pub cancelled: usize,
    /// Those that were skipped, since what they need failed or was cancelled.
    #[serde(default)]
    pub skipped: usize,
    /// Those that had not ended.
    pub unfinished: usize,
    /// Waits and awaits of the program.
    pub waits: usize,
    /// Leases that were held.
    pub leases: usize,
    /// Time that operations ran, summed.
    pub running_ns: Nanos,
    /// Time that operations, waits and exports waited, summed.
    pub waited_ns: Nanos,
}

/// Failures for one reason, of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRow {
    /// The name.
    pub name: String,
    /// The first of them.
    pub operation: OperationId,
    /// The failure, in the words of the operation.
    pub why: String,
    /// Their number.
    pub count: usize,
}

/// One cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseRow {
    /// [`Cause::name`].
    pub cause: String,
    /// Time.
    pub waited_ns: Nanos,
    /// Waits that it had a part in.
    pub waits: usize,
}

/// Waits of the same operations, by name, for the same cause and blocker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstRow {
    /// In words.
    pub sentence: String,
    /// The operation that waited longest.
    pub waiter: OperationId,
    /// The time that it waited.
    pub waited_ns: Nanos,
    /// The number of these waits.
    #[serde(default)]
    pub count: usize,
    /// Their total time.
    #[serde(default)]
    pub total_ns: Nanos,
    /// The cause of most of it, at the root.
    pub cause: String,
    /// The blocker of most of it, in words.
    pub blocker: String,
}

/// All operations of one name and kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationRow {
    /// The name.
    pub name: String,
    /// The kind: `operation`, `copy`, `wait`, `await`, `export` or `import`.
    #[serde(default)]
    pub kind: String,
    /// Their number.
    pub count: usize,
    /// Time that they ran.
    pub running_ns: Nanos,
    /// Time that they waited.
    pub waited_ns: Nanos,
    /// That time by cause at the root, in the order of [`Cause::ALL`].
    #[serde(default)]
    pub causes_ns: Vec<Nanos>,
    /// Time that others waited for them, at the root.
    pub blamed_ns: Nanos,
    /// The least slack among them; 0 on the critical path.
    pub slack_ns: Nanos,
}

/// All tensors (and plain variables) of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorRow {
    /// The name.
    pub name: String,
    /// Their size together, as far as known.
    pub bytes: u64,
    /// Uses.
    pub accesses: usize,
    /// Time that was waited for them, hidden waits included.
    pub waited_ns: Nanos,
    /// Time that they were under a lease, summed.
    pub leased_ns: Nanos,
}

/// The critical path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRow {
    /// Time that its operations took: no number of workers makes the run shorter than this.
    pub length_ns: Nanos,
    /// The number of its operations.
    pub count: usize,
    /// Its operations by name, in order; consecutive ones of the same name are one.
    pub names: Vec<String>,
}

/// A part of the run time, along whatever held up the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTimeRow {
    /// In words.
    pub what: String,
    /// The time.
    pub time_ns: Nanos,
}

/// A change that would help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// The change.
    pub change: String,
    /// The greatest saving.
    pub saves_ns: Nanos,
}

/// Names of a critical path that are kept.
const PATH_NAMES: usize = 64;

/// Tracks whose losses have a line each.
const LOSSES: usize = 10;

/// The order of rows of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    /// The name, in the order of the alphabet.
    Name,
    /// Their number; most first, as all that follow.
    Count,
    /// Time that they ran.
    Ran,
    /// Time that they waited.
    Waited,
    /// Time that others waited for them.
    Blamed,
    /// Their slack.
    Slack,
}

impl Report {
    /// Sorts the operations.
    pub fn sort(&mut self, by: SortBy) {
        let key = |row: &OperationRow| match by {
            SortBy::Name => 0,
            SortBy::Count => row.count as u64,
            SortBy::Ran => row.running_ns,
            SortBy::Waited => row.waited_ns,
            SortBy::Blamed => row.blamed_ns,
            SortBy::Slack => row.slack_ns,
        };
        self.operations.sort_by(|a, b| key(b).cmp(&key(a)).then_with(|| a.name.cmp(&b.name)));
    }
}

/// Makes the report.
pub fn report(trace: &Trace) -> Report {
    report_of(trace, &|_| true)
}

/// Makes the report, with only those operations, failures, worst waits, parts of the run time and changes that name a text.
pub fn report_about(trace: &Trace, text: &str) -> Report {
    // In sentences names are shown, not as they are.
    let shown = shown(text).to_string();
    report_of(trace, &|words| words.contains(&shown))
}

fn report_of(trace: &Trace, keep: &dyn Fn(&str) -> bool) -> Report {
    let trace = &*with_holders(sane(trace));
    let (mut waits, mut causes, mut operations) = (Waits::default(), Causes::default(), Rows::of(trace));
    let (mut matrix, mut exchanges) = (Sums::default(), Exchanges::of(trace));
    each_wait(trace, |roots| {
        waits.add(trace, roots);
        causes.add(roots);
        for root in roots {
            operations.add(trace, root);
            matrix.add(trace, root);
            exchanges.add(root);
        }
    });
    let waits = waits.most_first();
    let path = critical_path(trace);
    let steps = walk(trace);
    let with_graph = with_graph(trace, &steps, keep);
    let mut names: Vec<String> = Vec::new();
    for id in &path.operations {
        let name = sentences::name(trace, *id);
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    names.truncate(PATH_NAMES);
    Report {
        schema: SCHEMA,
        headline: format!("{}{}", program(trace, &steps), headline(trace, &steps, &waits)),
        program: trace.program.to_string(),
        duration_ns: trace.duration,
        totals: totals(trace, causes.0.values().map(|(time, _)| time).sum()),
        failures: failures(trace, keep),
        causes: causes.rows(),
        worst: worst(trace, &waits, keep),
        matrix: matrix.matrix(trace),
        exchanges: exchanges.rows(),
        hand_overs: hand_overs(trace),
        operations: operations.finish(trace, &path.slack, keep),
        tensors: tensors(trace),
        critical_path: PathRow { length_ns: path.length, count: path.operations.len(), names },
        run_time: run_time(trace, &steps, keep),
        barriers: barriers(trace),
        advice: advice(trace, &steps, &with_graph, keep),
        with_graph,
        clocks: trace.clocks.iter().map(|words| shown(words).to_string()).collect(),
        missing: missing(trace),
    }
}

/// Waits of one name, for one cause and blocker.
struct Wait {
    count: usize,
    total: Nanos,
    /// The longest of them, and how long it was.
    longest: Nanos,
    /// The longest interval of that one.
    main: Root,
    /// True if all waited for the same tensor.
    is_of_one: bool,
}

/// The parts of one wait by what was at their root: time, and the longest interval.
type Parts = HashMap<(Cause, Rc<str>), (Nanos, Root)>;

/// The waits of all operations, equal ones as one.
#[derive(Default)]
struct Waits {
    blamed: HashMap<Blocker, Rc<str>>,
    groups: BTreeMap<(String, Cause, Rc<str>), Wait>,
}

impl Waits {
    fn add(&mut self, trace: &Trace, roots: &[Root]) {
        let mut parts = Parts::new();
        for root in roots {
            let blocker =
                self.blamed.entry(root.blocker).or_insert_with(|| blamed(trace, root.blocker).into());
            let (part, longest) = parts.entry((root.cause, Rc::clone(blocker))).or_insert((0, *root));
            *part += root.duration();
            if root.duration() > longest.duration() {
                *longest = *root;
            }
        }
        let main = parts.into_iter().max_by_key(|(_, (part, root))| (*part, root.from));
        let Some(((cause, blocker), (_, main))) = main else { return };
        let total = roots.iter().map(Root::duration).sum();
        let variable = |root: &Root| Some(trace.access(root.waiter, root.access)?.variable);
        let key = (sentences::name(trace, main.waiter), cause, blocker);
        let first = Wait { count: 0, total: 0, longest: 0, main, is_of_one: true };
        let group = self.groups.entry(key).or_insert(first);
        group.count += 1;
        group.total += total;
        group.is_of_one &= variable(&group.main) == variable(&main);
        if total > group.longest || total == group.longest && main.waiter < group.main.waiter {
            (group.longest, group.main) = (total, main);
        }
    }

    /// Those first that took most time together.
    fn most_first(self) -> Vec<Wait> {
        let mut waits: Vec<Wait> = self.groups.into_values().collect();
        waits.sort_by_key(|wait| (std::cmp::Reverse(wait.total), wait.main.waiter));
        waits
    }
}

impl Wait {
    fn sentence(&self, trace: &Trace) -> String {
        let mut main = self.main;
        let mut waited = sentences::duration(self.total);
        if self.count > 1 {
            waited = format!(
                "{waited} in {} waits (the longest {})",
                self.count,
                sentences::duration(self.longest)
            );
        }
        if !self.is_of_one {
            main.access = usize::MAX;
        }
        sentences::sentence(trace, &main, &waited)
    }
}

/// A blocker by what people would change: all operations of a name are one.
fn blamed(trace: &Trace, blocker: Blocker) -> String {
    match blocker {
        Blocker::None => "something unknown".into(),
        Blocker::Operation(id) => sentences::name(trace, id),
        Blocker::Lease(id) => sentences::lease(trace, id),
        Blocker::Pool => "the worker pool".into(),
        Blocker::Queue(track) => shown(trace.track_name(track, "a queue")).to_string(),
        Blocker::Observer => "the observer of fences".into(),
        Blocker::Interpreter => "the Python lock".into(),
        Blocker::LockOwner(track) => format!("the Python lock, by {}", thread(trace, track)),
        Blocker::EventLoop => "the event loop".into(),
        Blocker::Thread(track) => thread(trace, track),
    }
}

fn thread(trace: &Trace, track: TrackId) -> String {
    trace
        .tracks
        .get(track)
        .map_or_else(|| "a thread".into(), |track| format!("thread `{}`", shown(&track.name)))
}

/// Said first where most of the run time was the program's own.
fn program(trace: &Trace, steps: &[Step]) -> String {
    let time = |steps: &mut dyn Iterator<Item = &Step>| steps.map(|step| step.to - step.from).sum::<Nanos>();
    let whole = time(&mut steps.iter());
    let own = time(&mut steps.iter().filter(|step| step.what == What::Program));
    let alone = idle(trace, steps);
    let (took, meanwhile) = match (alone > whole / 2, own > whole / 2) {
        (true, _) => (alone, "while nothing was under way"),
        (false, true) => (own, "beside what was under way"),
        (false, false) => return String::new(),
    };
    if trace.operations.is_empty() {
        return String::new();
    }
    format!("The program itself took {} of {}, {meanwhile}. ", share(took, whole), sentences::duration(whole))
}

fn share(part: Nanos, whole: Nanos) -> String {
    format!("{:.0} %", part as f64 / whole.max(1) as f64 * 100.0)
}

/// The part that took most of the run time, apart from the program itself, and the wait that shows it best.
fn headline(trace: &Trace, steps: &[Step], waits: &[Wait]) -> String {
    let mut groups: BTreeMap<(Cause, String), Nanos> = BTreeMap::new();
    for step in steps {
        let (cause, blocker) = match step.what {
            What::Program => continue,
            What::Run(id) => (Cause::Computing, Blocker::Operation(id)),
            What::Stall(cause, blocker) => (cause, blocker),
        };
        *groups.entry((cause, blamed(trace, blocker))).or_default() += step.to - step.from;
    }
    let example = |wait: Option<&Wait>| {
        wait.map_or_else(String::new, |wait| format!(" The longest: {}.", wait.sentence(trace)))
    };
    // Of what waited itself and what it waited for, the latter is the reason.
    let most = groups.into_iter().max_by(|(a, x), (b, y)| x.cmp(y).then_with(|| b.cmp(a)));
    let Some(longest) = waits.first() else { return "Nothing waited.".into() };
    let Some(((cause, blocker), time)) = most else {
        return format!("No wait held up the end.{}", example(Some(longest)));
    };
    let whole = walked(steps);
    let matching = |wait: &&Wait| wait.main.cause == cause && blamed(trace, wait.main.blocker) == blocker;
    // The program's own wait is the longest, and says least; what waited for the blocker itself says most.
    let says_most = |wait: &&Wait| {
        let kind = trace.operation(wait.main.waiter).map(|operation| operation.kind);
        wait.main.via.is_none() && kind != Some(OperationKind::Wait)
    };
    let worst = waits.iter().filter(matching).find(says_most).or_else(|| waits.iter().find(matching));
    format!(
        "{} of the run time of {}: {} ({blocker}).{}",
        share(time, whole),
        sentences::duration(whole),
        cause.name(),
        example(worst)
    )
}

/// For each cause the time, and how many operations waited.
#[derive(Default)]
struct Causes(HashMap<Cause, (Nanos, usize)>);

impl Causes {
    fn add(&mut self, roots: &[Root]) {
        let mut seen = HashSet::new();
        for root in roots {
            let (time, waits) = self.0.entry(root.cause).or_default();
            *time += root.duration();
            *waits += usize::from(seen.insert(root.cause));
        }
    }

    fn rows(&self) -> Vec<CauseRow> {
        let row = |cause: Cause| {
            let (waited_ns, waits) = self.0.get(&cause).copied().unwrap_or_default();
            CauseRow { cause: cause.name().into(), waited_ns, waits }
        };
        Cause::ALL.map(row).into()
    }
}

fn worst(trace: &Trace, waits: &[Wait], keep: &dyn Fn(&str) -> bool) -> Vec<WorstRow> {
    let row = |wait: &Wait| WorstRow {
        sentence: wait.sentence(trace),
        waiter: wait.main.waiter,
        waited_ns: wait.longest,
        count: wait.count,
        total_ns: wait.total,
        cause: wait.main.cause.name().into(),
        blocker: blamed(trace, wait.main.blocker),
    };
    waits.iter().map(row).filter(|row| keep(&row.sentence)).take(WORST).collect()
}

/// The first failures. What was skipped because of one is none of its own.
fn failures(trace: &Trace, keep: &dyn Fn(&str) -> bool) -> Vec<FailureRow> {
    let mut rows: HashMap<(String, &str), (Nanos, FailureRow)> = HashMap::new();
    for operation in &trace.operations {
        let Outcome::Failed(why) = &operation.outcome else { continue };
        let name = sentences::name(trace, operation.id);
        if !keep(&name) {
            continue;
        }
        let when = operation.done.or(operation.issued).unwrap_or(trace.duration);
        let first =
            || FailureRow { name: name.clone(), operation: operation.id, why: why.to_string(), count: 0 };
        let (since, row) = rows.entry((name.clone(), why)).or_insert_with(|| (when, first()));
        row.count += 1;
        if when < *since {
            (*since, row.operation) = (when, operation.id);
        }
    }
    let mut rows: Vec<(Nanos, FailureRow)> = rows.into_values().collect();
    rows.sort_by_key(|(when, row)| (*when, row.operation));
    rows.into_iter().take(FAILURES).map(|(_, row)| row).collect()
}

fn totals(trace: &Trace, waited_ns: Nanos) -> Totals {
    let mut totals = Totals { leases: trace.leases.len(), waited_ns, ..Totals::default() };
    for operation in &trace.operations {
        match operation.kind {
            OperationKind::Operation => {
                totals.operations += 1;
                totals.running_ns += own_time(trace, operation.id);
                totals.unfinished += usize::from(operation.outcome == Outcome::Unfinished);
            }
            OperationKind::Wait | OperationKind::Await => {
                totals.waits += 1;
                continue;
            }
            OperationKind::Export => continue,
            OperationKind::Copy | OperationKind::Import => {}
        }
        match operation.outcome {
            Outcome::Ok | Outcome::Unfinished => {}
            Outcome::Failed(_) => totals.failed += 1,
            Outcome::Cancelled => totals.cancelled += 1,
            Outcome::Skipped(_) => totals.skipped += 1,
        }
    }
    totals
}

/// The operations by name and kind.
struct Rows {
    rows: Vec<OperationRow>,
    /// Per operation, its row.
    of: Vec<u32>,
}

impl Rows {
    fn of(trace: &Trace) -> Self {
        let mut known: HashMap<(String, OperationKind), u32> = HashMap::new();
        let (mut rows, mut of) = (Vec::new(), Vec::with_capacity(trace.operations.len()));
        for operation in &trace.operations {
            let name = sentences::name(trace, operation.id);
            let at = *known.entry((name, operation.kind)).or_insert_with_key(|(name, kind)| {
                rows.push(OperationRow {
                    name: name.clone(),
                    kind: kind.word().to_owned(),
                    count: 0,
                    running_ns: 0,
                    waited_ns: 0,
                    causes_ns: vec![0; Cause::ALL.len()],
                    blamed_ns: 0,
                    slack_ns: Nanos::MAX,
                });
                rows.len() as u32 - 1
            });
            of.push(at);
            let row = &mut rows[at as usize];
            row.count += 1;
            if matches!(operation.kind, OperationKind::Operation | OperationKind::Copy) {
                row.running_ns += own_time(trace, operation.id);
            }
        }
        Self { rows, of }
    }

    fn row(&mut self, trace: &Trace, id: OperationId) -> Option<&mut OperationRow> {
        Some(&mut self.rows[self.of[trace.position(id)?] as usize])
    }

    fn add(&mut self, trace: &Trace, root: &Root) {
        if let Some(row) = self.row(trace, root.waiter) {
            row.waited_ns += root.duration();
            let cause = Cause::ALL.iter().position(|cause| *cause == root.cause);
            cause.into_iter().for_each(|cause| row.causes_ns[cause] += root.duration());
        }
        if let Blocker::Operation(id) | Blocker::Lease(id) = root.blocker
            && let Some(row) = self.row(trace, id)
        {
            row.blamed_ns += root.duration();
        }
    }

    fn finish(
        mut self,
        trace: &Trace,
        slack: &HashMap<OperationId, Nanos>,
        keep: &dyn Fn(&str) -> bool,
    ) -> Vec<OperationRow> {
        for (id, slack) in slack {
            if let Some(row) = self.row(trace, *id) {
                row.slack_ns = row.slack_ns.min(*slack);
            }
        }
        self.rows.retain(|row| keep(&row.name));
        for row in &mut self.rows {
            if row.slack_ns == Nanos::MAX {
                row.slack_ns = 0;
            }
        }
        let key = |row: &OperationRow| (std::cmp::Reverse(row.waited_ns), row.name.clone(), row.kind.clone());
        self.rows.sort_by_cached_key(key);
        self.rows
    }
}

fn tensors(trace: &Trace) -> Vec<TensorRow> {
    let mut rows: BTreeMap<&str, TensorRow> = BTreeMap::new();
    for variable in &trace.variables {
        let row = rows.entry(&variable.name).or_insert_with(|| TensorRow {
            name: variable.name.to_string(),
            bytes: 0,
            accesses: 0,
            waited_ns: 0,
            leased_ns: 0,
        });
        row.bytes = row.bytes.saturating_add(variable.bytes.unwrap_or(0));
    }
    let name_of = |variable: u64| trace.variable(variable).map(|variable| variable.name.as_str());
    for access in trace.operations.iter().flat_map(|operation| &operation.accesses) {
        if let Some(row) = name_of(access.variable).and_then(|name| rows.get_mut(name)) {
            row.accesses += 1;
        }
    }
    for stall in &trace.stalls {
        let access = trace.access(stall.waiter, stall.access);
        if let Some(row) =
            access.and_then(|access| name_of(access.variable)).and_then(|name| rows.get_mut(name))
        {
            row.waited_ns += stall.duration();
        }
    }
    for lease in &trace.leases {
        if let Some(row) = name_of(lease.variable).and_then(|name| rows.get_mut(name)) {
            row.leased_ns += lease.closed.unwrap_or(trace.end_of(lease.id)).saturating_sub(lease.opened);
        }
    }
    let mut rows: Vec<TensorRow> = rows.into_values().filter(|row| row.accesses > 0).collect();
    rows.sort_by(|a, b| b.waited_ns.cmp(&a.waited_ns).then_with(|| a.name.cmp(&b.name)));
    rows
}

fn run_time(trace: &Trace, steps: &[Step], keep: &dyn Fn(&str) -> bool) -> Vec<RunTimeRow> {
    let mut by_what: HashMap<What, Nanos> = HashMap::new();
    for step in steps {
        *by_what.entry(step.what).or_default() += step.to - step.from;
    }
    let mut rows: BTreeMap<String, Nanos> = BTreeMap::new();
    for (what, time) in by_what {
        let what = match what {
            What::Run(id) => format!("{} ran", sentences::name(trace, id)),
            What::Program => "the program did something else".into(),
            What::Stall(cause, blocker) => sentences::because(trace, cause, blocker),
        };
        *rows.entry(what).or_default() += time;
    }
    rows.retain(|what, _| keep(what));
    let mut rows: Vec<RunTimeRow> =
        rows.into_iter().map(|(what, time_ns)| RunTimeRow { what, time_ns }).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.time_ns));
    rows
}

/// The losses of the trace, in words.
pub fn missing(trace: &Trace) -> Vec<String> {
    let (first, others) = trace.losses.records.split_at(trace.losses.records.len().min(LOSSES));
    let lost = first.iter().map(|lost| {
        format!("{} entries of `{}` did not fit", lost.count, shown(trace.track_name(lost.track, "a thread")))
    });
    let count = others.iter().fold(0, |count: u64, lost| count.saturating_add(lost.count));
    let more = (!others.is_empty()).then(|| format!("{count} entries of {} more did not fit", others.len()));
    let damage = trace.losses.damage.iter().map(|damage| shown(damage).to_string());
    lost.chain(more).chain(damage).collect()
}
