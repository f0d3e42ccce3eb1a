//! A program's questions to the driver for its functions by name and version, instead of by symbol.
//!
//! A function whose signature once changed is exported under several symbols. Which one `cuMemAlloc` stands
//! for depends on the version that the program was written for: the newest one that is not newer. The
//! versions are those of the driver's header (`cudaTypedefs.h`).

use std::ffi::{CStr, c_char, c_int, c_void};

use super::{
    context, device, event, graph, library, memory, module, put, put_if_wanted, stream, transfer,
    virtual_memory,
};
use crate::codes::*;

/// `CUdriverProcAddressQueryResult`.
const FOUND: u32 = 0;
const SYMBOL_NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

/// The version that each symbol came with whose name says that it is not the first one.
const SINCE: &[(&str, c_int)] = &[
    ("cuCtxCreate_v2", 3020),
    ("cuCtxCreate_v3", 11040),
    ("cuCtxCreate_v4", 12050),
    ("cuCtxDestroy_v2", 4000),
    ("cuCtxPopCurrent_v2", 4000),
    ("cuCtxPushCurrent_v2", 4000),
    ("cuDeviceGetUuid_v2", 11040),
    ("cuDevicePrimaryCtxRelease_v2", 11000),
    ("cuDevicePrimaryCtxReset_v2", 11000),
    ("cuDevicePrimaryCtxSetFlags_v2", 11000),
    ("cuDeviceTotalMem_v2", 3020),
    ("cuEventDestroy_v2", 4000),
    ("cuEventElapsedTime_v2", 12080),
    ("cuGetProcAddress_v2", 12000),
    ("cuMemAllocHost_v2", 3020),
    ("cuMemAlloc_v2", 3020),
    ("cuMemFree_v2", 3020),
    ("cuMemGetAddressRange_v2", 3020),
    ("cuMemGetInfo_v2", 3020),
    ("cuMemHostGetDevicePointer_v2", 3020),
    ("cuMemHostRegister_v2", 6050),
    ("cuMemcpyDtoDAsync_v2", 3020),
    ("cuMemcpyDtoD_v2", 3020),
    ("cuMemcpyDtoHAsync_v2", 3020),
    ("cuMemcpyDtoH_v2", 3020),
    ("cuMemcpyHtoDAsync_v2", 3020),
    ("cuMemcpyHtoD_v2", 3020),
    ("cuMemsetD8_v2", 3020),
    ("cuStreamBeginCapture_v2", 10010),
    ("cuStreamDestroy_v2", 4000),
    ("cuStreamGetCaptureInfo_v2", 11030),
    ("cuStreamGetCtx_v2", 12050),
    ("cuStreamWaitValue32_v2", 11070),
    ("cuStreamWaitValue64_v2", 11070),
    ("cuStreamWriteValue32_v2", 11070),
    ("cuStreamWriteValue64_v2", 11070),
];

/// Names that stand for a symbol of another name since some version.
const RENAMED: &[(&str, c_int, &str)] = &[("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags")];

/// Every function of the driver that there is here, by its symbol.
fn all() -> impl Iterator<Item = (&'static str, *const c_void)> {
    let modules = [
        context::exported(),
        device::exported(),
        event::exported(),
        graph::exported(),
        library::exported(),
        memory::exported(),
        module::exported(),
        stream::exported(),
        transfer::exported(),
        virtual_memory::exported(),
        exported(),
    ];
    modules.into_iter().flatten()
}

/// The version that a symbol came with. Of those without a number in their names it is not known, and old.
fn since(symbol: &str) -> c_int {
    SINCE.iter().find(|(known, _)| *known == symbol).map_or(0, |(_, version)| *version)
}

/// The function that `name` stands for in programs written for `version`, or the reason that there is none.
fn find(name: &str, version: c_int) -> Result<*const c_void, u32> {
    if let Some((_, _, symbol)) = RENAMED.iter().find(|(old, since, _)| *old == name && version >= *since) {
        return find(symbol, version);
    }
    let is_named = |symbol: &str| {
        symbol.strip_prefix(name).is_some_and(|rest| {
            rest.is_empty()
                || rest
                    .strip_prefix("_v")
                    .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        })
    };
    let named: Vec<_> = all().filter(|(symbol, _)| is_named(symbol)).collect();
    let newest =
        named.iter().filter(|(symbol, _)| since(symbol) <= version).max_by_key(|(symbol, _)| since(symbol));
    match newest {
        Some((_, function)) => Ok(*function),
        None if named.is_empty() => Err(SYMBOL_NOT_FOUND),
        None => Err(VERSION_NOT_SUFFICIENT),
    }
}

/// # Safety
///
/// `symbol` is text with a zero byte at its end; the other pointers are null or may be written.
unsafe fn answer(
    symbol: *const c_char,
    function: *mut *const c_void,
    version: c_int,
    status: *mut u32,
) -> Result<(), Code> {
    if symbol.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: promised by the caller.
    unsafe {
        let name = CStr::from_ptr(symbol).to_str().map_err(|_| INVALID_VALUE)?;
        match find(name, version) {
            Ok(found) => {
                put_if_wanted(status, FOUND);
                put(function, found)
            }
            Err(why) => {
                put_if_wanted(status, why);
                put(function, std::ptr::null())?;
                Err(NOT_FOUND)
            }
        }
    }
}

driver! {
    fn cuGetProcAddress(symbol: *const c_char, function: *mut *const c_void, version: c_int, flags: u64) |_session| {
        // The flags choose whether default streams are those of threads. That is left to the caller's handles
        // here.
        let _ = flags;
        answer(symbol, function, version, std::ptr::null_mut())
    }

    fn cuGetProcAddress_v2(
        symbol: *const c_char, function: *mut *const c_void, version: c_int, flags: u64, status: *mut u32,
    ) |_session| {
        let _ = flags;
        answer(symbol, function, version, status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_the_newest_symbol_that_the_version_knows() {
        let address = |symbol: &str| all().find(|(known, _)| *known == symbol).map(|(_, function)| function);
        assert_eq!(find("cuCtxCreate", 12_000).ok(), address("cuCtxCreate_v3"));
        assert_eq!(find("cuCtxCreate", 13_000).ok(), address("cuCtxCreate_v4"));
        assert_eq!(find("cuCtxCreate", 2_000), Err(VERSION_NOT_SUFFICIENT));
        assert_eq!(find("cuMemcpy", 13_000).ok(), address("cuMemcpy"));
        assert_eq!(find("cuGraphInstantiate", 13_000).ok(), address("cuGraphInstantiateWithFlags"));
        assert_eq!(find("cuNothingOfTheKind", 13_000), Err(SYMBOL_NOT_FOUND));
    }

    #[test]
    fn every_symbol_with_a_number_has_its_version_and_the_table_names_only_symbols() {
        let symbols: Vec<&str> = all().map(|(symbol, _)| symbol).collect();
        for symbol in symbols.iter().filter(|symbol| symbol.contains("_v")) {
            assert!(since(symbol) > 0, "{symbol} has no version");
        }
        assert!(SINCE.iter().all(|(symbol, _)| symbols.contains(symbol)));
    }
}
