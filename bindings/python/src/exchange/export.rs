//! Giving tensors to other libraries: what `__dlpack__` asks for, and where the answer comes from.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use estafette::devices::{DLDevice, DeviceType};
use estafette::exchange::{Abi, ManagedTensor};
use estafette::lease::Consumer;
use estafette::{Access, Error, ExportOptions, Lease, Tensor, bindings};
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::asyncio::{running_loop, stopped_loop};
use crate::classes::handle::EngineHandle;
use crate::error::{self, OrRaise, exchange_error, raise, to_py};
use crate::exchange::capsule;
use crate::exchange::copy::copied_now;
use crate::exchange::unordered::{self, Reason};
use crate::interpreter::call_site;
use crate::interpreter::guard;
use crate::kinds;
use crate::submission::results;
use crate::submission::scope;

estafette_sync::per_process! {
    /// Tensors handed out by this process.
    pub static EXPORTED: AtomicU64 = AtomicU64::new(0);
}

/// The arguments of `__dlpack__`.
pub struct ExportRequest<'a, 'py> {
    pub stream: Option<&'a Bound<'py, PyAny>>,
    pub max_version: Option<(u32, u32)>,
    pub dl_device: Option<(i32, i32)>,
    pub copy: Option<bool>,
}

impl ExportRequest<'_, '_> {
    /// True if the tensor is wanted as and where it is, by a consumer without a stream.
    fn is_plain(&self) -> bool {
        self.stream.is_none() && self.dl_device.is_none() && self.copy != Some(true)
    }

    /// True if it may come to a copy.
    fn may_copy(&self) -> bool {
        self.copy == Some(true) || self.dl_device.is_some() && self.copy.is_none()
    }

    /// The device on which a copy of memory on `device` has to be made for the answer; `None` if none is
    /// wanted, or none can be made. Raises `BufferError` for a number of the device table that was never
    /// registered, or that is registered no more.
    fn copied_to(&self, py: Python<'_>, device: DLDevice) -> PyResult<Option<DLDevice>> {
        let wanted = self.dl_device.map_or(device, |(kind, id)| DLDevice::new(DeviceType(kind), id));
        if wanted == device {
            return Ok((self.copy == Some(true)).then(|| home_of_copies(device)));
        }
        let known = match wanted {
            DLDevice::CPU => true,
            wanted => kinds::device_of(py, wanted)?.is_some(),
        };
        Ok((known && can_go_to_host(device)).then_some(wanted))
    }

    fn abi(&self) -> Abi {
        let versioned = self.max_version.is_some_and(|(major, _)| major >= 1);
        if versioned { Abi::Versioned } else { Abi::Legacy }
    }

    /// The options of the export for memory of `tensor` on `device`.
    /// Raises as [`kinds::consumer`]; `BufferError` for another device.
    fn options(
        &self,
        py: Python<'_>,
        tensor: &Tensor,
        access: Access,
        device: DLDevice,
    ) -> PyResult<ExportOptions> {
        if let Some((kind, id)) = self.dl_device {
            let wanted = DLDevice::new(DeviceType(kind), id);
            if wanted != device {
                let without = if self.copy == Some(false) { " without a copy" } else { "" };
                let message =
                    format!("this tensor is on {device} and cannot be exported to {wanted}{without}");
                return Err(exchange_error(py, message));
            }
        }
        Ok(ExportOptions {
            abi: self.abi(),
            copy: self.copy == Some(true),
            copy_to: home_of_copies(device),
            consumer: kinds::consumer(tensor, device, self.stream, py)?,
            ..ExportOptions::from(access)
        })
    }
}

/// The device of a copy of memory on `device`: on the device, or on the host in place of memory that the host
/// can read.
fn home_of_copies(device: DLDevice) -> DLDevice {
    if kinds::has_queues(device) { device } else { DLDevice::CPU }
}

/// Devices whose memory comes to the host by a copy at least.
pub fn can_go_to_host(device: DLDevice) -> bool {
    device.device_type.is_host_readable() || kinds::has_queues(device)
}

/// The source of the export.
#[derive(Clone, Copy)]
pub enum From<'a> {
    /// The tensor itself, with the access that the consumer is given, and the engine that may be asked to
    /// make a copy.
    Tensor(&'a Tensor, Access, &'a EngineHandle),
    /// A lease that is held already.
    Lease(&'a Lease),
}

impl<'a> From<'a> {
    pub fn tensor(self) -> &'a Tensor {
        match self {
            Self::Tensor(tensor, ..) => tensor,
            Self::Lease(lease) => lease.tensor(),
        }
    }
}

/// As [`export_managed`], the shortest way for a consumer that wants a tensor as and where it is.
#[inline]
pub fn export_plain(
    py: Python<'_>,
    from: From<'_>,
    request: &ExportRequest<'_, '_>,
) -> PyResult<ManagedTensor> {
    if let (From::Tensor(tensor, Access::Read, _), true) = (from, request.is_plain())
        && request.abi() == Abi::Versioned
        && let Some(managed) = at_once(py, tensor)?
    {
        return Ok(managed);
    }
    export_managed(py, from, request)
}

/// The answer to `__dlpack__`. Raises as [`ExportRequest::options`]; `WouldBlockError` on an event loop's
/// thread when the data is not ready; the failure of the tensor's operation; `BufferError` for a legacy
/// struct of read-only memory; `InFlightLimitError` when there is no room for a copy on an event loop's
/// thread.
pub fn export<'py>(
    py: Python<'py>,
    from: From<'_>,
    request: &ExportRequest<'_, 'py>,
) -> PyResult<Bound<'py, PyCapsule>> {
    capsule::wrap(py, export_or_copy(py, from, request)?)
}

/// As [`export`], without the capsule.
pub fn export_or_copy(
    py: Python<'_>,
    from: From<'_>,
    request: &ExportRequest<'_, '_>,
) -> PyResult<ManagedTensor> {
    let copy = match from {
        From::Tensor(tensor, _, engine) if request.may_copy() && !scope::has_operand(py, tensor)? => {
            export_copy(py, engine, tensor, request)?
        }
        _ => None,
    };
    copy.map_or_else(|| export_plain(py, from, request), Ok)
}

/// A copy made by `engine`, as the request asks for; `None` where none is made.
fn export_copy(
    py: Python<'_>,
    engine: &EngineHandle,
    tensor: &Tensor,
    request: &ExportRequest<'_, '_>,
) -> PyResult<Option<ManagedTensor>> {
    until_defined(py, tensor)?;
    let device = tensor.device().or_raise(py)?;
    let Some(to) = request.copied_to(py, device)? else { return Ok(None) };
    if to == DLDevice::CPU && request.stream.is_some() {
        // Refused first, so that nothing is copied in vain. The copy is there when this returns.
        kinds::consumer(tensor, to, request.stream, py)?;
    }
    // A consumer's stream waits for the copy itself; which one is known before the copy is, on the same
    // device.
    let ordered = to == device
        && running_loop::get(py)?.is_none()
        && bindings::lease::consumer_queue(&kinds::consumer(tensor, to, request.stream, py)?).is_some();
    let Some(copy) = copied_now(py, engine, tensor, to, !ordered)? else { return Ok(None) };
    let placed = if ordered { tensor } else { &copy };
    let options = ExportOptions {
        abi: request.abi(),
        consumer: kinds::consumer(placed, to, request.stream, py)?,
        ..ExportOptions::from(Access::Alias)
    };
    let managed = guard::detach(py, || bindings::tensor::export_as_copy(&copy, &options)).or_raise(py)?;
    count();
    Ok(Some(managed))
}

/// As [`export_or_copy`], of the memory itself.
pub fn export_managed<'py>(
    py: Python<'py>,
    from: From<'_>,
    request: &ExportRequest<'_, 'py>,
) -> PyResult<ManagedTensor> {
    let (tensor, access) = match from {
        From::Tensor(tensor, access, _) => (tensor, access),
        From::Lease(lease) => (lease.tensor(), bindings::lease::access(lease)),
    };
    let scope = match from {
        From::Tensor(tensor, access, _) if access != Access::Alias => {
            scope::current_scope(py)?.and_then(|scope| {
                let scope = scope.get().scope();
                bindings::scope::access_of(scope, tensor).map(|declared| (scope.clone(), declared))
            })
        }
        _ => None,
    };
    if scope.is_none() {
        until_defined(py, tensor)?;
    }
    let device = tensor.device().or_raise(py)?;
    let mut options = request.options(py, tensor, access, device)?;
    let caller = call_site::caller(py);
    let immutable = caller.library.is_some_and(|library| library.immutable);
    if options.abi == Abi::Legacy && !options.copy && !immutable {
        if tensor.is_read_only().or_raise(py)? {
            return Err(exchange_error(
                py,
                if bindings::tensor::is_write_unsaid(tensor) {
                    "this tensor is read-only: its memory came in a DLPack struct before version 1.0, which cannot say whether it may be \
                     written, and such a struct is asked for again; import the memory with `writable=True` if its owner allows \
                     that, import a copy, or ask with max_version=(1, 0)"
                } else {
                    "this memory is read-only, which a DLPack struct before version 1.0 cannot say; ask with max_version=(1, 0)"
                },
            ));
        }
        // In a body the mode is the declared one.
        if scope.as_ref().map_or(access, |(_, declared)| *declared) == Access::Read {
            let library = caller.library.map_or("a library without a row", |library| library.root);
            unordered::note(py, false, Reason::Unmarked, library);
        }
    }
    // A view of an operation's function is known by the operation.
    options.owner = (scope.is_none() || !caller.is_body).then_some(caller.place);
    let managed = match (scope, from) {
        (Some((scope, declared)), _) => {
            if access == Access::Write && declared == Access::Read {
                let message = "this tensor is declared in `reads` of the running operation, not in `writes`";
                return Err(raise(py, "ConflictError", message));
            }
            ordered(py, &options, || scope.export(tensor, &options)).or_raise(py)?
        }
        (None, From::Lease(lease)) => ordered(py, &options, || lease.export(&options)).or_raise(py)?,
        (None, From::Tensor(tensor, ..)) => take_lease(py, tensor, &options)?,
    };
    exported(py, tensor)?;
    Ok(managed)
}

/// Counts an export.
pub fn count() {
    EXPORTED.fetch_add(1, Ordering::Relaxed);
}

/// Counts an export, and says what could not be ordered about it.
#[inline]
fn exported(py: Python<'_>, tensor: &Tensor) -> PyResult<()> {
    count();
    let device = tensor.device().or_raise(py)?;
    if device.device_type.name().is_none() {
        unordered::note(py, false, Reason::UnknownDevice, device.to_string());
    }
    Ok(())
}

/// The read lease of a tensor that nothing stands in the way of, for a consumer that wants it as it is, in
/// the versioned struct; `None` where there is more to find out first.
#[inline(always)]
fn at_once(py: Python<'_>, tensor: &Tensor) -> PyResult<Option<ManagedTensor>> {
    if scope::current_scope(py)?.is_some()
        || tensor.device().is_ok_and(|device| kinds::default_stream(device).is_some())
    {
        return Ok(None);
    }
    let managed = bindings::tensor::export_at_once(tensor, || call_site::caller(py).place).or_raise(py)?;
    if managed.is_some() {
        exported(py, tensor)?;
    }
    Ok(managed)
}

/// True if the consumer's queue comes after the tensor, and not the host.
fn is_ordered(options: &ExportOptions) -> bool {
    !matches!(options.consumer, Consumer::Host)
}

/// Runs `export`, without the Python lock where it calls a driver for the consumer's queue.
fn ordered<R: Send>(py: Python<'_>, options: &ExportOptions, export: impl FnOnce() -> R + Send) -> R {
    if is_ordered(options) { guard::detach(py, export) } else { export() }
}

fn take_lease(py: Python<'_>, tensor: &Tensor, options: &ExportOptions) -> PyResult<ManagedTensor> {
    // A tensor that is ready for reading is exported without releasing the Python lock, which may take
    // milliseconds to get back; a copy takes its time and is made without it. A consumer's queue waits itself
    // for what was issued.
    let quick = !options.copy
        && (is_ordered(options)
            || options.access == Access::Alias
            || options.access == Access::Read && is_ready(py, tensor));
    if quick || running_loop::get(py)?.is_some() {
        let export = || poll_once(tensor.export(options.clone()));
        if let Some(outcome) = ordered(py, options, export) {
            return outcome.or_raise(py);
        }
        stopped_loop::check(py, "the tensor")?;
    }
    guard::detach(py, || tensor.export_wait(options)).or_raise(py)
}

/// Polls a future once; dropping it unfinished gives up.
pub fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Waits until the tensor has its memory and shape. Raises the failure of the operation that should have made
/// it; `WouldBlockError` on an event loop's thread; `TypeError` for the promise of a call that has returned
/// no single array.
pub fn until_defined(py: Python<'_>, tensor: &Tensor) -> PyResult<()> {
    if bindings::tensor::is_defined(tensor) {
        return Ok(());
    }
    until_known(py, tensor)?;
    results::refuse_placeholder(py, tensor)
}

/// As [`until_defined`], also for the promise of several results.
/// Raises as [`until_defined`], without `TypeError`.
pub fn until_known(py: Python<'_>, tensor: &Tensor) -> PyResult<()> {
    if bindings::tensor::is_defined(tensor) {
        return Ok(());
    }
    until_ready(py, tensor, None)?;
    if bindings::tensor::is_defined(tensor) {
        return Ok(());
    }
    // The tensor's version was declared good although the operation that should have made the tensor never
    // did.
    Err(to_py(py, &Error::NotDefined("the operation that should have made it did not".into())))
}

/// Waits until the tensor is ready for readers, for at most `timeout`.
/// Raises the failure of its version; `WouldBlockError` on an event loop's thread; `TimeoutError`.
pub fn until_ready(py: Python<'_>, tensor: &Tensor, timeout: Option<Duration>) -> PyResult<()> {
    if is_ready(py, tensor) || timeout.is_some_and(|timeout| timeout.is_zero()) {
        return tensor.wait_timeout(Duration::ZERO).or_raise(py);
    }
    stopped_loop::check(py, "the tensor")?;
    let waited = guard::detach(py, || match timeout {
        Some(timeout) => tensor.wait_timeout(timeout),
        None => tensor.wait(),
    });
    error::or_say_why(py, waited, || bindings::tensor_waits_for(tensor))
}

/// True if the tensor is ready for readers. A driver is asked without the Python lock.
pub fn is_ready(py: Python<'_>, tensor: &Tensor) -> bool {
    bindings::tensor::known_ready(tensor).unwrap_or_else(|| guard::detach(py, || tensor.is_ready()))
}

/// The answer to `__dlpack_device__`.
pub fn device(py: Python<'_>, tensor: &Tensor) -> PyResult<(i32, i32)> {
    if !scope::has_operand(py, tensor)? {
        until_defined(py, tensor)?;
    }
    let device = tensor.device().or_raise(py)?;
    Ok((device.device_type.0, device.device_id))
}

/// Refuses what is no DLPack version.
pub fn version(max_version: Option<&Bound<'_, PyAny>>) -> PyResult<Option<(u32, u32)>> {
    max_version
        .map(|version| {
            version.extract().map_err(|_| {
                PyTypeError::new_err("max_version must be a pair of integers (major, minor) or None")
            })
        })
        .transpose()
}
