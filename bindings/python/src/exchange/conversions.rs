//! `from_dlpack` of other libraries, in a shorter way for tensors in host memory that functions get as
//! arrays.

use estafette::devices::DLDevice;
use estafette::exchange::dtype::code;
use estafette::exchange::{Abi, Layout};
use estafette::{Access, DType, ExportOptions, Scope};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::classes::tensor::PyTensor;
use crate::error::import_module;
use crate::exchange::peer_table::{self, PeerTable};
use crate::exchange::{capsule, export};
use crate::interpreter::fastcall;
use crate::interpreter::once::{PyOnce, intern};

/// A library's function under each of its names, and a shorter way to the same array.
struct Conversion {
    functions: Vec<Py<PyAny>>,
    way: Way,
}

enum Way {
    /// A function of `estafette/_jax.py`, which takes a capsule.
    Capsule(Py<PyAny>),
    /// The library's C exchange table.
    Table(PeerTable),
}

type Find = fn(Python<'_>) -> PyResult<Option<Conversion>>;

/// The libraries, by the first part of their modules' names. `None` is found for a version that has no such
/// way.
static LIBRARIES: [(&str, Find, PyOnce<Option<Conversion>>); 2] =
    [("jax", find_jax, PyOnce::new()), ("torch", find_torch, PyOnce::new())];

fn find_jax(py: Python<'_>) -> PyResult<Option<Conversion>> {
    let found = import_module(py, "estafette._jax")?.call_method0("find_conversion")?;
    let found = found.extract::<Option<(Py<PyAny>, Py<PyAny>, Py<PyAny>)>>()?;
    Ok(found.map(|(numpy, dlpack, convert)| Conversion {
        functions: vec![numpy, dlpack],
        way: Way::Capsule(convert),
    }))
}

fn find_torch(py: Python<'_>) -> PyResult<Option<Conversion>> {
    let torch = import_module(py, "torch")?;
    let table = peer_table::of(torch.getattr("Tensor")?.cast::<PyType>()?);
    let functions = vec![torch.getattr("from_dlpack")?.unbind()];
    let way = table.filter(|table| table.makes_objects()).map(Way::Table);
    Ok(way.map(|way| Conversion { functions, way }))
}

/// The way to what `using` does; `None` for any other function.
fn way_of(using: &Bound<'_, PyAny>) -> PyResult<Option<&'static Way>> {
    let py = using.py();
    let is_it = |conversion: &&Conversion| conversion.functions.iter().any(|function| function.is(using));
    let mut known = LIBRARIES.iter().filter_map(|(_, _, found)| found.get(py)?.as_ref());
    if let Some(conversion) = known.find(is_it) {
        return Ok(Some(&conversion.way));
    }
    let module = fastcall::attribute(using, intern!(py, "__module__"))?;
    let Some(Ok(module)) = module.as_ref().map(|module| module.cast::<PyString>()) else { return Ok(None) };
    let root = module.to_str()?.split('.').next();
    let Some((_, find, found)) = LIBRARIES.iter().find(|(name, _, _)| root == Some(name)) else {
        return Ok(None);
    };
    let found = found.get_or_try_init(py, || or_none(py, find(py)))?;
    Ok(found.as_ref().filter(is_it).map(|conversion| &conversion.way))
}

/// An operand of the running operation as `using` makes an array of it; `None` for a function that is not
/// known, and for a tensor that `using` has to be called with.
pub fn convert<'py>(
    using: &Bound<'py, PyAny>,
    scope: &Scope,
    tensor: &PyTensor,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = using.py();
    let Some(way) = or_none(py, way_of(using))? else { return Ok(None) };
    let Ok(tensor) = tensor.tensor(py) else { return Ok(None) };
    if !tensor.layout().is_ok_and(|layout| way.takes(&layout)) {
        return Ok(None);
    }
    let options = ExportOptions { abi: way.abi(), ..ExportOptions::from(Access::Read) };
    let Ok(managed) = scope.export(tensor, &options) else { return Ok(None) };
    export::count();
    let array = match way {
        Way::Capsule(convert) => fastcall::call(convert.bind(py), &[capsule::wrap(py, managed)?.into_any()]),
        Way::Table(table) => table.make(py, managed),
    };
    or_none(py, array.map(Some))
}

/// `None` for an error: the library's function, which is called then, says what is wrong.
fn or_none<T>(py: Python<'_>, found: PyResult<Option<T>>) -> PyResult<Option<T>> {
    found.or_else(|error| if error.is_instance_of::<PyException>(py) { Ok(None) } else { Err(error) })
}

impl Way {
    fn abi(&self) -> Abi {
        match self {
            Self::Capsule(_) => Abi::Legacy,
            Self::Table(_) => Abi::Versioned,
        }
    }

    /// True if the library makes the same array this way.
    fn takes(&self, layout: &Layout) -> bool {
        let dtype = layout.dtype();
        let is_taken = match self {
            // JAX casts wider types by default.
            Self::Capsule(_) => dtype == DType::C64 || dtype.bits <= 32,
            // A library that refuses a struct might keep it.
            Self::Table(_) => {
                dtype.bits >= 8
                    && COMMON.contains(&dtype.code)
                    && layout.strides().iter().all(|stride| *stride >= 0)
            }
        };
        is_taken && dtype.lanes == 1 && layout.device() == DLDevice::CPU
    }
}

/// Kinds of element types that every library has.
const COMMON: [u8; 6] = [code::BOOL, code::INT, code::UINT, code::FLOAT, code::BFLOAT, code::COMPLEX];
