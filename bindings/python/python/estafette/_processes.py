"""Tensors in queues, pipes and pools of `multiprocessing`, and of libraries that build on its pickler, as `torch.multiprocessing` does."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from . import default_engine
from ._estafette import Tensor, Ticket


def _rebuild(ticket: bytes) -> Tensor:
    return default_engine().from_ticket(ticket)


def _reduce(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[bytes]]:
    return _rebuild, (bytes(tensor.ticket(once=True)),)


def register() -> None:
    """Called by the extension, once."""
    ForkingPickler.register(Tensor, _reduce)
