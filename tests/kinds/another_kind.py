"""A library of the kind of device that only tests know (`another/`): streams, and arrays of bytes in memory that is the device's.

The module is also what the package `estafette` knows of the kind (`KIND`).
"""

import contextlib
import ctypes
import threading

from estafette import _estafette
from estafette._kinds import Kind
from estafette._streams import Row
from estafette._streams import Stream as OperationStream

_driver = ctypes.CDLL(_estafette.__file__)
_driver.another_stream.restype = ctypes.c_size_t
_driver.another_block.restype = ctypes.c_void_p
_driver.another_load()


def _number(value):
    return ctypes.c_size_t(value)


class Stream:
    """A stream, of the library or of another one whose handle is given."""

    def __init__(self, handle=None):
        self._is_own = handle is None
        self.another_stream = _driver.another_stream() if handle is None else handle

    def __del__(self, free=_driver.another_stream_free, number=ctypes.c_size_t):
        if self._is_own:
            free(number(self.another_stream))

    def copy(self, to, source, size):
        _driver.another_copy(*map(_number, (self.another_stream, to, source, size)))

    def synchronize(self):
        _driver.another_synchronize(_number(self.another_stream))

    @contextlib.contextmanager
    def blocked(self):
        """What is enqueued inside, or later, waits until the block is over."""
        block = _driver.another_block(_number(self.another_stream))
        try:
            yield
        finally:
            _driver.another_unblock(ctypes.c_void_p(block))


class Array:
    """Bytes in memory of the device. What is written comes by way of the current stream."""

    def __init__(self, size, address=None, owner=None):
        self._owner = (ctypes.c_uint8 * size)() if address is None else owner
        self.size, self.address = size, ctypes.addressof(self._owner) if address is None else address
        self.stream = current_stream()

    @property
    def __another_array_interface__(self):
        return {
            "shape": (self.size,),
            "typestr": "|u1",
            "data": self.address,
            "stream": self.stream.another_stream,
        }

    def fill(self, value):
        source = (ctypes.c_uint8 * self.size)(*[value] * self.size)
        _sources.append(source)
        self.stream.copy(self.address, ctypes.addressof(source), self.size)
        return self

    def to_bytes(self):
        host = (ctypes.c_uint8 * self.size)()
        self.stream.copy(ctypes.addressof(host), self.address, self.size)
        self.stream.synchronize()
        return bytes(host)


def from_dlpack(x):
    """An array that shares the memory of `x`, whose work comes before that of the current stream."""
    capsule = x.__dlpack__(stream=current_stream())
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = get(capsule, b"dltensor")
    data, offset = (ctypes.c_size_t.from_address(tensor + at).value for at in (0, 40))
    (size,) = x.shape
    return Array(size, data + offset, capsule)


_sources = []
"""Memory that streams may still read."""

_default = Stream()

class _Current(threading.local):
    """The current streams of a thread, the innermost last."""

    def __init__(self):
        self.streams = [_default]


_current = _Current()


def current_stream():
    return _current.streams[-1]


@contextlib.contextmanager
def use(stream):
    _current.streams.append(stream)
    try:
        yield
    finally:
        _current.streams.pop()


class _OperationStream(OperationStream):
    _family = "another"

    @property
    def another_stream(self):
        return self.handle


class KIND(Kind):
    """The kind of device that only tests know."""

    arrays = ("__another_array_interface__",)
    stream = _OperationStream
    streams = (Row("another_kind", lambda library, handle, _: library.use(library.Stream(handle)), "use(Stream(handle))", "this file"),)
    libraries = ("another_kind",)
    modules = ("another_kind",)
    observer = "another_observer"
