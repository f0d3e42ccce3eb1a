//! Links and tickets at lines of a program in another language.

use estafette_devices::{Fence, host};
use estafette_sync::time::Duration;

use crate::core::error::Error;
use crate::engine::Engine;
use crate::lease::CallSite;
use crate::remote::ticket::{Ticket, redeem};
use crate::remote::{Link, ShareOptions, network};
use crate::tensor::handle::Tensor;

pub use crate::remote::blocking::block_on;

/// The number of a descriptor that is readable while something may be received, or the link is over, for an
/// event loop of the program. A receive that finds nothing makes it unreadable. It stays the link's, and ends
/// with it; it is not to be read or written.
///
/// # Errors
/// [`Error::Device`] if the system refuses a descriptor.
pub fn descriptor(link: &Link) -> Result<i32, Error> {
    Ok(link.link.descriptor()?)
}

pub fn close(link: &Link) {
    link.close()
}

pub async fn receive_at(link: &Link, site: Option<CallSite>) -> Result<Option<Tensor>, Error> {
    link.receive_at(site).await
}

pub fn ticket_at(tensor: &Tensor, options: &ShareOptions, site: Option<CallSite>) -> Result<Ticket, Error> {
    tensor.ticket_at(options, site)
}

/// The same name, which is good on other machines too, as with [`ShareOptions::reach`], and holds nothing.
///
/// # Errors
/// NIXL is missing, or the address is none of this machine.
pub fn reaching(ticket: &Ticket, at: &str, deadline: Duration) -> Result<Ticket, Error> {
    let mut ticket = ticket.named();
    ticket.reach = network::listen(at, deadline)?;
    Ok(ticket)
}

/// True if other machines reach the process.
pub fn is_for_machines(ticket: &Ticket) -> bool {
    !ticket.reach.is_empty()
}

/// The process that has the tensor, as that process sees itself.
pub fn ticket_process(ticket: &Ticket) -> u32 {
    ticket.process()
}

/// As [`from_ticket`](Engine::from_ticket), at a line of a program in another language.
pub fn from_ticket_at(engine: &Engine, ticket: &Ticket, site: Option<CallSite>) -> Result<Tensor, Error> {
    redeem(engine.op(ticket.title()), ticket.named(), site, None, None)
}

/// As [`from_ticket_at`], for a ticket of this machine. The fence settles once the ticket may be dropped: the
/// process that made it keeps the version for this one, or the tensor has failed. Does not wait for the
/// in-flight limit: a ticket for one use would be lost with a refusal.
///
/// # Errors
/// [`Error::Shutdown`], [`Error::Forked`].
pub fn from_ticket_held(
    engine: &Engine,
    ticket: &Ticket,
    site: Option<CallSite>,
) -> Result<(Tensor, Fence), Error> {
    let (completer, held) = host::promise("a ticket in use");
    let builder = engine.op(ticket.title()).beyond_limit()?;
    let tensor = redeem(builder, ticket.named(), site, Some(Box::new(completer)), None)?;
    Ok((tensor, held))
}
