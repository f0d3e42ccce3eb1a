"""Observe mode with cuda.core and Numba, which run for real on the simulated driver: waits, and the order of hand-overs."""

import gc
import importlib
import inspect
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from cuda.core import Buffer, Device, Event, Stream
from cuda.core.utils import StridedMemoryView
from doubles import Library
from numba import cuda

import estafette as est
from estafette._observe.patches import Observed, observed_in
from estafette._observe.table import every

SIZE = 64
VALUES = np.arange(16, dtype="float32")


@pytest.fixture
def device(sim):
    device = Device(0)
    device.set_current()
    return device


@pytest.fixture
def streams(device):
    return device.create_stream(), device.create_stream()


def handle(stream):
    return int(stream.handle)


def numbers(seen):
    """The hand-overs by order, libraries and lines, the lines as their distance from the first line of the caller."""
    return [(row["order"], row["producer"], row["consumer"], row["made"], row["taken"]) for row in seen.report().data["hand_overs"]]


def here(offset=0):
    return f"test_observe.py:{sys._getframe(1).f_lineno + offset}"


def copied(view, stream):
    """A copy of what a view shows: the simulator notices when nothing orders it."""
    target = Device(0).allocate(SIZE, stream=stream)
    Buffer.from_handle(view.ptr, SIZE, owner=view).copy_to(target, stream=stream)


def test_a_view_on_another_stream_is_not_ordered_after_the_fill(sim, device, streams):
    first, second = streams
    buffer = device.allocate(SIZE, stream=first)
    second.wait(first)
    with est.observe() as seen:
        buffer.fill(b"\x01", stream=first)
        made = here(-1)
        view = StridedMemoryView.from_dlpack(buffer, stream_ptr=handle(second))
        taken = here(-1)
        copied(view, second)
    second.sync()
    sim.expect_race()
    assert numbers(seen) == [("none", "cuda.core", "cuda.core", made, taken)]
    assert "not ordered: cuda.core → cuda.core, 1 ×, made after " + made in str(seen.report())


def waits_for_the_stream(first, second):
    second.wait(first)


def waits_for_an_event(first, second):
    second.wait(first.record())


def waits_by_another_stream(first, second):
    between = Device(0).create_stream()
    between.wait(first)
    second.wait(between.record())


def synchronizes_the_stream(first, second):
    first.sync()


def synchronizes_an_event(first, second):
    first.record().sync()


def asks_an_event(first, second):
    event = first.record()
    while not event.is_done:
        time.sleep(0.001)


def waits_by_numba(first, second):
    event = cuda.event()
    event.record(cuda.external_stream(handle(first)))
    event.wait(cuda.external_stream(handle(second)))


def synchronizes_by_numba(first, second):
    cuda.external_stream(handle(first)).synchronize()


@pytest.mark.parametrize(
    "order",
    [
        waits_for_the_stream,
        waits_for_an_event,
        waits_by_another_stream,
        synchronizes_the_stream,
        synchronizes_an_event,
        asks_an_event,
        waits_by_numba,
        synchronizes_by_numba,
    ],
)
def test_what_is_ordered_is_not_accused(device, streams, order):
    first, second = streams
    buffer = device.allocate(SIZE, stream=first)
    with est.observe() as seen:
        buffer.fill(b"\x01", stream=first)
        order(first, second)
        copied(StridedMemoryView.from_dlpack(buffer, stream_ptr=handle(second)), second)
        StridedMemoryView.from_dlpack(buffer, stream_ptr=handle(first))
    assert numbers(seen) == []
    # The buffer is released on its own stream.
    second.sync()


def test_an_order_of_before_the_write_is_none(device, streams):
    first, second = streams
    buffer = device.allocate(SIZE, stream=first)
    with est.observe() as seen:
        event = first.record()
        buffer.fill(b"\x01", stream=first)
        second.wait(event)
        StridedMemoryView.from_dlpack(buffer, stream_ptr=handle(second))
    assert [row[0] for row in numbers(seen)] == ["none"]


def test_a_copy_to_the_device_that_nothing_waits_for(device, streams):
    _, second = streams
    stream = cuda.stream()
    array = cuda.device_array(16, "float32")
    bound = cuda.to_device(VALUES, stream=stream)
    with est.observe() as seen:
        array.copy_to_device(VALUES, stream=stream)
        made = here(-1)
        # The array names no stream, and so nothing can wait for it.
        StridedMemoryView.from_cuda_array_interface(array, stream_ptr=handle(second))
        taken = here(-1)
        # This one does.
        bound.copy_to_device(VALUES)
        StridedMemoryView.from_cuda_array_interface(bound, stream_ptr=handle(second))
    assert numbers(seen) == [("none", "numba", "cuda.core", made, taken)]
    stream.synchronize()


def test_a_mended_copy_to_the_device_is_not_accused(device, streams):
    _, second = streams
    stream = cuda.stream()
    array = cuda.device_array(16, "float32")
    with est.observe() as seen:
        array.copy_to_device(VALUES, stream=stream)
        stream.synchronize()
        StridedMemoryView.from_cuda_array_interface(array, stream_ptr=handle(second))
        other = cuda.to_device(VALUES)
        StridedMemoryView.from_cuda_array_interface(other, stream_ptr=handle(second))
    assert numbers(seen) == []


def test_what_cannot_be_known_is_said_to_be_unknown(sim, device, streams):
    first, second = streams
    lib = Library(sim)
    buffer = device.allocate(SIZE, stream=first)
    buffer.fill(b"\x01", stream=first)
    with est.observe() as seen:
        # It was filled before the observation, and perhaps waited for.
        StridedMemoryView.from_dlpack(buffer, stream_ptr=handle(second))
        # The consumer does not say where it works.
        buffer.fill(b"\x02", stream=first)
        StridedMemoryView.from_dlpack(buffer, stream_ptr=-1)
        # A library that is not in the table.
        StridedMemoryView.from_dlpack(lib.full(1), stream_ptr=handle(second))
    rows = numbers(seen)
    assert len(rows) == 3 and {row[0] for row in rows} == {"unknown"}
    assert {row[1] for row in rows} == {"cuda.core", "doubles"}
    first.sync()


def test_memory_that_is_used_again_is_not_taken_for_what_was_there(device, streams):
    first, second = streams
    with est.observe() as seen:
        buffer = device.allocate(SIZE, stream=first)
        buffer.fill(b"\x01", stream=first)
        buffer.close()
        del buffer
        gc.collect()
        # The pool may give the same memory again.
        other = device.allocate(SIZE, stream=second)
        StridedMemoryView.from_dlpack(other, stream_ptr=handle(second))
    assert [row[0] for row in numbers(seen)] == ["unknown"]


@pytest.mark.parametrize("library", ["cuda.core stream", "cuda.core event", "numba stream", "numba event", "numba copy"])
def test_waits_are_found_with_their_lines(sim, device, streams, library):
    first, _ = streams
    stream = cuda.external_stream(handle(first))
    array = cuda.to_device(VALUES)
    buffer = device.allocate(SIZE, stream=first)
    event = cuda.event()
    sim.block(handle(first))
    with est.observe() as seen:
        buffer.fill(b"\x01", stream=first)
        core_event = first.record()
        event.record(stream)
        threading.Timer(0.05, sim.unblock, [handle(first)]).start()
        began = time.perf_counter_ns()
        match library:
            case "cuda.core stream":
                name, line = "cuda.core.Stream.sync", here(1)
                first.sync()
            case "cuda.core event":
                name, line = "cuda.core.Event.sync", here(1)
                core_event.sync()
            case "numba stream":
                name, line = "numba.Stream.synchronize", here(1)
                stream.synchronize()
            case "numba event":
                name, line = "numba.Event.synchronize", here(1)
                event.synchronize()
            case "numba copy":
                name, line = "numba.DeviceNDArray.copy_to_host", here(1)
                array.copy_to_host(stream=stream)
                stream.synchronize()
        planted = time.perf_counter_ns() - began
    rows = {row["name"]: row["waited_ns"] for row in seen.report().data["operations"]}
    assert f"`{name}` at {line}" in rows, rows
    if library != "numba copy":
        assert planted / 2 < rows[f"`{name}` at {line}"] <= planted


def test_classes_that_cannot_be_changed_are_as_before(device):
    before = {kind: dict(vars(kind)) for kind in (Stream, Event, Buffer, Device, StridedMemoryView)}
    with est.observe():
        assert type(vars(Stream)["sync"]) is Observed and type(vars(Buffer)["fill"]) is Observed
        assert type(vars(StridedMemoryView)["from_dlpack"]) is classmethod
        assert StridedMemoryView.from_dlpack.__name__ == "from_dlpack"
    for kind, names in before.items():
        assert dict(vars(kind)) == names and all(vars(kind)[name] is value for name, value in names.items())


def test_every_function_of_the_table_is_there(device):
    rows = [row for row in every() if row.library in ("numba", "cuda.core")]
    with est.observe():
        for row in rows:
            importlib.import_module(row.module)
            owner = sys.modules[row.module]
            *path, name = row.name.split(".")
            for part in path:
                owner = getattr(owner, part)
            assert observed_in(inspect.getattr_static(owner, name)) is not None, row
    assert len(rows) > 20


def test_an_interface_that_the_program_asks_for_is_a_hand_over(sim):
    stream = cuda.stream()
    array = cuda.device_array(16, "float32")
    with est.observe() as seen:
        array.copy_to_device(VALUES, stream=stream)
        assert array.__cuda_array_interface__["stream"] is None
        stream.synchronize()
        assert array.__cuda_array_interface__["stream"] is None
    (row,) = [row for row in seen.report().data["exchanges"] if row["producer"] == "numba"]
    assert (row["consumer"], row["count"], row["copies"], row["bytes"]) == ("host", 2, 0, 128)
    # The destination of the dictionary is not known; after the wait that does not matter.
    assert [row[:3] for row in numbers(seen)] == [("unknown", "numba", "host")]


PIPELINE = """
    import ctypes
    import sys

    # A version of the driver that NVIDIA's libraries are made for.
    ctypes.CDLL("libcuda.so.1").cusim_driver_version(13000)

    import numpy as np
    from cuda.core import Device
    from cuda.core.utils import StridedMemoryView
    from numba import cuda

    mended = sys.argv[1:] == ["mended"]
    device = Device(0)
    device.set_current()
    load, work = device.create_stream(), device.create_stream()
    upload = cuda.stream()
    buffer = device.allocate(64, stream=load)
    weights = cuda.device_array(16, "float32")
    for turn in range(3):
        buffer.fill(bytes([turn]), stream=load)
        if mended:
            work.wait(load)
        batch = StridedMemoryView.from_dlpack(buffer, stream_ptr=int(work.handle))
        weights.copy_to_device(np.arange(16, dtype="float32"), stream=upload)
        if mended:
            done = cuda.event()
            done.record(upload)
            done.wait(cuda.external_stream(int(work.handle)))
        view = StridedMemoryView.from_any_interface(weights, stream_ptr=int(work.handle))
        work.sync()
    upload.synchronize()
    load.sync()
"""


def test_two_missing_waits_of_a_program_are_named_and_the_mended_one_gives_none(sim, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PIPELINE))
    lines = script.read_text().splitlines()
    words = ("fill", "from_dlpack", "copy_to_dev", "from_any")
    at = {word: f"program.py:{next(at for at, line in enumerate(lines, 1) if word in line)}" for word in words}

    def observed(*arguments):
        trace = tmp_path / "program.pftrace"
        command = [sys.executable, "-m", "estafette", "observe", "--trace", trace, script, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110)
        assert done.returncode == 0, done.stderr
        data = est.report(trace).data
        assert data["missing"] == []
        return done.stderr, data["hand_overs"]

    text, rows = observed()
    assert [(row["order"], row["producer"], row["consumer"], row["made"], row["taken"], row["count"]) for row in rows] == [
        ("none", "cuda.core", "cuda.core", at["fill"], at["from_dlpack"], 3),
        ("none", "numba", "cuda.core", at["copy_to_dev"], at["from_any"], 3),
    ]
    assert "not ordered: numba → cuda.core, 3 ×" in text
    text, rows = observed("mended")
    assert rows == [] and "ordered" not in text
