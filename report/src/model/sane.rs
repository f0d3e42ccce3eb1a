//! Times that no trace can have: what a damaged file makes up must not overflow the sums.

use std::borrow::Cow;

use crate::Trace;
use crate::model::{Nanos, Operation};

/// Three days. Sums of some ten thousand of these still fit.
const TIME_MAX: Nanos = 1 << 48;

/// The trace with every time cut to [`TIME_MAX`]; itself if there is nothing to cut.
pub(crate) fn sane(trace: &Trace) -> Cow<'_, Trace> {
    if is_sane(trace) {
        return Cow::Borrowed(trace);
    }
    let mut copy = trace.clone();
    cut(&mut copy);
    Cow::Owned(copy)
}

fn is_sane(trace: &Trace) -> bool {
    let sane = |time: Nanos| time <= TIME_MAX;
    let operations = || trace.operations.iter().all(|it| sane(it.submitted) && later(it).all(sane));
    let leases = || trace.leases.iter().all(|it| sane(it.opened) && it.closed.is_none_or(sane));
    let stalls = || trace.stalls.iter().all(|it| sane(it.to) && it.from <= it.to);
    sane(trace.duration) && operations() && leases() && stalls()
}

/// What happened to an operation after its submission.
fn later(operation: &Operation) -> impl Iterator<Item = Nanos> {
    let Operation { granted, ready, awake, began, issued, ran, done, observed, resumed, .. } = *operation;
    let (ran_from, ran_to) = ran.unzip();
    [granted, ready, awake, began, issued, ran_from, ran_to, done, observed, resumed].into_iter().flatten()
}

fn cut(trace: &mut Trace) {
    let cut = |time: &mut Nanos| *time = (*time).min(TIME_MAX);
    cut(&mut trace.duration);
    for operation in &mut trace.operations {
        cut(&mut operation.submitted);
        let later = [
            &mut operation.granted,
            &mut operation.ready,
            &mut operation.awake,
            &mut operation.began,
            &mut operation.issued,
            &mut operation.done,
            &mut operation.observed,
            &mut operation.resumed,
        ];
        later.into_iter().flatten().for_each(cut);
        if let Some((from, to)) = &mut operation.ran {
            cut(from);
            cut(to);
        }
    }
    for lease in &mut trace.leases {
        cut(&mut lease.opened);
        lease.closed.iter_mut().for_each(cut);
    }
    for stall in &mut trace.stalls {
        cut(&mut stall.from);
        cut(&mut stall.to);
        stall.to = stall.to.max(stall.from);
    }
}
