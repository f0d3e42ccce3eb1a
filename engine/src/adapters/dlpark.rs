//! dlpark: its managed tensors become ours and the other way round, without a copy.

use dlpark::{Managed, ManagedTensorBase, legacy, versioned};

use crate::exchange::{Abi, ManagedTensor};

/// A tensor for dlpark, whose own features make such tensors of the arrays of candle, image and safetensors.
/// Their structs come in by [`ManagedTensor::from_raw`].
///
/// ```
/// use dlpark::ffi::{DLDataType, DLDevice, DLManagedTensorVersioned};
/// use dlpark::metadata::Fixed;
/// use estafette::exchange::Abi;
/// use estafette::{Access, Engine, ManagedTensor};
///
/// let mut values = Box::new([1.0_f32, 2.0]);
/// let data = values.as_mut_ptr().cast();
/// let mut tensor = Fixed::new([2], [1]).prepare_as::<DLManagedTensorVersioned>()?.initialize(values);
/// tensor.set_data(data).set_dtype(DLDataType::F32).set_device(DLDevice::CPU);
///
/// let engine = Engine::new()?;
/// // SAFETY: the tensor describes the elements of the box that it owns.
/// let managed = unsafe { ManagedTensor::from_raw(tensor.finish().into_raw().cast(), Abi::Versioned) }?;
/// // SAFETY: as above.
/// let x = unsafe { engine.import(managed) }?;
/// let double = engine.op("double").updates([&x]).run(|[], [], [mut x]| {
///     x.as_mut_slice::<f32>()?.iter_mut().for_each(|x| *x *= 2.0);
///     Ok(())
/// })?;
/// let lent = futures::executor::block_on(x.export(Access::Read))?;
/// let lease = dlpark::versioned::Dlpack::try_from(lent).expect("versioned");
/// // SAFETY: the lease keeps writers away.
/// assert_eq!(unsafe { lease.validate()?.cpu_slice::<f32>() }?, [2.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A legacy tensor comes back.
impl TryFrom<ManagedTensor> for versioned::Dlpack {
    type Error = ManagedTensor;

    fn try_from(tensor: ManagedTensor) -> Result<Self, ManagedTensor> {
        if tensor.abi() == Abi::Versioned { Ok(owned(tensor)) } else { Err(tensor) }
    }
}

/// A legacy tensor for dlpark. A versioned one comes back.
impl TryFrom<ManagedTensor> for legacy::Dlpack {
    type Error = ManagedTensor;

    fn try_from(tensor: ManagedTensor) -> Result<Self, ManagedTensor> {
        if tensor.abi() == Abi::Legacy { Ok(owned(tensor)) } else { Err(tensor) }
    }
}

/// The struct of `tensor`, which is of this kind.
fn owned<M: ManagedTensorBase>(tensor: ManagedTensor) -> Managed<M> {
    // SAFETY: the callers have looked at the kind. A `ManagedTensor` gives up ownership of the struct, which
    // keeps the same promises.
    let owned = unsafe { Managed::from_raw(tensor.into_raw().cast()) };
    owned.expect("a managed tensor is not NULL, and of the major version that dlpark knows")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dlpark::ffi::{DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned};
    use dlpark::metadata::Fixed;

    use super::*;
    use crate::{Access, Engine, ExportOptions};

    /// A tensor of three numbers, which owns a count of `alive`.
    fn foreign<M: ManagedTensorBase>(alive: &Arc<()>) -> Managed<M> {
        let mut owner = Box::new(([1_i32, 2, 3], Arc::clone(alive)));
        let data = owner.0.as_mut_ptr().cast();
        let mut tensor = Fixed::new([3], [1]).prepare_as::<M>().unwrap().initialize(owner);
        tensor.set_data(data).set_dtype(DLDataType::I32).set_device(DLDevice::CPU);
        // SAFETY: it describes the three numbers that it owns.
        unsafe { tensor.finish() }
    }

    #[test]
    fn tensors_of_both_structs_come_in_and_are_dropped_once() {
        let alive = Arc::new(());
        let engine = Engine::builder().workers(1).build().unwrap();
        // SAFETY: as in `foreign`.
        let managed = unsafe {
            [
                ManagedTensor::from_raw(
                    foreign::<DLManagedTensorVersioned>(&alive).into_raw().cast(),
                    Abi::Versioned,
                ),
                ManagedTensor::from_raw(foreign::<DLManagedTensor>(&alive).into_raw().cast(), Abi::Legacy),
            ]
        };
        for managed in managed {
            // SAFETY: the memory is ready, and only the engine uses it.
            let x = unsafe { engine.import(managed.unwrap()) }.unwrap();
            assert_eq!(x.to_vec::<i32>().unwrap(), [1, 2, 3]);
        }
        drop(engine);
        while Arc::strong_count(&alive) > 1 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn tensors_of_both_structs_go_out_under_a_lease() {
        let engine = Engine::builder().workers(1).build().unwrap();
        let x = engine.from_vec(vec![1_i32, 2, 3], &[3]).unwrap();
        let old = ExportOptions { abi: Abi::Legacy, ..ExportOptions::from(Access::Write) };
        let managed = versioned::Dlpack::try_from(x.export_wait(&old).unwrap());
        let lent = legacy::Dlpack::try_from(managed.err().expect("a legacy tensor")).unwrap();
        let read = engine.op("read").reads([&x]).run(|[_], []| Ok(())).unwrap();
        assert!(!read.is_done());
        drop(lent);
        read.wait().unwrap();
        let lent = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
        let lent = versioned::Dlpack::try_from(lent).unwrap();
        assert_eq!(lent.validate().unwrap().shape(), [3]);
    }
}
