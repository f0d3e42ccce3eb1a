//! What the driver's numbers mean, as far as it matters here.

use std::ffi::CStr;
use std::ptr;

use crate::{DeviceError, DeviceErrorKind};

use super::api::{Api, Code};

pub(super) const NOT_READY: Code = 600;
pub(super) const INVALID_VALUE: Code = 1;
pub(super) const OUT_OF_MEMORY: Code = 2;
pub(super) const NOT_SUPPORTED: Code = 801;
pub(super) const CAPTURE_UNSUPPORTED: Code = 900;
pub(super) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;

/// Whether a number means that nothing of its context works any more: after each of these cuda.h says that the process has to
/// end, or that the context is gone.
fn is_sticky(code: Code) -> bool {
    matches!(
        code,
        // The driver is shutting down; memory, link and contained errors.
        4 | 214 | 220 | 226
        // Illegal address, timeout, context destroyed, assert.
        | 700 | 702 | 709 | 710
        // Stack, instruction, alignment, address space, program counter, launch, tensor memory.
        | 714
            ..=719 | 721
        // An external device; unknown.
        | 911 | 999
    )
}

/// The error for `what` not having worked.
pub(super) fn error(api: &Api, code: Code, what: &str) -> DeviceError {
    let kind = match code {
        _ if is_sticky(code) => DeviceErrorKind::Fault,
        OUT_OF_MEMORY => DeviceErrorKind::OutOfMemory,
        // An invalid value, context or handle; something that a capture does not allow.
        INVALID_VALUE | 201 | 400 | 900..=908 => DeviceErrorKind::Invalid,
        _ => DeviceErrorKind::Other,
    };
    DeviceError::new(kind, format!("{what}: {}", name_of(api, code))).with_code(code.into())
}

/// The driver's own name of a number.
pub(super) fn name_of(api: &Api, code: Code) -> String {
    let mut name = ptr::null();
    // SAFETY: the name is a constant of the driver.
    let known = api.error_name.is_some_and(|ask| unsafe { ask(code, &raw mut name) } == 0);
    if !known || name.is_null() {
        return "an error without a name".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
