//! A place for one thread to sleep until it is woken.
//!
//! Handing on what has arrived costs a wake-up for each thread on the way. So a thread that sleeps here
//! serves the [`Host`] of the process meanwhile, if there is one: what arrives then wakes the thread that
//! waits for it, and no other.

use std::sync::OnceLock;
use std::task::Wake;

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::time::Instant;

/// The word of a thread that serves: the thread is woken by [`Host::wake`].
pub const MAY_SLEEP: u32 = 0;
/// The thread was woken.
pub const WOKEN: u32 = 1;
/// The thread looks at the word before it sleeps.
pub const IS_AWAKE: u32 = 2;

/// The work of waiting threads.
pub trait Host: Sync {
    /// Waits until `word` is [`WOKEN`], until something was done that the thread may wait for, or until
    /// `deadline`. Returns whether that was in time; `None` at once if there is nothing to do, or not for one
    /// more thread. The word is [`IS_AWAKE`] before; a host that sleeps makes [`MAY_SLEEP`] of that, and
    /// back.
    fn serve(&self, word: &AtomicU32, deadline: Option<Instant>) -> Option<bool>;

    /// Ends a [`serve`](Self::serve) whose word was [`MAY_SLEEP`] and is [`WOKEN`] now.
    fn wake(&self, word: &AtomicU32);
}

/// A fact about the process, outside of every protocol: a plain std cell, so that it may be a static under
/// model checkers too.
static HOST: OnceLock<&'static dyn Host> = OnceLock::new();

/// From now on threads serve `host` while they sleep. Only the first host counts.
pub fn set_host(host: &'static dyn Host) {
    let _ = HOST.set(host);
}

/// True if threads do something while they sleep in a [`Sleeper`].
#[inline]
pub fn has_host() -> bool {
    HOST.get().is_some()
}

/// True if a thread that spins takes nothing from those that work: with two cores or fewer it does.
pub fn has_spare_cores() -> bool {
    // A fact, as `HOST` is.
    static SPARE: OnceLock<bool> = OnceLock::new();
    // An execution of a model must not depend on the machine.
    !cfg!(any(estafette_loom, estafette_shuttle))
        && *SPARE.get_or_init(|| std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 2))
}

/// See the module. One thread at a time sleeps in it.
#[derive(Debug, Default)]
pub struct Sleeper {
    state: Mutex<SleeperState>,
    changed: Condvar,
    /// Of a thread that serves.
    word: AtomicU32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SleeperState {
    #[default]
    Awake,
    Asleep,
    Serves,
    Woken,
}

impl Sleeper {
    /// Ends the sleep of the thread, or else its next one.
    pub fn wake(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), SleeperState::Woken);
        match before {
            SleeperState::Asleep => self.changed.notify_one(),
            SleeperState::Serves => {
                if self.word.swap(WOKEN, Ordering::AcqRel) == MAY_SLEEP {
                    HOST.get().expect("it is served").wake(&self.word);
                }
            }
            SleeperState::Awake | SleeperState::Woken => {}
        }
    }

    /// Sleeps until woken, until the host has done something, or until `deadline`. Returns false if
    /// `deadline` passed before.
    pub fn sleep(&self, deadline: Option<Instant>) -> bool {
        let is_over = || deadline.is_some_and(|deadline| deadline <= Instant::now());
        let mut state = self.state.lock();
        if *state != SleeperState::Woken
            && let Some(host) = HOST.get()
        {
            *state = SleeperState::Serves;
            self.word.store(IS_AWAKE, Ordering::Relaxed);
            drop(state);
            let served = host.serve(&self.word, deadline);
            state = self.state.lock();
            if served.is_some() {
                return std::mem::take(&mut *state) == SleeperState::Woken || !is_over();
            }
        }
        let (mut state, is_woken) = self.changed.wait_while(state, deadline, |state| {
            let sleeps = *state != SleeperState::Woken;
            if sleeps {
                *state = SleeperState::Asleep;
            }
            sleeps
        });
        *state = SleeperState::Awake;
        is_woken
    }
}

impl Wake for Sleeper {
    fn wake(self: std::sync::Arc<Self>) {
        Sleeper::wake(&self);
    }
}
