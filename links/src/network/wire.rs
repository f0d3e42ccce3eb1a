//! Messages over TCP: a length, a kind, time stamps, and a body.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use estafette_devices::host_now_ns;
use estafette_sync::time::{Duration, Instant};

use super::clock::{PeerClock, STAMPS};
use crate::platform::{CloseOnFork, keep_trying};

/// The longest message. A failure's text is cut, the rest is short.
const MESSAGE_MAX: usize = 1 << 20;
/// Bytes that wait to be sent. A peer that reads nothing breaks off.
const UNSENT_MAX: usize = 16 << 20;
/// Bytes that one receive takes, so that one peer does not keep the thread from the others.
const RECEIVED_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// To the owner, first: what this is, the key of its door, the process, the deadline in milliseconds.
    Hello = 1,
    /// To the consumer, first: the process, the name of its clock.
    Welcome,
    /// To the owner: a number and a secret.
    Request,
    /// To the consumer: the number. The requested memory is kept for the consumer, unless a failure follows.
    Kept,
    /// To the consumer: the number, address, length, length of the agent's metadata, the metadata, a
    /// description.
    Offer,
    /// To the consumer: the number, kind of failure, length of the name of the operation that failed, the
    /// name, text.
    Fail,
    /// To the owner: the number. The consumer will not read what was offered.
    Return,
    /// The process lives.
    Heartbeat,
    /// To the consumer: its requests from now on go over another connection.
    Replace,
}

const KINDS: [Kind; 9] = [
    Kind::Hello,
    Kind::Welcome,
    Kind::Request,
    Kind::Kept,
    Kind::Offer,
    Kind::Fail,
    Kind::Return,
    Kind::Heartbeat,
    Kind::Replace,
];

#[derive(Debug)]
pub(super) enum End {
    /// The other system says that the process has closed it, or has no such connection: the process uses
    /// nothing more of it.
    Closed,
    /// Nothing is known of the other process.
    Lost(io::Error),
    /// The other process violates the protocol.
    Violation(&'static str),
}

/// A connection to a process on another machine.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: CloseOnFork<TcpStream>,
    received: Vec<u8>,
    unsent: Vec<u8>,
    /// The times of the last arrival and of the last send.
    heard: Instant,
    said: Instant,
    pub(super) clock: PeerClock,
}

impl Wire {
    pub(super) fn new(stream: CloseOnFork<TcpStream>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        keep_trying(&stream)?;
        let now = Instant::now();
        Ok(Self {
            stream,
            received: Vec::new(),
            unsent: Vec::new(),
            heard: now,
            said: now,
            clock: PeerClock::default(),
        })
    }

    /// Sends a message, later if there is no room now. An end is found by [`receive`](Self::receive).
    pub(super) fn send(&mut self, kind: Kind, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.unsent.extend((length as u32).to_le_bytes());
        self.unsent.push(kind as u8);
        self.unsent.extend(self.clock.stamps());
        parts.iter().for_each(|part| self.unsent.extend(*part));
        self.said = Instant::now();
        let _ = self.flush();
    }

    /// True if there is something to send, which waits for room.
    pub(super) fn is_full(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match (&*self.stream).write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The messages that have arrived whole. Sends messages that waited for room. An end is returned with the
    /// messages before it.
    pub(super) fn receive(&mut self) -> (Vec<(Kind, Vec<u8>)>, Option<End>) {
        let mut end = None;
        let mut buffer = [0; 1 << 16];
        let mut taken = 0;
        while taken < RECEIVED_MAX {
            match (&*self.stream).read(&mut buffer) {
                Ok(0) => {
                    end = Some(End::Closed);
                    break;
                }
                Ok(bytes) => {
                    taken += bytes;
                    self.received.extend(&buffer[..bytes]);
                    self.heard = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    end = Some(End::Closed);
                    break;
                }
                Err(error) => {
                    end = Some(End::Lost(error));
                    break;
                }
            }
        }
        if end.is_none() {
            // A failure to send appears as a failure to receive next time.
            let _ = self.flush();
            if self.unsent.len() > UNSENT_MAX {
                end = Some(End::Violation("it does not read what it asked for"));
            }
        }
        match self.messages() {
            Ok(messages) => (messages, end),
            Err(what) => (Vec::new(), Some(End::Violation(what))),
        }
    }

    fn messages(&mut self) -> Result<Vec<(Kind, Vec<u8>)>, &'static str> {
        let (mut messages, mut rest, now) = (Vec::new(), &self.received[..], host_now_ns());
        while let Some((length, [kind, after @ ..])) = rest.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > MESSAGE_MAX {
                return Err("a message is too long");
            }
            let Some((stamps, after)) = after.split_first_chunk::<STAMPS>() else { break };
            let Some((body, after)) = after.split_at_checked(length) else { break };
            self.clock.take(stamps, now);
            let kind = KINDS.into_iter().find(|known| *known as u8 == *kind);
            messages.push((kind.ok_or("a message is of no kind")?, body.to_vec()));
            rest = after;
        }
        let used = self.received.len() - rest.len();
        self.received.drain(..used);
        Ok(messages)
    }

    /// Sends a heartbeat, if nothing was sent for a while. Returns when the next one is due. Messages that
    /// wait for room count as a heartbeat.
    pub(super) fn heartbeat(&mut self, deadline: Duration, now: Instant) -> Instant {
        let pause = deadline / 4;
        if self.is_full() {
            return now + pause;
        }
        if now.saturating_duration_since(self.said) >= pause {
            self.send(Kind::Heartbeat, &[]);
        }
        self.said + pause
    }

    /// The time since the last arrival.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }
}

/// Takes a number from the beginning of a message.
pub(super) fn number(body: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = body.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), rest))
}

/// Takes a short number from the beginning of a message.
pub(super) fn short(body: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = body.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*number), rest))
}
