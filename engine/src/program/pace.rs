//! Whether nodes are long enough for a second thread to be of use.
//!
//! A shared run costs a few locked instructions per node and moves cache lines between cores, some 50 to 100 ns per node;
//! inviting a helper costs a wake-up of some microseconds. So a program whose nodes are shorter than that is fastest on
//! one thread. Nobody knows the length of a node in advance; the last run tells, and during a run the owner looks at
//! the clock. A run goes from alone to shared once and never back, so it cannot swing between the two.

use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::time::{Duration, Instant};

/// Nodes that take longer than this on average are worth sharing.
const WORTH_SHARING: Duration = Duration::from_nanos(200);

/// The same where bodies need a lock of their own world, such as the Python lock, for part of the time: only those that let go of
/// it for long can run beside each other, and handing it over costs some ten microseconds.
const WORTH_SHARING_LOCKED: Duration = Duration::from_micros(50);

/// A run that has not lasted longer than this is not interrupted to be shared: it may be over before a helper comes, and
/// a cold cache makes the first nodes look long.
const WARM_UP: Duration = Duration::from_micros(5);

/// Nodes between two looks at the clock, at most: a look costs as much as some ten empty nodes.
const CHUNK_MAX: usize = 64;

/// What is known of the length of a program's nodes.
#[derive(Debug)]
pub(super) struct Pace {
    /// Nodes that take longer than this on average are worth sharing.
    worth_sharing: Duration,
    /// Whether the last run that measured found its nodes too short for sharing. Nothing is known before the first run,
    /// and a program that should have been shared loses more than one that should not; but for bodies that need a lock.
    short: AtomicBool,
}

impl Pace {
    /// Of bodies that need a lock, or not.
    pub(super) fn new(locked: bool) -> Self {
        let worth_sharing = if locked { WORTH_SHARING_LOCKED } else { WORTH_SHARING };
        Self { worth_sharing, short: AtomicBool::new(locked) }
    }

    /// Whether a run should begin with one thread alone.
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

/// Decides during a run on one thread whether it should be shared.
#[derive(Debug)]
pub(super) struct SharingCheck {
    began: Instant,
    last_check: Instant,
    /// Nodes until the next look: few at first, so that long nodes are noticed early.
    chunk: usize,
}

impl SharingCheck {
    pub(super) fn start() -> Self {
        let now = Instant::now();
        Self { began: now, last_check: now, chunk: 1 }
    }

    /// How many nodes to run before the next look.
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// Whether the nodes of the last chunk were worth sharing.
    pub(super) fn is_worth_sharing(&mut self) -> bool {
        let now = Instant::now();
        let long = now - self.last_check >= times(WORTH_SHARING, self.chunk) && now - self.began >= WARM_UP;
        self.last_check = now;
        self.chunk = (self.chunk * 2).min(CHUNK_MAX);
        long
    }
}
