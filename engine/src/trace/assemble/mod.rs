//! From events to operations.
//!
//! The events stay where they lie. What is added is an index: the places of all events, sorted by their
//! operations, four bytes for each. An operation is made from its events when it is asked for, so that a
//! trace can be written without being in memory as a whole.
//!
//! | part | what it has |
//! |---|---|
//! | `blocks` | memory with whole events, and the places of events in it |
//! | `in_flight` | operations in flight where the beginning of a trace is left out |
//! | `operation` | one operation, made of its events |
//! | `source` | operations, leases and variables, one by one or all at once |

mod blocks;
mod in_flight;
mod operation;
mod source;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use estafette_report::Trace;
use estafette_report::model::{
    LibraryId, LostRecords, Nanos, Operation, OperationKind, Text, Track, TrackId, TrackKind, Workers,
};
use estafette_report::source::{Merging, Source};
use estafette_sync::sync::atomic::Ordering;

use self::blocks::{EventBlock, Words, places};
use self::operation::ThreadTable;
use super::buffer::WORDS;
use super::encoding::{DecodedEvent, EventKind, engine_of, halves, widened};
use super::names;
use super::ticks::Scale;
use super::writer::{Session, ThreadLog};

pub(super) use self::blocks::BLOCKS_MAX;
pub(super) use self::in_flight::{BEFORE, InFlight, is_any_running};

/// A thread of the trace.
pub(super) struct Thread {
    pub(super) name: Text,
    pub(super) kind: TrackKind,
    /// Events that did not fit.
    pub(super) lost: u64,
    /// Texts that its events refer to by number.
    pub(super) texts: Vec<Text>,
    /// The body that still ran there: operation and ticks.
    pub(super) running: Option<(u64, u64)>,
}

/// Names that programs have given their variables.
type Names<'a> = Box<dyn Fn(u64) -> Option<Text> + 'a>;

/// The events of a trace, and where those of each operation lie.
pub(super) struct EventIndex<'a> {
    scale: Scale,
    /// Tracks, libraries, losses.
    about: Trace,
    threads: Vec<ThreadTable>,
    /// The index of its thread, and its events.
    blocks: Vec<(u32, EventBlock)>,
    libraries: HashMap<Text, LibraryId>,
    queues: HashMap<u64, TrackId>,
    /// Workers of each engine.
    workers: BTreeMap<u64, Workers>,
    /// Bodies that still ran, by operation: ticks, track.
    running: HashMap<u64, (u64, TrackId)>,
    /// Places of events, by operation, in the order in which they were read.
    index: Vec<u32>,
    /// The positions in the index at which the events of each operation begin; one more at the end.
    operations: Vec<u32>,
    leases: usize,
    /// Waits for the operation that ends last: position of the wait, operation. Sorted.
    waits_for_any: Vec<(u32, u64)>,
    /// All variables, sorted.
    variables: Vec<u64>,
    /// Places of events that describe variables, sorted by variable.
    descriptions: Vec<u32>,
    names: Names<'a>,
    /// The operations in flight, if these are known and the beginning is left out.
    pub(super) in_flight: Option<HashSet<u64>>,
    empty: Text,
    nameless: Text,
    lease: Text,
}

impl EventIndex<'static> {
    /// The events of a session so far.
    pub(super) fn of(session: &Session) -> Self {
        let program = session.program.as_str().into();
        let processes = vec![session.process.clone()];
        let scale = session.scale();
        let about = Trace {
            program,
            started_unix_ns: session.started_unix_ns,
            processes,
            // Bodies that ran then may have been over long before the part that is kept.
            began_amid_bodies: session.began_amid_bodies && !scale.is_cut(),
            ..Trace::default()
        };
        // Operations in flight are listed before the events are read: so each end that comes meanwhile is
        // among the events.
        let in_flight = scale.is_cut().then(|| InFlight::now(scale.first()));
        let mut events = Self::new(scale, about, Box::new(names::get));
        in_flight.into_iter().for_each(|in_flight| events.before(in_flight));
        let threads = session.threads.lock().clone();
        threads.iter().for_each(|thread| events.log(thread));
        events.finish()
    }

    /// Adds what is in flight and was submitted before the part that is kept. What was noted of it takes
    /// precedence, since it comes later.
    fn before(&mut self, in_flight: InFlight) {
        let InFlight { ids, texts, words, .. } = in_flight;
        if !ids.is_empty() {
            let texts = texts.into_iter().map(Text::from).collect();
            self.begin(Thread {
                name: BEFORE.into(),
                kind: TrackKind::Thread,
                lost: 0,
                texts,
                running: None,
            });
            words.into_iter().for_each(|words| self.words(words));
        }
        self.in_flight = Some(ids);
    }

    fn log(&mut self, log: &ThreadLog) {
        let running = log.running.get();
        let buffers: Vec<EventBlock> = log
            .buffers
            .links()
            .map(|buffer| {
                let published = buffer.value.published();
                EventBlock::Buffer(buffer, published)
            })
            .collect();
        // After the buffers: texts come before the events that refer to them.
        let texts = log.texts.links().map(|text| Arc::clone(&text.value).into()).collect();
        let lost = log.lost.load(Ordering::Relaxed);
        self.begin(Thread { name: log.name.as_str().into(), kind: log.kind(), lost, texts, running });
        buffers.into_iter().for_each(|buffer| self.add(buffer));
    }
}

impl<'a> EventIndex<'a> {
    /// None yet. `about` has what is not in the events.
    pub(super) fn new(scale: Scale, mut about: Trace, names: Names<'a>) -> Self {
        for process in &mut about.processes {
            process.started_ns = process.started_ns.saturating_add(scale.cut_ns());
        }
        let started_unix_ns = about.started_unix_ns + scale.cut_ns();
        Self {
            about: Trace { duration: scale.duration(), started_unix_ns, ..about },
            scale,
            threads: Vec::new(),
            blocks: Vec::new(),
            libraries: HashMap::new(),
            queues: HashMap::new(),
            workers: BTreeMap::new(),
            running: HashMap::new(),
            index: Vec::new(),
            operations: Vec::new(),
            leases: 0,
            waits_for_any: Vec::new(),
            variables: Vec::new(),
            descriptions: Vec::new(),
            names,
            in_flight: None,
            empty: Text::default(),
            nameless: "(no name kept)".into(),
            lease: "lease".into(),
        }
    }

    /// Begins with the events of another thread.
    pub(super) fn begin(&mut self, thread: Thread) {
        let track = self.about.tracks.len();
        let describes = thread.name == BEFORE;
        self.about.tracks.push(Track { name: thread.name, kind: thread.kind });
        if thread.lost > 0 {
            self.about.losses.records.push(LostRecords { track, count: thread.lost });
        }
        self.running.extend(thread.running.map(|(id, ticks)| (id, (ticks, track))));
        let (texts, engines, sites) = (thread.texts, Vec::new(), RefCell::default());
        self.threads.push(ThreadTable { track, describes, texts, engines, sites });
    }

    /// Adds whole events of that thread, at most as many words as a buffer has.
    pub(super) fn words(&mut self, words: Vec<u64>) {
        let near = self.scale.is_cut().then(|| self.scale.parts().0);
        self.add(EventBlock::Own(words, near));
    }

    fn add(&mut self, block: EventBlock) {
        if self.blocks.len() < BLOCKS_MAX && block.len() > 0 {
            let number = self.blocks.len();
            self.blocks.push((self.threads.len() as u32 - 1, block));
            self.register(number);
        }
    }

    /// Numbers the queues and libraries that a block names, and finds the engines.
    fn register(&mut self, block: usize) {
        let thread = self.blocks[block].0 as usize;
        for at in places(block, &self.blocks[block].1) {
            let (kind, queue_or_library, second, time) = self.with(at, |_, event| {
                let library = match event.kind {
                    Some(EventKind::Variable) => halves(event.word(1)).1,
                    Some(EventKind::LeaseOwner) => halves(event.word(0)).1,
                    Some(EventKind::LeasePinned) => halves(event.word(1)).1,
                    _ => event.word(0) as u32,
                };
                (event.kind, (event.word(0), library), event.word(1), self.scale.nanos(event.ticks))
            });
            match kind {
                Some(EventKind::Began) if queue_or_library.0 != 0 => {
                    let (number, tracks) = (queue_or_library.0, &mut self.about.tracks);
                    self.queues.entry(number).or_insert_with(|| {
                        tracks.push(Track { name: format!("queue {number}").into(), kind: TrackKind::Queue });
                        tracks.len() - 1
                    });
                }
                Some(
                    EventKind::Variable | EventKind::LeaseOwner | EventKind::LeasePinned | EventKind::Library,
                ) => {
                    let name = self.threads[thread].known(queue_or_library.1);
                    if let Some(name) = name.filter(|name| !self.libraries.contains_key(*name)) {
                        self.libraries.insert(name.clone(), self.about.libraries.len());
                        self.about.libraries.push(name.clone());
                    }
                }
                Some(EventKind::Engine) => {
                    let ((engine, is_worker), (count, at_once)) =
                        (engine_of(queue_or_library.0), halves(second));
                    let table = &mut self.threads[thread];
                    table.engines.push((at, engine));
                    let workers = self.workers.entry(engine).or_default();
                    (workers.engine, workers.count) = (engine, count);
                    match &mut workers.at_once[..] {
                        // A thread that turns from one engine to another notes each again and again.
                        [.., (first, before), (last, now)]
                            if [*before, *now] == [at_once; 2] && *first <= *last && *last <= time =>
                        {
                            *last = time;
                        }
                        _ => workers.at_once.push((time, at_once)),
                    }
                    workers.tracks.extend(is_worker.then_some(table.track));
                }
                _ => {}
            }
        }
    }

    /// The engine of what was submitted at a place; 0 if that is not known.
    fn engine(&self, place: u32) -> u64 {
        let engines = &self.threads[self.blocks[place as usize / WORDS].0 as usize].engines;
        let before = engines.partition_point(|(from, _)| *from < place);
        before.checked_sub(1).map_or(0, |last| engines[last].1)
    }

    /// Calls `f` with the event at a place and the table of the thread that noted the event.
    fn with<R>(&self, place: u32, f: impl FnOnce(&ThreadTable, DecodedEvent<'_>) -> R) -> R {
        let (thread, block) = &self.blocks[place as usize / WORDS];
        let mut words = Words::new();
        block.event(place as usize % WORDS, &mut words);
        let nothing = DecodedEvent { kind: None, ticks: 0, id: 0, words: &[] };
        let event = DecodedEvent::first_of(&words).map_or(nothing, |(event, _)| event);
        f(&self.threads[*thread as usize], DecodedEvent { ticks: block.ticks(event.ticks), ..event })
    }

    /// The kind of the event at a place, and its operation or variable.
    fn kind_and_id(&self, place: u32) -> (Option<EventKind>, u64) {
        let block = &self.blocks[place as usize / WORDS].1;
        let (head, id) = (block.word(place as usize % WORDS), block.word(place as usize % WORDS + 1));
        let kind = EventKind::of(head);
        match kind {
            Some(EventKind::SubmittedNarrow | EventKind::RanNarrow) => (kind, widened(id).0),
            _ => (kind, id),
        }
    }

    fn places(&self) -> impl Iterator<Item = u32> {
        self.blocks.iter().enumerate().flat_map(|(number, (_, block))| places(number, block))
    }

    /// Makes the index.
    pub(super) fn finish(mut self) -> Self {
        let describes = |events: &Self, place: u32| events.kind_and_id(place).0 == Some(EventKind::Variable);
        let (mut all, mut descriptions) = (0, 0);
        for place in self.places() {
            *if describes(&self, place) { &mut descriptions } else { &mut all } += 1;
        }
        let sorted = |count: usize, wanted: bool| {
            let mut sorted = Vec::with_capacity(count);
            sorted.extend(self.places().filter(|place| describes(&self, *place) == wanted));
            // Stable, so that the places of one operation stay in their order; and threads are mostly sorted
            // themselves.
            sorted.sort_by_key(|place| self.kind_and_id(*place).1);
            sorted
        };
        let mut index = sorted(all, false);
        let operations = self.keep_submitted(&mut index);
        let mut descriptions = sorted(descriptions, true);
        self.keep_last(&mut descriptions);
        (self.index, self.operations, self.descriptions) = (index, operations, descriptions);
        self.find_leases_and_variables();
        for workers in self.workers.values_mut() {
            workers.at_once.sort_unstable();
            workers.at_once.dedup_by_key(|(_, at_once)| *at_once);
            workers.tracks.sort_unstable();
            workers.tracks.dedup();
        }
        self.about.workers = std::mem::take(&mut self.workers).into_values().collect();
        self
    }

    /// Keeps the descriptions of a variable that matter: the last one, and the last that names a library. A
    /// variable that is lent thousands of times may be described as often, and each of its leases is written
    /// with its name.
    fn keep_last(&self, descriptions: &mut Vec<u32>) {
        let names_library = |place: u32| {
            self.with(place, |table, event| self.library(table.known(halves(event.word(1)).1)).is_some())
        };
        let (mut kept, mut first) = (0, 0);
        while first < descriptions.len() {
            let id = self.kind_and_id(descriptions[first]).1;
            let own = descriptions[first..].iter().take_while(|place| self.kind_and_id(**place).1 == id);
            let last = first + own.count() - 1;
            let library = (first..last).rfind(|at| names_library(descriptions[*at]));
            for at in library.into_iter().chain([last]) {
                descriptions[kept] = descriptions[at];
                kept += 1;
            }
            first = last + 1;
        }
        descriptions.truncate(kept);
        descriptions.shrink_to_fit();
    }

    /// Removes what was submitted before the recorder was opened, or whose submission was lost. Returns where
    /// each operation begins.
    fn keep_submitted(&self, index: &mut Vec<u32>) -> Vec<u32> {
        let submits = |place: &u32| {
            let submitting = [
                EventKind::Submitted,
                EventKind::SubmittedNarrow,
                EventKind::WaitsFor,
                EventKind::LeasePinned,
            ];
            self.kind_and_id(*place).0.is_some_and(|kind| submitting.contains(&kind))
        };
        // An operation that was over before the part that is kept may have lost its end already.
        let is_kept = |places: &[u32]| {
            let in_time = |place: &u32| self.with(*place, |_, event| self.scale.has(event.ticks));
            places.iter().any(submits)
                && (!self.scale.is_cut() || places.iter().any(in_time) || self.is_under_way(places))
        };
        let end_of = |index: &[u32], first: usize| {
            let id = self.kind_and_id(index[first]).1;
            let own = index[first..].iter().take_while(|place| self.kind_and_id(**place).1 == id);
            first + own.count()
        };
        let (mut kept, mut count, mut first) = (0, 0, 0);
        while first < index.len() {
            let end = end_of(index, first);
            if is_kept(&index[first..end]) {
                index.copy_within(first..end, kept);
                kept += end - first;
                count += 1;
            }
            first = end;
        }
        index.truncate(kept);
        let mut operations = Vec::with_capacity(count + 1);
        let mut first = 0;
        while first < index.len() {
            operations.push(first as u32);
            first = end_of(index, first);
        }
        operations.push(first as u32);
        operations
    }

    /// True if what has nothing within the part that is kept goes on in it.
    fn is_under_way(&self, places: &[u32]) -> bool {
        let Some((first, last)) = places.first().zip(places.last()) else { return false };
        let (id, (newest, _)) = (self.kind_and_id(*first).1, self.kind_and_id(*last));
        // A wait notes both of its ends, a task's maybe on two threads. What else is in flight is known where
        // the process is still there.
        let has_resumed =
            || places.iter().any(|place| self.kind_and_id(*place).0 == Some(EventKind::Resumed));
        (newest == Some(EventKind::WaitsFor) && !has_resumed())
            || self.running.contains_key(&id)
            || self.in_flight.as_ref().is_none_or(|all| all.contains(&id))
    }

    /// Finds all leases, variables, and what waits for everything have waited for: for what ended last.
    fn find_leases_and_variables(&mut self) {
        let mut variables = Merging::new(|variables: &mut Vec<u64>| {
            variables.sort_unstable();
            variables.dedup();
        });
        self.descriptions.iter().for_each(|place| variables.push(self.kind_and_id(*place).1));
        let mut waits: BTreeMap<u64, Vec<WaitForAny>> = BTreeMap::new();
        let mut leases = 0;
        for at in 0..self.operations() {
            let assembled = self.assemble(at);
            assembled.operation.accesses.iter().for_each(|access| variables.push(access.variable));
            leases += usize::from(assembled.lease().is_some());
            if let Some(engine) = assembled.waits_for_any {
                let Operation { submitted, resumed, .. } = assembled.operation;
                waits.entry(engine).or_default().push(WaitForAny {
                    until: resumed.unwrap_or(Nanos::MAX),
                    at: at as u32,
                    since: submitted,
                });
            }
        }
        (self.variables, self.leases) = (variables.finish(), leases);
        self.waits_for_any = self.find_targets(waits);
    }

    /// Finds what waits for everything of an engine have waited for. Where the engine of a wait or of an
    /// operation is not known, any is taken for it.
    fn find_targets(&self, waits: BTreeMap<u64, Vec<WaitForAny>>) -> Vec<(u32, u64)> {
        let mut all: BTreeMap<u64, Ends> =
            waits.into_iter().map(|(engine, waits)| (engine, Ends::of(waits))).collect();
        for at in 0..if all.is_empty() { 0 } else { self.operations() } {
            let operation = self.operation(at);
            match operation.engine {
                _ if operation.kind != OperationKind::Operation => {}
                0 => all.values_mut().for_each(|ends| ends.add(&operation)),
                engine => [0, engine].iter().for_each(|engine| {
                    all.get_mut(engine).into_iter().for_each(|ends| ends.add(&operation));
                }),
            }
        }
        let mut targets: Vec<(u32, u64)> = all.into_values().flat_map(Ends::targets).collect();
        targets.sort_unstable();
        targets
    }
}

/// The ends in an engine, and the waits for them.
struct Ends {
    /// In order.
    waits: Vec<WaitForAny>,
    /// The ends between the end of one such wait and that of the next: the last of it, and the first.
    lasts: Vec<Option<(Nanos, u64)>>,
    firsts: Vec<Option<(Nanos, u64, Nanos)>>,
}

impl Ends {
    fn of(mut waits: Vec<WaitForAny>) -> Self {
        waits.sort_unstable();
        let (lasts, firsts) = (vec![None; waits.len()], vec![None; waits.len() + 1]);
        Self { waits, lasts, firsts }
    }

    fn add(&mut self, operation: &Operation) {
        let end = operation.issued.unwrap_or(Nanos::MAX);
        let wait = self.waits.partition_point(|wait| wait.until < end);
        if let Some(last) = self.lasts.get_mut(wait) {
            *last = (*last).max(Some((end, operation.id)));
        }
        let own = (end, operation.id, operation.submitted);
        self.firsts[wait] = Some(self.firsts[wait].map_or(own, |first| first.min(own)));
    }

    /// The target of each wait, if it has one: position of the wait, operation.
    fn targets(self) -> Vec<(u32, u64)> {
        let Self { waits, lasts, mut firsts } = self;
        let mut next = None;
        for first in firsts.iter_mut().rev() {
            next = first.or(next);
            *first = next;
        }
        let (mut latest, mut targets) = (None, Vec::new());
        for (number, (wait, last)) in waits.into_iter().zip(lasts).enumerate() {
            latest = latest.max(last);
            let ended = latest.filter(|(end, _)| *end >= wait.since);
            // A wait that looks after a while, and waits again, was for what ends later.
            let ends = || firsts[number + 1].filter(|(_, _, submitted)| *submitted <= wait.until);
            let target = ended.map(|(_, id)| id).or_else(|| ends().map(|(_, id, _)| id));
            targets.extend(target.map(|id| (wait.at, id)));
        }
        targets
    }
}

/// A wait for whatever ends.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct WaitForAny {
    until: Nanos,
    at: u32,
    since: Nanos,
}
