//! The preloaded library's functions for the program; nothing without it.

use std::ffi::CStr;

fn symbol(name: &CStr) -> *mut libc::c_void {
    // SAFETY: looks among what is loaded; the name ends with a zero byte.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Counts calls from here on, or stops counting.
pub fn arm(on: bool) {
    let arm = symbol(c"failing_system_arm");
    if !arm.is_null() {
        // SAFETY: the preloaded library's function of this name has this type.
        unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn(libc::c_int)>(arm)(on.into()) }
    }
}

/// Number of calls that have failed.
pub fn struck() -> i64 {
    let struck = symbol(c"failing_system_struck");
    if struck.is_null() {
        return 0;
    }
    // SAFETY: as above.
    unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> libc::c_long>(struck)() }
}
