"""Event loops of all fates: busy, many, cancelled, closed, gone. Nothing is lost and nothing stays behind."""

import asyncio
import concurrent.futures
import contextvars
import gc
import logging
import random
import signal
import sys
import threading
import time
import warnings
import weakref

import pytest

import estafette as est
from conftest import Gate, examples, until


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


def count_wake_ups(loop):
    """Notes how often other threads call into `loop` from now on."""
    calls = []
    original = loop.call_soon_threadsafe

    def counted(callback, *arguments, **keywords):
        calls.append(callback)
        return original(callback, *arguments, **keywords)

    loop.call_soon_threadsafe = counted
    return calls


class TestBatches:
    def test_whatever_ends_during_one_turn_costs_one_call_into_the_loop(self, eng, np):
        gates = [Gate() for _ in range(2)]

        async def main():
            loop = asyncio.get_running_loop()
            for gate in gates:
                tensors = [eng.zeros(1, "int64") for _ in range(200)]
                held = eng.var()
                eng.submit(gate, writes=[held])
                for tensor in tensors:
                    eng.submit(lambda x: x.fill(1), reads=[held], writes=[tensor], using=np.from_dlpack)
                tasks = [asyncio.ensure_future(tensor) for tensor in tensors]
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                calls = count_wake_ups(loop)
                gate.open()
                # The loop is busy, so all of this happens within one turn of it.
                until(lambda: eng.stats().in_flight == 0)
                until(lambda: calls)
                assert len(calls) == 1 and not any(task.done() for task in tasks)
                assert await asyncio.gather(*tasks) == tensors
                assert len(calls) == 1

        run(main())

    def test_each_loop_is_called_for_its_own_awaits(self, eng, np, gate):
        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])
        waiting = threading.Barrier(5, timeout=30)
        ended = threading.Event()
        counts = []

        def thread():
            async def main():
                tasks = [asyncio.ensure_future(z) for _ in range(50)]
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                calls = count_wake_ups(asyncio.get_running_loop())
                waiting.wait()
                # No thread can run this loop's callbacks meanwhile.
                assert ended.wait(30)
                until(lambda: calls)
                time.sleep(0.02)
                counts.append(len(calls))
                assert await asyncio.gather(*tasks) == [z] * 50

            run(main())

        threads = [threading.Thread(target=thread) for _ in range(4)]
        for each in threads:
            each.start()
        waiting.wait()
        gate.open()
        z.wait()
        ended.set()
        for each in threads:
            each.join(30)
        assert counts == [1] * 4


class TestGivingUp:
    def test_timeouts_that_race_with_the_end_lose_nothing(self, eng, np, caplog):
        random.seed(4)

        async def main():
            outcomes = {True: 0, False: 0}
            for _ in range(300):
                # Event loops count in milliseconds: with less than a few of them everything would end in time.
                z = eng.call(lambda: (time.sleep(random.random() * 0.004), np.ones(1))[1])
                try:
                    async with asyncio.timeout(random.random() * 0.006):
                        assert await z is z
                    outcomes[True] += 1
                except TimeoutError:
                    outcomes[False] += 1
                # Whatever came of the wait, the work goes on.
                assert await z is z
            return outcomes

        with caplog.at_level(logging.DEBUG, logger="asyncio"):
            outcomes = run(main())
        assert min(outcomes.values()) > 0, f"only one side was seen: {outcomes}"
        assert "never retrieved" not in caplog.text and "destroyed" not in caplog.text

    def test_a_task_cancelled_in_the_turn_that_wakes_it_is_cancelled(self, eng, gate):
        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])

        async def main():
            task = asyncio.ensure_future(z)
            await asyncio.sleep(0.01)
            gate.open()
            until(z.is_ready)
            time.sleep(0.01)
            # The wake-up is in the loop's queue; the cancellation comes before it.
            assert task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await z is z

        run(main())

    def test_shielded_waits_go_on(self, eng, gate):
        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])

        async def main():
            waiting = asyncio.ensure_future(z)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 0.01)
            assert not waiting.done()
            gate.open()
            assert await waiting is z

        run(main())

    def test_a_group_of_tasks_ends_with_the_first_failure(self, eng, gate):
        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])

        def fail():
            raise ValueError("no")

        async def waits(awaitable):
            await awaitable

        async def main():
            with pytest.raises(ExceptionGroup) as caught:
                async with asyncio.TaskGroup() as group:
                    group.create_task(waits(z))
                    group.create_task(waits(eng.submit(fail)))
            assert [type(error) for error in caught.value.exceptions] == [est.OperationError]

        run(main())


class TestNothingStaysBehind:
    def test_a_closed_loop_goes_although_its_awaits_were_never_resumed(self, eng, gate, caplog):
        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])
        loop = asyncio.new_event_loop()

        async def main():
            tasks = [asyncio.ensure_future(z) for _ in range(20)]
            await asyncio.sleep(0.01)
            assert not any(task.done() for task in tasks)
            return [weakref.ref(thing) for thing in (loop, *tasks)]

        with caplog.at_level(logging.CRITICAL, logger="asyncio"):
            gone = loop.run_until_complete(main())
            loop.close()
            del loop
            gc.collect()
        # The operation that they waited for is still under way, and has kept none of it.
        assert [reference() for reference in gone] == [None] * len(gone)
        assert not z.is_ready()
        gate.open()
        z.wait()

    def test_loops_that_come_and_go_leave_nothing_in_the_registry(self, eng, gate):
        def kept():
            gc.collect()
            kinds = ("_Wakeups", "_Awaiter", "_AsyncioFuture", "_LongWaits")
            return sum(type(thing).__name__ in kinds for thing in gc.get_objects())

        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])

        async def wait():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(z, 0.001)

        run(wait())
        before, loops = kept(), []
        for _ in range(20):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(wait())
            loop.close()
            loops.append(weakref.ref(loop))
        del loop
        assert kept() <= before
        assert not any(reference() for reference in loops)

    def test_exceptions_of_failed_awaits_keep_no_tasks(self, eng):
        def fail():
            raise ValueError("no")

        op = eng.submit(fail)
        gone = []

        async def main():
            for _ in range(10):
                task = asyncio.ensure_future(op)
                await asyncio.wait([task])
                assert isinstance(task.exception(), est.OperationError)
                gone.append(weakref.ref(task))

        run(main())
        gc.collect()
        assert not any(reference() for reference in gone)


class TestThousands:
    @pytest.mark.parametrize("kind", ["plain", "asynchronous"])
    def test_in_one_gather_with_failures_among_them(self, kind):
        count = examples(10_000)

        def work(i):
            if i % 5 == 0:
                raise KeyError(i)

        async def later(i):
            await asyncio.sleep(0)
            work(i)

        function = work if kind == "plain" else later

        async def main():
            async with est.Engine(workers=2, in_flight_limit=2 * count) as eng:
                ops = [eng.submit(lambda i=i: function(i)) for i in range(count)]
                outcomes = await asyncio.gather(*ops, return_exceptions=True)
                for i, outcome in enumerate(outcomes):
                    assert outcome is None if i % 5 else outcome.__cause__.args == (i,)
                # The first failure ends the gathering, and no operation.
                with pytest.raises(est.OperationError):
                    await asyncio.gather(*ops)

        run(main())

    def test_in_one_gather_that_is_cancelled_half_way(self, gate):
        count, ran = examples(10_000), []

        async def main():
            async with est.Engine(workers=2, in_flight_limit=2 * count) as eng:
                v = eng.var()
                first = [eng.submit(lambda: None) for _ in range(count // 2)]
                eng.submit(gate, writes=[v])
                rest = [eng.submit(lambda i=i: ran.append(i), reads=[v]) for i in range(count // 2)]
                gathered = asyncio.gather(*first, *rest)
                await asyncio.gather(*first)
                gathered.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await gathered
                # The awaits were cancelled, the operations were not.
                assert not ran and not any(op.done() for op in rest)
                gate.open()
                assert await asyncio.gather(*first, *rest) == [None] * count
                assert sorted(ran) == list(range(count // 2))

        run(main())

    def test_awaits_that_time_out_and_groups_that_are_cancelled(self, gate):
        async def main():
            async with est.Engine(workers=2, in_flight_limit=10_000) as eng:
                v = eng.var()
                eng.submit(gate, writes=[v])
                ops = [eng.submit(lambda: None, reads=[v]) for _ in range(2_000)]
                waits = [asyncio.wait_for(op, 0.001) for op in ops]
                outcomes = await asyncio.gather(*waits, return_exceptions=True)
                assert {type(outcome) for outcome in outcomes} == {TimeoutError}

                async def group():
                    async with asyncio.TaskGroup() as tasks:
                        for op in ops:
                            tasks.create_task(asyncio.wait_for(op, 60))

                grouped = asyncio.create_task(group())
                while len(asyncio.all_tasks()) < len(ops):
                    await asyncio.sleep(0)
                grouped.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await grouped
                assert not any(op.done() for op in ops)
                gate.open()
                assert await asyncio.gather(*ops) == [None] * len(ops)

        run(main())


class TestClosedLoops:
    @pytest.fixture
    def reports(self, monkeypatch):
        found = []
        monkeypatch.setattr(sys, "unraisablehook", found.append)
        yield found
        gc.collect()
        assert not found

    @pytest.mark.parametrize("kind", ["tensor", "operation", "future", "writable"])
    def test_promises_that_were_awaited_on_one_complete_and_are_awaited_on_another(self, eng, gate, reports, caplog, kind):
        future = concurrent.futures.Future()
        t = eng.zeros(1, "int8")
        op = eng.submit(gate, writes=[t])
        promise = eng.from_future(future) if kind == "future" else op if kind == "operation" else t
        wait = t.writable if kind == "writable" else lambda: promise
        loop = asyncio.new_event_loop()

        async def begin():
            for _ in range(20):
                asyncio.ensure_future(wait())
            await asyncio.sleep(0.01)

        async def again():
            waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
            await asyncio.sleep(0)
            gate.open()
            future.set_result(bytearray(3))
            return await asyncio.gather(*waiting)

        loop.run_until_complete(begin())
        loop.close()
        assert run(again()) == [None if kind == "operation" else promise] * 3
        assert not [record for record in caplog.records if record.name != "asyncio"]

    def test_that_were_left_to_the_garbage_collector_are_closed_by_it(self, eng, reports):
        loop = asyncio.new_event_loop()

        async def main():
            await eng.call(asyncio.sleep, 0)

        loop.run_until_complete(main())
        # A cycle: the references to the loop go before the loop is finalized.
        loop.itself, socket, gone = loop, loop._csock, weakref.ref(loop)
        del loop
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            # A worker may hold the loop for a moment after it has reported the result.
            until(lambda: gc.collect() >= 0 and gone() is None)
        assert socket.fileno() == -1

    @pytest.mark.parametrize("kind", ["function", "coroutine", "from_future", "task", "future"])
    def test_fail_what_their_tasks_would_have_done_without_a_collection_of_garbage(self, eng, reports, kind):
        loop, futures = asyncio.new_event_loop(), []

        async def body():
            await asyncio.sleep(60)

        async def main():
            futures.append(loop.create_future())
            begin = {
                "function": lambda: eng.call(body),
                "coroutine": lambda: eng.call(lambda: body()),
                "from_future": lambda: eng.from_future(body()),
                "task": lambda: eng.from_future(asyncio.create_task(body())),
                "future": lambda: eng.from_future(futures[0]),
            }
            promises = [begin[kind]() for _ in range(3)]
            while kind != "future" and len(asyncio.all_tasks()) < 4:
                await asyncio.sleep(0.001)
            return promises

        promises = loop.run_until_complete(main())
        assert not any(promise.done() for promise in promises)
        gc.disable()
        try:
            loop.close()
            loop.close()
            for promise in promises:
                with pytest.raises(est.OperationError, match="event loop.* closed"):
                    promise.wait(30)
        finally:
            gc.enable()
        eng.submit(lambda: None).wait(30)

    @pytest.mark.parametrize("kind", ["function", "coroutine", "from_future", "task", "future"])
    def test_that_were_only_stopped_end_waits_that_could_not_end(self, eng, reports, kind):
        loop = asyncio.new_event_loop()
        future = loop.create_future()

        async def body():
            await asyncio.sleep(3600)

        async def main():
            begin = {
                "function": lambda: eng.call(body),
                "coroutine": lambda: eng.call(lambda: body()),
                "from_future": lambda: eng.from_future(body()),
                "task": lambda: eng.from_future(asyncio.create_task(body())),
                "future": lambda: eng.from_future(future),
            }
            return begin[kind]()

        promise = loop.run_until_complete(main())
        with est.Engine(workers=1) as other:
            other.submit(lambda: None)
            other.wait_all()
        behind = eng.call(lambda _: None, promise)
        all_waits = (eng.wait_all, lambda: eng.wait_all(60), promise.wait, lambda: promise.wait(60), behind.wait)
        # A function may begin on the loop before or during the wait.
        for wait in (*all_waits, eng.shutdown, lambda: eng.__exit__(None, None, None)):
            with pytest.raises(est.WouldDeadlockError, match=r"operation \d+ resumes when <.*EventLoop running=False"):
                wait()
        loop.close()
        eng.wait_all()
        with pytest.raises(est.OperationError, match="closed|dropped"):
            promise.wait()

    @pytest.mark.parametrize("kind", ["tasks", "operations behind one", "one task of many"])
    def test_that_were_only_stopped_end_a_submission_that_waits_for_room(self, kind):
        eng, loop = est.Engine(workers=1, in_flight_limit=4), asyncio.new_event_loop()
        gate = Gate()

        async def body():
            await asyncio.sleep(3600)

        async def main():
            if kind == "one task of many":
                eng.submit(gate)
            return [eng.call(body) for _ in range(4 if kind == "tasks" else 1)]

        promises = loop.run_until_complete(main())
        if kind != "tasks":
            promises += [eng.call(lambda _: None, promises[0]) for _ in range(3 - (kind == "one task of many"))]
        if kind == "one task of many":
            # The gate opens while the submission waits, and makes room.
            threading.Timer(0.3, gate.open).start()
            eng.submit(lambda: None).wait(30)
        else:
            with pytest.raises(est.WouldDeadlockError, match=r"operation \d+ resumes when <.*EventLoop running=False"):
                eng.submit(lambda: None)
        loop.close()
        for promise in promises:
            with pytest.raises(est.OperationError, match="closed|dropped"):
                promise.wait(30)
        eng.submit(lambda: None).wait(30)
        assert eng.shutdown(10).drained

    def test_that_another_thread_stops_and_runs_again_are_waited_for(self, eng):
        loop, waits = asyncio.new_event_loop(), threading.Event()

        async def main():
            may_end = asyncio.Event()

            async def body():
                await may_end.wait()
                return bytearray(3)

            return eng.call(body), may_end

        def runs_again():
            waits.wait()
            may_end.set()
            loop.run_until_complete(promise)

        def begins():
            began.append(loop.run_until_complete(main()))
            stopped.set()
            runs_again()

        began, stopped = [], threading.Event()
        thread = threading.Thread(target=begins)
        thread.start()
        stopped.wait()
        ((promise, may_end),) = began
        threading.Timer(0.2, waits.set).start()
        eng.wait_all()
        thread.join()
        assert promise.done()
        loop.close()

    def test_are_closed_as_their_class_closes_them(self, eng):
        closed = []

        class Loop(asyncio.SelectorEventLoop):
            def close(self):
                closed.append(self)
                super().close()

        loop = Loop()

        async def body():
            pass

        async def main():
            await eng.submit(body)
            with pytest.raises(RuntimeError, match="running"):
                loop.close()
            # A loop that could not be closed goes on.
            await eng.submit(body)

        loop.run_until_complete(main())
        loop.close()
        assert closed == [loop] * 2 and loop.is_closed()

    def test_one_engine_outlasts_any_number_of_runs(self, np):
        with est.Engine(workers=2) as eng:
            later = []

            async def body(n):
                await asyncio.sleep(0)
                return np.full(1, n)

            async def main(n):
                gate = Gate()
                for promise in later:
                    await promise
                    assert np.from_dlpack(promise).tolist() == [n - 1]
                assert np.from_dlpack(await eng.call(lambda: body(n))).tolist() == [n]
                later[:] = [eng.call(lambda: (gate(), np.full(1, n))[1]) for _ in range(3)]
                asyncio.get_running_loop().call_soon(gate.open)

            for n in range(20):
                run(main(n))
            for promise in later:
                promise.wait(30)


class TestEnginesThatEnd:
    def test_an_await_behind_a_lease_ends_with_the_shutdown_that_cancels_its_operation(self, np):
        eng = est.Engine(workers=1, lease_timeout=600)
        t = eng.zeros(1, "int8")
        array = np.from_dlpack(t)
        op = eng.submit(lambda x: None, writes=[t], name="held up")

        async def main():
            waits = [asyncio.ensure_future(op), asyncio.ensure_future(t)]
            await asyncio.sleep(0.01)
            report = await asyncio.to_thread(eng.shutdown, 0.01)
            assert report.cancelled == ("held up",)
            for wait in waits:
                with pytest.raises(est.CancelledError, match="held up"):
                    await wait

        run(main())
        del array

    def test_awaits_of_a_running_operation_outlast_the_shutdown_of_its_engine(self, np, gate):
        eng = est.Engine(workers=1)
        z = eng.call(lambda: (gate(), np.ones(1))[1])

        async def main():
            task = asyncio.ensure_future(z)
            await asyncio.sleep(0.01)
            report = await asyncio.to_thread(eng.shutdown, 0.01)
            assert not report.drained and not task.done()
            gate.open()
            assert await task is z

        run(main())
        assert eng.shutdown(20).drained

    def test_an_engine_that_nobody_holds_any_more_still_wakes_its_awaits(self, np, gate):
        eng = est.Engine(workers=1)
        z = eng.call(lambda: (gate(), np.ones(1))[1])
        del eng

        async def main():
            task = asyncio.ensure_future(z)
            await asyncio.sleep(0.01)
            gc.collect()
            gate.open()
            assert await task is z

        run(main())


def test_awaits_in_many_threads_and_operations_in_many_more_end(eng, np):
    totals = []

    def thread(number):
        async def main():
            total = 0
            for round in range(40):
                tensors = [eng.call(lambda i=i: np.full(1, number + round + i)) for i in range(5)]
                for tensor in asyncio.as_completed(tensors):
                    total += int(np.from_dlpack(await tensor)[0])
            totals.append((number, total))

        run(main())

    threads = [threading.Thread(target=thread, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    expected = [(n, sum(n + r + i for r in range(40) for i in range(5))) for n in range(6)]
    assert sorted(totals) == expected


class TestWakeUpsFromAnywhere:
    """The end of a lease wakes tasks on the thread, and at the place in its program, where it happens to end."""

    @pytest.mark.parametrize("view", ["memoryview", "array"])
    def test_with_an_exception_pending(self, eng, np, view):
        t = eng.zeros(1, "int8")
        kept = [memoryview(t) if view == "memoryview" else np.from_dlpack(t)]

        async def main():
            task = asyncio.ensure_future(t.writable())
            await asyncio.sleep(0.01)
            assert not task.done()
            with pytest.raises(ZeroDivisionError):
                # The view is nowhere but on the stack, which is emptied before the exception is handled.
                print(kept.pop(), 1 / 0)
            await asyncio.wait_for(task, 10)

        run(main())

    @pytest.fixture
    def awaited(self, eng):
        """The view that a task on another thread waits for, its loop, and the future of the task."""
        t = eng.zeros(1, "int8")
        views = [memoryview(t)]
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()

        async def wait():
            await t.writable()
            return "resumed"

        task = asyncio.run_coroutine_threadsafe(wait(), loop)
        until(lambda: hasattr(loop, "_estafette_wakeups"))
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(30)
        yield views, loop, task
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()

    def test_in_the_middle_of_which_ctrl_c_comes(self, awaited):
        views, loop, task = awaited
        call = loop.call_soon_threadsafe

        def interrupted(*_):
            loop.call_soon_threadsafe = call
            signal.raise_signal(signal.SIGINT)
            for _ in range(1000):
                pass

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        loop.call_soon_threadsafe = interrupted
        try:
            with pytest.raises(KeyboardInterrupt):
                views.clear()
                for _ in range(1000):
                    pass
        finally:
            signal.signal(signal.SIGINT, before)
        assert task.result(10) == "resumed"

    def test_where_the_stack_is_too_full_to_call_the_loop(self, awaited):
        views, loop, task = awaited
        call = loop.call_soon_threadsafe

        def fails(*_):
            loop.call_soon_threadsafe = call
            raise RecursionError

        loop.call_soon_threadsafe = fails
        views.clear()
        assert task.result(10) == "resumed"

    def test_that_the_loop_refuses_are_reported(self, awaited, monkeypatch):
        views, loop, task = awaited
        call, reports = loop.call_soon_threadsafe, []
        monkeypatch.setattr(sys, "unraisablehook", reports.append)

        def refuses(*_):
            raise ValueError("not today")

        loop.call_soon_threadsafe = refuses
        views.clear()
        until(lambda: reports)
        loop.call_soon_threadsafe = call
        assert [str(report.exc_value) for report in reports] == ["not today"]
        task.cancel()


class TestTasksAreResumedAsTheyLeft:
    """The engine's wake-up runs the tasks' next steps itself; they must not notice."""

    def test_in_their_own_context_and_as_the_current_task(self, eng, gate):
        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])
        variable = contextvars.ContextVar("variable")

        async def wait(number):
            variable.set(number)
            await z
            return variable.get(), asyncio.current_task().get_name(), asyncio.get_running_loop()

        async def main():
            tasks = [asyncio.create_task(wait(number), name=f"task {number}") for number in range(10)]
            await asyncio.sleep(0.01)
            gate.open()
            loop = asyncio.get_running_loop()
            assert await asyncio.gather(*tasks) == [(n, f"task {n}", loop) for n in range(10)]
            assert asyncio.current_task() is not None

        run(main())

    def test_with_tasks_written_in_python_and_in_debug_mode(self, eng, gate):
        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])

        async def main():
            loop = asyncio.get_running_loop()
            loop.set_task_factory(lambda loop, coroutine, **options: asyncio.tasks._PyTask(coroutine, loop=loop, **options))

            async def wait():
                return await z

            tasks = [asyncio.create_task(wait()) for _ in range(5)]
            given_up = asyncio.create_task(wait())
            await asyncio.sleep(0.01)
            given_up.cancel("enough")
            with pytest.raises(asyncio.CancelledError):
                await given_up
            gate.open()
            assert await asyncio.gather(*tasks) == [z] * 5

        asyncio.run(main(), debug=True)

    def test_one_that_runs_the_loop_itself_and_waits_for_another_that_was_woken_with_it(self, eng, gate):
        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])

        async def wait():
            return await z

        async def main():
            loop = asyncio.get_running_loop()

            async def outer():
                await z
                # As `nest_asyncio` does.
                task = asyncio.current_task()
                asyncio.tasks._leave_task(loop, task)
                try:
                    until(lambda: (loop.call_soon(lambda: None), loop._run_once(), all(each.done() for each in others))[-1])
                finally:
                    asyncio.tasks._enter_task(loop, task)
                    # The turn of the loop that is under way has counted what it has to call.
                    for _ in range(20):
                        loop.call_soon(lambda: None)

            others = [asyncio.create_task(wait()) for _ in range(3)]
            first = asyncio.create_task(outer())
            others += [asyncio.create_task(wait()) for _ in range(3)]
            await asyncio.sleep(0.01)
            gate.open()
            # The loop is busy, so that all are woken in one turn of it.
            until(lambda: eng.stats().in_flight == 0)
            await first

        run(main())

    def test_a_cancellation_keeps_its_message(self, eng, gate):
        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])

        async def main():
            seen = []

            async def wait():
                try:
                    await z
                except asyncio.CancelledError as error:
                    seen.append(error.args)
                    raise

            task = asyncio.create_task(wait())
            await asyncio.sleep(0.01)
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError):
                await task
            assert seen == [("enough",)]
            gate.open()
            await z

        run(main())

    def test_one_that_ends_the_loop_keeps_nobody_else_from_being_resumed(self, eng, gate):
        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])
        resumed = []
        loop = asyncio.new_event_loop()

        async def wait(number):
            await z
            resumed.append(number)
            if number == 2:
                raise SystemExit(5)

        async def main():
            tasks = [asyncio.create_task(wait(number)) for number in range(5)]
            await asyncio.sleep(0.01)
            gate.open()
            await asyncio.sleep(20)
            return tasks

        async def rest():
            while len(resumed) < 5:
                await asyncio.sleep(0.001)

        with pytest.raises(SystemExit):
            loop.run_until_complete(main())
        # Those whose turn had not come go on when the loop does.
        loop.run_until_complete(asyncio.wait_for(rest(), 30))
        assert sorted(resumed) == list(range(5))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    def test_a_bare_future_like_it_can_be_waited_for_by_others(self, eng, gate):
        z = eng.zeros(1, "int8")
        eng.submit(gate, writes=[z])

        async def main():
            called = []
            future = next(z.__await__())
            assert asyncio.isfuture(future) and future.get_loop() is asyncio.get_running_loop()
            first, second = called.append, (lambda future: called.append(future))
            future.add_done_callback(first)
            future.add_done_callback(second)
            assert future.remove_done_callback(second) == 1
            gate.open()
            # Its awaiter is gone, and with it the task that would have woken it.
            assert not future.done() and future.cancel() and not future.cancel()
            assert future.cancelled() and future.done() and called == []
            await asyncio.sleep(0)
            assert called == [future]
            future.add_done_callback(second)
            await asyncio.sleep(0)
            assert called == [future] * 2
            with pytest.raises(asyncio.CancelledError):
                future.result()

        run(main())

    def test_a_comparison_of_callbacks_that_raises_takes_no_task_its_wake_up(self, eng, gate):
        class Uncomparable:
            def __eq__(self, _other):
                raise LookupError("not comparable")

        op = eng.submit(gate)

        async def main():
            task = asyncio.create_task(awaited(op))
            await asyncio.sleep(0)
            with pytest.raises(LookupError):
                task._fut_waiter.remove_done_callback(Uncomparable())
            gate.open()
            await asyncio.wait_for(task, 30)

        async def awaited(op):
            await op

        run(main())


@pytest.fixture
def promise(eng):
    """A tensor that is pending, and the function that makes it ready on the calling thread."""
    future = concurrent.futures.Future()
    t = eng.from_future(future)
    yield t, lambda: future.set_result(bytearray(3))
    if not future.done():
        future.set_result(bytearray(3))


class TestOtherDrivers:
    """A driver that resumes coroutines by its own rules, on the thread of a running loop."""

    def test_a_wake_up_after_a_cancelled_suspension_goes_to_the_next_one(self, promise):
        t, make_ready = promise
        hooked = []

        class Loop(asyncio.SelectorEventLoop):
            def __getattribute__(self, name):
                if name == "_estafette_wakeups" and hooked == [False]:
                    # The awaiter has polled, and is about to suspend.
                    hooked[0] = True
                    make_ready()
                    until(t.is_ready)
                return super().__getattribute__(name)

        async def main():
            awaiter = t.__await__()
            assert next(awaiter).cancel()
            # The driver resumes the coroutine all the same, and throws nothing into it.
            hooked.append(False)
            try:
                future = next(awaiter)
            except StopIteration as ended:
                return ended.value
            ended = asyncio.Event()
            future.add_done_callback(lambda _: ended.set())
            await asyncio.wait_for(ended.wait(), 30)
            with pytest.raises(StopIteration) as last:
                next(awaiter)
            return last.value.value

        with asyncio.Runner(loop_factory=Loop) as runner:
            assert runner.run(asyncio.wait_for(main(), 60)) is t
        assert hooked == [True]

    def test_one_that_resumes_without_a_wake_up_gets_the_same_suspension_and_then_the_end(self, promise):
        t, make_ready = promise

        async def main():
            async def wait():
                return await t

            coroutine = wait()
            future = coroutine.send(None)
            assert all(coroutine.send(None) is future for _ in range(3))
            make_ready()

            def end():
                # The loop has no turn in between.
                try:
                    assert coroutine.send(None) is future
                    return False
                except StopIteration as ended:
                    assert ended.value is t
                    return True

            until(end, 30)

        run(main())

    @pytest.mark.parametrize("give_up", ["throw", "close"])
    def test_one_that_gives_up_leaves_nothing_for_the_wake_up_and_may_await_again(self, promise, caplog, give_up):
        t, make_ready = promise

        async def main():
            awaiter = t.__await__()
            future = next(awaiter)
            if give_up == "throw":
                with pytest.raises(KeyError, match="enough"):
                    awaiter.throw(KeyError("enough"))
            else:
                awaiter.close()
            with pytest.raises(RuntimeError, match="already awaited"):
                next(awaiter)
            again = asyncio.ensure_future(t)
            await asyncio.sleep(0)
            make_ready()
            assert await again is t
            assert not future.done()

        run(main())
        assert not caplog.records

    def test_a_coroutine_that_is_thrown_into_may_catch_it_and_wait_on(self, promise):
        t, make_ready = promise

        async def main():
            async def persistent():
                try:
                    return await t
                except KeyError:
                    return await t

            coroutine = persistent()
            coroutine.send(None)
            future = coroutine.throw(KeyError())
            ended = asyncio.Event()
            future.add_done_callback(lambda _: ended.set())
            make_ready()
            await asyncio.wait_for(ended.wait(), 30)
            with pytest.raises(StopIteration) as last:
                coroutine.send(None)
            assert last.value.value is t

        run(main())

    def test_a_driver_without_asyncio_is_advised_to_wait_in_a_thread_and_may_go_on_once_it_is_ready(self, promise):
        t, make_ready = promise

        async def persistent():
            with pytest.raises(RuntimeError, match="wait in a thread"):
                await t
            make_ready()
            t.wait()
            return await t

        with pytest.raises(StopIteration) as ended:
            persistent().send(None)
        assert ended.value.value is t


class TestTheTurnOfTheEnd:
    """Turns in which asyncio handles a task when its tensor becomes ready."""

    @pytest.mark.parametrize("ready_first", [True, False])
    def test_a_cancelled_task_is_cancelled_and_its_tensor_is_there_for_the_next(self, promise, ready_first):
        t, make_ready = promise

        async def main():
            task = asyncio.ensure_future(t)
            await asyncio.sleep(0)
            steps = [make_ready, task.cancel]
            for step in steps if ready_first else reversed(steps):
                step()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await t is t

        run(main())

    @pytest.mark.parametrize("ready_first", [True, False])
    def test_a_timeout_or_the_end_of_a_wait_loses_nothing(self, promise, ready_first):
        t, make_ready = promise

        async def main():
            loop = asyncio.get_running_loop()
            waiting = asyncio.ensure_future(asyncio.wait_for(asyncio.shield(t), 60))
            outer = asyncio.ensure_future(asyncio.wait_for(waiting, 60))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            steps = [make_ready, waiting.cancel]
            for step in steps if ready_first else reversed(steps):
                loop.call_soon(step)
            with pytest.raises(asyncio.CancelledError):
                await outer
            assert await asyncio.wait_for(t, 60) is t

        run(main())
