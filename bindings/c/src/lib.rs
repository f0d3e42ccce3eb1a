//! The C interface: `estafette.h` is generated from this crate.
//!
//! Everything here checks its arguments, calls the engine, and turns errors into a status and a text of the
//! calling thread. No scheduling happens here.
//!
//! | part | what it has |
//! |---|---|
//! | `api` | all functions as a table |
//! | `engine`, `status`, `version`, `log`, `last_error` | engines; what calls return; events for people; the text of the latest error |
//! | `tensor`, `describe`, `lease`, `export`, `dlpack` | tensors, leases and memory for other libraries |
//! | `fence`, `fenced` | fences of both sides, alone and with tensors |
//! | `submit`, `op`, `helping`, `names` | operations: submission, end, cancellation, names |
//! | `operators`, `program` | functions with a name; recorded operations |
//! | `contexts`, `remote`, `trace` | the device table; tensors of other processes; traces |
//! | `entry`, `context`, `options` | the beginning of a function: panics, checks, contexts, structs of options |
//! | `handles`, `places`, `slots` | the objects of handles, and their lifetimes |
//!
//! # Handles
//! | handle | what it is | checked how |
//! |---|---|---|
//! | `estafette_tensor*`, `estafette_lease*`, `estafette_promise*`, `estafette_engine*`, `estafette_program*`, `estafette_trace*`, `estafette_ticket*`, `estafette_door*`, `estafette_link*` | place and generation in a table (`handles.rs`), not an address | any value may be given |
//! | `estafette_op*` | the same, with how far the operation is (`slots.rs`) | any value may be given |
//! | `DLFence` | functions and a context, which is an address | fields, when it is adopted |
//!
//! # Rules that hold for every function
//! - On any error the caller keeps what it passed: tensors, fences, contexts.
//! - No panic crosses: `entry` turns one into `ESTAFETTE_INTERNAL`.
//! - Callbacks run under no lock of the library.
//!
//! # Invariants
//!
//! - On any error the caller keeps what it passed, so what can fail comes before what is taken. No panic
//!   crosses.
//! - A handle is a place and a generation, never an address. A call pins what it uses, without a lock.

// The names are those of the header.
#![allow(non_camel_case_types)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("handles hold a place and a generation in the 64 bits of a pointer");

mod api;
mod context;
mod contexts;
mod describe;
mod dlpack;
mod engine;
mod entry;
mod export;
mod fence;
mod fenced;
mod handles;
mod helping;
mod last_error;
mod lease;
mod log;
mod names;
mod op;
mod operators;
mod options;
mod places;
mod program;
mod remote;
mod slots;
mod status;
mod submit;
mod tensor;
mod trace;
mod version;

pub use api::*;
pub use contexts::*;
pub use describe::*;
pub use dlpack::{DLDataType, DLManagedTensor, DLManagedTensorVersioned, DLTensor};
pub use engine::*;
pub use export::*;
pub use fence::*;
pub use fenced::*;
pub use helping::*;
pub use last_error::*;
pub use lease::*;
pub use log::*;
pub use op::*;
pub use operators::*;
pub use program::*;
pub use remote::*;
pub use status::*;
pub use submit::*;
pub use tensor::*;
pub use trace::*;
pub use version::*;
