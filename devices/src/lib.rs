//! Devices say *when it is done*: queues, fences on them, sets of fences, and the one thread that observes fences.
//!
//! A [`Fence`] is a point on a [`Queue`]: pending, done or failed. A [`FenceSet`] is a set of fences, at most the
//! newest one per in-order queue. The [`Reactor`] watches pending fences and calls whoever waits for them, so that no
//! thread blocks for a device. Four kinds live here: the host ([`host`], with the worker pool in [`cpu`]), those of a
//! SYCL runtime (`sycl`) and of a CUDA driver (`cuda`) where there is one, and a simulated one ([`sim`]) with virtual
//! time. All pass the same [`conformance`] suite, CUDA on a simulator of the driver so far.
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

// Under loom only the protocols are compiled, without the shells around them: loom has no reference-counted trait
// objects, and models of a few steps are all that it can explore.
#[cfg(not(estafette_loom))]
mod clock;
#[cfg(not(estafette_loom))]
pub mod conformance;
pub mod cpu;
#[cfg(not(estafette_loom))]
pub mod cuda;
#[cfg(not(estafette_loom))]
mod device;
#[cfg(not(estafette_loom))]
mod dl_device;
#[cfg(not(estafette_loom))]
mod entered;
#[cfg(not(estafette_loom))]
mod error;
#[cfg(not(estafette_loom))]
mod fence;
#[cfg(not(estafette_loom))]
mod fence_set;
#[cfg(not(estafette_loom))]
mod guarded;
#[cfg(not(estafette_loom))]
pub mod host;
#[cfg(not(estafette_loom))]
mod native_event;
#[cfg(not(estafette_loom))]
mod queue;
#[cfg(not(estafette_loom))]
mod reactor;
pub mod sharded_counter;
#[cfg(not(estafette_loom))]
mod signal;
#[cfg(not(estafette_loom))]
pub mod sim;
#[cfg(not(estafette_loom))]
mod source;
#[cfg(not(estafette_loom))]
pub mod sycl;
#[cfg(not(estafette_loom))]
pub mod table;
#[cfg(not(estafette_loom))]
mod timing;
#[cfg(not(estafette_loom))]
mod waiting;

#[cfg(not(estafette_loom))]
pub use self::{
    clock::{Clock, QueueClock},
    device::{Allocation, Device},
    dl_device::{DLDevice, DeviceType},
    entered::Entered,
    error::{DeviceError, DeviceErrorKind},
    fence::{Fence, FenceState, Settled},
    fence_set::FenceSet,
    native_event::NativeEvent,
    queue::{LaunchGraph, Order, Queue, QueueId, Recorded},
    reactor::{AsFence, Reactor},
    source::{Event, Outcome, Subscriber, Timeline, Watch},
    timing::{ClockBracket, DeviceSpan, Timing, host_now_ns},
};
