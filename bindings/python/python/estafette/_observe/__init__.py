"""Observe mode: where a program waits and copies that knows nothing of Estafette."""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import sys
import tempfile
import threading
import traceback
import types
import weakref
import zipfile
from typing import TYPE_CHECKING, Any

from .._errors import ConflictError
from .._estafette import _check_output, _write_observation
from .._trace import Report, report
from . import devices, roles
from .notes import Notes, clock
from .patches import Patches
from .table import every

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from _typeshed import StrOrBytesPath
    from typing_extensions import Self

_opening = threading.Lock()


class observe:  # noqa: N801 - used like a function
    """Notes where the program hands arrays from library to library, copies and waits, without a change of the program::

        >>> with est.observe() as seen:
        ...     np.from_dlpack(eng.zeros(4, "float32")).tolist()
        [0.0, 0.0, 0.0, 0.0]
        >>> [(row["producer"], row["consumer"], row["bytes"]) for row in seen.report().data["exchanges"]]
        [('estafette', 'numpy', 16)]

    Functions of NumPy, JAX, PyTorch, TensorFlow, CuPy, Numba, cuda.core, ``concurrent.futures``, ``queue``, ``threading`` and ``asyncio`` that hand
    data over or wait are wrapped meanwhile, also in libraries that are imported later: ``np.asarray``, ``Tensor.cpu``, ``block_until_ready``,
    ``Future.result`` and others. Results, exceptions and types are those of the functions. At the end nothing is wrapped any more. A
    program that has put a wrapper of its own around one of Estafette keeps it. Hand-overs of CUDA memory between streams that nothing ordered
    are in ``seen.report().data["hand_overs"]``.

    The outcome is a trace as `record` makes one, written at the end to the file `path`; without a path, to a temporary file, which
    lasts as long as this object. One observation at a time is made per process; another raises ``ConflictError``. A forked child
    observes nothing.

    ``python -m estafette observe script.py`` does the same for a whole program.
    """

    def __init__(self, path: StrOrBytesPath | None = None) -> None:
        self._given = None if path is None else os.path.abspath(os.fsdecode(path))
        self._path: str | None = self._given
        self._notes: Notes | None = None
        self._patches: Patches | None = None
        self._process: int | None = None

    def start(self) -> None:
        """Begins to observe."""
        if self._patches is not None:
            raise RuntimeError("this observation was started already")
        orders = devices.Orders()
        with _opening:
            if roles.open_notes is not None:
                raise ConflictError("the process is observed already")
            if self._path is None:
                folder = tempfile.mkdtemp(prefix="estafette-")
                weakref.finalize(self, _remove, folder, os.getpid())
                self._path = os.path.join(folder, "observed.pftrace")
            self._process = os.getpid()
            self._patches = Patches(every(), roles.ROLES)
            self._notes = roles.open_notes = Notes(orders)
            try:
                self._patches.place()
            except BaseException:
                # `__exit__` is not called then.
                self._patches.remove()
                self._notes = self._patches = roles.open_notes = None
                raise

    def stop(self) -> None:
        """Ends the observation and writes the file. In a forked child it writes nothing: the observation is its parent's."""
        ended = clock()
        notes = self._end()
        if self._process == os.getpid():
            program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
            times = (notes.started_unix_ns, notes.started, ended)
            about = (program, times, list(notes.tracks), notes.finished(), notes.missing())
            try:
                _write_observation(self.path, *about)
            except UnicodeEncodeError:
                _write_observation(self.path, *_encodable(about))

    def _end(self) -> Notes:
        """Ends the observation; what it noted."""
        notes, patches = self._notes, self._patches
        if patches is None or notes is None:
            raise RuntimeError("nothing is being observed by this object")
        self._notes = self._patches = None
        with _opening:
            patches.remove()
            if roles.open_notes is notes:
                roles.open_notes = None
                roles.libraries.clear()
        return notes

    def report(self, **options: Any) -> Report:
        """The report of what was seen; options as those of `est.report`."""
        return report(self.path, **options)

    @property
    def path(self) -> str:
        """The absolute path of the file. Without a path of its own the observation has one when it was started."""
        if self._path is None:
            raise RuntimeError("this observation was not started")
        return self._path

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None:
        self.stop()


def _remove(folder: str, process: int) -> None:
    # A forked child has inherited the folder.
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _encodable(what: Any) -> Any:
    """The same with escapes in the place of what UTF-8 does not have: names of files may have it, and those of functions."""
    if isinstance(what, str):
        return what.encode(errors="backslashreplace").decode()
    return type(what)(map(_encodable, what)) if isinstance(what, list | tuple) else what


def _in_child() -> None:
    global _opening
    _opening = threading.Lock()
    roles.open_notes = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

USAGE = "usage: python -m estafette observe [--html OUT] [--trace OUT] (SCRIPT | -m MODULE) [ARGUMENT ...]"


def command(arguments: list[str]) -> int:
    """``estafette observe``: runs a program and reports on it. The program's own exit code, or 2 for wrong arguments."""
    outputs: dict[str, str] = {}
    while arguments and arguments[0] in ("--html", "--trace"):
        if len(arguments) < 2:
            print(f"{arguments[0]} needs a file\n{USAGE}", file=sys.stderr)
            return 2
        if arguments[1] == "-":
            print(f"estafette observe: {arguments[0]} writes a file and not to the standard output", file=sys.stderr)
            return 2
        outputs[arguments[0]] = os.path.abspath(arguments[1])
        arguments = arguments[2:]
    is_module = arguments[:1] == ["-m"]
    program = arguments[1:] if is_module else arguments
    if arguments[:1] in (["--help"], ["-h"]):
        print(USAGE)
        return 0
    if not program or (not is_module and program[0].startswith("-")):
        print(USAGE, file=sys.stderr)
        return 2
    # Before the program runs, which may take long.
    unusable = [f"cannot write {path}" for path in outputs.values() if not os.access(os.path.dirname(path), os.W_OK)]
    if not is_module and not os.access(program[0], os.R_OK):
        unusable.append(f"cannot read {program[0]}")
    unusable = unusable or list(_wrong_outputs(outputs, None if is_module else program[0]))
    if unusable:
        print(f"estafette observe: {', '.join(unusable)}", file=sys.stderr)
        return 2
    seen, process = observe(outputs.get("--trace")), os.getpid()
    # Lines of the command itself are none of the program.
    sys.modules["__main__"].__name__ = "estafette.__main__"
    seen.start()
    never_began = False
    try:
        try:
            _run_module(program) if is_module else _run_script(program)
        except ImportError as error:
            never_began = _is_of_runpy(error)
            if not never_began:
                raise
            print(f"estafette observe: {error}", file=sys.stderr)
            return 2
        finally:
            # Threads that the interpreter would wait for are part of the program: it first has executors end their threads.
            ends = getattr(threading, "_threading_atexits", [])
            while ends:
                ends.pop()()
            for thread in threading.enumerate():
                if thread is not threading.current_thread() and not thread.daemon:
                    thread.join()
    finally:
        # A failure here would take the place of the program's exit code, or of its exception.
        with contextlib.suppress(Exception):
            if never_began:
                seen._end()
            else:
                _conclude(seen, outputs.get("--html"), is_child=os.getpid() != process)
    return 0


def _is_of_runpy(error: BaseException) -> bool:
    """True if it is about the program that was to run: nothing of it has run."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return all(name == "runpy" or name.partition(".")[0] == "estafette" for name in frames)


def _wrong_outputs(outputs: dict[str, str], script: str | None) -> Iterator[str]:
    """The outputs that would replace a file of another kind, in words."""
    trace, page = outputs.get("--trace"), outputs.get("--html")
    if trace is not None and trace == page:
        yield f"--trace and --html name the same file: {trace}"
    if trace is not None and script is not None and os.path.exists(trace) and os.path.samefile(trace, script):
        yield f"{trace} is the program itself"
        trace = None
    for path, is_page in ((page, True), (trace, False)):
        if path is not None:
            try:
                _check_output(path, is_page)
            except OSError as error:
                yield str(error)


def _conclude(seen: observe, page: str | None, *, is_child: bool) -> None:
    """Ends the observation and prints the report, or what is in its way."""
    try:
        seen.stop()
        # A forked child of the program that comes here has seen nothing.
        if is_child:
            return
        try:
            print(seen.report(html=page), file=sys.stderr)
        except OSError as error:
            if page is None:
                raise
            print(seen.report(), f"estafette observe: {error}", sep="\n", file=sys.stderr)
    except Exception as error:
        print(f"estafette observe: {error}", file=sys.stderr)


def _run_script(program: list[str]) -> None:
    """As ``python SCRIPT`` does it."""
    path = program[0]
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        sys.argv[:] = program
        runpy.run_path(path, run_name="__main__")
        return
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__)
    sys.argv[:] = program
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    # It stays: what the program leaves to be called at exit looks for its names there.
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _run_module(program: list[str]) -> None:
    """As ``python -m MODULE`` does it."""
    sys.argv[:] = program
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    runpy.run_module(program[0], run_name="__main__", alter_sys=True)


observe.__module__ = "estafette"
