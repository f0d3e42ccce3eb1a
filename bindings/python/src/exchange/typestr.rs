//! NumPy's way to write an element type: `typestr` of the array interfaces (numpy/numpy: doc/source/reference/arrays.interface.rst).

use estafette::DType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// Those that arrays on devices have.
const TYPES: [(&str, DType); 14] = [
    ("|b1", DType::BOOL),
    ("|i1", DType::I8),
    ("|u1", DType::U8),
    ("<i2", DType::I16),
    ("<u2", DType::U16),
    ("<i4", DType::I32),
    ("<u4", DType::U32),
    ("<i8", DType::I64),
    ("<u8", DType::U64),
    ("<f2", DType::F16),
    ("<f4", DType::F32),
    ("<f8", DType::F64),
    ("<c8", DType::C64),
    ("<c16", DType::C128),
];

/// The type that `text` of `interface` names.
/// Raises `TypeError` for a type that is not known, such as one in the other byte order.
pub fn parse(text: &str, interface: &str) -> PyResult<DType> {
    let bare = text.trim_start_matches(['|', '<', '=']);
    let known = TYPES.iter().find(|(name, _)| &name[1..] == bare && !text.starts_with('>'));
    known.map(|(_, dtype)| *dtype).ok_or_else(|| {
        PyTypeError::new_err(format!("typestr {text:?} of `{interface}` is no type that is known"))
    })
}

/// The name of a type, if it has one.
pub fn of(dtype: DType) -> Option<&'static str> {
    TYPES.iter().find(|(_, known)| *known == dtype).map(|(name, _)| *name)
}
