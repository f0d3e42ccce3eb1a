//! Scoped leases: `with eng.access(...)`, `with t.read()`, `with t.write()`, and their `async` forms.

use estafette::bindings;
use estafette::lease::{Consumer, LeaseOwner};
use estafette::{Access, Error, Lease, Tensor};
use estafette_sync::process::ProcessBound;
use estafette_sync::sync::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::asyncio::awaiting::Awaiter;
use crate::asyncio::{running_loop, stopped_loop};
use crate::classes::handle::EngineHandle;
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, raise};
use crate::exchange::export::{From, poll_once};
use crate::exchange::protocols::Exports;
use crate::interpreter::call_site;
use crate::interpreter::guard;
use crate::interpreter::lease_sites;
use crate::kinds;
use crate::submission::results;

/// Leases of several tensors, taken together at the beginning of a ``with`` or ``async with`` block and
/// returned at its end. A view that outlives the block keeps its lease.
#[pyclass(frozen, module = "estafette", name = "Access")]
pub struct PyAccess {
    engine: EngineHandle,
    wanted: Vec<(Py<PyTensor>, Access)>,
    using: Option<Py<PyAny>>,
    /// True if the block gets its one view instead of a tuple.
    single: bool,
    views: Mutex<Views>,
}

enum Views {
    Idle,
    Entering,
    Open(Vec<Py<PyView>>),
}

impl PyAccess {
    pub fn one(tensor: &Bound<'_, PyTensor>, access: Access, using: Option<Bound<'_, PyAny>>) -> Self {
        let engine = tensor.get().engine().clone();
        let mut one = Self::new(engine, vec![(tensor.clone().unbind(), access)], using);
        one.single = true;
        one
    }

    pub fn new(
        engine: EngineHandle,
        wanted: Vec<(Py<PyTensor>, Access)>,
        using: Option<Bound<'_, PyAny>>,
    ) -> Self {
        let using = using.map(Bound::unbind);
        Self { engine, wanted, using, single: false, views: Mutex::new(Views::Idle) }
    }

    fn begin(&self, py: Python<'_>) -> PyResult<Vec<(Tensor, Access)>> {
        let wanted =
            self.wanted.iter().map(|(tensor, access)| Ok((tensor.get().tensor(py)?.clone(), *access)));
        let wanted = wanted.collect::<PyResult<Vec<_>>>()?;
        let mut views = self.views.lock();
        if !matches!(*views, Views::Idle) {
            return Err(PyRuntimeError::new_err("this access has been entered already"));
        }
        *views = Views::Entering;
        Ok(wanted)
    }

    /// Gives the block what it asked for.
    fn open(&self, py: Python<'_>, leases: Result<Vec<Lease>, Error>) -> PyResult<Py<PyAny>> {
        leases.or_raise(py).and_then(|leases| self.lend(py, leases)).inspect_err(|_| self.close(py))
    }

    fn lend(&self, py: Python<'_>, leases: Vec<Lease>) -> PyResult<Py<PyAny>> {
        for lease in &leases {
            results::refuse_placeholder(py, lease.tensor())?;
        }
        let views = leases
            .into_iter()
            .map(|lease| Py::new(py, PyView { lease: Mutex::new(Some(ProcessBound::new(lease))) }))
            .collect::<PyResult<Vec<_>>>()?;
        let lent: Vec<Py<PyAny>> = views.iter().map(|view| view.clone_ref(py).into_any()).collect();
        let noted: Vec<Py<PyView>> = views.iter().map(|view| view.clone_ref(py)).collect();
        *self.views.lock() = Views::Open(views);
        let lent = match &self.using {
            None => lent,
            Some(using) => {
                let make = |(lent, view): (Py<PyAny>, Py<PyView>)| {
                    let made = using.call1(py, (lent,))?;
                    lease_sites::note_object(&view.get().lease(py)?, made.bind(py));
                    Ok(made)
                };
                lent.into_iter().zip(noted).map(make).collect::<PyResult<_>>()?
            }
        };
        match (self.single, lent.first()) {
            (true, Some(view)) => Ok(view.clone_ref(py)),
            _ => Ok(PyTuple::new(py, lent)?.into_any().unbind()),
        }
    }

    fn close(&self, py: Python<'_>) {
        let views = std::mem::replace(&mut *self.views.lock(), Views::Idle);
        if let Views::Open(views) = views {
            views.iter().for_each(|view| view.get().end(py));
        }
    }
}

#[pymethods]
impl PyAccess {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.using)
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let wanted = self.begin(py)?;
        let leases =
            self.acquire(py, &wanted, call_site::caller(py).place).inspect_err(|_| self.close(py))?;
        self.open(py, leases)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __aenter__(this: &Bound<'_, Self>) -> PyResult<Awaiter> {
        let py = this.py();
        let wanted = this.get().begin(py)?;
        let engine = this.get().engine.engine(py)?.clone();
        let owner = call_site::caller(py).place;
        let mut entering = Entering { access: Some(this.clone().unbind()) };
        let leases =
            Box::pin(
                async move { bindings::lease::for_later_consumers(engine.lease_all(&wanted, owner)).await },
            );
        Awaiter::polled(py, leases, move |py, leases| match entering.access.take() {
            Some(access) => access.get().open(py, leases),
            None => Ok(py.None()),
        })
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> Awaiter {
        self.close(py);
        Awaiter::done(Ok(py.None()))
    }
}

impl PyAccess {
    fn acquire(
        &self,
        py: Python<'_>,
        wanted: &[(Tensor, Access)],
        owner: LeaseOwner,
    ) -> PyResult<Result<Vec<Lease>, Error>> {
        let engine = self.engine.engine(py)?;
        if running_loop::get(py)?.is_some() {
            if let Some(outcome) =
                poll_once(bindings::lease::for_later_consumers(engine.lease_all(wanted, owner.clone())))
            {
                return Ok(outcome);
            }
            stopped_loop::check(py, "the access")?;
        }
        Ok(guard::detach(py, || {
            bindings::lease::for_later_consumers(engine.lease_all(wanted, owner)).wait(None)
        }))
    }
}

/// An `async with` that is being entered. Dropped before it was, it can be entered again.
struct Entering {
    access: Option<Py<PyAccess>>,
}

impl Drop for Entering {
    fn drop(&mut self) {
        if let Some(access) = &self.access {
            *access.get().views.lock() = Views::Idle;
        }
    }
}

/// A tensor under a scoped lease. Pass it to ``from_dlpack`` of any library; that waits for nothing.
#[pyclass(frozen, mapping, module = "estafette", name = "View")]
pub struct PyView {
    lease: Mutex<Option<ProcessBound<Lease>>>,
}

impl PyView {
    pub fn lease(&self, py: Python<'_>) -> PyResult<Lease> {
        let lease = self.lease.lock();
        match lease.as_ref() {
            Some(lease) => lease.get().or_raise(py).cloned(),
            None => Err(raise(py, "ConflictError", "the `with` block that this view belongs to has ended")),
        }
    }

    fn end(&self, py: Python<'_>) {
        let lease = self.lease.lock().take();
        // Returning a lease may set off much that waited for it.
        guard::detach(py, || drop(lease));
    }
}

impl Exports for PyView {
    fn with_source<R>(&self, py: Python<'_>, f: impl FnOnce(From<'_>) -> PyResult<R>) -> PyResult<R> {
        f(From::Lease(&self.lease(py)?))
    }
}

#[pymethods]
impl PyView {
    /// ``"read"`` or ``"write"``.
    #[getter]
    fn access(&self, py: Python<'_>) -> PyResult<String> {
        Ok(bindings::lease::access(&self.lease(py)?).to_string())
    }

    /// Makes the end of this lease wait for the work that is on ``stream`` now, besides the stream that the
    /// view was handed to: PyTorch's ``record_stream``, for memory of Estafette. Call this method once the
    /// last work with the memory is enqueued on ``stream``, a stream object or a handle as for
    /// ``__dlpack__``.
    ///
    /// Raises `ValueError` for memory that is not used on streams, and for a stream of another device;
    /// `InvalidError` while a graph is captured on ``stream``.
    #[pyo3(signature = (stream, /))]
    fn used_on(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let lease = self.lease(py)?;
        let device = lease.tensor().device().or_raise(py)?;
        match kinds::consumer(lease.tensor(), device, Some(stream), py)? {
            Consumer::Queue(queue) | Consumer::KeptQueue(queue, _) => {
                guard::detach(py, || lease.used_on(&queue)).or_raise(py)
            }
            Consumer::Host | Consumer::Unordered => Err(PyValueError::new_err(format!(
                "used_on: {stream} is no stream that uses memory on {device}"
            ))),
        }
    }

    fn __getitem__(&self, _key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        Err(no_elements())
    }

    fn __setitem__(&self, _key: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(no_elements())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Ok(lease) = self.lease(py) else { return "<estafette.View whose block has ended>".into() };
        let tensor = lease.tensor();
        match (tensor.dtype(), tensor.shape()) {
            (Ok(dtype), Ok(shape)) => {
                format!(
                    "<estafette.View for {} of {dtype}{:?}>",
                    bindings::lease::access(&lease),
                    shape.as_slice()
                )
            }
            _ => format!("<estafette.View for {}>", bindings::lease::access(&lease)),
        }
    }
}

fn no_elements() -> PyErr {
    PyTypeError::new_err(
        "elements of a view are taken with a library: `t.read(using=np.from_dlpack)` and `t.write(using=np.from_dlpack)` give the block an \
         array",
    )
}
