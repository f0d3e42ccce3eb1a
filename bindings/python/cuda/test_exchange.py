"""CUDA memory comes in and goes out: every value of `stream`, and who waits for whom, on the simulated driver."""

import ctypes
import gc
import subprocess
import sys
import threading
import time
import types

import pytest
from doubles import Array, Described, Library, Managed, Stream, wait_until

import estafette as est

SIZE = 64


def filled(eng, lib, value):
    """A tensor of Estafette whose last write is a kernel on the engine's stream that has not run: the stream is blocked."""
    x = eng.empty((SIZE,), "uint8", device="cuda")
    handles = []

    def fill(x):
        stream = est.current_stream()
        handles.append(stream.handle)
        lib.sim.block(stream.handle)
        lib.sim.fill(stream.handle, x, value, SIZE)

    eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda").wait()
    return x, handles[0]


def overwrite(eng, lib, x, value):
    fill = lambda x: lib.sim.fill(est.current_stream().handle, x, value, SIZE)
    return eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda")


def read(eng, lib, x):
    """Content of a tensor, by a copy on a stream of the library's."""
    view = lib.from_dlpack(x)
    data = lib.copied(view).bytes()
    del view
    return data


@pytest.fixture
def lib(sim):
    return Library(sim)


def test_the_consumers_stream_waits_and_the_host_does_not(sim, eng, lib):
    x, ours = filled(eng, lib, 5)
    view = lib.from_dlpack(x)
    result = lib.copied(view)
    assert sim.pending(ours) > 0, "the host waited for a blocked stream"
    sim.unblock(ours)
    assert result.bytes() == bytes([5]) * SIZE


@pytest.mark.parametrize("form", ["handle", "object", "default", "legacy", "thread"])
def test_every_form_of_stream(sim, eng, lib, form):
    stream = {"handle": lib.current, "object": Stream(lib.current), "default": None, "legacy": 1, "thread": 2}[form]
    working = {"handle": lib.current, "object": lib.current, "default": 1, "legacy": 1, "thread": 2}[form]
    x, ours = filled(eng, lib, 7)
    capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
    result = sim.memory(SIZE)
    sim.copy(working, result, x.data_ptr, SIZE)
    sim.unblock(ours)
    assert sim.read(working, result, SIZE) == bytes([7]) * SIZE
    del capsule


@pytest.mark.parametrize(
    "stream, error, words",
    [
        (0, ValueError, "1 for the legacy one"),
        (-2, ValueError, "no handle"),
        (True, TypeError, "bool"),
        ("cuda", TypeError, "no CUDA stream"),
        (object(), TypeError, "__cuda_stream__"),
    ],
)
def test_what_is_no_stream_is_refused_by_name(sim, eng, stream, error, words):
    x = eng.empty((SIZE,), "uint8", device="cuda:0")
    with pytest.raises(error, match=words):
        x.__dlpack__(stream=stream, max_version=(1, 0))


def test_a_consumer_that_wants_no_synchronization_is_counted(sim, eng, lib):
    x, ours = filled(eng, lib, 5)
    before = eng.stats().unordered
    waits = sim.calls("cuStreamWaitEvent")
    capsule = x.__dlpack__(stream=-1, max_version=(1, 0))
    assert sim.calls("cuStreamWaitEvent") == waits
    assert eng.stats().unordered == before + 1
    assert est.unordered_exchanges()[-1].reason == "no synchronization asked for"
    # It is a lease all the same.
    later = overwrite(eng, lib, x, 6)
    sim.unblock(ours)
    with pytest.raises(est.LeaseHeldError, match="test_a_consumer_that_wants"):
        later.wait(timeout=30)
    del capsule
    later.wait()


def test_a_write_waits_for_a_consumer_that_released_before_its_kernel_ran(sim, eng, lib):
    x, ours = filled(eng, lib, 5)
    sim.unblock(ours)
    sim.block(lib.current)
    view = lib.from_dlpack(x)
    result = lib.copied(view)
    del view
    gc.collect()
    later = overwrite(eng, lib, x, 6)
    with pytest.raises(TimeoutError):
        later.wait(timeout=0.05)
    sim.unblock(lib.current)
    later.wait()
    assert result.bytes() == bytes([5]) * SIZE
    assert read(eng, lib, x) == bytes([6]) * SIZE


def test_an_import_is_ordered_on_a_stream_of_ours(sim, eng, lib):
    sim.block(lib.current)
    t = eng.from_dlpack(lib.full(3))
    assert lib.seen[-1]["stream"] > 2
    assert not t.is_ready()
    other = Library(sim)
    result = other.copied(other.from_dlpack(t))
    sim.unblock(lib.current)
    assert result.bytes() == bytes([3]) * SIZE
    t.wait(timeout=30)


def test_arrays_of_cupy_are_taken_behind_its_current_stream(sim, eng, lib, monkeypatch):
    class CuPyArray(Array):
        __module__ = "cupy"

    class CuPyStream:
        ptr = lib.current

    module = types.ModuleType("cupy.cuda")
    module.get_current_stream = lambda device: CuPyStream
    monkeypatch.setitem(sys.modules, "cupy.cuda", module)
    array = lib.full(3)
    sim.block(lib.current)
    sim.fill(lib.current, array.pointer, 4, SIZE)
    t = eng.from_dlpack(CuPyArray(lib, array.pointer, SIZE))
    assert lib.seen[-1]["stream"] == lib.current, "CuPy has nothing to order"
    assert not t.is_ready()
    other = Library(sim)
    result = other.copied(other.from_dlpack(t))
    sim.unblock(lib.current)
    assert result.bytes() == bytes([4]) * SIZE
    # The default stream has no number in CuPy, and 1 in DLPack.
    CuPyStream.ptr = 0
    eng.from_dlpack(CuPyArray(lib, array.pointer, SIZE))
    assert lib.seen[-1]["stream"] == 1


EXPORT_OF_JAX = """
def to_dlpack(array):
    state["inside"] += 1
    state["most"] = max(state["most"], state["inside"])
    sleep(0.0005)
    state["inside"] -= 1
    return array and array.made_capsule()
"""


def test_arrays_of_jax_are_exported_and_released_one_at_a_time(sim, eng):
    state = {"inside": 0, "most": 0, "deleted": 0, "beside": 0}
    module = {"__name__": "jax._src.dlpack", "state": state, "sleep": time.sleep}
    exec(EXPORT_OF_JAX, module)

    class JaxArray(Array):
        __module__ = "jax._src.array"

        def __dlpack__(self, **arguments):
            return module["to_dlpack"](self)

        def made_capsule(self):
            return self.capsule()

        def deleted(self):
            state["deleted"] += 1
            state["beside"] += state["inside"]

    lib = Library(sim)
    array = JaxArray(lib, sim.memory(SIZE), SIZE)
    rounds, threads = 60, 3

    def imports():
        for _ in range(rounds):
            eng.from_dlpack(array)

    work = [threading.Thread(target=imports) for _ in range(threads)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join(60)
    assert state["most"] == 1, "one import runs at a time"
    wait_until(lambda: state["deleted"] == rounds * threads)
    assert state["beside"] == 0, "no deleter runs beside an export"


def test_a_producer_that_takes_no_stream_is_waited_for_by_the_default_stream_and_counted(sim, eng):
    lib = Library(sim, takes_stream=False)
    with lib.stream(1):
        array = lib.full(4)
        before = eng.stats().unordered
        t = eng.from_dlpack(array)
        assert eng.stats().unordered == before + 1
        other = Library(sim)
        assert other.copied(other.from_dlpack(t)).bytes() == bytes([4]) * SIZE


def test_managed_memory_is_waited_for_by_host_readers(sim, eng, lib):
    np = pytest.importorskip("numpy")
    x = eng.empty((SIZE,), "uint8", device=(13, 0))
    fill = lambda x: sim.fill(est.current_stream().handle, x, 8, SIZE)
    eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda")
    assert np.from_dlpack(x).tolist() == [8] * SIZE


def test_memory_goes_to_the_host_as_a_copy(sim, eng, lib):
    np = pytest.importorskip("numpy")
    x, ours = filled(eng, lib, 9)
    sim.unblock(ours)
    assert np.from_dlpack(x, device="cpu").tolist() == [9] * SIZE
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(1, 0), copy=False, max_version=(1, 0))
    with pytest.raises(ValueError, match="None"):
        x.__dlpack__(stream=lib.current, dl_device=(1, 0), max_version=(1, 0))


def test_the_cuda_array_interface_comes_in_with_its_stream_and_keeps_the_owner(sim, eng, lib):
    sim.block(lib.current)
    owner = Described(lib.full(2))
    t = eng.from_dlpack(owner)
    assert (t.shape, t.dtype, t.device) == ((SIZE,), "uint8", (2, 0))
    assert not t.is_ready()
    sim.unblock(lib.current)
    t.wait(timeout=30)
    del owner
    gc.collect()
    assert read(eng, lib, t) == bytes([2]) * SIZE
    array = lib.full(1)
    assert sim.read(lib.current, array.pointer, SIZE) == bytes([1]) * SIZE
    # Its own words: no stream, nothing to wait for.
    assert eng.from_dlpack(Described(array, stream=None)).is_ready()
    for entries, words in [
        ({"stream": 0}, "legacy"),
        ({"mask": array}, "mask"),
        ({"typestr": ">f4"}, "typestr"),
        ({"data": None}, "data"),
    ]:
        with pytest.raises((ValueError, TypeError, BufferError), match=words):
            eng.from_dlpack(Described(array, **entries))


def test_the_cuda_array_interface_goes_out_behind_the_stream_that_it_names(sim, eng, lib):
    x, ours = filled(eng, lib, 5)
    interface = x.__cuda_array_interface__
    assert interface["version"] == 3 and interface["data"] == (x.data_ptr, True)
    sim.order(interface["stream"], lib.current)
    result = lib.copied(Array(lib, interface["data"][0], SIZE))
    sim.unblock(ours)
    assert result.bytes() == bytes([5]) * SIZE
    with x.write() as view:
        assert view.__cuda_array_interface__["data"] == (x.data_ptr, False)
    assert not hasattr(eng.zeros(3, "int32"), "__cuda_array_interface__")


def test_a_device_that_is_not_there_is_said_so(sim, eng):
    with pytest.raises(BufferError, match="no usable device has this number"):
        eng.empty((1,), "uint8", device="cuda:9")


class Table(ctypes.Structure):
    """`DLPackExchangeAPI` of dlpack.h, version 1.3."""

    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("prev_api", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("from_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(Managed)))),
        ("to_object", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
        ("current_stream", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))),
    ]


def test_our_exchange_table_orders_before_the_stream_that_it_names(sim, eng, lib):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    address = get(est.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    table = ctypes.cast(address, ctypes.POINTER(Table)).contents
    x, ours = filled(eng, lib, 5)
    stream, managed = ctypes.c_void_p(), ctypes.POINTER(Managed)()
    assert table.current_stream(2, 0, ctypes.byref(stream)) == 0 and stream.value > 2
    assert table.from_object(x, ctypes.byref(managed)) == 0
    result = sim.memory(SIZE)
    sim.copy(stream.value, result, managed.contents.tensor.data, SIZE)
    managed.contents.deleter(managed)
    # The stream is one that lasts, so its work is the end of the lease.
    overwrite(eng, lib, x, 6).wait(timeout=30)
    sim.unblock(ours)
    assert sim.read(stream.value, result, SIZE) == bytes([5]) * SIZE
    assert read(eng, lib, x) == bytes([6]) * SIZE
    with pytest.raises(BufferError):
        table.current_stream(8, 0, ctypes.byref(stream))


def test_memory_of_another_device_than_its_struct_says_is_refused(sim, eng, lib):
    other = eng.empty((SIZE,), "uint8", device="cuda:1")
    array = Array(lib, other.data_ptr, SIZE)
    with pytest.raises(BufferError, match="says cuda:0.*of cuda:1"):
        eng.from_dlpack(array)


def test_a_program_with_a_subinterpreter_ends_its_leases(sim):
    """CPython's own check of the interpreter's lock says yes to every thread from then on."""
    program = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import estafette as est

interpreters.create()
with est.Engine(workers=1) as eng:
    x = eng.empty((16,), "uint8", device="cuda")
    for _ in range(3):
        with x.read() as view:
            capsule = view.__dlpack__(stream=1, max_version=(1, 0))
            del capsule
    eng.submit(lambda x: None, writes=[x], on="cuda").wait(timeout=60)
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
