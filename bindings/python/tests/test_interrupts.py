"""Exceptions that end programs, raised in functions that the engine calls: one operation fails, and nothing else stops."""

import asyncio
import concurrent.futures
import gc
import logging
import signal
import sys
import threading
import warnings

import pytest

import estafette as est
from capsules import Made
from conftest import Gate, pairs, run_program, until

KINDS = [KeyboardInterrupt, SystemExit, GeneratorExit]
# Exceptions that asyncio lets out of an event loop.
LEAVE = [KeyboardInterrupt, SystemExit]


@pytest.fixture
def engine():
    """An engine that reports failures, and that has to end well."""
    engine = est.Engine(workers=2, failures="log")
    yield engine
    assert engine.shutdown(10.0).drained


def raising(kind):
    def body(*_operands):
        raise kind("by the program")

    return body


class Unreadable:
    """A result that raises when it is asked for its memory."""

    def __init__(self, body):
        self.body = body

    def __dlpack__(self, **_options):
        self.body()

    def __dlpack_device__(self):
        return (1, 0)


def operator(engine, body):
    engine.operators.register("raises", body)
    try:
        return engine.operators["raises"](engine.zeros(1, "int8"))
    finally:
        # A call that was submitted keeps its function.
        engine.wait_all()
        engine.operators.unregister("raises")


def operator_with_infer(engine, body):
    engine.operators.register("described", lambda *_: None, infer=body)
    try:
        return engine.operators["described"](engine.zeros(1, "int8"))
    finally:
        engine.wait_all()
        engine.operators.unregister("described")


def node(engine, body):
    t = engine.zeros(1, "int8")
    with engine.program("step") as program:
        program.submit(body, writes=[t])
    program.replay()
    return t


def future(engine, body):
    failed = concurrent.futures.Future()
    failed.set_exception(error_of(body))
    return engine.from_future(failed)


def error_of(body):
    try:
        body()
    except BaseException as error:
        return error


def written(engine, body):
    t = engine.zeros(1, "int8")
    engine.submit(body, writes=[t])
    return t


# Each gives a tensor that fails with what the function raises.
WAYS = {
    "submit": written,
    "call": lambda engine, body: engine.call(body),
    "using": lambda engine, body: engine.call(lambda x: x, engine.zeros(1, "int8"), using=body),
    "result": lambda engine, body: engine.call(lambda: Unreadable(body)),
    "operator": operator,
    "infer": operator_with_infer,
    "node": node,
    "from_future": future,
}


class TestFunctions:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("way", WAYS)
    def test_fail_their_operation_and_what_depends_on_it_and_no_other(self, engine, reports, way, kind):
        t = WAYS[way](engine, raising(kind))
        dependent = engine.call(lambda t: t, t)
        for promise in (t, dependent):
            with pytest.raises(est.OperationError, match="by the program") as caught:
                promise.wait(30)
            assert type(caught.value.__cause__) is kind
        engine.submit(lambda: None).wait(30)
        del t, dependent, promise, caught
        gc.collect()
        assert not reports

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("way", WAYS)
    def test_are_reported_where_nothing_looks(self, engine, reports, way, kind):
        t = WAYS[way](engine, raising(kind))
        engine.wait_all(30)
        assert not reports
        del t
        gc.collect()
        until(lambda: reports)
        (report,) = reports
        assert type(report.exc_value.__cause__) is kind and "never retrieved" in repr(report.object)

    @pytest.mark.parametrize("kind", KINDS)
    def test_that_listen_to_the_end_keep_no_other_from_being_called(self, engine, kind, caplog):
        gate, seen = Gate(), []
        op = engine.submit(gate)
        op.add_done_callback(raising(kind))
        op.add_done_callback(seen.append)
        gate.open()
        until(lambda: seen == [op])
        (record,) = caplog.records
        assert record.name == "estafette" and type(record.exc_info[1]) is kind

    @pytest.mark.parametrize("kind", KINDS)
    def test_that_listen_to_what_is_done_already_raise_to_their_caller(self, engine, kind, caplog):
        for promise in (engine.zeros(1, "int8"), engine.submit(lambda: None)):
            promise.wait()
            with pytest.raises(kind, match="by the program"):
                promise.add_done_callback(raising(kind))
        assert not caplog.records

    @pytest.mark.parametrize("kind", KINDS)
    def test_that_release_memory_are_unraisable(self, engine, reports, kind):
        class Raises(Made):
            def _delete(self, managed):
                super()._delete(managed)
                raise kind

        made = Raises()
        engine.from_dlpack(made.capsule)
        until(lambda: reports)
        assert [report.exc_type for report in reports] == [kind] and made.deleted == 1
        another = Made()
        engine.from_dlpack(another.capsule)
        until(lambda: another.deleted == 1)

    @pytest.mark.parametrize("kind", KINDS)
    def test_that_end_objects_of_a_body_are_unraisable(self, engine, reports, kind):
        class Held:
            __del__ = raising(kind)

        v = engine.var()
        op = engine.submit(lambda held=Held(): held and None, writes=[v])
        op.wait(30)
        until(lambda: len(reports) == 1)
        assert reports[0].exc_type is kind
        engine.submit(lambda: None, reads=[v]).wait(30)

    @pytest.mark.parametrize("kind", KINDS)
    def test_that_hear_of_failures_stop_nothing(self, engine, monkeypatch, kind):
        told = []

        def hook(report):
            told.append(report.exc_type)
            raise kind("in the hook")

        class Handler(logging.Handler):
            def emit(self, record):
                raise kind("in the handler")

        handler = Handler()
        logging.getLogger("estafette").addHandler(handler)
        try:
            monkeypatch.setattr(sys, "unraisablehook", hook)
            engine.submit(raising(ValueError))
            # The failure itself, then that of the handler.
            until(lambda: len(told) == 2)
            assert told == [est.OperationError, kind]
            engine.submit(lambda: None).wait(30)
        finally:
            logging.getLogger("estafette").removeHandler(handler)


def a_function(engine, body):
    return engine.call(body)


def a_coroutine(engine, body):
    return engine.call(lambda: body())


def a_future(engine, body):
    return engine.from_future(body())


ASYNCHRONOUS = {"function": a_function, "coroutine": a_coroutine, "from_future": a_future}


@pytest.mark.parametrize("way", ASYNCHRONOUS)
class TestAsynchronousFunctions:
    @pytest.mark.parametrize("kind", LEAVE)
    def test_leave_the_loop_and_fail_their_operation_although_the_loop_never_runs_again(self, engine, way, kind):
        loop = asyncio.new_event_loop()
        promises = []

        async def body():
            await asyncio.sleep(0)
            raise kind("by the program")

        async def main():
            promises.append(ASYNCHRONOUS[way](engine, body))
            promises.append(engine.call(lambda t: t, promises[0]))
            await promises[0]

        with pytest.raises(kind, match="by the program"):
            loop.run_until_complete(main())
        for promise in promises:
            with pytest.raises(est.OperationError, match="by the program") as caught:
                promise.wait(30)
            assert type(caught.value.__cause__) is kind
        # The loop goes on where it is run again, and so does the engine.
        loop.run_until_complete(asyncio.wait_for(awaited(engine.submit(lambda: None)), 30))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    @pytest.mark.parametrize("kind", LEAVE)
    def test_end_a_program_of_asyncio_and_are_reported(self, engine, reports, way, kind):
        async def body():
            raise kind("by the program")

        async def main():
            ASYNCHRONOUS[way](engine, body)
            await asyncio.sleep(30)

        with pytest.raises(kind, match="by the program"):
            asyncio.run(main())
        gc.collect()
        until(lambda: reports)
        (report,) = reports
        assert type(report.exc_value.__cause__) is kind

    def test_may_raise_what_leaves_no_loop(self, engine, way):
        async def body():
            await asyncio.sleep(0)
            raise GeneratorExit("by the program")

        async def main():
            for _ in range(2):
                with pytest.raises(est.OperationError) as caught:
                    await ASYNCHRONOUS[way](engine, body)
                assert type(caught.value.__cause__) is GeneratorExit

        asyncio.run(main())

    def test_that_are_cancelled_before_their_first_step_leave_no_warning(self, engine, way, reports):
        began = []

        async def body():
            began.append(True)

        async def main():
            loop, sent = asyncio.get_running_loop(), []
            original = loop.call_soon_threadsafe
            loop.call_soon_threadsafe = lambda *call, **options: (original(*call, **options), sent.append(call))
            promises = []

            def begin():
                promises.extend(ASYNCHRONOUS[way](engine, body) for _ in range(20))

            # The loop makes their tasks in its next turn, which is the last before it cancels them.
            if way == "from_future":
                loop.call_soon(begin)
            else:
                begin()
                until(lambda: len(sent) >= 20)
            return promises

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            promises = asyncio.run(main())
            assert len(promises) == 20
            while promises:
                with pytest.raises(est.OperationError):
                    promises.pop().wait(30)
            gc.collect()
        assert not began and not reports


@pytest.mark.parametrize("way", ASYNCHRONOUS)
def test_ctrl_c_while_the_result_of_an_asynchronous_function_is_taken_leaves_the_loop(engine, way):
    async def body():
        return Unreadable(ctrl_c)

    async def main():
        promises.append(ASYNCHRONOUS[way](engine, body))
        await asyncio.sleep(30)

    loop, promises = asyncio.new_event_loop(), []
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(main())
    assert isinstance(promises[0].exception(30).__cause__, KeyboardInterrupt)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


async def awaited(promise):
    return await promise


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


class TestCtrlC:
    def test_in_a_body_ends_the_wait_of_the_main_thread_and_not_the_body(self, engine):
        begin, gate, ended = Gate(), Gate(), []

        def body():
            begin()
            ctrl_c()
            gate()
            ended.append(True)

        op = engine.submit(body)
        with pytest.raises(KeyboardInterrupt):
            # Only here is the exception expected.
            begin.open()
            op.wait(30)
        assert not op.done()
        gate.open()
        op.wait(30)
        assert ended == [True]

    @pytest.mark.parametrize(
        "way, handler",
        pairs(
            [
                "[eng.submit(body) for _ in range(100)]",
                "eng.submit(body); eng.wait_all()",
                "eng.submit(step, writes=[t]); eng.submit(body, writes=[t]); eng.wait_all()",
                "eng.submit(step, writes=[t]); eng.submit(body, writes=[t]); t.wait()",
                "eng.submit(step, writes=[t]); eng.submit(body, writes=[t]); memoryview(t)",
                "eng.submit(body, writes=[t]); eng.submit(step); t.wait()",
                "eng.call(time.sleep, 20); signal.alarm(1); eng.wait_all()",
                "eng.call(body).wait()",
                "eng.submit(step, writes=[t]); eng.submit(body); eng.shutdown()",
                "eng.operators.register('of', body); eng.operators['of'](t).wait()",
                "eng.submit(fail, writes=[t]); eng.submit(step, reads=[t], on_skip=body); eng.wait_all()",
                "eng.call(Result).wait()",
                "eng.call(lambda: Structure([np.zeros(1)])).wait()",
            ],
            ["signal.default_int_handler", "handler", "Handler().handle"],
        ),
    )
    def test_in_a_body_that_the_main_thread_runs_leaves_both(self, np, way, handler):
        """The body fails, as by anything else that it raises, and the wait or the submission raises it, too."""
        output, errors = run_program(
            f"""
            import os, signal, time
            import numpy as np
            import estafette as est

            class Stop(Exception):
                pass

            def handler(*_):
                raise Stop

            class Handler:
                def handle(self, *_):
                    handler()

            signal.signal(signal.SIGINT, {handler})
            signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGINT))

            began = []

            def step(*_):
                pass

            def fail(*_):
                raise ValueError

            def body(*_, **__):
                if not began:
                    began.append(True)
                    os.kill(os.getpid(), signal.SIGINT)
                    for _ in range(1000):
                        pass
                    print("never")

            class Result:
                __dlpack__ = body

                def __dlpack_device__(self):
                    return 1, 0

            class Structure(list):
                # It is copied for the promises.
                __copy__ = body

            eng = est.Engine(workers=0, in_flight_limit=4, failures="ignore")
            t = eng.zeros(1, "int8")
            try:
                {way}
                print("goes on")
            except (KeyboardInterrupt, Stop):
                print("interrupted")
            with est.Engine(workers=0) as eng:
                np.asarray(eng.zeros(1, "int8"))
                eng.submit(step)
            """
        )
        assert output == "interrupted\n", errors

    @pytest.mark.parametrize("submit", ["eng.submit", "eng.call"])
    def test_in_a_body_that_a_submission_runs_is_raised_by_that_submission(self, submit):
        output, errors = run_program(
            f"""
            import os, signal
            import estafette as est
            signal.signal(signal.SIGINT, signal.default_int_handler)
            submitted, began = [], []

            def body():
                if not began:
                    began.append(len(submitted))
                    os.kill(os.getpid(), signal.SIGINT)
                    for _ in range(1000):
                        pass

            with est.Engine(workers=0, failures="ignore") as eng:
                try:
                    # So many that the thread which submits runs some.
                    for _ in range(100):
                        submitted.append({submit}(body))
                except KeyboardInterrupt:
                    print("interrupted", len(submitted) == began[0])
            """
        )
        assert output == "interrupted True\n", errors

    @pytest.mark.parametrize("end", [lambda eng: eng.shutdown(), lambda eng: eng.__exit__(None, None, None)])
    def test_ends_a_shutdown_and_cancels_nothing(self, np, end):
        eng = est.Engine(workers=0, failures="ignore")
        t = eng.zeros(1, "int8")
        leased = np.from_dlpack(t)
        held = eng.submit(lambda _: None, writes=[t])
        # The main thread runs it in its wait.
        eng.submit(ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            end(eng)
        assert not held.done()
        with pytest.raises(est.ShutdownError):
            eng.submit(print)
        del leased
        held.wait(30)
        assert eng.shutdown(30).drained

    def test_raised_by_a_function_itself_is_a_failure_on_the_main_thread_too(self):
        def generator():
            yield

        def thrown(kind):
            # In a generator that has not begun, and, where the versions of Python distinguish it from a signal, behind a `yield`.
            fresh = generator()
            if sys.version_info < (3, 13):
                next(fresh)
            fresh.throw(kind("by the program"))

        with est.Engine(workers=0, failures="ignore") as eng:
            for kind in KINDS:
                for body in (raising(kind), lambda: generator().throw(kind("by the program")), lambda: thrown(kind)):
                    failing = eng.submit(body)
                    eng.wait_all()
                    assert type(failing.exception(30).__cause__) is kind

    def test_in_a_body_that_the_main_thread_runs_is_heard_and_reported_nowhere_else(self):
        output, errors = run_program(
            """
            import os, signal
            import estafette as est
            signal.signal(signal.SIGINT, signal.default_int_handler)

            def body(*_):
                os.kill(os.getpid(), signal.SIGINT)

            eng = est.Engine(workers=0)
            ops = [eng.submit(body), eng.submit(lambda: eng.submit(body).wait())]
            for op in ops:
                try:
                    op.wait()
                except KeyboardInterrupt:
                    print("interrupted")
            del op, ops
            v = eng.var()
            eng.submit(body, writes=[v])
            skipped = eng.submit(print, reads=[v])
            try:
                eng.wait_all()
            except KeyboardInterrupt:
                print("interrupted")
            eng.shutdown()
            """
        )
        assert output == "interrupted\n" * 3 and not errors, errors

    def test_that_comes_while_another_one_is_recognized_is_raised(self):
        output, errors = run_program(
            """
            import os, signal
            import estafette as est
            from estafette import _body
            signal.signal(signal.SIGINT, signal.default_int_handler)
            was_sent = _body.was_sent

            def interrupted(*arguments):
                _body.was_sent = was_sent
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass

            def body():
                raise KeyboardInterrupt("by the program")

            _body.was_sent = interrupted
            with est.Engine(workers=0, failures="ignore") as eng:
                op = eng.submit(body)
                try:
                    op.wait()
                except KeyboardInterrupt as error:
                    print("interrupted", error.args)
            """
        )
        assert output == "interrupted ()\n", errors

    def test_in_an_asynchronous_body_leaves_a_bare_loop_and_fails_the_body(self, engine):
        loop, ops = asyncio.new_event_loop(), []

        async def body():
            await asyncio.sleep(0)
            ctrl_c()

        async def main():
            ops.append(engine.submit(body))
            await asyncio.sleep(30)

        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(main())
        assert isinstance(ops[0].exception(30).__cause__, KeyboardInterrupt)
        loop.close()

    def test_in_an_asynchronous_body_cancels_the_main_task_of_a_runner(self, engine):
        ops, seen = [], []

        async def body():
            await asyncio.sleep(0)
            ctrl_c()
            await asyncio.sleep(0)
            seen.append("goes on")

        async def main():
            ops.append(engine.submit(body))
            try:
                await asyncio.sleep(30)
            finally:
                await ops[0]

        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
        assert seen == ["goes on"] and ops[0].exception(30) is None

    def test_no_code_that_could_swallow_it_runs_in_a_wait(self):
        output, errors = run_program(
            """
            import os, signal, threading
            import estafette as est
            signal.signal(signal.SIGINT, signal.default_int_handler)

            def interrupted():
                raise KeyboardInterrupt

            threading.main_thread = threading.get_ident = interrupted
            gate = threading.Event()

            def body():
                os.kill(os.getpid(), signal.SIGINT)
                gate.wait(20)

            with est.Engine(workers=1) as eng:
                op = eng.submit(body)
                try:
                    with est.without_helping():
                        op.wait()
                except KeyboardInterrupt:
                    print("interrupted", op.done())
                gate.set()
            """
        )
        assert output == "interrupted False\n", errors

    def test_twice_ends_a_block_that_was_left_by_the_first(self):
        """The first one leaves the block, whose end still waits for what runs."""
        output, errors = run_program(
            """
            import os, signal, threading
            import estafette as est
            signal.signal(signal.SIGINT, signal.default_int_handler)
            gate = threading.Event()

            def body():
                os.kill(os.getpid(), signal.SIGINT)
                left.wait(20)
                os.kill(os.getpid(), signal.SIGINT)
                gate.wait(20)

            left = threading.Event()
            try:
                with est.Engine(workers=1) as eng:
                    op = eng.submit(body)
                    try:
                        with est.without_helping():
                            op.wait()
                    finally:
                        left.set()
            except KeyboardInterrupt as error:
                print("interrupted", type(error.__context__).__name__, op.done())
            gate.set()
            op.wait()
            """
        )
        assert output == "interrupted KeyboardInterrupt False\n", errors
