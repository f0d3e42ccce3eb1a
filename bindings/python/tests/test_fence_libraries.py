"""`dlpack_fence.libraries` on the real PyTorch, JAX and dpnp, and `dlpack_fence_sycl` on the real SYCL runtime. Nothing of Estafette takes part."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest

from conftest import until

FENCES = pathlib.Path(__file__).parents[2] / "fence"
sys.path.insert(0, str(FENCES / "python"))

import dlpack_fence  # noqa: E402
from dlpack_fence import DEVICE, DONE, FAILED, PENDING, Device, Fence, Flag, libraries, take  # noqa: E402


class Late:
    """An array with fences whose content comes later."""

    def __init__(self, values):
        self.values, self.ready, self.back = values, Flag(), 0

    def __dlpack_fence__(self, **_):
        return dlpack_fence.give(self.values, self.ready, self._over)

    def _over(self):
        self.back += 1


class TestPyTorch:
    def test_a_tensor_of_the_host_is_done_and_outlives_its_handle(self, torch):
        x = torch.arange(4.0)
        taken, work = take(libraries.pytorch(x)), Flag()
        assert taken.ready.state() == DONE and taken.numpy().ctypes.data == x.data_ptr()
        values = taken.numpy()
        assert taken.add_done(work)
        taken.close()
        del x
        assert values.tolist() == [0, 1, 2, 3]
        work.settle()
        until(lambda: work._holders == 0)

    def test_it_takes_what_is_ready_late_and_returns_it(self, np, torch):
        x = Late(np.zeros(3))
        threading.Timer(0.02, lambda: (x.values.fill(7), x.ready.settle())).start()
        y = torch.from_dlpack(take(x))
        assert y.tolist() == [7, 7, 7] and x.back == 0
        del y
        until(lambda: x.back == 1)

    @pytest.mark.parametrize("max_version", [None, (1, 0)])
    def test_a_capsule_that_is_dropped_is_released(self, np, max_version):
        x = Late(np.zeros(3))
        x.ready.settle()
        take(x).__dlpack__(max_version=max_version)
        until(lambda: x.back == 1)

    def test_it_does_not_take_what_has_failed(self, np, torch):
        x = Late(np.zeros(3))
        x.ready.settle(FAILED, "no ink")
        with pytest.raises(RuntimeError, match="no ink"):
            torch.from_dlpack(take(x))

    def test_copies_and_other_devices_are_refused(self, torch):
        for arguments in ({"copy": True}, {"dl_device": (2, 0)}):
            with pytest.raises(BufferError, match="memory itself"):
                libraries.pytorch(torch.zeros(1)).__dlpack_fence__(**arguments)


class Gated:
    """A JAX array, as far as the adapter asks, that is ready when the gate opens."""

    def __init__(self, array, gate, error=None):
        self._array, self._gate, self._error = array, gate, error

    def is_ready(self):
        return self._gate.is_set()

    def block_until_ready(self):
        self._gate.wait()
        if self._error:
            raise self._error
        return self._array.block_until_ready()

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(**arguments)


class TestJax:
    def test_an_array_is_given_and_taken(self, jax, jnp, np):
        taken = take(libraries.jax(jnp.arange(5) * 2))
        taken.wait()
        assert taken.numpy().tolist() == [0, 2, 4, 6, 8]
        taken.close()
        x = Late(np.arange(3.0, dtype="float32"))
        x.ready.settle()
        y = jax.dlpack.from_dlpack(take(x))
        assert y.tolist() == [0, 1, 2]  # a view, or a copy where JAX wants another alignment
        del y
        until(lambda: x.back == 1)
        with pytest.raises(BufferError, match="read-only"):
            take(libraries.jax(jnp.arange(5))).__dlpack__()

    def test_what_is_not_ready_is_described_late_and_nothing_waits(self, jnp):
        gate = threading.Event()
        taken = take(libraries.jax(Gated(jnp.arange(3), gate)))
        assert (taken.raw.fence_flags, taken.ready.state()) == (dlpack_fence.DESCRIBED_LATE, PENDING)
        gate.set()
        taken.wait()
        assert taken.numpy().tolist() == [0, 1, 2]
        taken.close()

    def test_a_failure_has_its_text_and_a_deleter_may_come_first(self, jnp):
        gate = threading.Event()
        failing = Gated(jnp.arange(3), gate, ValueError("no ink"))
        taken, early = take(libraries.jax(failing)), take(libraries.jax(failing))
        early.close()
        gate.set()
        with pytest.raises(RuntimeError, match="ValueError: no ink"):
            taken.wait()
        taken.close()
        until(lambda: taken._address not in dlpack_fence._given and early._address not in dlpack_fence._given)


@pytest.fixture
def dpnp():
    module = pytest.importorskip("dpnp", reason="dpnp is not in this environment")
    if not pytest.importorskip("dpctl").get_devices():
        pytest.skip("the SYCL runtime knows no device")
    return module


def settles(fence):
    until(lambda: fence.state() != PENDING)
    return fence.state()


class TestSycl:
    def test_an_array_of_dpnp_is_given_and_taken(self, dpnp):
        import dpctl

        x = dpnp.ones((1 << 20,), dtype="float32")
        for _ in range(10):
            x = x * 2
        taken = take(libraries.sycl(x))
        other = dpctl.SyclQueue(x.sycl_context, x.sycl_device)
        ready = taken.ready
        assert ready.order_on(ready.context, ready.device, other.addressof_ref()) == DONE
        assert ready.order_on(ready.context, Device(2, 0), other.addressof_ref()) == PENDING
        other.wait()
        assert ready.state() == DONE, "the other queue has waited for the array"
        y = dpnp.from_dlpack(taken)
        assert y.__sycl_usm_array_interface__["data"][0] == x.__sycl_usm_array_interface__["data"][0]
        assert dpnp.asnumpy(y)[[0, -1]].tolist() == [1024, 1024]

    def test_the_headers_helper_on_the_real_runtime(self, dpnp, tmp_path):
        import dpctl

        compiler = os.environ.get("CC") or shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        (tmp_path / "event.c").write_text(
            '#include "dlpack_fence.h"\n'
            "int32_t record(void *library, DLDevice device, void *event, DLFence *fence)"
            "{ return dlpack_fence_sycl(library, device, event, fence); }\n"
        )
        command = [compiler, "-std=c99", "-D_GNU_SOURCE", "-shared", "-fPIC", "-I", FENCES / "include", "-o", tmp_path / "event.so"]
        subprocess.run([*command, tmp_path / "event.c", "-ldl"], check=True)
        record = ctypes.CDLL(tmp_path / "event.so").record
        record.argtypes = [ctypes.c_void_p, Device, ctypes.c_void_p, ctypes.POINTER(Fence)]
        library = ctypes.CDLL(pathlib.Path(dpctl.__file__).with_name("libDPCTLSyclInterface.so"))
        x = dpnp.ones((1 << 20,), dtype="float32")
        for _ in range(10):
            x = x * 2
        event, device, fence = x.sycl_queue.submit_barrier(), Device(14, 0), Fence()
        assert record(library._handle, device, event.addressof_ref(), ctypes.byref(fence)) == DONE
        other = dpctl.SyclQueue(x.sycl_context, x.sycl_device)
        assert fence.order_on(fence.context, device, other.addressof_ref()) == DONE
        other.wait()
        assert settles(fence) == DONE
        assert fence.order_on(fence.context, Device(2, 0), None) == PENDING
        assert fence.native(fence.context, device) and not fence.native(fence.context, Device(2, 0))
        fence.retained().drop()
        fence.drop()
        assert record(None, device, event.addressof_ref(), ctypes.byref(fence)) == PENDING


def test_an_event_that_cannot_be_asked_is_a_fault():
    event = libraries.Event((2, 0), lambda: 1 // 0, lambda stream: 1 // 0)
    assert event.raw.state() == DEVICE
    assert event.raw.order_on(event.raw.context, Device(2, 0), None) == PENDING
