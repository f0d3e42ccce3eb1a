//! The place and the time at which each part of a trace is drawn: the same in every picture of it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::model::source::{self, Source};
use crate::model::{Lease, LibraryId, Nanos, Operation, OperationKind, Trace, Track, TrackId, TrackKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Row {
    /// A track that something ran or waited on.
    Track(TrackId),
    /// A library, for what belongs to no track.
    Library(Option<LibraryId>),
}

/// An interval of time in a row. One without an end is a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Placed {
    pub row: Row,
    pub from: Nanos,
    pub to: Option<Nanos>,
    /// The end of what it waits for, where it is drawn from before that.
    pub freed: Option<Nanos>,
}

impl Placed {
    /// The time at which an arrow from what it depends on arrives.
    pub(crate) fn arrival(&self) -> Nanos {
        self.freed.unwrap_or(self.from)
    }
}

/// The place of each operation in the picture: the body on its track, a wait on the track that waited, others
/// as a moment.
pub(crate) fn operations(trace: &Trace) -> Vec<Placed> {
    let places = Places::of(trace);
    let all = trace.operations.iter().enumerate();
    all.map(|(at, operation)| places.place(trace, at, operation)).collect()
}

/// The places of operations in the picture, one by one.
pub(crate) struct Places {
    /// Work on device queues, in the order of its end: queue, end, position.
    queued: Vec<(TrackId, Nanos, u32)>,
}

impl Places {
    pub(crate) fn of(source: &impl Source) -> Self {
        let all = source::operations(source).enumerate();
        let mut queued: Vec<(TrackId, Nanos, u32)> = all
            .filter_map(|(at, it)| {
                let (track, end) = queued(source.about(), &it, &operation(source.about(), &it))?;
                Some((track, end, at as u32))
            })
            .collect();
        queued.sort_unstable();
        Self { queued }
    }

    pub(crate) fn place(&self, about: &Trace, at: usize, it: &Operation) -> Placed {
        let mut placed = operation(about, it);
        // Work on an in-order queue begins when the work before it has ended, however early it was handed
        // over.
        if let (Some((track, to)), None) = (queued(about, it, &placed), it.ran)
            && let Some(before) =
                self.queued.partition_point(|it| *it < (track, to, at as u32)).checked_sub(1)
            && let (its_track, end, _) = self.queued[before]
            && its_track == track
        {
            placed.from = placed.from.max(end).min(to);
        }
        placed
    }
}

/// The device queue on which an operation is drawn, and until when.
fn queued(about: &Trace, operation: &Operation, placed: &Placed) -> Option<(TrackId, Nanos)> {
    let (Row::Track(track), Some(to)) = (placed.row, placed.to) else { return None };
    let ran = about.tracks[track].kind == TrackKind::Queue && operation.track == Some(track);
    ran.then_some((track, to))
}

fn operation(trace: &Trace, operation: &Operation) -> Placed {
    let track = |id: Option<TrackId>| id.filter(|&id| id < trace.tracks.len()).map(Row::Track);
    let elsewhere = Row::Library(known(trace, operation.library));
    let latest = operation.done.or(operation.granted).unwrap_or(operation.submitted);
    if let (Some(row), Some(began)) = (track(operation.track), operation.began) {
        let Row::Track(id) = row else { unreachable!("made above") };
        if let (Some(Track { kind: TrackKind::Queue, .. }), Some((from, to))) =
            (trace.tracks.get(id), operation.ran)
        {
            return Placed { row, from, to: Some(to.max(from)), freed: None };
        }
        // A queue is busy until its work is done; a thread has its hands free once the work is handed over.
        let end = match trace.tracks.get(id) {
            Some(Track { kind: TrackKind::Queue, .. }) => operation.done,
            _ => operation.issued.or(operation.done),
        };
        return Placed {
            row,
            from: began,
            to: Some(end.unwrap_or(trace.end_of(operation.id)).max(began)),
            freed: None,
        };
    }
    let row = track(operation.submitter).unwrap_or(elsewhere);
    match operation.kind {
        OperationKind::Operation | OperationKind::Copy => {
            Placed { row, from: latest.max(operation.submitted), to: None, freed: None }
        }
        _ => {
            let end = operation.resumed.or(operation.done).unwrap_or(trace.end_of(operation.id));
            let (from, to) = (operation.submitted, end.max(operation.submitted));
            Placed {
                row,
                from,
                to: Some(to),
                freed: operation.granted.filter(|freed| (from..=to).contains(freed)),
            }
        }
    }
}

pub(crate) fn lease(trace: &Trace, lease: &Lease) -> Placed {
    let end = lease.closed.unwrap_or(trace.end_of(lease.id)).max(lease.opened);
    Placed { row: Row::Library(known(trace, lease.library)), from: lease.opened, to: Some(end), freed: None }
}

/// The library, unless the trace does not know it.
pub(crate) fn known(trace: &Trace, library: Option<LibraryId>) -> Option<LibraryId> {
    library.filter(|&library| library < trace.libraries.len())
}

/// Puts intervals of time, which must come in order of their beginnings, into as few shelves as hold them
/// side by side; gives the shelf of each. An interval may begin at the moment at which another ends.
///
/// Greedy interval partitioning: as many shelves as there are intervals at the same moment at most.
pub(crate) fn shelves(intervals: impl Iterator<Item = (Nanos, Nanos)>) -> Vec<usize> {
    let mut busy = BinaryHeap::new();
    let mut free = BinaryHeap::new();
    let mut count = 0;
    let place = |(from, to): (Nanos, Nanos)| {
        while let Some(&Reverse((end, shelf))) = busy.peek()
            && end <= from
        {
            busy.pop();
            free.push(Reverse(shelf));
        }
        let shelf = free.pop().map_or_else(
            || {
                count += 1;
                count - 1
            },
            |Reverse(shelf)| shelf,
        );
        busy.push(Reverse((to, shelf)));
        shelf
    };
    intervals.map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::shelves;

    #[test]
    fn intervals_share_a_shelf_where_they_do_not_overlap() {
        let intervals = [(0, 10), (2, 4), (4, 4), (4, 9), (9, 12), (10, 11)];
        assert_eq!(shelves(intervals.into_iter()), [0, 1, 1, 1, 1, 0]);
    }
}
