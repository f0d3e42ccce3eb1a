//! Liveness locks: how the death of a process is known before the kernel frees its memory.
//! PROTOCOL.md, *death*.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use estafette_sync::essential::essential;
use estafette_sync::process::Generation;
use estafette_sync::sync::atomic::{AtomicU32, Ordering};
use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::time::Duration;

use crate::LinkError;
use crate::board::LIVENESS;
use crate::link::Shared;
use crate::platform::{Memory, RobustList, owner_died, wait_for_any, wake_all};
use crate::threads;

/// Liveness locks that are watched; the kernel waits for 128 words at once. Of further peers the end is seen,
/// and not its beginning. The same holds for a peer with more than 2,048 later links, whose locks the kernel
/// marks first.
const WATCHED_MAX: usize = 126;
/// The time that the thread that watches rests where the system lacks something.
const PAUSE: Duration = Duration::from_millis(100);

/// The thread that holds the liveness locks of this process and watches those of its peers. It does nothing
/// else: its end is, for all peers, the death of this process.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    state: Mutex<LivenessState>,
    started: Condvar,
    /// Changes when the list of what is watched does.
    changes: AtomicU32,
    generation: Generation,
}

#[derive(Debug, Default)]
struct LivenessState {
    held: Option<RobustList>,
    watched: Vec<Arc<Shared>>,
    error: Option<io::Error>,
}

impl Liveness {
    /// Starts the thread, unless it runs.
    pub(crate) fn start(&'static self) -> Result<(), LinkError> {
        if self.state.lock().held.is_some() {
            return Ok(());
        }
        threads::start("estafette-alive", move || essential("the thread of liveness locks", || self.run()))?;
        let mut state = self.state.lock();
        loop {
            if let Some(error) = state.error.take() {
                return Err(LinkError::system("holding a liveness lock")(error));
            }
            if state.held.is_some() {
                return Ok(());
            }
            state = self.started.wait(state);
        }
    }

    pub(crate) fn hold(&'static self, board: Arc<Memory>) -> LivenessLock {
        if let Some(held) = &self.state.lock().held {
            held.hold(&board, LIVENESS);
        }
        LivenessLock { board, liveness: self }
    }

    /// From now on the death of the peer is noted.
    pub(crate) fn watch(&self, link: Arc<Shared>) {
        self.state.lock().watched.push(link);
        self.reload();
    }

    pub(crate) fn unwatch(&self, link: &Shared) {
        self.state.lock().watched.retain(|watched| !std::ptr::eq(&raw const **watched, link));
        self.reload();
    }

    fn reload(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        wake_all(&self.changes);
    }

    fn run(&self) {
        let held = RobustList::of_this_thread();
        let is_holding = held.is_ok();
        {
            let mut state = self.state.lock();
            match held {
                Ok(held) => state.held = Some(held),
                Err(error) => state.error = Some(error),
            }
        }
        self.started.notify_all();
        if !is_holding {
            return;
        }
        loop {
            let changes = self.changes.load(Ordering::Acquire);
            let watched: Vec<_> = self.state.lock().watched.iter().take(WATCHED_MAX).cloned().collect();
            let mut words = vec![(&self.changes, changes)];
            for link in &watched {
                let (lock, held) = link.peer_liveness();
                match lock.load(Ordering::Relaxed) {
                    word if owner_died(word) => link.note_lost(),
                    word if word == held => words.push((lock, held)),
                    // Released in good order, or damaged: the link thread sees what becomes of the process.
                    _ => self.state.lock().watched.retain(|watched| !Arc::ptr_eq(watched, link)),
                }
            }
            if words.len() == watched.len() + 1
                && let Err(error) = wait_for_any(&words, None)
            {
                match pause_after(&error) {
                    Some(pause) => estafette_sync::thread::sleep(pause),
                    // The end of a process is still seen.
                    None => loop {
                        estafette_sync::thread::park();
                    },
                }
            }
            for link in watched.iter().filter(|link| link.is_lost()) {
                self.state.lock().watched.retain(|watched| !Arc::ptr_eq(watched, link));
            }
        }
    }
}

/// After a wait for several words that has failed: when to wait again, or `None` where the kernel cannot, or
/// a sandbox refuses it.
fn pause_after(error: &io::Error) -> Option<Duration> {
    let is_for_ever = matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::PermissionDenied | ErrorKind::InvalidInput
    );
    (!is_for_ever).then_some(PAUSE)
}

/// The held liveness lock of a board.
#[derive(Debug)]
pub(crate) struct LivenessLock {
    board: Arc<Memory>,
    liveness: &'static Liveness,
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        // A child has neither the board nor the thread.
        if self.liveness.generation.is_current()
            && let Some(held) = &self.liveness.state.lock().held
        {
            held.release(&self.board, LIVENESS);
        }
    }
}

#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn lives_are_watched_again_after_a_shortage_and_not_where_the_system_refuses() {
        let pause = |code| pause_after(&io::Error::from_raw_os_error(code));
        assert_eq!([libc::ENOMEM, libc::EFAULT].map(pause), [Some(PAUSE); 2]);
        assert_eq!([libc::ENOSYS, libc::EPERM, libc::EACCES, libc::EINVAL].map(pause), [None; 4]);
    }
}
