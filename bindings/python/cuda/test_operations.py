"""Functions on the device: `on=`, what is the current stream of which library, and results that are still being computed."""

import contextlib
import ctypes
import functools
import gc
import importlib
import sys
import threading
import time
import types
import weakref

import numpy as np
import pytest
from doubles import Library, Stream, wait_until

import estafette as est

SIZE = 64


class Pool:
    """PyTorch's pool of memory that no other allocation is given."""

    current = None

    @contextlib.contextmanager
    def used(self, device):
        assert device == 0
        before, Pool.current = Pool.current, self
        try:
            yield
        finally:
            Pool.current = before


def pytorch(lib):
    """A double of PyTorch with CUDA: `torch.cuda.stream(torch.cuda.ExternalStream(handle))` makes it the current one."""
    wait = lambda stream: lib.sim("cuStreamSynchronize", ctypes.c_void_p(stream))
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: True,
        ExternalStream=lambda handle, device: (handle, device),
        stream=lambda external: lib.stream(external[0]),
        current_stream=lambda: types.SimpleNamespace(synchronize=functools.partial(wait, lib.current)),
        MemPool=Pool,
        use_mem_pool=Pool.used,
    )
    return torch


@pytest.fixture
def lib(sim, monkeypatch):
    """PyTorch, imported."""
    lib = Library(sim)
    monkeypatch.setitem(sys.modules, "torch", pytorch(lib))
    return lib


def test_what_the_function_launches_is_the_operation(sim, eng, lib):
    x = eng.empty((SIZE,), "uint8", device="cuda")
    y = eng.empty((SIZE,), "uint8", device="cuda")
    streams = []

    def fill(x):
        streams.append((lib.current, est.current_stream().handle))
        sim.block(lib.current)
        sim.fill(lib.current, x.pointer, 5, SIZE)

    def copy(x, y):
        sim.copy(lib.current, y.pointer, x.pointer, SIZE)

    # Issued, both, while nothing has run.
    eng.submit(fill, writes=[x], using=lib.from_dlpack, on="cuda").wait(timeout=30)
    eng.submit(copy, reads=[x], writes=[y], using=lib.from_dlpack, on="cuda:0").wait(timeout=30)
    (told, own), = streams
    assert told == own and own != lib.default and est.current_stream() is None
    assert lib.current == lib.default, "the thread's current stream is put back"
    assert not y.is_ready()
    sim.unblock(own)
    y.wait(timeout=30)
    assert lib.copied(lib.from_dlpack(y)).bytes() == bytes([5]) * SIZE


def forget_pytorch(monkeypatch):
    """Whatever a test imports as PyTorch is gone after it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    del sys.modules["torch"]


def test_a_library_that_another_thread_is_importing_gets_the_stream_once_it_is_there(sim, eng, monkeypatch, tmp_path):
    lib = Library(sim)
    importing = types.SimpleNamespace(begun=threading.Event(), resume=threading.Event(), torch=pytorch(lib))
    monkeypatch.setitem(sys.modules, "importing", importing)
    (tmp_path / "torch.py").write_text(
        "import importing\nimporting.begun.set()\nassert importing.resume.wait(30)\ncuda = importing.torch.cuda\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    forget_pytorch(monkeypatch)
    imports = threading.Thread(target=importlib.import_module, args=("torch",))
    imports.start()
    assert importing.begun.wait(30)
    current = []
    done = eng.submit(lambda: current.extend([lib.current, est.current_stream().handle]), on="cuda")
    time.sleep(0.05)
    assert not done.is_done()
    importing.resume.set()
    done.wait(timeout=30)
    told, own = current
    assert told == own
    imports.join()


@pytest.mark.parametrize("fails", [False, True])
def test_a_library_that_the_function_imports_itself_is_waited_for(sim, eng, monkeypatch, fails):
    lib = Library(sim)
    x, y = (eng.empty((SIZE,), "uint8", device="cuda") for _ in range(2))
    forget_pytorch(monkeypatch)

    def fill(pointer):
        sys.modules["torch"] = pytorch(lib)
        assert lib.current != est.current_stream().handle
        sim.fill(lib.current, pointer, 5, SIZE)
        if fails:
            raise ValueError("on purpose")

    filled = eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda")
    # PyTorch gets the current stream from here on. The simulator finds what is not ordered after the filling.
    copy = lambda x, y: sim.copy(lib.current, y.pointer, x.pointer, SIZE)
    if fails:
        with pytest.raises(est.OperationError, match="on purpose"):
            filled.wait(timeout=30)
        eng.submit(lambda x: sim.fill(lib.current, x.pointer, 6, SIZE), writes=[x], using=lib.from_dlpack, on="cuda")
    eng.submit(copy, reads=[x], writes=[y], using=lib.from_dlpack, on="cuda")
    assert lib.copied(lib.from_dlpack(y)).bytes() == bytes([6 if fails else 5]) * SIZE


def test_a_graph_is_not_recorded_with_a_library_that_its_function_imports(sim, eng, monkeypatch):
    lib = Library(sim)
    x = eng.empty((SIZE,), "uint8", device="cuda")
    forget_pytorch(monkeypatch)

    def fill(pointer):
        sys.modules["torch"] = pytorch(lib)

    with eng.program(graph=True) as p:
        p.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda")
    with pytest.raises(est.OperationError, match="import it before"):
        p.replay().wait(timeout=30)


def test_a_stream_object_of_somebody_else_is_an_operations_queue(sim, eng, lib):
    theirs = Stream(sim.stream())
    x = eng.empty((SIZE,), "uint8", device="cuda")
    fill = lambda x: sim.fill(lib.current, x.pointer, 6, SIZE)
    sim.block(theirs.handle)
    eng.submit(fill, writes=[x], using=lib.from_dlpack, on=theirs).wait(timeout=30)
    y = eng.empty((SIZE,), "uint8", device="cuda")
    copy = lambda x, y: sim.copy(lib.current, y.pointer, x.pointer, SIZE)
    eng.submit(copy, reads=[x], writes=[y], using=lib.from_dlpack, on="cuda").wait(timeout=30)
    assert not y.is_ready()
    sim.unblock(theirs.handle)
    y.wait(timeout=30)
    assert lib.copied(lib.from_dlpack(y)).bytes() == bytes([6]) * SIZE


def test_a_result_is_chained_on_while_it_is_computed(sim, eng, lib):
    def compute():
        sim.block(lib.current)
        blocked.append(lib.current)
        return lib.full(7)

    blocked = []
    z = eng.call(compute, on="cuda")
    w = eng.call(lambda z: lib.copied(z), z, using=lib.from_dlpack, on="cuda")
    assert w.shape == (SIZE,) if w.is_ready() else True
    while not blocked:
        pass
    assert not z.is_ready()
    sim.unblock(blocked[0])
    w.wait(timeout=30)
    assert lib.copied(lib.from_dlpack(w)).bytes() == bytes([7]) * SIZE


def test_several_results_behind_work_that_is_lost_are_one_failure(sim, lib, monkeypatch):
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", reports.append)
    engine = est.Engine(workers=1, failures="log")

    def compute():
        # The end of the function's work cannot be marked.
        sim.fail("cuEventRecord", 2)
        return [np.ones(2), np.ones(3)]

    lost = engine.call(compute, name="step", on=Stream(sim.stream()))
    engine.wait_all(30)
    del lost
    gc.collect()
    engine.shutdown(30)
    assert [report.exc_value.operation for report in reports] == ["step"]
    assert "cannot record an event" in str(reports[0].exc_value)


def test_a_function_that_fails_after_it_launched_leaves_its_kernel_in_the_way(sim, eng, lib):
    x = eng.empty((SIZE,), "uint8", device="cuda")

    def fails(x):
        sim.block(lib.current)
        handles.append(lib.current)
        sim.fill(lib.current, x.pointer, 1, SIZE)
        raise RuntimeError("after the launch")

    handles = []
    with pytest.raises(est.OperationError, match="after the launch"):
        eng.submit(fails, writes=[x], using=lib.from_dlpack, on="cuda").wait(timeout=30)
    other = Stream(sim.stream())
    heal = lambda x: sim.fill(lib.current, x.pointer, 2, SIZE)
    eng.submit(heal, writes=[x], using=lib.from_dlpack, on=other)
    sim.unblock(handles[0])
    assert lib.copied(lib.from_dlpack(x)).bytes() == bytes([2]) * SIZE


def test_a_library_with_a_stream_of_its_own_is_joined_by_the_protocol(sim, eng):
    """JAX has no current stream to set: its own is passed to `__dlpack__`, and its result is ordered after that."""
    jax = Library(sim)
    x = eng.call(lambda: jax.full(3), on="cuda")
    y = eng.call(lambda x: jax.copied(x), x, using=jax.from_dlpack, on="cuda")
    y.wait(timeout=30)
    assert jax.copied(jax.from_dlpack(y)).bytes() == bytes([3]) * SIZE


def test_what_cannot_be_an_operations_queue_is_refused(sim, eng):
    async def asynchronous():
        pass

    async def submit():
        eng.submit(asynchronous, on="cuda")

    import asyncio

    with pytest.raises(TypeError, match="async def"):
        asyncio.run(submit())
    with pytest.raises(ValueError, match="another one on the thread"):
        eng.submit(lambda: None, on=Stream(2))
    with pytest.raises(BufferError, match="cuda:9"):
        eng.submit(lambda: None, on="cuda:9")


def test_a_function_that_names_no_stream_is_followed_by_a_quarantine(sim, eng, lib):
    x = eng.empty((SIZE,), "uint8", device="cuda")

    def fill(x):
        sim.block(lib.current)
        sim.fill(lib.current, x.pointer, 4, SIZE)

    eng.submit(fill, writes=[x], using=lib.from_dlpack).wait(timeout=30)
    assert not x.is_ready(), "it has returned, and its kernel has not run"
    y = eng.call(lambda x: lib.copied(x), x, using=lib.from_dlpack, on="cuda")
    sim.unblock(lib.default)
    assert lib.copied(lib.from_dlpack(y)).bytes() == bytes([4]) * SIZE


def test_a_program_is_issued_on_the_device_and_its_host_nodes_wait_for_it(sim, eng, lib):
    x, y = (eng.empty((SIZE,), "uint8", device="cuda") for _ in range(2))
    seen = []
    with eng.program("step") as step:
        step.submit(lambda x: sim.fill(lib.current, x.pointer, 5, SIZE), writes=[x], using=lib.from_dlpack, on="cuda")
        step.submit(
            lambda x, y: sim.copy(lib.current, y.pointer, x.pointer, SIZE),
            reads=[x],
            writes=[y],
            using=lib.from_dlpack,
            on="cuda",
        )
        step.submit(lambda: seen.append(1), reads=[], name="beside")
    waits = sim.calls("cuStreamWaitEvent")
    for _ in range(5):
        step.replay().wait(timeout=30)
    assert len(seen) == 5
    assert lib.copied(lib.from_dlpack(y)).bytes() == bytes([5]) * SIZE
    # The two on the device follow each other on one stream; only this test's own import waits.
    assert sim.calls("cuStreamWaitEvent") - waits <= 2


def test_a_program_is_one_graph(sim, eng, lib):
    x, y = (eng.empty((SIZE,), "uint8", device="cuda") for _ in range(2))
    streams, value = [], 6

    def fill(x):
        streams.append((lib.current, est.current_stream().handle))
        sim.fill(lib.current, x.pointer, value, SIZE)

    def copy(x, y):
        streams.append((lib.current, est.current_stream().handle))
        sim.copy(lib.current, y.pointer, x.pointer, SIZE)

    with eng.program("step", graph=True) as step:
        step.submit(fill, writes=[x], using=lib.from_dlpack, on="cuda")
        step.submit(copy, reads=[x], writes=[y], using=lib.from_dlpack, on="cuda")
    assert step.is_graph and not streams
    for _ in range(10):
        step.replay().wait(timeout=30)
        value = 7
    (told, own), *others = streams
    assert told == own and others == [(own, own)], "once each, on one stream, which is the library's current one"
    assert sim.calls("cuGraphLaunch") == 10
    # The bytes that the function read on the host stay as they were.
    assert lib.copied(lib.from_dlpack(y)).bytes() == bytes([6]) * SIZE
    # Operations before and after are ordered with it.
    eng.submit(lambda y: sim.fill(lib.current, y.pointer, 1, SIZE), writes=[y], using=lib.from_dlpack, on="cuda")
    step.replay()
    assert lib.copied(lib.from_dlpack(y)).bytes() == bytes([6]) * SIZE


def test_what_a_recorded_function_allocates_in_pytorch_is_the_graphs_alone(sim, eng, lib):
    x = eng.empty((SIZE,), "uint8", device="cuda")
    pools = []

    def fill(x):
        pools.append(Pool.current and weakref.ref(Pool.current))
        sim.fill(lib.current, x.pointer, 4, SIZE)

    eng.submit(fill, writes=[x], using=lib.from_dlpack, on="cuda").wait(timeout=30)
    with eng.program(graph=True) as p:
        p.submit(fill, writes=[x], using=lib.from_dlpack, on="cuda")
        p.submit(fill, writes=[x], using=lib.from_dlpack, on="cuda")
    p.replay().wait(timeout=30)
    p.replay().wait(timeout=30)
    x.wait(timeout=30)
    outside, *inside = pools
    gc.collect()
    assert outside is None and len(inside) == 2 and Pool.current is None
    assert None not in [pool() for pool in inside], "they live as long as the graph"
    del p
    # The worker releases the program after it has reported the end of the replay.
    wait_until(lambda: gc.collect() is not None and [pool() for pool in inside] == [None, None])


def test_pytorch_without_such_pools_is_refused(sim, eng, lib, monkeypatch):
    monkeypatch.delattr(sys.modules["torch"].cuda, "use_mem_pool")
    x = eng.empty((SIZE,), "uint8", device="cuda")
    with eng.program(graph=True) as p:
        p.submit(lambda x: None, writes=[x], using=lib.from_dlpack, on="cuda")
    with pytest.raises(est.OperationError, match="record the program without graph=True"):
        p.replay().wait(timeout=30)


class CuPy(types.ModuleType):
    """A double of CuPy's streams and allocator; `deprecated` is one before version 14."""

    def __init__(self, lib, *, deprecated):
        super().__init__("cupy")
        self.lib, self.asked, self.allocator = lib, [], lambda size: ("cached", size)
        new = {} if deprecated else {"from_external": lambda stream: self.external(*stream.__cuda_stream__()[1:], "from_external")}
        self.cuda = types.SimpleNamespace(
            Device=lambda number: contextlib.nullcontext(),
            Stream=types.SimpleNamespace(**new),
            ExternalStream=lambda handle, device: self.external(handle, "ExternalStream"),
            using_allocator=self.using_allocator,
        )

    def external(self, handle, how):
        self.asked.append(how)
        return self.lib.stream(handle)

    @contextlib.contextmanager
    def using_allocator(self, allocator):
        before, self.allocator = self.allocator, allocator
        try:
            yield
        finally:
            self.allocator = before


@pytest.mark.parametrize("deprecated", [False, True])
def test_cupy_gets_the_stream_by_what_is_not_deprecated(sim, eng, monkeypatch, deprecated):
    lib = Library(sim)
    cupy = CuPy(lib, deprecated=deprecated)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    x = eng.empty((SIZE,), "uint8", device="cuda")
    streams = []
    told = lambda x: streams.append((lib.current, est.current_stream().handle))
    eng.submit(told, writes=[x], using=lambda t: t.data_ptr, on="cuda").wait(timeout=30)
    (current, own), = streams
    assert current == own
    assert cupy.asked == ["ExternalStream" if deprecated else "from_external"]


def test_a_recorded_function_that_allocates_in_cupy_is_refused(sim, eng, monkeypatch):
    lib = Library(sim)
    cupy = CuPy(lib, deprecated=False)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    x = eng.empty((SIZE,), "uint8", device="cuda")
    got = []

    def work(x):
        got.append(cupy.allocator(256))

    eng.submit(work, writes=[x], using=lambda t: t.data_ptr, on="cuda").wait(timeout=30)
    with eng.program(graph=True) as p:
        p.submit(work, writes=[x], using=lambda t: t.data_ptr, on="cuda")
    with pytest.raises(est.OperationError, match="asked CuPy for 256 bytes.*declare the memory in `writes`"):
        p.replay().wait(timeout=30)
    assert got == [("cached", 256)]


def test_a_function_that_fails_as_it_is_recorded_fails_the_replay_and_is_called_again(sim, eng, lib):
    x = eng.empty((SIZE,), "uint8", device="cuda")
    fate = [ValueError("not yet")]

    def fill(x):
        sim.fill(lib.current, x.pointer, 3, SIZE)
        if fate:
            raise fate.pop()

    with eng.program("step", graph=True) as step:
        step.submit(fill, writes=[x], using=lib.from_dlpack, on="cuda")
    with pytest.raises(est.OperationError, match="not yet") as caught:
        step.replay().wait(timeout=30)
    assert isinstance(caught.value.__cause__, ValueError)
    step.replay().wait(timeout=30)
    assert lib.copied(lib.from_dlpack(x)).bytes() == bytes([3]) * SIZE


def test_what_cannot_be_a_graph_is_refused(sim, eng, lib):
    theirs = Stream(sim.stream())
    for on, why in ((None, "works on the host"), (theirs, "a foreign queue")):
        with pytest.raises(est.InvalidError, match=f"node 0 `work` .*{why}"):
            with eng.program(graph=True) as p:
                p.submit(lambda: None, name="work", on=on)
