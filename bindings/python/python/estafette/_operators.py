"""The options of an operator's call, as text and back. Called by the extension, never by users."""

from __future__ import annotations

import json
import numbers
import operator

# Sequences in one another: far less than the recursion limit, which the function of the operator may be near.
DEPTH_MAX = 64


def encode(attributes):
    """Names and texts, each with whether it was text before: text as it is, other plain data as JSON writes it."""
    return [(key, *_text(key, value)) for key, value in attributes.items()]


def _text(key, value):
    value = _plain(key, value, DEPTH_MAX)
    try:
        if isinstance(value, str):
            value.encode()  # Half a surrogate pair is no UTF-8.
            return value, True
        return json.dumps(value), False
    except ValueError as error:
        raise ValueError(f"attribute `{key}` has no text: {error}") from error


def _plain(key, value, depth):
    if isinstance(value, (list, tuple)):
        if depth == 0:
            raise ValueError(f"attribute `{key}` has more than {DEPTH_MAX} sequences in one another, or contains itself")
        return [_plain(key, item, depth - 1) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Integral):
        # NumPy's integers, unlike its `float64`, are none of Python's.
        return operator.index(value)
    raise TypeError(
        f"attribute `{key}` is or contains {type(value).__qualname__}: attributes are None, booleans, numbers, text, and lists "
        "and tuples of these"
    )


def decode(attributes):
    """The attributes given to `encode`, but for lists, which become tuples. What callers in other languages pass is taken for what it reads like."""
    return {key: text if is_text else _value(text) for key, text, is_text in attributes}


def _value(text):
    try:
        return _frozen(json.loads(text, object_pairs_hook=_no_mapping))
    except (ValueError, RecursionError):
        return text


def _no_mapping(pairs):
    raise ValueError("a mapping is no plain data")


def _frozen(value):
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
