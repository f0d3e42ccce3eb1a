use std::fmt::Display;
use std::future::Future;

use crate::fence::source::Outcome;
use crate::{DeviceError, DeviceErrorKind, Fence};

use super::promise;

/// Makes a fence of a Rust future: the fence is done when the future is.
///
/// The returned future drives `future`; spawn it on any executor. Dropping it, or a panic of `future`, fails
/// the fence with kind [`DeviceErrorKind::Cancelled`]. A future that returns `Err` fails the fence with that
/// message.
///
/// ```
/// use estafette_devices::host;
///
/// let (fence, driver) = host::fence_of(async { Err::<(), _>("no such file") });
/// futures::executor::block_on(driver);
/// assert_eq!(fence.wait_timeout(None).unwrap().unwrap_err().message(), "no such file");
/// ```
pub fn fence_of<F>(future: F) -> (Fence, impl Future<Output = ()>)
where
    F: Future<Output: IntoOutcome>,
{
    let (completer, fence) = promise("a future");
    (fence, async move { completer.settle(future.await.into_outcome()) })
}

/// What the future of [`fence_of`] may return: nothing, or a result.
pub trait IntoOutcome {
    /// How the fence settles.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Ok(())
    }
}

impl<E: Display> IntoOutcome for Result<(), E> {
    fn into_outcome(self) -> Outcome {
        self.map_err(|error| DeviceError::new(DeviceErrorKind::Other, error.to_string()))
    }
}
