//! Refuses an operation that would wait for the lease that one of its own operands keeps.
//!
//! A tensor imported from leased memory keeps the lease until the tensor is dropped, and an operation keeps
//! its operands until its end. So such an operation can never write the leased tensor, nor use that tensor at
//! all where the lease is for writing: it would wait for a lease that only its own end returns.

use std::collections::HashSet;
use std::sync::Arc;

use estafette_graph::VarId;

use crate::core::error::Error;
use crate::lease::{Access, LeaseState};
use crate::tensor::handle::Tensor;

/// Fails if one of the operands keeps a lease of a tensor, and a tensor of `written` is ordered with that
/// tensor. Where the lease is for writing, tensors of `read` count as well.
///
/// # Errors
/// [`Error::Conflict`] that describes the lease.
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

/// Visits each operand and each lease once, so n operands cost n log n.
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

/// The variables that order accesses of the tensor.
fn orders(tensor: &Tensor) -> impl Iterator<Item = VarId> {
    tensor.inner.vars.iter().map(|var| var.ordering().id())
}

fn orders_of<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> HashSet<VarId> {
    tensors.flat_map(orders).collect()
}
