//! Tickets: bytes that name a version of a tensor, for processes that no link joins yet.
//!
//! The owner has one door for tickets, and serves what comes through it on the threads that wake it. A process that has a ticket makes one
//! link to that door, for all tickets of that owner: it sends a number and the secret of a ticket, and gets the number and an export, or a
//! failure. Where the tensor has no memory yet, or a ticket has an operation take the memory of a large copy, it hears first that the
//! version is kept.
//!
//! A process that passes a tensor on asks the owner of the memory for a ticket, over the same link, when its own ticket is used:
//!
//! ```text
//! owner               between             consumer
//!   │                    │◄─ redeem ──────────│
//!   │                    │── later ──────────►│   the ticket of the one between may be dropped
//!   │◄─ pass on ─────────│                    │
//!   │── ticket ─────────►│── ticket ─────────►│   valid until the one between has answered
//!   │◄─ redeem ───────────────────────────────│
//!   │── tensor ──────────────────────────────►│   under a share of its own; answers the one between
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, FenceState, Reactor, host};
use estafette_links::{Address, Door, Link as RawLink, LinkError, PeerMemory, Received, pass_step, secret};
use estafette_report::model;
use estafette_sync::per_process;
use estafette_sync::sync::Mutex;
use tokio::sync::oneshot;

use super::{
    DEADLINE, Description, Export, Note, RemoteMemory, Share, ShareOptions, Shown, adopt, done, export,
    hand_over, network, this_line,
};
use crate::core::error::Error;
use crate::core::operation::Name;
use crate::engine::Engine;
use crate::exchange::loan::RemoteOrigin;
use crate::lease::{CallSite, LeaseOwner};
use crate::operation::builder::OpBuilder;
use crate::operation::completion::Completion;
use crate::operation::import::Produced;
use crate::tensor::handle::Tensor;
use crate::trace::hooks::WaitNoted;
use crate::trace::{self, hooks};
use crate::wait::notify::{device_error, notify};

/// Tickets of this process at the same time.
const TICKETS_MAX: usize = 1 << 16;

/// Answers to one process that wait for room while its further requests are read. Each tries again with all that comes.
const ANSWERS_MAX: usize = 128;
/// Room of a link that tensors leave to refusals, and to tickets of what is passed on.
const KEPT: usize = 64;

type Secret = [u8; 16];

per_process! {
    /// The door for tickets, once there is one. It stays for as long as the process lives.
    static DOOR: Mutex<Option<Address>> = Mutex::new(None);
    static EXPORTS: Mutex<BTreeMap<Secret, Ticketed>> = Mutex::new(BTreeMap::new());
    /// Processes whose tickets were used here, by the addresses of their doors.
    static OWNERS: Mutex<BTreeMap<Vec<u8>, Arc<Owner>>> = Mutex::new(BTreeMap::new());
}

/// The export that a ticket names.
struct Ticketed {
    export: Arc<Export>,
    /// True if the first use is the last one.
    is_for_one: bool,
}

/// Names a version of a tensor for other processes of the same user and machine: [`Tensor::ticket`], [`Engine::from_ticket`].
///
/// The version is under a read lease until the ticket is dropped or [revoked](Self::revoke) and everything that was made with it is gone.
/// A ticket that was made from bytes holds nothing.
#[derive(Debug)]
pub struct Ticket {
    address: Address,
    process: u32,
    secret: Secret,
    /// The address for other machines; no bytes if they do not reach the process.
    pub(crate) reach: Vec<u8>,
    is_owner: bool,
}

impl Tensor {
    /// A ticket for the tensor's current version, ready or not. Writes submitted later wait until it is dropped, and what was made with
    /// it. Waits for nothing. What is not shared is copied, as by [`Link::send`](super::Link::send).
    ///
    /// On another machine the tensor is a copy, and the version's lease ends when the copy is made. If the other process falls silent before
    /// that, the lease stays: waits that it holds up name the process, until the network works again or the process is declared dead.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no memory for a copy of up to 1 MiB; without memory for a larger one the tensor fails in the other
    /// process; [`Error::Invalid`] if 65,536 tickets are alive, and for a deadline without `reach`; [`Error::NotShared`] as
    /// [`Link::send`](super::Link::send). With [`ShareOptions::reach`] also [`Error::Invalid`] and [`Error::Device`] if NIXL is missing or the
    /// address is none of this machine.
    pub fn ticket(&self, options: &ShareOptions) -> Result<Ticket, Error> {
        self.ticket_at(options, None)
    }

    /// As [`ticket`](Self::ticket), taken at a line that its lease names. For bindings.
    pub(crate) fn ticket_at(&self, options: &ShareOptions, site: Option<CallSite>) -> Result<Ticket, Error> {
        self.inner.core.check_usable()?;
        if options.reach.is_none() && options.deadline != DEADLINE {
            return Err(Error::invalid(
                "deadline is given without reach: it is for processes on other machines",
            ));
        }
        let listen = |at: &String| network::listen(at, options.deadline);
        let reach = options.reach.as_ref().map(listen).transpose()?.unwrap_or_default();
        // Another machine can be given host memory of this process alone.
        let copied = (!reach.is_empty() && export::is_elsewhere(self)).then_some(true);
        let owner = if options.once { "a ticket for one use" } else { "a ticket" };
        let owner = LeaseOwner::from(owner);
        let owner = site.into_iter().fold(owner, LeaseOwner::at);
        let export = Export::new(self, owner, options.copy.or(copied), true)?;
        Ticket::new(export, options.once, reach)
    }
}

impl Ticket {
    pub(super) fn new(export: Arc<Export>, is_for_one: bool, reach: Vec<u8>) -> Result<Self, Error> {
        let (address, secret) = (door()?, secret()?);
        let mut exports = EXPORTS.lock();
        if exports.len() >= TICKETS_MAX {
            drop(exports);
            return Err(Error::invalid(format!("{TICKETS_MAX} tickets are alive, which is the most")));
        }
        exports.insert(secret, Ticketed { export, is_for_one });
        drop(exports);
        pass_step("ticket");
        Ok(Self { address, process: std::process::id(), secret, reach, is_owner: !is_for_one })
    }

    /// The same name, which holds nothing.
    pub(crate) fn named(&self) -> Self {
        let Self { address, process, secret, reach, .. } = self;
        let (address, reach) = (address.clone(), reach.clone());
        Self { address, process: *process, secret: *secret, reach, is_owner: false }
    }

    /// From now on nothing new can be made with the ticket, also if it is for one use, which its drop leaves valid. What was made with it
    /// stays. Only the process that made the ticket can revoke it.
    pub fn revoke(&self) {
        let export = EXPORTS.lock().remove(&self.secret);
        drop(export);
    }

    /// The name of the operation that waits for the tensor.
    pub(crate) fn title(&self) -> String {
        format!("tensor of process {}", self.process)
    }

    /// The ticket as bytes, which may travel through anything.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.address.as_bytes(), &self.process.to_le_bytes(), &self.secret, &self.reach].concat()
    }

    /// The ticket that `bytes` are.
    ///
    /// # Errors
    /// [`Error::Invalid`]: they are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let none = || Error::invalid(format!("{} bytes that are no ticket", bytes.len()));
        let (address, rest) = bytes.split_at_checked(Address::BYTES).ok_or_else(none)?;
        let (process, secret) = rest.split_at_checked(4).ok_or_else(none)?;
        let (secret, reach) = secret.split_first_chunk().ok_or_else(none)?;
        if !reach.is_empty() && network::parse(reach).is_none() {
            return Err(none());
        }
        Ok(Self {
            address: Address::from_bytes(address).map_err(|_| none())?,
            process: u32::from_le_bytes(*process.as_array().ok_or_else(none)?),
            secret: *secret,
            reach: reach.to_vec(),
            is_owner: false,
        })
    }

    /// The process that has the tensor, as that process sees itself.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_owner {
            self.revoke();
        }
    }
}

impl Engine {
    /// The tensor of a ticket: a promise, read-only, in the memory of the process that made the ticket, or a copy if that process is on
    /// another machine. Waits as submissions do.
    ///
    /// It fails if that process has died, or if the ticket was dropped before.
    ///
    /// # Errors
    /// Those of a submission.
    #[track_caller]
    pub fn from_ticket(&self, ticket: &Ticket) -> Result<Tensor, Error> {
        redeem(self.op(ticket.title()), ticket.named(), this_line(), None, None)
    }
}

/// Dropped once the process that was asked keeps the version for this one, or refuses.
pub(super) type UntilHeld = Option<Box<dyn Send>>;

/// The tensor of a ticket, which an operation waits for. `waited`: the wait that has brought the ticket.
pub(crate) fn redeem(
    builder: OpBuilder<'_>,
    ticket: Ticket,
    site: Option<CallSite>,
    until_held: UntilHeld,
    waited: Option<WaitNoted>,
) -> Result<Tensor, Error> {
    let (process, secret, reach) = (ticket.process, ticket.secret, ticket.reach.clone());
    pass_step("redeem");
    builder.receive(move |completion| {
        if let Some(waited) = waited {
            waited.was_for(completion.scope().id());
        }
        notify(asked_for(ticket, until_held), move |(answer, until_held)| match answer {
            Ok(given) => given.produce(completion, site),
            // On this machine it has died, or has never been. A death that it tells of has no number.
            Err(Error::Device(error)) if error.process().is_some() && !reach.is_empty() => {
                network::fetch(&reach, process, secret, until_held, completion, site);
            }
            Err(error) => completion.produce(Err(Box::new(error))),
        });
    })
}

/// The named version, as it came over the link to its owner.
struct Given {
    link: Arc<RawLink>,
    received: Received,
    description: Description,
    /// That of the owner's door for tickets.
    address: Address,
}

impl Given {
    /// Produces the tensor. Opening memory of a device may take the driver milliseconds, in which the thread of links, which may be the
    /// calling one, would see to no other link: a worker does that.
    fn produce(self, completion: Completion, site: Option<CallSite>) {
        let must_open = match self.link.segment(self.description.number) {
            Ok(PeerMemory::Device(segment)) => !segment.is_opened(),
            Ok(PeerMemory::Host(_)) | Err(_) => false,
        };
        let core = completion.scope().core().filter(|_| must_open);
        let name = || Name::Shared(Arc::new(format!("open memory of process {}", self.link.process())));
        // An engine that shuts down takes no more operations, and waits for this one.
        match core.as_ref().map(|core| OpBuilder::new(core, name()).beyond_limit()) {
            Some(Ok(builder)) => {
                // A refusal drops the completion, which fails the tensor.
                let opened = builder.run(move |[], []| {
                    self.produce_here(completion, site);
                    Ok(())
                });
                if let Err(error) = opened {
                    tracing::error!(%error, "memory of another process is not opened");
                }
            }
            _ => self.produce_here(completion, site),
        }
    }

    fn produce_here(self, completion: Completion, site: Option<CallSite>) {
        match adopt(&self.link, self.received, self.description, Some(&self.address)) {
            Ok(RemoteMemory { managed, loan, ready, key, process }) => {
                if trace::is_open() {
                    let elsewhere = model::Elsewhere { process, key, clock: None };
                    hooks::is_elsewhere(completion.scope().id(), &elsewhere, site.as_ref());
                }
                completion.produce_after(&ready, Ok(Produced::elsewhere(managed, loan)));
            }
            Err(error) => completion.produce(Err(Box::new(error))),
        }
    }
}

/// Requests the tensor of a ticket from the process that owns its memory. That is not the process that made the ticket where the tensor came from
/// elsewhere. Returns `until_held` too if no process that may keep the version was found.
async fn asked_for(ticket: Ticket, until_held: UntilHeld) -> (Result<Given, Error>, UntilHeld) {
    let process = ticket.process;
    let (passed, received) =
        match Owner::request(&ticket.address, process, Request::Redeem(ticket.secret), until_held).await {
            (Ok(Answer::Tensor(tensor)), _) => return (Ok(tensor), None),
            (Ok(Answer::Ticket(passed, received)), _) => (passed, received),
            (Err(error), until_held) => return (Err(error), until_held),
        };
    // The process between keeps its own use until the owner keeps the version for this process.
    let request = Request::Redeem(passed.secret);
    let answer = Owner::request(&passed.address, passed.process, request, Some(Box::new(received))).await.0;
    let tensor = match answer {
        Ok(Answer::Tensor(tensor)) => Ok(tensor),
        Ok(Answer::Ticket(..)) => {
            Err(Error::invalid(format!("process {process} passed on what was not its own")))
        }
        // The owner has seen the death of that process, or the process has released the tensor. A second request tells the two apart.
        Err(Error::Invalid(why)) if why.contains(VOID) => {
            match Owner::request(&ticket.address, process, Request::Redeem(ticket.secret), None).await.0 {
                Ok(Answer::Tensor(tensor)) => Ok(tensor),
                Ok(Answer::Ticket(..)) | Err(Error::Invalid(_)) => Err(Error::invalid(format!(
                    "process {process}, which passed the tensor on, has released it"
                ))),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    };
    (tensor, None)
}

// The owner.

/// The door for tickets, opened for the first of them.
pub(super) fn door() -> Result<Address, Error> {
    let mut known = DOOR.lock();
    if let Some(address) = &*known {
        return Ok(address.clone());
    }
    let door = Door::open()?;
    let address = known.insert(door.address().clone()).clone();
    drop(known);
    notify(serve(door), |()| ());
    Ok(address)
}

async fn serve(door: Door) {
    loop {
        match door.accept().await {
            Ok(link) => drop(notify(answer(link), |()| ())),
            // Most likely descriptors are short. The door goes on.
            Err(error) => {
                tracing::error!(%error, "a process that came with a ticket waits, or was hung up on")
            }
        }
    }
}

/// The export that a ticket names, if the ticket may still be used.
pub(super) fn named(secret: &Secret) -> Option<Arc<Export>> {
    let mut exports = EXPORTS.lock();
    let ticketed = exports.get(secret)?;
    if ticketed.is_for_one {
        return exports.remove(secret).map(|ticketed| ticketed.export);
    }
    Some(Arc::clone(&ticketed.export))
}

/// The reason why a ticket is refused.
pub(super) const VOID: &str =
    "the ticket is not valid any more: its process has dropped it, or it was for one use";

/// Answers another process until it leaves or dies. Up to [`ANSWERS_MAX`] answers that wait for room hold up no other one.
async fn answer(link: RawLink) {
    let link = Arc::new(link);
    while let Ok(received) = link.receive().await {
        let Some((number, request)) = Request::from_bytes(received.note()) else { break };
        drop(received);
        let answer = answer_to(Arc::clone(&link), number.to_le_bytes(), request);
        // Each answer that waits has the link.
        if Arc::strong_count(&link) < ANSWERS_MAX {
            notify(answer, |()| ());
        } else {
            answer.await;
        }
    }
    link.close();
}

async fn answer_to(link: Arc<RawLink>, number: [u8; 8], request: Request) {
    let sent = match request {
        Request::Redeem(secret) => match named(&secret) {
            Some(export) => give(&link, number, export).await,
            None => Err(Error::invalid(VOID)),
        },
        Request::PassOn(share) => match Share::find(share, link.process()) {
            Some(export) => pass_on(&link, number, export).await,
            None => Err(Error::invalid("no tensor of this process is in use under this number")),
        },
    };
    if let Err(error) = sent {
        let (completer, refused) = host::promise("a ticket");
        completer.fail(device_error(error));
        // This fails where the link has ended.
        let _ = link.send(&refused, &number).await;
    }
}

/// A ticket for a process that wants to pass on what it uses. It is valid until that process has answered.
async fn pass_on(link: &RawLink, number: [u8; 8], export: Arc<Export>) -> Result<(), Error> {
    let ticket = Ticket::new(export, false, Vec::new())?;
    pass_step("pass on");
    let answer = link.send(&done(), &Note::Ticket(ticket.named()).to_bytes(&number)).await?;
    Reactor::global().when_settled([&answer], move |_| drop(ticket));
    Ok(())
}

/// Gives what a ticket names: now, or once it is known what that is.
async fn give(link: &Arc<RawLink>, number: [u8; 8], export: Arc<Export>) -> Result<(), Error> {
    if let Some(Shown::Here(place)) = export.shown.get() {
        return hand_over(link, &number, Arc::clone(&export), place, KEPT).await;
    }
    let (completer, known) = host::promise("a tensor that comes later");
    let note = Note::Later.to_bytes(&number);
    link.when_room(|| link.try_send_within(&known, &note, KEPT)).await?;
    pass_step("later");
    // The end of the other process ends the link, however long this takes.
    let link = Arc::downgrade(link);
    notify(give_later(link, number, export), move |given| completer.settle(given.map_err(device_error)));
    Ok(())
}

async fn give_later(link: Weak<RawLink>, number: [u8; 8], export: Arc<Export>) -> Result<(), Error> {
    if export.shown.get().is_none() {
        export.known.settled().await?;
    }
    let connected = || link.upgrade().ok_or_else(|| Error::invalid("the other process has left"));
    match export.shown.get().expect("known when it is ready") {
        Shown::Here(place) => hand_over(&*connected()?, &number, Arc::clone(&export), place, KEPT).await,
        Shown::RemoteMemory(RemoteOrigin { address, process, share, peer }, tensor) => {
            let answer = match Owner::request(address, *process, Request::PassOn(*share), None).await.0 {
                // That process has ended. What was ready is passed on as a copy: on the host, where its end is known by this answer alone.
                Err(Error::Device(error))
                    if matches!(error.kind(), DeviceErrorKind::PeerDied | DeviceErrorKind::Cancelled) =>
                {
                    let on_host = (!peer.has_ended()).then_some(true);
                    let copy = Export::new(tensor, export.owner.clone(), on_host, true)?;
                    return Box::pin(give_later(link, number, copy)).await;
                }
                answer => answer?,
            };
            let Answer::Ticket(ticket, received) = answer else {
                return Err(Error::invalid(format!("process {process} gave what it was not asked for")));
            };
            let note = Note::Ticket(ticket).to_bytes(&number);
            let answer = connected()?.send(&done(), &note).await?;
            Reactor::global().when_settled([&answer], move |_| drop((received, export)));
            Ok(())
        }
    }
}

// Who has a ticket.

/// A request to a process.
enum Request {
    /// For what a ticket names.
    Redeem(Secret),
    /// For a ticket that another process can use, for what this one has in use under this number.
    PassOn(u64),
}

impl Request {
    fn to_bytes(&self, number: u64) -> Vec<u8> {
        let what: &[u8] = match self {
            Self::Redeem(secret) => secret,
            Self::PassOn(share) => &share.to_le_bytes(),
        };
        [&number.to_le_bytes()[..], what].concat()
    }

    /// `None` for bytes that ask for nothing.
    fn from_bytes(bytes: &[u8]) -> Option<(u64, Self)> {
        let (number, what) = bytes.split_first_chunk::<8>()?;
        let request = match (what.as_array(), what.as_array()) {
            (Some(secret), _) => Self::Redeem(*secret),
            (_, Some(share)) => Self::PassOn(u64::from_le_bytes(*share)),
            _ => return None,
        };
        Some((u64::from_le_bytes(*number), request))
    }
}

/// The answer.
enum Answer {
    Tensor(Given),
    /// A ticket of the owner of the memory, which is valid until what was received is dropped.
    Ticket(Ticket, Received),
}

/// With what was to be dropped once the version is held, if that has not come about.
type Delivered = (Result<Answer, Error>, UntilHeld);

/// A request without an answer.
struct PendingRequest {
    request: Vec<u8>,
    deliver: oneshot::Sender<Delivered>,
    until_held: UntilHeld,
}

/// A process whose tickets are used here. Links to it are made once, and end with it.
struct Owner {
    state: Mutex<OwnerState>,
}

#[derive(Default)]
struct OwnerState {
    link: Option<Arc<RawLink>>,
    /// The last request.
    number: u64,
    requests: BTreeMap<u64, PendingRequest>,
}

impl Owner {
    /// Sends `request` to the process with the door at `address`, and returns the answer.
    async fn request(address: &Address, process: u32, request: Request, until_held: UntilHeld) -> Delivered {
        let (deliver, answer) = oneshot::channel();
        Self::begin(address, process, |number| PendingRequest {
            request: request.to_bytes(number),
            deliver,
            until_held,
        });
        answer.await.unwrap_or_else(|_| (Err(LinkError::Closed { process }.into()), None))
    }

    fn begin(address: &Address, process: u32, new: impl FnOnce(u64) -> PendingRequest) {
        let mut owners = OWNERS.lock();
        let known = owners.get(address.as_bytes()).cloned();
        let owner = known.clone().unwrap_or_else(|| {
            let owner = Arc::new(Self { state: Mutex::default() });
            owners.insert(address.as_bytes().to_vec(), Arc::clone(&owner));
            owner
        });
        // Under the lock of all: one that is over is not among them.
        let mut state = owner.state.lock();
        state.number += 1;
        let number = state.number;
        let pending = new(number);
        let request = pending.request.clone();
        state.requests.insert(number, pending);
        let link = state.link.clone();
        drop(state);
        drop(owners);
        if known.is_none() {
            let address = address.clone();
            notify(async move { owner.run(&address, process).await }, |()| ());
        } else if let Some(link) = link {
            owner.send_soon(link, number, request);
        }
    }

    /// Sends a request, after others while the link is full.
    fn send_soon(self: Arc<Self>, link: Arc<RawLink>, number: u64, request: Vec<u8>) {
        notify(async move { self.send(&link, number, &request).await }, |()| ());
    }

    async fn send(&self, link: &RawLink, number: u64, request: &[u8]) {
        if let Err(error) = link.send(&done(), request).await {
            self.deliver(number, Err(error.into()));
        }
    }

    fn deliver(&self, number: u64, answer: Result<Answer, Error>) {
        let pending = self.state.lock().requests.remove(&number);
        if let Some(PendingRequest { deliver, until_held, .. }) = pending {
            // Dropped where it is not wanted any more.
            let _ = deliver.send((answer, until_held));
        }
    }

    /// The other process keeps the version, and the answer comes when `known` is done.
    fn is_held(self: &Arc<Self>, number: u64, known: &Fence) {
        let mut state = self.state.lock();
        let until_held = state.requests.get_mut(&number).and_then(|request| request.until_held.take());
        drop(state);
        drop(until_held);
        let owner = Arc::clone(self);
        Reactor::global().when_settled([known], move |outcome| {
            if let Err(error) = outcome {
                owner.deliver(number, Err(Error::Device(error)));
            }
        });
    }

    /// Makes the link, takes answers for as long as it lasts, and then fails what was not answered.
    async fn run(self: Arc<Self>, address: &Address, process: u32) {
        let mut link = RawLink::connect(address).await;
        // A process that dies hangs up first, and then has no door.
        for _ in 0..2 {
            if matches!(link, Err(LinkError::Refused(_))) {
                link = RawLink::connect(address).await;
            }
        }
        let error = match link {
            Ok(link) => self.take_answers(Arc::new(link), address).await.into(),
            // The door of a process that lives stays open. How it ended is not known where there was no link.
            Err(LinkError::System { error, .. }) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                let text = format!("process {process} died or ended before the tensor was taken from it");
                DeviceError::new(DeviceErrorKind::PeerDied, text).with_process(process).into()
            }
            Err(error) => Error::from(error),
        };
        let mut owners = OWNERS.lock();
        owners.remove(address.as_bytes());
        let mut state = self.state.lock();
        let (link, requests) = (state.link.take(), std::mem::take(&mut state.requests));
        drop(state);
        drop(owners);
        drop(link);
        for PendingRequest { deliver, until_held, .. } in requests.into_values() {
            let _ = deliver.send((Err(error.clone()), until_held));
        }
    }

    /// From now on requests are sent at once. Returns those that were made before.
    fn connected(&self, link: &Arc<RawLink>) -> Vec<(u64, Vec<u8>)> {
        let mut state = self.state.lock();
        state.link = Some(Arc::clone(link));
        state.requests.iter().map(|(number, pending)| (*number, pending.request.clone())).collect()
    }

    async fn take_answers(self: &Arc<Self>, link: Arc<RawLink>, address: &Address) -> LinkError {
        for (number, request) in self.connected(&link) {
            Arc::clone(self).send_soon(Arc::clone(&link), number, request);
        }
        loop {
            let received = match link.receive().await {
                Ok(received) => received,
                Err(error) => return error,
            };
            let Some((number, note)) = received.note().split_first_chunk::<8>() else { continue };
            let number = u64::from_le_bytes(*number);
            let answer = match Note::from_bytes(note) {
                Some(Note::Later) => {
                    self.is_held(number, received.fence());
                    continue;
                }
                Some(Note::Tensor(description)) => {
                    let (link, address) = (Arc::clone(&link), address.clone());
                    Ok(Answer::Tensor(Given { link, received, description, address }))
                }
                Some(Note::Ticket(ticket)) => Ok(Answer::Ticket(ticket, received)),
                Some(Note::Door(_)) | None => Err(match received.fence().state() {
                    FenceState::Failed(error) if error.kind() == DeviceErrorKind::Invalid => {
                        Error::invalid(error.message().to_owned())
                    }
                    FenceState::Failed(error) => Error::Device(error),
                    _ => Error::invalid(format!("process {} sent no tensor", link.process())),
                }),
            };
            self.deliver(number, answer);
        }
    }
}
