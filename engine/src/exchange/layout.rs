//! The layout of a tensor's elements: type, device, shape and strides, and the addresses they touch.
//!
//! A [`Layout`] is valid by construction: no negative dimension, and nothing that is computed from it
//! (element count, bytes, the lowest and highest address) overflows. So no holder of a layout needs to check
//! it again.

use std::ops::Range;

use estafette_devices::DLDevice;
use smallvec::{SmallVec, smallvec};

use super::dtype::{DType, Element};
use crate::core::invalid_tensor::InvalidTensor;

/// The most dimensions a tensor may have: NumPy's limit, the highest of the libraries we exchange with.
pub const NDIM_MAX: usize = 64;

/// Shape or strides: inline up to four dimensions.
pub type Dims = SmallVec<[i64; 4]>;

/// The description of a tensor without its memory.
///
/// Strides count elements and may be negative or zero (broadcast). Strides of dimensions of size 0 or 1 say
/// nothing about memory and foreign ones are often garbage, so they are normalized to what a row-major
/// tensor would have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    dtype: DType,
    device: DLDevice,
    shape: Dims,
    strides: Dims,
    byte_offset: u64,
    padded: bool,
    len: usize,
    /// Element offsets of the element with the lowest and of the one with the highest address; 0 if empty.
    lowest: i64,
    highest: i64,
}

impl Layout {
    /// A row-major layout without gaps.
    pub fn contiguous(dtype: DType, device: DLDevice, shape: &[i64]) -> Result<Self, InvalidTensor> {
        Self::build(dtype, device, shape, None)
    }

    /// A layout with explicit strides, in elements.
    pub fn strided(
        dtype: DType,
        device: DLDevice,
        shape: &[i64],
        strides: &[i64],
    ) -> Result<Self, InvalidTensor> {
        if strides.len() != shape.len() {
            let reason = format!("has {} entries for {} dimensions", strides.len(), shape.len());
            return Err(InvalidTensor::new("strides", reason));
        }
        Self::build(dtype, device, shape, Some(strides))
    }

    /// The same with the first element `byte_offset` bytes after the data pointer. Only devices whose data
    /// pointer is a handle need it; everywhere else the offset belongs into the pointer.
    pub(crate) fn with_byte_offset(self, byte_offset: u64) -> Self {
        Self { byte_offset, ..self }
    }

    /// The same with every sub-byte element padded to whole bytes
    /// (`DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED`). Says nothing about other types.
    pub(crate) fn with_padding(self, padded: bool) -> Self {
        Self { padded: padded && self.dtype.is_sub_byte(), ..self }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device of the memory.
    pub fn device(&self) -> DLDevice {
        self.device
    }

    /// The size of each dimension, none negative.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Elements from one index of a dimension to the next, one entry for each dimension.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Bytes from the data handle to the first element; 0 on devices with addresses.
    pub(crate) fn byte_offset(&self) -> u64 {
        self.byte_offset
    }

    /// True if sub-byte elements are padded to whole bytes.
    pub(crate) fn is_padded(&self) -> bool {
        self.padded
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no element at all, so that no memory is touched.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the elements stored without gaps (in this layout's packing), whatever the strides are.
    pub fn byte_len(&self) -> usize {
        if self.padded { self.len * self.dtype.itemsize() } else { bytes_checked(self.dtype, self.len) }
    }

    /// True if the elements lie row-major without gaps. Always true for empty tensors.
    pub fn is_contiguous(&self) -> bool {
        // Strides that say nothing are normalized, so a plain comparison is enough.
        let mut wanted = 1;
        self.is_empty()
            || std::iter::zip(&self.shape, &self.strides).rev().all(|(&size, &stride)| {
                let matches = stride == wanted;
                wanted *= size;
                matches
            })
    }

    /// The addresses that the elements touch when the first one (index 0 everywhere) is at `data`; empty
    /// for a tensor without elements. Negative strides reach below `data`.
    ///
    /// On devices whose data pointer is a handle the range stands for the handle itself: two views into one
    /// buffer overlap whatever their offsets are, which can only order too much.
    pub(crate) fn byte_range(&self, data: *const u8) -> Range<usize> {
        let range = self.byte_range_wide(data);
        // Only a pointer that `check_data` refuses gets clamped here.
        let clamp = |address: i128| address.clamp(0, usize::MAX as i128) as usize;
        clamp(range.start)..clamp(range.end)
    }

    /// Checks that `data` can be the address of the first element: not NULL unless there is no element, and
    /// all elements within the address space.
    pub(crate) fn check_data(&self, data: *const u8) -> Result<(), InvalidTensor> {
        if self.is_empty() {
            return Ok(());
        }
        if data.is_null() {
            return Err(InvalidTensor::new("data", format!("is NULL, but there are {} elements", self.len)));
        }
        let range = self.byte_range_wide(data);
        if range.start < 0 || range.end > usize::MAX as i128 {
            let reason = format!("lead from data at {data:p} out of the address space");
            return Err(InvalidTensor::new("strides", reason));
        }
        Ok(())
    }

    /// Checks that the elements at `data` may be seen as a slice of `T`, and says how long the slice is.
    /// The pointer must be one that the host may read; that is for the caller to know, as is the
    /// [validity](Element::valid) of the bytes.
    pub(crate) fn check_slice<T: Element>(&self, data: *const u8) -> Result<usize, InvalidTensor> {
        self.check_elements::<T>(data)?;
        if !self.is_contiguous() {
            let reason = format!("{:?} of shape {:?} do not make a slice", self.strides, self.shape);
            return Err(InvalidTensor::new("strides", reason));
        }
        Ok(self.len)
    }

    /// As [`check_slice`](Self::check_slice), whatever the strides are.
    pub(crate) fn check_elements<T: Element>(&self, data: *const u8) -> Result<(), InvalidTensor> {
        if !T::accepts(self.dtype) {
            return Err(InvalidTensor::new("dtype", format!("is {}, not {}", self.dtype, T::DTYPE)));
        }
        if !self.device.device_type.has_addresses() {
            return Err(InvalidTensor::new("device", format!("{} has handles, not addresses", self.device)));
        }
        if !self.is_empty() && !(data as usize).is_multiple_of(align_of::<T>()) {
            let reason = format!("at {data:p} is not aligned to {} bytes for {}", align_of::<T>(), T::DTYPE);
            return Err(InvalidTensor::new("data", reason));
        }
        Ok(())
    }

    fn build(
        dtype: DType,
        device: DLDevice,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<Self, InvalidTensor> {
        if shape.len() > NDIM_MAX {
            return Err(InvalidTensor::new("ndim", format!("is {}, more than {NDIM_MAX}", shape.len())));
        }
        dtype.validate()?;
        let len = count(dtype, shape)?;
        let strides = match strides {
            Some(strides) if len > 0 => normalized(shape, strides),
            // `count` has shown that the product of all dimensions but those of size 0 fits.
            _ => row_major(shape),
        };
        let (lowest, highest) = if len == 0 { (0, 0) } else { extremes(dtype, shape, &strides)? };
        let shape = Dims::from_slice(shape);
        Ok(Self { dtype, device, shape, strides, byte_offset: 0, padded: false, len, lowest, highest })
    }

    fn byte_range_wide(&self, data: *const u8) -> Range<i128> {
        let data = data as usize as i128;
        if self.is_empty() {
            return data..data;
        }
        if !self.device.device_type.has_addresses() {
            return data..data + 1;
        }
        let (first, end) = (i128::from(self.lowest), i128::from(self.highest) + 1);
        if self.padded {
            let itemsize = self.dtype.itemsize() as i128;
            return data + first * itemsize..data + end * itemsize;
        }
        // `>> 3` rounds down for negative numbers too, which is outward for the first bit.
        let bits = i128::from(self.dtype.itemsize_bits());
        data + ((first * bits) >> 3)..data + ((end * bits + 7) >> 3)
    }
}

/// The number of elements, if it and every intermediate product fit. Dimensions of size 0 count as 1 in
/// that check, as in NumPy, so that strides of an empty tensor fit too.
fn count(dtype: DType, shape: &[i64]) -> Result<usize, InvalidTensor> {
    let mut product = 1_usize;
    for (index, &size) in shape.iter().enumerate() {
        let size =
            usize::try_from(size).map_err(|_| InvalidTensor::at("shape", index, format!("is {size}")))?;
        product = product
            .checked_mul(size.max(1))
            .ok_or_else(|| InvalidTensor::new("shape", format!("{shape:?} overflows the element count")))?;
    }
    // Room for the padded form is asked for, so that `with_padding` cannot overflow.
    let bytes = product.checked_mul(dtype.itemsize()).filter(|&bytes| isize::try_from(bytes).is_ok());
    if bytes.is_none() {
        return Err(InvalidTensor::new("shape", format!("{shape:?} of {dtype} overflows the byte size")));
    }
    Ok(if shape.contains(&0) { 0 } else { product })
}

/// The element offsets nearest to and farthest from address 0, if they can be expressed in bytes.
fn extremes(dtype: DType, shape: &[i64], strides: &[i64]) -> Result<(i64, i64), InvalidTensor> {
    let itemsize = dtype.itemsize() as i64;
    let (mut lowest, mut highest) = (0_i64, 0_i64);
    for (index, (&size, &stride)) in std::iter::zip(shape, strides).enumerate() {
        let end = if stride < 0 { &mut lowest } else { &mut highest };
        *end = stride
            .checked_mul(size - 1)
            .and_then(|reach| end.checked_add(reach))
            .filter(|reach| reach.checked_mul(itemsize).is_some())
            .ok_or_else(|| InvalidTensor::at("strides", index, format!("is {stride}, which overflows")))?;
    }
    Ok((lowest, highest))
}

fn row_major(shape: &[i64]) -> Dims {
    let mut strides: Dims = smallvec![1; shape.len()];
    for index in (1..shape.len()).rev() {
        strides[index - 1] = strides[index] * shape[index].max(1);
    }
    strides
}

/// Gives dimensions of size 1 the stride that keeps a row-major tensor row-major (1 where there is none),
/// as consumers that compare strides literally expect.
fn normalized(shape: &[i64], strides: &[i64]) -> Dims {
    let mut result = Dims::from_slice(strides);
    let mut wanted = 1_i64;
    for index in (0..shape.len()).rev() {
        if shape[index] == 1 {
            result[index] = wanted;
        }
        wanted = result[index].checked_mul(shape[index]).filter(|&wanted| wanted > 0).unwrap_or(1);
    }
    result
}

fn bytes_checked(dtype: DType, len: usize) -> usize {
    dtype.bytes_for(len).expect("a layout's byte size was checked when it was made")
}

#[cfg(test)]
mod tests;
