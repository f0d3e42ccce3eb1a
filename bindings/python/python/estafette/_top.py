"""``estafette top``: a running process shown live.

A process that was asked to listens on a socket that its user alone may use, and answers each line with one of JSON: a frame.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import pathlib
import shutil
import socket
import socketserver
import stat
import sys
import tempfile
import threading
import time
from typing import Any

from ._estafette import _engine_states, _shown
from ._fork import ForkLock

_SECONDS = 5.0
"""The seconds that a process may take for a frame: a function that holds the interpreter's lock keeps it from answering."""

_OPERATIONS_MAX = 200
"""Operations of an engine in a frame, the oldest ones."""

_RATES = "imported", "exported", "released"


def _folder() -> pathlib.Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = pathlib.Path(runtime, "estafette") if runtime else pathlib.Path(tempfile.gettempdir(), f"estafette-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is no folder that its user alone may use (mode 0700)")
    return folder


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        # The other side is gone.
        pass


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.readline(1_024):
            self.wfile.write(json.dumps(_frame()).encode() + b"\n")


_lock = ForkLock()

_served: dict[int, str] = {}


def serve_top() -> str:
    """Lets ``estafette top`` show this process, until it ends. Returns the path of the socket, which only the process's user may use.

    The socket is in a folder of the user: ``$XDG_RUNTIME_DIR/estafette``, or ``estafette-UID`` in the folder for temporary files. A thread
    answers; nothing is done while nothing asks. ``ESTAFETTE_TOP=1`` in the environment does the same when the package is imported. A
    forked child is not shown unless it asks for that itself. Raises ``OSError`` when there can be no such socket.
    """
    with _lock.now:
        pid = os.getpid()
        if pid not in _served:
            path = _folder() / f"{pid}.sock"
            path.unlink(missing_ok=True)
            server = _Server(str(path), _Handler)
            path.chmod(0o600)
            threading.Thread(target=server.serve_forever, name="estafette-top", daemon=True).start()
            os.register_at_fork(after_in_child=server.socket.close)
            atexit.register(_remove, pid, path)
            _served[pid] = str(path)
        return _served[pid]


def _remove(pid: int, path: pathlib.Path) -> None:
    # A forked child has the function too.
    if os.getpid() == pid:
        path.unlink(missing_ok=True)


def _frame() -> dict[str, Any]:
    engines = []
    counters: dict[str, int] = {}
    releases: tuple[Any, ...] = ()
    for stats, diagnosis in _engine_states():
        # The counters and the releases are those of the process.
        counters = {name: getattr(stats, name) for name in (*_RATES, "releasing", "leaked", "staging_bytes")}
        releases = diagnosis.releases
        operations = [
            {
                "id": operation.id,
                "name": operation.name,
                "status": operation.status,
                "age": operation.age,
                "text": operation.text,
                "blocked_by": [{"id": blocker.id, "name": blocker.name, "hazard": blocker.hazard} for blocker in operation.blocked_by],
            }
            for operation in diagnosis.operations[:_OPERATIONS_MAX]
        ]
        states = {name: getattr(stats, name) for name in ("in_flight", "in_flight_limit", "running", "ready", "queued", "leased")}
        engines.append({**states, "operations": operations, "left_out": len(diagnosis.operations) - len(operations)})
    return {
        "schema": 1,
        "pid": os.getpid(),
        # A path that is no UTF-8 could not be printed.
        "program": sys.argv[0].encode(errors="replace").decode() if getattr(sys, "argv", None) else "python",
        "seconds": time.monotonic(),
        "counters": counters,
        "engines": engines,
        "releases": [release.text for release in releases],
    }


class _Viewer:
    """A process that listens. Raises ``OSError`` for one that is gone."""

    _received = b""
    _is_asked = False

    def __init__(self, path: pathlib.Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_SECONDS)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise

    def frame(self) -> dict[str, Any]:
        """The next frame. Raises ``TimeoutError`` where none comes; the next call then waits for the same one."""
        if not self._is_asked:
            self._socket.sendall(b"{}\n")
            self._is_asked = True
        while b"\n" not in self._received:
            received = self._socket.recv(1 << 16)
            if not received:
                raise ConnectionResetError("the process has ended")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        self._is_asked = False
        frame: dict[str, Any] = json.loads(line)
        return frame


def _listening() -> dict[int, _Viewer]:
    found = {}
    for path in sorted(_folder().glob("*.sock")):
        if path.stem != str(os.getpid()):
            try:
                found[int(path.stem)] = _Viewer(path)
            except (OSError, ValueError):
                _forget_if_killed(path)
    return found


def _forget_if_killed(path: pathlib.Path) -> None:
    try:
        os.kill(int(path.stem), 0)
    except ProcessLookupError:
        path.unlink(missing_ok=True)
    except (OSError, ValueError):
        pass


def _text(frame: dict[str, Any], before: dict[str, Any] | None) -> str:
    """A frame for people. Rates are those since the frame `before`."""
    counters = frame["counters"]
    words = [f"{frame['pid']} {_shown(frame['program'])}"]
    for name, count in counters.items():
        rate = ""
        if before is not None and name in _RATES and frame["seconds"] > before["seconds"]:
            rise = count - before["counters"].get(name, count)
            rate = f" ({rise / (frame['seconds'] - before['seconds']):,.0f}/s)"
        if count or name in _RATES:
            words.append(f"{name.replace('_', ' ')} {count:,}{rate}")
    lines = [", ".join(words)]
    for number, engine in enumerate(frame["engines"], 1):
        states = ", ".join(f"{engine[name]:,} {name}" for name in ("running", "ready", "queued", "leased"))
        lines.append(f"engine {number}: {engine['in_flight']:,} of {engine['in_flight_limit']:,} in flight: {states}")
        lines += [f"  {operation['text']}" for operation in engine["operations"]]
        if engine["left_out"]:
            lines.append(f"  and {engine['left_out']:,} more")
    return "\n".join([*lines, *frame["releases"]])


def command(arguments: list[str]) -> int:
    """Show what the arguments name, and return the exit code: 2 for wrong arguments, 1 if there is no such process."""
    parser = argparse.ArgumentParser(
        prog="estafette top",
        description="Shows what a running Python process does: what is in flight, what waits for what, and who holds leases. The "
        "process is asked for that by ESTAFETTE_TOP=1 in its environment, or by `estafette.serve_top()`.",
    )
    parser.add_argument("pid", nargs="?", type=int, help="the process; needed where several listen")
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument("--json", action="store_true", help="frames as JSON, a line each")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two frames; default 1")
    wanted = parser.parse_args(arguments)
    if not wanted.interval > 0:
        parser.error("--interval is to be more than 0")
    try:
        listening = _listening()
        pid = wanted.pid if wanted.pid is not None or len(listening) != 1 else next(iter(listening))
        if pid not in listening:
            there = f": {', '.join(map(str, listening))} can be shown" if listening else ": ESTAFETTE_TOP=1 in its environment lets it be shown"
            what = "say which process" if pid is None and listening else "no process" if pid is None else f"no process {pid}"
            parser.exit(1, f"estafette top: {what}{there}\n")
        _show(listening[pid], pid, wanted)
    except KeyboardInterrupt:
        pass
    except OSError as error:
        parser.exit(1, f"estafette top: {error}\n")
    return 0


def _show(viewer: _Viewer, pid: int, wanted: argparse.Namespace) -> None:
    before, shown = None, ""
    while True:
        asked = time.monotonic()
        while True:
            try:
                frame = viewer.frame()
                break
            except TimeoutError:
                silent = f"{pid} does not answer ({time.monotonic() - asked:.0f} s)"
                if wanted.once:
                    raise TimeoutError(silent) from None
                if wanted.json:
                    print(silent, file=sys.stderr, flush=True)
                elif not _print(f"{silent}\n{shown}".rstrip("\n"), wanted):
                    return
        shown = json.dumps(frame) if wanted.json else _text(frame, before)
        if not _print(shown, wanted) or wanted.once:
            return
        before = frame
        time.sleep(wanted.interval)


def _print(text: str, wanted: argparse.Namespace) -> bool:
    """Prints a frame. Returns whether anything reads what is printed."""
    if not wanted.once and not wanted.json and sys.stdout.isatty():
        columns, rows = shutil.get_terminal_size()
        text = "\x1b[H\x1b[2J" + "\n".join(line[:columns] for line in text.split("\n")[: rows - 1])
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The reader has seen enough. The interpreter would fail to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
