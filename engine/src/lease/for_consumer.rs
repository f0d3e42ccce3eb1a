//! Leases for a consumer: what is pending when one is granted is handed to the consumer's queue, and only what no queue can wait for
//! is waited for here.

use std::sync::Arc;

use estafette_devices::{FenceState, Frontier, Order};
use estafette_sync::sync::Mutex;
use estafette_sync::time::{Duration, Instant};

use crate::core::clock;
use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::exchange::callback;
use crate::lease::consumer::Consumer;
use crate::lease::{Access, Lease, LeaseInner};
use crate::tensor::handle::Tensor;
use crate::wait::stand_in::StandInSet;

estafette_sync::statics! {
    /// Leases that were handed into the capture of a graph.
    static CAPTURED: Mutex<Vec<Arc<LeaseInner>>> = Mutex::new(Vec::new());
}

impl Tensor {
    /// Ends the leases of this tensor that were handed into captures of graphs, once no such graph will be launched any more.
    /// Gives their number. The memory goes through a quarantine.
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
            CAPTURED.lock().push(Arc::clone(lease));
        }
    }
}

/// How long a wait on the host sleeps between looks at whether it shall end.
const LOOK: Duration = Duration::from_millis(50);

/// As [`LOOK`], where nobody else runs operations.
const LOOK_ALONE: Duration = Duration::from_millis(1);

fn wait_on_host(
    core: &CoreRef,
    fences: &Frontier,
    deadline: Option<Instant>,
    timeout: Option<Duration>,
) -> Result<(), Error> {
    let _cover = core.cover();
    let helps = core.alone() && timeout.is_none() && context::may_help();
    let mut stand_ins = StandInSet::default();
    if core.alone() && !helps {
        stand_ins.want(core);
    }
    for fence in fences {
        while fence.state().is_pending() {
            callback::check()?;
            // A promise of the host may be one that only this thread can bring about.
            if helps && core.help_any() {
                continue;
            }
            let now = Instant::now();
            if let (Some(deadline), Some(timeout)) = (deadline, timeout)
                && now >= deadline
            {
                return Err(Error::Timeout(timeout));
            }
            let pause = if helps { LOOK_ALONE } else { LOOK };
            let pause = deadline.map_or(pause, |deadline| pause.min(deadline - now));
            if context::blocking(|| fence.wait_timeout(Some(pause))).is_none() {
                core.check_interrupt()?;
            }
        }
    }
    Ok(())
}
