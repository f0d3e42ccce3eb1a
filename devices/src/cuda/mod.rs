//! CUDA devices, through the driver, loaded at run time.
//!
//! Nothing of CUDA is needed to build or to start; [`CudaRuntime::get`] looks for the driver once and says what is missing where
//! there is none. A function that a driver lacks is a feature that is missing, never a panic (`api.rs`).
//!
//! # How it fits the traits
//! - A fence of a stream of ours is a number. Giving it tells the driver nothing; an event is recorded when another queue
//!   asks for it, and the device writes the number into pinned memory when the host does (`stream.rs`).
//! - Queues wait for each other on the device, between devices as well; a wait that another one implies is left out.
//! - A stream of somebody else's ([`CudaDevice::foreign`]) gets waits and records at once, and a new identity at each
//!   acquisition. It is never queried, gets no callbacks, and is not kept (`foreign.rs`).
//! - Events are used again, but never while somebody holds them (`events.rs`).
//! - A fault is the context's: everything unfinished on it fails with the driver's number, and its memory is leaked (`context.rs`).
//! - Whatever a recording of a graph would mind, on whichever thread, is done in relaxed capture mode. A stream that is recording
//!   gets waits and records, never queries; what is recorded there is a fence of its own kind (`single.rs`).
//!
//! | file | idea |
//! |---|---|
//! | `library`, `api` | finding the driver, and its functions |
//! | `runtime` | what was found |
//! | `context` | primary contexts, entered and left; faults |
//! | `device`, `queue` | the traits |
//! | `stream`, `lane` | streams of ours; what is enqueued on them and the events that cover it |
//! | `progress`, `words` | how far they have come; the pinned words that they count in |
//! | `foreign` | streams of others |
//! | `events`, `single` | native events; fences that are one |
//! | `graph` | work of queues, recorded once and launched often |
//! | `memory`, `peers` | pools, pinned and managed memory; devices that reach each other's |
//! | `errors`, `counters`, `handle` | the driver's numbers; what is counted; its handles |

mod api;
mod context;
mod counters;
mod device;
mod errors;
mod events;
mod foreign;
mod graph;
mod handle;
mod lane;
mod library;
mod memory;
mod peers;
mod progress;
mod queue;
mod runtime;
mod single;
mod stream;
mod timing;
mod words;

pub use self::{
    counters::CudaCounters, device::CudaDevice, graph::CudaGraph, library::CudaUnavailable,
    memory::PointerInfo, queue::CudaQueue, runtime::CudaRuntime,
};
