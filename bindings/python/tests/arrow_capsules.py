"""Arrow's C structs and capsules made by hand, with ctypes."""

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_void_p

from capsules import KEPT, python

python.PyCapsule_GetPointer.restype = c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, c_char_p]

# A release callback's argument is looked at as bytes: the struct may have been moved.
RELEASE = ctypes.CFUNCTYPE(None, c_void_p)


class ArrowSchema(ctypes.Structure):
    _fields_ = [
        ("format", c_char_p),
        ("name", c_char_p),
        ("metadata", c_void_p),
        ("flags", c_int64),
        ("n_children", c_int64),
        ("children", c_void_p),
        ("dictionary", c_void_p),
        ("release", c_void_p),
        ("private_data", c_void_p),
    ]


class ArrowArray(ctypes.Structure):
    _fields_ = [
        ("length", c_int64),
        ("null_count", c_int64),
        ("offset", c_int64),
        ("n_buffers", c_int64),
        ("n_children", c_int64),
        ("buffers", POINTER(c_void_p)),
        ("children", c_void_p),
        ("dictionary", c_void_p),
        ("release", c_void_p),
        ("private_data", c_void_p),
    ]


class ArrowDeviceArray(ctypes.Structure):
    _fields_ = [
        ("array", ArrowArray),
        ("device_id", c_int64),
        ("device_type", c_int32),
        ("sync_event", c_void_p),
        ("reserved", c_int64 * 3),
    ]


class Made:
    """An array of four float32 that counts its releases. Nothing of it ever goes, as a release may come at any time."""

    def __init__(self, *, schema_release=True, device_type=1, device_id=-1, sync_event=None, **change):
        KEPT.append(self)
        self.released = self.schema_released = 0
        self.values = (ctypes.c_float * 4)(0, 1, 2, 3)
        self.buffers = (c_void_p * 2)(None, ctypes.addressof(self.values))
        self._callbacks = RELEASE(self._release), RELEASE(self._release_schema)
        release, release_schema = (ctypes.cast(callback, c_void_p).value for callback in self._callbacks)
        self.schema = ArrowSchema(b"f", b"", None, 0, 0, None, None, release_schema if schema_release else None, None)
        array = ArrowArray(4, 0, 0, 2, 0, self.buffers, None, None, release, None)
        for name, value in change.items():
            setattr(array, name, value)
        self.device_array = ArrowDeviceArray(array, device_id, device_type, sync_event)

    def pair(self):
        return (
            python.PyCapsule_New(ctypes.addressof(self.schema), b"arrow_schema", None),
            python.PyCapsule_New(ctypes.addressof(self.device_array), b"arrow_device_array", None),
        )

    def is_moved(self):
        return self.device_array.array.release is None

    def _release(self, array):
        ArrowArray.from_address(array).release = None
        self.released += 1

    def _release_schema(self, schema):
        ArrowSchema.from_address(schema).release = None
        self.schema_released += 1

    @staticmethod
    def take(pair):
        """Moves an array out of its capsule, as a consumer in C does."""
        source = ArrowDeviceArray.from_address(python.PyCapsule_GetPointer(pair[1], b"arrow_device_array"))
        taken = Taken()
        ctypes.memmove(ctypes.addressof(taken), ctypes.addressof(source), ctypes.sizeof(source))
        source.array.release = None
        return taken


class FailingStream:
    """A stream that gives the array of `made`, and then fails."""

    def __init__(self, made):
        KEPT.append(self)
        fill = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_void_p)
        given = [(made.schema, ArrowSchema), (made.device_array.array, ArrowArray)]

        def give(_stream, to):
            if not given:
                return 5
            source, kind = given.pop(0)
            ctypes.memmove(to, ctypes.addressof(source), ctypes.sizeof(kind))
            return 0

        why = ctypes.CFUNCTYPE(c_void_p, c_void_p)
        self.text = ctypes.create_string_buffer(b"no ink")
        self.functions = fill(give), fill(give), why(lambda _: ctypes.addressof(self.text)), RELEASE(lambda _: None)
        self.stream = (c_void_p * 5)(*(ctypes.cast(function, c_void_p) for function in self.functions), None)

    def __arrow_c_stream__(self, requested_schema=None):
        return python.PyCapsule_New(ctypes.addressof(self.stream), b"arrow_array_stream", None)


class Taken(ArrowDeviceArray):
    """An array that a consumer has moved to a place of its own."""

    @property
    def length(self):
        return self.array.length

    def release_now(self):
        RELEASE(self.array.release)(ctypes.addressof(self.array))
