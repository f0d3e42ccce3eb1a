//! Fences of another scheduler: each subscription is answered once, whenever the fence settles, calls, or is
//! given up.

use std::ffi::{c_char, c_void};
use std::future::Future;
use std::pin::pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use estafette::ImportOptions;
use estafette::bindings::exchange::{import, query_overdue_after};
use estafette::devices::{DLDevice, Fence, FenceSet, Outcome, Reactor, Subscriber};
use estafette::exchange::flush_deleters;
use estafette::exchange::foreign_fence::{FENCE_VERSION, FenceCallback, OK, PENDING, RawFence};
use estafette_sync::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::thread;
use tests::simulation::{explore, explore_in_time};

use crate::{SCHEDULES, engine};

/// The fence of the other scheduler. Its memory stays with the test, so that a use after the last release is
/// seen.
#[derive(Default)]
struct Foreign {
    /// Not pending.
    is_settled: AtomicBool,
    holders: Mutex<usize>,
    released: Condvar,
    /// Subscribers are called under this lock, as a careless scheduler does.
    calls: Mutex<Calls>,
    /// Calls that were taken back.
    unsubscribed: AtomicUsize,
}

#[derive(Default)]
struct Calls {
    last: u64,
    waiting: Vec<(u64, unsafe extern "C" fn(*mut c_void, i32, *const c_char), usize)>,
}

/// # Safety
/// `context` is that of a fence of [`Foreign::fence`] whose test has not ended.
unsafe fn of<'a>(context: *mut c_void) -> &'a Foreign {
    // SAFETY: as above.
    let foreign = unsafe { &*context.cast::<Foreign>() };
    assert_ne!(*foreign.holders.lock(), 0, "used after its release");
    foreign
}

unsafe extern "C" fn query(context: *mut c_void) -> i32 {
    // SAFETY: called with its context.
    let is_settled = unsafe { of(context) }.is_settled.load(Ordering::SeqCst);
    if is_settled { OK } else { PENDING }
}

unsafe extern "C" fn subscribe(
    context: *mut c_void,
    callback: FenceCallback,
    argument: *mut c_void,
    token: *mut u64,
) -> i32 {
    // SAFETY: called with its context.
    let foreign = unsafe { of(context) };
    let mut calls = foreign.calls.lock();
    if foreign.is_settled.load(Ordering::SeqCst) {
        return PENDING;
    }
    calls.last += 1;
    let number = calls.last;
    calls.waiting.push((number, callback.unwrap(), argument.addr()));
    // SAFETY: a place for it, says the contract.
    unsafe { token.write(number) };
    OK
}

unsafe extern "C" fn unsubscribe(context: *mut c_void, token: u64) -> i32 {
    // SAFETY: called with its context.
    let foreign = unsafe { of(context) };
    let mut calls = foreign.calls.lock();
    let before = calls.waiting.len();
    calls.waiting.retain(|(number, ..)| *number != token);
    if calls.waiting.len() == before {
        return PENDING;
    }
    foreign.unsubscribed.fetch_add(1, Ordering::SeqCst);
    OK
}

unsafe extern "C" fn retain(context: *mut c_void) {
    // SAFETY: called with its context.
    *unsafe { of(context) }.holders.lock() += 1;
}

unsafe extern "C" fn release(context: *mut c_void) {
    // SAFETY: called with its context.
    let foreign = unsafe { of(context) };
    *foreign.holders.lock() -= 1;
    foreign.released.notify_all();
}

impl Foreign {
    /// The fence, adopted by the engine; the other scheduler releases its own reference at once.
    fn fence(self: &Arc<Self>) -> Fence {
        let context = Arc::as_ptr(self).cast_mut().cast();
        let mut raw = RawFence {
            version: FENCE_VERSION,
            size: size_of::<RawFence>() as u32,
            context,
            device: DLDevice::CPU,
            flags: 0,
            query: Some(query),
            wait: None,
            order_on: None,
            subscribe: Some(subscribe),
            unsubscribe: Some(unsubscribe),
            error: None,
            native: None,
            retain: Some(retain),
            release: Some(release),
            reserved: [None; 3],
        };
        *self.holders.lock() = 1;
        // SAFETY: a true description; each test waits for the last release.
        let fence = unsafe { import(NonNull::from(&mut raw), &[]) }.unwrap();
        // SAFETY: the first share.
        unsafe { release(context) };
        fence
    }

    /// Settles, and calls under the lock what has subscribed. `again` calls the first subscription twice.
    fn settle_and_call(&self, again: bool) {
        let mut calls = self.calls.lock();
        self.is_settled.store(true, Ordering::SeqCst);
        let waiting = std::mem::take(&mut calls.waiting);
        for (_, callback, argument) in waiting.iter().chain(waiting.first().filter(|_| again)) {
            // SAFETY: subscribed with this argument.
            unsafe { callback(*argument as *mut c_void, OK, std::ptr::null()) };
        }
    }

    /// Settles without calling the subscribers.
    fn settle_silently(&self) {
        self.is_settled.store(true, Ordering::SeqCst);
    }

    /// Waits until the last share was released. A share that is kept is a deadlock.
    fn wait_released(&self) {
        let mut holders = self.holders.lock();
        while *holders > 0 {
            holders = self.released.wait(holders);
        }
        drop(holders);
        // An execution must not end within a function of C.
        assert!(flush_deleters(Duration::from_secs(10)));
    }
}

/// A subscriber that is answered once.
#[derive(Default)]
struct Once {
    answers: Mutex<usize>,
    answered: Condvar,
}

impl Once {
    /// Waits for the answer.
    fn wait(&self) {
        let mut answers = self.answers.lock();
        while *answers == 0 {
            answers = self.answered.wait(answers);
        }
    }

    fn answers(&self) -> usize {
        *self.answers.lock()
    }
}

impl Subscriber for Once {
    fn settled(self: Arc<Self>, outcome: Outcome) {
        assert!(outcome.is_ok());
        let mut answers = self.answers.lock();
        *answers += 1;
        assert_eq!(*answers, 1, "answered twice");
        self.answered.notify_all();
    }
}

fn watch(fence: &Fence) -> Arc<Once> {
    let once = Arc::<Once>::default();
    Reactor::global().watch(fence, once.clone());
    once
}

/// ```text
/// other scheduler:  settle ─── call, twice
/// two watchers:         subscribe ─── release
/// ```
#[test]
fn each_watcher_of_a_fence_that_settles_meanwhile_is_answered_once() {
    explore(SCHEDULES, || {
        let foreign = Arc::<Foreign>::default();
        let fence = foreign.fence();
        let watchers = thread::scope(|scope| {
            let (first, second) = (fence.clone(), fence);
            scope.spawn(|| foreign.settle_and_call(true));
            let other = scope.spawn(move || watch(&second));
            [watch(&first), other.join().unwrap()]
        });
        watchers.iter().for_each(|watcher| watcher.wait());
        foreign.wait_released();
        watchers.iter().for_each(|watcher| assert_eq!(watcher.answers(), 1));
    });
}

/// ```text
/// other scheduler:  settle ─── call
/// program:          poll a wait ─── drop it      takes back what was not called; another watcher stays
/// ```
#[test]
fn a_wait_that_is_dropped_takes_its_own_subscription_back_and_no_other() {
    explore(SCHEDULES, || {
        let foreign = Arc::<Foreign>::default();
        let fence = foreign.fence();
        let stays = watch(&fence);
        thread::scope(|scope| {
            scope.spawn(|| foreign.settle_and_call(false));
            scope.spawn(move || {
                let _pending = pin!(fence.settled()).poll(&mut Context::from_waker(Waker::noop()));
            });
        });
        stays.wait();
        foreign.wait_released();
        assert_eq!(stays.answers(), 1);
        assert!(foreign.unsubscribed.load(Ordering::SeqCst) <= 1);
        assert!(foreign.calls.lock().waiting.is_empty());
    });
}

/// ```text
/// other scheduler:  settle ─── call, late
/// overdue thread:          query            one of them answers
/// reaper:                       deleter     after the fence, once
/// ```
#[test]
fn a_late_call_that_meets_the_query_of_its_overdue_fence_answers_once() {
    const PAUSE: Duration = Duration::from_millis(1);
    explore_in_time(SCHEDULES, || {
        query_overdue_after(PAUSE);
        let engine = engine(1);
        let foreign = Arc::<Foreign>::default();
        let fence = foreign.fence();
        let deleted = tests::foreign::Deleted::default();
        let ready: FenceSet = [fence.clone()].into_iter().collect();
        // SAFETY: a true description; nothing uses the memory.
        let tensor = unsafe {
            engine.import_with(
                tests::foreign::tensor(&[1.0], &deleted),
                ImportOptions { ready, ..ImportOptions::default() },
            )
        };
        drop(tensor.unwrap());
        let watcher = watch(&fence);
        drop(fence);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(PAUSE);
                assert_eq!(deleted.count(), 0, "released before the fence has settled");
                foreign.settle_silently();
                thread::sleep(PAUSE);
                foreign.settle_and_call(false);
            });
            watcher.wait();
        });
        foreign.wait_released();
        assert_eq!(watcher.answers(), 1);
        assert_eq!(deleted.count(), 1);
    });
}
