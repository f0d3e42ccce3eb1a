"""Notices of the end of futures of all kinds. Called by the extension, never by users."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect

from . import _loops

# Two classes of the same name: asyncio's own, and that of thread pools.
_CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)


def source(future):
    """A name for `future`, and the function that makes it call ``delivery(value, error, cancelled)`` once, at its end.

    Nothing is begun yet. Raises ``TypeError`` for what is no future, and ``RuntimeError`` for one that only an event loop
    can bring to its end, when that loop does not run.
    """
    if asyncio.isfuture(future):
        loop = future.get_loop()
        if not loop.is_running():
            if future.done():
                return _name(future), functools.partial(_tell_of, future)
            raise RuntimeError(
                f"{_kind(future)} belongs to an event loop that is not running, so nothing would bring it to its end; "
                "call `from_future` in a coroutine"
            )
        return _name(future), functools.partial(_listen_on_loop, loop, future)
    if callable(getattr(future, "add_done_callback", None)):
        read = getattr(future, "result", None) or getattr(future, "value", None)
        if not callable(read):
            raise TypeError(f"{_kind(future)} has `add_done_callback`, but neither `result()` nor `value()`")
        return _name(future), functools.partial(_listen, future)
    if inspect.isawaitable(future):
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            later = getattr(future, "future", None)
            if not inspect.iscoroutine(future) and callable(later):
                # Ray's references are awaitable, and outside of event loops they give a future of the other kind.
                return source(later())
            raise RuntimeError(
                f"{_kind(future)} can only be awaited, which needs a running event loop; call `from_future` in a coroutine"
            ) from None
        return _name(future), functools.partial(_drive, loop, future)
    raise TypeError(
        f"{_kind(future)} is no future: it has no `add_done_callback` and cannot be awaited; "
        "`from_dlpack` takes arrays, `call` functions"
    )


def _listen(future, delivery):
    """For futures that call back on any thread: those of `concurrent.futures`, Dask and PyTorch."""
    future.add_done_callback(functools.partial(_tell, delivery))


def _listen_on_loop(loop, future, delivery):
    """For asyncio's futures and tasks, which may be touched on the thread of their loop only."""
    if asyncio._get_running_loop() is not loop:
        loop.call_soon_threadsafe(_listen_here, loop, future, delivery)
    elif future.done():
        _tell(delivery, future)
    else:
        _listen_here(loop, future, delivery)


def _listen_here(loop, future, delivery):
    """As `_listen`, on the thread of `loop`."""
    _listen(future, delivery)
    delivery.is_on(loop)
    _loops.on_close(loop, delivery)


def _drive(loop, awaitable, delivery):
    """For what has to be awaited."""
    _listen_here(loop, _loops.create_task(loop, awaitable, lambda error: delivery(None, error, False)), delivery)


def _tell_of(future, delivery):
    _tell(delivery, future)


def _tell(delivery, future):
    """Passes the end of `future` on."""
    try:
        if isinstance(future, (asyncio.Future, concurrent.futures.Future)) and not future.cancelled():
            # An error that `result` raises has the frames of the thread that is here, whose variables may own the tensor: a cycle.
            error = future.exception()
            if error is not None:
                return delivery(None, error, isinstance(error, _CANCELLED))
        value = (getattr(future, "result", None) or future.value)()
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError(f"the result of {_kind(future)} must be awaited: pass `future.result()` instead")
    except BaseException as error:
        cancelled = isinstance(error, _CANCELLED) or _was_cancelled(future)
        delivery(None, error.with_traceback(None) if cancelled else error, cancelled)
    else:
        delivery(value, None, False)


def _was_cancelled(future):
    cancelled = getattr(future, "cancelled", None)
    return callable(cancelled) and cancelled() is True


def _name(future):
    """Tasks and coroutines are called as their function is, other futures as their class."""
    coroutine = future.get_coro() if isinstance(future, asyncio.Task) else future
    return getattr(coroutine, "__qualname__", None) or type(future).__qualname__


def _kind(future):
    kind = type(future)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
