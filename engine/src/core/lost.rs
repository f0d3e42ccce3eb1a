//! Fences for device work that left none.

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, host};

/// A fence for work whose end cannot be known. Memory behind such a fence is never released.
pub fn lost(error: DeviceError) -> Fence {
    let (completer, fence) = host::promise("device work that could not be marked");
    let message = format!("the end of device work cannot be known: {error}");
    completer.fail(DeviceError::new(DeviceErrorKind::Fault, message));
    fence
}
