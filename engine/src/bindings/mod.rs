//! Items for the bindings and the tests of the engine alone. None of them is stable.
//!
//! A function without a comment is the method of its name, which other crates cannot call.
//!
//! | part | what it has |
//! |---|---|
//! | this file | hooks of a language, threads that call foreign code, errors, traces |
//! | `engine` | hooks, handles and imports of an engine |
//! | `tensor` | readiness, exports and fences of a tensor |
//! | `operation` | descriptions, outcomes and fences of operations |
//! | `submit_permit` | submission in two steps, for callers that give something away after the last error |
//! | `scope` | operands of a running operation |
//! | `lease` | owners, consumers and ends of leases |
//! | `program` | programs and their nodes |
//! | `exchange` | structs of DLPack, and fences of other schedulers |
//! | `fenced` | tensors with fences, as `dlpack_fence.h` has them |
//! | `arrow` | structs of Arrow |
//! | `operators` | the registry, calls, and options of C |
//! | `remote` | links and tickets at lines of a program in another language |

pub mod arrow;
pub mod engine;
pub mod exchange;
mod fenced;
pub mod lease;
pub mod operation;
#[cfg(feature = "operators")]
pub mod operators;
pub mod program;
#[cfg(feature = "links")]
pub mod remote;
pub mod scope;
mod submit_permit;
pub mod tensor;

use crate::core::error::Error;
use crate::core::unretrieved::Unretrieved;
use crate::exchange::quarantine::{self, QuarantineStats};
use crate::trace::{self, Recorder};

pub use crate::core::context::{Current, set_helping};
pub use crate::core::engine_core::WaitHook;
pub use crate::core::error::full_text;
pub use crate::core::lost::lost;
pub use crate::core::program_lock::set_program_lock;
pub use crate::exchange::reaper::{reaper, with_inline_deleters};
pub use crate::export::stream::ImportStream;
pub use crate::operation::import::OwnedMemory;
#[cfg(feature = "operators")]
pub use crate::operators::{invocation::Invocation, operator::Implementation};
pub use crate::tensor::alias_map::Origin;
pub use crate::tensor::handle::producer;
pub use crate::trace::events::events_asked_for;
pub use crate::trace::hooks::{
    Copying, body_has_lock, body_uses, body_wants_lock, copy_begins, imported_from, on_event_loop,
    wait_has_lock,
};
pub use crate::trace::names::call_this_thread;
pub use crate::trace::process::this_process;
pub use crate::trace::receiver::{EventReceiver, receive_events};
pub use crate::wait::diagnose::{op_waits_for, tensor_waits_for};
pub use crate::wait::inspect::inspected;
pub use crate::wait::notify::{Notice, wait_any, wait_any_work};

/// Threads that run foreign callbacks.
pub mod callback {
    pub use crate::exchange::callback::{check, run};
}

/// Counts of the memory that went through the quarantine so far in this process.
pub fn quarantine_stats() -> QuarantineStats {
    quarantine::stats()
}

/// The program gets this error, so the failure in the error is retrieved.
pub fn retrieve(error: &Error) {
    error.retrieve();
}

/// Reports the failures that were not reported yet, as if their last handles were gone. Retrieves no failure.
pub fn report(unretrieved: &Unretrieved) {
    unretrieved.report();
}

/// True if events are noted: a recorder is open, `tracing` events are emitted, or a profiler takes ranges.
/// One relaxed load.
#[inline(always)]
pub fn is_trace_open() -> bool {
    trace::is_open()
}

/// Events of a recorder that did not fit so far.
pub fn lost_events(recorder: &Recorder) -> u64 {
    recorder.lost()
}

/// Sets the name that the program has in traces, unless
/// [`TraceOptions::program`](trace::TraceOptions::program) says otherwise: for bindings to languages whose
/// programs are run by an interpreter. Only the first call counts.
pub fn set_program_name(name: String) {
    trace::set_program_name(name);
}
