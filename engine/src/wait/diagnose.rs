//! Waits of operations for each other: a snapshot of everything in flight, in words.

use std::fmt;
use std::time::Duration;

use estafette_graph::{Hazard, OpId, StepKind};
use estafette_report::shown::shown;

use crate::core::engine_core::Core;
use crate::core::lease_info::{CLAUSES_MAX, LeaseInfo, alike, and_more, more_like_it};
use crate::core::operation::{Op, OpHandle, OpKind, OpState, Phase};
use crate::core::wait_for;
use crate::exchange::{Release, reaper};
use crate::operation::parked;
use crate::tensor::handle::Tensor;
use crate::wait::blocking::{OpSummary, summarize, take_snapshot_of};
use crate::wait::inspect::Inspection;
use crate::wait::ready::VersionEnd;

/// Everything that is in flight, and what each waiting operation waits for.
///
/// The `Display` form is one line per operation and release, one for all leases that differ in age alone, and
/// one for all that is unlisted; the fields are for programs.
#[derive(Debug, Clone)]
pub struct Diagnosis {
    /// Operations in flight, in submission order; leases and waiting futures included.
    pub operations: Vec<OpStatus>,
    /// Operations in flight that use no tensor or variable, and permits that no operation has used yet. The
    /// engine knows only their number.
    pub unlisted: usize,
    /// Memory of this process, of any engine, whose release has taken long. Each deleter that has run for
    /// more than a quarter of a second is listed. So is the oldest memory that waits for such a deleter, or
    /// for device work for more than ten seconds.
    pub releases: Vec<Release>,
}

/// One operation in flight.
#[derive(Debug, Clone)]
pub struct OpStatus {
    /// Identity, as in errors and traces.
    pub id: u64,
    /// Name given at submission.
    pub name: String,
    /// The state of the operation.
    pub status: Status,
    /// Time since submission, accurate to a few milliseconds.
    pub age: Duration,
    /// The operations and leases that this operation directly waits for; empty unless `status` is
    /// [`Status::Waiting`] or [`Status::Cancelled`].
    pub blocked_by: Vec<Blocker>,
    /// The owner of a lease, held or still waiting; `None` for every other operation.
    pub lease: Option<LeaseInfo>,
}

/// The state of an operation in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// Waits for earlier operations or leases.
    Waiting,
    /// May proceed, but has not begun: no worker is free.
    Granted,
    /// May proceed once fences of its inputs are done: device work, an import, or a promise of another
    /// process. They are named in words.
    Fenced(String),
    /// The body runs, or the work that the body started has not reported back.
    Running,
    /// Cancelled. The operation keeps its place among the writes of its outputs until its turn, when the
    /// engine skips it.
    Cancelled,
    /// A lease that is held, in words.
    Held(String),
}

/// One reason to wait.
#[derive(Debug, Clone)]
pub struct Blocker {
    /// The operation or lease in the way.
    pub id: u64,
    /// The name of the operation, or the owner of the lease.
    pub name: String,
    /// The variable that both operations use.
    pub variable: u64,
    /// Read after write, write after read, or write after write.
    pub hazard: Hazard,
    /// The lease in the way, if the blocker is a lease.
    pub lease: Option<LeaseInfo>,
}

pub(crate) fn diagnose(core: &Core) -> Diagnosis {
    if core.generation.is_inherited() {
        // Nothing of it runs here.
        return Diagnosis { operations: Vec::new(), unlisted: 0, releases: Vec::new() };
    }
    let (snapshot, unlisted) = take_snapshot_of(core);
    let mut explained = snapshot.explained();
    let mut operations: Vec<OpStatus> = snapshot
        .ops
        .iter()
        .filter(|op| op.label.core == core.id)
        .map(|op| OpStatus {
            id: op.id.get(),
            name: op.label.name.as_str().to_string(),
            status: status(op.id, &op.label, op.granted),
            age: op.label.since.elapsed(),
            blocked_by: explained
                .dependencies(op)
                .into_iter()
                .map(|dependency| Blocker {
                    id: dependency.op.get(),
                    name: snapshot.op(dependency.op).map_or_else(String::new, |op| describe(&op.label)),
                    variable: dependency.var.get(),
                    hazard: dependency.hazard,
                    lease: snapshot.op(dependency.op).and_then(|op| op.label.lease.clone()),
                })
                .collect(),
            lease: op.label.lease.clone(),
        })
        .collect();
    operations.sort_by_key(|op| op.id);
    Diagnosis { operations, unlisted, releases: reaper().slow() }
}

/// The blocker of the current version of `tensor`, as a diagnosis says it, for the error of a wait whose time
/// is up. `None` where an inspection of what is near does not show it.
pub fn tensor_waits_for(tensor: &Tensor) -> Option<String> {
    // Leaves a failure unretrieved that has come meanwhile.
    let ended = VersionEnd::new(&tensor.inner, false);
    // No operation is under way for a value that another process or a device has yet to make.
    ended
        .handle()
        .and_then(|op| holding_up(&op))
        .or_else(|| parked::pending_in_words(&tensor.inner.writers()))
}

/// As [`tensor_waits_for`], of an operation.
pub fn op_waits_for(op: &Op) -> Option<String> {
    holding_up(&op.handle)
}

/// The oldest operation or lease near `op` that waits for no other one.
fn holding_up(op: &OpHandle) -> Option<String> {
    let inspection = Inspection::of(op, wait_for::NEAR);
    let is_over = |op: &OpState| op.kind == OpKind::ReadinessQuery || op.phase() == Phase::Done;
    let left = inspection.granted().filter(|step| !matches!(step.what, StepKind::Op(op) if is_over(op)));
    let first = left.min_by_key(|step| step.id)?;
    let state = match first.what {
        StepKind::Op(state) => state,
        StepKind::Pin(lease) => return Some(format!("a {}", shown(&lease.to_string()))),
    };
    let seen = summarize(state);
    let (id, name) = (first.id.get(), state.name.as_str().to_string());
    let (status, age) = (status(first.id, &seen, true), state.since.elapsed());
    Some(OpStatus { id, name, status, age, blocked_by: Vec::new(), lease: seen.lease }.to_string())
}

fn describe(seen: &OpSummary) -> String {
    match &seen.lease {
        Some(lease) if seen.phase == Phase::Queued => {
            format!("{} lease wanted by {}", lease.access, lease.owner)
        }
        Some(lease) => lease.to_string(),
        None => format!("`{}`", shown(seen.name.as_str())),
    }
}

fn status(id: OpId, seen: &OpSummary, granted: bool) -> Status {
    match (seen.phase, &seen.lease) {
        (Phase::Cancelled, _) => Status::Cancelled,
        (_, _) if !granted => Status::Waiting,
        (Phase::Begun, Some(lease)) if seen.kind == OpKind::Lease => Status::Held(lease.to_string()),
        (Phase::Begun | Phase::Done, _) => Status::Running,
        (Phase::Queued, _) => parked::fences_of(id).map_or(Status::Granted, Status::Fenced),
    }
}

impl Diagnosis {
    /// True if nothing is in flight, and no release of memory has taken long.
    pub fn is_idle(&self) -> bool {
        self.operations.is_empty() && self.unlisted == 0 && self.releases.is_empty()
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_idle() {
            return f.write_str("nothing in flight");
        }
        let kind = |op: &&OpStatus| match (&op.status, &op.lease) {
            (Status::Held(_), Some(lease)) => Ok(lease.without_age()),
            _ => Err(op.id),
        };
        let operations = alike(&self.operations, kind).into_iter();
        let operations = operations.map(|(op, more)| format!("{op}{}", more_like_it(more)));
        let unlisted = (self.unlisted > 0).then(|| {
            let (s, are) = if self.unlisted == 1 { ("", "is") } else { ("s", "are") };
            format!("{} operation{s} or permit{s} without operands {are} in flight", self.unlisted)
        });
        let releases = self.releases.iter().map(ToString::to_string);
        let lines: Vec<_> = operations.chain(unlisted).chain(releases).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl fmt::Display for OpStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {} `{}` ", self.id, shown(&self.name))?;
        match &self.status {
            Status::Held(text) => write!(f, "is a {}", shown(text))?,
            Status::Granted => f.write_str("may run, but has not begun")?,
            Status::Fenced(fences) => write!(f, "waits for {}", shown(fences))?,
            Status::Running => f.write_str("is running")?,
            Status::Cancelled if self.blocked_by.is_empty() => f.write_str("is cancelled")?,
            Status::Cancelled | Status::Waiting => {
                let cancelled = self.status == Status::Cancelled;
                f.write_str(if cancelled { "is cancelled, and is skipped after " } else { "waits for " })?;
                let kind = |blocked: &&Blocker| match &blocked.lease {
                    Some(lease) => Ok((lease.without_age(), blocked.hazard)),
                    None => Err((blocked.id, blocked.variable)),
                };
                let alike = alike(&self.blocked_by, kind);
                let words = |(blocked, more): &(&Blocker, usize)| {
                    let Blocker { id, name, hazard, variable, .. } = blocked;
                    let more = more_like_it(*more);
                    format!("operation {id} {} ({hazard} on variable {variable}){more}", shown(name))
                };
                let clauses = alike.iter().take(CLAUSES_MAX).map(words).chain(and_more(&alike));
                f.write_str(&clauses.collect::<Vec<_>>().join(", "))?;
            }
        }
        write!(f, "; submitted {:.1?} ago", self.age)
    }
}
