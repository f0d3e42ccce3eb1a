"""Failures that nothing has looked at. Called by the extension, never by users."""

from __future__ import annotations

import logging
import sys

from ._estafette import _shown


class _Unretrieved:
    """What `sys.unraisablehook` is told of a failure: its words are the text of the report."""

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
    """What the end of an engine raises for failures that nothing has looked at: the failure, or a group of several."""
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
