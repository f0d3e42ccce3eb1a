//! The class `Program`: operations that are recorded once and replayed often.

use std::sync::Arc;

use estafette::bindings;
use estafette::program::ProgramBuilder;
use estafette::{Engine, Program};
use estafette_report::shown::shown;
use estafette_sync::process::ProcessBound;
use estafette_sync::sync::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::asyncio::awaiting::Awaiter;
use crate::classes::handle::EngineHandle;
use crate::classes::operation::PyOperation;
use crate::error::OrRaise;
use crate::exchange::export::poll_once;
use crate::interpreter::guard;
use crate::submission::body::{Body, Repeated};
use crate::submission::submission_args::{self, Submission, SubmissionArgs};

/// Operations that are recorded once and then run any number of times, each time as one operation. Made by
/// `Engine.program`; the nodes are recorded by `submit`, in a ``with`` block at the end of which the program
/// is finished::
///
///     >>> x = eng.from_dlpack(np.ones(4))
///     >>> y = eng.zeros(4, "float64")
///     >>> with eng.program("step") as step:
///     ...     step.submit(lambda x, y: np.multiply(x, 2, out=y), reads=[x], writes=[y], using=np.from_dlpack)
///     ...     step.submit(lambda y, x: np.add(x, y, out=x), reads=[y], writes=[x], using=np.from_dlpack)
///     >>> len(step)
///     2
///     >>> for _ in range(3):
///     ...     op = step.replay()            # one operation, ordered with all others by what it uses
///     >>> op.wait()
///     >>> np.from_dlpack(x).tolist()
///     [27.0, 27.0, 27.0, 27.0]
///
/// A program keeps its functions and tensors, and a handle of its engine. The caller may drop the program
/// while replays are in flight.
#[pyclass(frozen, module = "estafette", name = "Program", weakref)]
pub struct PyProgram {
    engine: EngineHandle,
    /// The name given when recording began. Every replay has this name.
    #[pyo3(get)]
    name: String,
    /// True if the program is one graph of its device.
    #[pyo3(get, name = "is_graph")]
    graph: bool,
    stage: Mutex<ProgramStage>,
    /// The bodies of the nodes, for the garbage collector: a function may refer to its program.
    bodies: Mutex<Vec<Arc<Repeated>>>,
}

enum ProgramStage {
    Recording(ProcessBound<Box<ProgramBuilder>>),
    Ready(ProcessBound<Program>),
    /// True if the recording block raised, or the program could not be finished.
    Abandoned,
}

impl Drop for PyProgram {
    fn drop(&mut self) {
        // A graph is destroyed by its driver.
        if self.graph {
            let mut stage = Some(std::mem::replace(self.stage.get_mut(), ProgramStage::Abandoned));
            guard::without_lock(&mut || drop(stage.take()));
        }
    }
}

impl PyProgram {
    /// Begins to record a program of `engine`.
    pub fn begin(engine: &Engine, handle: EngineHandle, name: Option<String>, graph: bool) -> Self {
        let name = name.unwrap_or_else(|| "program".into());
        let builder = Box::new(engine.program(name.clone()));
        let stage = Mutex::new(ProgramStage::Recording(ProcessBound::new(builder)));
        Self { engine: handle, name, graph, stage, bodies: Mutex::default() }
    }

    fn error(&self, what: &str) -> PyErr {
        PyRuntimeError::new_err(format!("program `{}` {what}", shown(&self.name)))
    }

    fn record(&self, py: Python<'_>, args: SubmissionArgs, body: Body) -> PyResult<()> {
        self.engine.engine(py)?;
        let body = Repeated::new(py, body);
        let mut stage = self.stage.lock();
        let ProgramStage::Recording(builder) = &mut *stage else {
            return Err(self.error("is finished: nothing more can be recorded"));
        };
        let SubmissionArgs { operands, name, queue, .. } = args;
        let (reads, writes): (Vec<_>, Vec<_>) =
            (operands.read_vars.iter().collect(), operands.write_vars.iter().collect());
        let mut node = builder
            .get_mut()
            .or_raise(py)?
            .op(Arc::unwrap_or_clone(name))
            .reads(&operands.reads)
            .writes(&operands.writes)
            .reads_vars(&reads)
            .writes_vars(&writes);
        node = bindings::operation::worker_only(node);
        if let Some(queue) = &queue {
            node = node.on(queue);
        }
        let called = Arc::clone(&body);
        node.run_external(move |completion| called.start(completion)).or_raise(py)?;
        drop(stage);
        self.bodies.lock().push(body);
        Ok(())
    }

    /// A handle of the finished program.
    fn ready(&self, py: Python<'_>) -> PyResult<Program> {
        match &*self.stage.lock() {
            ProgramStage::Ready(program) => Ok(program.get().or_raise(py)?.clone()),
            ProgramStage::Recording(_) => {
                Err(self.error("is still being recorded: leave its `with` block, or `finish` it"))
            }
            ProgramStage::Abandoned => {
                Err(self.error("was never finished: its recording ended with an exception"))
            }
        }
    }
}

#[pymethods]
impl PyProgram {
    /// Number of nodes.
    fn __len__(&self) -> usize {
        self.bodies.lock().len()
    }

    /// A program is true, with or without nodes.
    fn __bool__(&self) -> bool {
        true
    }

    /// Records a node, with the arguments of `Engine.submit` but `priority` and `on_skip`: a node is skipped
    /// without a word where an earlier one has failed. No function runs before a replay. Every replay calls
    /// ``fn(*reads, *writes)``, in a copy of the context of this call.
    ///
    /// An ``async def`` function runs at every replay as a task on the event loop of the thread that called
    /// `submit`. A view of an operand that the function keeps belongs to the replay: the view becomes a lease
    /// when the replay ends, and later nodes do not wait for that lease.
    #[pyo3(
        signature = (r#fn, *args, reads = None, writes = None, using = None, name = None, on = None),
        text_signature = "($self, fn, *, reads=None, writes=None, using=None, name=None, on=None)"
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
    ) -> PyResult<()> {
        let engine = &self.engine;
        let submission = Submission { function: r#fn, using, engine, name, on, priority: 0 };
        let (args, body) = submission_args::of_submit(submission, args, reads, writes, None)?;
        self.record(r#fn.py(), args, body)
    }

    /// Ends the recording; the end of the ``with`` block calls this method. With ``graph=True``, raises
    /// `InvalidError` if the program cannot be a graph; the error names the node that prevents the graph.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.engine.engine(py)?;
        let builder = {
            let mut stage = self.stage.lock();
            match std::mem::replace(&mut *stage, ProgramStage::Abandoned) {
                ProgramStage::Recording(builder) => builder,
                other => {
                    *stage = other;
                    return Err(self.error("is finished already, or was given up"));
                }
            }
        };
        let builder = builder.into_inner().or_raise(py)?;
        let graph = self.graph;
        let finished = guard::detach(py, || if graph { builder.finish_as_graph() } else { builder.finish() });
        *self.stage.lock() = ProgramStage::Ready(ProcessBound::new(finished.or_raise(py)?));
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let recording = matches!(&*slf.get().stage.lock(), ProgramStage::Recording(_));
        if recording { Ok(slf) } else { Err(slf.get().error("is finished already, or was given up")) }
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        if _exception.is_empty() || _exception.get_item(0)?.is_none() {
            return if matches!(&*self.stage.lock(), ProgramStage::Ready(_)) {
                Ok(())
            } else {
                self.finish(py)
            };
        }
        let given_up = std::mem::replace(&mut *self.stage.lock(), ProgramStage::Abandoned);
        drop(given_up);
        let bodies = std::mem::take(&mut *self.bodies.lock());
        drop(bodies);
        Ok(())
    }

    /// Submits one run of all nodes as one operation, and returns at once: ``program.replay().wait()``, or
    /// ``await program.replay()``.
    ///
    /// Nodes behave as operations submitted in the order of recording. If a node fails, the replay does not
    /// call nodes that read its outputs, and calls all others. The replay then fails with the failure of the
    /// node that was recorded first among the failed nodes, and so does everything that the program writes.
    /// Raises as `Engine.submit`.
    fn replay(&self, py: Python<'_>) -> PyResult<PyOperation> {
        let program = self.ready(py)?;
        let op = self.engine.submit(py, || poll_once(program.replay_async()), || program.replay())?;
        Ok(PyOperation::new(op, self.engine.clone()))
    }

    /// As `replay`, but waits for a permit without stopping the event loop:
    /// ``op = await program.replay_async()``. A forgotten ``await`` warns, as that of `Engine.submit_async`
    /// does.
    fn replay_async(&self, py: Python<'_>) -> PyResult<Awaiter> {
        let (program, handle) = (self.ready(py)?, self.engine.clone());
        let awaiter = Awaiter::pending(async move { program.replay_async().await }, |py, op| {
            Ok(Py::new(py, PyOperation::new(op.or_raise(py)?, handle))?.into_any())
        });
        awaiter.submits(py, "Program.replay_async")
    }

    fn __repr__(&self) -> String {
        let stage = match &*self.stage.lock() {
            ProgramStage::Recording(_) => ", being recorded",
            ProgramStage::Ready(_) if self.graph => ", one graph",
            ProgramStage::Ready(_) => "",
            ProgramStage::Abandoned => ", given up",
        };
        format!("<estafette.Program `{}` of {} nodes{stage}>", shown(&self.name), self.bodies.lock().len())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A replay in flight needs the functions, even if other references to them are gone.
        let idle = match self.stage.try_lock().as_deref() {
            Some(ProgramStage::Ready(program)) => {
                program.get().is_ok_and(|program| !bindings::program::is_in_use(program))
            }
            Some(ProgramStage::Recording(_) | ProgramStage::Abandoned) => true,
            None => false,
        };
        let Some(bodies) = self.bodies.try_lock() else { return Ok(()) };
        if idle { bodies.iter().try_for_each(|body| body.traverse(&visit)) } else { Ok(()) }
    }

    fn __clear__(&self) {
        if let Some(bodies) = self.bodies.try_lock() {
            bodies.iter().for_each(|body| body.clear());
        }
    }
}
