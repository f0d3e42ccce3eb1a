//! The DLPack structs, both ways: taking a managed tensor from outside, and making one for outside.
//!
//! Beside the adapter for it, this folder is the only place that names `dlpark`; everything else sees our own
//! types and `*mut c_void`, but for the C exchange [`table`], whose structs its users have to know. Of
//! `dlpark` only the struct definitions are used. The structs stay behind raw pointers all the time: they
//! belong to another library, which may hold pointers into them, so no Rust reference to one is ever made.
//!
//! **Deleters.** DLPack lets any thread call a deleter, and says exactly once; it says nothing about locks.
//! So a [`ManagedTensor`] calls the deleter when dropped, wherever that is, and the reaper
//! makes sure that it is a good place. A deleter must not unwind: a C++ exception or Rust panic that leaves
//! it aborts the process, as in any `extern "C"` call.
//!
//! | part | what it has |
//! |---|---|
//! | `export` | makes a managed tensor for a consumer |
//! | [`fenced`] | structs with a fence of the producer and fences of the consumer |
//! | [`table`] | the C exchange table |
//! | `unowned` | structs of memory that the reader does not own |

mod export;
pub mod fenced;
pub mod table;
#[cfg(feature = "operators")]
pub(crate) mod unowned;

use std::borrow::Cow;
use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use dlpark::DlpackFlags;
use dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDevice as RawDevice, DLDeviceType, DLManagedTensor,
    DLManagedTensorVersioned, DLPackVersion, DLTensor,
};
use estafette_devices::{DLDevice, DeviceType};
use estafette_sync::process::Generation;

pub use export::{ExportFlags, export};

use super::dtype::DType;
use super::layout::{Layout, NDIM_MAX};
use crate::core::invalid_tensor::InvalidTensor;

/// The version that exported tensors carry, and the only major version that imported ones may.
pub const VERSION: (u32, u32) = (1, 3);

/// One of the two DLPack structs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Abi {
    /// `DLManagedTensorVersioned`, DLPack 1.0 and later.
    Versioned,
    /// `DLManagedTensor`: no version and no flags, so nothing says that memory is read-only. Whether such
    /// memory may leave this way is the caller's decision.
    Legacy,
}

/// An owned DLPack tensor of either kind. Dropping it calls its deleter, once, on this thread.
///
/// In a forked child dropping it does nothing (the parent still owns the other half); that leak is
/// counted.
pub struct ManagedTensor {
    /// Of the struct that `abi` says. Apart from each other the two fit two words, in which a value is
    /// returned.
    managed: NonNull<c_void>,
    generation: Generation,
    abi: Abi,
    inline_deleter: bool,
}

#[derive(Clone, Copy)]
enum Raw {
    Legacy(NonNull<DLManagedTensor>),
    Versioned(NonNull<DLManagedTensorVersioned>),
}

// SAFETY: DLPack (python_spec.rst, and every framework's practice) lets the owner of a managed tensor call
// the deleter on any thread; producers that need a lock or an interpreter there take it themselves. The
// struct and its shape and strides are not changed by any code while they are owned, and the data pointer is
// only copied here, never followed.
unsafe impl Send for ManagedTensor {}
// SAFETY: shared access only reads the struct, its shape and its strides, which do not change.
unsafe impl Sync for ManagedTensor {}

impl ManagedTensor {
    /// Takes ownership of a `DLManagedTensorVersioned*` or `DLManagedTensor*`, as `abi` says.
    ///
    /// # Errors
    /// NULL, or a major version other than 1; of such a tensor the deleter is called here, and nothing else
    /// of it is touched. Nothing more is owed to the producer then. Everything else is checked by
    /// [`describe`](Self::describe).
    ///
    /// # Safety
    /// NULL, or a valid struct that the caller owns and gives up. It, its shape and its strides stay readable
    /// and unchanged until the deleter is called, and the memory that it describes, if
    /// [`describe`](Self::describe) finds nothing wrong with it, exists and stays valid as long. The deleter
    /// is NULL, or may be called once from any thread and does not unwind.
    pub unsafe fn from_raw(tensor: *mut c_void, abi: Abi) -> Result<Self, InvalidTensor> {
        let tensor = NonNull::new(tensor).ok_or_else(|| InvalidTensor::new("tensor", "is NULL"))?;
        // From here on the deleter is called on every way out.
        let owned = Self::new(match abi {
            Abi::Legacy => Raw::Legacy(tensor.cast()),
            Abi::Versioned => Raw::Versioned(tensor.cast()),
        });
        // The caller says that the struct is valid; DLPack promises that the version keeps its place in all
        // versions of the struct.
        if let Some((major, minor)) = owned.version()
            && major != VERSION.0
        {
            drop(owned);
            let reason = format!("is {major}.{minor}, but only {}.x is known", VERSION.0);
            return Err(InvalidTensor::new("version", reason));
        }
        Ok(owned)
    }

    /// Gives up ownership, as the struct of its [`Abi`]. The caller must see to the call of the deleter.
    #[inline]
    pub fn into_raw(self) -> *mut c_void {
        ManuallyDrop::new(self).managed.as_ptr()
    }

    /// The kind of the struct.
    pub(crate) fn abi(&self) -> Abi {
        self.abi
    }

    /// The DLPack version that the producer wrote (major, minor); `None` for a legacy tensor.
    pub(crate) fn version(&self) -> Option<(u32, u32)> {
        let Raw::Versioned(tensor) = self.raw() else { return None };
        // SAFETY: the struct is valid and unchanged while it is owned.
        let version = unsafe { (&raw const (*tensor.as_ptr()).version).read() };
        Some((version.major, version.minor))
    }

    /// The producer's flags of the memory. A legacy tensor can say neither.
    pub fn flags(&self) -> ExportFlags {
        let flags = self.raw_flags();
        let (read_only, is_copied) = (DlpackFlags::READ_ONLY, DlpackFlags::IS_COPIED);
        ExportFlags { read_only: flags.contains(read_only), is_copied: flags.contains(is_copied) }
    }

    /// The device in the tensor's struct, before any check.
    #[inline]
    pub(crate) fn device(&self) -> DLDevice {
        device_of(&self.tensor())
    }

    /// The address of the first element, `byte_offset` included; on devices with handles, the handle
    /// itself. NULL stays NULL. Meaningful once [`describe`](Self::describe) has succeeded.
    pub fn data(&self) -> *mut u8 {
        let tensor = self.tensor();
        let data = tensor.data.cast::<u8>();
        if data.is_null() || !device_of(&tensor).device_type.has_addresses() {
            return data;
        }
        // An offset that does not fit is refused by `describe`; until then this must only not be undefined.
        data.wrapping_add(tensor.byte_offset as usize)
    }

    /// Says of the deleter that it is quick and needs no lock but the Python one, so that it may be called
    /// right where the memory falls out of use, in a scope of
    /// [`with_inline_deleters`](super::reaper::with_inline_deleters), instead of on the reaper's thread. That
    /// is knowledge about the producer, which no struct has.
    #[must_use]
    pub(crate) fn with_inline_deleter(mut self) -> Self {
        self.inline_deleter = true;
        self
    }

    /// See [`with_inline_deleter`](Self::with_inline_deleter).
    pub(super) fn has_inline_deleter(&self) -> bool {
        self.inline_deleter
    }

    /// Checks everything that the producer wrote and describes it in our words.
    ///
    /// More is accepted than the newest header demands, because libraries send it: NULL strides in every
    /// version (they mean row-major; the header forbids them from 1.2 on, PyTorch accepts them too), any
    /// alignment (only typed views care), garbage in strides that say nothing, unknown flags, and dtype
    /// codes and device types that this version does not know, which stay opaque.
    ///
    /// # Errors
    /// The first field that is wrong. The tensor is still owned: dropping it calls the deleter.
    pub fn describe(&self) -> Result<Layout, InvalidTensor> {
        let tensor = self.tensor();
        let ndim = match usize::try_from(tensor.ndim) {
            Ok(ndim) if ndim <= NDIM_MAX => ndim,
            Ok(ndim) => return Err(InvalidTensor::new("ndim", format!("is {ndim}, more than {NDIM_MAX}"))),
            Err(_) => return Err(InvalidTensor::new("ndim", format!("is {}", tensor.ndim))),
        };
        let dtype = DType { code: tensor.dtype.code.0, bits: tensor.dtype.bits, lanes: tensor.dtype.lanes };
        let device = device_of(&tensor);
        // SAFETY: the producer gives `ndim` readable entries, which stay as they are while it is owned, or
        // NULL.
        let (shape, strides) = unsafe { (read_dims(tensor.shape, ndim), read_dims(tensor.strides, ndim)) };
        let shape = shape.ok_or_else(|| InvalidTensor::new("shape", format!("is NULL with ndim {ndim}")))?;
        let mut layout = match strides {
            Some(strides) => Layout::strided(dtype, device, &shape, &strides)?,
            None => Layout::contiguous(dtype, device, &shape)?,
        };
        if self.raw_flags().contains(DlpackFlags::IS_SUBBYTE_TYPE_PADDED) {
            layout = layout.with_padding(true);
        }
        if !device.device_type.has_addresses() {
            return Ok(layout.with_byte_offset(tensor.byte_offset));
        }
        if !layout.is_empty() && !tensor.data.is_null() {
            let fits = usize::try_from(tensor.byte_offset)
                .is_ok_and(|offset| (tensor.data as usize).checked_add(offset).is_some());
            if !fits {
                let reason = format!("is {}, past the address space", tensor.byte_offset);
                return Err(InvalidTensor::new("byte_offset", reason));
            }
        }
        layout.check_data(self.data())?;
        Ok(layout)
    }

    /// Owns `raw` from here on.
    #[inline]
    fn new(raw: Raw) -> Self {
        let (managed, abi) = match raw {
            Raw::Legacy(tensor) => (tensor.cast(), Abi::Legacy),
            Raw::Versioned(tensor) => (tensor.cast(), Abi::Versioned),
        };
        Self { managed, abi, generation: Generation::current(), inline_deleter: false }
    }

    #[inline]
    fn raw(&self) -> Raw {
        match self.abi {
            Abi::Legacy => Raw::Legacy(self.managed.cast()),
            Abi::Versioned => Raw::Versioned(self.managed.cast()),
        }
    }

    /// A copy of the description; the pointers in it belong to the producer.
    fn tensor(&self) -> DLTensor {
        // SAFETY: the struct is valid and unchanged while it is owned, and was found to be of a known major
        // version before a reader could check it. Every field is a plain number or pointer, so any bits are a
        // value.
        unsafe {
            match self.raw() {
                Raw::Legacy(tensor) => (&raw const (*tensor.as_ptr()).dl_tensor).read(),
                Raw::Versioned(tensor) => (&raw const (*tensor.as_ptr()).dl_tensor).read(),
            }
        }
    }

    fn raw_flags(&self) -> DlpackFlags {
        match self.raw() {
            Raw::Legacy(_) => DlpackFlags::empty(),
            // SAFETY: as in `tensor`; flags that we do not know are kept as they are.
            Raw::Versioned(tensor) => unsafe { (&raw const (*tensor.as_ptr()).flags).read() },
        }
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        // SAFETY: the struct is owned, so its deleter has not been called; this is the one place that calls
        // it, and nothing reads the struct afterwards. The place of `deleter` is stable across major
        // versions.
        self.generation.release(|| unsafe {
            match self.raw() {
                Raw::Legacy(tensor) => {
                    if let Some(deleter) = (&raw const (*tensor.as_ptr()).deleter).read() {
                        deleter(tensor.as_ptr());
                    }
                }
                Raw::Versioned(tensor) => {
                    if let Some(deleter) = (&raw const (*tensor.as_ptr()).deleter).read() {
                        deleter(tensor.as_ptr());
                    }
                }
            }
        });
    }
}

impl fmt::Debug for ManagedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The shape is not followed here: it may be what is wrong with the tensor.
        let tensor = self.tensor();
        f.debug_struct("ManagedTensor")
            .field("abi", &self.abi())
            .field("data", &tensor.data)
            .field("device", &device_of(&tensor))
            .field("ndim", &tensor.ndim)
            .finish_non_exhaustive()
    }
}

fn device_of(tensor: &DLTensor) -> DLDevice {
    // The header declares an enum; which sign it has is the compiler's choice, the bits are the same.
    DLDevice::new(DeviceType(tensor.device.device_type.0 as i32), tensor.device.device_id)
}

/// The `ndim` entries. `None` if there is nothing to look at.
///
/// # Safety
/// `dims` is NULL or has `ndim` readable entries, which do not change for the life that the caller gives the
/// result.
unsafe fn read_dims<'a>(dims: *const i64, ndim: usize) -> Option<Cow<'a, [i64]>> {
    if ndim == 0 {
        return Some(Cow::Borrowed(&[]));
    }
    if dims.is_null() {
        return None;
    }
    if dims.is_aligned() {
        // SAFETY: as this function's own contract says.
        return Some(Cow::Borrowed(unsafe { std::slice::from_raw_parts(dims, ndim) }));
    }
    // SAFETY: as this function's own contract says; a misaligned array, legal in no header but seen, is no
    // harm this way.
    Some((0..ndim).map(|index| unsafe { dims.add(index).read_unaligned() }).collect())
}

#[cfg(test)]
mod tests;
