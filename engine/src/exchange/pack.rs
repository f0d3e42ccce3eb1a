//! Copying strided host memory into row-major order.

use crate::core::error::Error;
use crate::exchange::Layout;

/// Copies the elements that `layout` describes at `from`, in row-major order and without gaps, to `to`.
///
/// # Errors
/// [`Error::Invalid`] for packed sub-byte types in strided order, whose elements do not begin at bytes.
///
/// # Safety
/// The elements at `from` may be read by the host; `to` has room for as many bytes as a row-major layout of
/// this type and shape has, and overlaps none of them.
pub(crate) unsafe fn to_contiguous(layout: &Layout, from: *const u8, to: *mut u8) -> Result<(), Error> {
    if layout.is_empty() {
        return Ok(());
    }
    if layout.is_contiguous() {
        // SAFETY: by contract of this function; a contiguous layout has exactly these bytes.
        unsafe { from.copy_to_nonoverlapping(to, layout.byte_len()) };
        return Ok(());
    }
    if layout.dtype().is_sub_byte() && !layout.is_padded() {
        return Err(Error::invalid(format!(
            "cannot copy strided {} elements, which are packed bits",
            layout.dtype()
        )));
    }
    let size = layout.dtype().itemsize();
    let mut written = to;
    for_each_offset(layout, |offset| {
        // SAFETY: the offsets of a valid layout stay inside its memory, and one element is written per
        // offset.
        unsafe {
            from.offset(offset * size as isize).copy_to_nonoverlapping(written, size);
            written = written.add(size);
        }
    });
    Ok(())
}

/// Calls `visit` with the offset of each element, in elements, in row-major order.
fn for_each_offset(layout: &Layout, mut visit: impl FnMut(isize)) {
    let (shape, strides) = (layout.shape(), layout.strides());
    let mut index = vec![0_i64; shape.len()];
    let mut offset = 0_isize;
    for _ in 0..layout.len() {
        visit(offset);
        for dim in (0..shape.len()).rev() {
            index[dim] += 1;
            offset += strides[dim] as isize;
            if index[dim] < shape[dim] {
                break;
            }
            offset -= (index[dim] * strides[dim]) as isize;
            index[dim] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use estafette_devices::DLDevice;

    use super::*;
    use crate::exchange::DType;

    #[test]
    fn a_transposed_matrix_is_copied_in_row_major_order() {
        let data = [0_i32, 1, 2, 3, 4, 5];
        let layout = Layout::strided(DType::I32, DLDevice::CPU, &[3, 2], &[1, 3]).unwrap();
        let mut copy = [0_i32; 6];
        // SAFETY: both arrays have six elements, as the layout says.
        unsafe { to_contiguous(&layout, data.as_ptr().cast(), copy.as_mut_ptr().cast()) }.unwrap();
        assert_eq!(copy, [0, 3, 1, 4, 2, 5]);
    }

    #[test]
    fn negative_strides_read_backwards() {
        let data = [1_u16, 2, 3];
        let layout = Layout::strided(DType::U16, DLDevice::CPU, &[3], &[-1]).unwrap();
        let mut copy = [0_u16; 3];
        // SAFETY: the first element of the layout is the last of the array, and it reaches back to the first.
        unsafe { to_contiguous(&layout, data.as_ptr().add(2).cast(), copy.as_mut_ptr().cast()) }.unwrap();
        assert_eq!(copy, [3, 2, 1]);
    }
}
