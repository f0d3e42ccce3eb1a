//! Unix sockets that keep messages apart (`SOCK_SEQPACKET`). A name is abstract: it is in no file system, and
//! ends with its socket.
//!
//! No call here blocks. Each says so itself, so that nothing depends on the flags of a descriptor.

use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;

use super::{check, new_descriptor, open_process, too_many_open_files};

/// A message of a socket.
pub type Message = (usize, io::Result<Vec<OwnedFd>>);

/// A listening or a connected socket.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// The most descriptors that come with one message. The kernel drops what is beyond.
const DESCRIPTORS_MAX: usize = 4;
/// Space for them in 64-bit words, so that it is aligned.
const CONTROL_WORDS: usize = 8;
/// Connections that wait to be accepted: as many as the kernel allows. One more is refused, however soon the
/// process goes on.
const BACKLOG: libc::c_int = libc::c_int::MAX;

impl Socket {
    fn new() -> io::Result<Self> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes integers; the descriptor is new.
        unsafe { new_descriptor(libc::socket(libc::AF_UNIX, kind, 0)) }.map(Self)
    }

    /// A socket of a descriptor, which need not be one.
    #[cfg(test)]
    pub fn of(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Listens at an abstract name.
    pub fn listen(name: &[u8]) -> io::Result<Self> {
        let socket = Self::new()?;
        let (address, length) = abstract_address(name)?;
        // SAFETY: the address is valid for the length.
        check(unsafe { libc::bind(socket.raw(), (&raw const address).cast(), length) })?;
        // SAFETY: takes integers.
        check(unsafe { libc::listen(socket.raw(), BACKLOG) })?;
        Ok(socket)
    }

    /// Connects to the socket that listens at an abstract name.
    pub fn connect(name: &[u8]) -> io::Result<Self> {
        let socket = Self::new()?;
        let (address, length) = abstract_address(name)?;
        // SAFETY: the address is valid for the length.
        check(unsafe { libc::connect(socket.raw(), (&raw const address).cast(), length) })?;
        Ok(socket)
    }

    /// The next connection, if there is one.
    pub fn accept(&self) -> io::Result<Option<Self>> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no address is asked for; the descriptor is new.
        match unsafe { new_descriptor(libc::accept4(self.raw(), null_mut(), null_mut(), flags)) } {
            Ok(descriptor) => Ok(Some(Self(descriptor))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The process at the other end when it connected or began to listen, as this process numbers it, and its
    /// user.
    pub fn peer(&self) -> io::Result<(u32, u32)> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: writes at most the length that it is given.
        check(unsafe {
            libc::getsockopt(self.raw(), level, option, (&raw mut peer).cast(), &raw mut length)
        })?;
        Ok((peer.pid.cast_unsigned(), peer.uid))
    }

    /// Takes no more connections, also where another process has this socket.
    pub fn shut_down(&self) {
        // SAFETY: takes integers.
        let _ = unsafe { libc::shutdown(self.raw(), libc::SHUT_RDWR) };
    }

    /// The process of [`peer`](Self::peer) as a descriptor. A kernel before Linux 6.5 goes by its number,
    /// which another process may have by now. [`io::ErrorKind::NotFound`]: it has ended.
    pub fn peer_process(&self, process: u32) -> io::Result<OwnedFd> {
        let mut peer: RawFd = -1;
        let mut length = size_of::<RawFd>() as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERPIDFD);
        // SAFETY: writes at most the length that it is given.
        let asked = check(unsafe {
            libc::getsockopt(self.raw(), level, option, (&raw mut peer).cast(), &raw mut length)
        });
        match asked.map_err(|error| (error.raw_os_error(), error)) {
            // SAFETY: the descriptor is new.
            Ok(_) => Ok(unsafe { OwnedFd::from_raw_fd(peer) }),
            Err((Some(libc::ENOPROTOOPT), _)) => open_process(process),
            // The error that says so depends on the version of the kernel.
            Err((Some(libc::ESRCH | libc::EINVAL), _)) => Err(io::ErrorKind::NotFound.into()),
            Err((_, error)) => Err(error),
        }
    }

    /// Sends a message with descriptors.
    pub fn send(&self, bytes: &[u8], descriptors: &[&OwnedFd]) -> io::Result<()> {
        assert!(descriptors.len() <= DESCRIPTORS_MAX, "as many as fit");
        let mut control = [0_u64; CONTROL_WORDS];
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut message = message(&mut part);
        if !descriptors.is_empty() {
            let length = descriptors.len() * size_of::<RawFd>();
            message.msg_control = control.as_mut_ptr().cast();
            // SAFETY: only computes.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(length as libc::c_uint) } as _;
            // SAFETY: the space above is aligned and large enough for a header and the descriptors.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(length as libc::c_uint) as _;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for (at, descriptor) in descriptors.iter().enumerate() {
                    data.add(at).write_unaligned(descriptor.as_raw_fd());
                }
            }
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message points to what lives until the end of this function.
        check(unsafe { libc::sendmsg(self.raw(), &raw const message, flags) }).map(|_| ())
    }

    /// The next message: its length, and the descriptors in it, or why this process did not get them. `None`
    /// if there is none; a length of zero is the end.
    pub fn receive(&self, bytes: &mut [u8]) -> io::Result<Option<Message>> {
        let mut control = [0_u64; CONTROL_WORDS];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut message = message(&mut part);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the message points to what lives until the end of this function.
        let mut receive = || check(unsafe { libc::recvmsg(self.raw(), &raw mut message, flags) });
        let received = match receive() {
            // The other end was closed before it had read all. The kernel says so once, before what that end
            // had sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => receive(),
            received => received,
        };
        let length = match received {
            Ok(length) => length.cast_unsigned(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_cut = message.msg_flags & libc::MSG_CTRUNC != 0;
        let mut descriptors = Vec::new();
        // SAFETY: the kernel has filled in whole headers, with descriptors that are new and belong to nothing
        // else.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&raw const message);
            while let Some(its) = header.as_ref() {
                if its.cmsg_level == libc::SOL_SOCKET && its.cmsg_type == libc::SCM_RIGHTS {
                    let data = libc::CMSG_DATA(header).cast::<RawFd>();
                    let count = (its.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                    descriptors
                        .extend((0..count).map(|at| OwnedFd::from_raw_fd(data.add(at).read_unaligned())));
                }
                header = libc::CMSG_NXTHDR(&raw const message, header);
            }
        }
        // There is space for more of them, so the kernel has dropped those that this process has no room for.
        let is_short = is_cut && descriptors.len() <= DESCRIPTORS_MAX;
        Ok(Some((length, if is_short { Err(too_many_open_files()) } else { Ok(descriptors) })))
    }

    /// The descriptor that [`Poll`](super::Poll) waits for.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.0
    }

    fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A message of one part.
fn message(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: all zero is an empty message.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

/// A name in the abstract namespace begins with a zero byte.
fn abstract_address(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all zero is a value of this struct.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let places = address.sun_path.get_mut(1..=name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    for (place, byte) in places.iter_mut().zip(name) {
        *place = byte.cast_signed() as libc::c_char;
    }
    Ok((address, (offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()) as libc::socklen_t))
}

#[cfg(test)]
mod tests {
    use super::super::may_be_process;
    use super::*;

    #[test]
    fn an_end_that_had_not_read_all_takes_nothing_of_what_it_had_sent() {
        let name = format!("estafette-test-{}", std::process::id());
        let listening = Socket::listen(name.as_bytes()).expect("a name of its own");
        let ends = Socket::connect(name.as_bytes()).expect("it listens");
        let stays = listening.accept().expect("it listens").expect("a connection");
        stays.send(b"unread", &[]).expect("sent");
        ends.send(b"one", &[]).expect("sent");
        ends.send(b"two", &[&listening.0]).expect("sent");
        drop(ends);
        let received = || {
            let mut bytes = [0; 8];
            let (length, descriptors) = stays.receive(&mut bytes).expect("a connection").expect("a message");
            (bytes[..length].to_vec(), descriptors.expect("descriptors").len())
        };
        assert_eq!(received(), (b"one".to_vec(), 0));
        assert_eq!(received(), (b"two".to_vec(), 1));
        assert_eq!(received(), (Vec::new(), 0));
    }

    #[test]
    fn the_process_at_the_other_end_is_not_found_by_its_number() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux has a version");
        let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
        if (numbers.next(), numbers.next()) < (Some(6), Some(5)) {
            return;
        }
        let name = format!("estafette-test-peer-{}", std::process::id());
        let _listening = Socket::listen(name.as_bytes()).expect("a name of its own");
        let socket = Socket::connect(name.as_bytes()).expect("it listens");
        // The number is that of another process.
        let peer = socket.peer_process(1).expect("this process lives");
        assert!(may_be_process(&peer, std::process::id()).expect("the system says so"));
        assert!(!may_be_process(&peer, 1).expect("the system says so"));
    }
}
