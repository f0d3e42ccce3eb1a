"""Memory of devices in observe mode, by the observers of the kinds of devices (`Kind.observer`). An observer is a module with

- `ROWS`: functions of its libraries, as `table.ROWS` has those of others,
- `ACTS`: the effects of calls on the order of work, by the names in the column `act` of all rows,
- `Order`: the order as one observation knows it; its `begin` gives the tick of a hand-over,
- `is_on_device(library, array)`: true if an array is in memory of its devices,
- `address_of(library, array)`: the address of an array of its libraries, if that can be asked without a wait,
- `hand_over(order, begun, origin, source, library, asked, given, options)`: the verdict on the order of a hand-over.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from .notes import Verdict

_KINDS = _kinds.kinds()

# The attributes of `Kind` with these names, of all kinds together.
LIBRARIES = tuple(library for kind in _KINDS for library in kind.libraries)
NAMES = {root: library for kind in _KINDS for root, library in kind.names.items()}
MODULES = tuple(root for kind in _KINDS for root in kind.modules)
PATHS = tuple(path for kind in _KINDS for path in kind.paths)
HOST_WAITS = tuple(library for kind in _KINDS for library in kind.host_waits)


@functools.cache
def observers() -> tuple[Any, ...]:
    """The observers of all kinds. They import this package, so they are imported when an observation begins."""
    return tuple(importlib.import_module(kind.observer) for kind in _KINDS if kind.observer is not None)


class Act(NamedTuple):
    """A call that has returned."""

    order: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    def argument(self, at: int, name: str) -> Any:
        return self.args[at] if len(self.args) > at else self.kwargs.get(name)


def acting(name: str) -> Callable[[Orders, tuple[Any, ...], dict[str, Any], Any], None] | None:
    """The effect that rows call `name`, on the orders of the kinds that know it; None where none does."""
    known = [(at, observer.ACTS[name]) for at, observer in enumerate(observers()) if name in observer.ACTS]

    def act(orders: Orders, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        for at, function in known:
            function(Act(orders.each[at], args, kwargs, result))

    return act if known else None


class Orders:
    """The orders of work of all kinds, as one observation knows them."""

    def __init__(self) -> None:
        self.each: tuple[Any, ...] = tuple(observer.Order() for observer in observers())

    def begin(self) -> tuple[int, ...]:
        """The ticks of a hand-over."""
        return tuple([order.begin() for order in self.each])

    def hand_over(
        self, begun: tuple[int, ...], origin: str, source: Any, library: str, asked: Any, given: Any, options: dict[str, Any]
    ) -> Verdict | None:
        """The verdict of the kind that has the memory on a hand-over that began at `begun`; None for memory of no device."""
        for observer, order, tick in zip(observers(), self.each, begun, strict=True):
            if observer.is_on_device(origin, source):
                verdict: Verdict | None = observer.hand_over(order, tick, origin, source, library, asked, given, options)
                return verdict
        return None


def is_on_device(library: str, array: Any) -> bool:
    """True if an array is in memory of a device."""
    return any(observer.is_on_device(library, array) for observer in observers())


def pointer_of(library: str, array: Any) -> int | None:
    """The address of an array's memory, if that can be asked without a wait."""
    match library:
        case "numpy":
            return int(array.__array_interface__["data"][0]) if hasattr(array, "__array_interface__") else None
        case "torch":
            return int(array.data_ptr())
    found = (observer.address_of(library, array) for observer in observers())
    return next((address for address in found if address is not None), None)
