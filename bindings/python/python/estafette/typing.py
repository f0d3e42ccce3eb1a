"""Types for annotations: what the functions of this package take and return. The type stubs use the same names.

::

    def submit_all(eng: est.Engine, arrays: Sequence[SupportsDLPack], using: Using) -> list[est.Tensor]: ...
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, SupportsIndex, TypeAlias, TypedDict, TypeVar, Union
from typing import overload

from ._errors import OperationError
from ._estafette import Tensor
from ._reports import Device
from ._streams import Stream

__all__ = [
    "Body",
    "CallOptions",
    "CallsBack",
    "Cause",
    "DeviceLike",
    "DtypeLike",
    "FutureLike",
    "HasShapeAndDtype",
    "Like",
    "ReportAdvice",
    "ReportBarriers",
    "ReportCause",
    "ReportData",
    "ReportExchange",
    "ReportFailure",
    "ReportGraphChange",
    "ReportHandOver",
    "ReportMatrix",
    "ReportOperation",
    "ReportPath",
    "ReportRunTime",
    "ReportTensor",
    "ReportTotals",
    "ReportWait",
    "ReportWithGraph",
    "ShapeLike",
    "StreamLike",
    "SubmitOptions",
    "Submitter",
    "SupportsArrow",
    "SupportsArrowArray",
    "SupportsArrowDeviceArray",
    "SupportsArrowStream",
    "SupportsCudaStream",
    "SupportsDLPack",
    "Using",
]


def __dir__() -> list[str]:
    return list(__all__)


# --- Arguments --------------------------------------------------------------------------------------------------------


class SupportsDLPack(Protocol):
    """An object that ``from_dlpack`` takes: the array API's protocol."""

    def __dlpack__(self, *, max_version: tuple[int, int] | None = ...) -> Any: ...


class SupportsArrowDeviceArray(Protocol):
    """An object that ``from_arrow`` takes: Arrow's C device interface."""

    def __arrow_c_device_array__(self) -> tuple[Any, Any]: ...


class SupportsArrowArray(Protocol):
    """An object that ``from_arrow`` takes too: Arrow's C data interface, of host memory."""

    def __arrow_c_array__(self) -> tuple[Any, Any]: ...


class SupportsArrowStream(Protocol):
    """An object that ``from_arrow`` takes too: Arrow's C stream interface, of one array."""

    def __arrow_c_stream__(self) -> Any: ...


class HasShapeAndDtype(Protocol):
    """An array, or something that looks like one."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...


class SupportsCudaStream(Protocol):
    """A stream of PyTorch, CuPy, cuda.core and others."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class CallsBack(Protocol):
    """A future that calls back when it is done: of `concurrent.futures`, Dask or PyTorch."""

    def add_done_callback(self, callback: Any, /) -> Any: ...


SupportsArrow: TypeAlias = Union[SupportsArrowDeviceArray, SupportsArrowArray, SupportsArrowStream]
"""An object that ``from_arrow`` takes."""
DeviceLike: TypeAlias = Union[str, tuple[int, int], Device]
"""A device: its name (``"cuda:0"``), or DLPack's numbers for it."""
ShapeLike: TypeAlias = Union[SupportsIndex, Sequence[SupportsIndex]]
"""The lengths of all dimensions, in elements; an integer for one dimension."""
DtypeLike: TypeAlias = Any
"""An element type: its name (``"float32"``), or the dtype of a library."""
Like: TypeAlias = Union[tuple[ShapeLike, DtypeLike], HasShapeAndDtype]
"""The likeness of a result: a pair (shape, dtype), or something that has both."""
StreamLike: TypeAlias = Union[int, SupportsCudaStream, Stream]
"""A stream of a device: an object of its library, or its number as in DLPack."""
FutureLike: TypeAlias = Union[Awaitable[Any], CallsBack]
"""An object that ``from_future`` takes."""
Using: TypeAlias = Callable[[Any], Any]
"""A function that makes an array of a tensor, for example ``np.from_dlpack``."""
Body: TypeAlias = Union[
    Callable[[], object],
    # With these, type checkers know that the parameters of a lambda may have any type.
    Callable[Concatenate[Any, ...], object],
    Callable[Concatenate[Any, Any, ...], object],
    Callable[Concatenate[Any, Any, Any, ...], object],
    Callable[Concatenate[Any, Any, Any, Any, ...], object],
    Callable[..., object],
]
"""The function of an operation, as ``submit`` takes it: any function."""


class SubmitOptions(TypedDict, total=False):
    """Keyword options of ``submit``, and of ``op`` with `writes`."""

    using: Using | None
    name: str | None
    on: object
    priority: int
    on_skip: Callable[[OperationError], object] | None


class CallOptions(TypedDict, total=False):
    """Keyword options of ``call``, ``wrap`` and ``op``, but for `outputs` and `like`."""

    using: Using | None
    name: str | None
    on: object
    priority: int
    alias_of: Iterable[Tensor] | None
    copy: bool | None


# --- Functions that submit --------------------------------------------------------------------------------------------

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class Submitter(Protocol[P, R]):
    """A function that ``wrap`` or ``op`` has made of another: a call is submitted, and returns `R`, for example a ``Tensor``.

    Type checkers compare calls with the parameters of the function. A positional argument may have any type, since
    tensors stand in the place of arrays; the number of up to four is checked, but mypy accepts too many. Names and
    types of keyword arguments are checked: pass a tensor for a parameter that is declared as an array by position.
    Calls with a keyword argument `out` are not checked.
    """

    @overload
    def __call__(self, *args: Any, out: Tensor | Sequence[Tensor], **kwargs: Any) -> R: ...
    @overload
    def __call__(self, a: Any, b: Any, c: Any, d: Any, e: Any, /, *args: Any, **kwargs: Any) -> R: ...
    @overload
    def __call__(
        self: Submitter[Concatenate[Any, Any, Any, Any, Q], R],
        a: Any,
        b: Any,
        c: Any,
        d: Any,
        /,
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> R: ...
    @overload
    def __call__(
        self: Submitter[Concatenate[Any, Any, Any, Q], R],
        a: Any,
        b: Any,
        c: Any,
        /,
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> R: ...
    @overload
    def __call__(
        self: Submitter[Concatenate[Any, Any, Q], R], a: Any, b: Any, /, *args: Q.args, **kwargs: Q.kwargs
    ) -> R: ...
    @overload
    def __call__(self: Submitter[Concatenate[Any, Q], R], a: Any, /, *args: Q.args, **kwargs: Q.kwargs) -> R: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


# --- Reports ----------------------------------------------------------------------------------------------------------

Cause: TypeAlias = Literal["computing", "queued", "no worker", "not observed", "not resumed", "leased"]
"""The cause of a wait; ``docs/report.md`` describes each."""


class ReportTotals(TypedDict):
    """Numbers of what was recorded."""

    operations: int
    failed: int
    cancelled: int
    skipped: int
    unfinished: int
    waits: int
    leases: int
    running_ns: int
    waited_ns: int


class ReportFailure(TypedDict):
    """Failures for one reason, of one name. `operation`, an identity as in ``diagnose()``, was the first."""

    name: str
    operation: int
    why: str
    count: int


class ReportCause(TypedDict):
    """Waiting time of one cause, at the root."""

    cause: Cause
    waited_ns: int
    waits: int


class ReportWait(TypedDict):
    """The worst waits, equal ones as one. `waiter`, an identity as in ``diagnose()``, waited longest, for `waited_ns`."""

    sentence: str
    waiter: int
    waited_ns: int
    count: int
    total_ns: int
    cause: Cause
    blocker: str


class ReportMatrix(TypedDict):
    """The time that rows waited for columns: ``waited_ns[row][column]``, rows waited for columns."""

    libraries: list[str]
    waited_ns: list[list[int]]


class ReportExchange(TypedDict):
    """Tensors that one library handed to another. `producer` is where the memory is from."""

    producer: str
    consumer: str
    count: int
    bytes: int
    copies: int
    copied_bytes: int
    waited_ns: int


class ReportGraphChange(TypedDict):
    """A change that Estafette would make at one call of a program that was only observed."""

    call: str
    waited_for: str
    producer: str
    consumer: str
    change: str
    count: int
    waited_ns: int
    saves_ns: int


class ReportWithGraph(TypedDict):
    """The changes that Estafette would make in a program that was only observed, and the time that the run would save with all."""

    changes: list[ReportGraphChange]
    saves_ns: int


class ReportOperation(TypedDict):
    """All operations of one name and kind (``operation``, ``copy``, ``wait``, ``await``, ``export``, ``import``)."""

    name: str
    kind: str
    count: int
    running_ns: int
    waited_ns: int
    causes_ns: list[int]
    blamed_ns: int
    slack_ns: int


class ReportTensor(TypedDict):
    """All tensors of one name."""

    name: str
    bytes: int
    accesses: int
    waited_ns: int
    leased_ns: int


class ReportHandOver(TypedDict):
    """Hand-overs of device memory at one line that nothing ordered (``none``), or of which that is not known (``unknown``)."""

    order: str
    producer: str
    consumer: str
    made: str
    taken: str
    why: str
    count: int


class ReportPath(TypedDict):
    """The critical path: the longest chain of work."""

    length_ns: int
    count: int
    names: list[str]


class ReportRunTime(TypedDict):
    """A part of the run time, along whatever held up the end."""

    what: str
    time_ns: int


class ReportBarriers(TypedDict):
    """The cost that a global barrier at each hand-over would have had."""

    hand_overs: int
    longer: int
    extra_ns: int
    worst_ns: int


class ReportAdvice(TypedDict):
    """A change that would help, and what it would save at most."""

    change: str
    saves_ns: int


class ReportData(TypedDict):
    """``Report.data``: its fields are described in ``docs/report.md``. Later versions may have more of them."""

    schema: int
    headline: str
    program: str
    duration_ns: int
    totals: ReportTotals
    failures: list[ReportFailure]
    causes: list[ReportCause]
    worst: list[ReportWait]
    matrix: ReportMatrix
    exchanges: list[ReportExchange]
    hand_overs: list[ReportHandOver]
    with_graph: ReportWithGraph
    operations: list[ReportOperation]
    tensors: list[ReportTensor]
    critical_path: ReportPath
    run_time: list[ReportRunTime]
    barriers: ReportBarriers
    advice: list[ReportAdvice]
    clocks: list[str]
    missing: list[str]
