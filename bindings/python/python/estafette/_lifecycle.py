"""The end of an engine's block. Called by the extension, never by users."""

from __future__ import annotations

import asyncio
import gc
import warnings


def warn_of_leases(report):
    """Says so when the end of an engine's block cancelled something."""
    if report.cancelled:
        warnings.warn(
            f"operations were cancelled at the end of the engine, since leases were never returned: "
            f"{', '.join(report.cancelled)} behind {'; '.join(report.leases)}",
            RuntimeWarning,
            stacklevel=3,
        )


async def leave(engine, lease_timeout):
    """Waits until everything in flight has ended; what only leases hold up, no longer than `lease_timeout`."""
    while True:
        try:
            await asyncio.wait_for(engine._drained(), lease_timeout)
            return
        except TimeoutError:
            # Views that nobody can reach any more still have their leases.
            gc.collect()
        report = engine.shutdown(0)
        if not report.running:
            warn_of_leases(report)
            return
