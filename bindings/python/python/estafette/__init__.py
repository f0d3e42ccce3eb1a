"""Tensor exchange between array libraries as a dependency graph: every tensor is a promise.

::

    import numpy as np
    import estafette as est

    with est.Engine(workers=2) as eng:
        x = eng.from_dlpack(np.arange(1024, dtype="float32"))        # zero-copy
        y = eng.empty((1024,), "float32")
        eng.submit(lambda x, y: np.multiply(x, 2, out=y), reads=[x], writes=[y], using=np.from_dlpack)
        y.wait()                                                     # or: await y
        print(np.from_dlpack(y).sum())

Arrays come in by ``from_dlpack`` and go out by ``__dlpack__``, so anything that speaks DLPack is a peer; none is
imported by this package. An export is a *lease*: engine writes wait until the array made from it is gone.

``estafette.typing`` has types for annotations.
"""

from __future__ import annotations

import atexit as _atexit
import contextlib as _contextlib
import copyreg as _copyreg
import importlib as _importlib
import os as _os
import sys as _sys
import threading as _threading

from ._dtype import DType
from ._errors import (
    CancelledError,
    ConflictError,
    DeviceError,
    EstafetteError,
    ExchangeError,
    ForkedError,
    InvalidError,
    InvalidTensorError,
    LeaseHeldError,
    NoOperatorError,
    NotDefinedError,
    NotSharedError,
    OperationError,
    OutOfMemoryError,
    PeerDiedError,
    PeerDiedOperationError,
    ShutdownError,
    InFlightLimitError,
    WouldBlockError,
    WouldDeadlockError,
)
from ._estafette import (
    Access,
    Door,
    Engine,
    Exporter,
    Link,
    Operation,
    Operator,
    Operators,
    Program,
    Tensor,
    Ticket,
    Variable,
    View,
    __version__,
    _after_fork_in_child,
    _after_fork_in_parent,
    _at_exit,
    _before_fork,
    _before_threads_end,
    _set_program_name,
    _check_interpreter,
    c_api,
    declare_dead,
    devices,
    engine_from_c,
    peers,
    record_call_sites,
    register_context,
    unordered_exchanges,
    unregister_context,
)
from ._fork import ForkLock as _ForkLock
from ._helping import without_helping
from ._promises import as_completed, wait
from ._streams import Stream, current_stream, hold_barriers

# As `typing` has it, which takes as long to import as all of this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Buffer, CapsuleType, NoReturn

    from ._merge import merge_traces
    from ._metrics import export_metrics
    from ._observe import observe
    from ._trace import Report, record, report
    from ._reports import (
        Blocker,
        Device,
        DeviceInfo,
        Diagnosis,
        Lease,
        Peer,
        Release,
        ShutdownReport,
        Stats,
        UnorderedExchange,
        OpStatus,
    )
    from ._spans import export_spans
    from ._top import serve_top
    from .typing import DeviceLike, StreamLike, SupportsDLPack

__all__ = [
    "Access",
    "Blocker",
    "CancelledError",
    "ConflictError",
    "DType",
    "Device",
    "DeviceError",
    "DeviceInfo",
    "Diagnosis",
    "Door",
    "Engine",
    "EstafetteError",
    "ExchangeError",
    "Exporter",
    "ForkedError",
    "InvalidError",
    "InvalidTensorError",
    "Lease",
    "LeaseHeldError",
    "Link",
    "NoOperatorError",
    "NotDefinedError",
    "NotSharedError",
    "Operation",
    "OperationError",
    "Operator",
    "Operators",
    "OutOfMemoryError",
    "Peer",
    "PeerDiedError",
    "PeerDiedOperationError",
    "Program",
    "Release",
    "Report",
    "ShutdownError",
    "ShutdownReport",
    "Stats",
    "Stream",
    "Tensor",
    "Ticket",
    "UnorderedExchange",
    "Variable",
    "View",
    "OpStatus",
    "InFlightLimitError",
    "WouldBlockError",
    "c_api",
    "WouldDeadlockError",
    "__version__",
    "as_completed",
    "current_stream",
    "default_engine",
    "declare_dead",
    "devices",
    "engine_from_c",
    "export_metrics",
    "export_spans",
    "from_dlpack",
    "hold_barriers",
    "merge_traces",
    "observe",
    "peers",
    "record",
    "record_call_sites",
    "register_context",
    "report",
    "serve_top",
    "unordered_exchanges",
    "unregister_context",
    "wait",
    "without_helping",
]

# Names that most programs never use take most of the time of an import, dataclasses above all, so they are imported at their first use.
_LATER = {
    "_merge": ["merge_traces"],
    "_metrics": ["export_metrics"],
    "_observe": ["observe"],
    "_trace": ["Report", "record", "report"],
    "_reports": [
        "Blocker",
        "Device",
        "DeviceInfo",
        "Diagnosis",
        "Lease",
        "Peer",
        "Release",
        "ShutdownReport",
        "Stats",
        "UnorderedExchange",
        "OpStatus",
    ],
    "_spans": ["export_spans"],
    "_top": ["serve_top"],
}


def __getattr__(name: str) -> object:
    module = next((module for module, names in _LATER.items() if name in names), None)
    if module is None:
        hint = f", but `import {__name__}.{name}` works" if name in ("dask", "ray", "typing") else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    found: object = getattr(_importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    # These two are there for type checkers.
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "annotations"})


_check_interpreter()

_default: Engine | None = None
_default_lock = _ForkLock()


def default_engine() -> Engine:
    """The engine for those who need no options; made at the first call, for the whole process, and anew after its shutdown."""
    global _default
    engine = _default
    if engine is not None and engine._is_usable():
        return engine
    with _default_lock.now:
        if _default is None or not _default._is_usable():
            _default = Engine()
        return _default


def from_dlpack(
    x: SupportsDLPack | CapsuleType | Buffer,
    /,
    *,
    device: DeviceLike | None = None,
    copy: bool | None = None,
    writable: bool | None = None,
    freed_on: StreamLike | None = None,
) -> Tensor:
    """A promise of the memory behind `x`, without a copy, in the default engine. See ``Engine.from_dlpack``."""
    return default_engine().from_dlpack(x, device=device, copy=copy, writable=writable, freed_on=freed_on)


def _refuse_to_pickle(thing: object) -> NoReturn:
    raise TypeError(
        f"cannot pickle 'estafette.{type(thing).__name__}' object: it belongs to its process; another one makes an engine of its own, as "
        "`est.default_engine()` does, and is sent tensors"
    )


for _class in (Access, Door, Engine, Link, Operation, Program, Variable, View):
    _copyreg.pickle(_class, _refuse_to_pickle)
del _class


def _in_child() -> None:
    # The default engine is the parent's.
    global _default
    _default = None
    _after_fork_in_child()


if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_in_child)

_atexit.register(_at_exit)

# Operations in flight when the program ends may need its threads, so they are waited for before they are joined. `concurrent.futures`
# uses the same function, and must have done so before: what is registered last is called first, and operations may use its
# pools. Without the function the wait in `_at_exit` must do. It refuses when the program is ending already.
if hasattr(_threading, "_register_atexit"):
    import concurrent.futures.thread  # noqa: F401

    del concurrent
    with _contextlib.suppress(RuntimeError):
        _threading._register_atexit(_before_threads_end)

_set_program_name(_os.path.basename(_sys.argv[0]).encode(errors="replace").decode() if getattr(_sys, "argv", None) and _sys.argv[0] else "python")

# The engine records the whole run then. Leases are to have the lines that take them.
if _os.environ.get("ESTAFETTE_TRACE"):
    record_call_sites(True)

if _os.environ.get("ESTAFETTE_TOP", "0") not in ("", "0"):
    from ._top import serve_top

    try:
        serve_top()
    except OSError as _error:
        # The program runs all the same.
        print(f"estafette: ESTAFETTE_TOP: {_error}", file=_sys.stderr)
