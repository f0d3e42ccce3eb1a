//! The driver's functions, under its names and with its signatures. The driver's manual says what each does.

/// Exports functions of the driver. Each body gets the locked state, and returns a code unless it succeeded.
macro_rules! driver {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$session:ident| $body:block)*) => { $(
        #[unsafe(no_mangle)]
        #[allow(missing_docs, non_snake_case, unused_unsafe)]
        #[allow(clippy::missing_safety_doc, clippy::too_many_arguments, clippy::undocumented_unsafe_blocks)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
            // SAFETY: a caller of the driver passes what its manual asks for; pointers to results are checked
            // for null only, as the driver does.
            crate::state::call(stringify!($name), |$session| -> Result<(), crate::codes::Code> { unsafe { $body } })
        }
    )*
        /// The functions above, by their names.
        pub(super) fn exported() -> Vec<(&'static str, *const std::ffi::c_void)> {
            vec![$((stringify!($name), $name as *const std::ffi::c_void)),*]
        }
    };
}

mod context;
mod device;
mod entry_point;
mod event;
mod graph;
mod library;
mod memory;
mod module;
mod stream;
mod transfer;
pub(crate) mod virtual_memory;

use crate::codes::{Code, INVALID_VALUE};

/// Writes a result to where the caller wants it.
///
/// # Safety
///
/// `out` is null or may be written.
unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and promised by the caller.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a result that the caller may not want.
///
/// # Safety
///
/// `out` is null or may be written.
unsafe fn put_if_wanted<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: not null, and promised by the caller.
        unsafe { out.write(value) };
    }
}
