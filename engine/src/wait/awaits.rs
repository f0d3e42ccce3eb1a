//! Pending futures of the engine, and threads that are blocked for long: which threads run what they wait
//! for, and how long leases may hold them up.
//!
//! Polling a future runs no operation, since an operation could take any time. In an engine without workers
//! the future requests a [stand-in](crate::wait::stand_in) for as long as it is pending. And no thread waits
//! inside of a future that could inspect the graph now and then; one thread of the process, the [`watcher`],
//! inspects for all futures. The watcher also inspects for blocked threads that run no operation, so that
//! many such threads cost one inspection. It wakes the threads that have to inspect for themselves.
//!
//! A future registers at its first pending poll, in one of several lists so that threads do not meet. The
//! future leaves the list when it is ready or dropped. The watcher first inspects an entry after an eighth of
//! its engine's lease timeout, and sooner where a stand-in may be needed, so most entries are never
//! inspected.

mod watcher;

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::task::{Context, Waker};

use estafette_graph::OpId;
use estafette_sync::process::Generation;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard};
use estafette_sync::thread::ThreadId;
use estafette_sync::thread_local;
use estafette_sync::time::{Duration, Instant};
use smallvec::SmallVec;

use self::watcher::watcher;
pub(crate) use self::watcher::{has_watcher, inspect_by};
use crate::core::clock;
use crate::core::contained::Contained;
use crate::core::context::{self, Current};
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::core::operation::OpHandle;
use crate::core::wait_for::On;
use crate::tensor::handle::Tensor;
use crate::trace::hooks::WaitNoted;
use crate::wait::blocking;
use crate::wait::inspect::{EVERYTHING, Inspection};
use crate::wait::stand_in::{StandInSet, others_without_workers};

/// Lists of pending futures. A thread uses one of them.
const LISTS: usize = 16;

/// The least time between two inspections of one future; the cost of each is proportional to what the future
/// waits for.
const LOOK_MIN: Duration = Duration::from_millis(10);

/// The first inspection of a future happens after this part of its lease timeout, so a future fails at most
/// this part late.
const FIRST_LOOK: u32 = 8;

/// The time between inspections of a future that may need a [stand-in](crate::wait::stand_in) at any time.
const STAND_IN_LOOK: Duration = Duration::from_millis(20);

/// The longest time between inspections of a future that waits for room in an engine: other engines may have
/// lost their last thread, or have been made without any, meanwhile.
const ROOM_LOOK: Duration = Duration::from_millis(500);

/// The target of the wait of a future or a thread.
pub(crate) struct Awaited {
    core: CoreRef,
    /// The call that waits, in words; `None` for an operation, by its name.
    what: Option<&'static str>,
    /// The operations that have to end, or to be granted.
    ops: SmallVec<[OpHandle; 1]>,
    /// The leases without an operation that have to end, and their tensor.
    pins: Option<(Tensor, SmallVec<[OpId; 1]>)>,
    stand_ins: StandInSet,
    /// The time that leases alone may hold up the wait; `None` for any time.
    limit: Option<Duration>,
    /// True for a wait for room in the engine.
    room: bool,
    /// The operation whose body polls.
    body: Option<Current>,
    /// For a blocked thread, which inspects for itself when it is woken: the time until the next inspection.
    blocked: Option<Duration>,
    /// True if this thread may run what it waits for.
    helps: bool,
    /// A synchronous body [counts as blocked](context::cover_synchronous) for it.
    is_covered: bool,
    /// The wait in a trace, if no operation of its own stands for it there.
    _noted: Option<WaitNoted>,
}

impl Awaited {
    /// A wait for the end, or the grant, of `op`.
    pub(crate) fn op(what: Option<&'static str>, op: &OpHandle) -> Self {
        Self::new(op.payload().core.clone(), what, SmallVec::from_iter([op.clone()])).with_stand_ins()
    }

    /// A task that awaits the end of `op`. Fences and callbacks are no waits of a task.
    pub(crate) fn by_task(op: &OpHandle) -> Self {
        let is_task = !context::is_notification();
        let noted = is_task.then(|| WaitNoted::for_op(op.id(), false)).flatten();
        Self { _noted: noted, ..Self::op(None, op) }
    }

    /// The stand-ins of a wait for the ends of `ops`; `core` is the engine of one of them.
    pub(crate) fn stand_ins<'a>(core: &CoreRef, ops: impl Iterator<Item = &'a OpHandle>) -> StandInSet {
        Self::new(core.clone(), None, ops.cloned().collect()).with_stand_ins().stand_ins
    }

    /// A wait for the ends of all `uses` of a tensor, and of those of its leases without an operation that
    /// have the numbers `held`.
    pub(crate) fn all(tensor: &Tensor, what: &'static str, uses: &[OpHandle], held: &[OpId]) -> Self {
        let awaited = Self::new(tensor.inner.core.clone(), Some(what), uses.iter().cloned().collect());
        let pins = (!held.is_empty()).then(|| (tensor.clone(), held.iter().copied().collect()));
        Self { pins, ..awaited }.with_stand_ins()
    }

    /// A wait for room in the engine, or for everything in it to end.
    pub(crate) fn room(core: &CoreRef) -> Self {
        let awaited = Self::new(core.clone(), Some("an engine"), SmallVec::new());
        Self { room: true, limit: None, ..awaited }
    }

    /// A submission that waits for room in the engine.
    pub(crate) fn permit(core: &CoreRef) -> Self {
        let awaited = Self::new(core.clone(), Some("a submission at the in-flight limit"), SmallVec::new());
        Self { room: true, ..awaited }
    }

    /// A thread that is blocked until `op` has ended, or is granted. The watcher wakes the thread when the
    /// thread has to inspect for itself: when leases alone may hold it up, or when it may run what it needs.
    /// The first inspection happens after `pause`.
    pub(crate) fn by_thread(op: &OpHandle, pause: Duration, helps: bool) -> Self {
        Self {
            core: op.payload().core.clone(),
            what: None,
            ops: SmallVec::from_iter([op.clone()]),
            pins: None,
            stand_ins: StandInSet::default(),
            limit: None,
            room: false,
            body: None,
            blocked: Some(pause),
            helps,
            is_covered: false,
            _noted: None,
        }
    }

    fn new(core: CoreRef, what: Option<&'static str>, ops: SmallVec<[OpHandle; 1]>) -> Self {
        let stand_ins = StandInSet::for_waiter(&core);
        core.pool.release_to_workers();
        let limit = (!context::is_notification()).then_some(core.lease_timeout);
        Self {
            core,
            what,
            ops,
            pins: None,
            stand_ins,
            limit,
            room: false,
            body: polling_body(),
            blocked: None,
            helps: false,
            is_covered: false,
            _noted: None,
        }
    }

    /// The operation or the call that waits, in words.
    fn waiting(&self) -> Cow<'static, str> {
        self.what.map_or_else(|| self.ops[0].payload().in_words().to_string().into(), Cow::Borrowed)
    }

    /// Requests stand-ins in the engines without workers that have something to run for this wait.
    fn with_stand_ins(mut self) -> Self {
        if others_without_workers(&self.core) {
            let mut inspection = Inspection::new();
            for op in &self.ops {
                inspection.add(op);
            }
            inspection.run(EVERYTHING);
            inspection.ops().for_each(|(_, _, op)| _ = self.stand_ins.relieve(&op.core));
        }
        self
    }

    /// As [`blocking::check_self_wait`].
    fn check_self_wait(&self) -> Result<(), Error> {
        self.ops.iter().try_for_each(blocking::check_self_wait)
    }

    /// The edges of the body that polls, if the watcher knows all of it.
    fn edges(&self) -> impl Iterator<Item = (Current, On)> {
        let own_room = |body: &Current| self.room && self.limit.is_some() && self.core.id == body.core;
        let body = self.body.filter(|_| self.pins.is_none());
        let room = body.filter(own_room).map(|body| (body, On::AnyOther));
        room.into_iter().chain(
            body.into_iter().flat_map(|body| self.ops.iter().map(move |op| (body, On::Op(op.clone())))),
        )
    }

    /// True if what the wait needs may become ready at any time and have no thread that runs it: a wait for
    /// room, where another engine has no workers, and one of a body whose own thread may have been the last
    /// one.
    fn may_need_stand_in(&self) -> bool {
        self.is_covered || (self.room && others_without_workers(&self.core))
    }

    /// The time between inspections while no hold-up by leases is known.
    fn pause(&self) -> Option<Duration> {
        if self.may_need_stand_in() {
            return Some(STAND_IN_LOOK);
        }
        let look = self.blocked.or_else(|| self.limit.map(|limit| (limit / FIRST_LOOK).max(LOOK_MIN)));
        look.into_iter().chain(self.room.then_some(ROOM_LOOK)).min()
    }
}

/// The operation whose body polls a future. A notification is no part of the body that causes it.
fn polling_body() -> Option<Current> {
    if context::is_notification() { None } else { context::current_with_core() }
}

/// The key of a pending future in the lists, and the process whose lists these are; empty while the future is
/// not pending.
#[derive(Debug, Default)]
pub(crate) struct Pending(Option<(Key, Generation)>);

/// A list, a place in this list, and the number of earlier users of this place.
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
    /// Registers a pending future after its poll. The future wakes when leases have held it up for too long;
    /// this function then returns the error. The first call calls `begin`, and fails where the wait leads
    /// back to the operation that polls.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, begin: impl FnOnce() -> Awaited) -> Option<Error> {
        match self.0 {
            None => {
                let mut awaited = begin();
                if let Err(error) = awaited.check_self_wait() {
                    return Some(error);
                }
                awaited.is_covered = context::cover_synchronous(&awaited.core);
                self.0 = register(awaited, cx.waker().clone()).map(|key| (key, Generation::current()));
                None
            }
            Some((key, _)) => {
                let verdict = poll_again(key, cx.waker());
                if verdict.is_some() {
                    self.over();
                } else if context::is_synchronous() {
                    cover(key);
                }
                verdict
            }
        }
    }

    /// True once the watcher has woken a blocked thread, which `waker` wakes. The first call calls `begin`;
    /// the later ones leave the entry as it is, so that a wake-up counts that comes while the thread is awake
    /// for another reason.
    pub(crate) fn was_woken(&mut self, waker: &Waker, begin: impl FnOnce() -> Awaited) -> bool {
        match self.0 {
            None => {
                self.0 = register(begin(), waker.clone()).map(|key| (key, Generation::current()));
                false
            }
            Some((key, _)) => list(key.list()).entry(key).is_some_and(|entry| entry.waker.is_none()),
        }
    }

    /// The future is pending no more.
    pub(crate) fn over(&mut self) {
        // The lists of a process that this one was forked from are not those here.
        if let Some((key, _)) = self.0.take().filter(|(_, generation)| generation.is_current()) {
            unregister(key);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.over();
    }
}

struct PendingWait {
    awaited: Awaited,
    /// `None` while the future is being woken.
    waker: Option<Waker>,
    /// The thread that polled first.
    thread: ThreadId,
    next_look: Option<Instant>,
    /// Since when leases alone are known to hold up the wait.
    held_since: Option<Instant>,
    /// The number of operations that had ended in the engine at the watcher's last inspection; for a wait for
    /// room.
    ended: u64,
    verdict: Option<Error>,
}

#[derive(Default)]
struct List {
    places: Vec<(u32, Option<Box<PendingWait>>)>,
    free: Vec<usize>,
}

estafette_sync::per_process! {
    static ENTRIES: [Mutex<List>; LISTS] =
        estafette_sync::array![Mutex::new(List { places: Vec::new(), free: Vec::new() }); LISTS];
}

fn list(number: usize) -> MutexGuard<'static, List> {
    ENTRIES[number].lock()
}

impl List {
    fn entry(&mut self, key: Key) -> Option<&mut Box<PendingWait>> {
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
    let entry = Box::new(PendingWait {
        awaited,
        waker: Some(waker),
        thread: clock::this_thread(),
        next_look,
        held_since: None,
        ended: 0,
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
        watcher().inspect_by(next_look);
    }
    Some(key)
}

fn poll_again(key: Key, waker: &Waker) -> Option<Error> {
    let mut own = list(key.list());
    let entry = own.entry(key)?;
    // A body may hand its future on.
    entry.awaited.body = polling_body();
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

/// A synchronous body polls a future that was pending elsewhere before.
fn cover(key: Key) {
    let uncovered = list(key.list())
        .entry(key)
        .filter(|entry| !entry.awaited.is_covered)
        .map(|entry| entry.awaited.core.clone());
    if uncovered.is_some_and(|core| context::cover_synchronous(&core)) {
        let soon = Instant::now() + STAND_IN_LOOK;
        if let Some(entry) = list(key.list()).entry(key) {
            entry.awaited.is_covered = true;
            entry.next_look = entry.next_look.into_iter().chain([soon]).min();
        }
        watcher().inspect_by(soon);
    }
}

fn unregister(key: Key) {
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
