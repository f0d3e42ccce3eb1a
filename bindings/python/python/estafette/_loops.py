"""What tasks of event loops are suspended on, and ends of tasks that their loop does not report. Called by the extension, never by users."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Coroutine

# What a task raises out of its event loop. The callbacks of the task are called by the next run of the loop, which may
# never come.
LEAVE = (KeyboardInterrupt, SystemExit)


def create_task(loop, awaitable, failed, **options):
    """A task of `loop` that awaits `awaitable`, and calls ``failed(error)`` for an exception that leaves the loop."""
    task = loop.create_task(_reported(awaitable, failed), **options)
    if isinstance(awaitable, Coroutine):
        # A task that is cancelled before its first step awaits nothing.
        task.add_done_callback(lambda _: awaitable.close())
    return task


async def _reported(awaitable, failed):
    try:
        return await awaitable
    except LEAVE as error:
        failed(error)
        raise


def on_close(loop, end):
    """Calls ``end.lost()`` when `loop` is closed, if `end` still exists.

    Tasks that are pending when their loop is closed never resume. They are part of reference cycles, so only a
    collection of garbage would free them.
    """
    ends = getattr(loop, "_estafette_ends", None)
    if ends is None:
        ends = loop._estafette_ends = weakref.WeakSet()
        # A loop that nothing refers to any more goes at once.
        loop.close = functools.partial(_close, weakref.ref(loop), vars(loop).get("close"), ends)
    ends.add(end)


def _close(reference, before, ends):
    loop = reference()
    if loop is None:
        # The garbage collector clears references before it calls `BaseEventLoop.__del__`, which calls this.
        loop = sys._getframe(1).f_locals["self"]
    before() if before else type(loop).close(loop)
    for end in list(ends):
        end.lost()


class _Suspension:
    """What a task is suspended on: a future in asyncio's sense, as far as tasks need one. It is touched on the thread of `loop` only.

    asyncio's own future would do, and costs a turn of the loop more: finishing it has the loop call the task's wake-up in its
    next turn. Here the wake-up is called where the suspension is finished, which is in a callback of the loop already.
    """

    __slots__ = ("__weakref__", "_asyncio_future_blocking", "_callbacks", "_end", "_loop", "_message")

    def __init__(self, loop):
        # Set by the awaitable that yields the future to a task, cleared by the task: so asyncio distinguishes `await` from a bare `yield`.
        self._asyncio_future_blocking = True
        self._loop, self._end, self._message, self._callbacks = loop, "pending", None, []

    def __repr__(self):
        return f"<estafette wait, {self._end}>"

    def get_loop(self):
        return self._loop

    def done(self):
        return self._end != "pending"

    def cancelled(self):
        return self._end == "cancelled"

    def result(self):
        """What the task asks when it is woken."""
        if self._end == "pending":
            raise RuntimeError("this wait is not over")
        if self._end == "cancelled":
            from asyncio import CancelledError

            raise CancelledError() if self._message is None else CancelledError(self._message)

    exception = result

    def add_done_callback(self, function, /, *, context=None):
        if self._end == "pending":
            self._callbacks.append((function, context))
        else:
            self._loop.call_soon(function, self, context=context)

    def remove_done_callback(self, function):
        before, self._callbacks = self._callbacks, [known for known in self._callbacks if known[0] != function]
        return len(before) - len(self._callbacks)

    def cancel(self, msg=None):
        """Ends the waiting; the task hears of it in the next turn, as with any future of asyncio."""
        if self._end != "pending":
            return False
        self._end, self._message = "cancelled", msg
        callbacks, self._callbacks = self._callbacks, []
        for function, context in callbacks:
            self._loop.call_soon(function, self, context=context)
        return True

    def finish(self):
        """Resumes the task that is suspended, within this call and in the context that the task has asked for. Called by the loop.

        Raises what a callback raises, after all of them were called: tasks let only `KeyboardInterrupt` and `SystemExit` out.
        """
        if self._end == "pending":
            self._end = "finished"
            callbacks, self._callbacks = self._callbacks, []
            self._call(iter(callbacks))

    def _call(self, callbacks):
        for function, context in callbacks:
            try:
                if context is None:
                    function(self)
                else:
                    context.run(function, self)
            except BaseException:
                self._call(callbacks)
                raise
