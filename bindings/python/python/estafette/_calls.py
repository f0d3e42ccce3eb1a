"""Calls with tensors anywhere among their arguments and results. Called by the extension, never by users."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import inspect
import itertools
import numbers
import operator
import sys

from . import _kinds
from ._errors import InvalidError
from ._estafette import Tensor, Variable


class Call(functools.partial):
    """A function with its arguments, to be called with the arrays of the tensors among them.

    The base class lets the extension find the function, for its name and its kind.
    """

    def __new__(cls, function, filler, args, keywords):
        self = super().__new__(cls, function)
        self._function, self._args, self._keywords = (filler, function), args, keywords
        self._places = None
        return self

    def __call__(self, *arrays):
        if self._places is not None:
            arrays = [arrays[place] for place in self._places]
        args = [_filled(item, arrays) for item in self._args]
        keywords = {key: _filled(item, arrays) for key, item in self._keywords.items()}
        return _filled(self._function, arrays)(*args, **keywords)


def bind(function, args, keywords):
    """The tensors among the arguments, and the function that is to be called with their arrays."""
    _refuse_out(keywords)
    tensors = []
    return _call(function, args, keywords, tensors), tuple(tensors)


def refuse_ambiguous(function, args, options):
    """Refuses options of a call whose names are those of parameters that the function would not get."""
    if isinstance(function, Call):
        # The caller has separated options and arguments.
        return
    open_names = parameter_names(function, args)
    for name in options:
        if name in open_names:
            raise TypeError(
                f"`{name}` is an option of `call` and a parameter of {_name_of(function)}: write "
                f"`eng.call(functools.partial(fn, {name}=...), ...)` for the parameter, and `eng.wrap(fn, {name}=...)(...)` for the option"
            )


def parameter_names(function, args=()):
    """The names of parameters that a keyword argument may still be given for; none where they cannot be known."""
    try:
        signature = inspect.signature(function)
        given = {*signature.bind_partial(*args).arguments, *getattr(function, "keywords", ())}
    except Exception:
        # Some functions written in C have no signature, arguments may not fit, and a `__signature__` or an annotation may raise anything.
        return set()
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return {name for name, parameter in signature.parameters.items() if parameter.kind in named} - given


def _refuse_out(keywords):
    """The arrays of a call are lent for reading, and PyTorch would write to them all the same, while others read."""
    tensors = []
    if _filler(keywords.get("out"), tensors, _is_tensor) is not None:
        raise TypeError(
            "a tensor in `out` would be written to, and a call only reads its arguments: write "
            "`eng.submit(lambda x, out: fn(x, out=out), reads=[x], writes=[out])`, or decorate a function of your own with "
            "`@eng.op(writes=\"out\")`; one that only reads what it calls `out` gets it by its position"
        )


def _call(function, args, keywords, tensors):
    # The caller may change its containers before the function gets them. A function is looked into if it is a `functools.partial`.
    filler = _filler(function, tensors, _is_tensor) if isinstance(function, functools.partial) else None
    args = [(_filler(value, tensors, _is_tensor, _copied), value) for value in args]
    keywords = {key: (_filler(value, tensors, _is_tensor, _copied), value) for key, value in keywords.items()}
    return Call(function, filler, args, keywords)


def _filled(item, arrays):
    fill, value = item
    return value if fill is None else fill(arrays)


def _is_tensor(value):
    if isinstance(value, Variable):
        raise TypeError("a Variable has no data to pass to a function: `submit(reads=..., writes=...)` orders by it")
    return isinstance(value, Tensor)


def _is_written(value):
    if not _is_tensor(value) and (_is_array(value) or hasattr(value, "__array_interface__")):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"expected an estafette.Tensor to write to, not {kind}; `from_dlpack` makes one of an array")
    return isinstance(value, Tensor)


# Numbers of NumPy have the second, and images of Pillow, whose memory cannot be shared, have its `__array_interface__` alone.
_ARRAYS = "__dlpack__", "__array_struct__", *_kinds.arrays()


def _is_array(value):
    # Classes of arrays have these attributes as well, and text of NumPy has them.
    return not isinstance(value, (type, str)) and any(hasattr(value, name) for name in _ARRAYS)


# Of these, long lists are passed.
_PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})


def _filler(value, found, is_leaf, kept=lambda value: value, outer=()):
    """The function that gives `value` with other objects in place of its leaves, which are added to `found`.

    None for a value without leaves, which stays as it is. `kept` gives what is kept of a container with leaves. `outer` has the
    identities of what `value` is in: a container that is in itself is not entered again.
    """
    if is_leaf(value):
        found.append(value)
        return operator.itemgetter(len(found) - 1)
    if id(value) in outer:
        return None
    outer = (*outer, id(value))
    if isinstance(value, (list, tuple)):
        if _PLAIN.issuperset(map(type, value)):
            return None
        items = [(_filler(item, found, is_leaf, kept, outer), item) for item in value]
        if all(fill is None for fill, _ in items):
            return None
        make = _maker(value, kept)
        return lambda objects: make([_filled(item, objects) for item in items])
    if isinstance(value, dict):
        if _PLAIN.issuperset(map(type, value.values())):
            return None
        fillers = {key: _filler(item, found, is_leaf, kept, outer) for key, item in value.items()}
        return _copy_filler(value, fillers, _put_item, kept)
    if _is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        fillers = {name: _filler(getattr(value, name), found, is_leaf, kept, outer) for name in names}
        return _copy_filler(value, fillers, object.__setattr__, kept)
    if isinstance(value, collections.deque):
        fill = _filler(list(value), found, is_leaf, kept, outer)
        return fill and _deque_filler(value, fill)
    if is_leaf is _is_array:
        # Others that a function returns are passed on as they are.
        return None
    if isinstance(value, functools.partial):
        _refuse_out(value.keywords)
        fill = _filler((value.args, value.keywords), found, is_leaf, kept, outer)
        return fill and _partial_filler(value, fill)
    if isinstance(value, _ORDERLESS) and any(is_leaf(item) or (type(item) is tuple and any(map(is_leaf, item))) for item in value):
        raise TypeError(f"no array can take the place of a tensor in a {type(value).__name__}: pass a list, `list(x)`")
    return None


# Sets, and the views `keys`, `values` and `items` of dicts.
_EMPTY: dict[object, object] = {}
_ORDERLESS = set, frozenset, type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items())
# Beside lists, tuples, dicts and dataclasses.
CONTAINERS = collections.deque, *_ORDERLESS


def _deque_filler(value, fill):
    # What is copied of a class are its items.
    template, attributes = copy.copy(value), dict(vars(value)) if hasattr(value, "__dict__") else {}

    def make(arrays):
        made = copy.copy(template)
        made.clear()
        made.extend(fill(arrays))
        if attributes:
            vars(made).update(attributes)
        return made

    return make


def _partial_filler(value, fill):
    def make(arrays):
        args, keywords = fill(arrays)
        made = functools.partial.__new__(type(value), value.func, *args, **keywords)
        vars(made).update(vars(value))
        return made

    return make


def _copied(value):
    try:
        return copy.copy(value)
    except Exception:
        if not isinstance(value, list) or hasattr(type(value), "__copy__"):
            raise
        # A class may refuse changes, and so `append`.
        made = list.__new__(type(value))
        list.extend(made, value)
        if hasattr(value, "__dict__"):
            vars(made).update(vars(value))
        return made


def _maker(value, kept):
    """A maker of lists or tuples as `value`, with other items. Its class may have attributes, and a `__new__` that takes no list of items."""
    kind = type(value)
    if kind in (list, tuple):
        return kind
    if isinstance(value, list):
        template = kept(value)

        def make_list(items):
            made = _copied(template)
            try:
                # A class may keep its items as attributes too.
                made[:] = items
            except Exception:
                # A class may refuse changes.
                list.__setitem__(made, slice(None), items)
            return made

        return make_list
    attributes = dict(vars(value)) if hasattr(value, "__dict__") else {}

    def make_tuple(items):
        try:
            made = tuple.__new__(kind, items)
        except TypeError:
            # The class is written in C, as `time.struct_time` is.
            return kind(items)
        if attributes:
            vars(made).update(attributes)
        return made

    return make_tuple


def _put_item(mapping, key, item):
    try:
        # A class may keep its items as attributes too.
        mapping[key] = item
    except Exception:
        # A class may refuse changes.
        dict.__setitem__(mapping, key, item)


def _is_dataclass(value):
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _copy_filler(value, fillers, put, kept):
    fillers = {key: fill for key, fill in fillers.items() if fill is not None}
    if not fillers:
        return None
    template = kept(value)

    def fill(arrays):
        filled = copy.copy(template)
        for key, filler in fillers.items():
            put(filled, key, filler(arrays))
        return filled

    return fill


def unpacked(value):
    """The arrays in what a function has returned, and what makes the same of their promises; None for one array.

    What is no array and has none in it is passed on as it is.
    """
    if type(value) in _PLAIN:
        return [], lambda _: value
    # Numbers of NumPy are arrays, and some are numbers of Python as well.
    if not isinstance(value, (list, tuple, dict)) and _is_array(value):
        return None
    arrays = []
    fill = _filler(value, arrays, _is_array)
    return arrays, (fill or (lambda _: value))


def declared(outputs, like):
    """The caller's declarations of the results: how their arrays are taken, what is made of the promises, what each is like.

    None where nothing is said, or where `like` is that of one array.
    """
    names = likes = None
    if isinstance(like, dict):
        names, likes = list(like), list(like.values())
    elif isinstance(like, list):
        likes = like
    elif outputs is None:
        return None
    elif like is not None:
        raise TypeError("`like` of several outputs is a list or a dict, with what each is like")
    if outputs is not None:
        said = _outputs(outputs)
        if likes is not None and said != (names if names is not None else len(likes)):
            raise TypeError(f"outputs={outputs!r} and `like` do not say the same")
        names = None if isinstance(said, int) else said
    if likes is None:
        likes = [None] * (said if names is None else len(names))
    if names is None:
        return functools.partial(_take_sequence, len(likes)), tuple, likes
    return functools.partial(_take_mapping, names), lambda tensors: dict(zip(names, tensors)), likes


# Each output is an operation of its own.
OUTPUTS_MAX = 1 << 16


def _outputs(outputs):
    # NumPy's integers are none of Python's.
    if isinstance(outputs, numbers.Integral) and not isinstance(outputs, bool) and outputs >= 0:
        if outputs > OUTPUTS_MAX:
            raise InvalidError(f"outputs is at most {OUTPUTS_MAX:,}, not {outputs:,}")
        return operator.index(outputs)
    if isinstance(outputs, (list, tuple)):
        names = list(outputs)
        if names and all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return names
    raise TypeError(f"outputs is the number of arrays that the function returns, or their names in a dict, not {outputs!r}")


def _take_sequence(count, value):
    if count == 0 and value is None:
        return []
    if not isinstance(value, (list, tuple)) or len(value) != count:
        raise TypeError(f"the function returned {_described(value)}, and outputs={count} was declared")
    return list(value)


def _take_mapping(names, value):
    if not isinstance(value, dict) or set(value) != set(names):
        raise TypeError(f"the function returned {_described(value)}, and the outputs {', '.join(map(repr, names))} were declared")
    return [value[name] for name in names]


def _described(value):
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(repr, value))}" if value else "an empty dict"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return "nothing" if value is None else type(value).__name__


def wrap(engine, function, options):
    """The function that submits calls of `function`."""
    _check(function, options, "`wrap`", engine.call)
    is_ambiguous = bool(options) and not parameter_names(function).isdisjoint(options)

    @functools.wraps(function)
    def submitted(*args, **kwargs):
        if not kwargs and not is_ambiguous:
            return engine.call(function, *args, **options)
        # Some may have names of options.
        call, tensors = bind(function, args, kwargs)
        return engine.call(call, *tensors, **options)

    return submitted


def op(engine, function, reads, writes, options):
    """The decorator that makes a function submit calls of itself; `writes` names the parameters that it changes.

    With a function, what the decorator makes of it.
    """
    written, read = _names("writes", writes), None if reads is None else _names("reads", reads)
    if read is not None and not written:
        raise TypeError(
            "`reads` without `writes`: write `@eng.op(reads=..., writes=...)` with what the function changes, or `@eng.op` alone for one "
            "that changes nothing"
        )

    def decorate(function):
        submits = ("`op` with `writes`", engine.submit) if written else ("`op`", engine.call)
        _check(function, options, *submits)
        named = [*written, *(read or [])]
        # Some functions written in C have none.
        signature = inspect.signature(function) if named else None
        unknown = [name for name in named if name not in signature.parameters]
        if unknown:
            raise TypeError(f"{_name_of(function)} has no parameter {', '.join(map(repr, unknown))}")
        if not written:
            return wrap(engine, function, options)

        # Only these: what `jax.jit` makes takes a default for a constant, and what is passed for an array.
        filled = [parameter for parameter in signature.parameters.values() if _filler(parameter.default, [], _is_tensor) is not None]
        # One that has no name in a call is passed after all before it.
        last = next((parameter for parameter in reversed(filled) if parameter.kind is inspect.Parameter.POSITIONAL_ONLY), None)
        before = itertools.takewhile(lambda parameter: parameter is not last, signature.parameters.values() if last else ())
        optional = (parameter for parameter in before if parameter.default is not inspect.Parameter.empty)
        defaults = {parameter.name: parameter.default for parameter in [*optional, *filled]}

        @functools.wraps(function)
        def submitted(*args, **kwargs):
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{_name_of(function)}: {error}") from None
            for name, default in defaults.items():
                bound.arguments.setdefault(name, default)
            tensors = []
            call = _call(function, bound.args, bound.kwargs, tensors)
            changed = _tensors_of(bound.arguments, written, _is_written)
            others = [name for name in bound.arguments if name not in written] if read is None else read
            looked_at = _tensors_of(bound.arguments, others, _is_tensor)
            ordered = {id(tensor) for tensor in [*changed, *looked_at]}
            lost = [tensor for tensor in tensors if id(tensor) not in ordered]
            if lost:
                raise TypeError(f"{_name_of(function)} got {lost[0]!r} for a parameter that `reads` and `writes` do not name")
            # Arrays come in the order of the operands, each tensor once in a list. One in both lists is updated: its failure is followed.
            inputs, outputs = _once(looked_at), _once(changed)
            at = {id(tensor): place for place, tensor in enumerate([*inputs, *outputs])}
            call._places = [at[id(tensor)] for tensor in tensors]
            return engine.submit(call, reads=inputs, writes=outputs, **options)

        return submitted

    return decorate if function is None else decorate(function)


def _name_of(function):
    # A `functools.partial` and an object that can be called have no name.
    return getattr(function, "__qualname__", None) or repr(function)


def _check(function, options, what, submits):
    """An option that `submits` does not have would become an argument of the function at each call."""
    if not callable(function):
        raise TypeError(f"{function!r} is not callable")
    variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    known = {name for name, parameter in inspect.signature(submits).parameters.items() if parameter.kind not in variadic} - {"fn"}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise TypeError(f"{what} has no option {', '.join(map(repr, unknown))}")


def _names(what, names):
    names = [names] if isinstance(names, str) else list(names)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what} are names of parameters")
    return names


def _tensors_of(arguments, names, is_leaf):
    tensors = []
    for name in names:
        if name in arguments:
            _filler(arguments[name], tensors, is_leaf)
    return tensors


def _once(tensors):
    return list({id(tensor): tensor for tensor in tensors}.values())


def using_of(module):
    """The function of a module's library that makes its arrays; None for a library that has none."""
    root = module.partition(".")[0]
    # `jax.jit` makes objects of a class of jaxlib.
    root = "jax" if root == "jaxlib" else root
    for name in (root, f"{root}.numpy"):
        make = getattr(sys.modules.get(name), "from_dlpack", None)
        if callable(make):
            return make
    return None
