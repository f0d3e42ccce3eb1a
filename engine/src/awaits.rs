//! Futures of the engine that are pending, and threads that are blocked for long: who runs what they wait for, and how long leases may
//! hold them up.
//!
//! A future that is polled runs no operation, since that could take any time. In an engine without workers it wants a
//! [stand-in](crate::stand_in) for as long as it is pending. And no thread waits inside of a future that could look at the graph now and
//! then; one thread of the process looks for all of them ([`clerk`]). It looks for threads that are blocked, too, if they run no operation,
//! so that many of them cost one look: it wakes those that have to look for themselves.
//!
//! A future registers at its first pending poll, in one of several lists so that threads do not meet, and leaves when it is ready or
//! dropped. An entry is looked at after an eighth of its engine's lease timeout for the first time, so most are never looked at.
//!
//! # Deciding when to look
//! 1. *Register*: enter the list (under its lock), then read [`Clerk::next`]; if that is later than the entry's own time, lower it under
//!    the clerk's lock and wake the clerk.
//! 2. *Look*: the clerk sets `next` to *never*, goes through the lists, then, under its lock, lowers `next` to the earliest time found,
//!    and sleeps until then.
//!
//! An entry that the clerk missed was entered after the lists were gone through, hence after `next` was *never*: its future read
//! that, or a time that the clerk has set since then, and lowers it if need be.

use std::num::NonZeroU64;
use std::panic::catch_unwind;
use std::sync::PoisonError;
use std::task::{Context, Waker};

use estafette_graph::OpId;
use estafette_sync::daemon;
use estafette_sync::essential::essential;
use estafette_sync::stack;
use estafette_sync::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use estafette_sync::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use estafette_sync::thread::ThreadId;
use estafette_sync::thread_local;
use estafette_sync::time::{Duration, Instant};
use smallvec::SmallVec;

use crate::clock;
use crate::contained::Contained;
use crate::context;
use crate::core_ref::CoreRef;
use crate::error::{Error, LeaseHeld};
use crate::lease_info::LeaseInfo;
use crate::look::{self, EVERYTHING, Look};
use crate::operation::{Kind, OpHandle, Phase, bury};
use crate::quiet;
use crate::signal::wake;
use crate::stand_in::{StandInSet, others_without_workers};
use crate::stuck;
use crate::tensor::Tensor;
use crate::wait::{is_ready_work, let_go};
use crate::wakers::locks_are_lost;

/// Lists of pending futures. A thread uses one of them.
const LISTS: usize = 16;

/// The least time between two looks at one future: each costs time in proportion to what the future waits for.
const LOOK_MIN: Duration = Duration::from_millis(10);

/// A future is looked at for the first time after this part of its lease timeout, so it fails at most so much late.
const FIRST_LOOK: u32 = 8;

/// How often a future is looked at that waits for room in an engine, where another engine has no workers.
const ROOM_LOOK: Duration = Duration::from_millis(20);

/// The longest time between two looks for a blocked thread.
const BLOCKED_LOOK_LAST: Duration = Duration::from_millis(500);

/// Threads that one look wakes at most because they could run something: others are left for the next one.
const WOKEN_MAX: usize = 8;

/// What a future, or a thread, waits for.
pub(crate) struct Awaited {
    core: CoreRef,
    what: &'static str,
    /// What has to end, or to be granted.
    ops: SmallVec<[OpHandle; 1]>,
    /// Leases without an operation that have to end, and whose.
    holds: Option<(Tensor, SmallVec<[OpId; 1]>)>,
    stand_ins: StandInSet,
    /// How long leases alone may hold it up; `None` for any time.
    limit: Option<Duration>,
    /// It waits for room in the engine.
    room: bool,
    /// A thread is blocked, which looks itself when it is woken: the time until the next look.
    blocked: Option<Duration>,
    /// That thread may run what it waits for.
    helps: bool,
}

impl Awaited {
    /// A wait for the end, or the grant, of `op`.
    pub(crate) fn op(what: &'static str, op: &OpHandle) -> Self {
        Self::new(op.payload().core.clone(), what, SmallVec::from_iter([op.clone()])).with_stand_ins()
    }

    /// A wait for the ends of all of `uses` of a tensor, and of the leases of it that have no operation and these numbers.
    pub(crate) fn all(tensor: &Tensor, what: &'static str, uses: &[OpHandle], held: &[OpId]) -> Self {
        let awaited = Self::new(tensor.inner.core.clone(), what, uses.iter().cloned().collect());
        let holds = (!held.is_empty()).then(|| (tensor.clone(), held.iter().copied().collect()));
        Self { holds, ..awaited }.with_stand_ins()
    }

    /// A wait for room in the engine, or for everything in it to end.
    pub(crate) fn room(core: &CoreRef) -> Self {
        let awaited = Self::new(core.clone(), "an engine", SmallVec::new());
        Self { room: others_without_workers(core.alone()), limit: None, ..awaited }
    }

    /// A thread that is blocked until `op` has ended, or is granted. It is woken when it has to look itself: when leases alone may
    /// hold it up, or when it may run what it needs. The first look is taken after `pause`.
    pub(crate) fn by_thread(op: &OpHandle, pause: Duration, helps: bool) -> Self {
        Self {
            core: op.payload().core.clone(),
            what: "",
            ops: SmallVec::from_iter([op.clone()]),
            holds: None,
            stand_ins: StandInSet::default(),
            limit: None,
            room: false,
            blocked: Some(pause),
            helps,
        }
    }

    fn new(core: CoreRef, what: &'static str, ops: SmallVec<[OpHandle; 1]>) -> Self {
        let mut stand_ins = StandInSet::default();
        if core.alone() {
            core.stop_flow();
            stand_ins.want(&core);
        }
        let limit = (!context::is_told()).then_some(core.lease_timeout);
        Self { core, what, ops, holds: None, stand_ins, limit, room: false, blocked: None, helps: false }
    }

    /// Wants stand-ins in the engines without workers that have something to run for it.
    fn with_stand_ins(mut self) -> Self {
        if others_without_workers(self.core.alone()) {
            let mut look = Look::new();
            for op in &self.ops {
                look.add(op);
            }
            look.run(EVERYTHING);
            for (_, _, op) in look.ops().filter(|(_, _, op)| op.core.alone()) {
                self.stand_ins.want(&op.core);
            }
        }
        self
    }

    /// The time between looks while it is not known to be held up.
    fn pause(&self) -> Option<Duration> {
        if self.room {
            return Some(ROOM_LOOK);
        }
        self.blocked.or_else(|| self.limit.map(|limit| (limit / FIRST_LOOK).max(LOOK_MIN)))
    }
}

/// A future's place among those that are pending; empty while it is not.
#[derive(Debug, Default)]
pub(crate) struct Pending(Option<Key>);

/// Which list, which place in it, and how many had the place before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key(NonZeroU64);

impl Key {
    fn new(list: usize, place: usize, generation: u32) -> Self {
        let bits = (u64::from(generation) << 32) | ((place as u64) << 4) | list as u64;
        Self(NonZeroU64::new(bits).expect("generations begin with 1"))
    }

    fn list(self) -> usize {
        (self.0.get() & 0xf) as usize
    }

    fn place(self) -> usize {
        (self.0.get() as u32 >> 4) as usize
    }

    fn generation(self) -> u32 {
        (self.0.get() >> 32) as u32
    }
}

const _: () = assert!(LISTS == 16, "a key has four bits for it");

impl Pending {
    /// The future was polled, and is pending: it wakes when leases have held it up for too long, and then this gives the error. `begin`
    /// is called at the first time.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, begin: impl FnOnce() -> Awaited) -> Option<Error> {
        match self.0 {
            None => {
                self.0 = register(begin(), cx.waker().clone());
                None
            }
            Some(key) => {
                let verdict = poll_again(key, cx.waker());
                if verdict.is_some() {
                    self.over();
                }
                verdict
            }
        }
    }

    /// Whether it was woken since it was polled last.
    pub(crate) fn was_woken(&self) -> bool {
        self.0.is_some_and(|key| list(key.list()).entry(key).is_some_and(|entry| entry.waker.is_none()))
    }

    /// The future is pending no more.
    pub(crate) fn over(&mut self) {
        if let Some(key) = self.0.take() {
            leave(key);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.over();
    }
}

struct Entry {
    awaited: Awaited,
    /// `None` while it is being woken.
    waker: Option<Waker>,
    /// The thread that polled first.
    thread: ThreadId,
    next_look: Option<Instant>,
    /// Since when it is known that leases alone hold it up.
    held_since: Option<Instant>,
    verdict: Option<Error>,
}

#[derive(Default)]
struct List {
    places: Vec<(u32, Option<Box<Entry>>)>,
    free: Vec<usize>,
}

estafette_sync::statics! {
    static ENTRIES: [Mutex<List>; LISTS] =
        [const { Mutex::new(List { places: Vec::new(), free: Vec::new() }) }; LISTS];
}

fn list(number: usize) -> MutexGuard<'static, List> {
    ENTRIES[number].lock().unwrap_or_else(PoisonError::into_inner)
}

impl List {
    fn entry(&mut self, key: Key) -> Option<&mut Box<Entry>> {
        let (generation, entry) = self.places.get_mut(key.place())?;
        if *generation == key.generation() { entry.as_mut() } else { None }
    }
}

/// The list of the calling thread.
fn own_list() -> usize {
    estafette_sync::statics! {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
    }
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LISTS;
    }
    OWN.try_with(|own| *own).unwrap_or(0)
}

fn register(awaited: Awaited, waker: Waker) -> Option<Key> {
    let pause = awaited.pause();
    let next_look = pause.and_then(clock::deadline);
    let entry = Box::new(Entry {
        awaited,
        waker: Some(waker),
        thread: clock::this_thread(),
        next_look,
        held_since: None,
        verdict: None,
    });
    let number = own_list();
    let mut list = list(number);
    let place = match list.free.pop() {
        Some(place) => place,
        None => {
            list.places.push((0, None));
            list.places.len() - 1
        }
    };
    let (generation, free) = &mut list.places[place];
    *generation = generation.wrapping_add(1).max(1);
    *free = Some(entry);
    let key = Key::new(number, place, *generation);
    drop(list);
    if let Some(next_look) = next_look {
        clerk().look_by(next_look);
    }
    Some(key)
}

fn poll_again(key: Key, waker: &Waker) -> Option<Error> {
    let mut own = list(key.list());
    let entry = own.entry(key)?;
    if entry.verdict.is_some() {
        return entry.verdict.take();
    }
    if entry.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
        return None;
    }
    drop(own);
    // Cloning and dropping a waker is foreign code.
    let waker = waker.clone();
    let mut own = list(key.list());
    let entry = own.entry(key)?;
    let verdict = entry.verdict.take();
    let before = entry.waker.replace(waker);
    drop(own);
    drop(Contained::new(before));
    verdict
}

fn leave(key: Key) {
    if locks_are_lost() {
        // The lists may be locked by threads that did not come along.
        return;
    }
    let mut own = list(key.list());
    let (generation, entry) = &mut own.places[key.place()];
    let left = if *generation == key.generation() { entry.take() } else { None };
    if left.is_some() {
        own.free.push(key.place());
    }
    // Wakers, and what the engine holds, are dropped under no lock.
    drop(own);
    drop(Contained::new(left));
}

/// The thread of the process that looks at pending futures. Started when first needed.
struct Clerk {
    started: Instant,
    /// There is such a thread.
    is_running: bool,
    /// When it looks next: milliseconds since it was started.
    next: AtomicU64,
    sleep: Mutex<()>,
    woken: Condvar,
}

/// As `Clerk::next`: not before a future asks for it.
const NEVER: u64 = u64::MAX;

fn clerk() -> &'static Clerk {
    estafette_sync::statics! {
        static CLERK: OnceLock<Clerk> = OnceLock::new();
    }
    CLERK.get_or_init(|| {
        let work = || essential("the thread that looks at waits", || clerk().work());
        let started = stack::thread("estafette-waits").spawn(work).map(daemon);
        if let Err(error) = &started {
            tracing::warn!(%error, "cannot start the thread that looks at futures which take long");
        }
        Clerk {
            started: Instant::now(),
            is_running: started.is_ok(),
            next: AtomicU64::new(NEVER),
            sleep: Mutex::new(()),
            woken: Condvar::new(),
        }
    })
}

/// Whether there is a thread that looks for those that wait. If it could not be started, blocked threads look themselves.
pub(crate) fn has_clerk() -> bool {
    clerk().is_running
}

/// Has the clerk look at `when` or before.
pub(crate) fn look_by(when: Instant) {
    clerk().look_by(when);
}

impl Clerk {
    fn look_by(&self, when: Instant) {
        // Rounded up: a look that came too early would have nothing to do.
        let when = when.saturating_duration_since(self.started).as_millis() as u64 + 1;
        if when < self.next.load(Ordering::SeqCst) {
            let sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.next.fetch_min(when, Ordering::SeqCst);
            drop(sleep);
            self.woken.notify_one();
        }
    }

    fn work(&self) {
        let mut not_before = Instant::now();
        loop {
            self.next.store(NEVER, Ordering::SeqCst);
            let mut next = quiet::tell_others();
            let now = Instant::now();
            let times = if now < not_before {
                vec![not_before]
            } else {
                // What is looked at is dropped by users' code at last.
                let looked = catch_unwind(look);
                not_before = Instant::now() + look::pause_after(now.elapsed());
                looked.unwrap_or_else(|panic| {
                    tracing::error!("a look at what futures wait for panicked");
                    bury(panic);
                    vec![not_before]
                })
            };
            for time in times {
                next = Some(next.map_or(time, |next| next.min(time)));
            }
            if let Some(next) = next {
                let next = next.saturating_duration_since(self.started).as_millis() as u64 + 1;
                self.next.fetch_min(next, Ordering::SeqCst);
            }
            let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let now = self.started.elapsed().as_millis() as u64;
                sleep = match self.next.load(Ordering::SeqCst) {
                    NEVER => self.woken.wait(sleep).unwrap_or_else(PoisonError::into_inner),
                    next if next <= now => break,
                    next => {
                        let left = Duration::from_millis(next - now);
                        self.woken.wait_timeout(sleep, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
        }
    }
}

/// What a look needs to know of an entry.
struct Due {
    key: Key,
    core: CoreRef,
    ops: SmallVec<[OpHandle; 1]>,
    holds: Option<(Tensor, SmallVec<[OpId; 1]>)>,
    thread: ThreadId,
    limit: Option<Duration>,
    held_since: Option<Instant>,
    room: bool,
    is_blocked: bool,
    helps: bool,
}

/// Looks at the futures and threads whose time has come. Gives the times at which others are to be looked at next.
fn look() -> Vec<Instant> {
    let now = Instant::now();
    let mut next = Vec::new();
    let mut due = Vec::new();
    for number in 0..LISTS {
        let entries = list(number);
        for (place, (generation, entry)) in entries.places.iter().enumerate() {
            let Some(entry) = entry else { continue };
            match entry.next_look {
                Some(time) if time <= now => due.push(Due {
                    key: Key::new(number, place, *generation),
                    core: entry.awaited.core.clone(),
                    ops: entry.awaited.ops.clone(),
                    holds: entry.awaited.holds.clone(),
                    thread: entry.thread,
                    limit: entry.awaited.limit,
                    held_since: entry.held_since,
                    room: entry.awaited.room,
                    is_blocked: entry.awaited.blocked.is_some(),
                    helps: entry.awaited.helps,
                }),
                Some(time) => next.push(time),
                None => {}
            }
        }
    }
    let (room, due): (Vec<_>, Vec<_>) = due.into_iter().partition(|due| due.room);
    for due in room {
        next.extend(make_room(&due));
    }
    if due.is_empty() {
        return next;
    }
    // One look for all of them. Few are held up by leases alone, and these are looked at again, one by one.
    let mut look = Look::new();
    let places: Vec<Places> = due.iter().map(|due| due.ops.iter().map(|op| look.add(op)).collect()).collect();
    look.run(EVERYTHING);
    let reaches = look.reaches(look::moves);
    let wanted = wanted_threads(&look, &due, &places);
    let (threads, futures): (Vec<_>, Vec<_>) =
        due.into_iter().zip(places).enumerate().partition(|(_, (due, _))| due.is_blocked);
    drop(look);
    for (number, (due, places)) in threads {
        let suspect = !places.iter().any(|place| reaches[*place]);
        let wake = wanted.contains(&number) || (suspect && due.held_by().is_some());
        next.extend(due.look_again_or_wake(wake));
    }
    // Those that would fail now get what a blocking wait does first: leases are let go of that are garbage.
    let held: Vec<_> = futures
        .iter()
        .map(|(_, (due, places))| {
            let moves =
                |(op, place): (&OpHandle, &usize)| op.payload().phase() != Phase::Done && reaches[*place];
            if due.ops.iter().zip(places).any(moves) { None } else { due.held_by() }
        })
        .collect();
    let mut collected: SmallVec<[CoreRef; 1]> = SmallVec::new();
    for ((_, (due, _)), held) in futures.iter().zip(&held) {
        if held.is_some() && due.is_over_limit(now) && collected.iter().all(|known| !known.same(&due.core)) {
            let_go(&due.core);
            collected.push(due.core.clone());
        }
    }
    for ((_, (due, _)), held) in futures.into_iter().zip(held) {
        let held = if held.is_some() && !collected.is_empty() { due.held_by() } else { held };
        next.extend(due.settle(held));
    }
    next
}

/// Where the operations of one entry are in a look.
type Places = SmallVec<[usize; 1]>;

/// The blocked threads that shall look themselves, because something that they need is ready and no other thread runs it: they may
/// run it, or have another thread do so.
fn wanted_threads(look: &Look, due: &[Due], places: &[Places]) -> Vec<usize> {
    if !due.iter().any(|due| due.is_blocked) {
        return Vec::new();
    }
    let helped = look.reaches(|op| is_ready_work(op) && op.kind == Kind::Work);
    let left = look.reaches(|op| is_ready_work(op) && (op.core.alone() || op.core.pool.is_stuck()));
    let is_wanted = |due: &Due, place: usize| left[place] || (due.helps && helped[place]);
    let threads = due
        .iter()
        .zip(places)
        .enumerate()
        .filter(|(_, (due, places))| due.is_blocked && places.iter().any(|place| is_wanted(due, *place)));
    threads.map(|(number, _)| number).take(WOKEN_MAX).collect()
}

impl Due {
    /// The leases that hold up all that has not ended, if nothing else does.
    fn held_by(&self) -> Option<Vec<LeaseInfo>> {
        let mut look = Look::new();
        for op in &self.ops {
            look.add(op);
        }
        look.run(EVERYTHING);
        let mut held = look.only_leases(!self.is_blocked);
        if let Some((tensor, numbers)) = &self.holds {
            // Where every operation has ended, the look has found nothing.
            if held.is_none() && !self.ops.iter().all(|op| op.payload().phase() == Phase::Done) {
                return None;
            }
            for var in &tensor.inner.vars {
                var.with_state(|state, _| {
                    state.holders().each(|holder| {
                        if numbers.contains(&holder.number()) {
                            held.get_or_insert_default().push(LeaseInfo::of(holder.lease().label()));
                        }
                    });
                });
            }
        }
        held
    }

    /// Wakes the blocked thread, or says when to look again.
    fn look_again_or_wake(&self, wakes: bool) -> Option<Instant> {
        let mut entries = list(self.key.list());
        let entry = entries.entry(self.key)?;
        if wakes {
            entry.next_look = None;
            let waker = entry.waker.take();
            drop(entries);
            waker.into_iter().for_each(wake);
            return None;
        }
        let pause = entry.awaited.blocked.map(|pause| (pause * 2).min(BLOCKED_LOOK_LAST));
        entry.awaited.blocked = pause;
        entry.next_look = pause.and_then(clock::deadline);
        entry.next_look
    }

    fn is_over_limit(&self, now: Instant) -> bool {
        let since = self.held_since.zip(self.limit);
        since.is_some_and(|(since, limit)| now.saturating_duration_since(since) >= limit)
    }

    /// Notes what was found, and says when to look again. A future that leases have held up for too long is woken with the error.
    fn settle(&self, held: Option<Vec<LeaseInfo>>) -> Option<Instant> {
        let now = Instant::now();
        let limit = self.limit?;
        let first = self.held_since.is_none();
        let mut waker = None;
        let mut entries = list(self.key.list());
        let entry = entries.entry(self.key)?;
        match &held {
            None => {
                entry.held_since = None;
                entry.next_look = entry.awaited.pause().and_then(|pause| now.checked_add(pause));
            }
            Some(leases) => {
                let since = *entry.held_since.get_or_insert(now);
                entry.next_look = since.checked_add(limit.max(LOOK_MIN));
                if self.is_over_limit(now) {
                    let mut leases = leases.clone();
                    leases.iter_mut().for_each(|lease| lease.own = lease.thread == self.thread);
                    entry.verdict = Some(Error::LeaseHeld(LeaseHeld::new(entry.awaited.what, leases)));
                    entry.next_look = None;
                    waker = entry.waker.take();
                }
            }
        }
        let next = entry.next_look;
        drop(entries);
        waker.into_iter().for_each(wake);
        if first && let Some(own) = held.iter().flatten().find(|lease| lease.thread == self.thread) {
            tracing::warn!(lease = %own, "an await waits for a lease that its own thread has taken");
        }
        next
    }
}

/// Has other engines, without workers, run what operations in flight wait for.
fn make_room(due: &Due) -> Option<Instant> {
    let others = stuck::without_workers(&due.core);
    let mut entries = list(due.key.list());
    let entry = entries.entry(due.key)?;
    // This takes locks of the other engines, which take none of these lists.
    for core in &others {
        entry.awaited.stand_ins.want(core);
    }
    entry.next_look = clock::deadline(ROOM_LOOK);
    entry.next_look
}
