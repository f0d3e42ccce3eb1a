//! Times of work, from pairs of events with time stamps.
//!
//! The driver reports the time between two events of a context, as milliseconds in single precision. So a
//! device's time is counted from a *reference event*: an event on a stream of its own that has nothing else
//! to do. After some seconds single precision gets coarser than the stamps themselves (half a microsecond),
//! and a new reference is set.

use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUstream};
use estafette_sync::sync::{Mutex, OnceLock};

use crate::{ClockBracket, DeviceError, DeviceSpan, Timing, host_now_ns};

use super::context::Context;
use super::driver::NOT_READY;
use super::events::{PooledEvent, Purpose};
use super::stream::Stream;

/// A reference event is used this long. After 4 s a single-precision millisecond is exact to 0.25
/// microseconds.
const REFERENCE_NS: u64 = 4_000_000_000;

/// The device's clock at the reference event, in nanoseconds: more than anything can have begun
/// before it.
const REFERENCE_AT_NS: f64 = 1e15;

#[derive(Default)]
pub(super) struct DeviceClock(Mutex<Option<Arc<ReferenceEvent>>>);

/// The event that times are counted from.
struct ReferenceEvent {
    event: Arc<PooledEvent>,
    set_ns: u64,
    /// Between the device's clock and the host's.
    clock: Mutex<ClockBracket>,
    _stream: Arc<Stream>,
}

impl DeviceClock {
    fn reference(&self, context: &Arc<Context>) -> Result<Arc<ReferenceEvent>, DeviceError> {
        let mut reference = self.0.lock();
        let set_ns = host_now_ns();
        if let Some(reference) =
            reference.as_ref().filter(|reference| set_ns - reference.set_ns < REFERENCE_NS)
        {
            return Ok(Arc::clone(reference));
        }
        let stream = match &*reference {
            Some(old) => Arc::clone(&old._stream),
            None => Stream::new(context)?,
        };
        // SAFETY: a live stream of the context.
        let event = unsafe { PooledEvent::record_for(context, stream.raw(), Purpose::Time) }?;
        // The reference event was not recorded before the call: this lower bound is known before any
        // measurement.
        let mut clock = ClockBracket::default();
        clock.not_before(REFERENCE_AT_NS as u64, set_ns);
        let fresh = Arc::new(ReferenceEvent { event, set_ns, clock: Mutex::new(clock), _stream: stream });
        *reference = Some(Arc::clone(&fresh));
        Ok(fresh)
    }
}

impl ReferenceEvent {
    /// The time at which the device reached `event`, by its clock; `None` while either is not done.
    fn until(&self, context: &Context, event: CUevent) -> Result<Option<u64>, DeviceError> {
        let mut milliseconds = 0.0_f32;
        let _current = context.make_current_relaxed()?;
        // SAFETY: live events of the context that have time stamps; writes one number.
        match unsafe { (context.api.event_elapsed)(&raw mut milliseconds, self.event.raw(), event) } {
            NOT_READY => Ok(None),
            code => {
                context.check(code, "cannot tell the time between two events")?;
                // Below the reference event's own time: work that was enqueued just after that event may have
                // begun before it.
                Ok(Some((REFERENCE_AT_NS + f64::from(milliseconds) * 1e6) as u64))
            }
        }
    }
}

/// The work enqueued between two events.
pub(super) struct TimedInterval {
    context: Arc<Context>,
    reference: Arc<ReferenceEvent>,
    begin: Arc<PooledEvent>,
    /// The time at which the work was enqueued: it did not run before.
    called_ns: u64,
    end: OnceLock<Arc<PooledEvent>>,
}

impl TimedInterval {
    /// # Safety
    /// `stream` is live, of the context, and not capturing a graph.
    pub(super) unsafe fn begin(context: &Arc<Context>, stream: CUstream) -> Result<Arc<Self>, DeviceError> {
        let reference = context.clock.reference(context)?;
        let called_ns = host_now_ns();
        // SAFETY: by contract.
        let begin = unsafe { PooledEvent::record_for(context, stream, Purpose::Time) }?;
        let context = Arc::clone(context);
        Ok(Arc::new(Self { context, reference, begin, called_ns, end: OnceLock::new() }))
    }

    /// # Safety
    /// As for [`begin`](Self::begin), with the same stream.
    pub(super) unsafe fn end(&self, stream: CUstream) -> Result<(), DeviceError> {
        // SAFETY: by contract.
        let end = unsafe { PooledEvent::record_for(&self.context, stream, Purpose::Time) }?;
        self.end.get_or_init(|| end);
        Ok(())
    }

    fn measure(&self) -> Result<Option<DeviceSpan>, DeviceError> {
        let Some(end) = self.end.get() else { return Ok(None) };
        let (Some(began), Some(ended)) = (
            self.reference.until(&self.context, self.begin.raw())?,
            self.reference.until(&self.context, end.raw())?,
        ) else {
            return Ok(None);
        };
        let mut clock = self.reference.clock.lock();
        clock.not_before(began, self.called_ns);
        clock.not_after(ended, host_now_ns());
        let span = clock.host_ns(began).zip(clock.host_ns(ended.max(began)));
        Ok(span.map(|(began_ns, ended_ns)| DeviceSpan { began_ns, ended_ns }))
    }
}

impl Timing for TimedInterval {
    fn span(&self) -> Option<DeviceSpan> {
        // A broken context yields no times; the fence of the work reports why.
        self.measure().unwrap_or_default()
    }
}

debug_as!(interval: TimedInterval, "TimedInterval(from {:?} to {:?})", interval.begin, interval.end.get());
