//! Refusing an operation that would wait for the lease that one of its own operands keeps.
//!
//! A tensor that was imported from memory under a lease keeps that lease for as long as it lives, and an operation keeps its
//! operands until its end. So an operation with such an operand never gets to write the leased tensor, or to use it at all where
//! the lease is for writing: it would wait for a lease that only its own end returns.

use std::collections::HashSet;
use std::sync::Arc;

use estafette_graph::VarId;

use crate::core::error::Error;
use crate::lease::{Access, LeaseState};
use crate::tensor::handle::Tensor;

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

/// Looks at each operand and at each lease once, so n operands cost n log n.
#[cold]
fn check_derived<'a>(
    read: impl Iterator<Item = &'a Tensor> + Clone,
    written: impl Iterator<Item = &'a Tensor> + Clone,
) -> Result<(), Error> {
    let (mut writes, mut reads) = (None, None);
    let mut seen: HashSet<*const LeaseState> = HashSet::new();
    for operand in read.clone().chain(written.clone()) {
        let mut under = operand.inner.lease.as_ref();
        while let Some(lease) = under.filter(|lease| seen.insert(Arc::as_ptr(lease))) {
            let behind_it = |ordering: &HashSet<VarId>| {
                orders(&lease.tensor).any(|var| ordering.contains(&var)) && lease.protects()
            };
            let waits = behind_it(writes.get_or_insert_with(|| orders_of(written.clone())))
                || (lease.access() == Access::Write
                    && behind_it(reads.get_or_insert_with(|| orders_of(read.clone()))));
            if waits {
                return Err(Error::Conflict(format!(
                    "the operation would wait for itself: one operand is in memory under a {}, which lasts as long as that \
                     operand, and another operand waits for the end of this lease",
                    lease.info()
                )));
            }
            under = lease.tensor.inner.lease.as_ref();
        }
    }
    Ok(())
}

/// The variables in whose queues accesses of the tensor stand.
fn orders(tensor: &Tensor) -> impl Iterator<Item = VarId> {
    tensor.inner.vars.iter().map(|var| var.ordering().id())
}

fn orders_of<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> HashSet<VarId> {
    tensors.flat_map(orders).collect()
}
