//! Tensors of other processes on the same machine, over a [`Link`](estafette_links::Link).
//!
//! The owner orders all uses: a lease of the owner's tensor crosses, with the fence of the grant. The lease
//! ends when the other process has used the tensor, has left, or has died and can touch no memory any more.
//! Bytes in shared memory, of the host or a device, are not copied; other memory is copied into shared memory
//! once. A [`Ticket`] names a version in some bytes, for processes that no link joins.
//!
//! ```no_run
//! use estafette::remote::{Address, Door, Link, ShareOptions};
//! use estafette::{DType, Engine};
//!
//! # async fn producer(door: Door) -> Result<(), estafette::Error> {
//! let engine = Engine::builder().shared(true).build()?;
//! let link = engine.accept(&door).await?;                  // one process: `door.address()` went to the other
//! let x = engine.zeros(&[1024], DType::F32)?;
//! link.send(&x, &ShareOptions::default()).await?;          // at once, whether or not `x` is ready
//! engine.op("next").writes([&x]).run(|[], [_x]| Ok(()))?;  // after the other process is done with it
//! # Ok(()) }
//! # async fn consumer(address: Address) -> Result<(), estafette::Error> {
//! let engine = Engine::new()?;
//! let link = engine.connect(&address).await?;
//! let x = link.receive().await?.expect("a tensor");        // a promise like any other
//! x.ready().await?;
//! # Ok(()) }
//! ```
//!
//! | part | what it has |
//! |---|---|
//! | `blocking` | waits of the calling thread, for bindings |
//! | `export` | the memory that this process shows of a tensor, and the copies for that |
//! | `network` | tickets that reach other machines, by NIXL |
//! | `note` | notes that engines write beside a promise |
//! | `stream` | a link as a stream of the tensors that it receives |
//! | `ticket` | bytes that name a version of a tensor |

pub(crate) mod blocking;
mod export;
#[cfg(feature = "nixl")]
pub(crate) mod network;
#[cfg(not(feature = "nixl"))]
#[path = "remote/no_network.rs"]
pub(crate) mod network;
mod note;
#[cfg(feature = "futures")]
mod stream;
pub(crate) mod ticket;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use estafette_devices::host;
use estafette_devices::{
    Allocation, DLDevice, Descriptor, DeviceError, DeviceErrorKind, Fence, FenceSet, Identity, Reactor, table,
};
use estafette_links::{Link as RawLink, LinkError, PeerMemory, Received, pass_step};
use estafette_sync::per_process;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::core::error::{Error, device_error};
use crate::core::lease_info::USERS;
use crate::engine::Engine;
use crate::exchange::loan::{Loan, RemoteOrigin};
use crate::exchange::{Abi, ExportFlags, Layout, ManagedTensor, Storage, export, reaper};
use crate::lease::{CallSite, LeaseOwner};
use crate::operation::import;
use crate::tensor::handle::Tensor;
use crate::trace::{self, hooks};

use self::blocking::noted;
use self::export::{Export, ExportMemory, SegmentRange, ShownMemory};
#[cfg(feature = "nixl")]
pub use self::network::{declare_dead, suggest_nixl};
use self::note::{Description, Note};
pub use self::ticket::Ticket;
pub use estafette_links::{Address, Door};

/// A link of an engine to another process.
#[derive(Debug)]
pub struct Link {
    engine: Engine,
    pub(crate) link: RawLink,
    /// The other process knows this one's door for tickets.
    is_introduced: AtomicBool,
    /// The other process's door for tickets, once that process has sent a tensor.
    door: OnceLock<Address>,
}

impl From<LinkError> for Error {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Forked => Error::Forked,
            LinkError::Invalid(message) => Error::invalid(message),
            other => Error::Device(DeviceError::from(&other)),
        }
    }
}

impl Engine {
    /// A link to the process with a door at `address`.
    ///
    /// # Errors
    /// [`Error::Device`] if nothing is there any more, or the system refuses; [`Error::Shutdown`].
    pub async fn connect(&self, address: &Address) -> Result<Link, Error> {
        self.core().check_usable()?;
        Ok(Link::new(self, noted(self, "connect", RawLink::connect(address)).await.0??))
    }

    /// The next link that another process has made to `door`.
    ///
    /// # Errors
    /// [`Error::Device`] if the system refuses; [`Error::Shutdown`].
    pub async fn accept(&self, door: &Door) -> Result<Link, Error> {
        self.core().check_usable()?;
        Ok(Link::new(self, noted(self, "accept", door.accept()).await.0??))
    }
}

impl Link {
    fn new(engine: &Engine, link: RawLink) -> Self {
        Self { engine: engine.clone(), link, is_introduced: AtomicBool::new(false), door: OnceLock::new() }
    }

    /// The number of the other process.
    pub fn process(&self) -> u32 {
        self.link.process()
    }

    /// Closes the link, as dropping it does, and ends all waits for it: for bindings, where a program closes
    /// links that other threads still hold.
    pub(crate) fn close(&self) {
        self.link.close();
    }

    fn owner(&self) -> LeaseOwner {
        LeaseOwner::from(format!("process {}", self.process()))
    }

    /// Lets the other process read the tensor's current version, ready or not. Writes submitted later wait
    /// until the other process is done. Waits while the link is full.
    ///
    /// Memory that is not shared is copied once the version is ready, by an operation; later writes then wait
    /// for the copy alone. The receiver gets a tensor of a third process from that process.
    ///
    /// # Errors
    /// [`Error::Shutdown`] if the engine of the link ends during the wait. [`Error::Device`] if the other
    /// process left or died, or there is no memory for a copy. [`Error::NotShared`] where a copy was refused:
    /// the memory cannot be shown to others, since its engine was made without
    /// [`shared`](crate::engine::EngineBuilder::shared), or it came from elsewhere; also for elements that
    /// are opaque handles. Where that turns out later, the tensor fails.
    pub async fn send(&self, tensor: &Tensor, options: &ShareOptions) -> Result<(), Error> {
        noted(&self.engine, "send", self.send_unnoted(tensor, options)).await.0?
    }

    async fn send_unnoted(&self, tensor: &Tensor, options: &ShareOptions) -> Result<(), Error> {
        let export = Export::new(tensor, self.owner(), options.copy, false)?;
        if let Some(ShownMemory::Here(place)) = export.shown.get() {
            self.introduce().await?;
            return hand_over(&self.link, &[], Arc::clone(&export), place, 0).await;
        }
        let ticket = Ticket::new(export, false, Vec::new())?;
        let answer = self.link.send(&done(), &Note::Ticket(ticket.named()).to_bytes(&[])).await?;
        Reactor::global().when_settled([&answer], move |_| drop(ticket));
        Ok(())
    }

    /// Lends the tensor to the other process for writing: that process alone uses it until it is done. What
    /// it has written is the next version then. The version has failed if that process could not take the
    /// tensor, has closed the link before, or died meanwhile, or if an operation of that process has failed
    /// that wrote it. A later pure write makes the tensor usable again. Waits while the link is full.
    ///
    /// # Errors
    /// [`Error::NotShared`] if the memory is not [for that](crate::engine::Memory::SharedForWriting);
    /// [`Error::Device`] if the other process left or died; [`Error::Shutdown`] as [`send`](Self::send).
    pub async fn lend(&self, tensor: &Tensor) -> Result<(), Error> {
        noted(&self.engine, "send", self.lend_unnoted(tensor)).await.0?
    }

    async fn lend_unnoted(&self, tensor: &Tensor) -> Result<(), Error> {
        let export = Export::for_writing(tensor, self.owner())?;
        let Some(ShownMemory::Here(place)) = export.shown.get() else { unreachable!("it was found here") };
        let ExportMemory::Host(segment) = &place.segment else {
            unreachable!("host memory alone is for writing")
        };
        let number = self.link.when_room(|| self.link.show_for_writing(segment)).await?;
        let (first, layout, key) = (place.first as u64, place.layout.clone(), export.key);
        let description = Description { number, first, layout, key, share: 0, is_writable: true };
        let answer = self.link.send(&export.ready, &Note::Tensor(description).to_bytes(&[])).await?;
        // A receiver that closes the link answers messages that it has not received before the lease is
        // granted.
        let fences = [answer.clone(), export.ready.clone()];
        Reactor::global().when_settled(fences, move |_| export.written(answer));
        Ok(())
    }

    /// Sends the other process, before the first tensor, the door at which it requests tickets for tensors
    /// that it passes on. Where the system refuses a door, sent tensors can be used all the same, and copies
    /// of them passed on.
    async fn introduce(&self) -> Result<(), Error> {
        if !self.is_introduced.load(Ordering::Acquire)
            && let Ok((address, _)) = ticket::door()
        {
            self.link.send(&done(), &Note::Door(address).to_bytes(&[])).await?;
            self.is_introduced.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The next tensor of the other process: a promise, in the memory of that process, and read-only unless
    /// it was lent for writing. `None` once that process has closed the link in good order.
    ///
    /// # Errors
    /// [`Error::Device`] if the other process died; [`Error::Invalid`] if it violates the protocol;
    /// [`Error::Shutdown`].
    #[track_caller]
    pub fn receive(&self) -> impl Future<Output = Result<Option<Tensor>, Error>> + Send + use<'_> {
        self.receive_at(this_line())
    }

    /// As [`receive`](Self::receive), at a line of a program in another language.
    pub(crate) async fn receive_at(&self, site: Option<CallSite>) -> Result<Option<Tensor>, Error> {
        let (next, noted) = noted(&self.engine, "receive", self.next()).await;
        let (received, note) = match next? {
            Ok(next) => next,
            Err(LinkError::Closed { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let description = match note {
            Some(Note::Tensor(description)) => description,
            Some(Note::Ticket(ticket)) => {
                let builder = self.engine.op(ticket.title()).beyond_limit()?;
                return ticket::redeem(builder, ticket, site, Some(Box::new(received)), noted).map(Some);
            }
            Some(Note::Later | Note::Door(_)) | None => {
                let error = Error::invalid(format!("process {} sent no tensor", self.process()));
                return Err(refuse(received, error));
            }
        };
        let RemoteMemory { managed, loan, ready, key, process } =
            adopt(&self.link, received, description, self.door.get())?;
        let tensor = import::of_another_process(self.engine.core(), managed, loan, &ready, process)?;
        if trace::is_open() {
            let import = hooks::received(&tensor, process, key, &ready, site.as_ref());
            if let (Some(noted), Some(import)) = (&noted, import) {
                noted.was_for(import.get());
            }
        }
        Ok(Some(tensor))
    }

    /// The next message that is no door, and its note.
    async fn next(&self) -> Result<(Received, Option<Note>), LinkError> {
        loop {
            let received = self.link.receive().await?;
            match Note::from_bytes(received.note()) {
                Some(Note::Door(address)) => {
                    self.door.get_or_init(|| address);
                }
                note => return Ok((received, note)),
            }
        }
    }
}

/// The line of the caller, if it will be noted.
#[track_caller]
fn this_line() -> Option<CallSite> {
    let line = std::panic::Location::caller();
    trace::is_open().then(|| CallSite {
        file: line.file().to_owned(),
        line: line.line(),
        function: String::new(),
    })
}

/// Options of showing a tensor to another process.
#[derive(Clone, Debug)]
pub struct ShareOptions {
    /// When the other process gets a copy, which this process makes in shared memory once the tensor is
    /// ready. `None`: where the memory is not shared, on its device where that is possible. `Some(true)`:
    /// always, on the host. `Some(false)`: never.
    /// [`Stats::copied_for_processes`](crate::engine::Stats::copied_for_processes) counts the bytes.
    pub copy: Option<bool>,
    /// A ticket is for one use. Dropping the ticket changes nothing: the version is kept until the ticket was
    /// used and what was made with it is gone, until [`Ticket::revoke`], or else for as long as this process
    /// lives.
    pub once: bool,
    /// Of a ticket: where other machines reach this one, `host` or `host:port`. The process then listens
    /// there, for as long as it lives. Without a port the system chooses one. This takes the feature `nixl`
    /// and NIXL itself, here and there. Data and the secret of the ticket cross the network as they are, so
    /// its machines must trust each other.
    pub reach: Option<String>,
    /// With `reach`: after how much silence a process on another machine takes this one for dead, and this
    /// one suspects that. The least is 2 s.
    pub deadline: Duration,
}

/// [`ShareOptions::deadline`] unless given.
const DEADLINE: Duration = Duration::from_secs(10);

impl Default for ShareOptions {
    fn default() -> Self {
        Self { copy: None, once: false, reach: None, deadline: DEADLINE }
    }
}

/// The uses of exports by other processes.
#[derive(Default)]
struct Shares {
    /// Each by its number, and the process.
    exports: BTreeMap<u64, (u32, Arc<Export>)>,
    /// The processes by the owners of the leases, whose exports keep them, and the numbers.
    users: BTreeMap<(usize, u64), u32>,
}

per_process! {
    static SHARES: Mutex<Shares> = Mutex::new(Shares { exports: BTreeMap::new(), users: BTreeMap::new() });
    static LAST_SHARE: AtomicU64 = AtomicU64::new(0);
}

/// A use of an export by another process. Dropping the share ends the use.
struct Share(u64);

impl Share {
    fn new(process: u32, export: Arc<Export>) -> Self {
        let number = LAST_SHARE.fetch_add(1, Ordering::Relaxed) + 1;
        let mut shares = SHARES.lock();
        shares.users.insert((export.owner.slot(), number), process);
        shares.exports.insert(number, (process, export));
        drop(shares);
        let _ = USERS.set(users);
        Self(number)
    }

    /// The export that the process uses under this number.
    fn find(number: u64, process: u32) -> Option<Arc<Export>> {
        let shares = SHARES.lock();
        shares.exports.get(&number).filter(|(user, _)| *user == process).map(|(_, export)| Arc::clone(export))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = SHARES.lock();
        let ended = shares.exports.remove(&self.0);
        if let Some((_, export)) = &ended {
            shares.users.remove(&(export.owner.slot(), self.0));
        }
        drop(shares);
        drop(ended);
    }
}

/// The processes that use exports of this owner of a lease. The owner is a ticket, or the process that a
/// tensor was sent to, which may have passed the tensor on.
fn users(owner: &LeaseOwner) -> String {
    let shares = SHARES.lock();
    let users = shares.users.range((owner.slot(), 0)..=(owner.slot(), u64::MAX));
    let users: BTreeSet<_> = users.map(|(_, user)| format!("process {user}")).collect();
    drop(shares);
    let users = Vec::from_iter(users).join(", ");
    match owner.starts_with("a ticket") {
        _ if users.is_empty() || *users == **owner => String::new(),
        true => format!(" in use by {users}"),
        false => format!(", in use by {users},"),
    }
}

/// Sends an export, whose place is known, behind `prefix`, and leaves room for `kept` messages. The share
/// ends when the other process touches the memory no more.
async fn hand_over(
    link: &RawLink,
    prefix: &[u8],
    export: Arc<Export>,
    place: &SegmentRange,
    kept: usize,
) -> Result<(), Error> {
    let number = link.when_room(|| place.segment.show(link)).await?;
    let (first, layout, key) = (place.first as u64, place.layout.clone(), export.key);
    let ready = export.ready.clone();
    let share = Share::new(link.process(), export);
    pass_step("share");
    let description = Description { number, first, layout, key, share: share.0, is_writable: false };
    let note = Note::Tensor(description).to_bytes(prefix);
    let answer = link.when_room(|| link.try_send_within(&ready, &note, kept)).await?;
    Reactor::global().when_settled([&answer], move |_| drop(share));
    Ok(())
}

/// A fence that is done.
fn done() -> Fence {
    let (completer, done) = host::promise("a message");
    completer.complete();
    done
}

/// Memory of another process.
struct RemoteMemory {
    managed: ManagedTensor,
    loan: Option<Loan>,
    /// The time at which it may be used.
    ready: Fence,
    /// The number of its lease in traces.
    key: u64,
    /// The owner.
    process: u32,
}

/// The address of a tensor's data, `first` bytes into the memory at `start`; `None` if it is not inside of
/// these `bytes`.
fn inside(layout: &Layout, first: u64, start: *mut u8, bytes: usize) -> Result<Option<*mut u8>, Error> {
    let Some(first) = usize::try_from(first).ok().filter(|first| *first <= bytes) else { return Ok(None) };
    let data = start.wrapping_add(first);
    layout.check_data(data)?;
    let range = layout.byte_range(data);
    Ok((range.start >= start.addr() && range.end <= start.addr() + bytes).then_some(data))
}

/// Answers that the received tensor is not taken. A tensor that was lent for writing is then not written.
fn refuse(received: Received, error: Error) -> Error {
    received.fail(device_error(error.clone()));
    error
}

/// Adopts a received tensor with its description, from a process whose door for tickets is at `address`.
fn adopt(
    link: &RawLink,
    received: Received,
    description: Description,
    address: Option<&Address>,
) -> Result<RemoteMemory, Error> {
    let process = link.process();
    let Description { number, first, layout, key, share, is_writable } = description;
    let found = || {
        let segment = link.segment(number)?;
        let (start, bytes, device, is_for_writing) = match &segment {
            PeerMemory::Host(segment) => {
                (segment.start(), segment.bytes(), DLDevice::CPU, segment.is_writable())
            }
            PeerMemory::Device(segment) => {
                let Opened(memory) = segment.open(Opened::new)?;
                let memory = memory.as_ref().expect("until it is dropped");
                (memory.ptr(), segment.bytes(), memory.device(), false)
            }
        };
        let layout = Layout::strided(layout.dtype(), device, layout.shape(), layout.strides())?
            .with_padding(layout.is_padded());
        let data = inside(&layout, first, start.as_ptr(), bytes)?.ok_or_else(|| {
            Error::invalid(format!("process {process} sent a tensor outside of its memory"))
        })?;
        if is_writable != is_for_writing {
            return Err(Error::invalid(format!(
                "process {process} lent memory in another way than it had shown it"
            )));
        }
        Ok((segment, layout, data))
    };
    let (segment, layout, data) = match found() {
        Ok(found) => found,
        Err(error) => return Err(refuse(received, error)),
    };
    pass_step("adopt");
    let ready = received.fence().clone();
    let failure = Arc::new(OnceLock::<DeviceError>::new());
    let written = Arc::clone(&failure);
    let end = move || {
        match written.get() {
            Some(error) => received.fail(error.clone()),
            None => received.complete(),
        }
        drop(segment);
    };
    let flags = ExportFlags { read_only: !is_writable, is_copied: false };
    // SAFETY: the elements are inside of the segment, which is mapped until the end; its owner leaves them
    // alone between the fence and the answer that the end gives, and for writing lends them to this process
    // alone.
    let managed = unsafe { export(&layout, data, flags, Abi::Versioned, end) };
    let origin = || {
        address.map(|address| RemoteOrigin { address: address.clone(), process, share, peer: link.peer() })
    };
    let loan = if is_writable { Some(Loan::ForWriting(failure)) } else { origin().map(Loan::ForReading) };
    Ok(RemoteMemory { managed, loan, ready, key, process })
}

/// Memory of a device of another process, which this one has opened.
struct Opened(Option<Allocation>);

impl Opened {
    fn new(identity: &Identity, descriptor: &Descriptor, bytes: usize) -> Result<Self, DeviceError> {
        let device = table::identified(identity)?;
        let shared = device.shared_memory().ok_or_else(|| {
            let message = format!("{} takes no memory of other processes", device.id());
            DeviceError::new(DeviceErrorKind::Invalid, message)
        })?;
        Ok(Self(Some(shared.open(descriptor, bytes)?)))
    }
}

impl Drop for Opened {
    /// The driver may wait, and the thread of links may be the one that is here.
    fn drop(&mut self) {
        if let Some(memory) = self.0.take() {
            reaper().release(FenceSet::default(), Storage::device(memory));
        }
    }
}
