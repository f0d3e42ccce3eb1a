"""Futures of other schedulers as promises: `eng.from_future`."""

import asyncio
import concurrent.futures
import gc
import os
import threading
import warnings
import weakref

import pytest

import estafette as est
from conftest import until


def run(main):
    return asyncio.run(asyncio.wait_for(main, 30))


def ones_of_a_process(count):
    """Runs in another process, so it is a function of this module."""
    import numpy as np

    return np.full(count, os.getpid(), "int64")


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield pool


class TestOfThreadsAndProcesses:
    def test_others_chain_on_what_a_thread_pool_delivers(self, eng, np, pool, gate):
        def make():
            gate()
            return np.arange(4, dtype="float32")

        t = eng.from_future(pool.submit(make))
        assert not t.is_ready() and not t.is_defined()
        with pytest.raises(est.NotDefinedError):
            t.shape
        doubled = eng.call(lambda x: x * 2, t, using=np.from_dlpack)
        eng.submit(lambda x: x.__iadd__(1), writes=[t], using=np.from_dlpack)
        assert not doubled.is_ready()
        gate.open()
        assert np.from_dlpack(doubled).tolist() == [0, 2, 4, 6]
        assert np.from_dlpack(t).tolist() == [1, 2, 3, 4]

    def test_a_process_pool_delivers_arrays_of_another_process(self, eng, np):
        import multiprocessing

        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
            t = eng.from_future(pool.submit(ones_of_a_process, 3))
            total = eng.call(lambda x: x.sum(keepdims=True), t, using=np.from_dlpack)
            pid = int(np.from_dlpack(total)[0]) // 3
        assert pid != os.getpid() and np.from_dlpack(t).tolist() == [pid] * 3

    def test_the_memory_is_adopted_without_a_copy(self, eng, np):
        array = np.zeros(4)
        future = concurrent.futures.Future()
        t = eng.from_future(future)
        future.set_result(array)
        t.wait()
        assert t.data_ptr == array.ctypes.data
        copy = eng.from_future(future, copy=True)
        copy.wait()
        assert copy.data_ptr != array.ctypes.data

    def test_a_number_is_an_array_without_dimensions(self, eng, np):
        future = concurrent.futures.Future()
        t = eng.from_future(future)
        future.set_result(0.5)
        eng.submit(lambda x: x.__iadd__(1), writes=[t], using=np.from_dlpack)
        assert np.from_dlpack(t).tolist() == 1.5

    def test_one_that_is_done_already_is_ready_at_once(self, eng, np):
        future = concurrent.futures.Future()
        future.set_result(np.ones(2))
        t = eng.from_future(future)
        assert t.is_ready() and t.shape == (2,)

    def test_no_thread_and_no_worker_waits_for_it(self, np):
        with est.Engine(workers=1) as eng:
            before = set(threading.enumerate())
            futures = [concurrent.futures.Future() for _ in range(100)]
            tensors = [eng.from_future(future) for future in futures]
            assert set(threading.enumerate()) <= before
            # The only worker is free for others.
            eng.submit(lambda: None).wait()
            until(lambda: eng.stats().in_flight == 100)
            for number, future in enumerate(futures):
                future.set_result(np.full(1, number))
            assert [int(np.from_dlpack(t)[0]) for t in tensors] == list(range(100))

    def test_a_busy_worker_keeps_nobody_from_seeing_the_result(self, np, gate):
        with est.Engine(workers=1) as eng:
            eng.submit(gate)
            assert gate.entered.wait(30)
            future = concurrent.futures.Future()
            t = eng.from_future(future)
            future.set_result(np.ones(1))
            t.wait(20)
            gate.open()

    def test_a_tensor_of_ours_may_be_the_result(self, eng, np, pool):
        t = eng.from_future(pool.submit(lambda: eng.zeros(3, "int16")))
        assert np.from_dlpack(t).tolist() == [0, 0, 0] and t.dtype == "int16"

    def test_a_promise_may_be_the_result_before_it_is_there(self, eng, np, pool, gate):
        t = eng.from_future(pool.submit(lambda: eng.call(lambda: (gate(), np.arange(3))[1])))
        total = eng.call(np.add, t, 1)
        assert gate.entered.wait(30) and not t.is_ready()
        gate.open()
        assert np.from_dlpack(total).tolist() == [1, 2, 3]

    def test_the_failure_of_a_promise_that_is_the_result_is_passed_on(self, eng, np, pool, gate):
        t = eng.from_future(pool.submit(lambda: eng.call(lambda: (gate(), np.arange("a")))))
        assert gate.entered.wait(30) and not t.done()
        gate.open()
        with pytest.raises(est.OperationError) as caught:
            t.wait(30)
        assert isinstance(caught.value.__cause__.__cause__, (TypeError, ValueError))

    def test_torch_futures_call_back_too(self, eng, np, torch):
        future = torch.futures.Future()
        t = eng.from_future(future)
        assert not t.is_ready()
        future.set_result(torch.arange(3))
        assert np.from_dlpack(t).tolist() == [0, 1, 2]


class TestFailures:
    def test_a_failure_is_carried_over_with_its_cause(self, eng, pool):
        cause = KeyError("lost")

        def fail():
            raise cause

        t = eng.from_future(pool.submit(fail), name="fetch")
        skipped = eng.call(lambda x: x, t)
        for tensor in (t, skipped):
            with pytest.raises(est.OperationError, match="lost") as caught:
                tensor.wait()
            assert caught.value.operation == "fetch" and caught.value.__cause__ is cause
        # It is another caller's as well: its traceback keeps what it shows.
        frame = cause.__traceback__
        while frame.tb_next:
            frame = frame.tb_next
        assert frame.tb_frame.f_code is fail.__code__

    def test_a_cancelled_future_is_a_cancelled_operation(self, eng):
        future = concurrent.futures.Future()
        t = eng.from_future(future)
        assert future.cancel()
        with pytest.raises(est.CancelledError) as caught:
            t.wait()
        assert isinstance(caught.value.__cause__, concurrent.futures.CancelledError)

    @pytest.mark.parametrize("result", [None, "text", object()])
    def test_a_result_that_is_no_array_fails_it(self, eng, result):
        future = concurrent.futures.Future()
        t = eng.from_future(future)
        future.set_result(result)
        with pytest.raises(est.OperationError, match="__dlpack__"):
            t.wait()

    def test_one_that_nobody_can_finish_any_more_fails_it(self, eng):
        t = eng.from_future(concurrent.futures.Future())
        gc.collect()
        with pytest.raises(est.OperationError, match="dropped before it had a result"):
            t.wait(20)

    def test_what_is_no_future_is_refused_and_nothing_is_submitted(self, eng, np):
        for wrong in (None, 3, np.ones(1), lambda: None, object()):
            with pytest.raises(TypeError, match="is no future"):
                eng.from_future(wrong)

        class Half:
            def add_done_callback(self, callback):
                raise AssertionError("it is not to be asked")

        with pytest.raises(TypeError, match="neither `result"):
            eng.from_future(Half())
        assert eng.stats().in_flight == 0

    def test_a_future_that_refuses_to_call_back_leaves_nothing_in_flight(self, eng):
        class Refuses:
            def add_done_callback(self, callback):
                raise OSError("no connection")

            def result(self):
                raise AssertionError("it is not to be asked")

        with pytest.raises(OSError, match="no connection"):
            eng.from_future(Refuses())
        assert eng.stats().in_flight == 0

    def test_a_future_that_calls_back_twice_counts_once(self, eng, np):
        class Twice:
            def add_done_callback(self, callback):
                self.callback = callback

            def result(self):
                return np.ones(1)

        future = Twice()
        t = eng.from_future(future)
        future.callback(future)
        future.callback(future)
        assert np.from_dlpack(t).tolist() == [1]


class TestOptions:
    def test_like_declares_what_will_come(self, eng, np):
        future = concurrent.futures.Future()
        t = eng.from_future(future, like=((2, 3), "float32"))
        assert (t.shape, t.dtype) == ((2, 3), "float32")
        future.set_result(np.zeros((2, 3), "float64"))
        with pytest.raises(est.OperationError, match="declared"):
            t.wait()

    def test_alias_of_orders_the_result_with_what_it_is_a_view_of(self, eng, np, gate):
        whole = eng.from_dlpack(np.zeros(4))
        view = np.from_dlpack(whole.alias())[:2]
        future = concurrent.futures.Future()
        part = eng.from_future(future, alias_of=[whole])
        future.set_result(view)
        part.wait()
        assert part.data_ptr == whole.data_ptr
        eng.submit(gate, reads=[part])
        writing = eng.submit(lambda x: x.fill(1), writes=[whole], using=np.from_dlpack)
        assert gate.entered.wait(30) and not writing.is_done()
        gate.open()
        writing.wait()

    def test_a_result_in_known_memory_is_copied_or_refused(self, eng, np):
        whole = eng.from_dlpack(np.zeros(4))
        future = concurrent.futures.Future()
        future.set_result(np.from_dlpack(whole.alias())[:2])
        copied = eng.from_future(future)
        copied.wait()
        assert copied.data_ptr != whole.data_ptr
        with pytest.raises(est.OperationError, match="alias_of"):
            eng.from_future(future, copy=False).wait()

    def test_names_are_those_of_the_functions_that_run(self, eng, np):
        async def fetch():
            return np.ones(1)

        async def main():
            tensors = [eng.from_future(fetch()), eng.from_future(asyncio.create_task(fetch()))]
            names = [op.name for op in eng.diagnose().operations]
            for tensor in tensors:
                await tensor
            return names

        first, second = run(main())
        assert first == second and first.endswith("test_names_are_those_of_the_functions_that_run.<locals>.fetch")

    def test_a_tensor_comes_back_as_it_is(self, eng):
        t = eng.zeros(1, "int8")
        assert eng.from_future(t) is t
        with pytest.raises(TypeError, match="promise already"):
            eng.from_future(t, like=t)


class TestOfEventLoops:
    def test_futures_tasks_coroutines_and_awaitables(self, eng, np):
        class Awaitable:
            def __await__(self):
                yield from asyncio.sleep(0.001).__await__()
                return np.full(1, 4)

        async def make(value):
            await asyncio.sleep(0.001)
            return np.full(1, value)

        async def main():
            future = asyncio.get_running_loop().create_future()
            sources = [future, asyncio.create_task(make(2)), make(3), Awaitable()]
            tensors = [eng.from_future(source) for source in sources]
            total = eng.call(lambda *xs: sum(xs), *tensors, using=np.from_dlpack)
            assert not total.is_ready()
            future.set_result(np.full(1, 1))
            await total
            assert np.from_dlpack(total).tolist() == [10]

        run(main())

    def test_without_a_running_loop_there_is_an_error_that_says_so(self, eng):
        async def never():
            raise AssertionError("no thread runs it")

        coroutine = never()
        with pytest.raises(RuntimeError, match="running event loop"):
            eng.from_future(coroutine)
        coroutine.close()
        loop = asyncio.new_event_loop()
        with pytest.raises(RuntimeError, match="event loop that is not running"):
            eng.from_future(loop.create_future())
        loop.close()
        assert eng.stats().in_flight == 0

    def test_a_future_that_is_done_needs_no_loop(self, eng, np):
        loop = asyncio.new_event_loop()
        future, failed = loop.create_future(), loop.create_future()
        future.set_result(np.ones(2))
        failed.set_exception(ValueError("no data"))
        assert np.from_dlpack(eng.from_future(future)).tolist() == [1, 1]
        with pytest.raises(est.OperationError, match="no data"):
            eng.from_future(failed).wait(30)
        loop.close()
        assert np.from_dlpack(eng.from_future(future)).tolist() == [1, 1]

    def test_a_future_of_another_threads_loop_can_be_imported(self, eng, np):
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        future = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, loop.create_future()), loop).result(20)
        t = eng.from_future(future)
        loop.call_soon_threadsafe(future.set_result, np.ones(2))
        assert np.from_dlpack(t).tolist() == [1, 1]
        done = eng.from_future(future)
        done.wait(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()

    def test_cancelling_a_wait_does_not_cancel_the_work(self, eng, np):
        async def main():
            go = asyncio.Event()

            async def work():
                await go.wait()
                return np.ones(1)

            task = asyncio.create_task(work())
            t = eng.from_future(task)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(t, 0.01)
            assert not task.cancelled() and not task.done()
            go.set()
            await t
            assert np.from_dlpack(t).tolist() == [1]

        run(main())

    def test_a_cancelled_task_is_a_cancelled_operation(self, eng):
        async def main():
            task = asyncio.create_task(asyncio.sleep(60))
            t = eng.from_future(task)
            task.cancel()
            with pytest.raises(est.CancelledError) as caught:
                await t
            assert isinstance(caught.value.__cause__, asyncio.CancelledError)

        run(main())

    def test_what_the_end_of_a_loop_cancels_is_cancelled(self, eng):
        async def main():
            return eng.from_future(asyncio.sleep(60))

        t = run(main())
        with pytest.raises(est.CancelledError):
            t.wait(20)

    def test_a_loop_that_goes_with_its_futures_leaves_no_wait_behind(self, eng):
        loop = asyncio.new_event_loop()

        async def main():
            return eng.from_future(asyncio.get_running_loop().create_future())

        t = loop.run_until_complete(main())
        loop.close()
        del loop
        gc.collect()
        with pytest.raises(est.OperationError, match="dropped before"):
            t.wait(20)

    def test_a_failing_coroutine_carries_its_cause(self, eng):
        async def fail():
            await asyncio.sleep(0)
            raise LookupError("gone")

        async def main():
            with pytest.raises(est.OperationError) as caught:
                await eng.from_future(fail())
            assert isinstance(caught.value.__cause__, LookupError)

        run(main())


class Reference:
    """As Ray's references are: awaitable on an event loop, and a source of futures elsewhere."""

    def __init__(self, pool, make):
        self.submit = lambda: pool.submit(make)

    def future(self):
        return self.submit()

    def __await__(self):
        return asyncio.wrap_future(self.submit()).__await__()


class Distributed:
    """As Dask's futures are: they call back on a thread of their own, can be awaited, and have no `__dlpack__`."""

    def __init__(self, pool, make):
        self.future = pool.submit(make)

    def add_done_callback(self, callback):
        self.future.add_done_callback(lambda _: threading.Thread(target=callback, args=(self,)).start())

    def result(self):
        return self.future.result()

    def cancelled(self):
        return self.future.cancelled()

    def __await__(self):
        raise AssertionError("it calls back")


@pytest.mark.parametrize("kind", [Reference, Distributed])
@pytest.mark.parametrize("on_loop", [False, True], ids=["thread", "loop"])
def test_futures_in_the_manner_of_ray_and_dask(eng, np, pool, kind, on_loop):
    future = kind(pool, lambda: np.arange(3))

    def use():
        return eng.call(lambda x: x + 1, eng.from_future(future), using=np.from_dlpack)

    async def main():
        return await use()

    t = run(main()) if on_loop else use()
    assert np.from_dlpack(t).tolist() == [1, 2, 3]


def test_a_result_that_must_be_awaited_is_said_so(eng):
    class Asynchronous:
        def add_done_callback(self, callback):
            callback(self)

        async def result(self):
            raise AssertionError("not awaited")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(est.OperationError, match="must be awaited"):
            eng.from_future(Asynchronous()).wait()


class TestInFlight:
    def test_diagnose_names_it_and_those_who_wait(self, eng, np):
        future = concurrent.futures.Future()
        t = eng.from_future(future, name="download")
        eng.submit(lambda x: None, reads=[t], name="use")
        download, use = eng.diagnose().operations
        assert (download.name, download.status) == ("download", "running")
        assert use.status == "waiting" and use.blocked_by[0].id == download.id
        future.set_result(np.ones(1))
        eng.wait_all(20)

    def test_waiting_for_everything_waits_for_it(self, eng, np):
        future = concurrent.futures.Future()
        t = eng.from_future(future)
        with pytest.raises(TimeoutError):
            eng.wait_all(0.02)
        timer = threading.Timer(0.02, future.set_result, [np.ones(1)])
        timer.start()
        eng.wait_all(20)
        assert t.is_ready()
        timer.join()

    def test_a_shutdown_reports_it_and_the_result_still_arrives(self, np):
        eng = est.Engine(workers=1)
        future = concurrent.futures.Future()
        t = eng.from_future(future, name="late")
        report = eng.shutdown(0.02)
        assert not report.drained and report.running == ("late",)
        with pytest.raises(est.ShutdownError):
            eng.from_future(concurrent.futures.Future())
        future.set_result(np.ones(1))
        t.wait(20)
        assert eng.shutdown(20).drained

    def test_it_takes_a_permit(self, np):
        async def main():
            with pytest.raises(est.InFlightLimitError):
                eng.from_future(asyncio.get_running_loop().create_future())

        with est.Engine(workers=1, in_flight_limit=2) as eng:
            futures = [concurrent.futures.Future() for _ in range(3)]
            tensors = [eng.from_future(future) for future in futures[:2]]
            run(main())
            timer = threading.Timer(0.05, futures[0].set_result, [np.ones(1)])
            timer.start()
            tensors.append(eng.from_future(futures[2]))
            assert futures[0].done()
            for future in futures[1:]:
                future.set_result(np.ones(1))
            timer.join()

    def test_nothing_is_left_behind(self, np):
        # An engine that lists the failures that nothing has looked at keeps their exceptions, and what these refer to.
        eng = est.Engine(workers=2, failures="ignore")
        gc.collect()
        until(lambda: eng.stats().releasing == 0)
        gone = []

        class Array:
            def __init__(self):
                self.array = np.ones(8)
                gone.append(weakref.ref(self))

            def __dlpack__(self, **options):
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self):
                return (1, 0)

        before = eng.stats()
        for how in range(200):
            future = concurrent.futures.Future()
            gone.append(weakref.ref(future))
            t = eng.from_future(future)
            match how % 4:
                case 0:
                    future.set_result(Array())
                case 1:
                    future.set_exception(ValueError("no"))
                case 2:
                    future.cancel()
                case 3:
                    pass
            del future, t
        gc.collect()
        until(lambda: eng.stats().releasing == 0 and eng.stats().in_flight == 0)
        until(lambda: not any(reference() for reference in gone))
        after = eng.stats()
        assert after.imported - before.imported == after.deleters - before.deleters == 50
