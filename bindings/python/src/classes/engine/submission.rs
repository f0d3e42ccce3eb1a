//! Work for the engine: `submit`, `call` and their asynchronous forms, and programs; and `access`, which is
//! the work of the block below it.

use std::sync::Arc;

use estafette::bindings::{self, operation::SubmitPermit};
use estafette::operation::{OpBuilder, Operands, Tensors};
use estafette::{Access, Engine, Error, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::PyEngine;
use crate::arguments::{list as list_of, not_a_tensor};
use crate::asyncio::awaiting::Awaiter;
use crate::classes::access::PyAccess;
use crate::classes::handle::EngineHandle;
use crate::classes::operation::PyOperation;
use crate::classes::program::PyProgram;
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, import_module};
use crate::interpreter::{guard, interrupt};
use crate::submission::body::Body;
use crate::submission::results::Results;
use crate::submission::scope;
use crate::submission::submission_args::{self, CallResult, ResultOptions, Submission, SubmissionArgs};

#[pymethods]
impl PyEngine {
    /// Submits an operation: ``fn(*reads, *writes)``, each passed through `using` first, for example
    /// ``np.from_dlpack``. Both lists are given by name. `call` takes arguments as ``Executor.submit`` does.
    ///
    /// Returns at once. The function runs when everything submitted before on its operands has come far
    /// enough: reads see what earlier writes left, writes have the memory to themselves. A tensor in both
    /// lists is updated in place. What the function returns is ignored; what it raises is raised again where
    /// the operation or what it writes is awaited. An ``async def`` function, and a coroutine that the
    /// function returns, run as a task on the event loop of the submitter; a generator function is refused.
    ///
    /// Among operations that are ready, those of higher `priority` are started first. Priorities age: while
    /// operations with a priority wait, of any 64 that are taken to be run at least one is an ordinary one
    /// (priority 0) if one is ready, one of the oldest; and at least one is the oldest of those with a
    /// priority other than 0. An operation and those that it makes ready, one after the other and up to 32,
    /// count as one.
    ///
    /// An operation is skipped if an input has failed, or if it is cancelled. Then `on_skip` is called in the
    /// operation's turn, on a worker, with the exception that awaiting the operation raises. Collective
    /// operations need it: all ranks take part in them, or all must learn why not, for example by an abort of
    /// the communicator. The operation fails by the same cause as without it; what `on_skip` raises goes to
    /// `sys.unraisablehook`. What `fn` and `using` raise is no skip.
    ///
    ///     >>> y = eng.zeros(3, "int64")
    ///     >>> op = eng.submit(lambda y: y.fill(7), writes=[y], using=np.from_dlpack, name="fill")
    ///     >>> op.wait()
    ///     >>> op.name, np.from_dlpack(y).tolist()
    ///     ('fill', [7, 7, 7])
    ///
    ///     >>> grad = eng.zeros(3, "float64")
    ///     >>> comm, causes = eng.var(), []
    ///     >>> op = eng.submit(lambda grad: 1 / 0, writes=[grad], name="backward")
    ///     >>> op = eng.submit(print, reads=[grad], writes=[grad, comm], on_skip=causes.append)
    ///     >>> op.exception().operation, causes[0].operation
    ///     ('backward', 'backward')
    #[pyo3(
        signature = (r#fn, *args, reads = None, writes = None, using = None, name = None, on = None, priority = 0, on_skip = None),
        text_signature = "($self, fn, *, reads=None, writes=None, using=None, name=None, on=None, priority=0, on_skip=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn submit(
        &self,
        r#fn: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        reads: Option<&Bound<'_, PyAny>>,
        writes: Option<&Bound<'_, PyAny>>,
        using: Option<&Bound<'_, PyAny>>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
        on_skip: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyOperation> {
        let py = r#fn.py();
        let submission = Submission { function: r#fn, using, engine: &self.handle, name, on, priority };
        let (args, body) = submission_args::of_submit(submission, args, reads, writes, on_skip)?;
        let op = self.submit_now(py, &args, body)?;
        Ok(PyOperation::new(op, self.handle.clone()))
    }

    /// As `submit`, but waits for a permit without stopping the event loop:
    /// ``op = await eng.submit_async(...)``. Submits nothing before the ``await``: an awaitable that is
    /// dropped without one warns of that, with a ``RuntimeWarning``, as a coroutine does.
    #[pyo3(
        signature = (r#fn, *args, reads = None, writes = None, using = None, name = None, on = None, priority = 0, on_skip = None),
        text_signature = "($self, fn, *, reads=None, writes=None, using=None, name=None, on=None, priority=0, on_skip=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn submit_async(
        &self,
        r#fn: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        reads: Option<&Bound<'_, PyAny>>,
        writes: Option<&Bound<'_, PyAny>>,
        using: Option<&Bound<'_, PyAny>>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
        on_skip: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Awaiter> {
        let py = r#fn.py();
        let submission = Submission { function: r#fn, using, engine: &self.handle, name, on, priority };
        let (args, body) = submission_args::of_submit(submission, args, reads, writes, on_skip)?;
        let (engine, handle) = (self.engine(py)?.clone(), self.handle.clone());
        let submitted =
            async move { args.operation(&engine).permit().await?.run_external(move |end| body.start(end)) };
        let awaiter = Awaiter::pending(submitted, |py, op| {
            Ok(Py::new(py, PyOperation::new(op.or_raise(py)?, handle))?.into_any())
        });
        awaiter.submits(py, "Engine.submit_async")
    }

    /// Begins to record a program: operations that are described once and replayed often, each time as one
    /// operation called `name`. See `Program`.
    ///
    /// graph: one graph of its CUDA device, launched by one call of the driver per replay. Then all nodes
    ///     name that device or queues of the engine there with `on`, and the first replay calls the
    ///     functions, once each, while what they launch is recorded and not run; no later replay calls them.
    ///     So what they read on the host stays as it was then. They must write into their operands: memory
    ///     that they allocate while they are recorded may be given to others afterwards, and every replay
    ///     would write there.
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
        Ok(PyProgram::begin(self.engine(py)?, self.handle.clone(), name, graph))
    }

    /// Submits an operation whose result becomes a new tensor, and returns the promise of it at once.
    ///
    /// Tensors may be anywhere among the arguments, in lists, tuples, dicts, deques and dataclasses too, and
    /// among the arguments of a `functools.partial`, also where that is `fn`. The function gets an array in
    /// place of each, which `using` makes, for example ``np.from_dlpack``. A tensor in a set or in a view of
    /// a dict raises `TypeError`. Everything else is passed on as it is. A keyword argument of the function
    /// that has the name of an option here raises `TypeError`: it is given by `functools.partial`, or to what
    /// `wrap` makes. (For NumPy's functions with a `like`, ``(shape, dtype)`` is the option.) What the
    /// function returns (anything that speaks DLPack) becomes the promise's memory, without a copy. A result
    /// that overlaps memory already known is copied, unless `alias_of` names the tensors that it is a view
    /// of; with ``copy=False`` that is a failure instead, and ``copy=True`` always copies. `like`, a
    /// ``(shape, dtype)`` pair or something with these two attributes, declares shape and dtype, so that they
    /// are known at once. An ``async def`` function runs as a task on the event loop of the submitter.
    ///
    /// The function may return several arrays, in tuples, lists, dicts, deques and dataclasses, and what is
    /// no array: a number, text, bytes, any other object, or nothing. The promise is unpacked as what it
    /// returns (``a, b = eng.call(...)``, ``t["loss"]``, ``await t``), with a promise in place of each array.
    /// That waits for the function, unless the results are declared:
    ///
    /// outputs: the number of arrays that the function returns in a tuple or list, at most 65,536, or a list
    ///     of their names in a dict. `call` then returns a tuple or dict of promises at once; for 0 an
    ///     `Operation`.
    /// like: a list or dict of what each output is like declares them too.
    /// using: makes an array of a tensor; default the ``from_dlpack`` of the library whose function `fn` is,
    ///     or of whose class, and else the engine's. Functions of OpenCV, SciPy, scikit-learn, scikit-image,
    ///     Pillow, Numba and pandas get arrays of NumPy. An engine's that is no library's own ``from_dlpack``
    ///     comes first.
    ///
    /// Type checkers compare a call that has no options with the parameters of the function: the number of up
    /// to four positional arguments, which may have any type, since tensors stand in the place of arrays, and
    /// names and types of keyword arguments. With options nothing is compared; `wrap` takes them apart from
    /// the arguments.
    ///
    ///     >>> a = eng.from_dlpack(np.eye(2))
    ///     >>> np.from_dlpack(eng.call(np.sum, [a, a], axis=0)).tolist()
    ///     [[2.0, 0.0], [0.0, 2.0]]
    ///     >>> quotient, rest = eng.call(np.divmod, a, 3, outputs=2)
    ///     >>> np.from_dlpack(rest).tolist()
    ///     [[1.0, 0.0], [0.0, 1.0]]
    ///     >>> b = eng.call(np.add, a, a, like=((2, 2), "float64"))
    ///     >>> b.shape                       # declared, so it is known before it is there
    ///     (2, 2)
    ///     >>> np.from_dlpack(b).tolist()
    ///     [[2.0, 0.0], [0.0, 2.0]]
    #[pyo3(signature = (r#fn, /, *args, using = None, alias_of = None, like = None, copy = None, outputs = None, name = None, on = None, priority = 0, **kwargs))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn call(
        &self,
        r#fn: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        using: Option<&Bound<'_, PyAny>>,
        alias_of: Option<&Bound<'_, PyAny>>,
        like: Option<&Bound<'_, PyAny>>,
        copy: Option<bool>,
        outputs: Option<&Bound<'_, PyAny>>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let py = r#fn.py();
        let result = ResultOptions { alias_of, like, copy, outputs };
        let submission = Submission { function: r#fn, using, engine: &self.handle, name, on, priority };
        let (args, body, outcome) = submission_args::of_call(submission, args, kwargs, &result)?;
        match outcome {
            CallResult::One(results) => {
                Given::One(self.call_now(py, &args, body)?, results).into_python(py, self.handle.clone())
            }
            CallResult::Several { results, promises, build } => {
                let engine = self.engine(py)?;
                let submit = |permit: SubmitPermit<'_, _, _, _>, body: Body| {
                    submit_several(engine, permit, body, &promises, &results)
                };
                let submitted = self.submit_with(py, |engine| args.operation(engine), body, submit)?;
                let (op, tensors) = submitted.or_raise(py)?;
                Given::Several(op, tensors, build).into_python(py, self.handle.clone())
            }
        }
    }

    /// As `call`, but waits for a permit without stopping the event loop: ``z = await eng.call_async(...)``
    /// gives the promise. A forgotten ``await`` warns, as that of `submit_async` does.
    #[pyo3(signature = (r#fn, /, *args, using = None, alias_of = None, like = None, copy = None, outputs = None, name = None, on = None, priority = 0, **kwargs))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn call_async(
        &self,
        r#fn: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        using: Option<&Bound<'_, PyAny>>,
        alias_of: Option<&Bound<'_, PyAny>>,
        like: Option<&Bound<'_, PyAny>>,
        copy: Option<bool>,
        outputs: Option<&Bound<'_, PyAny>>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Awaiter> {
        let py = r#fn.py();
        let result = ResultOptions { alias_of, like, copy, outputs };
        let submission = Submission { function: r#fn, using, engine: &self.handle, name, on, priority };
        let (args, body, outcome) = submission_args::of_call(submission, args, kwargs, &result)?;
        let (engine, handle) = (self.engine(py)?.clone(), self.handle.clone());
        let given = async move {
            match outcome {
                CallResult::One(results) => {
                    let op = args.promise(&engine).permit().await?;
                    let tensor = op.produce_external(move |end| body.start(end))?;
                    Ok::<_, Error>(Given::One(tensor, results))
                }
                CallResult::Several { results, promises, build } => {
                    let permit = bindings::operation::reserve(args.operation(&engine).permit().await?)?;
                    let (op, tensors) = submit_several(&engine, permit, body, &promises, &results)?;
                    Ok(Given::Several(op, tensors, build))
                }
            }
        };
        let awaiter = Awaiter::pending(given, |py, given| given.or_raise(py)?.into_python(py, handle));
        awaiter.submits(py, "Engine.call_async")
    }

    /// Returns a function that submits a call of `fn` with its arguments, and returns the promise of its
    /// result. `options` are those of `call`. Type checkers compare calls with the parameters of `fn`, see
    /// `estafette.typing.Submitter`.
    ///
    ///     >>> add = eng.wrap(np.add)
    ///     >>> np.from_dlpack(add(eng.from_dlpack(np.arange(3)), 1)).tolist()
    ///     [1, 2, 3]
    #[pyo3(name = "wrap", signature = (r#fn, /, **options))]
    fn wrap_function<'py>(
        this: &Bound<'py, Self>,
        r#fn: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let options = options.cloned().unwrap_or_else(|| PyDict::new(py));
        import_module(py, "estafette._calls")?.call_method1("wrap", (this, r#fn, options))
    }

    /// Makes a decorator: the function becomes one that submits itself, and returns the `Operation`.
    ///
    /// writes: names of the parameters whose tensors the function changes, or one name. Without it the
    ///     function is wrapped as by `wrap`, and without options `@eng.op` is the decorator.
    /// reads: names of the parameters whose tensors it reads; default all that `writes` does not name. A
    ///     parameter that the function changes in place stands in both. One in `writes` alone is overwritten:
    ///     an earlier failure of it is forgotten.
    /// options: `using`, `name`, `on` and `priority`, as in `submit`, and with `writes` its `on_skip`.
    ///
    ///     >>> @eng.op(writes="out", using=np.from_dlpack)
    ///     ... def scale(x, factor, out):
    ///     ...     np.multiply(x, factor, out=out)
    ///     >>> y = eng.zeros(3, "float64")
    ///     >>> scale(eng.from_dlpack(np.arange(3.0)), 10, out=y).wait()
    ///     >>> np.from_dlpack(y).tolist()
    ///     [0.0, 10.0, 20.0]
    #[pyo3(signature = (r#fn = None, /, *, reads = None, writes = None, **options))]
    fn op<'py>(
        this: &Bound<'py, Self>,
        r#fn: Option<&Bound<'py, PyAny>>,
        reads: Option<&Bound<'py, PyAny>>,
        writes: Option<&Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let options = options.cloned().unwrap_or_else(|| PyDict::new(py));
        let none = PyTuple::empty(py).into_any();
        import_module(py, "estafette._calls")?
            .call_method1("op", (this, r#fn, reads, writes.unwrap_or(&none), options))
    }

    /// Scoped leases of several tensors, taken all at once:
    /// ``with eng.access(reads=[a], writes=[b]) as (x, y)``, or ``async with``. The block gets a view of
    /// each, or what `using` makes of it; reads first.
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

enum Given {
    One(Tensor, Option<Arc<Results>>),
    Several(estafette::Op, Vec<Tensor>, Py<PyAny>),
}

impl Given {
    fn into_python(self, py: Python<'_>, handle: EngineHandle) -> PyResult<Py<PyAny>> {
        match self {
            Self::One(tensor, results) => {
                Ok(Py::new(py, PyTensor::of_call(tensor, handle, results))?.into_any())
            }
            Self::Several(op, tensors, _) if tensors.is_empty() => {
                Ok(Py::new(py, PyOperation::new(op, handle))?.into_any())
            }
            Self::Several(_, tensors, build) => {
                let tensors = tensors.into_iter().map(|tensor| PyTensor::new(tensor, handle.clone()));
                build.call1(py, (PyList::new(py, tensors.collect::<Vec<_>>())?,))
            }
        }
    }
}

/// Submits a function and the operations that make tensors of its results, all or none of them. Only the
/// function waits for a permit: two submissions that each had some of their permits would wait for each
/// other.
fn submit_several(
    engine: &Engine,
    function: SubmitPermit<'_, Tensors, Tensors, ()>,
    body: Body,
    promises: &[SubmissionArgs],
    results: &Arc<Results>,
) -> Result<(estafette::Op, Vec<Tensor>), Error> {
    let permits: Vec<_> = promises
        .iter()
        .map(|args| bindings::operation::reserve(bindings::operation::beyond_limit(args.promise(engine))?))
        .collect::<Result<_, Error>>()?;
    let op = function.run_external(|end| body.start(end));
    let deliver =
        |(at, permit): (usize, SubmitPermit<'_, _, _, _>)| permit.produce_external(results.deliver(at)).0;
    Ok((op, permits.into_iter().enumerate().map(deliver).collect()))
}

impl PyEngine {
    /// Submits the operation of `args` without waiting where it can; where it must wait for room, without the
    /// Python lock.
    fn submit_now(&self, py: Python<'_>, args: &SubmissionArgs, body: Body) -> PyResult<estafette::Op> {
        let submit =
            |permit: SubmitPermit<'_, _, _, _>, body: Body| permit.run_external(|end| body.start(end));
        self.submit_with(py, |engine| args.operation(engine), body, submit)
    }

    /// As [`submit_now`](Self::submit_now), of an operation whose result becomes a tensor.
    fn call_now(&self, py: Python<'_>, args: &SubmissionArgs, body: Body) -> PyResult<Tensor> {
        let submit =
            |permit: SubmitPermit<'_, _, _, _>, body: Body| permit.produce_external(|end| body.start(end)).0;
        self.submit_with(py, |engine| args.promise(engine), body, submit)
    }

    fn submit_with<'e, W: Operands, T: Send>(
        &'e self,
        py: Python<'_>,
        describe: impl Fn(&'e Engine) -> OpBuilder<'e, Tensors, W> + Sync,
        body: Body,
        submit: impl Fn(SubmitPermit<'e, Tensors, W, ()>, Body) -> T + Sync,
    ) -> PyResult<T> {
        let engine = self.engine(py)?;
        let tried =
            scope::within(py, || match bindings::operation::reserve(describe(engine).without_waiting()) {
                Ok(permit) => Ok(submit(permit, body)),
                Err(error) => Err(Box::new((error, body))),
            })?;
        let body = match tried {
            // The thread may have run bodies, and a signal handler may have raised something there.
            Ok(submitted) => return interrupt::take().map_or(Ok(submitted), Err),
            Err(refused) => self.held_up(py, *refused)?,
        };
        guard::detach(py, || {
            bindings::operation::reserve(describe(engine)).map(|permit| submit(permit, body))
        })
        .or_raise(py)
    }

    /// The body of a submission that only the in-flight limit has refused, where the thread may wait for a
    /// permit.
    fn held_up(&self, py: Python<'_>, (error, body): (Error, Body)) -> PyResult<Body> {
        let waits = match error {
            Error::InFlightLimit { .. } => self.handle.may_wait(py),
            error => Err(error).or_raise(py),
        };
        match waits {
            Ok(()) => Ok(body),
            Err(error) => {
                body.drop_attached(py);
                Err(error)
            }
        }
    }
}
