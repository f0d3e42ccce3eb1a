"""`on_skip`: what is called in place of a function whose operation is skipped."""

import asyncio
import contextvars
import functools
import sys
import threading
import weakref

import numpy as np
import pytest

import estafette as est


@pytest.fixture
def eng():
    with est.Engine(workers=2, using=np.from_dlpack) as eng:
        yield eng


def failed(eng):
    x = eng.zeros(2, "float64")
    eng.submit(lambda x: 1 / 0, writes=[x], name="backward")
    return x


def never(*_arrays):
    raise AssertionError("it was called")


def test_a_failed_input_calls_it_in_place_of_the_function_and_in_turn(eng):
    order, gate = [], threading.Event()
    comm, x, y = eng.var(), failed(eng), eng.zeros(2, "float64")

    def first(y, _):
        assert gate.wait(60)
        order.append("first")

    eng.submit(first, reads=[y], writes=[y, comm])
    second = eng.submit(never, reads=[x], writes=[x, comm], on_skip=lambda error: order.append(error))
    third = eng.submit(lambda: order.append("third"), writes=[comm])
    assert order == []
    gate.set()
    third.wait()
    error = second.exception()
    assert [order[0], order[2]] == ["first", "third"]
    assert isinstance(order[1], est.OperationError)
    assert order[1].operation == error.operation == "backward"
    assert isinstance(order[1].__cause__, ZeroDivisionError)
    with pytest.raises(est.OperationError, match="division by zero"):
        x.wait()


def test_it_runs_in_the_context_of_the_submitter(eng):
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("submitter")
    seen = []
    eng.submit(never, reads=[failed(eng)], on_skip=lambda _error: seen.append(variable.get())).exception()
    assert seen == ["submitter"]


def test_it_is_called_for_failed_variables_and_not_for_pure_writes(eng):
    called, ready = [], eng.var()
    eng.submit(lambda: 1 / 0, writes=[ready], name="variable")
    eng.submit(never, reads=[ready], on_skip=called.append).exception()
    x = failed(eng)
    assert x.exception() is not None
    eng.submit(lambda x: x.fill(1), writes=[x], on_skip=called.append).wait()
    assert [error.operation for error in called] == ["variable"]


def test_a_cancelled_operation_calls_it_when_its_turn_comes(eng):
    gate, called = threading.Event(), threading.Event()
    x = eng.zeros(2, "float64")
    eng.submit(lambda x: gate.wait(60), writes=[x])
    errors = []
    op = eng.submit(never, reads=[x], on_skip=lambda error: (errors.append(error), called.set()))
    assert op.cancel()
    with pytest.raises(est.CancelledError):
        op.wait()
    assert not called.is_set()
    gate.set()
    assert called.wait(60)
    assert isinstance(errors[0], est.CancelledError)


def test_what_it_raises_changes_nothing_and_is_reported(eng, monkeypatch):
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_value))

    def raises(error):
        raise ValueError("of the handler")

    def raises_again(error):
        raise error

    x = failed(eng)
    for on_skip in (raises, raises_again):
        assert eng.submit(never, reads=[x], on_skip=on_skip).exception().operation == "backward"
    assert [str(value) for value in reports] == ["of the handler"]


def test_an_error_of_the_function_is_no_skip(eng):
    x = eng.zeros(2, "float64")
    op = eng.submit(lambda x: 1 / 0, reads=[x], on_skip=never)
    assert isinstance(op.exception().__cause__, ZeroDivisionError)


def test_what_is_not_called_is_released(eng):
    class Handler:
        def __call__(self, error):
            raise AssertionError("it was called")

    gone = threading.Event()
    handler = Handler()
    weakref.finalize(handler, gone.set)
    x = eng.zeros(2, "float64")
    op = eng.submit(lambda x: None, reads=[x], on_skip=handler)
    op.wait()
    del handler
    assert gone.wait(60), "the operation's handle keeps it"
    assert op.done()


def test_asynchronous_submissions_and_functions_have_it_too(eng):
    async def main():
        called = []

        async def later(x):
            raise AssertionError("it was called")

        op = await eng.submit_async(later, reads=[failed(eng)], on_skip=called.append)
        with pytest.raises(est.OperationError):
            await op
        return called

    assert [error.operation for error in asyncio.run(main())] == ["backward"]


def test_what_could_not_be_called_is_refused(eng):
    async def later(error):
        pass

    def generates(error):
        yield error

    for wrong, why in ((1, "not callable"), (later, "async def"), (functools.partial(generates), "generator")):
        with pytest.raises(TypeError, match=why):
            eng.submit(never, on_skip=wrong)
    with eng.program("step") as program:
        with pytest.raises(TypeError, match="on_skip"):
            program.submit(lambda: None, on_skip=never)


def test_a_decorated_function_has_it(eng):
    called = []

    @eng.op(writes="out", on_skip=called.append)
    def double(x, out):
        raise AssertionError("it was called")

    error = double(failed(eng), eng.zeros(2, "float64")).exception()
    assert called[0].operation == error.operation == "backward"
