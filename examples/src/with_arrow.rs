//! The adapter for arrow, whose arrays share their memory with any owner that keeps it alive.
//!
//! An arrow buffer needs an owner that lives as long as the buffer, so it borrows not a view but a DLPack
//! tensor: a *lease*. Writers wait until arrow has dropped its last reference to the memory.

use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::{Array, Float32Array};
use arrow_buffer::{Buffer, ScalarBuffer};
use estafette::devices::DLDevice;
use estafette::exchange::{Abi, ExportFlags, export};
use estafette::{Access, DType, ExportOptions, Layout, ManagedTensor, Scope, Tensor};

use crate::{Result, Trail};

/// Wraps an array as a DLPack tensor of this shape (arrow itself knows only one dimension). The deleter drops
/// the array.
///
/// Arrow's memory is immutable and may be shared, so the tensor is read-only.
///
/// # Errors
/// The array has nulls, which DLPack cannot describe, or another number of elements than the shape.
pub fn to_dlpack(array: Float32Array, shape: &[i64], trail: &Trail) -> Result<ManagedTensor> {
    let layout = Layout::contiguous(DType::F32, DLDevice::CPU, shape)?;
    if array.null_count() > 0 {
        return Err("DLPack has no nulls".into());
    }
    if layout.len() != array.len() {
        return Err(format!("{} elements do not fill shape {shape:?}", array.len()).into());
    }
    let data = array.values().as_ptr();
    trail.starts(data);
    let trail = trail.clone();
    let owner = move || {
        drop(array);
        trail.ends();
    };
    let flags = ExportFlags { read_only: true, ..ExportFlags::default() };
    // SAFETY: the array holds as many initialized elements as the layout has, and it keeps them alive,
    // unchanged, until `owner` is called; no consumer writes through the pointer, since the tensor is
    // read-only.
    Ok(unsafe { export(&layout, data.cast_mut().cast(), flags, Abi::Versioned, owner) })
}

/// An operand of the running operation as an arrow array. The array belongs to the operation; an array that
/// outlives the operation becomes a lease.
///
/// # Errors
/// The operation does not read `operand`, or writes it; the tensor is not a contiguous one of `f32` on the
/// host.
pub fn borrow_operand(scope: &Scope, operand: &Tensor, trail: &Trail) -> Result<Float32Array> {
    if scope.access_of(operand) != Some(Access::Read) {
        return Err(
            "arrow arrays are immutable, so the operation must read this tensor and not write it".into()
        );
    }
    let lent = scope.export(operand, &ExportOptions::new(Access::Read))?;
    // SAFETY: the operation was granted read access, which the export prolongs until it is dropped.
    unsafe { borrow(lent, trail) }
}

/// A tensor as an arrow array, once it is ready. Writers wait until the array is dropped.
///
/// # Errors
/// The tensor failed, or is not a contiguous one of `f32` on the host.
pub async fn lease(tensor: &Tensor, trail: &Trail) -> Result<Float32Array> {
    let lent = tensor.export(Access::Read).await?;
    // SAFETY: the tensor is ready, and the read lease keeps writers away until the export is dropped.
    unsafe { borrow(lent, trail) }
}

/// # Safety
/// The memory must be initialized, and no code may write it until `lent` is dropped.
unsafe fn borrow(lent: ManagedTensor, trail: &Trail) -> Result<Float32Array> {
    let layout = lent.describe()?;
    let host = layout.device() == DLDevice::CPU;
    let Some(data) = NonNull::new(lent.data()).filter(|_| host && !layout.is_empty()) else {
        return Err(format!("arrow cannot borrow {} elements on {}", layout.len(), layout.device()).into());
    };
    let len = layout.check_slice::<f32>(data.as_ptr())?;
    // The owner only has to be dropped; arrow asks for unwind safety because it cannot know that.
    let owner = Arc::new(AssertUnwindSafe(lent));
    // SAFETY: `check_slice` has found `len` contiguous, aligned elements there. They stay where they are, and
    // unwritten as the caller promises, until `owner` is dropped, which the buffer does last.
    let buffer = unsafe { Buffer::from_custom_allocation(data, len * size_of::<f32>(), owner) };
    let array = Float32Array::new(ScalarBuffer::new(buffer, 0, len), None);
    trail.crosses(array.values().as_ptr(), len);
    Ok(array)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use estafette::{Engine, Error};

    use super::*;
    use crate::Ledger;

    #[test]
    fn nulls_and_wrong_shapes_are_refused_before_anything_is_handed_over() {
        let ledger = Ledger::default();
        assert!(to_dlpack(Float32Array::from(vec![Some(1.0), None]), &[2], &ledger.trail()).is_err());
        assert!(to_dlpack(Float32Array::from(vec![1.0, 2.0]), &[3], &ledger.trail()).is_err());
        assert_eq!(ledger.totals().handed_over, 0);
    }

    #[test]
    fn a_leased_array_keeps_writers_waiting_until_it_is_dropped() {
        let ledger = Ledger::default();
        let engine = Engine::builder().workers(1).build().unwrap();
        let x = engine.from_vec(vec![1.0_f32, 2.0], &[2]).unwrap();
        let trail = ledger.trail();
        trail.starts(x.data_ptr().unwrap());
        let array = futures::executor::block_on(lease(&x, &trail)).unwrap();
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
        assert_eq!(ledger.totals().copies, 0);
    }

    #[test]
    fn arrow_memory_cannot_be_written_by_operations() {
        let ledger = Ledger::default();
        let engine = Engine::builder().workers(1).build().unwrap();
        let managed = to_dlpack(Float32Array::from(vec![1.0, 2.0]), &[2], &ledger.trail()).unwrap();
        // SAFETY: fresh memory, owned by the tensor.
        let x = unsafe { engine.import(managed) }.unwrap();
        let refused = engine.op("clear").writes([&x]).run(|[], [_]| Ok(()));
        assert!(matches!(refused, Err(Error::Conflict(_))));
    }
}
