"""`dlpack_fence_cuda` of `dlpack_fence.h`, on the simulated driver: two libraries that order their streams by each other's fences."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

FENCES = pathlib.Path(__file__).parents[2] / "fence"
sys.path.insert(0, str(FENCES / "python"))

from dlpack_fence import DONE, PENDING, Device, Fence  # noqa: E402

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
