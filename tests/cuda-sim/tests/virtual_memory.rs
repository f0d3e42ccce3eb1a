//! Memory apart from its addresses: what the driver's manual says of it, and that another mapping has the
//! same bytes.

mod harness;

use std::ffi::{c_int, c_void};

use cudarc::driver::sys::{self, CUdeviceptr, CUmemAllocationHandleType as Handles, CUresult};
use harness::*;

const BYTES: usize = 4 << 20;
const DESCRIPTOR: Handles = Handles::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn at(device: c_int) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn create(bytes: usize, handles: Handles) -> Result<u64, CUresult> {
    // SAFETY: all zero is a value, and the fields below are set.
    let mut wanted: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    wanted.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = at(0);
    wanted.requestedHandleTypes = handles;
    let mut block = 0;
    // SAFETY: the arguments are as the driver wants them.
    match unsafe { sys::cuMemCreate(&mut block, bytes, &wanted, 0) } {
        CUresult::CUDA_SUCCESS => Ok(block),
        code => Err(code),
    }
}

fn export(block: u64) -> Result<c_int, CUresult> {
    let mut descriptor: c_int = -1;
    // SAFETY: there is a place for the result.
    match unsafe { sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), block, DESCRIPTOR, 0) } {
        CUresult::CUDA_SUCCESS => Ok(descriptor),
        code => Err(code),
    }
}

fn import(descriptor: c_int) -> Result<u64, CUresult> {
    let mut block = 0;
    let number = std::ptr::without_provenance_mut::<c_void>(descriptor as usize);
    // SAFETY: there is a place for the result.
    match unsafe { sys::cuMemImportFromShareableHandle(&mut block, number, DESCRIPTOR) } {
        CUresult::CUDA_SUCCESS => Ok(block),
        code => Err(code),
    }
}

fn map(block: u64, flags: sys::CUmemAccess_flags) -> CUdeviceptr {
    let mut start = 0;
    let access = sys::CUmemAccessDesc { location: at(0), flags };
    // SAFETY: a live block, and addresses that are reserved here.
    unsafe {
        ok(sys::cuMemAddressReserve(&mut start, BYTES, 0, 0, 0));
        ok(sys::cuMemMap(start, BYTES, 0, block, 0));
        ok(sys::cuMemSetAccess(start, BYTES, &access, 1));
    }
    start
}

fn unmap(start: CUdeviceptr) {
    // SAFETY: a whole mapping that nothing uses.
    unsafe {
        ok(sys::cuMemUnmap(start, BYTES));
        ok(sys::cuMemAddressFree(start, BYTES));
    }
}

#[test]
fn two_mappings_have_the_same_bytes_and_memory_lives_as_long_as_any_of_them() {
    let bench = bench();
    let used = bench.simulator.used(0);
    let block = create(BYTES, DESCRIPTOR).unwrap();
    let descriptor = export(block).unwrap();
    let first = map(block, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    let stream = non_blocking();
    fill(stream, first, 7, BYTES);
    synchronize(stream);
    let again = import(descriptor).unwrap();
    let second = map(again, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ);
    // SAFETY: what is mapped stays without its handle, and a descriptor is closed once.
    unsafe {
        ok(sys::cuMemRelease(block));
        fails(sys::cuMemRelease(block), CUresult::CUDA_ERROR_INVALID_VALUE);
        ok(sys::cuMemRelease(again));
        libc::close(descriptor);
    }
    assert_eq!(bench.simulator.used(0), used + BYTES as u64);
    unmap(first);
    assert_eq!(bench.simulator.used(0), used);
    assert_eq!(fetch(second, BYTES), vec![7; BYTES]);
    unmap(second);
    assert_eq!(bench.simulator.violations(), Vec::<String>::new());
}

#[test]
fn what_the_manual_forbids_is_refused() {
    let bench = bench();
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    assert_eq!(create(4096, DESCRIPTOR).unwrap_err(), invalid, "less than the granularity");
    assert_eq!(create(1 << 40, DESCRIPTOR).unwrap_err(), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let private = create(BYTES, Handles::CU_MEM_HANDLE_TYPE_NONE).unwrap();
    assert_eq!(export(private).unwrap_err(), invalid, "it was not asked for");
    assert_eq!(import(0).unwrap_err(), invalid, "a descriptor of something else");
    let start = map(private, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    // SAFETY: each is refused, and does nothing.
    unsafe {
        fails(sys::cuMemMap(start, BYTES, 0, private, 0), invalid);
        fails(sys::cuMemUnmap(start, BYTES / 2), invalid);
        fails(sys::cuMemAddressFree(start, BYTES), invalid);
        fails(sys::cuMemFree_v2(start), invalid);
        let elsewhere = sys::CUmemAccessDesc {
            location: at(1),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        bench.simulator.peer_access(false);
        fails(sys::cuMemSetAccess(start, BYTES, &elsewhere, 1), CUresult::CUDA_ERROR_INVALID_DEVICE);
        ok(sys::cuMemRelease(private));
    }
    unmap(start);
}

#[test]
fn memory_that_is_unmapped_under_a_command_is_a_violation_and_a_forbidden_write_is_a_fault() {
    let bench = bench();
    let block = create(BYTES, DESCRIPTOR).unwrap();
    let start = map(block, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    let stream = non_blocking();
    bench.simulator.block(stream.addr());
    fill(stream, start, 1, BYTES);
    // SAFETY: it is not: a command uses the memory.
    ok(unsafe { sys::cuMemUnmap(start, BYTES) });
    let found = bench.simulator.violations();
    assert!(found.iter().any(|text| text.contains("is unmapped while a command uses it")), "{found:?}");
    let read_only = map(block, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ);
    let other = non_blocking();
    fill(other, read_only, 1, BYTES);
    // SAFETY: a live stream.
    fails(unsafe { sys::cuStreamSynchronize(other) }, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    // The context is broken, and what was blocked with it.
    bench.simulator.unblock(stream.addr());
}
