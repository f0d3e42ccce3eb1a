use std::fmt::Display;
use std::future::Future;

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
pub fn fence_of<E: Display>(
    future: impl Future<Output = Result<(), E>>,
) -> (Fence, impl Future<Output = ()>) {
    let (completer, fence) = promise("a future");
    let failed = |error: E| DeviceError::new(DeviceErrorKind::Other, error.to_string());
    (fence, async move { completer.settle(future.await.map_err(failed)) })
}
