//! The watcher: the thread of the process that inspects what futures and threads wait for.
//!
//! # Deciding when to inspect
//! 1. *Register*: enter the list (under its lock), then read [`Watcher::next`]. If `next` is later than the
//!    entry's own time, lower `next` under the watcher's lock and wake the watcher.
//! 2. *Inspection*: the watcher sets `next` to *never* and goes through the lists. Then, under its lock, the
//!    watcher lowers `next` to the earliest time found, and sleeps until then.
//!
//! An entry that the watcher missed was entered after the lists were gone through, hence after `next` was
//! *never*. The future of this entry then read *never*, or a time that the watcher has set since then, and
//! lowers `next` if need be.

use estafette_graph::OpId;
use estafette_sync::daemon;
use estafette_sync::essential::essential;
use estafette_sync::stack;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use estafette_sync::sync::{Condvar, Mutex, OnceLock};
use estafette_sync::thread::ThreadId;
use estafette_sync::time::{Duration, Instant};
use smallvec::SmallVec;

use super::{Key, LISTS, LOOK_MIN, list};
use crate::core::clock;
use crate::core::coalesced;
use crate::core::context::Current;
use crate::core::core_ref::CoreRef;
use crate::core::error::{Error, LeaseHeld};
use crate::core::lease_info::LeaseInfo;
use crate::core::one_shot::wake;
use crate::core::operation::{OpHandle, OpKind, Phase, contain_panic};
use crate::core::wait_for::On;
use crate::exchange::foreign_fence;
use crate::tensor::handle::Tensor;
use crate::wait::blocking::{is_ready_work, release_unwanted};
use crate::wait::deadlock;
use crate::wait::inspect::{self, EVERYTHING, Inspection};
use crate::wait::room;
use crate::wait::stand_in::call_refused;

/// The longest time between two inspections for a blocked thread.
const BLOCKED_INSPECTION_LAST: Duration = Duration::from_millis(500);

/// Most threads that one inspection wakes because they could run something. The next inspection wakes the
/// others.
const WOKEN_MAX: usize = 8;

/// The watcher. Its thread is started when first needed.
pub(super) struct Watcher {
    started: Instant,
    /// True once the thread runs. If the system refuses the thread, the next wait that needs it tries again.
    is_running: AtomicBool,
    /// True once a refusal was reported. The lock is held while the thread is started.
    refused: Mutex<bool>,
    /// Time of the next inspection: milliseconds since `started`.
    next: AtomicU64,
    sleep: Mutex<()>,
    woken: Condvar,
}

/// Value of `Watcher::next`: no inspection before a future requests one.
const NEVER: u64 = u64::MAX;

pub(super) fn watcher() -> &'static Watcher {
    estafette_sync::per_process! {
        static WATCHER: OnceLock<Watcher> = OnceLock::new();
    }
    let watcher = WATCHER.get_or_init(|| Watcher {
        started: Instant::now(),
        is_running: AtomicBool::new(false),
        refused: Mutex::new(false),
        next: AtomicU64::new(NEVER),
        sleep: Mutex::new(()),
        woken: Condvar::new(),
    });
    if !watcher.is_running.load(Ordering::Acquire)
        && let Some(error) = watcher.start()
    {
        tracing::warn!(%error, "cannot start the thread that looks at futures which take long");
    }
    watcher
}

/// True if the watcher runs. If its thread could not be started, blocked threads inspect for themselves.
pub(crate) fn has_watcher() -> bool {
    watcher().is_running.load(Ordering::Acquire)
}

/// Makes the watcher inspect at `when` or before.
pub(crate) fn inspect_by(when: Instant) {
    watcher().inspect_by(when);
}

impl Watcher {
    /// Starts the thread. Returns why the system has refused it, the first time.
    fn start(&'static self) -> Option<std::io::Error> {
        let mut refused = self.refused.lock();
        if self.is_running.load(Ordering::Relaxed) {
            return None;
        }
        let work = || essential("the thread that looks at waits", || self.work());
        match stack::thread("estafette-waits").spawn(work) {
            Ok(thread) => {
                daemon(thread);
                self.is_running.store(true, Ordering::Release);
                None
            }
            Err(error) => (!std::mem::replace(&mut *refused, true)).then_some(error),
        }
    }

    pub(super) fn inspect_by(&self, when: Instant) {
        // Rounded up: an inspection that came too early would have nothing to do.
        let when = when.saturating_duration_since(self.started).as_millis() as u64 + 1;
        if when < self.next.load(Ordering::SeqCst) {
            let sleep = self.sleep.lock();
            self.next.fetch_min(when, Ordering::SeqCst);
            drop(sleep);
            self.woken.notify_one();
        }
    }

    fn work(&self) {
        let mut paces = Vec::new();
        loop {
            self.next.store(NEVER, Ordering::SeqCst);
            foreign_fence::stand_in_for_queries();
            call_refused();
            let mut next =
                coalesced::wake_those_of_other_threads().into_iter().chain(room::wake_held_up()).min();
            for time in inspect_due(&mut paces) {
                next = Some(next.map_or(time, |next| next.min(time)));
            }
            if let Some(next) = next {
                let next = next.saturating_duration_since(self.started).as_millis() as u64 + 1;
                self.next.fetch_min(next, Ordering::SeqCst);
            }
            let mut sleep = self.sleep.lock();
            loop {
                let now = self.started.elapsed().as_millis() as u64;
                sleep = match self.next.load(Ordering::SeqCst) {
                    NEVER => self.woken.wait(sleep),
                    next if next <= now => break,
                    next => {
                        let left = Duration::from_millis(next - now);
                        self.woken.wait_timeout(sleep, left).0
                    }
                };
            }
        }
    }
}

/// The data of an entry that an inspection needs.
struct Due {
    key: Key,
    core: CoreRef,
    ops: SmallVec<[OpHandle; 1]>,
    pins: Option<(Tensor, SmallVec<[OpId; 1]>)>,
    thread: ThreadId,
    limit: Option<Duration>,
    held_since: Option<Instant>,
    room: bool,
    /// The wait is made inside of an operation.
    inside: bool,
    is_blocked: bool,
    helps: bool,
    is_covered: bool,
}

/// Inspects the futures and threads whose time has come, those of one engine after those of another: what is
/// in flight in one may take long to inspect, and the pause after that holds up no wait in another one.
/// `paces` are the engines in such a pause, with its end. Returns the times of the next inspections.
fn inspect_due(paces: &mut Vec<(u64, Instant)>) -> Vec<Instant> {
    let now = Instant::now();
    paces.retain(|(_, from)| *from > now);
    let mut next = Vec::new();
    let mut due: Vec<Due> = Vec::new();
    for number in 0..LISTS {
        let entries = list(number);
        for (place, (generation, entry)) in entries.places.iter().enumerate() {
            let Some(entry) = entry else { continue };
            let from = paces.iter().find(|(core, _)| *core == entry.awaited.core.id).map(|(_, from)| *from);
            match entry.next_look.map(|time| from.map_or(time, |from| time.max(from))) {
                Some(time) if time <= now => due.push(Due {
                    key: Key::new(number, place, *generation),
                    core: entry.awaited.core.clone(),
                    ops: entry.awaited.ops.clone(),
                    pins: entry.awaited.pins.clone(),
                    thread: entry.thread,
                    limit: entry.awaited.limit,
                    held_since: entry.held_since,
                    room: entry.awaited.room,
                    inside: entry.awaited.body.is_some(),
                    is_blocked: entry.awaited.blocked.is_some(),
                    helps: entry.awaited.helps,
                    is_covered: entry.awaited.is_covered,
                }),
                Some(time) => next.push(time),
                None => {}
            }
        }
    }
    while let Some(core) = due.last().map(|due| due.core.clone()) {
        let (own, left): (Vec<_>, Vec<_>) = due.into_iter().partition(|due| due.core.same(&core));
        due = left;
        let (id, began, before) = (core.id, Instant::now(), inspect::inspected());
        // Dropping the inspected objects may run code of users.
        let looked = contain_panic(move || inspect_engine(&core, own, began));
        let from = Instant::now() + inspect::pause_after(inspect::duration(began, before));
        paces.push((id, from));
        next.extend(looked.unwrap_or_else(|panic| {
            tracing::error!(%panic, "an inspection of what futures wait for panicked");
            vec![from]
        }));
    }
    next
}

/// Inspects futures and threads that wait in `core`. Returns the times of the next inspections.
fn inspect_engine(core: &CoreRef, due: Vec<Due>, now: Instant) -> Vec<Instant> {
    let (room, due): (Vec<_>, Vec<_>) = due.into_iter().partition(|due| due.room);
    let mut next = poll_for_room(core, room, now);
    if due.is_empty() {
        return next;
    }
    // One inspection for all entries. Leases alone hold up few of them, and these are inspected again, one by
    // one.
    let mut inspection = Inspection::new();
    let places: Vec<OpPlaces> =
        due.iter().map(|due| due.ops.iter().map(|op| inspection.add(op)).collect()).collect();
    inspection.run(EVERYTHING);
    let reaches = inspection.reaches(inspect::moves);
    let wanted = wanted_threads(&inspection, &due, &places);
    let mut without_free_thread = engines_without_free_thread(&inspection, &due);
    // A body that these entries need may block; the inspection cannot see on what.
    if core.lacks_thread() && without_free_thread.iter().all(|known| !known.same(core)) {
        without_free_thread.push(core.clone());
    }
    due.iter().filter(|due| due.is_covered).for_each(|due| due.want(&without_free_thread));
    let (threads, futures): (Vec<_>, Vec<_>) =
        due.into_iter().zip(places).enumerate().partition(|(_, (due, _))| due.is_blocked);
    drop(inspection);
    for (number, (due, places)) in threads {
        let suspect = !places.iter().any(|place| reaches[*place]);
        let wake = wanted.contains(&number) || (suspect && due.held_by().is_some());
        next.extend(due.inspect_again_or_wake(wake));
    }
    // Futures that would fail now get what a blocking wait does first: unwanted leases are released.
    let held: Vec<_> = futures
        .iter()
        .map(|(_, (due, places))| {
            let moves =
                |(op, place): (&OpHandle, &usize)| op.payload().phase() != Phase::Done && reaches[*place];
            if due.ops.iter().zip(places).any(moves) { None } else { due.held_by() }
        })
        .collect();
    let would_fail =
        |((_, (due, _)), held): (&(_, (Due, _)), &Option<_>)| held.is_some() && due.is_over_limit(now);
    let collects = futures.iter().zip(&held).any(would_fail);
    if collects {
        release_unwanted(core);
    }
    for ((_, (due, _)), held) in futures.into_iter().zip(held) {
        let held = if held.is_some() && collects { due.held_by() } else { held };
        next.extend(due.settle(held));
    }
    next
}

/// The places of the operations of one entry in an inspection.
type OpPlaces = SmallVec<[usize; 1]>;

/// The blocked threads that shall inspect for themselves, because something that they need is ready and no
/// other thread runs it. These threads may run it, or have another thread do so.
fn wanted_threads(inspection: &Inspection, due: &[Due], places: &[OpPlaces]) -> Vec<usize> {
    if !due.iter().any(|due| due.is_blocked) {
        return Vec::new();
    }
    let helped = inspection.reaches(|op| is_ready_work(op) && op.kind == OpKind::Work);
    let left = inspection.reaches(|op| is_ready_work(op) && op.core.has_no_free_thread());
    let is_wanted = |due: &Due, place: usize| left[place] || (due.helps && helped[place]);
    let threads = due
        .iter()
        .zip(places)
        .enumerate()
        .filter(|(_, (due, places))| due.is_blocked && places.iter().any(|place| is_wanted(due, *place)));
    threads.map(|(number, _)| number).take(WOKEN_MAX).collect()
}

/// The engines that have something ready for these waits and no thread for it, where bodies with executors of
/// their own are among them.
fn engines_without_free_thread(inspection: &Inspection, due: &[Due]) -> SmallVec<[CoreRef; 1]> {
    let mut found: SmallVec<[CoreRef; 1]> = SmallVec::new();
    if due.iter().any(|due| due.is_covered) {
        for (_, granted, op) in inspection.ops() {
            let has_no_free_thread = granted && is_ready_work(op) && op.core.has_no_free_thread();
            if has_no_free_thread && found.iter().all(|known| !known.same(&op.core)) {
                found.push(op.core.clone());
            }
        }
    }
    found
}

impl Due {
    /// The leases that hold up every operation that has not ended, if nothing else does.
    fn held_by(&self) -> Option<Vec<LeaseInfo>> {
        let mut inspection = Inspection::new();
        for op in &self.ops {
            inspection.add(op);
        }
        inspection.run(EVERYTHING);
        let mut held = inspection.only_leases(!self.is_blocked);
        if let Some((tensor, numbers)) = &self.pins {
            // If every operation has ended, the inspection has found nothing.
            if held.is_none() && !self.ops.iter().all(|op| op.payload().phase() == Phase::Done) {
                return None;
            }
            for var in &tensor.inner.vars {
                var.with_state(|state, _| {
                    state.pins().each(|pin| {
                        if numbers.contains(&pin.number()) {
                            held.get_or_insert_default().push(pin.lease().info());
                        }
                    });
                });
            }
        }
        held
    }

    /// Wakes the blocked thread, or returns the time of the next inspection.
    fn inspect_again_or_wake(&self, wakes: bool) -> Option<Instant> {
        let mut entries = list(self.key.list());
        let entry = entries.entry(self.key)?;
        if wakes {
            entry.next_look = None;
            let waker = entry.waker.take();
            drop(entries);
            waker.into_iter().for_each(wake);
            return None;
        }
        let pause = entry.awaited.blocked.map(|pause| (pause * 2).min(BLOCKED_INSPECTION_LAST));
        entry.awaited.blocked = pause;
        entry.next_look = pause.and_then(clock::deadline);
        entry.next_look
    }

    /// Requests stand-ins of `others`, engines that have no thread for what is ready.
    fn want(&self, others: &[CoreRef]) {
        let mut entries = list(self.key.list());
        // This takes locks of the other engines, which take none of these lists.
        let Some(entry) = entries.entry(self.key) else { return };
        for core in others {
            entry.awaited.stand_ins.want(core);
        }
    }

    fn is_over_limit(&self, now: Instant) -> bool {
        let since = self.held_since.zip(self.limit);
        since.is_some_and(|(since, limit)| now.saturating_duration_since(since) >= limit)
    }

    /// Notes the result of an inspection, and returns the time of the next one. A future that leases have
    /// held up for too long is woken with the error.
    fn settle(&self, held: Option<Vec<LeaseInfo>>) -> Option<Instant> {
        let now = Instant::now();
        let first = self.held_since.is_none();
        let mut waker = None;
        let mut entries = list(self.key.list());
        let entry = entries.entry(self.key)?;
        match held.as_ref().zip(self.limit) {
            None => {
                entry.held_since = None;
                entry.next_look = entry.awaited.pause().and_then(|pause| now.checked_add(pause));
            }
            Some((leases, limit)) => {
                let ended = if self.room { self.core.sharded_counter.ended() } else { 0 };
                if std::mem::replace(&mut entry.ended, ended) != ended {
                    // Operations have made room since the last look: these leases have held up others.
                    entry.held_since = None;
                }
                let since = *entry.held_since.get_or_insert(now);
                let again = entry.awaited.pause().filter(|_| self.room || self.is_covered);
                let again = again.and_then(|pause| now.checked_add(pause));
                entry.next_look = since.checked_add(limit.max(LOOK_MIN)).into_iter().chain(again).min();
                if !first && now.saturating_duration_since(since) >= limit {
                    let mut leases = leases.clone();
                    leases.iter_mut().for_each(|lease| lease.own = lease.thread == Some(self.thread));
                    entry.verdict = Some(if self.room && leases.is_empty() {
                        deadlock::waits_for_submission(self.core.in_flight())
                    } else {
                        Error::LeaseHeld(LeaseHeld::new(entry.awaited.waiting(), leases))
                    });
                    entry.next_look = None;
                    waker = entry.waker.take();
                }
            }
        }
        let next = entry.next_look;
        drop(entries);
        waker.into_iter().for_each(wake);
        if first && let Some(own) = held.iter().flatten().find(|lease| lease.thread == Some(self.thread)) {
            tracing::warn!(lease = %own, "an await waits for a lease that its own thread has taken");
        }
        next
    }
}

/// Makes engines without workers run what keeps `core` full, and ends submissions that wait for room in vain.
fn poll_for_room(core: &CoreRef, due: Vec<Due>, now: Instant) -> Vec<Instant> {
    if due.is_empty() {
        return Vec::new();
    }
    // One inspection for all entries.
    let mut without_free_thread = deadlock::without_free_threads(core);
    if core.lacks_thread() {
        without_free_thread.push(core.clone());
    }
    due.iter().for_each(|due| due.want(&without_free_thread));
    let submits = due.iter().any(|due| due.limit.is_some());
    let mut held = if submits { deadlock::lasting_standstill(core, &awaiting_bodies()) } else { None };
    // As for other futures: unwanted leases are released first.
    if held.is_some() && due.iter().any(|due| due.is_over_limit(now)) {
        release_unwanted(core);
        held = deadlock::lasting_standstill(core, &awaiting_bodies());
    }
    let settled = due.into_iter().filter_map(|due| {
        // If the operations wait for submissions inside of them, the ends of these submissions make room for
        // one outside.
        let held = held.clone().filter(|leases| due.inside || !leases.is_empty());
        due.settle(held.filter(|_| core.is_full(due.inside)))
    });
    settled.collect()
}

/// The asynchronous bodies with pending futures, and what each waits for.
fn awaiting_bodies() -> Vec<(Current, On)> {
    let mut found = Vec::new();
    for number in 0..LISTS {
        let entries = list(number);
        let entries = entries.places.iter().filter_map(|(_, entry)| entry.as_ref());
        // A body whose future is being woken moves.
        found.extend(entries.filter(|entry| entry.waker.is_some()).flat_map(|entry| entry.awaited.edges()));
    }
    found
}
