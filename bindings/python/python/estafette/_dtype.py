"""Element types: what ``t.dtype`` is."""

from __future__ import annotations

from ._estafette import _dtype_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import CapsuleType, Self


class DType(str):
    """The element type of a tensor: a text that is equal to the type's name, such as ``"float32"``, and to the types of other libraries
    that `Engine.zeros` takes for it: ``np.float32``, ``torch.float32``. Its hash is that of the text, so it finds nothing in a dict by
    types of NumPy; ``np.dtype(dtype)`` does.

    NumPy takes it wherever a dtype is asked for; ``bfloat16`` and the floats of 8 bits are types of ``ml_dtypes``, where that is
    installed.

        >>> dtype = eng.zeros(1, "float32").dtype
        >>> dtype == "float32", dtype == np.float32, dtype.itemsize, np.dtype(dtype)
        (True, True, 4, dtype('float32'))
    """

    __slots__ = ("_itemsize",)

    _itemsize: int

    def __new__(cls, name: str, itemsize: int) -> Self:
        self = super().__new__(cls, name)
        self._itemsize = itemsize
        return self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str.__eq__(self, other)
        # Other objects that have a type, such as arrays and members of an `Enum`, are none.
        if not isinstance(other, type) and "dtype" not in type(other).__name__.lower():
            return NotImplemented
        try:
            return str.__eq__(self, _dtype_name(other))
        except (TypeError, ValueError):
            return NotImplemented

    def __ne__(self, other: object) -> bool:
        is_equal = self.__eq__(other)
        return is_equal if is_equal is NotImplemented else not is_equal

    __hash__ = str.__hash__

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]
        return str(self), self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one element that stands alone."""
        return self._itemsize

    @property
    def name(self) -> str:
        """The qualified name, ``"estafette.float32"``.

        It differs from the name of a NumPy dtype on purpose: a library that compares the two (Zarr) takes a tensor whose name is
        equal for a NumPy array.
        """
        return f"estafette.{self}"

    @property
    def __numpy_dtype__(self) -> Any:
        """The ``numpy.dtype`` of the same elements; missing where NumPy has none."""
        import numpy

        try:
            return numpy.dtype(str(self))
        except TypeError:
            pass
        try:
            import ml_dtypes

            return numpy.dtype(getattr(ml_dtypes, self))
        except (ImportError, AttributeError):
            raise AttributeError(f"NumPy has no type for elements of type {self}") from None

    @property
    def dtype(self) -> Any:
        """As ``__numpy_dtype__``, by the name that NumPy before version 2.4 looks at."""
        return self.__numpy_dtype__


# A program uses few types, but names of unknown ones are without number.
_KNOWN_MAX = 64
_known: dict[str, DType] = {}


def of(name: str, itemsize: int) -> DType:
    """The element type of that name; the same object for each of the first names."""
    dtype = _known.get(name)
    if dtype is None:
        dtype = DType(name, itemsize)
        if len(_known) < _KNOWN_MAX:
            _known[name] = dtype
    return dtype


class Bits:
    """An array whose elements are integers as wide as those that NumPy lacks, on its way to NumPy."""

    def __init__(self, capsule: CapsuleType) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_arguments: Any) -> CapsuleType:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def to_numpy(capsule: CapsuleType, dtype: Any) -> Any:
    """The array in `capsule`, whose elements are integers as wide as `dtype`, which they are taken for."""
    import numpy

    return numpy.from_dlpack(Bits(capsule)).view(dtype)
