//! The link thread of the process: it greets, is rung, and sees the ends of peers. Started with the first door or link.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
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
use crate::board::{BYTES, populate};
use crate::life::{Line, Lines};
use crate::link::{Channel, Link, Shared};
use crate::mailbox::Mailbox;
use crate::platform::{
    Descriptor, Memory, Poll, Socket, Waker, check_room, is_shortage, may_be_process, own_process, own_user,
    wait_for_any, wake_all,
};
use crate::threads::{self, Single};

/// What a greeting says: that it is one, and the version of the protocol.
pub(crate) const GREETING: [u8; 16] = *b"estafette link 6";
/// Connections to doors whose greeting has not come. The oldest gives way.
const GREETINGS_MAX: usize = 64;
/// Links of a door that wait to be accepted. Further connections wait in the kernel.
const ARRIVED_MAX: usize = 128;
/// Links that one thread serves while it waits. The kernel waits for 128 words at once.
const SERVED_MAX: usize = 16;
/// How long a thread lingers before it sleeps: about what going to sleep and waking up would cost, on a virtual machine.
const LINGER: Duration = Duration::from_micros(150);
/// Threads linger where the last wait was no longer. That of a thread which slept has its waking up in it, and its peer's as well: two peers
/// that are quick find out of their sleep.
const BRISK: Duration = Duration::from_micros(300);
/// A round in which a thread lingers and that takes longer than `LINGER`: another thread has needed the processor. No thread lingers for so many
/// times as long after it. So lingering costs a sixteenth of the time at most, and is soon tried again after a loss that was short.
const REST: u32 = 16;
/// The most waits that do not linger after one that lingered in vain, as a power of two.
const IN_VAIN_MAX: u32 = 6;
/// Looks between two at the clock.
const ROUND: u32 = 16;
/// How long a door waits that cannot take a connection, before it tries again.
const PAUSE: Duration = Duration::from_millis(100);
/// Descriptors that a door needs at once to accept a connection and greet: the socket, the board, this process.
const TO_ACCEPT: usize = 3;
/// Descriptors that reading a greeting takes: the peer's board and end, and two to check the end.
const TO_MEET: usize = 4;
/// The waker's token. Others are even; a link has also the odd one that follows, for the end of its peer.
const WAKER: u64 = 0;

per_process! {
    static HUB: Single<Hub> = Mutex::new(None);
}

/// What the link thread waits for.
pub(crate) struct Hub {
    pub(crate) poll: Poll,
    waker: Waker,
    lines: Lines,
    entries: Mutex<Entries>,
    /// Links that it is to look at.
    attended: Mutex<Vec<u64>>,
    /// Doors that could not take a connection, and greetings at doors that could not be read.
    paused: Mutex<Vec<u64>>,
    /// Links that were removed.
    removed: AtomicU32,
    /// Of threads that serve.
    patience: Patience,
    /// The process whose threads these are.
    pub(crate) generation: Generation,
}

#[derive(Default)]
struct Entries {
    last: u64,
    by_token: BTreeMap<u64, Entry>,
}

#[derive(Clone)]
enum Entry {
    Door(Arc<DoorEntry>),
    Greeting(Arc<Greeting>),
    Link(Arc<Shared>),
}

struct DoorEntry {
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
    line: Line,
    arrived: Arrived,
    side: Side,
    /// This process has lacked what it takes to read it.
    is_short: AtomicBool,
}

/// Which side of a connection this process is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// It learns why there is no link.
    Connects,
    /// Its door goes on as if a connection without a link had not been, but for what this process lacks.
    Accepts,
}

impl Hub {
    /// That of the process, whose threads start now if they have not.
    pub(crate) fn get() -> Result<&'static Self, LinkError> {
        threads::started(&HUB, Self::new, |hub| {
            hub.lines.start()?;
            set_host(&Waiting);
            threads::start("estafette-links", move || essential("the link thread", || hub.run()))
        })
    }

    fn new() -> Result<Self, LinkError> {
        let system = || LinkError::system("starting to wait for other processes");
        let new = Self {
            poll: Poll::new().map_err(system())?,
            waker: Waker::new().map_err(system())?,
            lines: Lines::default(),
            entries: Mutex::default(),
            attended: Mutex::default(),
            paused: Mutex::default(),
            removed: AtomicU32::new(0),
            patience: Patience::default(),
            generation: Generation::current(),
        };
        new.poll.add(new.waker.descriptor(), WAKER).map_err(system())?;
        Ok(new)
    }

    pub(crate) fn add_door(&self, socket: Socket, arrived: Arrived) -> Result<u64, LinkError> {
        let mut entries = self.entries.lock();
        let token = entries.next_token();
        self.poll.add(socket.descriptor(), token).map_err(LinkError::system("waiting at a door"))?;
        let door = DoorEntry { socket, arrived, is_short: AtomicBool::new(false) };
        entries.by_token.insert(token, Entry::Door(Arc::new(door)));
        Ok(token)
    }

    /// Greets the process at the other end of a new connection. Returns what [`give_up`](Self::give_up) takes.
    pub(crate) fn greet(
        &'static self,
        socket: Socket,
        arrived: Arrived,
        side: Side,
    ) -> Result<u64, LinkError> {
        let system = || LinkError::system("greeting another process");
        let (process, user) = socket.peer().map_err(system())?;
        if user != own_user() {
            return Err(LinkError::Refused(format!("process {process} acts for another user, {user}")));
        }
        let is_host = side == Side::Connects && process != 0;
        let host = is_host.then(|| socket.peer_process(process)).transpose();
        let host = host.map_err(|error| match error.kind() {
            ErrorKind::NotFound => LinkError::PeerDied { process },
            _ => system()(error),
        })?;
        let (board, descriptor) = Memory::create("estafette-board", BYTES).map_err(system())?;
        populate(&board);
        step!("greet 2");
        let board = Arc::new(board);
        let line = self.lines.hold(Arc::clone(&board));
        step!("greet 3");
        let end = own_process().map_err(system())?;
        socket.send(&GREETING, &[&descriptor, &end]).map_err(|error| match error.kind() {
            // It has died, or its door has no room. A door must not take that for a refusal of the system, and wait for its owner.
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                LinkError::Refused(format!("process {process} hung up"))
            }
            _ => system()(error),
        })?;
        step!("greet 4");
        let mut entries = self.entries.lock();
        let token = entries.next_token();
        self.poll.add(socket.descriptor(), token).map_err(system())?;
        host.iter().try_for_each(|host| self.poll.add(host, token | 1)).map_err(system())?;
        let is_short = AtomicBool::new(false);
        let greeting = Greeting { socket, process, host, board, line, arrived, side, is_short };
        entries.by_token.insert(token, Entry::Greeting(Arc::new(greeting)));
        let oldest = if side == Side::Accepts { entries.oldest_beyond() } else { None };
        drop(entries);
        oldest.into_iter().for_each(|oldest| self.give_up(oldest));
        Ok(token)
    }

    /// See [`Waiting`].
    fn serve(&self, word: &AtomicU32, deadline: Option<Instant>) -> Option<bool> {
        let removed = self.removed.load(Ordering::Acquire);
        let links: Vec<_> = self.entries.lock().links().take(SERVED_MAX).collect();
        let served: Vec<_> = links.iter().filter(|(_, link)| link.serve()).collect();
        if served.is_empty() {
            return None;
        }
        let began = Instant::now();
        let has_news = || served.iter().any(|(_, link)| link.has_news());
        let is_over = || {
            word.load(Ordering::Acquire) == WOKEN
                || self.removed.load(Ordering::Acquire) != removed
                || has_news()
        };
        let lingers = self.patience.lasts(began);
        if lingers {
            served.iter().for_each(|(_, link)| link.rest_served());
        }
        let is_over = lingers && self.patience.linger(is_over, deadline);
        if lingers && !is_over {
            self.patience.lingered_in_vain();
        }
        let waited = if is_over {
            Ok(true)
        } else {
            let mut words = vec![(word, MAY_SLEEP), (&self.removed, removed)];
            words.extend(served.iter().map(|(_, link)| link.listen_by_word()));
            let change =
                |from, to| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
            let is_asleep = change(IS_AWAKE, MAY_SLEEP);
            let waited = if is_asleep { wait_for_any(&words, deadline) } else { Ok(true) };
            // From now on a wake-up is no call of the system.
            change(MAY_SLEEP, IS_AWAKE);
            waited
        };
        // What a thread of this process has done says nothing of a peer.
        self.patience.waited(began.elapsed(), has_news());
        for (token, link) in served {
            link.leave();
            self.attend(*token, link);
        }
        waited.ok()
    }

    /// Has the link thread look at a link soon.
    pub(crate) fn attend_soon(&self, token: u64) {
        self.attended.lock().push(token);
        self.waker.wake();
    }

    /// Takes a connection out whose peer has not greeted.
    pub(crate) fn give_up(&self, token: u64) {
        self.remove_if(token, |entry| matches!(entry, Entry::Greeting(_)));
    }

    /// Takes something out. The last handle closes it.
    pub(crate) fn remove(&self, token: u64) {
        self.remove_if(token, |_| true);
    }

    fn remove_if(&self, token: u64, condition: impl Fn(&Entry) -> bool) {
        if self.generation.is_inherited() {
            return;
        }
        let mut entries = self.entries.lock();
        let is_removed = entries.by_token.get(&token).is_some_and(condition);
        let entry = is_removed.then(|| entries.by_token.remove(&token)).flatten();
        drop(entries);
        match &entry {
            Some(Entry::Door(door)) => {
                self.poll.remove(door.socket.descriptor());
                // A forked child may have the socket too. This hangs up on those who wait there.
                door.socket.shut_down();
                while let Ok(Some(_)) = door.socket.accept() {}
            }
            Some(Entry::Greeting(greeting)) => {
                self.poll.remove(greeting.socket.descriptor());
                greeting.host.iter().for_each(|host| self.poll.remove(host));
            }
            Some(Entry::Link(link)) => {
                self.poll.remove(link.channel().socket.descriptor());
                self.poll.remove(&link.channel().end);
                self.lines.unwatch(link);
                // A thread that serves the link keeps it open.
                self.removed.fetch_add(1, Ordering::Release);
                wake_all(&self.removed);
            }
            None => {}
        }
    }

    fn run(&'static self) {
        let mut retry = Instant::now();
        let patience = Patience::default();
        loop {
            let is_pause = !self.paused.lock().is_empty();
            let began = Instant::now();
            let has_found = patience.lasts(began) && self.linger(&patience);
            let left = if has_found {
                // Other descriptors are looked at all the same.
                Some(Duration::ZERO)
            } else {
                is_pause.then(|| retry.saturating_duration_since(Instant::now()))
            };
            let ready = self.poll.wait(left).expect("a set of descriptors can be waited for");
            patience.waited(began.elapsed(), has_found || ready.iter().any(|token| *token != WAKER));
            for token in ready {
                self.handle(token);
            }
            if is_pause && Instant::now() >= retry {
                retry = Instant::now() + PAUSE;
                let paused = std::mem::take(&mut *self.paused.lock());
                for token in paused {
                    match self.entry(token) {
                        Some(Entry::Door(door)) => {
                            let _ = self.poll.pause(door.socket.descriptor(), token, false);
                        }
                        Some(Entry::Greeting(greeting)) => {
                            if self.poll.add(greeting.socket.descriptor(), token).is_err() {
                                self.give_up(token);
                            }
                        }
                        Some(Entry::Link(_)) | None => {}
                    }
                }
            }
            let attended = std::mem::take(&mut *self.attended.lock());
            for token in attended {
                if let Some(Entry::Link(link)) = self.entry(token) {
                    self.attend(token, &link);
                }
            }
        }
    }

    /// Looks at links for a moment more, for which no peer need ring. Returns whether there was anything to do.
    fn linger(&self, patience: &Patience) -> bool {
        let links: Vec<_> = self.entries.lock().links().take(SERVED_MAX).collect();
        // Each look wakes those that wait for room.
        if links.iter().any(|(_, link)| link.has_senders()) {
            return false;
        }
        let resting: Vec<_> = links.iter().filter(|(_, link)| link.rest()).collect();
        if resting.is_empty() {
            return false;
        }
        let has_news = || resting.iter().any(|(_, link)| link.has_news());
        let has_found = patience.linger(|| has_news() || !self.attended.lock().is_empty(), None);
        if !has_found {
            patience.lingered_in_vain();
        }
        resting.iter().for_each(|(token, link)| self.attend(*token, link));
        has_found
    }

    fn handle(&'static self, token: u64) {
        if token == WAKER {
            return self.waker.clear();
        }
        let even = token & !1;
        match self.entry(even) {
            Some(Entry::Door(door)) => self.accept(token, &door),
            Some(Entry::Greeting(greeting)) => self.meet(even, greeting, token != even),
            Some(Entry::Link(link)) => {
                // Senders try again as it is attended.
                link.rest_from_room();
                if token != even {
                    link.note_gone();
                } else if link.drain(true) {
                    // The end comes late, where a child of the peer has the socket too; it comes early only from a process that
                    // gives up its link without a word, which is lost then as if it had died.
                    self.poll.remove(link.channel().socket.descriptor());
                    link.note_lost();
                }
                self.attend(even, &link);
            }
            None => {}
        }
    }

    /// A share in an entry.
    fn entry(&self, token: u64) -> Option<Entry> {
        self.entries.lock().by_token.get(&token).cloned()
    }

    fn attend(&self, token: u64, link: &Shared) {
        if link.attend() {
            self.remove(token);
        }
    }

    fn accept(&'static self, token: u64, door: &DoorEntry) {
        // A connection that waits on would wake this thread again and again.
        let pause = || {
            let _ = self.poll.pause(door.socket.descriptor(), token, true);
            self.paused.lock().push(token);
        };
        if door.arrived.len() >= ARRIVED_MAX {
            return pause();
        }
        // What the process at the other end sends is lost where there is no room for it.
        let accepted = check_room(TO_ACCEPT).and_then(|()| door.socket.accept());
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

    /// Reads the greeting of a peer, and makes the link. That of a peer that `has_ended` has come, or never will.
    fn meet(&'static self, token: u64, greeting: Arc<Greeting>, has_ended: bool) {
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
        self.give_up(token);
        // Who connects may give up at this moment.
        let Some(greeting) = Arc::into_inner(greeting) else { return };
        let Greeting { socket, process, board, line, arrived, side, .. } = greeting;
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
            let peer = Memory::open(&theirs, BYTES, false).map_err(|error| match is_shortage(&error) {
                true => meeting(error),
                false => refused(&format!("has no board: {error}")),
            })?;
            populate(&peer);
            Ok((peer, Channel { socket, end, process }))
        };
        let met = met();
        step!("greet 5");
        let link = met.and_then(|(peer, channel)| {
            let link = Arc::new(Shared::new((board, line), peer, channel, self, token));
            self.entries.lock().by_token.insert(token, Entry::Link(Arc::clone(&link)));
            let added = self.poll.add(link.channel().socket.descriptor(), token);
            let added = added.and_then(|()| self.poll.add(&link.channel().end, token | 1));
            if let Err(error) = added {
                self.remove(token);
                return Err(LinkError::system("waiting for another process")(error));
            }
            self.lines.watch(Arc::clone(&link));
            step!("greet 6");
            Ok(Link::new(link))
        });
        match (link, side) {
            (Err(error), Side::Accepts) if !error.is_shortage() => {}
            (link, _) => arrived.put(link),
        }
    }
}

/// What threads do that wait in a [`Sleeper`](estafette_sync::sleeper::Sleeper): what the link thread would do for links that any thread
/// waits for, so that what arrives wakes one thread less. The link thread goes on where no thread waits, and sees the ends of peers.
struct Waiting;

impl Host for Waiting {
    fn serve(&self, word: &AtomicU32, deadline: Option<Instant>) -> Option<bool> {
        let (hub, _) = (*HUB.lock())?;
        hub.serve(word, deadline)
    }

    fn wake(&self, word: &AtomicU32) {
        wake_all(word);
    }
}

/// Whether threads linger before they sleep: they look again and again for about as long as sleeping and waking up would take.
/// Threads that are ready run in between: with few cores the one that is waited for may be among them. But a thread that lets others run comes
/// back late, where one that sleeps is woken at once; so where others need the processor, most waits do without.
#[derive(Debug, Default)]
struct Patience(Mutex<Experience>);

#[derive(Debug, Default)]
struct Experience {
    /// The last wait was short.
    is_brisk: bool,
    /// How often a thread has lingered in vain since a peer last came in time.
    in_vain: u32,
    /// Waits left that do without for that.
    skipped: u32,
    /// Waits that begin before do without, as another thread has taken the processor.
    rests_until: Option<Instant>,
}

impl Patience {
    fn lasts(&self, now: Instant) -> bool {
        let mut experience = self.0.lock();
        if !experience.is_brisk || experience.rests_until.is_some_and(|until| now < until) {
            return false;
        }
        let skipped = experience.skipped;
        experience.skipped = skipped.saturating_sub(1);
        skipped == 0
    }

    /// A thread has waited, and a peer has ended that or not. A thread that slept learns here that it could have lingered.
    fn waited(&self, time: Duration, by_peer: bool) {
        let mut experience = self.0.lock();
        experience.is_brisk = time < BRISK;
        if by_peer && time < LINGER {
            (experience.in_vain, experience.skipped) = (0, 0);
        }
    }

    /// Whether a condition comes to hold soon, and before `deadline`.
    fn linger(&self, condition: impl Fn() -> bool, deadline: Option<Instant>) -> bool {
        let mut now = Instant::now();
        let end = now + LINGER;
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
            self.ran(now - before, now);
            if now >= end {
                return condition();
            }
        }
    }

    /// A round of lingering has taken so long.
    fn ran(&self, time: Duration, now: Instant) {
        if time > LINGER {
            self.0.lock().rests_until = Some(now + REST * time);
        }
    }

    fn lingered_in_vain(&self) {
        let mut experience = self.0.lock();
        experience.in_vain = (experience.in_vain + 1).min(IN_VAIN_MAX);
        experience.skipped = experience.skipped.max(1 << experience.in_vain);
    }
}

impl Entries {
    fn links(&self) -> impl Iterator<Item = (u64, Arc<Shared>)> {
        self.by_token.iter().filter_map(|(token, entry)| match entry {
            Entry::Link(link) => Some((*token, Arc::clone(link))),
            Entry::Door(_) | Entry::Greeting(_) => None,
        })
    }

    fn next_token(&mut self) -> u64 {
        self.last += 2;
        self.last
    }

    /// The connection that has waited longest, if there are too many.
    fn oldest_beyond(&self) -> Option<u64> {
        let greets = |entry: &Entry| matches!(entry, Entry::Greeting(its) if its.side == Side::Accepts);
        let mut waiting = self.by_token.iter().filter(|(_, entry)| greets(entry)).map(|(token, _)| *token);
        let oldest = waiting.next()?;
        (waiting.count() >= GREETINGS_MAX).then_some(oldest)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("entries", &self.entries.lock().by_token.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_lingers_until_the_condition_holds_or_the_time_is_up() {
        let (patience, has_come) = (Patience::default(), AtomicBool::new(false));
        let condition = || has_come.load(Ordering::Acquire);
        assert!(!patience.linger(condition, None));
        has_come.store(true, Ordering::Release);
        assert!(patience.linger(condition, Some(Instant::now())), "it looks once");
    }

    #[test]
    fn threads_linger_after_short_waits() {
        let (patience, now) = (Patience::default(), Instant::now());
        assert!(!patience.lasts(now), "nothing is known yet");
        patience.waited(BRISK / 2, false);
        assert!(patience.lasts(now) && patience.lasts(now));
        patience.waited(BRISK, true);
        assert!(!patience.lasts(now));
    }

    #[test]
    fn threads_linger_for_a_part_of_the_time_where_others_need_the_processor() {
        let (patience, now) = (Patience::default(), Instant::now());
        patience.waited(BRISK / 2, true);
        patience.ran(LINGER, now);
        assert!(patience.lasts(now), "sleeping would have cost as much");
        for loss in [2 * LINGER, 40 * LINGER, 2 * LINGER] {
            patience.ran(loss, now);
            assert!(!patience.lasts(now + REST * loss - Duration::from_nanos(1)));
            assert!(patience.lasts(now + REST * loss), "losses before do not count");
        }
    }

    #[test]
    fn threads_linger_seldom_where_they_did_so_in_vain_until_a_peer_comes_in_time() {
        let (patience, now) = (Patience::default(), Instant::now());
        patience.waited(BRISK / 2, true);
        let skipped = || (0..).find(|_| patience.lasts(now)).expect("in the end");
        for _ in 0..2 {
            for expected in [2, 4, 8] {
                patience.lingered_in_vain();
                // A peer that comes as late again, and a thread of this process, say nothing else.
                patience.waited(BRISK / 2, true);
                patience.waited(LINGER / 2, false);
                assert_eq!(skipped(), expected);
            }
            (0..32).for_each(|_| patience.lingered_in_vain());
            assert_eq!(skipped(), 1 << IN_VAIN_MAX);
            patience.lingered_in_vain();
            patience.waited(LINGER / 2, true);
            assert_eq!(skipped(), 0, "the thread slept, and lingering would have been enough");
        }
    }
}
