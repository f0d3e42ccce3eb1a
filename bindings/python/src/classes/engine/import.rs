//! Tensors in memory of other libraries: `from_dlpack`, `from_arrow`, and imports through Estafette's
//! exchange table.

use std::time::Duration;

use estafette::bindings::reaper;
use estafette::devices::FenceSet;
use estafette::exchange::{Abi, ManagedTensor, flush_deleters};
use estafette::{ImportOptions, Tensor, bindings};
use estafette_sync::sync::atomic::Ordering;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::PyEngine;
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, exchange_error};
use crate::exchange::arrow;
use crate::exchange::copy::copied;
use crate::exchange::export::until_defined;
use crate::exchange::fence;
use crate::exchange::import::{self, IMPORTED, Taken, Wanted};
use crate::exchange::origin;
use crate::exchange::peers;
use crate::interpreter::{guard, lease_sites};
use crate::kinds;
use crate::submission::scope;

/// A loop that imports and drops tensors keeps the Python lock nearly all the time, and deleters need that
/// lock. An import yields to the deleters when more releases than this number are due, so that memory cannot
/// pile up.
const BACKLOG_MAX: u64 = 128;

/// Number of imports between inspections of the backlog.
const BACKLOG_LOOK: u64 = 128;

/// The time that an import yields to deleters. Releases that wait for unfinished work do not count on this
/// time.
const BACKLOG_WAIT: Duration = Duration::from_millis(20);

#[pymethods]
impl PyEngine {
    /// Returns a promise of the memory behind `x`, without a copy. `x` is an object that speaks DLPack, a raw
    /// capsule, or an object with a buffer of numbers, such as `bytearray`, `array.array` and `memoryview`.
    ///
    /// The engine orders memory that overlaps known tensors with these tensors. An Estafette tensor is
    /// returned as it is. The call does not wait for an object with ``__dlpack_fence__``: the tensor is
    /// ready when the fence of that object is done. With ``writable=True`` or `freed_on`, and with
    /// ``writable=False`` where `device` or ``copy=True`` asks for a copy, the call takes such an object by
    /// ``__dlpack__``, which may wait.
    ///
    /// device: device of the result; default the device of `x`. With `device`, and without ``copy=True``, the
    ///     call waits for a promise whose device is not known yet.
    /// copy: True always copies, False never copies, None copies only if necessary.
    /// writable: whether operations may write the memory. Default: the producer's flag. A DLPack struct
    ///     before version 1.0 has no such flag, so the default for it is False, unless `est.peers()` lists
    ///     the library as one that allows writes. True: the caller vouches that writes are allowed; raises
    ///     `BufferError` if the producer declares the memory read-only or never changes its arrays. False:
    ///     operations may not write, also not a copy that `x` makes. A copy that the engine makes is
    ///     writable.
    /// freed_on: the CUDA stream in whose order the allocator of `x` reuses its memory: a handle, or an
    ///     object with ``__cuda_stream__``, which the tensor keeps. For PyTorch and CuPy, this stream is the
    ///     one that was current when the memory was *allocated*. The caller vouches for the stream. The
    ///     engine then releases the memory as soon as that stream waits for the last use, instead of after
    ///     the last use.
    ///
    ///     >>> x = np.zeros(4, "float32")
    ///     >>> t = eng.from_dlpack(x)
    ///     >>> t.shape, t.dtype, t.data_ptr == x.ctypes.data
    ///     ((4,), 'float32', True)
    #[pyo3(signature = (x, /, *, device = None, copy = None, writable = None, freed_on = None))]
    #[allow(clippy::wrong_self_convention, reason = "the array API's name")]
    fn from_dlpack<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        device: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
        writable: Option<bool>,
        freed_on: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTensor>> {
        let py = x.py();
        let engine = self.engine(py)?;
        let wanted = Wanted { device: device.map(kinds::parse_device).transpose()?, copy, writable };
        let origin = || origin::of(x);
        if freed_on.is_none()
            && let Some(memory) = import::take_numpy(x, &wanted)
        {
            let tensor =
                scope::within(py, || bindings::engine::import_host(engine, memory, origin))?.or_raise(py)?;
            taken(x, &tensor);
            return self.object(py, tensor);
        }
        if let Ok(tensor) = x.cast::<PyTensor>() {
            if freed_on.is_some() {
                return Err(PyValueError::new_err(
                    "freed_on: a tensor of Estafette's own knows where its memory goes",
                ));
            }
            return self.own(tensor, &wanted);
        }
        // A copy that `__dlpack__` makes may be imported as read-only. One that is made here may be written.
        let may_be_copied = copy.unwrap_or(device.is_some());
        if freed_on.is_none()
            && writable != Some(true)
            && !(writable == Some(false) && may_be_copied)
            && let Some(tensor) = fence::import(x, engine, writable == Some(false))?
        {
            imported(py);
            let copies = must_copy(py, &tensor, &wanted)?;
            return self.object(py, self.copied_if(py, copies, tensor, &wanted)?);
        }
        // A library that is asked for a copy mostly makes it here and now.
        let copying = if copy == Some(true) { bindings::copy_begins(peers::of(x).peer().root) } else { None };
        let Taken { managed, immutable, ready } = import::take(x, &wanted)?;
        let made_a_copy = managed.flags().is_copied;
        let release_stream = freed_on
            .map(|stream| kinds::release_stream(bindings::exchange::device(&managed), stream))
            .transpose()?;
        // SAFETY: the producer vouches for the memory: that is what DLPack's protocol means. On the host its
        // content is ready when `__dlpack__` has returned. For the release stream, the caller vouches.
        let take = || unsafe {
            let options =
                ImportOptions { ready, read_only: immutable, origin: Some(&origin), release_stream };
            engine.import_with(managed, options)
        };
        let tensor = scope::within(py, take)?.or_raise(py)?;
        taken(x, &tensor);
        if let Some(copying) = copying.filter(|_| made_a_copy) {
            copying.made(&tensor);
        }
        let moved = wanted.device.is_some_and(|wanted| tensor.device().is_ok_and(|device| device != wanted));
        let copies = moved || copy == Some(true) && !made_a_copy;
        self.object(py, self.copied_if(py, copies, tensor, &wanted)?)
    }

    /// Returns a promise of the memory behind an Arrow array, without a copy: an object with
    /// ``__arrow_c_device_array__`` or ``__arrow_c_array__`` (an array of pyarrow, nanoarrow, ...), a pair of
    /// their capsules, or an object with ``__arrow_c_stream__`` that has one chunk (a column of a table of
    /// pyarrow, a series of polars or pandas).
    ///
    /// The tensor has one dimension and is read-only, as Arrow's memory never changes. The array must have
    /// integers or floats and no nulls; `InvalidTensorError` names what a tensor cannot have.
    #[pyo3(signature = (x, /))]
    #[allow(clippy::wrong_self_convention, reason = "beside `from_dlpack`")]
    fn from_arrow(&self, x: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let py = x.py();
        let engine = self.engine(py)?;
        let (format, array) = arrow::take(x)?;
        // SAFETY: the producer vouches for the array, and for its event on the device that it names: that is
        // what Arrow's interface means.
        let tensor = unsafe { engine.import_arrow(&format, array) }.or_raise(py)?;
        imported(py);
        Ok(self.wrap(tensor))
    }
}

impl PyEngine {
    /// Imports an Estafette tensor: returns the tensor itself, or a copy.
    fn own<'py>(&self, tensor: &Bound<'py, PyTensor>, wanted: &Wanted) -> PyResult<Bound<'py, PyTensor>> {
        let (py, inner) = (tensor.py(), tensor.get().tensor(tensor.py())?);
        if wanted.writable.is_some() && wanted.copy != Some(true) {
            return Err(PyValueError::new_err(
                "writable: whether a tensor of Estafette's own may be written is settled already",
            ));
        }
        if !must_copy(py, inner, wanted)? {
            return Ok(tensor.clone());
        }
        self.object(py, self.copied_if(py, true, inner.clone(), wanted)?)
    }

    fn copied_if(&self, py: Python<'_>, copies: bool, tensor: Tensor, wanted: &Wanted) -> PyResult<Tensor> {
        if !copies {
            return Ok(tensor);
        }
        copied(py, &self.handle, &tensor, wanted.device)
    }

    /// Adopts a tensor without the caller's word that it may be written: memory from a legacy struct is
    /// read-only.
    pub fn adopt<'py>(&self, py: Python<'py>, managed: ManagedTensor) -> PyResult<Bound<'py, PyTensor>> {
        let immutable = bindings::exchange::abi(&managed) == Abi::Legacy;
        let device = bindings::exchange::device(&managed);
        let mut ready = FenceSet::default();
        if kinds::default_stream(device).is_some()
            && let Some(device) = kinds::device_of(py, device)?
        {
            // The producer has already ordered memory that it passes to Estafette's exchange table before the
            // stream that this table returned.
            ready.insert(device.default_queue().record().map_err(estafette::Error::from).or_raise(py)?);
        }
        // SAFETY: the producer of a DLPack struct vouches for its memory; on the host its content is ready by
        // then.
        let tensor = unsafe {
            self.engine(py)?.import_with(
                managed,
                ImportOptions { ready, read_only: immutable, ..ImportOptions::default() },
            )
        };
        IMPORTED.fetch_add(1, Ordering::Relaxed);
        self.object(py, tensor.or_raise(py)?)
    }
}

/// True if a copy has to be made of a tensor. The device of an undefined tensor is waited for only where the
/// answer depends on it. Raises `BufferError` for a tensor that is not moved to the device; what
/// [`until_defined`] raises.
fn must_copy(py: Python<'_>, tensor: &Tensor, wanted: &Wanted) -> PyResult<bool> {
    let copies = wanted.copy == Some(true);
    let Some(device) = wanted.device else { return Ok(copies) };
    if !copies {
        until_defined(py, tensor)?;
    }
    let is = tensor.device().ok();
    if is == Some(device) {
        return Ok(copies);
    }
    if let Some(is) = is.filter(|is| !wanted.can_be_moved_from(*is)) {
        return Err(exchange_error(py, format!("this tensor is on {is}, and is not moved to {device}")));
    }
    if !import::reachable(py, device)? {
        return Err(import::not_available(py, device));
    }
    Ok(true)
}

/// Notes where a tensor comes from.
fn taken(x: &Bound<'_, PyAny>, tensor: &Tensor) {
    imported(x.py());
    if bindings::is_trace_open() {
        bindings::imported_from(tensor, peers::of(x).peer().root);
    }
    if let Some(lease) = bindings::lease::imported_under(tensor) {
        lease_sites::note_object(&lease, x);
    }
}

/// Counts an import, and yields to deleters when too many releases are due.
pub(super) fn imported(py: Python<'_>) {
    let imported = IMPORTED.fetch_add(1, Ordering::Relaxed);
    if imported % BACKLOG_LOOK == BACKLOG_LOOK - 1 && reaper().stats().pending > BACKLOG_MAX {
        guard::detach(py, || flush_deleters(BACKLOG_WAIT));
    }
}
