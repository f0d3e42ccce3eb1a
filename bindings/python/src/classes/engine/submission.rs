//! Work for the engine: `submit`, `call` and their asynchronous forms, and programs; and `access`, which is the work of the block below it.

use estafette::{Access, Completion, Tensor};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::PyEngine;
use crate::arguments::{list as list_of, not_a_tensor};
use crate::asyncio::awaiting::Awaiter;
use crate::classes::access::PyAccess;
use crate::classes::operation::PyOperation;
use crate::classes::program::{self, PyProgram};
use crate::classes::tensor::PyTensor;
use crate::error::OrRaise;
use crate::exchange::export::poll_once;
use crate::interpreter::guard;
use crate::submission::body::Body;
use crate::submission::scope;
use crate::submission::submission_args::{self, ResultOptions, SubmissionArgs};

#[pymethods]
impl PyEngine {
    /// Submits an operation: ``fn(*reads, *writes)``, each passed through `using` first, for example ``np.from_dlpack``.
    ///
    /// Returns at once. The function runs when everything submitted before on its operands has come far enough: reads see
    /// what earlier writes left, writes have the memory to themselves. A tensor in both lists is updated in place. What
    /// the function returns is ignored; what it raises is raised again where the operation or what it writes is
    /// awaited. An ``async def`` function, and a coroutine that the function returns, run as a task on the event loop of the
    /// submitter; a generator function is refused.
    ///
    /// Among operations that are ready, those of higher `priority` are started first. Priorities age: while operations with a priority
    /// wait, of any 64 that are taken to be run at least one is an ordinary one (priority 0) if one is ready, one of the oldest; and
    /// at least one is the oldest of those with a priority other than 0. An operation and those that it makes ready, one after the
    /// other and up to 32, count as one.
    ///
    ///     >>> y = eng.zeros(3, "int64")
    ///     >>> op = eng.submit(lambda y: y.fill(7), writes=[y], using=np.from_dlpack, name="fill")
    ///     >>> op.wait()
    ///     >>> op.name, np.from_dlpack(y).tolist()
    ///     ('fill', [7, 7, 7])
    #[pyo3(signature = (r#fn, reads = None, writes = None, using = None, name = None, on = None, priority = 0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn submit(
        &self,
        r#fn: &Bound<'_, PyAny>,
        reads: Option<&Bound<'_, PyAny>>,
        writes: Option<&Bound<'_, PyAny>>,
        using: Option<&Bound<'_, PyAny>>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
    ) -> PyResult<PyOperation> {
        let py = r#fn.py();
        let (args, body) = submission_args::of_submit(r#fn, reads, writes, using, name, on, priority)?;
        let op = self.submit_now(py, &args, body)?;
        Ok(PyOperation::new(op, self.handle.clone()))
    }

    /// As `submit`, but waits for a permit without stopping the event loop: ``op = await eng.submit_async(...)``.
    #[pyo3(signature = (r#fn, reads = None, writes = None, using = None, name = None, on = None, priority = 0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn submit_async(
        &self,
        r#fn: &Bound<'_, PyAny>,
        reads: Option<&Bound<'_, PyAny>>,
        writes: Option<&Bound<'_, PyAny>>,
        using: Option<&Bound<'_, PyAny>>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
    ) -> PyResult<Awaiter> {
        let py = r#fn.py();
        let (args, body) = submission_args::of_submit(r#fn, reads, writes, using, name, on, priority)?;
        let (engine, handle) = (self.engine(py)?.clone(), self.handle.clone());
        Ok(Awaiter::pending(async move {
            let outcome = args
                .operation(&engine)
                .permit()
                .await
                .and_then(|op| op.run_external(move |end| body.start(end)));
            Box::new(move |py: Python<'_>| {
                Ok(Py::new(py, PyOperation::new(outcome.or_raise(py)?, handle))?.into_any())
            }) as _
        }))
    }

    /// Begins to record a program: operations that are described once and replayed often, each time as one operation called
    /// `name`. See `Program`.
    ///
    /// graph: one graph of its CUDA device, launched by one call of the driver per replay. Then all nodes name that device or
    ///     queues of the engine there with `on`, and the first replay calls the functions, once each, while what they launch is
    ///     recorded and not run; no later replay calls them. So what they read on the host stays as it was then. They must
    ///     write into their operands: memory that they allocate while they are recorded may be given to others afterwards,
    ///     and every replay would write there.
    ///
    ///     >>> y = eng.zeros(2, "int64")
    ///     >>> with eng.program("count") as count:
    ///     ...     count.submit(lambda y: np.add(y, 1, out=y), writes=[y], using=np.from_dlpack)
    ///     >>> for _ in range(10):
    ///     ...     op = count.replay()
    ///     >>> op.name, np.from_dlpack(y).tolist()
    ///     ('count', [10, 10])
    #[pyo3(signature = (name = None, *, graph = false))]
    fn program(&self, py: Python<'_>, name: Option<String>, graph: bool) -> PyResult<PyProgram> {
        Ok(program::begin(self.engine(py)?, &self.handle, name, graph))
    }

    /// Submits an operation whose result becomes a new tensor, and returns the promise of it at once.
    ///
    /// `fn(*tensors)` gets each tensor through `using`; what it returns (anything that speaks DLPack) becomes the promise's
    /// memory, without a copy. A result that overlaps memory already known is copied, unless `alias_of` names the tensors
    /// that it is a view of; with ``copy=False`` that is a failure instead, and ``copy=True`` always copies. `like`, a
    /// ``(shape, dtype)`` pair or something with these two attributes, declares shape and dtype, so that they are known at
    /// once. An ``async def`` function runs as a task on the event loop of the submitter.
    ///
    ///     >>> a = eng.from_dlpack(np.eye(2))
    ///     >>> b = eng.call(np.add, a, a, using=np.from_dlpack, like=((2, 2), "float64"))
    ///     >>> b.shape                       # declared, so it is known before it is there
    ///     (2, 2)
    ///     >>> np.from_dlpack(b).tolist()
    ///     [[2.0, 0.0], [0.0, 2.0]]
    #[pyo3(signature = (r#fn, *tensors, using = None, alias_of = None, like = None, copy = None, name = None, on = None, priority = 0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn call(
        &self,
        r#fn: &Bound<'_, PyAny>,
        tensors: &Bound<'_, PyTuple>,
        using: Option<&Bound<'_, PyAny>>,
        alias_of: Option<&Bound<'_, PyAny>>,
        like: Option<&Bound<'_, PyAny>>,
        copy: Option<bool>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
    ) -> PyResult<PyTensor> {
        let py = r#fn.py();
        let result = ResultOptions { alias_of, like, copy };
        let (args, body) = submission_args::of_call(r#fn, tensors, using, &result, name, on, priority)?;
        Ok(self.wrap(self.call_now(py, &args, body)?))
    }

    /// As `call`, but waits for a permit without stopping the event loop: ``z = await eng.call_async(...)``
    /// gives the promise.
    #[pyo3(signature = (r#fn, *tensors, using = None, alias_of = None, like = None, copy = None, name = None, on = None, priority = 0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn call_async(
        &self,
        r#fn: &Bound<'_, PyAny>,
        tensors: &Bound<'_, PyTuple>,
        using: Option<&Bound<'_, PyAny>>,
        alias_of: Option<&Bound<'_, PyAny>>,
        like: Option<&Bound<'_, PyAny>>,
        copy: Option<bool>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
    ) -> PyResult<Awaiter> {
        let py = r#fn.py();
        let result = ResultOptions { alias_of, like, copy };
        let (args, body) = submission_args::of_call(r#fn, tensors, using, &result, name, on, priority)?;
        let (engine, handle) = (self.engine(py)?.clone(), self.handle.clone());
        Ok(Awaiter::pending(async move {
            let outcome = args
                .promise(&engine)
                .permit()
                .await
                .and_then(|op| op.produce_external(move |end| body.start(end)));
            Box::new(move |py: Python<'_>| {
                Ok(Py::new(py, PyTensor::new(outcome.or_raise(py)?, handle))?.into_any())
            }) as _
        }))
    }

    /// Scoped leases of several tensors, taken all at once: ``with eng.access(reads=[a], writes=[b]) as (x, y)``, or
    /// ``async with``. The block gets a view of each, or what `using` makes of it; reads first.
    ///
    ///     >>> a, b = eng.from_dlpack(np.arange(3.0)), eng.zeros(3, "float64")
    ///     >>> with eng.access(reads=[a], writes=[b], using=np.from_dlpack) as (x, y):
    ///     ...     y[:] = x + 1
    ///     ...     del x, y                  # what outlives the block keeps its lease
    ///     >>> np.from_dlpack(b).tolist()
    ///     [1.0, 2.0, 3.0]
    #[pyo3(signature = (reads = None, writes = None, using = None))]
    fn access(
        &self,
        py: Python<'_>,
        reads: Option<&Bound<'_, PyAny>>,
        writes: Option<&Bound<'_, PyAny>>,
        using: Option<Bound<'_, PyAny>>,
    ) -> PyResult<PyAccess> {
        self.engine(py)?;
        let mut wanted = Vec::new();
        for (name, list, access) in [("reads", reads, Access::Read), ("writes", writes, Access::Write)] {
            let Some(items) = list else { continue };
            for item in list_of(name, items)? {
                let item = item?;
                let tensor = item.cast::<PyTensor>().map_err(|_| not_a_tensor(&item))?;
                wanted.push((tensor.clone().unbind(), access));
            }
        }
        Ok(PyAccess::new(self.handle.clone(), wanted, using))
    }
}

impl PyEngine {
    /// Submits without waiting where it can; where it must wait for room, without the Python lock.
    fn submit_now(&self, py: Python<'_>, args: &SubmissionArgs, body: Body) -> PyResult<estafette::Op> {
        let engine = self.engine(py)?;
        let first = body.clone_ref(py);
        let tried = scope::within(py, || {
            poll_once(async {
                args.operation(engine).permit().await?.run_external(move |end: Completion| first.start(end))
            })
        })?;
        match tried {
            Some(outcome) => {
                body.drop_attached(py);
                outcome.or_raise(py)
            }
            None => {
                self.handle.may_wait(py)?;
                guard::detach(py, || args.operation(engine).run_external(move |end| body.start(end)))
                    .or_raise(py)
            }
        }
    }

    fn call_now(&self, py: Python<'_>, args: &SubmissionArgs, body: Body) -> PyResult<Tensor> {
        let engine = self.engine(py)?;
        let first = body.clone_ref(py);
        let tried = scope::within(py, || {
            poll_once(async {
                args.promise(engine).permit().await?.produce_external(move |end: Completion| first.start(end))
            })
        })?;
        match tried {
            Some(outcome) => {
                body.drop_attached(py);
                outcome.or_raise(py)
            }
            None => {
                self.handle.may_wait(py)?;
                guard::detach(py, || args.promise(engine).produce_external(move |end| body.start(end)))
                    .or_raise(py)
            }
        }
    }
}
