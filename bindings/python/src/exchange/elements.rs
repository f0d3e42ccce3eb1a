//! The elements of a tensor as numbers of Python: `t.item()`, `t.tolist()`, `float(t)`.

use estafette::exchange::ManagedTensor;
use estafette::{DType, Layout};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyList};

use crate::error::OrRaise;
use crate::exchange::export::{self, ExportRequest, From};

/// Elements in memory of the host.
pub struct Elements {
    /// Holds the read lease, or a copy from a device.
    managed: ManagedTensor,
    layout: Layout,
}

impl Elements {
    /// Raises as [`export::export`].
    pub fn of(py: Python<'_>, from: From<'_>) -> PyResult<Self> {
        let request =
            ExportRequest { stream: None, max_version: Some((1, 3)), dl_device: Some((1, 0)), copy: None };
        let managed = export::export_or_copy(py, from, &request)?;
        let layout = managed.describe().or_raise(py)?;
        Ok(Self { managed, layout })
    }

    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Nested lists of the elements of dimension `dim` and later ones, from the element at `at` on.
    /// Raises as [`number`](Self::number).
    pub fn list<'py>(&self, py: Python<'py>, dim: usize, at: i64) -> PyResult<Bound<'py, PyAny>> {
        let Some(size) = self.layout.shape().get(dim) else { return self.number(py, at) };
        let stride = self.layout.strides()[dim];
        let items: Vec<_> =
            (0..*size).map(|item| self.list(py, dim + 1, at + item * stride)).collect::<PyResult<_>>()?;
        Ok(PyList::new(py, items)?.into_any())
    }

    /// The element that is `at` elements after the first one.
    /// Raises `TypeError` for elements that are no numbers of Python.
    pub fn number<'py>(&self, py: Python<'py>, at: i64) -> PyResult<Bound<'py, PyAny>> {
        let dtype = self.layout.dtype();
        let address = self.managed.data().wrapping_offset(at as isize * dtype.itemsize() as isize);
        macro_rules! read {
            ($kind:ty) => {{
                // SAFETY: an element of this type. The memory is the host's, and stays with `managed`.
                unsafe { address.cast::<$kind>().read_unaligned() }
            }};
        }
        let complex = |[real, imaginary]: [f64; 2]| PyComplex::from_doubles(py, real, imaginary).into_any();
        Ok(match dtype {
            DType::BOOL => PyBool::new(py, read!(u8) != 0).to_owned().into_any(),
            DType::I8 => read!(i8).into_pyobject(py)?.into_any(),
            DType::I16 => read!(i16).into_pyobject(py)?.into_any(),
            DType::I32 => read!(i32).into_pyobject(py)?.into_any(),
            DType::I64 => read!(i64).into_pyobject(py)?.into_any(),
            DType::U8 => read!(u8).into_pyobject(py)?.into_any(),
            DType::U16 => read!(u16).into_pyobject(py)?.into_any(),
            DType::U32 => read!(u32).into_pyobject(py)?.into_any(),
            DType::U64 => read!(u64).into_pyobject(py)?.into_any(),
            DType::F16 => half(read!(u16)).into_pyobject(py)?.into_any(),
            DType::BF16 => f32::from_bits(u32::from(read!(u16)) << 16).into_pyobject(py)?.into_any(),
            DType::F32 => read!(f32).into_pyobject(py)?.into_any(),
            DType::F64 => read!(f64).into_pyobject(py)?.into_any(),
            DType::C64 => complex(read!([f32; 2]).map(f64::from)),
            DType::C128 => complex(read!([f64; 2])),
            _ => {
                return Err(PyTypeError::new_err(format!(
                    "elements of type {dtype} are no numbers of Python: take them with a library, `np.asarray(t)`"
                )));
            }
        })
    }
}

/// The value of an IEEE float of 16 bits.
fn half(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3ff);
    let size = match i32::from(bits >> 10 & 0x1f) {
        0 => fraction * 2f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        exponent => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 0 { size } else { -size }
}
