//! Tickets that reach other machines. There the tensor is a copy, which NIXL makes once the owner's version
//! is ready.
//!
//! The lease is the same as on one machine: it ends when the copy is made.

use std::sync::Arc;
use std::time::Duration;

use estafette_devices::{DeviceError, DeviceErrorKind, Reactor};
use estafette_links::LinkError;
use estafette_links::network::{self, Fetched, Offer, Reach, Reply, Secret};
use estafette_report::model::{ClockOffset, ImportOrigin};

use super::export::{ExportMemory, SegmentRange};
use super::ticket::{UntilHeld, VOID, named};
use super::{Description, Export, ShownMemory, inside};
use crate::core::error::{Error, device_error};
use crate::core::lease_info::CallSite;
use crate::exchange::{Abi, ExportFlags, ManagedTensor, export};
use crate::operation::completion::Completion;
use crate::operation::import::Produced;
use crate::tensor::handle::Tensor;
use crate::trace::{self, hooks};

pub use estafette_links::network::{declare_dead, suggest_library as suggest_nixl};

/// Listens at the address in [`ShareOptions::reach`](super::ShareOptions::reach). Returns that address for
/// tickets.
pub(crate) fn listen(at: &str, deadline: Duration) -> Result<Vec<u8>, Error> {
    // Most likely descriptors are short. The thread of the network goes on.
    let refused =
        |error: &LinkError| tracing::error!(%error, "processes of other machines wait to be connected");
    Ok(to_bytes(&network::listen(at, deadline, answer, refused)?))
}

fn to_bytes(reach: &Reach) -> Vec<u8> {
    let deadline = u32::try_from(reach.deadline.as_millis()).unwrap_or(u32::MAX);
    [&reach.key[..], &deadline.to_le_bytes(), &reach.port.to_le_bytes(), reach.host.as_bytes()].concat()
}

/// `None` for bytes that are no address.
pub(super) fn parse(bytes: &[u8]) -> Option<Reach> {
    let (key, rest) = bytes.split_first_chunk()?;
    let (deadline, rest) = rest.split_first_chunk()?;
    let (port, host) = rest.split_first_chunk()?;
    let host = str::from_utf8(host).ok().filter(|host| (1..256).contains(&host.len()))?;
    let deadline = Duration::from_millis(u32::from_le_bytes(*deadline).into());
    Some(Reach { host: host.to_owned(), port: u16::from_le_bytes(*port), key: *key, deadline })
}

/// Answers another machine, once the version is ready.
fn answer(secret: Secret, reply: Reply) {
    match named(&secret) {
        Some(export) => offer_when_ready(export, reply),
        None => reply.send(Err(DeviceError::new(DeviceErrorKind::Invalid, VOID))),
    }
}

fn offer_when_ready(export: Arc<Export>, reply: Reply) {
    let ready = export.ready.clone();
    Reactor::global().when_settled([&ready], move |outcome| {
        let owner = export.owner.clone();
        let copied = match outcome.map(|()| offer(export)) {
            Ok(Ok(offer)) => return reply.send(Ok(offer)),
            Ok(Err(tensor)) => Export::new(&tensor, owner, Some(true), true).map_err(device_error),
            Err(error) => Err(error),
        };
        match copied {
            Ok(copy) => offer_when_ready(copy, reply),
            Err(error) => reply.send(Err(error)),
        }
    });
}

/// Memory of a third process, and of a device, must be copied first.
fn offer(export: Arc<Export>) -> Result<Offer, Tensor> {
    let (segment, place) = match export.shown.get().expect("known when it is ready") {
        ShownMemory::Here(place @ SegmentRange { segment: ExportMemory::Host(segment), .. }) => {
            (Arc::clone(segment), place)
        }
        ShownMemory::Here(place) => return Err(export.tensor(place).expect("granted before it is ready")),
        ShownMemory::RemoteMemory(_, tensor) => return Err(tensor.clone()),
    };
    let (first, layout) = (place.first, place.layout.clone());
    let owner = export.owner.clone();
    let start = segment.start().as_ptr();
    let range = layout.byte_range(start.wrapping_add(first));
    let offset = range.start - start.addr();
    let first = (first - offset) as u64;
    let description = Description { number: 0, first, layout, key: export.key, share: 0, is_writable: false };
    let remark = move |who: &str, what: Option<&str>| {
        if let Some(what) = what {
            tracing::warn!("{who} is {what}");
        }
        owner.remark(who, what);
    };
    let (bytes, note) = (range.len(), description.to_bytes());
    Ok(Offer { segment, offset, bytes, note, keeper: Box::new(export), remark: Box::new(remark) })
}

/// Makes the tensor of a ticket, from another machine.
pub(super) fn fetch(
    reach: &[u8],
    process: u32,
    secret: Secret,
    until_held: UntilHeld,
    completion: Completion,
    site: Option<CallSite>,
) {
    let reach = parse(reach).expect("checked with the ticket");
    network::fetch(&reach, process, secret, until_held, move |fetched| {
        let id = completion.scope().id();
        let note_origin = |origin| {
            if trace::is_open() {
                hooks::has_origin(id, &origin, site.as_ref());
            }
        };
        completion.produce(match fetched {
            Ok(fetched) => described(fetched, note_origin).map(Produced::immutable).map_err(Into::into),
            Err(error) if error.kind() == DeviceErrorKind::Invalid => {
                Err(Error::invalid(error.message().to_owned()).into())
            }
            Err(error) => Err(Error::Device(error).into()),
        });
    });
}

/// The fetched tensor. It is read-only, as on the owner's machine. `note_origin` gets the origin of the copy.
fn described(fetched: Fetched, note_origin: impl FnOnce(ImportOrigin)) -> Result<ManagedTensor, Error> {
    let Fetched { process, note, memory, bytes, clock } = fetched;
    let sent = |what: &str| Error::invalid(format!("process {process} on another machine sent {what}"));
    let Description { first, layout, key, .. } =
        Description::from_bytes(&note).ok_or_else(|| sent("no tensor"))?;
    let offset = |(clock, offset): (Arc<str>, network::ClockOffset)| ClockOffset {
        clock: clock.into(),
        ahead_ns: offset.ahead_ns,
        uncertainty_ns: offset.uncertainty_ns,
    };
    note_origin(ImportOrigin { process, key, clock: clock.map(offset) });
    let data = inside(&layout, first, memory.ptr().as_ptr(), bytes)?
        .ok_or_else(|| sent("a tensor outside of its memory"))?;
    let flags = ExportFlags { read_only: true, is_copied: true };
    // SAFETY: the elements are inside of the memory, whose bytes have all come, and which lives until it is
    // dropped here.
    Ok(unsafe { export(&layout, data, flags, Abi::Versioned, move || drop(memory)) })
}

#[cfg(test)]
mod tests;
