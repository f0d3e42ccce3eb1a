"""The functions of each library that observe mode wraps: one row each, with the source that says what the function does.

A row whose module is never imported costs nothing. A row whose name a version of a library does not have is left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Row(NamedTuple):
    """A function that hands data over, or waits."""

    library: str
    """Module of the function."""
    module: str
    """The module whose import makes it."""
    name: str
    """Its name in the module, with dots."""
    role: str
    """Its use of its first argument or its receiver: a function of `roles`."""
    source: str
    """The source of this."""
    act: str = ""
    """Its effect on the order of streams: a function of `order`."""


PATHS = ("torch.cuda", "torch.accelerator", "cupy.cuda.runtime", "numba.cuda")
"""Modules by which programs call their functions."""


def shown(row: Row) -> str:
    """The name of a function in reports."""
    library = "" if row.library == "python" else f"{row.module if row.module in PATHS else row.library}."
    return f"{library}{row.name.replace('ArrayImpl', 'Array').replace('_BaseStream', 'Stream')}"


GOALS = {"to_numpy": "numpy", "to_host": "", "move": ""}
"""The libraries that functions hand over to, by roles; others to their own library. The empty one is the host."""

DEVICE_LIBRARIES = ("torch", "jax", "cupy", "numba", "cuda.core", "estafette")
"""Those that hand device memory over without a copy."""

HAND_OVERS = ("take", "view", "give")
"""Roles in which memory may stay on its device."""

SHARES, COPIES, EITHER = 0, 1, 2
"""Kinds of results: in the memory of the argument, in memory of its own, or either."""


class Plan(NamedTuple):
    """The facts of each call of a function that hands something over."""

    original: Any
    row: Row
    act: Any
    name: str
    to: str
    at: int
    """The place of the argument that is handed over."""
    stays: bool
    """True if it may be handed over from its library to the same."""
    keeps_stream: bool
    """True if it is `__dlpack__`, whose stream was noted before."""
    between_devices: bool
    """True if the memory may stay on its device."""
    copies: int

    @staticmethod
    def of(function: Any, row: Row, act: Any, name: str) -> Plan:
        copies = EITHER
        if row.role == "to_host":
            copies = COPIES
        elif row.role in ("view", "give") or (row.library != "jax" and row.name in ("from_dlpack", "from_numpy")):
            copies = SHARES
        return Plan(
            function,
            row,
            act,
            name,
            GOALS.get(row.role, row.library),
            1 if row.role == "view" else 0,
            row.role == "view",
            row.name.endswith("__dlpack__"),
            row.role in HAND_OVERS and row.library in DEVICE_LIBRARIES,
            copies,
        )


_NUMPY = "numpy.org/doc/2.4/reference/routines.array-creation.html; for JAX's arrays on the host by the buffer protocol, tested"
_JAX = "docs.jax.dev/en/latest/async_dispatch.html: what shows a value waits for it"
_JAX_PUT = "docs.jax.dev/en/latest/_autosummary/jax.device_put.html"
_JAX_DLPACK = "docs.jax.dev/en/latest/jax.dlpack.html"
_TORCH = "docs.pytorch.org/docs/stable/notes/cuda.html, Asynchronous execution; docs.pytorch.org/docs/stable/tensors.html"
_TORCH_TAKE = "docs.pytorch.org/docs/stable/torch.html, Creation Ops; docs.pytorch.org/docs/stable/dlpack.html"
_TORCH_STREAMS = "docs.pytorch.org/docs/stable/notes/cuda.html, CUDA streams; torch/cuda/streams.py and torch/_tensor.py of PyTorch 2.15"
_CUPY = "docs.cupy.dev/en/stable/user_guide/basic.html, Data Transfer; docs.cupy.dev/en/stable/user_guide/interoperability.html"
_CUPY_STREAMS = "docs.cupy.dev/en/stable/user_guide/basic.html, Current Stream; cupy/cuda/stream.pyx of CuPy 14.2"
_NUMBA = "nvidia.github.io/numba-cuda/user/memory.html; numba/cuda/cudadrv/devicearray.py and api.py of numba-cuda 0.30"
_NUMBA_STREAMS = "numba/cuda/cudadrv/driver.py and dispatcher.py of numba-cuda 0.30"
_CORE = "nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html; cuda.core 1.2, _memoryview.pyi and _buffer.pyi"
_CORE_STREAMS = "cuda.core 1.2, _stream.pyi, _event.pyi, _device.pyi and _launcher.pyi"
_TENSORFLOW = "www.tensorflow.org/guide/tensor, Tensors and NumPy; www.tensorflow.org/api_docs/python/tf/experimental/dlpack"
_FUTURES = "docs.python.org/3/library/concurrent.futures.html"
_QUEUE = "docs.python.org/3/library/queue.html"
_THREADING = "docs.python.org/3/library/threading.html, Thread Objects"
_ASYNCIO = "docs.python.org/3/library/asyncio-dev.html, Running Blocking Code"


def _rows(library: str, module: str, role: str, source: str, names: str, act: str = "") -> list[Row]:
    return [Row(library, module, name, role, source, act) for name in names.split()]


def _methods(library: str, module: str, owner: str, role: str, source: str, names: str, act: str = "") -> list[Row]:
    return [Row(library, module, f"{owner}.{name}", role, source, act) for name in names.split()]


_JAX_ARRAY = ("jax", "jax._src.array", "ArrayImpl")
_TENSOR = ("torch", "torch", "Tensor")
_EAGER = ("tensorflow", "tensorflow.python.framework.ops", "EagerTensor")
_VALUES = "item tolist __float__ __int__ __bool__ __index__ __complex__"

ROWS: tuple[Row, ...] = (
    *_rows("numpy", "numpy", "take", _NUMPY, "asarray array asanyarray ascontiguousarray from_dlpack"),
    *_methods(*_JAX_ARRAY, "to_numpy", _JAX, "__array__"),
    *_methods(*_JAX_ARRAY, "to_host", _JAX, _VALUES),
    *_methods(*_JAX_ARRAY, "wait", _JAX, "block_until_ready"),
    *_methods(*_JAX_ARRAY, "give", _JAX_DLPACK, "__dlpack__"),
    *_rows("jax", "jax", "wait", _JAX, "block_until_ready"),
    *_rows("jax", "jax", "to_host", _JAX_PUT, "device_get"),
    *_rows("jax", "jax", "take", _JAX_PUT, "device_put"),
    *_rows("jax", "jax.numpy", "take", _JAX_PUT, "asarray array from_dlpack"),
    *_rows("jax", "jax.dlpack", "take", _JAX_DLPACK, "from_dlpack"),
    *_methods(*_TENSOR, "to_numpy", _TORCH, "numpy __array__"),
    *_methods(*_TENSOR, "to_host", _TORCH, _VALUES, "torch_value"),
    *_methods(*_TENSOR, "move", _TORCH, "to cpu cuda", "torch_value"),
    *_methods(*_TENSOR, "give", _TORCH_TAKE, "__dlpack__", "torch_give"),
    *_methods(*_TENSOR, "give", _TORCH_TAKE, "__cuda_array_interface__"),
    *_methods(*_TENSOR, "look", _TORCH, "nonzero equal allclose", "torch_value"),
    *_rows("torch", "torch", "look", _TORCH, "nonzero equal allclose", "torch_value"),
    *_rows("torch", "torch", "take", _TORCH_TAKE, "from_dlpack from_numpy"),
    *_rows("torch", "torch", "take", _TORCH_TAKE, "as_tensor asarray tensor", "torch_value"),
    *_rows("torch", "torch.utils.dlpack", "take", _TORCH_TAKE, "from_dlpack"),
    *_rows("torch", "torch.cuda", "wait", _TORCH, "synchronize", "everything"),
    *_rows("torch", "torch.cuda", "wait", _TORCH, "Stream.synchronize", "host_waits"),
    *_rows("torch", "torch.cuda", "wait", _TORCH, "Event.synchronize", "host_waits_for_event"),
    *_rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "Stream.query", "asked_stream"),
    *_rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "Event.query", "asked_event"),
    *_rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "Event.record", "torch_record"),
    *_rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "Event.wait", "torch_wait"),
    *_rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "set_stream", "torch_use"),
    *_rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "empty_cache CUDAGraph.replay", "everything"),
    *_rows("torch", "torch", "acts", _TORCH_STREAMS, "Stream.__enter__ Stream.__exit__", "torch_use_current"),
    *_rows("torch", "torch.accelerator", "acts", _TORCH_STREAMS, "set_stream", "torch_use_current"),
    # Those of any device do not tell the driver's handles.
    *_rows("torch", "torch", "wait", _TORCH_STREAMS, "Stream.synchronize Event.synchronize", "everything"),
    *_rows("torch", "torch", "acts", _TORCH_STREAMS, "Stream.wait_event Stream.wait_stream Stream.query", "everything"),
    *_rows("torch", "torch", "acts", _TORCH_STREAMS, "Event.wait Event.query", "everything"),
    *_rows("torch", "torch.accelerator", "wait", _TORCH_STREAMS, "synchronize", "everything"),
    *_rows("cupy", "cupy", "take", _CUPY, "asarray array asanyarray ascontiguousarray from_dlpack"),
    *_rows("cupy", "cupy", "to_numpy", _CUPY, "asnumpy ndarray.get", "cupy_value"),
    *_rows("cupy", "cupy", "to_host", _CUPY, "ndarray.item ndarray.tolist ndarray.tobytes", "cupy_value"),
    *_methods("cupy", "cupy", "ndarray", "to_host", _CUPY, "__float__ __int__ __bool__ __complex__", "cupy_value"),
    *_rows("cupy", "cupy", "give", _CUPY, "ndarray.__dlpack__", "cupy_give"),
    *_rows("cupy", "cupy", "give", _CUPY, "ndarray.__cuda_array_interface__"),
    *_methods("cupy", "cupy.cuda.stream", "_BaseStream", "wait", _CUPY_STREAMS, "synchronize", "host_waits"),
    *_methods("cupy", "cupy.cuda.stream", "_BaseStream", "acts", _CUPY_STREAMS, "done", "asked_stream"),
    *_methods("cupy", "cupy.cuda.stream", "_BaseStream", "acts", _CUPY_STREAMS, "__enter__ __exit__ use", "cupy_use"),
    *_methods("cupy", "cupy.cuda.stream", "_BaseStream", "acts", _CUPY_STREAMS, "record", "record_on"),
    *_methods("cupy", "cupy.cuda.stream", "_BaseStream", "acts", _CUPY_STREAMS, "wait_event", "wait_event"),
    *_methods("cupy", "cupy.cuda.stream", "Event", "wait", _CUPY_STREAMS, "synchronize", "host_waits_for_event"),
    *_methods("cupy", "cupy.cuda.stream", "Event", "acts", _CUPY_STREAMS, "done", "asked_event"),
    *_methods("cupy", "cupy.cuda.stream", "Event", "acts", _CUPY_STREAMS, "record", "cupy_record"),
    *_rows("cupy", "cupy.cuda.device", "wait", _CUPY_STREAMS, "Device.synchronize", "everything"),
    *_rows("cupy", "cupy.cuda.runtime", "wait", _CUPY_STREAMS, "deviceSynchronize", "everything"),
    *_rows("cupy", "cupy.cuda.runtime", "wait", _CUPY_STREAMS, "streamSynchronize", "host_waits"),
    *_rows("cupy", "cupy.cuda.runtime", "wait", _CUPY_STREAMS, "eventSynchronize streamWaitEvent", "everything"),
    *_rows("numba", "numba.cuda", "take", _NUMBA, "as_cuda_array"),
    *_rows("numba", "numba.cuda", "take", _NUMBA, "to_device", "numba_fill"),
    *_rows("numba", "numba.cuda", "wait", _NUMBA_STREAMS, "synchronize", "everything"),
    *_methods("numba", "numba.cuda.cudadrv.devicearray", "DeviceNDArray", "to_numpy", _NUMBA, "copy_to_host __array__", "numba_fetch"),
    *_methods("numba", "numba.cuda.cudadrv.devicearray", "DeviceNDArray", "acts", _NUMBA, "copy_to_device", "numba_fill"),
    *_methods("numba", "numba.cuda.cudadrv.devicearray", "DeviceNDArrayBase", "give", _NUMBA, "__cuda_array_interface__"),
    *_methods("numba", "numba.cuda.cudadrv.driver", "Stream", "wait", _NUMBA_STREAMS, "synchronize", "host_waits"),
    *_methods("numba", "numba.cuda.cudadrv.driver", "Event", "wait", _NUMBA_STREAMS, "synchronize", "host_waits_for_event"),
    *_methods("numba", "numba.cuda.cudadrv.driver", "Event", "acts", _NUMBA_STREAMS, "query", "asked_event"),
    *_methods("numba", "numba.cuda.cudadrv.driver", "Event", "acts", _NUMBA_STREAMS, "record", "numba_record"),
    *_methods("numba", "numba.cuda.cudadrv.driver", "Event", "acts", _NUMBA_STREAMS, "wait", "numba_wait"),
    *_methods("numba", "numba.cuda.dispatcher", "_Kernel", "acts", _NUMBA_STREAMS, "launch", "numba_launch"),
    *_methods("cuda.core", "cuda.core.utils", "StridedMemoryView", "view", _CORE, "from_dlpack from_any_interface"),
    *_methods("cuda.core", "cuda.core.utils", "StridedMemoryView", "view", _CORE, "from_cuda_array_interface"),
    *_methods("cuda.core", "cuda.core.utils", "StridedMemoryView", "give", _CORE, "__dlpack__"),
    *_rows("cuda.core", "cuda.core", "give", _CORE, "Buffer.__dlpack__"),
    *_rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "Buffer.fill Buffer.copy_from", "core_fill"),
    *_rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "Buffer.copy_to", "core_copy_to"),
    *_rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "launch", "core_launch"),
    *_rows("cuda.core", "cuda.core", "wait", _CORE_STREAMS, "Stream.sync", "host_waits"),
    *_rows("cuda.core", "cuda.core", "wait", _CORE_STREAMS, "Event.sync", "host_waits_for_event"),
    *_rows("cuda.core", "cuda.core", "wait", _CORE_STREAMS, "Device.sync", "everything"),
    *_rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "Event.is_done", "asked_event"),
    *_rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "Stream.record", "record_on"),
    *_rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "Stream.wait", "core_wait"),
    *_methods(*_EAGER, "to_numpy", _TENSORFLOW, "numpy __array__"),
    *_methods(*_EAGER, "to_host", _TENSORFLOW, "__float__ __int__ __bool__ __index__"),
    *_methods(*_EAGER, "give", _TENSORFLOW, "__dlpack__"),
    *_rows("python", "concurrent.futures._base", "result", _FUTURES, "Future.result Future.exception"),
    *_rows("python", "concurrent.futures.thread", "submit", _FUTURES, "ThreadPoolExecutor.submit"),
    *_rows("python", "concurrent.futures.thread", "work", _FUTURES, "_WorkItem.run"),
    *_rows("python", "queue", "get", _QUEUE, "Queue.get"),
    *_rows("python", "queue", "put", _QUEUE, "Queue.put"),
    *_rows("python", "threading", "start", _THREADING, "Thread.start"),
    *_rows("python", "threading", "join", _THREADING, "Thread.join"),
    *_rows("python", "asyncio.events", "step", _ASYNCIO, "Handle._run"),
)
"""All of them."""
