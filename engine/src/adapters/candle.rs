//! candle: tensors on the processor become read-only tensors without a copy, and operands become candle's
//! tensors by a copy, as candle's memory always belongs to candle.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Weak};

use candle_core::{CpuStorage, CustomOp1, Device, Shape, Storage, StorageRef, WithDType};
use estafette_devices::DLDevice;
use estafette_sync::per_process;
use estafette_sync::sync::Mutex;

use crate::core::error::Error;
use crate::engine::Engine;
use crate::exchange::{Abi, DType, Element, ExportFlags, Layout, ManagedTensor, export};
use crate::operation::import::Produced;
use crate::tensor::handle::Tensor;
use crate::tensor::views::View;

impl Engine {
    /// A read-only tensor in the memory of `tensor`, with its shape and strides. Until the last use of it is
    /// over, candle's operations that write this memory in place wait; its other operations do not.
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
    /// [`Error::Shutdown`] and [`Error::Forked`]; [`Error::Invalid`] for a tensor that is not on the
    /// processor, or whose elements have less than a byte.
    pub fn from_candle(&self, tensor: candle_core::Tensor) -> Result<Tensor, Error> {
        let managed = managed(tensor)?;
        // SAFETY: the tensor was made just now from one that keeps its memory alive and unchanged, and it is
        // read-only.
        unsafe { self.import(managed) }
    }
}

/// The memory of a tensor, which must not be written, with its shape and strides. Fails as
/// [`Engine::from_candle`].
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

/// Memory of candle that no operation writes, shared by all tensors that refer to it: the lock is fair, so a
/// second guard would wait for a writer that waits for the first.
struct ReadLocked {
    /// Refers to memory of `_tensor`, so it is dropped first.
    storage: StorageRef<'static>,
    _tensor: candle_core::Tensor,
    key: usize,
}

/// The place of a memory's guard, for all imports of that memory. The lock is held while a guard is waited
/// for, so that all of them get the same one.
type GuardSlot = Mutex<Weak<ReadLocked>>;

per_process! {
    /// The guards that exist or are waited for, by the address of the memory's owner.
    static SLOTS: Mutex<BTreeMap<usize, Arc<GuardSlot>>> = Mutex::new(BTreeMap::new());
}

impl ReadLocked {
    fn of(tensor: candle_core::Tensor) -> Result<Arc<Self>, Error> {
        let key = address_of_storage(&tensor)?;
        let slot = Arc::clone(SLOTS.lock().entry(key).or_default());
        let mut known = slot.lock();
        if let Some(locked) = known.upgrade() {
            return Ok(locked);
        }
        let locked = Arc::new(Self::new(tensor, key));
        *known = Arc::downgrade(&locked);
        Ok(locked)
    }

    fn new(tensor: candle_core::Tensor, key: usize) -> Self {
        let (storage, _) = tensor.storage_and_layout();
        // SAFETY: the lock is in memory that the tensor keeps alive and that does not move with it. The guard
        // is dropped before the tensor.
        let storage = unsafe { mem::transmute::<StorageRef<'_>, StorageRef<'static>>(storage) };
        Self { storage, _tensor: tensor, key }
    }
}

impl Drop for ReadLocked {
    fn drop(&mut self) {
        let mut slots = SLOTS.lock();
        // A slot that only the map has is locked by no thread. Another guard may be in it by now.
        if let Some(slot) = slots.get(&self.key)
            && Arc::strong_count(slot) == 1
            && slot.lock().strong_count() == 0
        {
            slots.remove(&self.key);
        }
    }
}

/// An operation of candle that leaves the address of its operand. Candle's operations pass writers that wait,
/// which no public function does that only locks.
#[derive(Default)]
struct LeaveAddress(Cell<usize>);

impl CustomOp1 for LeaveAddress {
    fn name(&self) -> &'static str {
        "estafette"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        _: &candle_core::Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        self.0.set(std::ptr::from_ref(storage).addr());
        Ok((CpuStorage::U8(Vec::new()), Shape::from(0)))
    }
}

/// The owner of a tensor's memory. Several tensors may have the same.
fn address_of_storage(tensor: &candle_core::Tensor) -> Result<usize, Error> {
    let left = LeaveAddress::default();
    match tensor.apply_op1_no_bwd(&left) {
        Ok(_nothing) => Ok(left.0.get()),
        Err(_) => Err(Error::invalid("the tensor of candle is not on the processor")),
    }
}

fn managed(tensor: candle_core::Tensor) -> Result<ManagedTensor, Error> {
    let signed = |sizes: &[usize]| sizes.iter().map(|&size| size as i64).collect::<Vec<_>>();
    let (shape, strides) = (signed(tensor.dims()), signed(tensor.stride()));
    let start = tensor.layout().start_offset();
    let tensor = ReadLocked::of(tensor)?;
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
    // SAFETY: the tensor describes initialized elements of its own memory. The guard keeps them unchanged
    // until the owner is called, which drops guard and tensor; no consumer writes through the pointer, since
    // the tensor is read-only.
    Ok(unsafe { export(&layout, data.cast_mut().cast(), flags, Abi::Versioned, move || drop(tensor)) })
}
