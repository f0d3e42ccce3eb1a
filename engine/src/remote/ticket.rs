//! Tickets: bytes that name a version of a tensor, for processes that no link joins yet.
//!
//! The owner has one door for tickets, and serves what comes through it on the threads that wake it. A process that has a ticket makes one
//! link to that door, for all tickets of that owner: it sends a number and the secret of a ticket, and gets the number and an export, or a
//! failure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, FenceState, host};
use estafette_links::{Address, Door, Link as RawLink, LinkError, Received, secret};
use estafette_sync::per_process;
use estafette_sync::sync::Mutex;

use super::{Export, hand_over, take_over, this_line};
use crate::core::error::Error;
use crate::engine::Engine;
use crate::exchange::ManagedTensor;
use crate::lease::{CallSite, LeaseOwner};
use crate::operation::import::Produced;
use crate::tensor::handle::Tensor;
use crate::trace::{self, hooks};
use crate::wait::notify::notify;

/// Tickets of this process at the same time.
const TICKETS_MAX: usize = 1 << 16;

type Secret = [u8; 16];

per_process! {
    /// The door for tickets, once there is one, and the door itself while it does not accept. It stays for as long as the process lives.
    static DOOR: Mutex<Option<(Address, Option<Door>)>> = Mutex::new(None);
    static EXPORTS: Mutex<BTreeMap<Secret, Ticketed>> = Mutex::new(BTreeMap::new());
    /// Processes whose tickets were used here, by the addresses of their doors.
    static OWNERS: Mutex<BTreeMap<Vec<u8>, Arc<Owner>>> = Mutex::new(BTreeMap::new());
}

/// What a ticket names.
struct Ticketed {
    export: Arc<Export>,
    /// Whether the first use is the last one.
    is_for_one: bool,
}

/// Names a version of a tensor for other processes of the same user and machine: [`Tensor::ticket`], [`Engine::from_ticket`].
///
/// The version is under a read lease until the ticket is dropped and everything that was made with it is gone. A ticket that was made from
/// bytes holds nothing.
#[derive(Debug)]
pub struct Ticket {
    address: Address,
    process: u32,
    secret: Secret,
    /// How other machines reach the process; no bytes if they do not.
    reach: Vec<u8>,
    is_owner: bool,
}

impl Tensor {
    /// A ticket for the tensor's current version, ready or not. Writes submitted later wait until it is dropped, and what was made with
    /// it. Waits for nothing.
    ///
    /// # Errors
    /// [`Error::NotShared`] and [`Error::NotDefined`], as for [`Link::send`](super::Link::send); [`Error::Invalid`] if 65,536 tickets are
    /// alive.
    pub fn ticket(&self) -> Result<Ticket, Error> {
        self.make_ticket(false, Vec::new())
    }

    /// As [`ticket`](Self::ticket), for one use. Dropping the ticket changes nothing: the version is kept until the ticket was used and what
    /// was made with it is gone, or else for as long as this process lives.
    ///
    /// # Errors
    /// As [`ticket`](Self::ticket).
    pub fn ticket_for_one(&self) -> Result<Ticket, Error> {
        self.make_ticket(true, Vec::new())
    }

    pub(super) fn make_ticket(&self, is_for_one: bool, reach: Vec<u8>) -> Result<Ticket, Error> {
        self.inner.core.check_usable()?;
        let address = door()?;
        let secret = secret()?;
        let export = Arc::new(Export::new(self, LeaseOwner::from("a ticket"))?);
        let mut exports = EXPORTS.lock();
        if exports.len() >= TICKETS_MAX {
            drop(exports);
            return Err(Error::invalid(format!("{TICKETS_MAX} tickets are alive, which is the most")));
        }
        exports.insert(secret, Ticketed { export, is_for_one });
        Ok(Ticket { address, process: std::process::id(), secret, reach, is_owner: !is_for_one })
    }
}

impl Ticket {
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
        if !reach.is_empty() && super::network::parse(reach).is_none() {
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

    /// Whether other machines reach the process.
    pub fn is_for_machines(&self) -> bool {
        !self.reach.is_empty()
    }

    /// The process that has the tensor, as that process sees itself.
    pub fn process(&self) -> u32 {
        self.process
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_owner {
            let export = EXPORTS.lock().remove(&self.secret);
            drop(export);
        }
    }
}

impl Engine {
    /// The tensor of a ticket: a promise, read-only, in the memory of the process that made the ticket. Waits as submissions do.
    ///
    /// It fails if that process has died, or if the ticket was dropped before.
    ///
    /// # Errors
    /// Those of a submission.
    #[track_caller]
    pub fn from_ticket(&self, ticket: &Ticket) -> Result<Tensor, Error> {
        self.from_ticket_at(ticket, this_line())
    }

    /// As [`from_ticket`](Self::from_ticket), at a line of a program in another language.
    ///
    /// # Errors
    /// As `from_ticket`.
    #[doc(hidden)]
    pub fn from_ticket_at(&self, ticket: &Ticket, site: Option<CallSite>) -> Result<Tensor, Error> {
        let Ticket { address, process, secret, reach, .. } = ticket;
        let (address, process, secret, reach) = (address.clone(), *process, *secret, reach.clone());
        self.op(format!("tensor of process {process}")).receive(move |completion| {
            Owner::ask(&address, process, secret, move |answer| match answer {
                Ok((managed, ready, key)) => {
                    if trace::is_open() {
                        hooks::is_elsewhere(completion.id(), process, key, site.as_ref());
                    }
                    completion.produce_after(&ready, Ok(Produced::elsewhere(managed)));
                }
                // On this machine it has died, or has never been.
                Err(Error::Device(error))
                    if error.kind() == DeviceErrorKind::PeerDied && !reach.is_empty() =>
                {
                    super::network::fetch(&reach, process, secret, completion);
                }
                Err(error) => completion.produce(Err(Box::new(error))),
            });
        })
    }
}

// The owner.

/// The door for tickets, opened for the first of them.
fn door() -> Result<Address, Error> {
    let mut known = DOOR.lock();
    if let Some((address, _)) = &*known {
        let address = address.clone();
        drop(known);
        go_on();
        return Ok(address);
    }
    let door = Door::open()?;
    let address = door.address().clone();
    *known = Some((address.clone(), None));
    drop(known);
    notify(serve(door), |()| ());
    Ok(address)
}

async fn serve(door: Door) {
    loop {
        match door.accept().await {
            Ok(link) => notify(answer(link), |()| go_on()),
            Err(error) => {
                // Most likely descriptors are short. A door that went on at once would be refused again.
                tracing::error!(%error, "a process that came with a ticket waits");
                *DOOR.lock() = Some((door.address().clone(), Some(door)));
                return;
            }
        }
    }
}

/// A door that was refused a connection tries again: at the next ticket, and when a link has ended.
fn go_on() {
    let paused = DOOR.lock().as_mut().and_then(|(_, door)| door.take());
    if let Some(door) = paused {
        notify(serve(door), |()| ());
    }
}

/// What a ticket names, if it may still be used.
pub(super) fn redeem(secret: &Secret) -> Option<Arc<Export>> {
    let mut exports = EXPORTS.lock();
    let ticketed = exports.get(secret)?;
    if ticketed.is_for_one {
        return exports.remove(secret).map(|ticketed| ticketed.export);
    }
    Some(Arc::clone(&ticketed.export))
}

/// Why a ticket is refused.
pub(super) fn void() -> DeviceError {
    let what = "the ticket is not valid any more: its process has dropped it, or it was for one use";
    DeviceError::new(DeviceErrorKind::Invalid, what)
}

/// Answers another process until it leaves or dies.
async fn answer(link: RawLink) {
    while let Ok(request) = link.receive().await {
        let Some((number, secret)) = request.note().split_at_checked(8) else { return };
        let export = secret.as_array().and_then(redeem);
        let sent = match export {
            Some(export) => hand_over(&link, number, export).await,
            None => {
                let (completer, refused) = host::promise("a ticket");
                completer.fail(void());
                link.send(&refused, number).await.map(drop).map_err(Error::from)
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

// Who has a ticket.

type Answer = Result<(ManagedTensor, Fence, u64), Error>;
type Deliver = Box<dyn FnOnce(Answer) + Send>;

/// A process whose tickets are used here. Links to it are made once, and end with it.
struct Owner {
    state: Mutex<OwnerState>,
}

#[derive(Default)]
struct OwnerState {
    link: Option<Arc<RawLink>>,
    /// The last request.
    number: u64,
    asked: BTreeMap<u64, (Secret, Deliver)>,
}

impl Owner {
    /// Asks a process for what its ticket names. `deliver` is called on any thread, under no lock.
    fn ask(address: &Address, process: u32, secret: Secret, deliver: impl FnOnce(Answer) + Send + 'static) {
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
        state.asked.insert(number, (secret, Box::new(deliver)));
        let link = state.link.clone();
        drop(state);
        drop(owners);
        if known.is_none() {
            let address = address.clone();
            notify(async move { owner.run(&address, process).await }, |()| ());
        } else if let Some(link) = link {
            owner.send_soon(link, number, secret);
        }
    }

    /// Sends a request, after others while the link is full.
    fn send_soon(self: Arc<Self>, link: Arc<RawLink>, number: u64, secret: Secret) {
        notify(async move { self.send(&link, number, secret).await }, |()| ());
    }

    async fn send(&self, link: &RawLink, number: u64, secret: Secret) {
        let (completer, done) = host::promise("a request");
        completer.complete();
        if let Err(error) = link.send(&done, &[&number.to_le_bytes()[..], &secret].concat()).await {
            self.deliver(number, Err(error.into()));
        }
    }

    fn deliver(&self, number: u64, answer: Answer) {
        let asked = self.state.lock().asked.remove(&number);
        if let Some((_, deliver)) = asked {
            deliver(answer);
        }
    }

    /// Makes the link, takes answers for as long as it lasts, and then fails what was not answered.
    async fn run(self: Arc<Self>, address: &Address, process: u32) {
        let error = match RawLink::connect(address).await {
            Ok(link) => self.take_answers(Arc::new(link)).await,
            // The door of a process that lives stays open.
            Err(LinkError::System { error, .. }) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                LinkError::PeerDied { process }
            }
            Err(error) => error,
        };
        let mut owners = OWNERS.lock();
        owners.remove(address.as_bytes());
        let mut state = self.state.lock();
        let (link, asked) = (state.link.take(), std::mem::take(&mut state.asked));
        drop(state);
        drop(owners);
        drop(link);
        let error = Error::from(error);
        asked.into_values().for_each(|(_, deliver)| deliver(Err(error.clone())));
    }

    /// From now on requests are sent at once. Returns those that were made before.
    fn connected(&self, link: &Arc<RawLink>) -> Vec<(u64, Secret)> {
        let mut state = self.state.lock();
        state.link = Some(Arc::clone(link));
        state.asked.iter().map(|(number, (secret, _))| (*number, *secret)).collect()
    }

    async fn take_answers(self: &Arc<Self>, link: Arc<RawLink>) -> LinkError {
        for (number, secret) in self.connected(&link) {
            Arc::clone(self).send_soon(Arc::clone(&link), number, secret);
        }
        loop {
            let received = match link.receive().await {
                Ok(received) => received,
                Err(error) => return error,
            };
            let note = received.note().to_vec();
            if let Some((number, description)) = note.split_at_checked(8) {
                let number = u64::from_le_bytes(*number.as_array().expect("eight bytes"));
                self.deliver(number, answered(&link, received, description));
            }
        }
    }
}

/// The answer to a request.
fn answered(link: &RawLink, received: Received, description: &[u8]) -> Answer {
    match received.fence().state() {
        FenceState::Failed(error) if description.is_empty() => {
            Err(Error::invalid(error.message().to_owned()))
        }
        _ => take_over(link, received, description),
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("layout", &self.layout)
            .field("ready", &self.ready)
            .finish_non_exhaustive()
    }
}
