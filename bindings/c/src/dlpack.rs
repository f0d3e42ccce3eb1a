//! The DLPack structs that the header uses. Their definition is the user's own `dlpack/dlpack.h`, or a copy
//! of the few that are needed at the top of `estafette.h`; here only what the library itself looks into has
//! fields.

use estafette::DType;
use estafette::exchange::dtype::code;

use crate::entry::Refusal;

/// `DLManagedTensorVersioned`.
#[derive(Debug)]
pub enum DLManagedTensorVersioned {}

/// `DLManagedTensor`, without a version.
#[derive(Debug)]
pub enum DLManagedTensor {}

/// `DLTensor`.
pub type DLTensor = estafette::exchange::DLTensor;

/// `DLDataType`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDataType {
    /// The kind of number.
    pub code: u8,
    /// Bits of each lane.
    pub bits: u8,
    /// Numbers in one element.
    pub lanes: u16,
}

impl From<DType> for DLDataType {
    fn from(dtype: DType) -> Self {
        Self { code: dtype.code, bits: dtype.bits, lanes: dtype.lanes }
    }
}

impl DLDataType {
    /// The type, if it is one that this version of DLPack has. (A tensor from outside may be of any type.)
    pub(crate) fn known(self) -> Result<DType, Refusal> {
        let Self { code, bits, lanes } = self;
        let widths: &[u8] = match code {
            code::INT | code::UINT => &[1, 2, 4, 8, 16, 32, 64, 128],
            code::FLOAT => &[16, 32, 64, 128],
            code::HANDLE => &[8, 16, 32, 64, 128],
            code::BFLOAT => &[16],
            code::COMPLEX => &[32, 64, 128],
            code::BOOL => &[1, 8],
            code::FLOAT8_E3M4..=code::FLOAT8_E8M0FNU => &[8],
            code::FLOAT6_E2M3FN | code::FLOAT6_E3M2FN => &[6],
            code::FLOAT4_E2M1FN => &[4],
            _ => return Err(Refusal::invalid(format!("dtype: code {code} is no DLDataTypeCode"))),
        };
        if !widths.contains(&bits) {
            return Err(Refusal::invalid(format!("dtype: code {code} has no type of {bits} bits")));
        }
        if lanes == 0 {
            return Err(Refusal::invalid("dtype: lanes is 0"));
        }
        Ok(DType { code, bits, lanes })
    }
}
