//! The waits of a report: equal ones as one, the worst of them, and the headline.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::WorstRow;
use crate::Trace;
use crate::analysis::advice::walked;
use crate::analysis::idle::idle;
use crate::analysis::roots::Root;
use crate::analysis::sentences;
use crate::analysis::walk::{Step, What};
use crate::model::shown::shown;
use crate::model::{Blocker, Cause, Nanos, OperationKind, TrackId};

/// Stalls that are written as sentences.
const WORST: usize = 10;

/// Waits of one name, for one cause and blocker.
pub(super) struct Wait {
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
type RootParts = HashMap<(Cause, Rc<str>), (Nanos, Root)>;

/// The waits of all operations, equal ones as one.
#[derive(Default)]
pub(super) struct Waits {
    blamed: HashMap<Blocker, Rc<str>>,
    groups: BTreeMap<(String, Cause, Rc<str>), Wait>,
}

impl Waits {
    pub(super) fn add(&mut self, trace: &Trace, roots: &[Root]) {
        let mut parts = RootParts::new();
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
    pub(super) fn most_first(self) -> Vec<Wait> {
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
pub(super) fn program(trace: &Trace, steps: &[Step]) -> String {
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
pub(super) fn headline(trace: &Trace, steps: &[Step], waits: &[Wait]) -> String {
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

pub(super) fn worst(trace: &Trace, waits: &[Wait], keep: &dyn Fn(&str) -> bool) -> Vec<WorstRow> {
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
