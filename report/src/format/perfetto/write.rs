//! Writes a trace as a Perfetto trace.

use std::io::{self, Write};

use prost::Message;

use super::blocks;
use super::category;
use super::messages::{
    BLOCK, SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE, TYPE_COUNTER, TYPE_INSTANT,
    TYPE_SLICE_BEGIN, TYPE_SLICE_END, TracePacket, TrackDescriptor, TrackEvent,
};
use super::strings::Interner;
use super::sweep::{Subject, Sweep, SweepEvent, TraceItem};
use super::ties::{Ties, TraceTies};
use super::tracks::{ROOT, Tracks};
use crate::analysis::attribution::{Attribution, COUNTERS};
use crate::format::facts::{self, Fact, Facts, Totals};
use crate::model::source::Source;
use crate::model::{Nanos, Text, Trace};

/// The mark that tells the packets of one file from those of others, since files may be put behind each
/// other: viewers and our reader then take them as traces of several processes. All of it is 0 for a trace
/// that is not of one process.
#[derive(Debug, Clone, Copy, Default)]
struct Origin {
    /// Packets of one writer are one sequence.
    sequence: u32,
    /// Added to numbers of tracks and flows. Tracks have the lower half of a number, flows beside it the
    /// highest bit.
    numbers: u64,
    /// The beginning on the clock of the machine.
    started_ns: Nanos,
}

impl Origin {
    fn of(about: &Trace) -> Self {
        let [process] = &about.processes[..] else { return Self { sequence: 1, ..Self::default() } };
        Self {
            sequence: (process.key as u32).max(2),
            numbers: process.key & 0x7fff_ffff_0000_0000,
            started_ns: process.started_ns,
        }
    }
}

/// Packets between two markers: a few hundred kilobytes, which is the most that one damaged byte can cost.
const PACKETS_PER_BLOCK: usize = 4096;

/// The same for packets with long texts.
const BYTES_PER_BLOCK: usize = 1 << 20;

/// The tag of [`TracePacket`] in a trace: field 1, with a length.
pub(super) const PACKET_TAG: u8 = 0x0a;

/// The number of tensors that one event describes: few enough to lose little with it.
const TENSORS_PER_EVENT: usize = 256;

/// Writes `trace` as a Perfetto trace.
///
/// # Errors
///
/// Errors of `out`.
pub fn write(trace: &Trace, out: impl Write) -> io::Result<()> {
    write_packets(trace, &TraceTies::of(trace), out)
}

/// Attributes a trace and writes it as a Perfetto trace, operation by operation. The file is the one of
/// [`write()`] after [`attribute`](crate::analysis::attribution::attribute); what is in memory meanwhile is
/// some 20 bytes for an operation with one access, 25 more for each that overlaps with others, and some MiB.
///
/// # Errors
///
/// Errors of `out`.
pub fn attribute_and_write(source: &impl Source, out: impl Write) -> io::Result<()> {
    write_packets(source, &Attribution::of(source), out)
}

fn write_packets<S: Source>(source: &S, ties: &impl Ties, out: impl Write) -> io::Result<()> {
    let mut out = Packets {
        out: io::BufWriter::new(out),
        origin: Origin::of(source.about()),
        interner: Interner::default(),
        in_block: 0,
        block: Vec::new(),
        totals: Totals::default(),
    };
    let about = source.about();
    let given = ties.counters().unwrap_or_default().iter().map(|it| (it.name.as_str(), it.unit.as_str()));
    let counted = COUNTERS.into_iter().filter(|_| ties.counters().is_none());
    let (mut tracks, descriptors) = Tracks::of(about, source.variables() > 0, given.chain(counted));
    out.begin_block()?;
    descriptors.into_iter().for_each(|descriptor| out.describe(descriptor));
    let head = |totals, is_last| EventBody {
        category: category::HEAD,
        name: "recording".into(),
        facts: facts::head(about, totals, is_last),
    };
    out.moment(0, ROOT, head(ties.totals(), false))?;
    if let Some(track) = tracks.tensors {
        out.tensors(source, track)?;
    }
    let loose: Vec<Fact> = ties.loose().iter().map(|edge| Fact::Facts(facts::loose_edge(edge))).collect();
    if !loose.is_empty() {
        out.totals.edges += loose.len() as u64;
        let facts = Facts::default().list("after", loose.into_iter());
        let name = "dependences of what was lost".into();
        out.moment(0, ROOT, EventBody { category: category::EDGES, name, facts })?;
    }
    let mut sweep = Sweep::of(source, ties);
    let counters = tracks.counter(0);
    sweep.run(&mut tracks, &mut |sweep, time, event, new| {
        out.make_room()?;
        new.into_iter().for_each(|descriptor| out.describe(descriptor));
        out.event(source, ties, sweep, time, event, counters);
        Ok(())
    })?;
    // Once more, with all that was counted, and for a reader to whom the beginning of the file is lost.
    let totals = out.totals.max(ties.totals());
    out.moment(sweep.now().max(about.duration), ROOT, head(totals, true))?;
    out.end_block()?;
    out.out.flush()
}

struct Packets<W> {
    out: W,
    origin: Origin,
    interner: Interner,
    in_block: usize,
    /// The packets of this block, as a file has them.
    block: Vec<u8>,
    totals: Totals,
}

impl<W: Write> Packets<W> {
    fn begin_block(&mut self) -> io::Result<()> {
        self.end_block()?;
        self.interner = Interner::default();
        self.packet(TracePacket {
            // Times of the block begin here.
            timestamp: Some(self.origin.started_ns),
            sequence_flags: Some(SEQ_INCREMENTAL_STATE_CLEARED),
            ..TracePacket::default()
        });
        Ok(())
    }

    /// Writes the block, compressed if a reader would take it so.
    fn end_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let mut framed = BLOCK.to_vec();
        match blocks::deflate(&self.block) {
            Some(compressed) => {
                let compressed_packets = Some(compressed);
                frame(&TracePacket { compressed_packets, ..TracePacket::default() }, &mut framed);
                self.out.write_all(&framed)?;
            }
            None => {
                self.out.write_all(&framed)?;
                self.out.write_all(&self.block)?;
            }
        }
        self.block.clear();
        self.in_block = 0;
        Ok(())
    }

    fn packet(&mut self, mut packet: TracePacket) {
        packet.trusted_packet_sequence_id = Some(self.origin.sequence);
        self.in_block += 1;
        frame(&packet, &mut self.block);
    }

    /// Begins a block if this one has enough.
    fn make_room(&mut self) -> io::Result<()> {
        if self.in_block >= PACKETS_PER_BLOCK || self.block.len() >= BYTES_PER_BLOCK {
            self.begin_block()?;
        }
        Ok(())
    }

    fn describe(&mut self, mut descriptor: TrackDescriptor) {
        let TrackDescriptor { uuid, parent_uuid, sibling_merge_key_int, .. } = &mut descriptor;
        for number in [uuid, parent_uuid, sibling_merge_key_int].into_iter().flatten() {
            *number += self.origin.numbers;
        }
        self.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() });
    }

    fn moment(&mut self, time: Nanos, track: u32, content: EventBody) -> io::Result<()> {
        self.make_room()?;
        let body = self.encode(content, TYPE_INSTANT);
        self.track_event(time, track, body);
        Ok(())
    }

    fn tensors(&mut self, source: &impl Source, track: u32) -> io::Result<()> {
        for first in (0..source.variables()).step_by(TENSORS_PER_EVENT) {
            let last = (first + TENSORS_PER_EVENT).min(source.variables());
            let tensors = (first..last).map(|at| Fact::Facts(facts::variable(&source.variable(at))));
            let facts = Facts::default().list("tensors", tensors);
            self.moment(0, track, EventBody { category: category::TENSORS, name: "tensors".into(), facts })?;
        }
        self.totals.variables = source.variables() as u64;
        Ok(())
    }

    /// Writes an event of a sweep. `counters` is the first counter's track.
    fn event<'a, S: Source, T: Ties>(
        &mut self,
        source: &S,
        ties: &T,
        sweep: &Sweep<'a, S, T>,
        time: Nanos,
        event: SweepEvent<'a>,
        counters: u32,
    ) {
        let (track, body) = match event {
            SweepEvent::End(track) => {
                (track, TrackEvent { r#type: Some(TYPE_SLICE_END), ..TrackEvent::default() })
            }
            SweepEvent::Sample(counter, value) => {
                self.totals.samples += 1;
                let (r#type, counter_value) = (Some(TYPE_COUNTER), Some(value));
                (counters + counter as u32, TrackEvent { r#type, counter_value, ..TrackEvent::default() })
            }
            SweepEvent::Freed(item, track) => {
                let name = item.operation.as_ref().map_or("", |operation| operation.name.as_str());
                let name = format!("{name} may resume").into();
                let content = EventBody { category: category::FREED, name, facts: Facts::default() };
                let mut body = self.encode(content, TYPE_INSTANT);
                if sweep.is_freed_later(&item) {
                    (body.terminating_flow_ids, _) = sweep.arrows(&item);
                }
                (track, body)
            }
            SweepEvent::Begin(ref item, what, track) | SweepEvent::Moment(ref item, what, track) => {
                let slice = matches!(event, SweepEvent::Begin(..));
                let content = self.body_of(source, ties, item, what);
                let mut body = self.encode(content, if slice { TYPE_SLICE_BEGIN } else { TYPE_INSTANT });
                if item.has_dependences(what) {
                    let (arriving, leaving) = sweep.arrows(item);
                    body.flow_ids = leaving;
                    if !sweep.is_freed_later(item) {
                        body.terminating_flow_ids = arriving;
                    }
                }
                (track, body)
            }
        };
        self.track_event(time, track, body);
    }

    fn encode(&mut self, content: EventBody, r#type: i32) -> TrackEvent {
        TrackEvent {
            r#type: Some(r#type),
            category_iids: vec![self.interner.category(content.category)],
            name_iid: Some(self.interner.event(&content.name)),
            debug_annotations: self.interner.annotations(&content.facts),
            ..TrackEvent::default()
        }
    }

    fn track_event(&mut self, time: Nanos, track: u32, mut body: TrackEvent) {
        let interned_data = self.interner.take();
        let Origin { numbers, started_ns, .. } = self.origin;
        body.flow_ids.iter_mut().chain(&mut body.terminating_flow_ids).for_each(|flow| *flow ^= numbers);
        body.track_uuid = Some(numbers + u64::from(track));
        self.packet(TracePacket {
            timestamp: Some(started_ns.saturating_add(time)),
            interned_data,
            sequence_flags: Some(SEQ_NEEDS_INCREMENTAL_STATE),
            track_event: Some(body),
            ..TracePacket::default()
        });
    }

    fn body_of(
        &mut self,
        source: &impl Source,
        ties: &impl Ties,
        item: &TraceItem<'_>,
        what: Subject,
    ) -> EventBody {
        let operation = item.operation.as_deref();
        let mut after = |facts: Facts, id| {
            if !item.has_dependences(what) {
                return facts;
            }
            let edges = ties.edges(id, item.number, operation);
            self.totals.edges += edges.len() as u64;
            facts.list("after", edges.iter().map(|edge| Fact::Facts(facts::edge(edge))))
        };
        match (what, operation, item.lease.as_deref()) {
            (Subject::Operation, Some(operation), _) => {
                let facts = after(facts::operation(operation), operation.id);
                self.totals.operations += 1;
                EventBody { category: category::OPERATION, name: operation.name.clone(), facts }
            }
            (Subject::Lease, _, Some(lease)) => {
                let facts = after(facts::lease(lease), lease.id);
                self.totals.leases += 1;
                let tensor = source.variable_position(lease.variable).map(|at| source.variable(at));
                let tensor = tensor.as_ref().map_or("a tensor", |it| it.name.as_str());
                EventBody {
                    category: category::LEASE,
                    name: format!("{} holds {tensor}", lease.owner).into(),
                    facts,
                }
            }
            (Subject::Stall(stall), ..) => {
                let stall = &item.stalls[stall];
                self.totals.stalls += 1;
                let name = format!("{}: {}", stall.cause.name(), facts::blocker_name(source, stall.blocker));
                EventBody { category: category::STALL, name: name.into(), facts: facts::stall(stall) }
            }
            _ => unreachable!("an item has steps of what it has, and changes are no events"),
        }
    }
}

/// Adds a packet as a file has it.
fn frame(packet: &TracePacket, into: &mut Vec<u8>) {
    into.push(PACKET_TAG);
    packet.encode_length_delimited(into).expect("a vector grows as needed");
}

/// Category, name and facts of an event.
struct EventBody {
    category: &'static str,
    name: Text,
    facts: Facts,
}
