//! The engine while it runs: what is stalled at this moment, and the watchdog that reports long stalls.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use estafette_devices::log_panic;
use estafette_sync::stack;
use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::time::Instant;

use crate::core::lease_info::LeaseInfo;
use crate::exchange::{Release, ReleaseStatus};
use crate::trace;
use crate::wait::diagnose::{Diagnosis, OpStatus, Status};

/// The activity of an engine at one moment. Leases and waits of the program count like operations.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Activity {
    /// Operations whose body runs, or whose work has not reported back.
    pub running: usize,
    /// Operations that may run, but that no worker has taken.
    pub ready: usize,
    /// Operations that wait for other operations, or for pending fences of their inputs.
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

/// True if leases alone are in the way of `op`. A lease that waits itself has no holder yet.
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
    Operation {
        /// The first that stalled for this reason.
        first: &'a OpStatus,
        /// The number of others that stall for the same reason, or wait for those that do.
        behind: usize,
    },
    /// Memory that does not go back to its owner. Such memory belongs to the process, so each engine's
    /// watchdog reports it.
    Release(&'a Release),
}

impl std::fmt::Display for Stall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Operation { first, behind: 0 } => first.fmt(f),
            Self::Operation { first, behind } => write!(f, "{first}, and {behind} behind it"),
            Self::Release(release) => release.fmt(f),
        }
    }
}

/// Called once for each reason for stalls that last longer than the limit, on the watchdog's thread, under no
/// lock.
pub(crate) type OnStall = Arc<dyn Fn(Stall<'_>) + Send + Sync>;

/// Reports a stall as an event of `tracing`.
pub(crate) fn log(stall: Stall<'_>) {
    match stall {
        Stall::Operation { first, .. } => tracing::warn!(
            target: "estafette::stall",
            id = first.id,
            operation = first.name,
            age_ms = first.age.as_millis() as u64,
            "{stall}"
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
/// late, and at most half of it where no worker is free.
const LOOKS: u32 = 4;

/// The least time between two inspections; the cost of each is proportional to what is in flight.
const LOOK_MIN: Duration = Duration::from_millis(5);

/// Inspects now and then what is stalled. Dropping the watch ends its thread, which owns nothing of the
/// engine.
pub(crate) struct StallWatch {
    ended: Arc<StopFlag>,
}

#[derive(Default)]
struct StopFlag {
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
        let ended = Arc::new(StopFlag::default());
        let watch = Self { ended: Arc::clone(&ended) };
        let pause = (limit / LOOKS).max(LOOK_MIN);
        stack::thread("estafette-watchdog").spawn(move || {
            let mut reported = Reported::default();
            while ended.sleep(pause) {
                let Some(diagnosis) = watched.upgrade().map(|watched| diagnose(&watched)) else { return };
                notify(&diagnosis, limit, Instant::now(), &mut reported, &on_stall);
            }
        })?;
        Ok(watch)
    }
}

/// The watchdog's knowledge from its inspections.
#[derive(Default)]
struct Reported {
    /// Operations that were reported, or counted behind one that was, and are stalled still.
    operations: HashMap<u64, CountedStall>,
    releases: HashSet<u64>,
    /// Since when operations are known to be granted.
    granted: HashMap<u64, Instant>,
}

/// The reason why an operation stalls.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Reason {
    NoWorker,
    Fences(String),
    /// The identity of an operation or a lease that does not stall itself.
    Behind(u64),
}

/// A stalled operation that a report has counted.
struct CountedStall {
    reported: Reason,
    /// The reason at the last inspection, and since when.
    present: Reason,
    since: Instant,
}

/// The stalled operations by what stalls them: each reason, the first operation, and the identities of all.
fn by_reason<'a>(stalled: impl Iterator<Item = &'a OpStatus>) -> Vec<(Reason, &'a OpStatus, Vec<u64>)> {
    let mut groups: Vec<(Reason, &OpStatus, Vec<u64>)> = Vec::new();
    let (mut group_of, mut reasons) = (HashMap::new(), HashMap::new());
    for op in stalled {
        let ahead = op.blocked_by.iter().find_map(|blocker| group_of.get(&blocker.id)).copied();
        let group = ahead.unwrap_or_else(|| {
            let reason = match &op.status {
                Status::Granted => Reason::NoWorker,
                Status::Fenced(fences) => Reason::Fences(fences.clone()),
                _ => Reason::Behind(op.blocked_by.first().map_or(op.id, |blocker| blocker.id)),
            };
            *reasons.entry(reason.clone()).or_insert_with(|| {
                groups.push((reason, op, Vec::new()));
                groups.len() - 1
            })
        });
        groups[group].2.push(op.id);
        group_of.insert(op.id, group);
    }
    groups
}

fn notify(diagnosis: &Diagnosis, limit: Duration, now: Instant, reported: &mut Reported, on_stall: &OnStall) {
    let granted = diagnosis.operations.iter().filter(|op| op.status == Status::Granted);
    let since = |op: &OpStatus| (op.id, reported.granted.get(&op.id).copied().unwrap_or(now));
    reported.granted = granted.map(since).collect();
    let stalled = |op: &&OpStatus| match op.status {
        Status::Waiting | Status::Fenced(_) => op.age >= limit,
        // Before it was granted it waited for something else.
        Status::Granted => now.saturating_duration_since(reported.granted[&op.id]) >= limit,
        _ => false,
    };
    let groups = by_reason(diagnosis.operations.iter().filter(stalled));
    // Identities are not used again, so what is not stalled any more may be forgotten.
    let still: HashSet<u64> = groups.iter().flat_map(|(_, _, all)| all).copied().collect();
    reported.operations.retain(|id, _| still.contains(id));
    for (reason, first, all) in groups {
        let (mut is_reported, mut is_due) = (false, false);
        for id in &all {
            let Some(known) = reported.operations.get_mut(id) else {
                is_due = true;
                continue;
            };
            if known.present != reason {
                (known.present, known.since) = (reason.clone(), now);
            }
            is_reported |= known.reported == reason;
            // A reason that follows another one is a stall of its own when it has lasted as long.
            is_due |= now.saturating_duration_since(known.since) >= limit;
        }
        if is_due && !is_reported {
            report(Stall::Operation { first, behind: all.len() - 1 }, on_stall);
        }
        if is_due || is_reported {
            let known = || CountedStall { reported: reason.clone(), present: reason.clone(), since: now };
            reported.operations.extend(all.iter().map(|id| (*id, known())));
        }
    }
    let slow = diagnosis.releases.iter().filter(|release| release.age >= limit);
    // Memory that waited for another deleter is reported again when its own does not return.
    let key = |slow: &Release| slow.id << 1 | u64::from(slow.status == ReleaseStatus::Deleting);
    report_new(
        slow.map(|slow| (key(slow), Stall::Release(slow))).collect(),
        &mut reported.releases,
        on_stall,
    );
}

fn report(stall: Stall<'_>, on_stall: &OnStall) {
    trace::note_stall();
    log_panic("what a watchdog calls", || on_stall(stall));
}

fn report_new(stalled: Vec<(u64, Stall<'_>)>, reported: &mut HashSet<u64>, on_stall: &OnStall) {
    let still: HashSet<u64> = stalled.iter().map(|(id, _)| *id).collect();
    reported.retain(|id| still.contains(id));
    for (id, stall) in stalled {
        if reported.insert(id) {
            report(stall, on_stall);
        }
    }
}

impl StopFlag {
    /// True if `pause` went by without the end.
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

#[cfg(test)]
mod tests {
    use estafette_graph::Hazard;

    use super::*;
    use crate::wait::diagnose::Blocker;

    const LIMIT: Duration = Duration::from_secs(10);

    fn status(id: u64, status: Status, ahead: &[u64]) -> OpStatus {
        let blocker = |id: &u64| Blocker {
            id: *id,
            name: String::new(),
            variable: 1,
            hazard: Hazard::Raw,
            lease: None,
        };
        let blocked_by = ahead.iter().map(blocker).collect();
        OpStatus { id, name: "op".into(), status, age: 2 * LIMIT, blocked_by, lease: None }
    }

    /// The reports at these moments: first operations, and how many are behind each.
    fn reports(looks: Vec<(u64, Vec<OpStatus>)>) -> Vec<Vec<(u64, usize)>> {
        let reports: Arc<Mutex<Vec<(u64, usize)>>> = Arc::default();
        let telling = Arc::clone(&reports);
        let on_stall: OnStall = Arc::new(move |stall| {
            let Stall::Operation { first, behind } = stall else { panic!("{stall}") };
            telling.lock().push((first.id, behind));
        });
        let (begin, mut reported) = (Instant::now(), Reported::default());
        let look = |(seconds, operations): (u64, Vec<OpStatus>)| {
            let diagnosis = Diagnosis { operations, unlisted: 0, releases: Vec::new() };
            notify(&diagnosis, LIMIT, begin + Duration::from_secs(seconds), &mut reported, &on_stall);
            std::mem::take(&mut *reports.lock())
        };
        looks.into_iter().map(look).collect()
    }

    #[test]
    fn one_reason_is_one_report_however_many_stall_for_it() {
        // The lease 1 holds up 2 and 3, and these hold up 4 and 5. The lease 6 holds up 7.
        let stalled = || {
            let held = |id| status(id, Status::Held("lease".into()), &[]);
            let waits = |id, ahead: &[u64]| status(id, Status::Waiting, ahead);
            vec![
                held(1),
                waits(2, &[1]),
                waits(3, &[1]),
                waits(4, &[2, 3]),
                waits(5, &[4]),
                held(6),
                waits(7, &[6]),
            ]
        };
        let mut later = stalled();
        later.push(status(8, Status::Waiting, &[5]));
        assert_eq!(
            reports(vec![(0, stalled()), (3, stalled()), (6, later)]),
            [vec![(2, 3), (7, 0)], vec![], vec![]]
        );
    }

    #[test]
    fn a_reason_that_follows_another_is_reported_when_it_has_lasted() {
        // The lease 1 holds up 3 and 4, the lease 2 holds up 4. The first lease ends, 3 runs and ends, and 4
        // waits on.
        let held = |id| status(id, Status::Held("lease".into()), &[]);
        let waits = |id, ahead: &[u64]| status(id, Status::Waiting, ahead);
        let both = || vec![held(1), held(2), waits(3, &[1]), waits(4, &[3, 2])];
        let runs = || vec![held(2), status(3, Status::Running, &[]), waits(4, &[3, 2])];
        let second = || vec![held(2), waits(4, &[2])];
        let looks =
            vec![(0, both()), (11, runs()), (14, second()), (23, second()), (24, second()), (40, second())];
        assert_eq!(reports(looks), [vec![(3, 1)], vec![], vec![], vec![], vec![(4, 0)], vec![]]);
    }

    #[test]
    fn one_reason_is_one_report_when_an_earlier_operation_stalls_for_it_later() {
        let later = || status(2, Status::Granted, &[]);
        let (runs, granted) = (status(1, Status::Running, &[]), || status(1, Status::Granted, &[]));
        let looks = vec![
            (0, vec![runs, later()]),
            (6, vec![granted(), later()]),
            (11, vec![granted(), later()]),
            (16, vec![granted(), later()]),
        ];
        assert_eq!(reports(looks), [vec![], vec![], vec![(2, 0)], vec![]]);
    }

    #[test]
    fn what_was_granted_late_has_not_waited_for_a_worker_before() {
        let granted = || vec![status(1, Status::Granted, &[]), status(2, Status::Granted, &[])];
        let waiting = vec![status(1, Status::Running, &[]), status(2, Status::Running, &[])];
        let looks = vec![(0, waiting), (3, granted()), (6, granted()), (13, granted()), (16, granted())];
        assert_eq!(reports(looks), [vec![], vec![], vec![], vec![(1, 1)], vec![]]);
    }
}
