//! Running the Python functions of operations.
//!
//! A plain function runs on a worker of the engine, in a copy of the submitter's context. An `async def`
//! function, or the coroutine that a plain function returns, runs as a task on the submitter's event loop;
//! the worker only sends it there. Either way the operation is named by a context variable, so that an export
//! inside the body is known to belong to it, wherever the body takes it.

use std::sync::Arc;

use estafette::bindings::{self, with_inline_deleters};
use estafette::{BodyResult, Completion, Scope};
use estafette_sync::sync::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::asyncio::running_loop;
use crate::asyncio::stopped_loop::SentOff;
use crate::error::{Raised, finalizing, import_module};
use crate::exchange::peers;
use crate::interpreter::fastcall;
use crate::interpreter::guard;
use crate::interpreter::interrupt;
use crate::interpreter::kept::drop_with_lock;
use crate::interpreter::once::{PyOnce, intern};
use crate::kinds;
use crate::submission::function_kind::{
    FunctionKind, is_coroutine, never_runs, refuse_coroutine, refuse_generator,
};
use crate::submission::on::On;
use crate::submission::outcome::{DeferredResult, PendingCompletion, TaskDone, Use, take_deferred};
use crate::submission::plain_call::{PlainCall, check_arrays};
use crate::submission::running::Running;
use crate::submission::scope::OperationScope;

/// A function of `estafette/_body.py`.
pub fn helper<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static MODULE: PyOnce<Py<PyModule>> = PyOnce::new();
    let module = MODULE.get_or_try_init(py, || import_module(py, "estafette._body").map(Bound::unbind))?;
    module.bind(py).getattr(name)
}

/// The body of an operation, waiting for its turn. One that never gets it, since the operation is skipped,
/// releases its Python objects with the Python lock: they may hold leases that other threads wait for.
pub struct Body {
    parts: Option<BodyParts>,
}

struct BodyParts {
    function: Py<PyAny>,
    using: Option<Py<PyAny>>,
    /// The function's arguments, with `Tensor` objects where it gets arrays.
    arguments: Py<PyTuple>,
    context: Py<PyAny>,
    /// The submitter's event loop, if one was running.
    event_loop: Option<Py<PyAny>>,
    /// The submitter's thread, as Python calls it.
    submitter: u64,
    /// True if calling the function gives a coroutine, for the event loop.
    is_async: bool,
    result: Use,
    /// The queue of the function: what is there when it returns is a part of the operation.
    on: Option<Arc<On>>,
    /// For a node: the list of objects that a graph captured from the function needs, such as pools of
    /// memory.
    kept: Option<Py<PyList>>,
}

impl Body {
    /// Raises `TypeError` when `function` cannot be called; `RuntimeError` for an `async def` function
    /// without a running loop.
    pub fn new(
        function: &Bound<'_, PyAny>,
        kind: FunctionKind,
        using: Option<&Bound<'_, PyAny>>,
        arguments: &Bound<'_, PyTuple>,
        result: Use,
    ) -> PyResult<Self> {
        let py = function.py();
        if !function.is_callable() {
            let instead = if is_coroutine(function)? {
                ": pass the `async def` function and its arguments, or the coroutine to `eng.from_future`"
            } else {
                ""
            };
            return Err(PyTypeError::new_err(format!("{} is not callable{instead}", function.repr()?)));
        }
        if let Some(using) = using
            && !using.is_callable()
        {
            return Err(not_a_using(using)?);
        }
        if kind == FunctionKind::Generator {
            return Err(never_runs(&format!("{} is a generator function", function.repr()?)));
        }
        let (event_loop, is_async) = (running_loop::get(py)?, kind == FunctionKind::Async);
        if is_async && event_loop.is_none() {
            return Err(PyRuntimeError::new_err(
                "an `async def` function runs on the event loop of its submitter, and none is running",
            ));
        }
        let mut parts = BodyParts::plain(function, using, arguments)?;
        parts.event_loop = event_loop.map(Bound::unbind);
        parts.submitter = guard::ident(py)?;
        (parts.is_async, parts.result) = (is_async, result);
        Ok(Self { parts: Some(parts) })
    }

    /// Makes what the function enqueues there a part of the operation. Raises `TypeError` for an `async def`
    /// function where libraries have a current stream: the thread of its event loop runs other tasks
    /// meanwhile, and has one current stream.
    pub fn on(mut self, on: Option<Arc<On>>) -> PyResult<Self> {
        if let Some(parts) = &mut self.parts {
            if let Some(name) = on.as_ref().and_then(|on| on.without_coroutines())
                && parts.is_async
            {
                let message = format!("an `async def` function cannot run on {name}");
                return Err(PyTypeError::new_err(message));
            }
            parts.on = on;
        }
        Ok(self)
    }

    /// A second body for another attempt to submit.
    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        let parts = self.parts.as_ref().map(|parts| BodyParts {
            function: parts.function.clone_ref(py),
            using: parts.using.as_ref().map(|using| using.clone_ref(py)),
            arguments: parts.arguments.clone_ref(py),
            context: parts.context.clone_ref(py),
            event_loop: parts.event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py)),
            submitter: parts.submitter,
            is_async: parts.is_async,
            result: parts.result.clone(),
            on: parts.on.clone(),
            kept: parts.kept.as_ref().map(|kept| kept.clone_ref(py)),
        });
        Self { parts }
    }

    /// Drops a body that is not needed, where the Python lock is known to be held.
    pub fn drop_attached(mut self, _py: Python<'_>) {
        self.parts = None;
    }

    /// Runs or sends off the function; called by the engine on one of its workers, without the Python lock.
    pub fn start(mut self, completion: Completion) {
        let Some(parts) = &self.parts else { return };
        let (result, on) = (parts.result.clone(), parts.on.clone());
        let _sent_off = parts.is_async.then(|| SentOff::new(completion.scope().id()));
        start(completion, result, on, true, |_py| Ok(self.parts.take()));
    }
}

/// Runs or sends off the function of what `parts` gives. `is_alone`: it is no node of a program.
fn start(
    completion: Completion,
    result: Use,
    on: Option<Arc<On>>,
    is_alone: bool,
    parts: impl FnOnce(Python<'_>) -> PyResult<Option<BodyParts>>,
) {
    let scope = completion.scope().clone();
    // Work after the end on a queue, or of a node, may take long.
    let ends_here = is_alone && on.is_none();
    let mut completion = PendingCompletion::new(completion, result, on);
    bindings::body_wants_lock(scope.id());
    let outcome = guard::attach(|py| {
        let outcome = match parts(py) {
            Ok(parts) => parts.and_then(|parts| parts.call(py, scope, &mut completion)),
            Err(error) => Some(Err(Raised::body_error(py, error))),
        };
        match outcome {
            // With the Python lock the last use of an array frees it here, for the next one, and not on
            // another thread that takes the lock for that.
            Some(outcome) if ends_here && !guard::is_closed() => {
                with_inline_deleters(|| completion.end(outcome));
                None
            }
            outcome => outcome,
        }
    });
    match outcome {
        Some(Some(outcome)) => completion.end(outcome),
        Some(None) => {}
        None => completion.end(Err(finalizing())),
    }
}

/// The body of a node of a program, which is called by every replay.
pub struct Repeated {
    on: Option<Arc<On>>,
    /// Held for as long as it takes to take references, and never waited for: the garbage collector may come
    /// in between.
    body: Mutex<Body>,
}

impl Repeated {
    pub fn new(py: Python<'_>, mut body: Body) -> Arc<Self> {
        if let Some(parts) = &mut body.parts {
            parts.kept = Some(PyList::empty(py).unbind());
        }
        let on = body.parts.as_ref().and_then(|parts| parts.on.clone());
        Arc::new(Self { on, body: Mutex::new(body) })
    }

    /// As [`Body::start`], in a copy of the recorder's context of its own: calls may overlap.
    pub fn start(&self, completion: Completion) {
        start(completion, Use::Ignored, self.on.clone(), false, |py| {
            let mut again = self.body.lock().clone_ref(py);
            if let Some(parts) = &mut again.parts {
                parts.context = parts.context.call_method0(py, intern!(py, "copy"))?;
            }
            Ok(again.parts.take())
        });
    }

    /// Shows the garbage collector what it holds.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(body) = self.body.try_lock() else { return Ok(()) };
        let Some(parts) = &body.parts else { return Ok(()) };
        visit.call(&parts.function)?;
        visit.call(&parts.using)?;
        visit.call(&parts.arguments)?;
        visit.call(&parts.context)?;
        visit.call(&parts.kept)?;
        visit.call(&parts.event_loop)
    }

    /// Releases what the body holds. The body does nothing from then on.
    pub fn clear(&self) {
        let parts = self.body.try_lock().and_then(|mut body| body.parts.take());
        drop(parts);
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.parts.is_some() {
            drop_with_lock(self.parts.take());
        }
    }
}

impl BodyParts {
    /// Of a plain function whose result is ignored, in a copy of the context of the calling code.
    #[inline]
    fn plain(
        function: &Bound<'_, PyAny>,
        using: Option<&Bound<'_, PyAny>>,
        arguments: &Bound<'_, PyTuple>,
    ) -> PyResult<Self> {
        Ok(Self {
            function: function.clone().unbind(),
            using: using.map(|using| using.clone().unbind()),
            arguments: arguments.clone().unbind(),
            context: fastcall::copy_context(function.py())?,
            event_loop: None,
            submitter: 0,
            is_async: false,
            result: Use::Ignored,
            on: None,
            kept: None,
        })
    }

    /// Gives the outcome of a plain function; `None` when an asynchronous one is on its way.
    fn call(
        self,
        py: Python<'_>,
        scope: Scope,
        completion: &mut PendingCompletion,
    ) -> Option<BodyResult<Option<Box<DeferredResult>>>> {
        // The body of an `async def` function begins when its event loop runs it.
        if !self.is_async {
            bindings::body_has_lock(scope.id());
        }
        if bindings::is_trace_open() {
            self.note_library(py, &scope);
        }
        let outcome = if self.is_async {
            self.send_off(py, scope, completion).map(|()| None)
        } else {
            self.run(py, scope).and_then(|value| self.take(&value, completion))
        };
        match outcome {
            Ok(None) => None,
            Ok(Some(produced)) => Some(Ok(produced)),
            Err(error) => {
                interrupt::note(py, &error);
                Some(Err(Raised::body_error(py, error)))
            }
        }
    }

    /// The result of a plain function; `None` for a coroutine, which goes to the event loop of the submitter.
    fn take(
        &self,
        value: &Bound<'_, PyAny>,
        completion: &mut PendingCompletion,
    ) -> PyResult<Option<Option<Box<DeferredResult>>>> {
        let is_array = || matches!(self.result, Use::Produced(_)) && peers::of(value).speaks;
        if is_array() || !is_coroutine(value)? {
            return take_deferred(value, &completion.ending, || completion.scope()).map(Some);
        }
        let py = value.py();
        let refused_on = self.on.as_ref().and_then(|on| on.without_coroutines());
        let event_loop = self.event_loop.as_ref().filter(|_| refused_on.is_none());
        let Some(event_loop) = event_loop else { return Err(refuse_coroutine(value, refused_on)) };
        let done = TaskDone::new(completion.share(), event_loop.bind(py), self.submitter)?;
        let start = helper(py, "start_coroutine")?;
        let arguments = (start, value, event_loop, &self.context, done);
        event_loop.call_method1(py, intern!(py, "call_soon_threadsafe"), arguments).inspect_err(|_| {
            // The event loop is closed. Nothing awaits the coroutine, which would warn of that.
            let _ = value.call_method0(intern!(py, "close"));
        })?;
        Ok(None)
    }

    /// Notes in the trace which library's arrays the function gets.
    fn note_library(&self, py: Python<'_>, scope: &Scope) {
        let module =
            self.using.as_ref().and_then(|using| using.bind(py).getattr(intern!(py, "__module__")).ok());
        let module = module.and_then(|module| module.extract::<String>().ok());
        if let Some(peer) = module.as_deref().and_then(peers::of_module) {
            bindings::body_uses(scope.id(), peer.root);
        }
    }

    /// Runs a plain function; what it returns is no generator, but may be a coroutine.
    fn run<'py>(&self, py: Python<'py>, scope: Scope) -> PyResult<Bound<'py, PyAny>> {
        let _running = Running::note(self.function.bind(py), scope.id())?;
        // A node of a graph is given another queue than it was recorded with.
        let queue = if self.on.is_some() { scope.queue() } else { None };
        let current = queue.as_ref().and_then(|queue| {
            let kind = kinds::of(queue.device());
            let (handle, device) = kind.current_stream(&**queue)?;
            // The function may enqueue there.
            guard::detach(py, || queue.native());
            Some((kind.module(), handle, device))
        });
        let call = PlainCall {
            scope: Bound::new(py, OperationScope::new(scope))?.unbind(),
            function: self.function.clone_ref(py),
            using: self.using.as_ref().map(|using| using.clone_ref(py)),
            arguments: self.arguments.clone_ref(py),
        };
        let context = self.context.bind(py);
        let value = match current {
            Some(place) => {
                // Nodes of programs alone have a list.
                let kept = self.kept.as_ref().filter(|_| {
                    let is_capturing = || queue.is_some_and(|queue| matches!(queue.is_capturing(), Ok(true)));
                    guard::detach(py, is_capturing)
                });
                let call = (helper(py, "run_on_stream")?, call, &self.using, place, kept);
                context.call_method1(intern!(py, "run"), call)?
            }
            None => fastcall::in_context(context, || call.__call__(py))??,
        };
        refuse_generator(&value)?;
        Ok(value)
    }

    fn send_off(&self, py: Python<'_>, scope: Scope, completion: &mut PendingCompletion) -> PyResult<()> {
        check_arrays(self.arguments.bind(py))?;
        let event_loop =
            self.event_loop.as_ref().expect("an `async def` function is submitted on an event loop");
        let scope = Bound::new(py, OperationScope::new(scope))?;
        let done = TaskDone::new(completion.share(), event_loop.bind(py), self.submitter)?;
        let start = helper(py, "start_async")?;
        let arguments =
            (start, scope, &self.function, &self.using, &self.arguments, event_loop, &self.context, done);
        event_loop.call_method1(py, intern!(py, "call_soon_threadsafe"), arguments)?;
        Ok(())
    }
}

/// The error for a `using` that cannot be called.
pub fn not_a_using(using: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    let message = format!("`using` is a function that makes arrays of tensors, not {}", using.repr()?);
    Ok(PyTypeError::new_err(message))
}

/// Runs a plain function as the operation of `scope`, each tensor of `arguments` through `using`.
pub fn run_plain<'py>(
    scope: &Scope,
    function: &Bound<'py, PyAny>,
    using: Option<&Bound<'py, PyAny>>,
    arguments: Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let value = BodyParts::plain(function, using, &arguments)?.run(function.py(), scope.clone())?;
    if is_coroutine(&value)? {
        return Err(refuse_coroutine(&value, None));
    }
    Ok(value)
}
