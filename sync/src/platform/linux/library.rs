//! The loader of the C library.

use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;

/// The name of a library with its version.
pub fn versioned(stem: &str, version: u32) -> Option<String> {
    Some(format!("lib{stem}.so.{version}"))
}

/// The symbol `name` among what the process has loaded; NULL if there is none.
pub fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: looks among what is loaded; the name ends with a zero byte.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// The files in this process whose name begins with `prefix`.
pub fn loaded(prefix: &str) -> Vec<PathBuf> {
    struct Search<'a> {
        prefix: &'a str,
        found: Vec<PathBuf>,
    }

    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
        // SAFETY: the loader gives a valid description, and `data` is the search below, used by nothing else
        // meanwhile.
        let (name, search) = unsafe { ((*info).dlpi_name, &mut *data.cast::<Search<'_>>()) };
        if name.is_null() {
            return 0;
        }
        // SAFETY: the loader's names are C strings that live as long as this call.
        let path = PathBuf::from(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        let file = path.file_name().map(|file| file.to_string_lossy().into_owned());
        if file.is_some_and(|file| file.starts_with(search.prefix)) {
            search.found.push(path);
        }
        0
    }

    let mut search = Search { prefix, found: Vec::new() };
    // SAFETY: the callback matches the search that it is given.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}
