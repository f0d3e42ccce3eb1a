//! The link thread of the process: it greets, is woken by peers, and sees their ends. Started with the first
//! door or link.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use estafette_sync::essential::essential;
use estafette_sync::per_process;
use estafette_sync::process::Generation;
use estafette_sync::sleeper::{Host, IS_AWAKE, MAY_SLEEP, WOKEN, set_host};
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use estafette_sync::thread;
use estafette_sync::time::{Duration, Instant};

use crate::LinkError;
use crate::board::{self, populate};
use crate::bulk;
use crate::link::{Channel, Link, Shared};
use crate::liveness::{Liveness, LivenessLock};
use crate::mailbox::Mailbox;
use crate::platform::{
    Descriptor, Memory, Poll, Socket, Waker, check_room, is_shortage, may_be_process, own_process, own_user,
    wait_for_any, wake_all,
};
use crate::threads::{self, Single};

/// The content of a greeting: that it is one, and the version of the protocol.
pub(crate) const GREETING: [u8; 16] = *b"estafette link 9";
/// Doors and links of a process at the same time, connections that become links, and closed links with
/// pending promises or uses. A link takes some 70 kB and three descriptors.
const SOURCES_MAX: usize = 4096;
/// Connections to doors whose greeting has not come. The oldest gives way.
const GREETINGS_MAX: usize = 64;
/// Links of a door that wait to be accepted. Further connections wait in the kernel.
const ARRIVED_MAX: usize = 128;
/// Links that one thread serves while it waits. The kernel waits for 128 words at once.
const SERVED_MAX: usize = 16;
/// The time that a thread spins before it sleeps: about what going to sleep and waking up would cost, on a
/// virtual machine.
const SPIN_TIME: Duration = Duration::from_micros(150);
/// Threads spin where the last wait was no longer. The wait of a thread that slept includes its own wake-up
/// and its peer's, so this limit is above `SPIN_TIME`: two quick peers that sleep begin to spin again.
const SHORT_WAIT: Duration = Duration::from_micros(300);
/// If a spin round exceeds `SPIN_TIME`, another thread used the core. Then no thread spins for 16 times as
/// long. So spinning costs at most a sixteenth of the time, and after a short loss threads soon try again.
const PAUSE_FACTOR: u32 = 16;
/// The most waits that do not spin after one that spun in vain, as a power of two.
const IN_VAIN_MAX: u32 = 6;
/// Checks of the condition between two readings of the clock.
const ROUND: u32 = 16;
/// The time after which a door tries again that could not take a connection.
const PAUSE: Duration = Duration::from_millis(100);
/// Descriptors that a door needs at once to accept a connection and greet: the socket, the board, this
/// process.
const TO_ACCEPT: usize = 3;
/// Descriptors that reading a greeting takes: the peer's board and end, and two to check the end.
const TO_MEET: usize = 4;
/// The waker's token. Others are even; a link has also the odd one that follows, for the end of its peer.
const WAKER: u64 = 0;

per_process! {
    static HUB: Single<Hub> = Mutex::new(None);
}

/// The event sources that the link thread waits for.
pub(crate) struct Hub {
    pub(crate) poll: Poll,
    waker: Waker,
    liveness: Liveness,
    sources: Mutex<Sources>,
    /// Links to dispatch.
    scheduled: Mutex<Vec<u64>>,
    /// Doors that could not take a connection, and greetings at doors that could not be read.
    paused: Mutex<Vec<u64>>,
    /// Links that were removed.
    removed: AtomicU32,
    /// Of threads that serve.
    spin_policy: SpinPolicy,
    /// The process whose threads these are.
    pub(crate) generation: Generation,
}

#[derive(Default)]
struct Sources {
    last: u64,
    by_token: BTreeMap<u64, Source>,
}

#[derive(Clone)]
enum Source {
    Door(Arc<DoorSource>),
    Greeting(Arc<Greeting>),
    Link(Arc<Shared>),
}

struct DoorSource {
    socket: Socket,
    arrived: Arrived,
    /// The system has refused it the last connection.
    is_short: AtomicBool,
}

type Arrived = Arc<Mailbox<Result<Link, LinkError>>>;

/// A connection whose peer has not greeted.
struct Greeting {
    socket: Socket,
    process: u32,
    /// The process at whose door this one is. A child of it may keep the door after its end.
    host: Option<Descriptor>,
    board: Arc<Memory>,
    liveness_lock: LivenessLock,
    arrived: Arrived,
    side: Side,
    /// This process has lacked what it takes to read it.
    is_short: AtomicBool,
}

/// The side of a connection that this process is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The connecting process gets the error of a failed connection.
    Connects,
    /// A failed connection is dropped silently; only a lack of resources of this process is reported.
    Accepts,
}

impl Hub {
    /// The hub of the process, whose threads start now if they have not.
    pub(crate) fn get() -> Result<&'static Self, LinkError> {
        threads::started(&HUB, Self::new, |hub| {
            hub.liveness.start()?;
            set_host(&LinkHost);
            bulk::enable();
            threads::start("estafette-links", move || essential("the link thread", || hub.run()))
        })
    }

    fn new() -> Result<Self, LinkError> {
        let system = || LinkError::system("starting to wait for other processes");
        let new = Self {
            poll: Poll::new().map_err(system())?,
            waker: Waker::new().map_err(system())?,
            liveness: Liveness::default(),
            sources: Mutex::default(),
            scheduled: Mutex::default(),
            paused: Mutex::default(),
            removed: AtomicU32::new(0),
            spin_policy: SpinPolicy::default(),
            generation: Generation::current(),
        };
        new.poll.add(new.waker.descriptor(), WAKER).map_err(system())?;
        Ok(new)
    }

    pub(crate) fn add_door(&self, socket: Socket, arrived: Arrived) -> Result<u64, LinkError> {
        let mut sources = self.sources.lock();
        sources.check_room().map_err(LinkError::system("opening a door"))?;
        let token = sources.next_token();
        self.poll.add(socket.descriptor(), token).map_err(LinkError::system("waiting at a door"))?;
        let door = DoorSource { socket, arrived, is_short: AtomicBool::new(false) };
        sources.by_token.insert(token, Source::Door(Arc::new(door)));
        Ok(token)
    }

    /// Greets the process at the other end of a new connection. Returns what [`abandon`](Self::abandon)
    /// takes.
    pub(crate) fn greet(
        &'static self,
        socket: Socket,
        arrived: Arrived,
        side: Side,
    ) -> Result<u64, LinkError> {
        let system = || LinkError::system("greeting another process");
        self.sources.lock().check_room().map_err(system())?;
        let (process, user) = socket.peer().map_err(system())?;
        if user != own_user() {
            return Err(LinkError::Refused(format!("process {process} acts for another user, {user}")));
        }
        step!("greet 1");
        let is_host = side == Side::Connects && process != 0;
        let host = is_host.then(|| socket.peer_process(process)).transpose();
        let host = host.map_err(|error| match error.kind() {
            ErrorKind::NotFound => LinkError::PeerDied { process },
            _ => system()(error),
        })?;
        let (board, descriptor) = board::create().map_err(system())?;
        populate(&board);
        step!("greet 2");
        let board = Arc::new(board);
        let liveness_lock = self.liveness.hold(Arc::clone(&board));
        step!("greet 3");
        let end = own_process().map_err(system())?;
        socket.send(&GREETING, &[&descriptor, &end]).map_err(|error| match error.kind() {
            // It has died, or its door has no room. A door must not take that for a refusal of the system,
            // and wait for its owner.
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                LinkError::Refused(format!("process {process} hung up"))
            }
            _ => system()(error),
        })?;
        step!("greet 4");
        let mut sources = self.sources.lock();
        // Other threads may have connected meanwhile.
        sources.check_room().map_err(system())?;
        let token = sources.next_token();
        self.poll.add(socket.descriptor(), token).map_err(system())?;
        host.iter().try_for_each(|host| self.poll.add(host, token | 1)).map_err(system())?;
        let is_short = AtomicBool::new(false);
        let greeting = Greeting { socket, process, host, board, liveness_lock, arrived, side, is_short };
        sources.by_token.insert(token, Source::Greeting(Arc::new(greeting)));
        let oldest = if side == Side::Accepts { sources.oldest_beyond() } else { None };
        drop(sources);
        oldest.into_iter().for_each(|oldest| self.abandon(oldest));
        Ok(token)
    }

    /// See [`LinkHost`].
    fn serve(&self, word: &AtomicU32, deadline: Option<Instant>) -> Option<bool> {
        let removed = self.removed.load(Ordering::Acquire);
        let links: Vec<_> = self.sources.lock().links().take(SERVED_MAX).collect();
        let served: Vec<_> = links.iter().filter(|(_, link)| link.serve()).collect();
        if served.is_empty() {
            return None;
        }
        let began = Instant::now();
        let has_events = || served.iter().any(|(_, link)| link.has_events());
        let is_over = || {
            word.load(Ordering::Acquire) == WOKEN
                || self.removed.load(Ordering::Acquire) != removed
                || has_events()
        };
        let spins = self.spin_policy.may_spin(began);
        if spins {
            served.iter().for_each(|(_, link)| link.pause_served());
            step!("serve 1");
        }
        let is_over = spins && self.spin_policy.spin(is_over, deadline);
        if spins && !is_over {
            self.spin_policy.note_vain_spin();
        }
        // Listening polls.
        let has_come = has_events();
        let waited = if is_over {
            Ok(true)
        } else {
            let mut words = vec![(word, MAY_SLEEP), (&self.removed, removed)];
            words.extend(served.iter().map(|(_, link)| link.listen_by_futex()));
            step!("serve 2");
            let change =
                |from, to| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
            let is_asleep = change(IS_AWAKE, MAY_SLEEP);
            let waited = if is_asleep { wait_for_any(&words, deadline) } else { Ok(true) };
            // From now on a wake-up is no call of the system.
            change(MAY_SLEEP, IS_AWAKE);
            step!("serve 3");
            waited
        };
        // Work of a thread of this process says nothing of a peer.
        self.spin_policy.note_wait(began.elapsed(), has_come || has_events());
        for (token, link) in served {
            link.stop_serving();
            step!("serve 4");
            self.dispatch(*token, link);
        }
        waited.ok()
    }

    /// Has the link thread dispatch a link soon.
    pub(crate) fn dispatch_soon(&self, token: u64) {
        self.scheduled.lock().push(token);
        self.waker.wake();
    }

    /// Takes a connection out whose peer has not greeted.
    pub(crate) fn abandon(&self, token: u64) {
        self.remove_if(token, |source| matches!(source, Source::Greeting(_)));
    }

    /// Takes something out. The last handle closes it.
    pub(crate) fn remove(&self, token: u64) {
        self.remove_if(token, |_| true);
    }

    fn remove_if(&self, token: u64, condition: impl Fn(&Source) -> bool) {
        if self.generation.is_inherited() {
            return;
        }
        let mut sources = self.sources.lock();
        let is_removed = sources.by_token.get(&token).is_some_and(condition);
        let source = is_removed.then(|| sources.by_token.remove(&token)).flatten();
        drop(sources);
        match &source {
            Some(Source::Door(door)) => {
                self.poll.remove(door.socket.descriptor());
                // A forked child may have the socket too. This hangs up on those who wait there.
                door.socket.shut_down();
                while let Ok(Some(_)) = door.socket.accept() {}
            }
            Some(Source::Greeting(greeting)) => {
                self.poll.remove(greeting.socket.descriptor());
                greeting.host.iter().for_each(|host| self.poll.remove(host));
            }
            Some(Source::Link(link)) => {
                self.poll.remove(link.channel().socket.descriptor());
                self.poll.remove(&link.channel().end);
                self.liveness.unwatch(link);
                // A thread that serves the link keeps it open.
                self.removed.fetch_add(1, Ordering::Release);
                wake_all(&self.removed);
            }
            None => {}
        }
    }

    fn run(&'static self) {
        let mut retry = Instant::now();
        let spin_policy = SpinPolicy::default();
        loop {
            let is_pause = !self.paused.lock().is_empty();
            let began = Instant::now();
            let found = spin_policy.may_spin(began).then(|| self.spin(&spin_policy)).flatten();
            let left = if found.is_some() {
                // Other descriptors are polled all the same.
                Some(Duration::ZERO)
            } else {
                is_pause.then(|| retry.saturating_duration_since(Instant::now()))
            };
            let ready = self.poll.wait(left).expect("a set of descriptors can be waited for");
            let by_peer = found == Some(true) || ready.iter().any(|token| *token != WAKER);
            spin_policy.note_wait(began.elapsed(), by_peer);
            for token in ready {
                self.handle(token);
            }
            if is_pause && Instant::now() >= retry {
                retry = Instant::now() + PAUSE;
                let paused = std::mem::take(&mut *self.paused.lock());
                for token in paused {
                    match self.source(token) {
                        Some(Source::Door(door)) => {
                            let _ = self.poll.pause(door.socket.descriptor(), token, false);
                        }
                        Some(Source::Greeting(greeting)) => {
                            if self.poll.add(greeting.socket.descriptor(), token).is_err() {
                                self.abandon(token);
                            }
                        }
                        Some(Source::Link(_)) | None => {}
                    }
                }
            }
            let scheduled = std::mem::take(&mut *self.scheduled.lock());
            for token in scheduled {
                if let Some(Source::Link(link)) = self.source(token) {
                    self.dispatch(token, &link);
                }
            }
        }
    }

    /// Polls links for a moment more, for which no peer need send a wake-up. `None` if there was nothing to
    /// do; true if that came of a peer, false if of a thread of this process.
    fn spin(&self, spin_policy: &SpinPolicy) -> Option<bool> {
        let links: Vec<_> = self.sources.lock().links().take(SERVED_MAX).collect();
        // Each poll wakes those that wait for room.
        if links.iter().any(|(_, link)| link.has_senders()) {
            return None;
        }
        let paused: Vec<_> = links.iter().filter(|(_, link)| link.try_pause()).collect();
        if paused.is_empty() {
            return None;
        }
        let has_events = || paused.iter().any(|(_, link)| link.has_events());
        let has_found = spin_policy.spin(|| has_events() || !self.scheduled.lock().is_empty(), None);
        if !has_found {
            spin_policy.note_vain_spin();
        }
        let by_peer = has_events();
        paused.iter().for_each(|(token, link)| self.dispatch(*token, link));
        has_found.then_some(by_peer)
    }

    fn handle(&'static self, token: u64) {
        if token == WAKER {
            return self.waker.clear();
        }
        let even = token & !1;
        match self.source(even) {
            Some(Source::Door(door)) => self.accept(token, &door),
            Some(Source::Greeting(greeting)) => self.finish_greeting(even, greeting, token != even),
            Some(Source::Link(link)) => {
                link.use_room();
                if token != even {
                    link.note_gone();
                } else if link.drain(true) {
                    // The end comes late, where a child of the peer has the socket too; it comes early only
                    // from a process that gives up its link without a word, which is lost then as if it had
                    // died.
                    self.poll.remove(link.channel().socket.descriptor());
                    link.note_lost();
                }
                self.dispatch(even, &link);
            }
            None => {}
        }
    }

    /// A share in a source.
    fn source(&self, token: u64) -> Option<Source> {
        self.sources.lock().by_token.get(&token).cloned()
    }

    fn dispatch(&self, token: u64, link: &Shared) {
        if link.dispatch() {
            self.remove(token);
        }
    }

    fn accept(&'static self, token: u64, door: &DoorSource) {
        // A connection that waits on would wake this thread again and again.
        let pause = || {
            let _ = self.poll.pause(door.socket.descriptor(), token, true);
            self.paused.lock().push(token);
        };
        if door.arrived.len() >= ARRIVED_MAX {
            return pause();
        }
        // Data that the process at the other end sends is lost if there is no room for it.
        let has_room = check_room(TO_ACCEPT).and_then(|()| self.sources.lock().check_room());
        let accepted = has_room.and_then(|()| door.socket.accept());
        let made = accepted.map_err(LinkError::system("accepting a connection"));
        let made = made.and_then(|socket| match socket {
            Some(socket) => self.greet(socket, Arc::clone(&door.arrived), Side::Accepts).map(|_| ()),
            None => Ok(()),
        });
        match made {
            // A process that has gone again, or is none to speak to.
            Ok(()) | Err(LinkError::Refused(_) | LinkError::PeerDied { .. }) => {
                door.is_short.store(false, Ordering::Relaxed);
            }
            Err(error) => {
                pause();
                if !door.is_short.swap(true, Ordering::Relaxed) {
                    door.arrived.put(Err(error));
                }
            }
        }
    }

    /// Reads the greeting of a peer, and makes the link. If the peer `has_ended`, a greeting that is not here
    /// never arrives.
    fn finish_greeting(&'static self, token: u64, greeting: Arc<Greeting>, has_ended: bool) {
        let meeting = |error| LinkError::system("meeting another process")(error);
        // The kernel drops the descriptors of a message for which there is no room.
        if greeting.side == Side::Accepts
            && let Err(error) = check_room(TO_MEET)
        {
            self.poll.remove(greeting.socket.descriptor());
            self.paused.lock().push(token);
            if !greeting.is_short.swap(true, Ordering::Relaxed) {
                greeting.arrived.put(Err(meeting(error)));
            }
            return;
        }
        let mut bytes = [0; GREETING.len()];
        let received = greeting.socket.receive(&mut bytes).transpose();
        if received.is_none() && !has_ended {
            return;
        }
        self.abandon(token);
        // The caller that connects may give up at this moment.
        let Some(greeting) = Arc::into_inner(greeting) else { return };
        let Greeting { socket, process, board, liveness_lock, arrived, side, .. } = greeting;
        let refused = |what: &str| LinkError::Refused(format!("process {process} {what}"));
        let met = || {
            let received = received.ok_or(LinkError::PeerDied { process })?;
            let (length, descriptors) = received.map_err(meeting)?;
            match bytes {
                _ if length == 0 => return Err(refused("hung up")),
                GREETING if length == GREETING.len() => {}
                _ => return Err(refused("speaks another version, or something else")),
            }
            let [theirs, end]: [_; 2] =
                descriptors.map_err(meeting)?.try_into().map_err(|_| refused("came without its board"))?;
            if !may_be_process(&end, process).map_err(meeting)? {
                return Err(refused("came without its end"));
            }
            let peer = board::open(&theirs).map_err(|error| match is_shortage(&error) {
                true => meeting(error),
                false => refused(&format!("has no board: {error}")),
            })?;
            populate(&peer);
            Ok((peer, Channel { socket, end, process }))
        };
        let met = met();
        step!("greet 5");
        let link = met.and_then(|(peer, channel)| {
            let link = Arc::new(Shared::new((board, liveness_lock), peer, channel, self, token));
            self.sources.lock().by_token.insert(token, Source::Link(Arc::clone(&link)));
            let added = self.poll.add(link.channel().socket.descriptor(), token);
            let added = added.and_then(|()| self.poll.add(&link.channel().end, token | 1));
            if let Err(error) = added {
                self.remove(token);
                return Err(LinkError::system("waiting for another process")(error));
            }
            self.liveness.watch(Arc::clone(&link));
            step!("greet 6");
            Ok(Link::new(link))
        });
        match (link, side) {
            (Err(error), Side::Accepts) if !error.is_shortage() => {}
            (link, _) => arrived.put(link),
        }
    }
}

/// The work of threads that wait in a [`Sleeper`](estafette_sync::sleeper::Sleeper). Waiting threads
/// serve links that threads wait for, in place of the link thread, so an arrival wakes one thread less. The
/// link thread serves the other links, and observes the ends of peers.
struct LinkHost;

impl Host for LinkHost {
    fn serve(&self, word: &AtomicU32, deadline: Option<Instant>) -> Option<bool> {
        let (hub, _) = (*HUB.lock())?;
        hub.serve(word, deadline)
    }

    fn wake(&self, word: &AtomicU32) {
        wake_all(word);
    }
}

/// Adaptive spinning: threads poll for about as long as sleeping and waking up would take before they sleep.
/// Between polls the thread yields: with few cores the thread that it waits for may be ready to run. But a
/// yielding thread resumes late, and a sleeping one is woken at once. So where other threads need the
/// processor, most waits skip spinning.
#[derive(Debug, Default)]
struct SpinPolicy(Mutex<SpinHistory>);

#[derive(Debug, Default)]
struct SpinHistory {
    /// The last wait was short.
    was_short: bool,
    /// Spins in vain since a peer last answered within `SPIN_TIME`.
    in_vain: u32,
    /// Waits left that skip spinning.
    skipped: u32,
    /// No wait that begins before this spins, as another thread used the processor.
    paused_until: Option<Instant>,
}

impl SpinPolicy {
    fn may_spin(&self, now: Instant) -> bool {
        let mut history = self.0.lock();
        if !history.was_short || history.paused_until.is_some_and(|until| now < until) {
            return false;
        }
        let skipped = history.skipped;
        history.skipped = skipped.saturating_sub(1);
        skipped == 0
    }

    /// Notes a wait of `time`, ended `by_peer` or not. A sleeping thread that waited briefly could have spun.
    fn note_wait(&self, time: Duration, by_peer: bool) {
        let mut history = self.0.lock();
        history.was_short = time < SHORT_WAIT;
        if by_peer && time < SPIN_TIME {
            (history.in_vain, history.skipped) = (0, 0);
        }
    }

    /// Spins until the condition holds, for at most `SPIN_TIME` and until `deadline`. Returns whether it
    /// holds.
    fn spin(&self, condition: impl Fn() -> bool, deadline: Option<Instant>) -> bool {
        let mut now = Instant::now();
        let end = now + SPIN_TIME;
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        loop {
            for _ in 0..ROUND {
                if condition() {
                    return true;
                }
                estafette_sync::hint::spin_loop();
            }
            thread::yield_now();
            let before = std::mem::replace(&mut now, Instant::now());
            self.note_round(now - before, now);
            if now >= end {
                return condition();
            }
        }
    }

    /// Notes the time of a spin round.
    fn note_round(&self, time: Duration, now: Instant) {
        if time > SPIN_TIME {
            let mut history = self.0.lock();
            history.paused_until = history.paused_until.max(Some(now + PAUSE_FACTOR * time));
        }
    }

    fn note_vain_spin(&self) {
        let mut history = self.0.lock();
        history.in_vain = (history.in_vain + 1).min(IN_VAIN_MAX);
        history.skipped = history.skipped.max(1 << history.in_vain);
    }
}

impl Sources {
    fn links(&self) -> impl Iterator<Item = (u64, Arc<Shared>)> {
        self.by_token.iter().filter_map(|(token, source)| match source {
            Source::Link(link) => Some((*token, Arc::clone(link))),
            Source::Door(_) | Source::Greeting(_) => None,
        })
    }

    /// Fails while the number of sources is at its limit.
    fn check_room(&self) -> io::Result<()> {
        if self.by_token.len() < SOURCES_MAX {
            return Ok(());
        }
        let most =
            format!("{SOURCES_MAX} doors and links of this process are open or in use, which is the most");
        Err(io::Error::new(ErrorKind::QuotaExceeded, most))
    }

    fn next_token(&mut self) -> u64 {
        self.last += 2;
        self.last
    }

    /// The connection that has waited longest, if there are too many.
    fn oldest_beyond(&self) -> Option<u64> {
        let greets = |source: &Source| matches!(source, Source::Greeting(its) if its.side == Side::Accepts);
        let mut waiting = self.by_token.iter().filter(|(_, source)| greets(source)).map(|(token, _)| *token);
        let oldest = waiting.next()?;
        (waiting.count() >= GREETINGS_MAX).then_some(oldest)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("sources", &self.sources.lock().by_token.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_spins_until_the_condition_holds_or_the_time_is_up() {
        let (spin_policy, has_come) = (SpinPolicy::default(), AtomicBool::new(false));
        let condition = || has_come.load(Ordering::Acquire);
        assert!(!spin_policy.spin(condition, None));
        has_come.store(true, Ordering::Release);
        assert!(spin_policy.spin(condition, Some(Instant::now())), "it polls once");
    }

    #[test]
    fn threads_spin_after_short_waits() {
        let (spin_policy, now) = (SpinPolicy::default(), Instant::now());
        assert!(!spin_policy.may_spin(now), "nothing is known yet");
        spin_policy.note_wait(SHORT_WAIT / 2, false);
        assert!(spin_policy.may_spin(now) && spin_policy.may_spin(now));
        spin_policy.note_wait(SHORT_WAIT, true);
        assert!(!spin_policy.may_spin(now));
    }

    #[test]
    fn threads_spin_for_a_part_of_the_time_where_others_need_the_processor() {
        let (spin_policy, mut now) = (SpinPolicy::default(), Instant::now());
        spin_policy.note_wait(SHORT_WAIT / 2, true);
        spin_policy.note_round(SPIN_TIME, now);
        assert!(spin_policy.may_spin(now), "sleeping would have cost as much");
        for loss in [2 * SPIN_TIME, 40 * SPIN_TIME, 2 * SPIN_TIME] {
            let end = now + PAUSE_FACTOR * loss;
            spin_policy.note_round(loss, now);
            spin_policy.note_round(loss * 3 / 4, now);
            assert!(!spin_policy.may_spin(end - Duration::from_nanos(1)), "the longest loss counts");
            assert!(spin_policy.may_spin(end), "losses before do not count");
            now = end;
        }
    }

    #[test]
    fn threads_spin_seldom_where_they_did_so_in_vain_until_a_peer_comes_in_time() {
        let (spin_policy, now) = (SpinPolicy::default(), Instant::now());
        spin_policy.note_wait(SHORT_WAIT / 2, true);
        let skipped = || (0..).find(|_| spin_policy.may_spin(now)).expect("in the end");
        for _ in 0..2 {
            for expected in [2, 4, 8] {
                spin_policy.note_vain_spin();
                // A peer that comes as late again, and a thread of this process, say nothing else.
                spin_policy.note_wait(SHORT_WAIT / 2, true);
                spin_policy.note_wait(SPIN_TIME / 2, false);
                assert_eq!(skipped(), expected);
            }
            (0..32).for_each(|_| spin_policy.note_vain_spin());
            assert_eq!(skipped(), 1 << IN_VAIN_MAX);
            spin_policy.note_vain_spin();
            spin_policy.note_wait(SPIN_TIME / 2, true);
            assert_eq!(skipped(), 0, "the thread slept, and spinning would have been enough");
        }
    }
}
