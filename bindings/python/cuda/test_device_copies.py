"""Copies from and to CUDA memory, and memory that is released early, on the simulated driver."""

import asyncio
import ctypes
import gc
import threading
import time

import numpy as np
import pytest
from doubles import Library, Stream, settle, wait_until

import estafette as est

LARGE = (5 << 20) + 3


@pytest.fixture
def lib(sim):
    return Library(sim)


@pytest.fixture
def one(driver):
    """An engine with one worker, so that a thread that holds it is found out."""
    with est.Engine(workers=1) as engine:
        yield engine
        # As the engine of the other tests.
        driver.unblock_all()
        settle(engine)


def pending(eng, lib, value, size):
    """A tensor that the engine's stream, which is blocked, will fill."""
    x = eng.empty((size,), "uint8", device="cuda")
    handles = []

    def fill(x):
        stream = est.current_stream()
        handles.append(stream.handle)
        lib.sim.block(stream.handle)
        lib.sim.fill(stream.handle, x, value, size)

    eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda").wait()
    return x, handles[0]


def worker_is_free(eng):
    for _ in range(5):
        eng.call(lambda: np.zeros(1), using=np.from_dlpack).wait(timeout=10)


@pytest.mark.parametrize("size", [64, LARGE])
def test_a_copy_to_the_host_holds_no_worker(sim, one, lib, size):
    x, stream = pending(one, lib, 5, size)
    copy = x.to_host()
    again = one.from_dlpack(x, device="cpu")
    worker_is_free(one)
    assert not copy.is_ready()
    sim.unblock(stream)
    assert (np.from_dlpack(copy) == 5).all() and (np.from_dlpack(again) == 5).all()
    assert one.stats().staging_bytes > 0


def test_a_copy_to_the_host_can_be_awaited(sim, one, lib):
    x, stream = pending(one, lib, 6, LARGE)

    async def main():
        copy = x.to_host()
        await asyncio.sleep(0.01)
        assert not copy.is_ready()
        sim.unblock(stream)
        return np.from_dlpack(await copy)

    assert (asyncio.run(main()) == 6).all()


@pytest.mark.parametrize("size", [64, LARGE])
def test_an_array_of_the_host_is_moved_to_the_device_and_back(sim, eng, size):
    data = np.arange(size, dtype="uint64").astype("uint8")
    there = eng.from_dlpack(data, device="cuda")
    there.wait()
    assert str(there.device) == "cuda:0"
    back = np.from_dlpack(there.to_host())
    assert (back == data).all() and back.ctypes.data != data.ctypes.data
    with pytest.raises(BufferError):
        eng.from_dlpack(data, device="cuda", copy=False)


class Fenced:
    """Another library's view of a tensor, with fences."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_fence__(self, **arguments):
        return self.tensor.__dlpack_fence__(**arguments)


def test_a_copy_is_where_its_source_is_also_of_what_is_not_known_yet(sim, eng, lib):
    gate = threading.Event()
    x = eng.call(lambda: (gate.wait(20), lib.full(4))[1])
    y = eng.call(lambda: (gate.wait(20), np.full(64, 5, "uint8"))[1])
    of_device, of_host = (eng.from_dlpack(t, copy=True) for t in (x, y))
    moved, described_late = (eng.from_dlpack(t, copy=True, device="cuda") for t in (y, Fenced(y)))
    assert not gate.is_set() and not any(t.is_ready() for t in (of_device, of_host, moved, described_late))
    gate.set()
    x.wait(30), y.wait(30)
    for copy, device, value in [(of_device, "cuda:0", 4), (of_host, "cpu:0", 5), (moved, "cuda:0", 5), (described_late, "cuda:0", 5)]:
        copy.wait(30)
        assert str(copy.device) == device and copy.data_ptr not in (x.data_ptr, y.data_ptr)
        assert (np.from_dlpack(copy.to_host()) == value).all()


def test_what_has_fences_is_moved_only_to_another_device(sim, eng, lib):
    x = eng.from_dlpack(lib.full(6))
    assert eng.from_dlpack(Fenced(x), device="cuda").data_ptr == x.data_ptr
    assert eng.from_dlpack(Fenced(x), device="cuda", copy=False).data_ptr == x.data_ptr
    with pytest.raises(BufferError, match="on cuda:0, and is not moved to cpu:0"):
        eng.from_dlpack(Fenced(x), device="cpu", copy=False)
    moved = eng.from_dlpack(Fenced(x), device="cpu")
    assert (np.from_dlpack(moved) == 6).all()


def test_a_strided_array_is_packed_on_its_way(sim, eng):
    data = np.arange(24, dtype="float32").reshape(4, 6)[:, ::-2]
    there = eng.from_dlpack(data, device="cuda")
    assert (np.from_dlpack(there.to_host()) == data).all()


@pytest.mark.parametrize("form", [int, Stream], ids=["handle", "object"])
def test_a_copy_for_a_stream_is_handed_out_while_its_producer_runs(sim, one, lib, form):
    x, stream = pending(one, lib, 7, 64)

    class Copying:
        def __dlpack__(self, *, stream, max_version):
            return x.__dlpack__(stream=form(stream), max_version=max_version, copy=True)

    mine = lib.from_dlpack(Copying())
    assert sim.pending(stream) > 0, "the host waited for a blocked stream"
    result = lib.copied(mine)
    assert mine.pointer != x.data_ptr
    sim.unblock(stream)
    assert result.bytes() == bytes([7]) * 64
    del mine


def test_memory_goes_home_while_a_device_still_uses_it(sim, eng, lib):
    before = eng.stats()
    array = lib.full(1)
    t = eng.from_dlpack(array, freed_on=Stream(lib.current))
    handles = []

    def fill(x):
        stream = est.current_stream()
        handles.append(stream.handle)
        sim.block(stream.handle)
        sim.fill(stream.handle, x, 2, 64)

    eng.submit(fill, writes=[t], using=lambda t: t.data_ptr, on="cuda").wait()
    del t
    gc.collect()
    wait_until(lambda: eng.stats().deleters > before.deleters)
    after = eng.stats()
    assert (after.deleters - before.deleters, after.handed_back - before.handed_back) == (1, 1)
    # The allocator gives the block to the next one on its stream.
    sim.fill(lib.current, array.pointer, 9, 64)
    sim.unblock(handles[0])
    assert array.bytes() == bytes([9]) * 64


def test_what_is_no_home_is_refused(sim, eng, lib):
    with pytest.raises(ValueError, match="freed_on: memory on cpu:0"):
        eng.from_dlpack(np.zeros(3), freed_on=lib.current)
    with pytest.raises(ValueError, match="freed_on: .*another stream on other threads"):
        eng.from_dlpack(lib.full(1), freed_on=2)
    with pytest.raises(TypeError, match="is no CUDA stream"):
        eng.from_dlpack(lib.full(1), freed_on="mine")
    x = eng.empty((3,), "uint8", device="cuda")
    with pytest.raises(ValueError, match="freed_on"):
        eng.from_dlpack(x, freed_on=lib.current)


def test_barriers_are_held_while_another_library_records_a_graph(sim, eng, lib):
    x = eng.empty((64,), "uint8", device="cuda")
    eng.submit(
        lambda x: sim.fill(est.current_stream().handle, x, 3, 64), writes=[x], using=lambda t: t.data_ptr, on="cuda"
    ).wait()
    view = lib.from_dlpack(x)
    stream, graph = ctypes.c_void_p(lib.current), ctypes.c_void_p()
    with est.hold_barriers():
        # In global mode, as PyTorch does.
        sim("cuStreamBeginCapture_v2", stream, 0)
        del view
        gc.collect()
        time.sleep(0.1)
        sim("cuStreamEndCapture", stream, ctypes.byref(graph))
    assert graph.value
    # The quarantine ends afterwards.
    eng.submit(
        lambda x: sim.fill(est.current_stream().handle, x, 4, 64), writes=[x], using=lambda t: t.data_ptr, on="cuda"
    ).wait(timeout=20)
    assert (np.from_dlpack(x.to_host()) == 4).all()
