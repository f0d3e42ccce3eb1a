//! Who memory is handed to: how the consumer's work comes after earlier work, and what the end of its lease
//! waits for.
//!
//! | consumer | earlier work | the lease ends |
//! |---|---|---|
//! | the host | the host waits for it | when its owner releases it |
//! | a queue | the queue waits for it, or the host where the queue cannot | when work enqueued by then is done |
//! | unknown | nothing waits for it | after a quarantine |
//!
//! Two more kinds of memory go through a [quarantine](quarantine): memory handed to a queue whose handle does
//! not outlive the call, and device memory handed to the host on devices whose consumers may release memory
//! while their work still runs. Memory handed into the capture of a graph is read again at every launch, so
//! its lease lasts until [`Tensor::end_captures`].

use std::sync::Arc;

use estafette_devices::{DLDevice, Fence, FenceSet, Outcome, Queue, Reactor, Subscriber};
use estafette_sync::sync::Mutex;

use super::Lease;
use super::state::LeaseState;
use crate::core::engine_core::Core;
use crate::core::error::Error;
use crate::exchange::quarantine::{self, LastUse};
use crate::exchange::{Storage, reaper};
use crate::tensor::handle::{Tensor, TensorInner};

/// Who memory is handed to, as far as order is concerned.
#[derive(Clone, Debug, Default)]
pub enum Consumer {
    /// Code on the host, which may use the memory as soon as it has the lease.
    #[default]
    Host,
    /// The work enqueued on this queue from now on. A queue that does not belong to this engine is used
    /// within the call only, unless its handle outlives the call.
    Queue(Arc<dyn Queue>),
    /// A consumer that orders its work itself. Nothing is waited for, and the end of its work is unknown.
    Unordered,
}

impl Consumer {
    /// Whether the consumer comes after pending work by its own order.
    pub(crate) fn is_stream_ordered(&self) -> bool {
        !matches!(self, Self::Host)
    }

    /// What the end of a use by this consumer waits for.
    pub(crate) fn after(&self, tensor: &TensorInner) -> Result<Option<EndsAfter>, Error> {
        Ok(match self {
            Self::Host if may_release_before_completion(tensor) => Some(EndsAfter::Unknown),
            Self::Host => None,
            Self::Queue(queue) if queue.is_capturing()? => Some(EndsAfter::Captured),
            Self::Queue(queue) if queue.handle_outlives_call() => Some(EndsAfter::Queue(Arc::clone(queue))),
            Self::Queue(_) | Self::Unordered => Some(EndsAfter::Unknown),
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

/// What the end of a lease waits for if the lease's owner names no work.
#[derive(Debug, Clone)]
pub(crate) enum EndsAfter {
    /// The work on this queue at the end of the lease.
    Queue(Arc<dyn Queue>),
    /// Unknown work.
    Unknown,
    /// Unknown work, repeated by each launch of a graph.
    Captured,
}

impl EndsAfter {
    /// The fence of the last use of memory on `device`, of a use that ends now.
    pub(crate) fn fence(self, core: &Core, device: DLDevice) -> Fence {
        if let Self::Queue(queue) = &self
            // The legacy stream fails this query while another stream is being captured, and must not be used
            // then.
            && matches!(queue.is_capturing(), Ok(false))
        {
            if !queue.record_is_thread_safe() {
                return record_on_reactor(Arc::clone(queue));
            }
            if let Ok(fence) = queue.record() {
                return fence;
            }
        }
        quarantine::enter(core.device(device.queue_device()), core.quarantine_timeout)
    }

    /// Both, for memory that was handed out twice under one lease.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Captured, _) | (_, Self::Captured) => Self::Captured,
            (Self::Queue(one), Self::Queue(other)) if one.native() == other.native() && one.native() != 0 => {
                Self::Queue(one)
            }
            _ => Self::Unknown,
        }
    }
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
    let last = after.map(|after| FenceSet::from(after.fence(core, device)));
    reaper().release(last.unwrap_or_default(), storage);
}

/// As [`Consumer::after`], with [`EndsAfter::Unknown`] in place of an error.
pub(crate) fn after_of(consumer: &Consumer, tensor: &TensorInner) -> Option<EndsAfter> {
    consumer.after(tensor).unwrap_or(Some(EndsAfter::Unknown))
}

estafette_sync::statics! {
    /// Leases that were handed into the capture of a graph.
    static CAPTURED: Mutex<Vec<Arc<LeaseState>>> = Mutex::new(Vec::new());
}

impl Tensor {
    /// Ends the leases of this tensor that were handed into captures of graphs. To be called once none of
    /// these graphs will be launched again. Returns the number of leases. The memory goes through a
    /// quarantine.
    pub fn end_captures(&self) -> usize {
        if self.inner.core.check_fork().is_err() {
            return 0;
        }
        let ended: Vec<_> = {
            let mut captured = CAPTURED.lock();
            captured.extract_if(.., |lease| lease.tensor.same(self)).collect()
        };
        ended.len()
    }
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
    use std::any::Any;
    use std::time::Duration;

    use estafette_devices::{DeviceError, DeviceErrorKind, FenceState, Order, QueueId};

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
        let error = outcome.expect_err("nobody can know");
        assert_eq!(error.kind(), DeviceErrorKind::Fault, "a kind that leaks the memory");
        assert!(error.message().contains("no markers left"), "{error}");

        let (last, fence) = LastUse::promised("a use that is forgotten");
        drop(last);
        assert!(matches!(fence.state(), FenceState::Failed(error) if error.kind() == DeviceErrorKind::Fault));
    }
}
