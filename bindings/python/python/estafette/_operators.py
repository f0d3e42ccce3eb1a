"""The options of an operator's call, as text and back. Called by the extension, never by users."""

from __future__ import annotations

import json


def encode(attributes):
    """Pairs of names and texts: text as it is, other plain data as JSON writes it."""
    return [(key, value if isinstance(value, str) else _text(key, value)) for key, value in attributes.items()]


def _text(key, value):
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"attribute `{key}` is {type(value).__qualname__}: attributes are None, booleans, numbers, text, and sequences of these"
        ) from error


def decode(pairs):
    """What `encode` was given, but for sequences, which become tuples, and for text that reads like something else."""
    return {key: _value(text) for key, text in pairs}


def _value(text):
    try:
        return _frozen(json.loads(text))
    except ValueError:
        return text


def _frozen(value):
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
