//! When a process rings another. PROTOCOL.md, *tell* and *listen*.

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering, fence};

use crate::board::{LISTENING, OwnBoard, PeerBoard, Words};

/// How this process says whether it wants to be rung.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    /// How often it has begun to listen, and whether it listens.
    state: Mutex<(u64, bool)>,
}

impl Listener {
    /// From now on the peer rings at a change. The caller looks at everything once more after this.
    pub(crate) fn listen<W: Words>(&self, own: &OwnBoard<W>) {
        let mut state = self.state.lock();
        if !state.1 {
            *state = (state.0 + 1, true);
            own.store(LISTENING, state.0);
        }
        drop(state);
        fence(Ordering::SeqCst);
    }

    /// From now on the peer need not ring. No fence: what a look after this misses, the look after the next `listen` finds.
    pub(crate) fn pause<W: Words>(&self, own: &OwnBoard<W>) {
        let mut state = self.state.lock();
        state.1 = false;
        own.store(LISTENING, 0);
    }
}

/// How this process finds out whether its peer wants to be rung.
#[derive(Debug, Default)]
pub(crate) struct Ringer {
    /// What the peer's word was when it was rung last.
    rung: AtomicU64,
}

impl Ringer {
    /// After a change of the own board: whether to ring.
    #[inline]
    pub(crate) fn must_ring<P: Words>(&self, peer: &PeerBoard<P>) -> bool {
        fence(Ordering::SeqCst);
        let listening = peer.load(LISTENING);
        if listening == 0 || listening == self.rung.load(Ordering::Relaxed) {
            return false;
        }
        self.rung.store(listening, Ordering::Relaxed);
        true
    }
}
