//! The operation that the calling code belongs to.

use estafette::{Scope, Tensor, bindings};
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use pyo3::prelude::*;

use crate::exchange::export::poll_once;
use crate::interpreter::fastcall;
use crate::interpreter::once::imported;

/// Names the running operation in the context variable.
#[pyclass(frozen, module = "estafette._estafette", name = "_OperationScope")]
pub struct OperationScope {
    scope: Scope,
}

/// The number of scopes. While there is none, no caller needs to find out whether its code belongs to one.
static SCOPES: AtomicUsize = AtomicUsize::new(0);

impl OperationScope {
    pub fn new(scope: Scope) -> Self {
        SCOPES.fetch_add(1, Ordering::Relaxed);
        Self { scope }
    }

    pub fn scope(&self) -> &Scope {
        &self.scope
    }
}

#[pymethods]
impl OperationScope {
    #[getter]
    fn id(&self) -> u64 {
        self.scope.id()
    }

    /// The calling thread, which runs an event loop, begins the body.
    fn begin(&self) {
        bindings::on_event_loop();
        bindings::body_has_lock(self.scope.id());
    }

    #[getter]
    fn name(&self) -> Option<String> {
        bindings::scope::name(&self.scope)
    }
}

impl Drop for OperationScope {
    fn drop(&mut self) {
        SCOPES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The context variable that names the running operation.
fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    imported!(py, "estafette._body", "operation")
}

/// Makes the calling code part of the operation of `scope`, in the current context.
pub fn make_current(scope: &Bound<'_, OperationScope>) -> PyResult<()> {
    fastcall::set_context_value(variable(scope.py())?, scope)
}

/// The scope of the operation whose body the calling code belongs to.
pub fn current_scope<'py>(py: Python<'py>) -> PyResult<Option<Bound<'py, OperationScope>>> {
    // A scope that this code belongs to was made before, with the Python lock, which is held.
    if SCOPES.load(Ordering::Relaxed) == 0 {
        return Ok(None);
    }
    let current = fastcall::context_value(variable(py)?)?;
    Ok(current.and_then(|current| current.cast_into::<OperationScope>().ok()))
}

/// True if the calling code belongs to the body of an operation that has `tensor` as an operand.
pub fn has_operand(py: Python<'_>, tensor: &Tensor) -> PyResult<bool> {
    Ok(current_scope(py)?
        .is_some_and(|scope| bindings::scope::access_of(scope.get().scope(), tensor).is_some()))
}

/// Runs `f` as the operation whose body the calling code belongs to, so that waits in it know whom they must
/// not wait for. A plain body runs as it anyway; this is for asynchronous ones, whose steps share a thread
/// with other tasks.
pub fn within<T>(py: Python<'_>, f: impl FnOnce() -> T) -> PyResult<T> {
    Ok(match current_scope(py)? {
        Some(scope) => bindings::scope::make_current(scope.get().scope(), f),
        None => f(),
    })
}

/// Polls `future` once as that operation, if there is one.
pub fn poll_within<T>(py: Python<'_>, future: impl Future<Output = T>) -> PyResult<Option<T>> {
    Ok(current_scope(py)?
        .and_then(|scope| bindings::scope::make_current(scope.get().scope(), || poll_once(future))))
}
