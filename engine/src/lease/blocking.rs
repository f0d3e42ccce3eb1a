//! Leases for callers that cannot await.

use std::time::Duration;

use crate::core::error::Error;
use crate::lease::consumer::Consumer;
use crate::lease::owner::LeaseOwner;
use crate::lease::{Access, Lease};
use crate::tensor::handle::Tensor;

impl Tensor {
    /// As [`lease`](Self::lease), blocking for at most `timeout`; `None` waits as long as it takes.
    ///
    /// # Errors
    /// As [`lease`](Self::lease), and those of [`Tensor::wait`].
    pub fn lease_wait(
        &self,
        access: Access,
        timeout: Option<Duration>,
        owner: impl Into<LeaseOwner>,
    ) -> Result<Lease, Error> {
        self.lease_wait_for(access, timeout, owner, &Consumer::Host)
    }

    /// As [`lease_wait`](Self::lease_wait), but gives up when it would have to wait: `None`.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    pub fn lease_now(&self, access: Access, owner: &str) -> Result<Option<Lease>, Error> {
        self.lease_now_for(access, owner, &Consumer::Host)
    }
}
