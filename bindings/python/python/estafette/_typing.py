"""Names for the types of arguments, as in the type stubs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, SupportsIndex, TypeAlias, Union

from ._reports import Device


class SupportsDLPack(Protocol):
    """What ``from_dlpack`` takes: the array API's protocol."""

    def __dlpack__(self, *, max_version: tuple[int, int] | None = ...) -> Any: ...


class SupportsArrowDeviceArray(Protocol):
    """What ``from_arrow`` takes: Arrow's C device interface."""

    def __arrow_c_device_array__(self) -> tuple[Any, Any]: ...


class SupportsArrowArray(Protocol):
    """What ``from_arrow`` takes too: Arrow's C data interface, of host memory."""

    def __arrow_c_array__(self) -> tuple[Any, Any]: ...


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


SupportsArrow: TypeAlias = Union[SupportsArrowDeviceArray, SupportsArrowArray]
DeviceLike: TypeAlias = Union[str, tuple[int, int], Device]
ShapeLike: TypeAlias = Union[SupportsIndex, Sequence[SupportsIndex]]
DtypeLike: TypeAlias = Any
Like: TypeAlias = Union[tuple[ShapeLike, DtypeLike], HasShapeAndDtype]
StreamLike: TypeAlias = Union[int, SupportsCudaStream]
FutureLike: TypeAlias = Union[Awaitable[Any], CallsBack]
Using: TypeAlias = Callable[[Any], Any]
