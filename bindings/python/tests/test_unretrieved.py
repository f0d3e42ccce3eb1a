"""Failures that nothing has looked at: each is reported once, and the end of its engine raises it."""

import asyncio
import gc
import logging
import sys
import threading
import weakref

import pytest

import estafette as est
from conftest import Gate, run_program, until


class Boom(Exception):
    pass


def boom(*_operands):
    raise Boom("it broke")


@pytest.fixture
def engine():
    """An engine whose failures are reported and never raised."""
    engine = est.Engine(workers=1, failures="log")
    yield engine
    engine.shutdown(5.0)


def failed(engine, name="save_checkpoint", **operands):
    """An operation that has failed, and that nothing has looked at."""
    op = engine.submit(boom, name=name, **operands)
    engine.wait_all()
    return op


class TestReport:
    def test_comes_when_the_last_object_goes_and_not_before(self, engine, reports, caplog):
        op = failed(engine)
        assert op.is_done() and not reports
        del op
        (report,) = reports
        assert report.exc_type is est.OperationError
        assert report.exc_value.operation == "save_checkpoint"
        assert isinstance(report.exc_value.__cause__, Boom)
        assert report.exc_traceback is report.exc_value.__cause__.__traceback__
        assert "`save_checkpoint`" in repr(report.object) and "never retrieved" in repr(report.object)
        (record,) = [record for record in caplog.records if record.name == "estafette"]
        assert record.levelno == logging.ERROR
        assert record.exc_info[1] is report.exc_value
        assert "save_checkpoint" in record.getMessage()

    def test_comes_with_the_last_tensor(self, engine, reports, np):
        t, dependent = engine.zeros(1, "int8"), engine.zeros(1, "int8")
        failed(engine, writes=[t])
        engine.submit(lambda t, d: None, reads=[t], writes=[dependent])
        engine.wait_all()
        del t
        assert not reports
        del dependent
        # The worker that skipped the dependent operation may hold the failure for a moment.
        until(lambda: reports)
        assert [report.exc_value.operation for report in reports] == ["save_checkpoint"]

    def test_of_an_operation_without_operands_and_objects(self, engine, reports):
        engine.submit(boom)
        engine.wait_all()
        until(lambda: len(reports) == 1)

    def test_of_a_failure_that_a_write_replaces(self, engine, reports):
        t = engine.zeros(1, "int8")
        failed(engine, writes=[t])
        engine.submit(lambda t: None, writes=[t]).wait()
        until(lambda: len(reports) == 1)
        t.wait()

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, MemoryError])
    def test_of_what_is_no_usual_exception(self, engine, reports, kind):
        def body():
            raise kind

        engine.submit(body)
        engine.wait_all()
        until(lambda: len(reports) == 1)
        assert isinstance(reports[0].exc_value.__cause__, kind)

    def test_of_an_asynchronous_body(self, reports):
        async def main():
            async def body():
                raise Boom

            async with est.Engine(workers=1, failures="log") as engine:
                engine.submit(body)

        asyncio.run(main())
        assert len(reports) == 1

    def test_leaves_an_exception_on_its_way_alone(self, engine, reports):
        with pytest.raises(ZeroDivisionError):
            # The operation is nowhere but on the stack, which is emptied before the exception is handled.
            print(failed(engine), 1 / 0)
        (report,) = reports
        assert report.exc_type is est.OperationError

    def test_that_fails_harms_nothing(self, engine, monkeypatch):
        def hook(_report):
            raise RuntimeError("a hook that fails")

        op = failed(engine)
        monkeypatch.setattr(sys, "unraisablehook", hook)
        del op
        engine.submit(lambda: None).wait()

    def test_may_use_the_engine(self, engine, monkeypatch):
        t = engine.zeros(1, "int8")
        done = threading.Event()

        def hook(_report):
            engine.submit(lambda t: None, writes=[t])
            done.set()

        failed(engine, writes=[t])
        monkeypatch.setattr(sys, "unraisablehook", hook)
        engine.submit(lambda t: None, writes=[t]).wait()
        assert done.wait(10)
        t.wait()

    def test_is_printed_once_by_a_program_without_logging(self):
        _, errors = run_program(
            """
            import estafette as est
            eng = est.Engine(workers=1)
            def broken():
                raise ZeroDivisionError("by the body")
            eng.submit(broken, name="save_checkpoint")
            eng.wait_all()
            """
        )
        assert errors.count("save_checkpoint` (op") == 2, errors  # what it is, and the exception
        assert errors.count("never retrieved") == 1, errors
        assert 'in broken' in errors and "ZeroDivisionError: by the body" in errors


class TestLooking:
    LOOKS = {
        "tensor.wait": lambda t, op: t.wait(),
        "operation.wait": lambda t, op: op.wait(),
        "numpy": lambda t, op: pytest.importorskip("numpy").from_dlpack(t),
        "read": lambda t, op: t.read().__enter__(),
        "memoryview": lambda t, op: memoryview(t),
    }

    @pytest.mark.parametrize("look", LOOKS)
    def test_retrieves(self, engine, reports, look):
        t = engine.zeros(1, "int8")
        op = failed(engine, writes=[t])
        with pytest.raises((est.OperationError, BufferError)):
            self.LOOKS[look](t, op)
        del t, op
        gc.collect()
        assert not reports

    def test_by_await_retrieves(self, reports):
        async def main():
            async with est.Engine(workers=1) as engine:
                t = engine.zeros(1, "int8")
                op = engine.submit(boom, writes=[t])
                with pytest.raises(est.OperationError):
                    await t
                other = engine.submit(boom)
                with pytest.raises(est.OperationError):
                    await other
                del op, other

        asyncio.run(main())
        assert not reports

    def test_past_a_failure_does_not_retrieve(self, engine, reports):
        t = engine.zeros(1, "int8")
        op = failed(engine, writes=[t])
        assert op.is_done()
        str(engine.diagnose()), engine.stats(), repr(op)
        del t, op
        assert len(reports) == 1

    def test_at_a_dependent_retrieves_the_root(self, engine, reports):
        t = engine.zeros(1, "int8")
        failed(engine, writes=[t])
        y = engine.call(lambda t: t, t)
        with pytest.raises(est.OperationError, match="save_checkpoint"):
            y.wait()
        del t, y
        gc.collect()
        assert not reports


class TestEnd:
    def test_of_a_block_raises_the_failure(self, reports):
        with pytest.raises(est.OperationError, match="save_checkpoint") as raised:
            with est.Engine(workers=1) as engine:
                t = engine.zeros(1, "int8")
                engine.submit(boom, writes=[t], name="save_checkpoint")
        assert isinstance(raised.value.__cause__, Boom)
        del t
        gc.collect()
        assert not reports

    def test_of_a_block_raises_a_failure_that_was_reported(self, reports):
        with pytest.raises(est.OperationError, match="log_metrics"):
            with est.Engine(workers=1) as engine:
                engine.submit(boom, name="log_metrics")
                # It is reported where its last handle goes, on the worker's thread.
                until(lambda: reports)
        assert len(reports) == 1

    def test_of_a_block_raises_several_in_a_group_in_their_order(self, reports):
        with pytest.raises(ExceptionGroup) as raised:
            with est.Engine(workers=1) as engine:
                tensors = [engine.zeros(1, "int8") for _ in range(3)]
                for number, t in enumerate(tensors):
                    engine.submit(boom, writes=[t], name=f"step {number}")
        assert [error.operation for error in raised.value.exceptions] == ["step 0", "step 1", "step 2"]
        assert "3 operations failed" in str(raised.value)
        assert not reports

    def test_of_a_block_lists_the_first_of_very_many(self, reports):
        with pytest.raises(ExceptionGroup) as raised:
            with est.Engine(workers=1) as engine:
                for _ in range(500):
                    engine.submit(boom)
        assert len(raised.value.exceptions) == 64
        assert any("436 more" in note for note in raised.value.__notes__)
        # The last handle of the last one may still be on its way out, on the worker's thread.
        until(lambda: len(reports) >= 500)
        assert len(reports) == 500

    def test_of_an_asynchronous_block_raises(self, reports):
        async def main():
            async with est.Engine(workers=1) as engine:
                kept.append(engine.submit(boom))

        kept = []
        with pytest.raises(est.OperationError):
            asyncio.run(main())
        assert not reports

    def test_by_shutdown_raises(self, reports):
        engine = est.Engine(workers=1)
        op = failed(engine)
        with pytest.raises(est.OperationError):
            engine.shutdown()
        assert engine.shutdown().drained
        del op
        assert not reports

    def test_of_a_block_that_raises_reports_instead(self, reports):
        with pytest.raises(KeyError):
            with est.Engine(workers=1) as engine:
                op = engine.submit(boom)
                raise KeyError("of the block")
        assert len(reports) == 1
        del op
        assert len(reports) == 1

    def test_of_an_asynchronous_block_that_raises_reports_instead(self, reports):
        async def main():
            async with est.Engine(workers=1) as engine:
                kept.append(engine.submit(boom))
                raise KeyError("of the block")

        kept = []
        with pytest.raises(KeyError):
            asyncio.run(main())
        assert len(reports) == 1

    def test_does_not_raise_what_was_looked_at_or_cancelled(self, reports):
        gate = Gate()
        with est.Engine(workers=1) as engine:
            op = engine.submit(boom)
            with pytest.raises(est.OperationError):
                op.wait()
            t = engine.zeros(1, "int8")
            engine.submit(gate, writes=[t])
            assert engine.submit(lambda t: None, writes=[t]).cancel()
            gate.open()
        del t
        assert not reports

    def test_with_failures_to_be_logged_reports_and_does_not_raise(self, reports):
        with est.Engine(workers=1, failures="log") as engine:
            op = engine.submit(boom)
        assert len(reports) == 1
        del op
        assert len(reports) == 1

    def test_with_failures_to_be_ignored_is_silent(self, reports, caplog):
        with est.Engine(workers=1, failures="ignore") as engine:
            op = engine.submit(boom)
            engine.submit(boom)
            with engine.program("nodes") as program:
                for _ in range(2):
                    program.submit(boom)
            with pytest.raises(est.OperationError):
                program.replay().wait()
        del op, program
        gc.collect()
        assert not reports and not caplog.records

    def test_to_be_ignored_by_an_engine_that_is_gone_are_silent(self, reports, caplog):
        gate, errors = Gate(), []

        def fail():
            gate()
            error = Boom()
            errors.append(weakref.ref(error))
            raise error

        engine = est.Engine(workers=1, failures="ignore")
        engine.submit(fail)
        del engine
        gate.open()
        until(lambda: errors and errors[0]() is None)
        assert not reports and not caplog.records

    def test_of_an_engine_that_was_never_ended_reports_at_exit(self):
        _, errors = run_program(
            """
            import estafette as est
            eng = est.Engine(workers=1)
            kept = eng.submit(lambda: 1 / 0, name="kept")
            """
        )
        assert errors.count("never retrieved") == 1 and "`kept`" in errors, errors


def test_wrong_names_of_what_to_do_with_failures_are_refused():
    with pytest.raises(ValueError, match="'quietly'|\"quietly\""):
        est.Engine(workers=1, failures="quietly")
    with pytest.raises(TypeError, match="failures"):
        est.Engine(workers=1, failures=3)
