//! The tracks of a trace.
//!
//! Slices of one Perfetto track must lie inside each other or apart. Waits overlap, so each group of slices
//! gets several tracks, which the file marks to be shown as one. A track is described when it is needed
//! first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::messages::{
    CHILD_ORDERING_EXPLICIT, CounterDescriptor, MERGE_BY_KEY, ProcessDescriptor, TrackDescriptor,
    UNIT_SIZE_BYTES,
};
use crate::format::facts::{Head, Totals};
use crate::model::{LibraryId, Text, Trace};

/// The track of everything that belongs to the whole trace.
pub const ROOT: u32 = 1; // 0 is Perfetto's own default track

/// Slices that are shown as one track.
#[derive(Debug)]
struct Group {
    /// The description of its first track.
    descriptor: TrackDescriptor,
    /// Its tracks on which no slice is open.
    free: BinaryHeap<Reverse<u32>>,
}

/// The groups of a library, as its groups follow each other.
#[derive(Debug, Clone, Copy)]
pub enum OfLibrary {
    Operations,
    Waits,
    Leases,
}

const LIBRARY_GROUPS: [(&str, &str); 3] = [
    ("operations", "what ran on no known track"),
    ("waits", "who waited, why, and for whom"),
    ("leases", "what this library held"),
];

#[derive(Debug, Default)]
pub struct Tracks {
    /// Group per track; unspecified for a track without one.
    group_of: Vec<u32>,
    /// One group per track of the model, then three per library, then three for the rest.
    groups: Vec<Group>,
    model_tracks: usize,
    libraries: usize,
    /// The track of tensors, if there are any.
    pub tensors: Option<u32>,
    counters: u32,
}

impl Tracks {
    /// The tracks that every trace has, and their descriptions. `counters`: names and units.
    pub fn of<'a>(
        about: &Trace,
        has_tensors: bool,
        counters: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> (Self, Vec<TrackDescriptor>) {
        let (model_tracks, libraries) = (about.tracks.len(), about.libraries.len());
        let (mut tracks, mut all) = (Self { model_tracks, libraries, ..Self::default() }, Vec::new());
        let mut root = tracks.describe(None, &about.program, "recorded by estafette");
        if let [process] = &about.processes[..] {
            let (pid, process_name) = (i32::try_from(process.number).ok(), Some(about.program.to_string()));
            root.process = Some(ProcessDescriptor { pid, process_name });
        }
        all.push(root);
        if has_tensors {
            all.push(tracks.describe(Some(ROOT), "tensors", "all tensors, in the arguments of its events"));
            tracks.tensors = Some(tracks.newest());
        }
        for track in &about.tracks {
            all.push(tracks.group(ROOT, &track.name, "what ran or waited here"));
        }
        // The last one is for what belongs to no library, and usually empty.
        for library in 0..=libraries {
            let name = about.libraries.get(library).map_or("no library", Text::as_str);
            all.push(tracks.describe(Some(ROOT), name, "a library"));
            let parent = tracks.newest();
            all.extend(LIBRARY_GROUPS.map(|(name, description)| tracks.group(parent, name, description)));
        }
        tracks.counters = tracks.newest() + 1;
        for (name, unit) in counters {
            let mut descriptor = tracks.describe(Some(ROOT), name, "a quantity over time");
            let (unit, unit_name) = ((unit == "bytes").then_some(UNIT_SIZE_BYTES), Some(unit.to_owned()));
            descriptor.counter = Some(CounterDescriptor { unit, unit_name });
            all.push(descriptor);
        }
        (tracks, all)
    }

    fn newest(&self) -> u32 {
        self.group_of.len() as u32
    }

    fn describe(&mut self, parent: Option<u32>, name: &str, description: &str) -> TrackDescriptor {
        self.group_of.push(self.groups.len() as u32);
        let uuid = self.newest();
        TrackDescriptor {
            uuid: Some(uuid.into()),
            name: Some(name.to_owned()),
            parent_uuid: parent.map(u64::from),
            child_ordering: Some(CHILD_ORDERING_EXPLICIT),
            sibling_order_rank: i32::try_from(uuid).ok(),
            description: Some(description.to_owned()),
            ..TrackDescriptor::default()
        }
    }

    /// Adds a group with its first track, and describes that.
    fn group(&mut self, parent: u32, name: &str, description: &str) -> TrackDescriptor {
        let mut descriptor = self.describe(Some(parent), name, description);
        descriptor.sibling_merge_behavior = Some(MERGE_BY_KEY);
        descriptor.sibling_merge_key_int = descriptor.uuid;
        let free = BinaryHeap::from([Reverse(self.newest())]);
        self.groups.push(Group { descriptor: descriptor.clone(), free });
        descriptor
    }

    /// The number of a library's group. The number of a track's group is the track.
    pub fn library(&self, library: Option<LibraryId>, what: OfLibrary) -> usize {
        self.model_tracks + LIBRARY_GROUPS.len() * library.unwrap_or(self.libraries) + what as usize
    }

    /// The first track of a group.
    pub fn first(&self, group: usize) -> u32 {
        self.groups[group].descriptor.uuid.unwrap_or_default() as u32
    }

    pub fn counter(&self, counter: usize) -> u32 {
        self.counters + counter as u32
    }

    /// A track of the group for a slice that begins; how it is described, if it is new.
    pub fn begin(&mut self, group: usize) -> (u32, Option<TrackDescriptor>) {
        if let Some(Reverse(track)) = self.groups[group].free.pop() {
            return (track, None);
        }
        self.group_of.push(group as u32);
        let track = self.newest();
        // It has the place of the group's first track.
        let uuid = Some(track.into());
        (track, Some(TrackDescriptor { uuid, ..self.groups[group].descriptor.clone() }))
    }

    /// The slice on this track has ended.
    pub fn end(&mut self, track: u32) {
        let group = self.group_of[track as usize - 1] as usize;
        self.groups[group].free.push(Reverse(track));
    }
}

/// The part of a head's totals that a trace lacks, in words.
pub fn missing(head: &Head, trace: &Trace) -> Option<String> {
    let there = Totals::of(trace).named();
    let lacks = |((name, written), (_, read)): ((&str, u64), (&str, u64))| {
        (read < written).then(|| format!("{read} of {written} {name}"))
    };
    let lacking: Vec<String> = head.totals.named().into_iter().zip(there).filter_map(lacks).collect();
    (!lacking.is_empty()).then(|| format!("only {} could be read", lacking.join(", ")))
}
