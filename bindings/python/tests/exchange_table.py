"""The C exchange table of DLPack 1.3 from Python: calls of its functions, and tables made by hand."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, PYFUNCTYPE, c_char_p, c_int, c_int32, c_uint32, c_void_p, py_object

from capsules import KEPT, DLManagedTensorVersioned, DLTensor, python

NAME = b"dlpack_exchange_api"

SET_ERROR = CFUNCTYPE(None, c_void_p, c_char_p, c_char_p)
# Those that take Python objects are called with the Python lock, the allocator without it.
ALLOCATOR = CFUNCTYPE(c_int, POINTER(DLTensor), POINTER(c_void_p), c_void_p, SET_ERROR)
FROM_OBJECT = PYFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))
TO_OBJECT = PYFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))
DESCRIBE = PYFUNCTYPE(c_int, c_void_p, POINTER(DLTensor))
CURRENT_STREAM = PYFUNCTYPE(c_int, c_int32, c_int32, POINTER(c_void_p))


class Table(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("prev_api", c_void_p),
        ("allocator", c_void_p),
        ("from_object", c_void_p),
        ("to_object", c_void_p),
        ("describe", c_void_p),
        ("current_stream", c_void_p),
    ]


class Functions:
    """Functions that the table on a type offers, with NULL as ``None``."""

    def __init__(self, owner):
        python.PyCapsule_GetPointer.restype = c_void_p
        python.PyCapsule_GetPointer.argtypes = [py_object, c_char_p]
        self.address = python.PyCapsule_GetPointer(owner.__dlpack_c_exchange_api__, NAME)
        self.table = Table.from_address(self.address)

    def _function(self, kind, name):
        pointer = getattr(self.table, name)
        return kind(pointer) if pointer else None

    def allocate(self, prototype):
        """The managed tensor, or the ``(kind, message)`` of the error."""
        errors = []
        callback = SET_ERROR(lambda _context, kind, message: errors.append((kind.decode(), message.decode())))
        out = c_void_p()
        status = self._function(ALLOCATOR, "allocator")(ctypes.byref(prototype), ctypes.byref(out), None, callback)
        assert (status == 0) == (not errors), (status, errors)
        return errors[0] if errors else Managed(out.value)

    def take(self, obj):
        out = c_void_p()
        # A failure is an exception, which ctypes raises.
        assert self._function(FROM_OBJECT, "from_object")(id(obj), ctypes.byref(out)) == 0
        return Managed(out.value)

    def make(self, address):
        out = c_void_p()
        assert self._function(TO_OBJECT, "to_object")(address, ctypes.byref(out)) == 0
        # The reference is ours: one more is counted for the object, and that one is released here.
        obj = ctypes.cast(out, py_object).value
        ctypes.pythonapi.Py_DecRef(py_object(obj))
        return obj

    @property
    def can_describe(self):
        return bool(self.table.describe)

    def describe(self, obj):
        out = DLTensor()
        assert self._function(DESCRIBE, "describe")(id(obj), ctypes.byref(out)) == 0
        return out

    def current_stream(self, kind, number):
        out = c_void_p(1)
        assert self._function(CURRENT_STREAM, "current_stream")(kind, number, ctypes.byref(out)) == 0
        return out.value


class Managed:
    """A managed tensor that came out of a table and is ours to delete."""

    def __init__(self, address):
        self.address = address
        self.struct = DLManagedTensorVersioned.from_address(address)

    @property
    def tensor(self):
        return self.struct.dl_tensor

    @property
    def read_only(self):
        return bool(self.struct.flags & 1)

    def delete(self):
        CFUNCTYPE(None, c_void_p)(self.struct.deleter)(self.address)


def with_table(made, *, major=1, minor=3, stream=0, name=NAME, refuses=False):
    """An instance of a fresh type whose table gives the made tensor, or refuses, and whose stream is `stream`; and the calls
    that it gets."""
    calls = []

    def take(_obj, out):
        calls.append("take")
        out[0] = ctypes.addressof(made.managed)
        return 0

    def current_stream(_kind, _number, out):
        calls.append("stream")
        out[0] = stream
        return 0

    functions = (FROM_OBJECT(take), CURRENT_STREAM(current_stream))
    table = Table(
        major,
        minor,
        None,
        None,
        # A function of C that refuses any object like ours, with a `TypeError`, as Python code in a callback could not.
        ctypes.cast(ctypes.pythonapi.PyObject_DelItemString if refuses else functions[0], c_void_p),
        None,
        None,
        ctypes.cast(functions[1], c_void_p),
    )
    KEPT.append((made, functions, table, name))

    class Peer:
        __dlpack_c_exchange_api__ = python.PyCapsule_New(ctypes.addressof(table), name, None)

        def __dlpack__(self, **_arguments):
            calls.append("protocol")
            return made.capsule

        def __dlpack_device__(self):
            return made.device

    return Peer(), calls
