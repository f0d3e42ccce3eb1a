//! ndarray: arrays that own memory become tensors, and operands become views.

use estafette_devices::DLDevice;
use ndarray::{Array, ArrayView, ArrayViewMut, Dimension, IxDyn};

use crate::core::error::Error;
use crate::engine::Engine;
use crate::exchange::storage::Storage;
use crate::exchange::{Element, Layout};
use crate::operation::import::{self, Produced};
use crate::tensor::handle::Tensor;
use crate::tensor::views::{View, ViewMut};

impl Engine {
    /// A tensor in the memory of `array`, with the array's shape and strides. The array is dropped when the tensor's last use is over.
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

/// The memory of an array, with its shape and strides. Fails with [`Error::InvalidTensor`] for a shape that no tensor has.
impl<T: Element, D: Dimension + 'static> TryFrom<Array<T, D>> for Produced {
    type Error = Error;

    fn try_from(array: Array<T, D>) -> Result<Self, Error> {
        parts(array).map(|(layout, storage)| Self::ready(layout, storage))
    }
}

impl<'a> View<'a> {
    /// The elements as an array of the same shape.
    ///
    /// # Errors
    /// As [`as_slice`](Self::as_slice); [`Error::Invalid`] when `D` has another number of dimensions.
    pub fn as_ndarray<T: Element, D: Dimension>(&self) -> Result<ArrayView<'a, T, D>, Error> {
        let view = ArrayView::from_shape(dimension(self.layout().shape()), self.as_slice::<T>()?);
        view.and_then(ArrayView::into_dimensionality).map_err(|error| Error::invalid(error.to_string()))
    }
}

impl ViewMut<'_> {
    /// The elements as a mutable array of the same shape.
    ///
    /// # Errors
    /// As [`as_mut_slice`](Self::as_mut_slice); [`Error::Invalid`] when `D` has another number of dimensions.
    pub fn as_ndarray_mut<T: Element, D: Dimension>(&mut self) -> Result<ArrayViewMut<'_, T, D>, Error> {
        let view = ArrayViewMut::from_shape(dimension(self.layout().shape()), self.as_mut_slice::<T>()?);
        view.and_then(ArrayViewMut::into_dimensionality).map_err(|error| Error::invalid(error.to_string()))
    }
}

/// The array as memory that owns itself. The array moves into the storage, which leaves the elements where they are.
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
    use ndarray::{Array1, Array2, Ix1, Ix2, ShapeBuilder, array};

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
