//! The owner of tensors that tickets name: the door for tickets, and its answers.

use std::sync::{Arc, Weak};

use estafette_devices::{DeviceErrorKind, Reactor, host};
use estafette_links::{Address, Door, Link as RawLink, pass_step, place};
use estafette_sync::per_process;
use estafette_sync::sync::Mutex;

use super::super::{Export, Note, Share, ShownMemory, done, hand_over};
use super::redeem::{Answer, TicketOwner, TicketRequest};
use super::{Ticket, VOID, named};
use crate::core::error::Error;
use crate::exchange::loan::RemoteOrigin;
use crate::wait::notify::{device_error, notify};

/// Answers to one process that wait for room while its further requests are read. Each tries again with all
/// that comes.
const ANSWERS_MAX: usize = 128;
/// Room of a link that tensors leave to refusals, and to tickets of what is passed on.
const KEPT: usize = 64;

per_process! {
    /// The door for tickets, once there is one, and its place. It stays for as long as the process lives.
    static DOOR: Mutex<Option<(Address, u64)>> = Mutex::new(None);
}

/// The door for tickets, opened for the first of them, and its [place].
pub(in crate::remote) fn door() -> Result<(Address, u64), Error> {
    let mut known = DOOR.lock();
    if let Some(known) = &*known {
        return Ok(known.clone());
    }
    let door = Door::open()?;
    let opened = known.insert((door.address().clone(), place())).clone();
    drop(known);
    notify(serve(door), |()| ());
    Ok(opened)
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

/// Answers another process until it leaves or dies. Up to [`ANSWERS_MAX`] answers that wait for room hold up
/// no other one.
async fn answer(link: RawLink) {
    let link = Arc::new(link);
    while let Ok(received) = link.receive().await {
        let Some((number, request)) = TicketRequest::from_bytes(received.note()) else { break };
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

async fn answer_to(link: Arc<RawLink>, number: [u8; 8], request: TicketRequest) {
    let sent = match request {
        TicketRequest::Redeem(secret) => match named(&secret) {
            Some(export) => send_version(&link, number, export).await,
            None => Err(Error::invalid(VOID)),
        },
        TicketRequest::PassOn(share) => match Share::find(share, link.process()) {
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
async fn send_version(link: &Arc<RawLink>, number: [u8; 8], export: Arc<Export>) -> Result<(), Error> {
    if let Some(ShownMemory::Here(place)) = export.shown.get() {
        return hand_over(link, &number, Arc::clone(&export), place, KEPT).await;
    }
    let (completer, known) = host::promise("a tensor that comes later");
    let note = Note::Later.to_bytes(&number);
    link.when_room(|| link.try_send_within(&known, &note, KEPT)).await?;
    pass_step("later");
    // The end of the other process ends the link, however long this takes.
    let link = Arc::downgrade(link);
    notify(send_when_known(link, number, export), move |sent| completer.settle(sent.map_err(device_error)));
    Ok(())
}

async fn send_when_known(link: Weak<RawLink>, number: [u8; 8], export: Arc<Export>) -> Result<(), Error> {
    if export.shown.get().is_none() {
        export.known.settled().await?;
    }
    let connected = || link.upgrade().ok_or_else(|| Error::invalid("the other process has left"));
    match export.shown.get().expect("known when it is ready") {
        ShownMemory::Here(place) => {
            hand_over(&*connected()?, &number, Arc::clone(&export), place, KEPT).await
        }
        ShownMemory::RemoteMemory(RemoteOrigin { address, process, share, peer }, tensor) => {
            let answer =
                match TicketOwner::request(address, 0, *process, TicketRequest::PassOn(*share), None).await.0
                {
                    // The process with the memory has ended. A tensor that was ready is passed on as a copy:
                    // on the host, if the end of that process is known by this answer alone.
                    Err(Error::Device(error))
                        if matches!(error.kind(), DeviceErrorKind::PeerDied | DeviceErrorKind::Cancelled) =>
                    {
                        let on_host = (!peer.has_ended()).then_some(true);
                        let copy = Export::new(tensor, export.owner.clone(), on_host, true)?;
                        return Box::pin(send_when_known(link, number, copy)).await;
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
