//! Signals that ask for something: their handler only counts.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers of signals are below it.
const NUMBERS: usize = 128;

#[cfg(not(unix))]
pub use self::unknown::*;
/// The numbers of signals that programs are free to use, and of the one that services take for "look again".
#[cfg(unix)]
pub use libc::{SIGHUP as HUP, SIGUSR1 as USR1, SIGUSR2 as USR2};

#[cfg(not(unix))]
mod unknown {
    pub const HUP: i32 = 0;
    pub const USR1: i32 = 0;
    pub const USR2: i32 = 0;
}

static COUNTS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];

/// The number of signals of this kind that have come since [`count`].
pub fn times(number: i32) -> u32 {
    let count = usize::try_from(number).ok().and_then(|number| COUNTS.get(number));
    count.map_or(0, |count| count.load(Ordering::Relaxed))
}

/// Counts signals of this number from now on, until the process ends: a signal that came too late would end
/// the process otherwise.
///
/// # Errors
/// `InvalidInput` for a number that is no signal's, that a fault raises, or that no program handles;
/// `AlreadyExists` where the program handles or ignores the signal; those of the system.
#[cfg(unix)]
pub fn count(number: i32) -> io::Result<()> {
    extern "C" fn note(number: libc::c_int) {
        if let Some(count) = usize::try_from(number).ok().and_then(|number| COUNTS.get(number)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
    let faults =
        [libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS];
    let never_handled = [libc::SIGKILL, libc::SIGSTOP];
    if !(1..NUMBERS as i32).contains(&number) || faults.contains(&number) || never_handled.contains(&number) {
        let text = format!("{number} is the number of no signal that may be waited for");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let own = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: zero is a value of each field: no handler, no flags, no signals.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks for the action alone, which there is room for.
    if unsafe { libc::sigaction(number, std::ptr::null(), &raw mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if before.sa_sigaction == own {
        return Ok(());
    }
    if before.sa_sigaction != libc::SIG_DFL {
        let text = format!("the program has a handler of signal {number} already");
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = own;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler takes the number, adds to an atomic, and calls nothing.
    match unsafe { libc::sigaction(number, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// True if a process exists: a signal could be sent to it, or the system forbids that.
#[cfg(unix)]
pub fn reaches(process: u32) -> bool {
    let Ok(process) = i32::try_from(process) else { return false };
    // SAFETY: number 0 sends no signal.
    let is_there = unsafe { libc::kill(process, 0) } == 0;
    is_there || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Not known without signals.
#[cfg(not(unix))]
pub fn reaches(_process: u32) -> bool {
    true
}

/// Refuses: signals are not known here.
///
/// # Errors
/// `Unsupported`.
#[cfg(not(unix))]
pub fn count(_number: i32) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "signals are not known on this system"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_exists_is_reached() {
        assert!(reaches(std::process::id()) && !reaches(u32::MAX) && !reaches(i32::MAX as u32));
    }

    #[test]
    fn a_signal_is_counted_and_what_cannot_be_is_refused() {
        for refused in [0, -1, 4_000, libc::SIGSEGV, libc::SIGKILL] {
            let error = count(refused).expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{refused}");
            assert!(error.to_string().ends_with("no signal that may be waited for"), "{error}");
        }
        // SAFETY: a signal that is ignored has no handler to be called.
        unsafe { libc::signal(libc::SIGWINCH, libc::SIG_IGN) };
        assert_eq!(count(libc::SIGWINCH).map_err(|error| error.kind()), Err(io::ErrorKind::AlreadyExists));
        count(libc::SIGURG)
            .and_then(|()| count(libc::SIGURG))
            .expect("it has no handler before, and is counted then");
        // SAFETY: the handler is there. A signal that a thread sends to itself has come when the call
        // returns.
        unsafe { libc::raise(libc::SIGURG) };
        assert_eq!((times(libc::SIGURG), times(0), times(i32::MAX)), (1, 0, 0));
    }
}
