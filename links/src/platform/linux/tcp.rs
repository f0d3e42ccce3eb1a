//! TCP sockets of one process. A forked child closes its copies at once: with them a connection would outlast the process, and its peer
//! would not learn of its end.

use std::io;
use std::mem::size_of_val;
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};

use estafette_sync::process::at_fork;
use estafette_sync::sync::OnceLock;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use estafette_sync::time::{Duration, Instant};
use estafette_sync::{per_process, statics};

use super::{Poll, check, new_descriptor};

/// How long the kernel tries to reach a peer: 12 days, in milliseconds. Without a limit of its own a socket ends after a quarter of an hour.
const TRIES_MS: libc::c_int = 1 << 30;
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
            // SAFETY: takes an integer. The descriptor is of a socket whose owner is not in this process.
            unsafe { libc::close((64 * index + bit) as RawFd) };
        }
    }
}

/// A socket that forked children do not have. A fork between the call that makes it and [`CloseOnFork::new`] gives the child a copy.
#[derive(Debug)]
pub struct CloseOnFork<T: AsRawFd>(T);

impl<T: AsRawFd> CloseOnFork<T> {
    pub fn new(socket: T) -> Self {
        ARRANGED.get_or_init(|| at_fork(close_copies));
        if let Some((word, bit)) = place(&socket) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self(socket)
    }
}

fn place(socket: &impl AsRawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = socket.as_raw_fd() as usize;
    Some((OPEN.get(number / 64)?, 1 << (number % 64)))
}

impl<T: AsRawFd> Drop for CloseOnFork<T> {
    fn drop(&mut self) {
        // Before the number is given out again. A child that is forked from here on has a copy, so the connection is ended and not only closed.
        if let Some((word, bit)) = place(&self.0) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        // SAFETY: takes integers. One that is not connected is left as it is.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl<T: AsRawFd> Deref for CloseOnFork<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A connection to `address`, made within `timeout`.
pub fn connect(address: &SocketAddr, timeout: Duration) -> io::Result<CloseOnFork<TcpStream>> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes integers; the descriptor is new.
    let stream = CloseOnFork::new(TcpStream::from(unsafe { new_descriptor(libc::socket(family, kind, 0)) }?));
    let begin = |address: *const libc::sockaddr, length: usize| {
        // SAFETY: the caller passes an address of that length.
        check(unsafe { libc::connect(stream.as_raw_fd(), address, length as libc::socklen_t) })
    };
    let begun = match address {
        SocketAddr::V4(address) => {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            begin((&raw const address).cast(), size_of_val(&address))
        }
        SocketAddr::V6(address) => {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            begin((&raw const address).cast(), size_of_val(&address))
        }
    };
    match begun {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        begun => return begun.map(|_| stream),
    }
    let (poll, deadline) = (Poll::new()?, Instant::now() + timeout);
    poll.add(&*stream, 0)?;
    poll.watch_room(&*stream, 0, true)?;
    // A signal ends a wait.
    while poll.wait(Some(deadline.saturating_duration_since(Instant::now())))?.is_empty() {
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    stream.take_error()?.map_or(Ok(stream), Err)
}

/// Tries for as long as it may to reach the peer of `stream`, which says nothing more to a socket that has ended.
pub fn keep_trying(stream: &TcpStream) -> io::Result<()> {
    let (socket, limit) = (stream.as_raw_fd(), TRIES_MS);
    let (value, length) = ((&raw const limit).cast(), size_of_val(&limit) as libc::socklen_t);
    // SAFETY: reads the value.
    check(unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, value, length) })?;
    Ok(())
}
