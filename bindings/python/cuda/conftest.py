"""The simulated CUDA driver, in the place of the real one, before anything asks for it. Nothing here has seen a GPU.

`cargo xtask test --suite cuda-python` builds it, names it in ESTAFETTE_CUDA_SIM, and puts it where the loader looks for
``libcuda.so.1``: libraries that call nothing but the driver run on it for real.
"""

import contextlib
import ctypes
import os

import pytest

_LIBRARY = os.environ.get("ESTAFETTE_CUDA_SIM")
if _LIBRARY is None:
    raise pytest.UsageError("ESTAFETTE_CUDA_SIM is not set; run `cargo xtask test --suite cuda-python`")
_SIM = ctypes.CDLL(_LIBRARY, mode=ctypes.RTLD_GLOBAL)
try:
    _SIM_BY_NAME = ctypes.CDLL("libcuda.so.1").cusim_calls
except (OSError, AttributeError):
    raise pytest.UsageError("libcuda.so.1 is not the simulator; run `cargo xtask test --suite cuda-python`") from None
# A version that NVIDIA's own Python libraries are made for.
_SIM.cusim_driver_version(13000)
_SIM.cusim_interpreter(ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p))


class Simulator:
    """The driver and its controls. Streams and memory of "other libraries" are made here, with the driver's own functions."""

    def __init__(self):
        _SIM.cusim_block.argtypes = [ctypes.c_uint64, ctypes.c_int]
        _SIM.cusim_violations.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        _SIM.cusim_violations.restype = ctypes.c_size_t
        _SIM.cusim_calls.argtypes = [ctypes.c_char_p]
        _SIM.cusim_calls.restype = ctypes.c_uint64
        _SIM.cusim_pending.argtypes = [ctypes.c_uint64]
        _SIM.cusim_pending.restype = ctypes.c_uint64
        _SIM.cusim_used.argtypes = [ctypes.c_uint32]
        _SIM.cusim_used.restype = ctypes.c_uint64
        self.blocked = []
        self.context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)

    def __call__(self, name, *arguments):
        """A function of the driver, in the primary context of the first device."""
        if name not in ("cuInit", "cuDevicePrimaryCtxRetain"):
            _SIM.cuCtxSetCurrent(self.context)
        code = getattr(_SIM, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    @contextlib.contextmanager
    def on_device(self, number):
        """The primary context of another device is the one of the functions meanwhile."""
        before, self.context = self.context, ctypes.c_void_p()
        try:
            self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), number)
            yield
        finally:
            self.context = before

    def current_device(self):
        """The device of the thread's current context."""
        device = ctypes.c_int()
        assert _SIM.cuCtxGetDevice(ctypes.byref(device)) == 0
        return device.value

    def stream(self):
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), 1)
        return stream.value

    def memory(self, size):
        pointer = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def pinned_memory(self, size):
        pointer = ctypes.c_void_p()
        self("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(size), 0)
        return pointer.value

    def fill(self, stream, pointer, value, size):
        self("cuMemsetD8Async", ctypes.c_uint64(pointer), ctypes.c_ubyte(value), ctypes.c_size_t(size), _handle(stream))

    def copy(self, stream, to, source, size):
        self(
            "cuMemcpyDtoDAsync_v2",
            ctypes.c_uint64(to),
            ctypes.c_uint64(source),
            ctypes.c_size_t(size),
            _handle(stream),
        )

    def read(self, stream, pointer, size):
        """Content when everything on the stream is done."""
        buffer = (ctypes.c_ubyte * size)()
        self("cuMemcpyDtoHAsync_v2", buffer, ctypes.c_uint64(pointer), ctypes.c_size_t(size), _handle(stream))
        self("cuStreamSynchronize", _handle(stream))
        return bytes(buffer)

    def order(self, first, then):
        """Makes stream `then` wait for what is on stream `first`."""
        event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(event), 2)
        self("cuEventRecord", event, _handle(first))
        self("cuStreamWaitEvent", _handle(then), event, 0)

    def block(self, stream):
        assert _SIM.cusim_block(stream, 1) == 1
        self.blocked.append(stream)

    def unblock(self, stream):
        assert _SIM.cusim_block(stream, 0) == 1

    def unblock_all(self):
        """A failed test's work must not hold up the next one."""
        while self.blocked:
            _SIM.cusim_block(self.blocked.pop(), 0)

    def is_allocated(self, pointer):
        """True if the driver knows of memory there."""
        _SIM.cuCtxSetCurrent(self.context)
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        return _SIM.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer)) == 0

    def fail(self, name, code):
        """The next call of a function of the driver does nothing and fails."""
        _SIM.cusim_fail_call(name.encode(), code)

    def calls(self, name):
        return _SIM.cusim_calls(name.encode())

    def pending(self, stream):
        """Number of commands of a stream that are not over."""
        return _SIM.cusim_pending(stream)

    def used(self, device=0):
        """Bytes of a device that are in use."""
        return _SIM.cusim_used(device)

    def violations(self):
        size = _SIM.cusim_violations(None, 0)
        text = ctypes.create_string_buffer(size + 1)
        _SIM.cusim_violations(text, size)
        return text.value.decode().splitlines()

    def forget(self):
        _SIM.cusim_forget_violations()
        _SIM.cusim_forget_calls()


    def expect_race(self):
        """For the half of a test in which an order is left out: the detector must have seen it."""
        found = self.violations()
        assert any(line.startswith("race") for line in found), found
        _SIM.cusim_forget_violations()


def _handle(stream):
    return ctypes.c_void_p(stream)


@pytest.fixture(scope="session")
def driver():
    return Simulator()


@pytest.fixture
def sim(driver):
    driver.forget()
    yield driver
    driver.unblock_all()
    found = driver.violations()
    assert not found, found
    assert driver.calls("cuCtxSynchronize") == 0


@pytest.fixture
def eng(driver):
    import estafette as est
    from doubles import settle

    with est.Engine(workers=2) as engine:
        yield engine
        # A deleter that frees pinned memory waits for every stream of the device, and for one that the next test blocks.
        driver.unblock_all()
        settle(engine)
