"""DLPack capsules made by hand, with ctypes, to say things that no library says."""

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
python.PyCapsule_GetName.restype = c_char_p
python.PyCapsule_GetName.argtypes = [ctypes.py_object]


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", DLDevice),
        ("ndim", c_int32),
        ("dtype", DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


# A deleter may be called at any time from any thread, so nothing made here ever goes.
KEPT = []

DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("dl_tensor", DLTensor),
    ]


class Made:
    """A managed tensor over 16 float32 that counts the calls of its deleter."""

    def __init__(
        self,
        *,
        shape=(4, 4),
        strides="row-major",
        ndim=None,
        dtype=(2, 32, 1),
        device=(1, 0),
        byte_offset=0,
        version=(1, 0),
        flags=0,
        legacy=False,
        name=None,
        data="memory",
        deleter=True,
    ):
        KEPT.append(self)
        self.deleted = 0
        self.device = device
        self.memory = (ctypes.c_float * 16)(*range(16))
        address = ctypes.addressof(self.memory) if data == "memory" else data
        self._shape = None if shape is None else (c_int64 * max(len(shape), 1))(*shape)
        if strides == "row-major":
            strides = []
            step = 1
            for size in reversed(shape or ()):
                strides.insert(0, step)
                step *= max(size, 1)
        self._strides = None if strides is None else (c_int64 * max(len(strides), 1))(*strides)
        tensor = DLTensor(
            address,
            DLDevice(*device),
            len(shape or ()) if ndim is None else ndim,
            DLDataType(*dtype),
            ctypes.cast(self._shape, POINTER(c_int64)) if self._shape is not None else None,
            ctypes.cast(self._strides, POINTER(c_int64)) if self._strides is not None else None,
            byte_offset,
        )
        self._callback = DELETER(self._delete)
        call = ctypes.cast(self._callback, c_void_p) if deleter else None
        if legacy:
            self.managed = DLManagedTensor(tensor, None, call)
        else:
            self.managed = DLManagedTensorVersioned(*version, None, call, flags, tensor)
        self._name = (name or ("dltensor" if legacy else "dltensor_versioned")).encode()
        self.capsule = python.PyCapsule_New(ctypes.addressof(self.managed), self._name, None)

    def _delete(self, _managed):
        self.deleted += 1

    def name_now(self):
        return python.PyCapsule_GetName(self.capsule).decode()


class Producer:
    """An object with DLPack's protocol that hands out one made tensor and remembers how it was asked."""

    def __init__(self, made, device=(1, 0)):
        self.made = made
        self.device = device
        self.asked = []

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        return self.made.capsule

    def __dlpack_device__(self):
        return self.device
