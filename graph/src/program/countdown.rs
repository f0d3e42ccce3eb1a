//! One run of a program by several threads.
//!
//! # Protocol
//!
//! Each operation has a counter of predecessors that have not ended. The thread that ends an operation counts
//! its successors down; those that reach zero may run. The thread keeps the first for itself and *lists* the
//! others.
//!
//! The list is an array with one slot per operation, since no operation is listed twice in a run: no slot is
//! ever reused, so there is no ABA. `tail` counts the slots that are reserved, `head` those that are taken.
//!
//! 1. To list an operation: add one to `tail`, which reserves a slot, and store the operation there
//!    (release).
//! 2. To take an operation: load the slot at `head` (acquire). If it is filled, advance `head` by
//!    compare-and-swap, and retry if another thread did. If it is empty: fence, load once more, and only then
//!    give up.
//!
//! *A listed operation is always taken.* Say P has listed an operation behind a slot that was reserved by Q
//! and is still empty. P finds that slot empty and gives up. Q fills it later, and takes until it gives up
//! itself, so it must not find P's slot empty. P: store its slot, fence, load Q's slot. Q: store its slot,
//! fence, load P's slot. Both fences are those of giving up, and sequentially consistent, so at least one of
//! the two loads sees the other's store. The same holds along a row of reserved slots.
//!
//! Counters, the slots' release and acquire, and `left` publish what the operations themselves have written:
//! every predecessor of an operation happens before it, and all operations before the thread that accounts
//! for the last.

use estafette_sync::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use super::order::ProgramOrder;

/// The state of one run; can be used again for the next. A thread [`take`](Self::take)s an operation, runs
/// it, reports that it has [`ended`](Self::ended), and runs the operation that this returns, until there is
/// nothing to take. Then it [`account`](Self::account)s for the operations that it has run. No thread ever
/// waits.
pub struct Countdown {
    /// Predecessors of each operation that have not ended.
    pending: Box<[AtomicU32]>,
    /// Operations that may run and that no thread kept, each plus one; [`EMPTY`] in slots that are not
    /// filled.
    listed: Box<[AtomicU32]>,
    head: AtomicUsize,
    tail: AtomicUsize,
    /// Operations that are not accounted for.
    left: AtomicUsize,
}

const EMPTY: u32 = 0;

/// Operations that may run because their last predecessor has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The operation that the caller runs next.
    pub next: Option<u32>,
    /// The number of further ones that were listed, for any thread.
    pub listed: usize,
}

impl Countdown {
    /// Memory for runs of programs of `len` operations. Before each run comes [`restart`](Self::restart).
    pub fn new(len: usize) -> Self {
        let zeros = || (0..len).map(|_| AtomicU32::new(0)).collect();
        Self {
            pending: zeros(),
            listed: zeros(),
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
        }
    }

    /// Begins a run of which the first `done` operations, in the order of recording, have already been run.
    ///
    /// # Panics
    /// If `order` is of another length, or shorter than `done`.
    pub fn restart(&mut self, order: &ProgramOrder, done: usize) {
        assert_eq!(order.len(), self.pending.len(), "a countdown is made for one length");
        // Plain stores throughout: the exclusive borrow ends before any other thread gets a reference, which
        // publishes them.
        let used = self.tail.load(Ordering::Relaxed);
        self.listed[..used].iter().for_each(|slot| slot.store(EMPTY, Ordering::Relaxed));
        let numbers = 0..u32::try_from(order.len()).expect("an order has fewer than 2^32 operations");
        let (past, rest) = (numbers.clone().take(done), numbers.skip(done));
        for op in rest.clone() {
            self.pending[op as usize].store(order.predecessors(op), Ordering::Relaxed);
        }
        for after in past.flat_map(|op| order.successors(op)).filter(|after| **after as usize >= done) {
            let pending = &self.pending[*after as usize];
            pending.store(pending.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        }
        let mut tail = 0;
        for op in rest.filter(|op| self.pending[*op as usize].load(Ordering::Relaxed) == 0) {
            self.listed[tail].store(op + 1, Ordering::Relaxed);
            tail += 1;
        }
        self.tail.store(tail, Ordering::Relaxed);
        self.head.store(0, Ordering::Relaxed);
        self.left.store(order.len() - done, Ordering::Relaxed);
    }

    /// Takes an operation that may run; `None` when there is none now.
    pub fn take(&self) -> Option<u32> {
        let mut fenced = false;
        loop {
            let head = self.head.load(Ordering::Relaxed);
            let op = self.listed.get(head)?.load(Ordering::Acquire);
            if op != EMPTY {
                // Relaxed: the slot publishes everything, and `head` only decides which thread takes it.
                if self.head.compare_exchange(head, head + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    return Some(op - 1);
                }
            } else if fenced {
                return None;
            } else {
                fence(Ordering::SeqCst);
                fenced = true;
            }
        }
    }

    /// True if there is, or was a moment ago, something to [`take`](Self::take).
    pub fn has_listed(&self) -> bool {
        let slot = self.listed.get(self.head.load(Ordering::Relaxed));
        slot.is_some_and(|slot| slot.load(Ordering::Relaxed) != EMPTY)
    }

    /// Counts down the successors of `op`, which the caller has taken or kept, and has run.
    pub fn ended(&self, order: &ProgramOrder, op: u32) -> Released {
        let mut free = order.successors(op).iter().copied().filter(|after| self.count_down(*after));
        let next = free.next();
        let mut listed = 0;
        for op in free {
            // One by one: more than two at once are rare.
            let slot = self.tail.fetch_add(1, Ordering::Relaxed);
            self.listed[slot].store(op + 1, Ordering::Release);
            listed += 1;
        }
        Released { next, listed }
    }

    /// One predecessor of `op` has ended. True: it was the last.
    fn count_down(&self, op: u32) -> bool {
        let pending = &self.pending[op as usize];
        // If one predecessor is left it is this thread's, so no other thread writes the counter, and the
        // locked instruction is saved. Acquire and release: the last thread sees what every predecessor did.
        if pending.load(Ordering::Acquire) == 1 {
            pending.store(0, Ordering::Relaxed);
            return true;
        }
        pending.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Accounts for `ended` operations that the caller has run. True, once: with them all are done.
    pub fn account(&self, ended: usize) -> bool {
        let before = self.left.fetch_sub(ended, Ordering::AcqRel);
        debug_assert!(before >= ended, "an operation is accounted for once");
        before == ended && ended > 0
    }
}

debug_as!(countdown: Countdown, "Countdown({} nodes)", countdown.pending.len());
