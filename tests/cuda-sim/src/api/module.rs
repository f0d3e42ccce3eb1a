//! Modules of PTX text and launches of the kernels that the simulator knows.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::put;
use crate::codes::*;
use crate::command::{StreamRequest, Work};
use crate::kernels::Kernel;
use crate::kind::Kind;
use crate::state::Session;

/// The names after `.entry` in PTX text.
fn entries(text: &str) -> Vec<String> {
    let names = text.split(".entry").skip(1);
    let name = |rest: &str| {
        rest.trim_start().chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
    };
    names.map(name).collect()
}

/// # Safety
///
/// `image` is null or text with a zero byte at its end.
pub(super) unsafe fn load(session: &mut Session, module: *mut u64, image: *const c_void) -> Result<(), Code> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: promised by the caller. What is no text is refused.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| INVALID_IMAGE)?;
    let well_formed = [".version", ".target", ".address_size 64"].iter().all(|word| text.contains(word));
    if !well_formed {
        return Err(INVALID_PTX);
    }
    let handle = session.handle();
    session.modules.insert(handle, entries(text));
    // SAFETY: the caller of the driver passes a place for the result, or null.
    unsafe { put(module, handle) }
}

/// # Safety
///
/// `name` is text with a zero byte at its end; `function` is null or may be written.
pub(super) unsafe fn get(
    session: &mut Session,
    function: *mut u64,
    module: u64,
    name: *const c_char,
) -> Result<(), Code> {
    let names = session.modules.get(&module).ok_or(INVALID_HANDLE)?;
    // SAFETY: promised by the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?;
    if !names.iter().any(|entry| entry == name) {
        return Err(NOT_FOUND);
    }
    let kernel = Kernel::named(name).ok_or(NOT_FOUND)?;
    let handle = session.handle();
    session.functions.insert(handle, kernel);
    // SAFETY: promised by the caller.
    unsafe { put(function, handle) }
}

/// # Safety
///
/// `arguments` points to a pointer to each of the kernel's arguments.
pub(super) unsafe fn launch(
    session: &mut Session,
    function: u64,
    shape: [c_uint; 6],
    shared: c_uint,
    stream: u64,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<(), Code> {
    let stream = session.sound_stream(stream)?;
    let kernel = *session.functions.get(&function).ok_or(INVALID_HANDLE)?;
    let threads: c_uint = shape[3..].iter().product();
    if shape.contains(&0) || threads > 1024 || shared > 48 << 10 || !extra.is_null() {
        return Err(INVALID_VALUE);
    }
    if arguments.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: promised by the caller.
    let launch = unsafe { kernel.with(arguments) };
    let touches = launch.touches();
    session.enqueue(stream, StreamRequest::new(Kind::Kernel, Work::Kernel(launch), touches))?;
    Ok(())
}

driver! {
    fn cuModuleLoadData(module: *mut u64, image: *const c_void) |session| {
        session.wait_for_setup()?;
        load(session, module, image)
    }

    fn cuModuleLoadDataEx(
        module: *mut u64, image: *const c_void, count: c_uint, options: *mut c_uint, values: *mut *mut c_void,
    ) |session| {
        let _ = (count, options, values);
        session.wait_for_setup()?;
        load(session, module, image)
    }

    fn cuModuleUnload(module: u64) |session| {
        session.modules.remove(&module).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) |session| {
        get(session, function, module, name)
    }

    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: u64) |session| {
        let _ = attribute;
        session.functions.get(&function).ok_or(INVALID_HANDLE)?;
        put(value, 1024)
    }

    fn cuLaunchKernel(
        function: u64, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: u64, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) |session| {
        let shape = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        launch(session, function, shape, shared, stream, arguments, extra)
    }
}
