"""The extension behind the package `estafette`."""

import os
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, ClassVar, Literal, TypeVar, final, overload

from typing_extensions import Buffer, CapsuleType, Self

from ._dtype import DType
from ._errors import OperationError
from ._reports import Device, DeviceInfo, Diagnosis, Peer, ShutdownReport, Stats, UnorderedExchange
from ._typing import (
    DeviceLike,
    DtypeLike,
    FutureLike,
    Like,
    ShapeLike,
    StreamLike,
    SupportsArrow,
    SupportsDLPack,
    Using,
)

__all__ = ["Access", "Engine", "Exporter", "Operation", "Operator", "Operators", "Program", "Tensor", "Variable", "View", "__version__", "_after_fork_in_child", "_after_fork_in_parent", "_at_exit", "_before_fork", "_before_threads_end", "_begin_recording", "_check_interpreter", "_end_recording", "_hold_barriers", "_read_report", "_set_helping", "_shown", "devices", "peers", "record_call_sites", "register_context", "unordered_exchanges", "unregister_context"]

__version__: str

_Function = TypeVar("_Function", bound=Callable[..., Any])

@final
class Engine:
    """Schedules operations in the order that their data demands."""

    def __new__(
        cls,
        workers: int | None = None,
        *,
        in_flight_limit: int | None = None,
        lease_timeout: float | None = None,
        watchdog: float | None = None,
        failures: Literal["raise", "log", "ignore"] | None = None,
        stack_size: int | None = None,
        using: Using | None = None,
    ) -> Self: ...
    @property
    def workers(self) -> int: ...
    @property
    def operators(self) -> Operators: ...
    def from_dlpack(
        self,
        x: SupportsDLPack | CapsuleType | Buffer,
        /,
        *,
        device: DeviceLike | None = None,
        copy: bool | None = None,
        writable: bool | None = None,
        freed_on: StreamLike | None = None,
    ) -> Tensor: ...
    def from_future(
        self,
        future: FutureLike,
        /,
        *,
        alias_of: Iterable[Tensor] | None = None,
        like: Like | None = None,
        copy: bool | None = None,
        name: str | None = None,
    ) -> Tensor: ...
    def from_mxnet(self, array: Any, /, *, write: bool = False, name: str | None = None) -> Tensor: ...
    def from_arrow(self, x: SupportsArrow | tuple[CapsuleType, CapsuleType], /) -> Tensor: ...
    def empty(self, shape: ShapeLike, dtype: DtypeLike, *, device: DeviceLike | None = None) -> Tensor: ...
    def zeros(self, shape: ShapeLike, dtype: DtypeLike) -> Tensor: ...
    def var(self) -> Variable: ...
    def submit(
        self,
        fn: Callable[..., Any],
        reads: Iterable[Tensor | Variable] | None = None,
        writes: Iterable[Tensor | Variable] | None = None,
        using: Using | None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
    ) -> Operation: ...
    def program(self, name: str | None = None, *, graph: bool = False) -> Program: ...
    def submit_async(
        self,
        fn: Callable[..., Any],
        reads: Iterable[Tensor | Variable] | None = None,
        writes: Iterable[Tensor | Variable] | None = None,
        using: Using | None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
    ) -> Awaitable[Operation]: ...
    @overload
    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: Like | None = None,
        copy: bool | None = None,
        outputs: None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> Tensor: ...
    @overload
    def call(  # type: ignore[overload-overlap]
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: None = None,
        copy: bool | None = None,
        outputs: Literal[0],
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> Operation: ...
    @overload
    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: list[Like] | None = None,
        copy: bool | None = None,
        outputs: int,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]: ...
    @overload
    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: dict[str, Like] | None = None,
        copy: bool | None = None,
        outputs: Sequence[str],
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> dict[str, Tensor]: ...
    @overload
    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: list[Like],
        copy: bool | None = None,
        outputs: None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]: ...
    @overload
    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: dict[str, Like],
        copy: bool | None = None,
        outputs: None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> dict[str, Tensor]: ...
    @overload
    def call_async(
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: Like | None = None,
        copy: bool | None = None,
        outputs: None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> Awaitable[Tensor]: ...
    @overload
    def call_async(  # type: ignore[overload-overlap]
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: None = None,
        copy: bool | None = None,
        outputs: Literal[0],
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> Awaitable[Operation]: ...
    @overload
    def call_async(
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: list[Like] | None = None,
        copy: bool | None = None,
        outputs: int,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> Awaitable[tuple[Tensor, ...]]: ...
    @overload
    def call_async(
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: dict[str, Like] | None = None,
        copy: bool | None = None,
        outputs: Sequence[str],
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> Awaitable[dict[str, Tensor]]: ...
    @overload
    def call_async(
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: list[Like],
        copy: bool | None = None,
        outputs: None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> Awaitable[tuple[Tensor, ...]]: ...
    @overload
    def call_async(
        self,
        fn: Callable[..., Any],
        *args: Any,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: dict[str, Like],
        copy: bool | None = None,
        outputs: None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> Awaitable[dict[str, Tensor]]: ...
    def wrap(self, fn: Callable[..., Any], /, **options: Any) -> Callable[..., Tensor]: ...
    @overload
    def op(
        self,
        *,
        reads: str | Iterable[str] | None = None,
        writes: None = None,
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Callable[..., Tensor]]: ...
    @overload
    def op(
        self,
        *,
        reads: str | Iterable[str] | None = None,
        writes: str | Iterable[str],
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Callable[..., Operation]]: ...
    def access(
        self,
        reads: Iterable[Tensor] | None = None,
        writes: Iterable[Tensor] | None = None,
        using: Using | None = None,
    ) -> Access: ...
    def wait_all(self, timeout: float | None = None) -> None: ...
    def diagnose(self) -> Diagnosis: ...
    def stats(self) -> Stats: ...
    def shutdown(self, timeout: float | None = None) -> ShutdownReport: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...
    def __aenter__(self) -> Awaitable[Self]: ...
    def __aexit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> Awaitable[None]: ...

@final
class Tensor:
    """A promise of an n-dimensional array."""

    __dlpack_c_exchange_api__: ClassVar[CapsuleType]
    def call_in_report(self, name: str) -> None: ...
    def is_ready(self) -> bool: ...
    def is_defined(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def block_until_ready(self, timeout: float | None = None) -> Self: ...
    def __await__(self) -> Generator[Any, None, Any]: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def result(self, timeout: float | None = None) -> Any: ...
    def exception(self, timeout: float | None = None) -> OperationError | None: ...
    def add_done_callback(self, fn: Callable[[Self], object], /) -> None: ...
    def future(self) -> Future[Any]: ...
    def _failed(self) -> bool: ...
    @property
    def _state(self) -> str: ...
    @property
    def _condition(self) -> Any: ...
    @property
    def _waiters(self) -> Any: ...
    def writable(self) -> Awaitable[Self]: ...
    @property
    def __estafette_promise__(self) -> CapsuleType: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    @property
    def __sycl_usm_array_interface__(self) -> dict[str, Any]: ...
    def end_captures(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def __numpy_dtype__(self) -> Any: ...
    @property
    def device(self) -> Device: ...
    @property
    def size(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def data_ptr(self) -> int: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def version(self) -> int: ...
    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __arrow_c_device_array__(
        self, requested_schema: object | None = None, **kwargs: None
    ) -> tuple[CapsuleType, CapsuleType]: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[CapsuleType, CapsuleType]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any | None = None, copy: bool | None = None) -> Any: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def to_host(self) -> Tensor: ...
    def for_write(self) -> Exporter: ...
    def alias(self) -> Exporter: ...
    def read(self, using: Using | None = None) -> Access: ...
    def write(self, using: Using | None = None) -> Access: ...
    def clear_error(self) -> None: ...

@final
class Exporter:
    """A tensor on its way to a library, with the access that it shall have."""

    __dlpack_c_exchange_api__: ClassVar[CapsuleType]
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any | None = None, copy: bool | None = None) -> Any: ...
    @property
    def tensor(self) -> Tensor: ...
    @property
    def access(self) -> str: ...
    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Access:
    """Leases of several tensors for the length of a block."""

    def __enter__(self) -> Any: ...
    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...
    def __aenter__(self) -> Awaitable[Any]: ...
    def __aexit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> Awaitable[None]: ...

@final
class View:
    """A tensor under a scoped lease."""

    __dlpack_c_exchange_api__: ClassVar[CapsuleType]
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any | None = None, copy: bool | None = None) -> Any: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    @property
    def __sycl_usm_array_interface__(self) -> dict[str, Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def __numpy_dtype__(self) -> Any: ...
    @property
    def device(self) -> Device: ...
    @property
    def access(self) -> str: ...
    def __arrow_c_device_array__(
        self, requested_schema: object | None = None, **kwargs: None
    ) -> tuple[CapsuleType, CapsuleType]: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[CapsuleType, CapsuleType]: ...
    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Operation:
    """A submitted operation: can be awaited, waited for and cancelled."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> int: ...
    def is_done(self) -> bool: ...
    def cancel(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def __await__(self) -> Generator[Any, None, None]: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def result(self, timeout: float | None = None) -> None: ...
    def exception(self, timeout: float | None = None) -> OperationError | None: ...
    def add_done_callback(self, fn: Callable[[Self], object], /) -> None: ...
    def future(self) -> Future[None]: ...
    def _failed(self) -> bool: ...
    @property
    def _state(self) -> str: ...
    @property
    def _condition(self) -> Any: ...
    @property
    def _waiters(self) -> Any: ...

@final
class Program:
    """Operations that are recorded once and then run any number of times, each time as one operation."""

    @property
    def name(self) -> str: ...
    @property
    def is_graph(self) -> bool: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def submit(
        self,
        fn: Callable[..., Any],
        reads: Iterable[Tensor | Variable] | None = None,
        writes: Iterable[Tensor | Variable] | None = None,
        using: Using | None = None,
        name: str | None = None,
        on: DeviceLike | object | None = None,
    ) -> None: ...
    def finish(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        *_exception: type[BaseException] | BaseException | TracebackType | None,
    ) -> None: ...
    def replay(self) -> Operation: ...
    def replay_async(self) -> Awaitable[Operation]: ...

@final
class Operators:
    """The operators of this process, by name."""

    def __getitem__(self, name: str, /) -> Operator: ...
    def __contains__(self, name: str, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    @overload
    def register(
        self,
        name: str,
        fn: None = None,
        *,
        using: Using | None = None,
        inputs: int | None = None,
        outputs: int = 1,
        destination: bool = False,
        infer: Callable[..., Any] | None = None,
    ) -> Callable[[_Function], _Function]: ...
    @overload
    def register(
        self,
        name: str,
        fn: _Function,
        *,
        using: Using | None = None,
        inputs: int | None = None,
        outputs: int = 1,
        destination: bool = False,
        infer: Callable[..., Any] | None = None,
    ) -> _Function: ...
    def load(self, path: str | os.PathLike[str]) -> list[str]: ...
    def unregister(self, name: str) -> None: ...

@final
class Operator:
    """A function with a name: ``op(*inputs, out=None, **attributes)``."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def inputs(self) -> int | None: ...
    @property
    def outputs(self) -> int: ...
    @property
    def origin(self) -> str: ...
    def __call__(self, *inputs: Tensor, out: Tensor | Sequence[Tensor] | None = None, **attributes: Any) -> Any: ...

@final
class Variable:
    """Something whose order is kept and that has no memory."""

    @property
    def id(self) -> int: ...
    @property
    def version(self) -> int: ...

def devices() -> tuple[DeviceInfo, ...]: ...
def register_context(context: object, /, *, device_type: int = 14) -> tuple[int, int]: ...
def unregister_context(device: tuple[int, int], /) -> None: ...
def peers() -> tuple[Peer, ...]: ...
def unordered_exchanges() -> tuple[UnorderedExchange, ...]: ...
def _after_fork_in_child() -> None: ...
def _after_fork_in_parent() -> None: ...
def _at_exit() -> None: ...
def _before_fork() -> None: ...
def _before_threads_end() -> None: ...
def record_call_sites(on: bool = True, /) -> bool: ...
def _set_helping(allowed: bool) -> bool: ...
def _shown(name: str, /) -> str: ...
def _check_interpreter() -> None: ...
def _hold_barriers(hold: bool, /) -> None: ...
def _begin_recording(path: str, program: str, memory_max: int | None, /) -> None: ...
def _end_recording() -> None: ...
def _read_report(path: str, width: int, short: bool, html: str | None, /) -> tuple[str, str]: ...
