"""The ways in which libraries learn the CUDA stream that a function uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..._streams import Row
from ..._streams import Stream as _Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Stream(_Stream):
    """A CUDA stream as others understand it."""

    __slots__ = ()

    _family = "cuda"

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


def _torch(torch: Any, handle: int, device: int) -> contextlib.AbstractContextManager[Any] | None:
    if not torch.cuda.is_available():
        return None
    return torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device))


@contextlib.contextmanager
def _cupy(cupy: Any, handle: int, device: int) -> Iterator[None]:
    with cupy.cuda.Device(device):
        # `ExternalStream` is deprecated where there is this one.
        from_external = getattr(cupy.cuda.Stream, "from_external", None)
        stream = from_external(Stream(handle, device)) if from_external else cupy.cuda.ExternalStream(handle, device)
        with stream:
            yield


# Allocators with a cache give memory that a function has freed to the next one that asks. A graph goes on using it at every replay, and
# its stream is one that the allocator knows nothing of.


def _torch_recorded(torch: Any, device: int, kept: list[Any]) -> contextlib.AbstractContextManager[Any] | None:
    if not torch.cuda.is_available():
        return None
    pool, use = getattr(torch.cuda, "MemPool", None), getattr(torch.cuda, "use_mem_pool", None)
    if pool is None or use is None:
        raise RuntimeError(
            "program(graph=True): a function of PyTorch needs memory of its own, which PyTorch has since version 2.5 "
            "(torch.cuda.use_mem_pool); record the program without graph=True"
        )
    kept.append(pool())
    return use(kept[-1], device)


def _cupy_recorded(cupy: Any, _device: int, _kept: list[Any]) -> contextlib.AbstractContextManager[Any]:
    def refuse(size: int) -> Any:
        raise RuntimeError(
            f"program(graph=True): a function has asked CuPy for {size} bytes, which CuPy would give to others while every replay "
            "uses them; declare the memory in `writes` and compute into it (`out=`), or record the program without graph=True"
        )

    return cupy.cuda.using_allocator(refuse)


ROWS: tuple[Row, ...] = (
    Row(
        "torch",
        _torch,
        "torch.cuda.stream(torch.cuda.ExternalStream(handle)), if it was built with CUDA",
        "pytorch/pytorch: torch/cuda/streams.py (ExternalStream), torch/cuda/__init__.py (stream), torch/cuda/memory.py (use_mem_pool)",
        _torch_recorded,
        lambda torch: torch.cuda.current_stream().synchronize() if torch.cuda.is_available() else None,
    ),
    Row(
        "cupy",
        _cupy,
        "cupy.cuda.Stream.from_external(stream) as a context; before CuPy 14 cupy.cuda.ExternalStream(handle)",
        "cupy/cupy: cupy/cuda/stream.pyx (Stream.from_external, ExternalStream, __enter__), cupy/cuda/memory.pyx (using_allocator)",
        _cupy_recorded,
        lambda cupy: cupy.cuda.get_current_stream().synchronize(),
    ),
    Row(
        "numba",
        None,
        "no current stream; launch with numba.cuda.external_stream(est.current_stream().handle)",
        "numba/numba: numba/cuda/api.py (external_stream)",
    ),
    Row(
        "jax",
        None,
        "no current stream; what goes in and comes out is joined by __dlpack__(stream=)",
        "jax-ml/jax: jaxlib/dlpack.cc, jax/_src/dlpack.py",
    ),
)
