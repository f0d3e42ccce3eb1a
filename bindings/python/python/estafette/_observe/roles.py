"""What is noted of a call, by the role that the table gives the function. The call itself is made as it is."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from .notes import Notes, Site, Tensor, clock, site
from .order import LEGACY, Act, Order, hand_over, is_on_device, pointer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .patches import Observed
    from .table import Row

SHORT_NS = 5_000
"""A wait that is shorter is none: the call itself takes some of it."""

BLOCKED_NS = 10_000_000
"""A step of an event loop that takes longer blocks it. asyncio's own debug mode begins at ten times that."""

LIBRARIES = ("numpy", "jax", "torch", "tensorflow", "cupy", "numba", "cuda.core")
NAMES = {"jaxlib": "jax", "cuda": "cuda.core"}
PATHS = ("torch.cuda", "torch.accelerator", "cupy.cuda.runtime", "numba.cuda")
"""Modules by which programs call their functions."""
DEVICE_LIBRARIES = ("torch", "jax", "cupy", "numba", "cuda.core", "estafette")
"""Those that hand device memory over without a copy."""
QUEUES_MAX = 10_000
"""Queues of which the last call is remembered."""

NO_ARRAY = ""
"""The library of what is no array."""

open_notes: Notes | None = None
"""Where it is noted; `None` while nothing is observed, and in a forked child."""

order = Order()
"""What the observation knows of the order of streams."""


# --- Arrays -----------------------------------------------------------------------------------------------------------


def _library(kind: Any) -> str:
    """The library of a class of arrays."""
    roots = [str(base.__module__).partition(".")[0] for base in kind.__mro__]
    roots = [NAMES.get(root, root) for root in roots]
    known = next((root for root in roots if root in LIBRARIES), None)
    if known is None and not any(hasattr(kind, name) for name in ("__dlpack__", "__array__", "__cuda_array_interface__")):
        return NO_ARRAY
    return known or roots[0]


library_of = functools.lru_cache(maxsize=1024)(_library)


def _is_pending(library: str, array: Any, row: Row) -> bool:
    """Whether the library may still be computing it, and the call waits for that."""
    match library:
        case "numpy":
            return False
        case "jax":
            return hasattr(array, "is_ready") and not array.is_ready()
    if library in DEVICE_LIBRARIES and row.library in DEVICE_LIBRARIES and row.role in ("take", "view", "give"):
        # Of these the consumers wait on the host that take a stream from `__cuda_array_interface__`.
        return library in ("cupy", "numba") and row.library in ("cupy", "numba") and row.name != "from_dlpack"
    return library != "torch" or (hasattr(array, "device") and array.device.type != "cpu")


def _is_copied(row: Row, source: Any, origin: str, result: Any, options: dict[str, Any]) -> bool:
    """Whether the result is in memory of its own."""
    if row.role == "to_host" or options.get("copy") is True:
        return True
    if row.library == "numpy" or row.role == "to_numpy":
        return bool(getattr(getattr(result, "flags", None), "owndata", False)) or row.library in ("cupy", "numba")
    if row.role == "move":
        return result is not source
    if row.role == "take" and row.name != "from_dlpack":
        before = pointer_of(origin, source)
        if row.library == "jax":
            # The result is not asked, which would wait for it. `docs/peers.md`: JAX copies memory that is aligned to less than 64 bytes.
            return before is not None and (row.name in ("asarray", "array") or before % 64 != 0)
        return before is not None and before != pointer_of(row.library, result)
    return False


def _tensor(array: Any, library: str) -> Tensor:
    try:
        size = getattr(array, "nbytes", None)
        return (array.dtype, tuple(array.shape), size if isinstance(size, int) else None, library)
    except Exception:
        return (type(array).__name__, (), None, library)


# --- Calls that hand data over or wait --------------------------------------------------------------------------------


def _is_inside(notes: Notes) -> bool:
    """Whether this thread is in a call that is noted: what that calls is a part of it."""
    return getattr(notes.local, "inside", False)


def _timed(
    notes: Notes,
    observed: Observed,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    note: Callable[[int, int, Any, str | None], None],
) -> Any:
    """Makes the call; `note` gets when it began and ended, its result, and the class of its exception."""
    local = notes.local
    local.inside = True
    began = clock()
    try:
        result = observed._original(*args, **kwargs)
    except BaseException as error:
        ended = clock()
        _noted(notes, note, began, ended, None, type(error).__name__)
        raise
    else:
        ended = clock()
        if observed._act is not None:
            _noted(notes, observed._act, Act(order, args, kwargs, result))
        _noted(notes, note, began, ended, result, None)
        return result
    finally:
        local.inside = False


def _noted(notes: Notes, note: Callable[..., Any], *about: Any) -> None:
    """Whatever goes wrong with a note is none of the program's business; it is counted."""
    before, notes.local.inside = _is_inside(notes), True
    try:
        note(*about)
    except Exception:
        notes.broken += 1
    finally:
        notes.local.inside = before


def _quietly(notes: Notes, ask: Callable[..., Any], *about: Any) -> Any:
    """What a question says, or `None`."""
    before, notes.local.inside = _is_inside(notes), True
    try:
        return ask(*about)
    except Exception:
        notes.broken += 1
        return None
    finally:
        notes.local.inside = before


def _name(row: Row) -> str:
    library = "" if row.library == "python" else f"{row.module if row.module in PATHS else row.library}."
    return f"{library}{row.name.replace('ArrayImpl', 'Array').replace('_BaseStream', 'Stream')}"


def _acted(notes: Notes, observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Makes a call, and notes what it did to the order of streams."""
    result = observed._original(*args, **kwargs)
    if observed._act is not None:
        _noted(notes, observed._act, Act(order, args, kwargs, result))
    return result


_shown = functools.cache(_name)


def _exchange(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any], to: str, at: int = 0) -> Any:
    """A call that hands an argument over, the first one or that at `at`, to the library `to`, or to the host."""
    notes = open_notes
    if notes is None:
        return observed._original(*args, **kwargs)
    source: Any = args[at] if len(args) > at else next(iter(kwargs.values()), None)
    kind: Any = type(source)
    origin = library_of(kind)
    row = observed._row
    # What stays in its library is no hand-over, unless it names another stream.
    if _is_inside(notes) or (origin == to and row.role != "view") or (origin == NO_ARRAY and row.role != "to_host"):
        return _acted(notes, observed, args, kwargs)
    origin = origin or row.library
    pending = _quietly(notes, _is_pending, origin, source, row)
    if row.role != "give":
        notes.local.given = None

    def note(began: int, ended: int, result: Any, failed: str | None) -> None:
        if row.role == "move" and (result is source or result.device == source.device):
            return
        asked = kwargs.get("stream_ptr", args[2] if len(args) > 2 and row.role == "view" else None)
        _note_exchange(notes, row, source, origin, to, pending, began, ended, result, kwargs, asked, failed)

    return _timed(notes, observed, args, kwargs, note)


def _note_exchange(
    notes: Notes,
    row: Row,
    source: Any,
    origin: str,
    to: str,
    pending: bool,
    began: int,
    ended: int,
    result: Any,
    options: dict[str, Any],
    asked: Any,
    failed: str | None,
) -> None:
    place, track = site(), notes.track()
    library, name = to or None, _shown(row)
    copied = failed is None and _is_copied(row, source, origin, result, options)
    blocker = None
    if copied:
        goal = to or "the host"
        what = f"work of {origin} and its copy to {goal}" if pending else f"copy from {origin} to {goal}"
        tensor = _tensor(source, origin)
        blocker = notes.add(
            "copy",
            what,
            began,
            library=library,
            site=place,
            submitter=track,
            track=track,
            began=began,
            done=ended,
            tensor=tensor,
        )
    elif failed is None:
        at = ended if pending else began
        tensor = _tensor(source, origin)
        identity = notes.add(
            "export", name, at, library=library, site=place, submitter=track, began=at, done=ended, resumed=at, tensor=tensor
        )
        if row.library in DEVICE_LIBRARIES and is_on_device(origin, source):
            disorder = hand_over(order, origin, source, row.library, asked, notes.local.given, options)
            if disorder is not None:
                notes.disorders.append((identity, *disorder))
    if (copied or pending) and ended - began >= SHORT_NS:
        if blocker is None:
            blocker = _work_of(notes, origin, began, ended)
        _note_wait(notes, name, place, track, began, ended, blocker, library=library, failed=failed)


def _work_of(notes: Notes, library: str, began: int, ended: int) -> int:
    """What a library does while it is waited for, of which nothing else is seen."""
    track = notes.track()
    return notes.add(
        "operation", f"work of {library}", began, library=library, submitter=track, began=began, done=ended
    )


def _note_wait(
    notes: Notes,
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
    notes.add(
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


def take(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _exchange(observed, args, kwargs, observed._row.library)


def to_numpy(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _exchange(observed, args, kwargs, "numpy")


def to_host(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _exchange(observed, args, kwargs, "")


move = to_host


def view(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of a class, with the array as its first argument."""
    return _exchange(observed, args, kwargs, observed._row.library, 1)


def give(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    notes = open_notes
    if notes is not None:
        # Without a stream nothing is ordered, whatever a library takes `None` for.
        stream = kwargs.get("stream", -1)
        notes.local.given = LEGACY if stream is None else stream
    caller = str(sys._getframe(2).f_globals.get("__name__")).partition(".")[0]
    caller = NAMES.get(caller, caller)
    return _exchange(observed, args, kwargs, caller if caller in LIBRARIES else "")


def acts(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that orders streams and neither hands over nor waits."""
    notes = open_notes
    return observed._original(*args, **kwargs) if notes is None else _acted(notes, observed, args, kwargs)


def look(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of a tensor whose result depends on its values: it waits if the tensor is on a device."""
    if args and getattr(args[0], "is_cuda", False):
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
    if _is_inside(notes):
        return _acted(notes, observed, args, kwargs)

    def note(began: int, ended: int, _result: Any, failed: str | None) -> None:
        if ended - began >= SHORT_NS:
            waits_for = blocker(notes, began, ended)
            _note_wait(notes, _shown(observed._row), site(), notes.track(), began, ended, waits_for, failed=failed)

    return _timed(notes, observed, args, kwargs, note)


def wait(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that waits for the work of its library."""
    library = observed._row.library
    return _wait_for(observed, args, kwargs, lambda notes, began, ended: _work_of(notes, library, began, ended))


# --- Futures and executors --------------------------------------------------------------------------------------------


class _Work:
    """What an executor was given to do."""

    def __init__(self, identity: int) -> None:
        self.identity = identity
        self.submitted: int | None = None
        self.submitter: int | None = None


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
    return _wait_for(observed, args, kwargs, lambda notes, _began, _ended: _work_for(notes, args[0]).identity)


def submit(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A submission to an executor: its time is noted."""
    notes = open_notes
    if notes is None:
        return observed._original(*args, **kwargs)
    began = clock()
    future = observed._original(*args, **kwargs)

    def note() -> None:
        work = _work_for(notes, future)
        work.submitted, work.submitter = began, notes.track()

    _noted(notes, note)
    return future


def work(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The work of an executor, on its thread. Functions that it calls are seen by themselves."""
    notes = open_notes
    if notes is None:
        return observed._original(*args, **kwargs)
    item = args[0]
    # The item lets go of them when it is done.
    future, function = getattr(item, "future", None), getattr(item, "fn", None) or getattr(item, "task", (None,))[0]
    work = _quietly(notes, _work_for, notes, future)
    began = clock()
    try:
        return observed._original(*args, **kwargs)
    finally:
        if work is not None:
            _noted(notes, _note_work, notes, work, function, began, clock())


def _note_work(notes: Notes, work: _Work, function: Any, began: int, ended: int) -> None:
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    place = None if code is None else (code.co_filename, code.co_firstlineno, code.co_qualname)
    submitted = began if work.submitted is None else min(work.submitted, began)
    track = notes.track()
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
            self.identity = notes.add(
                "operation",
                self.name,
                self.since,
                site=self.place,
                submitter=self.track,
                track=self.track,
                began=self.since,
                done=self.until,
            )
        return self.identity


def get(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _queue_call(observed, args, kwargs, "get", "put")


def put(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _queue_call(observed, args, kwargs, "put", "get")


def _queue_call(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any], own: str, other: str) -> Any:
    notes = open_notes
    if notes is None or not args or _is_inside(notes):
        return observed._original(*args, **kwargs)
    turns: dict[tuple[int, str], _Turn] = notes.__dict__.setdefault("turns", {})
    key = id(args[0])

    def begin() -> Site | None:
        place = site()
        began = clock()
        before = f"Queue.{own}"
        if place is not None:
            before = f"{place[2]} before {before} at {os.path.basename(place[0])}:{place[1]}"
        since = getattr(notes.local, "since", notes.started)
        turn = _Turn(before, notes.track(), place, since, began)
        if len(turns) >= QUEUES_MAX:
            turns.clear()
        turns[key, own] = turn
        return place

    place = _quietly(notes, begin)

    def note(began: int, ended: int, _result: Any, failed: str | None) -> None:
        notes.local.since = ended
        if ended - began >= SHORT_NS:
            turn = turns.get((key, other))
            # An earlier call of the other side did not end this wait.
            blocker = turn.noted(notes) if turn is not None and turn.until >= began else None
            _note_wait(notes, _shown(observed._row), place, notes.track(), began, ended, blocker, failed=failed)

    return _timed(notes, observed, args, kwargs, note)


# --- asyncio ----------------------------------------------------------------------------------------------------------


def step(observed: Observed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One step of an event loop. While it runs, nothing else of the loop does."""
    notes = open_notes
    if notes is None or not args:
        return observed._original(*args, **kwargs)
    callback = getattr(args[0], "_callback", None)
    coroutine = _quietly(notes, _coroutine, callback)
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
    while isinstance(what, functools.partial):
        what = what.func
    code = getattr(what, "cr_code", None) or getattr(what, "__code__", None)
    name = getattr(what, "__qualname__", type(what).__qualname__)
    place = None if code is None else (code.co_filename, line or code.co_firstlineno, code.co_qualname)
    track = notes.track("event loop")
    blocker = notes.add(
        "operation",
        f"a step of {name}",
        began,
        site=place,
        submitter=track,
        track=track,
        began=began,
        done=ended,
    )
    notes.add(
        "await", "asyncio's loop", began, site=place, submitter=track, resumed=ended, waits_for=blocker
    )


ROLES: dict[str, Callable[[Observed, tuple[Any, ...], dict[str, Any]], Any]] = {
    role.__name__: role for role in (take, to_numpy, view, give, acts, look, wait, result, submit, work, get, put, step)
} | {"to_host": to_host, "move": move}
"""The functions by the names that the table has for them."""
