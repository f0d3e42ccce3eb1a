//! The DLPack structs that the header uses. Their definition is the user's own `dlpack/dlpack.h`, or a copy of the few that are
//! needed at the top of `estafette.h`; here only what the library itself looks into has fields.

/// `DLManagedTensorVersioned`.
#[derive(Debug)]
pub enum DLManagedTensorVersioned {}

/// `DLTensor`.
pub type DLTensor = estafette::exchange::table::DLTensor;

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

impl From<estafette::DType> for DLDataType {
    fn from(dtype: estafette::DType) -> Self {
        Self { code: dtype.code, bits: dtype.bits, lanes: dtype.lanes }
    }
}

impl From<DLDataType> for estafette::DType {
    fn from(dtype: DLDataType) -> Self {
        Self { code: dtype.code, bits: dtype.bits, lanes: dtype.lanes }
    }
}
