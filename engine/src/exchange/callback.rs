//! Threads that run a callback right now: code of others that is called when something settles.
//!
//! A wait may need the very thread that a callback is on: the reactor's, or the one that ends an operation.
//! So a call that would block in a callback is refused with [`Error::WouldDeadlock`] instead. Deleters are no
//! callbacks: the reaper's thread serves them alone, and no wait but its own `flush` needs it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;

use estafette_sync::thread_local;
use estafette_sync::valgrind;

use crate::core::context::{self, Current};
use crate::core::error::Error;

thread_local! {
    /// The operation that was current when the callback began.
    static RUNNING: Cell<Option<Option<Current>>> = const { Cell::new(None) };
    /// Calls that [`in_turn`] has put off on this thread.
    static PUT_OFF: Cell<Option<PutOff>> = const { Cell::new(None) };
}

/// Without a destructor, so that a thread that is ending has its cell, and a forked child leaks what its
/// parent's thread has put off.
type PutOff = ManuallyDrop<VecDeque<Box<dyn FnOnce()>>>;

/// Runs `f`, which is a callback.
pub fn run<R>(f: impl FnOnce() -> R) -> R {
    let _back = context::replace(&RUNNING, Some(context::current_with_core()));
    valgrind::foreign(f)
}

/// Calls `f`, which [`run`]s a callback and does not unwind: at once, or in a callback when that one has
/// returned. So callbacks that each ask for the next one need no deeper stack each time.
pub(crate) fn in_turn(f: impl FnOnce() + 'static) {
    if is_running()
        && let Some(mut put_off) = PUT_OFF.take()
    {
        put_off.push_back(Box::new(f));
        return PUT_OFF.set(Some(put_off));
    }
    // A body that a callback runs may wait for its own callbacks, so it does not put them off behind that
    // one.
    let outer = PUT_OFF.replace(Some(PutOff::default()));
    f();
    while let Some(mut put_off) = PUT_OFF.take() {
        let Some(f) = put_off.pop_front() else {
            drop(ManuallyDrop::into_inner(put_off));
            break;
        };
        PUT_OFF.set(Some(put_off));
        f();
    }
    PUT_OFF.set(outer);
}

/// For a forked child, whose thread goes on after the callback of its parent.
pub(crate) fn forget() {
    RUNNING.set(None);
    PUT_OFF.set(None);
}

/// True if the calling code is a callback. The body of an operation is none, even where a callback runs it.
pub(crate) fn is_running() -> bool {
    RUNNING.get().is_some_and(|current| current == context::current_with_core())
}

/// Refuses what is about to block in a callback.
///
/// # Errors
/// [`Error::WouldDeadlock`] in a callback.
pub fn check() -> Result<(), Error> {
    if is_running() {
        return Err(Error::WouldDeadlock(
            "a callback must not wait; what it would wait for may need its thread".into(),
        ));
    }
    Ok(())
}
