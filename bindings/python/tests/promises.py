"""Fences of a scheduler that is not ours, made by hand as `estafette.h` has them."""

import ctypes
import threading

from capsules import python as c_api

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)
QUERY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
WAIT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64)
ORDER_ON = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
SUBSCRIBE = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, CALLBACK, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)
)
UNSUBSCRIBE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64)
ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
COUNT = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

OK, PENDING, TIMEOUT, FAILED = 0, 1, 2, -2


class RawFence(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("flags", ctypes.c_uint64),
        ("query", QUERY),
        ("wait", WAIT),
        ("order_on", ORDER_ON),
        ("subscribe", SUBSCRIBE),
        ("unsubscribe", UNSUBSCRIBE),
        ("error", ERROR),
        ("native", ctypes.c_void_p),
        ("retain", COUNT),
        ("release", COUNT),
    ]


# `PyCapsule_New` with a type of ours for the pointer: the struct belongs to Python, so there is nothing to destroy.
c_api.PyCapsule_New.restype = ctypes.py_object
c_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
c_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
c_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


# Whoever holds a count may call until it gives that back, on whatever thread: no fence of a test goes before the process.
_KEPT = []


class Fence:
    """A fence that the test settles. It pushes to subscribers, or has only `query`, which the engine polls."""

    _name = b"estafette_fence"

    def __init__(self, pushes=True):
        self.status = PENDING
        self.message = None
        self.asked = 0
        self.holders = 0
        self._subscribers = []
        _KEPT.append(self)
        self._lock = threading.Lock()
        self.raw = RawFence(version=1, size=ctypes.sizeof(RawFence), device_type=1)
        self.raw.query = QUERY(self._query)
        self.raw.error = ERROR(self._error)
        self.raw.retain = COUNT(lambda context: self._count(1))
        self.raw.release = COUNT(lambda context: self._count(-1))
        if pushes:
            self.raw.subscribe = SUBSCRIBE(self._subscribe)
            self.raw.unsubscribe = UNSUBSCRIBE(lambda context, token: PENDING)

    def _count(self, change):
        with self._lock:
            self.holders += change

    def _query(self, context):
        self.asked += 1
        return self.status

    def _error(self, context):
        return None if self.message is None else ctypes.addressof(self.message)

    def _subscribe(self, context, callback, argument, token):
        with self._lock:
            if self.status != PENDING:
                return self.status
            # A copy that outlives this call; calling what was passed in would do after it has returned, too.
            self._subscribers.append((ctypes.cast(callback, ctypes.c_void_p).value, argument))
            token[0] = len(self._subscribers)
            return OK

    def settle(self, status=OK, message=None):
        with self._lock:
            self.status = status
            self.message = None if message is None else ctypes.create_string_buffer(message)
            told, self._subscribers = self._subscribers, []
        for callback, argument in told:
            CALLBACK(callback)(argument, status, message)

    def capsule(self):
        return c_api.PyCapsule_New(ctypes.addressof(self.raw), self._name, None)


class Array:
    """An array of a framework that has its own promises; `at_once` says whether it gives memory before they are kept."""

    def __init__(self, values, fence, at_once):
        self._values, self._fence, self._at_once = values, fence, at_once
        self.exports = []

    @property
    def __estafette_promise__(self):
        return self._fence.capsule()

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if stream == -1 and not self._at_once:
            raise ValueError("the host has no streams")
        assert stream == -1 or self._fence.status == OK, "a wait in here would have blocked the consumer"
        self.exports.append(stream)
        return self._values.__dlpack__(max_version=max_version)


def fence_in(capsule):
    """The struct in a capsule of ours."""
    pointer = c_api.PyCapsule_GetPointer(capsule, Fence._name)
    return RawFence.from_address(pointer)


def error_of(fence):
    """What a struct says of its failure."""
    return ctypes.string_at(fence.error(fence.context))
