//! The kind of function that a body is, and results that no operation may have.

use std::sync::Arc;

use estafette_sync::sync::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::interpreter::fastcall;
use crate::interpreter::once::{imported, intern};
use crate::submission::option_parameters::{OPTIONS, Parameters, inspected};
use crate::submission::submission_args::name_of;

/// `CO_GENERATOR`.
const GENERATOR: u32 = 0x20;
/// `CO_COROUTINE`.
const COROUTINE: u32 = 0x80;
/// `CO_ASYNC_GENERATOR`.
const ASYNC_GENERATOR: u32 = 0x200;

/// A partial of a partial is one partial, so deeper ones are made on purpose.
const PARTIALS_MAX: usize = 8;

/// The result of calling a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionKind {
    /// The call returns the result, or a coroutine that the function's type does not announce.
    Plain,
    /// A coroutine.
    Async,
    /// A generator, asynchronous or not.
    Generator,
}

/// Facts about a function.
pub struct FunctionFacts<'py> {
    pub kind: FunctionKind,
    /// See [`innermost`].
    pub innermost: Bound<'py, PyAny>,
    /// Of a function of Python.
    module: Option<Bound<'py, PyAny>>,
    /// Of a function of Python.
    name: Option<Arc<String>>,
    /// Of a function of Python.
    parameters: Option<Parameters>,
}

/// Functions that are remembered, of each kind. A program submits few in a loop; a new one takes the slot of
/// an old one.
pub(super) const FUNCTIONS: usize = 64;

/// The kind of such a function, by its parts.
struct Remembered {
    /// Kept, so that its address stays unique, as is that of the name.
    code: Py<PyAny>,
    qualname: Py<PyAny>,
    kind: FunctionKind,
    name: Arc<String>,
    parameters: Parameters,
}

estafette_sync::per_process! {
    static REMEMBERED: Mutex<[Option<Remembered>; FUNCTIONS]> = Mutex::new([const { None }; FUNCTIONS]);
}

impl<'py> FunctionFacts<'py> {
    pub fn of(function: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = function.py();
        if !is_python(function)? {
            let innermost = innermost(function)?;
            return Ok(Self {
                kind: FunctionKind::of_innermost(&innermost)?,
                innermost,
                module: None,
                name: None,
                parameters: None,
            });
        }
        // SAFETY: of that type.
        let [code, module] = unsafe { fastcall::code_and_module(function) };
        let qualname = function.getattr(intern!(py, "__qualname__"))?;
        // Code objects are some hundred bytes long.
        let slot = (code.as_ptr() as usize >> 6) % FUNCTIONS;
        let known = REMEMBERED.lock()[slot]
            .as_ref()
            .filter(|known| known.code.is(&code) && known.qualname.is(&qualname))
            .map(|known| (known.kind, Arc::clone(&known.name), known.parameters));
        let (kind, name, parameters) = match known {
            Some(known) => known,
            None => {
                let (kind, name) = (FunctionKind::of_innermost(function)?, Arc::new(name_of(function)?));
                let parameters = Parameters::of(&code)?;
                let (code, qualname) = (code.unbind(), qualname.unbind());
                let known = Remembered { code, qualname, kind, name: Arc::clone(&name), parameters };
                let old = REMEMBERED.lock()[slot].replace(known);
                drop(old);
                (kind, name, parameters)
            }
        };
        let (innermost, module, name) = (function.clone(), Some(module), Some(name));
        Ok(Self { kind, innermost, module, name, parameters: Some(parameters) })
    }

    /// True if it is a function written in Python.
    pub fn is_python(&self) -> bool {
        self.parameters.is_some()
    }

    /// The [`OPTIONS`] that may be names of parameters.
    pub fn named_parameters(&self) -> PyResult<[bool; OPTIONS.len()]> {
        let (function, py) = (&self.innermost, self.innermost.py());
        if function.get_type().is(imported!(py, "types", "MethodType")?) {
            return FunctionFacts::of(&function.getattr(intern!(py, "__func__"))?)?.named_parameters();
        }
        match self.parameters {
            // A function that `functools.wraps` has made passes its keyword arguments on.
            Some(Parameters { has_keywords: true, .. })
                if fastcall::attribute(function, intern!(py, "__wrapped__"))?.is_some() =>
            {
                inspected(function)
            }
            Some(parameters) => Ok(parameters.named),
            None => inspected(function),
        }
    }

    /// True if a function has `like` for another library's arrays in the place of its own, and `value` is
    /// none. NumPy's functions that make arrays do.
    pub fn cannot_take_like(&self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        let module: Option<String> = self.module()?.and_then(|module| module.extract().ok());
        let is_numpy = module.is_some_and(|module| module.split('.').next() == Some("numpy"));
        Ok(is_numpy && !value.hasattr(intern!(value.py(), "__array_function__"))?)
    }

    /// The module of the [innermost] function.
    pub fn module(&self) -> PyResult<Option<Bound<'py, PyAny>>> {
        match &self.module {
            Some(module) => Ok(Some(module.clone())),
            None => fastcall::attribute(&self.innermost, intern!(self.innermost.py(), "__module__")),
        }
    }

    /// The class of the [innermost] function, unless that is a function of Python.
    pub fn class(&self) -> Option<Bound<'py, PyType>> {
        self.module.is_none().then(|| self.innermost.get_type())
    }

    /// The name of `function`, which these facts are about.
    pub fn name(&self, function: &Bound<'py, PyAny>) -> PyResult<Arc<String>> {
        self.name.as_ref().map_or_else(|| name_of(function).map(Arc::new), |name| Ok(Arc::clone(name)))
    }
}

impl FunctionKind {
    /// Looks through `functools.partial`, and at `__call__` of objects that are no functions.
    pub fn of(function: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of_innermost(&innermost(function)?)
    }

    fn of_innermost(function: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = function.py();
        if let Some(kind) = Self::of_code(function)? {
            return Ok(kind);
        }
        let called = fastcall::attribute(&function.get_type(), intern!(py, "__call__"))?;
        let kind = called.map(|called| Self::of_code(&called)).transpose()?.flatten();
        Ok(kind.unwrap_or(Self::Plain))
    }

    /// Of a function or a method written in Python.
    fn of_code(function: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = function.py();
        let Some(code) = fastcall::attribute(function, intern!(py, "__code__"))? else { return Ok(None) };
        let Some(flags) = fastcall::attribute(&code, intern!(py, "co_flags"))? else { return Ok(None) };
        let flags: u32 = flags.extract()?;
        Ok(Some(match flags {
            _ if flags & COROUTINE != 0 => Self::Async,
            _ if flags & (GENERATOR | ASYNC_GENERATOR) != 0 => Self::Generator,
            _ => Self::Plain,
        }))
    }
}

/// True if it is a function written in Python.
fn is_python(function: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(function.get_type_ptr().cast() == imported!(function.py(), "types", "FunctionType")?.as_ptr())
}

/// The function within `functools.partial`, or `function` itself.
pub fn innermost<'py>(function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = function.py();
    if is_python(function)? {
        return Ok(function.clone());
    }
    let partial = imported!(py, "functools", "partial")?;
    let mut function = function.clone();
    for _ in 0..PARTIALS_MAX {
        if !function.is_instance(partial)? {
            break;
        }
        function = function.getattr(intern!(py, "func"))?;
    }
    Ok(function)
}

/// The error for a function whose call only makes a generator.
pub fn never_runs(what: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "{what}, so calling it runs nothing of its body: pass a function that runs it to its end, such as \
         `lambda *tensors: collections.deque(fn(*tensors), maxlen=0)` (of an asynchronous one: an `async def` function with \
         `async for`), or write it without `yield`"
    ))
}

/// Raises `TypeError` for a generator, asynchronous or not, as what a body has returned.
pub fn refuse_generator(value: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = value.py();
    if value.is_none() {
        return Ok(());
    }
    let kind = if value.get_type().is(imported!(py, "types", "GeneratorType")?) {
        "a generator"
    } else if value.get_type().is(imported!(py, "types", "AsyncGeneratorType")?) {
        "an asynchronous generator"
    } else {
        return Ok(());
    };
    Err(never_runs(&format!("the function returned {kind}")))
}

/// True if a function has returned a coroutine, of Python or of a class of a library's own, such as
/// aiohttp's.
pub fn is_coroutine(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(!value.is_none() && value.is_instance(imported!(value.py(), "collections.abc", "Coroutine")?)?)
}

/// The error for a coroutine that nothing can await, which is closed. `on` is what a queue is called that it
/// cannot run on.
pub fn refuse_coroutine(coroutine: &Bound<'_, PyAny>, on: Option<&str>) -> PyErr {
    if let Err(error) = coroutine.call_method0(intern!(coroutine.py(), "close")) {
        return error;
    }
    PyTypeError::new_err(match on {
        Some(name) => format!("the function returned a coroutine, which cannot run on {name}"),
        None => "the function returned a coroutine, which runs on the event loop of the submitter: submit it where one is running".into(),
    })
}
