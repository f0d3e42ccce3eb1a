//! Our fence as a struct for other schedulers.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use estafette_devices::{
    DLDevice, Device, Fence, FenceState, NativeEvent, Order, Outcome, Reactor, Subscriber,
};
use estafette_graph::OpId;
use estafette_sync::panic::contain_panic;
use estafette_sync::process::{Generation, ProcessBound};
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};
use estafette_sync::valgrind;

use super::{
    FAILED, FENCE_VERSION, FenceCallback, INVALID, OK, PENDING, RawFence, TIMEOUT, WOULD_DEADLOCK, status_of,
};
use crate::core::core_ref::CoreRef;
use crate::exchange::callback;

/// The function by which threads of other schedulers wait for a fence of an engine whose operations may be
/// what settles it.
pub(crate) type Wait = fn(&CoreRef, &Fence, Option<Duration>) -> Option<Outcome>;

/// As [`Wait`], for a fence that no engine is known of.
type WaitWithoutEngine = fn(&Fence, Option<Duration>) -> Option<Outcome>;

estafette_sync::statics! {
    /// Set with the first engine without workers: one of its operations may be what settles such a fence.
    pub(crate) static WAIT_WITHOUT_ENGINE: OnceLock<WaitWithoutEngine> = OnceLock::new();
}

/// The struct of `fence`, for another scheduler. The caller owns one count of it and gives that up by its
/// `release`.
///
/// `device` is the fence's own, where the engine has it: it makes native events.
pub fn export(fence: Fence, device: Option<Arc<dyn Device>>) -> RawFence {
    export_with(fence, device, None, Vec::new())
}

/// As [`export`], of a fence that operations of an engine may have to settle, those of `after` among them.
pub(crate) fn export_of(
    core: &CoreRef,
    wait: Wait,
    fence: Fence,
    device: Option<Arc<dyn Device>>,
    after: Vec<OpId>,
) -> RawFence {
    export_with(fence, device, Some((ProcessBound::new(core.clone()), wait)), after)
}

fn export_with(
    fence: Fence,
    device: Option<Arc<dyn Device>>,
    engine: Option<(ProcessBound<CoreRef>, Wait)>,
    after: Vec<OpId>,
) -> RawFence {
    let place = fence.device();
    let exported = Arc::new(ExportedFence {
        fence,
        device,
        engine,
        after,
        text: OnceLock::new(),
        native: OnceLock::new(),
        subscriptions: Mutex::default(),
        last: AtomicU64::new(0),
        generation: Generation::current(),
    });
    RawFence {
        version: FENCE_VERSION,
        size: size_of::<RawFence>() as u32,
        context: Arc::into_raw(exported).cast_mut().cast(),
        device: place,
        flags: 0,
        query: Some(query),
        wait: Some(wait),
        order_on: Some(order_on),
        subscribe: Some(subscribe),
        unsubscribe: Some(unsubscribe),
        error: Some(error),
        native: Some(native),
        retain: Some(retain),
        release: Some(release),
        reserved: [None; 3],
    }
}

/// A fence that is done. It needs no release.
pub fn done(device: DLDevice) -> RawFence {
    RawFence {
        version: FENCE_VERSION,
        size: size_of::<RawFence>() as u32,
        context: std::ptr::null_mut(),
        device,
        flags: 0,
        query: None,
        wait: None,
        order_on: None,
        subscribe: None,
        unsubscribe: None,
        error: None,
        native: None,
        retain: None,
        release: None,
        reserved: [None; 3],
    }
}

/// The fence inside, if the struct is one that this copy of the library has made.
pub(super) fn own(raw: &RawFence) -> Option<Fence> {
    own_struct(raw).map(|own| own.fence.clone())
}

/// True if the struct is one that this copy of the library has made, of a fence that waits for the end of
/// `op`.
pub(crate) fn waits_for(raw: &RawFence, op: OpId) -> bool {
    own_struct(raw).is_some_and(|own| own.after.contains(&op))
}

fn own_struct(raw: &RawFence) -> Option<&ExportedFence> {
    let ours: unsafe extern "C" fn(*mut c_void) -> i32 = query;
    // Another copy of the library has other functions, and its fences are foreign.
    let same = raw.query.is_some_and(|its| std::ptr::fn_addr_eq(its, ours));
    // SAFETY: with our function goes our context, which the caller holds a count of.
    same.then(|| unsafe { exported(raw.context) })
}

struct ExportedFence {
    fence: Fence,
    device: Option<Arc<dyn Device>>,
    engine: Option<(ProcessBound<CoreRef>, Wait)>,
    /// Operations whose end it waits for.
    after: Vec<OpId>,
    /// The text of its failure, made when first asked for.
    text: OnceLock<CString>,
    native: OnceLock<Option<RetainedEvent>>,
    subscriptions: Mutex<Subscriptions>,
    last: AtomicU64,
    generation: Generation,
}

/// A native event that is kept until the fence is released.
struct RetainedEvent(NativeEvent);

// SAFETY: only its pointer is handed out; the owner of the whole struct drops it.
unsafe impl Sync for RetainedEvent {}

/// # Safety
/// `context` is that of a struct made by [`export`], which the caller holds a count of for as long as it uses
/// this.
unsafe fn exported<'a>(context: *mut c_void) -> &'a ExportedFence {
    // SAFETY: as above.
    unsafe { &*context.cast::<ExportedFence>() }
}

/// Runs `f` where a panic has nowhere to go.
fn guarded<T>(otherwise: T, f: impl FnOnce() -> T) -> T {
    valgrind::before();
    let result = contain_panic(f).unwrap_or_else(|message| {
        tracing::error!(message, "a panic in a fence that was handed out was contained");
        otherwise
    });
    valgrind::after();
    result
}

fn status(state: &FenceState) -> i32 {
    match state {
        FenceState::Pending => PENDING,
        FenceState::Done => OK,
        FenceState::Failed(error) => status_of(error),
    }
}

unsafe extern "C" fn query(context: *mut c_void) -> i32 {
    // SAFETY: called with the context that stands beside it.
    let fence = unsafe { &exported(context).fence };
    guarded(FAILED, || if fence.observed_done() { OK } else { status(&fence.state()) })
}

unsafe extern "C" fn wait(context: *mut c_void, timeout_ns: u64) -> i32 {
    // SAFETY: called with the context that stands beside it.
    let ExportedFence { fence, engine, .. } = unsafe { exported(context) };
    let timeout = (timeout_ns != u64::MAX).then(|| Duration::from_nanos(timeout_ns));
    guarded(FAILED, || {
        if callback::is_running() && timeout_ns > 0 && fence.state().is_pending() {
            return WOULD_DEADLOCK;
        }
        let outcome = match engine.as_ref().map(|(core, wait)| (core.get(), wait)) {
            Some((Ok(core), wait)) => wait(core, fence, timeout),
            _ => match WAIT_WITHOUT_ENGINE.get() {
                Some(wait) => wait(fence, timeout),
                None => fence.wait_timeout(timeout),
            },
        };
        match outcome {
            None => TIMEOUT,
            Some(outcome) => status(&outcome.into()),
        }
    })
}

unsafe extern "C" fn order_on(context: *mut c_void, device: DLDevice, stream: *mut c_void) -> i32 {
    // SAFETY: called with the context that stands beside it.
    let exported = unsafe { exported(context) };
    // SAFETY: as above.
    let known = unsafe { query(context) };
    // A fence that is done or has failed needs no order.
    let Some(own) = exported.device.as_ref().filter(|own| known == PENDING && own.id() == device) else {
        return known;
    };
    if stream.is_null() {
        return known;
    }
    guarded(known, || {
        // SAFETY: a stream of that device, says the contract of this function; it is used in this call only.
        let queue = unsafe { own.foreign_queue(stream.expose_provenance()) };
        // A capture stays as it is: rule R13.
        let order = queue.and_then(|queue| match queue.is_capturing()? {
            true => Ok(Order::Host),
            false => queue.order_after(&exported.fence),
        });
        match order {
            Ok(Order::Nothing | Order::Device) => OK,
            Ok(Order::Host) => known,
            // A consumer that knows the stream can use the native event for the rest.
            Err(error) => {
                tracing::debug!(%error, "a stream cannot be ordered after a fence of this library");
                known
            }
        }
    })
}

#[derive(Default)]
struct Subscriptions {
    /// By their tokens. Those that were called go when there are twice as many as were left.
    known: HashMap<u64, Arc<Subscription>>,
    left: usize,
}

/// A foreign callback, which is called once or taken back.
struct Subscription {
    call: Mutex<Option<SettleCallback>>,
}

struct SettleCallback {
    callback: unsafe extern "C" fn(*mut c_void, i32, *const c_char),
    argument: *mut c_void,
}

// SAFETY: the callback may be called by any thread, which is part of its contract; the argument is only
// handed to it.
unsafe impl Send for SettleCallback {}

impl Subscription {
    fn take(&self) -> Option<SettleCallback> {
        self.call.lock().take()
    }
}

impl Subscriber for Subscription {
    fn settled(self: Arc<Self>, outcome: Outcome) {
        let Some(SettleCallback { callback, argument }) = self.take() else { return };
        let (status, text) = match outcome {
            Ok(()) => (OK, None),
            Err(error) => (status_of(&error), Some(text_of(&error.to_string()))),
        };
        let text = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        // SAFETY: the subscriber vouches for the callback; it was not taken back, and is called this once.
        callback::run(|| unsafe { callback(argument, status, text) });
    }

    fn abandoned(&self) -> bool {
        self.call.lock().is_none()
    }
}

/// A text for C: what follows a NUL would be lost, so there is none in it.
fn text_of(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

unsafe extern "C" fn subscribe(
    context: *mut c_void,
    callback: FenceCallback,
    argument: *mut c_void,
    token: *mut u64,
) -> i32 {
    // SAFETY: called with the context that stands beside it.
    let exported = unsafe { exported(context) };
    let Some(callback) = callback else { return INVALID };
    // In a forked child the locks may be held for ever.
    if exported.generation.is_inherited() {
        return FAILED;
    }
    guarded(FAILED, || {
        let number = exported.last.fetch_add(1, Ordering::Relaxed) + 1;
        let call = Mutex::new(Some(SettleCallback { callback, argument }));
        let subscription = Arc::new(Subscription { call });
        if !token.is_null() {
            // SAFETY: NULL or a place for the token. Written first, as the callback may run before this
            // returns.
            unsafe { token.write(number) };
        }
        {
            let mut subscriptions = exported.subscriptions.lock();
            let Subscriptions { known, left } = &mut *subscriptions;
            if known.len() > 2 * *left {
                known.retain(|_, known| !known.abandoned());
                *left = known.len();
            }
            known.insert(number, subscription.clone());
        }
        Reactor::global().watch(&exported.fence, subscription);
        OK
    })
}

unsafe extern "C" fn unsubscribe(context: *mut c_void, token: u64) -> i32 {
    // SAFETY: called with the context that stands beside it.
    let exported = unsafe { exported(context) };
    if exported.generation.is_inherited() {
        return PENDING;
    }
    guarded(FAILED, || {
        let found = exported.subscriptions.lock().known.remove(&token);
        if found.and_then(|subscription| subscription.take()).is_some() { OK } else { PENDING }
    })
}

unsafe extern "C" fn error(context: *mut c_void) -> *const c_char {
    // SAFETY: called with the context that stands beside it.
    let exported = unsafe { exported(context) };
    guarded(std::ptr::null(), || match exported.fence.state() {
        FenceState::Failed(error) => exported.text.get_or_init(|| text_of(&error.to_string())).as_ptr(),
        FenceState::Pending | FenceState::Done => std::ptr::null(),
    })
}

unsafe extern "C" fn native(context: *mut c_void, device: DLDevice) -> *mut c_void {
    // SAFETY: called with the context that stands beside it.
    let exported = unsafe { exported(context) };
    let kind_of = |device: DLDevice| device.queue_device().device_type;
    let fits = kind_of(device) == kind_of(exported.fence.device());
    let maker = exported.device.as_ref().filter(|maker| fits && maker.has_events());
    let Some(maker) = maker else { return std::ptr::null_mut() };
    guarded(std::ptr::null_mut(), || {
        let made =
            exported.native.get_or_init(|| maker.event_of_fence(&exported.fence).ok().map(RetainedEvent));
        made.as_ref().map_or(std::ptr::null_mut(), |kept| kept.0.pointer().as_ptr())
    })
}

unsafe extern "C" fn retain(context: *mut c_void) {
    // SAFETY: the context is an `Arc` that was turned into a pointer, and the caller holds a count of it.
    unsafe { Arc::increment_strong_count(context.cast::<ExportedFence>()) };
}

unsafe extern "C" fn release(context: *mut c_void) {
    // SAFETY: as above; the caller gives its count up.
    guarded((), || unsafe { Arc::decrement_strong_count(context.cast::<ExportedFence>()) });
}
