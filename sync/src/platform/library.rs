//! Shared libraries: their names, and how they are loaded.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};

pub use super::system::library::{loaded, symbol, versioned};

/// The name of a library's file without a version.
pub fn file_name(stem: &str) -> String {
    format!("{DLL_PREFIX}{stem}{DLL_SUFFIX}")
}

/// Loads a library, for itself and with all its symbols at once: one that is missing is an error here, and
/// not the end of the process at its first call.
///
/// # Errors
/// Errors of the loader.
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

/// Declares the struct `Api`, the functions of a shared library by their symbols, and how it is filled, so
/// that neither can be forgotten.
#[cfg(feature = "library")]
#[macro_export]
macro_rules! library_functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, found once when the library is loaded.
        #[derive(Debug)]
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the functions where they are.
            _library: libloading::Library,
        }

        impl Api {
            /// Takes every function from `library`.
            ///
            /// # Errors
            /// The name of the first one that it lacks.
            pub(super) fn of(library: libloading::Library) -> Result<Self, &'static str> {
                $(
                    // SAFETY: the type is that of the declaration in the library's headers.
                    let $field = unsafe {
                        *library
                            .get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>($symbol)
                            .map_err(|_| $symbol)?
                    };
                )*
                Ok(Self { $($field,)* _library: library })
            }

            /// For tests, which put their own functions in the place of those that are called: all are
            /// `absent`.
            #[cfg(all(test, unix))]
            #[allow(dead_code, reason = "not every library has a double")]
            pub(super) fn double(absent: unsafe extern "C" fn()) -> Self {
                // SAFETY: a function is as wide as any other. This one returns to no caller.
                let ($($field,)*) = unsafe { ($(
                    std::mem::transmute::<unsafe extern "C" fn(), unsafe extern "C" fn($($argument),*) $(-> $result)?>(absent),
                )*) };
                Self { $($field,)* _library: libloading::os::unix::Library::this().into() }
            }
        }
    };
}
