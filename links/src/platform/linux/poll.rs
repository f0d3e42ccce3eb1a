//! Waiting for descriptors.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use super::{check, new_descriptor};

/// A set of descriptors to wait for.
#[derive(Debug)]
pub struct Poll(OwnedFd);

/// Readable descriptors that one wait returns.
const EVENTS_MAX: usize = 32;

impl Poll {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes an integer; the descriptor is new.
        unsafe { new_descriptor(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }.map(Self)
    }

    /// Adds a descriptor; while it is readable, waits return `token`.
    pub fn add(&self, descriptor: &impl AsRawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, descriptor, token, libc::EPOLLIN)
    }

    /// From now on waits return the token of a descriptor also while it is writable, or no longer.
    pub fn watch_room(&self, descriptor: &impl AsRawFd, token: u64, is_wanted: bool) -> io::Result<()> {
        let events = if is_wanted { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN };
        self.control(libc::EPOLL_CTL_MOD, descriptor, token, events)
    }

    /// From now on waits return the token of a descriptor no longer, or again while it is readable.
    pub fn pause(&self, descriptor: &impl AsRawFd, token: u64, is_paused: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, descriptor, token, if is_paused { 0 } else { libc::EPOLLIN })
    }

    /// Takes a descriptor out again. One that is not in the set is not an error.
    pub fn remove(&self, descriptor: &impl AsRawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, descriptor, 0, 0);
    }

    /// Waits until a descriptor is readable, and no longer than `timeout`. Returns the tokens of those that
    /// are.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<u64>> {
        // Rounded up: a wait that ends too early would be done again and again.
        let milliseconds =
            timeout.map_or(-1, |timeout| timeout.as_micros().div_ceil(1000).min(1 << 30) as libc::c_int);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // SAFETY: writes as many events as it is given space for, at most.
        let count = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), EVENTS_MAX as libc::c_int, milliseconds)
        };
        match check(count) {
            Ok(count) => {
                Ok(events.iter().take(count.cast_unsigned() as usize).map(|event| event.u64).collect())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn control(
        &self,
        what: libc::c_int,
        descriptor: &impl AsRawFd,
        token: u64,
        events: libc::c_int,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: token };
        // SAFETY: reads the event.
        let result =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, descriptor.as_raw_fd(), &raw mut event) };
        check(result).map(|_| ())
    }
}

/// Ends the wait of a [`Poll`] of this process.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A waker that has not been used.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes integers; the descriptor is new.
        unsafe { new_descriptor(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }.map(Self)
    }

    /// Makes it readable.
    pub fn wake(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes. The call fails only while the counter is full, and readable.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Makes it unreadable.
    pub fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes. The call fails only while the counter is zero.
        let _ = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// The descriptor that a [`Poll`] waits for.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.0
    }

    /// Its number, for event loops of the program.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}
