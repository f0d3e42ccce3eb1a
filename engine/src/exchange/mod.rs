//! Memory from outside: what a tensor *is* (type, layout, addresses), who owns its memory, and who releases
//! it and when. This layer knows fences, so that memory outlives its last use on a device. It knows neither
//! operations nor the graph.
//!
//! | file | its one idea |
//! |---|---|
//! | [`dtype`] | element types, as DLPack writes them; unknown types are opaque, not refused |
//! | `layout` | shape, strides and the addresses they touch, valid by construction |
//! | `abi` | the DLPack structs: import, export, one deleter call. Beside the adapter for it, the only place that knows `dlpark` |
//! | [`arrow`] | arrays of Arrow's C device interface, as managed tensors and back |
//! | [`foreign_fence`] | fences of other schedulers, and fences for them, as a struct of C functions |
//! | `storage` | the owner that keeps memory alive |
//! | `interval_map` | values by address range, and which of them overlap |
//! | `release_stream` | the stream in whose order an allocator reuses memory |
//! | `reaper` | the threads that run foreign deleters and hold no lock |
//! | [`quarantine`] | memory that a consumer released while its device work may still run |
//! | `callback` | which threads run foreign callbacks, which must not wait |
//! | `pack` | strided host memory in row-major order |
//! | `loan` | facts about memory that another process has shown to this one |
//!
//! # Invariants
//!
//! - Memory is taken out of the process-wide map before its deleter runs.
//! - A raw stream is not touched after the call that gave it. Memory whose last use is there goes through
//!   the quarantine, on a thread per device. The quarantine ends by a leak after a timeout.
//! - A producer orders its work before a queue that nothing else waits on, so one import never waits for
//!   another.
//! - Memory is released before its last use is over only behind a wait of the stream that its allocator
//!   orders reuse by, which the importer vouches for.
//! - Foreign deleters begin one after the other, each when the one before has returned or is slow. They run
//!   on the reaper's threads; those that the peer table calls inline run where Python drops a tensor.
//! - A callback of a foreign fence takes notes only: subscribers run on the reactor's thread, and the
//!   reaper releases the fence. Its first answer counts.
//! - A call that would block in a callback is refused.

pub(crate) mod abi;
pub mod arrow;
pub(crate) mod callback;
pub mod dtype;
pub mod foreign_fence;
pub(crate) mod interval_map;
pub(crate) mod layout;
#[cfg(feature = "links")]
pub(crate) mod loan;
pub mod quarantine;
pub(crate) mod reaper;
pub(crate) mod storage;

pub(crate) mod pack;
mod release_stream;

pub use abi::VERSION as DLPACK_VERSION;
pub use abi::table::{DLManagedTensorVersioned, DLTensor};
#[cfg(feature = "operators")]
pub(crate) use abi::unowned;
pub use abi::{Abi, ExportFlags, ManagedTensor, export};
pub use dtype::{BF16Bits, DType, Element, F16Bits};
pub(crate) use interval_map::{AddressSpace, IntervalKey, IntervalMap, Resolution};
pub use layout::Layout;
pub use reaper::{Release, ReleaseStatus, flush_deleters};
pub(crate) use reaper::{Releasing, is_releasing, reaper, releasing};
pub use release_stream::ReleaseStream;
pub(crate) use release_stream::handed_back;
pub(crate) use storage::Storage;

pub use crate::core::invalid_tensor::InvalidTensor;
