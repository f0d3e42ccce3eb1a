//! The adapter for ndarray, which can own memory and borrow it.

use estafette::devices::DLDevice;
use estafette::exchange::{Abi, ExportFlags, export};
use estafette::{Element, Engine, Layout, ManagedTensor, Tensor, View, ViewMut};
use ndarray::{Array, ArrayView, ArrayViewMut, Dimension, IxDyn};

use crate::{Result, Trail};

/// Wraps an array as a DLPack tensor that owns it. The deleter drops the array.
pub fn to_dlpack<T: Element, D: Dimension + 'static>(
    mut array: Array<T, D>,
    trail: &Trail,
) -> Result<ManagedTensor> {
    let shape: Vec<i64> = array.shape().iter().map(|&size| size as i64).collect();
    let strides: Vec<i64> = array.strides().iter().map(|&stride| stride as i64).collect();
    let layout = Layout::strided(T::DTYPE, DLDevice::CPU, &shape, &strides)?;
    let data = array.as_mut_ptr();
    trail.starts(data);
    let trail = trail.clone();
    let owner = move || {
        drop(array);
        trail.ends();
    };
    // SAFETY: the array owns initialized memory as its own shape and strides describe it. It moves into
    // `owner`, which leaves the memory at its address and gives no other code access to it until the deleter
    // is called.
    Ok(unsafe { export(&layout, data.cast(), ExportFlags::default(), Abi::Versioned, owner) })
}

/// Hands an array over to the engine: a tensor at the same address.
pub fn import<T: Element, D: Dimension + 'static>(
    engine: &Engine,
    array: Array<T, D>,
    trail: &Trail,
) -> Result<Tensor> {
    let len = array.len();
    let managed = to_dlpack(array, trail)?;
    // SAFETY: the tensor was made just now from an array that no other code can reach any more.
    let tensor = unsafe { engine.import(managed) }?;
    trail.crosses(tensor.data_ptr()?.cast::<T>(), len);
    Ok(tensor)
}

/// An operand that the running operation reads, as an ndarray view of the same memory.
pub fn view<'a, T: Element, D: Dimension>(operand: &View<'a>, trail: &Trail) -> Result<ArrayView<'a, T, D>> {
    // `as_slice` checks type, alignment and device, so only the shape is left to ndarray.
    let view = ArrayView::from_shape(dimension(operand.shape()), operand.as_slice::<T>()?)?;
    trail.crosses(view.as_ptr(), view.len());
    Ok(view.into_dimensionality::<D>()?)
}

/// An operand that the running operation writes, as an ndarray view of the same memory.
pub fn view_mut<'a, T: Element, D: Dimension>(
    operand: &'a mut ViewMut<'_>,
    trail: &Trail,
) -> Result<ArrayViewMut<'a, T, D>> {
    let shape = dimension(operand.shape());
    let view = ArrayViewMut::from_shape(shape, operand.as_mut_slice::<T>()?)?;
    trail.crosses(view.as_ptr(), view.len());
    Ok(view.into_dimensionality::<D>()?)
}

/// Converts a shape. Sizes of tensors are never negative.
fn dimension(shape: &[i64]) -> IxDyn {
    IxDyn(&shape.iter().map(|&size| size as usize).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ndarray::{Array2, Ix2, ShapeBuilder, array};

    use super::*;
    use crate::Ledger;

    #[test]
    fn an_array_keeps_its_address_and_is_dropped_once() {
        let ledger = Ledger::default();
        let engine = Engine::builder().workers(1).build().unwrap();
        let trail = ledger.trail();
        let x = import(&engine, array![[1.0_f32, 2.0], [3.0, 4.0]], &trail).unwrap();
        let double = engine.op("double").updates([&x]).run(move |[], [], [mut x]| {
            view_mut::<f32, Ix2>(&mut x, &trail)?.mapv_inplace(|x| 2.0 * x);
            Ok(())
        });
        double.unwrap().wait().unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ledger.totals().given_back, 0);
        drop(x);
        let since = Instant::now();
        while ledger.totals().given_back == 0 && since.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        let totals = ledger.totals();
        assert_eq!((totals.handed_over, totals.given_back), (1, 1));
        assert_eq!((totals.crossings, totals.copies), (2, 0));
    }

    #[test]
    fn strides_are_described_as_they_are() {
        let ledger = Ledger::default();
        let columns = Array2::from_shape_vec((2, 3).f(), vec![1.0_f64, 4.0, 2.0, 5.0, 3.0, 6.0]).unwrap();
        let managed = to_dlpack(columns, &ledger.trail()).unwrap();
        assert_eq!(managed.describe().unwrap().strides(), [1, 2]);
        drop(managed);
        assert_eq!(ledger.totals().given_back, 1);
    }
}
