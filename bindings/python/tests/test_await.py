"""Cost and end of `await`: turns of the event loop are counted, not guessed."""

import asyncio
import gc
import threading
import time
import warnings

import pytest

import estafette as est
from conftest import run_program, until
from estafette import _lifecycle


def run(main):
    return asyncio.run(asyncio.wait_for(main, 30))


async def turns_of(awaitable):
    """Number of turns of the loop that an await takes, and its result."""
    turns = 0
    counting = True

    def count():
        nonlocal turns
        if counting:
            turns += 1
            loop.call_soon(count)

    loop = asyncio.get_running_loop()
    loop.call_soon(count)
    value = await awaitable
    counting = False
    return turns, value


def test_a_ready_tensor_costs_no_turn_of_the_loop(eng):
    t = eng.zeros(4, "float32")

    async def main():
        assert await turns_of(t) == (0, t)
        # The same by hand: the first step ends it.
        with pytest.raises(StopIteration) as ended:
            t.__await__().__next__()
        assert ended.value.value is t

    run(main())


def test_a_ready_tensor_can_be_awaited_without_any_loop(eng):
    async def main():
        return await eng.zeros(4, "float32")

    with pytest.raises(StopIteration) as ended:
        main().send(None)
    assert isinstance(ended.value.value, est.Tensor)


def test_a_pending_tensor_suspends_once_and_resumes_with_itself(eng, gate):
    z = eng.zeros(1, "int8")
    eng.submit(gate, writes=[z])

    async def main():
        steps = 0
        awaiter = z.__await__()
        future = next(awaiter)
        assert asyncio.isfuture(future) and not future.done()
        gate.open()
        while not future.done():
            steps += 1
            await asyncio.sleep(0.001)
        with pytest.raises(StopIteration) as ended:
            next(awaiter)
        assert ended.value.value is z

    run(main())


def test_the_loop_runs_while_a_tensor_is_awaited(eng, gate):
    z = eng.zeros(1, "int8")
    eng.submit(gate, writes=[z])

    async def main():
        loop = asyncio.get_running_loop()
        loop.call_later(0.02, gate.open)
        turns, value = await turns_of(z)
        assert turns > 2 and value is z

    run(main())


def test_failure_is_raised_again_by_every_await(eng):
    def fail(_):
        raise KeyError("lost")

    z = eng.zeros(1, "int8")
    eng.submit(fail, writes=[z])

    async def main():
        for _ in range(3):
            with pytest.raises(est.OperationError) as caught:
                await z
            assert isinstance(caught.value.__cause__, KeyError)
        turns = 0
        awaiter = z.__await__()
        with pytest.raises(est.OperationError):
            next(awaiter)
            turns += 1
        assert turns == 0

    run(main())


def test_cancelling_the_task_cancels_the_waiting_only(eng, gate):
    z = eng.zeros(1, "int8")
    op = eng.submit(gate, writes=[z])

    async def main():
        async def wait():
            await z

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not op.is_done()
        gate.open()
        assert await z is z

    run(main())
    op.wait()


def test_wait_for_gives_up_and_the_tensor_can_be_awaited_again(eng, gate):
    z = eng.zeros(1, "int8")
    eng.submit(gate, writes=[z])

    async def main():
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(z, 0.01)
        gate.open()
        assert await asyncio.wait_for(z, 10) is z

    run(main())


def test_given_up_awaits_leave_no_futures_behind(eng, gate):
    z = eng.zeros(1, "int8")
    eng.submit(gate, writes=[z])

    def futures():
        gc.collect()
        kinds = [type(thing) for thing in gc.get_objects()]
        return sum(issubclass(kind, asyncio.Future) or kind.__name__ == "_AsyncioFuture" for kind in kinds)

    async def main():
        for round in range(22):
            if round == 2:
                before = futures()
            tasks = [asyncio.ensure_future(z) for _ in range(10)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            del tasks, task
        # The last round's futures are there after any number of rounds; nothing adds up.
        assert futures() <= before
        gate.open()
        await z

    run(main())


def test_a_loop_that_was_closed_disturbs_nobody(eng, gate):
    z = eng.zeros(1, "int8")
    eng.submit(gate, writes=[z])
    loop = asyncio.new_event_loop()
    awaiters = []

    async def begin():
        awaiter = z.__await__()
        next(awaiter)
        awaiters.append(awaiter)

    loop.run_until_complete(begin())
    loop.close()
    gate.open()
    z.wait()
    eng.submit(lambda _: None, writes=[z]).wait()


def test_tensors_work_with_gather_as_completed_and_shield(eng, np):
    tensors = [eng.call(lambda i=i: (time.sleep(0.001 * (5 - i)), np.full(1, i))[1]) for i in range(5)]

    async def main():
        assert await asyncio.gather(*tensors) == tensors
        done = [await each for each in asyncio.as_completed(tensors)]
        assert set(done) == set(tensors)
        assert await asyncio.shield(asyncio.ensure_future(tensors[0])) is tensors[0]

    run(main())


def test_many_awaits_are_woken_by_few_calls_into_the_loop(eng, gate):
    z = eng.zeros(1, "int8")
    eng.submit(gate, writes=[z])

    async def main():
        loop = asyncio.get_running_loop()
        calls = 0
        original = loop.call_soon_threadsafe

        def counted(*arguments, **keywords):
            nonlocal calls
            calls += 1
            return original(*arguments, **keywords)

        loop.call_soon_threadsafe = counted
        tasks = [asyncio.ensure_future(z) for _ in range(500)]
        await asyncio.sleep(0.05)
        gate.open()
        assert await asyncio.gather(*tasks) == [z] * 500
        # A loop that drains between two wake-ups is called again, so the number depends on the machine.
        assert 1 <= calls < len(tasks)

    run(main())


def test_several_loops_in_several_threads_await_the_same_tensor(eng, gate):
    z = eng.zeros(1, "int8")
    eng.submit(gate, writes=[z])
    results = []
    started = threading.Barrier(5, timeout=20)

    def thread():
        async def main():
            task = asyncio.ensure_future(z)
            await asyncio.sleep(0.01)
            started.wait()
            results.append(await task is z)

        run(main())

    threads = [threading.Thread(target=thread) for _ in range(4)]
    for each in threads:
        each.start()
    started.wait()
    gate.open()
    for each in threads:
        each.join(20)
    assert results == [True] * 4


def test_readiness_is_of_the_version_current_at_the_await(eng, gate):
    first, second = threading.Event(), gate
    z = eng.zeros(1, "int8")
    eng.submit(lambda _: first.wait(20), writes=[z])

    async def main():
        task = asyncio.ensure_future(z)
        await asyncio.sleep(0.01)
        eng.submit(second, writes=[z])
        first.set()
        await asyncio.wait_for(task, 10)
        assert not z.is_ready()
        second.open()
        await z

    run(main())


def test_writable_waits_for_readers_too(eng, np, gate):
    z = eng.zeros(1, "int8")
    eng.submit(gate, reads=[z])

    async def main():
        assert await z is z
        task = asyncio.ensure_future(z.writable())
        await asyncio.sleep(0.02)
        assert not task.done()
        gate.open()
        assert await task is z
        array = np.from_dlpack(z)
        task = asyncio.ensure_future(z.writable())
        await asyncio.sleep(0.02)
        assert not task.done()
        del array
        assert await task is z

    run(main())


def test_operations_can_be_awaited(eng, gate):
    v = eng.var()
    op = eng.submit(gate, writes=[v])

    def fail():
        raise ValueError("no")

    bad = eng.submit(fail)

    async def main():
        with pytest.raises(est.OperationError, match="no"):
            await bad
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(op, 0.01)
        gate.open()
        assert await op is None
        assert await op is None

    run(main())


def test_asynchronous_functions_run_on_the_loop_of_their_submitter(eng, np):
    x = eng.from_dlpack(np.arange(3.0))
    out = eng.zeros(3, "float64")

    async def main():
        here = threading.get_ident(), asyncio.get_running_loop()

        async def twice(x):
            await asyncio.sleep(0.001)
            assert (threading.get_ident(), asyncio.get_running_loop()) == here
            assert not x.flags.writeable
            return x * 2

        async def store(x, out):
            await asyncio.sleep(0)
            assert out.flags.writeable
            out[:] = x

        y = eng.call(twice, x, using=np.from_dlpack)
        eng.submit(store, reads=[y], writes=[out], using=np.from_dlpack)
        await out
        assert np.from_dlpack(out).tolist() == [0, 2, 4]

    run(main())


def test_a_coroutine_goes_on_after_a_function_has_raised_what_the_coroutine_caught(eng):
    async def main():
        with pytest.raises(est.OperationError) as caught:
            await eng.call(object, like=((), "int8"))

        def again():
            raise caught.value

        with pytest.raises(est.OperationError):
            await eng.submit(again)
        return "to its end"

    assert asyncio.run(asyncio.wait_for(main(), 30)) == "to its end"


def test_asynchronous_functions_raise_to_whoever_waits(eng):
    async def main():
        async def fail():
            await asyncio.sleep(0)
            raise LookupError("async")

        with pytest.raises(est.OperationError) as caught:
            await eng.submit(fail)
        assert isinstance(caught.value.__cause__, LookupError)

        async def cancel_myself():
            asyncio.current_task().cancel()
            await asyncio.sleep(1)

        op = eng.submit(cancel_myself)
        with pytest.raises(est.CancelledError) as caught:
            await op
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        assert op.cancelled()

    run(main())


@pytest.mark.parametrize("by_another_thread", [False, True])
def test_an_asynchronous_function_that_runs_is_cancelled_with_its_operation(eng, by_another_thread):
    async def main():
        began, seen = asyncio.Event(), []

        async def poll():
            began.set()
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        op = eng.submit(poll, name="poll")
        await began.wait()
        assert await asyncio.to_thread(op.cancel) if by_another_thread else op.cancel()
        with pytest.raises(est.CancelledError, match="`poll`.*was cancelled"):
            await op
        assert op.cancelled() and seen == ["cancelled"]
        assert not op.cancel()

    run(main())


def test_the_coroutine_of_a_plain_function_is_cancelled_with_its_operation(eng):
    async def main():
        began = asyncio.Event()

        async def poll():
            began.set()
            await asyncio.sleep(5)

        op = eng.submit(lambda: poll())
        await began.wait()
        assert op.cancel()
        with pytest.raises(est.CancelledError):
            await op

    run(main())


def test_an_asynchronous_function_that_its_loop_has_not_reached_is_cancelled_without_being_called(eng):
    called = []

    async def main():
        async def function():
            called.append(1)

        op = eng.submit(function)
        # The loop stands still here.
        until(lambda: "is running" in str(eng.diagnose()))
        assert op.cancel()
        with pytest.raises(est.CancelledError):
            await op
        assert op.cancelled() and called == []

    run(main())


def test_an_asynchronous_function_may_refuse_to_be_cancelled(eng):
    async def main():
        began, out = asyncio.Event(), eng.zeros(1, "int8")

        async def stubborn(_):
            began.set()
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                pass

        op = eng.submit(stubborn, writes=[out])
        await began.wait()
        assert op.cancel()
        await op
        assert not op.cancelled() and out.version == 1

    run(main())


def test_tasks_that_the_end_of_their_loop_cancels_are_no_failures():
    _, errors = run_program(
        """
        import asyncio
        import estafette as est

        async def main(eng):
            began = asyncio.Event()

            async def fetch():
                began.set()
                await asyncio.sleep(5)

            promise = eng.call(fetch, name="background")
            await began.wait()
            return promise

        with est.Engine(workers=1) as eng:
            promise = asyncio.run(main(eng))
            assert promise.done() and promise.cancelled()
        """
    )
    assert errors == ""


def test_asynchronous_functions_need_a_loop(eng):
    async def function():
        pass

    with pytest.raises(RuntimeError, match="event loop"):
        eng.submit(function)


def test_an_asynchronous_function_whose_loop_ended_fails(eng, gate):
    v = eng.var()

    async def main():
        async def never():
            raise AssertionError("its loop is gone")

        eng.submit(gate, writes=[v])
        return eng.submit(never, writes=[v])

    op = run(main())
    gate.open()
    with pytest.raises(est.OperationError):
        op.wait(20)


def test_submitting_asynchronously_waits_for_room_without_stopping_the_loop(gate):
    async def main():
        async with est.Engine(workers=1, in_flight_limit=2) as eng:
            op = eng.submit(gate)
            second = eng.submit(lambda: None)
            with pytest.raises(est.InFlightLimitError, match="2 operations in flight"):
                eng.submit(lambda: None)
            with pytest.raises(est.InFlightLimitError):
                eng.call(lambda: None)
            asyncio.get_running_loop().call_later(0.02, gate.open)
            third = await eng.submit_async(lambda: None, name="third")
            assert third.name == "third"
            promise = await eng.call_async(lambda: eng.zeros(1, "int8"))
            await promise
            await asyncio.gather(op, second, third)

    run(main())


@pytest.mark.parametrize("outputs", [None, 2])
@pytest.mark.parametrize("form", ["submit", "call", "replay"])
def test_an_async_function_of_the_engine_submits_without_waiting_for_room_that_it_has_itself(np, form, outputs):
    async def main():
        async with est.Engine(workers=1, in_flight_limit=1) as eng:
            with eng.program("step") as program:
                program.submit(lambda: None)

            async def body():
                if form == "submit":
                    return await eng.submit_async(lambda: None, name="inner")
                if form == "replay":
                    return await program.replay_async()
                return await eng.call_async(lambda: (np.ones(2), np.ones(2)), outputs=outputs)

            made = []

            async def outer():
                made.append(await body())

            await eng.submit(outer)
            assert made

    run(main())


def test_what_was_submitted_asynchronously_and_not_awaited_is_said(eng, np):
    with eng.program("step") as program:
        program.submit(lambda: None)
    began = []
    unawaited = {
        "Engine.submit_async": lambda: eng.submit_async(began.append, writes=[eng.zeros(1, "int8")]),
        "Engine.call_async": lambda: eng.call_async(lambda: began.append(1)),
        "Program.replay_async": program.replay_async,
    }
    for name, make in unawaited.items():
        with pytest.warns(RuntimeWarning, match=f"'{name}' was never awaited"):
            make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # As coroutines, that are closed.
        eng.submit_async(began.append).close()
        t = eng.zeros(1, "int8")
        t.__await__()
        t.writable()

        async def awaited():
            await eng.submit_async(lambda: None)

        run(awaited())
    assert began == []


def test_an_error_that_is_on_its_way_is_not_lost_to_the_warning(eng):
    with pytest.warns(RuntimeWarning, match="never awaited"), pytest.raises(ZeroDivisionError):
        # The awaitable is nowhere but on the stack, which is emptied before the exception is handled.
        print(eng.submit_async(lambda: None), 1 / 0)


def test_a_function_that_its_loop_drops_with_an_exception_pending_fails(eng):
    loop, kept, raised = asyncio.new_event_loop(), [], []

    async def never():
        raise AssertionError

    async def main():
        ready = len(loop._ready)
        op = eng.submit(never)
        until(lambda: len(loop._ready) > ready)
        kept.append(loop._ready.pop())
        return op

    def drops():
        # Of this thread the package knows nothing yet.
        try:
            print(kept.pop(), 1 / 0)
        except BaseException as error:
            raised.append(type(error))

    op = loop.run_until_complete(main())
    thread = threading.Thread(target=drops)
    thread.start()
    thread.join(30)
    assert raised == [ZeroDivisionError]
    assert "was dropped" in str(op.exception(30))
    loop.close()


def test_an_async_block_drains_its_engine():
    done = []

    async def main():
        async with est.Engine(workers=1) as eng:
            for i in range(10):
                eng.submit(lambda i=i: (time.sleep(0.002), done.append(i)))
        assert sorted(done) == list(range(10))

    run(main())


def test_an_async_block_whose_leases_may_take_no_time_waits_for_what_runs(monkeypatch):
    rounds, collect = [], _lifecycle.collect
    monkeypatch.setattr(_lifecycle, "collect", lambda: (rounds.append(True), collect()))

    async def main():
        async with est.Engine(workers=1, lease_timeout=0) as eng:
            op = eng.submit(lambda: time.sleep(0.3))
        op.wait(0)

    run(main())
    assert len(rounds) <= 2


def test_an_async_block_that_only_leases_hold_up_ends_with_a_warning(np):
    async def main():
        async with est.Engine(workers=1, lease_timeout=0.1) as eng:
            t = eng.zeros(1, "int8")
            array = np.from_dlpack(t)
            eng.submit(lambda _: None, writes=[t], name="stuck")
        return array

    with pytest.warns(RuntimeWarning, match="stuck"):
        run(main())


@pytest.mark.parametrize("form", ["tensor", "operation", "writable", "read", "write", "access"])
def test_an_await_that_only_leases_hold_up_ends_with_their_names(np, form):
    eng = est.Engine(workers=1, lease_timeout=0.1)

    async def main():
        t = eng.zeros(1, "int8")
        array = np.from_dlpack(t)
        op = eng.submit(lambda _: None, writes=[t], name="held up")

        async def scoped(access):
            async with access:
                raise AssertionError("the lease was not to be had")

        forms = {
            "tensor": lambda: t,
            "operation": lambda: op,
            "writable": t.writable,
            "read": lambda: scoped(t.read()),
            "write": lambda: scoped(t.write()),
            "access": lambda: scoped(eng.access(reads=[t])),
        }
        async with asyncio.timeout(20):
            with pytest.raises(est.LeaseHeldError, match="read lease") as raised:
                await forms[form]()
            assert raised.value.leases
            # The work was left alone, and goes on.
            assert not op.is_done()
            del array, raised
            await op
            await t.writable()

    run(main())
    eng.shutdown(5)


def test_a_lease_that_is_garbage_ends_during_a_long_await(np):
    eng = est.Engine(workers=1, lease_timeout=0.05)

    async def main():
        t = eng.zeros(1, "int8")
        cycle = [np.from_dlpack(t)]
        cycle.append(cycle)
        del cycle
        gc.disable()
        try:
            eng.submit(lambda _: None, writes=[t])
            await t
        finally:
            gc.enable()

    run(main())
    eng.shutdown(5)


def test_awaiting_twice_the_same_awaitable_is_an_error(eng):
    async def main():
        awaitable = eng.zeros(1, "int8").writable()
        await awaitable
        with pytest.raises(RuntimeError, match="already awaited"):
            await awaitable

    run(main())


def test_an_await_that_leads_back_to_its_own_operation_is_an_error(eng):
    z = eng.zeros(1, "int8")

    async def main():
        async def circle(z):
            await z

        with pytest.raises(est.OperationError) as caught:
            await eng.submit(circle, writes=[z])
        assert isinstance(caught.value.__cause__, est.WouldDeadlockError)

    run(main())


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_function_may_run_a_loop_of_its_own_that_awaits_other_functions(np, workers):
    with est.Engine(workers=workers, lease_timeout=2.0) as eng:

        def below(depth):
            async def main():
                return np.from_dlpack(await eng.call(below, depth - 1)) + 1

            return asyncio.run(main()) if depth else np.zeros(1)

        async def awaits(t):
            return np.from_dlpack(await t).tolist()

        # The last is deeper than the engine has threads to take the place of others.
        for depth in (1, 2, 12):
            assert run(awaits(eng.call(below, depth))) == [depth]
            t = eng.call(below, depth)
            t.wait()
            assert np.from_dlpack(t).tolist() == [depth]


@pytest.mark.parametrize("wait", [lambda t: t.wait(), lambda t: t.wait(20), lambda t: asyncio.run(asyncio.wait_for(t, 20))])
def test_a_function_of_one_engine_that_waits_inside_a_function_of_another_holds_up_neither(np, wait):
    with est.Engine(workers=1) as eng, est.Engine(workers=1) as other:

        def inner():
            # The thread that runs this may be the one worker of `eng`, in its wait for `other`.
            wait(other.call(np.square, eng.call(np.ones, 1)))

        eng.submit(lambda: other.submit(inner).wait()).wait(20)


def test_thousands_of_awaits_end(eng, np):
    x = eng.zeros(1, "int64")

    async def one(i):
        y = eng.call(lambda x: x + i, x, using=np.from_dlpack)
        await y
        return int(np.from_dlpack(y)[0])

    async def main():
        assert await asyncio.gather(*(one(i) for i in range(1000))) == list(range(1000))

    run(main())
    until(lambda: eng.stats().in_flight == 0)
