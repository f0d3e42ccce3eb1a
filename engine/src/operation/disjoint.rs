//! Refuses an operation whose body would get the same memory twice and write it: in Rust, views are slices.
//!
//! Few operands are compared in pairs. Many operands are sorted by identity, variable and address, so n
//! operands cost n log n.

use estafette_graph::VarId;

use crate::core::error::Error;
use crate::exchange::AddressSpace;
use crate::tensor::handle::Tensor;

/// Up to this many pairs are compared one by one, without an allocation. Sorting is as fast for more pairs.
const PAIRS_MAX: usize = 64;

const SAME: &str = "a tensor is written and used again in the same operation; name it in `updates` alone to change it in place";
const PROMISED: &str = "two operands of one operation may overlap, since one is a promised alias of the other, and one of them is \
                        written; use `updates`";
const OVERLAP: &str =
    "two operands of one operation overlap in memory and one of them is written; use `updates`";

/// Fails if a tensor of `written` is used a second time: as itself, as memory that overlaps it, or as a
/// promise of such memory.
///
/// # Errors
/// [`Error::Conflict`].
#[inline]
pub(crate) fn check_disjoint(read: &[Tensor], written: &[Tensor], updated: &[Tensor]) -> Result<(), Error> {
    let writes = written.len() + updated.len();
    if writes == 0 || writes + read.len() == 1 {
        return Ok(());
    }
    let written = written.iter().chain(updated);
    if writes * (read.len() + writes) > PAIRS_MAX {
        return check_sorted(read.iter(), written);
    }
    for (at, tensor) in written.clone().enumerate() {
        for other in read.iter().chain(written.clone().skip(at + 1)) {
            check_pair(tensor, other)?;
        }
    }
    Ok(())
}

/// As [`check_disjoint`], of two tensors.
pub(crate) fn check_pair(written: &Tensor, other: &Tensor) -> Result<(), Error> {
    if written.same(other) {
        return Err(Error::Conflict(SAME.into()));
    }
    let shares =
        || written.inner.vars.iter().any(|var| other.inner.vars.iter().any(|its| its.is_ordered_with(var)));
    if !(written.is_defined() && other.is_defined()) && shares() {
        return Err(Error::Conflict(PROMISED.into()));
    }
    if let (Some(one), Some(two)) = (Extent::of(written, true), Extent::of(other, false))
        && one.space == two.space
        && one.start < two.end
        && two.start < one.end
    {
        return Err(Error::Conflict(OVERLAP.into()));
    }
    Ok(())
}

/// Address range of an operand.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    space: AddressSpace,
    start: usize,
    end: usize,
    written: bool,
}

impl Extent {
    /// `None` for a tensor that has no memory yet, or no elements.
    fn of(tensor: &Tensor, written: bool) -> Option<Self> {
        let definition = tensor.inner.definition().ok()?;
        let range = definition.layout.byte_range(definition.data);
        let space = AddressSpace::of(definition.layout.device());
        if range.is_empty() {
            return None;
        }
        Some(Self { space, start: range.start, end: range.end, written })
    }
}

#[cold]
fn check_sorted<'a>(
    read: impl Iterator<Item = &'a Tensor>,
    written: impl Iterator<Item = &'a Tensor>,
) -> Result<(), Error> {
    let operands: Vec<(&Tensor, bool)> =
        written.map(|tensor| (tensor, true)).chain(read.map(|tensor| (tensor, false))).collect();
    if is_used_twice(&operands) {
        return Err(Error::Conflict(SAME.into()));
    }
    if operands.iter().any(|(tensor, _)| !tensor.is_defined()) && is_promised_alias(&operands) {
        return Err(Error::Conflict(PROMISED.into()));
    }
    if overlaps(&operands) {
        return Err(Error::Conflict(OVERLAP.into()));
    }
    Ok(())
}

/// Distinguishes live tensors.
fn identity(tensor: &Tensor) -> usize {
    std::sync::Arc::as_ptr(&tensor.inner).addr()
}

fn is_used_twice(operands: &[(&Tensor, bool)]) -> bool {
    let mut uses: Vec<(usize, bool)> =
        operands.iter().map(|(tensor, written)| (identity(tensor), *written)).collect();
    uses.sort_unstable();
    uses.windows(2).any(|pair| pair[0].0 == pair[1].0 && (pair[0].1 || pair[1].1))
}

/// True if two tensors share a variable, one of the two has no memory yet, and one is written. The caller has
/// checked that no written tensor is used twice.
fn is_promised_alias(operands: &[(&Tensor, bool)]) -> bool {
    let mut uses: Vec<(VarId, usize, bool, bool)> = operands
        .iter()
        .flat_map(|(tensor, written)| {
            let (identity, promised) = (identity(tensor), !tensor.is_defined());
            tensor.inner.vars.iter().map(move |var| (var.ordering().id(), identity, promised, *written))
        })
        .collect();
    uses.sort_unstable();
    // A tensor may be read twice, and may have a variable under two names.
    uses.dedup_by_key(|(var, identity, _, _)| (*var, *identity));
    uses.chunk_by(|one, two| one.0 == two.0).any(|sharing| {
        let is_both = |promised: bool, written: bool| {
            sharing.iter().any(|known| (known.2, known.3) == (promised, written))
        };
        let one_is_enough = is_both(true, true) && sharing.len() > 1;
        one_is_enough || is_both(true, false) && is_both(false, true)
    })
}

fn overlaps(operands: &[(&Tensor, bool)]) -> bool {
    let mut extents: Vec<Extent> =
        operands.iter().filter_map(|(tensor, written)| Extent::of(tensor, *written)).collect();
    extents.sort_unstable();
    extents.chunk_by(|one, two| one.space == two.space).any(|extents| {
        let (mut end, mut written_end) = (0, 0);
        extents.iter().any(|extent| {
            let overlaps = extent.start < if extent.written { end } else { written_end };
            end = end.max(extent.end);
            if extent.written {
                written_end = written_end.max(extent.end);
            }
            overlaps
        })
    })
}
