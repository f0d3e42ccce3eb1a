//! Writes a recording as a trace.

use std::io::{self, Write};

use prost::Message;

use super::blocks;
use super::category;
use super::links::Links;
use super::messages::{
    SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE, SYNCHRONIZATION_MARKER, TYPE_COUNTER,
    TYPE_INSTANT, TYPE_SLICE_BEGIN, TYPE_SLICE_END, TracePacket, TrackEvent,
};
use super::strings::Interner;
use super::tracks::{self, Event, Shape, Tracks, What};
use crate::facts::{self, Fact, Facts};
use crate::model::{Recording, Text};

/// All packets come from one writer, so they are one sequence.
const SEQUENCE: u32 = 1;

/// Packets between two markers: a few hundred kilobytes, which is the most that one damaged byte can cost.
const PACKETS_PER_BLOCK: usize = 4096;

/// The same for packets with long texts.
const BYTES_PER_BLOCK: usize = 1 << 20;

/// The tag of [`TracePacket`] in a trace: field 1, with a length.
pub(super) const PACKET_TAG: u8 = 0x0a;

/// Writes `recording` as a Perfetto trace.
///
/// # Errors
///
/// Those of `out`.
pub fn write(recording: &Recording, out: impl Write) -> io::Result<()> {
    let mut out = Packets {
        out: io::BufWriter::new(out),
        interner: Interner::default(),
        in_block: 0,
        block: Vec::new(),
    };
    let tracks = Tracks::of(recording);
    out.begin_block()?;
    for descriptor in tracks.descriptors {
        out.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() });
    }
    let mut links = Links::of(recording, &tracks.events);
    for (position, event) in tracks.events.iter().enumerate() {
        if out.in_block >= PACKETS_PER_BLOCK || out.block.len() >= BYTES_PER_BLOCK {
            out.begin_block()?;
        }
        out.event(recording, event, &mut links, position);
    }
    out.end_block()?;
    out.out.flush()
}

struct Packets<W> {
    out: W,
    interner: Interner,
    in_block: usize,
    /// The packets of this block, as a file has them.
    block: Vec<u8>,
}

impl<W: Write> Packets<W> {
    fn begin_block(&mut self) -> io::Result<()> {
        self.end_block()?;
        self.interner = Interner::default();
        self.packet(TracePacket {
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
        let marker = Some(SYNCHRONIZATION_MARKER.to_vec());
        let mut framed = Vec::new();
        frame(&TracePacket { synchronization_marker: marker, ..TracePacket::default() }, &mut framed);
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
        packet.trusted_packet_sequence_id = Some(SEQUENCE);
        self.in_block += 1;
        frame(&packet, &mut self.block);
    }

    fn event(&mut self, recording: &Recording, event: &Event, links: &mut Links, position: usize) {
        let mut body = TrackEvent { track_uuid: Some(event.track), ..TrackEvent::default() };
        match event.shape {
            Shape::End => body.r#type = Some(TYPE_SLICE_END),
            Shape::Sample(value) => {
                body.r#type = Some(TYPE_COUNTER);
                body.counter_value = Some(value);
            }
            Shape::Begin(what) | Shape::Moment(what) => {
                let slice = matches!(event.shape, Shape::Begin(_));
                body.r#type = Some(if slice { TYPE_SLICE_BEGIN } else { TYPE_INSTANT });
                let Told { category, name, facts } = tell(recording, what, links);
                body.category_iids = vec![self.interner.category(category)];
                body.name_iid = Some(self.interner.event(&name));
                body.debug_annotations = self.interner.annotations(&facts);
                (body.flow_ids, body.terminating_flow_ids) = links.flows(position);
            }
        }
        let interned_data = self.interner.take();
        self.packet(TracePacket {
            timestamp: Some(event.time),
            interned_data,
            sequence_flags: Some(SEQ_NEEDS_INCREMENTAL_STATE),
            track_event: Some(body),
            ..TracePacket::default()
        });
    }
}

/// Adds a packet as a file has it.
fn frame(packet: &TracePacket, into: &mut Vec<u8>) {
    into.push(PACKET_TAG);
    packet.encode_length_delimited(into).expect("a vector grows as needed");
}

/// What an event says.
struct Told {
    category: &'static str,
    name: Text,
    facts: Facts,
}

fn tell(recording: &Recording, what: What, links: &mut Links) -> Told {
    match what {
        What::Head => {
            Told { category: category::HEAD, name: "recording".into(), facts: facts::head(recording) }
        }
        What::Tensors { first, last } => {
            let tensors = recording.variables[first..last].iter().map(|it| Fact::Facts(facts::variable(it)));
            let facts = Facts::default().list("tensors", tensors);
            Told { category: category::TENSORS, name: "tensors".into(), facts }
        }
        What::Operation(index) => {
            let operation = &recording.operations[index];
            let edges = links.told(recording, operation.id);
            let facts = facts::operation(operation).list("after", edges);
            Told { category: category::OPERATION, name: operation.name.clone(), facts }
        }
        What::Freed(index) => {
            let facts = Facts::default();
            let name = format!("{} may go on", recording.operations[index].name).into();
            Told { category: category::FREED, name, facts }
        }
        What::Lease(index) => {
            let lease = &recording.leases[index];
            let edges = links.told(recording, lease.id);
            let facts = facts::lease(lease).list("after", edges);
            let tensor = recording.variable(lease.variable).map_or("a tensor", |it| it.name.as_str());
            Told { category: category::LEASE, name: format!("{} holds {tensor}", lease.taker).into(), facts }
        }
        What::Stall(index) => {
            let stall = &recording.stalls[index];
            let culprit = facts::culprit_name(recording, stall.culprit);
            let facts = facts::stall(stall);
            Told {
                category: category::STALL,
                name: format!("{}: {culprit}", stall.cause.name()).into(),
                facts,
            }
        }
        What::LooseEdges => {
            let loose = recording.edges.iter().filter(|edge| !tracks::has_event(recording, edge.to));
            let edges = loose.map(|edge| Fact::Facts(facts::loose_edge(edge)));
            let facts = Facts::default().list("after", edges);
            Told { category: category::EDGES, name: "dependences of what was lost".into(), facts }
        }
    }
}
