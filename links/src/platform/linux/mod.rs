//! The form for Linux. See `platform`.
//!
//! | part | what it has |
//! |---|---|
//! | `available` | the memory that is available |
//! | `close_on_fork` | descriptors of one process, which forked children close |
//! | `futex` | robust futexes |
//! | `memory` | sealed shared memory |
//! | `poll` | waiting for descriptors |
//! | `socket` | unix sockets that keep messages apart (`SOCK_SEQPACKET`) |
//! | `tcp` | TCP sockets |

mod available;
mod close_on_fork;
mod futex;
mod memory;
mod poll;
mod socket;
#[cfg(feature = "nixl")]
mod tcp;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

pub use self::close_on_fork::CloseOnFork;
pub use self::futex::{RobustList, owner_died, wait_for_any, wake_all};
pub use self::memory::Memory;
pub use self::poll::{Poll, Waker};
pub use self::socket::Socket;
#[cfg(feature = "nixl")]
pub use self::tcp::{connect, keep_trying};

/// Something of the kernel's. It is closed on drop, and in programs that this process becomes.
pub type Descriptor = OwnedFd;

/// This process as a descriptor, which is readable once each of its threads has ended.
pub fn own_process() -> io::Result<Descriptor> {
    open_process(std::process::id())
}

/// A process as such a descriptor. [`io::ErrorKind::NotFound`]: there is none with this number.
fn open_process(process: u32) -> io::Result<Descriptor> {
    // SAFETY: takes two integers; the descriptor is new.
    unsafe { new_descriptor(libc::syscall(libc::SYS_pidfd_open, process, 0)) }.map_err(|error| {
        if error.raw_os_error() == Some(libc::ESRCH) { io::ErrorKind::NotFound.into() } else { error }
    })
}

/// True if a descriptor may be that of process `process`, or of one that has ended. Of something else the end
/// would never come, or too early. True where the system does not say; an error where this process lacks what
/// it takes to ask.
pub fn may_be_process(descriptor: &Descriptor, process: u32) -> io::Result<bool> {
    // As the files of processes number it, which may be those of another namespace.
    let number = |descriptor: &Descriptor| -> io::Result<Option<String>> {
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))?;
        Ok(about.lines().find_map(|line| line.strip_prefix("Pid:")).map(|number| number.trim().to_owned()))
    };
    let known = open_process(process).and_then(|known| number(&known));
    // After that: a process that lives now has lived then.
    match (number(descriptor), known) {
        (Err(error), _) if is_shortage(&error) => Err(error),
        (Err(_), _) => Ok(true),
        (Ok(None), _) => Ok(false),
        (Ok(Some(given)), _) if given == "-1" || process == 0 => Ok(true),
        (Ok(_), Err(error)) if is_shortage(&error) => Err(error),
        (Ok(given), known) => Ok(known.is_ok_and(|known| known == given)),
    }
}

/// True if a call has failed for want of something that this process or machine has too little of.
pub fn is_shortage(error: &io::Error) -> bool {
    let short = [libc::ENOMEM, libc::EMFILE, libc::ENFILE, libc::EAGAIN, libc::ENOBUFS, libc::EFBIG];
    let is_short = error.raw_os_error().is_some_and(|code| short.contains(&code));
    // A failed allocation of the standard library has no number.
    is_short || error.kind() == io::ErrorKind::OutOfMemory
}

/// Fails while this process or machine has no room for `count` more descriptors.
pub fn check_room(count: usize) -> io::Result<()> {
    (0..count).map(|_| Waker::new()).collect::<io::Result<Vec<_>>>().map(drop)
}

/// The error that this process has as many descriptors as it may.
pub fn too_many_open_files() -> io::Error {
    io::Error::from_raw_os_error(libc::EMFILE)
}

/// Releases what a C library has allocated and given away.
///
/// # Safety
/// It was made by `malloc`, and nothing uses it any more.
#[cfg(feature = "nixl")]
pub unsafe fn free(memory: *mut std::ffi::c_void) {
    // SAFETY: by contract of this function.
    unsafe { libc::free(memory) };
}

/// Ends this process where it is, or stops it until another process lets it go on.
#[cfg(any(test, feature = "steps"))]
pub fn end_or_stop(only_stops: bool) {
    let signal = if only_stops { libc::SIGSTOP } else { libc::SIGKILL };
    // SAFETY: a signal to this process.
    unsafe { libc::kill(libc::getpid(), signal) };
    if !only_stops {
        loop {
            std::thread::park();
        }
    }
}

/// The user that this process acts for.
pub fn own_user() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() }
}

/// A number of the boot of the machine and of the network namespace of the calling thread, which names of
/// sockets are of. `None` where the system does not say.
pub fn place() -> Option<u64> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.replace('-', "");
    let boot = u128::from_str_radix(boot.trim(), 16).ok()?;
    let space = std::fs::metadata("/proc/thread-self/ns/net").ok()?.ino();
    // Numbers of namespaces are small, and differ in the lowest bits.
    Some((boot as u64 ^ (boot >> 64) as u64).rotate_left(1) ^ space)
}

/// Random bytes that other processes cannot guess.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: writes at most the length that it is given. So few bytes come whole.
    check(unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) })?;
    Ok(bytes)
}

/// The descriptor that a call has returned, unless it has failed.
///
/// # Safety
/// It is new, and nothing else has it.
unsafe fn new_descriptor(result: impl Into<i64>) -> io::Result<OwnedFd> {
    // SAFETY: by contract; descriptors fit in an `int`.
    check(result.into()).map(|number| unsafe { OwnedFd::from_raw_fd(number as RawFd) })
}

/// The error of the last call, if it returned a negative number.
fn check<T: PartialOrd + Default>(result: T) -> io::Result<T> {
    if result < T::default() { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_be_itself_at_each_moment_of_its_end() {
        for _ in 0..100 {
            let mut child = std::process::Command::new("true").spawn().expect("a process");
            let process = child.id();
            let end = open_process(process).expect("it is not waited for");
            let is_itself = || may_be_process(&end, process).expect("the system says so");
            std::thread::scope(|scope| {
                let ended = scope.spawn(|| child.wait().expect("a child"));
                while !ended.is_finished() {
                    assert!(is_itself());
                }
            });
            assert!(is_itself());
        }
    }
}
