//! Element types, as Arrow writes them: a C string of few letters.

use std::ffi::CStr;

use super::super::dtype::DType;
use crate::core::invalid_tensor::InvalidTensor;

/// The primitive types that tensors have too.
const PRIMITIVES: [(&CStr, DType); 11] = [
    (c"c", DType::I8),
    (c"C", DType::U8),
    (c"s", DType::I16),
    (c"S", DType::U16),
    (c"i", DType::I32),
    (c"I", DType::U32),
    (c"l", DType::I64),
    (c"L", DType::U64),
    (c"e", DType::F16),
    (c"f", DType::F32),
    (c"g", DType::F64),
];

/// The beginnings of formats that tensors do not have, and their names. The first that fits is meant.
const OTHERS: [(&str, &str); 15] = [
    ("n", "nulls alone"),
    ("b", "bit-packed booleans; cast them to uint8"),
    ("z", "binary values of any length"),
    ("Z", "binary values of any length"),
    ("vz", "binary views"),
    ("u", "text"),
    ("U", "text"),
    ("vu", "text views"),
    ("d:", "decimals"),
    ("w:", "binary values of fixed length"),
    ("td", "dates; cast them to integers"),
    ("tt", "times of day; cast them to integers"),
    ("ts", "timestamps; cast them to integers"),
    ("tD", "durations; cast them to integers"),
    ("ti", "calendar intervals"),
];

/// The element type of a format.
///
/// # Errors
/// It is none of a primitive type that tensors have; the message says what it is.
pub(super) fn dtype(format: &CStr) -> Result<DType, InvalidTensor> {
    if let Some((_, dtype)) = PRIMITIVES.iter().find(|(letter, _)| *letter == format) {
        return Ok(*dtype);
    }
    let text = format.to_string_lossy();
    let what = match OTHERS.iter().find(|(start, _)| text.starts_with(start)) {
        Some((_, what)) => what,
        None if text.starts_with('+') => "a nested type; take its child arrays",
        None => "no format that this version knows",
    };
    Err(InvalidTensor::new("format", format!("is `{text}`, no primitive type that a tensor has: {what}")))
}

/// The format of an element type.
///
/// # Errors
/// Arrow has no primitive type for it.
pub(super) fn format(dtype: DType) -> Result<&'static CStr, InvalidTensor> {
    match PRIMITIVES.iter().find(|(_, known)| *known == dtype) {
        Some((format, _)) => Ok(format),
        None if dtype == DType::BOOL => Err(InvalidTensor::new(
            "dtype",
            "is bool, with a byte each, and Arrow's booleans have a bit each",
        )),
        None => {
            Err(InvalidTensor::new("dtype", format!("is {dtype}, which Arrow has no primitive type for")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_primitive_type_goes_both_ways() {
        for (letter, known) in PRIMITIVES {
            assert_eq!((dtype(letter), format(known)), (Ok(known), Ok(letter)));
        }
    }

    #[test]
    fn other_types_are_named_by_what_they_are() {
        let reason = |format: &CStr| dtype(format).unwrap_err().to_string();
        assert!(reason(c"b").contains("has: bit-packed"), "{}", reason(c"b"));
        assert!(reason(c"u").ends_with("format is `u`, no primitive type that a tensor has: text"));
        assert!(reason(c"tsu:UTC").contains("timestamps"));
        assert!(reason(c"tdD").contains("dates"));
        assert!(reason(c"+w:3").contains("nested"));
        assert!(reason(c"").contains("knows"));
        assert!(format(DType::BOOL).unwrap_err().to_string().contains("a bit each"));
        assert!(format(DType::C64).unwrap_err().to_string().starts_with("dtype is complex64"));
    }
}
