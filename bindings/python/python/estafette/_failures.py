"""Failures that nothing has looked at. Called by the extension, never by users."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import math
import sys
import time
import types

from ._estafette import _kept_errors, _shown


class _Unretrieved:
    """The object of a failure for `sys.unraisablehook`: its words are the text of the report."""

    def __init__(self, error):
        self._text = f"the failure of operation `{_shown(error.operation)}` (op {error.id}), which was never retrieved"

    def __repr__(self):
        return self._text


def log(error):
    """Logs a failure that nothing has looked at; gives the object that goes to `sys.unraisablehook` with it.

    Where logging has no handler the hook alone tells of it: `logging` would print to the standard error as well.
    """
    unretrieved = _Unretrieved(error)
    logger = logging.getLogger("estafette")
    if logger.hasHandlers():
        logger.error("%r", unretrieved, exc_info=error)
    return unretrieved


def raised(errors, omitted, report):
    """The exception that the end of an engine raises for failures that nothing has looked at: the failure, or a group of several."""
    error = errors[0]
    if len(errors) > 1 or omitted:
        count = len(errors) + omitted
        error = ExceptionGroup(f"{count} operations failed, and nothing has looked at their failures", errors)
    if omitted:
        error.add_note(f"{omitted} more failures are not listed; each was reported when its last handle went")
    if report is not None and not report.drained:
        error.add_note(f"the shutdown of the engine ended so: {report}")
    return error


def say_abandoned(lines, more, interrupted):
    """Names, at the interpreter's exit, the operations that it does not wait for any longer."""
    why = "the wait for them was interrupted" if interrupted else "none of them has ended lately"
    text = "".join(f"\n    {line}" for line in lines)
    if more:
        text += f"\n    and {more} more"
    if sys.stderr is not None:
        print(f"estafette: operations are abandoned at exit, since {why}:{text}", file=sys.stderr, flush=True)


_LINKS: tuple[type, ...] = (BaseException, types.TracebackType, types.FrameType)
_ALONE = [object()]
# The count `sys.getrefcount(found[place])` of an object that is in `found` alone.
_LISTED = sys.getrefcount(_ALONE[0])


def forget_waiters():
    """Gives exceptions that only failures keep the traceback and the context back that they had when the operations failed.

    Who raises the cause of a failure again adds its own frames to the traceback, and a function that ran on the thread that waited
    has the frames of that thread behind its own. Their variables may own the failed tensor: a cycle through the engine, whose
    references the garbage collector does not know.
    """
    kept = _kept_errors()
    if not kept:
        return
    found, places, behind = [], {}, []

    def place_of(thing):
        place = places.setdefault(id(thing), len(found))
        if place == len(found):
            found.append(thing)
        return place

    # Of each thing in `found`, the references that are known: the failure's own, those of `kept`, and those among each other.
    known = {}
    for things in kept:
        for thing in things:
            if thing is not None:
                place = place_of(thing)
                known[place] = known.get(place, 0) + 2
    for thing in found:
        behind.append([place_of(other) for other in gc.get_referents(thing) if issubclass(type(other), _LINKS)])
        for place in behind[-1]:
            known[place] = known.get(place, 0) + 1
    thing = things = None
    reached = [place for place in range(len(found)) if sys.getrefcount(found[place]) - _LISTED > known.get(place, 0)]
    alive = set(reached)
    while reached:
        new = set(behind[reached.pop()]) - alive
        alive |= new
        reached.extend(new)
    for error, traceback, context in kept:
        if places[id(error)] not in alive:
            error.__traceback__, error.__context__ = traceback, context
    for place, thing in enumerate(found):
        if place not in alive and type(thing) is types.FrameType:
            # Frames that run are reached otherwise.
            with contextlib.suppress(RuntimeError):
                thing.clear()


# From CPython 3.14 on, collections that come by themselves are increments of generation 1, and many of them make one of all objects.
_INCREMENTAL = sys.version_info >= (3, 14)
_SECONDS_BETWEEN_INCREMENTS = 1.0
_looked_at = -math.inf


def _on_collection(phase, info):
    global _looked_at
    generation = info["generation"]
    if phase != "start" or generation < (1 if _INCREMENTAL else 2):
        return
    now = time.monotonic()
    if generation == 2 or now - _looked_at >= _SECONDS_BETWEEN_INCREMENTS:
        _looked_at = now
        forget_waiters()


gc.callbacks.append(_on_collection)
# At the end of the interpreter the names of modules go before the last collection.
atexit.register(gc.callbacks.remove, _on_collection)
