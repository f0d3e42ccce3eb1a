//! Descriptors of one process, which a forked child closes at once. With a copy of a socket a connection
//! would outlast the process, and its peer would not learn of its end. With a copy of shared memory the child
//! would keep memory that all others have released.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};

use estafette_sync::process::{Generation, at_fork, count_leak};
use estafette_sync::sync::OnceLock;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use estafette_sync::{per_process, statics};

/// Descriptors that are noted: as many as the kernel lets a process have, where nothing has raised its limit.
const NOTED: usize = 1 << 20;

statics! {
    /// A bit for each descriptor that a child closes.
    static OPEN: [AtomicU64; NOTED / 64] = [const { AtomicU64::new(0) }; NOTED / 64];
}

per_process! {
    /// [`close_copies`] is called in children.
    static ARRANGED: OnceLock<()> = OnceLock::new();
}

/// In a forked child, between `fork` and what follows: loads, stores and system calls only.
fn close_copies() {
    // A word that is not written stays a page of the kernel's.
    for (index, word) in OPEN.iter().enumerate().filter(|(_, word)| word.load(Ordering::Relaxed) != 0) {
        let bits = word.swap(0, Ordering::Relaxed);
        for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
            // SAFETY: takes an integer. The owner of the descriptor is not in this process.
            unsafe { libc::close((64 * index + bit) as RawFd) };
        }
    }
}

/// A descriptor that forked children do not have. A fork between the call that makes it and
/// [`CloseOnFork::new`] gives the child a copy.
#[derive(Debug)]
pub struct CloseOnFork<T: AsRawFd> {
    value: ManuallyDrop<T>,
    generation: Generation,
}

impl<T: AsRawFd> CloseOnFork<T> {
    pub fn new(value: T) -> Self {
        ARRANGED.get_or_init(|| at_fork(close_copies));
        if let Some((word, bit)) = place(&value) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self { value: ManuallyDrop::new(value), generation: Generation::current() }
    }
}

fn place(value: &impl AsRawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = value.as_raw_fd() as usize;
    Some((OPEN.get(number / 64)?, 1 << (number % 64)))
}

impl<T: AsRawFd> Drop for CloseOnFork<T> {
    fn drop(&mut self) {
        if self.generation.is_inherited() {
            // It was closed at the fork. By now the number may be of something else.
            return count_leak();
        }
        // Before the number is given out again. A child that is forked from here on has a copy, so a
        // connection is ended and not only closed.
        if let Some((word, bit)) = place(&*self.value) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        // SAFETY: takes integers. What is not a connected socket is left as it is.
        unsafe { libc::shutdown(self.value.as_raw_fd(), libc::SHUT_RDWR) };
        // SAFETY: dropped here alone, and not used any more.
        unsafe { ManuallyDrop::drop(&mut self.value) };
    }
}

impl<T: AsRawFd> Deref for CloseOnFork<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
