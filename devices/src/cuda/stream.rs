//! A stream of ours, and how far it has come.
//!
//! # What an operation costs
//! A number. [`Stream::next`] gives it under a lock and tells the driver nothing, so a chain of operations on one stream records
//! no event and writes no word. What covers a number comes when somebody asks:
//! - *another queue*: an event ([`Stream::event_for`]), which serves everybody who asks later;
//! - *the host*: the first to ask costs a query, since all may be done already. If not, and where the device can, it is told to
//!   write the newest number into a pinned word ([`super::words`]), once; from then on asking is a load. Elsewhere an event is
//!   recorded, and the oldest one is queried.
//!
//! What is recorded late covers more than it was asked for, and that must not matter. Before a stream is made to wait, its newest
//! number gets its event ([`Stream::wait`]): otherwise who asks later would wait for the wait as well, for ever if that waits
//! for him.
//!
//! # What is known
//! `completed` only goes up, and stands still for good when the stream breaks: bit `FROZEN` is set in the same word, so nobody
//! who has seen a fence fail sees it done later. The word in pinned memory is read into it.
//!
//! A broken context writes no word, so whoever polls asks the driver about the stream from time to time.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::CUstream;
use estafette_sync::abandoned::is_abandoned;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard, OnceLock};
use estafette_sync::time::Instant;

use crate::source::Timeline;
use crate::{DeviceError, Fence, QueueId};

use super::context::Context;
use super::handle::Handle;
use super::lane::Lane;
use super::words::Word;

/// In `completed`: the number stands still for ever.
pub(super) const FROZEN: u64 = 1 << 63;
/// `CU_STREAM_NON_BLOCKING`: the legacy default stream and this one do not wait for each other.
const NON_BLOCKING: u32 = 1;

pub(super) struct Stream {
    pub(super) context: Arc<Context>,
    pub(super) id: QueueId,
    raw: Handle<CUstream>,
    /// The newest number known to be done, and `FROZEN`.
    pub(super) completed: AtomicU64,
    pub(super) failure: OnceLock<DeviceError>,
    /// Where the device counts.
    pub(super) word: Option<Word>,
    /// The newest number that the device has been told to write. Goes up under the lane's lock.
    pub(super) written: AtomicU64,
    /// The newest number that the host has asked for and that only an event tells of. Goes up under the lane's lock.
    pub(super) asked: AtomicU64,
    /// The newest number that the host has asked for while nothing could be enqueued for it: whoever polls sees to it later.
    pub(super) wanted: AtomicU64,
    pub(super) reads: AtomicU64,
    /// When the driver was asked about the stream last, since `born`.
    pub(super) looked_ns: AtomicU64,
    pub(super) born: Instant,
    lane: Mutex<Lane>,
    /// Fences of other contexts that it waits for. A lock of its own, taken by whoever finds such a context broken.
    depends: Mutex<Vec<(Fence, Arc<Context>)>>,
}

impl Stream {
    /// # Errors
    /// The driver gives no more streams.
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, DeviceError> {
        context.intact()?;
        let mut raw: CUstream = ptr::null_mut();
        {
            let _entered = context.enter_relaxed()?;
            // SAFETY: writes one handle, which is ours.
            let code = unsafe { (context.api.stream_create)(&raw mut raw, NON_BLOCKING) };
            context.check(code, "cannot make a stream")?;
        }
        let id = QueueId::next();
        let mut stream = Self {
            context: Arc::clone(context),
            id,
            raw: Handle::new(raw),
            completed: AtomicU64::new(0),
            failure: OnceLock::new(),
            word: None,
            written: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            looked_ns: AtomicU64::new(0),
            born: Instant::now(),
            lane: Mutex::new(Lane::new(id)),
            depends: Mutex::default(),
        };
        if let Some(words) = &context.words {
            stream.word = Some(words.take(context)?);
        }
        let stream = Arc::new(stream);
        context.adopt(&stream);
        Ok(stream)
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw.get()
    }

    pub(super) fn lane(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock()
    }

    /// # Errors
    /// What broke it.
    pub(super) fn intact(&self) -> Result<(), DeviceError> {
        self.context.intact()?;
        self.failure().map_or(Ok(()), Err)
    }

    /// The handle, for somebody who enqueues by himself.
    pub(super) fn touch(&self) -> CUstream {
        self.lane().touched = true;
        self.raw()
    }

    /// The next number: of everything enqueued so far.
    pub(super) fn next(&self, lane: &mut Lane) -> u64 {
        lane.sequence += 1;
        lane.sequence
    }
    pub(super) fn depends(&self) -> MutexGuard<'_, Vec<(Fence, Arc<Context>)>> {
        self.depends.lock()
    }

    /// Number `sequence` is done, and all before it.
    pub(super) fn reach(&self, sequence: u64) {
        let mut known = self.completed.load(Ordering::Relaxed);
        while known & FROZEN == 0 && known < sequence {
            match self.completed.compare_exchange_weak(known, sequence, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => known = now,
            }
        }
    }

    /// Nothing more is done here, because of `error`.
    pub(super) fn fail(&self, error: &DeviceError) {
        if let Some(word) = self.word {
            self.reach(word.read());
        }
        self.failure.get_or_init(|| error.clone());
        self.completed.fetch_or(FROZEN, Ordering::AcqRel);
    }

    /// `context` is broken. It is this stream's, or one that it has waited for.
    pub(super) fn break_with(&self, context: &Context, error: &DeviceError) {
        let own = ptr::eq(context, &raw const *self.context);
        let waits = || {
            let depends = self.depends();
            depends
                .iter()
                .any(|(fence, other)| ptr::eq(context, &raw const **other) && !fence.observed_done())
        };
        if own || waits() {
            self.fail(error);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // In a forked child nothing of the driver works.
        if is_abandoned() {
            return;
        }
        if self.context.fault().is_some() {
            return;
        }
        if let Ok(_entered) = self.context.enter_relaxed() {
            // SAFETY: ours, destroyed this once. The driver lets what is enqueued finish.
            let _ = unsafe { (self.context.api.stream_destroy)(self.raw()) };
        }
        if let (Some(words), Some(word)) = (&self.context.words, self.word) {
            words.give_back(word, self.written.load(Ordering::Relaxed));
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} of {}, {} done)", self.id, self.context.id, self.completed())
    }
}
