//! Arguments for a shape, an element type, a time: read, or refused with the name of what is wrong.

use std::time::Duration;

use estafette::{DType, Tensor};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyIterator, PyString, PyTuple, PyType};

use crate::classes::tensor::PyTensor;
use crate::classes::variable::PyVariable;
use crate::error::raise;
use crate::interpreter::once::imported;

/// An element type as people write it: its name, or an object of some library that carries it.
/// Raises `ValueError` for a name that is no element type.
pub fn parse_dtype(dtype: &Bound<'_, PyAny>) -> PyResult<DType> {
    if dtype.getattr("isnative").is_ok_and(|native| native.is_truthy().is_ok_and(|native| !native)) {
        let message = format!(
            "{} is not in the byte order of this machine, which is the one that DLPack has",
            dtype.repr()?
        );
        return Err(PyValueError::new_err(message));
    }
    let text = dtype_name(dtype)?;
    let is_pythons = dtype.is_instance_of::<PyString>() || dtype.is_instance_of::<PyType>();
    // PyTorch prints `torch.float32`.
    let name = match text.rsplit('.').next().unwrap_or(&text) {
        // Python's own types, as NumPy takes them. To other libraries `float` is one of 32 bits.
        name if !is_pythons => name,
        "int" => "int64",
        "float" => "float64",
        "complex" => "complex128",
        name => name,
    };
    // A name with a slip, such as `float33`, and NumPy's `float128`, whose elements have 80 bits. A dtype of
    // a tensor may have any width.
    let is_tensors = dtype.is_instance_of::<PyTensor>()
        || is_pythons && dtype.is_instance(imported!(dtype.py(), "estafette._dtype", "DType")?)?;
    let is_width = |dtype: &DType| {
        let widths = [(DType::F32, 16..=64), (DType::BF16, 16..=16), (DType::C64, 32..=128)];
        let known = widths.into_iter().find(|(known, _)| known.code == dtype.code);
        let widths = known.map_or(1..=64, |(_, widths)| widths);
        dtype.code > DType::C64.code || (widths.contains(&dtype.bits) && dtype.bits.is_power_of_two())
    };
    let Some(parsed) = name.parse().ok().filter(|parsed| is_tensors || is_width(parsed)) else {
        // NumPy has more names, such as "f4" and "half".
        if dtype.is_exact_instance_of::<PyString>()
            && let Ok(known) =
                dtype.py().import("numpy").and_then(|numpy| numpy.call_method1("dtype", (dtype,)))
        {
            return parse_dtype(&known);
        }
        return Err(PyValueError::new_err(format!(
            "`{text}` is not an element type; the names are NumPy's, of at most 64 bits (complex: 128): \"float32\", \"int64\", \"bool\", and \"bfloat16\", \"float8_e5m2\""
        )));
    };
    Ok(parsed)
}

fn dtype_name(dtype: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = dtype.extract() {
        return Ok(text);
    }
    // `numpy.dtype` has a name, `numpy.float32` is a class, `jax.numpy.float32` has a dtype.
    for attribute in ["name", "__name__"] {
        if let Ok(text) = dtype.getattr(attribute).and_then(|name| name.extract()) {
            return Ok(text);
        }
    }
    if let Ok(inner) = dtype.getattr("dtype") {
        return dtype_name(&inner);
    }
    Ok(dtype.str()?.to_string())
}

/// A shape as people write it: an integer or a sequence of them.
/// Raises `TypeError` for what is none; `InvalidError` for integers that no dimension can have.
pub fn parse_shape(shape: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let py = shape.py();
    let dims = match shape.extract::<i64>() {
        Ok(length) => return Ok(vec![length]),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => Err(error),
        Err(_) => shape.try_iter().and_then(|dims| dims.map(|dim| dim?.extract::<i64>()).collect()),
    };
    dims.map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(py) {
            let shown = shape.repr().map_or_else(|_| "?".into(), |text| text.to_string());
            return raise(py, "InvalidError", format!("a shape has dimensions of 64 bits, not {shown}"));
        }
        PyTypeError::new_err(format!("a shape is an integer or a sequence of integers: {error}"))
    })
}

/// A time in seconds, the argument `name`; `None` for no limit, which the infinite one is as well, and what
/// no clock can reach. Raises `ValueError` for one that is negative or no number.
pub fn seconds(name: &str, time: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(time) = time else { return Ok(None) };
    match Duration::try_from_secs_f64(time) {
        Ok(time) => Ok(Some(time)),
        Err(_) if time > 0.0 => Ok(None),
        Err(_) => {
            Err(PyValueError::new_err(format!("{name} must be a number of seconds from 0, not {time}")))
        }
    }
}

/// A number of things, the argument `name`, at least `least`. Raises `TypeError` for what is no whole number;
/// `ValueError` for one that is smaller, or larger than a machine counts.
pub fn count(name: &str, least: usize, number: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    let Some(number) = number else { return Ok(None) };
    match number.extract::<usize>() {
        Ok(count) if count >= least => Ok(Some(count)),
        Err(error) if error.is_instance_of::<PyTypeError>(number.py()) => {
            Err(PyTypeError::new_err(format!("{name} must be a whole number, not {}", kind_of(number))))
        }
        _ => Err(raise(
            number.py(),
            "InvalidError",
            format!("{name} must be at least {least}, and below 2**64, not {}", number.repr()?),
        )),
    }
}

/// The items of the argument `name`: a list or another iterable, or a tensor or variable, which stands for a
/// list of it alone. Raises `TypeError` that says how a list is written.
pub fn list<'py>(name: &str, items: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyIterator>> {
    let no_list =
        || PyTypeError::new_err(format!("`{name}` is a list, not {}: write `{name}=[x]`", kind_of(items)));
    if items.is_instance_of::<PyTensor>() || items.is_instance_of::<PyVariable>() {
        // A tensor could be iterated over, but gives numbers.
        return PyTuple::new(items.py(), [items])?.try_iter();
    }
    items.try_iter().map_err(
        |error| {
            if error.is_instance_of::<PyTypeError>(items.py()) { no_list() } else { error }
        },
    )
}

fn kind_of(value: &Bound<'_, PyAny>) -> String {
    value.get_type().fully_qualified_name().map_or_else(|_| "?".into(), |name| name.to_string())
}

/// The tensor that an item of a list of tensors is.
pub fn tensor_of(item: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let tensor = item.cast::<PyTensor>().map_err(|_| not_a_tensor(item))?;
    Ok(tensor.get().tensor(item.py())?.clone())
}

/// The error for an argument that is no tensor.
pub fn not_a_tensor(value: &Bound<'_, PyAny>) -> PyErr {
    let remedy = if value.is_instance_of::<PyInt>() || value.is_instance_of::<PyFloat>() {
        "a number goes into the function: `functools.partial`, or a lambda"
    } else {
        "`from_dlpack` makes one of an array"
    };
    PyTypeError::new_err(format!("expected an estafette.Tensor, not {}; {remedy}", kind_of(value)))
}
