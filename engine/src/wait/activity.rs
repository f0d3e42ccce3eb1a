//! The engine while it runs: what is stalled at this moment, and the watchdog that reports long stalls.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use estafette_devices::log_panic;
use estafette_sync::stack;
use estafette_sync::sync::{Condvar, Mutex};

use crate::core::lease_info::LeaseInfo;
use crate::exchange::{Release, ReleaseStatus};
use crate::trace;
use crate::wait::diagnose::{Diagnosis, OpStatus, Status};

/// What an engine is doing at one moment. Leases and waits of the program count like operations.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Activity {
    /// Operations whose body runs, or whose work has not reported back.
    pub running: usize,
    /// Operations that may run, but that no worker has taken, or whose inputs have pending fences.
    pub ready: usize,
    /// Operations that wait for other operations.
    pub queued: usize,
    /// Operations that wait for leases alone, which are held.
    pub leased: usize,
    /// The lease that has been held longest.
    pub oldest_lease: Option<LeaseInfo>,
}

impl From<&Diagnosis> for Activity {
    fn from(diagnosis: &Diagnosis) -> Self {
        let mut live = Self::default();
        let waits = |op: &&OpStatus| op.status == Status::Waiting;
        let waiting: HashSet<u64> = diagnosis.operations.iter().filter(waits).map(|op| op.id).collect();
        for op in &diagnosis.operations {
            match &op.status {
                Status::Running => live.running += 1,
                Status::Granted => live.ready += 1,
                Status::Waiting if only_leases(op, &waiting) => live.leased += 1,
                Status::Waiting | Status::Fenced(_) => live.queued += 1,
                Status::Held(_) => {
                    let older = |known: &LeaseInfo, new: &LeaseInfo| known.age >= new.age;
                    if let Some(lease) = &op.lease
                        && !live.oldest_lease.as_ref().is_some_and(|known| older(known, lease))
                    {
                        live.oldest_lease = Some(lease.clone());
                    }
                }
                Status::Cancelled => {}
            }
        }
        live
    }
}

/// Whether leases alone are in the way of `op`. A lease that waits itself has no holder yet.
fn only_leases(op: &OpStatus, waiting: &HashSet<u64>) -> bool {
    let mut blockers = op.blocked_by.iter();
    !op.blocked_by.is_empty()
        && blockers.all(|blocked| blocked.lease.is_some() && !waiting.contains(&blocked.id))
}

/// A stall that the watchdog has found. Its `Display` form is its line of [`Diagnosis`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Stall<'a> {
    /// A waiting operation, lease or wait of the program.
    Operation(&'a OpStatus),
    /// Memory that does not go back to its owner. Such memory belongs to the process, so each engine's
    /// watchdog reports it.
    Release(&'a Release),
}

impl std::fmt::Display for Stall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Operation(op) => op.fmt(f),
            Self::Release(release) => release.fmt(f),
        }
    }
}

/// Called once for each stall that lasts longer than the limit, on the watchdog's thread, under no lock.
pub(crate) type OnStall = Arc<dyn Fn(Stall<'_>) + Send + Sync>;

/// Reports a stall as an event of `tracing`.
pub(crate) fn log(stall: Stall<'_>) {
    match stall {
        Stall::Operation(op) => tracing::warn!(
            target: "estafette::stall",
            id = op.id,
            operation = op.name,
            age_ms = op.age.as_millis() as u64,
            "{op}"
        ),
        Stall::Release(release) => tracing::warn!(
            target: "estafette::stall",
            release = release.id,
            age_ms = release.age.as_millis() as u64,
            "{release}"
        ),
    }
}

/// Inspections of the watchdog within its limit: the report of a stall is at most a quarter of the limit
/// late.
const LOOKS: u32 = 4;

/// The least time between two inspections; the cost of each is proportional to what is in flight.
const LOOK_MIN: Duration = Duration::from_millis(5);

/// Inspects now and then what is stalled. Dropping the watch ends its thread, which owns nothing of the
/// engine.
pub(crate) struct StallWatch {
    ended: Arc<Ended>,
}

#[derive(Default)]
struct Ended {
    flag: Mutex<bool>,
    changed: Condvar,
}

impl StallWatch {
    /// Watches whatever `diagnose` sees through `watched`, until that is gone.
    pub(crate) fn start<T: Send + Sync + 'static>(
        watched: Weak<T>,
        diagnose: fn(&T) -> Diagnosis,
        limit: Duration,
        on_stall: OnStall,
    ) -> std::io::Result<Self> {
        let ended = Arc::new(Ended::default());
        let watch = Self { ended: Arc::clone(&ended) };
        let pause = (limit / LOOKS).max(LOOK_MIN);
        stack::thread("estafette-watchdog").spawn(move || {
            let mut reported = Reported::default();
            while ended.sleep(pause) {
                let Some(diagnosis) = watched.upgrade().map(|watched| diagnose(&watched)) else { return };
                notify(&diagnosis, limit, &mut reported, &on_stall);
            }
        })?;
        Ok(watch)
    }
}

/// Identities of what was reported and is stalled still.
#[derive(Default)]
struct Reported {
    operations: HashSet<u64>,
    releases: HashSet<u64>,
}

fn notify(diagnosis: &Diagnosis, limit: Duration, reported: &mut Reported, on_stall: &OnStall) {
    let stalled = |op: &&OpStatus| {
        matches!(op.status, Status::Waiting | Status::Granted | Status::Fenced(_)) && op.age >= limit
    };
    let stalled = diagnosis.operations.iter().filter(stalled).map(|op| (op.id, Stall::Operation(op)));
    report_new(stalled.collect(), &mut reported.operations, on_stall);
    let slow = diagnosis.releases.iter().filter(|release| release.age >= limit);
    // Memory that waited for another deleter is reported again when its own does not return.
    let key = |slow: &Release| slow.id << 1 | u64::from(slow.status == ReleaseStatus::Deleting);
    report_new(
        slow.map(|slow| (key(slow), Stall::Release(slow))).collect(),
        &mut reported.releases,
        on_stall,
    );
}

fn report_new(stalled: Vec<(u64, Stall<'_>)>, reported: &mut HashSet<u64>, on_stall: &OnStall) {
    // Identities are not used again, so what is not stalled any more may be forgotten.
    let still: HashSet<u64> = stalled.iter().map(|(id, _)| *id).collect();
    reported.retain(|id| still.contains(id));
    for (id, stall) in stalled {
        if reported.insert(id) {
            trace::note_stall();
            log_panic("what a watchdog calls", || on_stall(stall));
        }
    }
}

impl Ended {
    /// Whether `pause` went by without the end.
    fn sleep(&self, pause: Duration) -> bool {
        let flag = self.flag.lock();
        if *flag {
            return false;
        }
        let (flag, _) = self.changed.wait_timeout(flag, pause);
        !*flag
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        *self.ended.flag.lock() = true;
        self.ended.changed.notify_all();
    }
}
