"""Puts observed functions in the place of those of the table, in modules that are there and in those that come, and takes them out."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import gc
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from .devices import acting
from .table import Plan, shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

    from .table import Row

class Observed:
    """A function that is called by way of an observer, and that is the function in every other respect.

    It is equal to the function and hashes as it does, since libraries keep functions as keys (``__torch_function__``, Numba). It has
    the function's class, for ``isinstance`` and ``inspect``. When nothing observes any more, it only calls the function: a program may
    keep it, or have put a wrapper of its own around it.
    """

    def __init__(self, function: Any, row: Row, call: Any) -> None:
        functools.update_wrapper(self, function)
        self._original = function
        self._row = row
        self._act: Any = acting(row.act)
        self._name = shown(row)
        # Worked out once, and found in one place, as most calls come with cold caches.
        self._plan = Plan.of(function, row, self._act, self._name)
        self._call: Any = call

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        call = self._call
        return self._original(*args, **kwargs) if call is None else call(self, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._original)

    def __eq__(self, other: object) -> bool:
        return self is other or self._original == (other._original if type(other) is Observed else other)

    def __hash__(self) -> int:
        return hash(self._original)

    def __repr__(self) -> str:
        return repr(self._original)

    def __getattr__(self, name: str) -> Any:
        # `_original` itself is asked for by `copy` and `pickle` before it is there.
        if name == "_original":
            raise AttributeError(name)
        return getattr(self._original, name)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _memo: Any) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        # By its name as long as that finds it, and later as the function.
        with contextlib.suppress(AttributeError, KeyError):
            found: Any = functools.reduce(getattr, self.__qualname__.split("."), sys.modules[self.__module__])
            if found is self:
                return self.__qualname__
        return (copy.copy, (self._original,))


class Patches:
    """The functions of the table that are observed at the moment."""

    def __init__(self, rows: Sequence[Row], calls: dict[str, Any]) -> None:
        self._calls = calls
        self._rows: dict[str, list[Row]] = {}
        for row in rows:
            self._rows.setdefault(row.module, []).append(row)
        self._placed: list[tuple[Any, str, Any, Any]] = []
        self._finder = _Finder(self)
        self._is_removed = False

    def place(self) -> None:
        """Observes what is imported, and has what is imported later observed."""
        sys.meta_path.insert(0, self._finder)
        for name in self._rows:
            module = sys.modules.get(name)
            if module is not None:
                self.place_in(name, module)

    def remove(self) -> None:
        """Puts back what is still in place. What others have wrapped since stays, and observes no more."""
        self._is_removed = True
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self._finder)
        # Each is taken once, where two threads come here.
        with contextlib.suppress(IndexError):
            while True:
                owner, name, before, placed = self._placed.pop()
                observed_in(placed)._call = None
                if vars(owner).get(name) is placed:
                    _put(owner, name, before)

    def concerns(self, module: str) -> bool:
        """True if the table has functions of a module."""
        return module in self._rows

    def place_in(self, name: str, module: types.ModuleType) -> None:
        """Observes the functions of a module that was imported by a name, which it may have changed."""
        for row in self._rows[name]:
            *path, name = row.name.split(".")
            try:
                owner = functools.reduce(getattr, path, module)
                function = getattr(owner, name)
            except AttributeError:
                continue
            found = inspect.getattr_static(owner, name, function)
            if observed_in(found) is not None:
                continue
            call = self._calls[row.role]
            placed: Any
            if isinstance(found, classmethod | types.ClassMethodDescriptorType):
                # Of the class that it is called on, which may be a subclass.
                placed = classmethod(Observed(functools.update_wrapper(_of_class(found), function), row, call))
            elif isinstance(found, property | types.GetSetDescriptorType):
                placed = property(Observed(_value_of(found), row, call), doc=found.__doc__)
            else:
                placed = Observed(function, row, call)
            before = vars(owner).get(name, _ABSENT)
            _put(owner, name, placed)
            self._placed.append((owner, name, before, placed))
            # Asked last: what was placed before the removal is found by it.
            if self._is_removed:
                return self.remove()


_ABSENT = object()


def _of_class(method: Any) -> Any:
    return lambda owner, *args, **kwargs: method.__get__(None, owner)(*args, **kwargs)


def _value_of(descriptor: Any) -> Any:
    return lambda instance: descriptor.__get__(instance)


def observed_in(found: Any) -> Any:
    """The observed function in what stands in a class."""
    if isinstance(found, classmethod):
        found = found.__func__
    elif isinstance(found, property):
        found = found.fget
    return found if type(found) is Observed else None


def _put(owner: Any, name: str, what: Any) -> None:
    """Sets an attribute, also of a class that Python code cannot change, such as those of Cython libraries."""
    try:
        delattr(owner, name) if what is _ABSENT else setattr(owner, name, what)
    except TypeError:
        if not isinstance(owner, type):
            raise
        # Their methods are in a plain dictionary as well, behind a view that only reads; the caches of lookups are cleared.
        (inside,) = gc.get_referents(owner.__dict__)
        if what is _ABSENT:
            del inside[name]
        else:
            inside[name] = what
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


class _Finder:
    """Finds nothing itself: it has the modules of the table observed when the finders behind it have found them."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not self._patches.concerns(name):
            return None
        finders = list(sys.meta_path)
        # It is gone where the observation ends during the import.
        for finder in finders[finders.index(self) + 1 if self in finders else 0 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self._patches, name)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """Loads as the loader that it stands for, and gives the module that one back."""

    def __init__(self, loader: Any, patches: Patches, name: str) -> None:
        self._loader = loader
        self._patches = patches
        self._name = name

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        spec.loader = self._loader
        try:
            module: types.ModuleType | None = self._loader.create_module(spec)
        finally:
            spec.loader = self  # type: ignore[assignment]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._patches.place_in(self._name, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
