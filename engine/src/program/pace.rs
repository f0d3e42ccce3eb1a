//! Decides whether nodes are long enough for a second thread.
//!
//! A shared run costs a few locked instructions per node and moves cache lines between cores: some 50 to 100
//! ns per node. Inviting a helper costs a wake-up of some microseconds. A program with shorter nodes is
//! fastest on one thread. The length of nodes is not known in advance, so the last run is measured, and
//! during a run the owner reads the clock. A run goes from one thread to several once and never back, so it
//! cannot oscillate.

use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::time::{Duration, Instant};

/// Nodes that take longer than this on average are worth sharing.
const WORTH_SHARING: Duration = Duration::from_nanos(200);

/// The same for bodies that hold a global lock, such as Python's, for part of the time. Only bodies that
/// release the lock for long can run at the same time, and handing the lock over costs some ten microseconds.
const WORTH_SHARING_LOCKED: Duration = Duration::from_micros(50);

/// A run shorter than this is not shared: it may end before a helper comes, and a cold cache makes the first
/// nodes look long.
const WARM_UP: Duration = Duration::from_micros(5);

/// Nodes between two readings of the clock, at most. A reading costs as much as some ten empty nodes.
const CHUNK_MAX: usize = 64;

/// The measured length of a program's nodes.
#[derive(Debug)]
pub(super) struct NodePace {
    /// Nodes that take longer than this on average are worth sharing.
    worth_sharing: Duration,
    /// True if the last measured run found its nodes too short for sharing. Before the first run this is true
    /// only for bodies that need a lock: elsewhere, a missed chance to share costs more than needless
    /// sharing.
    short: AtomicBool,
}

impl NodePace {
    /// `locked`: bodies need a global lock.
    pub(super) fn new(locked: bool) -> Self {
        let worth_sharing = if locked { WORTH_SHARING_LOCKED } else { WORTH_SHARING };
        Self { worth_sharing, short: AtomicBool::new(locked) }
    }

    /// True if a run should begin with one thread.
    pub(super) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Notes that `nodes` nodes took `time` on one thread.
    pub(super) fn measured(&self, nodes: usize, time: Duration) {
        if nodes > 0 {
            self.short.store(time < times(self.worth_sharing, nodes), Ordering::Relaxed);
        }
    }
}

fn times(each: Duration, nodes: usize) -> Duration {
    each.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX))
}

/// Decides, during a run by one thread, whether the rest should be shared.
#[derive(Debug)]
pub(super) struct SharingCheck {
    began: Instant,
    last_check: Instant,
    /// Nodes until the next reading: few at first, so that long nodes are noticed early.
    chunk: usize,
}

impl SharingCheck {
    pub(super) fn start() -> Self {
        let now = Instant::now();
        Self { began: now, last_check: now, chunk: 1 }
    }

    /// Number of nodes to run before the next reading.
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// Time from the start to the last reading.
    pub(super) fn elapsed(&self) -> Duration {
        self.last_check - self.began
    }

    /// True if the nodes of the last chunk were worth sharing.
    pub(super) fn is_worth_sharing(&mut self) -> bool {
        let now = Instant::now();
        let long = now - self.last_check >= times(WORTH_SHARING, self.chunk) && now - self.began >= WARM_UP;
        self.last_check = now;
        self.chunk = (self.chunk * 2).min(CHUNK_MAX);
        long
    }
}
