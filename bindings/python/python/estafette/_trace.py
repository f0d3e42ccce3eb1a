"""Traces of where the time went."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from signal import valid_signals
from typing import TYPE_CHECKING, Any

from ._estafette import _begin_trace, _end_trace, _read_report, _snapshot_trace, record_call_sites
from ._fork import ForkLock

if TYPE_CHECKING:
    from types import TracebackType

    from _typeshed import StrOrBytesPath
    from typing_extensions import Self

    from .typing import ReportData


@dataclass(frozen=True)
class Report:
    """The report of a trace. ``print`` shows it as text."""

    headline: str
    """One sentence: what most of the waiting was for."""
    data: ReportData = field(repr=False)
    """Everything, by the schema in ``docs/report.md``."""
    text: str = field(repr=False)
    """For people."""
    path: str = field(repr=False)
    """The file of the trace, of several the first."""
    paths: tuple[str, ...] = field(repr=False)
    """The files of the traces."""

    def __str__(self) -> str:
        """The text; without what a standard output of few characters cannot show, as `print` would fail."""
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        try:
            self.text.encode(encoding, getattr(sys.stdout, "errors", None) or "strict")
        except UnicodeEncodeError:
            return self.text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
        return self.text

    def _repr_html_(self) -> str:
        from . import _html

        return _html.report(self)


_PLAIN = str.maketrans("█µ→…×·−", "#u>.x.-")
"""Characters of the same width for those of reports."""


def report(
    path: StrOrBytesPath,
    /,
    *others: StrOrBytesPath,
    short: bool = False,
    width: int | None = None,
    html: StrOrBytesPath | None = None,
) -> Report:
    """The report of the trace in the file `path`: who waited, for how long, why, and for whom.

    others: files of other processes of this machine, for one report of all on one time axis; names in it end in the number of
    their process, as ``decode @4711``.
    short: leaves the tables out of the text.
    width: columns of the text; default those of the terminal.
    html: a file to write the report to as a page for a browser. A file that is there is replaced if it is such a page, or empty.

    A damaged file gives the report of what is left of it, which says what is missing; so does the file of a trace that was
    not finished (`record` says where it lies). The trace in memory takes at most 64 times what the file takes, or 16 MiB; what
    would take more is missing, and the report says so. Names that hold control characters are shown with escapes. Raises
    ``ValueError`` when nothing is left, ``OSError`` when a file cannot be read or written, or is no regular file, and its
    ``FileExistsError`` when `html` is a file of another kind.
    """
    import json
    import shutil

    if isinstance(path, (list, tuple)):
        raise TypeError(f"each file is an argument of its own: write `report(*paths)`, not `report({path!r})`")
    columns = shutil.get_terminal_size((100, 24)).columns if width is None else width
    page = None if html is None else os.fsdecode(html)
    paths = tuple(os.fsdecode(each) for each in (path, *others))
    text, data = _read_report(list(paths), columns, short, page)
    fields = json.loads(data)
    return Report(headline=fields["headline"], data=fields, text=text, path=paths[0], paths=paths)


class _CallSites:
    """Has leases note the lines that take them while a trace is made."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._wanted = 0
        self._before = False

    def want(self) -> None:
        with self._lock.now:
            if self._wanted == 0:
                self._before = record_call_sites(True)
            self._wanted += 1

    def unwant(self) -> None:
        with self._lock.now:
            self._wanted -= 1
            if self._wanted == 0:
                record_call_sites(self._before)


_sites = _CallSites()


class record:  # noqa: N801 - used like a function
    """Records where the time goes, in all engines of the process, and writes it to the file `path` at the end::

        >>> with est.record("run.pftrace"):
        ...     t = eng.call(np.sqrt, eng.from_dlpack(np.array([0.0, 1.0, 4.0])), using=np.from_dlpack)
        ...     np.from_dlpack(t).tolist()
        [0.0, 1.0, 2.0]
        >>> print(est.report("run.pftrace"))  # doctest: +SKIP

    The file opens in https://ui.perfetto.dev, and ``estafette report`` reads it. Several traces may be recorded at once; each
    costs what one costs. Leases note the lines of code that take them meanwhile.

    memory_max: bytes for the trace until its file is written, 256 MiB unless given: half of them for what is noted, the other
    half for writing it. What does not fit is counted, and the report says so. Each thread that something is noted on takes 64 KiB at least.
    last: seconds; keeps only what happened in so much time before the end, or before a `snapshot`, for programs that run for
    long. When the watchdog of an engine reports a stall, a snapshot is written to ``run.snapshot-1.pftrace``, at most one in
    that time; the next one to ``run.snapshot-2.pftrace``, and after ten of them to the first again.
    signal: a signal, such as ``signal.SIGUSR2``, that asks for such a snapshot. The program must have no handler of it. The
    handler of this package does no more than to count; it stays until the process ends.

    In `path`, ``%p`` is the number of the process, and ``%%`` is ``%``. A file that is there already keeps its content until the
    new one is whole. While it is recorded, what is noted is written to a file beside it several times a second:
    ``run.pftrace.4711.unfinished`` for process 4711. A process that ends in any way before `stop` leaves that file, and `report`
    reads it. A symbolic link at `path` is replaced itself; a FIFO, a device or a folder is refused with ``OSError``, and a file that
    another trace, of this process or of another one, is made to with its ``FileExistsError``: of processes that run at a time, each
    needs a path of its own.

    For programs that cannot be changed, the environment variable ``ESTAFETTE_TRACE`` names a file that the whole run is
    recorded to, ``ESTAFETTE_TRACE_LAST`` gives `last`, and ``ESTAFETTE_TRACE_SIGNAL`` the name of a signal. A process that finds
    another one that records to the same file adds its number: ``run.4712.pftrace``.
    """

    def __init__(
        self,
        path: StrOrBytesPath,
        *,
        memory_max: int | None = None,
        last: float | None = None,
        signal: int | None = None,
    ) -> None:
        self._pattern = os.path.abspath(os.fsdecode(path))
        self._path: str | None = None
        self._options = (memory_max, last, signal)
        self._number = 0
        self._process: int | None = None

    def start(self) -> None:
        """Begins to record. The unfinished file is made at once, so that a path that cannot be written to is an error here."""
        if self._process is not None:
            raise RuntimeError("this trace was started already")
        self._path = _numbered(self._pattern)
        memory_max, _, signal = self._options
        if memory_max is not None and not 0 <= memory_max < 1 << 63:
            raise ValueError(f"memory_max must be a number of bytes from 0, below 2**63, not {memory_max}")
        if signal is not None and signal not in valid_signals():
            raise ValueError(f"signal must be a signal of this system, not {signal}")
        self._number = _begin_trace(self._path, *self._options)
        self._process = os.getpid()
        _sites.want()

    def stop(self) -> None:
        """Ends the trace and writes the file. In a forked child it does nothing: the trace is its parent's."""
        process, self._process = self._process, None
        if process is None:
            raise RuntimeError("this trace is not being recorded")
        if process == os.getpid():
            _sites.unwant()
            _end_trace(self._number)

    def snapshot(self, path: StrOrBytesPath, /) -> str:
        """Writes what was recorded so far to the file `path`, and goes on. Returns the absolute path; ``%p`` in it is as in `path` of
        the trace. Raises ``OSError`` when the file cannot be written: it is as it was before."""
        if self._process != os.getpid():
            raise RuntimeError("this trace is not being recorded")
        written = _numbered(os.path.abspath(os.fsdecode(path)))
        _snapshot_trace(self._number, written)
        return written

    def report(self, **options: Any) -> Report:
        """The report of what was recorded; options as those of `est.report`."""
        return report(self.path, **options)

    @property
    def path(self) -> str:
        """The absolute path of the file, with the number of the process that started the trace for ``%p``."""
        return self._path if self._path is not None else _numbered(self._pattern)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None:
        self.stop()


def _numbered(pattern: str) -> str:
    """The path that a pattern stands for in this process."""
    if "\0" in pattern:
        raise ValueError(f"a path has no NUL in it, unlike {pattern!r}")
    return re.sub("%[%p]", lambda found: "%" if found[0] == "%%" else str(os.getpid()), pattern)


for _class in (Report, record):
    _class.__module__ = "estafette"
del _class
