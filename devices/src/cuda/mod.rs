//! CUDA devices, through the driver, loaded at run time.
//!
//! Nothing of CUDA is needed to build or to start; [`CudaRuntime::get`] looks for the driver once and says
//! what is missing where there is none. A function that a driver lacks is a feature that is missing, never a
//! panic (`driver.rs`).
//!
//! # How it fits the traits
//! - A fence of an own stream is a number. Making the fence calls no driver; an event is recorded when
//!   another queue waits for it, and the device writes the number into pinned memory when the host does
//!   (`stream.rs`).
//! - Queues wait for each other on the device, between devices as well; a wait that another one implies is
//!   left out.
//! - A foreign stream ([`CudaDevice::foreign`]) gets waits and records at once, and a new identity at each
//!   import. It is never queried, gets no callbacks, and is not kept (`foreign.rs`).
//! - Events are used again, but never while they are held (`events.rs`).
//! - A fault is the context's: everything unfinished on it fails with the driver's number, and its memory is
//!   leaked (`context.rs`).
//! - Calls that a capture of any thread would refuse are made in relaxed capture mode. A stream under capture
//!   gets waits and records, never queries; a fence recorded there is of its own kind (`events.rs`).
//! - Foreign code that enqueues on a queue, or frees memory, finds the device's context current on its
//!   thread.
//!
//! # What was decided against
//! - *A helper stream that waits for a foreign event and then writes a number*, so that the reactor need not
//!   query the driver. A wait that is pending occupies the hardware connection of its stream, of which there
//!   are 8 by default: other streams' work on that connection stands still until the event. The reactor
//!   queries the driver instead: a query takes 0.5 to 2.4 µs. It queries for 200 µs without a pause, and
//!   then every 50 µs to 1 ms.
//! - *A host function that wakes the reactor*, so that it need not poll during a long wait. On an H200 the
//!   waiting task ran 449 µs after the work that way, and 30 µs after it by the reactor, which scans for 20
//!   ms before it naps, and naps for 1 ms at most (`benches/results/2026-11-26-gpu.md`).
//!
//! | file | idea |
//! |---|---|
//! | `backend` | CUDA in the device table |
//! | `driver` | finding the driver, its functions, its error numbers and handles; what was found; its end |
//! | `context` | primary contexts, made current and restored; faults, and which contexts work waits for; counters |
//! | `device`, `queue` | the traits |
//! | `stream` | own streams; what is enqueued on them and the events that cover it |
//! | `progress` | their progress; the pinned timeline values that they count in |
//! | `foreign` | foreign streams |
//! | `events` | native events; fences that are one |
//! | `capture` | work of queues, captured once and launched often |
//! | `timing` | when work ran |
//! | `memory` | pools, pinned and managed memory; devices that reach each other's |
//! | `shared` | memory that other processes have |

mod backend;
mod capture;
mod context;
mod device;
mod driver;
mod events;
mod foreign;
mod memory;
mod progress;
mod queue;
mod shared;
mod stream;
mod timing;

pub(crate) use self::backend::Backend;
pub use self::{
    capture::CudaGraph,
    context::CudaCounters,
    device::CudaDevice,
    driver::{CudaRuntime, CudaUnavailable},
    memory::PointerInfo,
    queue::CudaQueue,
};
