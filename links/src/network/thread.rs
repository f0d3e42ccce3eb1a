//! The thread of the network. It alone has connections, agents and transfers, so none of them needs a lock.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::net::{TcpListener, TcpStream};

use estafette_devices::DeviceError;
use estafette_sync::essential::essential;
use estafette_sync::platform::exit;
use estafette_sync::process::Generation;
use estafette_sync::rundown::Rundown;
use estafette_sync::sync::{Mutex, OnceLock};
use estafette_sync::thread;
use estafette_sync::time::{Duration, Instant};
use estafette_sync::{daemon, per_process, stack, statics};

use super::consumer::Consumer;
use super::owner::{Over, Owner, Request};
use super::wire::Wire;
use super::{Handler, Offer, Reach, Secret};
use crate::nixl::{Agent, NixlError};
use crate::platform::{CloseOnFork, Poll, Waker, is_shortage};
use crate::threads::{self, Single};
use crate::{LinkError, secret};

/// The waker's token.
const WAKER: u64 = 0;
/// Connections of consumers at the same time. Further ones are refused.
const CONSUMERS_MAX: usize = 1024;
/// Polls of transfers one after the other, before the thread naps between them.
const POLLS: u32 = 100;
/// A nap: about as many bytes arrive in this time as a socket holds.
const NAP: Duration = Duration::from_micros(20);
/// The time that the exit of the process waits for a round that is under way.
const GRACE: Duration = Duration::from_secs(1);
/// The time after which a listener that lacked resources of the system tries again.
const PAUSE: Duration = Duration::from_millis(100);
/// Time between two rounds while a connection has no room, and has received something within [`SILENT`].
const ROOM_TIME: Duration = Duration::from_millis(5);
/// A connection that has received nothing for so long most likely accepts no bytes either. A later arrival
/// wakes the thread.
const SILENT: Duration = Duration::from_secs(10);

per_process! {
    static NETWORK: Single<Network> = Mutex::new(None);
}

statics! {
    /// Per construction step of an agent: [`at_exit`] is registered.
    static ARRANGED: [OnceLock<()>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
}

/// Calls that run foreign code. They are made between two rounds, when nothing is borrowed.
pub(super) type Deferred = Vec<Box<dyn FnOnce() + Send>>;

/// Requests of other threads to this one.
pub(super) enum Command {
    Listen { listener: CloseOnFork<TcpListener>, key: Secret, handler: Handler, refused: fn(&LinkError) },
    Reply { consumer: u64, number: u64, answer: Result<Offer, DeviceError> },
    Fetch { reach: Reach, process: u32, request: Request },
    Connected { owner: u64, stream: io::Result<CloseOnFork<TcpStream>> },
    DeclareDead { host: String, process: Option<u32> },
}

pub(super) struct Network {
    pub(super) poll: Poll,
    waker: Waker,
    commands: Mutex<Vec<Command>>,
    /// Each round of the thread is a use. Closed when the process exits.
    uses: Rundown,
    generation: Generation,
}

impl Network {
    /// The network of the process, if it has one.
    pub(super) fn known() -> Option<&'static Self> {
        NETWORK.lock().map(|(network, _)| network)
    }

    /// The network of the process, whose thread starts now if it has not.
    pub(super) fn get() -> Result<&'static Self, LinkError> {
        threads::started(&NETWORK, Self::new, |network| {
            let run = move || essential("the thread of the network", || State::new(network).run());
            threads::start("estafette-network", run)
        })
    }

    fn new() -> Result<Self, LinkError> {
        let system = || LinkError::system("starting to wait for other machines");
        let (poll, waker) = (Poll::new().map_err(system())?, Waker::new().map_err(system())?);
        poll.add(waker.descriptor(), WAKER).map_err(system())?;
        let (commands, uses) = (Mutex::default(), Rundown::new());
        Ok(Self { poll, waker, commands, uses, generation: Generation::current() })
    }

    pub(super) fn command(&self, command: Command) {
        // A forked child has the memory of its parent's thread, but not the thread.
        if self.generation.is_current() {
            self.commands.lock().push(command);
            self.waker.wake();
        }
    }
}

/// An agent with a name that no other one has.
pub(super) fn new_agent() -> Result<Agent, NixlError> {
    let digits = secret().unwrap_or_default().into_iter().flat_map(|byte| format!("{byte:02x}").into_bytes());
    let name = CString::new(digits.collect::<Vec<u8>>()).expect("digits are not zero");
    Agent::new(&name, |step| {
        ARRANGED[step].get_or_init(|| exit::at_exit(at_exit));
    })
}

/// The thread calls NIXL no more: its statics are destroyed next. A peer may end at the same time, and its
/// agent be destroyed.
extern "C" fn at_exit() {
    if let Some(network) = Network::known() {
        let _ = network.uses.close(GRACE);
    }
}

struct Listening {
    listener: CloseOnFork<TcpListener>,
    key: Secret,
    handler: Handler,
    refused: fn(&LinkError),
    /// The system has refused the last connection.
    is_short: bool,
}

struct State {
    network: &'static Network,
    last: u64,
    listeners: BTreeMap<u64, Listening>,
    consumers: BTreeMap<u64, Consumer>,
    owners: BTreeMap<u64, Owner>,
    deferred: Deferred,
    /// The time at which all connections are due.
    due: Instant,
    /// Polls since something happened.
    idle: u32,
    /// The time at which listeners that lack resources of the system are tried again.
    retry: Option<Instant>,
}

impl State {
    fn new(network: &'static Network) -> Self {
        let (listeners, consumers, owners) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            network,
            last: WAKER,
            listeners,
            consumers,
            owners,
            deferred: Vec::new(),
            due: Instant::now(),
            idle: 0,
            retry: None,
        }
    }

    fn token(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn run(mut self) {
        loop {
            let now = Instant::now();
            let is_busy =
                self.consumers.values().any(Consumer::is_busy) || self.owners.values().any(Owner::is_busy);
            let timeout = self.timeout(is_busy, now);
            let tokens = self.network.poll.wait(timeout).expect("a set of descriptors can be waited for");
            if !self.network.uses.acquire() {
                // The process exits. Agents stay as they are.
                return std::mem::forget(self);
            }
            let now = Instant::now();
            if tokens.contains(&WAKER) {
                self.network.waker.clear();
            }
            let commands = std::mem::take(&mut *self.network.commands.lock());
            let is_time = now >= self.due;
            let is_due = is_time || !commands.is_empty() || !tokens.is_empty();
            for command in commands {
                self.handle(command, now);
                self.heartbeat();
            }
            self.retry(now);
            tokens.iter().for_each(|token| self.accept(*token));
            if is_due {
                self.receive(|token| tokens.contains(&token), is_time, now);
                self.due = self.next(now);
            }
            if is_busy {
                self.progress(now);
            }
            self.network.uses.release();
            std::mem::take(&mut self.deferred).into_iter().for_each(|end| end());
        }
    }

    fn timeout(&self, is_busy: bool, now: Instant) -> Option<Duration> {
        let consumers = self.consumers.values().filter_map(|consumer| consumer.wire.as_ref());
        let mut wires = consumers.chain(self.owners.values().filter_map(|owner| owner.wire.as_ref()));
        let due = match () {
            () if is_busy => Some(Duration::ZERO),
            () if wires.any(|wire| wire.is_full() && wire.silence(now) < SILENT) => Some(ROOM_TIME),
            // With no connection there is no time to keep.
            () if self.consumers.is_empty() && self.owners.is_empty() => None,
            () => Some(self.due.saturating_duration_since(now)),
        };
        due.into_iter().chain(self.retry.map(|retry| retry.saturating_duration_since(now))).min()
    }

    /// Listeners that were paused take connections again.
    fn retry(&mut self, now: Instant) {
        if self.retry.take_if(|retry| now >= *retry).is_some() {
            for (token, listening) in &self.listeners {
                let _ = self.network.poll.pause(&*listening.listener, *token, false);
            }
        }
    }

    fn handle(&mut self, command: Command, now: Instant) {
        match command {
            Command::Listen { listener, key, handler, refused } => {
                let token = self.token();
                // If the listener cannot be waited for, processes that connect find a port that does not
                // answer.
                let _ = self.network.poll.add(&*listener, token);
                self.listeners.insert(token, Listening { listener, key, handler, refused, is_short: false });
            }
            Command::Reply { consumer, number, answer } => match self.consumers.get_mut(&consumer) {
                Some(consumer) => consumer.reply(number, answer, &mut self.deferred),
                None => self.deferred.push(Box::new(move || drop(answer))),
            },
            Command::Fetch { reach, process, request } => {
                // A connection has one deadline, so tickets with different deadlines use different
                // connections.
                let known = self.owners.values_mut().find(|owner| owner.reach == reach && !owner.is_replaced);
                match known {
                    Some(owner) => owner.request(request, now),
                    None => self.connect(reach, process, request, now),
                }
            }
            Command::Connected { owner: token, stream } => {
                let Some(owner) = self.owners.get_mut(&token) else { return };
                let added = stream.and_then(|stream| self.network.poll.add(&*stream, token).map(|()| stream));
                if let Err(over) = owner.connected(added) {
                    self.end_owner(token, over);
                }
            }
            Command::DeclareDead { host, process } => {
                let is_meant = |consumer: &Consumer| {
                    let own = consumer.process.map(|(process, _)| process);
                    consumer.machine == host && (process.is_none() || process == own)
                };
                let dead: Vec<_> = self.consumers.extract_if(.., |_, consumer| is_meant(consumer)).collect();
                dead.into_iter().for_each(|(_, consumer)| self.end_consumer(consumer));
            }
        }
    }

    fn connect(&mut self, reach: Reach, process: u32, request: Request, now: Instant) {
        let (token, network) = (self.token(), self.network);
        let mut owner = Owner::new(reach.clone(), process, now);
        owner.request(request, now);
        self.owners.insert(token, owner);
        // Names are looked up, and connections made, by calls that wait.
        let connect =
            move || network.command(Command::Connected { owner: token, stream: Owner::connect(&reach) });
        match stack::thread("estafette-connect").spawn(connect) {
            Ok(thread) => drop(daemon(thread)),
            Err(error) => network.command(Command::Connected { owner: token, stream: Err(error) }),
        }
    }

    fn accept(&mut self, token: u64) {
        let Some(listening) = self.listeners.get_mut(&token) else { return };
        let (stream, address) = match listening.listener.accept() {
            Ok((stream, address)) => (CloseOnFork::new(stream), address),
            Err(error) if is_shortage(&error) && error.kind() != io::ErrorKind::WouldBlock => {
                // A connection that waits on would wake this thread again and again.
                let _ = self.network.poll.pause(&*listening.listener, token, true);
                self.retry = Some(Instant::now() + PAUSE);
                if !std::mem::replace(&mut listening.is_short, true) {
                    let (refused, error) =
                        (listening.refused, LinkError::system("accepting a connection")(error));
                    self.deferred.push(Box::new(move || refused(&error)));
                }
                return;
            }
            // The peer has hung up.
            Err(_) => return,
        };
        listening.is_short = false;
        let (key, handler) = (listening.key, listening.handler);
        if self.consumers.len() >= CONSUMERS_MAX {
            return;
        }
        let token = self.token();
        if self.network.poll.add(&*stream, token).is_ok()
            && let Ok(wire) = Wire::new(stream)
        {
            let machine = address.ip().to_canonical().to_string();
            self.consumers.insert(token, Consumer::new(wire, machine, token, key, handler));
        }
    }

    /// Handles what came over connections that are readable or wait for room, and over all when it is time.
    fn receive(&mut self, is_readable: impl Fn(u64) -> bool, all: bool, now: Instant) {
        let wanted = |token, wire: &Option<Wire>| {
            all || is_readable(token) || wire.as_ref().is_some_and(Wire::is_full)
        };
        let (network, deferred) = (self.network, &mut self.deferred);
        let mut is_over = |token: u64, consumer: &mut Consumer| {
            wanted(token, &consumer.wire) && consumer.receive(network, now, deferred)
        };
        let over: Vec<_> =
            self.consumers.extract_if(.., |token, consumer| is_over(*token, consumer)).collect();
        over.into_iter().for_each(|(_, consumer)| self.end_consumer(consumer));
        let tokens: Vec<u64> = (self.owners.iter())
            .filter_map(|(token, owner)| wanted(*token, &owner.wire).then_some(*token))
            .collect();
        for token in tokens {
            let received = self.owners.get_mut(&token).map(|owner| owner.receive(now, &mut self.deferred));
            if let Some(Err(why)) = received {
                self.end_owner(token, why);
            }
            self.heartbeat();
        }
    }

    /// Sends heartbeats to other processes, if it is time. An agent, and large memory, take long to make.
    fn heartbeat(&mut self) {
        let now = Instant::now();
        if now >= self.due {
            self.due = self.next(now);
        }
    }

    /// Sends the heartbeats that are due. Returns when all connections are due again.
    fn next(&mut self, now: Instant) -> Instant {
        let consumers = self.consumers.values_mut().filter_map(|consumer| consumer.next(now));
        let owners = self.owners.values_mut().filter_map(|owner| owner.next(now));
        consumers.chain(owners).min().unwrap_or(now + Duration::from_secs(3600))
    }

    /// Moves bytes. Naps if nothing has come for a while.
    fn progress(&mut self, now: Instant) {
        let mut has_come = false;
        for consumer in self.consumers.values_mut() {
            has_come |= consumer.progress(&mut self.deferred);
        }
        for owner in self.owners.values_mut() {
            has_come |= owner.progress(now, &mut self.deferred);
        }
        self.idle = if has_come { 0 } else { self.idle.saturating_add(1) };
        match self.idle < POLLS {
            true => thread::yield_now(),
            false => thread::sleep(NAP),
        }
    }

    fn end_consumer(&mut self, consumer: Consumer) {
        consumer.wire.iter().for_each(|wire| self.network.poll.remove(&*wire.stream));
        consumer.end(&mut self.deferred);
    }

    fn end_owner(&mut self, token: u64, why: Over) {
        let Some(owner) = self.owners.remove(&token) else { return };
        owner.wire.iter().for_each(|wire| self.network.poll.remove(&*wire.stream));
        if let Over::Failed(error) = why {
            owner.end(&error, &mut self.deferred);
        }
    }
}

#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests {
    use std::os::fd::AsRawFd;

    use estafette_devices::DeviceErrorKind;
    use estafette_sync::platform::child::in_forked_child;

    use super::*;
    use crate::network::Reply;
    use crate::network::deaths::{KEY, reach};

    /// A network without a thread, so that commands stay in the list.
    fn network() -> &'static Network {
        Box::leak(Box::new(Network::new().expect("descriptors")))
    }

    #[test]
    fn tickets_with_other_deadlines_have_a_connection_of_their_own() {
        let mut state = State::new(network());
        let owners = [5, 30, 5].map(|deadline| {
            let reach = reach(1, Duration::from_secs(deadline));
            let request = Request { secret: [1; 16], until_kept: None, done: Box::new(drop) };
            state.handle(Command::Fetch { reach, process: 7, request }, Instant::now());
            state.owners.len()
        });
        assert_eq!(owners, [1, 2, 2]);
    }

    #[test]
    fn heartbeats_that_are_due_follow_messages_of_an_owner() {
        let mut state = State::new(network());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (reach, now) = (reach(port, Duration::from_secs(5)), Instant::now());
        let mut owner = Owner::new(reach.clone(), 7, now);
        assert!(owner.connected(Owner::connect(&reach)).is_ok());
        state.owners.insert(1, owner);
        state.due = now;
        state.receive(|_| true, false, now);
        assert!(state.due > now);
    }

    #[test]
    fn a_reply_that_is_dropped_says_that_there_is_none() {
        let network = network();
        drop(Reply { network, consumer: 1, number: 2, is_sent: false });
        Reply { network, consumer: 1, number: 3, is_sent: false }
            .send(Err(DeviceError::new(DeviceErrorKind::Invalid, "void")));
        let commands = std::mem::take(&mut *network.commands.lock());
        let kind = |command| match command {
            Command::Reply { consumer: 1, number, answer: Err(error) } => (number, error.kind()),
            _ => panic!("no reply"),
        };
        let kinds: Vec<_> = commands.into_iter().map(kind).collect();
        assert_eq!(kinds, [(2, DeviceErrorKind::Other), (3, DeviceErrorKind::Invalid)]);
    }

    /// A network that listens, and the token of its listener; and where.
    fn listening() -> (State, u64, Reach) {
        let mut state = State::new(network());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (handler, refused) = (|_, _| (), |_: &LinkError| ());
        let listener = CloseOnFork::new(listener);
        state.handle(Command::Listen { listener, key: KEY, handler, refused }, Instant::now());
        let token = state.last;
        (state, token, reach(port, Duration::from_secs(5)))
    }

    #[test]
    fn a_forked_child_has_no_socket_of_its_parent() {
        let (mut state, listener, reach) = listening();
        let consumer = Owner::connect(&reach).expect("a connection");
        state.accept(listener);
        let owner =
            state.consumers.values().next().and_then(|consumer| consumer.wire.as_ref()).expect("a consumer");
        let listener = &state.listeners[&listener].listener;
        let sockets = [listener.as_raw_fd(), owner.stream.as_raw_fd(), consumer.as_raw_fd()];
        // SAFETY: takes integers.
        let is_open = |socket: &i32| unsafe { libc::fcntl(*socket, libc::F_GETFD) } >= 0;
        assert!(sockets.iter().all(is_open));
        assert!(in_forked_child(|| !sockets.iter().any(is_open)));
        assert!(sockets.iter().all(is_open));
    }

    #[test]
    fn an_owner_tries_to_reach_a_consumer_for_days() {
        let (mut state, listener, reach) = listening();
        let _consumer = Owner::connect(&reach).expect("a connection");
        state.accept(listener);
        let owner =
            state.consumers.values().next().and_then(|consumer| consumer.wire.as_ref()).expect("a consumer");
        let (socket, mut limit, mut length) = (owner.stream.as_raw_fd(), 0_i32, 4);
        let value = (&raw mut limit).cast();
        // SAFETY: writes a number.
        unsafe {
            libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, value, &raw mut length)
        };
        assert!(Duration::from_millis(limit as u64) > Duration::from_secs(7 * 86_400), "{limit} ms");
    }

    #[test]
    fn a_listener_without_descriptors_waits_and_says_so_once() {
        fn limit(soft: u64) {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: reads and writes a limit.
            unsafe {
                libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
                limit.rlim_cur = soft.min(limit.rlim_max);
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            }
        }
        // In a child, whose limit is its own.
        assert!(in_forked_child(|| {
            let (mut state, listener, reach) = listening();
            let _consumer = Owner::connect(&reach).expect("a connection");
            let poll = &state.network.poll;
            let is_readable = || poll.wait(Some(Duration::ZERO)).expect("a set").contains(&listener);
            let was_readable = is_readable();
            limit(0);
            state.accept(listener);
            state.accept(listener);
            let now = Instant::now();
            let waits = was_readable && !is_readable() && state.deferred.len() == 1;
            let until = state.timeout(false, now).is_some_and(|pause| pause <= PAUSE);
            limit(1024);
            state.retry(now + PAUSE);
            let again = is_readable() && state.retry.is_none();
            state.accept(listener);
            waits && until && again && state.consumers.len() == 1
        }));
    }
}
