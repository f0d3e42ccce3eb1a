"""Promises where futures of `concurrent.futures` are expected."""

from __future__ import annotations

import concurrent.futures
import functools
import queue
import sys
import threading
import time

from ._body import operation
from ._errors import WouldBlockError
from ._estafette import Operation, Tensor, _call_back, _may_block, _wait_any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Generic, NamedTuple, TypeVar, Union, overload

    _AnyPromise = Union[Operation, Tensor, concurrent.futures.Future[Any]]
    _Promise = TypeVar("_Promise", bound=_AnyPromise)

    class _Waited(NamedTuple, Generic[_Promise]):
        done: set[_Promise]
        not_done: set[_Promise]
else:
    _Waited = concurrent.futures._base.DoneAndNotDoneFutures

    def overload(function):
        return function


class _Absent:
    """A method that arrays have and tensors lack: an `AttributeError` that says what to write.

    A `__getattr__` of the class would make each of its methods slower.
    """

    def __init__(self, name):
        self._name = name

    def __get__(self, tensor, owner=None):
        raise AttributeError(
            f"'estafette.Tensor' object has no attribute '{self._name}': a tensor is a promise, so write `eng.call(np.{self._name}, t)`, or "
            f"take an array, `np.from_dlpack(t).{self._name}`, which waits"
        )


for _name in (
    "all any argmax argmin argsort clip copy cumsum diagonal dot max mean min prod ravel reshape round sort squeeze std sum "
    "transpose var"
).split():
    setattr(Tensor, _name, _Absent(_name))


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
        if ENDS.states.get(self._promise, "PENDING") == "PENDING":
            # The waiter has them: a wait that Ctrl-C ends removes none.
            notices = vars(waiter).setdefault("_notices", {})
            notices[self._promise] = self._promise._on_end(functools.partial(_tell, waiter))

    def remove(self, waiter):
        notice = vars(waiter).get("_notices", {}).pop(self._promise, None)
        if notice:
            notice.withdraw()


def _tell(waiter, promise, failure):
    if failure is None:
        waiter.add_result(promise)
    elif failure.cancelled:
        waiter.add_cancelled(promise)
    else:
        waiter.add_exception(promise)


class Future(concurrent.futures.Future):
    """The future of a promise. A failure is retrieved when it is asked for."""

    _failure = None

    def cancel(self):
        return self.cancelled()

    def exception(self, timeout=None):
        try:
            error = super().exception(timeout)
        except concurrent.futures.CancelledError:
            raise self._failure.error() from None
        if self._failure is not None:
            self._failure.retrieve()
        return error

    def result(self, timeout=None):
        try:
            self.exception(timeout)
            return super().result()
        finally:
            # The traceback of the failure, which the future has, has this frame.
            del self

    def _get_snapshot(self):
        # From Python 3.14 on asyncio calls this method in place of `exception`.
        snapshot = super()._get_snapshot()
        if snapshot[-1] is not None and self._failure is not None:
            self._failure.retrieve()
        return snapshot

    def _invoke_callbacks(self):
        # They are functions of users, which may wait for what this thread settles.
        if self._done_callbacks:
            _call_back(super()._invoke_callbacks)


def future(promise):
    """A future that ends as the current version of `promise` does."""
    made = Future()
    promise._on_end(functools.partial(_settle, made))
    return made


def _settle(made, promise, failure):
    made._failure = failure
    if failure is None:
        try:
            made.set_result(promise._awaited())
        except BaseException as error:
            made.set_exception(error)
            # Ctrl-C must reach the thread that makes the future.
            if not isinstance(error, Exception):
                raise
    elif failure.cancelled:
        concurrent.futures.Future.cancel(made)
        made.set_running_or_notify_cancel()
    else:
        made.set_exception(failure.error())


class _Unretrieved:
    """A promise in `concurrent.futures.wait`, which may ask for the exception of what is done: the failure stays unretrieved."""

    def __init__(self, promise):
        self._promise = promise

    def __getattr__(self, name):
        return getattr(self._promise, name)

    def exception(self):
        return self._promise._failed() or None


_RETURN_WHEN = (concurrent.futures.ALL_COMPLETED, concurrent.futures.FIRST_COMPLETED, concurrent.futures.FIRST_EXCEPTION)


# Of a list of several kinds mypy takes the common base class for its type, `object`, unless the parameter has their union.
@overload
def wait(promises: Iterable[_Promise], timeout: float | None = None, return_when: str = "ALL_COMPLETED") -> _Waited[_Promise]: ...
@overload
def wait(  # type: ignore[overload-cannot-match]
    promises: Iterable[_AnyPromise], timeout: float | None = None, return_when: str = "ALL_COMPLETED"
) -> _Waited[_AnyPromise]: ...
def wait(promises: Iterable[Any], timeout: float | None = None, return_when: str = concurrent.futures.ALL_COMPLETED) -> _Waited[Any]:
    """Waits for tensors, operations and futures of `concurrent.futures`, as ``concurrent.futures.wait`` does: returns the sets
    `done` and `not_done`.

    timeout: seconds; default no limit. return_when: ``"ALL_COMPLETED"``, ``"FIRST_COMPLETED"`` or
    ``"FIRST_EXCEPTION"``. A failure is not raised here. A wait that can never end raises as `Tensor.wait` does, but
    not the one for the first of promises and futures together. What was done once is in `done`, whatever writes the tensor later. Use
    this function inside operations: `concurrent.futures.wait` occupies a worker there.

        >>> a, b = eng.call(np.zeros, 3), eng.call(np.ones, 3)
        >>> done, not_done = est.wait([a, b])
        >>> len(done), len(not_done)
        (2, 0)
    """
    promises = _checked(promises)
    if return_when not in _RETURN_WHEN:
        raise ValueError(f"return_when is one of {_RETURN_WHEN}, not {return_when!r}")
    # Tensors that were seen done leave this set for good: a later write of the tensor is not waited for.
    until, rest = _until(timeout), _pending(promises)
    are_promises = all(map(_is_promise, rest))
    if not are_promises:
        _check_loop(rest, timeout)
    is_first = return_when == concurrent.futures.FIRST_COMPLETED
    is_all = return_when == concurrent.futures.ALL_COMPLETED
    if not is_all and any(is_first or _has_failed(promise) for promise in promises - rest):
        return _Waited(promises - rest, rest)
    try:
        if is_all:
            for promise in list(filter(_is_promise, rest)):
                _wait_any([promise], _left(until))
                rest.discard(promise)
            _wait_mixed(rest, until, return_when)
        elif not are_promises:
            _wait_mixed(rest, until, return_when)
        elif is_first:
            rest -= set(_wait_any(list(rest), _left(until)))
        else:
            _wait_for_failure(rest, until)
    except TimeoutError:
        pass
    rest = _pending(rest)
    return _Waited(promises - rest, rest)


@overload
def as_completed(promises: Iterable[_Promise], timeout: float | None = None) -> Iterator[_Promise]: ...
@overload
def as_completed(  # type: ignore[overload-cannot-match]
    promises: Iterable[_AnyPromise], timeout: float | None = None
) -> Iterator[_AnyPromise]: ...
def as_completed(promises: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
    """Gives tensors, operations and futures of `concurrent.futures` as they are done, as ``concurrent.futures.as_completed`` does.

    A wait that can never end raises as `Tensor.wait` does, but not the one for promises and futures together.

        >>> sorted(t.shape for t in est.as_completed([eng.call(np.zeros, 3), eng.call(np.ones, 2)]))
        [(2,), (3,)]
    """
    rest, until = _checked(promises), _until(timeout)
    count = len(rest)
    if all(map(_is_promise, rest)):
        try:
            yield from _as_ended(rest, until)
        except TimeoutError:
            # A handler of a signal may have raised it.
            if until is None or _left(until) > 0:
                raise
            raise TimeoutError(f"{len(rest)} of {count} promises are not done within {timeout:g} s") from None
    while rest:
        _check_loop(_pending(rest), _left(until))
        yield from _as_ended_within(rest, _left(until, _loop_slice()))
        if rest and _left(until) == 0:
            raise TimeoutError(f"{len(rest)} of {count} promises are not done within {timeout:g} s")


_SLICE = 0.1
"""Seconds that `concurrent.futures` waits for several promises before the engine is asked whether they can end. A wait in the engine costs
something for each promise each time that one ends. In a notebook `concurrent.futures` waits as long before the event loop is checked.
"""


def _loop_slice():
    return _SLICE if _runs_a_loop() else None


def _wait_mixed(rest, until, return_when):
    """Waits for promises and futures together as ``concurrent.futures.wait`` does, and takes what is done out of `rest`."""
    while rest:
        limit = _loop_slice()
        futures = {_Unretrieved(promise) if _is_promise(promise) else promise for promise in rest}
        done = concurrent.futures.wait(futures, _left(until, limit), return_when).done
        done = {it._promise if isinstance(it, _Unretrieved) else it for it in done}
        rest -= done
        if limit is None or _left(until) == 0 or return_when == concurrent.futures.FIRST_COMPLETED and done:
            return
        if return_when == concurrent.futures.FIRST_EXCEPTION and any(map(_has_failed, done)):
            return
        _check_loop(rest, None)


def _wait_for_failure(rest, until):
    """Waits until one of the promises has failed or all are done, and takes what is done out of `rest`."""
    ends = queue.SimpleQueue()
    notices = [promise._on_end(lambda *end: ends.put(end)) for promise in rest]
    try:
        for _ in _as_ended(rest, until):
            # Each end is put there, soon, with its failure: that of a version that may have been written again.
            promise, failure = ends.get()
            if failure is not None and not failure.cancelled:
                rest.discard(promise)
                return
    finally:
        for notice in filter(None, notices):
            notice.withdraw()


def _as_ended(rest, until):
    """Gives the promises of `rest` as they are done, and takes them out of it. Raises ``TimeoutError``, and what else ends a wait."""
    ended = rest - _pending(rest)
    while True:
        rest -= ended
        yield from ended
        if len(rest) > 1 and not _asks_the_engine():
            yield from _as_ended_within(rest, _left(until, _SLICE))
        if not rest:
            return
        ended = set(_wait_any(list(rest), _left(until)))


def _as_ended_within(rest, timeout):
    """As `_as_ended`, for at most `timeout` seconds, and for futures as well."""
    ends = concurrent.futures.as_completed(rest, timeout)
    while rest:
        try:
            promise = next(ends)
        except TimeoutError:
            return
        rest.discard(promise)
        yield promise


def _checked(promises):
    """The promises that are waited for. `concurrent.futures` would fail where it asks for a condition."""
    if _is_promise(promises):
        raise TypeError(f"a list of promises is waited for, not {type(promises).__qualname__}: write `[x]`")
    # An array, which is none, has no hash either.
    promises = list(promises)
    for promise in promises:
        if not hasattr(promise, "_condition"):
            raise TypeError(f"{promise!r} is no promise: tensors, operations and futures of concurrent.futures are")
    return set(promises)


def _is_promise(promise):
    return isinstance(promise, (Operation, Tensor))


def _has_failed(promise):
    """Leaves the failure of a promise unretrieved."""
    return promise._failed() if _is_promise(promise) else not promise.cancelled() and promise.exception() is not None


def _runs_a_loop() -> bool:
    """True if an event loop runs in this thread. Its module, which takes long to import, is there then."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running is not None and running() is not None


def _asks_the_engine():
    """True if the engine has to know of a wait: in a function of an operation, and on the thread of an event loop."""
    return operation.get() is not None or _runs_a_loop()


def _check_loop(rest, timeout):
    if rest and timeout != 0 and not _may_block():
        raise WouldBlockError("promises are not done; waiting here would stop the running event loop; use `await`")


def _pending(promises):
    return {promise for promise in promises if not promise.done()}


def _until(timeout):
    return None if timeout is None else time.monotonic() + timeout


def _left(until, limit=None):
    """Seconds until then, at most `limit`; None is no limit."""
    if until is None:
        return limit
    left = max(0, until - time.monotonic())
    return left if limit is None else min(left, limit)
