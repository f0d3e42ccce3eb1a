//! Times of commands, from the profiling information of their events (SYCL 2020, 4.6.6.1:
//! `info::event_profiling`).
//!
//! Only events of profiling queues have times, and profiling costs. So an own queue works on queues without
//! profiling, and on others with profiling during a measurement (`queue_state.rs`); a foreign queue is as its
//! owner made it.

use std::sync::Arc;

use estafette_sync::sync::Mutex;

use crate::{DeviceSpan, Timing, host_now_ns};

use super::device::DeviceState;
use super::event::SyclEvent;

/// Commands that one measurement looks at. Of more than these the last one is kept up to date; between first
/// and last nothing is missed on an in-order queue.
const COMMANDS_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Commands {
    shared: Arc<DeviceState>,
    list: Mutex<Vec<TimedCommand>>,
}

#[derive(Debug)]
struct TimedCommand {
    event: Arc<SyclEvent>,
    /// A barrier, which is no work: only its end counts.
    moment: bool,
    /// The time at which it was enqueued: it was not submitted before.
    called_ns: u64,
}

impl Commands {
    pub(super) fn new(shared: &Arc<DeviceState>) -> Arc<Self> {
        Arc::new(Self { shared: Arc::clone(shared), list: Mutex::default() })
    }

    /// A command that was enqueued since `called_ns`.
    pub(super) fn add(&self, event: &Arc<SyclEvent>, moment: bool, called_ns: u64) {
        let mut list = self.list.lock();
        list.truncate(COMMANDS_MAX - 1);
        list.push(TimedCommand { event: Arc::clone(event), moment, called_ns });
    }
}

impl TimedCommand {
    /// The times between which it ran, by the device's clock; 0 says that the runtime does not know.
    fn ran(&self, shared: &DeviceState) -> Option<(u64, u64)> {
        let api = shared.api().ok()?;
        let event = self.event.raw();
        // SAFETY: a live event.
        let (began, ended) = unsafe { ((api.event_began_at)(event), (api.event_ended_at)(event)) };
        (began > 0 && ended >= began).then_some((if self.moment { ended } else { began }, ended))
    }

    /// Notes the event's time by the device's clock, seen done at `now_ns`.
    fn observe(&self, shared: &DeviceState, ended: u64, now_ns: u64) {
        let Ok(api) = shared.api() else { return };
        // SAFETY: a live event.
        let submitted = unsafe { (api.event_submitted_at)(self.event.raw()) };
        let mut clock = shared.clock.lock();
        if submitted > 0 && submitted <= ended {
            clock.not_before(submitted, self.called_ns);
        }
        clock.not_after(ended, now_ns);
    }
}

impl Timing for Commands {
    fn span(&self) -> Option<DeviceSpan> {
        let list = self.list.lock();
        let now_ns = host_now_ns();
        let mut span: Option<(u64, u64)> = None;
        for command in list.iter() {
            let (began, ended) = command.ran(&self.shared)?;
            command.observe(&self.shared, ended, now_ns);
            let (first, last) = span.unwrap_or((began, ended));
            span = Some((first.min(began), last.max(ended)));
        }
        let (began, ended) = span?;
        let clock = *self.shared.clock.lock();
        Some(DeviceSpan { began_ns: clock.host_ns(began)?, ended_ns: clock.host_ns(ended)? })
    }
}
