//! Tensors of other processes: the classes `Door`, `Link` and `Ticket`.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

use estafette::bindings;
use estafette::remote::{Address, Door, Link, ShareOptions, Ticket, suggest_nixl};
use estafette::{Error, Tensor};
use estafette_sync::per_process;
use estafette_sync::platform::library::file_name;
use estafette_sync::process::ProcessBound;
use estafette_sync::sync::Mutex;
use pyo3::exceptions::{PyStopAsyncIteration, PyStopIteration, PyTimeoutError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple, PyType};

use crate::arguments::seconds;
use crate::asyncio::awaiting::Awaiter;
use crate::asyncio::stopped_loop;
use crate::classes::handle::EngineHandle;
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, import_module, package_folders, raise};
use crate::exchange::export::poll_once;
use crate::interpreter::call_site::traced_line;
use crate::interpreter::guard;
use crate::interpreter::once::{PyOnce, loaded};

/// Waits for `future`, which is waiting for `what`. In a body other threads run operations of the engine
/// meanwhile. Raises `TimeoutError`; `WouldBlockError` on the thread of an event loop; what a signal handler
/// has raised.
fn wait<T: Send>(
    py: Python<'_>,
    engine: &EngineHandle,
    what: &str,
    timeout: Option<f64>,
    future: impl Future<Output = Result<T, Error>> + Send,
) -> PyResult<T> {
    let timeout = seconds("timeout", timeout)?;
    let mut future = pin!(future);
    if let Some(output) = guard::detach(py, || poll_once(future.as_mut())) {
        return output.or_raise(py);
    }
    stopped_loop::check(py, what)?;
    let engine = engine.engine(py)?;
    match guard::detach(py, || bindings::remote::block_on(engine, future, timeout)) {
        Err(Error::Timeout(time)) => {
            Err(PyTimeoutError::new_err(format!("{what} did not come within {time:?}")))
        }
        output => output.or_raise(py),
    }
}

/// An object that may be closed while others wait for it.
trait Closes: Send + Sync {
    const WHAT: &str;

    /// Ends it now, and what waits for it. Futures have it, and those of a loop that stands still keep it.
    fn close(&self);
}

impl Closes for Door {
    const WHAT: &str = "door";

    fn close(&self) {
        Door::close(self);
    }
}

impl Closes for Link {
    const WHAT: &str = "link";

    fn close(&self) {
        bindings::remote::close(self);
    }
}

/// An object of this process, until it is closed.
struct Open<T>(Arc<UntilClosed<T>>);

type UntilClosed<T> = Mutex<Option<Arc<ProcessBound<T>>>>;

per_process! {
    /// The links of this process that are there.
    static LINKS: Mutex<Vec<Weak<UntilClosed<Link>>>> = Mutex::new(Vec::new());
}

/// Closes all links, at the exit of the interpreter, which may leave objects as they are. The end of the
/// process alone would be its death to others.
pub fn close_links(py: Python<'_>) {
    let links: Vec<_> = LINKS.lock().iter().filter_map(Weak::upgrade).collect();
    links.into_iter().for_each(|link| Open(link).close(py));
}

impl<T: Closes> Open<T> {
    fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(Some(Arc::new(ProcessBound::new(value))))))
    }

    fn closed() -> Error {
        Error::Invalid(format!("the {} is closed", T::WHAT).into())
    }

    /// Raises `InvalidError` once it is closed; `ForkedError` in a forked child.
    fn get(&self, py: Python<'_>) -> PyResult<Arc<ProcessBound<T>>> {
        let value = self.0.lock().clone().ok_or_else(Self::closed).or_raise(py)?;
        value.get().or_raise(py)?;
        Ok(value)
    }

    /// The result of `future`, which waits for the object, or an error if it was closed meanwhile.
    fn unless_closed<U, F: Future<Output = Result<U, Error>>>(
        &self,
        future: F,
    ) -> impl Future<Output = Result<U, Error>> + use<T, U, F> {
        let open = Arc::clone(&self.0);
        async move {
            let mut future = pin!(future);
            poll_fn(|context| match future.as_mut().poll(context) {
                // It is registered by now with what `close` wakes.
                Poll::Pending if open.lock().is_none() => Poll::Ready(Err(Self::closed())),
                polled => polled,
            })
            .await
        }
    }

    fn close(&self, py: Python<'_>) {
        let value = self.0.lock().take();
        guard::detach(py, || {
            if let Some(Ok(value)) = value.as_deref().map(ProcessBound::get) {
                value.close();
            }
            drop(value);
        });
    }
}

/// The value, which [`Open::get`] has checked.
fn own<T>(value: &ProcessBound<T>) -> Result<&T, Error> {
    Ok(value.get()?)
}

/// The listener by which other processes of the same user on this machine make links to this one:
/// ``eng.door()``. Its address goes to them by any means. A door that is closed leaves its links open.
#[pyclass(frozen, module = "estafette", name = "Door", weakref)]
pub struct PyDoor {
    door: Open<Door>,
    /// The address of the door, for `Engine.connect` in another process.
    #[pyo3(get)]
    address: String,
    engine: EngineHandle,
}

impl PyDoor {
    pub fn open(py: Python<'_>, engine: &EngineHandle) -> PyResult<Self> {
        bindings::engine::check_usable(engine.engine(py)?).or_raise(py)?;
        let door = guard::detach(py, Door::open).or_raise(py)?;
        let address = door.address().to_string();
        Ok(Self { door: Open::new(door), address, engine: engine.clone() })
    }

    fn next(
        &self,
        py: Python<'_>,
    ) -> PyResult<impl Future<Output = Result<Link, Error>> + Send + 'static + use<>> {
        let (engine, door) = (self.engine.engine(py)?.clone(), self.door.get(py)?);
        Ok(self.door.unless_closed(async move { engine.accept(own(&door)?).await }))
    }
}

#[pymethods]
impl PyDoor {
    /// Returns the next link that another process makes, after at most `timeout` seconds. Raises
    /// `ShutdownError` once the engine has ended.
    #[pyo3(signature = (timeout = None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PyLink> {
        let link = wait(py, &self.engine, "a link", timeout, self.next(py)?)?;
        Ok(PyLink::new(link, &self.engine))
    }

    /// As `accept`, to be awaited.
    fn accept_async(&self, py: Python<'_>) -> PyResult<Awaiter> {
        PyLink::awaited(py, self.next(py)?, self.engine.clone())
    }

    /// Closes the door. Where others wait at it, `InvalidError` is raised.
    fn close(&self, py: Python<'_>) {
        self.door.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<estafette.Door {}>", self.address)
    }
}

/// A link to another process: tensors cross it in both directions, in order, without a copy.
///
/// A tensor may be sent before it is ready. The other process gets a promise, which is read-only unless it
/// was sent for writing. The sender's later writes wait until the other process has released it, has closed
/// the link, or has died. A block ``with link`` closes the link at its end, and so does the end of its last
/// reference. Iterating over a link gives what the other process sends, until that process closes the link;
/// ``async for`` works as well. The end of the engine ends what waits for its links: `ShutdownError` is
/// raised there.
#[pyclass(frozen, module = "estafette", name = "Link", weakref)]
pub struct PyLink {
    link: Open<Link>,
    /// The number of the other process.
    #[pyo3(get)]
    process: u32,
    engine: EngineHandle,
}

impl PyLink {
    fn new(link: Link, engine: &EngineHandle) -> Self {
        let (process, link) = (link.process(), Open::new(link));
        let mut links = LINKS.lock();
        links.retain(|known| known.strong_count() > 0);
        links.push(Arc::downgrade(&link.0));
        drop(links);
        Self { link, process, engine: engine.clone() }
    }

    /// A link that is not there yet.
    fn awaited(
        py: Python<'_>,
        link: impl Future<Output = Result<Link, Error>> + Send + 'static,
        engine: EngineHandle,
    ) -> PyResult<Awaiter> {
        let made = move |py: Python<'_>, link: Result<Link, Error>| {
            Ok(Py::new(py, Self::new(link.or_raise(py)?, &engine))?.into_any())
        };
        Awaiter::pending(link, made).within(py)
    }

    pub fn connect(
        py: Python<'_>,
        engine: &EngineHandle,
        address: &str,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let link = wait(py, engine, "the link", timeout, Self::connected(py, engine, address)?)?;
        Ok(Self::new(link, engine))
    }

    pub fn connect_async(py: Python<'_>, engine: &EngineHandle, address: &str) -> PyResult<Awaiter> {
        Self::awaited(py, Self::connected(py, engine, address)?, engine.clone())
    }

    fn connected(
        py: Python<'_>,
        engine: &EngineHandle,
        address: &str,
    ) -> PyResult<impl Future<Output = Result<Link, Error>> + Send + 'static + use<>> {
        let address = Address::from_bytes(address.as_bytes()).or_raise(py)?;
        let engine = engine.engine(py)?.clone();
        bindings::engine::check_usable(&engine).or_raise(py)?;
        Ok(async move { engine.connect(&address).await })
    }

    /// The tensor on its way.
    fn sent(
        &self,
        py: Python<'_>,
        tensor: &PyTensor,
        access: &str,
        copy: Option<bool>,
    ) -> PyResult<impl Future<Output = Result<(), Error>> + Send + 'static + use<>> {
        let for_writing = match access {
            "read" => false,
            "write" if copy == Some(true) => {
                return Err(raise(py, "InvalidError", "a copy for writing: what is written would be lost"));
            }
            "write" => true,
            other => {
                let message = format!("access is \"read\" or \"write\", not {other:?}");
                return Err(raise(py, "InvalidError", message));
            }
        };
        let (link, tensor) = (self.link.get(py)?, tensor.tensor(py)?.clone());
        Ok(self.link.unless_closed(async move {
            if for_writing {
                return own(&link)?.lend(&tensor).await;
            }
            own(&link)?.send(&tensor, &ShareOptions { copy, ..ShareOptions::default() }).await
        }))
    }

    fn next(
        &self,
        py: Python<'_>,
    ) -> PyResult<impl Future<Output = Result<Option<Tensor>, Error>> + Send + 'static + use<>> {
        let (link, site) = (self.link.get(py)?, traced_line(py));
        Ok(self.link.unless_closed(async move { bindings::remote::receive_at(own(&link)?, site).await }))
    }

    fn waited(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<PyTensor>> {
        let what = format!("a tensor of process {}", self.process);
        let tensor = wait(py, &self.engine, &what, timeout, self.next(py)?)?;
        Ok(tensor.map(|tensor| PyTensor::new(tensor, self.engine.clone())))
    }

    /// An ``await`` of the next tensor; `end` is what it gives once there is none.
    fn received(&self, py: Python<'_>, end: fn(Python<'_>) -> PyResult<Py<PyAny>>) -> PyResult<Awaiter> {
        let engine = self.engine.clone();
        let received =
            move |py: Python<'_>, tensor: Result<Option<Tensor>, Error>| match tensor.or_raise(py)? {
                Some(tensor) => Ok(Py::new(py, PyTensor::new(tensor, engine))?.into_any()),
                None => end(py),
            };
        Awaiter::pending(self.next(py)?, received).within(py)
    }
}

#[pymethods]
impl PyLink {
    /// Sends the current version of a tensor, ready or not. Waits, at most `timeout` seconds, only while the
    /// link is full: the other process then has 16,384 tensors of this one, or has not received hundreds.
    ///
    /// copy: memory that other processes cannot be shown, see ``shared`` of `Engine.zeros`, is copied once it
    /// is ready, and ``stats().copied_for_processes`` counts the bytes; later writes then wait for the copy
    /// alone. True copies other memory as well. False copies nothing: `NotSharedError` is raised, or is the
    /// failure of the tensor if it has no memory yet.
    ///
    /// access: with ``"write"`` the other process alone uses the tensor until it is done, and what it has
    /// written is the next version. The version has failed if that process failed to write it, or died. For
    /// memory made with ``shared="write"``; else `NotSharedError`.
    ///
    /// A tensor of a third process is passed on: that process shows its memory itself. Raises
    /// `PeerDiedError`; `DeviceError` once the other process has closed the link.
    #[pyo3(signature = (tensor, /, timeout = None, *, access = "read", copy = None))]
    fn send(
        &self,
        py: Python<'_>,
        tensor: &PyTensor,
        timeout: Option<f64>,
        access: &str,
        copy: Option<bool>,
    ) -> PyResult<()> {
        let sent = self.sent(py, tensor, access, copy)?;
        wait(py, &self.engine, "room in the link", timeout, sent)
    }

    /// As `send`, to be awaited. A forgotten ``await`` warns, as that of `Engine.submit_async` does.
    #[pyo3(signature = (tensor, /, *, access = "read", copy = None))]
    fn send_async(
        &self,
        py: Python<'_>,
        tensor: &PyTensor,
        access: &str,
        copy: Option<bool>,
    ) -> PyResult<Awaiter> {
        let sent = self.sent(py, tensor, access, copy)?;
        Awaiter::pending(sent, |py, sent| sent.or_raise(py).map(|()| py.None()))
            .submits(py, "Link.send_async")
    }

    /// Returns the next tensor of the other process, after at most `timeout` seconds, or None once that
    /// process has closed the link. Raises `PeerDiedError` when that process has died, after everything that
    /// it had sent; `ShutdownError` once the engine has ended.
    #[pyo3(signature = (timeout = None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<PyTensor>> {
        self.waited(py, timeout)
    }

    /// As `receive`, to be awaited.
    fn receive_async(&self, py: Python<'_>) -> PyResult<Awaiter> {
        self.received(py, |py| Ok(py.None()))
    }

    /// Closes the link. What was received stays readable. What was sent comes to the other process while this
    /// one lives. Where others wait for the link, `InvalidError` is raised.
    fn close(&self, py: Python<'_>) {
        self.link.close(py);
    }

    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self.waited(py, None)?.ok_or_else(|| PyStopIteration::new_err(()))
    }

    fn __aiter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __anext__(&self, py: Python<'_>) -> PyResult<Awaiter> {
        self.received(py, |_| Err(PyStopAsyncIteration::new_err(())))
    }

    fn __repr__(&self) -> String {
        format!("<estafette.Link to process {}>", self.process)
    }
}

/// Names a version of a tensor for other processes of the same user on this machine: ``t.ticket()``,
/// `Engine.from_ticket`.
///
/// ``bytes(ticket)`` may travel through anything, and a ticket can be pickled. The version is kept from later
/// writes for as long as this object lives, and then until everything that was made with it is gone. A ticket
/// that was made from bytes, or by pickle, keeps nothing. A block ``with t.ticket() as ticket`` revokes the
/// ticket at its end.
#[pyclass(frozen, module = "estafette", name = "Ticket", weakref)]
pub struct PyTicket {
    bytes: Vec<u8>,
    /// The number of the process that has the tensor.
    #[pyo3(get)]
    process: u32,
    held: Mutex<Option<ProcessBound<Ticket>>>,
}

impl PyTicket {
    pub fn of(py: Python<'_>, tensor: &Tensor, options: &ShareOptions) -> PyResult<Self> {
        if options.reach.is_some() {
            suggest(py)?;
        }
        let site = traced_line(py);
        let ticket = guard::detach(py, || bindings::remote::ticket_at(tensor, options, site)).or_raise(py)?;
        let (bytes, process) = (ticket.to_bytes(), bindings::remote::ticket_process(&ticket));
        Ok(Self { bytes, process, held: Mutex::new(Some(ProcessBound::new(ticket))) })
    }
}

/// Lets queues of `multiprocessing` take tensors, in a program that has imported it, or has memory that other
/// processes can be shown.
pub fn prepare_queues(py: Python<'_>, is_shared: bool) -> PyResult<()> {
    static PREPARED: PyOnce<()> = PyOnce::new();
    if !is_shared && loaded(py, "multiprocessing.reduction")?.is_none() {
        return Ok(());
    }
    let prepare = || import_module(py, "estafette._processes")?.call_method0("register").map(drop);
    PREPARED.get_or_try_init(py, prepare).copied()
}

/// The argument of `from_ticket`.
pub fn parse_ticket(py: Python<'_>, ticket: &Bound<'_, PyAny>) -> PyResult<Ticket> {
    let bytes = match ticket.cast::<PyTicket>() {
        Ok(ticket) => ticket.get().bytes.clone(),
        Err(_) => ticket.cast::<PyBytes>().map(|bytes| bytes.as_bytes().to_vec()).map_err(|_| {
            PyTypeError::new_err(format!("expected an estafette.Ticket or bytes, not {}", ticket.get_type()))
        })?,
    };
    let ticket = Ticket::from_bytes(&bytes).or_raise(py)?;
    if bindings::remote::is_for_machines(&ticket) {
        suggest(py)?;
    }
    Ok(ticket)
}

/// Names to the loader the library of the package nixl of this environment, without importing it. Once.
fn suggest(py: Python<'_>) -> PyResult<()> {
    static DONE: PyOnce<()> = PyOnce::new();
    DONE.get_or_try_init(py, || {
        for name in ["nixl_cu12", "nixl_cu13"] {
            for folder in package_folders(py, name)? {
                let libraries = folder.with_file_name(format!(".{name}.mesonpy.libs"));
                suggest_nixl(libraries.join(file_name("nixl_capi")));
            }
        }
        Ok(())
    })
    .copied()
}

/// Says that a process on another machine is dead, or, without `process`, all processes on that machine:
/// their leases end, and writes that waited go on. For who knows it, such as the program that started them:
/// silence alone is not death. Returns at once.
///
/// host: the address of that machine, as messages about the process have it.
#[pyfunction(signature = (host, process = None))]
pub fn declare_dead(py: Python<'_>, host: &str, process: Option<u32>) {
    guard::detach(py, || estafette::remote::declare_dead(host, process));
}

#[pymethods]
impl PyTicket {
    #[new]
    #[pyo3(signature = (bytes, /))]
    fn new(py: Python<'_>, bytes: &Bound<'_, PyAny>) -> PyResult<Self> {
        let ticket = parse_ticket(py, bytes)?;
        Ok(Self {
            bytes: ticket.to_bytes(),
            process: bindings::remote::ticket_process(&ticket),
            held: Mutex::new(None),
        })
    }

    /// Revokes the ticket, if this process made it: nothing new can be made with it. Tensors that were made
    /// with it stay. A ticket for one use that was not used gives its version free by that.
    fn revoke(&self, py: Python<'_>) {
        let ticket = match self.held.lock().take().map(ProcessBound::into_inner) {
            Some(Ok(ticket)) => ticket,
            // A forked child's is its parent's.
            Some(Err(_)) => return,
            // Made from bytes, which are those of a ticket.
            None => Ticket::from_bytes(&self.bytes).expect("a ticket"),
        };
        guard::detach(py, || ticket.revoke());
    }

    /// The same name, which processes on other machines can use as well; it keeps nothing.
    ///
    /// reach: as in ``t.ticket(reach=...)``.
    fn _reaching(&self, py: Python<'_>, reach: &str) -> PyResult<Self> {
        suggest(py)?;
        let ticket = Ticket::from_bytes(&self.bytes).or_raise(py)?;
        let deadline = ShareOptions::default().deadline;
        let ticket =
            guard::detach(py, || bindings::remote::reaching(&ticket, reach, deadline)).or_raise(py)?;
        Ok(Self { bytes: ticket.to_bytes(), process: self.process, held: Mutex::new(None) })
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.bytes)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (py.get_type::<Self>(), (self.__bytes__(py),))
    }

    fn __repr__(&self) -> String {
        format!("<estafette.Ticket of process {}>", self.process)
    }
}

/// A ``with`` block at whose end `end` is called.
macro_rules! block_methods {
    ($class:ty, $end:ident) => {
        #[pymethods]
        impl $class {
            fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
                this
            }

            #[pyo3(signature = (*_exception))]
            fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
                self.$end(py);
            }
        }
    };
}

block_methods!(PyDoor, close);
block_methods!(PyLink, close);
block_methods!(PyTicket, revoke);
