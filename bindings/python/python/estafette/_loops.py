"""Ends of tasks that their event loop does not report. Called by the extension, never by users."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Coroutine

# Exceptions that a task raises out of its event loop. The callbacks of the task are called by the next run of the loop, which may
# never come.
LEAVE = (KeyboardInterrupt, SystemExit)


def create_task(loop, awaitable, failed):
    """A task of `loop` that awaits `awaitable`, and calls ``failed(error)`` for an exception that leaves the loop."""
    reported = _reported(awaitable, failed)
    try:
        task = loop.create_task(reported)
    except BaseException:
        reported.close()
        raise
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
