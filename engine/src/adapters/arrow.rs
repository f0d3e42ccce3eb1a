//! arrow: primitive arrays become read-only tensors, and read leases become primitive arrays.
//!
//! An arrow buffer needs an owner that lives as long as the buffer, so it borrows no view but a DLPack
//! tensor: a lease. Writers wait until arrow has dropped its last reference to the memory.

use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::{Array, ArrowPrimitiveType, PrimitiveArray};
use arrow_buffer::{Buffer, ScalarBuffer};
use estafette_devices::DLDevice;

use crate::core::error::Error;
use crate::engine::Engine;
use crate::exchange::{Abi, Element, ExportFlags, ManagedTensor, export};
use crate::export::ExportOptions;
use crate::lease::Access;
use crate::operation::completion::Scope;
use crate::operation::import::{Produced, filled};
use crate::tensor::handle::Tensor;
use crate::tensor::views::OnQueue;

impl Engine {
    /// A read-only tensor of this shape in the memory of `array`; arrow itself knows one dimension. The array
    /// is dropped when the tensor's last use is over.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the array has nulls, which DLPack cannot describe, or another number of
    /// elements than the shape.
    pub fn from_arrow<T>(&self, array: PrimitiveArray<T>, shape: &[i64]) -> Result<Tensor, Error>
    where
        T: ArrowPrimitiveType<Native: Element>,
    {
        let managed = managed(array, shape)?;
        // SAFETY: the tensor was made just now from an array that keeps its memory alive and unchanged, and
        // the tensor is read-only.
        unsafe { self.import(managed) }
    }
}

/// The memory of an array, which must not be written, with a shape. Fails as [`Engine::from_arrow`].
impl<T: ArrowPrimitiveType<Native: Element>> TryFrom<(PrimitiveArray<T>, &[i64])> for Produced {
    type Error = Error;

    fn try_from((array, shape): (PrimitiveArray<T>, &[i64])) -> Result<Self, Error> {
        managed(array, shape).map(Self::from)
    }
}

impl Scope {
    /// An operand that the operation reads, as an array. The array belongs to the operation; an array that
    /// outlives the operation is a lease. In a node of a program it is of a copy: nodes that write the tensor
    /// later do not wait for it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the operation does not read `operand` or writes it, when the tensor is not a
    /// contiguous one of the array's type on the host, and on a queue while device work that the queue comes
    /// after is pending there; [`Error::Conflict`] when the operation writes another operand that overlaps
    /// it.
    pub fn arrow<T>(&self, operand: &Tensor) -> Result<PrimitiveArray<T>, Error>
    where
        T: ArrowPrimitiveType<Native: Element>,
    {
        if self.access_of(operand) != Some(Access::Read) {
            let message = "arrow arrays are immutable: the operation must read this tensor and not write it";
            return Err(Error::invalid(message));
        }
        let copy = self.is_of_node();
        if !copy {
            self.check_unwritten(operand)?;
            if self.queue().is_some() {
                OnQueue { tensor: &operand.inner, earlier_nodes: None }.check_settled(false)?;
            }
        }
        let lent = self.export(operand, &ExportOptions { copy, ..ExportOptions::from(Access::Read) })?;
        // SAFETY: the operation was granted read access, which the export prolongs until it is dropped; or
        // the memory is a copy.
        unsafe { borrow(lent) }
    }
}

impl Tensor {
    /// The tensor as an array, once it is ready. Writers wait until the array is dropped.
    ///
    /// # Errors
    /// Errors of [`export`](Self::export); [`Error::Invalid`] when the tensor is not contiguous, of the
    /// array's type, and on the host.
    pub async fn lease_arrow<T>(&self) -> Result<PrimitiveArray<T>, Error>
    where
        T: ArrowPrimitiveType<Native: Element>,
    {
        let lent = self.export(Access::Read).await?;
        // SAFETY: the tensor is ready, and the read lease keeps writers away until the export is dropped.
        unsafe { borrow(lent) }
    }
}

fn managed<T>(array: PrimitiveArray<T>, shape: &[i64]) -> Result<ManagedTensor, Error>
where
    T: ArrowPrimitiveType<Native: Element>,
{
    if array.null_count() > 0 {
        return Err(Error::invalid("the array has nulls, which DLPack cannot describe"));
    }
    let layout = filled::<T::Native>(array.len(), DLDevice::CPU, shape)?;
    let data = array.values().as_ptr();
    let flags = ExportFlags { read_only: true, ..ExportFlags::default() };
    // SAFETY: the array holds as many initialized elements as the layout has, and it keeps them alive,
    // unchanged, until the owner is called, which drops it; no consumer writes through the pointer, since the
    // tensor is read-only.
    Ok(unsafe { export(&layout, data.cast_mut().cast(), flags, Abi::Versioned, move || drop(array)) })
}

/// # Safety
/// The memory must be initialized, and no code may write it until `lent` is dropped.
unsafe fn borrow<T>(lent: ManagedTensor) -> Result<PrimitiveArray<T>, Error>
where
    T: ArrowPrimitiveType<Native: Element>,
{
    let layout = lent.describe()?;
    if layout.device() != DLDevice::CPU {
        return Err(Error::invalid(format!("arrow cannot borrow memory on {}", layout.device())));
    }
    let len = layout.check_slice::<T::Native>(lent.data())?;
    let Some(data) = NonNull::new(lent.data()).filter(|_| len > 0) else {
        return Ok(PrimitiveArray::new(ScalarBuffer::from(Vec::new()), None));
    };
    // The owner only has to be dropped; arrow asks for unwind safety because it cannot know that.
    let owner = Arc::new(AssertUnwindSafe(lent));
    // SAFETY: `check_slice` has found `len` contiguous, aligned elements there. They stay where they are, and
    // unwritten as the caller promises, until `owner` is dropped, which the buffer does last.
    let buffer = unsafe { Buffer::from_custom_allocation(data, len * size_of::<T::Native>(), owner) };
    Ok(PrimitiveArray::new(ScalarBuffer::new(buffer, 0, len), None))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow_array::Float32Array;
    use arrow_array::types::Float32Type;
    use estafette_devices::Device;
    use estafette_devices::sim::{SimDevice, SimOptions, SimQueue};

    use super::*;
    use crate::operation::completion::Completion;

    fn engine() -> Engine {
        Engine::builder().workers(1).build().unwrap()
    }

    #[test]
    fn nulls_and_wrong_shapes_are_refused() {
        assert!(engine().from_arrow(Float32Array::from(vec![Some(1.0), None]), &[2]).is_err());
        assert!(engine().from_arrow(Float32Array::from(vec![1.0, 2.0]), &[3]).is_err());
    }

    #[test]
    fn a_leased_array_keeps_writers_waiting_until_it_is_dropped() {
        let engine = engine();
        let x = engine.from_vec(vec![1.0_f32, 2.0], &[2]).unwrap();
        let array = futures::executor::block_on(x.lease_arrow::<Float32Type>()).unwrap();
        assert_eq!(array.values().as_ptr(), x.data_ptr().unwrap().cast::<f32>());
        let write = engine.op("clear").writes([&x]).run(|[], [mut x]| {
            x.as_mut_slice::<f32>()?.fill(0.0);
            Ok(())
        });
        let write = write.unwrap();
        assert!(!write.is_done());
        assert_eq!(array.values(), &[1.0, 2.0]);
        drop(array);
        write.wait_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [0.0, 0.0]);
    }

    #[test]
    fn what_a_node_of_a_program_keeps_is_not_written_by_later_nodes() {
        let engine = engine();
        let x = engine.from_vec(vec![1.0_f32, 2.0], &[2]).unwrap();
        let kept = Arc::new(std::sync::Mutex::new(None));
        let (place, operand) = (Arc::clone(&kept), x.clone());
        let mut program = engine.program("keeps");
        let node = program.op("keep").reads([&x]).run_external(move |end| {
            *place.lock().unwrap() = Some(end.scope().arrow::<Float32Type>(&operand).unwrap());
            end.complete(Ok(()));
        });
        node.unwrap();
        let node = program.op("write").updates([&x]).run(|[], [], [mut x]| {
            x.as_mut_slice::<f32>()?.fill(9.0);
            Ok(())
        });
        node.unwrap();
        program.finish().unwrap().replay().unwrap().wait().unwrap();
        assert_eq!(kept.lock().unwrap().as_ref().unwrap().values(), &[1.0, 2.0]);
        assert_eq!(x.to_vec::<f32>().unwrap(), [9.0, 9.0]);
    }

    #[test]
    fn memory_that_something_still_writes_is_no_array() {
        let device = SimDevice::new(SimOptions::default()).unwrap();
        let engine = Engine::builder().workers(1).device(device.clone()).build().unwrap();
        let [first, second] = [(); 2].map(|()| device.create_queue().unwrap());
        let memory: &'static mut [f32] = Box::leak(Box::new([1.0; 2]));
        let start = memory.as_mut_ptr();
        let [x, y] = [(); 2].map(|()| {
            let layout = filled::<f32>(2, DLDevice::CPU, &[2]).unwrap();
            // SAFETY: memory that is never freed, and that only the engine uses.
            unsafe {
                engine.import(export(&layout, start.cast(), ExportFlags::default(), Abi::Versioned, || ()))
            }
            .unwrap()
        });
        let takes = |operand: &Tensor| {
            let operand = operand.clone();
            move |end: Completion| {
                let refused = end.scope().arrow::<Float32Type>(&operand);
                end.complete(refused.map(drop).map_err(Into::into));
            }
        };
        let both = engine.op("both").reads([&x]).writes([&y]).run_external(takes(&x)).unwrap();
        assert!(both.wait().unwrap_err().to_string().contains("overlap"));
        x.clear_error().unwrap();
        engine
            .op("write")
            .updates([&x])
            .on(&first)
            .run_on(|queue, [], [], [_x]| {
                Ok(SimQueue::from_queue(queue).unwrap().launch("write", 10, || ())?)
            })
            .unwrap();
        let early = engine.op("early").reads([&x]).on(&second).run_external(takes(&x)).unwrap();
        assert!(early.wait().unwrap_err().to_string().contains("pending"));
        device.run_until_idle();
        engine.op("late").reads([&x]).on(&second).run_external(takes(&x)).unwrap().wait().unwrap();
        device.run_until_idle();
    }

    #[test]
    fn arrow_memory_cannot_be_written_by_operations() {
        let engine = engine();
        let x = engine.from_arrow(Float32Array::from(vec![1.0, 2.0]), &[2]).unwrap();
        let refused = engine.op("clear").writes([&x]).run(|[], [_]| Ok(()));
        assert!(matches!(refused, Err(Error::Conflict(_))));
    }
}
