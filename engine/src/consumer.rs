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
//! [`Tensor::end_captures`].

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use estafette_devices::{DLDevice, Fence, FenceState, Frontier, Order, Outcome, Queue, Reactor, Subscriber};
use estafette_sync::sync::Mutex;

use crate::clock;
use crate::context;
use crate::core::Core;
use crate::error::Error;
use crate::exchange::quarantine::{self, LastUse};
use crate::exchange::{Storage, reaper};
use crate::lease::{Access, Lease, LeaseInner};
use crate::tensor::{Tensor, TensorInner};

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
    fn after(&self, tensor: &TensorInner) -> Result<Option<After>, Error> {
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
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(last) = last else { return };
        match self.queue.record() {
            Ok(fence) => Reactor::global().when_settled([fence], |outcome| last.settle(outcome)),
            Err(error) => last.settle(Err(quarantine::unknowable(&error.to_string()))),
        }
    }
}

/// Leases that were handed into the capture of a graph.
static CAPTURED: Mutex<Vec<Arc<LeaseInner>>> = Mutex::new(Vec::new());

impl Tensor {
    /// Ends the leases of this tensor that were handed into captures of graphs, once no such graph will be launched any more.
    /// Gives their number. The memory goes through a quarantine.
    pub fn end_captures(&self) -> usize {
        if self.inner.core.check_fork().is_err() {
            return 0;
        }
        let ended: Vec<_> = {
            let mut captured = CAPTURED.lock().unwrap_or_else(PoisonError::into_inner);
            captured.extract_if(.., |lease| lease.tensor.same(self)).collect()
        };
        ended.len()
    }

    /// As [`lease_wait`](Self::lease_wait), for `consumer`: blocks only for what its queue cannot wait for itself.
    ///
    /// # Errors
    /// As [`lease_wait`](Self::lease_wait); [`Error::Device`] when the queue refuses to wait.
    pub fn lease_wait_for(
        &self,
        access: Access,
        timeout: Option<Duration>,
        taker: impl Into<crate::Taker>,
        consumer: &Consumer,
    ) -> Result<Lease, Error> {
        let deadline = timeout.and_then(clock::deadline);
        let lease = Lease::wait_granted(self, access, timeout, taker.into(), consumer)?;
        let mut left = lease.hand_to(consumer)?;
        while !left.is_empty() {
            wait_on_host(&self.inner.core, &left, deadline, timeout)?;
            left = lease.order(consumer, &left)?;
        }
        Ok(lease)
    }

    /// As [`lease`](Self::lease), for `consumer`: waits only for what its queue cannot wait for itself. A queue of somebody
    /// else's must stay good until this is done.
    ///
    /// # Errors
    /// As [`lease_wait_for`](Self::lease_wait_for).
    pub async fn lease_for(
        &self,
        access: Access,
        taker: impl Into<crate::Taker>,
        consumer: &Consumer,
    ) -> Result<Lease, Error> {
        let lease = Lease::granted(self, access, taker.into(), consumer).await?;
        let mut left = lease.hand_to(consumer)?;
        while !left.is_empty() {
            for fence in &left {
                // How it settled is looked at afterwards.
                let _ = fence.settled().await;
            }
            left = lease.order(consumer, &left)?;
        }
        Ok(lease)
    }

    /// As [`lease_now`](Self::lease_now), for `consumer`.
    ///
    /// # Errors
    /// As [`lease_wait_for`](Self::lease_wait_for).
    pub fn lease_now_for(
        &self,
        access: Access,
        taker: &str,
        consumer: &Consumer,
    ) -> Result<Option<Lease>, Error> {
        let Some(lease) = Lease::granted_now(self, access, taker, consumer)? else { return Ok(None) };
        let left = lease.hand_to(consumer)?;
        Ok(left.is_empty().then_some(lease))
    }
}

impl Lease {
    /// Hands what was left pending when the lease was granted to the consumer's queue, and notes what the end waits for. Gives
    /// what only the host can wait for.
    fn hand_to(&self, consumer: &Consumer) -> Result<Frontier, Error> {
        let pending = self.inner.label().take_pending();
        self.note_end(consumer)?;
        self.order(consumer, &pending)
    }

    /// Notes what the end waits for, of one more consumer.
    pub(crate) fn note_end(&self, consumer: &Consumer) -> Result<(), Error> {
        if let Some(after) = consumer.after(&self.inner.tensor.inner)? {
            self.inner.ends_after(after);
        }
        Ok(())
    }

    fn order(&self, consumer: &Consumer, pending: &Frontier) -> Result<Frontier, Error> {
        let mut host = Frontier::default();
        let Consumer::Queue(queue) = consumer else { return Ok(host) };
        for fence in pending {
            match queue.order_after(fence) {
                Ok(Order::Nothing | Order::Device) => {}
                Ok(Order::Host) => host.insert(fence.clone()),
                Err(refused) => match fence.state() {
                    // A failed writer is the failure of the version; a failed reader concerns nobody.
                    FenceState::Failed(_) => self.inner.tensor.inner.look().unwrap_or(Ok(()))?,
                    FenceState::Done => {}
                    FenceState::Pending => return Err(refused.into()),
                },
            }
        }
        Ok(host)
    }

    /// Keeps the lease beside what is exported from it, if it is handed into a capture.
    pub(crate) fn keep_if_captured(lease: &Arc<LeaseInner>) {
        if lease.is_captured() {
            CAPTURED.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(lease));
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

/// How long a wait on the host sleeps between looks at whether it shall end.
const LOOK: Duration = Duration::from_millis(50);

/// As [`LOOK`], where nobody else runs operations.
const LOOK_ALONE: Duration = Duration::from_millis(1);

fn wait_on_host(
    core: &Core,
    fences: &Frontier,
    deadline: Option<Instant>,
    timeout: Option<Duration>,
) -> Result<(), Error> {
    let _spare = core.pool.is_worker().then(|| core.pool.blocking());
    for fence in fences {
        while fence.state().is_pending() {
            // A promise of the host may be one that only this thread can bring about.
            if core.alone() && core.help_any() {
                continue;
            }
            let now = Instant::now();
            if let (Some(deadline), Some(timeout)) = (deadline, timeout)
                && now >= deadline
            {
                return Err(Error::Timeout(timeout));
            }
            let pause = if core.alone() { LOOK_ALONE } else { LOOK };
            let pause = deadline.map_or(pause, |deadline| pause.min(deadline - now));
            if context::blocking(|| fence.wait_timeout(Some(pause))).is_none() {
                core.check_interrupt()?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use estafette_devices::{DeviceError, DeviceErrorKind, QueueId};

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
