//! Shared libraries: their names, and how they are loaded.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};

pub use super::system::library::{loaded, symbol, versioned};

/// The name of a library's file without a version.
pub fn file_name(stem: &str) -> String {
    format!("{DLL_PREFIX}{stem}{DLL_SUFFIX}")
}

/// Loads a library, for itself and with all its symbols at once: one that is missing is an error here, and not the end of the process
/// at its first call.
///
/// # Errors
/// Those of the loader.
///
/// # Safety
/// Loading a library runs its code.
#[cfg(feature = "library")]
pub unsafe fn open(file: &std::path::Path) -> Result<libloading::Library, libloading::Error> {
    #[cfg(unix)]
    {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: by contract of this function.
        unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) }.map(Into::into)
    }
    #[cfg(not(unix))]
    // SAFETY: by contract of this function.
    unsafe {
        libloading::Library::new(file)
    }
}
