//! The origin of an array's memory: its owner, or one of our exports. It is looked up when memory is imported
//! that a lease is open for, since the address is the same.

use estafette::bindings::Origin;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};

use crate::classes::access::PyView;
use crate::classes::exporter::Exporter;
use crate::classes::tensor::PyTensor;
use crate::exchange::peers;
use crate::interpreter::once::intern;

/// Bases of an array that are looked through. NumPy keeps one or two: it lets a view point to what the viewed
/// array points to.
const BASES_MAX: usize = 16;

/// The origin that the library of `array` knows.
pub fn of(array: &Bound<'_, PyAny>) -> Origin {
    let known = match peers::of(array).peer().root {
        "numpy" => of_numpy(array),
        "torch" => of_torch(array),
        _ => Ok(Origin::Unknown),
    };
    // An array that refuses to say is as good as one that cannot.
    known.unwrap_or(Origin::Unknown)
}

/// An array of NumPy's names what it has its memory from; `None` if the memory is its own.
fn of_numpy(array: &Bound<'_, PyAny>) -> PyResult<Origin> {
    let py = array.py();
    let mut memory = array.clone();
    for _ in 0..BASES_MAX {
        if let Some(base) = memory.getattr_opt(intern!(py, "base"))? {
            if base.is_none() {
                return Ok(Origin::Owner);
            }
            memory = base;
        } else if let Ok(view) = memory.cast::<PyMemoryView>() {
            memory = view.getattr(intern!(py, "obj"))?;
        } else if memory.is_instance_of::<PyBytes>() || memory.is_instance_of::<PyByteArray>() {
            return Ok(Origin::Owner);
        } else if memory.is_instance_of::<PyTensor>()
            || memory.is_instance_of::<Exporter>()
            || memory.is_instance_of::<PyView>()
        {
            return Ok(Origin::Lent);
        } else {
            break;
        }
    }
    Ok(Origin::Unknown)
}

/// PyTorch can make memory of its own larger, and no other.
fn of_torch(tensor: &Bound<'_, PyAny>) -> PyResult<Origin> {
    let py = tensor.py();
    let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
    let own: bool = storage.call_method0(intern!(py, "resizable"))?.extract()?;
    Ok(if own { Origin::Owner } else { Origin::Unknown })
}
