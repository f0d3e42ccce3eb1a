//! Blocking waits for fences.

use estafette_devices::{Fence, FenceSet, Outcome};
use estafette_graph::OpId;
use estafette_sync::time::{Duration, Instant};

use crate::core::clock;
use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::exchange::callback;
use crate::exchange::foreign_fence::{self, RawFence};
use crate::wait::stand_in::{Blocked, StandInSet};

/// Sleep of a wait on the host between two checks for an interrupt.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// The time that a wait which knows no engine sleeps before other threads run what is ready.
const INSPECTION_FIRST: Duration = Duration::from_millis(10);

/// As [`PAUSE`], in an engine without workers.
const PAUSE_WITHOUT_WORKERS: Duration = Duration::from_millis(1);

/// Waits for device work, or for what another operation settles.
pub(crate) fn wait_on_host(
    core: &CoreRef,
    fences: &FenceSet,
    deadline: Option<Instant>,
    timeout: Option<Duration>,
) -> Result<(), Error> {
    let _cover = core.cover();
    let may_help = timeout.is_none() && core.helps_without_workers();
    // On this thread an operation that waits for the current one would never end.
    let helps = may_help && context::current().is_none();
    let mut stand_ins = StandInSet::default();
    for fence in fences {
        stand_ins.start_over();
        while fence.state().is_pending() {
            callback::check()?;
            // Only this thread may be able to run the operation that completes a host promise.
            if helps && core.help_any() {
                core.check_raised()?;
                continue;
            }
            // A queue of a device settles its fences whatever waits here.
            if may_help && !helps && fence.queue().is_none() {
                stand_ins.rely_on(core, "a fence")?;
            } else if !helps {
                stand_ins.relieve(core);
            }
            let now = Instant::now();
            if let (Some(deadline), Some(timeout)) = (deadline, timeout)
                && now >= deadline
            {
                return Err(Error::Timeout(timeout));
            }
            let pause = if helps { PAUSE_WITHOUT_WORKERS } else { PAUSE };
            let pause = deadline.map_or(pause, |deadline| pause.min(deadline - now));
            if context::blocking(|| fence.wait_timeout(Some(pause))).is_none() {
                core.check_interrupt(&|_| None)?;
            }
        }
    }
    Ok(())
}

/// Waits as the function of a fence that another scheduler has. Runs no operation on this thread, which may
/// hold locks of that scheduler. `None` when `timeout` passed first.
fn wait_for_scheduler(core: &CoreRef, fence: &Fence, timeout: Option<Duration>) -> Option<Outcome> {
    if timeout == Some(Duration::ZERO) || !fence.state().is_pending() {
        return fence.wait_timeout(timeout);
    }
    let _cover = core.cover();
    let mut stand_ins = StandInSet::default();
    wait_while(fence, timeout, || {
        // The work that settles the fence may become ready later, when the threads are blocked.
        if core.has_no_free_thread() {
            core.end_caller_runs();
            stand_ins.want(core);
        }
    })
}

/// As [`wait_for_scheduler`], where no engine is known that could settle the fence: once the wait has slept
/// in vain, stand-ins run what is ready in engines without workers.
pub(crate) fn wait_without_engine(fence: &Fence, timeout: Option<Duration>) -> Option<Outcome> {
    let first = timeout.map_or(INSPECTION_FIRST, |timeout| timeout.min(INSPECTION_FIRST));
    let outcome = context::blocking(|| fence.wait_timeout(Some(first)));
    if outcome.is_some() || timeout == Some(first) {
        return outcome;
    }
    let _blocked = Blocked::register();
    let mut stand_ins = StandInSet::default();
    wait_while(fence, timeout.map(|timeout| timeout - first), || stand_ins.want_all())
}

/// Waits for a fence, and calls `before` before each sleep.
fn wait_while(fence: &Fence, timeout: Option<Duration>, mut before: impl FnMut()) -> Option<Outcome> {
    let deadline = timeout.and_then(clock::deadline);
    loop {
        before();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let outcome =
            context::blocking(|| fence.wait_timeout(Some(left.map_or(PAUSE, |left| left.min(PAUSE)))));
        if outcome.is_some() || left.is_some_and(|left| left <= PAUSE) {
            return outcome;
        }
    }
}

/// `fence`, which operations of the engine may have to settle, those of `after` among them, for another
/// scheduler.
pub(crate) fn export(core: &CoreRef, fence: Fence, after: Vec<OpId>) -> RawFence {
    let device = core.device(fence.device());
    foreign_fence::export_of(core, wait_for_scheduler, fence, device, after)
}
