//! Waits for a tensor.

use std::time::Duration;

use crate::core::error::Error;
use crate::exchange::Element;
use crate::lease::{Access, Lease};
use crate::tensor::handle::Tensor;
use crate::tensor::views::View;
use crate::wait::blocking;
use crate::wait::ready::{Ready, Writable};

/// `(&tensor).await` is [`ready`](Tensor::ready)`().await`.
///
/// ```
/// # let engine = estafette::Engine::new()?;
/// let x = engine.from_vec(vec![1_i64, 2], &[2])?;
/// futures::executor::block_on(async { (&x).await })?;
/// # Ok::<(), estafette::Error>(())
/// ```
impl IntoFuture for &Tensor {
    type Output = Result<(), Error>;
    type IntoFuture = Ready;

    fn into_future(self) -> Ready {
        self.ready()
    }
}

/// The owner of the lease under which data is copied.
const READER: &str = "a host reader";

/// The data under `lease`, which is kept meanwhile.
fn copied<T: Element>(lease: &Lease) -> Result<Vec<T>, Error> {
    View::new(lease.tensor().inner.definition()?).to_vec()
}

impl Tensor {
    /// Waits, asynchronously, until the version current at this call is finished. Every waiter of a failed
    /// version gets its root cause. The future needs no particular runtime. Dropping the future cancels the
    /// waiting, not the work. Polling the future runs no operation.
    ///
    /// The future fails with [`Error::LeaseHeld`] once leases alone have held it up for the engine's [lease
    /// timeout](crate::engine::EngineBuilder::lease_timeout), or up to an eighth longer.
    #[inline]
    pub fn ready(&self) -> Ready {
        Ready::new(self)
    }

    /// Waits, asynchronously, until the memory may be overwritten: no unfinished write, no reader, no lease.
    /// Fails with [`Error::LeaseHeld`] as [`ready`](Self::ready) does.
    pub fn writable(&self) -> Writable {
        Writable::new(self)
    }

    /// Blocks until the version current at this call is finished. The wait may run operations that it needs
    /// on this thread, unless helping is [forbidden](crate::wait::without_helping).
    ///
    /// # Errors
    /// The root cause of a failed version. [`Error::LeaseHeld`] when only leases hold up the wait: at once if
    /// this very thread has taken one of them, since a waiting thread cannot return its lease.
    /// [`Error::WouldDeadlock`] when the wait leads back to the waiting operation, or when every thread that
    /// could run what the wait needs is blocked in a wait.
    pub fn wait(&self) -> Result<(), Error> {
        blocking::block_on_tensor(self, None)
    }

    /// As [`wait`](Self::wait), for at most `timeout`; then [`Error::Timeout`]. The wait runs no operation on
    /// this thread, so that the timeout is kept whatever is ready; an engine without workers starts a thread
    /// for the time of the wait. A timeout of zero only inspects the state. The wait first looks for reasons
    /// why it can never end after 10 ms, so shorter waits end by their timeout alone.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), Error> {
        blocking::block_on_tensor(self, Some(timeout))
    }

    /// A copy of the data as a vector, in row-major order, once the data is ready. Blocks, as
    /// [`wait`](Self::wait) does; asynchronous code takes [`to_vec_async`](Self::to_vec_async).
    ///
    /// # Errors
    /// As [`wait`](Self::wait); [`Error::Invalid`] when `T` is not the element type or the memory is not on
    /// the host.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        copied(&self.lease_within(Access::Read, READER).wait(None)?)
    }

    /// As [`to_vec`](Self::to_vec), waiting without a thread. The data is that of the version that is current
    /// when the future is polled first.
    ///
    /// # Errors
    /// As `to_vec`; [`Error::LeaseHeld`] as [`ready`](Self::ready).
    pub async fn to_vec_async<T: Element>(&self) -> Result<Vec<T>, Error> {
        copied(&self.lease_within(Access::Read, READER).await?)
    }
}
