"""Processes that use several devices, or one of several: what is ordered where, and which devices are opened."""

import threading

import pytest
from doubles import Library, Stream, wait_until
from test_libraries import run

import estafette as est

SIZE = 64
PINNED, MANAGED = 3, 13


@pytest.fixture
def lib(sim):
    """A library that works on the second device, which is current."""
    with sim.on_device(1):
        yield Library(sim)
    sim("cuCtxSetCurrent", sim.context)


@pytest.mark.parametrize("kind", [PINNED, MANAGED])
@pytest.mark.parametrize("named", ["handle", "object", "default"])
def test_shared_memory_is_lent_to_the_device_of_the_stream(sim, eng, lib, kind, named):
    handle = 1 if named == "default" else lib.default
    x = eng.empty((SIZE,), "uint8", device=(kind, 0))
    pointer, result, ours = x.data_ptr, sim.memory(SIZE), []

    def fill(x):
        ours.append(est.current_stream().handle)
        sim.block(ours[0])
        sim.fill(ours[0], x, 8, SIZE)

    eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda:0")
    wait_until(lambda: ours and sim.pending(ours[0]))
    capsule = x.__dlpack__(stream=Stream(handle) if named == "object" else handle, max_version=(1, 0))
    sim.copy(handle, result, pointer, SIZE)
    sim.unblock(ours[0])
    assert sim.read(handle, result, SIZE) == bytes([8]) * SIZE
    del capsule


def test_a_stream_without_a_device_is_of_the_current_one(sim, eng, lib):
    seen, refused = [], []
    where = lambda: seen.append(sim.current_device())
    for stream in (Stream(1), Stream(lib.default)):
        eng.submit(where, on=stream).wait(timeout=30)
    assert seen == [1, 1]

    def elsewhere():
        named = Stream(1)
        named.device_index = 0
        for stream in (Stream(lib.default), named, Stream(1)):
            try:
                eng.submit(where, on=stream).wait(timeout=30)
            except ValueError as error:
                refused.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [1, 1, 1, 0]
    (said,) = refused
    assert "each of the 2 CUDA devices has a legacy default stream" in said and "`device_index`" in said


OTHER_LIBRARY = f"""
def call(name, *arguments):
    assert getattr(sim, name)(*arguments) == 0, name

def opened():
    flags, is_open = ctypes.c_uint(), [ctypes.c_int() for _ in range(2)]
    for number, state in enumerate(is_open):
        call("cuDevicePrimaryCtxGetState", number, ctypes.byref(flags), ctypes.byref(state))
    return [state.value for state in is_open]

context, stream, pinned = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
call("cuCtxSetCurrent", context)
call("cuStreamCreate", ctypes.byref(stream), 1)
call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t({SIZE}), 1)

class Stream:
    __cuda_stream__ = (0, stream.value)

class Pinned:
    __cuda_array_interface__ = dict(version=3, shape=({SIZE},), typestr="|u1", data=(pinned.value, False), stream=1)
"""


def test_a_process_opens_the_devices_that_it_uses():
    status, printed, said = run(
        OTHER_LIBRARY
        + f"""
with est.Engine() as eng:
    t = eng.from_dlpack(Pinned())
    y = eng.empty(({SIZE},), "uint8", device=({PINNED}, 0))
    x = eng.empty(({SIZE},), "uint8", device="cuda:1")
    eng.submit(lambda t, x: None, reads=[t], writes=[x], on=Stream()).wait(timeout=30)
    for tensor in (t, y):
        capsule = tensor.__dlpack__(stream=stream.value, max_version=(1, 0))
        del capsule
    eng.submit(lambda t: None, writes=[t]).wait(timeout=30)
print(opened())
"""
    )
    assert (status, printed) == (0, "[0, 1]\n"), said


def test_a_queue_of_sycl_opens_no_cuda_device():
    dpctl = pytest.importorskip("dpctl")
    if not dpctl.get_num_devices():
        pytest.skip("there is no SYCL device")
    status, printed, said = run(
        OTHER_LIBRARY
        + """
import dpctl
with est.Engine() as eng:
    eng.submit(lambda: None, on=dpctl.SyclQueue()).wait(timeout=30)
print(opened())
"""
    )
    assert (status, printed) == (0, "[0, 1]\n"), said
