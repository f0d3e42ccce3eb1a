//! Taking tensors from other libraries, by the rules of the array API and DLPack's Python specification.

use estafette::bindings::{self, ImportStream, OwnedMemory};
use estafette::devices::{CurrentGuard, DLDevice, DeviceType, FenceSet};
use estafette::exchange::{Abi, ManagedTensor};
use estafette_sync::sync::atomic::AtomicU64;
use pyo3::exceptions::{PyAttributeError, PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::error::{OrRaise, exchange_error};
use crate::exchange::array_interface;
use crate::exchange::buffer_import;
use crate::exchange::capsule;
use crate::exchange::export;
use crate::exchange::numpy_array;
use crate::exchange::one_export::{self, ExportLock};
use crate::exchange::peer_table::PeerTable;
use crate::exchange::peers::{self, Omitted, Peer, Stream};
use crate::exchange::unordered::{self, Reason};
use crate::interpreter::fastcall;
use crate::interpreter::guard;
use crate::interpreter::once::{PyOnce, intern, loaded};
use crate::kinds;

estafette_sync::per_process! {
    /// Tensors from outside that this process's engines have adopted.
    pub static IMPORTED: AtomicU64 = AtomicU64::new(0);
}

/// The newest DLPack version that we understand.
const MAX_VERSION: (u32, u32) = (1, 3);

/// The error of an XLA client for a stream that it cannot order an array before.
const UNIMPLEMENTED: &str = "UNIMPLEMENTED";

/// The caller's wishes for an import.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// The device that the data shall be on; `None` means where it is.
    pub device: Option<DLDevice>,
    /// True for a copy, false for none, `None` for one where it is needed.
    pub copy: Option<bool>,
    /// True if operations may write it, for which the caller vouches; false if they may not. `None` means
    /// what the producer says.
    pub writable: Option<bool>,
}

impl Wanted {
    /// True if a copy that is made here gives what is wanted, where the producer did not.
    pub fn can_be_moved_from(&self, device: DLDevice) -> bool {
        let reachable = |to: DLDevice| to == DLDevice::CPU || kinds::has_queues(to);
        self.copy != Some(false) && self.device.is_some_and(reachable) && export::can_go_to_host(device)
    }

    /// True if the memory is taken as and where it is.
    fn is_plain(&self) -> bool {
        self.device.is_none() && self.copy.is_none()
    }
}

/// A tensor that was taken from another library.
pub struct Taken {
    pub managed: ManagedTensor,
    /// The memory must not be written although its struct does not say so.
    pub immutable: bool,
    /// The time at which it may be read: at once on the host; on a device, when the work that its producer
    /// had enqueued is done.
    pub ready: FenceSet,
}

/// Takes an array of NumPy without a call of Python; `None` for all else, and where [`take`] finds out more.
#[inline]
pub fn take_numpy(object: &Bound<'_, PyAny>, wanted: &Wanted) -> Option<OwnedMemory> {
    if !wanted.is_plain() || !peers::of(object).is_numpy_array {
        return None;
    }
    // SAFETY: of that class.
    unsafe { numpy_array::take(object, wanted.writable) }
}

/// Adopts the tensor behind a DLPack object, a raw capsule, or an object with a CUDA array interface. Raises
/// `TypeError` for what does not speak DLPack; `BufferError` when the producer refuses, or gives another
/// device or a copy that was not wanted; `ValueError` for a capsule that was consumed or is none of DLPack's.
pub fn take(object: &Bound<'_, PyAny>, wanted: &Wanted) -> PyResult<Taken> {
    let py = object.py();
    if let Ok(raw) = object.cast::<PyCapsule>() {
        // The maker is unknown, so NumPy's rule holds: a legacy struct gives no consent to write.
        let managed = capsule::consume(raw)?;
        check(py, &managed, wanted)?;
        let immutable = is_immutable(py, &managed, None, wanted)?;
        let device = bindings::exchange::device(&managed);
        let mut ready = FenceSet::default();
        if device != DLDevice::CPU {
            unordered::note(py, true, Reason::RawCapsule, device.to_string());
            if let Some(stream) = kinds::of(device).unnamed_stream() {
                // In want of better, as if it had been made for that stream.
                ready = kinds::fence_of(py, device, managed.data(), stream)?;
            }
        }
        return Ok(Taken { managed, immutable, ready });
    }
    let known = peers::of(object);
    let peer = known.peer();
    if !known.is_numpy_array && matches!(peer.root, "" | "numpy") {
        refuse_masked(object)?;
    }
    let read =
        if wanted.is_plain() && peer.has_host_buffers { buffer_import::of_host(object)? } else { None };
    let (mut managed, ready) = match (read, known.table) {
        (Some(managed), _) => (managed, FenceSet::default()),
        (None, Some(table)) if wanted.is_plain() => through_table(object, table, peer)?,
        _ => match kinds::import_array(object, peer)? {
            Some(taken) => taken,
            None if !known.speaks && buffer_import::is_all_there_is(object)? => {
                (buffer_import::take(object)?, FenceSet::default())
            }
            None => through_protocol(object, peer, wanted)?,
        },
    };
    check(py, &managed, wanted)?;
    let immutable = is_immutable(py, &managed, Some(peer), wanted)?;
    if !peer.keeps_memory {
        managed = array_interface::kept_with(object, managed)?;
    }
    let device = bindings::exchange::device(&managed);
    if device != DLDevice::CPU {
        note_device(py, device, peer, !ready.is_empty());
    } else if peer.inline_deleter {
        managed = bindings::exchange::with_inline_deleter(managed);
    }
    Ok(Taken { managed, immutable, ready })
}

/// Raises `TypeError` for a masked array of NumPy: DLPack has no masks, and NumPy would hand out the data
/// without it.
fn refuse_masked(value: &Bound<'_, PyAny>) -> PyResult<()> {
    static MASKED: PyOnce<Py<PyAny>> = PyOnce::new();
    let py = value.py();
    let masked = match MASKED.get(py) {
        Some(masked) => masked.bind(py).clone(),
        None => {
            // There are no masked arrays if it was never imported.
            let Some(module) = loaded(py, intern!(py, "numpy.ma"))? else { return Ok(()) };
            // Another thread may be in the middle of importing it.
            let Ok(masked) = module.getattr(intern!(py, "MaskedArray")) else { return Ok(()) };
            MASKED.get_or_init(py, || masked.clone().unbind());
            masked
        }
    };
    if value.is_instance(&masked)? {
        return Err(PyTypeError::new_err(
            "this is a masked array, and a tensor has no mask: use `.filled(...)`, or `.data` and `.mask` by themselves",
        ));
    }
    Ok(())
}

/// True if operations may not write the memory although its struct does not say so. A flag in the struct is
/// looked at by the engine. Raises `BufferError` where the caller vouches for memory that its owner declares
/// read-only, or whose library never changes its arrays.
fn is_immutable(
    py: Python<'_>,
    managed: &ManagedTensor,
    peer: Option<&Peer>,
    wanted: &Wanted,
) -> PyResult<bool> {
    let is_legacy = bindings::exchange::abi(managed) == Abi::Legacy;
    if wanted.writable != Some(true) || wanted.copy == Some(true) {
        let consents = peer.is_some_and(|peer| peer.legacy_writable);
        return Ok(wanted.writable == Some(false) || is_legacy && !consents);
    }
    let refuse = |why: String| {
        Err(exchange_error(py, format!("writable=True: {why}; copy=True gives memory that may be written")))
    };
    let is_read_only = managed.flags().read_only;
    match peer {
        Some(peer) if peer.immutable && (is_legacy || is_read_only) => {
            refuse(format!("arrays of {} never change", peer.root))
        }
        _ if is_read_only => refuse("the owner of this memory declares it read-only".into()),
        _ => Ok(false),
    }
}

/// Takes a tensor through the producer's C exchange table. That is no-sync by definition: on the host there
/// is nothing to wait for, and of other devices the table would have to say which stream the producer works
/// on.
fn through_table(
    object: &Bound<'_, PyAny>,
    table: PeerTable,
    peer: &Peer,
) -> PyResult<(ManagedTensor, FenceSet)> {
    let py = object.py();
    if let Err(refusal) = peers::refuse_unsaid(object, peer) {
        // The object's `__dlpack__` raises the library's own error, if it checks.
        return through_protocol(object, peer, &Wanted::default()).and(Err(refusal));
    }
    let managed = match table.take(object) {
        Ok(managed) => managed,
        // An object that a table refuses may have `__dlpack__`, which takes it, or refuses it in better
        // words.
        Err(error)
            if error.is_instance_of::<PyException>(py) && object.hasattr(intern!(py, "__dlpack__"))? =>
        {
            return through_protocol(object, peer, &Wanted::default());
        }
        Err(error) => return Err(error),
    };
    let device = bindings::exchange::device(&managed);
    if device == DLDevice::CPU || !reachable(py, device)? {
        return Ok((managed, FenceSet::default()));
    }
    let stream = table.current_stream(py, device)?;
    if stream.is_null() && !peer.null_is_default {
        drop(managed);
        return through_protocol(object, peer, &Wanted::default());
    }
    let ready =
        kinds::of(device).acquire(object, (device, managed.data()), Some(stream.expose_provenance()))?;
    Ok((managed, ready))
}

/// Takes a tensor through `__dlpack__`.
fn through_protocol(
    object: &Bound<'_, PyAny>,
    peer: &Peer,
    wanted: &Wanted,
) -> PyResult<(ManagedTensor, FenceSet)> {
    let py = object.py();
    // A library without devices makes host memory: no need to ask.
    let device = if peer.stream == Stream::HostOnly { Some(DLDevice::CPU) } else { device_of(object)? };
    let goal = wanted.device.or(device);
    if let Some(goal) = goal
        && !reachable(py, goal)?
    {
        // Said before anything is taken: of a device that is not here, nothing could be released in order.
        return Err(not_available(py, goal));
    }
    if let (Some(from), Some(to)) = (device, wanted.device)
        && from != to
        && (kinds::of(to).has_numbers_of_ours() || peer.stream == Stream::HostOnly)
        && to != DLDevice::CPU
    {
        // The numbers of the device table are ours to understand; a producer knows its own at best, and one
        // without devices none.
        if !wanted.can_be_moved_from(from) {
            let message = format!("memory on {from} cannot be imported on {to} without a copy");
            return Err(exchange_error(py, message));
        }
        return through_protocol(object, peer, &Wanted::default());
    }
    if let Some(device) = device
        && wanted.is_plain()
        && let Some(stream) = current_stream(py, peer, device)?
    {
        return behind_current_stream(object, peer, device, stream);
    }
    // Always named: what no stream means differs from producer to producer. Of a move to the host it must be
    // none.
    let import_stream = goal.map(|goal| kinds::import_stream(py, goal)).transpose()?.flatten();
    let is_named = peer.streams_for_pinned || goal.is_none_or(|goal| !kinds::of(goal).passes_for_host(goal));
    let stream = import_stream.as_ref().filter(|_| is_named).map(ImportStream::stream);
    let (answer, heeded) = {
        // A producer may want its device to be the current one of the thread.
        let place = match (stream, device) {
            (Some(stream), Some(device)) => kinds::ordered_on(py, device, Some(stream))?,
            _ => None,
        };
        let current = place.as_deref().map(CurrentGuard::device).transpose();
        let _current = current.map_err(|error| exchange_error(py, error.to_string()))?;
        let alone = peer.exports_alone && device.is_none_or(|device| device != DLDevice::CPU);
        let _lock = if alone { ExportLock::take(py) } else { None };
        call_dlpack(object, device, wanted, stream, peer)?
    };
    let mut managed = consume(&answer)?;
    let device = bindings::exchange::device(&managed);
    let mut ready = kinds::of(device).acquire(object, (device, managed.data()), None)?;
    if peer.exports_alone && device != DLDevice::CPU {
        managed = one_export::released_alone(py, managed)?;
    }
    if let Some(import_stream) = import_stream {
        // At once: what it stands for is this tensor, and no longer its producer's stream.
        ready.insert(guard::detach(py, || import_stream.fence()).or_raise(py)?);
        if !heeded || stream.is_none() || peer.stream == Stream::Ignored {
            if let Some(stream) = kinds::of(device).unnamed_stream() {
                ready.extend(kinds::fence_of(py, device, managed.data(), stream)?);
            }
            unordered::note(py, true, Reason::IgnoredStream, name_of(peer));
        }
    }
    Ok((managed, ready))
}

/// The stream that a producer works on here, if it says so; `None` for devices without streams.
fn current_stream(py: Python<'_>, peer: &Peer, device: DLDevice) -> PyResult<Option<usize>> {
    let (Some((module, function)), Some(default)) = (peer.current_stream, kinds::default_stream(device))
    else {
        return Ok(None);
    };
    let Some(module) = loaded(py, module)? else { return Ok(None) };
    let stream = module.call_method1(function, (device.device_id,))?.getattr(intern!(py, "ptr"))?;
    Ok(Some(stream.extract().map(|stream| if stream == 0 { default } else { stream })?))
}

/// Takes a tensor for the stream that its producer works on, and orders it behind what is enqueued there by
/// now.
fn behind_current_stream(
    object: &Bound<'_, PyAny>,
    peer: &Peer,
    device: DLDevice,
    stream: usize,
) -> PyResult<(ManagedTensor, FenceSet)> {
    let (answer, _) = call_dlpack(object, Some(device), &Wanted::default(), Some(stream), peer)?;
    let managed = consume(&answer)?;
    let ready = kinds::of(device).acquire(object, (device, managed.data()), Some(stream))?;
    Ok((managed, ready))
}

/// Adopts the tensor in what `__dlpack__` returned.
fn consume(answer: &Bound<'_, PyAny>) -> PyResult<ManagedTensor> {
    let raw = answer.cast::<PyCapsule>().map_err(|_| {
        let kind = answer.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        PyTypeError::new_err(format!("`__dlpack__` returned {kind}, not a capsule"))
    })?;
    capsule::consume(raw)
}

/// Devices whose memory host code may read, so that they need no device of the engine, and those that this
/// version does not know: their memory is opaque: passed on from one library to another, and not accessed
/// here. Raises `BufferError` that says why a device of the device table is not there.
pub fn reachable(py: Python<'_>, device: DLDevice) -> PyResult<bool> {
    let known = device.device_type.is_host_readable() || device.device_type.name().is_none();
    Ok(known || kinds::device_of(py, device)?.is_some())
}

/// The error for a device that is not there.
pub fn not_available(py: Python<'_>, device: DLDevice) -> PyErr {
    exchange_error(py, format!("device {device} is not available in this engine"))
}

/// Says of memory that a device may be writing what could not be ordered about it.
fn note_device(py: Python<'_>, device: DLDevice, peer: &Peer, ordered: bool) {
    if ordered {
        // The producer's queue or stream orders the work.
        return;
    }
    if device.device_type.name().is_none() {
        unordered::note(py, true, Reason::UnknownDevice, device.to_string());
    } else if peer.omitted != Omitted::HostWait {
        unordered::note(py, true, Reason::DeviceMemory, format!("{device} from {}", name_of(peer)));
    }
}

fn name_of(peer: &Peer) -> &'static str {
    if peer.root.is_empty() { "a library without a row" } else { peer.root }
}

/// The device of the data, as the producer says. Optional in practice: very old producers lack the method.
fn device_of(object: &Bound<'_, PyAny>) -> PyResult<Option<DLDevice>> {
    let Some(method) = object.getattr_opt(intern!(object.py(), "__dlpack_device__"))? else {
        return Ok(None);
    };
    // PaddlePaddle has no number for the host: `(1, None)`.
    let (kind, id): (i32, Option<i32>) = method
        .call0()?
        .extract()
        .map_err(|_| PyTypeError::new_err("`__dlpack_device__` did not return a pair of integers"))?;
    Ok(Some(DLDevice::new(DeviceType(kind), id.unwrap_or(0))))
}

/// Calls `__dlpack__`, leaving out what an older producer does not know; says whether the stream was among
/// what it took. A `TypeError` may also be about the data: a producer whose signature has the arguments is
/// not called again.
fn call_dlpack<'py>(
    object: &Bound<'py, PyAny>,
    device: Option<DLDevice>,
    wanted: &Wanted,
    stream: Option<usize>,
    peer: &Peer,
) -> PyResult<(Bound<'py, PyAny>, bool)> {
    let py = object.py();
    let name = intern!(py, "__dlpack__");
    let type_error = |error: &PyErr| error.is_instance_of::<PyTypeError>(py);
    let with_stream = || {
        let arguments = PyDict::new(py);
        if let Some(stream) = stream {
            arguments.set_item(intern!(py, "stream"), stream)?;
        }
        PyResult::Ok(arguments)
    };
    let least = || {
        if stream.is_none() {
            return versioned(object);
        }
        let arguments = with_stream()?;
        arguments.set_item(intern!(py, "max_version"), MAX_VERSION)?;
        object.call_method(name, (), Some(&arguments))
    };
    let moved = wanted.device.filter(|wanted| device != Some(*wanted));
    let mut answer = if moved.is_none() && wanted.copy.is_none() {
        least()
    } else {
        let arguments = with_stream()?;
        arguments.set_item(intern!(py, "max_version"), MAX_VERSION)?;
        if let Some(device) = moved {
            arguments.set_item(intern!(py, "dl_device"), (device.device_type.0, device.device_id))?;
        }
        if let Some(copy) = wanted.copy {
            arguments.set_item(intern!(py, "copy"), copy)?;
        }
        let answer = object.call_method(name, (), Some(&arguments));
        // The result is checked afterwards; a copy can be made here.
        if answer.as_ref().is_err_and(type_error) && !knows(object, &["max_version", "dl_device", "copy"]) {
            least()
        } else {
            answer
        }
    };
    let again = answer.as_ref().is_err_and(type_error) && !knows(object, &["max_version"]);
    if stream.is_some() && again {
        answer = object.call_method(name, (), Some(&with_stream()?));
    }
    if let (Some(_), Some(wait), Err(error)) = (stream, peer.host_wait, &answer)
        && error.value(py).str()?.to_string_lossy().contains(UNIMPLEMENTED)
    {
        // No stream orders it, so that nothing is left to be ordered.
        object.call_method0(wait)?;
        return Ok((versioned(object)?, true));
    }
    let mut heeded = true;
    if again && answer.as_ref().is_err_and(type_error) {
        heeded = false;
        answer = object.call_method0(name);
    }
    match answer {
        Err(error) if error.is_instance_of::<PyAttributeError>(py) && !object.hasattr(name)? => {
            let kind = object.get_type().fully_qualified_name()?;
            Err(PyTypeError::new_err(format!(
                "{kind} has no `__dlpack__` and no buffer: it cannot be exchanged"
            )))
        }
        answer => Ok((answer?, heeded)),
    }
}

/// True if the signature of `__dlpack__` has all of these arguments by name. Functions written in C often
/// have none to look at.
fn knows(object: &Bound<'_, PyAny>, arguments: &[&str]) -> bool {
    let inspect = || -> PyResult<bool> {
        let method = object.getattr(intern!(object.py(), "__dlpack__"))?;
        let signature = object.py().import("inspect")?.call_method1("signature", (method,))?;
        let parameters = signature.getattr("parameters")?;
        arguments.iter().try_fold(true, |known, name| Ok(known && parameters.contains(*name)?))
    };
    inspect().unwrap_or(false)
}

/// `object.__dlpack__(max_version=...)`, which is all that most exchanges need.
fn versioned<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static NAMES: PyOnce<Py<PyTuple>> = PyOnce::new();
    static VERSION: PyOnce<Py<PyAny>> = PyOnce::new();
    let py = object.py();
    let names =
        NAMES.get_or_try_init(py, || PyTuple::new(py, [intern!(py, "max_version")]).map(Bound::unbind))?;
    let version = VERSION
        .get_or_try_init(py, || MAX_VERSION.into_pyobject(py).map(|version| version.into_any().unbind()))?;
    fastcall::call_method(object, intern!(py, "__dlpack__"), names.bind(py), &[version.bind(py)])
}

/// Fails if the producer did not do what was wanted. What was taken is released then.
fn check(py: Python<'_>, managed: &ManagedTensor, wanted: &Wanted) -> PyResult<()> {
    if let Some(device) = wanted.device
        && bindings::exchange::device(managed) != device
        && !wanted.can_be_moved_from(bindings::exchange::device(managed))
    {
        let is = bindings::exchange::device(managed);
        return Err(exchange_error(py, format!("the producer gave data on {is}, not on {device} as asked")));
    }
    if !reachable(py, bindings::exchange::device(managed))? {
        return Err(not_available(py, bindings::exchange::device(managed)));
    }
    kinds::of(bindings::exchange::device(managed)).check_place(py, managed)?;
    if wanted.copy == Some(false) && managed.flags().is_copied {
        return Err(exchange_error(py, "the producer made a copy although copying was refused"));
    }
    Ok(())
}
