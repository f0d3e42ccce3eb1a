"""Notes of threads, and of what happened on them, as the extension makes a trace of."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from typing import Any, TypeAlias

from . import devices

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
"""A tensor that was handed over: element type, shape, bytes, library."""

Times: TypeAlias = tuple[int | None, int | None, int | None]
"""Began, done, resumed."""

Step: TypeAlias = tuple[
    int, str, str, str | None, Site | None, int | None, int | None, int, Times, int | None, Tensor | None, str | None
]
"""An operation of the report's model, whose fields `report/src/model/trace.rs` describes: id, kind, name, library, site, submitter,
track, submitted, times, waits_for, tensor, failed. Times are of `clock`."""


Verdict: TypeAlias = tuple[str, Site | None, str]
"""A hand-over whose streams nothing ordered, or may not have: `none` or `unknown`, the line behind which it was made, and the reason."""

Exchange: TypeAlias = tuple[
    str, str, str | None, bool, bool, int, int, Site | None, int, Any, Any, Any, str | None, Verdict | None
]
"""A call that hands something over, as short as it can be noted: name, the libraries it goes from and to, whether the first may still have
been at work, whether it was copied, began, done, site, track, element type, shape, bytes, failed, verdict."""

LONG_NS = 1_000_000
"""A wait that has lasted for less when the observation ends is not missed."""

SHORT_NS = 5_000
"""A wait that is shorter is none: the call itself takes some of it."""


class ThreadNotes:
    """The state of a thread that is observed."""

    __slots__ = ("began", "given", "inside", "since", "track")

    def __init__(self, began: int) -> None:
        self.inside = False
        """True if it is in a call that is noted: what that calls is a part of it."""
        self.given: Any = None
        """The stream that the last `__dlpack__` of the call was given."""
        self.began = began
        """The beginning of the thread, or of the observation."""
        self.since: int | None = None
        """The end of its last call of a queue, or the beginning of the function of an executor that it runs; `None` before these, and after the function."""
        self.track: int | None = None


class Notes:
    """Everything that one observation has seen."""

    def __init__(self, orders: devices.Orders) -> None:
        self.orders = orders
        self.steps: list[Step] = []
        self.exchanges: list[Exchange] = []
        self.most = STEPS_MAX
        self.tracks: list[tuple[str, str]] = []
        self.local = threading.local()
        self.noted_threads: dict[tuple[int | None, str], ThreadNotes] = {}
        """Those of Python's threads, for others that wait for their end: identity, which later threads get again, and name."""
        self.calls: dict[int, int] = {}
        """Calls that may wait and have not returned, by thread: when they began."""
        self.lost = 0
        self.broken: list[str] = []
        self.started_unix_ns = time.time_ns()
        self.started = clock()
        self._ids = itertools.count(1)
        self._before = frozenset(thread.ident for thread in threading.enumerate())
        self._starts: dict[int, tuple[weakref.ref[threading.Thread], int]] = {}

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
        if len(self.steps) >= self.most:
            self.lost += 1
        else:
            times = (began, done, resumed)
            self.steps.append(
                (identity, kind, name, library, site, submitter, track, submitted, times, waits_for, tensor, failed)
            )
        return identity

    def lose(self, error: Exception) -> None:
        """A call could not be noted."""
        self.broken.append(f"{type(error).__name__}: {error}"[:200] if not self.broken else "")

    def thread_notes(self) -> ThreadNotes:
        """The notes of this thread."""
        try:
            thread_notes: ThreadNotes = self.local.thread_notes
        except AttributeError:
            thread_notes = self.local.thread_notes = ThreadNotes(self._began())
        return thread_notes

    def starts(self, thread: threading.Thread, at: int) -> None:
        """A thread is started by the program."""
        key = id(thread)
        # A subclass may not be hashable.
        self._starts[key] = weakref.ref(thread, lambda _: self._starts.pop(key, None)), at

    def _began(self) -> int:
        """The beginning of this thread, or of the observation. For a thread that Python did not start, that is now, as nothing is known of it."""
        # `current_thread` would make an object for it.
        thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
        start = self._starts.get(id(thread))
        if thread is not None and start is not None and start[0]() is thread:
            return start[1]
        return self.started if threading.get_ident() in self._before else clock()

    def track(self, kind: str = "thread") -> int:
        """The track of this thread."""
        thread_notes = self.thread_notes()
        if thread_notes.track is None:
            # `current_thread` would make an object for a thread that is none of Python's.
            thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
            if thread is not None:
                self.noted_threads[thread.ident, thread.name] = thread_notes
            name = thread.name if thread is not None else f"thread {threading.get_native_id()}"
            thread_notes.track = self._add_track(name, kind)
        elif kind != "thread":
            self.tracks[thread_notes.track] = (self.tracks[thread_notes.track][0], kind)
        return thread_notes.track

    def _add_track(self, name: str, kind: str) -> int:
        # A list grows by one thread at a time: the place is found again by what was put there.
        own = (name, kind)
        self.tracks.append(own)
        return next(at for at, it in enumerate(self.tracks) if it is own)

    def track_of(self, thread: threading.Thread, now: int) -> tuple[int, int]:
        """The track of another thread, and since when it does what it does `now`, as far as that is known."""
        thread_notes = self.noted_threads.setdefault((thread.ident, thread.name), ThreadNotes(self.started))
        if thread_notes.track is None:
            thread_notes.track = self._add_track(thread.name, "thread")
        return thread_notes.track, now if thread_notes.since is None else min(thread_notes.since, now)

    def finished(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """The steps, with the names of tensors, and the hand-overs that nothing ordered, by the identity of their step."""
        disorders: list[tuple[Any, ...]] = []
        # Other threads may still be in a call that they note at its end.
        for exchange in list(self.exchanges):
            self._add_exchange(exchange, disorders)
        steps = [(*step[:-2], None if step[-2] is None else _named(step[-2]), step[-1]) for step in list(self.steps)]
        return steps, disorders

    def _add_exchange(self, exchange: Exchange, disorders: list[tuple[Any, ...]]) -> None:
        name, origin, to, pending, copied, began, ended, place, track, kind, shape, size, failed, verdict = exchange
        to = to or None
        tensor = (kind, shape, size if isinstance(size, int) and 0 <= size < 2**63 else None, origin)
        blocker = identity = None
        if copied:
            goal = to or "the host"
            what = f"work of {origin} and its copy to {goal}" if pending else f"copy from {origin} to {goal}"
            blocker = identity = self.add(
                "copy",
                what,
                began,
                library=to,
                site=place,
                submitter=track,
                track=track,
                began=began,
                done=ended,
                tensor=tensor,
            )
        elif failed is None:
            at = ended if pending else began
            identity = self.add(
                "export", name, at, library=to, site=place, submitter=track, began=at, done=ended, resumed=at, tensor=tensor
            )
        if verdict is not None:
            disorders.append((identity, *verdict))
        if (copied or pending) and ended - began >= SHORT_NS:
            if blocker is None:
                blocker = self.work_of(origin, track, began, ended)
            self.wait(name, place, track, began, ended, blocker, library=to, failed=failed)

    def work(self, name: str, track: int, place: Site | None, began: int, ended: int) -> int:
        """Work that a thread has done, or a step of its loop."""
        return self.add("operation", name, began, site=place, submitter=track, track=track, began=began, done=ended)

    def work_of(self, library: str, track: int, began: int, ended: int) -> int:
        """Work that a library does while it is waited for, of which nothing else is seen."""
        return self.add(
            "operation", f"work of {library}", began, library=library, submitter=track, began=began, done=ended
        )

    def unseen_work(self, began: int, ended: int) -> int:
        """The work of a future that no observed executor has."""
        return self.add("operation", "work that is not observed", began, submitter=self.track(), began=began, done=ended)

    def wait(
        self,
        name: str,
        place: Site | None,
        track: int,
        began: int,
        ended: int,
        blocker: int | None,
        *,
        library: str | None = None,
        failed: str | None = None,
    ) -> None:
        """A wait of a thread."""
        self.add(
            "wait",
            name,
            began,
            library=library,
            site=place,
            submitter=track,
            resumed=ended,
            waits_for=blocker,
            failed=failed,
        )

    def missing(self) -> list[str]:
        """The things that are not among the steps, in words."""
        texts = []
        if self.lost:
            texts.append(f"{self.lost} steps beyond the first {self.most} were not kept")
        if self.broken:
            texts.append(f"{len(self.broken)} calls were made and could not be noted; the first: {self.broken[0]}")
        now = clock()
        waits = [now - began for began in list(self.calls.values()) if now - began >= LONG_NS]
        # Without any step there is no trace that could lack them.
        if waits and self.steps:
            were = "1 wait had" if len(waits) == 1 else f"{len(waits)} waits had"
            texts.append(f"{were} not ended, and is not counted: the longest had lasted {max(waits) / 1e9:.3g} s")
        return texts


MODULES_MAX = 4_096
"""Modules that are remembered."""

SITES_MAX = 10_000
"""Lines that are remembered."""

_sites: dict[tuple[int, int], tuple[Any, Site]] = {}

OUTSIDE = frozenset(
    (*"asyncio concurrent estafette importlib jax jaxlib numpy queue runpy tensorflow threading torch".split(), *devices.MODULES)
)
"""Modules whose lines are none of the program."""


def _named(tensor: Tensor) -> tuple[str, int | None, str]:
    kind, shape, size, library = tensor
    kind = str(kind).removeprefix("torch.")
    return (f"{kind}[{','.join(map(str, shape))}] of {library}", size, library)


def _is_library(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in OUTSIDE


_outside: dict[Any, bool] = {}
"""Modules that were seen, and whether they are outside of the program."""


def _is_outside(module: Any) -> bool:
    if len(_outside) >= MODULES_MAX:
        _outside.clear()
    found = _outside[module] = _is_library(module)
    return found


def site(depth: int = 1) -> Site | None:
    """The line of the program that made the call; `depth` callers are none of it."""
    frame: Any = sys._getframe(depth)
    for _ in range(FRAMES_MAX):
        if frame is None:
            return None
        name = frame.f_globals.get("__name__")
        is_outside = _outside.get(name)
        if is_outside is None:
            is_outside = _is_outside(name)
        if not is_outside:
            code = frame.f_code
            # Cheaper than the search for the line and a text of its own. The code is kept, as its identity is the key.
            key = (id(code), frame.f_lasti)
            found = _sites.get(key)
            if found is None:
                if len(_sites) >= SITES_MAX:
                    _sites.clear()
                found = _sites[key] = (code, (code.co_filename, frame.f_lineno or 0, code.co_qualname))
            return found[1]
        frame = frame.f_back
    return None
