//! What we know of other libraries, by the name of the module that a type or a caller comes from. None of them is ever
//! imported here.
//!
//! A legacy DLPack struct cannot say that memory is read-only. NumPy therefore treats every legacy import as read-only;
//! so do we, unless the table says that the producer hands out such structs for memory that may be written.

use estafette::{CallSite, Taker};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

use crate::call_sites;

/// What a legacy struct from a producer stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Legacy {
    /// Memory that may be written.
    Writable,
    /// Memory that must not be written.
    ReadOnly,
}

struct Peer {
    /// First part of its modules' names.
    root: &'static str,
    /// What its legacy structs stand for.
    legacy: Legacy,
    /// Its arrays never change, so it may be given read-only memory in a struct that cannot say so.
    immutable: bool,
}

const PEERS: &[Peer] = &[
    // Refuses to make a legacy struct of a read-only array (numpy/numpy:numpy/_core/src/multiarray/dlpack.c).
    Peer { root: "numpy", legacy: Legacy::Writable, immutable: false },
    // Arrays are immutable, but leave as legacy structs that cannot say so (jax-ml/jax#40789).
    Peer { root: "jax", legacy: Legacy::ReadOnly, immutable: true },
    Peer { root: "jaxlib", legacy: Legacy::ReadOnly, immutable: true },
    // Tensors may be written; legacy structs before DLPack 1.0 (pytorch/pytorch:torch/utils/dlpack.py).
    Peer { root: "torch", legacy: Legacy::Writable, immutable: false },
    Peer { root: "cupy", legacy: Legacy::Writable, immutable: false },
    // `EagerTensor`s are immutable; legacy only (tensorflow/tensorflow:tensorflow/c/eager/dlpack.cc).
    Peer { root: "tensorflow", legacy: Legacy::ReadOnly, immutable: true },
];

fn find(module: &str) -> Option<&'static Peer> {
    let root = module.split('.').next().unwrap_or(module);
    PEERS.iter().find(|peer| peer.root == root)
}

/// What a legacy struct made by `producer` stands for.
pub fn legacy_of(producer: &Bound<'_, PyAny>) -> Legacy {
    let module = producer.get_type().module();
    let peer = module.ok().and_then(|module| find(&module.to_string_lossy()));
    peer.map_or(Legacy::ReadOnly, |peer| peer.legacy)
}

/// The nearest Python frames to look at for the caller: a library that asks for us has few of its own.
const FRAMES_MAX: usize = 8;

/// Who calls into this package from Python.
pub struct Caller {
    /// The function and line outside any known library.
    pub place: Taker,
    /// Whether it is this package, on behalf of the function of an operation.
    pub is_body: bool,
    /// Whether the innermost library on the way never writes what it is given.
    pub immutable: bool,
}

/// Looks at the calling frames. Costs a microsecond.
pub fn caller(py: Python<'_>) -> Caller {
    look(py).unwrap_or_else(|_| Caller {
        place: "unknown Python code".into(),
        is_body: false,
        immutable: false,
    })
}

fn look(py: Python<'_>) -> PyResult<Caller> {
    static GETFRAME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let mut frame = GETFRAME.import(py, "sys", "_getframe")?.call0()?;
    let mut library: Option<&'static Peer> = None;
    let mut is_body = false;
    for _ in 0..FRAMES_MAX {
        // Code that is run by `exec` may have no module.
        let module = frame.getattr(intern!(py, "f_globals"))?.get_item(intern!(py, "__name__")).ok();
        let module = module.as_ref().and_then(|module| module.cast::<PyString>().ok()?.to_str().ok());
        is_body = module == Some("estafette._body");
        let Some(peer) = module.and_then(find) else { break };
        let next = frame.getattr(intern!(py, "f_back"))?;
        if next.is_none() {
            break;
        }
        library = library.or(Some(peer));
        frame = next;
    }
    let code = frame.getattr(intern!(py, "f_code"))?;
    let file = code.getattr(intern!(py, "co_filename"))?;
    let file = file.cast::<PyString>()?.to_str()?;
    let short = file.rsplit(['/', '\\']).next().unwrap_or(file);
    let name = code.getattr(intern!(py, "co_name"))?;
    let line: u32 = frame.getattr(intern!(py, "f_lineno"))?.extract().unwrap_or_default();
    let name = name.cast::<PyString>()?.to_str()?;
    let mut place = Taker::from(format!("{name} ({short}:{line})")).of_library(library.map(|peer| peer.root));
    if call_sites::are_recorded() {
        place = place.at(CallSite { file: file.to_owned(), line, function: name.to_owned() });
    }
    Ok(Caller { place, is_body, immutable: library.is_some_and(|peer| peer.immutable) })
}
