//! Reads a trace that was made here, or as much of it as is there.

use std::collections::{BTreeMap, HashMap};

use super::blocks::{self, Inflated};
use super::category;
use super::damage::Damage;
use super::known::{KnownStrings, Read, Refused, Texts};
use super::messages::{COMPRESSED_PACKETS, SEQ_INCREMENTAL_STATE_CLEARED, TYPE_COUNTER, UNIT_SIZE_BYTES};
use super::packets::{PacketPart, PacketParts};
use super::tracks;
use super::wire::{Fields, Garbled, Value};
use crate::analysis::merge::{self, Axes};
use crate::format::budget::{Budget, Spent};
use crate::format::facts::{self, Head, ReadFacts};
use crate::model::{
    Blocker, Counter, Edge, Lease, Nanos, Operation, Stall, Text, Trace, Track, Variable, Workers,
};

/// The trace in a Perfetto trace that [`write`](super::write()) made.
///
/// A file that is truncated or damaged gives what can be read of it; [`Trace::losses`] says what is missing,
/// and where. Any other file gives a trace without operations, and says so there. Texts are kept to 4,096
/// bytes.
///
/// The trace takes at most 64 times the memory that the file takes, or 16 MiB if that is more. Reading stops
/// where it would take more, and [`Trace::losses`] says so; a file that was written here takes a tenth of
/// that.
///
/// Of files that were put behind each other the traces are [merged](crate::merge()).
pub fn read(bytes: &[u8]) -> Trace {
    let mut reader = Reader::of(Budget::of(bytes.len()));
    if reader.parts(bytes).is_err() {
        let words = reader.budget.words(bytes.len());
        reader.stopped = Some(words);
    }
    reader.finish()
}

/// Sequences of packets that are distinguished in one file: each of our writers has one, as has each thread
/// of other writers.
const SEQUENCES_MAX: usize = 1_024;

/// The readable part of a compressed block whose end is not in the file.
fn beginning_of_block(packet: &[u8]) -> Option<Vec<u8>> {
    let mut rest = packet;
    let (tag, _) = prost::encoding::decode_key(&mut rest).ok()?;
    prost::encoding::decode_varint(&mut rest).ok()?;
    match blocks::inflate(rest) {
        Inflated::Whole(block) | Inflated::Beginning(block) if tag == COMPRESSED_PACKETS => Some(block),
        _ => None,
    }
}

struct Reader {
    texts: Texts,
    budget: Budget,
    /// By their numbers; in the order of their first packets.
    sequences: Vec<(u64, Sequence)>,
    damage: Damage,
    /// The number of unreadable things of each kind, and the reason for the first of them.
    unreadable: BTreeMap<&'static str, (u64, String)>,
    /// The reason why reading has stopped before the end.
    stopped: Option<String>,
}

/// The packets of one writer.
#[derive(Default)]
struct Sequence {
    known: KnownStrings,
    head: Option<Head>,
    /// Another trace begins that cannot be distinguished from this one: nothing more is read.
    is_over: bool,
    /// The time from which those of the block are counted.
    began: u64,
    trace: Trace,
    /// By track; what has no samples yet is no counter of the trace.
    counters: HashMap<u64, Series>,
}

/// A counter that a file describes.
struct Series {
    name: Text,
    unit: Text,
    /// Index into the trace's counters.
    at: Option<usize>,
    /// In the order of their descriptions.
    number: usize,
}

/// The fields of an event that are used here.
#[derive(Default)]
struct PacketEvent<'a> {
    message: &'a [u8],
    kind: i32,
    category: Option<u64>,
    name: Option<u64>,
    track: Option<u64>,
    value: Option<i64>,
}

impl<'a> PacketEvent<'a> {
    fn of(message: &'a [u8]) -> Result<Self, Garbled> {
        let mut event = Self { message, ..Self::default() };
        for field in Fields::of(message) {
            match field? {
                (3, Value::Varint(category)) => event.category = event.category.or(Some(category)),
                (9, Value::Varint(kind)) => event.kind = kind as i32,
                (10, Value::Varint(name)) => event.name = Some(name),
                (11, Value::Varint(track)) => event.track = Some(track),
                (30, Value::Varint(value)) => event.value = Some(value as i64),
                _ => {}
            }
        }
        Ok(event)
    }
}

/// The field of an event with its annotations.
const ANNOTATIONS: u32 = 4;

impl Reader {
    fn of(budget: Budget) -> Self {
        Self {
            texts: Texts::default(),
            budget,
            sequences: Vec::new(),
            damage: Damage::default(),
            unreadable: BTreeMap::new(),
            stopped: None,
        }
    }

    fn parts(&mut self, bytes: &[u8]) -> Result<(), Spent> {
        for part in PacketParts::of(bytes) {
            match part {
                PacketPart::Damage(words) => self.damage.add(|| words),
                PacketPart::Cut(words, rest) => {
                    self.damage.add(|| words);
                    if let Some(block) = beginning_of_block(rest) {
                        self.block(&block)?;
                    }
                }
                PacketPart::Packet(at, body) => match compressed(body) {
                    Some(block) => match blocks::inflate(block) {
                        Inflated::Whole(block) => self.block(&block)?,
                        Inflated::Beginning(block) => {
                            self.block(&block)?;
                            self.unreadable("block", || format!("the one at byte {at} ends too early"));
                        }
                        Inflated::Nothing(why) => {
                            self.unreadable("block", || format!("the one at byte {at} is damaged: {why}"));
                        }
                    },
                    None => self.packet(body, || format!("the one at byte {at} is garbled"))?,
                },
            }
        }
        Ok(())
    }

    /// The packets of a block; none of them may be a block itself.
    fn block(&mut self, bytes: &[u8]) -> Result<(), Spent> {
        for part in PacketParts::of(bytes) {
            match part {
                PacketPart::Packet(at, body) => {
                    self.packet(body, || format!("the one at byte {at} of a block is garbled"))?;
                }
                PacketPart::Damage(words) => self.damage.add(|| format!("a block is {words}")),
                // It was cut with the file, which the damage already says.
                PacketPart::Cut(..) => {}
            }
        }
        Ok(())
    }

    /// Reads a packet; `garbled` says which one it is.
    fn packet(&mut self, packet: &[u8], garbled: impl FnOnce() -> String) -> Result<(), Spent> {
        match self.read_packet(packet) {
            Ok(()) => {}
            Err(Refused::Garbled) => self.unreadable("packet", garbled),
            Err(Refused::Spent) => return Err(Spent),
        }
        Ok(())
    }

    fn read_packet(&mut self, packet: &[u8]) -> Result<(), Refused> {
        let (mut time, mut flags, mut number) = (0, 0, 0);
        let (mut interned, mut track, mut event) = (None, None, None);
        for field in Fields::of(packet) {
            match field? {
                (8, Value::Varint(timestamp)) => time = timestamp,
                (10, Value::Varint(sequence)) => number = sequence,
                (13, Value::Varint(sequence)) => flags = sequence as u32,
                (12, Value::Bytes(data)) => interned = Some(data),
                (60, Value::Bytes(descriptor)) => track = Some(descriptor),
                (11, Value::Bytes(message)) => event = Some(message),
                _ => {}
            }
        }
        let cleared = flags & SEQ_INCREMENTAL_STATE_CLEARED != 0;
        if !cleared && interned.is_none() && track.is_none() && event.is_none() {
            return Ok(());
        }
        let Some(sequence) = self.sequence(number)? else {
            self.unreadable("packet", || format!("it is of more than {SEQUENCES_MAX} writers"));
            return Ok(());
        };
        let Self { texts, budget, unreadable, .. } = self;
        let sequence = &mut self.sequences[sequence].1;
        if sequence.is_over {
            return Ok(());
        }
        if cleared {
            (sequence.known, sequence.began) = (KnownStrings::default(), time);
        }
        if let Some(data) = interned {
            sequence.known.learn(data, texts, budget)?;
        }
        if let Some(descriptor) = track {
            sequence.track(descriptor, texts, budget)?;
        }
        let Some(message) = event else { return Ok(()) };
        match sequence.event(time.saturating_sub(sequence.began), &PacketEvent::of(message)?, budget) {
            Ok(()) => {}
            Err((_, Unreadable::Spent)) => return Err(Refused::Spent),
            Err((what, Unreadable::Because(why))) => count(unreadable, what, || why),
        }
        Ok(())
    }

    /// The index of a sequence of packets; `None` if there are too many.
    fn sequence(&mut self, number: u64) -> Result<Option<usize>, Spent> {
        // Packets of one writer follow each other.
        let known = self.sequences.iter().rposition(|(known, _)| *known == number);
        if known.is_some() || self.sequences.len() == SEQUENCES_MAX {
            return Ok(known);
        }
        self.budget.take(2 * size_of::<(u64, Sequence)>())?;
        self.sequences.push((number, Sequence::default()));
        Ok(Some(self.sequences.len() - 1))
    }

    fn unreadable(&mut self, what: &'static str, why: impl FnOnce() -> String) {
        count(&mut self.unreadable, what, why);
    }

    fn finish(self) -> Trace {
        let mut damage = self.damage.words();
        let unreadable = self.unreadable.into_iter().map(|(what, (count, why))| match count {
            1 => format!("1 {what} could not be read: {why}"),
            _ => format!("{count} times a {what} could not be read; the first time because {why}"),
        });
        damage.extend(unreadable);
        damage.extend(self.stopped);
        let traces = self.sequences.into_iter().filter_map(|(_, sequence)| sequence.finish());
        let mut traces: Vec<Trace> = traces.collect();
        let axes = merge::axes(&traces).unwrap_or_else(|why| {
            damage.push(format!("the file has {} traces, and only the first is shown: {why}", traces.len()));
            traces.truncate(1);
            Axes::default()
        });
        let mut trace = merge::merged(traces, axes);
        if trace == Trace::default() {
            damage.push("this is no trace of estafette: none of its events is in it".to_owned());
        }
        trace.losses.damage.append(&mut damage);
        trace
    }
}

/// Counts what cannot be read, and keeps why the first of it cannot.
fn count(
    unreadable: &mut BTreeMap<&'static str, (u64, String)>,
    what: &'static str,
    why: impl FnOnce() -> String,
) {
    unreadable.entry(what).or_insert_with(|| (0, why())).0 += 1;
}

impl Sequence {
    /// Keeps a track if it is a counter's.
    fn track(&mut self, descriptor: &[u8], texts: &mut Texts, budget: &mut Budget) -> Result<(), Refused> {
        let (mut uuid, mut name, mut counter) = (None, "", None);
        for field in Fields::of(descriptor) {
            match field? {
                (1, Value::Varint(number)) => uuid = Some(number),
                (2, Value::Bytes(text)) => name = str::from_utf8(text).map_err(|_| Garbled)?,
                (8, Value::Bytes(message)) => counter = Some(message),
                _ => {}
            }
        }
        let (Some(uuid), Some(counter)) = (uuid, counter) else { return Ok(()) };
        let (mut unit, mut unit_name) = ("", None);
        for field in Fields::of(counter) {
            match field? {
                (3, Value::Varint(number)) if number == UNIT_SIZE_BYTES as u64 => unit = "bytes",
                (6, Value::Bytes(text)) => unit_name = Some(str::from_utf8(text).map_err(|_| Garbled)?),
                _ => {}
            }
        }
        budget.take(2 * size_of::<(u64, Series)>())?;
        let name = texts.shared(name, budget)?;
        let unit = texts.shared(unit_name.unwrap_or(unit), budget)?;
        let number = self.counters.len();
        // Once, though it may be described again.
        self.counters.entry(uuid).or_insert(Series { name, unit, at: None, number });
        Ok(())
    }

    fn event(
        &mut self,
        time: u64,
        event: &PacketEvent<'_>,
        budget: &mut Budget,
    ) -> Result<(), (&'static str, Unreadable)> {
        if event.kind == TYPE_COUNTER {
            return self.sample(time, event, budget).map_err(|why| ("sample", why));
        }
        let Some(category) = event.category else { return Ok(()) };
        let Some(category) = self.known.category(category) else {
            return Err(("event", "the name of its category is lost".into()));
        };
        let what = match category.as_str() {
            category::HEAD => EventSubject::Head,
            category::TENSORS => EventSubject::Tensors,
            category::OPERATION => EventSubject::Operation,
            category::LEASE => EventSubject::Lease,
            category::STALL => EventSubject::Stall,
            category::EDGES => EventSubject::Edges,
            // Another writer's event.
            _ => return Ok(()),
        };
        let known = std::mem::take(&mut self.known);
        let outcome = match known.facts(event.message, ANNOTATIONS) {
            Ok(facts) => {
                let name = event.name.and_then(|name| known.event(name));
                self.read_event(what, time, name, &facts, budget)
            }
            Err(why) => Err(Unreadable::Because(why)),
        };
        self.known = known;
        outcome.map_err(|why| match why {
            Unreadable::Because(why) => (what.word(), format!("it {why}").into()),
            Unreadable::Spent => (what.word(), Unreadable::Spent),
        })
    }

    fn sample(&mut self, time: u64, event: &PacketEvent<'_>, budget: &mut Budget) -> Result<(), Unreadable> {
        let series = event.track.and_then(|track| self.counters.get_mut(&track));
        let (Some(series), Some(value)) = (series, event.value) else {
            return Err("its counter is lost".into());
        };
        let counters = &mut self.trace.counters;
        if series.at.is_none() {
            budget.take(size_of::<Counter>())?;
            series.at = Some(counters.len());
            let (name, unit) = (series.name.clone(), series.unit.clone());
            counters.push(Counter { name, unit, samples: Vec::new() });
        }
        budget.take(size_of::<(u64, i64)>())?;
        if let Some(at) = series.at {
            counters[at].samples.push((time, value));
        }
        Ok(())
    }

    fn read_event(
        &mut self,
        what: EventSubject,
        time: u64,
        name: Option<&Text>,
        facts: &Read<'_>,
        budget: &mut Budget,
    ) -> Result<(), Unreadable> {
        let mut owner = None;
        match what {
            EventSubject::Head => {
                let head = facts::head_from(facts)?;
                plausible([Some(head.duration)])?;
                if let Some(known) = &mut self.head {
                    let is_same =
                        (known.started_unix_ns, &known.processes) == (head.started_unix_ns, &head.processes);
                    if !is_same || known.is_last && !head.is_last {
                        self.is_over = true;
                        return Err(if is_same { TWICE } else { ANOTHER }.into());
                    }
                    // Totals that are counted as the file is written are known at the end.
                    known.totals = known.totals.max(head.totals);
                    known.is_last |= head.is_last;
                    return Ok(());
                }
                let named = head.libraries.len() + head.clocks.len() + head.damage.len();
                let workers = head.workers.len() * (size_of::<Workers>() + size_of::<(Nanos, u32)>());
                budget.take(head.tracks.len() * size_of::<Track>() + named * size_of::<Text>() + workers)?;
                // Room for all at once: a vector that grows is there twice while it moves. Less for what the
                // file cannot hold.
                let room = (budget.left() / 4 / size_of::<Operation>()).min(head.totals.operations as usize);
                self.trace.operations.reserve_exact(room);
                self.head = Some(head);
            }
            EventSubject::Tensors => {
                for facts in facts.find_things("tensors") {
                    let variable = facts::variable_from(&facts?)?;
                    plausible([variable.bytes])?;
                    budget.take(size_of::<Variable>())?;
                    self.trace.variables.push(variable);
                }
            }
            EventSubject::Operation => {
                let name = name.ok_or("has a name that is lost")?;
                let it = facts::operation_from(name, facts)?;
                plausible([Some(it.submitted), it.granted, it.ready, it.awake, it.began, it.issued])?;
                plausible([it.done, it.observed, it.resumed])?;
                plausible([it.ran.map(|(from, _)| from), it.ran.map(|(_, to)| to)])?;
                owner = Some(it.id);
                let disorder = it.disorder.as_deref().map_or(0, size_of_val);
                let origin = it.origin.as_deref().map_or(0, size_of_val);
                budget.take(size_of::<Operation>() + size_of_val(&it.accesses[..]) + disorder + origin)?;
                self.trace.operations.push(it);
            }
            EventSubject::Lease => {
                let lease = facts::lease_from(facts)?;
                plausible([Some(lease.opened), lease.closed])?;
                owner = Some(lease.id);
                budget.take(size_of::<Lease>())?;
                self.trace.leases.push(lease);
            }
            EventSubject::Stall => {
                let stall = facts::stall_from(time, facts)?;
                plausible([Some(stall.to)])?;
                if stall.to <= stall.from {
                    return Err("ends before it begins".into());
                }
                budget.take(size_of::<Stall>())?;
                self.trace.stalls.push(stall);
            }
            EventSubject::Edges => {}
        }
        for facts in facts.find_things("after") {
            budget.take(size_of::<Edge>())?;
            self.trace.edges.push(facts::edge_from(owner, &facts?)?);
        }
        Ok(())
    }

    fn finish(self) -> Option<Trace> {
        let mut trace = self.trace;
        trace.sort_by_id();
        // The file has them in order of time.
        let waited = |stall: &Stall| (stall.waiter, stall.from, stall.access, stall.to);
        let why = |stall: &Stall| (stall.cause, stall.hazard, stall.blocker, stall.critical);
        trace.stalls.sort_unstable_by_key(|stall| (waited(stall), why(stall)));
        trace.edges.sort_by_key(|edge| edge.to);

        // In the order in which the file describes them.
        let mut order: Vec<(usize, usize)> =
            self.counters.values().filter_map(|series| Some((series.number, series.at?))).collect();
        order.sort_unstable();
        let mut counters = std::mem::take(&mut trace.counters);
        trace.counters.extend(order.into_iter().map(|(_, at)| {
            let none = Counter { name: Text::default(), unit: Text::default(), samples: Vec::new() };
            std::mem::replace(&mut counters[at], none)
        }));
        match self.head {
            Some(mut head) => {
                let missing = tracks::missing(&head, &trace);
                trace.started_unix_ns = head.started_unix_ns;
                trace.duration = head.duration;
                trace.program = std::mem::take(&mut head.program);
                trace.processes = std::mem::take(&mut head.processes);
                trace.tracks = std::mem::take(&mut head.tracks);
                trace.libraries = std::mem::take(&mut head.libraries);
                trace.workers = std::mem::take(&mut head.workers);
                trace.clocks = head.clocks.iter().map(Text::to_string).collect();
                trace.losses.records = std::mem::take(&mut head.lost);
                trace.losses.damage = head.damage.iter().map(Text::to_string).chain(missing).collect();
            }
            None if trace.operations.is_empty() && trace.leases.is_empty() => return None,
            None => {
                let lost = "the head is missing: the names of tracks and libraries are lost";
                trace.losses.damage.push(lost.to_owned());
                trace.duration = latest(&trace);
            }
        }
        forget_unknown(&mut trace);
        Some(trace)
    }
}

/// The reason why nothing more is read of a sequence.
const TWICE: &str = "begins the same trace again, which is counted once";
const ANOTHER: &str =
    "begins another trace that cannot be distinguished from the first: give each as a file of its own";

/// The block in a packet that holds one.
fn compressed(packet: &[u8]) -> Option<&[u8]> {
    Fields::of(packet).map_while(Result::ok).find_map(|field| match field {
        (COMPRESSED_PACKETS, Value::Bytes(block)) => Some(block),
        _ => None,
    })
}

#[derive(Clone, Copy)]
enum EventSubject {
    Head,
    Tensors,
    Operation,
    Lease,
    Stall,
    Edges,
}

impl EventSubject {
    fn word(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Tensors => "list of tensors",
            Self::Operation => "operation",
            Self::Lease => "lease",
            Self::Stall => "stall",
            Self::Edges => "list of edges",
        }
    }
}

/// The reason why an event could not be read.
enum Unreadable {
    Because(String),
    Spent,
}

impl From<String> for Unreadable {
    fn from(why: String) -> Self {
        Self::Because(why)
    }
}

impl From<&str> for Unreadable {
    fn from(why: &str) -> Self {
        Self::Because(why.to_owned())
    }
}

impl From<Spent> for Unreadable {
    fn from(_: Spent) -> Self {
        Self::Spent
    }
}

/// The greatest time and size that is believed: a hundred days, eight petabytes. It leaves room for sums.
const BELIEVED_MAX: u64 = 1 << 53;

/// Refuses numbers that only damage can have made.
fn plausible<const N: usize>(numbers: [Option<u64>; N]) -> Result<(), String> {
    match numbers.into_iter().flatten().find(|&number| number > BELIEVED_MAX) {
        Some(number) => Err(format!("has {number} for a time or a size, which cannot be")),
        None => Ok(()),
    }
}

/// The last moment that anything is known of.
fn latest(trace: &Trace) -> u64 {
    let operations = trace.operations.iter().flat_map(|operation| {
        [Some(operation.submitted), operation.issued, operation.done, operation.resumed].into_iter().flatten()
    });
    let leases = trace.leases.iter().map(|lease| lease.closed.unwrap_or(lease.opened));
    let stalls = trace.stalls.iter().map(|stall| stall.to);
    operations.chain(leases).chain(stalls).max().unwrap_or(0)
}

/// References to tracks and libraries that are not there would mislead their readers.
fn forget_unknown(trace: &mut Trace) {
    let (tracks, libraries) = (trace.tracks.len(), trace.libraries.len());
    let known = |index: &mut Option<usize>, count: usize| *index = index.filter(|&index| index < count);
    for operation in &mut trace.operations {
        known(&mut operation.library, libraries);
        known(&mut operation.submitter, tracks);
        known(&mut operation.track, tracks);
    }
    trace.leases.iter_mut().for_each(|lease| known(&mut lease.library, libraries));
    trace.variables.iter_mut().for_each(|variable| known(&mut variable.library, libraries));
    for stall in &mut trace.stalls {
        if let Blocker::Queue(track) | Blocker::Thread(track) = stall.blocker
            && track >= tracks
        {
            stall.blocker = Blocker::None;
        }
    }
    trace.losses.records.retain(|lost| lost.track < tracks);
}
