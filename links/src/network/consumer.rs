//! A consumer on another machine, as the owner of memory sees it.

use std::any::Any;
use std::collections::BTreeMap;

use estafette_devices::{DeviceError, DeviceErrorKind};
use estafette_sync::platform::clock::monotonic_name;
use estafette_sync::time::{Duration, Instant};

use super::thread::{Deferred, Network, new_agent};
use super::wire::{End, Kind, Wire, number, short};
use super::{DEADLINE_MIN, GREETING, Handler, Offer, Remark, Reply, Secret};
use crate::board::KINDS;
use crate::nixl::{Agent, NixlError};

/// Unanswered requests of one consumer.
const REQUESTS_MAX: usize = 1 << 16;
/// The time that a connection may be silent before it greets.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// The agent of a connection keeps memory that its owner has released. Past so many such segments, or bytes,
/// a new connection replaces this one, which takes 0.1 s.
const UNUSED_MAX: usize = 256;
const UNUSED_BYTES_MAX: usize = 1 << 30;
/// The longest text of a failure.
const TEXT_MAX: usize = 1 << 16;

/// One connection. From the first offer on, the connection has an agent of its own: see [`Agent`].
pub(super) struct Consumer {
    /// `None` once the connection is lost; its loans are kept.
    pub(super) wire: Option<Wire>,
    key: Secret,
    handler: Handler,
    pub(super) token: u64,
    pub(super) machine: String,
    /// Number and deadline of the consumer's process, once it has greeted.
    pub(super) process: Option<(u32, Duration)>,
    agent: Option<Agent>,
    /// The consumer has been sent [`Kind::Replace`].
    is_replaced: bool,
    requests: usize,
    lent: BTreeMap<u64, Loan>,
    is_silent: bool,
}

struct Loan {
    keeper: Box<dyn Any + Send>,
    remark: Remark,
}

impl Consumer {
    pub(super) fn new(wire: Wire, machine: String, token: u64, key: Secret, handler: Handler) -> Self {
        Self {
            wire: Some(wire),
            key,
            handler,
            token,
            machine,
            process: None,
            agent: None,
            is_replaced: false,
            requests: 0,
            lent: BTreeMap::new(),
            is_silent: false,
        }
    }

    pub(super) fn name(&self) -> String {
        format!("process {} on {}", self.process.map_or(0, |(process, _)| process), self.machine)
    }

    /// True if the consumer reads now.
    pub(super) fn is_busy(&self) -> bool {
        !self.lent.is_empty() && !self.is_silent
    }

    /// Handles the received messages. True if the consumer has ended.
    pub(super) fn receive(
        &mut self,
        network: &'static Network,
        now: Instant,
        deferred: &mut Deferred,
    ) -> bool {
        let Some(wire) = &mut self.wire else { return false };
        let (messages, end) = wire.receive();
        let has_spoken = !messages.is_empty();
        let mut end = end;
        for (kind, body) in messages {
            if self.handle(network, kind, &body, deferred).is_none() {
                end = Some(End::Violation("a message makes no sense"));
                break;
            }
        }
        match end {
            // After a close, the consumer can read nothing more. A protocol violation counts as a close.
            Some(End::Closed | End::Violation(_)) => return true,
            Some(End::Lost(error)) => {
                self.wire.take().iter().for_each(|wire| network.poll.remove(&*wire.stream));
                if self.lent.is_empty() {
                    return true;
                }
                self.fall_silent(&format!("cannot be reached, and may still read: {error}"));
            }
            None if has_spoken && self.is_silent => {
                self.is_silent = false;
                self.remark(None);
            }
            None => self.check_silence(now),
        }
        self.wire.as_ref().is_some_and(|wire| self.process.is_none() && wire.silence(now) > GREETING_TIME)
    }

    fn check_silence(&mut self, now: Instant) {
        let (Some(wire), Some((_, deadline))) = (&self.wire, self.process) else { return };
        let silence = wire.silence(now);
        if silence > deadline && !self.is_silent {
            self.fall_silent(&format!(
                "has been silent for {:.1} s, and may still read",
                silence.as_secs_f32()
            ));
        }
    }

    fn fall_silent(&mut self, why: &str) {
        self.is_silent = true;
        self.remark(Some(&format!("suspected: it {why}; `declare_dead` releases the memory")));
    }

    fn remark(&self, what: Option<&str>) {
        let name = self.name();
        self.lent.values().for_each(|loan| (loan.remark)(&name, what));
    }

    /// Number of unanswered requests.
    #[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    /// Sends a heartbeat if it is time. Returns when this consumer is due again.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        let wire = self.wire.as_mut()?;
        let Some((_, deadline)) = self.process else { return Some(now + GREETING_TIME) };
        let beat = wire.heartbeat(deadline, now);
        let silent = now + deadline.saturating_sub(wire.silence(now)) + Duration::from_millis(1);
        Some(if self.is_silent { beat } else { beat.min(silent) })
    }

    fn handle(
        &mut self,
        network: &'static Network,
        kind: Kind,
        body: &[u8],
        deferred: &mut Deferred,
    ) -> Option<()> {
        match (kind, self.process) {
            (Kind::Hello, None) => {
                let rest = body.strip_prefix(&GREETING)?.strip_prefix(&self.key)?;
                let (process, rest) = short(rest)?;
                let (deadline, _) = short(rest)?;
                // A consumer may ask for less.
                self.process = Some((process, Duration::from_millis(deadline.into()).max(DEADLINE_MIN)));
                let (own, clock) = (std::process::id().to_le_bytes(), monotonic_name().unwrap_or_default());
                self.wire.as_mut()?.send(Kind::Welcome, &[&own, clock.as_bytes()]);
            }
            (Kind::Request, Some(_)) => {
                let (number, secret) = number(body)?;
                self.requests += 1;
                if self.requests > REQUESTS_MAX {
                    return None;
                }
                (self.handler)(
                    *secret.as_array()?,
                    Reply { network, consumer: self.token, number, is_sent: false },
                );
                self.wire.as_mut()?.send(Kind::Kept, &[&number.to_le_bytes()]);
            }
            (Kind::Return, Some(_)) => self.release(number(body)?.0, deferred),
            (Kind::Heartbeat, Some(_)) => {}
            _ => return None,
        }
        Some(())
    }

    fn release(&mut self, number: u64, deferred: &mut Deferred) {
        if let Some(loan) = self.lent.remove(&number) {
            (loan.remark)(&self.name(), None);
            deferred.push(Box::new(move || drop(loan.keeper)));
        }
    }

    pub(super) fn reply(&mut self, number: u64, answer: Result<Offer, DeviceError>, deferred: &mut Deferred) {
        self.requests = self.requests.saturating_sub(1);
        let Some(wire) = &mut self.wire else {
            // A consumer that cannot be reached gets no further loan.
            return deferred.push(Box::new(move || drop(answer)));
        };
        let offered = answer.and_then(|offer| match describe(&mut self.agent, &offer) {
            Ok(metadata) => Ok((offer, metadata)),
            Err(error) => {
                deferred.push(Box::new(move || drop(offer)));
                let text = format!("the memory cannot be shown to other machines: {error}");
                Err(DeviceError::new(DeviceErrorKind::Other, text))
            }
        });
        match offered {
            Ok((offer, metadata)) => {
                let address = offer.segment.start().as_ptr().addr() + offer.offset;
                let numbers = [number, address as u64, offer.bytes as u64, metadata.len() as u64];
                let numbers = numbers.map(u64::to_le_bytes).concat();
                wire.send(Kind::Offer, &[&numbers, &metadata, &offer.note]);
                let (segments, bytes) = self.agent.as_ref().map_or((0, 0), Agent::unused);
                if !self.is_replaced && (segments > UNUSED_MAX || bytes > UNUSED_BYTES_MAX) {
                    self.is_replaced = true;
                    wire.send(Kind::Replace, &[]);
                }
                let loan = Loan { keeper: offer.keeper, remark: offer.remark };
                if let Some(former) = self.lent.insert(number, loan) {
                    deferred.push(Box::new(move || drop(former.keeper)));
                }
            }
            Err(error) => {
                let kind = KINDS.iter().position(|kind| *kind == error.kind()).unwrap_or(0) as u8;
                let [name, text] = [error.operation().unwrap_or(""), error.message()]
                    .map(|text| &text.as_bytes()[..text.floor_char_boundary(TEXT_MAX)]);
                let length = (name.len() as u32).to_le_bytes();
                wire.send(Kind::Fail, &[&number.to_le_bytes(), &[kind], &length, name, text]);
            }
        }
    }

    /// Moves bytes, and ends the loans that the consumer has read. True if there was one.
    pub(super) fn progress(&mut self, deferred: &mut Deferred) -> bool {
        let notes = match &self.agent {
            Some(agent) if self.is_busy() => agent.notes(),
            _ => return false,
        };
        // The consumer learns of a failure of its own transfer.
        let notes = notes.unwrap_or_default();
        for (number, _) in notes.iter().filter_map(|note| number(note)) {
            self.release(number, deferred);
        }
        !notes.is_empty()
    }

    /// Ends everything: loans are released once the agent can move none of their bytes.
    pub(super) fn end(mut self, deferred: &mut Deferred) {
        self.remark(None);
        let lent = std::mem::take(&mut self.lent);
        drop(self);
        deferred.push(Box::new(move || drop(lent)));
    }
}

/// Registers the memory of an offer with the agent, which the first offer makes. Returns the agent's metadata
/// for the consumer.
fn describe(agent: &mut Option<Agent>, offer: &Offer) -> Result<Vec<u8>, NixlError> {
    let agent = match agent {
        Some(agent) => agent,
        none => none.insert(new_agent()?),
    };
    agent.register(&offer.segment)?;
    agent.metadata()
}

#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Segment;
    use crate::network::deaths::pair;
    use crate::nixl::tests::{self as double, Call};

    #[test]
    fn what_a_consumer_is_not_lent_is_dropped_after_the_turn() {
        double::install();
        let (near, _far) = pair();
        let wire = Wire::new(near).expect("a wire");
        let mut consumer = Consumer::new(wire, "127.0.0.1".to_owned(), 1, [3; 16], |_, _| ());
        let segment = Arc::new(Segment::new(4096).expect("a segment"));
        // The owners of what keeps the offer, in the turn and after it.
        let owners = |consumer: &mut Consumer| {
            let kept = Arc::new(());
            let keeper = Box::new(Arc::clone(&kept));
            let (segment, remark) = (Arc::clone(&segment), Box::new(|_: &str, _: Option<&str>| ()));
            let offer = Offer { segment, offset: 0, bytes: 8, note: Vec::new(), keeper, remark };
            let mut deferred = Vec::new();
            consumer.reply(1, Ok(offer), &mut deferred);
            let in_turn = Arc::strong_count(&kept);
            deferred.into_iter().for_each(|end| end());
            (in_turn, Arc::strong_count(&kept))
        };
        double::refuse(Some(Call::Describe));
        assert_eq!(owners(&mut consumer), (2, 1), "its memory cannot be shown");
        double::refuse(None);
        consumer.wire = None;
        assert_eq!(owners(&mut consumer), (2, 1), "the consumer cannot be reached");
    }
}
