"""What was seen: lanes of threads, and what happened on them, as the extension makes a trace of."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from typing import Any, NamedTuple

clock = time.perf_counter_ns

STEPS_MAX = 1_000_000
"""Steps that are kept: some 400 MB. What does not fit is counted."""

FRAMES_MAX = 64
"""Frames that are looked at for the program's line."""


class Site(NamedTuple):
    """A line of the program."""

    file: str
    line: int
    function: str


class Tensor(NamedTuple):
    """What was handed over."""

    name: str
    bytes: int | None
    library: str | None


class Step(NamedTuple):
    """An operation of the report's model: `report/src/model/trace.rs` describes the fields. Times are of `clock`."""

    id: int
    kind: str
    name: str
    library: str | None
    site: Site | None
    submitter: int | None
    track: int | None
    submitted: int
    times: tuple[int | None, int | None, int | None]
    """Began, done, resumed."""
    waits_for: int | None
    tensor: Tensor | None
    failed: str | None


class Notes:
    """Everything that one observation has seen."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.tracks: list[tuple[str, str]] = []
        self.local = threading.local()
        self.lost = 0
        self.broken = 0
        self.started_unix_ns = time.time_ns()
        self.started = clock()
        self._ids = itertools.count(1)

    def identity(self) -> int:
        """The identity of a step that is added later."""
        return next(self._ids)

    def add(
        self,
        kind: str,
        name: str,
        submitted: int,
        *,
        identity: int | None = None,
        library: str | None = None,
        site: Site | None = None,
        submitter: int | None = None,
        track: int | None = None,
        began: int | None = None,
        done: int | None = None,
        resumed: int | None = None,
        waits_for: int | None = None,
        tensor: Tensor | None = None,
        failed: str | None = None,
    ) -> int:
        """Adds a step and returns its identity."""
        identity = next(self._ids) if identity is None else identity
        if len(self.steps) >= STEPS_MAX:
            self.lost += 1
        else:
            times = (began, done, resumed)
            self.steps.append(
                Step(identity, kind, name, library, site, submitter, track, submitted, times, waits_for, tensor, failed)
            )
        return identity

    def track(self, kind: str = "thread") -> int:
        """The lane of this thread."""
        track: int | None = getattr(self.local, "track", None)
        if track is None:
            # `current_thread` would make an object for a thread that is none of Python's.
            thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
            name = thread.name if thread is not None else f"thread {threading.get_native_id()}"
            # A list grows by one thread at a time: the place is found again by what was put there.
            own = (name, kind)
            self.tracks.append(own)
            track = self.local.track = next(at for at, it in enumerate(self.tracks) if it is own)
        elif kind != "thread":
            self.tracks[track] = (self.tracks[track][0], kind)
        return track

    def missing(self) -> list[str]:
        """What is not among the steps, in words."""
        texts = []
        if self.lost:
            texts.append(f"{self.lost} steps beyond the first {STEPS_MAX} were not kept")
        if self.broken:
            texts.append(f"{self.broken} calls were made and could not be noted")
        return texts


OUTSIDE = frozenset(
    "asyncio concurrent estafette importlib jax jaxlib numpy queue tensorflow threading torch".split()
)
"""Modules whose lines are none of the program."""


def site() -> Site | None:
    """The line of the program that made the call."""
    frame: Any = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame is None:
            return None
        module = frame.f_globals.get("__name__")
        if not isinstance(module, str) or module.partition(".")[0] not in OUTSIDE:
            code = frame.f_code
            return Site(code.co_filename, frame.f_lineno or 0, code.co_qualname)
        frame = frame.f_back
    return None
