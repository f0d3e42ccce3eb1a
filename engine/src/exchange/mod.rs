//! The bottom half of the exchange: what a tensor from outside *is* (type, layout, address range), who owns
//! its memory, and who gives it back and when. It knows fences, so that memory outlives its last use on a
//! device; it knows neither operations nor the graph.
//!
//! | file | its one idea |
//! |---|---|
//! | [`dtype`] | element types, as DLPack writes them; unknown ones are opaque, not refused |
//! | [`layout`] | shape, strides and the addresses they touch, valid by construction |
//! | [`invalid`] | the one error of validation: a field and what is wrong with it |
//! | [`abi`] | the DLPack structs: import, export, one deleter call. The only place that knows `dlpark` |
//! | [`arrow`] | arrays of Arrow's C device interface, as managed tensors and back |
//! | [`promise`] | fences of other schedulers, and ours for them, as a struct of C functions |
//! | [`storage`] | what keeps memory alive |
//! | [`ranges`] | who else knows memory that overlaps this one |
//! | [`Home`] | streams in whose order memory is given out again |
//! | [`mod@reaper`] | the thread that runs foreign deleters, holding no lock |
//! | [`quarantine`] | memory that a consumer gave back while its device work may still run |
//! | [`callback`] | which threads run code of others that must not wait |
//! | [`fork`] | what must not run in a forked child |

pub mod abi;
pub mod arrow;
pub mod callback;
pub mod dtype;
pub mod fork;
pub mod invalid;
pub mod layout;
pub mod promise;
pub mod quarantine;
pub mod ranges;
pub mod reaper;
pub mod storage;

mod contain;
mod home;

pub use abi::{Abi, ExportFlags, ManagedTensor, export, table};
pub use dtype::{BF16Bits, DType, Element, F16Bits};
pub use home::Home;
pub(crate) use home::handed_back;
pub use invalid::InvalidTensor;
pub use layout::Layout;
pub use ranges::{Answer, Key, Ranges, Space};
pub use reaper::{Reaper, ReaperStats, Release, ReleaseStatus, promptly, reaper};
pub use storage::Storage;
