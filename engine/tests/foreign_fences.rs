//! Fences of a scheduler that is not ours, well and badly behaved.

use std::ffi::{c_char, c_void};
use std::future::Future;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use estafette_devices::sim::{SimDevice, SimOptions};
use estafette_devices::{DLDevice, Device, DeviceError, DeviceErrorKind, Fence, FenceState, Order, host};
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicI32, AtomicI64, AtomicUsize, Ordering::SeqCst};

use estafette::Error;
use estafette::bindings::exchange::{export, import};
use estafette::exchange::flush_deleters;
use estafette::exchange::foreign_fence::*;

/// Far more than anything here takes.
const LONG: Duration = Duration::from_secs(20);

/// A scheduler's fence that a test drives by hand.
struct Foreign {
    state: AtomicI32,
    holders: AtomicI64,
    queries: AtomicUsize,
    ordered: Mutex<Vec<usize>>,
    /// Held while callbacks are called, as no scheduler should.
    calls: Mutex<Vec<Call>>,
    native: *mut c_void,
}

// SAFETY: the pointer is only handed out.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

#[derive(Clone, Copy)]
struct Call {
    callback: unsafe extern "C" fn(*mut c_void, i32, *const c_char),
    argument: *mut c_void,
    token: u64,
}

// SAFETY: a call may be made by any thread.
unsafe impl Send for Call {}

fn of<'a>(context: *mut c_void) -> &'a Foreign {
    // SAFETY: the tests keep their fences for ever.
    unsafe { &*context.cast::<Foreign>() }
}

impl Foreign {
    fn new() -> &'static Self {
        Self::with_native(std::ptr::null_mut())
    }

    fn with_native(native: *mut c_void) -> &'static Self {
        Box::leak(Box::new(Self {
            state: AtomicI32::new(PENDING),
            holders: AtomicI64::new(1),
            queries: AtomicUsize::new(0),
            ordered: Mutex::new(Vec::new()),
            calls: Mutex::new(Vec::new()),
            native,
        }))
    }

    /// A fence that can only be asked.
    fn polled(&'static self) -> RawFence {
        RawFence {
            version: FENCE_VERSION,
            size: size_of::<RawFence>() as u32,
            context: std::ptr::from_ref(self).cast_mut().cast(),
            device: DLDevice::CPU,
            flags: 0,
            query: Some(query),
            wait: None,
            order_on: None,
            subscribe: None,
            unsubscribe: None,
            error: Some(error),
            native: None,
            retain: Some(retain),
            release: Some(release),
            reserved: [None; 3],
        }
    }

    /// A fence that notifies its subscribers.
    fn telling(&'static self) -> RawFence {
        RawFence { subscribe: Some(subscribe), unsubscribe: Some(unsubscribe), ..self.polled() }
    }

    fn settle(&self, status: i32) {
        self.state.store(status, SeqCst);
    }

    /// Calls every subscriber, under its own lock.
    fn notify(&self, status: i32, message: *const c_char) {
        for call in self.calls.lock().iter() {
            // SAFETY: subscribed, and any thread may call.
            unsafe { (call.callback)(call.argument, status, message) };
        }
    }

    fn holders(&self) -> i64 {
        flush_deleters(LONG);
        self.holders.load(SeqCst)
    }
}

unsafe extern "C" fn query(context: *mut c_void) -> i32 {
    let foreign = of(context);
    foreign.queries.fetch_add(1, SeqCst);
    foreign.state.load(SeqCst)
}

unsafe extern "C" fn subscribe(
    context: *mut c_void,
    callback: FenceCallback,
    argument: *mut c_void,
    token: *mut u64,
) -> i32 {
    let mut calls = of(context).calls.lock();
    let number = calls.len() as u64 + 1;
    calls.push(Call { callback: callback.expect("a subscription has one"), argument, token: number });
    // SAFETY: a place for it, says the contract.
    unsafe { token.write(number) };
    OK
}

unsafe extern "C" fn subscribe_refuses(
    _context: *mut c_void,
    _callback: FenceCallback,
    _argument: *mut c_void,
    _token: *mut u64,
) -> i32 {
    PENDING
}

unsafe extern "C" fn unsubscribe(context: *mut c_void, token: u64) -> i32 {
    of(context).calls.lock().retain(|call| call.token != token);
    OK
}

unsafe extern "C" fn error(_context: *mut c_void) -> *const c_char {
    c"the press is out of paper".as_ptr()
}

unsafe extern "C" fn retain(context: *mut c_void) {
    of(context).holders.fetch_add(1, SeqCst);
}

unsafe extern "C" fn release(context: *mut c_void) {
    of(context).holders.fetch_sub(1, SeqCst);
}

unsafe extern "C" fn order_on(context: *mut c_void, _device: DLDevice, stream: *mut c_void) -> i32 {
    of(context).ordered.lock().push(stream as usize);
    OK
}

unsafe extern "C" fn native(context: *mut c_void, _device: DLDevice) -> *mut c_void {
    of(context).native
}

fn adopt(mut raw: RawFence) -> Result<Fence, Error> {
    // SAFETY: the struct is one of these tests', which keep their promises but where a test says otherwise.
    unsafe { import(NonNull::from(&mut raw), &[]) }
}

#[test]
fn a_fence_that_can_only_be_asked_is_polled() {
    let foreign = Foreign::new();
    let fence = adopt(foreign.polled()).unwrap();
    assert!(fence.state().is_pending());
    assert!(fence.wait_timeout(Some(Duration::from_millis(5))).is_none());
    foreign.settle(OK);
    assert!(fence.wait_timeout(Some(LONG)).unwrap().is_ok());
    let asked = foreign.queries.load(SeqCst);
    assert!(fence.is_done() && fence.observed_done());
    assert_eq!(foreign.queries.load(SeqCst), asked, "what has settled is not asked again");
}

#[test]
fn polling_backs_off() {
    let foreign = Foreign::new();
    let fence = adopt(foreign.polled()).unwrap();
    assert!(fence.wait_timeout(Some(Duration::from_millis(400))).is_none());
    let asked = foreign.queries.load(SeqCst);
    // 128 quick looks, then naps of 50 µs that grow to 1 ms; other tests' fences make the thread look again.
    assert!(asked < 20_000, "asked {asked} times in 400 ms");
}

#[test]
fn a_fence_that_tells_is_not_polled() {
    let foreign = Foreign::new();
    let fence = adopt(foreign.telling()).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| fence.wait_timeout(Some(LONG)).unwrap());
        while foreign.calls.lock().is_empty() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        let asked = foreign.queries.load(SeqCst);
        assert!(asked <= 3, "asked {asked} times");
        foreign.notify(OK, std::ptr::null());
        assert!(waiter.join().unwrap().is_ok());
    });
}

#[test]
fn one_that_refuses_a_subscription_is_polled() {
    let foreign = Foreign::new();
    let fence = adopt(RawFence { subscribe: Some(subscribe_refuses), ..foreign.polled() }).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| fence.wait_timeout(Some(LONG)).unwrap());
        std::thread::sleep(Duration::from_millis(10));
        foreign.settle(OK);
        assert!(waiter.join().unwrap().is_ok());
    });
}

#[test]
fn failure_travels_with_its_message() {
    let foreign = Foreign::new();
    let fence = adopt(foreign.polled()).unwrap();
    foreign.settle(CANCELLED);
    let FenceState::Failed(error) = fence.state() else { panic!("it has failed") };
    assert_eq!((error.kind(), error.message()), (DeviceErrorKind::Cancelled, "the press is out of paper"));

    let foreign = Foreign::new();
    let fence = adopt(foreign.telling()).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| fence.wait_timeout(Some(LONG)).unwrap());
        while foreign.calls.lock().is_empty() {
            std::thread::yield_now();
        }
        foreign.notify(FAILED, c"no ink".as_ptr());
        assert_eq!(waiter.join().unwrap().unwrap_err().message(), "no ink");
    });
}

#[test]
fn a_fence_that_never_signals_ends_waits_by_their_time() {
    for raw in [Foreign::new().polled(), Foreign::new().telling()] {
        let fence = adopt(raw).unwrap();
        assert!(fence.wait_timeout(Some(Duration::from_millis(20))).is_none());
        assert!(fence.wait_timeout(Some(Duration::ZERO)).is_none());
    }
}

#[test]
fn a_fence_that_has_settled_and_never_calls_ends_waits_by_its_query() {
    for (status, is_ok) in [(OK, true), (FAILED, false)] {
        let foreign = Foreign::new();
        let fence = adopt(foreign.telling()).unwrap();
        let (sender, heard) = std::sync::mpsc::channel();
        estafette_devices::Reactor::global().when_settled([&fence], move |outcome| {
            sender.send((outcome, std::thread::current().name().map(str::to_owned))).unwrap();
        });
        assert_eq!(foreign.calls.lock().len(), 1);
        foreign.settle(status);
        // The subscription is what keeps the fence.
        drop(fence);
        let (outcome, thread) = heard.recv_timeout(LONG).expect("it is queried in the end");
        assert_eq!((outcome.is_ok(), thread.as_deref()), (is_ok, Some("estafette-reactor")));
        // A call that comes after all changes nothing: the closure would panic, as its channel has gone.
        foreign.notify(OK, std::ptr::null());
        assert!(heard.recv().is_err(), "heard once");
    }
}

#[test]
fn a_fence_that_is_late_is_queried_seldom() {
    let foreign = Foreign::new();
    let fence = adopt(foreign.telling()).unwrap();
    assert!(fence.wait_timeout(Some(Duration::from_millis(2_500))).is_none());
    let asked = foreign.queries.load(SeqCst);
    assert!(asked <= 8, "asked {asked} times in two and a half seconds");
}

#[test]
fn a_fence_that_signals_twice_is_heard_once() {
    let foreign = Foreign::new();
    let fence = adopt(foreign.telling()).unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    estafette_devices::Reactor::global().when_settled([&fence], move |outcome| {
        assert!(outcome.is_ok());
        count.fetch_add(1, SeqCst);
    });
    foreign.notify(OK, std::ptr::null());
    foreign.notify(OK, std::ptr::null());
    foreign.notify(FAILED, c"changed its mind".as_ptr());
    assert!(fence.wait_timeout(Some(LONG)).unwrap().is_ok(), "the first word counts");
    while told.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    // Notifications that were sent before a delivered one have been delivered.
    let other = adopt(Foreign::new().telling()).unwrap();
    assert!(other.wait_timeout(Some(Duration::from_millis(10))).is_none());
    assert_eq!(told.load(SeqCst), 1);
}

#[test]
fn an_error_that_is_reported_late_changes_nothing() {
    let foreign = Foreign::new();
    let fence = adopt(foreign.polled()).unwrap();
    foreign.settle(OK);
    assert!(fence.is_done());
    foreign.settle(FAILED);
    assert!(matches!(fence.state(), FenceState::Done), "a fence settles once");
    assert!(fence.wait_timeout(Some(LONG)).unwrap().is_ok());
}

#[test]
fn one_that_signals_something_that_is_no_end_has_failed() {
    let foreign = Foreign::new();
    let fence = adopt(foreign.telling()).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| fence.wait_timeout(Some(LONG)).unwrap());
        while foreign.calls.lock().is_empty() {
            std::thread::yield_now();
        }
        foreign.notify(PENDING, std::ptr::null());
        assert!(waiter.join().unwrap().unwrap_err().message().contains("neither done nor failed"));
    });
}

#[test]
fn one_that_answers_something_that_is_no_state_has_failed() {
    let foreign = Foreign::new();
    let fence = adopt(foreign.polled()).unwrap();
    foreign.settle(5);
    let error = fence.wait_timeout(Some(LONG)).expect("it is not pending").unwrap_err();
    assert!(error.message().contains("status 5, which is neither done nor failed"), "{error}");
}

#[test]
fn callbacks_under_the_fences_own_lock_meet_nobody_who_needs_it() {
    // The subscriber asks the fence for something that takes the same lock: were it called there, it would
    // never return.
    let foreign = Foreign::new();
    let fence = adopt(foreign.telling()).unwrap();
    let (sender, told) = std::sync::mpsc::channel();
    estafette_devices::Reactor::global().when_settled([&fence], move |_outcome| {
        let waiting = foreign.calls.lock().len();
        sender.send((waiting, std::thread::current().name().map(str::to_owned))).unwrap();
    });
    // The last holder goes too: the release must not come under that lock either.
    drop(fence);
    foreign.notify(OK, std::ptr::null());
    let (waiting, thread) = told.recv_timeout(LONG).expect("the subscriber is called elsewhere");
    assert_eq!((waiting, thread.as_deref()), (1, Some("estafette-reactor")));
}

#[test]
fn a_fence_is_held_until_nobody_needs_it_and_its_owner_may_leave_early() {
    let foreign = Foreign::new();
    let fence = adopt(foreign.telling()).unwrap();
    // The owner releases its own count right after handing the fence over.
    // SAFETY: it holds one.
    unsafe { release(std::ptr::from_ref(foreign).cast_mut().cast()) };
    assert_eq!(foreign.holders(), 1);
    let copy = fence.clone();
    drop(fence);
    assert_eq!(foreign.holders(), 1);
    foreign.settle(OK);
    assert!(copy.is_done());
    drop(copy);
    assert_eq!(foreign.holders(), 0);
    // A notification after the release finds no subscriber.
    foreign.notify(OK, std::ptr::null());
}

#[test]
fn waiters_that_went_away_are_taken_back() {
    let foreign = Foreign::new();
    let fence = adopt(foreign.telling()).unwrap();
    for _ in 0..200 {
        assert!(fence.wait_timeout(Some(Duration::from_nanos(1))).is_none());
    }
    let left = foreign.calls.lock().len();
    assert!(left <= 33, "{left} subscriptions are left of waiters that are gone");
}

#[test]
fn structs_that_break_the_rules_are_refused_by_name_and_not_retained() {
    let foreign = Foreign::new();
    let good = foreign.telling();
    let cases: [(RawFence, &str); 5] = [
        (RawFence { version: 2, ..good }, "version"),
        (RawFence { size: 40, ..good }, "size"),
        (RawFence { flags: 8, ..good }, "flags"),
        (RawFence { retain: None, ..good }, "retain"),
        (RawFence { release: None, ..good }, "release"),
    ];
    for (raw, field) in cases {
        let error = adopt(raw).unwrap_err().to_string();
        assert!(error.starts_with("fence: ") && error.contains(field), "{field}: {error}");
    }
    assert_eq!(foreign.holders(), 1);
}

#[test]
fn a_fence_without_a_query_is_done_and_nothing_of_it_is_called() {
    let foreign = Foreign::new();
    let fence = adopt(RawFence { query: None, ..foreign.telling() }).unwrap();
    assert!(matches!(fence.state(), FenceState::Done));
    assert!(matches!(fence.wait_timeout(None), Some(Ok(()))));
    assert_eq!((foreign.holders(), foreign.calls.lock().len()), (1, 0));
}

#[test]
fn every_function_but_query_may_be_missing() {
    let foreign = Foreign::new();
    let raw = RawFence { error: None, retain: None, release: None, ..foreign.polled() };
    let fence = adopt(raw).unwrap();
    foreign.settle(FAILED);
    let FenceState::Failed(error) = fence.state() else { panic!("it has failed") };
    assert!(error.message().contains("status -2"));
    drop(fence);
    assert_eq!(foreign.holders(), 1, "no holder was counted");
}

#[test]
fn functions_of_a_later_header_are_left_alone() {
    extern "C" fn unknown() {
        unreachable!("this library does not know it");
    }
    let foreign = Foreign::new();
    let fence = adopt(RawFence { reserved: [Some(unknown); 3], ..foreign.polled() }).unwrap();
    foreign.settle(OK);
    assert!(fence.is_done());
}

#[test]
fn a_fence_that_can_order_keeps_the_wait_on_the_device() {
    let device = SimDevice::new(SimOptions::default()).unwrap();
    let queue = device.create_queue().unwrap();
    let foreign = Foreign::new();
    let fence = adopt(RawFence { order_on: Some(order_on), ..foreign.telling() }).unwrap();
    assert_eq!(queue.order_after(&fence).unwrap(), Order::Device);
    assert_eq!(*foreign.ordered.lock(), [queue.native()]);
    assert!(foreign.calls.lock().is_empty(), "no thread of the host waits");
    // A fence that cannot order the queue leaves the wait to the host.
    let plain = adopt(Foreign::new().telling()).unwrap();
    assert_eq!(queue.order_after(&plain).unwrap(), Order::Host);
}

#[test]
fn a_native_event_of_our_own_device_is_ordered_there() {
    let device = SimDevice::new(SimOptions::default()).unwrap();
    let (producer, consumer) = (device.create_queue().unwrap(), device.create_queue().unwrap());
    let (source, mut target) = (vec![1_u8; 4096], vec![0_u8; 4096]);
    // SAFETY: both live until the device was drained, at the end.
    unsafe { device.copy(producer.as_ref(), source.as_ptr(), target.as_mut_ptr(), source.len()) }.unwrap();
    let point = producer.record().unwrap();
    assert!(point.state().is_pending());
    let event = device.event_of_fence(&point).unwrap();
    let foreign = Foreign::with_native(event.pointer().as_ptr());
    let mut raw = RawFence { native: Some(native), device: device.id(), ..foreign.polled() };
    let devices: [Arc<dyn Device>; 1] = [device.clone()];
    // SAFETY: the struct is this test's.
    let fence = unsafe { import(NonNull::from(&mut raw), &devices) }.unwrap();
    assert_eq!(consumer.order_after(&fence).unwrap(), Order::Device);
    device.run_until_idle();
    assert_eq!(target, source);
}

#[test]
fn a_waiter_that_gives_up_does_not_keep_the_fence() {
    for telling in [true, false] {
        let foreign = Foreign::new();
        let raw =
            if telling { foreign.telling() } else { RawFence { unsubscribe: None, ..foreign.telling() } };
        let fence = adopt(raw).unwrap();
        assert!(fence.wait_timeout(Some(Duration::from_millis(1))).is_none());
        let waker = std::task::Waker::noop();
        let mut waiting = Box::pin(fence.settled());
        assert!(waiting.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
        assert_eq!(foreign.holders(), 2, "a thread waits");
        drop(waiting);
        drop(fence);
        assert_eq!(foreign.holders(), 1, "only its maker has it, though it never settled");
        // A late notification finds no subscriber.
        foreign.settle(OK);
        foreign.notify(OK, std::ptr::null());
    }
}

#[test]
fn our_fence_speaks_for_others() {
    let (completer, fence) = host::promise("ours");
    let raw = export(fence, None);
    // SAFETY: the struct is held until it is released below.
    unsafe {
        assert_eq!(raw.query.unwrap()(raw.context), PENDING);
        assert_eq!(raw.wait.unwrap()(raw.context, 1_000), TIMEOUT);
        assert_eq!(raw.order_on.unwrap()(raw.context, DLDevice::CPU, std::ptr::null_mut()), PENDING);
        assert!(raw.error.unwrap()(raw.context).is_null());
        assert!(raw.native.unwrap()(raw.context, DLDevice::CPU).is_null());
        unsafe extern "C" fn note(argument: *mut c_void, status: i32, message: *const c_char) {
            let text = if message.is_null() {
                c""
            } else {
                // SAFETY: a text that is there during the call.
                unsafe { std::ffi::CStr::from_ptr(message) }
            };
            // SAFETY: the argument is the list of this test, which outlives every subscription.
            let notes = unsafe { &*argument.cast::<Mutex<Vec<(i32, String)>>>() };
            notes.lock().push((status, text.to_string_lossy().into_owned()));
        }
        let notes: Mutex<Vec<(i32, String)>> = Mutex::default();
        let argument = std::ptr::from_ref(&notes).cast_mut().cast();
        let (mut first, mut second) = (0, 0);
        assert_eq!(raw.subscribe.unwrap()(raw.context, None, argument, &raw mut first), INVALID);
        assert_eq!(raw.subscribe.unwrap()(raw.context, Some(note), argument, &raw mut first), OK);
        assert_eq!(raw.subscribe.unwrap()(raw.context, Some(note), argument, &raw mut second), OK);
        assert_eq!(raw.unsubscribe.unwrap()(raw.context, first), OK);
        assert_eq!(raw.unsubscribe.unwrap()(raw.context, first), PENDING, "gone already");
        completer.fail(DeviceError::new(DeviceErrorKind::Cancelled, "called off"));
        assert_eq!(*notes.lock(), [(CANCELLED, "called off".to_string())]);
        assert_eq!(raw.unsubscribe.unwrap()(raw.context, second), PENDING, "called already");
        assert_eq!(raw.query.unwrap()(raw.context), CANCELLED);
        let text = std::ffi::CStr::from_ptr(raw.error.unwrap()(raw.context));
        assert_eq!(text, c"called off");
        // A subscription to what has settled is called at once.
        assert_eq!(raw.subscribe.unwrap()(raw.context, Some(note), argument, &raw mut first), OK);
        assert_eq!(notes.lock().len(), 2);
        raw.retain.unwrap()(raw.context);
        raw.release.unwrap()(raw.context);
        raw.release.unwrap()(raw.context);
    }
}

#[test]
fn our_own_fence_that_comes_back_is_the_same_fence() {
    let device = SimDevice::new(SimOptions::default()).unwrap();
    let queue = device.create_queue().unwrap();
    let point = queue.record().unwrap();
    let raw = export(point.clone(), Some(device));
    let back = adopt(raw).unwrap();
    assert_eq!((back.queue(), back.sequence()), (point.queue(), point.sequence()));
    // SAFETY: the one count that `export` gave.
    unsafe { raw.release.unwrap()(raw.context) };
}

/// A fence whose `query` depends on the fence.
struct Circular {
    guarded: Mutex<Option<Fence>>,
    queries: AtomicUsize,
}

unsafe extern "C" fn query_itself(context: *mut c_void) -> i32 {
    // SAFETY: the test keeps it for ever.
    let circular = unsafe { &*context.cast::<Circular>() };
    assert!(circular.queries.fetch_add(1, SeqCst) < 3, "it asks itself without end");
    let guarded = circular.guarded.lock().clone();
    match guarded.map(|fence| fence.state()) {
        None | Some(FenceState::Pending) => PENDING,
        Some(FenceState::Done) => OK,
        Some(FenceState::Failed(_)) => -1,
    }
}

#[test]
fn a_fence_whose_query_asks_for_what_it_guards_fails_with_a_clear_text_and_does_not_recurse() {
    let circular: &Circular =
        Box::leak(Box::new(Circular { guarded: Mutex::new(None), queries: AtomicUsize::new(0) }));
    let raw = RawFence {
        context: std::ptr::from_ref(circular).cast_mut().cast(),
        query: Some(query_itself),
        retain: None,
        release: None,
        ..Foreign::new().polled()
    };
    // SAFETY: a fence that lives as long as the process.
    let fence = unsafe { import(NonNull::from(&raw), &[]) }.unwrap();
    assert!(matches!(fence.state(), FenceState::Pending), "it asks for nothing yet");
    *circular.guarded.lock() = Some(fence.clone());
    let FenceState::Failed(error) = fence.state() else { panic!("it can never answer") };
    assert!(error.to_string().contains("depends on that very fence"), "{error}");
    assert_eq!(circular.queries.load(SeqCst), 2);
    // Another fence may be asked meanwhile.
    let other = Foreign::new();
    // SAFETY: as above.
    *circular.guarded.lock() = Some(unsafe { import(NonNull::from(&other.polled()), &[]) }.unwrap());
    // SAFETY: as above; this fence has said nothing yet.
    let fence = unsafe { import(NonNull::from(&raw), &[]) }.unwrap();
    circular.queries.store(0, SeqCst);
    assert!(matches!(fence.state(), FenceState::Pending));
    other.state.store(OK, SeqCst);
    assert!(matches!(fence.state(), FenceState::Done));
}

#[test]
fn a_thread_that_ends_may_still_ask() {
    struct Asks(Fence, std::sync::mpsc::Sender<FenceState>);
    impl Drop for Asks {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.state());
        }
    }
    thread_local! {
        static KEPT: std::cell::RefCell<Option<Asks>> = const { std::cell::RefCell::new(None) };
    }
    // SAFETY: a fence that keeps its contract.
    let fence = unsafe { import(NonNull::from(&mut Foreign::new().polled()), &[]) }.unwrap();
    let (send, state) = std::sync::mpsc::channel();
    let keeps = move || {
        // Values of a thread that are made later are gone first.
        KEPT.set(Some(Asks(fence.clone(), send)));
        assert!(fence.state().is_pending());
    };
    std::thread::spawn(keeps).join().unwrap();
    let state = state.recv().unwrap();
    assert!(state.is_pending(), "{state:?}");
}
