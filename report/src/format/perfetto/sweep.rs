//! The events of a trace in order of time, each made when its time has come.
//!
//! An item (an operation with its lease and its stalls) has several events. From its first event to its last,
//! memory has only its number and the time of its next event; the item is made anew for each event, unless it
//! was made lately. So memory follows what overlaps in time, not the trace's size.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::rc::Rc;

use super::messages::TrackDescriptor;
use super::ties::{Orphan, Ties};
use super::tracks::{OfLibrary, Tracks};
use crate::analysis::attribution::changes;
use crate::analysis::place::{self, Placed, Places, Row};
use crate::model::source::Source;
use crate::model::{Lease, Nanos, Operation, Stall};

/// Things that are kept for their next events: about as many as are in flight at most unless a program asks
/// for more.
const KEPT: usize = 4096;

/// The order of what happens at one moment. A slice ends before another one begins; one that begins and ends
/// at once comes before those that last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Freed,
    End,
    AtOnce,
    Begin,
}

/// The next event: the order is that of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Next {
    time: Nanos,
    turn: Turn,
    item: u32,
    /// Of a beginning: index into the steps of its item.
    step: u32,
    /// Of what is inside a slice, or its end: the track.
    track: u32,
}

/// The subject of an item's event.
#[derive(Debug, Clone, Copy)]
pub enum Subject {
    Operation,
    Lease,
    /// Index into the item's stalls.
    Stall(usize),
    /// A counter's number, and by how much it changes.
    Change(usize, i64),
}

/// Something that begins, or a moment.
#[derive(Debug, Clone, Copy)]
pub struct TimedEvent {
    time: Nanos,
    turn: Turn,
    to: Option<Nanos>,
    freed: Option<Nanos>,
    group: u32,
    pub what: Subject,
}

/// An item with all facts about it.
pub struct TraceItem<'a> {
    pub number: usize,
    pub operation: Option<Cow<'a, Operation>>,
    pub lease: Option<Cow<'a, Lease>>,
    pub stalls: Cow<'a, [Stall]>,
    steps: Vec<TimedEvent>,
}

impl TraceItem<'_> {
    /// True if this event carries the item's dependences: that of the operation, if there is one.
    pub fn has_dependences(&self, what: Subject) -> bool {
        match what {
            Subject::Operation => true,
            Subject::Lease => self.operation.is_none(),
            Subject::Stall(_) | Subject::Change(..) => false,
        }
    }
}

/// An event.
pub enum SweepEvent<'a> {
    Begin(Rc<TraceItem<'a>>, Subject, u32),
    Moment(Rc<TraceItem<'a>>, Subject, u32),
    /// The item that an operation waited for was over; the wait is on a track.
    Freed(Rc<TraceItem<'a>>, u32),
    End(u32),
    /// A counter has this value from now on.
    Sample(usize, i64),
}

/// The sweep over a trace.
pub struct Sweep<'a, S, T> {
    source: &'a S,
    ties: &'a T,
    places: Places,
    /// Things in the order in which they are taken in, unless that is the one of their numbers.
    order: Option<Vec<u32>>,
    taken_in: usize,
    next: BinaryHeap<Reverse<Next>>,
    kept: Vec<Option<Rc<TraceItem<'a>>>>,
    /// The next samples of counters that have them: time, counter, index.
    samples: BinaryHeap<Reverse<(Nanos, usize, usize)>>,
    /// The values of counters that are counted meanwhile, and whether they have changed at this moment.
    counted: [(i64, bool); 3],
    now: Nanos,
}

impl<'a, S: Source, T: Ties> Sweep<'a, S, T> {
    pub fn of(source: &'a S, ties: &'a T) -> Self {
        let mut sweep = Self {
            source,
            ties,
            places: Places::of(source),
            order: None,
            taken_in: 0,
            next: BinaryHeap::new(),
            kept: (0..KEPT).map(|_| None).collect(),
            samples: BinaryHeap::new(),
            counted: [(0, false); 3],
            now: 0,
        };
        let things = 0..ties.things();
        if !things.clone().is_sorted_by_key(|item| sweep.earliest(item)) {
            let mut order: Vec<(Nanos, u32)> =
                things.map(|item| (sweep.earliest(item), item as u32)).collect();
            order.sort_unstable();
            sweep.order = Some(order.iter().map(|(_, item)| *item).collect());
        }
        for (counter, its) in ties.counters().unwrap_or_default().iter().enumerate() {
            sweep.samples.extend(its.samples.first().map(|(time, _)| Reverse((*time, counter, 0))));
        }
        sweep
    }

    /// The time of the newest event.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// No event of an item comes before this moment.
    fn earliest(&self, item: usize) -> Nanos {
        match self.ties.orphan(item) {
            None => self.ties.earliest(item, &self.source.operation(item)),
            Some(Orphan::Lease(lease)) => self.source.about().leases[lease].opened,
            Some(Orphan::Stall(stall)) => self.ties.orphan_stall(stall).from,
        }
    }

    /// Calls `event` with every event, in order of time. Tracks that are new are described to `describe`.
    pub fn run(
        &mut self,
        tracks: &mut Tracks,
        event: &mut impl FnMut(&Self, Nanos, SweepEvent<'a>, Option<TrackDescriptor>) -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            self.take_in(tracks);
            let Some(Reverse(next)) = self.next.pop() else { break };
            self.until(next.time, event)?;
            match next.turn {
                Turn::Freed => {
                    let item = self.item(next.item as usize, tracks);
                    event(self, self.now, SweepEvent::Freed(item, next.track), None)?;
                }
                Turn::End => {
                    tracks.end(next.track);
                    event(self, self.now, SweepEvent::End(next.track), None)?;
                }
                Turn::AtOnce | Turn::Begin => self.step(next, tracks, event)?,
            }
        }
        self.until(Nanos::MAX, event)
    }

    /// Takes in the things whose first event may come next.
    fn take_in(&mut self, tracks: &Tracks) {
        while self.taken_in < self.ties.things() {
            let item = self.order.as_ref().map_or(self.taken_in, |order| order[self.taken_in] as usize);
            let earliest = self.earliest(item);
            if self.next.peek().is_some_and(|Reverse(next)| next.time < earliest) {
                break;
            }
            self.taken_in += 1;
            let item = self.item(item, tracks);
            self.put(&item, 0);
        }
    }

    /// Puts an item where its step has its turn.
    fn put(&mut self, item: &TraceItem<'_>, step: usize) {
        if let Some(&TimedEvent { time, turn, .. }) = item.steps.get(step) {
            let next = Next { time, turn, item: item.number as u32, step: step as u32, track: 0 };
            self.next.push(Reverse(next));
        }
    }

    fn step(
        &mut self,
        next: Next,
        tracks: &mut Tracks,
        event: &mut impl FnMut(&Self, Nanos, SweepEvent<'a>, Option<TrackDescriptor>) -> io::Result<()>,
    ) -> io::Result<()> {
        let item = self.item(next.item as usize, tracks);
        let step = item.steps[next.step as usize];
        self.put(&item, next.step as usize + 1);
        let group = step.group as usize;
        match (step.what, step.to) {
            (Subject::Change(counter, amount), _) => {
                let (value, changed) = &mut self.counted[counter];
                (*value, *changed) = (value.saturating_add(amount), true);
            }
            (what, None) => event(self, self.now, SweepEvent::Moment(item, what, tracks.first(group)), None)?,
            (what, Some(to)) => {
                let (track, new) = tracks.begin(group);
                event(self, self.now, SweepEvent::Begin(Rc::clone(&item), what, track), new)?;
                let inside = Next { turn: Turn::Freed, track, ..next };
                let end = Next { time: to, turn: Turn::End, track, ..next };
                if step.turn == Turn::AtOnce {
                    if step.freed.is_some() {
                        event(self, self.now, SweepEvent::Freed(item, track), None)?;
                    }
                    tracks.end(track);
                    event(self, self.now, SweepEvent::End(track), None)?;
                } else {
                    self.next.extend(step.freed.map(|time| Reverse(Next { time, ..inside })));
                    self.next.push(Reverse(end));
                }
            }
        }
        Ok(())
    }

    /// Time goes on: emits the samples of before.
    fn until(
        &mut self,
        time: Nanos,
        event: &mut impl FnMut(&Self, Nanos, SweepEvent<'a>, Option<TrackDescriptor>) -> io::Result<()>,
    ) -> io::Result<()> {
        while let Some(&Reverse((at, counter, index))) = self.samples.peek()
            && at < time
        {
            self.samples.pop();
            let samples = &self.ties.counters().unwrap_or_default()[counter].samples;
            self.samples.extend(samples.get(index + 1).map(|(at, _)| Reverse((*at, counter, index + 1))));
            event(self, at, SweepEvent::Sample(counter, samples[index].1), None)?;
        }
        if time > self.now {
            for counter in 0..self.counted.len() {
                if std::mem::take(&mut self.counted[counter].1) {
                    event(self, self.now, SweepEvent::Sample(counter, self.counted[counter].0), None)?;
                }
            }
            if time < Nanos::MAX {
                self.now = time;
            }
        }
        Ok(())
    }

    fn item(&mut self, number: usize, tracks: &Tracks) -> Rc<TraceItem<'a>> {
        let kept = &self.kept[number % KEPT];
        if let Some(item) = kept.as_ref().filter(|item| item.number == number) {
            return Rc::clone(item);
        }
        let item = Rc::new(self.make(number, tracks));
        self.kept[number % KEPT] = Some(Rc::clone(&item));
        item
    }

    fn make(&self, number: usize, tracks: &Tracks) -> TraceItem<'a> {
        let about = self.source.about();
        let mut item =
            TraceItem { number, operation: None, lease: None, stalls: Cow::Borrowed(&[]), steps: Vec::new() };
        match self.ties.orphan(number) {
            None => {
                let operation = self.source.operation(number);
                item.lease = self.source.lease(number, &operation);
                item.stalls = self.ties.stalls(number, &operation);
                let placed = self.places.place(about, number, &operation);
                let group = match placed.row {
                    Row::Track(track) => track,
                    Row::Library(library) => tracks.library(library, OfLibrary::Operations),
                };
                item.steps.push(slice(&placed, group, Subject::Operation));
                item.operation = Some(operation);
            }
            Some(Orphan::Lease(lease)) => item.lease = Some(Cow::Borrowed(&about.leases[lease])),
            Some(Orphan::Stall(stall)) => item.stalls = Cow::Owned(vec![self.ties.orphan_stall(stall)]),
        }
        if let Some(lease) = &item.lease {
            let group = tracks.library(place::known(about, lease.library), OfLibrary::Leases);
            item.steps.push(slice(&place::lease(about, lease), group, Subject::Lease));
        }
        let library = item.operation.as_ref().and_then(|operation| operation.library);
        let group = tracks.library(place::known(about, library), OfLibrary::Waits);
        for (index, stall) in item.stalls.iter().enumerate() {
            let placed =
                Placed { row: Row::Library(None), from: stall.from, to: Some(stall.to), freed: None };
            item.steps.push(slice(&placed, group, Subject::Stall(index)));
        }
        if self.ties.counters().is_none() {
            let bytes = item
                .lease
                .as_ref()
                .and_then(|lease| self.source.variable(self.source.variable_position(lease.variable)?).bytes);
            changes(item.operation.as_deref(), item.lease.as_deref(), bytes, |counter, time, amount| {
                let what = Subject::Change(counter, amount);
                item.steps.push(TimedEvent {
                    time,
                    turn: Turn::Begin,
                    to: None,
                    freed: None,
                    group: 0,
                    what,
                });
            });
        }
        item.steps.sort_by_key(|step| (step.time, step.turn));
        item
    }

    /// The dependences of an item that have an arrow: those that arrive at it, and those that leave it. An
    /// arrow needs both ends, and time runs forwards.
    pub fn arrows(&self, item: &TraceItem<'_>) -> (Vec<u64>, Vec<u64>) {
        let operation = item.operation.as_deref();
        let lease = || item.lease.as_ref().map(|lease| lease.id);
        let Some(id) = operation.map(|operation| operation.id).or_else(lease) else {
            return Default::default();
        };
        let (number, begin) = (item.number, self.begins(item.number));
        let arrival = self.arrives(number);
        let mut arriving = self.ties.arriving(id, number, operation);
        arriving.retain(|(from, _)| self.begins(*from) < arrival);
        let mut leaving = self.ties.leaving(id, number, operation);
        leaving.retain(|(to, _)| begin < self.arrives(*to));
        let numbers = |arrows: Vec<(usize, u64)>| arrows.into_iter().map(|(_, arrow)| arrow).collect();
        (numbers(arriving), numbers(leaving))
    }

    /// True if arrows end at an event after the beginning of an item.
    pub fn is_freed_later(&self, item: &TraceItem<'_>) -> bool {
        self.arrives(item.number).1 == Turn::Freed
    }

    fn placed(&self, number: usize) -> Placed {
        let about = self.source.about();
        match self.ties.orphan(number) {
            Some(Orphan::Lease(lease)) => place::lease(about, &about.leases[lease]),
            // A stall has no dependences.
            Some(Orphan::Stall(_)) => Placed { row: Row::Library(None), from: 0, to: None, freed: None },
            None => self.places.place(about, number, &self.source.operation(number)),
        }
    }

    /// The time of the event that carries an item's dependences.
    fn begins(&self, number: usize) -> (Nanos, Turn, usize) {
        let placed = self.placed(number);
        (placed.from, turn(&placed), number)
    }

    /// The time of the event at which arrows end.
    fn arrives(&self, number: usize) -> (Nanos, Turn, usize) {
        let placed = self.placed(number);
        match placed.freed {
            Some(freed) if turn(&placed) == Turn::Begin => (freed, Turn::Freed, number),
            _ => (placed.from, turn(&placed), number),
        }
    }
}

fn turn(placed: &Placed) -> Turn {
    if placed.to.is_some_and(|to| to <= placed.from) { Turn::AtOnce } else { Turn::Begin }
}

fn slice(placed: &Placed, group: usize, what: Subject) -> TimedEvent {
    let to = placed.to.map(|to| to.max(placed.from));
    TimedEvent { time: placed.from, turn: turn(placed), to, freed: placed.freed, group: group as u32, what }
}
