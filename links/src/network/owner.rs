//! An owner on another machine, as a consumer of its memory sees it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;

use estafette_devices::host::HostMemory;
use estafette_devices::{Allocation, DeviceError, DeviceErrorKind, host_now_ns};
use estafette_sync::time::{Duration, Instant};

use super::thread::{Deferred, new_agent};
use super::wire::{End, Kind, Wire, number, short};
use super::{Fetched, GREETING, Reach, Secret};
use crate::board::KINDS;
use crate::nixl::{Agent, NixlError, Progress, Transfer};
use crate::platform::{CloseOnFork, connect, is_shortage};
use crate::{Arena, Segment};

/// An unused connection is closed after this time: it holds descriptors on both sides, and memory that was
/// shown.
const IDLE_TIME: Duration = Duration::from_secs(30);
/// The time that a failed transfer waits for a message of its owner, which explains the failure better.
const NEWS_TIME: Duration = Duration::from_secs(1);
/// After so many checks without new bytes, half a deadline apart, transfers fail.
const CHECKS_MAX: u32 = 8;
const ALIGN: usize = 64;
/// The mark: a number that is written before a transfer to places that the transfer overwrites.
const MARK: u64 = u64::from_le_bytes(*b"\xd3estafet");
/// The most marks of a read, over which they are evenly spread.
const MARKS_MAX: usize = 1024;
/// Memory of this size takes a considerable part of a deadline to make.
const LARGE: usize = 256 << 20;

type Done = Box<dyn FnOnce(Result<Fetched, DeviceError>) + Send>;

/// A request to an owner.
pub(super) struct Request {
    pub(super) secret: Secret,
    /// Dropped once the owner keeps it.
    pub(super) until_kept: Option<Box<dyn Send>>,
    pub(super) done: Done,
}

/// One connection. From the first offer on, the connection has an agent of its own: see [`Agent`].
pub(super) struct Owner {
    pub(super) reach: Reach,
    process: u32,
    has_greeted: bool,
    /// The name of the owner's clock, once the owner has greeted and if it has one.
    clock: Option<Arc<str>>,
    /// `None` while the connection is being made.
    pub(super) wire: Option<Wire>,
    agent: Option<(Agent, CString)>,
    /// The metadata of the owner's agent that this process could not load so far.
    metadata: Vec<u8>,
    last: u64,
    requests: BTreeMap<u64, Request>,
    reads: Vec<Read>,
    /// The time of the last check of transfers for marks, and the number of checks in a row that found
    /// nothing new.
    inspected: Instant,
    stalled: u32,
    /// The time and the error of a failed transfer.
    failed: Option<(Instant, NixlError)>,
    /// Requests go over another connection from now on.
    pub(super) is_replaced: bool,
    used: Instant,
}

/// A transfer that is under way.
struct Read {
    transfer: Transfer,
    fetched: Fetched,
    done: Done,
    /// Marks that the last check still found.
    marks: usize,
}

/// The end of the connection to an owner.
pub(super) enum Over {
    /// The connection is not needed any more.
    Idle,
    Failed(DeviceError),
}

impl Owner {
    pub(super) fn new(reach: Reach, process: u32, now: Instant) -> Self {
        Self {
            reach,
            process,
            has_greeted: false,
            clock: None,
            wire: None,
            agent: None,
            metadata: Vec::new(),
            last: 0,
            requests: BTreeMap::new(),
            reads: Vec::new(),
            inspected: now,
            stalled: 0,
            failed: None,
            is_replaced: false,
            used: now,
        }
    }

    /// A connection to the process; made on a thread that may wait.
    pub(super) fn connect(reach: &Reach) -> std::io::Result<CloseOnFork<TcpStream>> {
        let mut last = std::io::Error::other("the host has no address");
        for address in (reach.host.as_str(), reach.port).to_socket_addrs()? {
            match connect(&address, reach.deadline) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn died(&self, what: &str) -> DeviceError {
        let text = format!("process {} on {} {what}", self.process, self.reach.host);
        DeviceError::new(DeviceErrorKind::PeerDied, text).with_process(self.process)
    }

    fn failure(&self, kind: DeviceErrorKind, what: &str) -> DeviceError {
        DeviceError::new(kind, format!("{what} (in process {} on {})", self.process, self.reach.host))
    }

    pub(super) fn connected(&mut self, stream: std::io::Result<CloseOnFork<TcpStream>>) -> Result<(), Over> {
        let mut wire = stream.and_then(Wire::new).map_err(|error| {
            Over::Failed(match error.kind() {
                // The owner's port stays open for as long as its process lives.
                std::io::ErrorKind::ConnectionRefused => self.died("died"),
                _ if is_shortage(&error) => {
                    let Self { process, reach, .. } = self;
                    let text = format!("connecting to process {process} on {}: {error}", reach.host);
                    DeviceError::new(DeviceErrorKind::Other, text)
                }
                _ => self.died(&format!("cannot be reached: {error}")),
            })
        })?;
        let deadline = self.reach.deadline.as_millis() as u32;
        let (own, deadline) = (std::process::id().to_le_bytes(), deadline.to_le_bytes());
        wire.send(Kind::Hello, &[&GREETING, &self.reach.key, &own, &deadline]);
        for (number, request) in &self.requests {
            wire.send(Kind::Request, &[&number.to_le_bytes(), &request.secret]);
        }
        self.wire = Some(wire);
        Ok(())
    }

    pub(super) fn request(&mut self, request: Request, now: Instant) {
        self.last += 1;
        self.used = now;
        if let Some(wire) = &mut self.wire {
            wire.send(Kind::Request, &[&self.last.to_le_bytes(), &request.secret]);
        }
        self.requests.insert(self.last, request);
    }

    /// True if bytes are on their way.
    pub(super) fn is_busy(&self) -> bool {
        !self.reads.is_empty() && self.failed.is_none()
    }

    pub(super) fn receive(&mut self, now: Instant, deferred: &mut Deferred) -> Result<(), Over> {
        let Some(wire) = &mut self.wire else { return Ok(()) };
        let (messages, end) = wire.receive();
        for (kind, body) in messages {
            if self.handle(kind, &body, deferred).is_none() {
                let what = "it broke the protocol: a message makes no sense";
                return Err(Over::Failed(self.failure(DeviceErrorKind::Other, what)));
            }
        }
        let over = match end {
            None => return self.check_deadlines(now),
            Some(End::Closed) if self.has_greeted => self.died("died"),
            Some(End::Closed) => self.died(
                "hung up without a greeting: it has died, is another version of this library, or serves too many processes",
            ),
            Some(End::Lost(error)) => self.died(&format!("cannot be reached: {error}")),
            Some(End::Violation(what)) => {
                self.failure(DeviceErrorKind::Other, &format!("it broke the protocol: {what}"))
            }
        };
        Err(Over::Failed(over))
    }

    fn check_deadlines(&mut self, now: Instant) -> Result<(), Over> {
        let Some(wire) = &self.wire else { return Ok(()) };
        if let Some((since, error)) = &self.failed
            && now.saturating_duration_since(*since) > NEWS_TIME
        {
            return Err(Over::Failed(self.failure(DeviceErrorKind::Other, &error.to_string())));
        }
        let silence = wire.silence(now);
        if silence > self.reach.deadline {
            let what = format!("has been silent for {:.1} s, and is taken for dead", silence.as_secs_f32());
            return Err(Over::Failed(self.died(&what)));
        }
        if !self.requests.is_empty() || !self.reads.is_empty() {
            self.used = now;
        }
        self.check_progress(now)?;
        let idle_time = if self.is_replaced { Duration::ZERO } else { IDLE_TIME };
        match now.saturating_duration_since(self.used) > idle_time {
            true => Err(Over::Idle),
            false => Ok(()),
        }
    }

    /// Fails transfers of a process that answers and sends no bytes. Counts checks instead of time, as this
    /// process may have been stopped.
    fn check_progress(&mut self, now: Instant) -> Result<(), Over> {
        let pause = self.reach.deadline / 2;
        if self.reads.is_empty() {
            self.stalled = 0;
        }
        if now.saturating_duration_since(self.inspected) < pause {
            return Ok(());
        }
        self.inspected = now;
        let mut has_come = self.reads.is_empty();
        for read in &mut self.reads {
            // SAFETY: written before the transfer began, in memory that lives as long as the read.
            let left = marks_of(&read.fetched).filter(|mark| unsafe { mark.read_volatile() } == MARK).count();
            has_come |= left < read.marks;
            read.marks = left;
        }
        self.stalled = if has_come { 0 } else { self.stalled + 1 };
        if self.stalled < CHECKS_MAX {
            return Ok(());
        }
        let what = format!(
            "NIXL: the process answers, and no byte of its memory has come for {:.0} s: its ports of UCX may be closed to this machine",
            (CHECKS_MAX * pause).as_secs_f32()
        );
        Err(Over::Failed(self.failure(DeviceErrorKind::Other, &what)))
    }

    /// Sends a heartbeat if it is time. Returns when this owner is due again.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        let wire = self.wire.as_mut()?;
        let deadline = self.reach.deadline;
        let mut next = wire.heartbeat(deadline, now);
        next = next.min(now + deadline.saturating_sub(wire.silence(now)) + Duration::from_millis(1));
        if let Some((since, _)) = &self.failed {
            next = next.min(*since + NEWS_TIME + Duration::from_millis(1));
        }
        Some(next)
    }

    fn handle(&mut self, kind: Kind, body: &[u8], deferred: &mut Deferred) -> Option<()> {
        match kind {
            Kind::Heartbeat => {}
            Kind::Replace => self.is_replaced = true,
            Kind::Welcome => {
                let clock =
                    str::from_utf8(short(body)?.1).ok().filter(|clock| (1..256).contains(&clock.len()));
                self.clock = clock.map(Into::into);
                self.has_greeted = true;
            }
            Kind::Kept => {
                let request = self.requests.get_mut(&number(body)?.0);
                let kept = request.and_then(|request| request.until_kept.take());
                deferred.push(Box::new(move || drop(kept)));
            }
            Kind::Fail => {
                let (number, rest) = number(body)?;
                let (kind, rest) = rest.split_first()?;
                let kind = KINDS.get(usize::from(*kind)).copied().unwrap_or(DeviceErrorKind::Other);
                let (length, rest) = rest.split_first_chunk()?;
                let (name, text) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                let mut error = self.failure(kind, &String::from_utf8_lossy(text));
                if !name.is_empty() {
                    error = error.with_operation(&String::from_utf8_lossy(name));
                }
                if let Some(request) = self.requests.remove(&number) {
                    deferred.push(Box::new(move || request.end(Err(error))));
                }
            }
            Kind::Offer => {
                let (number, rest) = number(body)?;
                let ([address, bytes, length], rest) = words(rest)?;
                let (metadata, note) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                let request = self.requests.remove(&number)?;
                match self.read(number, address, bytes, metadata, note) {
                    Ok((transfer, fetched)) => {
                        deferred.push(Box::new(move || drop(request.until_kept)));
                        match transfer {
                            Some(transfer) => {
                                let marks = marks_of(&fetched).count();
                                self.reads.push(Read { transfer, fetched, done: request.done, marks });
                            }
                            None => self.has_come(fetched, request.done, deferred),
                        }
                    }
                    Err(error) => {
                        self.wire.as_mut()?.send(Kind::Return, &[&number.to_le_bytes()]);
                        deferred.push(Box::new(move || request.end(Err(error))));
                    }
                }
            }
            Kind::Hello | Kind::Request | Kind::Return => return None,
        }
        Some(())
    }

    /// Begins to read offered memory. An offer of no bytes needs no transfer.
    fn read(
        &mut self,
        number: u64,
        address: u64,
        bytes: u64,
        metadata: &[u8],
        note: &[u8],
    ) -> Result<(Option<Transfer>, Fetched), DeviceError> {
        let nixl = |error: NixlError| DeviceError::new(DeviceErrorKind::Other, error.to_string());
        let too_large =
            |_| DeviceError::new(DeviceErrorKind::OutOfMemory, format!("{bytes} bytes of another machine"));
        if !metadata.is_empty() {
            self.metadata = metadata.to_vec();
        }
        let bytes = usize::try_from(bytes).map_err(too_large)?;
        // Memory of many gigabytes takes seconds to make, and the first agent half a second, so this process
        // says first that it is there.
        if let Some(wire) = &mut self.wire {
            if bytes < LARGE {
                wire.heartbeat(self.reach.deadline, Instant::now());
            } else {
                wire.send(Kind::Heartbeat, &[]);
            }
        }
        let memory = Arena.allocate(bytes.max(1), ALIGN)?;
        if let Some((agent, _)) = &mut self.agent
            && self.reads.is_empty()
        {
            // SAFETY: every transfer of this agent is done; a connection with one that was given up ends.
            unsafe { agent.forget_unused() };
        }
        let here = memory.ptr().as_ptr();
        let segment = segment_of(&memory);
        let fetched = Fetched { process: self.process, note: note.to_vec(), memory, bytes, clock: None };
        if !self.metadata.is_empty() {
            // After a failure the agent stays, as it still runs transfers of earlier offers.
            match &mut self.agent {
                Some((agent, peer)) => *peer = agent.load(&self.metadata).map_err(nixl)?,
                none => {
                    let agent = new_agent().map_err(nixl)?;
                    let peer = agent.load(&self.metadata).map_err(nixl)?;
                    *none = Some((agent, peer));
                }
            }
            self.metadata.clear();
        }
        if bytes == 0 {
            if let Some(wire) = &mut self.wire {
                wire.send(Kind::Return, &[&number.to_le_bytes()]);
            }
            return Ok((None, fetched));
        }
        let no_agent = || DeviceError::new(DeviceErrorKind::Other, "memory was offered by no agent");
        let (agent, peer) = self.agent.as_mut().ok_or_else(no_agent)?;
        agent.register(&segment).map_err(nixl)?;
        // SAFETY: inside of fresh memory, which is aligned for it.
        marks_of(&fetched).for_each(|mark| unsafe { mark.write(MARK) });
        // SAFETY: the segment of this fresh memory is registered; what was fetched keeps the memory, and is
        // handed on when the transfer is done, or dropped after the agent.
        let transfer =
            unsafe { agent.read(peer, here, address, bytes, &number.to_le_bytes()) }.map_err(nixl)?;
        Ok((Some(transfer), fetched))
    }

    /// Moves bytes. True if a transfer is done.
    pub(super) fn progress(&mut self, now: Instant, deferred: &mut Deferred) -> bool {
        if !self.is_busy() {
            return false;
        }
        let Some((agent, _)) = &self.agent else { return false };
        let mut is_done = |read: &mut Read| {
            let progress = agent.progress(&read.transfer);
            if progress == Progress::Failed {
                self.failed = Some((now, NixlError::transfer_failed()));
            }
            progress == Progress::Done
        };
        let done: Vec<_> = self.reads.extract_if(.., |read| is_done(read)).collect();
        let has_come = !done.is_empty();
        if has_come {
            self.stalled = 0;
        }
        for Read { transfer, fetched, done, .. } in done {
            agent.end(transfer);
            self.has_come(fetched, done, deferred);
        }
        has_come
    }

    fn has_come(&self, mut fetched: Fetched, done: Done, deferred: &mut Deferred) {
        let offset = self.wire.as_ref().and_then(|wire| wire.clock.offset(host_now_ns()));
        fetched.clock = self.clock.clone().zip(offset);
        deferred.push(Box::new(move || done(Ok(fetched))));
    }

    /// Fails every pending request, once none of its bytes can arrive any more.
    pub(super) fn end(mut self, error: &DeviceError, deferred: &mut Deferred) {
        let reads = std::mem::take(&mut self.reads).into_iter();
        let (transfers, reads): (Vec<_>, Vec<_>) =
            reads.map(|Read { transfer, fetched, done, .. }| (transfer, (fetched, done))).unzip();
        if let Some((agent, _)) = self.agent.take() {
            transfers.into_iter().for_each(|transfer| agent.end(transfer));
        }
        for request in std::mem::take(&mut self.requests).into_values() {
            let error = error.clone();
            deferred.push(Box::new(move || request.end(Err(error))));
        }
        // The memory goes after the agent.
        for (_memory, done) in reads {
            let error = error.clone();
            deferred.push(Box::new(move || done(Err(error))));
        }
    }
}

impl Request {
    fn end(self, fetched: Result<Fetched, DeviceError>) {
        (self.done)(fetched);
        drop(self.until_kept);
    }
}

fn segment_of(memory: &Allocation) -> Arc<Segment> {
    let found = Arena.find(memory.ptr().as_ptr(), memory.len());
    found.expect("the arena has what it has allocated").0
}

/// The addresses of marks in memory that is fetched to.
fn marks_of(fetched: &Fetched) -> impl Iterator<Item = *mut u64> {
    let (start, numbers) = (fetched.memory.ptr().as_ptr().cast::<u64>(), fetched.bytes / size_of::<u64>());
    let count = numbers.min(MARKS_MAX);
    (0..count).map(move |index| start.wrapping_add(index * (numbers / count)))
}

/// Three numbers from the beginning of a message.
fn words(body: &[u8]) -> Option<([u64; 3], &[u8])> {
    let (first, rest) = number(body)?;
    let (second, rest) = number(rest)?;
    let (third, rest) = number(rest)?;
    Some(([first, second, third], rest))
}

#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc::{TryRecvError, channel};

    use super::*;
    use crate::network::deaths::reach;
    use crate::nixl::tests::{self as double, Call};

    const BYTES: u64 = 4096;

    /// A consumer that is connected to nothing that answers, with a question; its end of the answer.
    fn owner() -> (Owner, TcpListener) {
        double::install();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mut owner = Owner::new(reach(port, Duration::from_secs(2)), 7, Instant::now());
        assert!(owner.connected(Owner::connect(&owner.reach)).is_ok());
        (owner, listener)
    }

    /// Requests memory; the result comes once it is there.
    fn request(owner: &mut Owner) -> std::sync::mpsc::Receiver<Result<Fetched, DeviceError>> {
        let (done, fetched) = channel();
        let done = Box::new(move |what| done.send(what).expect("awaited"));
        owner.request(Request { secret: [1; 16], until_kept: None, done }, Instant::now());
        fetched
    }

    fn offer(owner: &mut Owner, number: u64, bytes: u64, metadata: &[u8]) {
        let numbers = [number, 1 << 20, bytes, metadata.len() as u64].map(u64::to_le_bytes).concat();
        let mut deferred = Vec::new();
        assert!(owner.handle(Kind::Offer, &[&numbers, metadata].concat(), &mut deferred).is_some());
        deferred.into_iter().for_each(|end| end());
    }

    fn progress(owner: &mut Owner) {
        let mut deferred = Vec::new();
        owner.progress(Instant::now(), &mut deferred);
        deferred.into_iter().for_each(|end| end());
    }

    #[test]
    fn what_is_under_way_stays_so_when_the_metadata_of_another_offer_is_refused() {
        let (mut owner, _listener) = owner();
        let (first, second) = (request(&mut owner), request(&mut owner));
        offer(&mut owner, 1, BYTES, b"metadata");
        double::refuse(Some(Call::Load));
        offer(&mut owner, 2, BYTES, b"more");
        double::refuse(None);
        assert!(second.try_recv().expect("an answer").is_err());
        progress(&mut owner);
        progress(&mut owner);
        assert_eq!(first.try_recv().expect_err("no byte has come"), TryRecvError::Empty);
        double::finish();
        progress(&mut owner);
        assert!(first.try_recv().expect("it has come").is_ok());
    }

    #[test]
    fn what_has_no_bytes_comes_with_its_offer() {
        let (mut owner, _listener) = owner();
        let fetched = request(&mut owner);
        offer(&mut owner, 1, 0, b"metadata");
        assert_eq!(fetched.try_recv().expect("an answer").expect("nothing is fetched").bytes, 0);
        assert!(!owner.is_busy());
    }

    #[test]
    fn transfers_of_which_nothing_comes_fail_and_others_go_on() {
        let (mut owner, _listener) = owner();
        let fetched = request(&mut owner);
        offer(&mut owner, 1, BYTES, b"metadata");
        let mut now = Instant::now();
        let mut check = |owner: &mut Owner| {
            now += owner.reach.deadline;
            owner.check_progress(now)
        };
        for part in 1..20 {
            let memory = owner.reads[0].fetched.memory.ptr();
            // SAFETY: memory of a transfer that nothing works on.
            unsafe { memory.add(part * 100).write_bytes(5, 100) };
            assert!(check(&mut owner).is_ok(), "{part}");
        }
        for _ in 1..CHECKS_MAX {
            assert!(check(&mut owner).is_ok());
        }
        let Err(Over::Failed(error)) = check(&mut owner) else { panic!("it is waited for") };
        assert!(error.message().contains("ports of UCX"), "{error}");
        assert_eq!(fetched.try_recv().expect_err("the network ends it"), TryRecvError::Empty);
        // A transfer that has no room for a mark ends in the same time.
        let _small = request(&mut owner);
        owner.reads.clear();
        assert!(check(&mut owner).is_ok());
        offer(&mut owner, 2, 7, b"");
        assert_eq!((1..100).find(|_| check(&mut owner).is_err()), Some(CHECKS_MAX));
    }
}
