//! Progress of own streams, as the host observes it.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};

use crate::fence::source::{Subscriber, Timeline, Watch};
use crate::{DLDevice, DeviceError, QueueId};

use super::context::{Context, inspect_soon};
use super::driver::{NOT_READY, is_of_capture};
use super::events::PooledEvent;
use super::stream::{Stream, is_capturing};

/// The least time between two queries of the driver for faults of a stream.
const HEALTH_NS: u64 = 10_000_000;
/// Readers of the value read the clock once in as many reads.
const HEALTH_READS: u64 = 64;

impl Timeline for Stream {
    fn queue(&self) -> QueueId {
        self.id
    }

    fn device(&self) -> DLDevice {
        self.context.id
    }

    #[inline]
    fn completed(&self) -> u64 {
        self.completed.number()
    }

    #[inline]
    fn failure(&self) -> Option<DeviceError> {
        self.completed.failure().cloned()
    }

    fn poll(&self) -> u64 {
        if !self.completed.is_frozen() {
            self.read();
            let wanted = self.wanted.load(Ordering::Acquire);
            if wanted > self.completed() {
                self.request_or_fail(wanted);
            }
            let completed = self.completed();
            if completed < self.asked.load(Ordering::Acquire) {
                let retired = self.retire(&mut self.state());
                if let Err(error) = retired {
                    self.fail(&error);
                }
            } else if completed < self.written.load(Ordering::Acquire) {
                self.check_health();
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
            self.request_or_fail(sequence);
        }
        self.poll()
    }

    #[inline]
    fn peek(&self, sequence: u64) -> Option<bool> {
        if self.completed() >= sequence {
            return Some(true);
        }
        if self.completed.is_frozen() || self.written.load(Ordering::Acquire) < sequence {
            return None;
        }
        self.read();
        if self.completed() >= sequence {
            return Some(true);
        }
        let reads = self.reads.load(Ordering::Relaxed).wrapping_add(1);
        if reads.is_multiple_of(HEALTH_READS) && self.is_health_check_due() {
            // Not counted: the poll that follows checks the stream.
            return None;
        }
        self.reads.store(reads, Ordering::Relaxed);
        Some(false)
    }

    /// Unless the host has asked for a number that only an event covers.
    fn query_is_cheap(&self) -> bool {
        self.value.is_some() && self.completed() >= self.asked.load(Ordering::Acquire)
    }

    fn watch(&self, sequence: u64, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        self.request_or_fail(sequence);
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

impl Stream {
    /// Makes sure that polling observes number `sequence`: requests an event or a value for it.
    fn request(&self, sequence: u64) -> Result<(), DeviceError> {
        let mut state = self.state();
        let known = self.completed().max(self.written.load(Ordering::Relaxed));
        if known.max(self.asked.load(Ordering::Relaxed)) >= sequence || self.failure().is_some() {
            return Ok(());
        }
        if self.records(&state)? {
            // No event or value can be enqueued now.
            self.wanted.fetch_max(sequence, Ordering::AcqRel);
            return Ok(());
        }
        let newest = state.sequence;
        let mark = state.marks.iter().find(|(number, _)| *number >= sequence).cloned();
        // The work may be done already: no query was made so far.
        if self.is_over(newest, mark.as_ref())? {
            return Ok(());
        }
        // An event that is there is more exact than what would be written now, unless they say the same.
        let same = newest == sequence && state.waited_at < sequence && self.value.is_some();
        if let Some((number, _)) = mark.filter(|_| !same) {
            self.asked.store(number, Ordering::Release);
            return Ok(());
        }
        let (Some(value), Some(write)) = (self.value, self.context.api.stream_write) else {
            self.mark(&mut state)?;
            self.asked.store(newest, Ordering::Release);
            return Ok(());
        };
        let _current = self.context.make_current()?;
        // SAFETY: a live stream, and a value that stays and is this stream's alone.
        let code = unsafe { write(self.raw(), value.address(), newest, 0) };
        self.context.check(code, "cannot write a number")?;
        self.context.counters.writes.one();
        self.written.store(newest, Ordering::Release);
        Ok(())
    }

    /// Queries the driver whether the work that `mark` covers is done, or all enqueued work, which number
    /// `newest` covers.
    fn is_over(&self, newest: u64, mark: Option<&(u64, Arc<PooledEvent>)>) -> Result<bool, DeviceError> {
        let (number, over) = match mark {
            Some((number, event)) => (*number, event.query()?),
            None => (newest, self.query()?),
        };
        if over {
            self.completed.reach(number);
        }
        Ok(over)
    }

    /// Queries the driver whether everything enqueued here is done. The stream is not capturing.
    fn query(&self) -> Result<bool, DeviceError> {
        let _current = self.context.make_current_relaxed()?;
        self.context.counters.queue_queries.one();
        // SAFETY: a live stream.
        match unsafe { (self.context.api.stream_query)(self.raw()) } {
            NOT_READY => Ok(false),
            code => self.context.check(code, "work on the device failed").map(|()| true),
        }
    }

    /// As [`request`](Self::request). A refused request breaks the stream: its waiters must not wait for
    /// ever.
    fn request_or_fail(&self, sequence: u64) {
        match self.request(sequence) {
            Ok(()) => {}
            // Foreign code has begun the capture since the request looked for one.
            Err(error) if is_of_capture(&error) => {
                self.wanted.fetch_max(sequence, Ordering::AcqRel);
            }
            Err(error) => self.fail(&error),
        }
    }

    #[inline]
    fn read(&self) {
        if let Some(value) = self.value {
            let number = value.read();
            if number > self.completed() {
                self.completed.reach(number);
            }
        }
    }

    fn age_ns(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    #[cold]
    fn is_health_check_due(&self) -> bool {
        self.age_ns().saturating_sub(self.checked_ns.load(Ordering::Relaxed)) >= HEALTH_NS
    }

    /// Requests a query of the driver whether the stream still works, if one is due.
    fn check_health(&self) {
        if !self.is_health_check_due() {
            return;
        }
        self.checked_ns.store(self.age_ns(), Ordering::Relaxed);
        self.is_suspect.store(true, Ordering::Release);
        inspect_soon(&self.context);
    }

    /// Queries the driver whether the stream still works, if a poll has requested that.
    pub(super) fn inspect_if_suspect(&self) {
        if !self.is_suspect.swap(false, Ordering::AcqRel) {
            return;
        }
        let state = self.state();
        let (newest, is_touched) = (state.sequence, state.touched);
        if state.capture {
            return;
        }
        // A capturing stream is not queried, and no own capture begins while the guard lives. The queue
        // itself is free for others.
        let _no_capture = self.context.captures.lock();
        drop(state);
        if is_touched && is_capturing(&self.context, self.raw()).unwrap_or(true) {
            return;
        }
        match self.query() {
            Ok(false) => {}
            Ok(true) => self.completed.reach(newest),
            Err(error) if is_of_capture(&error) => {}
            Err(error) => self.fail(&error),
        }
    }
}

// Pinned values that streams count in: the device writes a number there, the host reads it without asking the
// driver.

/// Timeline values are a cache line apart: the device writes one while the host reads another.
const STRIDE: usize = 64;
/// Bytes that are pinned at once.
const PAGE: usize = 4_096;
/// `CU_MEMHOSTALLOC_PORTABLE`: every context may write there.
const PORTABLE: u32 = 1;

/// The values of a context. Its pages stay for as long as the process lives.
#[derive(Default)]
pub(super) struct TimelineValues(Mutex<ValuesState>);

#[derive(Default)]
struct ValuesState {
    free: Vec<TimelineValue>,
    /// Timeline values of dropped streams, with the last number that the device may still write there.
    settling: Vec<(TimelineValue, u64)>,
}

#[derive(Clone, Copy)]
pub(super) struct TimelineValue(NonNull<AtomicU64>);

// SAFETY: a value is an atomic that stays for ever.
unsafe impl Send for TimelineValue {}
// SAFETY: as above.
unsafe impl Sync for TimelineValue {}

impl TimelineValue {
    /// The newest number written by the device. Earlier work of the device is visible to a thread that reads
    /// it.
    #[inline]
    pub(super) fn read(self) -> u64 {
        // SAFETY: pinned memory that stays, aligned, and written by whole words.
        unsafe { self.0.as_ref() }.load(Ordering::Acquire)
    }

    /// The address for the device. Pinned memory has one address for host and devices.
    pub(super) fn address(self) -> CUdeviceptr {
        self.0.as_ptr().expose_provenance() as CUdeviceptr
    }
}

impl TimelineValues {
    /// A value that is 0 and that no pending write changes. Fails where no memory can be pinned.
    pub(super) fn take(&self, context: &Context) -> Result<TimelineValue, DeviceError> {
        let mut inner = self.0.lock();
        let settled = inner.settling.extract_if(.., |(value, last)| value.read() == *last);
        let settled: Vec<_> = settled.map(|(value, _)| value).collect();
        inner.free.extend(settled);
        if inner.free.is_empty() {
            inner.free = page(context)?;
        }
        let value = inner.free.pop().expect("a page has values");
        // SAFETY: as in `TimelineValue::read`; no stream writes there.
        unsafe { value.0.as_ref() }.store(0, Ordering::Relaxed);
        Ok(value)
    }

    /// Takes back the value of a dropped stream. `last` is the last number that the device was requested to
    /// write, or 0.
    pub(super) fn release(&self, value: TimelineValue, last: u64) {
        self.0.lock().settling.push((value, last));
    }
}

/// Timeline values in freshly pinned memory.
fn page(context: &Context) -> Result<Vec<TimelineValue>, DeviceError> {
    let mut page = ptr::null_mut();
    let _current = context.make_current_relaxed()?;
    // SAFETY: writes one pointer; the memory is never freed.
    let code = unsafe { (context.api.host_allocate)(&raw mut page, PAGE, PORTABLE) };
    context.check(code, "cannot pin memory to count in")?;
    let values = (0..PAGE / STRIDE).filter_map(|at| {
        // SAFETY: within the page, which is aligned to more than a word.
        NonNull::new(unsafe { page.cast::<u8>().add(at * STRIDE) }.cast()).map(TimelineValue)
    });
    Ok(values.collect())
}
