//! SYCL devices, through the C interface that dpctl ships (`libDPCTLSyclInterface`), loaded at run time.
//!
//! Nothing of SYCL is needed to build or to start; [`SyclRuntime::get`] looks for the library once and says
//! what is missing where it cannot be had. A process that has the library already (because Python has
//! imported dpctl) shares it: there is never a second SYCL runtime beside the first.
//!
//! # How it fits the traits
//! - Every enqueueing gives a native event, and a fence is a number with the event that covers it
//!   (`progress.rs`). On an in-order queue that is the event of the last command, so a fence costs no driver
//!   call.
//! - A wait is not enqueued where it is made: it is kept and passed to the next commands as their list of
//!   dependences, as `depends_on` means it. Only code that enqueues by itself, on the native handle, needs a
//!   barrier for it (`queue_state.rs`).
//! - An out-of-order queue has no prefix. Its commands wait for what they were ordered after and for nothing
//!   else; a fence of it is the event of the operation's command, joined with those of earlier fences that it
//!   does not depend on.
//! - On OpenCL the driver calls back when an event completes (`push.rs`), so no thread polls and no thread
//!   blocks. Elsewhere the reactor polls.
//! - Asynchronous errors come back through events, each on the thread that settles it (`errors.rs`).
//! - Work of others is asked for its status and never waited for, and nothing that runs in a deleter enqueues
//!   on a SYCL queue: the runtime holds locks meanwhile that its host tasks may need (`event.rs`).
//! - Commands with time stamps go to other queues of the runtime, in the same order.
//! - A foreign queue ([`SyclDevice::foreign_queue`]) gets a barrier at once for every wait and for every
//!   fence, and a new identity at each import.
//!
//! | file | idea |
//! |---|---|
//! | `backend` | SYCL in the device table |
//! | `library` | finding and loading the library, and never a second runtime |
//! | `api` | its functions |
//! | `handle` | its objects, each deleted once |
//! | `runtime` | the devices that were found: the root devices in dpctl's order, with their default contexts |
//! | `context` | contexts, and which one memory and queues belong to |
//! | `device`, `queue`, `queue_state` | the traits |
//! | `event`, `progress` | fences |
//! | `push` | completion callbacks of OpenCL |
//! | `errors` | asynchronous errors |
//! | `exit` | no call reaches the runtime once it shuts down, or in a forked child |
//! | `timing` | when commands ran |
//! | `tests` | tests, with a runtime that refuses what they say |

mod api;
mod backend;
mod context;
mod device;
mod errors;
mod event;
mod exit;
mod handle;
mod library;
mod progress;
mod push;
mod queue;
mod queue_state;
mod runtime;
#[cfg(all(test, unix, not(any(estafette_loom, estafette_shuttle))))]
mod tests;
mod timing;

pub(crate) use self::backend::Backend;
pub use self::{
    context::UsmKind,
    device::{SyclCounters, SyclDevice},
    library::{SyclUnavailable, suggest_library},
    queue::SyclQueue,
    runtime::SyclRuntime,
};
