"""Kinds of devices, as far as Python code knows of them: a module per kind, with a class `KIND`.

The extension names the modules (`bindings/python/src/kinds`, `Kind::module`). Nothing else of the package names a kind of device.
"""

from __future__ import annotations

import functools
import importlib

from .._estafette import _kind_modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._streams import Row, Stream


class Kind:
    """One kind of device, as a subclass. What a kind does not have it leaves as it is here."""

    arrays: tuple[str, ...] = ()
    """Attributes of its libraries' arrays by which others take them."""
    stream: type[Stream] | None = None
    """The class of the stream of a running operation, where libraries have a current stream."""
    streams: tuple[Row, ...] = ()
    """Libraries that learn that stream."""
    libraries: tuple[str, ...] = ()
    """Libraries whose arrays are on its devices alone."""
    names: Mapping[str, str] = {}
    """Library name by module root, where the two differ."""
    modules: tuple[str, ...] = ()
    """Module roots: the first parts of the names of the libraries' modules."""
    paths: tuple[str, ...] = ()
    """Modules by which programs call functions that are observed."""
    host_waits: tuple[str, ...] = ()
    """The libraries that take each other's arrays by a wait of the host."""
    observer: str | None = None
    """The module that follows the order of work on its devices in observe mode; `_observe/devices.py` says what it has."""


def named(module: str) -> type[Kind]:
    """The kind whose module has this name."""
    kind: type[Kind] = importlib.import_module(module).KIND
    return kind


@functools.cache
def kinds() -> tuple[type[Kind], ...]:
    """All kinds, in the extension's order."""
    return tuple(map(named, _kind_modules()))


@functools.cache
def arrays() -> tuple[str, ...]:
    """Attributes by which arrays of any kind are taken, beside DLPack's and NumPy's."""
    return tuple(name for kind in kinds() for name in kind.arrays)
