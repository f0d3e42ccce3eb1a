//! The handle that a kernel passes from one process to another.

/// A descriptor. It is closed on drop, and in programs that this process becomes.
#[cfg(unix)]
pub type Descriptor = std::os::fd::OwnedFd;

/// Has no value.
#[cfg(not(unix))]
#[derive(Debug)]
pub enum Descriptor {}

/// Adopts a descriptor that a library has made and given away.
///
/// # Errors
/// The process has no room for another one for a moment.
///
/// # Safety
/// It is open, and the caller's alone.
#[cfg(unix)]
pub unsafe fn own(number: i32) -> std::io::Result<Descriptor> {
    // SAFETY: by contract. The copy is closed in programs that this process becomes, which that of a library
    // need not be.
    unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number) }.try_clone()
}

/// As on Unix.
///
/// # Errors
/// There are no descriptors.
///
/// # Safety
/// Any number will do.
#[cfg(not(unix))]
pub unsafe fn own(_number: i32) -> std::io::Result<Descriptor> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Its number.
pub fn number(descriptor: &Descriptor) -> i32 {
    #[cfg(unix)]
    return std::os::fd::AsRawFd::as_raw_fd(descriptor);
    #[cfg(not(unix))]
    match *descriptor {}
}
