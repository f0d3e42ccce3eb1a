//! From entries to a recording.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};

use estafette_report::Recording;
use estafette_report::model::{
    Access, Lane, LaneId, LaneKind, Lease, LibraryId, LostRecords, Mode, Nanos, Operation, OperationKind,
    Outcome, Site, Text, Variable,
};
use estafette_sync::sync::atomic::Ordering;

use super::entry::{
    Entry, How, NONE, Tells, Use, access_of, element_of, ended_of, halves, told_briefly, widened,
};
use super::names;
use super::ticks::Scale;
use super::writer::{Session, ThreadLog};

/// What is known of one operation so far.
struct Draft {
    operation: Operation,
    /// `None` until its submission is read: threads are read one after the other.
    submitted: Option<Use>,
    taker: Option<Taker>,
    locked: Option<Nanos>,
    ended: bool,
    /// A wait for whatever ends last.
    waits_for_any: bool,
}

struct Taker {
    text: Text,
    library: Option<LibraryId>,
    site: Option<Site>,
}

/// A thread of the recording.
pub(super) struct Thread {
    pub(super) name: Text,
    pub(super) kind: LaneKind,
    /// Entries that did not fit.
    pub(super) lost: u64,
    /// What its entries refer to by number.
    pub(super) texts: Vec<Text>,
}

/// Everything read so far.
pub(super) struct Assembly<'a> {
    scale: &'a Scale,
    drafts: HashMap<u64, Draft>,
    variables: BTreeMap<u64, Variable>,
    libraries: Vec<Text>,
    lanes: Vec<Lane>,
    queues: HashMap<u64, LaneId>,
    lost: Vec<LostRecords>,
}

pub(super) fn assemble(session: &Session, scale: &Scale) -> Recording {
    let mut assembly = Assembly::new(scale);
    let threads = session.threads.lock().unwrap_or_else(PoisonError::into_inner).clone();
    threads.iter().for_each(|thread| assembly.read(thread));
    assembly.finish(names::give)
}

impl<'a> Assembly<'a> {
    pub(super) fn new(scale: &'a Scale) -> Self {
        Self {
            scale,
            drafts: HashMap::new(),
            variables: BTreeMap::new(),
            libraries: Vec::new(),
            lanes: Vec::new(),
            queues: HashMap::new(),
            lost: Vec::new(),
        }
    }

    /// Reads what a thread has noted, whose pages are freed meanwhile.
    fn read(&mut self, log: &ThreadLog) {
        let running = log.running.get();
        let texts = log.texts.drain().map(|text| Arc::clone(&text.value).into()).collect();
        let lost = log.lost.load(Ordering::Relaxed);
        let reading = self.thread(Thread { name: log.name.as_str().into(), kind: log.kind(), lost, texts });
        let mut words = Vec::new();
        for page in log.pages.drain() {
            words.clear();
            words.extend(page.value.read(0..page.value.published()));
            self.words(&reading, &words);
        }
        self.running(&reading, running);
    }

    /// Begins with the entries of another thread.
    pub(super) fn thread(&mut self, thread: Thread) -> Reading {
        let lane = self.lanes.len();
        self.lanes.push(Lane { name: thread.name, kind: thread.kind });
        if thread.lost > 0 {
            self.lost.push(LostRecords { lane, count: thread.lost });
        }
        Reading { lane, texts: thread.texts }
    }

    /// Takes in whole entries of a thread.
    pub(super) fn words(&mut self, reading: &Reading, words: &[u64]) {
        let mut rest = words;
        while let Some((entry, after)) = Entry::first_of(rest) {
            self.entry(reading, entry);
            rest = after;
        }
    }

    /// Takes in the body that still ran on a thread: operation and ticks.
    pub(super) fn running(&mut self, reading: &Reading, running: Option<(u64, u64)>) {
        if let Some((id, ticks)) = running {
            self.began(id, self.scale.nanos(ticks), reading.lane);
        }
    }

    fn draft(&mut self, id: u64) -> &mut Draft {
        self.drafts.entry(id).or_insert_with(|| Draft {
            operation: empty(id),
            submitted: None,
            taker: None,
            locked: None,
            ended: false,
            waits_for_any: false,
        })
    }

    fn submitted(&mut self, reading: &Reading, id: u64, at: Nanos, name: u32, what: Use) -> &mut Draft {
        let draft = self.draft(id);
        draft.submitted = Some(what);
        draft.operation.submitted = at;
        draft.operation.submitter = Some(reading.lane);
        draft.operation.name = reading.text(name);
        draft
    }

    fn taken(&mut self, reading: &Reading, id: u64, [text, site]: [u64; 2]) {
        let (text, library) = halves(text);
        let library = reading.known(library);
        let library = self.library(library);
        let taker = Taker { text: reading.text(text), library, site: reading.site(site as u32) };
        self.draft(id).taker = Some(taker);
    }

    fn began(&mut self, id: u64, at: Nanos, lane: LaneId) {
        let operation = &mut self.draft(id).operation;
        operation.began = Some(at);
        operation.lane = Some(lane);
    }

    fn ended(&mut self, id: u64, at: Nanos, outcome: Outcome, device_work: bool) {
        let draft = self.draft(id);
        draft.ended = true;
        draft.operation.issued = Some(at);
        if !device_work {
            draft.operation.done = Some(at);
        }
        // What the device said is later news.
        if draft.operation.outcome == Outcome::Unfinished || outcome != Outcome::Ok {
            draft.operation.outcome = outcome;
        }
    }

    fn library(&mut self, name: Option<&Text>) -> Option<LibraryId> {
        let name = name?;
        let known = self.libraries.iter().position(|known| known == name);
        Some(known.unwrap_or_else(|| {
            self.libraries.push(name.clone());
            self.libraries.len() - 1
        }))
    }

    fn queue(&mut self, number: u64) -> LaneId {
        let lanes = &mut self.lanes;
        *self.queues.entry(number).or_insert_with(|| {
            lanes.push(Lane { name: format!("queue {number}").into(), kind: LaneKind::Queue });
            lanes.len() - 1
        })
    }

    fn entry(&mut self, reading: &Reading, entry: Entry<'_>) {
        let Entry { tells: Some(tells), ticks, id, words: all } = entry else { return };
        let words = [entry.word(0), entry.word(1)];
        let at = self.scale.nanos(ticks);
        let lane = reading.lane;
        match tells {
            Tells::Submitted => {
                let (name, about) = halves(words[0]);
                let draft = self.submitted(reading, id, at, name, Use::from_bits(about as u8));
                draft.operation.accesses = all.iter().skip(1).filter_map(|word| access_in(*word)).collect();
            }
            Tells::Brief => {
                let (id, about) = widened(id);
                let (name, what) = told_briefly(about);
                let draft = self.submitted(reading, id, at, name, what);
                let halves = all.iter().flat_map(|word| <[u32; 2]>::from(halves(*word)));
                draft.operation.accesses = halves.filter_map(|half| access_in(half.into())).collect();
            }
            Tells::Ran => {
                let (id, took) = widened(id);
                self.began(id, self.scale.nanos(ticks.saturating_sub(took)), lane);
                self.ended(id, at, Outcome::Ok, false);
            }
            Tells::Accesses => {
                self.draft(id).operation.accesses.extend(all.iter().filter_map(|word| access_in(*word)));
            }
            Tells::Ready => {
                let operation = &mut self.draft(id).operation;
                operation.granted = Some(operation.granted.map_or(at, |known| known.min(at)));
                operation.ready = Some(operation.ready.map_or(at, |known| known.max(at)));
            }
            Tells::Began => {
                let lane = if words[0] == 0 { lane } else { self.queue(words[0]) };
                self.began(id, at, lane);
            }
            Tells::Ended => {
                let (how, device_work, why) = ended_of(words[0]);
                let outcome = reading.outcome(how, why);
                self.ended(id, at, outcome, device_work);
            }
            Tells::Done => {
                let (about, text) = halves(words[0]);
                let how = How::from_bits(about as u8);
                let outcome = reading.outcome(how, text);
                let operation = &mut self.draft(id).operation;
                operation.done = Some(at);
                operation.observed = Some(at);
                if let [_, began, ended] = *all {
                    operation.ran = Some((began, ended));
                }
                if how != How::Well {
                    operation.outcome = outcome;
                }
            }
            Tells::Observed => self.draft(id).operation.observed = Some(at),
            Tells::Awake => self.draft(id).operation.awake = Some(at),
            Tells::Locked => self.draft(id).locked = Some(at),
            Tells::Resumed => {
                let operation = &mut self.draft(id).operation;
                operation.resumed = Some(at);
                operation.lane = Some(lane);
                if words[0] != 0 {
                    operation.kind = OperationKind::Wait;
                }
            }
            Tells::WaitsFor => {
                let name = reading.text(halves(words[1]).0);
                let draft = self.draft(id);
                draft.submitted = Some(Use::Wait);
                draft.operation.kind = OperationKind::Wait;
                draft.operation.submitted = at;
                draft.operation.submitter = Some(lane);
                draft.operation.name = name;
                draft.waits_for_any = words[0] == 0;
                draft.operation.waits_for = (words[0] != 0).then_some(words[0]);
            }
            Tells::Variable => {
                let (dtype, library) = halves(words[1]);
                let library = reading.known(library);
                let library = self.library(library);
                let dtype = element_of(dtype);
                let shape: Vec<String> = all.iter().skip(2).map(u64::to_string).collect();
                let name = format!("{dtype}[{}] #{id}", shape.join(","));
                let variable = self.variables.entry(id).or_insert_with(|| unknown(id));
                variable.name = name.into();
                variable.bytes = Some(words[0]);
                variable.library = library.or(variable.library);
            }
            Tells::Taker => self.taken(reading, id, words),
            Tells::Held => {
                let draft = self.draft(id);
                draft.submitted = Some(Use::Lease);
                draft.operation.submitted = at;
                draft.operation.submitter = Some(lane);
                draft.operation.name = "lease".into();
                draft.operation.accesses = access_in(words[0]).into_iter().collect();
                self.taken(reading, id, [entry.word(1), entry.word(2)]);
                self.began(id, at, lane);
            }
            Tells::Library => {
                let library = reading.known(words[0] as u32);
                let library = self.library(library);
                let draft = self.draft(id);
                draft.operation.library = draft.operation.library.or(library);
                if let Some(taker) = &mut draft.taker {
                    taker.library = taker.library.or(library);
                }
            }
        }
    }

    /// The recording. `names` gives variables the names that programs have given them.
    pub(super) fn finish(mut self, names: impl FnOnce(&mut BTreeMap<u64, Variable>)) -> Recording {
        let duration = self.scale.duration();
        let mut recording = Recording { duration, ..Recording::default() };
        let mut waits_for_any = Vec::new();
        for (id, mut draft) in self.drafts {
            // Submitted before the journal was opened, or its submission was lost.
            let Some(what) = draft.submitted else { continue };
            draft.settle(what);
            for access in &draft.operation.accesses {
                self.variables.entry(access.variable).or_insert_with(|| unknown(access.variable));
            }
            if what == Use::Lease {
                recording.leases.extend(draft.lease());
            }
            if draft.waits_for_any {
                waits_for_any.push(id);
            }
            recording.operations.push(draft.operation);
        }
        names(&mut self.variables);
        recording.operations.sort_unstable_by_key(|operation| operation.id);
        recording.leases.sort_unstable_by_key(|lease| lease.id);
        recording.variables = self.variables.into_values().collect();
        recording.lanes = self.lanes;
        recording.libraries = self.libraries;
        recording.losses.records = self.lost;
        wait_for_the_last(&mut recording, &waits_for_any);
        recording
    }
}

impl Draft {
    /// Makes what was read fit together.
    fn settle(&mut self, what: Use) {
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
            Use::Lease => operation.kind = OperationKind::Export,
            Use::Copy => operation.kind = OperationKind::Copy,
            // A thread that waited has said so.
            Use::Wait if operation.kind != OperationKind::Wait => operation.kind = OperationKind::Await,
            Use::Wait | Use::Body => {}
        }
        match (what, self.locked) {
            // The body began when it had the lock; before, the thread was merely awake.
            (Use::Body, Some(locked)) if operation.began.is_some() => {
                operation.awake = operation.awake.or(operation.began);
                operation.began = Some(locked);
            }
            (Use::Wait | Use::Lease, Some(locked)) => {
                operation.awake = operation.resumed;
                operation.resumed = Some(locked);
            }
            _ => {}
        }
        if let (Some(_), Some(taker)) = (self.submitted, &self.taker) {
            operation.library = operation.library.or(taker.library);
            operation.site.clone_from(&taker.site);
        }
        if what == Use::Wait {
            // A probe leaves the graph as soon as it is granted, or when it is given up.
            operation.granted = operation.issued.take();
            let given_up = operation.outcome == Outcome::Cancelled;
            operation.done = if given_up { operation.granted } else { operation.observed };
            if operation.resumed.is_some() {
                operation.outcome = Outcome::Ok;
            }
        }
        if what == Use::Body && operation.ready.is_none() {
            // Run by whoever granted it, there and then.
            operation.ready = operation.awake.or(operation.began);
            operation.granted = operation.ready;
        }
    }

    /// The lease that an export has become, if it was held.
    fn lease(&mut self) -> Option<Lease> {
        let operation = &mut self.operation;
        let opened = operation.began?;
        let access = operation.accesses.first()?;
        let closed = if self.ended { operation.issued } else { None };
        // As an export it is over when the library has the tensor.
        operation.issued = Some(opened);
        operation.done = Some(opened);
        operation.outcome = Outcome::Ok;
        Some(Lease {
            id: operation.id,
            variable: access.variable,
            access: access.mode,
            library: self.taker.as_ref().and_then(|taker| taker.library),
            taker: self.taker.as_ref().map_or_else(Text::default, |taker| taker.text.clone()),
            site: self.taker.as_ref().and_then(|taker| taker.site.clone()),
            opened,
            closed,
        })
    }
}

/// A wait for everything has waited for what ended last.
fn wait_for_the_last(recording: &mut Recording, waits: &[u64]) {
    let mut ends: Vec<(Nanos, u64)> = recording
        .operations
        .iter()
        .filter(|operation| operation.kind == OperationKind::Operation)
        .map(|operation| (operation.issued.unwrap_or(Nanos::MAX), operation.id))
        .collect();
    ends.sort_unstable();
    for wait in waits {
        let Ok(at) = recording.operations.binary_search_by_key(wait, |operation| operation.id) else {
            continue;
        };
        let until = recording.operations[at].resumed.unwrap_or(Nanos::MAX);
        let last = ends.partition_point(|(end, _)| *end <= until).checked_sub(1);
        recording.operations[at].waits_for = last.map(|last| ends[last].1);
    }
}

/// One thread's entries being read.
pub(super) struct Reading {
    lane: LaneId,
    texts: Vec<Text>,
}

impl Reading {
    fn known(&self, number: u32) -> Option<&Text> {
        self.texts.get(number as usize)
    }

    fn text(&self, number: u32) -> Text {
        self.known(number).cloned().unwrap_or_else(|| "(no name kept)".into())
    }

    fn outcome(&self, how: How, text: u32) -> Outcome {
        let text = || if text == NONE { Text::default() } else { self.text(text) };
        match how {
            How::Well => Outcome::Ok,
            How::Failed => Outcome::Failed(text()),
            How::Cancelled => Outcome::Cancelled,
            How::Skipped => Outcome::Skipped(text()),
        }
    }

    fn site(&self, number: u32) -> Option<Site> {
        let text = self.known(number)?;
        let mut parts = text.splitn(3, '\n');
        let (file, line, function) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Site { file: file.into(), line: line.parse().ok()?, function: function.into() })
    }
}

fn access_in(word: u64) -> Option<Access> {
    access_of(word).map(|(variable, mode): (u64, Mode)| Access { variable, mode })
}

fn unknown(id: u64) -> Variable {
    Variable { id, name: format!("variable {id}").into(), bytes: None, library: None }
}

fn empty(id: u64) -> Operation {
    Operation {
        id,
        name: Text::default(),
        kind: OperationKind::Operation,
        library: None,
        site: None,
        submitter: None,
        lane: None,
        submitted: 0,
        granted: None,
        ready: None,
        awake: None,
        began: None,
        issued: None,
        ran: None,
        done: None,
        observed: None,
        resumed: None,
        outcome: Outcome::Unfinished,
        accesses: Vec::new(),
        waits_for: None,
    }
}
