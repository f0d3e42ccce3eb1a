"""What observe mode wraps in each library: one row each, with the source that says what the function does.

A row whose module is never imported costs nothing. A row whose name a version of a library does not have is left out.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A function that hands data over, or waits."""

    library: str
    """Whose function it is."""
    module: str
    """The module whose import makes it."""
    name: str
    """Its name in the module, with dots."""
    role: str
    """What it does with its first argument or its receiver: a function of `roles`."""
    source: str
    """Where this is from."""


_NUMPY = "numpy.org/doc/2.4/reference/routines.array-creation.html; for JAX's arrays on the host by the buffer protocol, tested"
_JAX = "docs.jax.dev/en/latest/async_dispatch.html: what shows a value waits for it"
_JAX_PUT = "docs.jax.dev/en/latest/_autosummary/jax.device_put.html"
_JAX_DLPACK = "docs.jax.dev/en/latest/jax.dlpack.html"
_TORCH = "docs.pytorch.org/docs/stable/notes/cuda.html, Asynchronous execution; docs.pytorch.org/docs/stable/tensors.html"
_TORCH_TAKE = "docs.pytorch.org/docs/stable/torch.html, Creation Ops; docs.pytorch.org/docs/stable/dlpack.html"
_TENSORFLOW = "www.tensorflow.org/guide/tensor, Tensors and NumPy; www.tensorflow.org/api_docs/python/tf/experimental/dlpack"
_FUTURES = "docs.python.org/3/library/concurrent.futures.html"
_QUEUE = "docs.python.org/3/library/queue.html"
_ASYNCIO = "docs.python.org/3/library/asyncio-dev.html, Running Blocking Code"


def _rows(library: str, module: str, role: str, source: str, names: str) -> list[Row]:
    return [Row(library, module, name, role, source) for name in names.split()]


def _methods(library: str, module: str, owner: str, role: str, source: str, names: str) -> list[Row]:
    return [Row(library, module, f"{owner}.{name}", role, source) for name in names.split()]


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
    *_methods(*_TENSOR, "to_host", _TORCH, _VALUES),
    *_methods(*_TENSOR, "move", _TORCH, "to cpu cuda"),
    *_methods(*_TENSOR, "give", _TORCH_TAKE, "__dlpack__"),
    *_rows("torch", "torch", "take", _TORCH_TAKE, "from_dlpack from_numpy as_tensor asarray tensor"),
    *_rows("torch", "torch.utils.dlpack", "take", _TORCH_TAKE, "from_dlpack"),
    *_rows("torch", "torch.cuda", "wait", _TORCH, "synchronize Stream.synchronize Event.synchronize"),
    *_methods(*_EAGER, "to_numpy", _TENSORFLOW, "numpy __array__"),
    *_methods(*_EAGER, "to_host", _TENSORFLOW, "__float__ __int__ __bool__ __index__"),
    *_methods(*_EAGER, "give", _TENSORFLOW, "__dlpack__"),
    *_rows("python", "concurrent.futures._base", "result", _FUTURES, "Future.result Future.exception"),
    *_rows("python", "concurrent.futures.thread", "submit", _FUTURES, "ThreadPoolExecutor.submit"),
    *_rows("python", "concurrent.futures.thread", "work", _FUTURES, "_WorkItem.run"),
    *_rows("python", "queue", "get", _QUEUE, "Queue.get"),
    *_rows("python", "queue", "put", _QUEUE, "Queue.put"),
    *_rows("python", "asyncio.events", "step", _ASYNCIO, "Handle._run"),
)
"""All of them."""
