//! Who has a lease, and where it stands.

use std::sync::Arc;

use estafette_devices::Frontier;
use estafette_graph::OpId;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard, OnceLock};
use estafette_sync::thread::ThreadId;

use super::Access;
use crate::core::clock::{self, Coarse};
use crate::core::error::Error;
use crate::core::operation::OpGranted;
use crate::lease::owner::Taker;
use crate::wait::ready::ReadySignal;

/// Who took a lease, and since when.
#[derive(Debug)]
pub(crate) struct LeaseLabel {
    pub(crate) access: Access,
    pub(crate) taker: Taker,
    /// What the holder has made of it, once that is known.
    pub(crate) object: OnceLock<Arc<str>>,
    pub(crate) thread: ThreadId,
    pub(crate) since: Coarse,
    slot: Mutex<Slot>,
    /// Whether its holder orders himself after earlier work. Then it is granted with that work pending.
    pub(super) orders_itself: bool,
    /// What was pending when it was granted to such a holder.
    pending: Mutex<Option<Box<Frontier>>>,
    /// Whether it was granted and all earlier work is done, so that only its holder keeps others waiting.
    pub(super) held: AtomicBool,
    /// Whom to tell; nobody of a lease that was granted as it was submitted.
    signal: Option<Arc<ReadySignal>>,
}

#[derive(Debug)]
pub(super) enum Slot {
    /// Not granted yet, or about to be held.
    Waiting,
    /// Granted, while fences of earlier uses are pending.
    Settling(OpGranted),
    /// Granted and settled: holding this is holding the lease.
    Held(OpGranted),
    /// Nobody wants it any more: to be completed as soon as it is granted.
    Abandoned,
}

impl LeaseLabel {
    #[inline(always)]
    pub(crate) fn new(access: Access, taker: Taker, signal: Option<Arc<ReadySignal>>, held: bool) -> Self {
        Self {
            access,
            taker,
            object: OnceLock::new(),
            thread: clock::this_thread(),
            since: Coarse::now(),
            slot: Mutex::new(Slot::Waiting),
            orders_itself: false,
            pending: Mutex::new(None),
            held: AtomicBool::new(held),
            signal,
        }
    }

    /// The same, of a holder who orders himself after earlier work.
    pub(super) fn ordering_itself(mut self, orders_itself: bool) -> Self {
        self.orders_itself = orders_itself;
        self
    }

    pub(super) fn leave_pending(&self, pending: Frontier) {
        *self.pending.lock() = Some(Box::new(pending));
    }

    /// What was pending when it was granted; nothing the second time.
    pub(crate) fn take_pending(&self) -> Frontier {
        let pending = self.pending.lock().take();
        pending.map(|pending| *pending).unwrap_or_default()
    }

    pub(super) fn tell(&self, outcome: Result<(), Error>) {
        if let Some(signal) = &self.signal {
            signal.set(outcome);
        }
    }

    pub(super) fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock()
    }

    /// Whether only its holder keeps others waiting.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// The operation that it is, once it is held.
    pub(super) fn operation(&self) -> Option<OpId> {
        match &*self.slot() {
            Slot::Held(granted) => Some(granted.id()),
            Slot::Waiting | Slot::Settling(_) | Slot::Abandoned => None,
        }
    }

    /// Keeps a granted operation until the fences of earlier uses have settled; gives it back if the lease was given up.
    pub(super) fn settles(&self, granted: OpGranted) -> Option<OpGranted> {
        let mut slot = self.slot();
        if !matches!(*slot, Slot::Waiting) {
            return Some(granted);
        }
        *slot = Slot::Settling(granted);
        None
    }

    /// Takes back what [`settles`](Self::settles) has kept; nothing if the lease was given up meanwhile.
    pub(super) fn settled(&self) -> Option<OpGranted> {
        let mut slot = self.slot();
        if !matches!(*slot, Slot::Settling(_)) {
            return None;
        }
        match std::mem::replace(&mut *slot, Slot::Waiting) {
            Slot::Settling(granted) => Some(granted),
            Slot::Waiting | Slot::Held(_) | Slot::Abandoned => None,
        }
    }

    /// Gives up the lease, whether it was granted or not; the operation, if it was held, is the caller's to complete.
    pub(crate) fn abandon(&self) -> Option<OpGranted> {
        match self.abandon_anywhere() {
            Slot::Held(granted) => Some(granted),
            Slot::Waiting | Slot::Settling(_) | Slot::Abandoned => None,
        }
    }

    /// The same, and gives where it stood.
    pub(super) fn abandon_anywhere(&self) -> Slot {
        std::mem::replace(&mut *self.slot(), Slot::Abandoned)
    }
}

impl std::fmt::Display for LeaseLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        crate::lease::info::LeaseInfo::of(self).fmt(f)
    }
}
