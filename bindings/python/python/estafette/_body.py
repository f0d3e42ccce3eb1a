"""Runs the Python functions of operations. Called by the extension, never by users."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import opcode
import os
import signal
import sys
import traceback

from . import _kinds, _loops, _streams
from ._estafette import Exporter, Tensor

# Operation of the calling code. A context variable and not a thread-local: it follows an asynchronous
# body through its event loop, and `copy_context` carries it wherever the body takes it.
operation: contextvars.ContextVar[object | None] = contextvars.ContextVar("estafette.operation", default=None)

# Makes the context manager that the function of an operation's scope runs in; None for none. `export_spans` sets it.
span = None

# Types in whose place a function gets an array; operators get the latter, of their operands.
_TENSORS = Tensor, Exporter


def _with_arrays(arguments, using):
    return [_with_array(argument, using) if type(argument) in _TENSORS else argument for argument in arguments]


def _with_array(tensor, using):
    try:
        return using(tensor)
    except Exception as error:
        name_type(error, using, tensor)
        raise


def name_type(error, using, tensor):
    """Adds the type of `tensor` to the text of an `error` of `using` that says a type is not supported, and not which."""
    text = str(error)
    if type(error) not in (BufferError, RuntimeError, TypeError, ValueError) or "dtype" not in text.lower():
        return
    dtype = str(getattr(tensor, "tensor", tensor).dtype)
    if dtype not in text:
        hint = "; `using=np.asarray` takes the types of the package ml_dtypes" if _is_numpys(using) else ""
        error.args = (f"{text.rstrip('.')}: this one is {dtype}{hint}", *error.args[1:])


def _is_numpys(using):
    return using is getattr(sys.modules.get("numpy"), "from_dlpack", None)


def end_child(error):
    """Ends a forked child with the body that it was forked in, as `multiprocessing` ends its children.

    The thread of the body is the only one of the child. Nothing in the child would give it another operation to run.
    """
    code = 0
    if isinstance(error, SystemExit):
        code = error.code
        if code is None:
            code = 0
        elif not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


# The instructions where an exception begins that the program raises itself: `raise`, and the place of a generator, or a coroutine, whose
# `throw` is called. That one stands behind a `yield`, or has not begun; CPython 3.11 and 3.12 name the instruction that left it, later ones
# the next one. From 3.13 on the one behind a `yield` is where signals are handled, too, so it is not among these: what is thrown in
# there counts as sent. So does all that begins at an instruction which is not known here: the wait raises it then, as Python does
# without an engine, and no Ctrl-C is lost.
_RAISES = {opcode.opmap.get(name) for name in ("RAISE_VARARGS", "YIELD_VALUE", "RETURN_GENERATOR", "POP_TOP")}


def was_sent(error, raised_at):
    """True if a signal handler has raised `error`, with the traceback `raised_at`, and not the function that it has come out of.

    The handler of Ctrl-C that Python installs is no Python function, so it has no frame: the exception begins in the middle of the
    function, at an instruction that raises nothing by itself.
    """
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers]
    if any(frame.f_code in codes for frame, _line in traceback.walk_tb(raised_at)):
        return True
    if type(error) is not KeyboardInterrupt or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    while raised_at is not None and raised_at.tb_next is not None:
        raised_at = raised_at.tb_next
    return raised_at is None or raised_at.tb_frame.f_code.co_code[raised_at.tb_lasti] not in _RAISES


def run_on_stream(call, using, place, kept):
    """Makes `call` with the stream of `place`, the module of its kind, a handle and the number of its device, as the current one of the libraries.

    kept: a list for what a graph needs that is captured from the function; None if none is captured.
    """
    module, handle, device = place
    kind = _kinds.named(module)
    with _streams.entered(kind.stream(handle, device), kind.streams, using, kept):
        return call()


def _span():
    makes = span
    return makes(operation.get()) if makes else contextlib.nullcontext()


def call_in_span(function, *arguments):
    """Calls the plain function of the operation that the calling code belongs to."""
    with _span():
        return function(*arguments)


async def _in_span(awaitable):
    with _span():
        return await awaitable


async def run_async(scope, function, using, arguments, done):
    """The body of an operation with an `async def` function, as a task on the submitter's loop."""
    scope.begin()
    try:
        with _span():
            return await function(*(arguments if using is None else _with_arrays(arguments, using)))
    except _loops.LEAVE as error:
        done.failed(error)
        raise


def start_async(scope, function, using, arguments, loop, context, done):
    """Starts `run_async` on the thread of `loop`; `done` gets the finished task."""
    context.run(operation.set, scope)
    body = run_async(scope, function, using, arguments, done)
    _start(body, lambda: loop.create_task(body), loop, context, done)


def start_coroutine(coroutine, loop, context, done):
    """As `start_async`, for the coroutine that a plain function has returned, with the context in which it was called."""
    body = _in_span(coroutine) if span else coroutine
    task = _start(body, lambda: _loops.create_task(loop, body, done.failed), loop, context, done)
    if span and isinstance(coroutine, _loops.Coroutine):
        # As `create_task` closes what it gets.
        task.add_done_callback(lambda _: coroutine.close())


def _start(body, create_task, loop, context, done):
    try:
        # Not by the argument `context`, which a task factory of the program may lack.
        task = context.run(create_task)
        task.add_done_callback(done, context=context)
        done.runs_in(task)
        _loops.on_close(loop, done)
    except BaseException as error:
        done.failed(error)
        body.close()
        raise
    return task


def _clear_frames(raised_at):
    for frame, _line in traceback.walk_tb(raised_at):
        # The frame of a generator or coroutine that goes on has no references of its own. Before CPython 3.13 `clear` would close that.
        if any(thing is frame.f_code for thing in gc.get_referents(frame)):
            frame.clear()


_ARRAYS_OF_ARGUMENTS = (
    "`using=np.from_dlpack` gives the function an array for each tensor that is an argument, or in a list, tuple, dict or dataclass "
    "there, and for no other: pass it so"
)


def taken_out(error):
    """Prepares an exception of a body for those who wait for its operation."""
    text = error.args[0] if type(error) in (AttributeError, TypeError) and len(error.args) == 1 else None
    # Errors of this package have an article before the name.
    is_foreign = isinstance(text, str) and "estafette.Tensor" in text and "an estafette.Tensor" not in text
    if is_foreign and _ARRAYS_OF_ARGUMENTS not in getattr(error, "__notes__", ()):
        error.add_note(_ARRAYS_OF_ARGUMENTS)
    _clear_locals(error)


def _clear_locals(error):
    """Clears the local variables in the frames of an exception and of those behind it.

    They would keep the views of the body alive, and with them leases of its operands, for as long as the program keeps
    the error. A body that ran on the thread that waits for it has behind its error what that thread handles, which is none of its own.
    """
    handled = sys.exception()
    seen, errors = {id(handled)} if handled is not error else set(), [error]
    while errors:
        error = errors.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            _clear_frames(error.__traceback__)
            errors += error.__cause__, error.__context__
            errors += error.exceptions if isinstance(error, BaseExceptionGroup) else ()
