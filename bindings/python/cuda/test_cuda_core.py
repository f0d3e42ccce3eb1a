"""cuda.core, NVIDIA's own implementation of the protocols: it calls nothing but the driver, so here it runs for real."""

import gc
import time

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Buffer, Device, Stream
from cuda.core.utils import StridedMemoryView, args_viewable_as_strided_memory
from doubles import settle, wait_until
from test_exchange import SIZE, overwrite

import estafette as est


class Core:
    """Streams, memory and work of cuda.core on the first device."""

    def __init__(self, sim):
        self.sim = sim
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()

    def full(self, value, stream=None):
        """A buffer that cuda.core is still filling on the stream."""
        stream = stream or self.stream
        buffer = self.device.allocate(SIZE, stream=stream)
        buffer.fill(bytes([value]), stream=stream)
        return buffer

    def copied(self, view, stream=None):
        """A copy of what a view of cuda.core shows, enqueued on the stream."""
        stream = stream or self.stream
        target = self.device.allocate(SIZE, stream=stream)
        Buffer.from_handle(view.ptr, SIZE, owner=view).copy_to(target, stream=stream)
        return target

    def bytes(self, buffer, stream=None):
        stream = stream or self.stream
        return self.sim.read(int(stream.handle), int(buffer.handle), SIZE)


@pytest.fixture
def core(sim):
    return Core(sim)


def pending(eng, core, value):
    """A tensor of Estafette that cuda.core fills, on a stream of the engine's that is blocked. With the stream's handle."""
    x = eng.empty((SIZE,), "uint8", device="cuda")
    handles = []

    def fill(x):
        # Taken as any object with `__cuda_stream__`. The thread has never heard of a device: the context is the engine's affair.
        stream = Stream.from_handle(est.current_stream().handle)
        handles.append(est.current_stream().handle)
        core.sim.block(handles[0])
        Buffer.from_handle(x, SIZE).fill(bytes([value]), stream=stream)

    eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda").wait(timeout=30)
    assert core.sim.pending(handles[0]) > 0
    return x, handles[0]


class Protocol:
    """Nothing but `__dlpack__` of a tensor, so that no C exchange table is found."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.asked = []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        return self.tensor.__dlpack__(**arguments)


class Interface:
    """Nothing but the CUDA array interface of a view."""

    def __init__(self, view):
        self.view = view

    @property
    def __cuda_array_interface__(self):
        return self.view.__cuda_array_interface__


STREAMS = {
    "own": lambda core: core.stream,
    "wrapped": lambda core: Stream.from_handle(int(core.stream.handle)),
    "blocking": lambda core: core.device.create_stream(options={"nonblocking": False}),
    "legacy": lambda core: LEGACY_DEFAULT_STREAM,
    "thread": lambda core: PER_THREAD_DEFAULT_STREAM,
}


@pytest.mark.parametrize("form", STREAMS)
def test_a_stream_of_cuda_core_is_one_to_export_to(sim, eng, core, form):
    x, ours = pending(eng, core, 5)
    stream = STREAMS[form](core)
    capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
    # The same once more by the handle alone.
    again = x.__dlpack__(stream=int(stream.handle), max_version=(1, 0))
    result = core.device.allocate(SIZE, stream=stream)
    Buffer.from_handle(x.data_ptr, SIZE).copy_to(result, stream=stream)
    sim.unblock(ours)
    assert core.bytes(result, stream) == bytes([5]) * SIZE
    del capsule, again


@pytest.mark.parametrize("way", ["table", "protocol", "either", "decorator"])
def test_a_strided_memory_view_waits_on_its_stream_and_the_host_does_not(sim, eng, core, way):
    x, ours = pending(eng, core, 6)
    handle = int(core.stream.handle)
    sim.block(handle)

    @args_viewable_as_strided_memory((0,))
    def decorated(array):
        return array.view(handle)

    view = {
        "table": lambda: StridedMemoryView.from_dlpack(x, stream_ptr=handle),
        "protocol": lambda: StridedMemoryView.from_dlpack(Protocol(x), stream_ptr=handle),
        "either": lambda: StridedMemoryView.from_any_interface(x, stream_ptr=handle),
        "decorator": lambda: decorated(x),
    }[way]()
    assert (view.ptr, view.shape, view.dtype, view.device_id) == (x.data_ptr, (SIZE,), np.uint8, 0)
    assert view.is_device_accessible and view.readonly
    result = core.copied(view)
    assert sim.pending(handle) > 0, "the copy waits on the device"
    # The view is a lease: a writer waits for it, and for the copy that goes on when it is gone.
    later = overwrite(eng, core, x, 7)
    with pytest.raises(est.LeaseHeldError, match="test_cuda_core"):
        later.wait(timeout=30)
    del view
    gc.collect()
    sim.unblock(ours)
    with pytest.raises(TimeoutError):
        later.wait(timeout=0.05)
    sim.unblock(handle)
    later.wait(timeout=30)
    assert core.bytes(result) == bytes([6]) * SIZE
    assert core.bytes(core.copied(StridedMemoryView.from_dlpack(x, stream_ptr=handle))) == bytes([7]) * SIZE


def test_the_wait_is_needed(sim, eng, core):
    x, ours = pending(eng, core, 5)
    before = eng.stats().unordered
    view = StridedMemoryView.from_dlpack(Protocol(x), stream_ptr=-1)
    core.copied(view)
    sim.expect_race()
    assert eng.stats().unordered == before + 1
    sim.unblock(ours)


def test_a_view_of_ours_goes_out_by_the_array_interface_behind_its_stream(sim, eng, core):
    x, ours = pending(eng, core, 8)
    handle = int(core.stream.handle)
    with pytest.raises(TimeoutError):
        x.wait(timeout=0.01)
    # A lease of the host waits for the data, so here it is one without: the interface of the tensor itself.
    view = StridedMemoryView.from_cuda_array_interface(Interface(x), stream_ptr=handle)
    result = core.copied(view)
    assert view.readonly and sim.pending(handle) > 0
    sim.unblock(ours)
    assert core.bytes(result) == bytes([8]) * SIZE
    assert est.unordered_exchanges()[-1].reason.startswith("array interface")
    with x.write() as lease:
        view = StridedMemoryView.from_cuda_array_interface(Interface(lease), stream_ptr=handle)
        assert not view.readonly
        Buffer.from_handle(view.ptr, SIZE).fill(b"\x09", stream=core.stream)
        # Its own rule: what the consumer still does, the producer's stream has to come after.
        sim.order(handle, lease.__cuda_array_interface__["stream"])
    assert core.bytes(core.copied(StridedMemoryView.from_dlpack(x, stream_ptr=handle))) == bytes([9]) * SIZE


def test_a_buffer_ignores_streams_so_its_import_is_counted(sim, eng, core):
    buffer = core.full(3, LEGACY_DEFAULT_STREAM)
    sim.block(1)
    buffer.fill(b"\x04", stream=LEGACY_DEFAULT_STREAM)
    before = eng.stats().unordered
    t = eng.from_dlpack(buffer)
    assert (t.shape, t.dtype, t.device) == ((SIZE,), "int8", (2, 0))
    assert eng.stats().unordered == before + 1
    assert est.unordered_exchanges()[-1].reason.startswith("producer ignores streams")
    # In want of better it comes after the default stream.
    assert not t.is_ready()
    sim.unblock(1)
    result = core.copied(StridedMemoryView.from_dlpack(t, stream_ptr=int(core.stream.handle)))
    assert core.bytes(result) == bytes([4]) * SIZE


def test_an_operation_on_its_stream_says_when_a_buffer_is_filled(sim, eng, core):
    sim.block(int(core.stream.handle))
    buffer = core.full(5)
    view = StridedMemoryView.from_buffer(buffer, (SIZE,), dtype=np.dtype("uint8"))
    t = eng.from_dlpack(view)
    # Of a stream that is no default one nothing is known.
    t.wait(timeout=30)
    # Later writes here come after all work that is on the stream by now.
    eng.submit(lambda t: None, writes=[t], using=lambda t: t.data_ptr, on=core.stream).wait(timeout=30)
    assert not t.is_ready()
    other = core.device.create_stream()
    result = core.copied(StridedMemoryView.from_dlpack(t, stream_ptr=int(other.handle)), other)
    sim.unblock(int(core.stream.handle))
    assert core.bytes(result, other) == bytes([5]) * SIZE


def test_without_it_a_buffer_is_read_too_early(sim, eng, core):
    sim.block(int(core.stream.handle))
    t = eng.from_dlpack(core.full(5))
    other = core.device.create_stream()
    core.copied(StridedMemoryView.from_dlpack(t, stream_ptr=int(other.handle)), other)
    sim.expect_race()
    sim.unblock(int(core.stream.handle))


def test_a_stream_of_cuda_core_is_an_operations_queue(sim, eng, core):
    x = eng.empty((SIZE,), "uint8", device="cuda")
    y = eng.empty((SIZE,), "uint8", device="cuda")
    handle = int(core.stream.handle)
    sim.block(handle)
    used = []

    def fill(x):
        used.append(est.current_stream().handle)
        Buffer.from_handle(x, SIZE).fill(b"\x06", stream=core.stream)

    def copy(x, y):
        ours = Stream.from_handle(est.current_stream().handle)
        Buffer.from_handle(x, SIZE).copy_to(Buffer.from_handle(y, SIZE), stream=ours)

    pointer = lambda t: t.data_ptr
    eng.submit(fill, writes=[x], using=pointer, on=core.stream).wait(timeout=30)
    eng.submit(copy, reads=[x], writes=[y], using=pointer, on="cuda").wait(timeout=30)
    assert used == [handle] and not y.is_ready()
    sim.unblock(handle)
    y.wait(timeout=30)
    assert core.bytes(core.copied(StridedMemoryView.from_dlpack(y, stream_ptr=handle))) == b"\x06" * SIZE


def test_a_stream_object_of_ours_is_one_for_cuda_core(sim, eng, core):
    x = eng.empty((SIZE,), "uint8", device="cuda")

    def fill(x):
        stream = core.device.create_stream(est.current_stream())
        assert int(stream.handle) == est.current_stream().handle
        Buffer.from_handle(x, SIZE).fill(b"\x02", stream=stream)
        core.stream.wait(est.current_stream())

    eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda").wait(timeout=30)
    result = core.device.allocate(SIZE, stream=core.stream)
    Buffer.from_handle(x.data_ptr, SIZE).copy_to(result, stream=core.stream)
    assert core.bytes(result) == b"\x02" * SIZE


def test_a_buffer_is_freed_after_its_last_use(sim, eng, core):
    buffer = core.full(5)
    core.stream.sync()
    pointer = int(buffer.handle)
    t = eng.from_dlpack(buffer)
    del buffer
    y = eng.empty((SIZE,), "uint8", device="cuda")
    handles = []

    def copy(t, y):
        handles.append(est.current_stream().handle)
        sim.block(handles[0])
        ours = Stream.from_handle(handles[0])
        Buffer.from_handle(t, SIZE).copy_to(Buffer.from_handle(y, SIZE), stream=ours)

    eng.submit(copy, reads=[t], writes=[y], using=lambda t: t.data_ptr, on="cuda").wait(timeout=30)
    del t
    gc.collect()
    time.sleep(0.05)
    assert sim.is_allocated(pointer), "a kernel still reads it"
    sim.unblock(handles[0])
    y.wait(timeout=30)
    wait_until(lambda: not sim.is_allocated(pointer))
    result = core.copied(StridedMemoryView.from_dlpack(y, stream_ptr=int(core.stream.handle)))
    assert core.bytes(result) == bytes([5]) * SIZE


def test_ten_thousand_round_trips_leave_nothing_behind(sim, eng, core):
    buffer = core.full(1)
    view = StridedMemoryView.from_buffer(buffer, (SIZE,), dtype=np.dtype("uint8"))
    handle = int(core.stream.handle)
    core.stream.sync()

    def round_trip():
        return StridedMemoryView.from_dlpack(eng.from_dlpack(view), stream_ptr=handle)

    for _ in range(100):
        round_trip()
    settle(eng)
    used, before = sim.used(), eng.stats()
    for _ in range(10_000):
        round_trip()
    settle(eng)
    assert sim.used() == used
    after = eng.stats()
    assert after.imported - before.imported == after.deleters - before.deleters == 10_000
    assert (after.leased, after.leaked) == (0, before.leaked)


def test_memory_of_both_sides_goes_in_and_out_by_its_kind(sim, eng, core):
    from cuda.core import LegacyPinnedMemoryResource

    pinned = LegacyPinnedMemoryResource().allocate(SIZE, stream=core.stream)
    pinned.fill(b"\x04", stream=core.stream)
    core.stream.sync()
    kind, _ = pinned.__dlpack_device__()
    t = eng.from_dlpack(pinned)
    assert t.device[0] == kind
    assert np.from_dlpack(t).tolist() == [4] * SIZE
    x = eng.empty((SIZE,), "uint8", device=(13, 0))
    view = StridedMemoryView.from_dlpack(x, stream_ptr=int(core.stream.handle))
    assert view.is_device_accessible and view.ptr == x.data_ptr


def checked(answer):
    """Result of a function of the driver, through NVIDIA's own bindings."""
    code, *values = answer
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return values[0] if values else None


@pytest.mark.parametrize("way", ["table", "protocol"])
def test_a_graph_that_is_captured_comes_after_what_is_pending_at_each_launch(sim, eng, core, way):
    x, ours = pending(eng, core, 5)
    target = eng.empty((SIZE,), "uint8", device="cuda")
    capture = int(core.stream.handle)
    checked(driver.cuStreamBeginCapture(capture, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    exported = x if way == "table" else Protocol(x)
    view = StridedMemoryView.from_dlpack(exported, stream_ptr=int(core.stream.handle))
    source, sink = Buffer.from_handle(view.ptr, SIZE, owner=view), Buffer.from_handle(target.data_ptr, SIZE)
    source.copy_to(sink, stream=core.stream)
    graph = checked(driver.cuStreamEndCapture(capture))
    executable = checked(driver.cuGraphInstantiate(graph, 0))
    checked(driver.cuGraphLaunch(executable, capture))
    assert sim.pending(int(core.stream.handle)) > 0
    sim.unblock(ours)
    assert sim.read(int(core.stream.handle), target.data_ptr, SIZE) == b"\x05" * SIZE
    # The graph may be launched again, so the lease outlives the view until the program says that it will not be.
    del view, source
    gc.collect()
    later = overwrite(eng, core, x, 6)
    with pytest.raises((TimeoutError, est.LeaseHeldError)):
        later.wait(timeout=0.05)
    checked(driver.cuGraphExecDestroy(executable))
    checked(driver.cuGraphDestroy(graph))
    assert x.end_captures() == 1
    later.wait(timeout=30)


def test_what_belongs_to_another_device_is_refused(sim, eng, core):
    x = eng.empty((SIZE,), "uint8", device="cuda:0")
    other = Device(1)
    other.set_current()
    stream = other.create_stream()
    core.device.set_current()
    with pytest.raises(ValueError, match="cuda:0"):
        x.__dlpack__(stream=stream, max_version=(1, 0))
    with pytest.raises(ValueError, match="cuda:0"):
        StridedMemoryView.from_dlpack(Protocol(x), stream_ptr=int(stream.handle))
    # As an operation's queue it is fine: the engine orders across devices.
    y = eng.empty((SIZE,), "uint8", device="cuda:1")
    fill = lambda y: Buffer.from_handle(y, SIZE).fill(b"\x03", stream=stream)
    eng.submit(fill, writes=[y], using=lambda t: t.data_ptr, on=stream).wait(timeout=30)
    y.wait(timeout=30)


def test_a_stream_that_is_closed_is_no_stream(sim, eng, core):
    x = eng.empty((SIZE,), "uint8", device="cuda:0")
    core.stream.close()
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        x.__dlpack__(stream=core.stream, max_version=(1, 0))


def test_a_closed_buffer_and_a_closed_engine_are_said(sim, core):
    buffer = core.full(1)
    buffer.close()
    with est.Engine(workers=1) as eng:
        x = eng.empty((SIZE,), "uint8", device="cuda")
        with pytest.raises((BufferError, RuntimeError, ValueError)):
            eng.from_dlpack(buffer)
    with pytest.raises(est.ShutdownError):
        eng.from_dlpack(core.full(1))
    del x
