//! Sealed shared memory.

use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use estafette_sync::process::{Generation, count_leak};
use estafette_sync::sync::atomic::{AtomicU32, AtomicU64};

use super::available::available;
use super::{CloseOnFork, check, new_descriptor};

/// A size that the machine may not have. To ask that of the system costs a hundredth of what it takes to make
/// as much memory.
const LARGE: usize = 16 << 20;
/// The size of a large page.
const STEP: libc::off_t = 2 << 20;
/// The size of a small page.
const STEP_MIN: libc::off_t = 4096;
/// Without these a peer could shrink the memory under a mapping of it, whose use would be a fault.
const FIXED_SIZE: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// A mapping of shared memory: writable for its owner, read-only in every other process.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    /// A forked child does not have its parent's writable mappings.
    generation: Generation,
    is_writable: bool,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Memory {}
// SAFETY: all that is given out is a pointer, and atomics.
unsafe impl Sync for Memory {}

impl Memory {
    /// New memory, all zero, which peers can write only if that is asked for, with pages behind the first
    /// `backed` bytes: [`populate`](Self::populate) makes others. The descriptor is for peers.
    pub fn create(
        name: &str,
        bytes: usize,
        backed: usize,
        is_writable_for_peers: bool,
    ) -> io::Result<(Self, CloseOnFork<OwnedFd>)> {
        let name = CString::new(name)?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with a zero byte, and is copied; the descriptor is new.
        let descriptor = unsafe { new_descriptor(libc::memfd_create(name.as_ptr(), flags)) }?;
        // Before the pages are there, which may take seconds.
        let descriptor = CloseOnFork::new(descriptor);
        let length = |bytes| libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput);
        if backed >= LARGE && available().is_some_and(|available| backed as u64 > available) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        check_file_limit(bytes as u64)?;
        allocate(&descriptor, length(backed)?)?;
        if backed < bytes {
            // SAFETY: takes integers.
            check(unsafe { libc::ftruncate(descriptor.as_raw_fd(), length(bytes)?) })?;
        }
        let memory = Self::map(&descriptor, bytes, true)?;
        // From now on no process can map sealed memory for writing; the mapping above stays writable.
        let seal = if is_writable_for_peers { 0 } else { libc::F_SEAL_FUTURE_WRITE };
        let seals = FIXED_SIZE | seal | libc::F_SEAL_SEAL;
        // SAFETY: takes integers.
        check(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
        Ok((memory, descriptor))
    }

    /// Maps memory of another process, for reading or for writing. It must be sealed against a change of its
    /// size, and have `bytes` bytes and the pages of `backed` bytes: its readers would have to make others.
    pub fn open(descriptor: &OwnedFd, bytes: usize, backed: usize, is_writable: bool) -> io::Result<Self> {
        let invalid = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        // SAFETY: takes integers. Only memory that can be sealed has seals.
        let seals = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & FIXED_SIZE != FIXED_SIZE {
            return invalid("the descriptor is not one of sealed memory");
        }
        // SAFETY: all zero is a value of this struct, which the call fills in.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the struct is valid for writing.
        check(unsafe { libc::fstat(descriptor.as_raw_fd(), &raw mut status) })?;
        if usize::try_from(status.st_size) != Ok(bytes) {
            return invalid("the memory has another size than was said");
        }
        // In units of 512 bytes, whatever the size of a block.
        if (status.st_blocks as usize) < backed.div_ceil(512) {
            return invalid("the memory is not all there");
        }
        Self::map(descriptor, bytes, is_writable)
    }

    fn map(descriptor: &OwnedFd, bytes: usize, is_writable: bool) -> io::Result<Self> {
        let descriptor = descriptor.as_raw_fd();
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start =
            unsafe { libc::mmap(null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, descriptor, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let memory = Self { start, bytes, generation: Generation::current(), is_writable };
        if is_writable {
            let (mapping, protection) = (start.as_ptr().cast(), libc::PROT_READ | libc::PROT_WRITE);
            // Else a forked child could write what others take for words of its parent, and would keep memory
            // that all others have released. Another thread may fork between any two of these calls. SAFETY:
            // the mapping was just made with this length.
            check(unsafe { libc::madvise(mapping, bytes, libc::MADV_DONTFORK) })?;
            // SAFETY: as above.
            check(unsafe { libc::mprotect(mapping, bytes, protection) })?;
        }
        Ok(memory)
    }

    /// Makes and maps the pages of a range, given in bytes, so that their first use is no fault. False where
    /// the system lacks memory. A kernel before Linux 5.14 leaves that to the first use.
    pub fn populate(&self, range: Range<usize>) -> bool {
        assert!(range.end <= self.bytes, "inside of the memory");
        let advice = if self.is_writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        let start = self.start.as_ptr().wrapping_add(range.start);
        // SAFETY: a part of the mapping, whose content stays as it is.
        match check(unsafe { libc::madvise(start.cast(), range.len(), advice) }) {
            Ok(_) => true,
            Err(error) => !matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EFAULT)),
        }
    }

    /// Its first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory as words. A forked child may not use those of its parent.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: pages are aligned, words of any content are valid, and other processes change them by
        // atomic stores. Of memory that is mapped read-only the callers only load.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / size_of::<u64>()) }
    }

    /// The half word at a byte offset, which no code uses as part of a word.
    pub fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes, "inside of the memory");
        // SAFETY: as for words; in range by the assertion.
        unsafe { &*self.start.as_ptr().add(offset).cast() }
    }
}

/// Such memory is a file for the kernel, which ends a process by SIGXFSZ that makes a larger file than it
/// may.
fn check_file_limit(bytes: u64) -> io::Result<()> {
    // SAFETY: all zero is a value of this struct.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is valid for writing.
    check(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) })?;
    if bytes > limit.rlim_cur { Err(io::Error::from_raw_os_error(libc::EFBIG)) } else { Ok(()) }
}

/// Takes pages for all of the memory, so that a shortage is an error here, and not a fault at the first use.
/// In older kernels a signal interrupts the call, which then undoes what it has done. So each call makes
/// little, and less after a signal.
fn allocate(descriptor: &OwnedFd, length: libc::off_t) -> io::Result<()> {
    let (mut start, mut step) = (0, STEP);
    while start < length {
        let bytes = step.min(length - start);
        // SAFETY: takes integers.
        match check(unsafe { libc::fallocate(descriptor.as_raw_fd(), 0, start, bytes) }) {
            Ok(_) => start += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => step = STEP_MIN.max(step / 2),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.is_writable && !self.generation.is_current() {
            // By now the child may have something else there.
            return count_leak();
        }
        // SAFETY: a whole mapping, made by this process or inherited, and not used any more.
        let unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(unmapped, 0, "a whole mapping can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_gets_signals_has_memory_all_the_same() {
        extern "C" fn handler(_signal: libc::c_int) {}
        // SAFETY: all zero is a value of this struct.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as extern "C" fn(libc::c_int) as usize;
        // SAFETY: nothing else uses the signal, and the handler does nothing.
        assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, null_mut()) }, 0);
        // SAFETY: always.
        let (thread, is_over) = (unsafe { libc::pthread_self() }, AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // SAFETY: that thread waits for this one.
                    unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            let memory = Memory::create("memory", 128 << 20, 128 << 20, false);
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(memory.expect("memory").0.bytes(), 128 << 20);
        });
    }
}
