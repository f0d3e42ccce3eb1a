"""Waits that run nothing on the thread that waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ._estafette import _set_helping


@contextmanager
def without_helping() -> Iterator[None]:
    """``with without_helping():`` in its block no function of an engine runs operations on this thread.

    Without this, a wait that has no timeout may run what it waits for: a Python function, an operator, a copy, or the work of another
    language's code in the same process. A function then sees what its thread has set for itself, such as ``torch.no_grad()``, but has the
    context variables of its submission; and Ctrl-C ends the function, as it does in a plain call. Use it where that must not be, or
    where the thread holds a lock that such an operation takes. It is for blocking code: an ``await`` runs no operation anyway, and
    other tasks of the thread would be in the block as well.
    """
    before = _set_helping(False)
    try:
        yield
    finally:
        _set_helping(before)
