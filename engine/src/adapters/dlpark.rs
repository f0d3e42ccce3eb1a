//! dlpark: its managed tensors become ours and the other way round, without a copy.

use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};
use dlpark::{Managed, ManagedTensorBase, legacy, versioned};

use crate::core::invalid_tensor::InvalidTensor;
use crate::exchange::ManagedTensor;

impl ManagedTensor {
    /// Adopts a tensor of dlpark, whose own features make such tensors of the arrays of candle, image and safetensors.
    ///
    /// ```
    /// use dlpark::ffi::{DLDataType, DLDevice, DLManagedTensorVersioned};
    /// use dlpark::metadata::Fixed;
    /// use estafette::{Access, Engine, ManagedTensor};
    ///
    /// let mut values = Box::new([1.0_f32, 2.0]);
    /// let data = values.as_mut_ptr().cast();
    /// let mut tensor = Fixed::new([2], [1]).prepare_as::<DLManagedTensorVersioned>()?.initialize(values);
    /// tensor.set_data(data).set_dtype(DLDataType::F32).set_device(DLDevice::CPU);
    ///
    /// let engine = Engine::new()?;
    /// // SAFETY: the tensor describes the elements of the box that it owns.
    /// let x = unsafe { engine.import(ManagedTensor::from_dlpark(tensor.finish())?) }?;
    /// let double = engine.op("double").updates([&x]).run(|[], [], [mut x]| {
    ///     x.as_mut_slice::<f32>()?.iter_mut().for_each(|x| *x *= 2.0);
    ///     Ok(())
    /// })?;
    /// let lease = futures::executor::block_on(x.export(Access::Read))?.into_dlpark().expect("versioned");
    /// // SAFETY: the lease keeps writers away.
    /// assert_eq!(unsafe { lease.validate()?.cpu_slice::<f32>() }?, [2.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`from_raw_versioned`](Self::from_raw_versioned).
    ///
    /// # Safety
    /// The memory that the tensor describes exists, and stays valid until the deleter is called.
    pub unsafe fn from_dlpark(tensor: versioned::Dlpack) -> Result<Self, InvalidTensor> {
        // SAFETY: dlpark has owned a valid struct with such a deleter; the caller says the rest.
        unsafe { Self::from_raw_versioned(tensor.into_raw().cast()) }
    }

    /// As [`from_dlpark`](Self::from_dlpark), for the struct without a version.
    ///
    /// # Safety
    /// As for [`from_dlpark`](Self::from_dlpark).
    pub unsafe fn from_dlpark_legacy(tensor: legacy::Dlpack) -> Self {
        // SAFETY: as in `from_dlpark`.
        unsafe { Self::from_raw_legacy(tensor.into_raw().cast()) }.expect("dlpark owns no NULL")
    }

    /// Gives the tensor to dlpark.
    ///
    /// # Errors
    /// It is a legacy tensor, and comes back.
    pub fn into_dlpark(self) -> Result<versioned::Dlpack, Self> {
        self.into_raw_versioned().map(|raw| owned::<DLManagedTensorVersioned>(raw.cast()))
    }

    /// Gives a legacy tensor to dlpark.
    ///
    /// # Errors
    /// It is a versioned tensor, and comes back.
    pub fn into_dlpark_legacy(self) -> Result<legacy::Dlpack, Self> {
        self.into_raw_legacy().map(|raw| owned::<DLManagedTensor>(raw.cast()))
    }
}

fn owned<M: ManagedTensorBase>(raw: *mut M) -> Managed<M> {
    // SAFETY: a `ManagedTensor` has given up ownership of the struct, which keeps the same promises.
    let owned = unsafe { Managed::from_raw(raw) };
    owned.expect("a managed tensor is not NULL, and of the major version that dlpark knows")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dlpark::ffi::{DLDataType, DLDevice};
    use dlpark::metadata::Fixed;

    use super::*;
    use crate::exchange::Abi;
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
                ManagedTensor::from_dlpark(foreign(&alive)).unwrap(),
                ManagedTensor::from_dlpark_legacy(foreign(&alive)),
            ]
        };
        for managed in managed {
            // SAFETY: the memory is ready, and only the engine uses it.
            let x = unsafe { engine.import(managed) }.unwrap();
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
        let legacy = ExportOptions { abi: Abi::Legacy, ..ExportOptions::new(Access::Write) };
        let Err(managed) = x.export_wait(&legacy).unwrap().into_dlpark() else { panic!("a legacy tensor") };
        let lent = managed.into_dlpark_legacy().unwrap();
        let read = engine.op("read").reads([&x]).run(|[_], []| Ok(())).unwrap();
        assert!(!read.is_done());
        drop(lent);
        read.wait().unwrap();
        let lent = x.export_wait(&ExportOptions::new(Access::Read)).unwrap().into_dlpark().unwrap();
        assert_eq!(lent.validate().unwrap().shape(), [3]);
    }
}
