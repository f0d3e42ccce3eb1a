//! A foreign fence as a fence of this crate.
//!
//! The cheapest way that the consumer allows is taken: `order_on` (or the native event) keeps the wait on the
//! device; `subscribe` spares polling; a fence that has only `query` is polled by the reactor, which backs
//! off.
//!
//! Every watcher has a subscription of its own, known to the foreign side by a number and not by an address:
//! a fence that signals twice, or after it was released, names a subscription that is over, and nothing
//! happens. A subscription that has long not been called is [queried](super::overdue): a fence that has
//! settled and never calls ends its waits all the same.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use estafette_devices::{
    DLDevice, Device, DeviceError, DeviceErrorKind, Event, Fence, FenceState, Order, Outcome, Queue, Reactor,
    Subscriber, Watch,
};
use estafette_sync::process::Generation;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};
use estafette_sync::time::Instant;
use estafette_sync::{thread_local, valgrind};

use super::overdue::{self, Due};
use super::{FENCE_VERSION, OK, PENDING, RawFence, kind_of};
use crate::core::error::{Error, operation_in};
use crate::exchange::reaper;
use crate::exchange::storage::Storage;

/// Abandoned subscriptions are looked for when a fence has so many, and then at each doubling.
const SWEEP_MIN: usize = 16;

/// Adopts a foreign fence: copies and retains it.
///
/// `devices` are those whose native events may stand for it.
///
/// # Errors
/// [`Error::Invalid`] names the field that is wrong; nothing was retained then.
///
/// # Safety
/// `raw` points to a struct as [`RawFence`] describes it, at least as long as its `size` says, whose
/// functions keep what is written there, and which stays valid until its last release.
pub unsafe fn import(raw: NonNull<RawFence>, devices: &[Arc<dyn Device>]) -> Result<Fence, Error> {
    // SAFETY: the caller vouches for the struct; these two fields come first in every version.
    let (version, size) =
        unsafe { ((&raw const (*raw.as_ptr()).version).read(), (&raw const (*raw.as_ptr()).size).read()) };
    if version != FENCE_VERSION {
        return Err(Error::invalid(format!(
            "fence: version is {version}, but {FENCE_VERSION} is the one known"
        )));
    }
    if (size as usize) < size_of::<RawFence>() {
        return Err(Error::invalid(format!(
            "fence: size is {size}, less than the {} bytes of version {FENCE_VERSION}",
            size_of::<RawFence>()
        )));
    }
    // SAFETY: as long as our version of the struct, says its size.
    let raw = unsafe { raw.read() };
    if raw.flags != 0 {
        return Err(Error::invalid(format!("fence: flags are {:#x}, and none is known", raw.flags)));
    }
    if raw.retain.is_some() != raw.release.is_some() {
        return Err(Error::invalid("fence: one of retain and release is NULL, but not both"));
    }
    if let Some(own) = super::export::own(&raw) {
        return Ok(own);
    }
    // Without a query it is done, and no other function matters.
    let raw = if raw.query.is_some() { raw } else { super::done(raw.device) };
    if let Some(retain) = raw.retain {
        // SAFETY: the caller vouches for the functions.
        unsafe { retain(raw.context) };
    }
    let held = RetainedFence(raw);
    let native = held.native_fence(devices);
    Ok(Fence::event(Arc::new_cyclic(|own| ForeignEvent {
        held: Some(held),
        own: own.clone(),
        outcome: OnceLock::new(),
        subscriptions: Mutex::new(Subscriptions { tokens: Vec::new(), sweep_at: SWEEP_MIN }),
        native,
        generation: Generation::current(),
    })))
}

/// A retained foreign fence. Drop releases the fence.
struct RetainedFence(RawFence);

// SAFETY: every function of the struct may be called by any thread, which is part of its contract; the
// context is only handed to them.
unsafe impl Send for RetainedFence {}
// SAFETY: as above.
unsafe impl Sync for RetainedFence {}

impl Drop for RetainedFence {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: retained once when it was adopted, released once here.
            unsafe { release(self.0.context) };
        }
    }
}

impl RetainedFence {
    fn query(&self) -> i32 {
        // SAFETY: the fence is retained.
        self.0.query.map_or(OK, |query| valgrind::foreign(|| unsafe { query(self.0.context) }))
    }

    /// The fence's text of its failure.
    fn text(&self) -> Option<String> {
        // SAFETY: the fence is retained, so its text is valid.
        self.0.error.and_then(|error| unsafe { text_of(error(self.0.context)) })
    }

    /// The fence of one of the engine's devices that the native event stands for.
    fn native_fence(&self, devices: &[Arc<dyn Device>]) -> Option<Fence> {
        let native = self.0.native?;
        let device =
            devices.iter().find(|device| device.id() == self.0.device && device.id() != DLDevice::CPU)?;
        // SAFETY: the fence is retained.
        let event = NonNull::new(unsafe { native(self.0.context, self.0.device) })?;
        // SAFETY: an event of that device's kind, says the contract of `native`, which lives as long as the
        // fence is retained; what is made of it here is kept beside it.
        unsafe { device.fence_of_event(event) }.ok()
    }
}

/// # Safety
/// NULL or a string that ends.
unsafe fn text_of(text: *const c_char) -> Option<String> {
    // SAFETY: as above.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The outcome that a fence reports by a status that is not [`PENDING`].
fn outcome_of(status: i32, text: impl FnOnce() -> Option<String>) -> Outcome {
    if status == OK {
        return Ok(());
    }
    if status > 0 {
        let message = format!("a foreign fence signalled status {status}, which is neither done nor failed");
        return Err(DeviceError::new(DeviceErrorKind::Invalid, message));
    }
    let message = text()
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| format!("a foreign fence failed with status {status} and said nothing more"));
    let error = DeviceError::new(kind_of(status), &*message).with_code(status.into());
    Err(match operation_in(&message) {
        Some(name) => error.with_operation(name),
        None => error,
    })
}

struct ForeignEvent {
    /// `None` only while this is dropped.
    held: Option<RetainedFence>,
    own: Weak<ForeignEvent>,
    /// The outcome: the first that was reported.
    outcome: OnceLock<Outcome>,
    subscriptions: Mutex<Subscriptions>,
    /// Its native event as a fence of our own device.
    native: Option<Fence>,
    generation: Generation,
}

struct Subscriptions {
    /// The number of each subscription in the registry, and the token that ends it.
    tokens: Vec<(u64, u64)>,
    sweep_at: usize,
}

impl ForeignEvent {
    fn held(&self) -> &RetainedFence {
        self.held.as_ref().expect("there until it is dropped")
    }

    /// Notes how it settled, unless that is known; gives what counts.
    fn note(&self, outcome: Outcome) -> Outcome {
        self.outcome.get_or_init(|| outcome).clone()
    }

    /// Subscribes at the foreign side; `None` if it refuses.
    fn subscribe(&self, subscriber: &Arc<dyn Subscriber>) -> Option<()> {
        let subscribe = self.held().0.subscribe?;
        let event = self.own.upgrade()?;
        let number =
            registry().register(Subscription { event, subscriber: subscriber.clone(), due: Due::first() });
        let mut token = 0;
        // SAFETY: the fence is retained; the callback knows its argument for a number, whatever is done with
        // it.
        let status =
            unsafe { subscribe(self.held().0.context, Some(settled), number as *mut c_void, &raw mut token) };
        if status == OK {
            let mut subscriptions = self.subscriptions.lock();
            subscriptions.tokens.push((number, token));
            return Some(());
        }
        // No call will come. If one came already, in spite of the status, the subscriber was notified.
        registry().take(number).is_none().then_some(())
    }

    /// Takes back the subscriptions of those who have gone, once there are many.
    fn sweep_if_many(&self) {
        let subscriptions = self.subscriptions.lock();
        let many = subscriptions.tokens.len() >= subscriptions.sweep_at;
        drop(subscriptions);
        if many {
            self.sweep();
        }
    }

    /// Takes back the subscriptions of those who have gone. Each keeps the fence.
    fn sweep(&self) {
        let gone: Vec<(u64, u64)> = {
            let mut subscriptions = self.subscriptions.lock();
            let gone =
                subscriptions.tokens.extract_if(.., |(number, _)| registry().is_over(*number)).collect();
            subscriptions.sweep_at = (subscriptions.tokens.len() * 2).max(SWEEP_MIN);
            gone
        };
        for (number, token) in gone {
            if registry().take(number).is_some()
                && let Some(unsubscribe) = self.held().0.unsubscribe
            {
                // SAFETY: the fence is retained; the token is what it gave for this subscription.
                unsafe { unsubscribe(self.held().0.context, token) };
            }
        }
    }
}

thread_local! {
    /// The fences whose `query` runs on this thread, the innermost last.
    static ASKED: RefCell<Vec<*const ForeignEvent>> = const { RefCell::new(Vec::new()) };
}

/// While an instance lives, the calling thread is in the `query` of a fence.
struct Asking(());

impl Asking {
    /// `None` if this thread is already in that fence's query: the query depends on its own fence, and would
    /// recurse without end.
    fn begin(event: &ForeignEvent) -> Option<Self> {
        let begin = |asked: &RefCell<Vec<_>>| {
            let (event, mut asked) = (std::ptr::from_ref(event), asked.borrow_mut());
            (!asked.contains(&event)).then(|| {
                asked.push(event);
                Self(())
            })
        };
        // A thread that ends may have no list any more, and queries all the same.
        ASKED.try_with(begin).unwrap_or_else(|_| Some(Self(())))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let _ = ASKED.try_with(|asked| asked.borrow_mut().pop());
    }
}

/// A fault, since the state of the work is unknown: memory that the work uses is not released.
fn asks_for_itself() -> DeviceError {
    let message = "the query of a foreign fence depends on that very fence, so it can never answer";
    DeviceError::new(DeviceErrorKind::Fault, message)
}

impl Event for ForeignEvent {
    fn device(&self) -> DLDevice {
        self.held().0.device
    }

    fn state(&self) -> FenceState {
        if let Some(outcome) = self.outcome.get() {
            return outcome.clone().into();
        }
        let Some(_asking) = Asking::begin(self) else {
            return self.note(Err(asks_for_itself())).into();
        };
        match self.held().query() {
            PENDING => FenceState::Pending,
            status => self.note(outcome_of(status, || self.held().text())).into(),
        }
    }

    fn observed_done(&self) -> bool {
        matches!(self.outcome.get(), Some(Ok(())))
    }

    fn watch(&self, subscriber: &Arc<dyn Subscriber>) -> Watch {
        self.sweep_if_many();
        if self.subscribe(subscriber).is_some() {
            return Watch::Subscribed;
        }
        match self.state().outcome() {
            Some(outcome) => Watch::Settled(outcome),
            None => Watch::MustPoll,
        }
    }

    fn waiter_left(&self) {
        // In a forked child the locks may be held for ever.
        if self.generation.is_current() {
            self.sweep();
        }
    }

    fn order_on(&self, queue: &dyn Queue) -> Option<Result<Order, DeviceError>> {
        if let Some(order_on) = self.held().0.order_on {
            // SAFETY: the fence is retained; the stream is the native handle of a live queue.
            let status =
                unsafe { order_on(self.held().0.context, queue.device(), queue.native() as *mut c_void) };
            if status == OK {
                return Some(Ok(Order::Device));
            }
            if status < 0 {
                return outcome_of(status, || self.held().text()).err().map(Err);
            }
        }
        self.native.as_ref().map(|native| queue.order_after(native))
    }
}

impl fmt::Debug for ForeignEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "foreign fence of {}", self.device())
    }
}

impl Drop for ForeignEvent {
    fn drop(&mut self) {
        // The caller may hold a variable's lock, and `release` is foreign code, so the reaper drops both: the
        // wrapper of the native event first.
        let native = self.native.take();
        if let Some(held) = self.held.take() {
            let storage = Storage::owned(Box::new((native, held)), std::ptr::null_mut());
            reaper::reaper().release(estafette_devices::FenceSet::default(), storage);
        }
    }
}

/// A subscription under way at a foreign scheduler.
struct Subscription {
    /// Keeps the fence for as long as a subscriber waits for it.
    event: Arc<ForeignEvent>,
    subscriber: Arc<dyn Subscriber>,
    /// The time at which the fence is queried, unless it has called before.
    due: Due,
}

impl Subscription {
    /// Passes the subscriber and the fence to the reactor. The fence's last reference may be dropped there.
    fn deliver(self, outcome: Outcome) {
        let outcome = self.event.note(outcome);
        let notification = Notification { subscriber: self.subscriber, _event: self.event };
        Reactor::global().deliver_soon(Arc::new(notification), outcome);
    }
}

/// Every subscription of the process, by number.
struct Registry {
    inner: Mutex<Registered>,
}

#[derive(Default)]
struct Registered {
    entries: BTreeMap<u64, Subscription>,
    /// Queries the fences of entries that are due; started with the first entry.
    overdue: overdue::Thread,
}

fn registry() -> &'static Registry {
    estafette_sync::per_process! {
        static REGISTRY: OnceLock<Registry> = OnceLock::new();
    }
    REGISTRY.get_or_init(|| Registry { inner: Mutex::default() })
}

impl Registry {
    fn register(&self, entry: Subscription) -> u64 {
        // Goes on in a forked child, where calls may come that the parent has arranged for.
        estafette_sync::statics! {
            static NEXT: AtomicU64 = AtomicU64::new(1);
        }
        let mut inner = self.inner.lock();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        inner.entries.insert(number, entry);
        let started = inner.overdue.arrived(query_due);
        drop(inner);
        if let Err(error) = started {
            tracing::warn!(%error, "threads that wait query the foreign fences that never call");
        }
        number
    }

    fn take(&self, number: u64) -> Option<Subscription> {
        self.inner.lock().entries.remove(&number)
    }

    /// True if the callback was called, or no subscriber waits any more.
    fn is_over(&self, number: u64) -> bool {
        let subscriber = self.inner.lock().entries.get(&number).map(|entry| entry.subscriber.clone());
        subscriber.is_none_or(|subscriber| subscriber.abandoned())
    }
}

/// Queries each fence whose subscription is due. Fences that have settled end their subscriptions as if they
/// had called. False if there is no subscription at all; the thread then rests until one arrives.
fn query_due() -> bool {
    let due: Vec<(u64, Arc<ForeignEvent>)> = {
        let mut inner = registry().inner.lock();
        if inner.entries.is_empty() {
            inner.overdue.rests();
            return false;
        }
        let now = Instant::now();
        let is_due = |(number, entry): (&u64, &mut Subscription)| {
            entry.due.is_reached(now).then(|| (*number, entry.event.clone()))
        };
        inner.entries.iter_mut().filter_map(is_due).collect()
    };
    for (number, event) in due {
        if let Some(outcome) = event.state().outcome()
            // The fence may have called meanwhile. Its later call finds nothing.
            && let Some(entry) = registry().take(number)
        {
            entry.deliver(outcome);
        }
    }
    true
}

/// Does the part of the thread that queries overdue fences, where the system has refused that thread: starts
/// it, or queries the fences on the calling thread. For threads that look at what waits.
pub(crate) fn stand_in_for_queries() {
    if overdue::is_missing() {
        let started = registry().inner.lock().overdue.start(query_due);
        if started.is_err() {
            query_due();
        }
    }
}

/// The callback of a foreign scheduler, perhaps under its own lock: it takes notes, and everything else is
/// done elsewhere.
unsafe extern "C" fn settled(argument: *mut c_void, status: i32, message: *const c_char) {
    valgrind::before();
    // A second call, one that comes too late, and one that was arranged for in the parent of this process
    // find nothing.
    let Some(entry) = registry().take(argument as u64) else { return };
    // SAFETY: the caller's text ends, and is there during the call.
    entry.deliver(outcome_of(status, || unsafe { text_of(message) }));
}

/// A subscriber on its way to the reactor's thread.
struct Notification {
    subscriber: Arc<dyn Subscriber>,
    _event: Arc<ForeignEvent>,
}

impl Subscriber for Notification {
    fn settled(self: Arc<Self>, outcome: Outcome) {
        self.subscriber.clone().settled(outcome);
    }
}
