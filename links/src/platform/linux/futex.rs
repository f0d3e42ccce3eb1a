//! Robust futexes: words that the kernel marks when the thread that holds them ends, before it frees the
//! memory of the process.

use std::io;
use std::ptr::{NonNull, null, null_mut};

use estafette_sync::platform::clock::monotonic_ns;
use estafette_sync::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use estafette_sync::time::{Duration, Instant};

use super::{Memory, check};

/// The kernel wakes a waiter when it marks the word.
const WAITERS: u32 = 0x8000_0000;
/// The kernel's mark.
const OWNER_DIED: u32 = 0x4000_0000;
/// From the node of a robust futex to its word.
const WORD_FROM_NODE: libc::c_long = -8;
/// `FUTEX2_SIZE_U32`.
const SIZE_32: u32 = 2;

/// As the kernel declares it, `struct robust_list`.
#[derive(Debug)]
#[repr(C)]
struct Node {
    next: AtomicPtr<Node>,
}

/// As the kernel declares it, `struct robust_list_head`.
#[derive(Debug)]
#[repr(C)]
struct Head {
    first: Node,
    word_from_node: libc::c_long,
    pending: *mut Node,
}

/// The words that one thread holds. The kernel reads the list when the thread ends, from the word that was
/// held last, and 2,048 of them at most (`ROBUST_LIST_LIMIT`). Other threads of the process may change it,
/// one at a time; each change is one store, so that the list is whole at every instruction.
///
/// The nodes are beside the words. A peer can read them, and so learns an address of this process; it cannot
/// change them.
#[derive(Debug)]
pub struct RobustList {
    head: NonNull<Head>,
    thread: u32,
}

// SAFETY: the head is never freed, and its pointers are atomic.
unsafe impl Send for RobustList {}
// SAFETY: as above; callers change the list one at a time.
unsafe impl Sync for RobustList {}

impl RobustList {
    /// An empty list of the calling thread, in place of the C library's: this thread takes no robust mutex.
    /// The head is leaked, as the kernel reads it when the thread ends.
    pub fn of_this_thread() -> io::Result<Self> {
        let head = Box::new(Head {
            first: Node { next: AtomicPtr::new(null_mut()) },
            word_from_node: WORD_FROM_NODE,
            pending: null_mut(),
        });
        let head = NonNull::from(Box::leak(head));
        // SAFETY: just leaked.
        let first = unsafe { &(*head.as_ptr()).first };
        // An empty list is a ring of its head.
        first.next.store((&raw const *first).cast_mut(), Ordering::Relaxed);
        // SAFETY: the head lives for ever.
        check(unsafe { libc::syscall(libc::SYS_set_robust_list, head.as_ptr(), size_of::<Head>()) })?;
        // SAFETY: cannot fail.
        let thread = unsafe { libc::gettid() }.cast_unsigned();
        Ok(Self { head, thread })
    }

    /// Holds the half word at `offset` of `memory`, whose node is behind it.
    pub fn hold(&self, memory: &Memory, offset: usize) {
        let node = self.node(memory, offset);
        // SAFETY: the node is in the memory, which is the caller's; the head lives for ever.
        let (node, head) = unsafe { (&*node, &(*self.head.as_ptr()).first) };
        node.next.store(head.next.load(Ordering::Relaxed), Ordering::Relaxed);
        head.next.store((&raw const *node).cast_mut(), Ordering::Release);
        memory.half_word(offset).store(self.thread | WAITERS, Ordering::Release);
    }

    /// Releases what [`hold`](Self::hold) holds.
    pub fn release(&self, memory: &Memory, offset: usize) {
        memory.half_word(offset).store(0, Ordering::Release);
        let node = self.node(memory, offset);
        // SAFETY: the list is a ring of nodes in memory that is still mapped: memory leaves the list before
        // it is unmapped.
        unsafe {
            let mut before = &raw const (*self.head.as_ptr()).first;
            let end = before;
            loop {
                let next = (*before).next.load(Ordering::Relaxed);
                if std::ptr::eq(next, node) {
                    (*before).next.store((*node).next.load(Ordering::Relaxed), Ordering::Release);
                    return;
                }
                if std::ptr::eq(next, end) {
                    return;
                }
                before = next;
            }
        }
    }

    fn node(&self, memory: &Memory, offset: usize) -> *mut Node {
        let at = offset + WORD_FROM_NODE.unsigned_abs() as usize;
        assert!(at + size_of::<Node>() <= memory.bytes(), "inside of the memory");
        memory.start().as_ptr().wrapping_add(at).cast()
    }
}

/// True if the kernel has marked a word.
pub fn owner_died(word: u32) -> bool {
    word & OWNER_DIED != 0
}

/// As the kernel declares it, `struct futex_waitv`.
#[repr(C)]
struct Wait {
    expected: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// Waits until one of the half words is woken, or is not what it is expected to be, or until `deadline`: then
/// false. Other ends of the wait are possible.
///
/// # Errors
/// The kernel has no such wait (before Linux 5.16), or a sandbox refuses it.
pub fn wait_for_any(words: &[(&AtomicU32, u32)], deadline: Option<Instant>) -> io::Result<bool> {
    let waits: Vec<Wait> = words
        .iter()
        .map(|(word, expected)| Wait {
            expected: u64::from(*expected),
            address: word.as_ptr().addr() as u64,
            flags: SIZE_32,
            reserved: 0,
        })
        .collect();
    let until = deadline.map(|deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        let until = Duration::from_nanos(monotonic_ns()).saturating_add(left);
        libc::timespec {
            tv_sec: until.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: until.subsec_nanos().into(),
        }
    });
    let until = until.as_ref().map_or(null(), |until| &raw const *until);
    // SAFETY: the kernel reads the array, the time and the words, whose mappings the caller keeps.
    let result = unsafe {
        libc::syscall(libc::SYS_futex_waitv, waits.as_ptr(), waits.len(), 0, until, libc::CLOCK_MONOTONIC)
    };
    match check(result) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Wakes the threads that wait for a half word, in all processes.
pub fn wake_all(word: &AtomicU32) {
    // SAFETY: only the address is used.
    let _ = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
