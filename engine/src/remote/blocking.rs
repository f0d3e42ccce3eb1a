//! Waits for other processes on the thread that calls, for bindings.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use estafette_sync::sleeper::Sleeper;
use estafette_sync::thread_local;
use estafette_sync::time::{Duration, Instant};

use crate::core::error::Error;
use crate::core::{clock, context};
use crate::engine::Engine;
use crate::exchange::callback;
use crate::trace::hooks::WaitNoted;
use crate::wait::stand_in::StandInSet;

/// Time between two polls for duties of the waiting thread alone: it runs signal handlers of the language,
/// and in a body it finds engines whose threads are all blocked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    /// True while the thread polls a future that it blocks for.
    static POLLS: Cell<bool> = const { Cell::new(false) };
}

/// Waits for `future`, which another process settles, or for the end of the engine; in operations, which go
/// on while the engine ends, for `future` alone. The second part of the result is the wait in a trace, if
/// there was one; it is over when that is dropped.
///
/// # Errors
/// [`Error::Shutdown`].
pub(super) async fn noted<T>(
    engine: &Engine,
    what: &'static str,
    future: impl Future<Output = T>,
) -> (Result<T, Error>, Option<WaitNoted>) {
    let core = engine.core();
    let mut future = pin!(future);
    let mut listening = core.link_waiters.listen();
    let mut noted = None;
    let output = poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() && noted.is_none() {
            noted = WaitNoted::for_process(what, POLLS.get());
        }
        if let Some(noted) = &mut noted {
            noted.set_blocking(POLLS.get());
        }
        if polled.is_ready() {
            return polled.map(Ok);
        }
        // In a forked child the lock of the waiters may be held for ever.
        if let Err(error) = core.generation.check() {
            return Poll::Ready(Err(error.into()));
        }
        listening.register_waker(cx.waker());
        core.check_usable().map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
    });
    (output.await, noted)
}

/// Blocks until `future` is ready, for at most `timeout`; a timeout of zero polls it once. The calling thread
/// runs no operation meanwhile: where it is a worker another thread takes its place, and an engine without
/// workers, or whose threads are all blocked in bodies, gets a stand-in, since the other process may wait for
/// an operation of this engine.
///
/// # Errors
/// Errors of `future`; [`Error::Timeout`]; [`Error::Interrupted`]; [`Error::WouldDeadlock`] where it would
/// block in a callback.
pub fn block_on<T>(
    engine: &Engine,
    future: impl Future<Output = Result<T, Error>>,
    timeout: Option<Duration>,
) -> Result<T, Error> {
    let core = engine.core();
    let mut future = pin!(future);
    let sleeper = Arc::<Sleeper>::default();
    let waker = Waker::from(Arc::clone(&sleeper));
    let mut poll = || {
        let _polls = (context::replace(&POLLS, true), context::polls_of_wait());
        future.as_mut().poll(&mut Context::from_waker(&waker))
    };
    if let Poll::Ready(result) = poll() {
        return result;
    }
    if let Some(Duration::ZERO) = timeout {
        return Err(Error::Timeout(Duration::ZERO));
    }
    callback::check()?;
    let deadline = timeout.and_then(clock::deadline);
    let _cover = core.cover();
    let mut stand_ins = StandInSet::for_waiter(core);
    let is_inside = context::current().is_some();
    loop {
        let polls = is_inside || core.may_be_interrupted();
        let wake = polls.then(|| Instant::now() + POLL_INTERVAL).into_iter().chain(deadline).min();
        context::blocking(|| sleeper.sleep(wake));
        if let Poll::Ready(result) = poll() {
            return result;
        }
        core.check_interrupt(&|_| None)?;
        if let (Some(deadline), Some(timeout)) = (deadline, timeout)
            && Instant::now() >= deadline
        {
            return Err(Error::Timeout(timeout));
        }
        if is_inside {
            core.is_moved_by(&mut stand_ins);
        }
    }
}
