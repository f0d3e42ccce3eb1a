//! Which threads a pool has, and the spare ones that stand in for workers that block.
//!
//! A worker that is about to block says so. Then one spare thread takes its role until it is back: as many spare
//! threads are active as workers are blocked, up to the limit. Spare threads are started when first needed and rest
//! afterwards, so blocking often costs a wake-up and not a thread. When a blocked worker comes back, the spare thread
//! that looks next retires; until its current job ends there is one thread more than configured.

use crossbeam::deque::Worker;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Condvar, Mutex, MutexGuard};
use estafette_sync::thread;
use estafette_sync::time::{Duration, Instant};

/// The threads of one pool.
#[derive(Debug)]
pub(super) struct Crew<J> {
    roll: Mutex<Roll<J>>,
    /// A resting spare thread is wanted, or everybody leaves.
    called: Condvar,
    /// A thread has left.
    left: Condvar,
    /// More spare threads are active than workers are blocked: a hint to look, read without the lock.
    surplus: AtomicBool,
    /// Of each thread, in bytes.
    stack_size: usize,
}

/// What the crew knows about itself.
#[derive(Debug)]
struct Roll<J> {
    /// Threads that have been started and have not left.
    alive: usize,
    /// Threads to be joined.
    handles: Vec<thread::JoinHandle<()>>,
    /// Deques that no thread owns yet, with their numbers.
    unowned: Vec<(usize, Worker<J>)>,
    /// Threads inside of a blocking section.
    blocked: usize,
    /// Spare threads that stand in for one of them.
    standing_in: usize,
    /// Spare threads that rest.
    resting: usize,
    /// Resting threads that have been called and have not answered yet.
    calls: usize,
}

/// What has to be done so that a blocked worker is covered.
pub(super) enum Cover<J> {
    /// Nothing: a resting thread was called, or the limit is reached.
    Nothing,
    /// A thread has to be started on this deque.
    Start(usize, Worker<J>),
}

impl<J> Crew<J> {
    /// A crew without threads. `deques` are the spare ones.
    pub(super) fn new(deques: Vec<(usize, Worker<J>)>, stack_size: usize) -> Self {
        let roll = Roll {
            alive: 0,
            handles: Vec::new(),
            unowned: deques,
            blocked: 0,
            standing_in: 0,
            resting: 0,
            calls: 0,
        };
        Self {
            roll: Mutex::new(roll),
            called: Condvar::new(),
            left: Condvar::new(),
            surplus: AtomicBool::new(false),
            stack_size,
        }
    }

    /// Starts a thread of the crew.
    pub(super) fn start(&self, name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.lock().alive += 1;
        match thread::Builder::new().name(name).stack_size(self.stack_size).spawn(body) {
            Ok(handle) => {
                self.lock().handles.push(handle);
                Ok(())
            }
            Err(error) => {
                self.leave();
                Err(error)
            }
        }
    }

    /// The calling thread is about to leave the crew.
    pub(super) fn leave(&self) {
        self.lock().alive -= 1;
        self.left.notify_all();
    }

    /// A worker is about to block.
    pub(super) fn block(&self) -> Cover<J> {
        let mut roll = self.lock();
        roll.blocked += 1;
        let cover = if roll.standing_in >= roll.blocked {
            // A spare thread that has not retired yet goes on for this one.
            Cover::Nothing
        } else if roll.resting > roll.calls {
            roll.calls += 1;
            roll.standing_in += 1;
            self.called.notify_one();
            Cover::Nothing
        } else if let Some((index, deque)) = roll.unowned.pop() {
            roll.standing_in += 1;
            Cover::Start(index, deque)
        } else {
            Cover::Nothing
        };
        self.note_surplus(&roll);
        cover
    }

    /// The thread for [`Cover::Start`] could not be started. (Its deque is gone with it: empty, and one spare less.)
    pub(super) fn not_started(&self) {
        let mut roll = self.lock();
        roll.standing_in -= 1;
        self.note_surplus(&roll);
    }

    /// A worker goes on after blocking.
    pub(super) fn unblock(&self) {
        let mut roll = self.lock();
        roll.blocked -= 1;
        self.note_surplus(&roll);
    }

    /// Whether every thread that does not rest is inside of a blocking section, so that no thread takes a job.
    pub(super) fn is_stuck(&self) -> bool {
        let roll = self.lock();
        roll.blocked > 0 && roll.alive - roll.resting <= roll.blocked
    }

    /// Whether a spare thread should ask for [`Crew::rest`]. One load.
    pub(super) fn has_surplus(&self) -> bool {
        self.surplus.load(Ordering::Relaxed)
    }

    /// A spare thread retires if it is one too many, until it is called or `leaving` is true. False if it stays.
    pub(super) fn rest(&self, leaving: impl Fn() -> bool) -> bool {
        let mut roll = self.lock();
        if roll.standing_in <= roll.blocked {
            return false;
        }
        roll.standing_in -= 1;
        roll.resting += 1;
        self.note_surplus(&roll);
        while roll.calls == 0 && !leaving() {
            roll = self.called.wait(roll);
        }
        roll.resting -= 1;
        if roll.calls > 0 {
            roll.calls -= 1;
        } else {
            // Leaving: the thread goes through its loop once more as if it stood in.
            roll.standing_in += 1;
        }
        true
    }

    /// The conditions under which spare threads rest have changed.
    pub(super) fn call_everybody(&self) {
        drop(self.lock());
        self.called.notify_all();
    }

    /// Waits until no thread is left; false if `timeout` passed first.
    pub(super) fn join(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut roll = self.lock();
        while roll.alive > 0 {
            roll = match deadline {
                None => self.left.wait(roll),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.left.wait_timeout(roll, left).0
                }
            };
        }
        let handles = std::mem::take(&mut roll.handles);
        drop(roll);
        // They have said goodbye; what is left of them is the end of a thread. A panic was logged where it happened.
        handles.into_iter().for_each(|handle| drop(handle.join()));
        true
    }

    fn note_surplus(&self, roll: &Roll<J>) {
        self.surplus.store(roll.standing_in > roll.blocked, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Roll<J>> {
        self.roll.lock()
    }
}
