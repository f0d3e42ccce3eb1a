//! Arrays, numbers, streams and managed tensors of other Rust crates, each behind a feature with the crate's
//! name.
//!
//! | part | what it has |
//! |---|---|
//! | `ndarray` | owned arrays become tensors at the same address; views of operands |
//! | `pipeline` | a sink of inputs and a stream of results, of the traits in `futures` |
//! | `arrow` | primitive arrays become read-only tensors, and read leases become primitive arrays |
//! | `candle` | tensors on the processor become read-only tensors, and operands are copied to candle's tensors |
//! | `cudarc` | slices of device memory become tensors, and leases become views |
//! | `dlpark` | managed tensors of dlpark become ours and the other way round |
//!
//! Elements of `half` and `num-complex` are in `exchange/dtype.rs`, where the trait
//! [`Element`](crate::Element) is sealed.
//!
//! # Invariants
//!
//! - Each adapter is a feature; without it the crate is not compiled.
//! - An array that becomes a tensor keeps its address, and is dropped by the reaper after its last use.

#[cfg(feature = "arrow")]
mod arrow;
#[cfg(feature = "candle")]
mod candle;
#[cfg(feature = "cudarc")]
pub(crate) mod cudarc;
#[cfg(feature = "dlpark")]
mod dlpark;
#[cfg(feature = "ndarray")]
mod ndarray;
#[cfg(feature = "futures")]
pub(crate) mod pipeline;
