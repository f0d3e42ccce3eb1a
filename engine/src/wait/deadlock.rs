//! Deadlock detection of waits for room, or for everything to end: can anything still move?
//!
//! The answer is the same for all threads that wait for the same thing. So one thread checks for all, with
//! pauses that grow, and the others sleep until they are notified. Each wait may become the checking one once
//! its first, short sleep was in vain. A wait that ends hands the checks over: it notifies the others, and
//! the first thread that wakes continues the checks.
//!
//! A check that finds a standstill notifies the others, too. Each of them checks for itself until something
//! moves again: the leases of its own thread, and its own time limit, decide how its wait ends. Threads
//! inside of operations always check for themselves.

use std::collections::{HashMap, HashSet};

use estafette_graph::{Explained, OpId, OpView, Snapshot};
use estafette_sync::process::Generation;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use estafette_sync::time::{Duration, Instant};
use smallvec::SmallVec;

use crate::core::context::{self, Current};
use crate::core::core_ref::CoreRef;
use crate::core::engine_core::Core;
use crate::core::error::{Error, LeaseHeld};
use crate::core::lease_info::{self, LeaseInfo};
use crate::core::notifier::Notifier;
use crate::core::operation::{OpKind, Phase};
use crate::core::wait_for::{self, On};
use crate::wait::blocking::{self, OpSummary, release_unwanted, release_unwanted_within};
use crate::wait::inspect::{self, InspectionPace};
use crate::wait::stand_in::{StandInSet, others_without_workers};

/// The first sleep of a wait, and the time until the first check.
const CHECK_FIRST: Duration = Duration::from_millis(20);

/// The longest pause between two checks. Each pause is twice as long as the one before.
const CHECK_LAST: Duration = Duration::from_millis(500);

/// A pause is at most this part of the lease timeout, so a wait that leases hold up fails at most this part
/// late.
const PAUSES_PER_TIMEOUT: u32 = 8;

/// Appoints one of the threads that wait for the same thing to check for a standstill.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    /// A waiting thread checks for all.
    is_taken: AtomicBool,
    /// The last check found a standstill.
    stands_still: AtomicBool,
    /// Number of checks that have found one.
    standstills: AtomicU64,
}

/// The checks of one wait. Dropping it hands them over.
pub(crate) struct Checks<'a> {
    detector: &'a Detector,
    /// The notifier that the other threads listen to.
    notifier: &'a Notifier,
    /// The thread checks for itself, whatever others do.
    alone: bool,
    /// The thread checks for all.
    is_in_charge: bool,
    has_slept: bool,
    pause: Duration,
    pause_last: Duration,
    lease_timeout: Duration,
    /// Other threads that run what this thread must not, or cannot, run.
    pub(crate) stand_ins: StandInSet,
    /// Since when leases alone hold the wait up, as found by earlier checks.
    held_since: Option<Instant>,
    /// Standstills that were found before anything has moved last, or before the wait began.
    earlier: u64,
    generation: Generation,
}

impl<'a> Checks<'a> {
    /// For a wait of the calling thread that `notifier` ends.
    pub(crate) fn new(detector: &'a Detector, notifier: &'a Notifier, lease_timeout: Duration) -> Self {
        let pause_last = (lease_timeout / PAUSES_PER_TIMEOUT).clamp(CHECK_FIRST, CHECK_LAST);
        Self {
            detector,
            notifier,
            alone: context::current().is_some(),
            is_in_charge: false,
            has_slept: false,
            pause: CHECK_FIRST,
            pause_last,
            lease_timeout,
            stand_ins: StandInSet::default(),
            held_since: None,
            earlier: detector.standstills.load(Ordering::SeqCst),
            generation: Generation::current(),
        }
    }

    /// True if the wait has not slept yet.
    pub(crate) fn are_new(&self) -> bool {
        !self.has_slept
    }

    /// Takes charge of the checks for all threads, if no thread has them.
    fn take_charge(&mut self) {
        if self.has_slept
            && !self.alone
            && !self.is_in_charge
            && !self.detector.is_taken.swap(true, Ordering::SeqCst)
        {
            self.is_in_charge = true;
            self.pause = CHECK_FIRST;
        }
    }

    /// The time at which the thread wakes to check; `None` while another thread checks for it. Call this when
    /// the thread already listens.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        self.take_charge();
        let wakes = !self.has_slept
            || self.alone
            || self.is_in_charge
            || self.detector.stands_still.load(Ordering::SeqCst);
        self.has_slept = true;
        wakes.then(|| self.later())
    }

    /// The end of a pause that begins now.
    pub(crate) fn later(&self) -> Instant {
        Instant::now() + self.pause
    }

    /// True if the thread checks for all, and has found nothing to move for a while.
    pub(crate) fn are_in_vain(&self) -> bool {
        self.is_in_charge && self.pause > CHECK_FIRST
    }

    /// True if the thread that has slept checks.
    pub(crate) fn are_due(&mut self) -> bool {
        self.take_charge();
        self.alone || self.is_in_charge || self.detector.stands_still.load(Ordering::SeqCst)
    }

    /// Makes the next pause of a wait in `core` longer, unless an engine without workers may have something
    /// to run for the wait: only a check finds such work.
    pub(crate) fn back_off(&mut self, core: &Core) {
        if !others_without_workers(core) {
            self.pause = (self.pause * 2).min(self.pause_last);
        }
    }

    /// Leases hold up something else from here on, if anything.
    pub(crate) fn standstill_is_over(&mut self) {
        self.held_since = None;
        self.earlier = self.detector.standstills.load(Ordering::SeqCst);
    }

    /// Something has moved.
    pub(crate) fn start_over(&mut self) {
        self.pause = CHECK_FIRST;
        self.standstill_is_over();
        self.stand_ins.start_over();
    }

    /// Makes another thread check, if this one checks for all. The caller may be away for any time.
    pub(crate) fn hand_over(&mut self) {
        // In a forked child no other thread waits, and the notifier may be locked for ever.
        if std::mem::take(&mut self.is_in_charge) && self.generation.is_current() {
            // A read-modify-write: loom does not order a plain store after that of another thread.
            self.detector.is_taken.swap(false, Ordering::SeqCst);
            self.notifier.notify();
        }
    }

    /// Notes whether a check found a standstill, and notifies the others of a new one.
    fn found(&self, stands_still: bool) {
        self.detector.standstills.fetch_add(u64::from(stands_still), Ordering::SeqCst);
        if self.detector.stands_still.swap(stands_still, Ordering::SeqCst) != stands_still && stands_still {
            self.notifier.notify();
        }
    }

    /// Makes a check, unless other threads have made one a short while ago. A standstill that those have
    /// found counts for this wait, too; once that holds it up for too long it checks whatever they do, or
    /// many waits would fail one after the other.
    pub(crate) fn paced<R>(
        &mut self,
        pace: &InspectionPace,
        check: impl FnOnce(&mut Self) -> R,
    ) -> Option<R> {
        if self.held_since.is_some_and(|since| since.elapsed() >= self.lease_timeout) {
            return Some(check(self));
        }
        let checked = pace.inspect(|| check(self));
        if checked.is_none() {
            let is_new = self.detector.standstills.load(Ordering::SeqCst) != self.earlier;
            let stands_still = is_new && self.detector.stands_still.load(Ordering::SeqCst);
            self.held_since = stands_still.then(|| self.held_since.unwrap_or_else(Instant::now));
        }
        checked
    }

    /// Fails when a reached in-flight limit can never drain, or when only leases have kept the engine full
    /// for longer than it accepts.
    pub(crate) fn check_room(&mut self, core: &Core, in_flight: usize) -> Result<(), Error> {
        let checked = check_progress(core, in_flight, &mut self.held_since);
        self.found(!matches!(checked, Ok(false)));
        checked.map(drop)
    }

    /// Fails when everything in flight has waited for leases only, for longer than the engine accepts, or
    /// waits for the calling operation.
    pub(crate) fn check_idle(&mut self, core: &Core, deadline: Option<Instant>) -> Result<(), Error> {
        let checked = check_idle_progress(core, &mut self.held_since, deadline);
        self.found(!matches!(checked, Ok(false)));
        checked.map(drop)
    }
}

impl Drop for Checks<'_> {
    fn drop(&mut self) {
        self.hand_over();
    }
}

/// A snapshot of the graph, counted as inspected.
fn take_snapshot() -> Snapshot<OpSummary> {
    let picture = blocking::take_snapshot();
    inspect::count(picture.ops.len());
    picture
}

/// The lease, if this operation is a held lease.
fn held_lease(seen: &OpSummary) -> Option<LeaseInfo> {
    seen.lease.clone().filter(|lease| seen.kind == OpKind::Lease && lease.held)
}

/// See [`Checks::check_room`]. Returns whether the engine stands still.
///
/// A lease of the calling thread is not returned while the thread waits here. Every other lease may be
/// returned at any time and make room. `held_since` is the time since when leases alone hold this submission
/// up, as found by its earlier checks.
fn check_progress(core: &Core, in_flight: usize, held_since: &mut Option<Instant>) -> Result<bool, Error> {
    let Some(leases) = standstill(&take_snapshot(), core, &[], &[]) else {
        *held_since = None;
        return Ok(false);
    };
    let is_first_look = held_since.is_none();
    let since = *held_since.get_or_insert_with(Instant::now);
    let is_over =
        |leases: &[LeaseInfo]| leases.iter().all(|lease| lease.own) || since.elapsed() >= core.lease_timeout;
    // Collecting garbage may end leases. A collection can take long, so only the first check, and one that
    // would fail, collect.
    if !is_first_look && !is_over(&leases) {
        return Ok(true);
    }
    release_unwanted(core);
    let Some(leases) = standstill(&take_snapshot(), core, &[], &[]) else {
        *held_since = None;
        return Ok(false);
    };
    if !is_over(&leases) {
        return Ok(true);
    }
    if leases.iter().any(|lease| !lease.own) {
        return Err(Error::LeaseHeld(LeaseHeld::new("a submission at the in-flight limit", leases)));
    }
    let held = lease_info::in_words(&leases);
    if held.is_empty() {
        return Err(waits_for_submission(in_flight));
    }
    let held = held.join("; ");
    Err(Error::WouldDeadlock(format!("all {in_flight} operations in flight wait for {held}")))
}

/// See [`Checks::check_idle`]. Returns whether the engine stands still.
///
/// A worker drops the operands of an operation after its end, and these may be the last to keep a lease of
/// the calling thread. So such a lease ends the wait only where it is still held a while after `held_since`.
fn check_idle_progress(
    core: &Core,
    held_since: &mut Option<Instant>,
    deadline: Option<Instant>,
) -> Result<bool, Error> {
    let before = held_since.take();
    if standstill(&take_snapshot(), core, &[], &[]).is_none() {
        return Ok(false);
    }
    release_unwanted_within(
        core,
        deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())),
    );
    let snapshot = take_snapshot();
    let Some(leases) = standstill(&snapshot, core, &[], &[]) else { return Ok(false) };
    if leases.is_empty() {
        return Err(Error::WouldDeadlock("waiting for all operations inside one of them".into()));
    }
    let since = *held_since.insert(before.unwrap_or_else(Instant::now));
    let own = leases.iter().any(|lease| lease.own) && since.elapsed() >= CHECK_FIRST;
    let oldest = snapshot.ops.iter().filter(|op| op.label.counted && op.label.core == core.id);
    let waited = oldest.map(|op| op.label.since.elapsed()).max().unwrap_or_default();
    if own || waited >= core.lease_timeout {
        return Err(Error::LeaseHeld(LeaseHeld::new("waiting for all operations", leases)));
    }
    Ok(true)
}

/// The engines, other than `core`, that have to run something before operations in flight in `core` can end,
/// and have no thread for it: they have no workers, or all of these are blocked.
pub(crate) fn without_free_threads(core: &Core) -> SmallVec<[CoreRef; 1]> {
    let snapshot = take_snapshot();
    let ready = |op: &&OpView<OpSummary>| {
        op.granted
            && op.label.phase == Phase::Queued
            && op.label.core != core.id
            && op.label.engine.has_no_free_thread()
    };
    let mut found: SmallVec<[CoreRef; 1]> = SmallVec::new();
    if snapshot.ops.iter().any(|op| ready(&op)) {
        let mine = snapshot.ops.iter().filter(|op| op.label.counted && op.label.core == core.id);
        let needed: HashSet<OpId> = snapshot.ancestors(mine.map(|op| op.id)).into_iter().collect();
        for op in snapshot.ops.iter().filter(|op| ready(op) && needed.contains(&op.id)) {
            if found.iter().all(|known| !known.same(&op.label.engine)) {
                found.push(op.label.engine.clone());
            }
        }
    }
    found
}

/// The place of one of the operations `stopped`, which cannot end while this thread waits, where they alone
/// keep the engine full.
pub(crate) fn kept_full_by(core: &Core, limit: usize, stopped: &[Current]) -> Option<usize> {
    let snapshot = take_snapshot();
    let is_kept = standstill(&snapshot, core, &[], &[]).is_none()
        && standstill(&snapshot, core, stopped, &[])?.iter().all(|lease| lease.own)
        && core.in_flight() >= limit;
    // They may be of another engine, and hold up all of this one.
    is_kept.then(|| stopped.iter().position(|op| op.core == core.id).unwrap_or(0))
}

/// The leases that hold up the engine, if none of its operations in flight can move, `awaiting` bodies
/// included: see [`standstill`]. A body may await something else besides, so this is a verdict only where it
/// lasts.
pub(crate) fn lasting_standstill(core: &Core, awaiting: &[(Current, On)]) -> Option<Vec<LeaseInfo>> {
    standstill(&take_snapshot(), core, &[], awaiting)
}

/// The error of a submission where all that fills the engine waits for it.
pub(crate) fn waits_for_submission(in_flight: usize) -> Error {
    Error::WouldDeadlock(format!(
        "all {in_flight} operations in flight wait for the submitting operation; a higher in-flight limit has room for it"
    ))
}

/// The leases that hold up the engine, if none of its operations in flight can move, those that are `stopped`
/// taken for granted, and the asynchronous bodies `awaiting` for blocked. An empty list means that the
/// operations wait for the current operation, or for others that are blocked as it is.
fn standstill(
    snapshot: &Snapshot<OpSummary>,
    core: &Core,
    stopped: &[Current],
    awaiting: &[(Current, On)],
) -> Option<Vec<LeaseInfo>> {
    let mine = snapshot.ops.iter().filter(|op| op.label.counted && op.label.core == core.id);
    let mut mine: Vec<_> = mine.map(|op| op.id).collect();
    // The snapshot does not contain operations without variables. Unless they are blocked, they move; so may
    // operations that the snapshot, taken a moment ago, has missed.
    let mut still = wait_for::of_core(core.id);
    let assumed = stopped.iter().chain(awaiting.iter().map(|(op, _)| op));
    still.extend(assumed.filter(|op| op.core == core.id).map(|op| op.op));
    mine.extend(still.into_iter().filter(|op| snapshot.op(*op).is_none()));
    if mine.is_empty() || mine.len() != core.in_flight() {
        return None;
    }
    let mut blocked = wait_for::now();
    for (op, on) in awaiting {
        blocked.entry(op.op).or_default().push(on.clone());
    }
    let mut search = Search {
        snapshot,
        explained: snapshot.explained(),
        blocked,
        seen: stopped.iter().map(|op| op.op).collect(),
        leases: Vec::new(),
    };
    if mine.into_iter().any(|op| search.moves(op)) { None } else { Some(search.leases) }
}

/// Searches for operations that can move, among all that some operations need.
struct Search<'a> {
    snapshot: &'a Snapshot<OpSummary>,
    explained: Explained<'a, OpSummary>,
    blocked: HashMap<OpId, Vec<On>>,
    /// The inspected operations; none of them moves.
    seen: HashSet<OpId>,
    /// The held leases among them.
    leases: Vec<LeaseInfo>,
}

impl Search<'_> {
    /// True if `op`, or anything that it needs, can move.
    fn moves(&mut self, op: OpId) -> bool {
        let mut open = vec![op];
        while let Some(next) = open.pop() {
            if !self.seen.insert(next) {
                continue;
            }
            // An operation that the snapshot does not have runs without variables. Or it has ended, and
            // operations that it blocked move.
            let view = self.snapshot.op(next);
            if let Some(view) = view.filter(|view| !view.granted) {
                open.extend(self.explained.dependencies(view).into_iter().map(|dependency| dependency.op));
            } else if let Some(lease) = view.and_then(|view| held_lease(&view.label)) {
                self.leases.push(lease);
            } else if let Some(blocked) = self.blocked.get(&next) {
                open.extend(blocked.iter().filter_map(|on| match on {
                    On::Op(target) => Some(target.id()),
                    On::AnyOther => None,
                }));
            } else if Some(next) != context::current() {
                return true;
            }
        }
        false
    }
}

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette --profile model --lib models::`.
#[cfg(all(test, estafette_loom))]
mod models {
    use std::sync::Arc;

    use estafette_sync::thread;

    use super::*;

    #[derive(Default)]
    struct DetectorModel {
        detector: Detector,
        notifier: Notifier,
    }

    impl DetectorModel {
        fn checks(&self) -> Checks<'_> {
            let mut checks = Checks::new(&self.detector, &self.notifier, Duration::from_secs(1));
            checks.has_slept = true;
            checks
        }
    }

    #[test]
    fn the_checks_are_handed_over_to_a_thread_that_falls_asleep() {
        loom::model(|| {
            let model = Arc::new(DetectorModel::default());
            let mut checks = model.checks();
            assert!(checks.next().is_some(), "the first one has the checks");
            let other = {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    let mut checks = model.checks();
                    let mut listening = model.notifier.listen();
                    // A hand-over that is missed leaves it asleep for ever.
                    while checks.next().is_none() {
                        listening.wait_until(None);
                    }
                })
            };
            checks.hand_over();
            other.join().expect("it does not panic");
        });
    }
}
