//! Memory of processes on other machines: copies of it, moved by NIXL, which wait for promises of their owner
//! and give leases back.
//!
//! An owner [listens](listen) at an address, and answers those who come with a secret: by an [`Offer`] of
//! memory, once it may be read, or by a failure. A consumer [fetches](fetch). Both sides agree by messages
//! over TCP; NIXL reads the memory of the owner into the arena of the consumer, and the note that it leaves
//! with the owner says that the bytes are there and that the lease ends.
//!
//! One thread, `estafette-network`, does all of this. The thread exists once a process has listened or
//! fetched.
//!
//! | part | idea |
//! |---|---|
//! | `thread` | the thread, and requests of other threads to it |
//! | `consumer` | a consumer, as its owner sees it |
//! | `owner` | an owner, as a consumer sees it |
//! | `wire` | messages over TCP |
//! | `clock` | the offset of two machines' clocks |
//!
//! # Silence is not death
//! A process that has said nothing for the deadline is *silent*. A consumer takes a silent owner for dead:
//! what it waits for fails, and it closes the connection. An owner keeps what it has lent to a silent
//! consumer, which may read it once the network works again. The lease ends when that consumer's system says
//! that the connection is closed, which it does after the network works again or the process has died, or by
//! [`declare_dead`]. A forked child has no copy of a connection, with which it would outlast the process.
//!
//! # Trust
//! Secrets and data cross the network as they are. A program that reaches the ports of UCX can read and write
//! the memory of the process. So the network must be one whose machines trust each other.

mod clock;
mod consumer;
#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod deaths;
mod owner;
mod thread;
mod wire;

use std::any::Any;
use std::fmt;
use std::net::TcpListener;
use std::sync::Arc;

use estafette_devices::{Allocation, DeviceError, DeviceErrorKind};
use estafette_sync::per_process;
use estafette_sync::sync::Mutex;
use estafette_sync::time::Duration;

use self::owner::Request;
use self::thread::{Command, Network};
use crate::platform::CloseOnFork;
use crate::{LinkError, Segment, secret};

pub use self::clock::ClockOffset;
pub use crate::nixl::{check, suggest_library};

/// The least deadline. Making an agent of NIXL takes up to half a second, in which the thread sends no
/// heartbeat.
pub(crate) const DEADLINE_MIN: Duration = Duration::from_secs(2);
/// The first bytes of a connection.
const GREETING: [u8; 16] = *b"estafette net 5\0";

/// 128 random bits.
pub type Secret = [u8; 16];

/// The address of a process for other machines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reach {
    /// A name or an address of the machine.
    pub host: String,
    /// The port there.
    pub port: u16,
    /// The key that callers must know.
    pub key: Secret,
    /// After how much silence each side acts, from 2 s to 12 days.
    pub deadline: Duration,
}

/// Called with the name of a consumer and the reason for suspicion once the consumer is silent; with `None`
/// once it answers again, and at the end.
pub type Remark = Box<dyn Fn(&str, Option<&str>) + Send>;

/// Memory that a consumer may read now.
pub struct Offer {
    /// The memory.
    pub segment: Arc<Segment>,
    /// The offset in it.
    pub offset: usize,
    /// The number of bytes.
    pub bytes: usize,
    /// The note for the consumer: at most a few kilobytes.
    pub note: Vec<u8>,
    /// Dropped when the consumer reads it no more.
    pub keeper: Box<dyn Any + Send>,
    /// Called when the consumer falls silent, and when it answers again.
    pub remark: Remark,
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer")
            .field("offset", &self.offset)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Memory that was fetched.
#[derive(Debug)]
pub struct Fetched {
    /// The process that has it.
    pub process: u32,
    /// The owner's note.
    pub note: Vec<u8>,
    /// A copy of the memory, in the arena of this process; longer than the owner's where that has no bytes.
    pub memory: Allocation,
    /// The length of the owner's.
    pub bytes: usize,
    /// The monotonic clock of the owner's machine: its
    /// [name](estafette_sync::platform::clock::monotonic_name), and how far it is ahead of the one here.
    /// `None` if it has no name.
    pub clock: Option<(Arc<str>, ClockOffset)>,
}

/// The answer to a consumer's request. If this is dropped without an answer, as by a panic, the answer is a
/// failure.
pub struct Reply {
    network: &'static Network,
    consumer: u64,
    number: u64,
    is_sent: bool,
}

impl Reply {
    /// Lets the other process read, or sends the reason why not.
    pub fn send(mut self, answer: Result<Offer, DeviceError>) {
        self.answer(answer);
    }

    fn answer(&mut self, answer: Result<Offer, DeviceError>) {
        self.is_sent = true;
        self.network.command(Command::Reply { consumer: self.consumer, number: self.number, answer });
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_sent {
            self.answer(Err(DeviceError::new(DeviceErrorKind::Other, "the process has given no answer")));
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Answers a secret, on the thread of the network: it must be short and must not block.
pub type Handler = fn(Secret, Reply);

per_process! {
    /// The addresses at which this process listens, as they were asked for and as they are.
    static LISTENING: Mutex<Vec<(String, Reach)>> = Mutex::new(Vec::new());
}

/// Listens at `at`, `host` or `host:port`, for as long as the process lives. Consumers must reach it under
/// that host. Without a port the system chooses one. A second call with the same text gives what the first
/// one gave. `refused` is called when the system refuses this process a connection, once until it has one
/// again; consumers wait meanwhile.
///
/// # Errors
/// NIXL is missing; the host is not one of this machine; the port is taken.
pub fn listen(
    at: &str,
    deadline: Duration,
    handler: Handler,
    refused: fn(&LinkError),
) -> Result<Reach, LinkError> {
    check().map_err(LinkError::Invalid)?;
    if deadline < DEADLINE_MIN || deadline > Duration::from_secs(1 << 20) {
        return Err(LinkError::Invalid(format!("a deadline of {deadline:?}: it is from 2 s to 12 days")));
    }
    let mut listening = LISTENING.lock();
    if let Some((_, known)) = listening.iter().find(|(text, _)| text == at) {
        return Ok(Reach { deadline, ..known.clone() });
    }
    let (host, port) = split(at)?;
    let network = Network::get()?;
    let listener = TcpListener::bind((host, port)).map(CloseOnFork::new);
    let listener = listener.map_err(LinkError::system("listening for other machines"))?;
    listener.set_nonblocking(true).map_err(LinkError::system("listening for other machines"))?;
    let port = listener.local_addr().map_err(LinkError::system("listening for other machines"))?.port();
    let reach = Reach { host: host.to_owned(), port, key: secret()?, deadline };
    listening.push((at.to_owned(), reach.clone()));
    drop(listening);
    network.command(Command::Listen { listener, key: reach.key, handler, refused });
    Ok(reach)
}

/// The host and the port, or 0; an IPv6 address with a port is in brackets.
fn split(at: &str) -> Result<(&str, u16), LinkError> {
    let wrong =
        || LinkError::Invalid(format!("{at:?} is no address of this machine: it is `host` or `host:port`"));
    let (host, port) = match at.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
        None if at.matches(':').count() == 1 => at.split_at(at.find(':').ok_or_else(wrong)?),
        None => (at, ""),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().map_err(|_| wrong())?,
        None if port.is_empty() => 0,
        None => return Err(wrong()),
    };
    if host.is_empty() || host.len() > 255 { Err(wrong()) } else { Ok((host, port)) }
}

/// Fetches what `secret` names. `process` is the number of the owner, for messages. `until_kept` is dropped
/// once the owner keeps it for this process, at the latest when `done` is called, once. Both happen under no
/// lock.
pub fn fetch(
    reach: &Reach,
    process: u32,
    secret: Secret,
    until_kept: Option<Box<dyn Send>>,
    done: impl FnOnce(Result<Fetched, DeviceError>) + Send + 'static,
) {
    match check().map_err(LinkError::Invalid).and_then(|()| Network::get()) {
        Ok(network) => {
            let request = Request { secret, until_kept, done: Box::new(done) };
            // A ticket is bytes from others.
            let reach = Reach { deadline: reach.deadline.max(DEADLINE_MIN), ..reach.clone() };
            network.command(Command::Fetch { reach, process, request });
        }
        Err(error) => {
            let what = format!("process {process} is on another machine, {}: {error}", reach.host);
            done(Err(DeviceError::new(DeviceErrorKind::Other, what)));
        }
    }
}

/// Declares a process on another machine dead, or all processes on machine `host`: their loans are released.
/// Returns at once. `host` is the address that messages about a suspected process name.
///
/// If such a process lives all the same, its connection ends, and it reads nothing more.
pub fn declare_dead(host: &str, process: Option<u32>) {
    if let Some(network) = Network::known() {
        network.command(Command::DeclareDead { host: host.to_owned(), process });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(any(estafette_portable, estafette_loom, estafette_shuttle)))]
    #[test]
    fn an_owner_says_that_it_keeps_what_is_asked_for_before_that_is_there() {
        use std::sync::mpsc::{TryRecvError, channel};

        use estafette_sync::time::Instant;

        let ((near, far), network) = (deaths::pair(), Network::get().expect("a thread"));
        let mut owner = owner::Owner::new(deaths::reach(1, Duration::from_secs(60)), 7, Instant::now());
        let (until_kept, kept) = channel::<()>();
        let done = Box::new(|_| panic!("nothing is there"));
        owner.request(
            Request { secret: [1; 16], until_kept: Some(Box::new(until_kept)), done },
            Instant::now(),
        );
        assert!(owner.connected(Ok(near)).is_ok());
        let wire = wire::Wire::new(CloseOnFork::new(far)).expect("a wire");
        let handler = |secret, reply: Reply| assert_eq!((secret, reply.number), ([1; 16], 1));
        let mut consumer =
            consumer::Consumer::new(wire, "127.0.0.1".to_owned(), u64::MAX, deaths::KEY, handler);
        assert_eq!(kept.try_recv(), Err(TryRecvError::Empty));
        let began = Instant::now();
        while kept.try_recv() != Err(TryRecvError::Disconnected) {
            assert!(began.elapsed() < Duration::from_secs(20), "the owner says nothing");
            let mut deferred = Vec::new();
            assert!(!consumer.receive(network, Instant::now(), &mut deferred));
            assert!(owner.receive(Instant::now(), &mut deferred).is_ok());
            deferred.into_iter().for_each(|end| end());
        }
    }

    #[test]
    fn addresses_have_a_host_and_perhaps_a_port() {
        let parsed = |at| split(at).ok();
        assert_eq!(parsed("10.0.0.1"), Some(("10.0.0.1", 0)));
        assert_eq!(parsed("node-7:80"), Some(("node-7", 80)));
        assert_eq!(parsed("fe80::1"), Some(("fe80::1", 0)));
        assert_eq!(parsed("[fe80::1]:80"), Some(("fe80::1", 80)));
        for wrong in ["", ":80", "a:b", "a:70000", "[fe80::1", "[a]b"] {
            assert!(parsed(wrong).is_none(), "{wrong}");
        }
    }
}
