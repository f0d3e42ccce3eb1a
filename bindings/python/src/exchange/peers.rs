//! Facts about other libraries: a row for each, with the source of what it says. Libraries of one kind of
//! device have theirs with the kind.
//!
//! DLPack leaves much open, and libraries differ: whether a legacy struct may be written, what an omitted
//! `stream` stands for, who looks at flags. None of them is ever imported here; a row is found by the module
//! that a type or a calling function comes from. A library without a row is treated as the specification
//! says, and with the doubt on the safe side.

use estafette_sync::sync::OnceLock;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use crate::error::import_module;
use crate::exchange::numpy_array;
use crate::exchange::peer_table::{self, PeerTable};
use crate::interpreter::fastcall;
use crate::interpreter::once::{PyOnce, intern};
use crate::kinds;

/// A producer's treatment of a consumer's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Orders its work before it, as the array API says.
    Honoured,
    /// Takes the argument and does nothing about it.
    Ignored,
    /// Has no streams: data is ready when the call returns.
    HostOnly,
}

/// A producer's meaning of an omitted stream (`None`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Omitted {
    /// The device's default stream, as the array API says.
    DefaultStream,
    /// A host that reads at once, for which it waits.
    HostWait,
    /// A consumer that orders things itself.
    NoSync,
}

/// The lifetime of the streams that a consumer names by bare handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// Nothing is known: a handle may be another stream's when the consumer has released the tensor.
    Unknown,
    /// The streams live as long as the process.
    Last,
    /// Streams of PyTorch's pool live as long as the process; external ones may not. PyTorch's current
    /// stream says which it is.
    PyTorchPool,
}

/// One library.
pub struct Peer {
    /// First part of its modules' names.
    pub root: &'static str,
    /// Its legacy structs, which cannot say that memory is read-only, are of memory that may be written.
    /// NumPy treats every legacy import as read-only; so do we, unless the table knows better.
    pub legacy_writable: bool,
    /// Its arrays never change, so it may be given read-only memory in a struct that cannot say so.
    pub immutable: bool,
    /// As a consumer it honours DLPack's read-only flag: its array cannot be written.
    pub honours_read_only: bool,
    /// Its treatment of the stream it is given.
    pub stream: Stream,
    /// Its meaning of an omitted stream.
    pub omitted: Omitted,
    /// A peer that names no stream as a consumer on a device works on streams of its own, which the default
    /// stream does not order: the host waits for it. Else it works on the default stream, as the array API
    /// says.
    pub own_streams: bool,
    /// The lifetime of the streams that it names as a consumer.
    pub streams: Streams,
    /// The module and the function in it that gives its current stream on a device, an object with `ptr`. An
    /// export for that stream makes no event and no wait, which cost such a library some microseconds; the
    /// import orders itself behind the stream.
    pub current_stream: Option<(&'static str, &'static str)>,
    /// True if it takes a stream for pinned memory, as for memory of a device. Else none is named, as for the
    /// host's.
    pub streams_for_pinned: bool,
    /// The method by which the host waits for an array, of a library that can refuse every stream.
    pub host_wait: Option<&'static str>,
    /// NULL from `current_work_stream` of its C exchange table is the default stream, on devices with
    /// streams. Else the table says nothing about order, so it is not used there.
    pub null_is_default: bool,
    /// If its CUDA array interface has no stream, or 0, which is forbidden because it may mean either default
    /// stream, work may be under way on a default stream. What comes after the legacy one comes after both.
    /// Else there is nothing to wait for, and 0 is refused.
    pub unnamed_is_default: bool,
    /// Its arrays that speak DLPack besides do so as another library's, which knows nothing of the device.
    pub interface_first: bool,
    /// Its struct keeps the memory alive, as DLPack says. Else the object does.
    pub keeps_memory: bool,
    /// An export of an array on a device must not run beside another one, or beside the deleter of an earlier
    /// one.
    pub exports_alone: bool,
    /// Its deleter is quick and needs no lock but the Python one: it may run wherever Python drops our
    /// tensor.
    pub inline_deleter: bool,
    /// Its arrays have methods `is_deleted` and `platform`. Where the latter says `cpu`, their buffer says
    /// what `__dlpack__` says, and costs less.
    pub has_host_buffers: bool,
    /// Arrays that its C exchange table exports although its `__dlpack__` refuses, since the struct would not
    /// say it: attributes and methods that are true of such an array.
    pub unsaid: &'static [Unsaid],
    /// The source of these facts.
    pub source: &'static str,
}

/// A property of an array that DLPack has no word for.
pub struct Unsaid {
    name: &'static str,
    /// A method without arguments, else an attribute.
    is_method: bool,
    /// The name as Python wants it, made at first use.
    text: PyOnce<Py<PyString>>,
}

impl Unsaid {
    const fn attribute(name: &'static str) -> Self {
        Self { name, is_method: false, text: PyOnce::new() }
    }

    const fn method(name: &'static str) -> Self {
        Self { name, is_method: true, text: PyOnce::new() }
    }

    fn is_true_of(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = object.py();
        let text = self.text.get_or_init(py, || PyString::intern(py, self.name).unbind()).bind(py);
        let value = if self.is_method {
            fastcall::call_method(object, text, &PyTuple::empty(py), &[])?
        } else {
            match object.getattr_opt(text)? {
                Some(value) => value,
                None => return Ok(false),
            }
        };
        value.is_truthy()
    }
}

/// A library of which nothing is known, as the specification has it and in doubt cautious.
pub const UNKNOWN: Peer = Peer {
    root: "",
    legacy_writable: false,
    immutable: false,
    honours_read_only: true,
    stream: Stream::Honoured,
    omitted: Omitted::DefaultStream,
    own_streams: false,
    streams: Streams::Unknown,
    current_stream: None,
    streams_for_pinned: true,
    host_wait: None,
    null_is_default: true,
    unnamed_is_default: false,
    interface_first: false,
    keeps_memory: true,
    exports_alone: false,
    inline_deleter: false,
    has_host_buffers: false,
    unsaid: &[],
    source: "data-apis/array-api: array_object.py, __dlpack__",
};

const JAX: Peer = Peer {
    root: "jax",
    immutable: true,
    omitted: Omitted::HostWait,
    // With XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT it names none, and refuses each as unimplemented.
    own_streams: true,
    host_wait: Some("block_until_ready"),
    // JAX's streams are those of its client.
    streams: Streams::Last,
    exports_alone: true,
    // The deleter leaves the array to the next call of JAX.
    inline_deleter: true,
    has_host_buffers: true,
    source: "jax-ml/jax: jaxlib/dlpack.cc, jaxlib/py_array.cc, jax/_src/dlpack.py; jax-ml/jax#40789; openxla/xla: tfrt_gpu_buffer.cc, pjrt_c_api_wrapper_impl.cc",
    ..UNKNOWN
};

static UNSAID_BY_TORCH: [Unsaid; 3] =
    [Unsaid::attribute("requires_grad"), Unsaid::method("is_conj"), Unsaid::method("is_neg")];

/// Libraries that are not of one kind of device. Those are in the folder of the kind.
static PEERS: &[Peer] = &[
    Peer {
        root: "numpy",
        // NumPy refuses to make a legacy struct of a read-only array.
        legacy_writable: true,
        stream: Stream::HostOnly,
        omitted: Omitted::HostWait,
        inline_deleter: true,
        source: "numpy/numpy: numpy/_core/src/multiarray/dlpack.c",
        ..UNKNOWN
    },
    JAX,
    Peer { root: "jaxlib", ..JAX },
    Peer {
        root: "torch",
        legacy_writable: true,
        honours_read_only: false,
        // `None` itself is the default stream; an omitted argument is -1, on purpose
        // (pytorch/pytorch#163242).
        omitted: Omitted::NoSync,
        // On the device that its tensors call "cpu", the library asserts that there is no stream.
        streams_for_pinned: false,
        // c10/cuda/CUDAStream.cpp: the streams of the pool are never destroyed.
        streams: Streams::PyTorchPool,
        inline_deleter: true,
        unsaid: &UNSAID_BY_TORCH,
        source: "pytorch/pytorch: torch/_tensor.py, torch/utils/dlpack.py, torch/csrc/Module.cpp; #163242, #188554",
        ..UNKNOWN
    },
    Peer {
        root: "tensorflow",
        // `EagerTensor`s are immutable; it knows legacy structs only, and takes no stream.
        immutable: true,
        stream: Stream::Ignored,
        omitted: Omitted::NoSync,
        // Its compute stream does not wait for the default stream.
        own_streams: true,
        source: "tensorflow/tensorflow: tensorflow/c/eager/dlpack.cc; tensorflow/tensorflow#61420",
        ..UNKNOWN
    },
    Peer {
        root: "tvm_ffi",
        legacy_writable: true,
        honours_read_only: false,
        stream: Stream::Ignored,
        omitted: Omitted::NoSync,
        source: "apache/tvm-ffi: python/tvm_ffi/cython/tensor.pxi",
        ..UNKNOWN
    },
    Peer {
        root: "pyarrow",
        // Its buffers are to be treated as immutable.
        immutable: true,
        stream: Stream::HostOnly,
        omitted: Omitted::HostWait,
        source: "apache/arrow: cpp/src/arrow/c/dlpack.cc",
        ..UNKNOWN
    },
    Peer {
        root: "mxnet",
        // `to_dlpack_for_read` and `to_dlpack_for_write` give the same struct, after waiting on the host.
        legacy_writable: true,
        honours_read_only: false,
        stream: Stream::Ignored,
        omitted: Omitted::HostWait,
        source: "apache/mxnet#12047, #20546; apache/mxnet#12823 for what the wait covers",
        ..UNKNOWN
    },
    Peer {
        root: "paddle",
        legacy_writable: true,
        honours_read_only: false,
        source: "PaddlePaddle/Paddle#76840; paddle 3.3.1: bindings/python/tests/peers.py",
        ..UNKNOWN
    },
    Peer {
        root: "warp",
        // An array has no mark for memory that may not be written: kernels write any, and so does `fill_`.
        legacy_writable: true,
        honours_read_only: false,
        source: "NVIDIA/warp: warp/_src/types.py (array.__dlpack__), warp/_src/dlpack.py; warp 1.19",
        ..UNKNOWN
    },
    Peer {
        root: "onnxruntime",
        // An `OrtValue` is a place that sessions write their outputs to, and has `update_inplace`.
        legacy_writable: true,
        honours_read_only: false,
        // The memory may be that of a NumPy array, to which only the Python object refers
        // (`ortvalue_from_numpy`).
        keeps_memory: false,
        // "Currently unused; included for protocol compliance."
        stream: Stream::Ignored,
        omitted: Omitted::NoSync,
        source: "microsoft/onnxruntime: onnxruntime/python/onnxruntime_inference_collection.py (OrtValue); onnxruntime 1.32",
        ..UNKNOWN
    },
    Peer {
        root: "mlx",
        // Its legacy structs are read-only. It computes when a value is asked for: what is written into an
        // array in between changes the results of earlier expressions. An export evaluates the array; an
        // import is a copy.
        stream: Stream::Ignored,
        omitted: Omitted::HostWait,
        source: "ml-explore/mlx: python/src/convert.cpp, docs/src/usage/lazy_evaluation.rst; mlx 0.32",
        ..UNKNOWN
    },
    Peer {
        root: "openvino",
        // No DLPack: `ov.Tensor(array, shared_memory=True)` and `tensor.data` are NumPy's. An array that may
        // not be written is refused.
        stream: Stream::HostOnly,
        omitted: Omitted::HostWait,
        source: "openvinotoolkit/openvino: src/bindings/python/src/pyopenvino/core/common.cpp; openvino 2026.4",
        ..UNKNOWN
    },
    Peer {
        root: "nanobind",
        // `nb::ndarray<nb::array_api, ...>`. One without a framework is a raw capsule, which does not say
        // whose it is.
        stream: Stream::Ignored,
        omitted: Omitted::NoSync,
        source: "wjakob/nanobind: src/nb_ndarray.cpp, docs/ndarray.rst; nanobind 3.1",
        ..UNKNOWN
    },
];

/// The row for a module, by the first part of its name.
pub fn of_module(module: &str) -> Option<&'static Peer> {
    let root = module.split('.').next().unwrap_or(module);
    every().find(|peer| peer.root == root)
}

/// Every library that we know something of.
fn every() -> impl Iterator<Item = &'static Peer> {
    PEERS.iter().chain(kinds::peers())
}

/// Facts about a type whose instances we are given.
#[derive(Clone, Copy)]
pub struct TypeFacts {
    /// The row of its library, or of one that it inherits from.
    peer: Option<&'static Peer>,
    /// Its C exchange table, if it has one that we understand.
    pub table: Option<PeerTable>,
    /// True if its objects have `__dlpack_fence__`.
    pub fences: bool,
    /// True if its objects have `__dlpack__`.
    pub speaks: bool,
    /// True if it is NumPy's array, whose fields are read.
    pub is_numpy_array: bool,
}

impl TypeFacts {
    pub fn peer(&self) -> &'static Peer {
        self.peer.unwrap_or(&UNKNOWN)
    }
}

/// Types that are remembered: the first that come to a place, or to one of the next. A program exchanges
/// arrays of few types.
const TYPES: usize = 256;
/// Places that a type may have.
const PLACES: usize = 4;

struct KnownClass {
    /// Kept, so that its address stays unique.
    class: Py<PyType>,
    known: TypeFacts,
}

/// Each is set once and stays, so no lock is needed to read one.
static KNOWN: [OnceLock<KnownClass>; TYPES] = [const { OnceLock::new() }; TYPES];

/// Facts about the type of `object`.
#[inline]
pub fn of(object: &Bound<'_, PyAny>) -> TypeFacts {
    let class = object.get_type_ptr();
    // Types are some kilobytes apart.
    let place = class as usize >> 6;
    for at in 0..PLACES {
        match KNOWN[(place + at) % TYPES].get() {
            Some(entry) if entry.class.as_ptr() == class.cast() => return entry.known,
            Some(_) => {}
            None => break,
        }
    }
    inspect(object, place)
}

/// Finds out what is known of the type of `object`, and keeps it where there is a place.
#[cold]
fn inspect(object: &Bound<'_, PyAny>, place: usize) -> TypeFacts {
    let (py, class) = (object.py(), object.get_type());
    let fences = class.hasattr(intern!(py, "__dlpack_fence__")).unwrap_or(false);
    let speaks = class.hasattr(intern!(py, "__dlpack__")).unwrap_or(false);
    let known = TypeFacts {
        peer: row_of(&class),
        table: peer_table::of(&class),
        fences,
        speaks,
        is_numpy_array: numpy_array::is_understood(&class),
    };
    let mut entry = KnownClass { class: class.unbind(), known };
    for at in 0..PLACES {
        match KNOWN[(place + at) % TYPES].set(entry) {
            Ok(()) => break,
            Err(taken) => entry = taken,
        }
    }
    known
}

/// The row of a class: its own library's, or that of the nearest class it inherits from.
fn row_of(class: &Bound<'_, PyType>) -> Option<&'static Peer> {
    class.mro().iter().find_map(|class| {
        let module = class.getattr(intern!(class.py(), "__module__")).ok()?;
        module.cast::<PyString>().ok()?.to_str().ok().and_then(of_module)
    })
}

/// Refuses an array that a struct would not describe as it is.
/// Raises `BufferError` that names the property.
pub fn refuse_unsaid(object: &Bound<'_, PyAny>, peer: &Peer) -> PyResult<()> {
    for property in peer.unsaid {
        if property.is_true_of(object)? {
            let name = property.name;
            return Err(PyBufferError::new_err(format!(
                "DLPack cannot say of an array of {} that `{name}` is true; resolve or detach it first",
                peer.root
            )));
        }
    }
    Ok(())
}

/// The table for people to read: a tuple of `estafette.Peer`.
#[pyfunction]
pub fn peers(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    let class = import_module(py, "estafette._reports")?.getattr("Peer")?;
    let rows = every().map(|peer| {
        class.call1((
            peer.root,
            peer.legacy_writable,
            peer.immutable,
            peer.honours_read_only,
            match peer.stream {
                Stream::Honoured => "honoured",
                Stream::Ignored => "ignored",
                Stream::HostOnly => "host only",
            },
            match peer.omitted {
                Omitted::DefaultStream => "default stream",
                Omitted::HostWait => "host wait",
                Omitted::NoSync => "no synchronization",
            },
            if peer.null_is_default { "default stream" } else { "unknown" },
            peer.source,
        ))
    });
    PyTuple::new(py, rows.collect::<PyResult<Vec<_>>>()?)
}
