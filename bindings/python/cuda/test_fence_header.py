"""`dlpack_fence_cuda` of `dlpack_fence.h`, on the simulated driver: two libraries that order their streams by each other's fences."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import types

import pytest
from doubles import Library, wait_until

FENCES = pathlib.Path(__file__).parents[2] / "fence"
sys.path.insert(0, str(FENCES / "python"))

import dlpack_fence.check  # noqa: E402
from dlpack_fence import DONE, PENDING, Device, Fence, libraries, take  # noqa: E402

CUDA, SIZE = Device(2, 0), 64
SOURCE = """
#include "dlpack_fence.h"
int32_t record(DLDevice device, void *stream, DLFence *fence) { return dlpack_fence_cuda(device, stream, fence); }
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("fence")
    (folder / "record.c").write_text(SOURCE)
    command = [compiler, "-std=c99", "-D_GNU_SOURCE", "-shared", "-fPIC", "-I", FENCES / "include", "-o", folder / "record.so"]
    subprocess.run([*command, folder / "record.c", "-ldl"], check=True)
    function = ctypes.CDLL(folder / "record.so").record
    function.argtypes = [Device, ctypes.c_void_p, ctypes.POINTER(Fence)]

    def record(stream):
        fence = Fence()
        return function(CUDA, stream, ctypes.byref(fence)), fence

    return record


def order(fence, stream):
    return fence.order_on(fence.context, CUDA, stream)


def test_each_side_waits_for_the_other_on_the_device(sim, record):
    producer, consumer = sim.stream(), sim.stream()
    memory, result = sim.memory(SIZE), sim.memory(SIZE)
    sim.block(producer)
    sim.fill(producer, memory, 3, SIZE)
    status, ready = record(producer)
    assert (status, ready.state()) == (DONE, PENDING)
    assert order(ready, consumer) == DONE
    sim.copy(consumer, result, memory, SIZE)
    status, done = record(consumer)
    assert (status, done.state()) == (DONE, PENDING)
    # The producer writes again, and its own stream waits for the consumer.
    assert order(done, producer) == DONE
    sim.fill(producer, memory, 4, SIZE)
    assert sim.pending(consumer) > 0
    sim.unblock(producer)
    assert sim.read(consumer, result, SIZE) == bytes([3] * SIZE)
    assert sim.read(producer, memory, SIZE) == bytes([4] * SIZE)
    assert ready.state() == DONE and done.state() == DONE
    assert ready.native(ready.context, CUDA) and not ready.native(ready.context, Device(14, 0))
    assert order(ready, None) == DONE and ready.order_on(ready.context, Device(1, 0), None) == PENDING
    created = sim.calls("cuEventDestroy_v2")
    ready.retained().drop()
    assert sim.calls("cuEventDestroy_v2") == created
    for fence in (ready, done):
        fence.drop()
    assert sim.calls("cuEventDestroy_v2") == created + 2


def test_without_the_fence_the_simulator_sees_a_race(sim, record):
    producer, consumer = sim.stream(), sim.stream()
    memory, result = sim.memory(SIZE), sim.memory(SIZE)
    sim.fill(producer, memory, 3, SIZE)
    sim.copy(consumer, result, memory, SIZE)
    sim.read(consumer, result, SIZE)
    sim.read(producer, memory, SIZE)
    sim.expect_race()


def test_no_event_is_recorded_on_a_stream_that_captures_a_graph(sim, record):
    stream, graph = ctypes.c_void_p(sim.stream()), ctypes.c_void_p()
    sim("cuStreamBeginCapture_v2", stream, 2)
    recorded = sim.calls("cuEventRecord")
    assert record(stream)[0] == PENDING and sim.calls("cuEventRecord") == recorded
    sim("cuStreamEndCapture", stream, ctypes.byref(graph))
    assert record(stream)[0] == DONE


def test_order_on_leaves_a_stream_that_captures_a_graph_as_it_is(sim, record):
    producer, consumer, graph = sim.stream(), ctypes.c_void_p(sim.stream()), ctypes.c_void_p()
    status, ready = record(producer)
    assert status == DONE
    sim("cuStreamBeginCapture_v2", consumer, 2)
    waits = sim.calls("cuStreamWaitEvent")
    assert order(ready, consumer) == PENDING and sim.calls("cuStreamWaitEvent") == waits
    python = libraries.cuda_event((2, 0), producer)
    assert order(python.raw, consumer) == PENDING and libraries.cuda_event((2, 0), consumer.value) is None
    # The capture is not spoiled: it ends with a graph, and then the stream can wait.
    sim("cuStreamEndCapture", consumer, ctypes.byref(graph))
    assert graph.value and order(ready, consumer) == DONE and order(python.raw, consumer) == DONE
    ready.drop()


@pytest.mark.parametrize("mode", [0, 1])  # global, thread-local
def test_a_query_spoils_no_capture(sim, record, mode):
    producer, capturing, graph = sim.stream(), ctypes.c_void_p(sim.stream()), ctypes.c_void_p()
    sim.block(producer)
    (_, fence), python = record(producer), libraries.cuda_event((2, 0), producer)
    sim("cuStreamBeginCapture_v2", capturing, mode)
    assert fence.state() == PENDING and python.state() == PENDING
    sim("cuStreamEndCapture", capturing, ctypes.byref(graph))
    assert graph.value
    sim.unblock(producer)
    wait_until(lambda: fence.state() == DONE and python.state() == DONE)
    fence.drop()


class TestAdapters:
    """`dlpack_fence.libraries` and a library with a current stream, as PyTorch and CuPy are; their own builds were not run."""

    def lent(self, lib, array):
        class Exports:
            __dlpack_device__ = array.__dlpack_device__
            seen = []

            def __dlpack__(self, **arguments):
                self.seen.append(arguments)
                return array.__dlpack__(**arguments)

        return libraries.on_cuda_stream(Exports(), lambda: lib.current), Exports.seen

    def test_two_libraries_wait_for_each_other_on_the_device(self, sim):
        producer, consumer = Library(sim), Library(sim)
        sim.block(producer.default)
        x = producer.full(5)
        lent, seen = self.lent(producer, x)
        taken = take(lent)
        assert taken.ready.state() == PENDING and seen == [{"max_version": (1, 0), "stream": -1}]
        y = consumer.from_dlpack(taken)
        z = consumer.copied(y)
        address = taken._address
        del y  # the deleter comes while the work of both is pending
        assert sim.pending(consumer.default) > 0 and address in dlpack_fence._given
        sim.unblock(producer.default)
        assert z.bytes() == bytes([5] * 64)
        wait_until(lambda: address not in dlpack_fence._given)

    @pytest.mark.parametrize("name", ["pytorch", "cupy"])
    def test_the_current_stream_of_the_library_counts(self, sim, monkeypatch, name):
        lib = Library(sim)
        x = lib.full(5)
        x.device = types.SimpleNamespace(type="cuda")
        stream = types.SimpleNamespace(cuda_stream=lib.current, ptr=lib.current)
        cuda = types.SimpleNamespace(current_stream=lambda device: stream, get_current_stream=lambda: stream)
        monkeypatch.setitem(sys.modules, {"pytorch": "torch"}.get(name, name), types.SimpleNamespace(cuda=cuda))
        sim.block(lib.default)
        taken = take(getattr(libraries, name)(x))
        assert taken.ready.state() == PENDING
        sim.unblock(lib.default)
        taken.wait()
        taken.close()


class Gives:
    give = None


# Work of a stream fails with its whole context, and then no event can be asked. A forked child has the simulator's locks as they were, and
# none of the threads that hold them.
APART = ("producer_failure", "producer_a_forked_child")


@pytest.mark.parametrize("check", [name for name in dlpack_fence.check.checks_of(Gives) if name not in APART])
def test_a_library_on_the_simulated_driver_keeps_the_rules(check):
    here = pathlib.Path(__file__).parent
    path = os.pathsep.join([str(FENCES / "python"), str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "dlpack_fence.check", "fence_checked", check]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
