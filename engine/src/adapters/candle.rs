//! candle: tensors on the processor become read-only tensors without a copy, and operands become candle's tensors by a copy, as
//! candle's memory always belongs to candle.

use std::mem;

use candle_core::{CpuStorage, Device, Storage, StorageRef, WithDType};
use estafette_devices::DLDevice;

use crate::core::error::Error;
use crate::engine::Engine;
use crate::exchange::{Abi, DType, Element, ExportFlags, Layout, ManagedTensor, export};
use crate::operation::import::Produced;
use crate::tensor::handle::Tensor;
use crate::tensor::views::View;

impl Engine {
    /// A read-only tensor in the memory of `tensor`, with its shape and strides. Until the last use of it is over, candle's operations
    /// that write this memory in place wait; its other operations do not.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use estafette::{Engine, Error, Produced};
    ///
    /// let engine = Engine::new()?;
    /// let x = engine.from_candle(Tensor::new(&[[1.0_f32, 2.0], [3.0, 4.0]], &Device::Cpu).expect("a matrix"))?;
    /// let sums = engine.op("sums").reads([&x]).produce(|[x]| {
    ///     let sums = x.to_candle::<f32>()?.sum(1).expect("a matrix has rows");
    ///     Ok(Produced::try_from(sums)?)
    /// })?;
    /// sums.wait()?;
    /// assert_eq!(sums.to_vec::<f32>()?, [3.0, 7.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shutdown`] and [`Error::Forked`]; [`Error::Invalid`] for a tensor that is not on the processor, or whose elements have less
    /// than a byte.
    pub fn from_candle(&self, tensor: candle_core::Tensor) -> Result<Tensor, Error> {
        let managed = managed(tensor)?;
        // SAFETY: the tensor was made just now from one that keeps its memory alive and unchanged, and it is read-only.
        unsafe { self.import(managed) }
    }
}

/// The memory of a tensor, which must not be written, with its shape and strides. Fails as [`Engine::from_candle`].
impl TryFrom<candle_core::Tensor> for Produced {
    type Error = Error;

    fn try_from(tensor: candle_core::Tensor) -> Result<Self, Error> {
        managed(tensor).map(Self::from)
    }
}

impl View<'_> {
    /// A copy of the elements as candle's tensor of the same shape, on the processor.
    ///
    /// # Errors
    /// As [`to_vec`](Self::to_vec).
    pub fn to_candle<T: Element + WithDType>(&self) -> Result<candle_core::Tensor, Error> {
        let shape: Vec<usize> = self.layout().shape().iter().map(|&size| size as usize).collect();
        let copied = candle_core::Tensor::from_vec(self.to_vec::<T>()?, shape, &Device::Cpu);
        copied.map_err(|error| Error::invalid(error.to_string()))
    }
}

/// A tensor of candle that no operation writes.
struct ReadLocked {
    /// Refers to memory of `_tensor`, so it is dropped first.
    storage: StorageRef<'static>,
    _tensor: candle_core::Tensor,
}

impl ReadLocked {
    fn new(tensor: candle_core::Tensor) -> Self {
        let (storage, _) = tensor.storage_and_layout();
        // SAFETY: the lock is in memory that the tensor keeps alive and that does not move with it. The guard is dropped before the tensor.
        let storage = unsafe { mem::transmute::<StorageRef<'_>, StorageRef<'static>>(storage) };
        Self { storage, _tensor: tensor }
    }
}

fn managed(tensor: candle_core::Tensor) -> Result<ManagedTensor, Error> {
    let signed = |sizes: &[usize]| sizes.iter().map(|&size| size as i64).collect::<Vec<_>>();
    let (shape, strides) = (signed(tensor.dims()), signed(tensor.stride()));
    let start = tensor.layout().start_offset();
    let tensor = ReadLocked::new(tensor);
    let Storage::Cpu(storage) = &*tensor.storage else {
        return Err(Error::invalid("the tensor of candle is not on the processor"));
    };
    let (dtype, data): (_, *const u8) = match storage {
        CpuStorage::U8(data) => (DType::U8, data.as_ptr()),
        CpuStorage::U32(data) => (DType::U32, data.as_ptr().cast()),
        CpuStorage::I16(data) => (DType::I16, data.as_ptr().cast()),
        CpuStorage::I32(data) => (DType::I32, data.as_ptr().cast()),
        CpuStorage::I64(data) => (DType::I64, data.as_ptr().cast()),
        CpuStorage::BF16(data) => (DType::BF16, data.as_ptr().cast()),
        CpuStorage::F16(data) => (DType::F16, data.as_ptr().cast()),
        CpuStorage::F32(data) => (DType::F32, data.as_ptr().cast()),
        CpuStorage::F64(data) => (DType::F64, data.as_ptr().cast()),
        CpuStorage::F8E4M3(data) => (DType::F8_E4M3FN, data.as_ptr().cast()),
        CpuStorage::F8E8M0(data) => (DType::F8_E8M0FNU, data.as_ptr()),
        CpuStorage::F6E2M3(_) | CpuStorage::F6E3M2(_) | CpuStorage::F4(_) => {
            return Err(Error::invalid("elements of the tensor of candle have less than a byte"));
        }
    };
    let layout = Layout::strided(dtype, DLDevice::CPU, &shape, &strides)?;
    let data = data.wrapping_add(start * dtype.itemsize());
    let flags = ExportFlags { read_only: true, ..ExportFlags::default() };
    // SAFETY: the tensor describes initialized elements of its own memory. The guard keeps them unchanged until the owner is called, which
    // drops guard and tensor; no consumer writes through the pointer, since the tensor is read-only.
    Ok(unsafe { export(&layout, data.cast_mut().cast(), flags, Abi::Versioned, move || drop(tensor)) })
}
