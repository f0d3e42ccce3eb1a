//! Consumers of memory: how the consumer's work comes after earlier work, and what the end of its lease
//! waits for.
//!
//! | consumer | earlier work | the lease ends |
//! |---|---|---|
//! | the host | the host waits for it | when its owner releases it |
//! | a queue | the queue waits for it, or the host where the queue cannot | when work enqueued by then is done |
//! | unknown | nothing waits for it | after a quarantine |
//!
//! Two more kinds of memory go through a [quarantine](quarantine): memory handed to a queue whose handle does
//! not outlive the call and that nothing [keeps](Consumer::KeptQueue), and device memory handed to the host
//! on devices whose consumers may release memory while their work still runs. Memory handed into the capture
//! of a graph is read again at every launch, so its lease lasts until `bindings::lease::end_captures`.

use std::any::Any;
use std::sync::Arc;

use estafette_devices::{
    DLDevice, DeviceError, DeviceErrorKind, Fence, FenceSet, Outcome, Queue, Reactor, Subscriber, table,
};
use estafette_sync::panic::contain_panic;
use estafette_sync::sync::Mutex;
use smallvec::{SmallVec, smallvec};

use super::Lease;
use super::state::LeaseState;
use crate::core::contained::Contained;
use crate::core::engine_core::Core;
use crate::core::error::Error;
use crate::core::lost::lost;
use crate::core::program_lock::without_program_lock;
use crate::exchange::quarantine::{self, LastUse};
use crate::exchange::{Storage, reaper};
use crate::tensor::handle::TensorInner;

/// The value that keeps a consumer's queue alive.
pub type Keeper = Arc<dyn Any + Send + Sync>;

/// The consumer that memory is handed to, as far as order is concerned.
#[derive(Clone, Debug, Default)]
pub enum Consumer {
    /// Code on the host, which may use the memory as soon as it has the lease.
    #[default]
    Host,
    /// The work enqueued on this queue from now on. A queue that does not belong to this engine is used
    /// within the call only, unless its handle outlives the call.
    Queue(Arc<dyn Queue>),
    /// As `Queue`, with a queue whose handle stays valid until the keeper is dropped, which happens after the
    /// lease. The end of the lease then waits for the work that is on the queue by then.
    KeptQueue(Arc<dyn Queue>, Keeper),
    /// A consumer that orders its work itself. Nothing is waited for, and the end of its work is unknown.
    Unordered,
}

impl Consumer {
    /// True if the consumer comes after pending work by its own order.
    pub(crate) fn is_stream_ordered(&self) -> bool {
        !matches!(self, Self::Host)
    }

    /// The queue that the consumer uses the memory on, if it has named one.
    pub(crate) fn queue(&self) -> Option<&Arc<dyn Queue>> {
        match self {
            Self::Queue(queue) | Self::KeptQueue(queue, _) => Some(queue),
            Self::Host | Self::Unordered => None,
        }
    }

    /// The work that the end of a use by this consumer waits for.
    pub(crate) fn after(&self, tensor: &TensorInner) -> Result<Option<EndsAfter>, Error> {
        Ok(match self {
            Self::Host if may_release_before_completion(tensor) => Some(EndsAfter::unknown(tensor)),
            Self::Host => None,
            Self::Queue(queue) | Self::KeptQueue(queue, _) if queue.is_capturing()? => {
                Some(EndsAfter::Captured(smallvec![queue.device()]))
            }
            Self::KeptQueue(queue, keeper) => {
                Some(EndsAfter::Queue(Arc::clone(queue), Some(Arc::clone(keeper))))
            }
            Self::Queue(queue) if queue.handle_outlives_call() => {
                Some(EndsAfter::Queue(Arc::clone(queue), None))
            }
            Self::Queue(queue) => Some(EndsAfter::Unknown(smallvec![queue.device()])),
            Self::Unordered => Some(EndsAfter::unknown(tensor)),
        })
    }
}

/// True if a consumer may release this memory while its own, unknown streams still use it (the case for
/// CUDA).
pub(crate) fn may_release_before_completion(tensor: &TensorInner) -> bool {
    let Ok(definition) = tensor.definition() else { return false };
    // A consumer uses memory that the host can read on the host, and releases it after its use.
    !definition.host
        && tensor
            .core
            .device(definition.layout.device())
            .is_some_and(|device| device.may_release_before_completion())
}

/// Queues that the end of one lease looks at. A lease that is handed to more waits for the whole device.
const QUEUES_MAX: usize = 16;

/// The work that the end of a lease waits for if the lease's owner names no work.
#[derive(Debug, Clone)]
pub(crate) enum EndsAfter {
    /// The work on this queue at the end of the lease, and what keeps the queue alive.
    Queue(Arc<dyn Queue>, Option<Keeper>),
    /// The work on several such queues.
    Queues(Vec<(Arc<dyn Queue>, Option<Keeper>)>),
    /// Unknown work of these devices: others than the memory's own use pinned and managed memory too.
    Unknown(Devices),
    /// As `Unknown`, repeated by each launch of a graph.
    Captured(Devices),
}

type Devices = SmallVec<[DLDevice; 1]>;

impl EndsAfter {
    /// Unknown work of the devices that may use the memory of `tensor`.
    pub(crate) fn unknown(tensor: &TensorInner) -> Self {
        let users = |device| without_program_lock(|| table::users(device)).into();
        Self::Unknown(
            tensor.definition().map_or_else(|_| Devices::new(), |known| users(known.layout.device())),
        )
    }

    /// The fences of the last uses of memory on `device`, which end now. A deleter may ask for them on a
    /// thread of the program.
    pub(crate) fn fences(&self, core: &Core, device: DLDevice) -> FenceSet {
        // Queues may be foreign code, and the caller has a lease to end.
        let found = without_program_lock(|| contain_panic(|| self.find_fences(core, device)));
        found.unwrap_or_else(|panic| lost(DeviceError::new(DeviceErrorKind::Fault, panic)).into())
    }

    fn find_fences(&self, core: &Core, device: DLDevice) -> FenceSet {
        // The legacy stream fails this query while another stream is being captured, and must not be used
        // then.
        let is_free = |queue: &Arc<dyn Queue>| matches!(queue.is_capturing(), Ok(false));
        let last = |queue| if is_free(queue) { last_work(queue).ok() } else { None };
        let known = match self {
            Self::Queue(queue, _) => last(queue).map(FenceSet::from),
            Self::Queues(queues) => queues.iter().map(|(queue, _)| last(queue)).collect(),
            Self::Unknown(_) | Self::Captured(_) => None,
        };
        known.unwrap_or_else(|| {
            let mut devices = self.devices();
            if devices.is_empty() {
                devices.extend(table::users(device));
            }
            let admit = |device| quarantine::admit(core.device(device), core.quarantine_timeout);
            devices.into_iter().map(admit).collect()
        })
    }

    /// Both, for memory that was handed out twice under one lease. Keepers that are not needed go to
    /// `unneeded`.
    pub(crate) fn and(self, other: Self, unneeded: &mut Vec<Keeper>) -> Self {
        let is_captured = matches!(self, Self::Captured(_)) || matches!(other, Self::Captured(_));
        let is_unknown = matches!(self, Self::Unknown(_)) || matches!(other, Self::Unknown(_));
        let mut devices = self.devices();
        for device in other.devices() {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        let mut queues = self.into_queues();
        for (queue, keeper) in other.into_queues() {
            let is_it = |known: &Arc<dyn Queue>| {
                known.handle() == queue.handle() && known.device() == queue.device() && queue.handle() != 0
            };
            if queues.iter().any(|(known, _)| is_it(known)) {
                unneeded.extend(keeper);
            } else {
                queues.push((queue, keeper));
            }
        }
        if !is_captured && !is_unknown && queues.len() <= QUEUES_MAX {
            return Self::Queues(queues);
        }
        unneeded.extend(queues.into_iter().filter_map(|(_, keeper)| keeper));
        if is_captured { Self::Captured(devices) } else { Self::Unknown(devices) }
    }

    fn into_queues(self) -> Vec<(Arc<dyn Queue>, Option<Keeper>)> {
        match self {
            Self::Queue(queue, keeper) => vec![(queue, keeper)],
            Self::Queues(queues) => queues,
            Self::Unknown(_) | Self::Captured(_) => Vec::new(),
        }
    }

    /// The devices of what is waited for, as far as it is known.
    fn devices(&self) -> Devices {
        let queues = match self {
            Self::Queue(queue, _) => return smallvec![queue.device()],
            Self::Queues(queues) => queues,
            Self::Unknown(devices) | Self::Captured(devices) => return devices.clone(),
        };
        let mut devices: Devices = queues.iter().map(|(queue, _)| queue.device()).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }
}

/// The fence of the work that is on `queue` now. No graph is captured there.
///
/// # Errors
/// The queue has failed.
pub(super) fn last_work(queue: &Arc<dyn Queue>) -> Result<Fence, DeviceError> {
    if queue.record_is_thread_safe() { queue.record() } else { Ok(record_on_reactor(Arc::clone(queue))) }
}

/// A fence recorded on `queue` by the reactor's thread. The fence covers at least the work that is on the
/// queue now.
fn record_on_reactor(queue: Arc<dyn Queue>) -> Fence {
    let (last, fence) = LastUse::promised("the end of a lease on a queue");
    let recorder = FenceRecorder { queue, last: Mutex::new(Some(last)) };
    Reactor::global().deliver_soon(Arc::new(recorder), Ok(()));
    fence
}

struct FenceRecorder {
    queue: Arc<dyn Queue>,
    last: Mutex<Option<LastUse>>,
}

impl Subscriber for FenceRecorder {
    fn settled(self: Arc<Self>, _: Outcome) {
        let last = self.last.lock().take();
        let Some(last) = last else { return };
        match self.queue.record() {
            Ok(fence) => Reactor::global().when_settled([fence], |outcome| last.settle(outcome)),
            Err(error) => last.settle(Err(quarantine::unknowable(&error.to_string()))),
        }
    }
}

/// Releases memory of the engine on `device` that one consumer had for itself, after the consumer's last use.
pub(crate) fn release_storage(storage: Storage, core: &Core, device: DLDevice, after: Option<EndsAfter>) {
    let after = after.map(Contained::new);
    let last = after.as_ref().map(|after| after.fences(core, device));
    reaper().release(last.unwrap_or_default(), storage);
}

/// As [`Consumer::after`], with [`EndsAfter::Unknown`] in place of an error.
pub(crate) fn after_of(consumer: &Consumer, tensor: &TensorInner) -> Option<EndsAfter> {
    consumer.after(tensor).unwrap_or_else(|_| Some(EndsAfter::unknown(tensor)))
}

estafette_sync::per_process! {
    /// Leases that were handed into the capture of a graph.
    pub(crate) static CAPTURED: Mutex<Vec<Arc<LeaseState>>> = Mutex::new(Vec::new());
}

impl Lease {
    /// Notes what the end waits for, for one more consumer.
    pub(crate) fn note_end(&self, consumer: &Consumer) -> Result<(), Error> {
        if let Some(after) = consumer.after(&self.inner.tensor.inner)? {
            self.inner.ends_after(after);
        }
        Ok(())
    }

    /// Keeps a lease that is handed into a capture, besides its exports.
    pub(crate) fn keep_if_captured(lease: &Arc<LeaseState>) {
        if lease.is_captured() {
            CAPTURED.lock().push(Arc::clone(lease));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use estafette_devices::{FenceState, Order, QueueId};

    use super::*;

    /// A queue whose driver cannot record a fence.
    #[derive(Debug)]
    struct Mute(QueueId);

    impl Queue for Mute {
        fn id(&self) -> QueueId {
            self.0
        }

        fn device(&self) -> DLDevice {
            DLDevice::CPU
        }

        fn in_order(&self) -> bool {
            true
        }

        fn order_after(&self, _: &Fence) -> Result<Order, DeviceError> {
            Ok(Order::Host)
        }

        fn record(&self) -> Result<Fence, DeviceError> {
            Err(DeviceError::new(DeviceErrorKind::Other, "no markers left"))
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[test]
    fn a_last_use_that_cannot_be_marked_is_never_taken_for_over() {
        let fence = record_on_reactor(Arc::new(Mute(QueueId::next())));
        let outcome = fence.wait_timeout(Some(Duration::from_secs(20))).expect("the reactor gets to it");
        let error = outcome.expect_err("its last use is unknown");
        assert_eq!(error.kind(), DeviceErrorKind::Fault, "a kind that leaks the memory");
        assert!(error.message().contains("no markers left"), "{error}");

        let (last, fence) = LastUse::promised("a use that is forgotten");
        drop(last);
        assert!(matches!(fence.state(), FenceState::Failed(error) if error.kind() == DeviceErrorKind::Fault));
    }
}
