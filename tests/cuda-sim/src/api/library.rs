//! Libraries: modules that belong to no context, and whose kernels are launched with a description of the
//! launch.

use std::ffi::{c_char, c_uint, c_void};

use super::module;
use crate::codes::*;

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    shape: [c_uint; 6],
    shared: c_uint,
    stream: u64,
    attributes: *const c_void,
    count: c_uint,
}

driver! {
    fn cuLibraryLoadData(
        library: *mut u64, code: *const c_void, options: *mut c_uint, values: *mut *mut c_void, count: c_uint,
        library_options: *mut c_uint, library_values: *mut *mut c_void, library_count: c_uint,
    ) |session| {
        let _ = (options, values, count, library_options, library_values, library_count);
        module::load(session, library, code)
    }

    fn cuLibraryUnload(library: u64) |session| {
        session.modules.remove(&library).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuLibraryGetKernel(kernel: *mut u64, library: u64, name: *const c_char) |session| {
        module::get(session, kernel, library, name)
    }

    fn cuLaunchKernelEx(
        config: *const LaunchConfig, function: u64, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) |session| {
        let config = config.as_ref().ok_or(INVALID_VALUE)?;
        if config.count > 0 {
            // Clusters, priorities and the like: the simulator's kernels have none.
            return Err(NOT_SUPPORTED);
        }
        module::launch(session, function, config.shape, config.shared, config.stream, arguments, extra)
    }
}
