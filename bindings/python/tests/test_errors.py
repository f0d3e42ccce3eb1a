"""Failure follows data: who gets which error, with which cause, and how often."""

import gc
import traceback
import types
import weakref

import pytest

import estafette as est
from conftest import run_program, until
from estafette import _failures


class Boom(Exception):
    pass


def boom(*_operands):
    raise Boom("no fuse")


def test_the_exception_comes_back_as_the_cause_with_its_traceback(eng):
    op = eng.submit(boom)
    with pytest.raises(est.OperationError) as caught:
        op.wait()
    error = caught.value
    assert (error.operation, error.id, error.message) == ("boom", op.id, "Boom: no fuse")
    assert str(error) == f"operation `boom` (op {op.id}) failed: Boom: no fuse"
    assert isinstance(error.__cause__, Boom)
    frames = traceback.extract_tb(error.__cause__.__traceback__)
    assert frames[-1].name == "boom" and frames[-1].filename == __file__


class Holder:
    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize(
    "function, hold",
    [
        (lambda held: held[0] * 2, lambda t: types.MappingProxyType({0: t})),
        (lambda held: held.tensor.sum(), Holder),
        (lambda held: next(held) < 1, lambda t: iter([t])),
    ],
)
def test_a_tensor_where_none_is_looked_for_has_the_error_say_where_it_is(eng, np, function, hold):
    t = eng.zeros(1, "int8")
    with pytest.raises(est.OperationError) as caught:
        eng.call(function, hold(t), using=np.from_dlpack).wait()
    (note,) = caught.value.__cause__.__notes__
    assert "gives the function an array for each tensor that is an argument, or in a list" in note
    # Errors of this package say so themselves, and errors of the function stay as they are.
    for function in (lambda: t.__reduce_ex__(2), lambda: 1 + "a"):
        with pytest.raises(est.OperationError) as caught:
            eng.call(function).wait()
        assert isinstance(caught.value.__cause__, TypeError) and not hasattr(caught.value.__cause__, "__notes__")


def test_every_waiter_gets_an_error_of_its_own_with_the_same_cause(eng, np):
    y = eng.call(boom)
    errors = []
    for _ in range(3):
        with pytest.raises(est.OperationError) as caught:
            y.wait()
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3
    assert len({id(error.__cause__) for error in errors}) == 1
    for use in (lambda: np.from_dlpack(y), lambda: y.__dlpack_device__(), lambda: np.from_dlpack(y.for_write())):
        with pytest.raises(est.OperationError, match="no fuse"):
            use()
    assert y.is_ready() and "failed" in repr(y)


def test_dependants_are_skipped_and_pass_on_the_root_cause(eng, np):
    ran = []
    x = eng.zeros(1, "int8")
    op = eng.submit(boom, writes=[x])
    y = eng.call(lambda x: ran.append(x), x, using=np.from_dlpack)
    z = eng.call(lambda y: ran.append(y), y, using=np.from_dlpack)
    with pytest.raises(est.OperationError) as caught:
        z.wait()
    assert (caught.value.operation, caught.value.id) == ("boom", op.id)
    assert isinstance(caught.value.__cause__, Boom) and not ran


def test_a_later_write_starts_a_clean_version(np):
    # Nothing looks at the failure that it replaces.
    eng = est.Engine(workers=1, failures="ignore")
    x = eng.zeros(1, "int8")
    eng.submit(boom, writes=[x])
    eng.submit(lambda x: x.fill(5), writes=[x], using=np.from_dlpack)
    x.wait()
    assert np.from_dlpack(x)[0] == 5


def test_an_update_of_a_failed_version_is_skipped(eng, np):
    x = eng.zeros(1, "int8")
    eng.submit(boom, writes=[x])
    op = eng.submit(lambda a, b: None, reads=[x], writes=[x], using=np.from_dlpack)
    with pytest.raises(est.OperationError, match="boom"):
        op.wait()
    x.clear_error()
    x.wait()


def test_a_cancelled_operation_is_an_error_of_that_kind(eng, gate):
    v = eng.var()
    x = eng.zeros(1, "int8")
    eng.submit(gate, writes=[v])
    op = eng.submit(boom, reads=[v], writes=[x], name="unwanted")
    assert op.cancel() and not op.cancel()
    with pytest.raises(est.CancelledError, match="unwanted") as caught:
        op.wait()
    assert isinstance(caught.value, est.OperationError) and caught.value.operation == "unwanted"
    gate.open()
    with pytest.raises(est.CancelledError):
        x.wait()
    eng.wait_all()
    x.clear_error()
    x.wait()


def test_a_version_that_was_cancelled_behind_a_write_is_done_and_cleared_after_that_write(eng, gate):
    x = eng.zeros(1, "int8")
    first = eng.submit(gate, writes=[x], name="first")
    assert gate.entered.wait(30)
    assert eng.submit(lambda x: None, writes=[x], name="second").cancel()
    assert x.done() and x.is_ready() and x.cancelled()
    with pytest.raises(est.CancelledError, match="`second`"):
        x.wait(30)
    with pytest.raises(est.ConflictError, match=rf"operation {first.id} `first` has not ended.*`writable\(\)`"):
        x.clear_error()
    gate.open()
    eng.wait_all()
    x.clear_error()
    x.wait(30)


def test_what_runs_cannot_be_cancelled(eng, gate):
    op = eng.submit(gate)
    until(gate.entered.is_set)
    assert not op.cancel()
    gate.open()
    op.wait()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, MemoryError])
def test_even_exceptions_that_end_programs_are_only_failures_here(eng, kind):
    def fail():
        raise kind("ended")

    with pytest.raises(est.OperationError) as caught:
        eng.submit(fail).wait()
    assert type(caught.value.__cause__) is kind


def test_an_exception_whose_text_fails_is_reported_by_its_name(eng):
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("not even that")

    def fail():
        raise Silent

    with pytest.raises(est.OperationError, match="Silent"):
        eng.submit(fail).wait()


def test_an_error_that_is_its_own_cause_is_reported_once():
    # Of its own, as a worker that never came to an end of the causes would keep the Python lock.
    run_program(
        """
        import estafette as est

        def fail():
            raise ValueError("no fuse")

        def again():
            try:
                first.wait()
            except est.OperationError as error:
                raise error from error

        with est.Engine(workers=1, failures="ignore") as eng:
            first = eng.submit(fail)
            try:
                eng.submit(again).wait()
            except est.OperationError as error:
                assert error.message.endswith("failed: ValueError: no fuse"), error.message
            else:
                raise AssertionError
        """
    )


def test_failing_using_is_a_failure_of_the_operation(eng):
    def using(_tensor):
        raise Boom("not my type")

    with pytest.raises(est.OperationError, match="not my type"):
        eng.submit(lambda x: None, reads=[eng.zeros(1, "int8")], using=using).wait()


def test_a_result_that_is_no_array_as_declared_fails_the_operation(eng):
    with pytest.raises(est.OperationError, match="object has no `__dlpack__`") as caught:
        eng.call(object, like=((), "int8")).wait()
    assert isinstance(caught.value.__cause__, TypeError)


def test_what_a_failed_tensor_would_be_like_is_said_to_be_missing_for_its_failure(eng, np):
    y = eng.call(np.negative, eng.call(boom, name="load"))
    y.exception()
    for ask in (lambda: y.shape, lambda: y.dtype, lambda: y.device, lambda: y.strides, lambda: y.data_ptr, lambda: len(y)):
        with pytest.raises(est.NotDefinedError, match="`load`.* failed: Boom: no fuse"):
            ask()


def test_an_undefined_result_stays_undefined_when_its_error_is_cleared(eng, np):
    y = eng.call(boom)
    with pytest.raises(est.OperationError):
        y.wait()
    with pytest.raises(est.NotDefinedError, match="boom"):
        _ = y.shape
    y.clear_error()
    with pytest.raises(est.NotDefinedError):
        np.from_dlpack(y)


def test_a_kept_error_keeps_no_view_and_so_no_lease(eng, np):
    x = eng.zeros(3, "float32")
    arrays = []

    def fail(x):
        local = x[1:]
        arrays.append(weakref.ref(local))
        try:
            raise Boom("inner")
        except Boom as inner:
            raise LookupError("outer") from inner

    op = eng.submit(fail, reads=[x], using=np.from_dlpack)
    with pytest.raises(est.OperationError) as caught:
        op.wait()
    kept = caught.value
    assert arrays[0]() is None
    eng.submit(lambda x: x.fill(1), writes=[x], using=np.from_dlpack).wait(10)
    assert isinstance(kept.__cause__.__cause__, Boom)


def test_an_error_of_a_generator_that_goes_on_may_be_raised_again(eng):
    def steps():
        try:
            boom()
        except Boom as error:
            yield error
        yield "the next step"

    generator = steps()
    error = next(generator)

    def again():
        raise error

    with pytest.raises(est.OperationError, match="no fuse"):
        eng.submit(again).wait()
    assert next(generator) == "the next step"


def test_a_view_that_outlives_a_failed_body_does_not_mend_what_it_wrote(eng, np):
    y = eng.zeros(3, "float32")
    kept = []

    def fail(y):
        kept.append(y)
        raise Boom("half done")

    eng.submit(fail, writes=[y], using=np.from_dlpack)
    eng.wait_all()
    kept.clear()
    with pytest.raises(est.OperationError, match="half done"):
        y.wait()


@pytest.mark.parametrize(("incremental", "calls"), [(False, [2, 2]), (True, [1, 2, 2, 1])])
def test_kept_errors_are_looked_at_by_what_collections_a_version_of_python_has(monkeypatch, incremental, calls):
    seen, now = [], [100.0]
    monkeypatch.setattr(_failures, "_INCREMENTAL", incremental)
    monkeypatch.setattr(_failures, "_looked_at", 0.0)
    monkeypatch.setattr(_failures, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(_failures, "forget_waiters", lambda: seen.append(generation))
    gc.disable()
    try:
        for passed, generation in [(0, 0), (0, 1), (0, 1), (0, 2), (0, 2), (0.9, 1), (0.2, 1)]:
            now[0] += passed
            _failures._on_collection("start", {"generation": generation})
            _failures._on_collection("stop", {"generation": generation})
    finally:
        gc.enable()
    assert seen == calls


def test_errors_have_a_common_base_and_sensible_builtin_ones(eng):
    for name in est.__all__:
        error = getattr(est, name)
        if isinstance(error, type) and issubclass(error, Exception):
            assert issubclass(error, est.EstafetteError)
            assert error.__module__ == "estafette"
    assert issubclass(est.ExchangeError, BufferError)
    assert issubclass(est.InvalidError, ValueError)
    assert issubclass(est.WouldBlockError, RuntimeError)
    assert not issubclass(est.CancelledError, BaseExceptionGroup)


def test_errors_can_be_pickled(eng):
    import pickle

    with pytest.raises(est.OperationError) as caught:
        eng.submit(boom).wait()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.operation, again.id, again.message) == ("boom", caught.value.id, "Boom: no fuse")
    assert str(again) == str(caught.value)


def test_timeouts_are_the_builtin_error(eng, gate):
    x = eng.zeros(1, "int8")
    op = eng.submit(gate, writes=[x])
    for wait in (x.wait, op.wait, eng.wait_all):
        with pytest.raises(TimeoutError):
            wait(timeout=0.01)
        with pytest.raises(TimeoutError):
            wait(timeout=0)
    gate.open()


def test_a_timeout_names_what_holds_the_wait_up(eng, gate):
    x = eng.zeros(1, "int8")
    first = eng.submit(gate, writes=[x], name="first")
    assert gate.entered.wait(30)
    second = eng.submit(lambda x: None, writes=[x], name="second")
    for wait in (x.wait, first.wait, second.wait, second.result, eng.wait_all):
        with pytest.raises(TimeoutError, match=rf"not ready within 10ms: operation {first.id} `first` is running"):
            wait(0.01)
    with pytest.raises(TimeoutError, match="not ready within 0ns$"):
        x.wait(0)
    gate.open()
    x.wait(30)


def test_an_array_type_that_a_library_lacks_is_named(eng, np):
    b = eng.zeros(2, "bfloat16")
    with pytest.raises(est.OperationError, match="RuntimeError: Unsupported dtype.*bfloat16.*`using=np.asarray`") as caught:
        eng.call(np.add, b, b).wait()
    assert type(caught.value.__cause__) is RuntimeError


def test_failures_nobody_asks_for_disturb_nobody():
    with est.Engine(workers=1, failures="ignore") as eng:
        for _ in range(100):
            eng.submit(boom)
        eng.wait_all()
        gc.collect()


def test_a_panic_in_a_hook_of_python_does_not_take_the_process_down():
    run_program(
        """
        import estafette as est
        class Evil:
            def __dlpack__(self, **_): raise SystemExit(3)
            def __dlpack_device__(self): return (1, 0)
        with est.Engine(workers=1) as eng:
            z = eng.call(Evil)
            try:
                z.wait()
            except est.OperationError as error:
                assert isinstance(error.__cause__, SystemExit)
            else:
                raise AssertionError
        """
    )
