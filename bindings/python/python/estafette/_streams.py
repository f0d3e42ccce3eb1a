"""The ways in which libraries learn the stream that a function uses.

What is known of them is data: a row per library, with its source, in the module of the kind of device (`_kinds`). A library that the program
has not imported has no current stream to set. Where the function itself imports one, that library works on its own stream, and the thread
waits for it afterwards.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import sys
from collections.abc import Callable, Iterator

from ._estafette import _hold_barriers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Stream:
    """A stream of a device: one of CUDA has ``__cuda_stream__``, by which others understand it. Good for as long as the operation runs."""

    __slots__ = ("_device_index", "_handle")

    _family = "device"

    def __init__(self, handle: int, device_index: int) -> None:
        self._handle = handle
        self._device_index = device_index

    @property
    def device_index(self) -> int:
        """The number of its device."""
        return self._device_index

    @property
    def handle(self) -> int:
        """The native handle as a number, of CUDA a ``cudaStream_t``."""
        return self._handle

    def __repr__(self) -> str:
        return f"<estafette.Stream {self._handle:#x} of {self._family}:{self._device_index}>"


_current: contextvars.ContextVar[Stream | None] = contextvars.ContextVar("estafette.stream", default=None)


def current_stream() -> Stream | None:
    """The stream of the operation whose function is running, with ``on=``; None elsewhere.

    For libraries that have no current stream to set, such as Numba, whose kernels are launched with one::

        stream = numba.cuda.external_stream(est.current_stream().handle)
        kernel[blocks, threads, stream](x)
    """
    return _current.get()


@contextlib.contextmanager
def hold_barriers() -> Iterator[None]:
    """Asks no device for a barrier meanwhile: for the time in which a library captures a graph, which a barrier would spoil.

    Memory that consumers returned without saying when their device is done with it is released after a barrier over the device
    (docs/exchange.md, "When B is done"); CUDA refuses that while a graph is captured in the process, and the graph is lost::

        with est.hold_barriers(), torch.cuda.graph(graph):
            ...
    """
    _hold_barriers(True)
    try:
        yield
    finally:
        _hold_barriers(False)


class Row:
    """The way in which one library learns the stream.

    `root` is the first part of its modules' names. `enter` makes the stream the thread's current one; None where the library has no
    such notion. `wait` waits for the thread's current stream. `how` is for people, and `source` says where this is from. `recorded`
    makes the library allocate nothing that others are given while a graph is captured; its list lives as long as the graph.
    """

    __slots__ = ("enter", "how", "recorded", "root", "source", "wait")

    def __init__(
        self,
        root: str,
        enter: Callable[[Any, int, int], contextlib.AbstractContextManager[Any] | None] | None,
        how: str,
        source: str,
        recorded: Callable[[Any, int, list[Any]], contextlib.AbstractContextManager[Any] | None] | None = None,
        wait: Callable[[Any], None] | None = None,
    ) -> None:
        self.root, self.enter, self.how, self.source = root, enter, how, source
        self.recorded, self.wait = recorded, wait


def _imported(row: Row) -> Any | None:
    """The library, or None if the program has not imported it."""
    library = sys.modules.get(row.root)
    if getattr(getattr(library, "__spec__", None), "_initializing", False):
        # Another thread is in the middle of that, and this waits for it.
        with contextlib.suppress(ImportError):
            importlib.import_module(row.root)
        library = sys.modules.get(row.root)
    return library


def _rows(known: tuple[Row, ...], using: Callable[..., Any] | None) -> list[Row]:
    """The libraries to tell: that of `using`, or, where that says nothing, each that the program has imported."""
    root = (getattr(using, "__module__", None) or "").partition(".")[0]
    named = [row for row in known if row.root == root]
    return named or [row for row in known if row.root in sys.modules]


def _wait_for(rows: list[Row], recording: bool) -> None:
    """Waits for libraries that the function has imported: they do not know the operation's stream."""
    for row in rows:
        library = _imported(row)
        if library is None or row.wait is None:
            continue
        if recording:
            raise RuntimeError(
                f"program(graph=True): a function has imported {row.root} while it was recorded, so the work of that library is not in "
                "the graph; import it before"
            )
        row.wait(library)


@contextlib.contextmanager
def entered(
    stream: Stream, libraries: tuple[Row, ...], using: Callable[..., Any] | None, kept: list[Any] | None
) -> Iterator[None]:
    """Runs the block with the stream as the current one of this thread, in Estafette and in those of the libraries that have one.

    kept: what a graph needs that is captured from the block, instead of what an earlier attempt left there; None if none is captured.
    """
    if kept is not None:
        kept.clear()
    handle, device = stream.handle, stream.device_index
    unknown = [row for row in libraries if row.wait and row.root not in sys.modules]
    with contextlib.ExitStack() as stack:
        for row in _rows(libraries, using):
            library = _imported(row)
            if library is None:
                continue
            contexts = [row.enter and row.enter(library, handle, device)]
            if kept is not None:
                contexts.append(row.recorded and row.recorded(library, device, kept))
            for context in contexts:
                if context is not None:
                    stack.enter_context(context)
        token = _current.set(stream)
        try:
            yield
        finally:
            _current.reset(token)
            if unknown:
                _wait_for(unknown, kept is not None)
