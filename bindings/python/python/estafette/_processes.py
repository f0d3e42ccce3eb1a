"""Tensors in queues, pipes and pools of `multiprocessing`, and of libraries that build on its pickler, as `torch.multiprocessing` does."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from . import default_engine
from ._errors import NotDefinedError, NotSharedError
from ._estafette import Tensor, Ticket


def _rebuild(ticket: bytes) -> Tensor:
    return default_engine().from_ticket(ticket)


def _reduce(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[bytes]]:
    return _rebuild, (bytes(tensor.ticket(once=True)),)


def register() -> None:
    """Called by the extension when the process first makes memory that can be shown to others."""
    ForkingPickler.register(Tensor, _reduce)


def _copy(source: Any, target: Any) -> None:
    target[...] = source


def ticket_or_copy(tensor: Tensor, *, once: bool = False) -> Ticket:
    """A ticket for the tensor, or for a copy that an operation makes when it is ready, if other processes cannot be shown its memory.
    Never waits. Raises `NotDefinedError` while the tensor has no shape.
    """
    try:
        return tensor.ticket(once=once)
    except (NotSharedError, NotDefinedError):
        shape, dtype = tensor.shape, tensor.dtype
    import numpy as np

    eng = default_engine()
    copy = eng.empty(shape, dtype, shared=True)
    eng.submit(_copy, [tensor.to_host()], [copy], using=np.asarray, name="copy for other processes")
    return copy.ticket(once=once)
