//! Leases for callers that cannot await.

use std::time::Duration;

use crate::error::Error;
use crate::lease::{Access, Lease, LeaseInner, check_writable};
use crate::taker::Taker;
use crate::tensor::Tensor;

impl Tensor {
    /// As [`lease`](Self::lease), blocking for at most `timeout`; `None` waits as long as it takes.
    ///
    /// # Errors
    /// As [`lease`](Self::lease), and those of [`Tensor::wait`].
    pub fn lease_wait(
        &self,
        access: Access,
        timeout: Option<Duration>,
        taker: impl Into<Taker>,
    ) -> Result<Lease, Error> {
        if access == Access::Alias {
            if !self.is_defined() {
                crate::wait::block_on_tensor(self, timeout)?;
            }
            return Ok(Lease { inner: LeaseInner::unheld(self, access, taker.into()) });
        }
        let lease = Lease::acquire_wait_as(self, access, timeout, taker.into())?;
        if access == Access::Write {
            check_writable(self)?;
        }
        Ok(lease)
    }

    /// As [`lease_wait`](Self::lease_wait), but gives up when it would have to wait: `None`.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    pub fn lease_now(&self, access: Access, taker: &str) -> Result<Option<Lease>, Error> {
        if !self.is_defined() {
            return self.inner.look().unwrap_or(Ok(())).map(|()| None);
        }
        if access == Access::Alias {
            return Ok(Some(Lease { inner: LeaseInner::unheld(self, access, taker.to_string().into()) }));
        }
        Lease::acquire_now(self, access, taker)
    }
}
