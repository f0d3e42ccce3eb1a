"""The functions of each library that observe mode wraps: one row each, with the source that says what the function does. Libraries of one
kind of device have theirs with the kind (`_kinds`).

A row whose module is never imported costs nothing. A row whose name a version of a library does not have is left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from . import devices


class Row(NamedTuple):
    """A function that hands data over, or waits."""

    library: str
    """The library that has the function."""
    module: str
    """The module whose import makes it."""
    name: str
    """Its name in the module, with dots."""
    role: str
    """Its use of its first argument or its receiver: a function of `roles`."""
    source: str
    """The source of this."""
    act: str = ""
    """Its effect on the order of work: a name that observers may know (`devices`)."""


def shown(row: Row) -> str:
    """The name of a function in reports."""
    library = "" if row.library == "python" else f"{row.module if row.module in devices.PATHS else row.library}."
    return f"{library}{row.name.replace('ArrayImpl', 'Array').replace('_BaseStream', 'Stream')}"


GOALS = {"to_numpy": "numpy", "to_host": "", "move": ""}
"""The libraries that functions hand over to, by roles; others to their own library. The empty one is the host."""

DEVICE_LIBRARIES = ("torch", "jax", "estafette", *devices.LIBRARIES)
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
TORCH = "docs.pytorch.org/docs/stable/notes/cuda.html, Asynchronous execution; docs.pytorch.org/docs/stable/tensors.html"
TORCH_TAKE = "docs.pytorch.org/docs/stable/torch.html, Creation Ops; docs.pytorch.org/docs/stable/dlpack.html"
_TENSORFLOW = "www.tensorflow.org/guide/tensor, Tensors and NumPy; www.tensorflow.org/api_docs/python/tf/experimental/dlpack"
_FUTURES = "docs.python.org/3/library/concurrent.futures.html"
_QUEUE = "docs.python.org/3/library/queue.html"
_THREADING = "docs.python.org/3/library/threading.html, Thread Objects"
_ASYNCIO = "docs.python.org/3/library/asyncio-dev.html, Running Blocking Code"


def rows(library: str, module: str, role: str, source: str, names: str, act: str = "") -> list[Row]:
    """Rows of functions of a module."""
    return [Row(library, module, name, role, source, act) for name in names.split()]


def methods(library: str, module: str, owner: str, role: str, source: str, names: str, act: str = "") -> list[Row]:
    """Rows of methods of a class."""
    return [Row(library, module, f"{owner}.{name}", role, source, act) for name in names.split()]


_JAX_ARRAY = ("jax", "jax._src.array", "ArrayImpl")
_TENSOR = ("torch", "torch", "Tensor")
_EAGER = ("tensorflow", "tensorflow.python.framework.ops", "EagerTensor")
_VALUES = "item tolist __float__ __int__ __bool__ __index__ __complex__"

ROWS: tuple[Row, ...] = (
    *rows("numpy", "numpy", "take", _NUMPY, "asarray array asanyarray ascontiguousarray from_dlpack"),
    *methods(*_JAX_ARRAY, "to_numpy", _JAX, "__array__"),
    *methods(*_JAX_ARRAY, "to_host", _JAX, _VALUES),
    *methods(*_JAX_ARRAY, "wait", _JAX, "block_until_ready"),
    *methods(*_JAX_ARRAY, "give", _JAX_DLPACK, "__dlpack__"),
    *rows("jax", "jax", "wait", _JAX, "block_until_ready"),
    *rows("jax", "jax", "to_host", _JAX_PUT, "device_get"),
    *rows("jax", "jax", "take", _JAX_PUT, "device_put"),
    *rows("jax", "jax.numpy", "take", _JAX_PUT, "asarray array from_dlpack"),
    *rows("jax", "jax.dlpack", "take", _JAX_DLPACK, "from_dlpack"),
    *methods(*_TENSOR, "to_numpy", TORCH, "numpy __array__"),
    *methods(*_TENSOR, "to_host", TORCH, _VALUES, "torch_value"),
    *methods(*_TENSOR, "move", TORCH, "to cpu", "torch_value"),
    *methods(*_TENSOR, "give", TORCH_TAKE, "__dlpack__", "torch_give"),
    *methods(*_TENSOR, "look", TORCH, "nonzero equal allclose", "torch_value"),
    *rows("torch", "torch", "look", TORCH, "nonzero equal allclose", "torch_value"),
    *rows("torch", "torch", "take", TORCH_TAKE, "from_dlpack from_numpy"),
    *rows("torch", "torch", "take", TORCH_TAKE, "as_tensor asarray tensor", "torch_value"),
    *rows("torch", "torch.utils.dlpack", "take", TORCH_TAKE, "from_dlpack"),
    *methods(*_EAGER, "to_numpy", _TENSORFLOW, "numpy __array__"),
    *methods(*_EAGER, "to_host", _TENSORFLOW, "__float__ __int__ __bool__ __index__"),
    *methods(*_EAGER, "give", _TENSORFLOW, "__dlpack__"),
    *rows("python", "concurrent.futures._base", "result", _FUTURES, "Future.result Future.exception"),
    *rows("python", "concurrent.futures.thread", "submit", _FUTURES, "ThreadPoolExecutor.submit"),
    *rows("python", "concurrent.futures.thread", "work", _FUTURES, "_WorkItem.run"),
    *rows("python", "queue", "get", _QUEUE, "Queue.get"),
    *rows("python", "queue", "put", _QUEUE, "Queue.put"),
    *rows("python", "threading", "start", _THREADING, "Thread.start"),
    *rows("python", "threading", "join", _THREADING, "Thread.join"),
    *rows("python", "asyncio.events", "step", _ASYNCIO, "Handle._run"),
)
"""Those of libraries that are not of one kind of device."""


def every() -> tuple[Row, ...]:
    """Those of all libraries."""
    return (*ROWS, *(row for observer in devices.observers() for row in observer.ROWS))
