"""Errors, sorted by what the caller can do about them."""

from __future__ import annotations

import concurrent.futures

from ._estafette import _shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._reports import Lease


class EstafetteError(Exception):
    """Base class of everything that this package raises of its own.

    Two kinds of errors are builtin ones: ``TimeoutError`` when time is up, and ``TypeError`` for an argument of the
    wrong type.
    """


class InvalidError(EstafetteError, ValueError):
    """An argument is wrong; the message names it. Nothing was submitted."""


class NoOperatorError(InvalidError, KeyError):
    """There is no operator of that name; the message has the names that are near."""

    __str__ = Exception.__str__


class InvalidTensorError(InvalidError, BufferError):
    """A tensor from outside breaks the rules of DLPack; the message names the field. Its deleter has been called."""


class ExchangeError(EstafetteError, BufferError):
    """The exchange cannot be done as asked: a device, a copy or a struct that one side does not support."""


class OperationError(EstafetteError):
    """The operation that should have made the data failed, or an input of it had failed.

    Every waiter gets the root cause: an operation that was skipped because of an earlier failure passes on the cause
    that it was given. ``__cause__`` is the exception that the operation's function raised, with its traceback; the
    local variables of that traceback's frames are gone, since they would hold on to the views they had.
    """

    operation: str
    """Name of the operation that failed first."""
    id: int
    """Identity of that operation, as in ``Engine.diagnose``."""
    message: str
    """Its message."""

    def __init__(self, operation: str, id: int, message: str, text: str | None = None) -> None:
        # `PeerDiedOperationError` has another class behind this one.
        Exception.__init__(self, operation, id, message, text)
        self.operation = operation
        self.id = id
        self.message = message
        self._text = text

    def __str__(self) -> str:
        return self._text or f"operation `{_shown(self.operation)}` (op {self.id}) failed: {self.message}"


class CancelledError(OperationError, concurrent.futures.CancelledError):
    """The operation was cancelled before it began, or its ``async def`` function was, or the future that it waited for.

    It is the ``CancelledError`` of `concurrent.futures` too, as futures of promises raise it. (A cancelled *task* gets
    ``asyncio.CancelledError`` as usual.)
    """


class DeviceError(EstafetteError):
    """A device refused or broke, or the text names what failed in another process."""


class PeerDiedError(DeviceError):
    """Another process has died: what it had promised will not come. An operation that has failed for that raises
    `PeerDiedOperationError`, which is one of these too.
    """

    process: int | None
    """Its number, as the process that saw the death had it: on another machine, where the error comes from there."""

    def __init__(self, message: str, process: int | None = None) -> None:
        super().__init__(message, process)
        self.process = process

    def __str__(self) -> str:
        return str(self.args[0])


class PeerDiedOperationError(OperationError, PeerDiedError):
    """An operation has failed since another process has died, as that of a promise from there. ``__cause__`` is the
    death, also one that the operation's function raised. An exception of another type that the function made of it is an
    `OperationError` only.
    """

    def __init__(
        self, operation: str, id: int, message: str, text: str | None = None, process: int | None = None
    ) -> None:
        OperationError.__init__(self, operation, id, message, text)
        self.args = (*self.args, process)
        self.process = process


class NotSharedError(EstafetteError):
    """Other processes cannot be shown the memory of this tensor, and a copy was refused. Make it with ``shared=True``."""


class OutOfMemoryError(DeviceError, MemoryError):
    """The host or a device has no room; nothing is broken. Free something, or ask for less."""


class ConflictError(EstafetteError):
    """The memory is used in a way that excludes this use; the message says by whom."""


_UNUSED_TICKET = "a ticket for one use"
_TAKE_OR_REVOKE = (
    "The lease of a ticket for one use ends when the tensor is taken out of its queue and released; what may never be taken goes "
    "into a queue as `ticket = x.ticket(once=True)`, for `ticket.revoke()`"
)
_RELEASE_CURE = "An array or a view keeps its lease until it is gone, after its `with` block too: `del` its last name"


def _cures(held: tuple[Lease, ...]) -> list[str]:
    owners = [lease.owner for lease in held]
    cures = [_TAKE_OR_REVOKE] if _UNUSED_TICKET in owners else []
    # Other processes release their leases by themselves, or die.
    if any(not owner.startswith(("a ticket", "process ")) for owner in owners):
        cures.append(_RELEASE_CURE)
    return cures


class LeaseHeldError(EstafetteError):
    """Only leases that were not returned hold this up; the message says what ends them."""

    leases: list[str]
    """Each of them in words: access, owner, age."""
    held: tuple[Lease, ...]
    """The same for programs."""

    def __init__(
        self, message: str, leases: list[str] | None = None, held: Iterable[Lease] | None = None
    ) -> None:
        super().__init__(message, leases, held)
        self.leases = list(leases or ())
        self.held = tuple(held or ())

    def __str__(self) -> str:
        return ". ".join([str(self.args[0]), *_cures(self.held)])


class WouldDeadlockError(EstafetteError):
    """Waiting here could never end."""


class WouldBlockError(EstafetteError, RuntimeError):
    """A synchronous wait on a thread with a running event loop, which it would stop. Use ``await`` there."""


class NotDefinedError(EstafetteError):
    """The tensor's operation has not run yet, so it has no shape, type or memory."""


class InFlightLimitError(EstafetteError):
    """As many operations are in flight as the engine accepts."""


class ShutdownError(EstafetteError):
    """The engine has been shut down."""


class ForkedError(EstafetteError):
    """The engine, or what belongs to it, is of the process that this one was forked from. An engine made in this process works."""


for _error in list(globals().values()):
    if isinstance(_error, type) and issubclass(_error, EstafetteError):
        _error.__module__ = "estafette"
del _error
