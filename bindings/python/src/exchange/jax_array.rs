//! Arrays of JAX, made as `jax.numpy.from_dlpack` makes them of host memory, in a fifth of its time.

use estafette::devices::DLDevice;
use estafette::exchange::Abi;
use estafette::{Access, DType, ExportOptions, Scope, Tensor};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::classes::tensor::PyTensor;
use crate::error::import_module;
use crate::exchange::{capsule, export};
use crate::interpreter::fastcall;
use crate::interpreter::once::{PyOnce, intern};

/// What `estafette/_jax.py` finds.
struct Jax {
    /// `jax.numpy.from_dlpack` and `jax.dlpack.from_dlpack`.
    public: [Py<PyAny>; 2],
    /// Does to a capsule what they do to a tensor.
    convert: Py<PyAny>,
}

impl Jax {
    /// `None` where it has not been imported, and for a version whose private function is not known.
    fn get<'py>(using: &Bound<'py, PyAny>) -> PyResult<Option<&'static Self>> {
        static FOUND: PyOnce<Option<Jax>> = PyOnce::new();
        let py = using.py();
        if let Some(found) = FOUND.get(py) {
            return Ok(found.as_ref());
        }
        let module = fastcall::attribute(using, intern!(py, "__module__"))?;
        let is_jax = |module: Bound<'py, PyAny>| {
            module
                .cast::<PyString>()
                .is_ok_and(|module| module.to_str().is_ok_and(|name| name.starts_with("jax.")))
        };
        if !module.is_some_and(is_jax) {
            return Ok(None);
        }
        let found = FOUND.get_or_try_init(py, || {
            let found = import_module(py, "estafette._jax")?.call_method0("find_conversion")?;
            let found = found.extract::<Option<(Py<PyAny>, Py<PyAny>, Py<PyAny>)>>()?;
            Ok(found.map(|(numpy, dlpack, convert)| Jax { public: [numpy, dlpack], convert }))
        })?;
        Ok(found.as_ref())
    }
}

/// An operand of the running operation as `using` makes an array of it, which is JAX's `from_dlpack`; `None` for any other function, and
/// for a tensor that `using` has to be called with.
pub fn of<'py>(
    using: &Bound<'py, PyAny>,
    scope: &Scope,
    tensor: &PyTensor,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = using.py();
    let Some(jax) = Jax::get(using)?.filter(|jax| jax.public.iter().any(|public| public.is(using))) else {
        return Ok(None);
    };
    let Ok(tensor) = tensor.tensor(py) else { return Ok(None) };
    if !is_converted(tensor) || scope.access_of(tensor).is_none() {
        return Ok(None);
    }
    let options = ExportOptions { abi: Abi::Legacy, ..ExportOptions::from(Access::Read) };
    let Ok(managed) = scope.export(tensor, &options) else { return Ok(None) };
    export::count();
    match fastcall::call(jax.convert.bind(py), &[capsule::wrap(py, managed)?.into_any()]) {
        Ok(array) => Ok(Some(array)),
        // The function that is called in its place says what is wrong.
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the tensor is in host memory, and of a type that JAX has whether or not it has types of 64 bits.
fn is_converted(tensor: &Tensor) -> bool {
    let is_kept = |dtype: DType| dtype == DType::C64 || dtype.bits <= 32 && dtype.lanes == 1;
    tensor.device().is_ok_and(|device| device == DLDevice::CPU) && tensor.dtype().is_ok_and(is_kept)
}
