"""Tensors in memory of a device in another process, each with a simulator of its own, whose memory the other one can have."""

import subprocess
import sys
import textwrap
import time

import pytest

import estafette as est

SIZE = 64

CONSUMER = """
import ctypes
import os
import sys
import numpy as np
import estafette as est

driver = ctypes.CDLL(os.environ["ESTAFETTE_CUDA_SIM"], mode=ctypes.RTLD_GLOBAL)
driver.cusim_interpreter(ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p))
driver.cusim_violations.restype = driver.cusim_calls.restype = ctypes.c_uint64
eng = est.Engine(workers=2)
link = eng.connect(sys.argv[1])


def values(x):
    x.wait(timeout=60)
    assert str(x.device) == "cuda:0", x.device
    return set(np.from_dlpack(x, device="cpu").tolist())


def silent():
    assert driver.cusim_violations(None, 0) == 0
"""


class Other:
    """Another process, which has `eng` and `link`."""

    def __init__(self, eng, source):
        with eng.door() as door:
            command = [sys.executable, "-X", "faulthandler", "-c", CONSUMER + textwrap.dedent(source), door.address]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.link = door.accept(60)

    def ended_well(self):
        return self.process.wait(60) == 0


def overwrite(eng, sim, x, value):
    fill = lambda x: sim.fill(est.current_stream().handle, x, value, SIZE)
    return eng.submit(fill, writes=[x], using=lambda t: t.data_ptr, on="cuda")


def test_tensors_of_a_device_cross_by_links_and_tickets_without_a_copy(sim, eng):
    other = Other(
        eng,
        """
        for round in range(20):
            assert values(link.receive(60)) == {round}
        ticket = np.from_dlpack(link.receive(60)).tobytes()
        assert values(eng.from_ticket(ticket)) == {20}
        assert driver.cusim_calls(b"cuMemImportFromShareableHandle") <= 2, "once for each link"
        silent()
        """,
    )
    before = eng.stats().copied_for_processes
    x = eng.empty((SIZE,), "uint8", device="cuda", shared=True)
    for value in range(20):
        overwrite(eng, sim, x, value)
        other.link.send(x, copy=False)
    overwrite(eng, sim, x, 20)
    with x.ticket(copy=False) as ticket:
        assert eng.stats().copied_for_processes == before
        other.link.send(eng.from_dlpack(bytearray(bytes(ticket))))
        assert other.ended_well()
    overwrite(eng, sim, x, 21).wait(timeout=30)


def test_a_process_that_dies_releases_memory_of_a_device(sim, eng):
    other = Other(
        eng,
        """
        x = link.receive(60)
        assert values(x) == {1}
        print("has it", flush=True)
        sys.stdin.read()
        """,
    )
    x = eng.empty((SIZE,), "uint8", device="cuda", shared=True)
    overwrite(eng, sim, x, 1)
    other.link.send(x)
    assert other.process.stdout.readline() == "has it\n"
    later = overwrite(eng, sim, x, 2)
    time.sleep(0.05)
    assert not later.is_done(), "the write waits for the lease"
    other.process.kill()
    later.wait(timeout=30)
    x.wait(timeout=30)
    other.process.wait()


def test_memory_that_is_not_shared_is_refused_or_copied_on_its_device_or_to_the_host(sim, eng):
    other = Other(
        eng,
        """
        x = link.receive(60)
        assert values(x) == {7}
        assert set(np.from_dlpack(link.receive(60)).tolist()) == {7}
        assert values(x) == {7}
        silent()
        """,
    )
    x = eng.empty((SIZE,), "uint8", device="cuda")
    overwrite(eng, sim, x, 7)
    with pytest.raises(est.NotSharedError, match="a copy was refused"):
        other.link.send(x, copy=False)
    before = eng.stats().copied_for_processes
    other.link.send(x)
    overwrite(eng, sim, x, 7).wait(timeout=30)
    x.wait(timeout=30)
    assert eng.stats().copied_for_processes == before + SIZE, "the copy is made, and nothing else holds up the write"
    other.link.send(x, copy=True)
    assert other.ended_well()
    with pytest.raises(est.InvalidError, match="cannot be lent to other processes for writing"):
        eng.empty((SIZE,), "uint8", device="cuda", shared="write")
