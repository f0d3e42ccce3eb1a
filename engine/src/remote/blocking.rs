//! Waits for other processes on the thread that calls, for bindings.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use estafette_sync::sleeper::Sleeper;

use crate::core::error::Error;
use crate::core::{clock, context};
use crate::engine::Engine;
use crate::exchange::callback;
use crate::wait::stand_in::StandInSet;

impl Engine {
    /// Blocks until `future` is ready, for at most `timeout`; a timeout of zero polls it once. The calling thread runs no operation
    /// meanwhile: where it is a worker another thread takes its place, and an engine without workers gets a stand-in, since the other
    /// process may wait for an operation of this engine.
    ///
    /// # Errors
    /// Those of `future`; [`Error::Timeout`]; [`Error::WouldDeadlock`] where it would block in a callback.
    #[doc(hidden)]
    pub fn block_on<T>(
        &self,
        future: impl Future<Output = Result<T, Error>>,
        timeout: Option<Duration>,
    ) -> Result<T, Error> {
        let core = self.core();
        let mut future = pin!(future);
        let sleeper = Arc::<Sleeper>::default();
        let waker = Waker::from(Arc::clone(&sleeper));
        let mut poll = || future.as_mut().poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(result) = poll() {
            return result;
        }
        if let Some(Duration::ZERO) = timeout {
            return Err(Error::Timeout(Duration::ZERO));
        }
        callback::check()?;
        core.end_caller_runs();
        let deadline = timeout.and_then(clock::deadline);
        let _cover = core.cover();
        let mut stand_ins = StandInSet::default();
        if core.has_no_workers() {
            stand_ins.want(core);
        }
        loop {
            let was_woken = context::blocking(|| sleeper.sleep(deadline));
            match (poll(), timeout) {
                (Poll::Ready(result), _) => return result,
                (Poll::Pending, Some(timeout)) if !was_woken => return Err(Error::Timeout(timeout)),
                (Poll::Pending, _) => {}
            }
        }
    }
}
