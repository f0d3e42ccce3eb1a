"""``estafette merge``: Estafette's traces and those of other profilers on one time axis."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import itertools
import json
import os
import pathlib
import stat
import sys
import warnings
import zlib
from typing import TYPE_CHECKING, Any

from ._estafette import _read_chrome, _replace_file

if TYPE_CHECKING:
    from _typeshed import StrOrBytesPath


_GZIP = b"\x1f\x8b"

_IDENTIFIED = frozenset("stfbneSTpFNOD")
"""Phases of events whose `id` says what belongs together: arrows, asynchronous events, objects."""


def merge_traces(*paths: StrOrBytesPath, to: StrOrBytesPath) -> None:
    """Writes Estafette's traces and those of other profilers to one file, `to`, on one time axis::

        est.merge_traces("run.pftrace", "torch.json", "jax-log", to="merged.json.gz")

    The file is Chrome's JSON, which https://ui.perfetto.dev opens, compressed if its name ends in ``.gz``. A file that is there is
    replaced if it is an earlier merge, or empty, and raises ``FileExistsError`` otherwise. It keeps its content until the new one is whole.
    A device or a FIFO is written to.

    paths: files of `record`; what ``torch.profiler.profile.export_chrome_trace`` has written; the folder of ``jax.profiler.trace``,
    of which the newest run is taken, or the ``.trace.json.gz`` of a run beside its ``.xplane.pb``. JAX must be installed to read that.

    Times are those of the computer's calendar clock: traces of one computer fit to some microseconds, for as long as that clock was
    not set. Raises ``ValueError`` for a trace that does not say when it began. Warns of traces that are not whole.
    """
    target = pathlib.Path(os.fsdecode(to))
    _check_target(target, [pathlib.Path(os.fsdecode(path)) for path in paths])
    traces = [_read(pathlib.Path(os.fsdecode(path))) for path in paths]
    for path, (_began, _trace, missing) in zip(paths, traces):
        for words in missing:
            warnings.warn(f"{os.fsdecode(path)} is incomplete: {words}", stacklevel=2)
    timed = [(began, event) for began, trace, _missing in traces for event in trace["traceEvents"] if _is_timed(event)]
    origin = min((began + int(event["ts"] * 1000) for began, event in timed), default=0)
    for began, event in timed:
        event["ts"] += (began - origin) / 1000
    taken: set[object] = set()
    identities: set[object] = set()
    for _began, trace, _missing in traces:
        _renumber(trace["traceEvents"], taken)
        _tell_apart(trace["traceEvents"], identities)
    merged: dict[str, Any] = {"mergedBy": "estafette"}
    for _began, trace, _missing in reversed(traces):
        merged |= {key: value for key, value in trace.items() if key not in ("otherData", "mergedBy")}
    merged["traceEvents"] = [event for _began, trace, _missing in traces for event in trace["traceEvents"]]
    merged["baseTimeNanoseconds"] = origin
    text = json.dumps(merged).encode()
    content = gzip.compress(text) if target.name.endswith(".gz") else text
    if target.exists() and not target.is_file():
        # A device or a FIFO, such as `/dev/stdout`.
        target.write_bytes(content)
    else:
        _replace_file(os.fspath(target.resolve()), content)


_HEAD = b'{"mergedBy": "estafette"'
"""The first bytes of every merged file."""


def _check_target(target: pathlib.Path, inputs: list[pathlib.Path]) -> None:
    """Refuses to replace a file that is no earlier merge: with a wrong path no trace is lost."""
    try:
        there = target.stat()
    except FileNotFoundError:
        return
    if any(path.exists() and path.samefile(target) for path in inputs):
        raise FileExistsError(f"{target} is one of the traces to merge, and is not replaced: name another file")
    if stat.S_ISREG(there.st_mode) and there.st_size > 0 and not _begins(target).startswith(_HEAD):
        raise FileExistsError(f"{target} was not written by a merge, and is not replaced: name another file")


def _begins(path: pathlib.Path) -> bytes:
    """The first bytes, or those that are compressed."""
    with path.open("rb") as file:
        begins = file.read(1_000)
    if begins.startswith(_GZIP):
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(wbits=31).decompress(begins, 1_000)
    return begins


def _is_timed(event: dict[str, Any]) -> bool:
    return "ts" in event and event.get("ph") != "M"


def _renumber(events: list[dict[str, Any]], taken: set[object]) -> None:
    """Gives processes other numbers where an earlier trace has these."""
    numbers: dict[object, object] = {}
    for pid in {event["pid"] for event in events if "pid" in event}:
        numbers[pid] = pid if pid not in taken else max([0, *(number for number in taken if isinstance(number, int))]) + 1
        taken.add(numbers[pid])
    for event in events:
        if "pid" in event:
            event["pid"] = numbers[event["pid"]]


def _tell_apart(events: list[dict[str, Any]], taken: set[object]) -> None:
    """Gives arrows, asynchronous events and objects other identities than those of earlier traces: they hold across processes."""
    places = [(event, "bind_id") for event in events if "bind_id" in event]
    places += [(event, "id") for event in events if "id" in event and event.get("ph") in _IDENTIFIED]
    places += [(event["id2"], "global") for event in events if isinstance(event.get("id2"), dict) and "global" in event["id2"]]
    own = dict.fromkeys(_identity(place[key]) for place, key in places)
    if taken:
        free = (number for number in itertools.count(1) if number not in taken)
        numbers = dict(zip(own, free))
        for place, key in places:
            place[key] = numbers[_identity(place[key])]
        own = dict.fromkeys(numbers.values())
    taken.update(own)


def _identity(written: object) -> object:
    """Viewers take `"0x10"` for 16."""
    try:
        return int(written, 0) if isinstance(written, str) else int(str(written))
    except ValueError:
        return str(written)


def _read(path: pathlib.Path) -> tuple[int, dict[str, Any], list[str]]:
    """The nanoseconds since 1970 that the times of a file's trace count from, the trace, and what it lacks, in words."""
    if path.is_dir():
        runs = sorted(path.glob("**/*.trace.json.gz"), key=os.path.getmtime)
        if not runs:
            raise ValueError(f"{path} has no trace of jax.profiler (*.trace.json.gz)")
        path = runs[-1]
    if not stat.S_ISREG(path.stat().st_mode):
        # A FIFO could be waited for in vain.
        raise OSError(f"{path} is no regular file")
    text = path.read_bytes()
    if text.startswith(_GZIP):
        try:
            text = gzip.decompress(text)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
    try:
        trace = json.loads(text)
    except (ValueError, RecursionError):
        text, missing = _read_chrome(os.fspath(path))
        trace = json.loads(text)
        return trace["otherData"]["started"], trace, missing
    if isinstance(trace, dict):
        # Of other profilers it may be anything.
        trace.pop("otherData", None)
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise ValueError(f"{path} is no trace: it has no `traceEvents`")
    for event in trace["traceEvents"]:
        if not _is_event(event):
            raise ValueError(f"{path} is damaged: no event of Chrome's format is {event!r:.100}")
    began = trace.get("baseTimeNanoseconds")
    if began is None:
        began = _began_by_xplane(path)
    if began is None:
        raise ValueError(
            f"{path} does not say when it began: it has neither `baseTimeNanoseconds`, as traces of torch.profiler, nor a file "
            "*.xplane.pb with `profile_start_time` beside it, as traces of jax.profiler"
        )
    if not _is_number(began):
        raise ValueError(f"{path} is damaged: it began at {began!r:.100}")
    return int(began), trace, []


def _is_number(what: object) -> bool:
    # A larger integer is too large for a float.
    return isinstance(what, int | float) and abs(what) < 2**63


def _is_event(what: object) -> bool:
    return isinstance(what, dict) and isinstance(what.get("pid", 0), int | float | str) and (not _is_timed(what) or _is_number(what["ts"]))


def _began_by_xplane(path: pathlib.Path) -> int | None:
    planes = path.with_name(path.name.removesuffix(".trace.json.gz") + ".xplane.pb")
    if not planes.exists():
        return None
    from jax.profiler import ProfileData

    for plane in ProfileData.from_file(os.fspath(planes)).planes:
        began = dict(plane.stats).get("profile_start_time") if plane.name == "Task Environment" else None
        if began is not None:
            return int(began)
    return None


def command(arguments: list[str]) -> int:
    """Merge what the arguments name, and return the exit code: 2 for wrong arguments, and for what cannot be read or written, as `report` has it."""
    parser = argparse.ArgumentParser(
        prog="estafette merge",
        description="Writes traces of Estafette, torch.profiler and jax.profiler to one file on one time axis, for https://ui.perfetto.dev.",
    )
    parser.add_argument("paths", nargs="+", metavar="TRACE", help="a trace, the JSON of torch.profiler, or the folder of jax.profiler")
    parser.add_argument("-o", "--to", required=True, metavar="FILE", help="the file to write: .json or .json.gz")
    wanted = parser.parse_args(arguments)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            merge_traces(*wanted.paths, to=wanted.to)
        for warning in caught:
            print(f"estafette merge: {warning.message}", file=sys.stderr)
    except (OSError, ValueError) as error:
        parser.exit(2, f"estafette merge: {error}\n")
    return 0
