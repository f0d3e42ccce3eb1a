//! Leases of several tensors, taken at once.
//!
//! One lease operation names all the tensors, so taking them is a single step in the order of submission: two takers
//! of the same tensors in different orders cannot get in each other's way. Once it is granted it is split into one
//! lease per tensor, each of which is returned on its own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use estafette_graph::Mode;

use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::core::oneshot::Signal;
use crate::core::operation::{self, Kind, Name, OpGranted, OpHandle, Role};
use crate::engine::Engine;
use crate::lease::owner::Taker;
use crate::lease::{Access, Lease, LeaseInner, LeaseLabel, check_writable, end, give_up};
use crate::operation::run;
use crate::tensor::handle::Tensor;
use crate::trace::hooks;
use crate::wait::awaits::{Awaited, Pending};
use crate::wait::blocking;
use crate::wait::ready::ReadySignal;

impl Engine {
    /// Takes leases of several tensors in one step, once all of them are defined, ready, and free. The leases come in the
    /// order of `wanted`. A tensor may be wanted twice; if one of the two is a write, both are exclusive.
    ///
    /// # Errors
    /// As [`Tensor::lease`]; [`Error::Invalid`] for [`Access::Alias`], which is no lease.
    pub async fn lease_all(
        &self,
        wanted: &[(Tensor, Access)],
        taker: impl Into<Taker>,
    ) -> Result<Vec<Lease>, Error> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        AcquireAll::submit(self.core(), wanted, taker.into())?.await
    }

    /// As [`lease_all`](Self::lease_all), blocking for at most `timeout`.
    ///
    /// # Errors
    /// As [`lease_all`](Self::lease_all), and those of [`Tensor::wait`].
    pub fn lease_all_wait(
        &self,
        wanted: &[(Tensor, Access)],
        taker: impl Into<Taker>,
        timeout: Option<Duration>,
    ) -> Result<Vec<Lease>, Error> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let mut acquire = AcquireAll::submit(self.core(), wanted, taker.into())?;
        let waited =
            blocking::block(self.core(), &acquire.handle, "a scoped lease", &acquire.signal, timeout);
        acquire.note_resumed(true);
        waited??;
        acquire.hand_over()
    }
}

/// Leases being taken. Dropping it gives up; the tensors are not affected.
struct AcquireAll {
    wanted: Vec<(Tensor, Access)>,
    taker: Taker,
    /// `None` once the leases were handed over.
    label: Option<Arc<LeaseLabel>>,
    signal: Arc<ReadySignal>,
    handle: OpHandle,
    pending: Pending,
}

impl AcquireAll {
    fn submit(core: &CoreRef, wanted: &[(Tensor, Access)], taker: Taker) -> Result<Self, Error> {
        core.check_fork()?;
        for (tensor, access) in wanted {
            match access {
                Access::Read => {}
                Access::Write => check_writable(tensor)?,
                Access::Alias => return Err(Error::invalid("an alias is not a lease")),
            }
        }
        let exclusive = wanted.iter().any(|(_, access)| *access == Access::Write);
        let access = if exclusive { Access::Write } else { Access::Read };
        let signal = Arc::new(Signal::new());
        let label = Arc::new(LeaseLabel::new(access, taker.clone(), Some(Arc::clone(&signal)), false));
        let mut pending_op = operation::pending_op(core, Name::Static("lease"), Kind::Lease);
        pending_op.payload_mut().set_role(Role::Lease(Arc::clone(&label)));
        for (tensor, access) in wanted {
            tensor.inner.vars.iter().for_each(|var| pending_op.access(var, mode_of(*access)));
        }
        if pending_op.payload().noted {
            hooks::submitted(&pending_op);
            hooks::taken(pending_op.id(), &label.taker);
            wanted.iter().for_each(|(tensor, _)| hooks::uses(std::slice::from_ref(tensor)));
        }
        let (handle, granted) = pending_op.submit();
        if let Some(granted) = granted {
            run::dispatch_one(granted);
        }
        Ok(Self {
            wanted: wanted.to_vec(),
            taker,
            label: Some(label),
            signal,
            handle,
            pending: Pending::default(),
        })
    }

    fn note_resumed(&self, blocking: bool) {
        if self.handle.payload().noted {
            hooks::resumed(self.handle.id().get(), blocking);
        }
    }

    /// Splits what was granted into one lease per tensor.
    fn hand_over(&mut self) -> Result<Vec<Lease>, Error> {
        let granted =
            self.granted().expect("the signal is set once the lease is held, and it is handed over once");
        let leases: Vec<Lease> = self
            .wanted
            .iter()
            .map(|(tensor, access)| {
                let lease = LeaseInner::unheld(tensor, *access, self.taker.clone());
                lease.hold_from(&granted, mode_of(*access));
                Lease { inner: lease }
            })
            .collect();
        end(granted, None);
        // Tensors that were not defined at submission may have turned out to be read-only.
        for (tensor, access) in &self.wanted {
            if *access == Access::Write {
                check_writable(tensor)?;
            }
        }
        Ok(leases)
    }

    fn granted(&mut self) -> Option<OpGranted> {
        self.label.take().and_then(|label| label.abandon())
    }
}

fn mode_of(access: Access) -> Mode {
    if access == Access::Write { Mode::Update } else { Mode::Read }
}

impl Future for AcquireAll {
    type Output = Result<Vec<Lease>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.signal.poll_alone(cx) {
            Poll::Pending => {
                let Self { handle, pending, .. } = &mut *self;
                match pending.poll(cx, || Awaited::op("a scoped lease", handle)) {
                    Some(error) => Poll::Ready(Err(error)),
                    None => Poll::Pending,
                }
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                self.pending.over();
                self.note_resumed(false);
                Poll::Ready(self.hand_over())
            }
        }
    }
}

impl Drop for AcquireAll {
    fn drop(&mut self) {
        if let Some(label) = self.label.take() {
            give_up(&self.handle, label);
        }
    }
}
