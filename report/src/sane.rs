//! Times that no recording can have: what a damaged file makes up must not overflow the sums.

use std::borrow::Cow;

use crate::Recording;
use crate::model::Nanos;

/// Three days. Sums of some ten thousand of these still fit.
const TIME_MAX: Nanos = 1 << 48;

/// The recording with every time cut to [`TIME_MAX`]; itself if there is nothing to cut.
pub(crate) fn sane(recording: &Recording) -> Cow<'_, Recording> {
    let mut copy = recording.clone();
    if cut(&mut copy) == 0 { Cow::Borrowed(recording) } else { Cow::Owned(copy) }
}

/// Says how many it has cut.
fn cut(recording: &mut Recording) -> usize {
    let mut count = 0;
    let mut time = |time: &mut Nanos| {
        count += usize::from(*time > TIME_MAX);
        *time = (*time).min(TIME_MAX);
    };
    time(&mut recording.duration);
    for operation in &mut recording.operations {
        time(&mut operation.submitted);
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
        later.into_iter().flatten().for_each(&mut time);
        if let Some((from, to)) = &mut operation.ran {
            time(from);
            time(to);
        }
    }
    for lease in &mut recording.leases {
        time(&mut lease.opened);
        lease.closed.iter_mut().for_each(&mut time);
    }
    for stall in &mut recording.stalls {
        time(&mut stall.from);
        time(&mut stall.to);
        stall.to = stall.to.max(stall.from);
    }
    count
}
