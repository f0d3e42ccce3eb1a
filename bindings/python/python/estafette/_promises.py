"""Promises where futures of `concurrent.futures` are expected."""

from __future__ import annotations

import concurrent.futures
import functools
import sys
import threading
import time

from ._body import operation
from ._errors import WouldBlockError
from ._estafette import Operation, Tensor, _wait_any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Union, overload

    _Promise = Union[Operation, Tensor]
else:

    def overload(function):
        return function


class _Ends(threading.local):
    """The ``_condition`` of all promises. `concurrent.futures` reads the states of futures and installs its waiters while it holds
    their conditions, so that no end falls between. A promise ends whenever it does: each state that a thread has read is
    remembered until the thread releases the last of the conditions.

    Nothing is locked: `concurrent.futures` takes the conditions of futures in one order, in which one lock of all promises
    has no place.
    """

    def __init__(self):
        self._depth = 0
        self.states = {}

    def acquire(self):
        self._depth += 1

    def release(self):
        self._depth -= 1
        if self._depth == 0:
            self.states.clear()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        self.release()


ENDS = _Ends()
# The waiters of promises that have not ended. Each such promise has one callback, however often it is waited for.
_WAITERS: dict[_Promise, list[Any]] = {}
# Of the waiters. A finalizer that waits may run while its thread has the lock.
LOCK = threading.RLock()


def state(promise):
    """The ``_state`` of a future."""
    with ENDS:
        return ENDS.states.setdefault(promise, _state_now(promise))


def _state_now(promise):
    if not promise.done():
        return "PENDING"
    return "CANCELLED_AND_NOTIFIED" if promise.cancelled() else "FINISHED"


class Waiters:
    """The ``_waiters`` of a future, for `concurrent.futures.wait` and `as_completed`."""

    def __init__(self, promise):
        self._promise = promise

    def append(self, waiter):
        if ENDS.states.get(self._promise, "PENDING") != "PENDING":
            return
        with LOCK:
            waiters = _WAITERS.get(self._promise)
            if waiters is not None:
                waiters.append(waiter)
                return
            _WAITERS[self._promise] = [waiter]
            try:
                self._promise._add_waiter(_tell)
            except BaseException:
                # The next wait adds a callback of its own.
                _WAITERS.pop(self._promise, None)
                raise

    def remove(self, waiter):
        """A promise that has ended has no waiters."""
        with LOCK:
            waiters = _WAITERS.get(self._promise, ())
            if waiter in waiters:
                waiters.remove(waiter)


def _tell(promise):
    with LOCK:
        waiters = _WAITERS.pop(promise, ())
    for waiter in waiters:
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
        result = promise.result() if error is None else None
    except BaseException as raised:
        error = raised
    if error is None:
        made.set_result(result)
    else:
        made.set_exception(error)


class _Unretrieved:
    """A promise in `concurrent.futures.wait`, which may ask for the exception of what is done: the failure stays unretrieved."""

    def __init__(self, promise):
        self._promise = promise

    def __getattr__(self, name):
        return getattr(self._promise, name)

    def exception(self):
        return self._promise._failed() or None


_RETURN_WHEN = (concurrent.futures.ALL_COMPLETED, concurrent.futures.FIRST_COMPLETED, concurrent.futures.FIRST_EXCEPTION)


def wait(
    promises: Iterable[_Promise], timeout: float | None = None, return_when: str = concurrent.futures.ALL_COMPLETED
) -> concurrent.futures._base.DoneAndNotDoneFutures[_Promise]:
    """Waits for tensors and operations, as ``concurrent.futures.wait`` does: returns the sets `done` and `not_done`.

    timeout: seconds; default no limit. return_when: ``"ALL_COMPLETED"``, ``"FIRST_COMPLETED"`` or
    ``"FIRST_EXCEPTION"``. A failure is not raised here. A wait that can never end raises as `Tensor.wait` does. Use
    this function inside operations: `concurrent.futures.wait` occupies a worker there.

        >>> a, b = eng.call(np.zeros, 3), eng.call(np.ones, 3)
        >>> done, not_done = est.wait([a, b])
        >>> len(done), len(not_done)
        (2, 0)
    """
    promises = _checked(promises)
    if not _are_ours(promises) or (return_when == concurrent.futures.FIRST_EXCEPTION and not _asks_the_engine()):
        _check_loop(promises, timeout)
        futures = {_Unretrieved(promise) if _are_ours([promise]) else promise for promise in promises}
        concurrent.futures.wait(futures, timeout, return_when)  # type: ignore[arg-type]
        rest = _pending(promises)
        return concurrent.futures._base.DoneAndNotDoneFutures(promises - rest, rest)
    if return_when not in _RETURN_WHEN:
        raise ValueError(f"return_when is one of {_RETURN_WHEN}, not {return_when!r}")
    until = _until(timeout)
    rest = _pending(promises)
    try:
        if return_when == concurrent.futures.ALL_COMPLETED:
            for promise in rest:
                _wait_any([promise], _left(until))
        while not _is_over(promises, rest, return_when):
            _wait_any(list(rest), _left(until))
            rest = _pending(promises)
    except TimeoutError:
        pass
    rest = _pending(promises)
    return concurrent.futures._base.DoneAndNotDoneFutures(promises - rest, rest)


@overload
def as_completed(promises: Iterable[Tensor], timeout: float | None = None) -> Iterator[Tensor]: ...
@overload
def as_completed(promises: Iterable[Operation], timeout: float | None = None) -> Iterator[Operation]: ...
@overload
def as_completed(promises: Iterable[_Promise], timeout: float | None = None) -> Iterator[_Promise]: ...
def as_completed(promises: Iterable[_Promise], timeout: float | None = None) -> Iterator[_Promise]:
    """Gives tensors and operations as they are done, as ``concurrent.futures.as_completed`` does.

        >>> sorted(t.shape for t in est.as_completed([eng.call(np.zeros, 3), eng.call(np.ones, 2)]))
        [(2,), (3,)]
    """
    rest = _checked(promises)
    if not _are_ours(rest) or (len(rest) > 1 and not _asks_the_engine()):
        _check_loop(rest, timeout)
        yield from concurrent.futures.as_completed(rest, timeout)  # type: ignore[arg-type, misc]
        return
    until = _until(timeout)
    while rest:
        ended, left = wait(rest, _left(until), concurrent.futures.FIRST_COMPLETED)
        if not ended:
            raise TimeoutError(f"{len(left)} promises are not done")
        rest -= ended  # type: ignore[operator]
        yield from ended  # type: ignore[misc]


def _checked(promises):
    """What is waited for. `concurrent.futures` would fail where it asks for a condition."""
    if isinstance(promises, (Operation, Tensor)):
        raise TypeError(f"a list of promises is waited for, not {type(promises).__qualname__}: write `[x]`")
    promises = set(promises)
    for promise in promises:
        if not hasattr(promise, "_condition"):
            raise TypeError(f"{promise!r} is no promise: tensors, operations and futures of concurrent.futures are")
    return promises


def _are_ours(promises):
    """Whether no future of others is among them."""
    return all(isinstance(promise, (Operation, Tensor)) for promise in promises)


def _runs_a_loop() -> bool:
    """Whether an event loop runs in this thread. Its module, which takes long to import, is there then."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running is not None and running() is not None


def _asks_the_engine():
    """Whether the engine has to know of a wait: in a function of an operation, and on the thread of an event loop."""
    return operation.get() is not None or _runs_a_loop()


def _check_loop(promises, timeout):
    if timeout != 0 and _runs_a_loop() and _pending(promises):
        raise WouldBlockError("promises are not done; waiting here would stop the running event loop; use `await`")


def _pending(promises):
    return {promise for promise in promises if not promise.done()}


def _is_over(promises, rest, return_when):
    if return_when == concurrent.futures.FIRST_COMPLETED and len(rest) < len(promises):
        return True
    fails = return_when == concurrent.futures.FIRST_EXCEPTION
    return not rest or (fails and any(promise._failed() for promise in promises))


def _until(timeout):
    return None if timeout is None else time.monotonic() + timeout


def _left(until):
    return None if until is None else max(0, until - time.monotonic())
