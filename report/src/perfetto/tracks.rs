//! The tracks of a trace, and which event is on which.
//!
//! Slices of one Perfetto track must lie inside each other or apart. Waits do neither, so whatever can overlap gets as many
//! tracks as that takes, which the UI is told to show as one.

use super::messages::{
    CHILD_ORDERING_EXPLICIT, CounterDescriptor, MERGE_BY_KEY, TrackDescriptor, UNIT_SIZE_BYTES,
};
use crate::facts::{Head, Totals};
use crate::model::{Nanos, Recording, Text};
use crate::place::{self, Placed, Row};

/// How many tensors one event describes: few enough to lose little with it.
const TENSORS_PER_EVENT: usize = 256;

/// What an event tells: where to find it in the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Head,
    Tensors {
        first: usize,
        last: usize,
    },
    Operation(usize),
    /// The moment at which what an operation waited for was over.
    Freed(usize),
    Lease(usize),
    Stall(usize),
    /// The edges whose later end is not in the recording.
    LooseEdges,
}

/// The shape of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Begin(What),
    End,
    Moment(What),
    Sample(i64),
}

#[derive(Debug, Clone, Copy)]
pub struct Event {
    pub time: Nanos,
    pub track: u64,
    pub shape: Shape,
}

/// Everything but the strings.
#[derive(Debug, Default)]
pub struct Tracks {
    pub descriptors: Vec<TrackDescriptor>,
    /// In order of time; in order on every track.
    pub events: Vec<Event>,
}

/// What lasts, and a moment inside it.
#[derive(Debug, Clone, Copy)]
struct Slice {
    from: Nanos,
    to: Nanos,
    what: What,
    inside: Option<(Nanos, What)>,
}

/// Things of a row that are shown as one track.
#[derive(Debug, Default)]
struct Group {
    slices: Vec<Slice>,
    moments: Vec<(Nanos, What)>,
}

impl Group {
    fn add(&mut self, placed: &Placed, what: What) {
        let inside = match what {
            What::Operation(index) => placed.freed.map(|freed| (freed, What::Freed(index))),
            _ => None,
        };
        match placed.to {
            Some(to) => self.slices.push(Slice { from: placed.from, to, what, inside }),
            None => self.moments.push((placed.from, what)),
        }
    }
}

/// What is shown of a library.
#[derive(Debug, Default)]
struct LibraryGroups {
    operations: Group,
    waits: Group,
    leases: Group,
}

impl Tracks {
    pub fn of(recording: &Recording) -> Self {
        let mut tracks = Self::default();
        let root = tracks.describe(None, &recording.program, "recorded by estafette");
        tracks.events.push(Event { time: 0, track: root, shape: Shape::Moment(What::Head) });
        tracks.tensors(recording, root);

        let (lanes, libraries) = groups(recording);
        for (lane, group) in recording.lanes.iter().zip(lanes) {
            tracks.group(root, &lane.name, "what ran or waited here", group);
        }
        for (id, groups) in libraries.into_iter().enumerate() {
            let LibraryGroups { operations, waits, leases } = groups;
            // The last one is for what belongs to no library, and usually empty.
            let name = recording.libraries.get(id).map_or("no library", Text::as_str);
            let parent = tracks.describe(Some(root), name, "a library");
            tracks.group(parent, "operations", "what ran on no known lane", operations);
            tracks.group(parent, "waits", "who waited, why, and for whom", waits);
            tracks.group(parent, "leases", "what this library held", leases);
        }
        tracks.counters(recording, root);
        if recording.edges.iter().any(|edge| !has_event(recording, edge.to)) {
            tracks.events.push(Event { time: 0, track: root, shape: Shape::Moment(What::LooseEdges) });
        }
        // Stable: what is on one track stays in order, and an end comes before the beginning at the same moment.
        tracks.events.sort_by_key(|event| event.time);
        // Once more, for a reader to whom the beginning of the file is lost.
        let end = tracks.events.last().map_or(0, |event| event.time).max(recording.duration);
        tracks.events.push(Event { time: end, track: root, shape: Shape::Moment(What::Head) });
        tracks
    }

    /// Adds a track; gives its number.
    fn describe(&mut self, parent: Option<u64>, name: &str, description: &str) -> u64 {
        let uuid = self.descriptors.len() as u64 + 1; // 0 is Perfetto's own default track
        self.descriptors.push(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name.to_owned()),
            parent_uuid: parent,
            child_ordering: Some(CHILD_ORDERING_EXPLICIT),
            sibling_order_rank: i32::try_from(uuid).ok(),
            description: Some(description.to_owned()),
            ..TrackDescriptor::default()
        });
        uuid
    }

    fn tensors(&mut self, recording: &Recording, root: u64) {
        if recording.variables.is_empty() {
            return;
        }
        let track = self.describe(Some(root), "tensors", "all tensors, in the arguments of its events");
        for first in (0..recording.variables.len()).step_by(TENSORS_PER_EVENT) {
            let last = (first + TENSORS_PER_EVENT).min(recording.variables.len());
            self.events.push(Event { time: 0, track, shape: Shape::Moment(What::Tensors { first, last }) });
        }
    }

    /// As many tracks as it takes for slices not to overlap on any.
    fn group(&mut self, parent: u64, name: &str, description: &str, group: Group) {
        let Group { mut slices, moments } = group;
        slices.sort_by_key(|slice| (slice.from, slice.to));
        let shelves = place::shelves(slices.iter().map(|slice| (slice.from, slice.to)));
        let count = shelves.iter().max().map_or(1, |&highest| highest + 1);
        let uuids: Vec<u64> = (0..count).map(|_| self.describe(Some(parent), name, description)).collect();
        for descriptor in &mut self.descriptors[uuids[0] as usize - 1..] {
            descriptor.sibling_merge_behavior = Some(MERGE_BY_KEY);
            descriptor.sibling_merge_key_int = Some(uuids[0]);
        }
        for (slice, shelf) in slices.into_iter().zip(shelves) {
            let track = uuids[shelf];
            self.events.push(Event { time: slice.from, track, shape: Shape::Begin(slice.what) });
            let inside = slice.inside.map(|(time, what)| Event { time, track, shape: Shape::Moment(what) });
            self.events.extend(inside);
            self.events.push(Event { time: slice.to, track, shape: Shape::End });
        }
        let moment = |(time, what)| Event { time, track: uuids[0], shape: Shape::Moment(what) };
        self.events.extend(moments.into_iter().map(moment));
    }

    fn counters(&mut self, recording: &Recording, root: u64) {
        for counter in &recording.counters {
            let track = self.describe(Some(root), &counter.name, "a quantity over time");
            let unit = (counter.unit == "bytes").then_some(UNIT_SIZE_BYTES);
            let descriptor = CounterDescriptor { unit, unit_name: Some(counter.unit.to_string()) };
            if let Some(last) = self.descriptors.last_mut() {
                last.counter = Some(descriptor);
            }
            let sample = |&(time, value)| Event { time, track, shape: Shape::Sample(value) };
            self.events.extend(counter.samples.iter().map(sample));
        }
    }
}

/// Whether an operation or a lease with this number has an event of its own.
pub fn has_event(recording: &Recording, id: u64) -> bool {
    recording.operation(id).is_some() || recording.lease(id).is_some()
}

/// What goes on each lane, and with each library; the last one for no library.
fn groups(recording: &Recording) -> (Vec<Group>, Vec<LibraryGroups>) {
    let none = recording.libraries.len();
    let mut lanes: Vec<Group> = recording.lanes.iter().map(|_| Group::default()).collect();
    let mut libraries: Vec<LibraryGroups> = (0..=none).map(|_| LibraryGroups::default()).collect();
    for (index, placed) in place::operations(recording).into_iter().enumerate() {
        let group = match placed.row {
            Row::Lane(lane) => &mut lanes[lane],
            Row::Library(library) => &mut libraries[library.unwrap_or(none)].operations,
        };
        group.add(&placed, What::Operation(index));
    }
    for (index, lease) in recording.leases.iter().enumerate() {
        let placed = place::lease(recording, lease);
        let library = place::known(recording, lease.library).unwrap_or(none);
        libraries[library].leases.add(&placed, What::Lease(index));
    }
    for (index, stall) in recording.stalls.iter().enumerate() {
        let library = recording.operation(stall.waiter).and_then(|waiter| waiter.library);
        let library = place::known(recording, library).unwrap_or(none);
        let (from, to) = (stall.from, stall.to.max(stall.from));
        let slice = Slice { from, to, what: What::Stall(index), inside: None };
        libraries[library].waits.slices.push(slice);
    }
    (lanes, libraries)
}

/// What of a head's totals a recording lacks, in words.
pub fn missing(head: &Head, recording: &Recording) -> Option<String> {
    let there = Totals::of(recording).named();
    let lacks = |((name, written), (_, read)): ((&str, u64), (&str, u64))| {
        (read < written).then(|| format!("{read} of {written} {name}"))
    };
    let lacking: Vec<String> = head.totals.named().into_iter().zip(there).filter_map(lacks).collect();
    (!lacking.is_empty()).then(|| format!("only {} could be read", lacking.join(", ")))
}
