"""The extension behind the package `estafette`."""

import os
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, ClassVar, TypeVar, final, overload

from typing_extensions import CapsuleType, Self

from ._reports import Device, Diagnosis, Peer, ShutdownReport, Stats, UnorderedExchange
from ._typing import (
    DeviceLike,
    DtypeLike,
    FutureLike,
    Like,
    ShapeLike,
    SupportsArrow,
    SupportsDLPack,
    Using,
)

__all__ = ["Access", "Engine", "Exporter", "Operation", "Operator", "Operators", "Tensor", "Variable", "View", "__version__", "_after_fork_in_child", "_after_fork_in_parent", "_at_exit", "_before_fork", "peers", "record_call_sites", "unordered_exchanges"]

__version__: str

_Function = TypeVar("_Function", bound=Callable[..., Any])

@final
class Engine:
    """Schedules operations in the order that their data demands."""

    def __new__(
        cls,
        workers: int | None = None,
        *,
        window: int | None = None,
        lease_timeout: float | None = None,
    ) -> Self: ...
    @property
    def workers(self) -> int: ...
    @property
    def operators(self) -> Operators: ...
    def from_dlpack(
        self,
        x: SupportsDLPack | CapsuleType,
        /,
        *,
        device: DeviceLike | None = None,
        copy: bool | None = None,
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
    def empty(self, shape: ShapeLike, dtype: DtypeLike) -> Tensor: ...
    def zeros(self, shape: ShapeLike, dtype: DtypeLike) -> Tensor: ...
    def var(self) -> Variable: ...
    def submit(
        self,
        fn: Callable[..., Any],
        reads: Iterable[Tensor | Variable] | None = None,
        writes: Iterable[Tensor | Variable] | None = None,
        using: Using | None = None,
        name: str | None = None,
        on: DeviceLike | None = None,
        priority: int = 0,
    ) -> Operation: ...
    def submit_async(
        self,
        fn: Callable[..., Any],
        reads: Iterable[Tensor | Variable] | None = None,
        writes: Iterable[Tensor | Variable] | None = None,
        using: Using | None = None,
        name: str | None = None,
        on: DeviceLike | None = None,
        priority: int = 0,
    ) -> Awaitable[Operation]: ...
    def call(
        self,
        fn: Callable[..., Any],
        *tensors: Tensor,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: Like | None = None,
        copy: bool | None = None,
        name: str | None = None,
        on: DeviceLike | None = None,
        priority: int = 0,
    ) -> Tensor: ...
    def call_async(
        self,
        fn: Callable[..., Any],
        *tensors: Tensor,
        using: Using | None = None,
        alias_of: Iterable[Tensor] | None = None,
        like: Like | None = None,
        copy: bool | None = None,
        name: str | None = None,
        on: DeviceLike | None = None,
        priority: int = 0,
    ) -> Awaitable[Tensor]: ...
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
    def is_ready(self) -> bool: ...
    def is_defined(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def __await__(self) -> Generator[Any, None, Self]: ...
    def writable(self) -> Awaitable[Self]: ...
    @property
    def __estafette_promise__(self) -> CapsuleType: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> Device: ...
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
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any | None = None, copy: bool | None = None) -> Any: ...
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
    if sys.version_info >= (3, 12):
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
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any | None = None, copy: bool | None = None) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
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

def peers() -> tuple[Peer, ...]: ...
def unordered_exchanges() -> tuple[UnorderedExchange, ...]: ...
def _after_fork_in_child() -> None: ...
def _after_fork_in_parent() -> None: ...
def _at_exit() -> None: ...
def _before_fork() -> None: ...
def record_call_sites(on: bool = True, /) -> bool: ...
