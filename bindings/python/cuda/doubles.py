"""Doubles of CUDA libraries, which behave as their sources say (docs/peers.md); their real builds need a GPU."""

import contextlib
import ctypes
import gc
import threading
import time

CUDA = 2


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.001)


def settle(eng):
    """Waits until nothing is in flight and every deleter has run."""
    gc.collect()
    wait_until(lambda: eng.stats().releasing == 0 and eng.stats().in_flight == 0)


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("manager_ctx", ctypes.c_void_p),
    ("deleter", DELETER),
    ("flags", ctypes.c_uint64),
    ("tensor", DLTensor),
]

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
NAME, USED = b"dltensor_versioned", b"used_dltensor_versioned"

_alive = {}


class Stream:
    """A stream object with ``__cuda_stream__``, as torch, CuPy and cuda.core have them."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


class Library:
    """A library with a current stream per thread, as torch and CuPy have it."""

    def __init__(self, sim, *, takes_stream=True, kind=CUDA):
        self.sim = sim
        self.kind = kind
        self.takes_stream = takes_stream
        self.default = sim.stream()
        self.seen = []
        self._local = threading.local()

    @property
    def current(self):
        return getattr(self._local, "stream", self.default)

    @contextlib.contextmanager
    def stream(self, handle):
        before, self._local.stream = self.current, handle
        try:
            yield
        finally:
            self._local.stream = before

    def full(self, value, size=64):
        """An array that a kernel on the current stream is still filling."""
        array = Array(self, self.sim.memory(size), size)
        self.sim.fill(self.current, array.pointer, value, size)
        return array

    def from_dlpack(self, exporter):
        """The library's own import: its current stream is made to wait by the producer."""
        capsule = exporter.__dlpack__(stream=self.current, max_version=(1, 0))
        pointer = _api.PyCapsule_GetPointer(capsule, NAME)
        _api.PyCapsule_SetName(capsule, USED)
        managed = ctypes.cast(pointer, ctypes.POINTER(Managed))
        tensor = managed.contents.tensor
        array = Array(self, tensor.data, tensor.shape[0])
        array.managed = managed
        return array

    def copied(self, source):
        """A kernel on the current stream reads `source`."""
        target = Array(self, self.sim.memory(source.size), source.size)
        self.sim.copy(self.current, target.pointer, source.pointer, source.size)
        return target


class Array:
    def __init__(self, library, pointer, size):
        self.library = library
        self.pointer = pointer
        self.size = size
        self.managed = None

    def __del__(self):
        # As torch and CuPy do it: at once, whatever the stream still does.
        if self.managed is not None:
            self.managed.contents.deleter(self.managed)

    def __dlpack_device__(self):
        return (self.library.kind, 0)

    def __dlpack__(self, **arguments):
        library = self.library
        if not library.takes_stream and arguments:
            raise TypeError("unexpected keyword argument")
        library.seen.append(arguments)
        stream = arguments.get("stream")
        if stream is not None and stream != -1:
            library.sim.order(library.current, stream)
        return self.capsule()

    def deleted(self):
        """A deleter of a capsule runs."""

    def capsule(self, device=0):
        shape = (ctypes.c_int64 * 1)(self.size)
        strides = (ctypes.c_int64 * 1)(1)

        def delete(managed):
            self.deleted()
            _alive.pop(ctypes.addressof(managed.contents), None)

        deleter = DELETER(delete)
        tensor = DLTensor(self.pointer, self.library.kind, device, 1, 1, 8, 1, shape, strides, 0)
        managed = Managed(1, 0, None, deleter, 0, tensor)
        _alive[ctypes.addressof(managed)] = (managed, shape, strides, deleter, self)
        return _api.PyCapsule_New(ctypes.addressof(managed), NAME, None)

    def bytes(self):
        return self.library.sim.read(self.library.current, self.pointer, self.size)


class Described:
    """An array that speaks the CUDA array interface alone, as Numba's do."""

    def __init__(self, array, **entries):
        self.array = array
        self.entries = entries

    @property
    def __cuda_array_interface__(self):
        return {
            "version": 3,
            "shape": (self.array.size,),
            "typestr": "|u1",
            "strides": None,
            "data": (self.array.pointer, False),
            "stream": self.array.library.current,
        } | self.entries
