//! Tensors in memory of other libraries: `from_dlpack`, `from_arrow`, and what our exchange table is given.

use std::time::Duration;

use estafette::devices::FenceSet;
use estafette::exchange::{ManagedTensor, reaper};
use estafette::{Tensor, trace};
use estafette_sync::sync::atomic::Ordering;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::PyEngine;
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, raise};
use crate::exchange::arrow;
use crate::exchange::copy::copied;
use crate::exchange::export::until_defined;
use crate::exchange::import::{self, IMPORTED, Taken, Wanted, parse_device};
use crate::exchange::origin;
use crate::exchange::peers;
use crate::exchange::promise;
use crate::interpreter::lease_sites;
use crate::kinds::stream;
use crate::submission::body;

/// A loop that imports and drops keeps the Python lock nearly all the time, and deleters need it: when more releases than this
/// are due, an import stands aside for them, so that memory cannot pile up.
const BACKLOG_MAX: u64 = 128;

/// Imports between looks at the backlog.
const BACKLOG_LOOK: u64 = 128;

/// How long an import stands aside; releases that wait for unfinished work do not count on it.
const BACKLOG_WAIT: Duration = Duration::from_millis(20);

#[pymethods]
impl PyEngine {
    /// A promise of the memory behind `x`, without a copy. `x` is anything that speaks DLPack, a raw capsule, or an object with a
    /// buffer of numbers, such as `bytearray`, `array.array` and `memoryview`.
    ///
    /// Memory that overlaps tensors already known is ordered with them. A tensor of Estafette's own comes back as it is. An
    /// object with ``__estafette_promise__`` is not waited for: the tensor is ready when its promise is done.
    ///
    /// device: where the data shall be; default where it is.
    /// copy: True always copies, False never does, None only if it must.
    /// writable: whether operations may write the memory. Default: what the producer says; a DLPack struct before version 1.0 cannot,
    /// so of one from a library that `est.peers()` does not know as one that allows it the answer is no. True vouches for it;
    /// `BufferError` where the producer declares it read-only or never changes its arrays. False forbids it here. A copy may always be
    /// written.
    /// freed_on: the CUDA stream in whose order the allocator of `x` gives its memory out again, a handle or an object with
    /// ``__cuda_stream__``, which is kept: for PyTorch and CuPy the stream that was current when the memory was *allocated*. The
    /// caller vouches for it. The memory then goes back as soon as that stream waits for its last use, instead of when that is
    /// over.
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
        let wanted = Wanted { device: device.map(parse_device).transpose()?, copy, writable };
        if let Ok(tensor) = x.cast::<PyTensor>() {
            if freed_on.is_some() {
                return Err(PyValueError::new_err(
                    "freed_on: a tensor of Estafette's own knows where its memory goes",
                ));
            }
            return self.own(tensor, &wanted);
        }
        if freed_on.is_none()
            && writable.is_none()
            && let Some(promise) = promise::pending(x, engine)?
        {
            let tensor = promise::import(x, engine, promise)?;
            imported(py);
            let copies = wanted.device.is_some() || copy == Some(true);
            return Bound::new(py, self.wrap(self.copied_if(py, copies, tensor, &wanted)?));
        }
        let Taken { managed, immutable, ready } = import::take(x, &wanted)?;
        let made_a_copy = managed.is_copied();
        let home = freed_on.map(|stream| stream::home(managed.device(), stream)).transpose()?;
        // SAFETY: the producer vouches for the memory: that is what DLPack's protocol means. On the host its content is ready
        // when `__dlpack__` has returned. For the home, the caller does.
        let take = || unsafe {
            match home {
                None => engine.import_from(managed, ready, immutable, || origin::of(x)),
                Some(home) => engine.import_stream_ordered(managed, ready, immutable, home),
            }
        };
        let tensor = body::within(py, take)?.or_raise(py)?;
        imported(py);
        if trace::is_open() {
            trace::imported_from(&tensor, peers::of(x).peer().root);
        }
        if let Some(lease) = tensor.imported_under() {
            lease_sites::note_object(&lease, x);
        }
        let moved = wanted.device.is_some_and(|wanted| tensor.device().is_ok_and(|device| device != wanted));
        let copies = moved || copy == Some(true) && !made_a_copy;
        Bound::new(py, self.wrap(self.copied_if(py, copies, tensor, &wanted)?))
    }

    /// A promise of the memory behind an Arrow array, without a copy: anything with ``__arrow_c_device_array__`` or
    /// ``__arrow_c_array__`` (an array of pyarrow, polars, nanoarrow, ...), or a pair of their capsules.
    ///
    /// The tensor has one dimension and is read-only, as Arrow's memory never changes. The array must be of integers or
    /// floats and have no nulls: `InvalidTensorError` names what a tensor cannot have.
    #[pyo3(signature = (x, /))]
    #[allow(clippy::wrong_self_convention, reason = "beside `from_dlpack`")]
    fn from_arrow(&self, x: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let py = x.py();
        let engine = self.engine(py)?;
        let (format, array) = arrow::take(x)?;
        // SAFETY: the producer vouches for the array, and for its event on the device that it names: that is what Arrow's
        // interface means.
        let tensor = unsafe { engine.import_arrow(&format, array) }.or_raise(py)?;
        imported(py);
        Ok(self.wrap(tensor))
    }
}

impl PyEngine {
    /// An import of a tensor of ours: itself, or a copy.
    fn own<'py>(&self, tensor: &Bound<'py, PyTensor>, wanted: &Wanted) -> PyResult<Bound<'py, PyTensor>> {
        let (py, inner) = (tensor.py(), tensor.get().tensor(tensor.py())?);
        if wanted.writable.is_some() && wanted.copy != Some(true) {
            return Err(PyValueError::new_err(
                "writable: whether a tensor of Estafette's own may be written is settled already",
            ));
        }
        let mut copies = wanted.copy == Some(true);
        if let Some(device) = wanted.device {
            until_defined(py, inner)?;
            let is = inner.device().or_raise(py)?;
            if is != device && !wanted.can_be_moved_from(is) {
                let message = format!("this tensor is on {is}, and is not moved to {device}");
                return Err(raise(py, "ExchangeError", message));
            }
            if is != device && !import::reachable(py, device)? {
                return Err(import::not_available(py, device));
            }
            copies |= is != device;
        }
        if !copies {
            return Ok(tensor.clone());
        }
        Bound::new(py, self.wrap(self.copied_if(py, true, inner.clone(), wanted)?))
    }

    fn copied_if(&self, py: Python<'_>, copies: bool, tensor: Tensor, wanted: &Wanted) -> PyResult<Tensor> {
        if !copies {
            return Ok(tensor);
        }
        copied(py, &self.handle, &tensor, wanted.home(tensor.device().ok()))
    }

    /// Takes over a tensor that nobody vouches for: what nothing but a legacy struct says may not be written.
    pub fn adopt<'py>(&self, py: Python<'py>, managed: ManagedTensor) -> PyResult<Bound<'py, PyTensor>> {
        let immutable = managed.version().is_none();
        let device = managed.device();
        let mut ready = FenceSet::default();
        if stream::has_default_stream(device)
            && let Some(device) = stream::device_of(py, device)?
        {
            // What is given to our exchange table is ordered before the stream that it says is ours, by now.
            ready.insert(device.default_queue().record().map_err(estafette::Error::from).or_raise(py)?);
        }
        // SAFETY: whoever gives a DLPack struct away vouches for its memory; on the host its content is ready by then.
        let tensor = unsafe { self.engine(py)?.import_ordered(managed, ready, immutable) };
        IMPORTED.fetch_add(1, Ordering::Relaxed);
        Bound::new(py, self.wrap(tensor.or_raise(py)?))
    }
}

/// Counts an import, and stands aside when too many releases are due.
pub(super) fn imported(py: Python<'_>) {
    let imported = IMPORTED.fetch_add(1, Ordering::Relaxed);
    if imported % BACKLOG_LOOK == BACKLOG_LOOK - 1 && reaper().stats().pending > BACKLOG_MAX {
        py.detach(|| reaper().flush(BACKLOG_WAIT));
    }
}
