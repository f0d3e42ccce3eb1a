//! One operation, assembled from its events.

use std::cell::RefCell;
use std::collections::HashMap;

use estafette_report::model::{
    Access, AccessMode, ClockOffset, ImportOrigin, Lease, LibraryId, Nanos, Operation, OperationKind,
    Outcome, Site, Text, TrackId, TrackKind,
};

use super::super::encoding::{
    DecodedEvent, EventKind, NO_ENGINE, NONE, OutcomeCode, UseKind, access_of, ended_of, halves,
    name_and_use_of, widened,
};
use super::EventIndex;

/// Facts about one operation so far.
pub(super) struct AssembledOp {
    pub(super) operation: Operation,
    pub(super) submitted: Option<UseKind>,
    pub(super) owner: Option<LeaseOwner>,
    pub(super) locked: Option<Nanos>,
    /// The event loop whose thread had it then.
    pub(super) event_loop: Option<TrackId>,
    /// The thread of the engine, none of the workers, on which it ended.
    pub(super) left_to: Option<TrackId>,
    /// Began on the queue of a device.
    pub(super) on_queue: bool,
    /// The thread of a waiter that has resumed.
    pub(super) resumed_on: Option<TrackId>,
    /// The time at which a thread asked for the lock that its body needs, for the last time.
    pub(super) last_awake: Option<Nanos>,
    pub(super) ended: bool,
    /// Granted before the part that is kept, as the description of what is in flight says.
    pub(super) granted_before: Option<Nanos>,
    /// A wait for whatever ends last: of which engine, or 0 if that is not known.
    pub(super) waits_for_any: Option<u64>,
}

pub(super) struct LeaseOwner {
    pub(super) text: Text,
    pub(super) library: Option<LibraryId>,
    pub(super) site: Option<Site>,
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

    pub(super) fn began(&mut self, at: Nanos, track: TrackId) {
        self.operation.began = Some(at);
        self.operation.track = Some(track);
    }

    fn ended(&mut self, at: Nanos, outcome: Outcome, device_work: bool) {
        self.ended = true;
        self.operation.issued = Some(at);
        if !device_work {
            self.operation.done = Some(at);
        }
        // An outcome that the device has reported is newer than this one.
        if self.operation.outcome == Outcome::Unfinished || outcome != Outcome::Ok {
            self.operation.outcome = outcome;
        }
    }

    /// Takes in one of its events.
    pub(super) fn event(&mut self, events: &EventIndex<'_>, table: &ThreadTable, event: DecodedEvent<'_>) {
        let DecodedEvent { kind: Some(kind), ticks, id, words: all } = event else { return };
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
            EventKind::Ready if table.describes => self.granted_before = Some(at),
            EventKind::Ready => {
                operation.granted = Some(operation.granted.map_or(at, |known| known.min(at)));
                operation.ready = Some(operation.ready.map_or(at, |known| known.max(at)));
            }
            EventKind::Began => {
                let queue = events.queues.get(&words[0]);
                self.on_queue = queue.is_some();
                self.began(at, queue.copied().unwrap_or(track));
            }
            EventKind::Ended => {
                let (how, device_work, why) = ended_of(words[0]);
                self.left_to = (events.about.tracks[track].kind == TrackKind::Reactor).then_some(track);
                self.ended(at, events.outcome(table, how, why), device_work);
            }
            EventKind::Done => {
                let (about, text) = halves(words[0]);
                let how = OutcomeCode::from_bits(about as u8);
                operation.done = Some(at);
                operation.observed = Some(at);
                if let [_, began, ended] = *all {
                    operation.ran = Some((events.scale.since_cut(began), events.scale.since_cut(ended)));
                }
                if how != OutcomeCode::Well {
                    operation.outcome = events.outcome(table, how, text);
                }
            }
            EventKind::Observed => operation.observed = Some(at),
            EventKind::Awake => {
                operation.awake = operation.awake.or(Some(at));
                self.last_awake = Some(at);
            }
            // Each node of a program takes the lock, on any thread: the body began with the first.
            EventKind::Locked if words[0] == 0 => {
                if self.locked.is_none_or(|known| at < known) {
                    self.locked = Some(at);
                    let on_loop = events.about.tracks[track].kind == TrackKind::EventLoop;
                    self.event_loop = on_loop.then_some(track);
                }
            }
            EventKind::Locked => self.locked = Some(at),
            EventKind::Resumed => {
                operation.resumed = Some(at);
                operation.track = Some(track);
                self.resumed_on = Some(track);
                if words[0] != 0 {
                    operation.kind = OperationKind::Wait;
                }
            }
            EventKind::WaitsFor => {
                let (name, awaits) = halves(words[1]);
                operation.kind = if awaits == 0 { OperationKind::Wait } else { OperationKind::Await };
                operation.waits_for = (words[0] != 0).then_some(words[0]);
                self.waits_for_any = (words[0] == 0 && event.word(2) != NO_ENGINE).then(|| event.word(2));
                self.submitted(events, table, at, name, UseKind::Wait);
            }
            EventKind::WaitedFor => operation.waits_for = Some(words[0]),
            EventKind::Blocks => operation.kind = OperationKind::Wait,
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
            EventKind::ImportOrigin => {
                let (process, site) = halves(words[0]);
                let clock =
                    all.get(2).and_then(|clock| table.known(*clock as u32)).map(|clock| ClockOffset {
                        clock: clock.clone(),
                        ahead_ns: event.word(3) as i64,
                        uncertainty_ns: event.word(4),
                    });
                operation.origin = Some(Box::new(ImportOrigin { process, key: words[1], clock }));
                operation.site = table.site(site);
            }
            // Of a variable, or of a thread.
            EventKind::Variable | EventKind::Engine => {}
        }
    }

    /// Makes what was read fit together.
    pub(super) fn settle(&mut self) {
        let Some(what) = self.submitted else { return };
        let operation = &mut self.operation;
        if let Some(before) = self.granted_before {
            // The description says what is granted now. An event of the operation says when. An operation
            // that the granting thread runs at once has no such event but its beginning.
            let began_since = what == UseKind::Body && operation.began.is_some_and(|began| began > before);
            if operation.granted.is_none() && !began_since {
                operation.granted = Some(before.max(operation.submitted));
            }
            operation.ready = operation.ready.or(operation.granted);
        }
        // A thread takes an operation, finds that fences are pending, and parks it until they have settled.
        if operation.awake.is_some_and(|awake| Some(awake) < operation.ready) {
            operation.awake = self.last_awake.filter(|last| Some(*last) >= operation.ready);
        }
        // If `on_skip` was called, it ran in place of the body.
        if matches!(operation.outcome, Outcome::Cancelled | Outcome::Skipped(_)) && self.locked.is_none() {
            operation.began = None;
            if what == UseKind::Copy && operation.accesses.is_empty() {
                // A library was asked for a copy, and made none. Nothing waited meanwhile.
                operation.issued = Some(operation.submitted);
                operation.done = operation.issued;
            }
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
            UseKind::Lease => {
                operation.kind = OperationKind::Export;
                // The thread that granted the lease has not got it.
                if !self.on_queue {
                    operation.track = self.resumed_on.or(operation.submitter);
                }
            }
            UseKind::Copy => operation.kind = OperationKind::Copy,
            // A thread that waited has said so.
            UseKind::Wait if operation.kind != OperationKind::Wait => operation.kind = OperationKind::Await,
            UseKind::Wait | UseKind::Body => {}
        }
        if operation.origin.is_some() {
            // No thread here runs it.
            (operation.kind, operation.track) = (OperationKind::Import, None);
        }
        if what == UseKind::Body && operation.began.is_some() && !self.on_queue {
            // The worker that began an asynchronous body runs others meanwhile.
            operation.track = self.left_to.or(operation.track);
        }
        match (what, self.locked) {
            // The body began when it had the lock; before, the thread was merely awake.
            (UseKind::Body, Some(locked)) if operation.began.is_some() => {
                operation.awake = operation.awake.or(operation.began);
                operation.began = Some(locked);
                // A worker has sent the body off.
                operation.track = self.event_loop.or(operation.track);
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
            let left = operation.issued.take();
            if operation.outcome == Outcome::Cancelled {
                operation.done = left;
            } else {
                (operation.granted, operation.done) = (left, operation.observed);
                if operation.resumed.is_some() {
                    operation.outcome = Outcome::Ok;
                }
            }
        }
        if what == UseKind::Body && operation.ready.is_none() {
            // The thread that granted the operation ran it at once.
            operation.ready = operation.awake.or(operation.began);
            operation.granted = operation.ready;
        }
    }

    /// The lease that an export has become, if it was held.
    pub(super) fn lease(&self) -> Option<Lease> {
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
    pub(super) fn become_export(&mut self, lease: &Lease) {
        let operation = &mut self.operation;
        operation.issued = Some(lease.opened);
        operation.done = Some(lease.opened);
        operation.outcome = Outcome::Ok;
    }
}

/// A thread whose events are read.
pub(super) struct ThreadTable {
    pub(super) track: TrackId,
    /// No thread, but the description of what is in flight where the beginning of the trace is left out.
    pub(super) describes: bool,
    pub(super) texts: Vec<Text>,
    /// The engines that it has worked for: from which place on. In order.
    pub(super) engines: Vec<(u32, u64)>,
    /// Lines of programs, by the numbers of their texts.
    pub(super) sites: RefCell<HashMap<u32, Option<Site>>>,
}

impl ThreadTable {
    pub(super) fn known(&self, number: u32) -> Option<&Text> {
        self.texts.get(number as usize)
    }

    pub(super) fn site(&self, number: u32) -> Option<Site> {
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
    access_of(word).map(|(variable, mode): (u64, AccessMode)| Access { variable, mode })
}
