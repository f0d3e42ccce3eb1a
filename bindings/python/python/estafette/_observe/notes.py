"""What was seen: lanes of threads, and what happened on them, as the extension makes a trace of."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
from typing import Any, TypeAlias

clock = time.perf_counter_ns

STEPS_MAX = 1_000_000
"""Steps that are kept: some 400 MB. What does not fit is counted."""

FRAMES_MAX = 64
"""Frames that are looked at for the program's line."""


# Exact tuples of numbers and texts: the garbage collector looks at them once and never again. A program with millions of objects would
# otherwise pay for each full collection that the notes bring about.
Site: TypeAlias = tuple[str, int, str]
"""A line of the program: file, line, function."""

Tensor: TypeAlias = tuple[Any, Any, int | None, str]
"""What was handed over: element type, shape, bytes, library."""

Times: TypeAlias = tuple[int | None, int | None, int | None]
"""Began, done, resumed."""

Step: TypeAlias = tuple[
    int, str, str, str | None, Site | None, int | None, int | None, int, Times, int | None, Tensor | None, str | None
]
"""An operation of the report's model, whose fields `report/src/model/trace.rs` describes: id, kind, name, library, site, submitter,
track, submitted, times, waits_for, tensor, failed. Times are of `clock`."""


Disorder: TypeAlias = tuple[int, str, Site | None, str]
"""A hand-over whose streams nothing ordered, or may not have: its identity, `none` or `unknown`, the line behind which it was made, and
the reason."""


class Notes:
    """Everything that one observation has seen."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.disorders: list[Disorder] = []
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
                (identity, kind, name, library, site, submitter, track, submitted, times, waits_for, tensor, failed)
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

    def finished(self) -> list[tuple[Any, ...]]:
        """The steps, with the names of tensors."""
        # Other threads may still be in a call that they note at its end.
        return [(*step[:-2], None if step[-2] is None else _named(step[-2]), step[-1]) for step in list(self.steps)]

    def missing(self) -> list[str]:
        """What is not among the steps, in words."""
        texts = []
        if self.lost:
            texts.append(f"{self.lost} steps beyond the first {STEPS_MAX} were not kept")
        if self.broken:
            texts.append(f"{self.broken} calls were made and could not be noted")
        return texts


OUTSIDE = frozenset(
    "asyncio concurrent cuda cupy cupyx estafette importlib jax jaxlib numba numba_cuda numpy queue tensorflow threading torch".split()
)
"""Modules whose lines are none of the program."""


def _named(tensor: Tensor) -> tuple[str, int | None, str]:
    kind, shape, size, library = tensor
    kind = str(kind).removeprefix("torch.")
    return (f"{kind}[{','.join(map(str, shape))}] of {library}", size, library)


def _is_library(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in OUTSIDE


_is_outside = functools.lru_cache(maxsize=4096)(_is_library)


def site() -> Site | None:
    """The line of the program that made the call."""
    frame: Any = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame is None:
            return None
        if not _is_outside(frame.f_globals.get("__name__")):
            code = frame.f_code
            return (code.co_filename, frame.f_lineno or 0, code.co_qualname)
        frame = frame.f_back
    return None
