//! When a process rings another. PROTOCOL.md, *tell* and *listen*.

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering, fence};

use crate::board::{LISTENING, OwnBoard, PeerBoard, Words};

/// How the peer is to ring: the lowest bit of [`LISTENING`], where that is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    /// By a message, which wakes the link thread.
    Socket = 0,
    /// By a change of the word [`BELL`](crate::board::BELL), for which a thread waits that serves the link.
    Word = 1,
}

/// How this process says whether it wants to be rung.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How often it has begun to listen.
    count: u64,
    /// What it listens for.
    ring: Option<Ring>,
    /// A thread that waits serves the link.
    is_served: bool,
}

impl Listener {
    /// From now on the peer rings at a change. The caller looks at everything once more after this.
    pub(crate) fn listen<W: Words>(&self, own: &OwnBoard<W>) {
        let mut state = self.state.lock();
        let ring = if state.is_served { Ring::Word } else { Ring::Socket };
        if state.ring != Some(ring) {
            state.ring = Some(ring);
            state.count += 1;
            own.store(LISTENING, state.count << 1 | ring as u64);
        }
        drop(state);
        fence(Ordering::SeqCst);
    }

    /// From now on the peer need not ring. No fence: what a look after this misses, the look after the next `listen` finds.
    pub(crate) fn pause<W: Words>(&self, own: &OwnBoard<W>) {
        let mut state = self.state.lock();
        state.ring = None;
        own.store(LISTENING, 0);
    }

    /// As [`pause`](Self::pause), unless a thread serves the link. Returns whether it does not.
    pub(crate) fn rest<W: Words>(&self, own: &OwnBoard<W>) -> bool {
        let mut state = self.state.lock();
        if !state.is_served {
            state.ring = None;
            own.store(LISTENING, 0);
        }
        !state.is_served
    }

    /// The calling thread serves the link: it is rung by the word, once it has listened. False if another thread does.
    pub(crate) fn serve(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().is_served, true)
    }

    /// It serves the link no more, and pauses.
    pub(crate) fn leave(&self) {
        self.state.lock().is_served = false;
    }
}

/// How this process finds out whether its peer wants to be rung.
#[derive(Debug, Default)]
pub(crate) struct Ringer {
    /// What the peer's word was when it was rung last.
    rung: AtomicU64,
}

impl Ringer {
    /// After a change of the own board: how to ring, if at all.
    #[inline]
    pub(crate) fn must_ring<P: Words>(&self, peer: &PeerBoard<P>) -> Option<Ring> {
        fence(Ordering::SeqCst);
        let listening = peer.load(LISTENING);
        if listening == 0 || listening == self.rung.load(Ordering::Relaxed) {
            return None;
        }
        self.rung.store(listening, Ordering::Relaxed);
        Some(if listening & 1 == Ring::Word as u64 { Ring::Word } else { Ring::Socket })
    }
}
