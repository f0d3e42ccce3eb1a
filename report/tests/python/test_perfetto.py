"""The trace that the report crate writes, read with Perfetto's own schema: is it one, and is it sound?

Perfetto's importer drops what does not fit together, and counts it where no thread looks. These tests ask for all of it to fit:
known fields only, tracks that exist, slices that lie apart, flows with two ends that run forwards, strings that were interned.
"""

import os
import pathlib
import zlib
from collections import Counter, defaultdict

import pytest

schema = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="no perfetto package")
Event = schema.TrackEvent


def inflated(bytes):
    """The packets of a trace, those of compressed ones in their place."""
    trace = schema.Trace()
    trace.ParseFromString(bytes)
    for packet in trace.packet:
        if packet.HasField("compressed_packets"):
            assert packet.WhichOneof("data") == "compressed_packets" and packet.ByteSize() < len(packet.compressed_packets) + 8
            yield from inflated(zlib.decompress(packet.compressed_packets))
        else:
            yield packet


@pytest.fixture(scope="module")
def file():
    folder = pathlib.Path(os.environ["ESTAFETTE_REPORT_SAMPLES"])
    return (folder / "small.pftrace").read_bytes()


@pytest.fixture(scope="module")
def packets(file):
    packets = list(inflated(file))
    assert len(packets) > 10_000, "a sample of several blocks"
    return packets


@pytest.fixture(scope="module")
def descriptors(packets):
    return [packet.track_descriptor for packet in packets if packet.HasField("track_descriptor")]


@pytest.fixture(scope="module")
def events(packets):
    """(timestamp, event, interned strings of its block) in the order of the file."""
    found, strings = [], {}
    kinds = ("event_categories", "event_names", "debug_annotation_names", "debug_annotation_string_values")
    for packet in packets:
        if packet.sequence_flags & schema.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            strings = {kind: {} for kind in kinds}
        for kind in kinds:
            for entry in getattr(packet.interned_data, kind):
                text = entry.str.decode() if kind.endswith("values") else entry.name
                assert entry.iid not in strings[kind], "a number is given once"
                strings[kind][entry.iid] = text
        if packet.HasField("track_event"):
            found.append((packet.timestamp, packet.track_event, strings))
    return found


def unknown_fields(message):
    """Fields at any depth that Perfetto's schema does not have: what is lost when they are discarded."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return message.ByteSize() - known.ByteSize()


def test_the_file_is_markers_and_compressed_blocks_in_turn(file):
    trace = schema.Trace()
    trace.ParseFromString(file)
    kinds = [packet.WhichOneof("data") for packet in trace.packet]
    assert kinds == ["synchronization_marker", "compressed_packets"] * (len(kinds) // 2) and len(kinds) > 4
    assert sum(unknown_fields(packet) for packet in trace.packet) == 0


def test_there_are_no_unknown_fields_at_any_depth(packets):
    assert sum(unknown_fields(packet) for packet in packets) == 0


def test_a_field_that_is_unknown_would_be_found(packets):
    packet = schema.TracePacket()
    packet.CopyFrom(next(packet for packet in packets if packet.track_event.debug_annotations))
    # Field 15000 of an annotation deep inside: a varint.
    packet.track_event.debug_annotations[0].MergeFromString(b"\xc0\xa9\x07\x01")
    assert unknown_fields(packet) > 0


def test_every_packet_belongs_to_the_sequence_but_the_markers(packets):
    sequences = set()
    for packet in packets:
        if packet.synchronization_marker:
            assert packet.synchronization_marker.hex() == "82477a76b28d42ba81dc33326d57a079"
        else:
            sequences.add(packet.trusted_packet_sequence_id)
    assert len(sequences) == 1 and not sequences & {0, 1}, "drawn for the process"


def test_the_first_packet_of_each_block_clears_what_was_interned(packets):
    blocks = [at for at, packet in enumerate(packets) if packet.synchronization_marker]
    assert blocks[0] == 0 and len(blocks) > 2
    for at in blocks:
        assert packets[at + 1].sequence_flags == schema.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED


def test_every_track_is_described_once_with_a_parent_that_exists(descriptors):
    uuids = [descriptor.uuid for descriptor in descriptors]
    assert len(set(uuids)) == len(uuids) and 0 not in uuids
    seen = set()
    for descriptor in descriptors:
        assert descriptor.name
        assert not descriptor.HasField("parent_uuid") or descriptor.parent_uuid in seen
        seen.add(descriptor.uuid)
    assert sum(not descriptor.HasField("parent_uuid") for descriptor in descriptors) == 1, "one root"


def test_there_are_tracks_for_tracks_libraries_and_counters(descriptors):
    names = {descriptor.uuid: descriptor.name for descriptor in descriptors}
    paths = {(names.get(descriptor.parent_uuid), descriptor.name) for descriptor in descriptors}
    for track in ("main", "asyncio", "worker 0", "worker 2", "sim:0 queue 0"):
        assert ("pipeline.py", track) in paths
    for library in ("numpy", "jax", "torch", "host"):
        assert ("pipeline.py", library) in paths and (library, "waits") in paths
    assert ("torch", "leases") in paths
    counters = {descriptor.name for descriptor in descriptors if descriptor.HasField("counter")}
    assert counters == {"operations in flight", "bytes leased", "fences pending"}


def test_every_event_is_on_a_described_track_of_its_kind(descriptors, events):
    tracks = {descriptor.uuid: descriptor for descriptor in descriptors}
    for _, event, _ in events:
        counter = tracks[event.track_uuid].HasField("counter")
        assert counter == (event.type == Event.TYPE_COUNTER)
        assert event.HasField("counter_value") == counter


def test_tracks_are_described_before_their_events(packets):
    described = set()
    for packet in packets:
        if packet.HasField("track_descriptor"):
            described.add(packet.track_descriptor.uuid)
        if packet.HasField("track_event"):
            assert packet.track_event.track_uuid in described


def test_timestamps_never_go_backwards(events):
    times = [time for time, _, _ in events]
    assert times == sorted(times)


def test_slices_begin_and_end_in_turn_on_every_track(events):
    open_slices = Counter()
    count = 0
    for _, event, _ in events:
        if event.type == Event.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid] += 1
            count += 1
            assert open_slices[event.track_uuid] == 1, "slices of one track lie apart"
        elif event.type == Event.TYPE_SLICE_END:
            open_slices[event.track_uuid] -= 1
            assert open_slices[event.track_uuid] == 0, "an end without a beginning"
    assert count > 5_000 and not any(open_slices.values())


def test_every_flow_has_two_ends_and_runs_forwards(events):
    starts, ends = defaultdict(list), defaultdict(list)
    for at, (_, event, _) in enumerate(events):
        for flow in event.flow_ids:
            starts[flow].append(at)
        for flow in event.terminating_flow_ids:
            ends[flow].append(at)
    assert len(starts) > 3_000 and starts.keys() == ends.keys() and 0 not in starts
    for flow, (start,) in starts.items():
        (end,) = ends[flow]
        assert start < end


def test_every_number_of_a_string_was_given_before(events):
    def check(annotation, strings, named):
        assert not named or annotation.name_iid in strings["debug_annotation_names"]
        if annotation.HasField("string_value_iid"):
            assert annotation.string_value_iid in strings["debug_annotation_string_values"]
        for entry in annotation.dict_entries:
            check(entry, strings, True)
        for value in annotation.array_values:
            check(value, strings, False)

    for _, event, strings in events:
        if event.type in (Event.TYPE_SLICE_BEGIN, Event.TYPE_INSTANT):
            assert event.name_iid in strings["event_names"]
            assert [iid in strings["event_categories"] for iid in event.category_iids] == [True]
        for annotation in event.debug_annotations:
            check(annotation, strings, True)


def test_a_stall_tells_its_cause_and_its_blocker(events):
    causes = Counter()
    for _, event, strings in events:
        if event.category_iids and strings["event_categories"][event.category_iids[0]] == "stall":
            facts = {strings["debug_annotation_names"][it.name_iid]: it for it in event.debug_annotations}
            cause = strings["debug_annotation_string_values"][facts["cause"].string_value_iid]
            assert strings["event_names"][event.name_iid].startswith(f"{cause}: ")
            assert facts["lasts"].uint_value > 0 and "blocker" in facts
            causes[cause] += 1
    assert set(causes) == {"computing", "queued", "no worker", "not observed", "not resumed", "leased"}
