//! Start, devices and what they say of themselves, names of codes.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use super::put;
use crate::codes::*;
use crate::state::{Context, DriverState, Session};

impl DriverState {
    pub(super) fn device(&self, ordinal: c_int) -> Result<usize, Code> {
        usize::try_from(ordinal).ok().filter(|device| *device < self.script.devices).ok_or(INVALID_DEVICE)
    }

    pub(crate) fn attribute(&self, device: usize, attribute: c_int) -> c_int {
        if let Some(value) = self.script.attributes.get(&attribute) {
            return *value;
        }
        match attribute {
            // Threads per block, warp, multiprocessors.
            1 => 1024,
            10 => 32,
            16 => 4,
            // Concurrent kernels, copy engines, unified addresses, managed memory (also while kernels run).
            31 | 41 | 83 | 89 => 1,
            40 => 2,
            // The place on the bus.
            33 => device as c_int + 1,
            // Compute capability 7.0.
            75 => 7,
            // Stream memory operations, of 64 bits too, with NOR; the second generation of the three.
            92..=94 | 122 | 123 => 1,
            // Memory apart from its addresses, and descriptors of it.
            102 | 103 => 1,
            // Memory pools.
            115 => 1,
            _ => 0,
        }
    }
}

unsafe extern "C" {
    safe fn atexit(function: extern "C" fn()) -> c_int;
}

/// After it every call is a violation. It waits a little, so that calls of threads that still run are seen.
extern "C" fn shut_down() {
    Session::open().shut_down = true;
    std::thread::sleep(Duration::from_millis(20));
}

driver! {
    fn cuInit(flags: u32) |session| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if let Some(code) = session.script.start {
            return Err(code);
        }
        if session.script.devices == 0 {
            return Err(NO_DEVICE);
        }
        if !session.initialized {
            session.initialized = true;
            // As the driver does. What was registered later runs earlier.
            atexit(shut_down);
            for device in 0..session.script.devices {
                let handle = session.handle();
                let context = Context { handle, device, primary: true, holders: 0, fault: None, peers: Vec::new(), busy: false };
                session.contexts.push(context);
            }
        }
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) |session| {
        put(version, session.script.driver_version)
    }

    fn cuDeviceGetCount(count: *mut c_int) |session| {
        put(count, session.script.devices as c_int)
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |session| {
        session.device(ordinal)?;
        put(device, ordinal)
    }

    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) |session| {
        let device = session.device(device)?;
        let text = format!("Estafette CUDA simulator {device}");
        write_text(name, length, &text)
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) |session| {
        let device = session.device(device)?;
        put(value, session.attribute(device, attribute))
    }

    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) |session| {
        let device = session.device(device)?;
        let mut bytes = *b"cuda simulator\0\0";
        bytes[15] = device as u8;
        put(uuid, bytes)
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |session| {
        let device = session.device(device)?;
        let mut bytes = *b"cuda simulator\0\0";
        bytes[15] = device as u8;
        put(uuid, bytes)
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |session| {
        session.device(device)?;
        put(bytes, session.script.capacity as usize)
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) |session| {
        let different = session.device(device)? != session.device(peer)?;
        put(can, c_int::from(different && session.script.peer_access))
    }

    fn cuGetErrorName(code: i32, text: *mut *const c_char) |_session| {
        let (name, _) = describe(code).ok_or(INVALID_VALUE)?;
        put(text, name.as_ptr().cast())
    }

    fn cuGetErrorString(code: i32, text: *mut *const c_char) |_session| {
        let (_, says) = describe(code).ok_or(INVALID_VALUE)?;
        put(text, says.as_ptr().cast())
    }

    fn cuGetExportTable(table: *mut *const c_void, id: *const c_void) |_session| {
        let _ = (table, id);
        Err(NOT_SUPPORTED)
    }
}

/// Writes text with a zero byte, cut to `length` bytes.
///
/// # Safety
///
/// `out` has room for `length` bytes.
unsafe fn write_text(out: *mut c_char, length: c_int, text: &str) -> Result<(), Code> {
    let room = usize::try_from(length).unwrap_or(0);
    if out.is_null() || room == 0 {
        return Err(INVALID_VALUE);
    }
    let kept = text.len().min(room - 1);
    // SAFETY: `kept` and the zero byte fit into `length`.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast::<u8>(), kept);
        out.add(kept).write(0);
    }
    Ok(())
}
