"""The parts of MXNet that `Engine.from_mxnet` needs; MXNet is not imported here. Called by the extension, never by users."""

from __future__ import annotations

import ctypes
import sys

# In the order of the extension.
_FUNCTIONS = (
    "MXEnginePushAsyncND",
    "MXShallowCopyNDArray",
    "MXNDArrayFree",
    "MXNDArrayToDLPack",
    "MXGetLastError",
)


def parts(array):
    """The handle of an array of MXNet, and the addresses of functions."""
    mx = sys.modules.get("mxnet")
    if mx is None or not isinstance(array, mx.nd.NDArray):
        kind = type(array)
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is no array of MXNet; `from_dlpack` takes other libraries' arrays")
    if not mx.__version__.startswith("1.9."):
        raise RuntimeError(f"MXNet {mx.__version__} has another C interface than 1.9, which is known here")
    if array.stype != "default":
        raise ValueError(f"the array is stored as {array.stype}; only dense ones (`tostype('default')`) are tensors")
    if array.context.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
        raise BufferError(f"the array is on {array.context}, which is not available in this version")
    functions = [getattr(mx.base._LIB, name) for name in _FUNCTIONS]
    return array.handle.value, [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
