//! NumPy's notation of element types: `typestr` of the array interfaces (numpy/numpy:
//! doc/source/reference/arrays.interface.rst), and the format of a buffer.

use std::ffi::{CStr, c_long};

use estafette::DType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// C's `long`, as NumPy says it, where that has 64 bits.
const IS_LONG: bool = size_of::<c_long>() == 8;

/// Types that have both a `typestr` and a format.
const TYPES: [(DType, &str, &CStr); 14] = [
    (DType::BOOL, "|b1", c"?"),
    (DType::I8, "|i1", c"b"),
    (DType::U8, "|u1", c"B"),
    (DType::I16, "<i2", c"h"),
    (DType::U16, "<u2", c"H"),
    (DType::I32, "<i4", c"i"),
    (DType::U32, "<u4", c"I"),
    (DType::I64, "<i8", if IS_LONG { c"l" } else { c"q" }),
    (DType::U64, "<u8", if IS_LONG { c"L" } else { c"Q" }),
    (DType::F16, "<f2", c"e"),
    (DType::F32, "<f4", c"f"),
    (DType::F64, "<f8", c"d"),
    (DType::C64, "<c8", c"Zf"),
    (DType::C128, "<c16", c"Zd"),
];

/// The type that `text` of `interface` names.
/// Raises `TypeError` for a type that is not known, such as one in the other byte order.
pub fn parse(text: &str, interface: &str) -> PyResult<DType> {
    let bare = text.trim_start_matches(['|', '<', '=']);
    let known = TYPES.iter().find(|(_, name, _)| &name[1..] == bare && !text.starts_with('>'));
    known.map(|(dtype, ..)| *dtype).ok_or_else(|| {
        PyTypeError::new_err(format!("typestr {text:?} of `{interface}` is no type that is known"))
    })
}

/// The name of a type, if it has one.
pub fn of(dtype: DType) -> Option<&'static str> {
    TYPES.iter().find(|(known, ..)| *known == dtype).map(|(_, name, _)| *name)
}

/// The format of a buffer of such elements, if there is one.
pub fn format(dtype: DType) -> Option<&'static CStr> {
    TYPES.iter().find(|(known, ..)| *known == dtype).map(|(.., format)| *format)
}
