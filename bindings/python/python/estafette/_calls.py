"""Calls with tensors anywhere among their arguments. Called by the extension, never by users."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import operator
import sys

from ._estafette import Tensor, Variable


class Call(functools.partial):
    """A function with its arguments, to be called with the arrays of the tensors among them.

    The base class lets the extension find the function, for its name and its kind.
    """

    def __new__(cls, function, args, keywords):
        self = super().__new__(cls, function)
        self._function, self._args, self._keywords = function, args, keywords
        self._places = None
        return self

    def __call__(self, *arrays):
        if self._places is not None:
            arrays = [arrays[place] for place in self._places]
        args = [_filled(item, arrays) for item in self._args]
        keywords = {key: _filled(item, arrays) for key, item in self._keywords.items()}
        return self._function(*args, **keywords)


def bind(function, args, keywords):
    """The tensors among the arguments, and the function that is to be called with their arrays."""
    tensors: list[Tensor] = []
    return _call(function, args, keywords, tensors), tuple(tensors)


def _call(function, args, keywords, tensors):
    args = [(_filler(value, tensors, ()), value) for value in args]
    keywords = {key: (_filler(value, tensors, ()), value) for key, value in keywords.items()}
    return Call(function, args, keywords)


def _filled(item, arrays):
    fill, value = item
    return value if fill is None else fill(arrays)


def _filler(value, tensors, outer):
    """The function that gives `value` with arrays in place of its tensors, which are added to `tensors`.

    None for a value without tensors, which is passed on as it is. `outer` has the identities of what `value` is in: a
    container that is in itself is not entered again.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return operator.itemgetter(len(tensors) - 1)
    if isinstance(value, Variable):
        raise TypeError("a Variable has no data to pass to a function: `submit(reads=..., writes=...)` orders by it")
    if id(value) in outer:
        return None
    outer = (*outer, id(value))
    if isinstance(value, (list, tuple)):
        items = [(_filler(item, tensors, outer), item) for item in value]
        if all(fill is None for fill, _ in items):
            return None
        make = getattr(type(value), "_make", type(value))
        return lambda arrays: make([_filled(item, arrays) for item in items])
    if isinstance(value, dict):
        fillers = {key: _filler(item, tensors, outer) for key, item in value.items()}
        return _copy_filler(value, fillers, dict.__setitem__)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        fillers = {name: _filler(getattr(value, name), tensors, outer) for name in names}
        return _copy_filler(value, fillers, object.__setattr__)
    return None


def _copy_filler(value, fillers, put):
    fillers = {key: fill for key, fill in fillers.items() if fill is not None}
    if not fillers:
        return None

    def fill(arrays):
        filled = copy.copy(value)
        for key, filler in fillers.items():
            put(filled, key, filler(arrays))
        return filled

    return fill


def wrap(engine, function, options):
    """The function that submits calls of `function`."""

    @functools.wraps(function)
    def submitted(*args, **kwargs):
        return engine.call(function, *args, **options, **kwargs)

    return submitted


def op(engine, reads, writes, options):
    """The decorator that makes a function submit calls of itself; `writes` names the parameters that it changes."""
    written, read = _names("writes", writes), None if reads is None else _names("reads", reads)

    def decorate(function):
        signature = inspect.signature(function)
        unknown = [name for name in [*written, *(read or [])] if name not in signature.parameters]
        if unknown:
            raise TypeError(f"{function.__qualname__} has no parameter {', '.join(map(repr, unknown))}")
        if not written:
            return wrap(engine, function, options)

        @functools.wraps(function)
        def submitted(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            tensors: list[Tensor] = []
            call = _call(function, bound.args, bound.kwargs, tensors)
            changed = _tensors_of(bound.arguments, written)
            looked_at = tensors if read is None else _tensors_of(bound.arguments, read)
            ordered = {id(tensor) for tensor in [*changed, *looked_at]}
            lost = [tensor for tensor in tensors if id(tensor) not in ordered]
            if lost:
                raise TypeError(f"{function.__qualname__} got {lost[0]!r} for a parameter that `reads` and `writes` do not name")
            # Arrays come in the order of the operands, each tensor once.
            inputs = _once([tensor for tensor in looked_at if not _has(changed, tensor)])
            outputs = _once(changed)
            at = {id(tensor): place for place, tensor in enumerate([*inputs, *outputs])}
            call._places = [at[id(tensor)] for tensor in tensors]
            return engine.submit(call, inputs, outputs, **options)

        return submitted

    return decorate


def _names(what, names):
    names = [names] if isinstance(names, str) else list(names)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what} are names of parameters")
    return names


def _tensors_of(arguments, names):
    tensors: list[Tensor] = []
    for name in names:
        if name in arguments:
            _filler(arguments[name], tensors, ())
    return tensors


def _has(tensors, tensor):
    return any(other is tensor for other in tensors)


def _once(tensors):
    return list({id(tensor): tensor for tensor in tensors}.values())


def using_of(module):
    """The function of a module's library that makes its arrays; None for a library that has none."""
    root = module.partition(".")[0]
    for name in (root, f"{root}.numpy"):
        make = getattr(sys.modules.get(name), "from_dlpack", None)
        if callable(make):
            return make
    return None
