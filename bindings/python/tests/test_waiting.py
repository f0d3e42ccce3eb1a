"""Waiting is safe: waits that could never end are errors, event loops are never stopped, and Ctrl-C works."""

import asyncio
import threading
import time

import pytest

import estafette as est
from conftest import run_program, until

ITSELF = "waits for the operation that waits for it"


class TestUnderJaxsName:
    def test_it_waits_and_gives_the_tensor(self, eng):
        x = eng.zeros(1, "int8")
        eng.submit(lambda x: time.sleep(0.01), writes=[x])
        assert x.block_until_ready() is x
        assert x.is_ready()

    def test_it_has_a_timeout_and_raises_the_failure_of_the_version(self, eng, gate):
        x = eng.zeros(1, "int8")
        eng.submit(gate, writes=[x])
        with pytest.raises(TimeoutError):
            x.block_until_ready(0.01)
        gate.open()
        eng.submit(lambda x: 1 / 0, writes=[x])
        with pytest.raises(est.OperationError, match="division"):
            x.block_until_ready()


class TestOnAnEventLoopsThread:
    def test_synchronous_waits_for_what_is_not_ready_are_refused(self, eng, np, gate):
        x = eng.zeros(1, "int8")
        op = eng.submit(gate, writes=[x])
        y = eng.call(lambda x: x, x, using=np.from_dlpack)

        async def main():
            waits = {
                "tensor": x.wait,
                "operation": op.wait,
                "engine": eng.wait_all,
                "shutdown": eng.shutdown,
                "export": lambda: np.from_dlpack(x),
                "write": lambda: np.from_dlpack(x.for_write()),
                "undefined device": y.__dlpack_device__,
                "undefined export": lambda: np.from_dlpack(y),
                "undefined alias": lambda: np.from_dlpack(y.alias()),
                "scoped": lambda: x.read().__enter__(),
                "exit": lambda: eng.__exit__(None, None, None),
            }
            for name, wait in waits.items():
                with pytest.raises(est.WouldBlockError, match="await"):
                    wait()
                    raise AssertionError(name)
            with pytest.raises(TimeoutError):
                x.wait(timeout=0)

        asyncio.run(main())
        # Nothing that was refused stays in the way, not even the shutdown.
        gate.open()
        eng.submit(lambda x: None, writes=[x]).wait(10)

    def test_what_is_ready_needs_no_waiting(self, eng, np):
        x = eng.zeros(3, "float32")

        async def main():
            x.wait()
            eng.wait_all()
            assert np.from_dlpack(x).shape == (3,)
            assert np.from_dlpack(x.for_write()).flags.writeable
            with x.write() as view:
                np.from_dlpack(view)[:] = 1
            with eng.access(reads=[x]) as (view,):
                assert np.from_dlpack(view)[0] == 1

        asyncio.run(main())

    def test_other_threads_are_free_to_wait(self, eng, gate):
        x = eng.zeros(1, "int8")
        eng.submit(gate, writes=[x])

        async def main():
            waiting = asyncio.create_task(asyncio.to_thread(x.wait))
            await asyncio.sleep(0.01)
            gate.open()
            await waiting

        asyncio.run(main())


class TestThePythonLock:
    def test_is_free_during_every_wait(self, eng, np, gate):
        x = eng.zeros(1, "int8")
        op = eng.submit(gate, writes=[x])
        waits = [x.wait, op.wait, eng.wait_all, lambda: np.from_dlpack(x), x.read().__enter__]
        threads = [threading.Thread(target=wait) for wait in waits]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        turns = 0
        while time.monotonic() - began < 0.2 or turns < 1000:
            turns += 1
        assert all(thread.is_alive() for thread in threads)
        gate.open()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()

    def test_is_free_while_an_operation_waits_for_room(self):
        with est.Engine(workers=1, in_flight_limit=1) as eng:
            gate = threading.Event()
            eng.submit(gate.wait)
            thread = threading.Thread(target=lambda: eng.submit(lambda: None))
            thread.start()
            time.sleep(0.02)
            assert thread.is_alive()
            gate.set()
            thread.join(20)
            assert not thread.is_alive()


class TestTheInFlightLimit:
    def test_a_reached_limit_blocks_the_submitter(self):
        with est.Engine(workers=1, in_flight_limit=4) as eng:
            seen = []
            for i in range(100):
                eng.submit(lambda i=i: seen.append(i), writes=[])
                assert eng.stats().in_flight <= 4
            eng.wait_all()
            assert sorted(seen) == list(range(100))

    def test_operations_may_submit_beyond_it(self):
        with est.Engine(workers=1, in_flight_limit=1) as eng:
            done = []

            def outer():
                eng.submit(lambda: done.append("inner"))
                done.append("outer")

            eng.submit(outer).wait(20)
            eng.wait_all(20)
            assert done == ["outer", "inner"]

    def test_a_limit_that_can_never_drain_is_an_error(self, np):
        eng = est.Engine(workers=1, in_flight_limit=1, lease_timeout=0.2)
        t = eng.zeros(1, "int8")
        array = np.from_dlpack(t)
        eng.submit(lambda _: None, writes=[t])
        with pytest.raises(est.WouldDeadlockError, match="test_waiting.py"):
            eng.submit(lambda: None)
        del array
        eng.submit(lambda: None).wait(10)
        assert eng.shutdown(5).drained


class TestInsideOperations:
    def test_waiting_is_allowed_and_starves_nobody(self):
        with est.Engine(workers=1) as eng:
            x = eng.zeros(1, "int64")

            def outer(depth):
                inner = eng.call(lambda: depth_value(depth))
                inner.wait()

            def depth_value(depth):
                if depth:
                    outer(depth - 1)
                return eng.zeros(1, "int8")

            eng.submit(lambda _: outer(5), reads=[x]).wait(30)

    def test_a_wait_for_the_own_operation_is_an_error(self, eng, np):
        x = eng.zeros(1, "int8")
        caught = []

        def circle(_):
            for wait in (x.wait, eng.wait_all, lambda: np.from_dlpack(later)):
                try:
                    wait()
                except est.WouldDeadlockError as error:
                    caught.append(str(error))

        ready = threading.Event()
        op = eng.submit(lambda a: (ready.wait(20), circle(a)), writes=[x], name="circle")
        later = eng.call(lambda x: x + 1, x, using=np.from_dlpack)
        ready.set()
        op.wait(20)
        assert len(caught) == 3

    @pytest.mark.parametrize("kind", ["call", "submit"])
    def test_a_wait_for_the_own_promise_is_an_error_in_each_form(self, eng, np, kind):
        go, errors = threading.Event(), []

        def body():
            go.wait(20)
            forms = [promise.wait, promise.result, promise.exception, lambda: promise.result(20)]
            forms += [lambda: est.wait([promise]), lambda: est.wait([promise], 20)]
            forms += [lambda: list(est.as_completed([promise]))]
            if kind == "call":
                forms += [lambda: np.asarray(promise), promise.block_until_ready]
            for form in forms:
                with pytest.raises(est.WouldDeadlockError, match=ITSELF) as caught:
                    form()
                errors.append(caught.value)
            return np.zeros(1)

        promise = getattr(eng, kind)(body)
        go.set()
        promise.wait(30)
        assert len(errors) == {"call": 9, "submit": 7}[kind]

    def test_an_await_of_what_is_the_own_is_an_error_in_each_form(self, eng):
        t = eng.zeros(1, "int8")

        async def main():
            errors = []

            async def enter(access):
                async with access:
                    raise AssertionError("it is the operation's own")

            async def circle(_):
                forms = [lambda: op, lambda: t, t.writable, lambda: enter(t.read()), lambda: enter(t.write())]
                for form in [*forms, lambda: enter(eng.access(reads=[t])), lambda: asyncio.gather(op, t)]:
                    with pytest.raises(est.WouldDeadlockError, match=ITSELF) as caught:
                        await form()
                    errors.append(caught.value)
                # A callback at the end waits for nothing.
                op.add_done_callback(errors.append)

            op = eng.submit(circle, writes=[t])
            await asyncio.wait_for(op, 30)
            until(lambda: len(errors) == 8)
            # The tensor was given up by all of these.
            async with asyncio.timeout(30), t.write():
                pass

        asyncio.run(main())

    @pytest.mark.parametrize("wait", ["est.wait", "FIRST_COMPLETED", "as_completed"])
    def test_waiting_for_several_promises_keeps_no_worker(self, wait):
        waits = {
            "est.wait": est.wait,
            "FIRST_COMPLETED": lambda promises: est.wait(promises, return_when="FIRST_COMPLETED"),
            "as_completed": lambda promises: list(est.as_completed(promises)),
        }
        reached = []

        def level(n):
            reached.append(n)
            if n < 30:
                waits[wait]([eng.submit(lambda: level(n + 1)), eng.submit(lambda: None)])

        with est.Engine(workers=1) as eng:
            eng.submit(lambda: level(0)).wait(30)
            eng.wait_all(30)
            assert reached == list(range(31))

    def test_recursion_without_waiting_is_as_deep_as_one_likes(self):
        with est.Engine(workers=1, in_flight_limit=2) as eng:
            reached = []

            def level(n):
                reached.append(n)
                if n < 1000:
                    eng.submit(lambda: level(n + 1))

            level(0)
            eng.wait_all(30)
            assert reached == list(range(1001))

    def test_recursion_that_waits_is_deeper_than_there_are_workers(self, np):
        with est.Engine(workers=2) as eng:

            def depth(n):
                return np.zeros(1) if n == 0 else np.from_dlpack(eng.call(depth, n - 1)) + 1

            def fibonacci(n):
                if n < 2:
                    return np.full(1, n)
                first, second = eng.call(fibonacci, n - 1), eng.call(fibonacci, n - 2)
                return np.from_dlpack(first) + np.from_dlpack(second)

            assert np.from_dlpack(eng.call(depth, 500)).tolist() == [500]
            assert np.from_dlpack(eng.call(fibonacci, 12)).tolist() == [144]

    def test_recursion_of_asynchronous_functions_needs_no_thread(self, np):
        async def main():
            async with est.Engine(workers=1) as eng:

                async def depth(n):
                    return np.zeros(1) if n == 0 else np.from_dlpack(await eng.call(depth, n - 1)) + 1

                result = await asyncio.wait_for(eng.call(depth, 1000), 60)
                assert np.from_dlpack(result).tolist() == [1000]

        asyncio.run(main())

    def test_a_promise_that_is_returned_before_it_is_there_is_an_error(self, np):
        gate = threading.Event()
        with est.Engine(workers=2) as eng:
            y = eng.call(lambda: eng.call(lambda: (gate.wait(20), np.zeros(1))[1]))
            with pytest.raises(est.OperationError, match=r"not ready: wait for it in the body.*t\.wait\(\)"):
                y.wait(30)
            gate.set()

    def test_an_operand_is_exported_without_waiting_and_anything_else_with(self, eng, np):
        x, other = eng.zeros(3, "int64"), eng.zeros(3, "int64")
        for _ in range(20):
            eng.submit(lambda other: np.add(other, 1, out=other), writes=[other], using=np.from_dlpack)

        def body(x):
            np.from_dlpack(x)[:] = np.from_dlpack(other)

        eng.submit(body, writes=[x])
        x.wait()
        assert np.from_dlpack(x).tolist() == [20, 20, 20]


class TestCtrlC:
    @pytest.mark.parametrize(
        "wait",
        [
            "t.wait()",
            "op.wait()",
            "eng.wait_all()",
            "np.from_dlpack(t)",
            "np.asarray(t)",
            "np.asarray(t.for_write())",
            "np.array(t, dtype='float64')",
            "memoryview(t)",
            "t.write().__enter__()",
            "eng.shutdown()",
            "eng.submit(lambda: None)",
            "eng.__exit__(None, None, None)",
            "t.result()",
            "op.exception()",
            "op.future().result()",
            "t.block_until_ready()",
            "est.wait([t, op])",
            "est.wait([t, op], return_when='FIRST_COMPLETED')",
            "list(est.as_completed([t, op]))",
        ],
    )
    def test_ends_a_blocking_wait(self, np, wait):
        output, errors = run_program(
            f"""
            import os, signal, threading
            import numpy as np
            import estafette as est
            # A job in the background, as which these tests may run, ignores the signal, and its children inherit that.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            eng = est.Engine(workers=1, in_flight_limit=1)
            t = eng.zeros(1, "int8")
            begun, gate = threading.Event(), threading.Event()
            op = eng.submit(lambda _: begun.set() or gate.wait(20), writes=[t])
            begun.wait()
            try:
                threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                {wait}
            except KeyboardInterrupt:
                print("interrupted", not op.is_done())
            gate.set()
            """
        )
        assert output == "interrupted True\n", errors

    def test_an_interruption_of_a_buffer_is_raised_once(self, np):
        output, errors = run_program(
            """
            import os, signal, threading
            import numpy as np
            import estafette as est
            signal.signal(signal.SIGINT, signal.default_int_handler)
            eng = est.Engine(workers=1)
            t = eng.zeros(1, "int8")
            begun, gate = threading.Event(), threading.Event()
            eng.submit(lambda _: begun.set() or gate.wait(20), writes=[t])
            begun.wait()
            try:
                threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                memoryview(t)
            except KeyboardInterrupt:
                print("interrupted")
            gate.set()
            t.wait()
            print(np.asarray(t).tolist(), t.__array__().tolist())
            """
        )
        assert output == "interrupted\n[0] [0]\n", errors

    def test_ends_an_asynchronous_block(self, np):
        output, errors = run_program(
            """
            import asyncio, os, signal, threading
            import estafette as est
            signal.signal(signal.SIGINT, signal.default_int_handler)
            gate = threading.Event()

            async def main():
                global op
                async with est.Engine(workers=1) as eng:
                    op = eng.submit(lambda: gate.wait(20))
                    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

            try:
                asyncio.run(main())
            except KeyboardInterrupt:
                print("interrupted", not op.is_done())
            gate.set()
            """
        )
        assert output == "interrupted True\n", errors

    def test_twice_ends_an_asynchronous_block_that_was_left_by_the_first(self, np):
        """The first one cancels what the block awaits; its end still waits for what runs, as the end of any block does."""
        output, errors = run_program(
            """
            import asyncio, os, signal, threading, time
            import estafette as est
            signal.signal(signal.SIGINT, signal.default_int_handler)
            gate = threading.Event()
            began = time.monotonic()

            def interrupt_later():
                threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

            async def main():
                global op
                async with est.Engine(workers=1) as eng:
                    op = eng.submit(lambda: gate.wait(20))
                    interrupt_later()
                    try:
                        await op
                    finally:
                        interrupt_later()

            try:
                asyncio.run(main())
            except KeyboardInterrupt:
                print("interrupted", time.monotonic() - began > 0.5 and not op.is_done())
            gate.set()
            """
        )
        assert output == "interrupted True\n", errors

    def test_a_handler_that_raises_nothing_ends_nothing(self, np):
        output, errors = run_program(
            """
            import os, signal, threading
            import estafette as est
            eng = est.Engine(workers=1)
            t = eng.zeros(1, "int8")
            handled, gate = threading.Event(), threading.Event()
            signal.signal(signal.SIGUSR1, lambda *_: (handled.set(), gate.set()))
            eng.submit(lambda _: gate.wait(20), writes=[t])
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
            t.wait()
            print(handled.is_set())
            eng.shutdown()
            """
        )
        assert output == "True\n", errors


def test_engines_share_one_order(np):
    first, second = est.Engine(workers=1), est.Engine(workers=1)
    x = first.zeros(1, "int64")
    for i in range(60):
        engine = (first, second)[i % 2]
        engine.submit(lambda a, b: np.add(a * 2, 1, out=b), reads=[x], writes=[x], using=np.from_dlpack)
    x.wait()
    assert np.from_dlpack(x)[0] == 2**60 - 1
    assert second.from_dlpack(x) is x
    first.shutdown()
    second.shutdown()


def test_dropping_the_last_handle_drops_no_work(np):
    eng = est.Engine(workers=1)
    x = eng.zeros(1, "int64")
    gate = threading.Event()
    eng.submit(lambda _: gate.wait(20), writes=[x])
    for _ in range(10):
        eng.submit(lambda a, b: np.add(a, 1, out=b), reads=[x], writes=[x], using=np.from_dlpack)
    del eng
    gate.set()
    x.wait(20)
    assert np.from_dlpack(x)[0] == 10


def test_shutdown_cancels_what_only_leases_hold_up_and_reports_it(np):
    eng = est.Engine(workers=1)
    t = eng.zeros(1, "int8")
    array = np.from_dlpack(t)
    op = eng.submit(lambda _: None, writes=[t], name="held up")
    report = eng.shutdown(0.1)
    assert not report.drained and report.cancelled == ("held up",) and report.running == ()
    assert "test_waiting.py" in report.leases[0]
    with pytest.raises(est.CancelledError):
        op.wait(10)
    del array
    until(lambda: eng.stats().in_flight == 0)


def test_shutdown_reports_what_still_runs(gate):
    eng = est.Engine(workers=1)
    eng.submit(gate, name="slow")
    until(gate.entered.is_set)
    report = eng.shutdown(0.05)
    assert not report.drained and report.running == ("slow",)
    gate.open()
    assert eng.shutdown(10).drained


def test_a_block_that_only_leases_hold_up_ends_with_a_warning(np):
    with pytest.warns(RuntimeWarning, match="held up"):
        with est.Engine(workers=1, lease_timeout=600) as eng:
            t = eng.zeros(1, "int8")
            array = np.from_dlpack(t)
            eng.submit(lambda _: None, writes=[t], name="held up")
    del array


@pytest.mark.parametrize("depth", [200])
def test_waits_nested_deep_inside_operations_end(depth):
    with est.Engine(workers=1) as eng:
        reached = []

        def level(n):
            reached.append(n)
            if n < depth:
                eng.submit(lambda: level(n + 1), name=f"level {n + 1}").wait()

        eng.submit(lambda: level(0), name="level 0").wait()
        assert reached == list(range(depth + 1))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_function_that_waits_for_itself_without_end_fails_and_says_why_once(np, workers):
    began = []

    def endless():
        began.append(None)
        return np.from_dlpack(eng.call(endless))

    with est.Engine(workers=workers) as eng:
        with pytest.raises(est.OperationError) as caught:
            eng.call(endless).wait()
        cause, depth = caught.value, -1
        while isinstance(cause, est.OperationError):
            cause, depth = cause.__cause__, depth + 1
        assert isinstance(cause, est.WouldDeadlockError) and "1000 operations wait inside each other" in str(cause)
        text = str(caught.value)
        assert text.count(str(cause)) == 1 and len(text) < 800
        assert text.endswith(f"by way of {depth - 1} more operations that waited for it")
        # Nothing goes on where no thread waits for it.
        eng.wait_all()
        assert len(began) == depth + 1


def test_an_operation_that_would_wait_for_the_lease_of_its_own_operand_is_refused(eng, np):
    t = eng.zeros(3, "float32")
    array = np.from_dlpack(t)
    u = eng.from_dlpack(array)
    with pytest.raises(est.ConflictError, match="would wait for itself.*read lease"):
        eng.submit(lambda u, t: None, reads=[u], writes=[t])
    program = eng.program("both")
    with pytest.raises(est.ConflictError, match="would wait for itself"):
        program.submit(lambda u, t: None, reads=[u], writes=[t])
    del array, u
    eng.submit(lambda t: None, writes=[t]).wait()
    np.from_dlpack(t)


def test_without_helping_is_of_the_thread_and_of_the_block(eng, np):
    from estafette._estafette import _set_helping

    with est.without_helping():
        assert _set_helping(False) is False
        t = eng.zeros(3, "float32")
        eng.submit(lambda t: None, writes=[t])
        t.wait()
        others = []
        thread = threading.Thread(target=lambda: others.append(_set_helping(True)))
        thread.start()
        thread.join()
        assert others == [True]
    assert _set_helping(True) is True
    with pytest.raises(ZeroDivisionError), est.without_helping():
        1 / 0
    assert _set_helping(True) is True
