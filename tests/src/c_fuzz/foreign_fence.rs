//! Fences of a foreign scheduler, which misbehaves as far as the program says.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use estafette::devices::DLDevice;
use estafette::exchange::foreign_fence::{FENCE_VERSION, FenceCallback};
use estafette_c::DLFence;

use super::bytes::Bytes;
use super::shared::Shared;

/// One fence. It lives until its count is zero.
pub struct ForeignFence {
    state: AtomicI32,
    /// The reference count; the program holds one.
    holders: AtomicI64,
    subscriptions: Mutex<Vec<SettleCallback>>,
    manner: Manner,
    queries: AtomicI64,
    shared: Arc<Shared>,
}

/// Ways in which the fence breaks its contract.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Honest,
    /// After it has settled, every second query returns "not yet", or a value that is not a status.
    Flips,
    /// It calls back from inside of `subscribe` once it has settled, says that it will call, and calls once
    /// more.
    CallsInside,
    /// It calls back while it has not settled, and says so from then on.
    CallsEarly,
    /// It says that it will call, and never does. Only its query says that it has settled.
    Silent,
}

struct SettleCallback {
    callback: unsafe extern "C" fn(*mut c_void, i32, *const c_char),
    argument: *mut c_void,
}

// SAFETY: the library takes these calls from any thread.
unsafe impl Send for SettleCallback {}

fn of<'a>(context: *mut c_void) -> &'a ForeignFence {
    // SAFETY: the library holds the fence that it asks.
    unsafe { &*context.cast::<ForeignFence>() }
}

impl ForeignFence {
    /// A pending fence, and its struct. The program holds one count.
    pub fn new(shared: &Arc<Shared>, bytes: &mut Bytes<'_>) -> (*const ForeignFence, DLFence) {
        let fence = Box::into_raw(Box::new(ForeignFence {
            state: AtomicI32::new(1),
            holders: AtomicI64::new(1),
            subscriptions: Mutex::new(Vec::new()),
            manner: [
                Manner::Honest,
                Manner::Honest,
                Manner::Honest,
                Manner::Silent,
                Manner::Honest,
                Manner::Flips,
                Manner::CallsInside,
                Manner::CallsEarly,
            ][bytes.below(8)],
            queries: AtomicI64::new(0),
            shared: shared.clone(),
        }));
        shared.fence_holders.fetch_add(1, SeqCst);
        let subscribes = bytes.below(2) == 1;
        let speaks = bytes.below(2) == 1;
        let raw = DLFence {
            version: FENCE_VERSION,
            size: size_of::<DLFence>() as u32,
            context: fence.cast(),
            device: DLDevice::CPU,
            flags: 0,
            query: Some(query),
            wait: None,
            order_on: None,
            subscribe: subscribes.then_some(subscribe),
            unsubscribe: (subscribes && speaks).then_some(unsubscribe),
            error: speaks.then_some(error),
            native: None,
            retain: Some(retain),
            release: Some(release),
            reserved: [None; 3],
        };
        (fence, raw)
    }

    /// Settles the fence; calls subscribers, twice if the fence misbehaves.
    pub fn settle(&self, status: i32, twice: bool) {
        if status < 0 {
            Shared::count(&self.shared.failures);
        }
        let _ = self.state.compare_exchange(1, status, SeqCst, SeqCst);
        let said = self.state.load(SeqCst);
        if self.manner == Manner::Silent {
            return;
        }
        // Under its own lock, as a fence should not.
        let calls = self.subscriptions.lock().expect("no panic under this lock");
        for call in calls.iter() {
            for _ in 0..if twice { 2 } else { 1 } {
                // SAFETY: the library takes a call from any thread, and more than one.
                unsafe { (call.callback)(call.argument, said, std::ptr::null()) };
            }
        }
    }

    /// Releases the program's count.
    pub fn release(fence: *const ForeignFence) {
        // SAFETY: the program holds one.
        unsafe { release(fence.cast_mut().cast()) };
    }
}

unsafe extern "C" fn query(context: *mut c_void) -> i32 {
    let fence = of(context);
    let (state, queries) = (fence.state.load(SeqCst), fence.queries.fetch_add(1, SeqCst));
    if fence.manner == Manner::Flips && state != 1 && queries % 2 == 1 {
        [1, 77][queries as usize / 2 % 2]
    } else {
        state
    }
}

unsafe extern "C" fn subscribe(
    context: *mut c_void,
    callback: FenceCallback,
    argument: *mut c_void,
    token: *mut u64,
) -> i32 {
    let fence = of(context);
    let Some(callback) = callback else { return -1 };
    if fence.manner == Manner::CallsEarly {
        let _ = fence.state.compare_exchange(1, 0, SeqCst, SeqCst);
    }
    let mut calls = fence.subscriptions.lock().expect("no panic under this lock");
    let state = fence.state.load(SeqCst);
    if state != 1 {
        if !matches!(fence.manner, Manner::CallsInside | Manner::CallsEarly) {
            return 1;
        }
        // SAFETY: the library takes a call from any thread, during `subscribe` too.
        unsafe { callback(argument, state, std::ptr::null()) };
    }
    calls.push(SettleCallback { callback, argument });
    // SAFETY: a place for the token, says the contract.
    unsafe { token.write(calls.len() as u64) };
    0
}

/// Forgets nothing: a fence may call all the same.
unsafe extern "C" fn unsubscribe(_context: *mut c_void, _token: u64) -> i32 {
    1
}

unsafe extern "C" fn error(_context: *mut c_void) -> *const c_char {
    c"the foreign scheduler says no".as_ptr()
}

unsafe extern "C" fn retain(context: *mut c_void) {
    let fence = of(context);
    fence.shared.fence_holders.fetch_add(1, SeqCst);
    assert!(fence.holders.fetch_add(1, SeqCst) > 0, "a fence was retained that had no holder");
}

unsafe extern "C" fn release(context: *mut c_void) {
    let fence = of(context);
    let shared = fence.shared.clone();
    if fence.holders.fetch_sub(1, SeqCst) == 1 {
        // SAFETY: made by `new`; this was the last holder.
        drop(unsafe { Box::from_raw(context.cast::<ForeignFence>()) });
    }
    shared.fence_holders.fetch_sub(1, SeqCst);
}
