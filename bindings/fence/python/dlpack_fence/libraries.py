"""Fences for arrays of libraries that do not know them, by what those libraries offer publicly.

As producers: ``pytorch(tensor)``, ``cupy(array)``, ``jax(array)`` and ``sycl(array)`` (dpctl, dpnp) have ``__dlpack_fence__`` beside
``__dlpack__``. As consumers: the library's own ``from_dlpack(dlpack_fence.take(x))``.

None of them can hold up a later write of the array's own library: write again after the consumers are done.
"""

import ctypes

from . import DEVICE, DONE, PENDING, Device, Flag, _flags, _pointer, _types, give, give_late


class Event(Flag):
    """A fence that a device settles: `is_done()` asks, `wait_on(stream)` makes a stream of `device` wait, and is False where it cannot."""

    def __init__(self, device, is_done, wait_on):
        super().__init__()
        self._is_done, self._wait_on = is_done, wait_on
        self.raw.device = Device(*device)
        for name in ("subscribe", "unsubscribe", "error"):
            setattr(self.raw, name, _types[name]())
        self.raw.order_on = _order

    def state(self):
        if self._status == PENDING:
            try:
                done = self._is_done()
            except Exception:
                self._status = DEVICE
            else:
                self._status = DONE if done else PENDING
        return self._status


def _order_on(context, device, stream):
    event = _flags[context]
    try:
        same = device.device_type == event.raw.device.device_type
        return DONE if same and event._wait_on(stream) else PENDING
    except Exception:
        return PENDING


_order = _types["order_on"](_order_on)


class _Handle:
    """A CUevent."""

    def __init__(self, driver):
        self._driver, self.value = driver, _pointer()
        self.made = driver.cuEventCreate(ctypes.byref(self.value), 2) == 0

    def __del__(self):
        if self.made:
            self._driver.cuEventDestroy_v2(self.value)


def cuda_event(device, stream):
    """An `Event` of what is on the CUDA stream with that handle, in the current context. None if there is none: the stream captures a graph."""
    driver = ctypes.CDLL("libcuda.so.1")

    def captures(stream):
        busy = ctypes.c_int()
        return driver.cuStreamIsCapturing(_pointer(stream), ctypes.byref(busy)) != 0 or busy.value != 0

    if captures(stream) or not (handle := _Handle(driver)).made or driver.cuEventRecord(handle.value, _pointer(stream)):
        return None

    def is_done():
        mode = ctypes.c_int(2)  # relaxed: a capture, of any thread, would forbid the query and be spoiled by it
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        code = driver.cuEventQuery(handle.value)
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        if code not in (0, 600):
            raise RuntimeError(f"cuEventQuery: {code}")
        return code == 0

    def wait_on(stream):
        return not captures(stream) and driver.cuStreamWaitEvent(_pointer(stream), handle.value, 0) == 0

    return Event(device, is_done, wait_on)


class Lent:
    """`array` with fences: `give_fenced()` answers ``__dlpack_fence__``."""

    def __init__(self, array, give_fenced):
        self._array, self._give = array, give_fenced

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(**arguments)

    def __dlpack_fence__(self, *, max_version=None, dl_device=None, copy=None):
        device = tuple(map(int, self.__dlpack_device__()))
        if copy or (dl_device is not None and tuple(map(int, dl_device)) != device):
            raise BufferError("only the memory itself has fences")
        return self._give()


def _done():
    flag = Flag()
    flag.settle()
    return flag


def on_cuda_stream(array, stream):
    """An array of any CUDA library, whose work is on the stream that `stream()` gives at the export."""
    def give_fenced():
        ready = cuda_event(tuple(map(int, array.__dlpack_device__())), stream())
        if ready is None:
            raise BufferError("the stream captures a graph, or there is no CUDA driver")
        return give(array, ready, stream=-1)

    return Lent(array, give_fenced)


def pytorch(tensor):
    """Additions inside of PyTorch: `add_done` in the deleter of its exports, and `order_on` in `from_dlpack`."""
    if tensor.device.type == "cpu":
        return Lent(tensor, lambda: give(tensor, _done()))
    import torch

    return on_cuda_stream(tensor, lambda: torch.cuda.current_stream(tensor.device).cuda_stream)


def cupy(array):
    """Additions inside of CuPy: as PyTorch; its pool reuses memory in the order of a stream."""
    import cupy

    return on_cuda_stream(array, lambda: cupy.cuda.get_current_stream().ptr)


def jax(array):
    """JAX hides its streams, so a thread waits and the description comes late. What JAX needs inside: `ready` of PJRT's `ReadyEvent`."""
    export = lambda: array.block_until_ready().__dlpack__(max_version=(1, 0))
    return Lent(array, lambda: give(array, _done()) if array.is_ready() else give_late(export))


def sycl(array):
    """An array of dpnp or dpctl. What they need inside: `add_done`."""
    import dpctl

    def give_fenced():
        event = array.sycl_queue.submit_barrier()

        def is_done():
            return event.execution_status == dpctl.event_status_type.complete

        def wait_on(queue):
            capsule = ctypes.pythonapi.PyCapsule_New(queue, b"SyclQueueRef", None)
            dpctl.SyclQueue(capsule).submit_barrier([event])
            return True

        return give(array, Event(tuple(map(int, array.__dlpack_device__())), is_done, wait_on))

    return Lent(array, give_fenced)
