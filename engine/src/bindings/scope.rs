//! Operands of a running operation.

use estafette_graph::OpId;

use crate::core::context::Current;
use crate::core::error::Error;
use crate::exchange::ManagedTensor;
use crate::export::{ExportOptions, export_held};
use crate::lease::consumer::may_release_before_completion;
use crate::lease::{Access, check_writable};
use crate::operation::completion::Scope;
use crate::tensor::alias_map::LentView;
use crate::tensor::handle::Tensor;

/// Name of the operation, until the operation has ended.
pub fn name(scope: &Scope) -> Option<String> {
    scope.lock().ok()?.running.as_ref().map(|running| running.tag().name.as_str().to_owned())
}

pub fn current(scope: &Scope) -> Option<Current> {
    scope.current()
}

pub fn make_current<T>(scope: &Scope, f: impl FnOnce() -> T) -> T {
    scope.make_current(f)
}

pub fn access_of(scope: &Scope, tensor: &Tensor) -> Option<Access> {
    scope.access_of(tensor)
}

/// As [`export`](Scope::export), for a consumer that gets an address only and orders its work after the
/// operation's queue, so that its use ends with the operation. Returns the access that the consumer has.
/// `None` if the tensor is not an operand of the running operation.
pub fn describe(scope: &Scope, tensor: &Tensor) -> Option<Access> {
    let access = scope.access_of(tensor)?;
    if scope.queue().is_none()
        && may_release_before_completion(&tensor.inner)
        && let Ok(mut inner) = scope.lock()
    {
        // The streams of the consumer are unknown.
        inner.lent_on = tensor.device().ok();
    }
    Some(if check_writable(tensor).is_err() { Access::Read } else { access })
}

/// Lends an operand in host memory to the function of the operation, until [`take_back`]. Returns the access
/// that the function has; `None` for a tensor that has to be [exported](Scope::export). Unlike an export the
/// view is no lease, unless memory is imported from it.
pub fn lend(scope: &Scope, tensor: &Tensor) -> Option<Access> {
    let definition = tensor.inner.definition().ok().filter(|definition| definition.host)?;
    let region = &definition.placed.as_ref()?.region;
    let mut inner = scope.lock().ok()?;
    let access = inner.access_of(tensor)?;
    let name = inner.running.as_ref()?.tag().name;
    drop(inner);
    if access == Access::Write && check_writable(tensor).is_err() {
        return None;
    }
    region.lend(LentView { op: OpId::new(scope.id()), name, tensor: tensor.clone(), access, lease: None });
    Some(access)
}

/// Takes back what [`lend`] has lent. Returns a struct that keeps the view, as an export does, if it
/// `is_kept` longer.
///
/// # Errors
/// [`Error::Invalid`] when the operation has ended; [`Error::Forked`].
pub fn take_back(scope: &Scope, tensor: &Tensor, is_kept: bool) -> Result<Option<ManagedTensor>, Error> {
    let region = tensor.inner.definition()?.placed.as_ref().map(|placed| &placed.region);
    let view = region.and_then(|region| region.take_back(OpId::new(scope.id()), tensor));
    let Some(view) = view.filter(|view| is_kept || view.lease.is_some()) else { return Ok(None) };
    let lease = view.lease.clone().unwrap_or_else(|| view.to_lease());
    let mut inner = scope.lock()?;
    let mode = if inner.running.is_some() { inner.mode_of(tensor) } else { None };
    let mode = mode.ok_or_else(|| Error::invalid("the operation has ended"))?;
    inner.note_view(&lease, mode);
    drop(inner);
    is_kept.then(|| export_held(lease, &ExportOptions::from(view.access))).transpose()
}
