//! Times that no trace can have: what a damaged file makes up must not overflow the sums.

use std::borrow::Cow;

use crate::Trace;
use crate::model::Nanos;

/// Three days and six hours. Sums of some ten thousand of these still fit.
pub(crate) const TIME_MAX: Nanos = 1 << 48;

/// The trace with every time cut to [`TIME_MAX`], which its losses say; itself if there is nothing to cut.
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
    let operations = || trace.operations.iter().all(|it| sane(it.submitted) && it.later().all(sane));
    let leases = || trace.leases.iter().all(|it| sane(it.opened) && it.closed.is_none_or(sane));
    let stalls = || trace.stalls.iter().all(|it| sane(it.to) && it.from <= it.to);
    let ends = || trace.ends.iter().copied().all(sane);
    sane(trace.duration) && ends() && operations() && leases() && stalls()
}

fn cut(trace: &mut Trace) {
    each_time(trace, |time| *time = (*time).min(TIME_MAX));
    let words =
        "times after the first 78 hours are counted as 78 hours: of a longer run, record the last hours";
    trace.losses.damage.push(words.to_owned());
    trace.stalls.iter_mut().for_each(|stall| stall.to = stall.to.max(stall.from));
}

pub(crate) fn each_time(trace: &mut Trace, mut f: impl FnMut(&mut Nanos)) {
    f(&mut trace.duration);
    trace.ends.iter_mut().for_each(&mut f);
    for operation in &mut trace.operations {
        f(&mut operation.submitted);
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
        later.into_iter().flatten().for_each(&mut f);
        if let Some((from, to)) = &mut operation.ran {
            f(from);
            f(to);
        }
    }
    for lease in &mut trace.leases {
        f(&mut lease.opened);
        lease.closed.iter_mut().for_each(&mut f);
    }
    for stall in &mut trace.stalls {
        f(&mut stall.from);
        f(&mut stall.to);
    }
    for (time, _) in trace.counters.iter_mut().flat_map(|counter| &mut counter.samples) {
        f(time);
    }
}
