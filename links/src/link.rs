//! Links: two boards, a socket, and what each process knows of the other. What goes over the socket is in
//! `socket`.

mod socket;

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use estafette_devices::{DeviceError, Fence, FenceState, Outcome, Reactor};
use estafette_sync::sleeper::Sleeper;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};
use estafette_sync::time::{Duration, Instant};

use self::socket::{SegmentState, Shown, WAKE_UP};
use crate::LinkError;
use crate::board::{
    CLOSED, CLOSING, EVENT_COUNT, HEAD, Kind, LEFT, LIVENESS, OwnBoard, PeerBoard, SETTLED, SLOTS, SlotId,
    TAIL,
};
use crate::descriptor::Readable;
use crate::fence::PeerEvent;
use crate::hub::Hub;
use crate::liveness::LivenessLock;
use crate::mailbox::{Futures, Registration};
use crate::notify::{Listener, PeerNotifier, Wakeup};
use crate::platform::{Descriptor, Memory, Socket, wake_all};
use crate::ring::{Message, NOTE_BYTES, Reader, Violation, Writer};
use crate::slots::Indices;
use crate::watched::Watched;

/// Bits of the peer's fate. The peer sends nothing more, and settles what it has sent.
const FATE_CLOSING: u32 = 1;
/// The peer has left in good order: it uses nothing of this process any more.
const FATE_LEFT: u32 = 2;
/// The peer is dying: another of its threads may still run for an instant.
const FATE_LOST: u32 = 4;
/// Every thread of the peer has ended: the peer touches no memory any more.
const FATE_GONE: u32 = 8;
/// The peer violated the protocol.
const FATE_BROKEN: u32 = 16;

/// Loads the fate of the peer before it calls `read`: what a process did before its death was known is then
/// visible to `read`.
pub(crate) fn after_fate<T>(fate: &AtomicU32, read: impl FnOnce() -> T) -> (u32, T) {
    (fate.load(Ordering::Acquire), read())
}

pub(crate) struct Channel {
    pub(crate) socket: Socket,
    /// The peer as a descriptor, which is readable when each of its threads has ended.
    pub(crate) end: Descriptor,
    pub(crate) process: u32,
}

/// The state that the handles of a link, its fences, and the threads share.
pub(crate) struct Shared {
    pub(crate) own: OwnBoard<Arc<Memory>>,
    peer: PeerBoard<Memory>,
    channel: Channel,
    hub: &'static Hub,
    /// The hub's token of it.
    token: u64,
    _line: LivenessLock,
    /// The value of the peer's liveness lock while its thread lives.
    peer_lock_value: u32,
    fate: AtomicU32,
    broken: OnceLock<&'static str>,
    listener: Listener,
    notifier: PeerNotifier,
    sent: Mutex<Sent>,
    /// The number of promises that were pending when they were sent and have settled.
    settled: AtomicU64,
    reader: Mutex<Reader>,
    /// Futures that wait for a message, and those that wait for room.
    pub(crate) receivers: Futures,
    senders: Futures,
    /// For event loops of the program, once one was asked for.
    pub(crate) readable: OnceLock<Readable>,
    /// Fences of the peer with subscribers.
    watched: Mutex<Watched<Arc<PeerEvent>>>,
    /// The number of messages that were received and are in use.
    in_use: AtomicUsize,
    /// This process has closed the link.
    is_closed: AtomicBool,
    shown: Mutex<Shown>,
    seen: Mutex<HashMap<u32, SegmentState>>,
}

/// Messages that were sent and are not over.
#[derive(Default)]
struct Sent {
    writer: Writer,
    indices: Indices<Arc<PeerEvent>>,
}

impl Shared {
    pub(crate) fn new(
        own: (Arc<Memory>, LivenessLock),
        peer: Memory,
        channel: Channel,
        hub: &'static Hub,
        token: u64,
    ) -> Self {
        let peer_lock_value = peer.half_word(LIVENESS).load(Ordering::Relaxed);
        Self {
            own: OwnBoard::new(own.0),
            peer: PeerBoard(peer),
            channel,
            hub,
            token,
            _line: own.1,
            peer_lock_value,
            fate: AtomicU32::new(0),
            broken: OnceLock::new(),
            listener: Listener::default(),
            notifier: PeerNotifier::default(),
            sent: Mutex::default(),
            settled: AtomicU64::new(0),
            reader: Mutex::default(),
            receivers: Futures::default(),
            senders: Futures::default(),
            readable: OnceLock::new(),
            watched: Mutex::default(),
            in_use: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            shown: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    pub(crate) fn process(&self) -> u32 {
        self.channel.process
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The peer's liveness lock, and what it says while the peer lives.
    pub(crate) fn peer_liveness(&self) -> (&AtomicU32, u32) {
        (self.peer.0.half_word(LIVENESS), self.peer_lock_value)
    }

    // The fate of the peer.

    /// The outcome of a slot of the peer, or the reason why the peer never settles it.
    pub(crate) fn outcome(&self, slot: SlotId) -> Option<Outcome> {
        let (fate, settled) = after_fate(&self.fate, || self.peer.outcome(slot, self.process()));
        let end = fate & !FATE_CLOSING;
        if settled.is_some() || end == 0 {
            return settled;
        }
        match slot.kind {
            Kind::Ready => Some(Err((&self.error(end)).into())),
            // A peer that has left never received what it has not answered. Memory that a dead process used
            // is used again once no thread of that process can touch it.
            Kind::Used if fate & FATE_LEFT != 0 => {
                Some(Err((&LinkError::Closed { process: self.process() }).into()))
            }
            Kind::Used if fate & FATE_GONE != 0 => Some(Err((&self.died()).into())),
            Kind::Used => None,
        }
    }

    fn died(&self) -> LinkError {
        LinkError::PeerDied { process: self.process() }
    }

    fn error(&self, fate: u32) -> LinkError {
        let process = self.process();
        match self.broken.get() {
            Some(what) => LinkError::violation(process, Violation(what)),
            None if fate & (FATE_CLOSING | FATE_LEFT) != 0 => LinkError::Closed { process },
            None => self.died(),
        }
    }

    fn check(&self) -> Result<(), LinkError> {
        self.hub.generation.check()?;
        match self.fate.load(Ordering::Acquire) {
            0 => Ok(()),
            fate => Err(self.error(fate)),
        }
    }

    /// Under the lock of what was sent, or of the reader.
    fn check_open(&self) -> Result<(), LinkError> {
        match self.is_closed.load(Ordering::SeqCst) {
            true => Err(LinkError::Invalid("the link is closed".to_owned())),
            false => Ok(()),
        }
    }

    /// Notes `fate`, but after what the peer has said itself: a process that has left may die.
    fn note(&self, fate: u32) {
        let said = self.said();
        if said & FATE_BROKEN != 0 {
            let _ = self.broken.set("it is neither open nor closed");
        }
        self.fate.fetch_or(said, Ordering::AcqRel);
        self.fate.fetch_or(fate, Ordering::AcqRel);
    }

    /// The peer's own report of its fate.
    fn said(&self) -> u32 {
        match self.peer.load(CLOSED) {
            0 => 0,
            CLOSING => FATE_CLOSING,
            LEFT => FATE_CLOSING | FATE_LEFT,
            _ => FATE_BROKEN,
        }
    }

    /// On the thread of liveness locks: the peer is dying.
    pub(crate) fn note_lost(&self) {
        self.note(FATE_LOST);
        self.hub.dispatch_soon(self.token);
    }

    /// Every thread of the peer has ended.
    pub(crate) fn note_gone(&self) {
        self.note(FATE_LOST | FATE_GONE);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.fate.load(Ordering::Acquire) & FATE_LOST != 0
    }

    fn break_off(&self, what: Violation) -> LinkError {
        let _ = self.broken.set(what.0);
        self.note(FATE_BROKEN);
        self.hub.dispatch_soon(self.token);
        LinkError::violation(self.process(), what)
    }

    // Notifications of the peer.

    /// After a change of the own board.
    fn notify(&self) {
        match self.notifier.wakeup(&self.peer) {
            Some(Wakeup::Socket) => self.wake_peer(),
            Some(Wakeup::Futex) => {
                let count = self.own.words.half_word(EVENT_COUNT);
                count.fetch_add(1, Ordering::Release);
                wake_all(count);
            }
            None => {}
        }
    }

    pub(crate) fn wake_peer(&self) {
        // A socket without room wakes the peer already, and a peer that has ended needs no wake-up.
        let _ = self.channel.socket.send(&[WAKE_UP], &[]);
    }

    /// Settles a promise that was sent, or the use of what was received.
    fn settle(&self, slot: SlotId, outcome: &Outcome) {
        if self.hub.generation.is_current() {
            self.own.settle(slot, outcome);
            step!("settle");
            self.notify();
            step!("settle, notified");
        }
    }

    /// See [`Indices::take`].
    fn count(&self) -> u64 {
        self.peer.load(SETTLED).wrapping_add(self.settled.load(Ordering::Acquire))
    }

    /// Settles the use of what was received.
    fn answer(&self, slot: SlotId, outcome: &Outcome) {
        step!("answer");
        self.settle(slot, outcome);
        step!("answer, notified");
        self.in_use.fetch_sub(1, Ordering::SeqCst);
        if self.is_closed.load(Ordering::SeqCst) {
            self.hub.dispatch_soon(self.token);
        }
    }

    // The work of the link thread, and of a thread that serves.

    /// True if a future waits for room.
    pub(crate) fn has_senders(&self) -> bool {
        self.senders.has_waiters()
    }

    /// Makes the calling thread serve the link, unless another thread does or nothing waits for the link.
    pub(crate) fn serve(&self) -> bool {
        // Each poll wakes the senders, which may find no room: a serving thread that is a sender would wake
        // itself again and again.
        self.has_waiters() && !self.has_senders() && self.listener.serve()
    }

    /// The peer sends no more wake-ups: the calling thread, which serves the link, polls it until it
    /// [listens](Self::listen_by_futex) or [stops serving](Self::stop_serving).
    pub(crate) fn pause_served(&self) {
        self.listener.pause(&self.own);
    }

    /// As [`pause_served`](Self::pause_served) on the link thread, until that dispatches. False where another
    /// thread serves the link, or nothing waits for it.
    pub(crate) fn try_pause(&self) -> bool {
        self.has_waiters() && self.listener.try_pause(&self.own)
    }

    /// True if a [`poll`](Self::poll) may have anything to do, at the cost of a few loads.
    pub(crate) fn has_events(&self) -> bool {
        let fate = self.fate.load(Ordering::Acquire);
        let reads =
            self.receivers.has_waiters() || self.is_closed.load(Ordering::SeqCst) && fate & FATE_BROKEN == 0;
        reads && self.peer.load(HEAD) != self.own.load(TAIL)
            || self.said() & !fate != 0
            || self.watched.lock().may_have_settled(self.peer.load(SETTLED))
    }

    /// From now on a change of the event count wakes the thread that serves the link. Returns the event count
    /// and its value.
    pub(crate) fn listen_by_futex(&self) -> (&AtomicU32, u32) {
        let count = self.peer.0.half_word(EVENT_COUNT);
        let now = count.load(Ordering::Acquire);
        // The peer may have sent its wake-up for what another thread has listened for.
        self.listener.pause(&self.own);
        self.listen();
        self.poll();
        (count, now)
    }

    /// The calling thread stops serving the link. The caller then dispatches, as the last event may have
    /// woken this thread alone.
    pub(crate) fn stop_serving(&self) {
        self.listener.stop_serving();
    }

    /// Keeps an event that has subscribers until it has settled. The caller listens after this, and polls the
    /// event again.
    pub(crate) fn watch(&self, event: Arc<PeerEvent>) {
        self.watched.lock().push(event);
    }

    /// Releases an event that has settled. The link thread may be done with the link, and the event keeps the
    /// link.
    pub(crate) fn unwatch(&self, event: &PeerEvent) {
        let gone = self.watched.lock().remove(|watched| std::ptr::eq(&raw const **watched, event));
        drop(gone);
    }

    pub(crate) fn listen(&self) {
        self.listener.listen(&self.own);
        step!("listen");
    }

    /// Polls everything that the peer may have changed, and keeps listening if something waits. True when the
    /// link is over.
    pub(crate) fn dispatch(&self) -> bool {
        self.listener.pause(&self.own);
        step!("dispatch");
        self.poll();
        if self.has_waiters() {
            self.listen();
            self.poll();
        }
        if !self.is_over() {
            return false;
        }
        // The peer may have left after the last poll. Now every event has an outcome, and this thread polls
        // this link no more.
        self.poll();
        true
    }

    fn poll(&self) {
        self.note(0);
        let is_broken = self.fate.load(Ordering::Acquire) & FATE_BROKEN != 0;
        if self.is_closed.load(Ordering::SeqCst) && !is_broken {
            self.discard();
        }
        // The end of a peer settles what it has not.
        let all = self.fate.load(Ordering::Acquire) & !FATE_CLOSING != 0;
        let mut watched = self.watched.lock();
        let settled = watched.take_settled(self.peer.load(SETTLED), all);
        drop(watched);
        settled.into_iter().for_each(|event| event.deliver());
        let fate = self.fate.load(Ordering::Acquire);
        if fate != 0 || self.peer.load(HEAD) != self.own.load(TAIL) {
            self.receivers.wake();
        }
        self.senders.wake();
    }

    /// Answers messages that arrive for a dropped handle: at most as many as a link holds. A peer that sends
    /// more meanwhile sends a wake-up.
    fn discard(&self) {
        for _ in 0..SLOTS {
            let next = self.reader.lock().read(&self.own, &self.peer);
            match next {
                Ok(Some((Message { index, generation, .. }, _))) => {
                    self.own.refuse(SlotId { kind: Kind::Used, index, generation });
                    self.notify();
                }
                Ok(None) => return,
                Err(what) => {
                    self.break_off(what);
                    return;
                }
            }
        }
    }

    fn has_waiters(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
            || self.receivers.has_waiters()
            || self.senders.has_waiters()
            || !self.watched.lock().is_empty()
    }

    /// True if the link can deliver nothing any more. Reports that to the peer.
    fn is_over(&self) -> bool {
        let is_peer_over = self.fate.load(Ordering::Acquire) & (FATE_LEFT | FATE_GONE) != 0;
        let is_closed = self.is_closed.load(Ordering::SeqCst);
        let is_unused = self.in_use.load(Ordering::SeqCst) == 0;
        let mut sent = self.sent.lock();
        if !(is_peer_over || is_closed && is_unused && sent.indices.are_answered()) {
            return false;
        }
        // The events refer to this link.
        let answered = sent.indices.close();
        drop(sent);
        drop(answered);
        // A peer that has left has seen every answer, also one that its thread here has not counted yet.
        if is_closed {
            self.own.store(CLOSED, LEFT);
            step!("left");
            self.wake_peer();
        }
        true
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("process", &self.process())
            .field("fate", &self.fate)
            .finish_non_exhaustive()
    }
}

/// A link to another process: fences cross it, each with a note, and the answer to each comes back. All calls
/// may be made from any thread.
///
/// Dropping it closes the link in good order. What was received stays in use until it is answered; promises
/// that were sent settle at the peer as before.
#[derive(Debug)]
pub struct Link {
    pub(crate) shared: Arc<Shared>,
}

impl Link {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The number of the peer's process, as this process sees it; 0 if it cannot see it.
    pub fn process(&self) -> u32 {
        self.shared.process()
    }

    /// The peer.
    pub fn peer(&self) -> Peer {
        Peer(Arc::clone(&self.shared))
    }

    /// Closes the link in good order, as dropping it does, while other threads and futures may use it. Waits
    /// for the link, and later calls, fail with [`LinkError::Invalid`].
    pub fn close(&self) {
        let shared = &self.shared;
        if shared.hub.generation.is_inherited() {
            return;
        }
        // Under both locks: what is sent or received before this end is counted as that.
        let directions = (shared.sent.lock(), shared.reader.lock());
        if shared.is_closed.load(Ordering::SeqCst) {
            return;
        }
        shared.own.store(CLOSED, CLOSING);
        step!("close");
        shared.is_closed.store(true, Ordering::SeqCst);
        drop(directions);
        shared.receivers.wake();
        shared.senders.wake();
        shared.wake_peer();
        shared.hub.dispatch_soon(shared.token);
    }

    pub(crate) fn check_process(&self) -> Result<(), LinkError> {
        Ok(self.shared.hub.generation.check()?)
    }

    /// Sends a promise, with at most 1,088 bytes for its receiver. The peer's fence settles as `fence` does.
    ///
    /// Returns a fence for the answer: done once the peer uses it no more, failed if the peer said so, closed
    /// the link without receiving it, or died. After a death it settles only when no thread of the peer can
    /// touch anything any more.
    ///
    /// # Errors
    /// [`LinkError::Full`], where [`send`](Self::send) waits; the peer closed, died or broke the protocol;
    /// the note is too long.
    pub fn try_send(&self, fence: &Fence, note: &[u8]) -> Result<Fence, LinkError> {
        self.try_send_within(fence, note, 0)
    }

    /// As [`try_send`](Self::try_send), and also [`LinkError::Full`] where the link has room for `kept`
    /// promises only.
    ///
    /// # Errors
    /// As `try_send`.
    pub fn try_send_within(&self, fence: &Fence, note: &[u8], kept: usize) -> Result<Fence, LinkError> {
        if note.len() > NOTE_BYTES {
            let message = format!("a note of {} bytes, and {NOTE_BYTES} is the most", note.len());
            return Err(LinkError::Invalid(message));
        }
        self.check_process()?;
        let shared = &self.shared;
        let state = fence.state();
        let mut sent = shared.sent.lock();
        // Under the lock: what is over is cleared under it, once.
        shared.check_open()?;
        shared.check()?;
        step!("send 1");
        let has_room =
            sent.writer.has_room(note.len(), &shared.peer).map_err(|what| shared.break_off(what))?;
        let slot = if has_room { sent.indices.take(&shared.own, || shared.count(), kept) } else { None };
        let Some(slot) = slot else { return Err(LinkError::Full { process: self.process() }) };
        step!("send 2");
        let is_pending = state.is_pending();
        shared.own.begin(slot, state.outcome().as_ref());
        step!("send 3");
        let answer = PeerEvent::new(Arc::clone(shared), SlotId { kind: Kind::Used, ..slot });
        sent.indices.note_sent(slot, Arc::clone(&answer));
        sent.writer.write(slot.index, slot.generation, note, &shared.own);
        drop(sent);
        step!("send 4");
        shared.notify();
        step!("send 5");
        if is_pending {
            let shared = Arc::clone(shared);
            Reactor::global().when_settled([fence], move |outcome| {
                shared.settle(slot, &outcome);
                shared.settled.fetch_add(1, Ordering::Release);
            });
        }
        Ok(Fence::event(answer))
    }

    /// As [`try_send`](Self::try_send), waiting while the peer has as much as a link holds.
    ///
    /// # Errors
    /// As `try_send`, without `Full`.
    pub async fn send(&self, fence: &Fence, note: &[u8]) -> Result<Fence, LinkError> {
        self.when_room(|| self.try_send(fence, note)).await
    }

    /// The result of `attempt`, which sends or shows something on this link. Waits while `attempt` returns
    /// [`LinkError::Full`].
    ///
    /// # Errors
    /// As `attempt`, without `Full`.
    pub async fn when_room<T>(&self, attempt: impl Fn() -> Result<T, LinkError>) -> Result<T, LinkError> {
        let attempt = || match attempt() {
            Err(LinkError::Full { .. }) => Poll::Pending,
            result => Poll::Ready(result),
        };
        let mut registration = Registration::new(&self.shared.senders);
        poll_fn(|context| {
            let first = attempt();
            if first.is_ready() {
                return first;
            }
            registration.register(context);
            self.shared.listen();
            attempt()
        })
        .await
    }

    /// The next promise of the peer, if one has arrived.
    ///
    /// # Errors
    /// Nothing more comes: the peer closed, died or broke the protocol.
    pub fn try_receive(&self) -> Result<Option<Received>, LinkError> {
        match (self.take_next()?, self.shared.readable.get()) {
            (None, Some(readable)) => readable.rearm(&self.shared, || self.take_next()),
            (next, _) => Ok(next),
        }
    }

    fn take_next(&self) -> Result<Option<Received>, LinkError> {
        let shared = &self.shared;
        // The end is read before the ring, so this read of the ring is the last one. Messages that arrived
        // whole are kept.
        let checked = shared.check();
        if matches!(checked, Err(LinkError::Forked)) {
            return checked.map(|()| None);
        }
        let mut reader = shared.reader.lock();
        shared.check_open()?;
        let message = reader.read(&shared.own, &shared.peer).map_err(|what| shared.break_off(what))?;
        let Some((message, is_room_news)) = message else { return checked.map(|()| None) };
        shared.in_use.fetch_add(1, Ordering::SeqCst);
        drop(reader);
        if is_room_news {
            shared.notify();
        }
        let slot = SlotId { kind: Kind::Ready, index: message.index, generation: message.generation };
        let fence = Fence::event(PeerEvent::new(Arc::clone(shared), slot));
        let answer = Some((Arc::clone(shared), SlotId { kind: Kind::Used, ..slot }));
        Ok(Some(Received { fence, note: message.note, answer }))
    }

    /// The next promise of the peer.
    ///
    /// # Errors
    /// As [`try_receive`](Self::try_receive).
    pub async fn receive(&self) -> Result<Received, LinkError> {
        let mut registration = Registration::new(&self.shared.receivers);
        poll_fn(|context| {
            if let Some(result) = self.try_receive().transpose() {
                return Poll::Ready(result);
            }
            registration.register(context);
            self.shared.listen();
            self.try_receive().transpose().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// As [`receive`](Self::receive), on the calling thread: an arrival wakes no other thread. `None` when
    /// `timeout` passed first; without a timeout, waits for as long as it takes.
    ///
    /// # Errors
    /// As [`try_receive`](Self::try_receive).
    pub fn receive_timeout(&self, timeout: Option<Duration>) -> Result<Option<Received>, LinkError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let sleeper = Arc::<Sleeper>::default();
        let waker = Waker::from(Arc::clone(&sleeper));
        let mut received = pin!(self.receive());
        loop {
            if let Poll::Ready(result) = received.as_mut().poll(&mut Context::from_waker(&waker)) {
                return result.map(Some);
            }
            if !sleeper.sleep(deadline) {
                return Ok(None);
            }
        }
    }
}

/// The process at the other end of a link, for longer than the link is kept.
#[derive(Clone, Debug)]
pub struct Peer(Arc<Shared>);

impl Peer {
    /// True if the process has left the link, has died, or has broken the protocol. A process that has closed
    /// the link still settles what it has sent.
    pub fn has_ended(&self) -> bool {
        self.0.hub.generation.is_inherited() || self.0.fate.load(Ordering::Acquire) & !FATE_CLOSING != 0
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// A promise of the peer in use. Dropping it answers that the use is over.
#[derive(Debug)]
pub struct Received {
    fence: Fence,
    note: Vec<u8>,
    answer: Option<(Arc<Shared>, SlotId)>,
}

impl Received {
    /// Settles when the peer's promise does, and fails if the peer dies before.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// The peer's note.
    pub fn note(&self) -> &[u8] {
        &self.note
    }

    /// Answers that the use is over. The answer leaves once the promise has settled.
    pub fn complete(self) {
        drop(self);
    }

    /// Answers that the use failed.
    pub fn fail(mut self, error: DeviceError) {
        self.answer(Err(error));
    }

    fn answer(&mut self, outcome: Outcome) {
        let Some((shared, slot)) = self.answer.take() else { return };
        if shared.hub.generation.is_inherited() {
            return;
        }
        if matches!(self.fence.state(), FenceState::Pending) {
            Reactor::global().when_settled([&self.fence], move |_| shared.answer(slot, &outcome));
        } else {
            shared.answer(slot, &outcome);
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.answer(Ok(()));
    }
}

#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests {
    use estafette_devices::host;
    use estafette_sync::platform::child::in_forked_child;

    use crate::LinkError;
    use crate::tests::{door, pair};

    #[test]
    fn a_forked_child_is_refused_before_it_waits_for_a_lock() {
        let (door, _, _alone) = door();
        let (near, _far) = pair(&door);
        let (completer, promise) = host::promise("done");
        completer.complete();
        // Other threads of the parent may have them at the fork.
        let locks = (near.shared.sent.lock(), near.shared.seen.lock());
        let is_refused = || {
            // SAFETY: takes an integer. A child that hangs ends by the signal.
            unsafe { libc::alarm(5) };
            let (sent, found) = (near.try_send(&promise, &[]), near.segment(0));
            matches!((sent, found), (Err(LinkError::Forked), Err(LinkError::Forked)))
        };
        assert!(in_forked_child(is_refused));
        drop(locks);
    }
}
