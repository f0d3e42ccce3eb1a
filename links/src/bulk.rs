//! Large memory: the kernel takes some 60 µs to map a MiB of pages, and 80 µs to free one. A thread of its
//! own does that, so that the thread that serves links does not stand still meanwhile.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use estafette_sync::essential::essential;
use estafette_sync::per_process;
use estafette_sync::sync::{Condvar, Mutex};

use crate::PeerSegment;
use crate::threads;

/// Bytes that are mapped or freed at once. More are left to the thread.
pub(crate) const PORTION: usize = 16 << 20;

per_process! {
    static QUEUE: Queue = Queue::new();
}

struct Queue {
    state: Mutex<QueueState>,
    /// There is work, or a release is over.
    changed: Condvar,
}

struct QueueState {
    /// The hub of the process runs. Without links a process has no thread for them.
    is_enabled: bool,
    has_thread: bool,
    releases: VecDeque<Box<dyn Send>>,
    /// Releases that were ever left to the thread, and those that are over.
    left: u64,
    over: u64,
    /// Segments with the number of bytes that are mapped.
    mapped: VecDeque<(Weak<PeerSegment>, usize)>,
}

impl Queue {
    estafette_sync::const_fn! {
        fn new() -> Self {
            let state = QueueState {
                is_enabled: false,
                has_thread: false,
                releases: VecDeque::new(),
                left: 0,
                over: 0,
                mapped: VecDeque::new(),
            };
            Self { state: Mutex::new(state), changed: Condvar::new() }
        }
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(released) = state.releases.pop_front() {
                drop(state);
                drop(released);
                state = self.state.lock();
                state.over += 1;
                self.changed.notify_all();
            } else if let Some((segment, start)) = state.mapped.pop_front() {
                drop(state);
                // What was released meanwhile needs no pages.
                let next = segment.upgrade().and_then(|segment| segment.populate_from(start));
                state = self.state.lock();
                // Segments take turns.
                state.mapped.extend(next.map(|next| (segment, next)));
            } else {
                state = self.changed.wait(state);
            }
        }
    }
}

impl QueueState {
    /// True if there is a thread for more work.
    fn start(&mut self) -> bool {
        if self.is_enabled && !self.has_thread {
            let queue = &*QUEUE;
            let started =
                threads::start("estafette-memory", || essential("the thread of memory", || queue.run()));
            self.has_thread = started.is_ok();
        }
        self.has_thread
    }
}

/// The process has links from now on.
pub(crate) fn enable() {
    QUEUE.state.lock().is_enabled = true;
}

/// Maps the pages of a segment, so that their first use is no fault: the first portion now, the others soon.
pub(crate) fn populate(segment: &Arc<PeerSegment>) {
    let Some(next) = segment.populate_from(0) else { return };
    let mut state = QUEUE.state.lock();
    if state.start() {
        state.mapped.push_back((Arc::downgrade(segment), next));
        QUEUE.changed.notify_all();
    }
}

/// Waits until the memory is free that the process has released before this call.
pub(crate) fn finish_releases() {
    let mut state = QUEUE.state.lock();
    let left = state.left;
    while state.over < left {
        state = QUEUE.changed.wait(state);
    }
}

/// What ends with memory of so many bytes. The drop of much is left to the thread.
#[derive(Debug)]
pub(crate) struct Bulk<T: Send + 'static> {
    value: ManuallyDrop<T>,
    bytes: usize,
}

impl<T: Send + 'static> Bulk<T> {
    pub(crate) fn new(value: T, bytes: usize) -> Self {
        Self { value: ManuallyDrop::new(value), bytes }
    }
}

impl<T: Send + 'static> Deref for Bulk<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Send + 'static> Drop for Bulk<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        if self.bytes <= PORTION {
            return;
        }
        let mut state = QUEUE.state.lock();
        if state.start() {
            state.releases.push_back(Box::new(value));
            state.left += 1;
            QUEUE.changed.notify_all();
        } else {
            drop(state);
            drop(value);
        }
    }
}

#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::mpsc;

    use super::*;
    use crate::Segment;
    use crate::tests::{door, pair, until};

    /// Its drop waits for a message, and sends the name of the thread.
    struct Slow(mpsc::Receiver<()>, mpsc::Sender<Option<String>>);

    impl Drop for Slow {
        fn drop(&mut self) {
            // A test that has failed is gone.
            let _ = self.0.recv();
            let _ = self.1.send(std::thread::current().name().map(str::to_owned));
        }
    }

    fn is_mapped(address: usize) -> bool {
        let mut entry = [0; 8];
        let pages = std::fs::File::open("/proc/self/pagemap").expect("Linux");
        pages.read_exact_at(&mut entry, (address / 4096 * 8) as u64).expect("an entry");
        entry[7] & 0x80 != 0
    }

    #[test]
    fn large_memory_is_mapped_and_released_on_a_thread_of_its_own() {
        let (door, _, _alone) = door();
        let (near, far) = pair(&door);
        let bytes = 4 * PORTION;
        let segment = Segment::new(bytes).expect("memory");
        let ((go, gate), (ended, end)) = (mpsc::channel(), mpsc::channel());
        drop(Bulk::new(Slow(gate, ended), bytes));
        let number = near.show(&segment).expect("there is room");
        let seen = far.segment(number).expect("it is shown").host().expect("of the host");
        let start = seen.start().as_ptr().addr();
        assert!(is_mapped(start) && !is_mapped(start + bytes - 1), "the thread has not come to it");
        go.send(()).expect("the thread waits");
        assert_eq!(end.recv().expect("it is dropped").as_deref(), Some("estafette-memory"));
        until("all of it is mapped", || is_mapped(start + bytes - 1));
        drop((segment, seen));
        until("the peer has released it", || far.segment(number).is_err());
        until("it is no longer mapped", || !is_mapped(start));
    }
}
