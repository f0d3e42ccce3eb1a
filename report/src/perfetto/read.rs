//! Reads a trace that was made here, or as much of it as is there.

use std::collections::{BTreeMap, HashMap};

use prost::Message;

use super::blocks::{self, Inflated};
use super::category;
use super::messages::{
    COMPRESSED_PACKETS, SEQ_INCREMENTAL_STATE_CLEARED, TYPE_COUNTER, TracePacket, TrackDescriptor,
    TrackEvent, UNIT_SIZE_BYTES,
};
use super::packets::{Piece, Pieces};
use super::strings::Known;
use super::tracks;
use crate::facts::{self, Facts, Head};
use crate::model::{Counter, Culprit, Recording};

/// The recording in a Perfetto trace that [`write`](super::write()) made.
///
/// A file that is truncated or damaged gives what can be read of it; [`Recording::losses`] says what is missing, and where.
/// Any other file gives a recording without operations, and says so there.
pub fn read(bytes: &[u8]) -> Recording {
    let mut reader = Reader::default();
    for piece in Pieces::of(bytes) {
        match piece {
            Piece::Damage(words) => reader.damage.push(words),
            Piece::Cut(words, rest) => {
                reader.damage.push(words);
                if let Some(block) = beginning_of_block(rest) {
                    reader.block(&block);
                }
            }
            Piece::Packet(at, body) => match TracePacket::decode(body) {
                Ok(TracePacket { compressed_packets: Some(block), .. }) => match blocks::inflate(&block) {
                    Inflated::Whole(block) => reader.block(&block),
                    Inflated::Beginning(block) => {
                        reader.block(&block);
                        reader.unreadable("block", format!("the one at byte {at} ends too early"));
                    }
                    Inflated::Nothing(why) => {
                        reader.unreadable("block", format!("the one at byte {at} is damaged: {why}"));
                    }
                },
                Ok(packet) => reader.packet(packet),
                Err(_) => reader.unreadable("packet", format!("the one at byte {at} is garbled")),
            },
        }
    }
    reader.finish()
}

/// What can be had of a compressed block whose end is not in the file.
fn beginning_of_block(packet: &[u8]) -> Option<Vec<u8>> {
    let mut rest = packet;
    let (tag, _) = prost::encoding::decode_key(&mut rest).ok()?;
    prost::encoding::decode_varint(&mut rest).ok()?;
    match blocks::inflate(rest) {
        Inflated::Whole(block) | Inflated::Beginning(block) if tag == COMPRESSED_PACKETS => Some(block),
        _ => None,
    }
}

#[derive(Default)]
struct Reader {
    known: Known,
    head: Option<Head>,
    recording: Recording,
    /// Index into the counters, by track.
    counters: HashMap<u64, usize>,
    damage: Vec<String>,
    /// How many of what could not be read, and why the first of them could not.
    unreadable: BTreeMap<&'static str, (u64, String)>,
}

impl Reader {
    /// The packets of a block; none of them may be a block itself.
    fn block(&mut self, bytes: &[u8]) {
        for piece in Pieces::of(bytes) {
            match piece {
                Piece::Packet(at, body) => match TracePacket::decode(body) {
                    Ok(packet) => self.packet(packet),
                    Err(_) => {
                        self.unreadable("packet", format!("the one at byte {at} of a block is garbled"))
                    }
                },
                Piece::Damage(words) => self.damage.push(format!("a block is {words}")),
                // It was cut with the file, which has been told.
                Piece::Cut(..) => {}
            }
        }
    }

    fn packet(&mut self, packet: TracePacket) {
        if packet.sequence_flags.unwrap_or(0) & SEQ_INCREMENTAL_STATE_CLEARED != 0 {
            self.known = Known::default();
        }
        if let Some(data) = packet.interned_data {
            self.known.learn(data);
        }
        if let Some(descriptor) = packet.track_descriptor {
            self.track(descriptor);
        }
        if let Some(event) = packet.track_event {
            self.event(packet.timestamp.unwrap_or(0), &event);
        }
    }

    fn track(&mut self, descriptor: TrackDescriptor) {
        if let (Some(uuid), Some(counter)) = (descriptor.uuid, descriptor.counter) {
            let unit = counter.unit_name.unwrap_or_else(|| {
                (if counter.unit == Some(UNIT_SIZE_BYTES) { "bytes" } else { "" }).to_owned()
            });
            self.counters.insert(uuid, self.recording.counters.len());
            let name = descriptor.name.unwrap_or_default();
            self.recording.counters.push(Counter { name, unit, samples: Vec::new() });
        }
    }

    fn event(&mut self, time: u64, event: &TrackEvent) {
        if event.r#type == Some(TYPE_COUNTER) {
            let counter = event.track_uuid.and_then(|track| self.counters.get(&track));
            match (counter, event.counter_value) {
                (Some(&counter), Some(value)) => self.recording.counters[counter].samples.push((time, value)),
                _ => self.unreadable("sample", "its counter is lost".to_owned()),
            }
            return;
        }
        let Some(&category) = event.category_iids.first() else { return };
        let Some(category) = self.known.category(category).map(str::to_owned) else {
            return self.unreadable("event", "the name of its category is lost".to_owned());
        };
        let what = match category.as_str() {
            category::HEAD => "head",
            category::TENSORS => "list of tensors",
            category::OPERATION => "operation",
            category::LEASE => "lease",
            category::STALL => "stall",
            category::EDGES => "list of edges",
            // Another writer's event.
            _ => return,
        };
        let facts = self.known.facts(&event.debug_annotations);
        if let Err(why) = facts.and_then(|facts| self.told(&category, time, event, &facts)) {
            self.unreadable(what, format!("it {why}"));
        }
    }

    fn told(&mut self, category: &str, time: u64, event: &TrackEvent, facts: &Facts) -> Result<(), String> {
        let mut teller = None;
        match category {
            category::HEAD if self.head.is_some() => {}
            category::HEAD => {
                let head = facts::head_from(facts)?;
                plausible([Some(head.duration)])?;
                self.head = Some(head);
            }
            category::TENSORS => {
                for fact in facts.find_list("tensors") {
                    let variable = facts::variable_from(fact.facts()?)?;
                    plausible([variable.bytes])?;
                    self.recording.variables.push(variable);
                }
            }
            category::OPERATION => {
                let name = event.name_iid.and_then(|name| self.known.event(name));
                let name = name.ok_or("has a name that is lost")?;
                let it = facts::operation_from(name, facts)?;
                plausible([Some(it.submitted), it.granted, it.ready, it.awake, it.began, it.issued])?;
                plausible([it.done, it.observed, it.resumed])?;
                plausible([it.ran.map(|(from, _)| from), it.ran.map(|(_, to)| to)])?;
                teller = Some(it.id);
                self.recording.operations.push(it);
            }
            category::LEASE => {
                let lease = facts::lease_from(facts)?;
                plausible([Some(lease.opened), lease.closed])?;
                teller = Some(lease.id);
                self.recording.leases.push(lease);
            }
            category::STALL => {
                let stall = facts::stall_from(time, facts)?;
                plausible([Some(stall.to)])?;
                if stall.to <= stall.from {
                    return Err("ends before it begins".to_owned());
                }
                self.recording.stalls.push(stall);
            }
            _ => {}
        }
        for fact in facts.find_list("after") {
            self.recording.edges.push(facts::edge_from(teller, fact.facts()?)?);
        }
        Ok(())
    }

    fn unreadable(&mut self, what: &'static str, why: String) {
        self.unreadable.entry(what).or_insert((0, why)).0 += 1;
    }

    fn finish(mut self) -> Recording {
        let mut recording = self.recording;
        recording.operations.sort_by_key(|operation| operation.id);
        recording.operations.dedup_by_key(|operation| operation.id);
        recording.leases.sort_by_key(|lease| lease.id);
        recording.leases.dedup_by_key(|lease| lease.id);
        recording.variables.sort_by_key(|variable| variable.id);
        recording.variables.dedup_by_key(|variable| variable.id);
        // The file has them in order of time.
        recording.stalls.sort_by_key(|stall| (stall.waiter, stall.from, stall.access, stall.to));
        recording.edges.sort_by_key(|edge| edge.to);

        let unreadable = self.unreadable.into_iter().map(|(what, (count, why))| match count {
            1 => format!("1 {what} could not be read: {why}"),
            _ => format!("{count} times a {what} could not be read; the first time because {why}"),
        });
        self.damage.extend(unreadable);
        match self.head {
            Some(mut head) => {
                self.damage.extend(tracks::missing(&head, &recording));
                recording.started_unix_ns = head.started_unix_ns;
                recording.duration = head.duration;
                recording.program = std::mem::take(&mut head.program);
                recording.lanes = std::mem::take(&mut head.lanes);
                recording.libraries = std::mem::take(&mut head.libraries);
                recording.losses.records = std::mem::take(&mut head.lost);
                recording.losses.damage = std::mem::take(&mut head.damage);
            }
            None if recording.operations.is_empty() && recording.leases.is_empty() => {
                self.damage.push("this is no recording of estafette: none of its events is in it".to_owned());
            }
            None => {
                self.damage.push("the head is missing: the names of lanes and libraries are lost".to_owned());
                recording.duration = latest(&recording);
            }
        }
        recording.losses.damage.append(&mut self.damage);
        forget_unknown(&mut recording);
        recording
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
fn latest(recording: &Recording) -> u64 {
    let operations = recording.operations.iter().flat_map(|operation| {
        [Some(operation.submitted), operation.issued, operation.done, operation.resumed].into_iter().flatten()
    });
    let leases = recording.leases.iter().map(|lease| lease.closed.unwrap_or(lease.opened));
    let stalls = recording.stalls.iter().map(|stall| stall.to);
    operations.chain(leases).chain(stalls).max().unwrap_or(0)
}

/// References to lanes and libraries that are not there would mislead whoever follows them.
fn forget_unknown(recording: &mut Recording) {
    let (lanes, libraries) = (recording.lanes.len(), recording.libraries.len());
    let known = |index: &mut Option<usize>, count: usize| *index = index.filter(|&index| index < count);
    for operation in &mut recording.operations {
        known(&mut operation.library, libraries);
        known(&mut operation.submitter, lanes);
        known(&mut operation.lane, lanes);
    }
    recording.leases.iter_mut().for_each(|lease| known(&mut lease.library, libraries));
    recording.variables.iter_mut().for_each(|variable| known(&mut variable.library, libraries));
    for stall in &mut recording.stalls {
        if let Culprit::Queue(lane) | Culprit::Thread(lane) = stall.culprit
            && lane >= lanes
        {
            stall.culprit = Culprit::None;
        }
    }
    recording.losses.records.retain(|lost| lost.lane < lanes);
}
