//! TCP sockets.

use std::io;
use std::mem::size_of_val;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use estafette_sync::time::{Duration, Instant};

use super::{CloseOnFork, Poll, check, new_descriptor};

/// The time that the kernel tries to reach a peer: 12 days, in milliseconds. Without a limit of its own a
/// socket ends after a quarter of an hour.
const TRIES_MS: libc::c_int = 1 << 30;

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

/// Tries for as long as it may to reach the peer of `stream`, which says nothing more to a socket that has
/// ended.
pub fn keep_trying(stream: &TcpStream) -> io::Result<()> {
    let (socket, limit) = (stream.as_raw_fd(), TRIES_MS);
    let (value, length) = ((&raw const limit).cast(), size_of_val(&limit) as libc::socklen_t);
    // SAFETY: reads the value.
    check(unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, value, length) })?;
    Ok(())
}
