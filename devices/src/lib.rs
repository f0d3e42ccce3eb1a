//! Devices say *when it is done*: queues, fences on them, sets of fences, and the one thread that observes
//! fences.
//!
//! A [`Fence`] is a point on a [`Queue`]: pending, done or failed. A [`FenceSet`] is a set of fences, at most
//! the newest one per in-order queue. The [`Reactor`] watches pending fences and notifies their subscribers,
//! so that no thread blocks for a device. Four kinds live here: the host ([`host`], with the worker pool in
//! [`cpu`]), those of a SYCL runtime (`sycl`) and of a CUDA driver (`cuda`) where there is one, and a
//! simulated one ([`sim`]) with virtual time. All pass the same [`conformance`] suite, CUDA on a simulator of
//! the driver so far.
//!
//! | part | idea |
//! |---|---|
//! | `device`, `dl_device`, `queue`, `error`, `timing` | the traits of a backend, and what they speak of |
//! | `driver_exit` | no call reaches a driver that shuts down, or that is of a parent process |
//! | `fence` | fences, sets of fences, clocks; what a backend implements behind a fence |
//! | `reactor` | the thread that observes fences |
//! | `shared_memory`, `extents` | memory of devices that crosses processes; blocks in large chunks of memory |
//! | [`table`] | the devices of the process by their numbers |
//! | [`host`], [`cpu`] | promises of the host; the worker pool |
//! | [`sim`], `cuda`, `sycl` | the other backends; the last two are features, on by default |
//! | [`conformance`] | the suite that every backend passes |
//! | `counters` | counters of calls into a driver |
//! | `current_guard` | a context that is current on a thread |
//! | `log_panic` | foreign code, whose panics are contained and logged |
//!
//! This crate never knows an operation, a tensor, or any type of DLPack but [`DLDevice`].
//!
//! ```
//! use estafette_devices::{FenceSet, Reactor, host};
//!
//! let (completer, fence) = host::promise("answer");
//! assert!(!fence.is_done());
//!
//! let mut fence_set = FenceSet::default();
//! fence_set.insert(fence.clone());
//! let (sender, receiver) = std::sync::mpsc::channel();
//! Reactor::global().when_settled(&fence_set, move |result| sender.send(result.is_ok()).expect("receiver lives"));
//!
//! completer.complete();
//! assert!(receiver.recv().expect("the callback ran"));
//! assert!(fence.is_done());
//! ```
//!
//! # Invariants
//!
//! - Fences of an in-order queue are pairs of queue and sequence, so a comparison says whether one is done.
//!   The reactor queries only the oldest.
//! - A kind is named here alone outside its folder: its `mod` and its entry in `BACKENDS`.
//! - The reactor calls back under no lock. A panic of one callback does not reach another.
//! - The worker pool never loses a wake-up (`cpu/sleep.rs` has the protocol and its model).
//! - The number of a context in the device table is never given twice.
//! - A driver measures device time only while a queue is asked for it ([`Queue::time`]).

#[macro_use(debug_as)]
extern crate estafette_sync;

#[cfg(not(estafette_loom))]
pub mod conformance;
mod counters;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod current_guard;
pub(crate) mod device;
mod dl_device;
#[cfg(feature = "_driver")]
mod driver_exit;
mod error;
mod extents;
pub(crate) mod fence;
pub mod host;
mod log_panic;
pub(crate) mod queue;
pub(crate) mod reactor;
mod shared_memory;
pub mod sim;
#[cfg(feature = "sycl")]
pub mod sycl;
pub mod table;
pub(crate) mod timing;

pub use self::{
    current_guard::CurrentGuard,
    device::{Allocation, Device},
    dl_device::{DLDevice, DeviceType},
    error::{DeviceError, DeviceErrorKind},
    extents::{Extents, Span},
    fence::{
        Clock, Event, Fence, FenceSet, FenceState, NativeEvent, Outcome, QueueClock, Settled, Subscriber,
        Timeline, Watch,
    },
    queue::{LaunchGraph, Order, Queue, QueueId, Recorded},
    reactor::Reactor,
    shared_memory::{Descriptor, Identity, SharedMemory, SharedSegment, Viewer},
    timing::{ClockBracket, DeviceSpan, Timing, host_now_ns},
};

#[doc(hidden)]
pub use self::log_panic::log_panic;

/// The kinds of this crate that have a runtime of their own.
const BACKENDS: &[&dyn table::Backend] = &[
    #[cfg(feature = "cuda")]
    &cuda::Backend,
    #[cfg(feature = "sycl")]
    &sycl::Backend,
];
