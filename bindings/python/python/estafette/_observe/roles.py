"""Notes of calls, by the role that the table gives the function. The call itself is made as it is."""

from __future__ import annotations

import contextvars
import functools
import os
import sys
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _kinds
from . import devices
from .devices import is_on_device, pointer_of
from .notes import SHORT_NS, Notes, Site, ThreadNotes, clock, site
from .table import COPIES, DEVICE_LIBRARIES, EITHER, HAND_OVERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .patches import Observed
    from .table import Row

BLOCKED_NS = 10_000_000
"""A step of an event loop that takes longer blocks it. asyncio's own debug mode begins at ten times that."""

LIBRARIES = ("numpy", "jax", "torch", "tensorflow", *devices.LIBRARIES)
NAMES = {"jaxlib": "jax", **devices.NAMES}
ARRAYS = ("__dlpack__", "__array__", *_kinds.arrays())
QUEUES_MAX = 10_000
"""Queues of which calls are remembered."""

TURNS_MAX = 256
"""Calls of one side of a queue that are remembered until a call of the other side has taken each."""

DEFAULT = 0
"""The stream that `None` stands for, the device's default one, as observers have it."""

NO_ARRAY = ""
"""The library of what is no array."""

open_notes: Notes | None = None
"""The notes that calls are added to; `None` while nothing is observed, and in a forked child."""


# --- Arrays -----------------------------------------------------------------------------------------------------------


def _library(kind: Any) -> str:
    roots = [str(base.__module__).partition(".")[0] for base in kind.__mro__]
    roots = [NAMES.get(root, root) for root in roots]
    known = next((root for root in roots if root in LIBRARIES), None)
    if known is None and not any(hasattr(kind, name) for name in ARRAYS):
        return NO_ARRAY
    return known or roots[0]


KINDS_MAX = 1024
"""Classes of which the library is remembered."""

libraries: dict[Any, str] = {}
"""The libraries of classes that were seen."""


def library_of(kind: Any) -> str:
    """The library of a class of arrays."""
    found = libraries.get(kind)
    if found is None:
        if len(libraries) >= KINDS_MAX:
            libraries.clear()
        found = libraries[kind] = _library(kind)
    return found


def _is_pending(library: str, array: Any, row: Row) -> bool:
    """True if the library may still be computing it, and the call waits for that."""
    match library:
        case "numpy":
            return False
        case "jax":
            if not hasattr(array, "is_ready") or array.is_ready():
                return False
            # A stream waits for it then, and not the host.
            return not (row.library in DEVICE_LIBRARIES and row.name.endswith("_dlpack") and is_on_device(library, array))
    if library in DEVICE_LIBRARIES and row.library in DEVICE_LIBRARIES and row.role in HAND_OVERS:
        # Of these the consumers wait on the host that take a stream from an array interface.
        return library in devices.HOST_WAITS and row.library in devices.HOST_WAITS and row.name != "from_dlpack"
    return library != "torch" or not array.is_cpu


def _is_copied(row: Row, source: Any, origin: str, result: Any, options: dict[str, Any]) -> bool:
    """True if the result is in memory of its own."""
    if row.role == "to_host" or options.get("copy") is True:
        return True
    if row.role in ("view", "give"):
        return False
    if row.library == "numpy" or row.role == "to_numpy":
        return bool(getattr(getattr(result, "flags", None), "owndata", False)) or row.library in devices.LIBRARIES
    if row.role == "move":
        return result is not source
    if row.role == "take" and row.library == "jax":
        # The result is not asked, which would wait for it. `docs/peers.md`: JAX copies what the host has aligned to less than 64 bytes.
        before = pointer_of(origin, source)
        return before is not None and (
            row.name in ("asarray", "array") or (before % 64 != 0 and not is_on_device(origin, source))
        )
    if row.role == "take" and row.name not in ("from_dlpack", "from_numpy"):
        before = pointer_of(origin, source)
        return before is not None and before != pointer_of(row.library, result)
    return False


# --- Calls that hand data over or wait --------------------------------------------------------------------------------


def _timed(
    notes: Notes,
    observed: Observed,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    note: Callable[[int, int, Any, str | None], None],
) -> Any:
    """Makes the call; `note` gets when it began and ended, its result, and the class of its exception."""
    thread_notes = notes.thread_notes()
    thread_notes.inside = True
    result, failed = None, None
    try:
        began = notes.calls[threading.get_ident()] = clock()
        try:
            result = observed._original(*args, **kwargs)
        except BaseException as error:
            failed = type(error).__name__
            raise
        finally:
            ended = clock()
            notes.calls.pop(threading.get_ident(), None)
            if observed._act is not None and failed is None:
                _noted(notes, observed._act, notes.orders, args, kwargs, result)
            _noted(notes, note, began, ended, result, failed)
        return result
    finally:
        thread_notes.inside = False


def _noted(notes: Notes, note: Callable[..., Any], *about: Any) -> Any:
    """The answer to a question, or `None`. Whatever goes wrong with a note is none of the program's business; it is counted."""
    thread_notes = notes.thread_notes()
    before, thread_notes.inside = thread_notes.inside, True
    try:
        return note(*about)
    except Exception as error:
        notes.lose(error)
        return None
    finally:
        thread_notes.inside = before


def _acted(notes: Notes, observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Makes a call, and notes what it did to the order of streams."""
    result = observed._original(*args, **kwargs)
    if observed._act is not None:
        _noted(notes, observed._act, notes.orders, args, kwargs, result)
    return result


# In one function with few calls, because a program that exchanges at every turn comes here each time with cold caches.
def exchange(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any], to: str | None = None) -> Any:
    """A call that hands an argument over to a library, or to the host."""
    notes = open_notes
    if notes is None:
        return observed._original(*args, **kwargs)
    original, row, act, name, goal, at, stays, keeps_stream, between_devices, copies = observed._plan
    if to is None:
        to = goal
    source: Any = args[at] if len(args) > at else next(iter(kwargs.values()), None)
    kind: Any = type(source)
    try:
        origin = libraries.get(kind)
        if origin is None:
            origin = library_of(kind)
    except Exception as error:
        # A class may not be hashable.
        notes.lose(error)
        return _acted(notes, observed, args, kwargs)
    thread_notes = notes.thread_notes()
    # An array that stays in its library is no hand-over, unless it names another stream.
    if thread_notes.inside or (origin == to and not stays) or (origin == NO_ARRAY and copies != COPIES):
        return _acted(notes, observed, args, kwargs)
    origin = origin or row.library
    thread_notes.inside = True
    result: Any = None
    pending, failed = False, None
    begun: tuple[int, ...] = ()
    try:
        try:
            pending = origin != "numpy" and _is_pending(origin, source, row)
            if between_devices and origin != "numpy":
                begun = notes.orders.begin()
        except Exception as error:
            notes.lose(error)
        if not keeps_stream:
            thread_notes.given = None
        began = clock()
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            failed = type(error).__name__
            raise
        finally:
            ended = clock()
            try:
                # Nothing waits for a value that is on the host.
                if act is not None and failed is None and (pending or copies != COPIES):
                    act(notes.orders, args, kwargs, result)
                if row.role != "move" or failed is not None or (result is not source and result.device != source.device):
                    copied = copies == COPIES
                    if copies == EITHER or kwargs:
                        copied = _is_copied(row, source, origin, result, kwargs)
                    verdict = None
                    if begun and failed is None:
                        verdict = _verdict(notes.orders, row, begun, origin, source, to, thread_notes, args, kwargs)
                    try:
                        dtype, shape, size = source.dtype, tuple(source.shape), source.nbytes
                    except Exception:
                        dtype, shape, size = _about(source)
                    place = site(2)
                    track = notes.track() if thread_notes.track is None else thread_notes.track
                    copied = copied and failed is None
                    noted = (name, origin, to, pending, copied, began, ended, place, track, dtype, shape, size, failed, verdict)
                    if len(notes.exchanges) < notes.most:
                        notes.exchanges.append(noted)
                    else:
                        notes.lost += 1
            except Exception as error:
                notes.lose(error)
        return result
    finally:
        thread_notes.inside = False


def _about(array: Any) -> tuple[Any, Any, int | None]:
    """Element type, shape and bytes."""
    try:
        size = getattr(array, "nbytes", None)
        return (array.dtype, tuple(array.shape), size)
    except Exception:
        return (type(array).__name__, (), None)


def _verdict(
    orders: devices.Orders,
    row: Row,
    begun: tuple[int, ...],
    origin: str,
    source: Any,
    to: str,
    thread_notes: ThreadNotes,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The verdict on the order of a hand-over of device memory."""
    asked = kwargs.get("stream_ptr", args[2] if len(args) > 2 and row.role == "view" else None)
    return orders.hand_over(begun, origin, source, to, asked, thread_notes.given, kwargs)


def give(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    notes = open_notes
    if notes is not None and observed._row.name.endswith("__dlpack__"):
        # Without a stream nothing is ordered, whatever a library takes `None` for.
        stream = kwargs.get("stream", -1)
        notes.thread_notes().given = DEFAULT if stream is None else stream
    # Without a frame where an engine's worker asks for a result.
    frame = sys._getframe(1).f_back
    caller = "" if frame is None else str(frame.f_globals.get("__name__")).partition(".")[0]
    caller = NAMES.get(caller, caller)
    return exchange(observed, args, kwargs, caller if caller in LIBRARIES else "")


def acts(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that orders streams and neither hands over nor waits."""
    notes = open_notes
    return observed._original(*args, **kwargs) if notes is None else _acted(notes, observed, args, kwargs)


def look(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of a tensor whose result depends on its values: it waits if the tensor is on a device."""
    if args and is_on_device(observed._row.library, args[0]):
        return wait(observed, args, kwargs)
    return observed._original(*args, **kwargs)


def _wait_for(
    observed: Observed,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    blocker: Callable[[Notes, int, int], int],
) -> Any:
    """A call that only waits; `blocker` gives what for."""
    notes = open_notes
    if notes is None:
        return observed._original(*args, **kwargs)
    if notes.thread_notes().inside:
        return _acted(notes, observed, args, kwargs)

    def note(began: int, ended: int, _result: Any, failed: str | None) -> None:
        if ended - began >= SHORT_NS:
            waits_for = blocker(notes, began, ended)
            notes.wait(observed._name, site(), notes.track(), began, ended, waits_for, failed=failed)

    return _timed(notes, observed, args, kwargs, note)


def wait(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that waits for the work of its library."""
    library = observed._row.library
    return _wait_for(observed, args, kwargs, lambda notes, began, ended: notes.work_of(library, notes.track(), began, ended))


# --- Futures and executors --------------------------------------------------------------------------------------------


class _Work:
    """Work that an executor was given."""

    def __init__(self, identity: int) -> None:
        self.identity = identity
        self.submitted: int | None = None
        self.submitter: int | None = None
        self.is_seen = False
        """True if an executor has it that is observed."""


def _work_for(notes: Notes, future: Any) -> _Work:
    """The work that a future is of. A future is found by its identity: a subclass may not be hashable."""
    works: dict[int, tuple[Any, _Work]] = notes.__dict__.setdefault("works", {})
    key = id(future)
    found = works.get(key)
    if found is None or found[0]() is not future:
        found = works[key] = (weakref.ref(future, lambda _: works.pop(key, None)), _Work(notes.identity()))
    return found[1]


def result(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A wait for a future."""

    def blocker(notes: Notes, began: int, ended: int) -> int:
        work = _work_for(notes, args[0])
        # Processes, event loops and the program itself have futures too, and an executor may have begun before the observation.
        return work.identity if work.is_seen else notes.unseen_work(began, ended)

    return _wait_for(observed, args, kwargs, blocker)


def submit(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A submission to an executor: its time is noted."""
    notes = open_notes
    if notes is None:
        return observed._original(*args, **kwargs)
    began = clock()
    future = observed._original(*args, **kwargs)

    def note() -> None:
        work = _work_for(notes, future)
        work.submitted, work.submitter, work.is_seen = began, notes.track(), True

    _noted(notes, note)
    return future


def work(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The work of an executor, on its thread. Functions that it calls are seen by themselves."""
    notes = open_notes
    if notes is None:
        return observed._original(*args, **kwargs)
    item = args[0]
    # The function's work until it calls a queue begins with it.
    notes.thread_notes().since = clock()
    # The item releases them when it is done.
    future, function = getattr(item, "future", None), getattr(item, "fn", None) or getattr(item, "task", (None,))[0]
    work = _noted(notes, _work_for, notes, future)
    if work is not None:
        work.is_seen = True
    began = clock()
    try:
        return observed._original(*args, **kwargs)
    finally:
        if work is not None:
            _noted(notes, _note_work, notes, work, function, began, clock())


def _described(what: Any, line: int | None = None) -> tuple[str, Site | None]:
    """The name of a function or a coroutine, and the `line` of it, or the first."""
    while isinstance(what, functools.partial):
        # `asyncio.to_thread` runs its function in the context of its caller.
        is_in_context = bool(what.args) and isinstance(getattr(what.func, "__self__", None), contextvars.Context)
        what = what.args[0] if is_in_context else what.func
    code = getattr(what, "cr_code", None) or getattr(what, "__code__", None)
    name = getattr(what, "__qualname__", type(what).__qualname__)
    return name, None if code is None else (code.co_filename, line or code.co_firstlineno, code.co_qualname)


def _note_work(notes: Notes, work: _Work, function: Any, began: int, ended: int) -> None:
    name, place = _described(function)
    submitted = began if work.submitted is None else min(work.submitted, began)
    track = notes.track()
    # Until its next function, or its end, the thread has nothing to do.
    notes.thread_notes().since = None
    submitter = track if work.submitter is None else work.submitter
    notes.add(
        "operation",
        name,
        submitted,
        identity=work.identity,
        site=place,
        submitter=submitter,
        track=track,
        began=began,
        done=ended,
    )


# --- Queues -----------------------------------------------------------------------------------------------------------


class _Turn:
    """The work of a thread from its last call of a queue to the next."""

    def __init__(self, name: str, track: int, place: Site | None, since: int, until: int) -> None:
        self.name, self.track, self.place, self.since, self.until = name, track, place, since, until
        self.identity: int | None = None

    def noted(self, notes: Notes) -> int:
        if self.identity is None:
            self.identity = notes.work(self.name, self.track, self.place, self.since, self.until)
        return self.identity


def get(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _queue_call(observed, args, kwargs, "get", "put")


def put(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _queue_call(observed, args, kwargs, "put", "get")


_Turns: TypeAlias = dict[tuple[int, str], deque[_Turn]]
"""By the identity of a queue and the name of the call: the calls that none of the other side has taken yet, oldest first."""


def _take(turns: deque[_Turn] | None, since: int) -> _Turn | None:
    """The oldest turn that ended at `since` or later. No two callers have the same one."""
    for turn in () if turns is None else list(turns):
        if turn.until >= since:
            try:
                turns.remove(turn)  # type: ignore[union-attr]
            except ValueError:
                continue  # Another thread has taken it.
            return turn
    return None


def _queue_call(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any], own: str, other: str) -> Any:
    notes = open_notes
    if notes is None or not args or notes.thread_notes().inside:
        return observed._original(*args, **kwargs)
    turns: _Turns = notes.__dict__.setdefault("turns", {})
    key = id(args[0])

    def begin() -> tuple[Site | None, _Turn]:
        place = site()
        began = clock()
        before = f"Queue.{own}"
        if place is not None:
            before = f"{place[2]} before {before} at {os.path.basename(place[0])}:{place[1]}"
        thread_notes = notes.thread_notes()
        since = thread_notes.began if thread_notes.since is None else thread_notes.since
        turn = _Turn(before, notes.track(), place, min(since, began), began)
        if len(turns) >= QUEUES_MAX:
            turns.clear()
        turns.setdefault((key, own), deque(maxlen=TURNS_MAX)).append(turn)
        return place, turn

    begun = _noted(notes, begin)
    place, turn = (None, None) if begun is None else begun

    def note(began: int, ended: int, _result: Any, failed: str | None) -> None:
        notes.thread_notes().since = ended
        has_waited, taken = ended - began >= SHORT_NS, None
        if failed is None:
            # An earlier call of the other side did not end a wait. By the end of the wait there may have been later ones.
            taken = _take(turns.get((key, other)), began if has_waited else 0)
        elif turn is not None and turn in turns.get((key, own), ()):
            # Nothing was delivered.
            turns[key, own].remove(turn)
        if has_waited:
            blocker = None if taken is None else taken.noted(notes)
            notes.wait(observed._name, place, notes.track(), began, ended, blocker, failed=failed)

    return _timed(notes, observed, args, kwargs, note)


# --- Threads ----------------------------------------------------------------------------------------------------------


def start(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The start of a thread: its first turn at a queue begins with it."""
    notes = open_notes
    if notes is not None and args:
        _noted(notes, notes.starts, args[0], clock())
    return observed._original(*args, **kwargs)


def join(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A wait for the end of a thread: for what it does until then."""

    def rest(notes: Notes, began: int, ended: int) -> int:
        thread = args[0]
        track, since = notes.track_of(thread, began)
        return notes.work(f"{thread.name} until its end", track, None, since, ended)

    return _wait_for(observed, args, kwargs, rest)


# --- asyncio ----------------------------------------------------------------------------------------------------------


def step(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One step of an event loop. While it runs, nothing else of the loop does."""
    notes = open_notes
    if notes is None or not args:
        return observed._original(*args, **kwargs)
    callback = getattr(args[0], "_callback", None)
    coroutine = _noted(notes, _coroutine, callback)
    frame = getattr(coroutine, "cr_frame", None)
    line = None if frame is None else frame.f_lineno
    del frame
    began = clock()
    try:
        return observed._original(*args, **kwargs)
    finally:
        ended = clock()
        if ended - began >= BLOCKED_NS:
            _noted(notes, _note_step, notes, coroutine or callback, line, began, ended)


def _coroutine(callback: Any) -> Any:
    task: Any = getattr(callback, "__self__", None)
    return task.get_coro() if hasattr(task, "get_coro") else None


def _note_step(notes: Notes, what: Any, line: int | None, began: int, ended: int) -> None:
    name, place = _described(what, line)
    track = notes.track("event loop")
    blocker = notes.work(f"a step of {name}", track, place, began, ended)
    notes.add(
        "await", "asyncio's loop", began, site=place, submitter=track, resumed=ended, waits_for=blocker
    )


ROLES: dict[str, Callable[[Observed, tuple[Any, ...], dict[str, Any]], Any]] = {
    role.__name__: role for role in (give, acts, look, wait, result, submit, work, get, put, start, join, step)
} | dict.fromkeys(("take", "view", "to_numpy", "to_host", "move"), exchange)
"""The functions by the names that the table has for them."""
