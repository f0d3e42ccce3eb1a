//! Numbers of the kernel's for what crosses to other processes.

use std::ffi::c_int;
use std::io;

/// Something of the kernel's that crosses to other processes. It is closed on drop.
#[cfg(unix)]
pub type Descriptor = std::os::fd::OwnedFd;

/// Has no value.
#[cfg(not(unix))]
#[derive(Debug)]
pub enum Descriptor {}

/// Takes over a descriptor, which programs that this process becomes do not have.
///
/// # Safety
/// `number` is an open descriptor that belongs to the caller, who gives it away.
///
/// # Errors
/// There are too many descriptors; this system has none.
#[cfg_attr(not(unix), expect(unused_variables, reason = "there is none"))]
pub unsafe fn own(number: c_int) -> io::Result<Descriptor> {
    #[cfg(unix)]
    {
        use std::os::fd::{FromRawFd, OwnedFd};
        // SAFETY: by contract.
        unsafe { OwnedFd::from_raw_fd(number) }.try_clone()
    }
    #[cfg(not(unix))]
    Err(io::ErrorKind::Unsupported.into())
}

/// Its number.
pub fn raw(descriptor: &Descriptor) -> c_int {
    #[cfg(unix)]
    {
        std::os::fd::AsRawFd::as_raw_fd(descriptor)
    }
    #[cfg(not(unix))]
    match *descriptor {}
}
