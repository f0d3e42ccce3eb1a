"""Promises where futures of `concurrent.futures` are expected."""

from __future__ import annotations

import concurrent.futures
import functools
import threading
from typing import TYPE_CHECKING

from ._errors import CancelledError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Union

    from ._estafette import Operation, Tensor

    _Promise = Union[Operation, Tensor]


class _Ends:
    """The ``_condition`` of all promises. `concurrent.futures` reads the states of futures and installs its waiters while it holds
    their conditions, so that no end falls between. A promise ends whenever it does: what ended before its state was read, is
    remembered here until the last of the conditions is released.
    """

    def __init__(self):
        self._lock = threading.RLock()
        self._depth = 0
        self.known = set()

    def acquire(self):
        self._lock.acquire()
        self._depth += 1

    def release(self):
        self._depth -= 1
        if self._depth == 0:
            self.known.clear()
        self._lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        self.release()


ENDS = _Ends()


def state(promise):
    """The ``_state`` of a future."""
    if not promise.done():
        return "PENDING"
    with ENDS:
        ENDS.known.add(promise)
    return "CANCELLED_AND_NOTIFIED" if promise.cancelled() else "FINISHED"


class Waiters:
    """The ``_waiters`` of a future, for `concurrent.futures.wait` and `as_completed`."""

    def __init__(self, promise):
        self._promise = promise

    def append(self, waiter):
        with ENDS:
            if self._promise not in ENDS.known:
                self._promise.add_done_callback(functools.partial(_tell, waiter))

    def remove(self, waiter):
        """What comes too late for a waiter changes nothing."""


def _tell(waiter, promise):
    with ENDS:
        if promise.cancelled():
            waiter.add_cancelled(promise)
        elif promise._failed():
            waiter.add_exception(promise)
        else:
            waiter.add_result(promise)


def future(promise):
    """A future that ends as `promise` does."""
    made = concurrent.futures.Future()
    made.set_running_or_notify_cancel()
    promise.add_done_callback(functools.partial(_settle, made))
    return made


def _settle(made, promise):
    try:
        error = promise.exception()
    except CancelledError as cancelled:
        error = cancelled
    if error is None:
        made.set_result(promise.result())
    else:
        made.set_exception(error)


def wait(
    promises: Iterable[_Promise], timeout: float | None = None, return_when: str = concurrent.futures.ALL_COMPLETED
) -> concurrent.futures._base.DoneAndNotDoneFutures[_Promise]:
    """Waits for tensors and operations, as ``concurrent.futures.wait`` does: returns the sets `done` and `not_done`.

    timeout: seconds; default no limit. return_when: ``"ALL_COMPLETED"``, ``"FIRST_COMPLETED"`` or ``"FIRST_EXCEPTION"``. A
    failure is not raised here.

        >>> a, b = eng.call(np.zeros, 3), eng.call(np.ones, 3)
        >>> done, not_done = est.wait([a, b])
        >>> len(done), len(not_done)
        (2, 0)
    """
    return concurrent.futures.wait(promises, timeout, return_when)  # type: ignore[arg-type, return-value]


def as_completed(promises: Iterable[_Promise], timeout: float | None = None) -> Iterator[_Promise]:
    """Gives tensors and operations as they are done, as ``concurrent.futures.as_completed`` does.

        >>> sorted(t.shape for t in est.as_completed([eng.call(np.zeros, 3), eng.call(np.ones, 2)]))
        [(2,), (3,)]
    """
    return concurrent.futures.as_completed(promises, timeout)  # type: ignore[arg-type, return-value]
