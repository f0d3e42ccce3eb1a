//! Who memory is handed to: on which side earlier work is waited for, and what is known of the end.
//!
//! | consumer | earlier work | the lease ends |
//! |---|---|---|
//! | the host | is waited for on the host | when it is given back |
//! | a queue | is waited for by the queue, and on the host only where nothing else can | when what is enqueued there by then is done |
//! | nobody knows | is not waited for | after a quarantine |
//!
//! A queue whose handle may not be kept is not looked at again: the memory goes through a [quarantine](quarantine), and so
//! does memory that only a device can use and that the host was given, on devices whose consumers give memory back while
//! their work still runs. What is handed into the capture of a graph is read again at every launch, so that lease stays until
//! [`Tensor::end_captures`](crate::Tensor::end_captures).

use std::sync::Arc;

use estafette_devices::{DLDevice, Fence, Frontier, Outcome, Queue, Reactor, Subscriber};
use estafette_sync::sync::Mutex;

use crate::core::engine_core::Core;
use crate::core::error::Error;
use crate::exchange::quarantine::{self, LastUse};
use crate::exchange::{Storage, reaper};
use crate::tensor::handle::TensorInner;

/// Who memory is handed to, as far as order is concerned.
#[derive(Clone, Debug, Default)]
pub enum Consumer {
    /// Somebody on the host, who may use the memory as soon as he has it.
    #[default]
    Host,
    /// What is enqueued on this queue from now on. Somebody else's queue is used within the call only, unless its handle may
    /// be kept.
    Queue(Arc<dyn Queue>),
    /// Somebody who orders his work himself. Nothing is waited for, and nothing is known of the end.
    Unordered,
}

impl Consumer {
    /// Whether what is pending is left to the consumer.
    pub(crate) fn orders_itself(&self) -> bool {
        !matches!(self, Self::Host)
    }

    /// What the end of a use by this consumer waits for.
    pub(crate) fn after(&self, tensor: &TensorInner) -> Result<Option<After>, Error> {
        Ok(match self {
            Self::Host if is_released_early(tensor) => Some(After::Unknown),
            Self::Host => None,
            Self::Queue(queue) if queue.is_capturing()? => Some(After::Captured),
            Self::Queue(queue) if queue.may_be_kept() => Some(After::Queue(Arc::clone(queue))),
            Self::Queue(_) | Self::Unordered => Some(After::Unknown),
        })
    }
}

/// Whether whoever is given this memory uses it on queues that only he knows, and gives it back before that is over.
pub(crate) fn is_released_early(tensor: &TensorInner) -> bool {
    let Ok(definition) = tensor.definition() else { return false };
    // What the host can read it uses itself, and is done when it says so.
    !definition.host
        && tensor.core.device(definition.layout.device()).is_some_and(|device| device.is_released_early())
}

/// What the end of a lease waits for, if its holder says nothing.
#[derive(Debug, Clone)]
pub(crate) enum After {
    /// What is enqueued there when it ends.
    Queue(Arc<dyn Queue>),
    /// Nobody knows.
    Unknown,
    /// Nobody knows, and it is used again whenever a graph is launched.
    Captured,
}

impl After {
    /// The fence of the last use of memory on `device` that ends now.
    pub(crate) fn fence(self, core: &Core, device: DLDevice) -> Fence {
        if let Self::Queue(queue) = &self
            // The legacy stream says so too while another one is being captured: it may not be touched then.
            && matches!(queue.is_capturing(), Ok(false))
        {
            if !queue.records_anywhere() {
                return recorded_soon(Arc::clone(queue));
            }
            if let Ok(fence) = queue.record() {
                return fence;
            }
        }
        quarantine::enter(core.device(quarantine::device_of(device)), core.quarantine_timeout)
    }

    /// Both, of memory that was handed out twice under one lease.
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

/// The fence of what is enqueued on `queue` by the time that the reactor gets to it, which covers what is there now.
fn recorded_soon(queue: Arc<dyn Queue>) -> Fence {
    let (last, fence) = LastUse::promised("the end of a lease on a queue");
    let recorder = Recorder { queue, last: Mutex::new(Some(last)) };
    Reactor::global().deliver_soon(Arc::new(recorder), Ok(()));
    fence
}

/// Records a queue on the reactor's thread.
struct Recorder {
    queue: Arc<dyn Queue>,
    last: Mutex<Option<LastUse>>,
}

impl Subscriber for Recorder {
    fn settled(self: Arc<Self>, _: Outcome) {
        let last = self.last.lock().take();
        let Some(last) = last else { return };
        match self.queue.record() {
            Ok(fence) => Reactor::global().when_settled([fence], |outcome| last.settle(outcome)),
            Err(error) => last.settle(Err(quarantine::unknowable(&error.to_string()))),
        }
    }
}

/// Gives memory of our own on `device` back that a consumer had to himself.
pub(crate) fn give_back(storage: Storage, core: &Core, device: DLDevice, after: Option<After>) {
    let last = after.map(|after| Frontier::from(after.fence(core, device)));
    reaper().release(last.unwrap_or_default(), storage);
}

/// As [`Consumer::after`], where the question must not fail: then nothing is known.
pub(crate) fn after_of(consumer: &Consumer, tensor: &TensorInner) -> Option<After> {
    consumer.after(tensor).unwrap_or(Some(After::Unknown))
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::time::Duration;

    use estafette_devices::{DeviceError, DeviceErrorKind, FenceState, Order, QueueId};

    use super::*;

    /// A queue whose driver has nothing more to say.
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
        let fence = recorded_soon(Arc::new(Mute(QueueId::next())));
        let outcome = fence.wait_timeout(Some(Duration::from_secs(20))).expect("the reactor gets to it");
        let error = outcome.expect_err("nobody can know");
        assert_eq!(error.kind(), DeviceErrorKind::Fault, "a kind that leaks the memory");
        assert!(error.message().contains("no markers left"), "{error}");

        let (last, fence) = LastUse::promised("a use that is forgotten");
        drop(last);
        assert!(matches!(fence.state(), FenceState::Failed(error) if error.kind() == DeviceErrorKind::Fault));
    }
}
