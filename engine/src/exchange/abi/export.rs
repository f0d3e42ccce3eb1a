//! Making a managed tensor for a consumer. See the [parent](super) for the rules about deleters.

use std::alloc;
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use estafette_devices::log_panic;
use estafette_sync::process::ProcessBound;

use super::{
    Abi, DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
    DLPackVersion, DLTensor, DType, DlpackFlags, Layout, ManagedTensor, Raw, RawDevice, VERSION,
};

/// Flags of an exported tensor's memory. Padding comes from the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExportFlags {
    /// The consumer must not write. Lost in the legacy struct.
    pub read_only: bool,
    /// The memory is a copy made for this consumer. Lost in the legacy struct.
    pub is_copied: bool,
}

impl ExportFlags {
    /// Of a copy, which its consumer may write.
    pub const COPY: Self = Self { read_only: false, is_copied: true };
}

/// Makes a managed tensor for a consumer: a fresh struct with shape and strides in the same allocation.
///
/// `owner` is called once, when the consumer calls the deleter, on the consumer's thread, which may hold
/// any lock (or the Python one) and may be any thread: it should hand over to the reaper and return. A
/// panic in it is logged and goes no further. In a forked child it is not called.
///
/// `data` is the address of the first element (or the handle). Strides are always written out, those of
/// dimensions of size 0 or 1 normalized; `data` becomes NULL when there are no elements, as the header
/// asks.
///
/// # Safety
/// `data` points to memory as `layout` describes it, initialized, and valid until `owner` is called; unless
/// `flags` say read-only, the consumer may write it.
#[inline]
pub unsafe fn export<F>(
    layout: &Layout,
    data: *mut u8,
    flags: ExportFlags,
    abi: Abi,
    owner: F,
) -> ManagedTensor
where
    F: FnOnce() + Send + 'static,
{
    let (tensor, dims) = (describe_raw(layout, data), (layout.shape(), layout.strides()));
    ManagedTensor::new(match abi {
        Abi::Legacy => Raw::Legacy(ExportedStruct::allocate(dims, owner, |ctx, dims| DLManagedTensor {
            dl_tensor: DLTensor { shape: dims.0, strides: dims.1, ..tensor },
            manager_ctx: ctx,
            deleter: Some(ExportedStruct::<DLManagedTensor, F>::delete),
        })),
        Abi::Versioned => versioned(tensor, dims, flags, layout.is_padded(), owner),
    })
}

#[inline]
fn versioned<F: FnOnce() + Send + 'static>(
    tensor: DLTensor,
    dims: (&[i64], &[i64]),
    flags: ExportFlags,
    is_padded: bool,
    owner: F,
) -> Raw {
    let mut bits = DlpackFlags::empty();
    bits.set(DlpackFlags::READ_ONLY, flags.read_only);
    bits.set(DlpackFlags::IS_COPIED, flags.is_copied);
    bits.set(DlpackFlags::IS_SUBBYTE_TYPE_PADDED, is_padded);
    Raw::Versioned(ExportedStruct::allocate(dims, owner, |ctx, dims| DLManagedTensorVersioned {
        version: DLPackVersion { major: VERSION.0, minor: VERSION.1 },
        manager_ctx: ctx,
        deleter: Some(ExportedStruct::<DLManagedTensorVersioned, F>::delete),
        flags: bits,
        dl_tensor: DLTensor { shape: dims.0, strides: dims.1, ..tensor },
    }))
}

/// One exported tensor: the struct that the consumer sees first, our own fields behind it, then shape and
/// strides.
#[repr(C)]
struct ExportedStruct<M, F> {
    /// First, so that a pointer to it is a pointer to the whole.
    managed: M,
    owner: ProcessBound<F>,
    ndim: usize,
}

impl<M, F: FnOnce() + Send + 'static> ExportedStruct<M, F> {
    /// The layout of the allocation and where in it shape and strides (one array) begin.
    fn place(ndim: usize) -> (alloc::Layout, usize) {
        let dims = alloc::Layout::array::<i64>(2 * ndim).expect("ndim is small");
        let (whole, offset) = alloc::Layout::new::<Self>().extend(dims).expect("ndim is small");
        (whole.pad_to_align(), offset)
    }

    /// Allocates and fills everything. `managed` gets `manager_ctx`, and the addresses of shape and strides
    /// (NULL for a scalar).
    ///
    /// Our deleter needs no context. It is the struct's own address all the same: PaddlePaddle 3.3 calls the
    /// deleter only of structs whose `manager_ctx` is not NULL.
    #[inline]
    fn allocate(
        (shape_of, strides_of): (&[i64], &[i64]),
        owner: F,
        managed: impl FnOnce(*mut c_void, (*mut i64, *mut i64)) -> M,
    ) -> NonNull<M> {
        let ndim = shape_of.len();
        let (whole, offset) = Self::place(ndim);
        // SAFETY: the layout is not empty, it contains a managed tensor.
        let memory = unsafe { alloc::alloc(whole) };
        let Some(start) = NonNull::new(memory.cast::<Self>()) else { alloc::handle_alloc_error(whole) };
        // SAFETY: `place` made room for `2 * ndim` entries at `offset`, aligned; and for `Self` at the start.
        unsafe {
            let shape = memory.add(offset).cast::<i64>();
            let strides = shape.add(ndim);
            ptr::copy_nonoverlapping(shape_of.as_ptr(), shape, ndim);
            ptr::copy_nonoverlapping(strides_of.as_ptr(), strides, ndim);
            let dims = if ndim == 0 { (ptr::null_mut(), ptr::null_mut()) } else { (shape, strides) };
            let managed = managed(memory.cast(), dims);
            start.write(Self { managed, owner: ProcessBound::new(owner), ndim });
        }
        start.cast()
    }

    /// The deleter, which the consumer calls once.
    ///
    /// # Safety
    /// `managed` came from [`allocate`](Self::allocate) with the same types and was not deleted before.
    unsafe extern "C" fn delete(managed: *mut M) {
        estafette_sync::valgrind::before();
        let start = managed.cast::<Self>();
        // SAFETY: as above: `managed` is the first field of a live `Self`, made by the allocation that
        // `place` describes. The owner is moved out exactly once; the memory is not used after it is freed.
        unsafe {
            let owner = ptr::read(&raw const (*start).owner).into_inner();
            alloc::dealloc(start.cast(), Self::place((*start).ndim).0);
            if let Ok(owner) = owner {
                log_panic("owner of an exported tensor", owner);
            }
        }
    }
}

/// The description without shape and strides, which get their place later.
#[inline]
pub(super) fn describe_raw(layout: &Layout, data: *mut u8) -> DLTensor {
    let (dtype, device) = (layout.dtype(), layout.device());
    let (data, before) = if device.device_type.data_is_range_start() {
        from_the_start(layout, data)
    } else if layout.is_empty() {
        (ptr::null_mut(), 0)
    } else {
        (data, 0)
    };
    DLTensor {
        ndim: i32::try_from(layout.shape().len()).expect("a layout has at most NDIM_MAX dimensions"),
        byte_offset: layout.byte_offset() + before,
        ..raw_tensor(dtype, device, data)
    }
}

/// A scalar.
#[inline]
pub(super) fn raw_tensor(dtype: DType, device: DLDevice, data: *mut u8) -> DLTensor {
    DLTensor {
        data: data.cast(),
        device: RawDevice {
            device_type: DLDeviceType(device.device_type.0 as u32),
            device_id: device.device_id,
        },
        ndim: 0,
        dtype: DLDataType { code: DLDataTypeCode(dtype.code), bits: dtype.bits, lanes: dtype.lanes },
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    }
}

/// `data` as the start of what the elements touch, and the bytes from there to the first element. A tensor
/// without elements keeps the address that its library gave; the header recommends NULL, which such consumers
/// refuse.
fn from_the_start(layout: &Layout, data: *mut u8) -> (*mut u8, u64) {
    let before = if layout.is_empty() { 0 } else { data.addr() - layout.byte_range(data).start };
    (data.wrapping_sub(before), before as u64)
}
