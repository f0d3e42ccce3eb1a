//! The converter of an operation's tensors to arrays: the function that is given, the engine's, or that of
//! the function's own library.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};

use crate::error::import_module;
use crate::exchange::peers;
use crate::interpreter::fastcall;
use crate::interpreter::kept::Kept;
use crate::interpreter::once::{PyOnce, intern};
use crate::submission::function_kind::FunctionFacts;

/// The function of an engine that makes arrays, for calls that name none.
pub type Default = Option<Kept<Py<PyAny>>>;

/// Modules that are remembered to be of no array library.
const KNOWN_MAX: usize = 1024;

/// Modules without arrays of their own, whose functions take those of NumPy. Kernels of Numba take memory of
/// a device.
const TAKE_NUMPYS: [&str; 8] =
    ["PIL", "cv2", "numba.core", "numba.np", "pandas", "scipy", "skimage", "sklearn"];

/// The converter to arrays for a function: `given`, else the engine's `default`, else `from_dlpack` of the
/// array library whose function it is, or whose class it is of. Where the `default` is such a `from_dlpack`
/// too, that of the function's library goes first: PyTorch's functions take no arrays of NumPy. NumPy's take
/// those of others. `None` for a function that gets the tensors themselves.
pub fn of<'py>(
    function: &FunctionFacts<'py>,
    given: Option<&Bound<'py, PyAny>>,
    default: &Default,
    py: Python<'py>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if let Some(given) = given {
        return Ok(Some(given.clone()));
    }
    let own = of_library(py, function)?;
    let Some(default) = default.as_ref().map(|default| default.bind(py)) else {
        return Ok(own.map(|(own, _)| own));
    };
    match own {
        Some((own, module)) if !TAKE_MANY.contains(&root_of(module.to_str()?)) && is_of_library(default)? => {
            Ok(Some(own))
        }
        _ => Ok(Some(default.clone())),
    }
}

/// Their functions take arrays of other libraries too, those of SciPy and scikit-learn where that is switched
/// on.
const TAKE_MANY: [&str; 3] = ["numpy", "scipy", "sklearn"];

/// The first part of a module's name.
fn root_of(module: &str) -> &str {
    module.split('.').next().unwrap_or(module)
}

/// True if it is the `from_dlpack` of a library.
fn is_of_library(using: &Bound<'_, PyAny>) -> PyResult<bool> {
    let text = |name| using.getattr_opt(name)?.map(|text| text.str()).transpose();
    if text(intern!(using.py(), "__name__"))?.is_none_or(|name| name != "from_dlpack") {
        return Ok(false);
    }
    let Some(module) = text(intern!(using.py(), "__module__"))? else { return Ok(false) };
    Ok(peers::of_module(module.to_str()?).is_some())
}

/// A converter to arrays, and the module that it was found by.
type Found<'py> = (Bound<'py, PyAny>, Bound<'py, PyString>);

fn of_library<'py>(py: Python<'py>, function: &FunctionFacts<'py>) -> PyResult<Option<Found<'py>>> {
    let module = function.module()?;
    if let Some(using) = module.map(|module| of_module(py, &module)).transpose()?.flatten() {
        return Ok(Some(using));
    }
    // A compiled object of a library, such as that of `jax.jit`, says the module of the function that it was
    // made of; an object may be of a program's class that inherits from a library's, such as
    // `torch.nn.Module`.
    let Some(class) = function.class() else { return Ok(None) };
    // A method in C, such as `torch.Tensor.sum`, has no module, but its class has one.
    let described = match fastcall::attribute(&function.innermost, intern!(py, "__objclass__"))? {
        Some(owner) => owner.cast_into::<PyType>().ok(),
        None => None,
    };
    for base in described.iter().flat_map(|owner| owner.mro()).chain(class.mro()) {
        if let Some(module) = base.getattr_opt(intern!(py, "__module__"))?
            && let Some(using) = of_module(py, &module)?
        {
            return Ok(Some(using));
        }
    }
    Ok(None)
}

fn of_module<'py>(py: Python<'py>, module: &Bound<'py, PyAny>) -> PyResult<Option<Found<'py>>> {
    /// By the name of a module; `None` in Python for a library without such a function.
    static FOUND: PyOnce<Py<PyDict>> = PyOnce::new();
    let Ok(module) = module.cast::<PyString>() else { return Ok(None) };
    let found = FOUND.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
    let with_module = |using: Bound<'py, PyAny>| (!using.is_none()).then(|| (using, module.clone()));
    if let Some(using) = found.get_item(module)? {
        return Ok(with_module(using));
    }
    let name = module.to_str()?;
    let is_in = |rest: &str| rest.is_empty() || rest.starts_with('.');
    let takes_numpys = TAKE_NUMPYS.iter().any(|module| name.strip_prefix(module).is_some_and(is_in));
    if !takes_numpys && peers::of_module(name).is_none() {
        if found.len() < KNOWN_MAX {
            found.set_item(module, py.None())?;
        }
        return Ok(None);
    }
    let library = if takes_numpys { intern!(py, "numpy") } else { module };
    let using = import_module(py, "estafette._calls")?.call_method1("using_of", (library,))?;
    found.set_item(module, &using)?;
    Ok(with_module(using))
}
