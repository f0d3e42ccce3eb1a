"""Behaviour of libraries that the array API does not define, by doubles that behave as docs/peers.md says, and how streams end leases."""

import ctypes
import gc
import subprocess
import sys
import threading
import types
import weakref

import pytest
from doubles import Array, Library, Stream, wait_until

import estafette as est

SIZE = 64
PINNED = 3
HOST_USE_BESIDE_KERNELS = 89


@pytest.fixture
def lib(sim):
    return Library(sim)


@pytest.fixture
def x(sim, eng, lib):
    """A tensor that holds fives."""
    x = eng.empty((SIZE,), "uint8", device="cuda")
    overwrite(eng, lib, x, 5)
    x.wait(timeout=30)
    return x


def overwrite(eng, lib, x, value):
    fill = lambda x: lib.sim.fill(est.current_stream().handle, x, value, SIZE)
    return eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda")


def blocked(eng, lib, x, value):
    """As `overwrite`, behind a stream that stands still. Returns the stream."""
    handles = []

    def fill(x):
        handles.append(est.current_stream().handle)
        lib.sim.block(handles[0])
        lib.sim.fill(handles[0], x, value, SIZE)

    eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda").wait(timeout=30)
    return handles[0]


def in_module(name):
    """A function of that module, which calls what it is given."""
    space = {"__name__": name}
    exec("def call(function, **arguments):\n    return function(**arguments)", space)
    return space["call"]


def pytorch(lib, *, is_external):
    """PyTorch's current stream; the identifier of an external stream is its handle."""
    torch = types.ModuleType("torch")
    current = lambda device: types.SimpleNamespace(cuda_stream=lib.current, stream_id=lib.current if is_external else 35)
    torch.cuda = types.SimpleNamespace(current_stream=current, is_available=lambda: False)
    return torch


@pytest.mark.parametrize(
    "module, is_external, needs_barrier",
    [
        ("torch.utils.dlpack", False, False),
        ("torch.utils.dlpack", True, True),
        ("jax._src.dlpack", False, False),
        ("a_library_without_a_row", False, True),
    ],
)
def test_the_end_of_a_lease_on_a_stream_that_stays_needs_no_barrier(
    sim, eng, lib, x, monkeypatch, module, is_external, needs_barrier
):
    monkeypatch.setitem(sys.modules, "torch", pytorch(lib, is_external=is_external))
    capsule = in_module(module)(x.__dlpack__, stream=lib.current, max_version=(1, 0))
    sim.block(lib.current)
    result = sim.memory(SIZE)
    sim.copy(lib.current, result, x.data_ptr, SIZE)
    del capsule
    later = overwrite(eng, lib, x, 6)
    if needs_barrier:
        with pytest.raises(TimeoutError):
            later.wait(timeout=0.05)
    else:
        # Issued at once: its stream waits.
        later.wait(timeout=30)
        assert not x.is_ready()
    sim.unblock(lib.current)
    x.wait(timeout=30)
    assert sim.read(lib.current, result, SIZE) == bytes([5]) * SIZE
    assert (sim.calls("cuCtxRecordEvent") > 0) == needs_barrier


def test_a_stream_object_is_kept_until_the_end_of_the_lease_which_needs_no_barrier(sim, eng, lib, x):
    stream = Stream(lib.current)
    alive = weakref.ref(stream)
    with x.read() as view:
        # As often as it likes: of one stream one is kept.
        capsules = [view.__dlpack__(stream=stream, max_version=(1, 0)) for _ in range(100)]
        del stream
        gc.collect()
        assert alive() is not None
        sim.block(lib.current)
        result = sim.memory(SIZE)
        sim.copy(lib.current, result, x.data_ptr, SIZE)
        del capsules
    overwrite(eng, lib, x, 6).wait(timeout=30)
    assert not x.is_ready()
    sim.unblock(lib.current)
    x.wait(timeout=30)
    wait_until(lambda: gc.collect() is not None and alive() is None)
    assert sim.read(lib.current, result, SIZE) == bytes([5]) * SIZE
    assert sim.calls("cuCtxRecordEvent") == 0


@pytest.mark.parametrize("form", [int, Stream], ids=["handle", "object"])
def test_a_view_that_was_used_on_more_streams_says_so(sim, eng, lib, x, form):
    other, result = sim.stream(), sim.memory(SIZE)
    with x.read() as view:
        capsule = view.__dlpack__(stream=Stream(lib.current), max_version=(1, 0))
        sim.order(lib.current, other)
        sim.block(other)
        sim.copy(other, result, x.data_ptr, SIZE)
        view.used_on(form(other))
        del capsule
    overwrite(eng, lib, x, 6).wait(timeout=30)
    assert not x.is_ready()
    sim.unblock(other)
    x.wait(timeout=30)
    assert sim.read(other, result, SIZE) == bytes([5]) * SIZE
    assert sim.calls("cuCtxRecordEvent") == 0
    with pytest.raises(est.ConflictError, match="has ended"):
        view.used_on(other)


def test_only_streams_of_the_memory_use_it(sim, eng, lib, x):
    with eng.zeros(SIZE, "uint8").read() as view, pytest.raises(ValueError, match="None"):
        view.used_on(lib.current)
    with x.read() as view:
        with pytest.raises(ValueError, match="is no stream that uses memory on cuda:0"):
            view.used_on(-1)
        with pytest.raises(ValueError, match="1 for the legacy one"):
            view.used_on(0)


@pytest.mark.parametrize("module", ["tensorflow.python.dlpack.dlpack", "jax._src.dlpack"])
def test_the_host_waits_for_libraries_that_name_no_stream_and_do_not_work_on_the_default_one(sim, eng, lib, x, module):
    ours = blocked(eng, lib, x, 7)
    capsules = []
    ask = in_module(module)
    thread = threading.Thread(target=lambda: capsules.append(ask(x.__dlpack__, max_version=(1, 0))))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive(), "it waits"
    sim.unblock(ours)
    thread.join(30)
    # A stream that got no work.
    result = sim.memory(SIZE)
    sim.copy(lib.current, result, x.data_ptr, SIZE)
    assert sim.read(lib.current, result, SIZE) == bytes([7]) * SIZE
    assert len(capsules) == 1
    capsules.clear()


def test_a_consumer_of_whom_nothing_is_known_and_that_names_no_stream_is_noted(sim, eng, x):
    before = eng.stats().unordered
    capsule = x.__dlpack__(max_version=(1, 0))
    assert eng.stats().unordered == before + 1
    assert est.unordered_exchanges()[-1].reason == "no stream named; ordered before the default stream only"
    capsule = in_module("cupy")(x.__dlpack__, max_version=(1, 0))
    assert eng.stats().unordered == before + 1, "CuPy means what the array API says"
    del capsule


class PyTorchArray(Array):
    __module__ = "torch"

    def __dlpack__(self, **arguments):
        if self.library.kind == PINNED:
            assert arguments.get("stream") is None, "stream should be None on cpu."
        return super().__dlpack__(**arguments)


def test_pytorch_is_asked_for_pinned_memory_without_a_stream(sim, eng):
    lib = Library(sim, kind=PINNED)
    pointer = sim.pinned_memory(SIZE)
    sim.block(lib.default)
    # The default stream is what can be known of; of others PyTorch's users wait themselves.
    sim.fill(1, pointer, 3, SIZE)
    before = eng.stats().unordered
    t = eng.from_dlpack(PyTorchArray(lib, pointer, SIZE))
    assert lib.seen == [{"max_version": (1, 3)}]
    assert eng.stats().unordered == before + 1
    assert bytes(t) == bytes([3]) * SIZE


class XlaArray(Array):
    """As of XLA's client that orders arrays before no stream."""

    __module__ = "jaxlib._jax"

    def block_until_ready(self):
        self.library.sim("cuStreamSynchronize", ctypes.c_void_p(self.library.current))
        self.library.seen.append("block_until_ready")

    def __dlpack__(self, *, stream=None, max_version=None):
        if stream is not None:
            raise RuntimeError("UNIMPLEMENTED: stream is not supported")
        return self.capsule()


def test_an_array_that_no_stream_can_be_ordered_after_is_waited_for(sim, eng, lib):
    array = XlaArray(lib, sim.memory(SIZE), SIZE)
    sim.fill(lib.current, array.pointer, 8, SIZE)
    before = eng.stats().unordered
    t = eng.from_dlpack(array)
    assert lib.seen == ["block_until_ready"]
    assert eng.stats().unordered == before
    assert lib.copied(lib.from_dlpack(t)).bytes() == bytes([8]) * SIZE


def test_the_device_of_an_array_is_the_current_one_when_it_is_asked_for_a_stream(sim, eng, lib):
    with sim.on_device(1):
        pointer = sim.memory(SIZE)
    devices = []

    class Elsewhere(Array):
        def __dlpack_device__(self):
            return (2, 1)

        def __dlpack__(self, **arguments):
            devices.append(sim.current_device())
            return self.capsule(device=1)

    sim("cuCtxSetCurrent", sim.context)
    t = eng.from_dlpack(Elsewhere(lib, pointer, SIZE))
    assert devices == [1] and sim.current_device() == 0
    assert t.device == (2, 1)


def test_memory_that_its_device_can_access_is_its_own_wherever_it_is(sim, eng, lib):
    with sim.on_device(1):
        array = Array(lib, sim.memory(SIZE), SIZE)
        other = sim.context
    with pytest.raises(est.ExchangeError, match="says cuda:0, and the driver that the memory is of cuda:1"):
        eng.from_dlpack(array)
    sim("cuCtxEnablePeerAccess", other, 0)
    try:
        assert eng.from_dlpack(array).device == (2, 0)
    finally:
        sim("cuCtxDisablePeerAccess", other)


def run(program):
    """Runs a program in a process of its own. `sim` is the simulator there, and `fill` a function of an operation that stands still."""
    head = f"""
import ctypes, os
sim = ctypes.CDLL(os.environ["ESTAFETTE_CUDA_SIM"], mode=ctypes.RTLD_GLOBAL)
sim.cusim_driver_version(13000)
sim.cusim_block.argtypes = [ctypes.c_uint64, ctypes.c_int]
import estafette as est

def fill(x):
    stream = est.current_stream().handle
    sim.cusim_block(stream, 1)
    assert sim.cuMemsetD8Async(ctypes.c_uint64(x), 1, ctypes.c_size_t({SIZE}), ctypes.c_void_p(stream)) == 0
"""
    done = subprocess.run([sys.executable, "-c", head + program], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_managed_memory_that_the_host_may_not_use_beside_kernels_is_refused():
    status, printed, said = run(f"""
sim.cusim_attribute({HOST_USE_BESIDE_KERNELS}, 0)
with est.Engine() as eng:
    try:
        eng.empty(({SIZE},), "uint8", device=(13, 0)).wait(timeout=30)
    except est.EstafetteError as error:
        print(error)
    pointer, context = ctypes.c_uint64(), ctypes.c_void_p()
    assert sim.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == sim.cuCtxSetCurrent(context) == 0
    assert sim.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t({SIZE}), 1) == 0

    class Managed:
        __cuda_array_interface__ = dict(version=3, shape=({SIZE},), typestr="|u1", data=(pointer.value, False))

    try:
        eng.from_dlpack(Managed())
    except est.ExchangeError as error:
        print(error)
""")
    assert status == 0, said
    first, second = printed.splitlines()
    assert "pinned memory can" in first and "pinned memory can" in second


def test_a_process_exits_while_its_work_is_pending():
    program = f"""
eng = est.Engine(workers=2)
x, y = (eng.empty(({SIZE},), "uint8", device="cuda") for _ in range(2))
eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda").wait(timeout=30)
eng.submit(fill, writes=[y], using=lambda t: t.data_ptr, on="cuda").wait(timeout=30)
capsule = x.__dlpack__(stream=-1, max_version=(1, 0))
del capsule  # Into quarantine.
assert not y.is_ready()
"""
    for _ in range(5):
        status, _, said = run(program)
        assert status == 0 and "shutdown" not in said and "broken" not in said, said
