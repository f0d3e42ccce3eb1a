//! Element types, as DLPack writes them: a code, a number of bits and a number of lanes.
//!
//! The code is a plain number here, never a Rust `enum`: other libraries send codes that are younger than
//! this crate. Such a type is *opaque*: its tensors are imported, ordered, exported and copied byte by
//! byte, only typed views refuse them.

use std::fmt;
use std::str::FromStr;

use crate::core::invalid_tensor::InvalidTensor;

/// The type of one element of a tensor.
///
/// Same size and fields as `DLDataType`. One element is `lanes` values of `bits` bits each; almost everywhere
/// `lanes` is 1.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType {
    /// The meaning of the bits (`DLDataTypeCode`).
    pub code: u8,
    /// Bits of one value.
    pub bits: u8,
    /// Values in one element.
    pub lanes: u16,
}

/// The values of [`DType::code`] that this version knows.
pub mod code {
    #![allow(missing_docs, reason = "each name says it: a signed integer, an IEEE float, ...")]
    pub const INT: u8 = 0;
    pub const UINT: u8 = 1;
    pub const FLOAT: u8 = 2;
    pub const HANDLE: u8 = 3;
    pub const BFLOAT: u8 = 4;
    pub const COMPLEX: u8 = 5;
    pub const BOOL: u8 = 6;
    pub const FLOAT8_E3M4: u8 = 7;
    pub const FLOAT8_E8M0FNU: u8 = 14;
    pub const FLOAT6_E2M3FN: u8 = 15;
    pub const FLOAT6_E3M2FN: u8 = 16;
    pub const FLOAT4_E2M1FN: u8 = 17;
}

/// Names of the codes whose width is part of the name, from `FLOAT8_E3M4` on, in the order of the codes.
const NARROW: [&str; 11] = [
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
];

/// Names of the codes that take any number of bits.
const WIDE: [(&str, u8); 6] = [
    ("int", code::INT),
    ("uint", code::UINT),
    ("float", code::FLOAT),
    ("handle", code::HANDLE),
    ("bfloat", code::BFLOAT),
    ("complex", code::COMPLEX),
];

#[allow(missing_docs, reason = "the names are the documentation: I8 is int8, F8_E4M3FN is float8_e4m3fn")]
impl DType {
    pub const BOOL: Self = Self::new(code::BOOL, 8);
    pub const I8: Self = Self::new(code::INT, 8);
    pub const I16: Self = Self::new(code::INT, 16);
    pub const I32: Self = Self::new(code::INT, 32);
    pub const I64: Self = Self::new(code::INT, 64);
    pub const U8: Self = Self::new(code::UINT, 8);
    pub const U16: Self = Self::new(code::UINT, 16);
    pub const U32: Self = Self::new(code::UINT, 32);
    pub const U64: Self = Self::new(code::UINT, 64);
    pub const F16: Self = Self::new(code::FLOAT, 16);
    pub const F32: Self = Self::new(code::FLOAT, 32);
    pub const F64: Self = Self::new(code::FLOAT, 64);
    pub const BF16: Self = Self::new(code::BFLOAT, 16);
    pub const C32: Self = Self::new(code::COMPLEX, 32);
    pub const C64: Self = Self::new(code::COMPLEX, 64);
    pub const C128: Self = Self::new(code::COMPLEX, 128);
    pub const F8_E3M4: Self = Self::new(7, 8);
    pub const F8_E4M3: Self = Self::new(8, 8);
    pub const F8_E4M3B11FNUZ: Self = Self::new(9, 8);
    pub const F8_E4M3FN: Self = Self::new(10, 8);
    pub const F8_E4M3FNUZ: Self = Self::new(11, 8);
    pub const F8_E5M2: Self = Self::new(12, 8);
    pub const F8_E5M2FNUZ: Self = Self::new(13, 8);
    pub const F8_E8M0FNU: Self = Self::new(14, 8);
    pub const F6_E2M3FN: Self = Self::new(15, 6);
    pub const F6_E3M2FN: Self = Self::new(16, 6);
    pub const F4_E2M1FN: Self = Self::new(17, 4);
}

impl DType {
    /// A type with one lane.
    pub const fn new(code: u8, bits: u8) -> Self {
        Self { code, bits, lanes: 1 }
    }

    /// The same values, `lanes` of them in one element.
    pub(crate) const fn with_lanes(self, lanes: u16) -> Self {
        Self { lanes, ..self }
    }

    /// Bits of one element: `bits × lanes`.
    pub(crate) const fn itemsize_bits(self) -> u32 {
        self.bits as u32 * self.lanes as u32
    }

    /// Bytes of one element that stands alone: its bits rounded up.
    pub const fn itemsize(self) -> usize {
        self.itemsize_bits().div_ceil(8) as usize
    }

    /// Bytes of `n` elements packed without gaps, as DLPack packs sub-byte types. `None` when that is more
    /// than an object of this address space can have (`isize::MAX`).
    pub(crate) const fn bytes_for(self, n: usize) -> Option<usize> {
        // 2^64 × 2^24 fits in 128 bits.
        let bytes = (n as u128 * self.itemsize_bits() as u128).div_ceil(8);
        if bytes <= isize::MAX as u128 { Some(bytes as usize) } else { None }
    }

    /// True if elements do not end on byte boundaries when packed (int4, fp6, fp4).
    pub(crate) const fn is_sub_byte(self) -> bool {
        !self.itemsize_bits().is_multiple_of(8)
    }

    /// Checks the rules that DLPack states: no zero bits or lanes, `bool` and the 8-bit floats have 8 bits,
    /// the 6- and 4-bit floats 6 and 4 (the header demands that consumers refuse other values).
    pub(crate) fn validate(self) -> Result<(), InvalidTensor> {
        if self.lanes == 0 {
            return Err(InvalidTensor::new("dtype.lanes", "is 0"));
        }
        let wanted = match self.code {
            code::BOOL | code::FLOAT8_E3M4..=code::FLOAT8_E8M0FNU => 8,
            code::FLOAT6_E2M3FN | code::FLOAT6_E3M2FN => 6,
            code::FLOAT4_E2M1FN => 4,
            _ if self.bits == 0 => return Err(InvalidTensor::new("dtype.bits", "is 0")),
            _ => return Ok(()),
        };
        if self.bits != wanted {
            let name =
                if self.code == code::BOOL { "bool" } else { narrow_name(self.code).unwrap_or("this type") };
            return Err(InvalidTensor::new(
                "dtype.bits",
                format!("is {}, but {name} has {wanted}", self.bits),
            ));
        }
        Ok(())
    }
}

/// `float32`, `bfloat16`, `bool`, `float4_e2m1fn`; four lanes: `float32x4`; unknown codes: `code21b64`.
impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, bits, lanes } = *self;
        let wide = WIDE.iter().find(|(_, known)| *known == code);
        match (wide, narrow_name(code)) {
            (Some((name, _)), _) => write!(f, "{name}{bits}")?,
            (None, Some(name)) if self.validate().is_ok() => f.write_str(name)?,
            _ if code == code::BOOL && bits == 8 => f.write_str("bool")?,
            _ => write!(f, "code{code}b{bits}")?,
        }
        if lanes == 1 { Ok(()) } else { write!(f, "x{lanes}") }
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DType({self})")
    }
}

/// The text that [`DType::from_str`] could not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype {0:?}: names are like `float32`, `bfloat16`, `uint8` or `bool`")]
pub struct UnknownDType(String);

/// Reads what [`Display`](fmt::Display) writes; any text that is written back differently is refused.
impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).filter(|dtype| dtype.to_string() == text).ok_or_else(|| UnknownDType(text.to_owned()))
    }
}

/// A Rust type that can stand for the elements of a tensor in a typed view.
///
/// Sealed: the soundness of typed views rests on what is listed here. Every bit pattern is a value of all
/// of these types but `bool`; a view of `bool` looks at its bytes first, since
/// foreign libraries may write any byte. `u8` also views `bool` tensors, unchecked, for those who know or
/// want to repair them.
pub trait Element: Copy + Send + Sync + fmt::Debug + 'static + sealed::Sealed {
    /// The type of a tensor made of these elements.
    const DTYPE: DType;

    /// True if a tensor of `dtype` may be viewed as this type.
    #[doc(hidden)]
    fn accepts(dtype: DType) -> bool {
        dtype == Self::DTYPE
    }

    /// True if these bytes, a whole number of elements, are values of this type.
    #[doc(hidden)]
    fn valid(_bytes: &[u8]) -> bool {
        true
    }
}

/// An IEEE half-precision value as its 16 bits; conversions are left to the array library that wants them,
/// or to `half::f16` with the feature `half`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct F16Bits(pub u16);

/// A bfloat16 value as its 16 bits (the upper half of an `f32`).
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BF16Bits(pub u16);

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident,)*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
        // A typed view divides bytes by this size, so it has to be the size DLPack means.
        const _: () = assert!(size_of::<$rust>() == DType::$dtype.itemsize());
    )*};
}

elements! {
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u16 => U16, u32 => U32, u64 => U64,
    f32 => F32, f64 => F64, F16Bits => F16, BF16Bits => BF16,
    [f32; 2] => C64, [f64; 2] => C128,
}

#[cfg(feature = "half")]
elements! {
    half::f16 => F16, half::bf16 => BF16,
}

#[cfg(feature = "num-complex")]
elements! {
    num_complex::Complex<f32> => C64, num_complex::Complex<f64> => C128,
}

impl sealed::Sealed for u8 {}
impl Element for u8 {
    const DTYPE: DType = DType::U8;

    fn accepts(dtype: DType) -> bool {
        dtype == DType::U8 || dtype == DType::BOOL
    }
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::BOOL;

    fn valid(bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| byte <= 1)
    }
}

fn narrow_name(code: u8) -> Option<&'static str> {
    NARROW.get(usize::from(code).checked_sub(usize::from(code::FLOAT8_E3M4))?).copied()
}

fn parse(text: &str) -> Option<DType> {
    // The whole text first: the "x" of "complex64" is no lane count.
    parse_scalar(text).or_else(|| {
        let (scalar, lanes) = text.rsplit_once('x')?;
        Some(parse_scalar(scalar)?.with_lanes(lanes.parse().ok()?))
    })
}

fn parse_scalar(text: &str) -> Option<DType> {
    if text == "bool" {
        return Some(DType::BOOL);
    }
    if let Some(position) = NARROW.iter().position(|narrow| *narrow == text) {
        let bits = text.as_bytes()["float".len()] - b'0';
        return Some(DType::new(code::FLOAT8_E3M4 + position as u8, bits));
    }
    if let Some((code, bits)) = text.strip_prefix("code").and_then(|rest| rest.split_once('b')) {
        return Some(DType::new(code.parse().ok()?, bits.parse().ok()?));
    }
    let digits = text.find(|c: char| c.is_ascii_digit())?;
    let (_, code) = WIDE.iter().find(|(wide, _)| *wide == &text[..digits])?;
    Some(DType::new(*code, text[digits..].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_array_libraries() {
        for (dtype, name) in [
            (DType::F32, "float32"),
            (DType::BF16, "bfloat16"),
            (DType::BOOL, "bool"),
            (DType::U8, "uint8"),
            (DType::C128, "complex128"),
            (DType::F8_E4M3FN, "float8_e4m3fn"),
            (DType::F8_E8M0FNU, "float8_e8m0fnu"),
            (DType::F6_E3M2FN, "float6_e3m2fn"),
            (DType::F4_E2M1FN.with_lanes(2), "float4_e2m1fnx2"),
            (DType::new(code::INT, 4), "int4"),
            (DType::new(18, 64), "code18b64"),
        ] {
            assert_eq!(dtype.to_string(), name);
            assert_eq!(name.parse(), Ok(dtype));
        }
    }

    #[test]
    fn every_dtype_reads_back_from_its_name() {
        for code in 0..=255 {
            for bits in [0, 1, 4, 6, 8, 16, 32, 64, 128, 255] {
                for lanes in [0, 1, 2, 65535] {
                    let dtype = DType { code, bits, lanes };
                    assert_eq!(dtype.to_string().parse(), Ok(dtype), "{dtype}");
                }
            }
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "float", "float032", "float32x1", "float32x", "x4", "code2b32", "float8_e9m9", "bool8", "f4"]
        {
            assert_eq!(text.parse::<DType>(), Err(UnknownDType(text.to_owned())), "{text:?}");
            // The names that its text has are good.
            let message = UnknownDType(text.to_owned()).to_string();
            let names: Vec<&str> =
                message.rsplit(": ").next().unwrap_or_default().split('`').skip(1).step_by(2).collect();
            assert!(names.len() > 1 && names.iter().all(|name| name.parse::<DType>().is_ok()), "{message}");
        }
    }

    #[test]
    fn bytes_of_packed_elements() {
        assert_eq!(DType::F32.bytes_for(3), Some(12));
        assert_eq!(DType::F4_E2M1FN.bytes_for(3), Some(2));
        assert_eq!(DType::F6_E2M3FN.bytes_for(4), Some(3));
        assert_eq!(DType::F32.with_lanes(4).bytes_for(2), Some(32));
        assert_eq!(DType::F64.bytes_for(0), Some(0));
        assert_eq!(DType::F64.bytes_for(isize::MAX as usize / 8), Some(isize::MAX as usize / 8 * 8));
        assert_eq!(DType::F64.bytes_for(isize::MAX as usize / 8 + 1), None);
        assert_eq!(DType { code: 0, bits: 255, lanes: 65535 }.bytes_for(usize::MAX), None);
        assert!(DType::F4_E2M1FN.is_sub_byte() && !DType::F4_E2M1FN.with_lanes(2).is_sub_byte());
    }

    #[test]
    fn the_rules_of_the_header_are_checked_and_unknown_codes_are_opaque() {
        let reason = |dtype: DType| dtype.validate().map_err(|e| e.to_string());
        assert_eq!(reason(DType::F32.with_lanes(0)), Err("dtype.lanes is 0".into()));
        assert_eq!(reason(DType::new(code::INT, 0)), Err("dtype.bits is 0".into()));
        assert_eq!(reason(DType::new(code::BOOL, 1)), Err("dtype.bits is 1, but bool has 8".into()));
        assert_eq!(reason(DType::new(17, 8)), Err("dtype.bits is 8, but float4_e2m1fn has 4".into()));
        assert_eq!(reason(DType::new(15, 8)), Err("dtype.bits is 8, but float6_e2m3fn has 6".into()));
        assert_eq!(reason(DType::new(10, 0)), Err("dtype.bits is 0, but float8_e4m3fn has 8".into()));
        for fine in [DType::new(code::INT, 4), DType::new(18, 64), DType::new(255, 7), DType::C32] {
            assert_eq!(reason(fine), Ok(()));
        }
    }

    #[test]
    fn bool_views_look_at_their_bytes_and_u8_views_bool() {
        assert!(bool::valid(&[0, 1, 1]) && !bool::valid(&[0, 2]));
        assert!(
            u8::accepts(DType::BOOL) && !bool::accepts(DType::U8) && !f32::accepts(DType::F32.with_lanes(2))
        );
    }

    /// Elements of another crate come back as they were, and its neighbours of the same size are refused.
    #[cfg(any(feature = "half", feature = "num-complex"))]
    fn come_back<T: Element + PartialEq>(values: &[T], dtype: DType, refused: DType) {
        let engine = crate::Engine::builder().workers(1).build().unwrap();
        let x = engine.from_vec(values.to_vec(), &[values.len() as i64]).unwrap();
        assert_eq!(x.dtype().unwrap(), dtype);
        assert_eq!(x.to_vec::<T>().unwrap(), values);
        let y = engine.zeros(&[2], refused).unwrap();
        assert!(y.to_vec::<T>().is_err(), "{refused}");
    }

    #[test]
    #[cfg(feature = "half")]
    fn numbers_of_half_are_elements() {
        come_back(&[half::f16::from_f32(1.5), half::f16::NEG_INFINITY], DType::F16, DType::BF16);
        come_back(&[half::bf16::from_f32(-2.0), half::bf16::MAX], DType::BF16, DType::F16);
    }

    #[test]
    #[cfg(feature = "num-complex")]
    fn numbers_of_num_complex_are_elements() {
        use num_complex::Complex;
        come_back(&[Complex::new(1.0_f32, -2.0)], DType::C64, DType::F64);
        come_back(&[Complex::new(1.0_f64, -2.0)], DType::C128, DType::C64);
    }
}
