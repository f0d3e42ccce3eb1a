"""The end of an engine's block. Called by the extension, never by users."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
import weakref

from ._estafette import _shown

# Limit of the wait for another thread's collection, and the time between two looks, in seconds.
_OTHERS_COLLECTION_MAX = 1.0
_LOOK = 0.001

# The least time between two rounds of an engine's end, in seconds.
_ROUND_MIN = 1.0


class _Garbage:
    """An object that only a collection can free."""

    def __init__(self):
        self.itself = self


def collect():
    """Collects garbage, and makes sure of it: `gc.collect` does nothing while another thread collects."""
    witness = weakref.ref(_Garbage())
    deadline = time.monotonic() + _OTHERS_COLLECTION_MAX
    while True:
        gc.collect()
        if witness() is None or time.monotonic() > deadline:
            return
        time.sleep(_LOOK)


def warn_of_leases(report, level=2):
    """Says so when the end of an engine's block cancelled something. The block is in the frame at `level` of the stack."""
    if report.cancelled:
        warnings.warn(
            f"operations were cancelled at the end of the engine, since leases were never returned: "
            f"{', '.join(map(_shown, report.cancelled))} behind {'; '.join(report.leases)}",
            RuntimeWarning,
            stacklevel=level,
        )


async def leave(engine, lease_timeout, raising):
    """Waits until everything in flight has ended; what only leases hold up, no longer than `lease_timeout`."""
    try:
        await _drained(engine, lease_timeout)
    except BaseException:
        engine._conclude(True)
        raise
    engine._conclude(raising)


async def _drained(engine, lease_timeout):
    while True:
        try:
            await asyncio.wait_for(engine._drained(), lease_timeout)
            return
        except TimeoutError:
            # Views that are unreachable still have their leases.
            collect()
        report = engine._cancel_held()
        if not report.running and not report.unlisted:
            warn_of_leases(report, level=4)
            return
        # Operations that run may run for long, and each round collects garbage.
        lease_timeout = max(lease_timeout, _ROUND_MIN)
