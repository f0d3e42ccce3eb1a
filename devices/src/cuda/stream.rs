//! A stream of ours, and how far it has come.
//!
//! # What an operation costs
//! A number. [`Stream::next`] gives it under a lock and tells the driver nothing, so a chain of operations on one stream records
//! no event and writes no word. What covers a number comes when somebody asks:
//! - *another queue*: an event ([`Stream::event_for`]), which serves everybody who asks later;
//! - *the host*: where the device can, it is told to write the newest number into a pinned word ([`super::words`]), once; from
//!   then on asking is a load. Elsewhere an event is recorded, and the oldest one is queried.
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

use std::collections::VecDeque;
use std::fmt;
use std::ptr;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use cudarc::driver::sys::{CUevent, CUstream, CUstreamCaptureStatus};
use estafette_sync::abandoned::is_abandoned;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard, OnceLock};

use crate::source::{Subscriber, Timeline, Watch};
use crate::{DLDevice, DeviceError, DeviceErrorKind, Fence, QueueClock, QueueId};

use super::context::Context;
use super::errors::NOT_READY;
use super::events::Event;
use super::foreign::{not_the_same_recording, recording};
use super::handle::Handle;
use super::words::Word;

/// In `completed`: the number stands still for ever.
const FROZEN: u64 = 1 << 63;
/// Events on a stream before the oldest are looked at unasked, so that they become free in chains that nobody polls.
const MARKS_LOOK: usize = 16;
/// Events that are kept. Past it every second one is let go: whoever asks for its number gets the next one.
const MARKS_MAX: usize = 1_024;
/// `CU_STREAM_NON_BLOCKING`: the legacy default stream and this one do not wait for each other.
const NON_BLOCKING: u32 = 1;
/// How often the driver is asked whether a stream still works, at most.
const HEALTH_NS: u64 = 200_000;
/// Readers of the word look at the clock once in as many times.
const HEALTH_READS: u64 = 64;

pub(super) struct Stream {
    context: Arc<Context>,
    id: QueueId,
    raw: Handle<CUstream>,
    /// The newest number known to be done, and `FROZEN`.
    completed: AtomicU64,
    failure: OnceLock<DeviceError>,
    /// Where the device counts.
    word: Option<Word>,
    /// The newest number that the device has been told to write. Goes up under the lane's lock.
    written: AtomicU64,
    /// The newest number that the host has asked for and that only an event tells of. Goes up under the lane's lock.
    asked: AtomicU64,
    reads: AtomicU64,
    /// When the driver was asked about the stream last, since `born`.
    looked_ns: AtomicU64,
    born: Instant,
    lane: Mutex<Lane>,
    /// Fences of other contexts that it waits for. A lock of its own, taken by whoever finds such a context broken.
    depends: Mutex<Vec<(Fence, Arc<Context>)>>,
}

/// What is enqueued. The lock never covers user code.
pub(super) struct Lane {
    pub(super) clock: QueueClock,
    sequence: u64,
    /// Numbers with an event that covers them, ascending.
    marks: VecDeque<(u64, Arc<Event>)>,
    /// What is enqueued now is recorded into a graph of ours.
    capture: bool,
    /// Somebody has the handle, and may be capturing.
    touched: bool,
    /// The newest number when the stream was last made to wait.
    waited_at: u64,
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
        let lane = Lane {
            clock: QueueClock::new(id, true),
            sequence: 0,
            marks: VecDeque::new(),
            capture: false,
            touched: false,
            waited_at: 0,
        };
        let mut stream = Self {
            context: Arc::clone(context),
            id,
            raw: Handle::new(raw),
            completed: AtomicU64::new(0),
            failure: OnceLock::new(),
            word: None,
            written: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            looked_ns: AtomicU64::new(0),
            born: Instant::now(),
            lane: Mutex::new(lane),
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
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// An event that covers number `sequence`; `None` when that is done.
    ///
    /// # Errors
    /// The stream is broken, or the driver refused the event.
    pub(super) fn event_for(&self, sequence: u64) -> Result<Option<Arc<Event>>, DeviceError> {
        if self.completed() >= sequence {
            return Ok(None);
        }
        self.intact()?;
        let mut lane = self.lane();
        if let Some(event) = lane.covering(sequence) {
            return Ok(Some(event));
        }
        self.mark(&mut lane).map(Some)
    }

    /// Makes what is enqueued here next wait for `event`, which is behind `fence`.
    ///
    /// # Errors
    /// The driver refused it; no wait was enqueued.
    ///
    /// # Safety
    /// `event` is live.
    pub(super) unsafe fn wait(
        self: &Arc<Self>,
        fence: &Fence,
        event: CUevent,
        context: &Arc<Context>,
    ) -> Result<(), DeviceError> {
        let mut lane = self.lane();
        self.not_capturing(&lane)?;
        // What was enqueued until now must not seem to wait as well.
        if lane.sequence > self.completed() && lane.covering(lane.sequence).is_none() {
            self.mark(&mut lane)?;
        }
        // SAFETY: by contract.
        unsafe { wait(&self.context, self.raw(), event, 0) }?;
        lane.clock.note_wait(fence);
        lane.waited_at = lane.sequence;
        drop(lane);
        if !Arc::ptr_eq(context, &self.context) {
            let mut depends = self.depends();
            depends.retain(|(fence, _)| !fence.observed_done());
            depends.push((fence.clone(), Arc::clone(context)));
            drop(depends);
            context.adopt(self);
        }
        Ok(())
    }

    /// Makes what is recorded here next wait for a point of the same recording.
    ///
    /// # Safety
    /// `event` is live.
    pub(super) unsafe fn wait_within(&self, event: CUevent, number: Option<u64>) -> Result<(), DeviceError> {
        let _lane = self.lane();
        if number.is_none() || recording(&self.context, self.raw())? != number {
            return Err(not_the_same_recording());
        }
        // SAFETY: by contract.
        unsafe { wait(&self.context, self.raw(), event, 0) }
    }

    fn depends(&self) -> MutexGuard<'_, Vec<(Fence, Arc<Context>)>> {
        self.depends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event of everything enqueued so far: it covers the newest number.
    fn mark(&self, lane: &mut Lane) -> Result<Arc<Event>, DeviceError> {
        self.not_capturing(lane)?;
        // SAFETY: a live stream of the context.
        let event = unsafe { Event::record(&self.context, self.raw()) }?;
        let number = lane.sequence;
        if lane.marks.len() >= MARKS_LOOK {
            self.retire(lane)?;
        }
        if lane.marks.len() >= MARKS_MAX {
            let mut at = 0;
            // The newest stays: it is the last of an even number.
            lane.marks.retain(|_| {
                at += 1;
                at % 2 == 0
            });
        }
        lane.marks.push_back((number, Arc::clone(&event)));
        Ok(event)
    }

    /// Queries the oldest events, up to the first that is not done.
    fn retire(&self, lane: &mut Lane) -> Result<(), DeviceError> {
        let completed = self.completed();
        while lane.marks.pop_front_if(|(number, _)| *number <= completed).is_some() {}
        while let Some((number, event)) = lane.marks.front() {
            if !event.query()? {
                break;
            }
            self.reach(*number);
            lane.marks.pop_front();
        }
        Ok(())
    }

    /// # Errors
    /// What is enqueued now is recorded into a graph.
    fn not_capturing(&self, lane: &Lane) -> Result<(), DeviceError> {
        if !lane.capture && !(lane.touched && self.captured_by_others()?) {
            return Ok(());
        }
        let message = format!("{} is recording a graph: nothing outside of it can be waited for", self.id);
        Err(DeviceError::new(DeviceErrorKind::Invalid, message).with_queue(self.id))
    }

    fn captured_by_others(&self) -> Result<bool, DeviceError> {
        is_capturing(&self.context, self.raw())
    }

    /// Whether what is enqueued now is recorded into a graph.
    pub(super) fn is_capturing(&self) -> Result<bool, DeviceError> {
        let lane = self.lane();
        Ok(lane.capture || lane.touched && self.captured_by_others()?)
    }

    /// From here on, what is enqueued is recorded into a graph. Everything before has an event: none could be had later.
    ///
    /// # Errors
    /// It is recording already, is broken, or `begin` did not work.
    pub(super) fn begin_recording(
        &self,
        begin: impl FnOnce(CUstream) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.intact()?;
        let mut lane = self.lane();
        self.not_capturing(&lane)?;
        if lane.sequence > self.completed() && lane.covering(lane.sequence).is_none() {
            self.mark(&mut lane)?;
        }
        begin(self.raw())?;
        lane.capture = true;
        Ok(())
    }

    /// The recording is over.
    pub(super) fn end_recording(
        &self,
        end: impl FnOnce(CUstream) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut lane = self.lane();
        lane.capture = false;
        end(self.raw())
    }

    /// Sees to it that the host can learn of number `sequence` by polling.
    fn ask(&self, sequence: u64) -> Result<(), DeviceError> {
        let mut lane = self.lane();
        let known = self.completed().max(self.written.load(Ordering::Relaxed));
        if known.max(self.asked.load(Ordering::Relaxed)) >= sequence || self.failure().is_some() {
            return Ok(());
        }
        if lane.capture || lane.touched && self.captured_by_others()? {
            // Nothing can be enqueued for it now; the next who asks tries again.
            return Ok(());
        }
        let newest = lane.sequence;
        let mark = lane.marks.iter().find(|(number, _)| *number >= sequence).cloned();
        // It may be done already; nobody had a reason to look.
        if self.is_over(newest, mark.as_ref())? {
            return Ok(());
        }
        // An event that is there is more exact than what would be written now, unless they say the same.
        let same = newest == sequence && lane.waited_at < sequence && self.word.is_some();
        if let Some((number, _)) = mark.filter(|_| !same) {
            self.asked.store(number, Ordering::Release);
            return Ok(());
        }
        let (Some(word), Some(write)) = (self.word, self.context.api.stream_write) else {
            self.mark(&mut lane)?;
            self.asked.store(newest, Ordering::Release);
            return Ok(());
        };
        let _entered = self.context.enter()?;
        // SAFETY: a live stream, and a word that stays and is this stream's alone.
        let code = unsafe { write(self.raw(), word.address(), newest, 0) };
        self.context.check(code, "cannot write a number")?;
        self.context.counters.writes.one();
        self.written.store(newest, Ordering::Release);
        Ok(())
    }

    /// Asks the driver whether what `mark` covers is done, or all that is enqueued here, which is what number `newest` covers.
    fn is_over(&self, newest: u64, mark: Option<&(u64, Arc<Event>)>) -> Result<bool, DeviceError> {
        let (number, over) = match mark {
            Some((number, event)) => (*number, event.query()?),
            None => (newest, self.query()?),
        };
        if over {
            self.reach(number);
        }
        Ok(over)
    }

    /// Asks the driver whether everything enqueued here is done. It is no capture's.
    fn query(&self) -> Result<bool, DeviceError> {
        let _entered = self.context.enter_relaxed()?;
        self.context.counters.queue_queries.one();
        // SAFETY: a live stream.
        match unsafe { (self.context.api.stream_query)(self.raw()) } {
            NOT_READY => Ok(false),
            code => self.context.check(code, "work on the device failed").map(|()| true),
        }
    }

    /// As [`ask`](Self::ask). Who cannot be answered must not wait for ever, so what refuses it breaks the stream.
    fn ask_or_break(&self, sequence: u64) {
        if let Err(error) = self.ask(sequence) {
            self.fail(&error);
        }
    }

    /// Number `sequence` is done, and all before it.
    fn reach(&self, sequence: u64) {
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

    /// Reads the word.
    #[inline]
    fn read(&self) {
        if let Some(word) = self.word {
            let number = word.read();
            if number > self.completed.load(Ordering::Relaxed) & !FROZEN {
                self.reach(number);
            }
        }
    }

    /// Asks the driver whether the stream still works, if it is time.
    fn look(&self) {
        let now = u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if now.saturating_sub(self.looked_ns.load(Ordering::Relaxed)) < HEALTH_NS {
            return;
        }
        self.looked_ns.store(now, Ordering::Relaxed);
        let lane = self.lane();
        // A capturing stream is not queried.
        if lane.capture || lane.touched && self.captured_by_others().unwrap_or(true) {
            return;
        }
        let newest = lane.sequence;
        match self.query() {
            Ok(false) => {}
            Ok(true) => self.reach(newest),
            Err(error) => self.fail(&error),
        }
    }
}

/// Makes what is enqueued on `stream` next wait for `event`.
///
/// # Safety
/// Both are live.
pub(super) unsafe fn wait(
    context: &Context,
    stream: CUstream,
    event: CUevent,
    flags: u32,
) -> Result<(), DeviceError> {
    let _entered = context.enter()?;
    // SAFETY: by contract.
    let code = unsafe { (context.api.stream_wait)(stream, event, flags) };
    context.check(code, "cannot wait for an event")?;
    context.counters.waits.one();
    Ok(())
}

/// Whether what is enqueued on `stream` now is recorded into a graph.
pub(super) fn is_capturing(context: &Context, stream: CUstream) -> Result<bool, DeviceError> {
    let mut status: u32 = 0;
    let _entered = context.enter()?;
    // SAFETY: a live stream; the status is a number, written to one.
    let code =
        unsafe { (context.api.stream_capturing)(stream, (&raw mut status).cast::<CUstreamCaptureStatus>()) };
    context.check(code, "cannot tell whether the stream is recording a graph")?;
    Ok(status != 0)
}

impl Lane {
    /// Whether a graph of ours is being recorded here.
    pub(super) fn is_recording(&self) -> bool {
        self.capture
    }

    /// The first event that covers `sequence`.
    fn covering(&self, sequence: u64) -> Option<Arc<Event>> {
        let at = self.marks.partition_point(|(number, _)| *number < sequence);
        self.marks.get(at).map(|(_, event)| Arc::clone(event))
    }
}

impl Timeline for Stream {
    fn queue(&self) -> QueueId {
        self.id
    }

    fn device(&self) -> DLDevice {
        self.context.id
    }

    #[inline]
    fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire) & !FROZEN
    }

    #[inline]
    fn failure(&self) -> Option<DeviceError> {
        // The failure is there before the bit is.
        let frozen = self.completed.load(Ordering::Acquire) & FROZEN != 0;
        if frozen { self.failure.get().cloned() } else { None }
    }

    fn poll(&self) -> u64 {
        if self.completed.load(Ordering::Acquire) & FROZEN == 0 {
            self.read();
            let completed = self.completed();
            if completed < self.asked.load(Ordering::Acquire) {
                let retired = self.retire(&mut self.lane());
                if let Err(error) = retired {
                    self.fail(&error);
                }
            } else if completed < self.written.load(Ordering::Acquire) {
                self.look();
            }
        }
        self.completed()
    }

    #[inline]
    fn poll_for(&self, sequence: u64) -> u64 {
        if self.written.load(Ordering::Acquire) >= sequence {
            self.read();
            let completed = self.completed();
            if completed >= sequence {
                return completed;
            }
            let reads = self.reads.load(Ordering::Relaxed).wrapping_add(1);
            // Some reads of several threads may go uncounted; they only pace a query.
            self.reads.store(reads, Ordering::Relaxed);
            if !reads.is_multiple_of(HEALTH_READS) {
                return completed;
            }
        } else if self.asked.load(Ordering::Acquire) < sequence {
            self.ask_or_break(sequence);
        }
        self.poll()
    }

    fn watch(&self, sequence: u64, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        self.ask_or_break(sequence);
        if self.completed() >= sequence {
            return Watch::Settled(Ok(()));
        }
        match self.failure() {
            // The failure froze the number.
            Some(_) if self.completed() >= sequence => Watch::Settled(Ok(())),
            Some(error) => Watch::Settled(Err(error)),
            None => Watch::MustPoll,
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
