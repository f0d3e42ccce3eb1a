//! Refusing an operation that would wait for the lease that one of its own operands keeps.
//!
//! A tensor that was imported from memory under a lease keeps that lease for as long as it lives, and an operation keeps its
//! operands until its end. So an operation with such an operand never gets to write the leased tensor, or to use it at all where
//! the lease is for writing: it would wait for a lease that only its own end returns.

use crate::error::Error;
use crate::lease::Access;
use crate::tensor::Tensor;

/// Fails if a tensor of `written`, or of `read` where the lease is for writing, is ordered with a tensor whose lease one of the
/// operands keeps.
///
/// # Errors
/// [`Error::Conflict`] with the lease in words.
#[inline]
pub(crate) fn check_own_leases<'a>(
    read: impl Iterator<Item = &'a Tensor> + Clone,
    written: impl Iterator<Item = &'a Tensor> + Clone,
) -> Result<(), Error> {
    if read.clone().chain(written.clone()).all(|operand| operand.inner.lease.is_none()) {
        return Ok(());
    }
    check_derived(read, written)
}

#[cold]
fn check_derived<'a>(
    read: impl Iterator<Item = &'a Tensor> + Clone,
    written: impl Iterator<Item = &'a Tensor> + Clone,
) -> Result<(), Error> {
    for operand in read.clone().chain(written.clone()) {
        let mut under = operand.inner.lease.as_ref();
        while let Some(lease) = under {
            let behind_it = |other: &Tensor| lease.protects() && are_ordered(other, &lease.tensor);
            let waits = written.clone().any(behind_it)
                || (lease.access == Access::Write && read.clone().any(behind_it));
            if waits {
                return Err(Error::Conflict(format!(
                    "the operation would wait for itself: one operand is in memory under a {}, which lasts as long as that \
                     operand, and another operand waits for the end of this lease",
                    lease.label()
                )));
            }
            under = lease.tensor.inner.lease.as_ref();
        }
    }
    Ok(())
}

/// Whether accesses of both tensors stand in a common queue.
fn are_ordered(one: &Tensor, other: &Tensor) -> bool {
    let mut vars = one.inner.vars.iter().map(|var| var.ordering().id());
    vars.any(|id| other.inner.vars.iter().any(|var| var.ordering().id() == id))
}
