//! Wake-ups between two processes. PROTOCOL.md, *notify* and *listen*.

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering, fence};

use crate::board::{LISTENING, OwnBoard, PeerBoard, Words};

/// The kind of wake-up that a process wants: the lowest bit of [`LISTENING`], where that is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// By a message, which wakes the link thread.
    Socket = 0,
    /// By a change of the event count ([`EVENT_COUNT`](crate::board::EVENT_COUNT)), for which the thread that
    /// serves the link waits.
    Futex = 1,
}

/// The state that says if this process wants a wake-up.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    state: Mutex<NotifyState>,
}

#[derive(Debug, Default)]
struct NotifyState {
    /// The number of times that the process has begun to listen.
    count: u64,
    /// The kind of wake-up that the process wants.
    wakeup: Option<Wakeup>,
    /// A thread that waits serves the link.
    is_served: bool,
}

impl Listener {
    /// From now on the peer sends a wake-up at a change. The caller polls everything once more after this.
    pub(crate) fn listen<W: Words>(&self, own: &OwnBoard<W>) {
        let mut state = self.state.lock();
        let wakeup = if state.is_served { Wakeup::Futex } else { Wakeup::Socket };
        if state.wakeup != Some(wakeup) {
            state.wakeup = Some(wakeup);
            state.count += 1;
            own.store(LISTENING, state.count << 1 | wakeup as u64);
        }
        drop(state);
        fence(Ordering::SeqCst);
    }

    /// From now on the peer need not send wake-ups. No fence: what a poll after this misses, the poll after
    /// the next `listen` finds.
    pub(crate) fn pause<W: Words>(&self, own: &OwnBoard<W>) {
        let mut state = self.state.lock();
        state.wakeup = None;
        own.store(LISTENING, 0);
    }

    /// As [`pause`](Self::pause), unless a thread serves the link. True if none does.
    pub(crate) fn try_pause<W: Words>(&self, own: &OwnBoard<W>) -> bool {
        let mut state = self.state.lock();
        if !state.is_served {
            state.wakeup = None;
            own.store(LISTENING, 0);
        }
        !state.is_served
    }

    /// The calling thread serves the link: it is woken by the event count, once it has listened. False if
    /// another thread does.
    pub(crate) fn serve(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().is_served, true)
    }

    /// The calling thread stops serving the link.
    pub(crate) fn stop_serving(&self) {
        self.state.lock().is_served = false;
    }
}

/// Decides which wake-ups the peer gets.
#[derive(Debug, Default)]
pub(crate) struct PeerNotifier {
    /// The peer's *listening* at the last wake-up.
    notified: AtomicU64,
}

impl PeerNotifier {
    /// After a change of the own board: the wake-up that the peer wants, if any.
    #[inline]
    pub(crate) fn wakeup<P: Words>(&self, peer: &PeerBoard<P>) -> Option<Wakeup> {
        fence(Ordering::SeqCst);
        let listening = peer.load(LISTENING);
        if listening == 0 || listening == self.notified.load(Ordering::Relaxed) {
            return None;
        }
        self.notified.store(listening, Ordering::Relaxed);
        Some(if listening & 1 == Wakeup::Futex as u64 { Wakeup::Futex } else { Wakeup::Socket })
    }
}
