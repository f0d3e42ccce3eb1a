//! From events to operations.
//!
//! The events stay where they lie. What is added is an index: the places of all events, sorted by their operations, four bytes for
//! each. An operation is made from its events when it is asked for, so that a trace can be written without being in memory as a
//! whole.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use estafette_report::Trace;
use estafette_report::attribution::attribute_within;
use estafette_report::budget::Budget;
use estafette_report::model::{
    Access, Lease, LibraryId, LostRecords, Mode, Nanos, Operation, OperationKind, Outcome, Site, Text, Track,
    TrackId, TrackKind, Variable,
};
use estafette_report::source::{Merging, Source};
use estafette_sync::sync::atomic::Ordering;
use smallvec::SmallVec;

use super::buffer::{TraceBuffer, WORDS};
use super::chain::Link;
use super::encoding::{
    Event, EventKind, NONE, OutcomeCode, UseKind, access_of, element_of, ended_of, halves, length_of,
    name_and_use_of, widened,
};
use super::names;
use super::ticks::Scale;
use super::writer::{Session, ThreadLog};

/// Blocks of events that places have numbers for: 32 GiB.
pub(super) const BLOCKS_MAX: usize = u32::MAX as usize / WORDS;

/// Memory with whole events.
enum Block {
    /// A buffer, and how many of its words were published.
    Buffer(Arc<Link<TraceBuffer>>, usize),
    /// At most as many words as a buffer has.
    Own(Vec<u64>),
}

impl Block {
    fn len(&self) -> usize {
        match self {
            Self::Buffer(_, len) => *len,
            Self::Own(words) => words.len(),
        }
    }

    /// Adds the words of the event at `at`; fewer where it is damaged.
    fn event(&self, at: usize, into: &mut Words) {
        match self {
            Self::Buffer(buffer, len) => {
                let head = buffer.value.read(at..(at + 1).min(*len)).next().unwrap_or(0);
                into.extend(buffer.value.read(at..(at + length_of(head)).min(*len)));
            }
            Self::Own(words) => {
                let head = words.get(at).copied().unwrap_or(0);
                into.extend_from_slice(&words[at..(at + length_of(head)).min(words.len())]);
            }
        }
    }

    /// A word of it; 0 where there is none.
    fn word(&self, at: usize) -> u64 {
        match self {
            Self::Buffer(buffer, len) if at < *len => buffer.value.read(at..at + 1).next().unwrap_or(0),
            Self::Buffer(..) => 0,
            Self::Own(words) => words.get(at).copied().unwrap_or(0),
        }
    }
}

/// The words of an event; most have fewer.
type Words = SmallVec<[u64; 16]>;

/// What is known of one operation so far.
struct AssembledOp {
    operation: Operation,
    submitted: Option<UseKind>,
    owner: Option<LeaseOwner>,
    locked: Option<Nanos>,
    ended: bool,
    /// A wait for whatever ends last.
    waits_for_any: bool,
}

struct LeaseOwner {
    text: Text,
    library: Option<LibraryId>,
    site: Option<Site>,
}

/// A thread of the trace.
pub(super) struct Thread {
    pub(super) name: Text,
    pub(super) kind: TrackKind,
    /// Events that did not fit.
    pub(super) lost: u64,
    /// What its events refer to by number.
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
    blocks: Vec<(u32, Block)>,
    libraries: HashMap<Text, LibraryId>,
    queues: HashMap<u64, TrackId>,
    /// Bodies that still ran, by operation: ticks, track.
    running: HashMap<u64, (u64, TrackId)>,
    /// Places of events, by operation, in the order in which they were read.
    index: Vec<u32>,
    /// Where the events of each operation begin in the index; one more at the end.
    operations: Vec<u32>,
    leases: usize,
    /// What waits for whatever ends last waited for: position of the wait, operation. Sorted.
    waits_for_any: Vec<(u32, u64)>,
    /// All variables, sorted.
    variables: Vec<u64>,
    /// Places of events that describe variables, sorted by variable.
    descriptions: Vec<u32>,
    names: Names<'a>,
    empty: Text,
    nameless: Text,
    lease: Text,
}

impl EventIndex<'static> {
    /// Those of a session that is closed.
    pub(super) fn of(session: &Session, about: Trace) -> Self {
        let mut events = Self::new(session.ticks.scale(), about, Box::new(names::get));
        let threads = session.threads.lock().clone();
        threads.iter().for_each(|thread| events.log(thread));
        events.finish()
    }

    fn log(&mut self, log: &ThreadLog) {
        let running = log.running.get();
        let buffers: Vec<Block> = log
            .buffers
            .drain()
            .map(|buffer| {
                let published = buffer.value.published();
                Block::Buffer(buffer, published)
            })
            .collect();
        // After the buffers: texts come before the events that refer to them.
        let texts = log.texts.drain().map(|text| Arc::clone(&text.value).into()).collect();
        let lost = log.lost.load(Ordering::Relaxed);
        self.begin(Thread { name: log.name.as_str().into(), kind: log.kind(), lost, texts, running });
        buffers.into_iter().for_each(|buffer| self.add(buffer));
    }
}

impl<'a> EventIndex<'a> {
    /// None yet. `about` has what is not in the events.
    pub(super) fn new(scale: Scale, about: Trace, names: Names<'a>) -> Self {
        Self {
            about: Trace { duration: scale.duration(), ..about },
            scale,
            threads: Vec::new(),
            blocks: Vec::new(),
            libraries: HashMap::new(),
            queues: HashMap::new(),
            running: HashMap::new(),
            index: Vec::new(),
            operations: Vec::new(),
            leases: 0,
            waits_for_any: Vec::new(),
            variables: Vec::new(),
            descriptions: Vec::new(),
            names,
            empty: Text::default(),
            nameless: "(no name kept)".into(),
            lease: "lease".into(),
        }
    }

    /// Begins with the events of another thread.
    pub(super) fn begin(&mut self, thread: Thread) {
        let track = self.about.tracks.len();
        self.about.tracks.push(Track { name: thread.name, kind: thread.kind });
        if thread.lost > 0 {
            self.about.losses.records.push(LostRecords { track, count: thread.lost });
        }
        self.running.extend(thread.running.map(|(id, ticks)| (id, (ticks, track))));
        self.threads.push(ThreadTable { track, texts: thread.texts, sites: RefCell::default() });
    }

    /// Adds whole events of that thread, at most as many words as a buffer has.
    pub(super) fn words(&mut self, words: Vec<u64>) {
        self.add(Block::Own(words));
    }

    fn add(&mut self, block: Block) {
        if self.blocks.len() < BLOCKS_MAX && block.len() > 0 {
            let number = self.blocks.len();
            self.blocks.push((self.threads.len() as u32 - 1, block));
            self.register_names(number);
        }
    }

    /// Numbers the queues and libraries that a block names.
    fn register_names(&mut self, block: usize) {
        let thread = self.blocks[block].0 as usize;
        for at in places(block, &self.blocks[block].1) {
            let (kind, queue_or_library) = self.with(at, |_, event| {
                let library = match event.kind {
                    Some(EventKind::Variable) => halves(event.word(1)).1,
                    Some(EventKind::LeaseOwner) => halves(event.word(0)).1,
                    Some(EventKind::LeasePinned) => halves(event.word(1)).1,
                    _ => event.word(0) as u32,
                };
                (event.kind, (event.word(0), library))
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
                _ => {}
            }
        }
    }

    /// Lends the event at a place, and the thread that has noted it.
    fn with<R>(&self, place: u32, f: impl FnOnce(&ThreadTable, Event<'_>) -> R) -> R {
        let (thread, block) = &self.blocks[place as usize / WORDS];
        let mut words = Words::new();
        block.event(place as usize % WORDS, &mut words);
        let nothing = Event { kind: None, ticks: 0, id: 0, words: &[] };
        let event = Event::first_of(&words).map_or(nothing, |(event, _)| event);
        f(&self.threads[*thread as usize], event)
    }

    /// What the event at a place tells, and of which operation or variable.
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
            // Stable, so that the places of one operation stay in their order; and threads are mostly sorted themselves.
            sorted.sort_by_key(|place| self.kind_and_id(*place).1);
            sorted
        };
        let mut index = sorted(all, false);
        let operations = self.keep_submitted(&mut index);
        let descriptions = sorted(descriptions, true);
        (self.index, self.operations, self.descriptions) = (index, operations, descriptions);
        self.find_leases_and_variables();
        self
    }

    /// Removes what was submitted before the recorder was opened, or whose submission was lost. Returns where each operation begins.
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
        let end_of = |index: &[u32], first: usize| {
            let id = self.kind_and_id(index[first]).1;
            let own = index[first..].iter().take_while(|place| self.kind_and_id(**place).1 == id);
            first + own.count()
        };
        let (mut kept, mut count, mut first) = (0, 0, 0);
        while first < index.len() {
            let end = end_of(index, first);
            if index[first..end].iter().any(submits) {
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

    /// Finds all leases, variables, and what waits for everything have waited for: for what ended last.
    fn find_leases_and_variables(&mut self) {
        let mut variables = Merging::new(|variables: &mut Vec<u64>| {
            variables.sort_unstable();
            variables.dedup();
        });
        self.descriptions.iter().for_each(|place| variables.push(self.kind_and_id(*place).1));
        // When each such wait was over, and its position; beside it what ended last until then, and when.
        let mut waits: Vec<(Nanos, u32)> = Vec::new();
        let mut leases = 0;
        for at in 0..self.operations() {
            let assembled = self.assemble(at);
            assembled.operation.accesses.iter().for_each(|access| variables.push(access.variable));
            leases += usize::from(assembled.lease().is_some());
            if assembled.waits_for_any {
                waits.push((assembled.operation.resumed.unwrap_or(Nanos::MAX), at as u32));
            }
        }
        (self.variables, self.leases) = (variables.finish(), leases);
        if waits.is_empty() {
            return;
        }
        waits.sort_unstable();
        let mut lasts: Vec<Option<(Nanos, u64)>> = vec![None; waits.len()];
        for at in 0..self.operations() {
            let operation = self.operation(at);
            let end = operation.issued.unwrap_or(Nanos::MAX);
            let first = waits.partition_point(|(until, _)| *until < end);
            if let (OperationKind::Operation, Some(last)) = (operation.kind, lasts.get_mut(first)) {
                *last = (*last).max(Some((end, operation.id)));
            }
        }
        let mut latest = None;
        for ((_, wait), last) in waits.into_iter().zip(lasts) {
            latest = latest.max(last);
            self.waits_for_any.extend(latest.map(|(_, id)| (wait, id)));
        }
        self.waits_for_any.sort_unstable();
    }

    fn id(&self, at: usize) -> u64 {
        self.kind_and_id(self.index[self.operations[at] as usize]).1
    }

    /// What the events of an operation tell.
    fn assemble(&self, at: usize) -> AssembledOp {
        let id = self.id(at);
        let mut assembled = AssembledOp {
            operation: self.empty(id),
            submitted: None,
            owner: None,
            locked: None,
            ended: false,
            waits_for_any: false,
        };
        if let Some((ticks, track)) = self.running.get(&id) {
            assembled.began(self.scale.nanos(*ticks), *track);
        }
        for place in &self.index[self.operations[at] as usize..self.operations[at + 1] as usize] {
            self.with(*place, |table, event| assembled.event(self, table, event));
        }
        assembled.settle();
        if assembled.waits_for_any {
            let known = self.waits_for_any.binary_search_by_key(&(at as u32), |(wait, _)| *wait);
            assembled.operation.waits_for = known.ok().map(|known| self.waits_for_any[known].1);
        }
        assembled
    }

    fn library(&self, name: Option<&Text>) -> Option<LibraryId> {
        self.libraries.get(name?).copied()
    }

    fn owner(&self, table: &ThreadTable, [text, site]: [u64; 2]) -> LeaseOwner {
        let (text, library) = halves(text);
        let library = self.library(table.known(library));
        LeaseOwner { text: self.text(table, text), library, site: table.site(site as u32) }
    }

    fn text(&self, table: &ThreadTable, number: u32) -> Text {
        table.known(number).unwrap_or(&self.nameless).clone()
    }

    fn outcome(&self, table: &ThreadTable, how: OutcomeCode, text: u32) -> Outcome {
        let text = || if text == NONE { self.empty.clone() } else { self.text(table, text) };
        match how {
            OutcomeCode::Well => Outcome::Ok,
            OutcomeCode::Failed => Outcome::Failed(text()),
            OutcomeCode::Cancelled => Outcome::Cancelled,
            OutcomeCode::Skipped => Outcome::Skipped(text()),
        }
    }

    fn empty(&self, id: u64) -> Operation {
        Operation { id, name: self.empty.clone(), ..Operation::default() }
    }

    /// All of it at once, with its stalls attributed, as far as `budget` allows. Returns whether it did.
    pub(super) fn trace(&self, mut budget: Option<&mut Budget>) -> (Trace, bool) {
        let mut takes = |bytes| budget.as_mut().is_none_or(|budget| budget.take(bytes).is_ok());
        let mut trace = self.about.clone();
        // Beside the operation: what attribution knows of it, its counters, its lease.
        let each = size_of::<Operation>() + size_of::<Lease>() / 2 + 128;
        let own = |operation: &Operation| each + 2 * size_of_val(&operation.accesses[..]);
        trace.operations.reserve_exact(if takes(each * self.operations()) { self.operations() } else { 0 });
        let mut is_whole = trace.operations.capacity() >= self.operations();
        for at in 0..if is_whole { self.operations() } else { 0 } {
            let mut assembled = self.assemble(at);
            if !takes(own(&assembled.operation) - each) {
                is_whole = false;
                break;
            }
            if let Some(lease) = assembled.lease() {
                assembled.become_export(&lease);
                trace.leases.push(lease);
            }
            assembled.operation.accesses.shrink_to_fit();
            trace.operations.push(assembled.operation);
        }
        is_whole &= takes(self.variables() * (size_of::<Variable>() + 64));
        if is_whole {
            trace.variables = (0..self.variables()).map(|at| self.variable(at).into_owned()).collect();
            is_whole = attribute_within(&mut trace, &mut takes);
        }
        (trace, is_whole)
    }
}

/// The places of the events of a block.
fn places(number: usize, block: &Block) -> impl Iterator<Item = u32> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let length = length_of(block.word(at));
        let own = (number * WORDS + at) as u32;
        at += length;
        // A damaged one ends the block.
        (length >= 2 && at <= block.len()).then_some(own)
    })
}

impl Source for EventIndex<'_> {
    fn about(&self) -> &Trace {
        &self.about
    }

    fn operations(&self) -> usize {
        self.operations.len().saturating_sub(1)
    }

    fn operation(&self, at: usize) -> Cow<'_, Operation> {
        let mut assembled = self.assemble(at);
        if let Some(lease) = assembled.lease() {
            assembled.become_export(&lease);
        }
        Cow::Owned(assembled.operation)
    }

    fn position(&self, id: u64) -> Option<usize> {
        let starts = &self.operations[..self.operations()];
        let at = starts.partition_point(|start| self.kind_and_id(self.index[*start as usize]).1 < id);
        (at < self.operations() && self.id(at) == id).then_some(at)
    }

    fn leases(&self) -> usize {
        self.leases
    }

    fn lease<'s>(&'s self, at: usize, operation: &Operation) -> Option<Cow<'s, Lease>> {
        if operation.kind != OperationKind::Export {
            return None;
        }
        self.assemble(at).lease().map(Cow::Owned)
    }

    fn variables(&self) -> usize {
        self.variables.len()
    }

    fn variable(&self, at: usize) -> Cow<'_, Variable> {
        let id = self.variables[at];
        let mut variable = Variable { id, name: self.empty.clone(), bytes: None, library: None };
        let first = self.descriptions.partition_point(|place| self.kind_and_id(*place).1 < id);
        let own = self.descriptions[first..].iter().take_while(|place| self.kind_and_id(**place).1 == id);
        for place in own {
            self.with(*place, |table, event| {
                let (dtype, library) = halves(event.word(1));
                let dtype = element_of(dtype);
                let shape: Vec<String> = event.words.iter().skip(2).map(u64::to_string).collect();
                variable.name = format!("{dtype}[{}] #{id}", shape.join(",")).into();
                variable.bytes = Some(event.word(0));
                variable.library = self.library(table.known(library)).or(variable.library);
            });
        }
        if let Some(name) = (self.names)(id) {
            variable.name = name;
        } else if variable.bytes.is_none() {
            variable.name = format!("variable {id}").into();
        }
        Cow::Owned(variable)
    }

    fn variable_position(&self, id: u64) -> Option<usize> {
        self.variables.binary_search(&id).ok()
    }
}

impl AssembledOp {
    fn submitted(
        &mut self,
        events: &EventIndex<'_>,
        table: &ThreadTable,
        at: Nanos,
        name: u32,
        what: UseKind,
    ) {
        self.submitted = Some(what);
        self.operation.submitted = at;
        self.operation.submitter = Some(table.track);
        self.operation.name = events.text(table, name);
    }

    fn began(&mut self, at: Nanos, track: TrackId) {
        self.operation.began = Some(at);
        self.operation.track = Some(track);
    }

    fn ended(&mut self, at: Nanos, outcome: Outcome, device_work: bool) {
        self.ended = true;
        self.operation.issued = Some(at);
        if !device_work {
            self.operation.done = Some(at);
        }
        // What the device said is later news.
        if self.operation.outcome == Outcome::Unfinished || outcome != Outcome::Ok {
            self.operation.outcome = outcome;
        }
    }

    /// Takes in one of its events.
    fn event(&mut self, events: &EventIndex<'_>, table: &ThreadTable, event: Event<'_>) {
        let Event { kind: Some(kind), ticks, id, words: all } = event else { return };
        let words = [event.word(0), event.word(1)];
        let at = events.scale.nanos(ticks);
        let track = table.track;
        let operation = &mut self.operation;
        match kind {
            EventKind::Submitted => {
                let (name, about) = halves(words[0]);
                operation.accesses = all.iter().skip(1).filter_map(|word| access_in(*word)).collect();
                self.submitted(events, table, at, name, UseKind::from_bits(about as u8));
            }
            EventKind::SubmittedNarrow => {
                let (name, what) = name_and_use_of(widened(id).1);
                let halves = all.iter().flat_map(|word| <[u32; 2]>::from(halves(*word)));
                operation.accesses = halves.filter_map(|half| access_in(half.into())).collect();
                self.submitted(events, table, at, name, what);
            }
            EventKind::RanNarrow => {
                let took = widened(id).1;
                self.began(events.scale.nanos(ticks.saturating_sub(took)), track);
                self.ended(at, Outcome::Ok, false);
            }
            EventKind::Accesses => operation.accesses.extend(all.iter().filter_map(|word| access_in(*word))),
            EventKind::Ready => {
                operation.granted = Some(operation.granted.map_or(at, |known| known.min(at)));
                operation.ready = Some(operation.ready.map_or(at, |known| known.max(at)));
            }
            EventKind::Began => {
                let queue = events.queues.get(&words[0]);
                self.began(at, queue.copied().unwrap_or(track));
            }
            EventKind::Ended => {
                let (how, device_work, why) = ended_of(words[0]);
                self.ended(at, events.outcome(table, how, why), device_work);
            }
            EventKind::Done => {
                let (about, text) = halves(words[0]);
                let how = OutcomeCode::from_bits(about as u8);
                operation.done = Some(at);
                operation.observed = Some(at);
                if let [_, began, ended] = *all {
                    operation.ran = Some((began, ended));
                }
                if how != OutcomeCode::Well {
                    operation.outcome = events.outcome(table, how, text);
                }
            }
            EventKind::Observed => operation.observed = Some(at),
            EventKind::Awake => operation.awake = Some(at),
            EventKind::Locked => self.locked = Some(at),
            EventKind::Resumed => {
                operation.resumed = Some(at);
                operation.track = Some(track);
                if words[0] != 0 {
                    operation.kind = OperationKind::Wait;
                }
            }
            EventKind::WaitsFor => {
                operation.kind = OperationKind::Wait;
                operation.waits_for = (words[0] != 0).then_some(words[0]);
                self.waits_for_any = words[0] == 0;
                self.submitted(events, table, at, halves(words[1]).0, UseKind::Wait);
            }
            EventKind::LeaseOwner => self.owner = Some(events.owner(table, words)),
            EventKind::LeasePinned => {
                operation.accesses = access_in(words[0]).into_iter().collect();
                self.submitted(events, table, at, NONE, UseKind::Lease);
                self.operation.name = events.lease.clone();
                self.owner = Some(events.owner(table, [event.word(1), event.word(2)]));
                self.began(at, track);
            }
            EventKind::Library => {
                let library = events.library(table.known(words[0] as u32));
                operation.library = operation.library.or(library);
                if let Some(owner) = &mut self.owner {
                    owner.library = owner.library.or(library);
                }
            }
            // Of a variable.
            EventKind::Variable => {}
        }
    }

    /// Makes what was read fit together.
    fn settle(&mut self) {
        let Some(what) = self.submitted else { return };
        let operation = &mut self.operation;
        if matches!(operation.outcome, Outcome::Cancelled | Outcome::Skipped(_)) {
            operation.began = None;
        }
        if let (Some((from, to)), Some(began), Some(observed)) =
            (operation.ran, operation.began, operation.observed)
        {
            // Clocks are compared with an error.
            let from = from.clamp(began, observed.max(began));
            let to = to.clamp(from, observed.max(from));
            operation.ran = Some((from, to));
            operation.done = Some(operation.issued.unwrap_or(to).max(to));
        } else {
            operation.ran = None;
        }
        match what {
            UseKind::Lease => operation.kind = OperationKind::Export,
            UseKind::Copy => operation.kind = OperationKind::Copy,
            // A thread that waited has said so.
            UseKind::Wait if operation.kind != OperationKind::Wait => operation.kind = OperationKind::Await,
            UseKind::Wait | UseKind::Body => {}
        }
        match (what, self.locked) {
            // The body began when it had the lock; before, the thread was merely awake.
            (UseKind::Body, Some(locked)) if operation.began.is_some() => {
                operation.awake = operation.awake.or(operation.began);
                operation.began = Some(locked);
            }
            (UseKind::Wait | UseKind::Lease, Some(locked)) => {
                operation.awake = operation.resumed;
                operation.resumed = Some(locked);
            }
            _ => {}
        }
        if let Some(owner) = &self.owner {
            operation.library = operation.library.or(owner.library);
            operation.site.clone_from(&owner.site);
        }
        if what == UseKind::Wait {
            // A query leaves the graph as soon as it is granted, or when it is given up.
            operation.granted = operation.issued.take();
            let given_up = operation.outcome == Outcome::Cancelled;
            operation.done = if given_up { operation.granted } else { operation.observed };
            if operation.resumed.is_some() {
                operation.outcome = Outcome::Ok;
            }
        }
        if what == UseKind::Body && operation.ready.is_none() {
            // Run by whoever granted it, there and then.
            operation.ready = operation.awake.or(operation.began);
            operation.granted = operation.ready;
        }
    }

    /// The lease that an export has become, if it was held.
    fn lease(&self) -> Option<Lease> {
        let operation = &self.operation;
        if self.submitted != Some(UseKind::Lease) {
            return None;
        }
        let (opened, access) = (operation.began?, operation.accesses.first()?);
        let owner = self.owner.as_ref();
        Some(Lease {
            id: operation.id,
            variable: access.variable,
            access: access.mode,
            library: owner.and_then(|owner| owner.library),
            owner: owner.map_or_else(Text::default, |owner| owner.text.clone()),
            site: owner.and_then(|owner| owner.site.clone()),
            opened,
            closed: if self.ended { operation.issued } else { None },
        })
    }

    /// As an export it is over when the library has the tensor.
    fn become_export(&mut self, lease: &Lease) {
        let operation = &mut self.operation;
        operation.issued = Some(lease.opened);
        operation.done = Some(lease.opened);
        operation.outcome = Outcome::Ok;
    }
}

/// A thread whose events are read.
struct ThreadTable {
    track: TrackId,
    texts: Vec<Text>,
    /// Lines of programs, by the numbers of their texts.
    sites: RefCell<HashMap<u32, Option<Site>>>,
}

impl ThreadTable {
    fn known(&self, number: u32) -> Option<&Text> {
        self.texts.get(number as usize)
    }

    fn site(&self, number: u32) -> Option<Site> {
        let text = self.known(number)?;
        let site = || {
            let mut parts = text.splitn(3, '\n');
            let (file, line, function) = (parts.next()?, parts.next()?, parts.next()?);
            Some(Site { file: file.into(), line: line.parse().ok()?, function: function.into() })
        };
        self.sites.borrow_mut().entry(number).or_insert_with(site).clone()
    }
}

fn access_in(word: u64) -> Option<Access> {
    access_of(word).map(|(variable, mode): (u64, Mode)| Access { variable, mode })
}
