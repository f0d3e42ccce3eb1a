//! The options of a submission, read from the arguments of `submit` and `call`.

use std::sync::Arc;

use estafette::bindings;
use estafette::devices::Queue;
use estafette::operation::{self, Copying, OpBuilder, Tensors};
use estafette::{Engine, Tensor, Variable};
use estafette_sync::sync::OnceLock;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use crate::arguments;
use crate::arguments::{not_a_tensor, parse_dtype, parse_shape, tensor_of};
use crate::classes::handle::EngineHandle;
use crate::classes::tensor::PyTensor;
use crate::classes::variable::PyVariable;
use crate::error::{OrRaise, import_module};
use crate::interpreter::fastcall;
use crate::interpreter::once::{imported, intern};
use crate::kinds;
use crate::submission::body::Body;
use crate::submission::function_kind::{FunctionFacts, FunctionKind, innermost};
use crate::submission::on::On;
use crate::submission::on_skip::OnSkip;
use crate::submission::option_parameters::OPTIONS;
use crate::submission::outcome::Use;
use crate::submission::results::Results;
use crate::submission::using;

/// The operands of an operation, sorted.
#[derive(Default, Clone)]
pub struct Operands {
    pub reads: Vec<Tensor>,
    pub writes: Vec<Tensor>,
    pub read_vars: Vec<Variable>,
    pub write_vars: Vec<Variable>,
}

impl Operands {
    fn is_empty(&self) -> bool {
        self.reads.is_empty()
            && self.writes.is_empty()
            && self.read_vars.is_empty()
            && self.write_vars.is_empty()
    }
}

/// The options of a submission.
#[derive(Clone)]
pub struct SubmissionArgs {
    pub operands: Operands,
    pub name: Arc<String>,
    pub priority: i32,
    pub alias_of: Vec<Tensor>,
    pub like: Option<(estafette::DType, Vec<i64>)>,
    pub copy: Option<bool>,
    /// The queue that the function enqueues on.
    pub queue: Option<Arc<dyn Queue>>,
    /// Called in place of the function where the operation is skipped.
    pub on_skip: Option<Arc<OnSkip>>,
    /// An operation without operands gets a variable of its own, so that a diagnosis shows the operation.
    pub own: OnceLock<Variable>,
}

impl SubmissionArgs {
    fn describe<'e>(&'e self, engine: &'e Engine) -> OpBuilder<'e, Tensors> {
        let Operands { reads, read_vars, write_vars, .. } = &self.operands;
        let read_vars: Vec<&Variable> = read_vars.iter().collect();
        let write_vars: Vec<&Variable> = write_vars.iter().collect();
        let own = self.operands.is_empty().then(|| self.own.get_or_init(|| engine.var()));
        let builder = bindings::engine::op_shared(engine, &self.name)
            .reads(reads)
            .reads_vars(&read_vars)
            .writes_vars(&write_vars)
            .writes_vars(own.as_slice())
            .priority(self.priority);
        match &self.queue {
            // Work on a queue may wait for other work while it begins.
            Some(queue) => bindings::operation::worker_only(builder).on(queue),
            None => bindings::operation::needs_lock(builder),
        }
    }

    pub fn operation<'e>(&'e self, engine: &'e Engine) -> OpBuilder<'e, Tensors, Tensors> {
        let builder = self.describe(engine).writes(&self.operands.writes);
        match self.on_skip.clone() {
            Some(on_skip) => builder.on_skip(move |cause| on_skip.call(cause)),
            None => builder,
        }
    }

    pub fn promise<'e>(&'e self, engine: &'e Engine) -> OpBuilder<'e, Tensors> {
        let alias_of: Vec<&Tensor> = self.alias_of.iter().collect();
        let like = self.like.as_ref().map(|(dtype, shape)| (*dtype, shape.as_slice()));
        let copying = match self.copy {
            None => Copying::Allowed,
            Some(true) => Copying::Always,
            Some(false) => Copying::Refused,
        };
        self.describe(engine).result(operation::ResultOptions { alias_of: &alias_of, like, copying })
    }
}

/// The common part of all submissions of a function.
pub struct Submission<'a, 'py> {
    pub function: &'a Bound<'py, PyAny>,
    pub using: Option<&'a Bound<'py, PyAny>>,
    pub engine: &'a EngineHandle,
    pub name: Option<String>,
    pub on: Option<&'a Bound<'py, PyAny>>,
    pub priority: i32,
}

/// The options of `submit`, and the body. Raises `TypeError` for `args`, which `Executor.submit` takes: as
/// positions, `writes` would be silent about what is overwritten.
pub fn of_submit(
    submission: Submission<'_, '_>,
    args: &Bound<'_, PyTuple>,
    reads: Option<&Bound<'_, PyAny>>,
    writes: Option<&Bound<'_, PyAny>>,
    on_skip: Option<&Bound<'_, PyAny>>,
) -> PyResult<(SubmissionArgs, Body)> {
    if !args.is_empty() {
        return Err(PyTypeError::new_err(
            "`submit` takes a function, and all else by name: `reads=[...]`, `writes=[...]`; `eng.call(fn, a, b)` and \
             `eng.call_async(fn, a, b)` take a function with its arguments, and `functools.partial(fn, a, b)` is one without",
        ));
    }
    let Submission { function, using, engine, name, on, priority } = submission;
    let py = function.py();
    let on = queue_of(on)?;
    let queue = on.as_ref().map(|on| Arc::clone(&on.queue));
    let mut operands = Operands::default();
    operands.write_vars.extend(queue.as_deref().and_then(kinds::submission_mutex));
    let mut objects: Vec<Bound<'_, PyAny>> = Vec::new();
    for (list, write) in [(reads, false), (writes, true)] {
        let Some(list) = list else { continue };
        for item in arguments::list(if write { "writes" } else { "reads" }, list)? {
            let item = item?;
            if let Ok(tensor) = item.cast::<PyTensor>() {
                let tensors = if write { &mut operands.writes } else { &mut operands.reads };
                tensors.push(tensor.get().tensor(py)?.clone());
                objects.push(item);
            } else if let Ok(variable) = item.cast::<PyVariable>() {
                let variables = if write { &mut operands.write_vars } else { &mut operands.read_vars };
                variables.push(variable.get().variable.get().or_raise(py)?.clone());
            } else {
                return Err(not_a_tensor(&item));
            }
        }
    }
    let known = FunctionFacts::of(function)?;
    let using = using::of(&known, using, &engine.shared.using, py)?;
    let body =
        Body::new(function, known.kind, using.as_ref(), &PyTuple::new(py, objects)?, Use::Ignored)?.on(on)?;
    let name = name.map_or_else(|| known.name(function), |name| Ok(Arc::new(name)))?;
    Ok((
        SubmissionArgs {
            operands,
            name,
            priority,
            alias_of: Vec::new(),
            like: None,
            copy: None,
            queue,
            on_skip: on_skip.map(OnSkip::new).transpose()?.map(Arc::new),
            own: OnceLock::new(),
        },
        body,
    ))
}

/// The options of a call that concern its result.
#[derive(Default, Clone, Copy)]
pub struct ResultOptions<'a, 'py> {
    pub alias_of: Option<&'a Bound<'py, PyAny>>,
    pub like: Option<&'a Bound<'py, PyAny>>,
    pub copy: Option<bool>,
    /// The number of arrays, or their names.
    pub outputs: Option<&'a Bound<'py, PyAny>>,
}

/// The result of a call.
pub enum CallResult {
    /// A promise of one array, or of what it is unpacked into if nothing was said of it.
    One(Option<Arc<Results>>),
    /// A promise for each array, and what makes the structure of them.
    Several { results: Arc<Results>, promises: Vec<SubmissionArgs>, build: Py<PyAny> },
}

/// The options of `call`, and the body.
pub fn of_call(
    submission: Submission<'_, '_>,
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
    result: &ResultOptions<'_, '_>,
) -> PyResult<(SubmissionArgs, Body, CallResult)> {
    let Submission { function, using, engine, name, on, priority } = submission;
    let py = function.py();
    let on = queue_of(on)?;
    let queue = on.as_ref().map(|on| Arc::clone(&on.queue));
    let mut operands = Operands::default();
    operands.write_vars.extend(queue.as_deref().and_then(kinds::submission_mutex));
    let known = FunctionFacts::of(function)?;
    let given = [
        using.is_some(),
        result.alias_of.is_some(),
        result.like.is_some(),
        result.copy.is_some(),
        result.outputs.is_some(),
        name.is_some(),
        on.is_some(),
        priority != 0,
    ];
    // To know what a function in C takes may take longer than the call. Nearly all calls that have an option
    // have `using` alone.
    if given[1..].contains(&true) || (using.is_some() && known.is_python()) {
        let named = known.named_parameters()?;
        let mut clashes: Vec<&str> =
            (0..OPTIONS.len()).filter(|&at| given[at] && named[at]).map(|at| OPTIONS[at]).collect();
        if let Some(like) = result.like
            && clashes.contains(&"like")
            && known.cannot_take_like(like)?
        {
            clashes.retain(|&name| name != "like");
        }
        if !clashes.is_empty() {
            import_module(py, "estafette._calls")?
                .call_method1("refuse_ambiguous", (function, args, clashes))?;
        }
    }
    let using = using::of(&known, using, &engine.shared.using, py)?;
    let name = name.map_or_else(|| known.name(function), |name| Ok(Arc::new(name)))?;
    let mut plain = kwargs.is_none_or(|kwargs| kwargs.is_empty());
    for item in args.iter_borrowed() {
        plain = plain && (item.is_exact_instance_of::<PyTensor>() || has_no_tensors(&item)?);
    }
    plain = plain && (known.innermost.is(function) || has_no_tensors(function)?);
    let (function, kind, arguments) = if plain {
        (function.clone(), known.kind, args.clone())
    } else {
        let kwargs = kwargs.cloned().unwrap_or_else(|| PyDict::new(py));
        let bound = import_module(py, "estafette._calls")?.call_method1("bind", (function, args, kwargs))?;
        let (function, arguments): (Bound<'_, PyAny>, _) = bound.extract()?;
        let kind = FunctionKind::of(&function)?;
        (function, kind, arguments)
    };
    let tensors = arguments.iter_borrowed().filter_map(|item| item.cast::<PyTensor>().ok());
    for (at, tensor) in tensors.enumerate() {
        operands.reads.push(tensor.get().argument(py, at)?.clone());
    }
    let (args, wanted, outcome) = match declared(py, result)? {
        None => {
            let args = SubmissionArgs { priority, ..of_delivery(name, result)? };
            // Of what it is like is declared, it is one array.
            let results = args.like.is_none().then(|| Arc::new(Results::unknown(args.clone(), engine)));
            (args, Use::Produced(results.clone()), CallResult::One(results))
        }
        Some((take, build, likes)) => {
            let args =
                SubmissionArgs { priority, ..of_delivery(name, &ResultOptions { like: None, ..*result })? };
            // The arrays come after the function.
            let ran = engine.engine(py)?.var();
            operands.write_vars.push(ran.clone());
            let mut promise = args.clone();
            promise.operands.read_vars.push(ran);
            let results = Arc::new(Results::declared(promise.clone(), take));
            let promises = likes.into_iter().map(|like| SubmissionArgs { like, ..promise.clone() }).collect();
            let args = SubmissionArgs { alias_of: Vec::new(), copy: None, ..args };
            (args, Use::Several(Arc::clone(&results)), CallResult::Several { results, promises, build })
        }
    };
    let body = Body::new(&function, kind, using.as_ref(), &arguments, wanted)?.on(on)?;
    Ok((SubmissionArgs { operands, queue, ..args }, body, outcome))
}

/// True if an argument, which is no tensor, is certainly nothing that may have tensors in it.
fn has_no_tensors(item: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = item.py();
    let is_plain = item.is_none()
        || item.is_instance_of::<PyInt>()
        || item.is_instance_of::<PyString>()
        || item.is_exact_instance_of::<PyFloat>();
    if is_plain {
        return Ok(true);
    }
    let class = item.get_type();
    if item.is_instance_of::<PyTuple>()
        || item.is_instance_of::<PyList>()
        || item.is_instance_of::<PyDict>()
        || item.is_instance_of::<PyVariable>()
        || fastcall::class_has(&class, intern!(py, "__dataclass_fields__"))
    {
        return Ok(false);
    }
    if !fastcall::inherits(&class, imported!(py, "functools", "partial")?) {
        let containers = imported!(py, "estafette._calls", "CONTAINERS")?.cast::<PyTuple>()?;
        return Ok(!containers.iter_borrowed().any(|container| fastcall::inherits(&class, &container)));
    }
    let args = item.getattr(intern!(py, "args"))?.cast_into::<PyTuple>()?;
    let keywords = item.getattr(intern!(py, "keywords"))?.cast_into::<PyDict>()?;
    let mut items = args.into_iter().chain(keywords.into_iter().map(|(_, value)| value));
    items
        .try_fold(true, |none, item| Ok(none && !item.is_instance_of::<PyTensor>() && has_no_tensors(&item)?))
}

/// Takes the arrays, builds the structure of their promises, and says what each is like.
type Declared = (Py<PyAny>, Py<PyAny>, Vec<Option<(estafette::DType, Vec<i64>)>>);

/// The caller's declaration of several results.
fn declared(py: Python<'_>, result: &ResultOptions<'_, '_>) -> PyResult<Option<Declared>> {
    let several =
        result.like.is_some_and(|like| like.is_instance_of::<PyList>() || like.is_instance_of::<PyDict>());
    if result.outputs.is_none() && !several {
        return Ok(None);
    }
    let declared =
        import_module(py, "estafette._calls")?.call_method1("declared", (result.outputs, result.like))?;
    let (take, build, likes): (_, _, Vec<Option<Bound<'_, PyAny>>>) = declared.extract()?;
    let likes =
        likes.iter().map(|like| like.as_ref().map(parse_like).transpose()).collect::<PyResult<_>>()?;
    Ok(Some((take, build, likes)))
}

/// Description of a result that another thread or library will bring.
pub fn of_delivery(name: Arc<String>, result: &ResultOptions<'_, '_>) -> PyResult<SubmissionArgs> {
    Ok(SubmissionArgs {
        operands: Operands::default(),
        name,
        priority: 0,
        alias_of: tensors_of("alias_of", result.alias_of)?,
        like: result.like.map(parse_like).transpose()?,
        copy: result.copy,
        queue: None,
        on_skip: None,
        own: OnceLock::new(),
    })
}

/// The tensors of a list that may be missing.
fn tensors_of(name: &str, list: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<Tensor>> {
    let Some(list) = list else { return Ok(Vec::new()) };
    arguments::list(name, list)?.map(|item| tensor_of(&item?)).collect()
}

/// `(shape, dtype)`, or something that has both.
pub fn parse_like(like: &Bound<'_, PyAny>) -> PyResult<(estafette::DType, Vec<i64>)> {
    let (shape, dtype) = match like.cast::<PyTuple>() {
        Ok(pair) if pair.len() == 2 => (pair.get_item(0)?, pair.get_item(1)?),
        _ => match (like.getattr_opt("shape")?, like.getattr_opt("dtype")?) {
            (Some(shape), Some(dtype)) => (shape, dtype),
            _ => {
                return Err(PyTypeError::new_err(format!(
                    "what a result is like is a pair (shape, dtype), or something that has both, not {}",
                    like.repr()?
                )));
            }
        },
    };
    Ok((parse_dtype(&dtype)?, parse_shape(&shape)?))
}

/// The queue that an operation's function enqueues on; `None` for functions that do their work themselves, on
/// the host. Raises `ValueError` for what is neither the host, nor a device, nor a queue; `BufferError` for a
/// device that is not there.
fn queue_of(on: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Arc<On>>> {
    let Some(on) = on else { return Ok(None) };
    let place = kinds::queue_of(on)?;
    Ok(place.map(|(queue, owner)| match owner {
        Some(owner) => On::theirs(queue, &owner),
        None => On::ours(queue),
    }))
}

/// The name of a function.
pub fn name_of(function: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = function.py();
    let function = innermost(function)?;
    for attribute in [intern!(py, "__qualname__"), intern!(py, "__name__")] {
        if let Ok(name) = function.getattr(attribute).and_then(|name| name.extract()) {
            return Ok(name);
        }
    }
    let kind: Bound<'_, PyType> = function.get_type();
    Ok(kind.name()?.to_string())
}
