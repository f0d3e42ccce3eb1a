"""Tensors in queues, pipes and pools of `multiprocessing`, and of libraries that build on its pickler, as `torch.multiprocessing` does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from . import default_engine
from ._errors import EstafetteError, PeerDiedError, WouldDeadlockError
from ._estafette import Tensor, Ticket, _failed, _from_tickets

# The owner answers in microseconds, unless it is stopped. Then the tensor comes without its answer.
ANSWER_MAX = 5.0


def _rebuild(ticket: bytes) -> Tensor:
    # Nothing but the ticket's bytes has been taken out of the queue. The owner learns of the use first: a death after this ends the lease.
    [tensor] = _from_tickets(default_engine(), [ticket], ANSWER_MAX)
    return tensor


class _Made(threading.local):
    """Tickets of the pickling that is under way on a thread."""

    tickets: list[Ticket] | None = None


_made = _Made()


def _reduce(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[bytes]]:
    ticket = tensor.ticket(once=True)
    if _made.tickets is not None:
        _made.tickets.append(ticket)
    return _rebuild, (bytes(ticket),)


def _dump_or_revoke(dump: Callable[..., None], pickler: Any, value: Any) -> None:
    """Pickles a value. Where that fails nothing will ever use the tickets that are in it."""
    outer, _made.tickets = _made.tickets, []
    try:
        dump(pickler, value)
        if outer is not None:
            outer += _made.tickets
    except BaseException:
        for ticket in _made.tickets:
            ticket.revoke()
        raise
    finally:
        _made.tickets = outer


def register() -> None:
    """Called by the extension, once."""
    ForkingPickler.register(Tensor, _reduce)
    dump = ForkingPickler.dump
    ForkingPickler.dump = lambda pickler, value: _dump_or_revoke(dump, pickler, value)  # type: ignore[method-assign]


def machine() -> str:
    """The boot of the machine and the network namespace: processes that reach each other's doors have both in common. Empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def failed_by_death(error: BaseException | None) -> bool:
    """True if a failure is the death of another process, or that of an operation by it. What a function makes of a death, such as a
    `ValueError`, is its own failure."""
    return isinstance(error, PeerDiedError)


def failed(error: EstafetteError) -> Tensor:
    """The tensor of another process, in place of which there is an error."""
    return _failed(default_engine(), error)


def packed(tensor: Tensor, crossing: type[EstafetteError] = EstafetteError) -> tuple[dict[str, Any], list[bytes]]:
    """The value of a tensor, or its failure, for where its memory cannot be shown. Waits for it. Errors of the type `crossing` come out at
    the other end; others are raised, and so is `WouldDeadlockError`, as the value itself comes to no harm."""
    import numpy as np

    try:
        with tensor.to_host().read() as view:
            frame = np.asarray(view).tobytes()
    except WouldDeadlockError:
        raise
    except crossing as error:
        process = error.process if isinstance(error, PeerDiedError) else None
        return {"failure": str(error), "died": failed_by_death(error), "process": process}, []
    return {"shape": tensor.shape, "dtype": str(tensor.dtype)}, [frame]


def failure_of(header: dict[str, Any]) -> EstafetteError | None:
    """The failure that `packed` gave in place of a value."""
    if "failure" not in header:
        return None
    text = header["failure"]
    return PeerDiedError(text, header["process"]) if header["died"] else EstafetteError(text)


def unpacked(header: dict[str, Any], frames: list[bytes]) -> Tensor:
    """The tensor of what `packed` gave, in memory of this process."""
    import numpy as np

    if (failure := failure_of(header)) is not None:
        return failed(failure)
    tensor = default_engine().empty(header["shape"], header["dtype"])
    with tensor.write() as view:
        np.asarray(view)[...] = np.frombuffer(b"".join(frames), tensor.__numpy_dtype__).reshape(tensor.shape)
    return tensor
