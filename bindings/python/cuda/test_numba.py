"""Numba's arrays and streams: outside of kernels it calls nothing but the driver, so here it runs for real.

Kernels need NVIDIA's compiler library and a device that runs what it makes: copies stand for them.
"""

import gc
import time

import numpy as np
import pytest
from numba import cuda
from test_exchange import overwrite, read
from doubles import Library, settle

import estafette as est

COUNT = 16
# As `Library` reads memory: bytes.
SIZE = 4 * COUNT
VALUES = np.arange(COUNT, dtype="float32")


@pytest.fixture
def lib(sim):
    return Library(sim)


def handle_of(stream):
    return stream.__cuda_stream__()[1]


def uploaded(sim, values=VALUES):
    """An array of Numba's whose copy from the host has not begun: its stream is blocked."""
    stream = cuda.stream()
    sim.block(handle_of(stream))
    return cuda.to_device(values, stream=stream), stream


def download(array, stream=0):
    """Content of an array when everything on the stream is done."""
    values = array.copy_to_host(stream=stream)
    if stream:
        stream.synchronize()
    return values


def pending(sim, eng):
    """A tensor of Estafette that a stream of the engine's is still to fill. With the stream's handle."""
    x = eng.empty((COUNT,), "float32", device="cuda")
    handles = []

    def fill(x):
        handles.append(est.current_stream().handle)
        sim.block(handles[0])
        sim.fill(handles[0], x, 0, SIZE)

    eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda").wait(timeout=30)
    return x, handles[0]


def test_an_array_is_imported_behind_the_stream_that_it_names(sim, eng, lib):
    array, stream = uploaded(sim)
    t = eng.from_dlpack(array)
    assert (t.shape, t.dtype, t.device) == ((COUNT,), "float32", (2, 0)) and not t.is_ready()
    result = lib.copied(bytes_of(lib, t))
    assert sim.pending(handle_of(stream)) > 0, "the host waited for a blocked stream"
    sim.unblock(handle_of(stream))
    assert result.bytes() == VALUES.tobytes()


def bytes_of(lib, t):
    """The tensor as an array of bytes of a library's, whose stream waits for it."""
    view = lib.from_dlpack(t)
    view.size = SIZE
    return view


@pytest.mark.parametrize("named", ["none", "default", "legacy", "thread"])
def test_an_array_on_a_default_stream_waits_for_it(sim, eng, lib, named):
    stream = {
        "none": lambda: 0,
        # Its interface says 0, which the interface forbids.
        "default": cuda.default_stream,
        "legacy": cuda.legacy_default_stream,
        "thread": cuda.per_thread_default_stream,
    }[named]()
    source = cuda.to_device(VALUES)
    array = cuda.device_array(COUNT, "float32", stream=stream)
    said = array.__cuda_array_interface__["stream"]
    assert said == {"none": None, "default": 0, "legacy": 1, "thread": 2}[named]
    handle = 2 if named == "thread" else 1
    sim.order(handle, handle)
    sim.block(handle)
    # From one array to another the host does not wait, though no stream was named.
    array.copy_to_device(source, stream=stream)
    t = eng.from_dlpack(array)
    assert not t.is_ready()
    result = lib.copied(bytes_of(lib, t))
    sim.unblock(handle)
    assert result.bytes() == VALUES.tobytes()


def test_numba_waits_on_the_host_for_the_stream_that_we_name(sim, eng):
    x, ours = pending(sim, eng)
    waits = sim.calls("cuStreamSynchronize")
    sim.unblock(ours)
    array = cuda.as_cuda_array(x)
    assert sim.calls("cuStreamSynchronize") == waits + 1
    assert array.shape == (COUNT,) and array.dtype == np.float32
    assert download(array).tolist() == [0] * COUNT


def test_numba_can_go_on_behind_our_stream_without_waiting(sim, eng):
    x, ours = pending(sim, eng)
    waits = sim.calls("cuStreamSynchronize")
    array = cuda.as_cuda_array(x, sync=False)
    assert sim.calls("cuStreamSynchronize") == waits
    # Its work on the array goes to our stream by itself.
    assert handle_of(array.stream) == x.__cuda_array_interface__["stream"]
    copy = cuda.device_array(COUNT, "float32", stream=array.stream)
    copy.copy_to_device(array)
    sim.unblock(ours)
    assert download(copy, array.stream).tolist() == [0] * COUNT


def test_without_the_stream_numba_would_read_too_early(sim, eng):
    x, ours = pending(sim, eng)
    array = cuda.as_cuda_array(x, sync=False)
    other = cuda.stream()
    copy = cuda.device_array(COUNT, "float32", stream=other)
    copy.copy_to_device(array, stream=other)
    sim.expect_race()
    sim.unblock(ours)
    other.synchronize()


def test_a_view_is_a_lease_for_as_long_as_it_lasts(sim, eng, lib):
    x = eng.empty((COUNT,), "float32", device="cuda")
    overwrite_with(eng, sim, x, 1).wait(timeout=30)
    with x.read() as view:
        array = cuda.as_cuda_array(view)
        later = overwrite_with(eng, sim, x, 2)
        with pytest.raises(est.LeaseHeldError):
            later.wait(timeout=30)
        assert download(array).tobytes() == b"\x01" * SIZE
    later.wait(timeout=30)
    assert lib.copied(bytes_of(lib, x)).bytes() == b"\x02" * SIZE


def overwrite_with(eng, sim, x, value):
    fill = lambda x: sim.fill(est.current_stream().handle, x, value, SIZE)
    return eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda")


def test_every_stream_of_numba_is_one_to_export_to(sim, eng):
    streams = [
        (cuda.stream(), None),
        (cuda.default_stream(), 1),
        (cuda.legacy_default_stream(), 1),
        (cuda.per_thread_default_stream(), 2),
    ]
    streams.append((cuda.external_stream(handle_of(streams[0][0])), None))
    for stream, handle in streams:
        x, ours = pending(sim, eng)
        handle = handle or handle_of(stream)
        result = sim.memory(SIZE)
        capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
        sim.copy(handle, result, x.data_ptr, SIZE)
        sim.unblock(ours)
        assert sim.read(handle, result, SIZE) == bytes(SIZE), stream
        del capsule


def test_a_stream_of_numba_is_an_operations_queue(sim, eng, lib):
    stream = cuda.stream()
    x = eng.empty((COUNT,), "float32", device="cuda")
    sim.block(handle_of(stream))

    def upload(x):
        cuda.as_cuda_array(x, sync=False).copy_to_device(VALUES, stream=stream)

    eng.submit(upload, writes=[x], on=stream).wait(timeout=30)
    assert not x.is_ready()
    result = lib.copied(bytes_of(lib, x))
    sim.unblock(handle_of(stream))
    assert result.bytes() == VALUES.tobytes()


def test_the_engines_stream_is_one_for_numba(sim, eng, lib):
    """The recipe of the documentation: Numba has no current stream to set."""
    source = cuda.to_device(VALUES)
    x = eng.empty((COUNT,), "float32", device="cuda")

    def copy(x):
        stream = cuda.external_stream(est.current_stream().handle)
        sim.block(handle_of(stream))
        handles.append(handle_of(stream))
        cuda.as_cuda_array(x, sync=False).copy_to_device(source, stream=stream)

    handles = []
    eng.submit(copy, writes=[x], on="cuda").wait(timeout=30)
    assert not x.is_ready()
    sim.unblock(handles[0])
    assert lib.copied(bytes_of(lib, x)).bytes() == VALUES.tobytes()


def test_a_result_of_numba_is_chained_on_while_it_is_computed(sim, eng, lib):
    source = cuda.to_device(VALUES)
    handles = []

    def compute():
        stream = cuda.external_stream(est.current_stream().handle)
        sim.block(handle_of(stream))
        handles.append(handle_of(stream))
        result = cuda.device_array(COUNT, "float32", stream=stream)
        result.copy_to_device(source, stream=stream)
        return result

    z = eng.call(compute, on="cuda")
    while not handles:
        time.sleep(0.001)
    assert not z.is_ready()
    sim.unblock(handles[0])
    z.wait(timeout=30)
    assert lib.copied(bytes_of(lib, z)).bytes() == VALUES.tobytes()


def free_what_was_put_by():
    """Numba defers frees until there are some; the last one may come from the thread that dropped an array."""
    cuda.current_context().memory_manager.deallocations.clear()


def test_memory_of_numba_is_freed_after_its_last_use(sim, eng):
    settle(eng)
    free_what_was_put_by()
    array = cuda.to_device(VALUES)
    pointer = array.__cuda_array_interface__["data"][0]
    t = eng.from_dlpack(array)
    t.wait(timeout=30)
    del array
    y = eng.empty((COUNT,), "float32", device="cuda")
    handles = []

    def copy(t, y):
        handles.append(est.current_stream().handle)
        sim.block(handles[0])
        sim.copy(handles[0], y, t, SIZE)

    eng.submit(copy, reads=[t], writes=[y], using=lambda t: t.data_ptr, on="cuda").wait(timeout=30)
    del t
    gc.collect()
    time.sleep(0.05)
    # It would wait for everything on the device, and that waits for this test.
    assert not cuda.current_context().memory_manager.deallocations, "a kernel still reads it"
    sim.unblock(handles[0])
    y.wait(timeout=30)
    end = time.monotonic() + 30
    while sim.is_allocated(pointer):
        assert time.monotonic() < end, "it was never freed"
        free_what_was_put_by()
        time.sleep(0.001)


def test_a_flood_of_arrays_is_freed_by_the_thread_that_drops_them(sim, eng):
    """More than Numba puts by, so it frees on our thread: in a context, or the memory would be lost."""
    settle(eng)
    free_what_was_put_by()
    used, freed = sim.used(), sim.calls("cuMemFree_v2")
    for _ in range(100):
        eng.from_dlpack(cuda.device_array(COUNT, "float32"))
    settle(eng)
    assert sim.calls("cuMemFree_v2") > freed
    free_what_was_put_by()
    assert (sim.used(), sim.calls("cuMemFree_v2")) == (used, freed + 100)


def test_ten_thousand_imports_leave_nothing_behind(sim, eng):
    array = cuda.to_device(VALUES)
    for _ in range(100):
        eng.from_dlpack(array)
    settle(eng)
    used, before = sim.used(), eng.stats()
    for _ in range(10_000):
        eng.from_dlpack(array)
    settle(eng)
    assert sim.used() == used
    after = eng.stats()
    assert after.imported - before.imported == after.deleters - before.deleters == 10_000
    import sys

    assert sys.getrefcount(array) == 2


@pytest.mark.parametrize("kind", ["managed", "mapped"])
def test_arrays_that_the_host_sees_too_are_waited_for_on_the_device(sim, eng, lib, kind):
    """They are NumPy arrays, whose own DLPack says nothing of the device: Numba's interface is asked."""
    make = {"managed": cuda.managed_array, "mapped": cuda.mapped_array}[kind]
    stream = cuda.stream()
    array = make(COUNT, "float32", stream=stream)
    array[:] = 1
    pointer = array.__cuda_array_interface__["data"][0]
    sim.block(handle_of(stream))
    sim.fill(handle_of(stream), pointer, 0, SIZE)
    t = eng.from_dlpack(array)
    assert t.device[0] == {"managed": 13, "mapped": 3}[kind]
    assert not t.is_ready()
    sim.unblock(handle_of(stream))
    assert np.from_dlpack(t).tolist() == [0] * COUNT
    # Plain pinned memory is NumPy's.
    assert eng.from_dlpack(cuda.pinned_array(COUNT)).device == (1, 0)


def test_layouts_and_types_of_numba(sim, eng):
    whole = np.arange(24, dtype="float32").reshape(4, 6)
    for index in (np.s_[1:3, ::2], np.s_[:, 1], np.s_[2]):
        array = cuda.to_device(whole)[index]
        assert eng.from_dlpack(array).shape == whole[index].shape
        t = eng.from_dlpack(array)
        assert np.from_dlpack(t, device="cpu").tolist() == whole[index].tolist()
    assert eng.from_dlpack(cuda.device_array((0, 3), "float32")).shape == (0, 3)
    assert eng.from_dlpack(cuda.device_array((), "float64")).shape == ()
    for dtype in ("bool", "int8", "uint64", "float16", "complex64"):
        assert eng.from_dlpack(cuda.device_array(3, dtype)).dtype == dtype
    for dtype in ([("a", "i4")], "M8[s]"):
        with pytest.raises(TypeError, match="typestr"):
            eng.from_dlpack(cuda.device_array(3, np.dtype(dtype)))


def test_an_array_of_another_device_is_of_that_device(sim, eng):
    with cuda.gpus[1]:
        array = cuda.to_device(VALUES)
        stream = cuda.stream()
    t = eng.from_dlpack(array)
    assert t.device == (2, 1)
    x = eng.empty((COUNT,), "float32", device="cuda:0")
    with pytest.raises(ValueError, match="cuda:0"):
        x.__dlpack__(stream=stream, max_version=(1, 0))
