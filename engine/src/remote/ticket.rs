//! Tickets: bytes that name a version of a tensor, for processes that no link joins yet.
//!
//! The owner has one door for tickets, and serves its links on the threads that wake it. A process that has a
//! ticket makes one link to that door, for all tickets of that owner: it sends a number and the secret of a
//! ticket, and gets the number and an export, or a failure. Where the tensor has no memory yet, or an
//! operation allocates the memory of a large copy, the process first gets a message that the version is kept.
//!
//! A process that passes a tensor on asks the owner of the memory for a ticket, over the same link, when its
//! own ticket is used:
//!
//! ```text
//! owner               between             consumer
//!   │                    │◄─ redeem ──────────│
//!   │                    │── later ──────────►│   the process between may drop its ticket
//!   │◄─ pass on ─────────│                    │
//!   │── ticket ─────────►│── ticket ─────────►│   valid until the process between has answered
//!   │◄─ redeem ───────────────────────────────│
//!   │── tensor ──────────────────────────────►│   under a share of its own; answers the process between
//! ```
//!
//! | part | what it has |
//! |---|---|
//! | `redeem` | the process that has a ticket: its requests, and the tensors that they get |
//! | `serve` | the owner: the door for tickets, and its answers |

mod redeem;
mod serve;

use std::collections::BTreeMap;
use std::sync::Arc;

use estafette_links::{Address, pass_step, secret};
use estafette_sync::per_process;
use estafette_sync::sync::Mutex;

pub(super) use self::redeem::UntilHeld;
pub(crate) use self::redeem::redeem;
pub(super) use self::serve::door;
use super::{DEADLINE, Export, ShareOptions, export, network, this_line};
use crate::core::error::Error;
use crate::engine::Engine;
use crate::lease::{CallSite, LeaseOwner};
use crate::tensor::handle::Tensor;

/// Tickets of this process at the same time.
const TICKETS_MAX: usize = 1 << 16;

type Secret = [u8; 16];

per_process! {
    static EXPORTS: Mutex<BTreeMap<Secret, Ticketed>> = Mutex::new(BTreeMap::new());
}

/// The export that a ticket names.
struct Ticketed {
    export: Arc<Export>,
    /// True if the first use is the last one.
    is_for_one: bool,
}

/// Names a version of a tensor for other processes of the same user and machine: [`Tensor::ticket`],
/// [`Engine::from_ticket`].
///
/// The version is under a read lease until the ticket is dropped or [revoked](Self::revoke) and everything
/// that was made with it is gone. A ticket that was made from bytes holds nothing.
#[derive(Debug)]
pub struct Ticket {
    address: Address,
    process: u32,
    /// The place of the door; 0 if unknown.
    place: u64,
    secret: Secret,
    /// The address for other machines; no bytes if they do not reach the process.
    pub(crate) reach: Vec<u8>,
    is_owner: bool,
}

impl Tensor {
    /// A ticket for the tensor's current version, ready or not. Writes submitted later wait until it is
    /// dropped, and what was made with it. Waits for nothing. What is not shared is copied, as by
    /// [`Link::send`](super::Link::send).
    ///
    /// On another machine the tensor is a copy, and the version's lease ends when the copy is made. If the
    /// other process falls silent before that, the lease stays: waits that it holds up name the process,
    /// until the network works again or the process is declared dead.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no memory for a copy of up to 1 MiB; without memory for a larger one the
    /// tensor fails in the other process; [`Error::Invalid`] if 65,536 tickets are alive, and for a deadline
    /// without `reach`; [`Error::NotShared`] as [`Link::send`](super::Link::send). With
    /// [`ShareOptions::reach`] also [`Error::Invalid`] and [`Error::Device`] if NIXL is missing or the
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
        let ((address, place), secret) = (door()?, secret()?);
        let mut exports = EXPORTS.lock();
        if exports.len() >= TICKETS_MAX {
            drop(exports);
            return Err(Error::invalid(format!("{TICKETS_MAX} tickets are alive, which is the most")));
        }
        exports.insert(secret, Ticketed { export, is_for_one });
        drop(exports);
        pass_step("ticket");
        Ok(Self { address, process: std::process::id(), place, secret, reach, is_owner: !is_for_one })
    }

    /// The ticket as a name alone, which keeps no version.
    pub(crate) fn named(&self) -> Self {
        let Self { address, process, place, secret, reach, .. } = self;
        let (address, reach) = (address.clone(), reach.clone());
        Self { address, process: *process, place: *place, secret: *secret, reach, is_owner: false }
    }

    /// From now on no new tensor can be made with the ticket. Tensors that were made with it stay. This also
    /// ends a ticket for one use, which stays valid when it is dropped. Only the process that made the ticket
    /// can revoke it.
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
        let numbers = [&self.process.to_le_bytes()[..], &self.place.to_le_bytes()].concat();
        [self.address.as_bytes(), &numbers, &self.secret, &self.reach].concat()
    }

    /// The ticket in `bytes`.
    ///
    /// # Errors
    /// [`Error::Invalid`]: `bytes` are no ticket.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let none = || Error::invalid(format!("{} bytes that are no ticket", bytes.len()));
        let (address, rest) = bytes.split_at_checked(Address::BYTES).ok_or_else(none)?;
        let (process, rest) = rest.split_first_chunk().ok_or_else(none)?;
        let (place, rest) = rest.split_first_chunk().ok_or_else(none)?;
        let (secret, reach) = rest.split_first_chunk().ok_or_else(none)?;
        if !reach.is_empty() && network::parse(reach).is_none() {
            return Err(none());
        }
        Ok(Self {
            address: Address::from_bytes(address).map_err(|_| none())?,
            process: u32::from_le_bytes(*process),
            place: u64::from_le_bytes(*place),
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
    /// The tensor of a ticket: a promise, read-only, in the memory of the process that made the ticket, or a
    /// copy if that process is on another machine. Waits as submissions do.
    ///
    /// The tensor fails if that process has died, or if the ticket was dropped before; and by
    /// [`Error::NotShared`] if that process is on another machine, or in another network namespace, as of a
    /// container, and the ticket was made without [`ShareOptions::reach`].
    ///
    /// # Errors
    /// Errors of a submission.
    #[track_caller]
    pub fn from_ticket(&self, ticket: &Ticket) -> Result<Tensor, Error> {
        redeem(self.op(ticket.title()), ticket.named(), this_line(), None, None)
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
