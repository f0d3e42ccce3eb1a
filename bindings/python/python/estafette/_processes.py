"""Tensors in queues, pipes and pools of `multiprocessing`, and of libraries that build on its pickler, as `torch.multiprocessing` does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.reduction import ForkingPickler
from typing import Any

from . import default_engine
from ._errors import EstafetteError, OperationError
from ._estafette import Tensor, Ticket, _from_tickets

# The owner answers in microseconds, unless it is stopped. Then the tensor comes without its answer.
_ANSWER_MAX = 5.0


def _rebuild(ticket: bytes) -> Tensor:
    # Nothing but the ticket's bytes has been taken out of the queue. The owner learns of the use first: a death after this ends the lease.
    [tensor] = _from_tickets(default_engine(), [ticket], _ANSWER_MAX)
    return tensor


def _reduce(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[bytes]]:
    return _rebuild, (bytes(tensor.ticket(once=True)),)


def register() -> None:
    """Called by the extension, once."""
    ForkingPickler.register(Tensor, _reduce)


def packed(tensor: Tensor) -> tuple[dict[str, Any], list[bytes]]:
    """The value of a tensor, or its failure, for where its memory cannot be shown. Waits for it."""
    import numpy as np

    try:
        with tensor.to_host().read() as view:
            frame = np.asarray(view).tobytes()
    except OperationError as error:
        return {"failure": str(error)}, []
    return {"shape": tensor.shape, "dtype": str(tensor.dtype)}, [frame]


def unpacked(header: dict[str, Any], frames: list[bytes]) -> Tensor:
    """The tensor of what `packed` gave, in memory of this process."""
    import numpy as np

    eng = default_engine()
    if "failure" in header:
        failed: Future[Any] = Future()
        failed.set_exception(EstafetteError(header["failure"]))
        return eng.from_future(failed, name="tensor of another process")
    tensor = eng.empty(header["shape"], header["dtype"])
    with tensor.write() as view:
        np.asarray(view)[...] = np.frombuffer(b"".join(frames), tensor.__numpy_dtype__).reshape(tensor.shape)
    return tensor
