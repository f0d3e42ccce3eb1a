//! The process that has a ticket: its requests to the owner, one link for all tickets of that owner, and the
//! tensors that they get.

use std::collections::BTreeMap;
use std::sync::Arc;

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, FenceState, Reactor};
use estafette_links::{Address, Link as RawLink, LinkError, PeerMemory, Received, pass_step, place};
use estafette_report::model;
use estafette_sync::per_process;
use estafette_sync::sync::Mutex;
use tokio::sync::oneshot;

use super::super::{Description, Note, RemoteMemory, adopt, done, network};
use super::{Secret, Ticket, VOID};
use crate::core::error::Error;
use crate::core::operation::Name;
use crate::lease::CallSite;
use crate::operation::builder::OpBuilder;
use crate::operation::completion::Completion;
use crate::operation::import::Produced;
use crate::tensor::handle::Tensor;
use crate::trace::hooks::WaitNoted;
use crate::trace::{self, hooks};
use crate::wait::notify::notify;

per_process! {
    /// Processes whose tickets were used here, by the addresses of their doors.
    static OWNERS: Mutex<BTreeMap<Vec<u8>, Arc<TicketOwner>>> = Mutex::new(BTreeMap::new());
}

/// Dropped once the process that was asked keeps the version for this one, or refuses.
pub(in crate::remote) type UntilHeld = Option<Box<dyn Send>>;

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
            // On this machine it has died, or has never been.
            Err(error) if !reach.is_empty() && is_not_here(&error) => {
                network::fetch(&reach, process, secret, until_held, completion, site);
            }
            Err(error) => completion.produce(Err(Box::new(error))),
        });
    })
}

/// True if the process with the tensor was not found on this machine. A death that another process tells of
/// has no number.
fn is_not_here(error: &Error) -> bool {
    match error {
        Error::Device(error) => error.process().is_some(),
        Error::NotShared(_) => true,
        _ => false,
    }
}

/// The named version, as it came over the link to its owner.
pub(super) struct NamedVersion {
    link: Arc<RawLink>,
    received: Received,
    description: Description,
    /// The address of the owner's door for tickets.
    address: Address,
}

impl NamedVersion {
    /// Produces the tensor. Opening memory of a device may take the driver milliseconds, in which the thread
    /// of links, which may be the calling one, would see to no other link: a worker does that.
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
                    let origin = model::ImportOrigin { process, key, clock: None };
                    hooks::has_origin(completion.scope().id(), &origin, site.as_ref());
                }
                completion.produce_after(&ready, Ok(Produced::elsewhere(managed, loan)));
            }
            Err(error) => completion.produce(Err(Box::new(error))),
        }
    }
}

/// Requests the tensor of a ticket from the process that made the ticket.
async fn request_tensor(ticket: &Ticket, until_held: UntilHeld) -> Delivered {
    let request = TicketRequest::Redeem(ticket.secret);
    TicketOwner::request(&ticket.address, ticket.place, ticket.process, request, until_held).await
}

/// Requests the tensor of a ticket from the process that owns its memory. That is not the process that made
/// the ticket where the tensor came from elsewhere. Returns `until_held` too if no process that may keep the
/// version was found.
async fn asked_for(ticket: Ticket, until_held: UntilHeld) -> (Result<NamedVersion, Error>, UntilHeld) {
    let process = ticket.process;
    let (passed, received) = match request_tensor(&ticket, until_held).await {
        (Ok(Answer::Tensor(tensor)), _) => return (Ok(tensor), None),
        (Ok(Answer::Ticket(passed, received)), _) => (passed, received),
        (Err(error), until_held) => return (Err(error), until_held),
    };
    // The process between keeps its own use until the owner keeps the version for this process.
    let tensor = match request_tensor(&passed, Some(Box::new(received))).await.0 {
        Ok(Answer::Tensor(tensor)) => Ok(tensor),
        Ok(Answer::Ticket(..)) => {
            Err(Error::invalid(format!("process {process} passed on what was not its own")))
        }
        // The owner has seen the death of that process, or the process has released the tensor. A second
        // request tells the two apart.
        Err(Error::Invalid(why)) if why.contains(VOID) => match request_tensor(&ticket, None).await.0 {
            Ok(Answer::Tensor(tensor)) => Ok(tensor),
            Ok(Answer::Ticket(..)) | Err(Error::Invalid(_)) => {
                Err(Error::invalid(format!("process {process}, which passed the tensor on, has released it")))
            }
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    (tensor, None)
}

/// A request to a process.
pub(super) enum TicketRequest {
    /// For what a ticket names.
    Redeem(Secret),
    /// For a ticket that another process can use, for what this one has in use under this number.
    PassOn(u64),
}

impl TicketRequest {
    fn to_bytes(&self, number: u64) -> Vec<u8> {
        let what: &[u8] = match self {
            Self::Redeem(secret) => secret,
            Self::PassOn(share) => &share.to_le_bytes(),
        };
        [&number.to_le_bytes()[..], what].concat()
    }

    /// `None` for bytes that ask for nothing.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<(u64, Self)> {
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
pub(super) enum Answer {
    Tensor(NamedVersion),
    /// A ticket of the owner of the memory, which is valid until what was received is dropped.
    Ticket(Ticket, Received),
}

/// With what was to be dropped once the version is held, if that has not come about.
pub(super) type Delivered = (Result<Answer, Error>, UntilHeld);

/// A request without an answer.
struct PendingRequest {
    request: Vec<u8>,
    deliver: oneshot::Sender<Delivered>,
    until_held: UntilHeld,
}

/// A process whose tickets are used here. Links to it are made once, and end with it.
pub(super) struct TicketOwner {
    state: Mutex<OwnerState>,
}

#[derive(Default)]
struct OwnerState {
    link: Option<Arc<RawLink>>,
    /// The last request.
    number: u64,
    requests: BTreeMap<u64, PendingRequest>,
}

impl TicketOwner {
    /// Sends `request` to the process with the door at `address`, whose place is `place_of_door`, or 0, and
    /// returns the answer.
    pub(super) async fn request(
        address: &Address,
        place_of_door: u64,
        process: u32,
        request: TicketRequest,
        until_held: UntilHeld,
    ) -> Delivered {
        let (deliver, answer) = oneshot::channel();
        Self::begin(address, place_of_door, process, |number| PendingRequest {
            request: request.to_bytes(number),
            deliver,
            until_held,
        });
        answer.await.unwrap_or_else(|_| (Err(LinkError::Closed { process }.into()), None))
    }

    fn begin(address: &Address, place_of_door: u64, process: u32, new: impl FnOnce(u64) -> PendingRequest) {
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
            notify(async move { owner.run(&address, place_of_door, process).await }, |()| ());
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
    async fn run(self: Arc<Self>, address: &Address, place_of_door: u64, process: u32) {
        let mut link = RawLink::connect(address).await;
        // A process that dies hangs up first, and then has no door.
        for _ in 0..2 {
            if matches!(link, Err(LinkError::Refused(_))) {
                link = RawLink::connect(address).await;
            }
        }
        let error = match link {
            Ok(link) => self.receive_answers(Arc::new(link), address).await.into(),
            // The door of a process that lives stays open. How it ended is not known where there was no link.
            Err(LinkError::System { error, .. }) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                Self::not_found(place_of_door, process)
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

    /// The error where no door has the address.
    fn not_found(place_of_door: u64, process: u32) -> Error {
        let here = place();
        if place_of_door != 0 && here != 0 && place_of_door != here {
            return Error::NotShared(
                format!(
                    "process {process}, which has the tensor, is on another machine or in another network namespace (as of a container): \
                     make the ticket with reach, or send a copy"
                )
                .into(),
            );
        }
        let text = format!("process {process} died or ended before the tensor was taken from it");
        DeviceError::new(DeviceErrorKind::PeerDied, text).with_process(process).into()
    }

    /// From now on requests are sent at once. Returns those that were made before.
    fn connected(&self, link: &Arc<RawLink>) -> Vec<(u64, Vec<u8>)> {
        let mut state = self.state.lock();
        state.link = Some(Arc::clone(link));
        state.requests.iter().map(|(number, pending)| (*number, pending.request.clone())).collect()
    }

    async fn receive_answers(self: &Arc<Self>, link: Arc<RawLink>, address: &Address) -> LinkError {
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
                    Ok(Answer::Tensor(NamedVersion { link, received, description, address }))
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
