//! The version of this library.

use std::ffi::c_char;

/// The version of this interface; a new major version breaks programs, a new minor version adds to it.
pub const ESTAFETTE_VERSION_MAJOR: u32 = 0;
/// See `ESTAFETTE_VERSION_MAJOR`.
pub const ESTAFETTE_VERSION_MINOR: u32 = 1;
/// No limit of time.
pub const ESTAFETTE_FOREVER: u64 = u64::MAX;

/// The version of the library that is loaded, as numbers. Each pointer may be NULL.
///
/// May be called by any thread, and in a forked child.
///
/// # Safety
/// Each pointer is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_version(major: *mut u32, minor: *mut u32) {
    // SAFETY: NULL or writable, by contract.
    unsafe {
        if let Some(major) = major.as_mut() {
            *major = ESTAFETTE_VERSION_MAJOR;
        }
        if let Some(minor) = minor.as_mut() {
            *minor = ESTAFETTE_VERSION_MINOR;
        }
    }
}

/// The version of the library that is loaded, as text, with all its parts: "0.1.0". It lives as long as the
/// process.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_version_text() -> *const c_char {
    const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    TEXT.as_ptr().cast()
}

/// Frees a text that a function of this library has made for the caller. NULL is legal.
///
/// # Safety
/// NULL, or a text that `estafette_diagnose` or another function that says so has given, not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: made by `CString::into_raw`, says the contract.
        drop(unsafe { std::ffi::CString::from_raw(text) });
    }
}
