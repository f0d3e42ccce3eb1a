//! ndarray: arrays that own memory become tensors, and operands become views.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use estafette_devices::DLDevice;
use ndarray::{Array, ArrayView, ArrayViewMut, Axis, Dimension, IxDyn, RawArrayViewMut, ShapeBuilder};

use crate::core::error::Error;
use crate::engine::Engine;
use crate::exchange::storage::Storage;
use crate::exchange::{DType, Element, Layout};
use crate::operation::import::{self, Produced};
use crate::tensor::handle::{Definition, Tensor};
use crate::tensor::views::{View, ViewMut};

impl Engine {
    /// A tensor in the memory of `array`, with the array's shape and strides. The array is dropped when the
    /// tensor's last use is over.
    ///
    /// ```
    /// use estafette::{Engine, Error, Produced};
    /// use ndarray::{Axis, Ix2, array};
    ///
    /// let engine = Engine::new()?;
    /// let x = engine.from_ndarray(array![[1.0_f32, 2.0], [3.0, 4.0]])?;
    /// let sums = engine.op("sums").reads([&x]).produce(|[x]| {
    ///     let sums = x.as_ndarray::<f32, Ix2>()?.sum_axis(Axis(1));
    ///     Ok(Produced::try_from(sums)?)
    /// })?;
    /// sums.wait()?;
    /// assert_eq!(sums.to_vec::<f32>()?, [3.0, 7.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shutdown`] and [`Error::Forked`]; [`Error::InvalidTensor`] for a shape that no tensor has.
    pub fn from_ndarray<T: Element, D: Dimension + 'static>(
        &self,
        array: Array<T, D>,
    ) -> Result<Tensor, Error> {
        self.core().check_usable()?;
        let (layout, storage) = parts(array)?;
        Ok(import::own(self.core(), layout, storage))
    }
}

/// The memory of an array, with its shape and strides. Fails with [`Error::InvalidTensor`] for a shape that
/// no tensor has.
impl<T: Element, D: Dimension + 'static> TryFrom<Array<T, D>> for Produced {
    type Error = Error;

    fn try_from(array: Array<T, D>) -> Result<Self, Error> {
        parts(array).map(|(layout, storage)| Self::ready(layout, storage))
    }
}

impl<'a> View<'a> {
    /// The elements as an array of the same shape and strides.
    ///
    /// # Errors
    /// As [`as_slice`](Self::as_slice), but for contiguity; [`Error::Invalid`] when `D` has another number of
    /// dimensions.
    pub fn as_ndarray<T: Element, D: Dimension>(&self) -> Result<ArrayView<'a, T, D>, Error> {
        self.check_host()?;
        // SAFETY: `elements` checks type and place, and that the bytes are values; the operation is granted
        // read access for as long as the view lives.
        let view = unsafe { elements::<T>(self.definition())?.deref_into_view() };
        view.into_dimensionality().map_err(|error| Error::invalid(error.to_string()))
    }
}

impl ViewMut<'_> {
    /// The elements as a mutable array of the same shape and strides.
    ///
    /// # Errors
    /// As [`View::as_ndarray`]; [`Error::Invalid`] when several indices may lead to one element.
    pub fn as_ndarray_mut<T: Element, D: Dimension>(&mut self) -> Result<ArrayViewMut<'_, T, D>, Error> {
        self.check_host()?;
        let elements = elements::<T>(self.definition())?;
        if may_overlap(self.layout()) {
            let (strides, shape) = (self.layout().strides(), self.layout().shape());
            return Err(Error::invalid(format!(
                "elements of shape {shape:?} and strides {strides:?} may overlap"
            )));
        }
        // SAFETY: as for `View::as_ndarray`, with write access; no two indices lead to one element, and the
        // borrow of `self` keeps the array unique.
        let view = unsafe { elements.deref_into_view_mut() };
        view.into_dimensionality().map_err(|error| Error::invalid(error.to_string()))
    }
}

/// The elements of memory that the host can use, which are values of `T`.
fn elements<T: Element>(definition: &Definition) -> Result<RawArrayViewMut<T, IxDyn>, Error> {
    let layout = &definition.layout;
    layout.check_elements::<T>(definition.data)?;
    let shape = dimension(layout.shape());
    if layout.is_empty() {
        // SAFETY: no element is ever reached from an aligned pointer that is not NULL.
        return Ok(unsafe { RawArrayViewMut::from_shape_ptr(shape, NonNull::dangling().as_ptr()) });
    }
    // ndarray takes strides that are not negative, counts them from the lowest element, and turns axes round.
    let below: i64 = std::iter::zip(layout.shape(), layout.strides())
        .map(|(&size, &stride)| (size - 1) * stride.min(0))
        .sum();
    let strides: Vec<usize> = layout.strides().iter().map(|stride| stride.unsigned_abs() as usize).collect();
    // SAFETY: the layout was validated: all elements, the lowest too, are within the memory, which is aligned
    // for `T`.
    let mut view = unsafe {
        let lowest = definition.data.cast::<T>().offset(below as isize);
        RawArrayViewMut::from_shape_ptr(shape.strides(IxDyn(&strides)), lowest)
    };
    for (axis, stride) in layout.strides().iter().enumerate() {
        if *stride < 0 {
            view.invert_axis(Axis(axis));
        }
    }
    if T::DTYPE != DType::BOOL {
        return Ok(view);
    }
    // SAFETY: the operation may read the memory; any bytes are values of this type.
    let bytes = unsafe { view.clone().cast::<MaybeUninit<T>>().deref_into_view() };
    // SAFETY: memory of tensors is initialized, as bytes.
    let of = |it: &MaybeUninit<T>| unsafe { std::slice::from_raw_parts(it.as_ptr().cast(), size_of::<T>()) };
    if bytes.iter().all(|element| T::valid(of(element))) {
        Ok(view)
    } else {
        Err(Error::invalid(format!("the memory holds bytes that are not values of {}", T::DTYPE)))
    }
}

/// False if each element has an address of its own, since the strides, in order, skip what smaller ones
/// reach.
fn may_overlap(layout: &Layout) -> bool {
    let mut axes: Vec<(u64, u64)> = std::iter::zip(layout.shape(), layout.strides())
        .filter(|(size, _)| **size > 1)
        .map(|(&size, stride)| (stride.unsigned_abs(), size as u64 - 1))
        .collect();
    axes.sort_unstable();
    let mut reached = 0;
    !layout.is_empty()
        && axes.iter().any(|(stride, last)| {
            let overlaps = *stride <= reached;
            reached += stride * last;
            overlaps
        })
}

/// The array as memory that owns itself. The array moves into the storage, which leaves the elements where
/// they are.
fn parts<T: Element, D: Dimension + 'static>(mut array: Array<T, D>) -> Result<(Layout, Storage), Error> {
    let signed = |sizes: &[usize]| sizes.iter().map(|&size| size as i64).collect::<Vec<_>>();
    let strides: Vec<i64> = array.strides().iter().map(|&stride| stride as i64).collect();
    let layout = Layout::strided(T::DTYPE, DLDevice::CPU, &signed(array.shape()), &strides)?;
    let data = array.as_mut_ptr().cast();
    Ok((layout, Storage::owned(Box::new(array), data)))
}

/// Sizes of tensors are never negative.
fn dimension(shape: &[i64]) -> IxDyn {
    IxDyn(&shape.iter().map(|&size| size as usize).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use ndarray::{Array1, Array2, ArrayD, Ix1, Ix2, array, s};

    use super::*;

    #[test]
    fn an_array_keeps_its_address_and_its_elements_are_written_in_place() {
        let engine = Engine::builder().workers(1).build().unwrap();
        let array = array![[1.0_f32, 2.0], [3.0, 4.0]];
        let address = array.as_ptr();
        let x = engine.from_ndarray(array).unwrap();
        assert_eq!(x.data_ptr().unwrap().cast::<f32>(), address);
        let double = engine.op("double").updates([&x]).run(|[], [], [mut x]| {
            x.as_ndarray_mut::<f32, Ix2>()?.mapv_inplace(|x| 2.0 * x);
            Ok(())
        });
        double.unwrap().wait().unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0, 8.0]);
    }

    #[test]
    fn strides_are_described_as_they_are() {
        let columns = Array2::from_shape_vec((2, 3).f(), vec![1.0_f64, 4.0, 2.0, 5.0, 3.0, 6.0]).unwrap();
        assert_eq!(parts(columns).unwrap().0.strides(), [1, 2]);
    }

    #[test]
    fn arrays_of_any_strides_are_seen_and_written_as_they_are() {
        let engine = Engine::builder().workers(1).build().unwrap();
        let whole = Array2::from_shape_fn((4, 6), |(row, column)| (10 * row + column) as i32);
        let mut backward = whole.clone();
        backward.invert_axis(Axis(1));
        let arrays = [
            whole.clone().reversed_axes().into_dyn(),
            backward.clone().into_dyn(),
            backward.slice_move(s![1..;2, ..;-3]).into_dyn(),
            whole.clone().slice_move(s![..;-1, 5]).into_dyn(),
            whole.clone().slice_move(s![2..2, ..;2]).into_dyn(),
            ArrayD::from_elem(vec![], 7),
        ];
        for array in arrays {
            let x = engine.from_ndarray(array.clone()).unwrap();
            let seen = array.clone();
            let double = engine.op("double").updates([&x]).run(move |[], [], [mut x]| {
                let mut x = x.as_ndarray_mut::<i32, IxDyn>()?;
                assert_eq!(x, seen);
                x.mapv_inplace(|x| 2 * x);
                Ok(())
            });
            double.unwrap().wait().unwrap();
            let read = engine.op("read").reads([&x]).run(move |[x], []| {
                assert_eq!(x.as_ndarray::<i32, IxDyn>()?, array.mapv(|x| 2 * x));
                Ok(())
            });
            read.unwrap().wait().unwrap();
        }
    }

    #[test]
    fn elements_of_one_address_are_not_written() {
        let shaped = |shape: &[i64], strides: &[i64]| {
            may_overlap(&Layout::strided(i32::DTYPE, DLDevice::CPU, shape, strides).unwrap())
        };
        assert!(shaped(&[3, 2], &[0, 1]) && shaped(&[3, 3], &[1, 2]) && shaped(&[2, 2], &[1, -1]));
        assert!(!shaped(&[3, 2], &[2, -1]) && !shaped(&[1, 2], &[0, 1]) && !shaped(&[0, 2], &[0, 0]));
    }

    #[test]
    fn another_number_of_dimensions_is_an_error_that_says_so() {
        let engine = Engine::builder().workers(1).build().unwrap();
        let x = engine.from_ndarray(Array1::<i32>::zeros(4)).unwrap();
        let wrong =
            engine.op("wrong").reads([&x]).run(|[x], []| Ok(x.as_ndarray::<i32, Ix2>().map(|_| ())?));
        assert!(wrong.unwrap().wait().unwrap_err().to_string().contains("shape"));
        let right =
            engine.op("right").reads([&x]).run(|[x], []| Ok(x.as_ndarray::<i32, Ix1>().map(|_| ())?));
        right.unwrap().wait().unwrap();
    }
}
