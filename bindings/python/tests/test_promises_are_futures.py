"""Tensors and operations where futures of `concurrent.futures` are expected."""

import asyncio
import concurrent.futures
import gc
import logging
import sys
import threading
import time
import weakref
from unittest import mock

import pytest

import estafette as est
from conftest import Gate, run_program, until


@pytest.fixture
def eng():
    with est.Engine(workers=4, failures="ignore") as engine:
        yield engine


@pytest.fixture
def late(eng, gate):
    """A tensor and an operation that end when the gate opens."""
    return eng.call(lambda: (gate(), bytearray(b"abc"))[1], name="late"), eng.submit(gate, name="late")


def fails():
    raise ValueError("no data")


class TestResults:
    def test_before_and_after_the_end(self, eng, np, gate, late):
        tensor, operation = late
        for promise in late:
            assert not promise.done() and not promise.cancelled()
            with pytest.raises(TimeoutError):
                promise.result(0.01)
            with pytest.raises(TimeoutError):
                promise.exception(0)
        gate.open()
        assert tensor.result() is tensor and operation.result(30) is None
        for promise in late:
            assert promise.done() and not promise.cancelled() and promise.exception() is None

    def test_several_results(self, eng, np):
        quotient, rest = eng.call(np.divmod, eng.from_dlpack(np.arange(3)), 2).result()
        assert np.from_dlpack(rest).tolist() == [0, 1, 0]
        assert eng.call(lambda: None).result() is None

    def test_a_failure(self, eng):
        for promise in (eng.call(fails, name="load"), eng.submit(fails, name="load")):
            error = promise.exception(30)
            assert isinstance(error, est.OperationError) and isinstance(error.__cause__, ValueError)
            with pytest.raises(est.OperationError, match="no data"):
                promise.result()
            assert not promise.cancelled()

    def test_a_cancelled_operation(self, eng, gate):
        y = eng.zeros(1, "int8")
        eng.submit(gate, writes=[y])
        operation = eng.submit(lambda y: None, writes=[y])
        assert operation.cancel() and operation.cancelled() and operation.done()
        with pytest.raises(est.CancelledError):
            operation.exception()
        gate.open()
        until(y.done)
        assert y.cancelled()
        assert ", cancelled>" in repr(y) and ">cancelled<" in y._repr_html_()

    def test_what_only_looks_retrieves_no_failure(self, caplog, monkeypatch):
        told = []
        monkeypatch.setattr("sys.unraisablehook", told.append)
        with est.Engine(workers=1, failures="log") as eng:
            with caplog.at_level(logging.ERROR, "estafette"):
                called = threading.Event()
                t = eng.call(fails, name="load")
                t.add_done_callback(lambda t: called.set())
                assert called.wait(30) and t.done() and not t.cancelled() and t._state == "FINISHED"
                del t
                # The thread that called back may drop the last reference. It logs the failure, and then calls the hook.
                until(lambda: told)
                assert any("never retrieved" in record.getMessage() for record in caplog.records)


class TestCallbacks:
    @pytest.mark.parametrize("which", [0, 1])
    def test_called_once_after_the_end(self, eng, gate, late, which):
        promise, seen = late[which], []
        promise.add_done_callback(lambda p: seen.append((p is promise, p.done(), threading.current_thread())))
        assert not seen
        gate.open()
        until(lambda: seen)
        assert seen[0][:2] == (True, True)
        promise.add_done_callback(lambda p: seen.append(threading.current_thread()))
        # At once, on this thread.
        assert seen[1] is threading.current_thread()
        time.sleep(0.02)
        assert len(seen) == 2

    def test_what_it_raises_is_logged(self, eng, gate, late, caplog):
        def raises(promise):
            raise ValueError("in the callback")

        for promise in late:
            promise.add_done_callback(raises)
        gate.open()
        until(lambda: len(caplog.records) == 2)
        late[0].add_done_callback(raises)
        assert len(caplog.records) == 3
        for record in caplog.records:
            assert record.name == "estafette" and "in the callback" in str(record.exc_info[1])
            # The log says where.
            assert record.exc_info[2].tb_frame.f_code is raises.__code__

    @pytest.mark.parametrize(
        "way", ["callback", "future", "as_completed", "wait", "futures_as_completed", "futures_wait", "wrap_future"]
    )
    def test_an_engine_without_workers_needs_no_other_wait(self, way):
        """In a program of its own, since such a wait once never ended."""
        output, errors = run_program(
            f"""
            import asyncio, concurrent.futures as futures, threading
            import estafette as est

            eng = est.Engine(workers=0)
            promises = [eng.call(lambda: 7), eng.submit(lambda: None), eng.call(lambda: 8)]

            async def wrapped():
                return [await asyncio.wrap_future(promise.future()) for promise in promises]

            def callback():
                ended = threading.Semaphore(0)
                for promise in promises:
                    promise.add_done_callback(lambda promise: ended.release())
                return [ended.acquire() for promise in promises]

            ways = dict(
                callback=callback,
                future=lambda: [promise.future().result() for promise in promises],
                as_completed=lambda: est.as_completed(promises),
                wait=lambda: est.wait(promises, return_when="FIRST_EXCEPTION").done,
                futures_as_completed=lambda: futures.as_completed(promises, timeout=30),
                futures_wait=lambda: futures.wait(promises).done,
                wrap_future=lambda: asyncio.run(wrapped()),
            )
            print(len(list(ways[{way!r}]())), [promise.done() for promise in promises])
            """,
            timeout=40,
        )
        assert output == "3 [True, True, True]\n", errors

    def test_a_callback_may_add_others_and_use_the_engine(self, eng, np, gate, late):
        results = []

        def first(tensor):
            tensor.add_done_callback(lambda t: results.append("second"))
            results.append(np.from_dlpack(eng.call(np.full, 2, 7).result()).tolist())

        late[0].add_done_callback(first)
        gate.open()
        until(lambda: len(results) == 2)
        assert results == ["second", [7, 7]]

    @pytest.mark.parametrize("is_mixed", [False, True])
    @pytest.mark.parametrize(
        "wait",
        [
            est.wait,
            lambda promises: est.wait(promises, return_when="FIRST_EXCEPTION"),
            lambda promises: list(est.as_completed(promises)),
            concurrent.futures.wait,
        ],
    )
    def test_a_callback_may_wait_for_others(self, eng, gate, late, wait, is_mixed):
        other, ended = concurrent.futures.Future(), threading.Event()

        def waits(_):
            threading.Timer(0.02, lambda: (gate.open(), other.set_result(None))).start()
            wait([*late, other] if is_mixed else late)
            ended.set()

        first = Gate()
        eng.submit(first).add_done_callback(waits)
        first.open()
        assert ended.wait(10)

    def test_a_promise_without_another_reference_calls_back(self, eng, gate):
        seen = []
        eng.call(lambda: (gate(), bytearray(3))[1]).add_done_callback(lambda t: seen.append(t.shape))
        gate.open()
        until(lambda: seen)
        assert seen == [(3,)]

    def test_many(self, eng, gate, late):
        seen = []
        for number in range(5000):
            late[0].add_done_callback(lambda t, number=number: seen.append(number))
        gate.open()
        until(lambda: len(seen) == 5000, 30)
        assert sorted(seen) == list(range(5000))

    def test_of_a_failure_and_of_a_cancelled_operation(self, eng, gate):
        y, seen = eng.zeros(1, "int8"), []
        eng.submit(gate, writes=[y])
        cancelled = eng.submit(lambda y: None, writes=[y])
        failed = eng.submit(lambda y: fails(), writes=[eng.zeros(1, "int8")])
        for promise in (cancelled, failed, y):
            promise.add_done_callback(lambda p: seen.append(p.cancelled()))
        cancelled.cancel()
        gate.open()
        until(lambda: len(seen) == 3)
        # The version of `y` that the cancelled operation would have made is cancelled too.
        assert sorted(seen) == [False, True, True]
        assert failed.exception() is not None

    def test_what_cannot_be_called_is_refused(self, late, gate):
        for promise in late:
            with pytest.raises(TypeError, match="not callable"):
                promise.add_done_callback(3)
        gate.open()


OWN_LEASE = """
    import concurrent.futures
    import numpy as np
    import estafette as est

    def is_refused(wait, *args):
        try:
            wait(*args)
        except est.LeaseHeldError as error:
            return "read lease" in str(error)

    with est.Engine(workers=4, failures="ignore") as eng:
        t = eng.zeros(1, "int8")
        held = np.from_dlpack(t)
        ops = [eng.submit(lambda t: None, writes=[t]) for _ in range(2)]
        other = concurrent.futures.Future()
        for promises in (ops[:1], ops):
            for return_when in ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"):
                assert is_refused(est.wait, promises, 30, return_when), return_when
            assert is_refused(lambda: list(est.as_completed(promises, 30)))
            assert is_refused(est.wait, [*promises, other], 30)
        del held
        assert est.wait(ops, 30).done == set(ops)
"""


class TestOthers:
    def test_concurrent_futures_wait(self, eng, np, gate, late):
        ready = eng.call(np.zeros, 3)
        for wait in (concurrent.futures.wait, est.wait):
            done, rest = wait([ready, *late], return_when="FIRST_COMPLETED", timeout=30)
            assert ready in done and not rest - set(late)
        assert est.wait(late, timeout=0.01).not_done == set(late)
        gate.open()
        assert concurrent.futures.wait([ready, *late], timeout=30).done == {ready, *late}

    def test_polling_leaves_no_callback(self, late, gate):
        def references():
            return [sys.getrefcount(promise) for promise in late]

        before = references()
        for _ in range(100):
            assert concurrent.futures.wait(late, timeout=0).not_done == set(late)
        assert references() == before
        gate.open()
        assert concurrent.futures.wait(late, timeout=30).done == set(late)

    def test_a_wait_that_was_interrupted_leaves_nothing_after_the_end(self, late, gate):
        waiter = concurrent.futures._base._FirstCompletedWaiter()
        # As `concurrent.futures.wait`, which removes no waiter after Ctrl-C.
        late[0]._waiters.append(waiter)
        left = weakref.ref(waiter)
        del waiter
        gate.open()
        until(lambda: left() is None)

    def test_a_failure_ends_the_wait_although_its_version_was_written_again(self, eng):
        first, second = Gate(), Gate()
        t, other = eng.zeros(1, "int8"), eng.submit(second)
        eng.submit(lambda t: (first(), fails()), writes=[t])
        waits = [threading.Event(), threading.Event()]

        def wait():
            waits[0].set()
            assert est.wait([t, other], 30, "FIRST_EXCEPTION").done == {t}
            waits[1].set()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        waits[0].wait(30)
        # The wait is one in the engine by then.
        time.sleep(0.3)
        first.open()
        until(t.done)
        eng.submit(lambda t: second(), writes=[t])
        try:
            assert waits[1].wait(10)
        finally:
            second.open()
            thread.join(30)

    def test_the_first_exception_ends_the_wait(self, eng, gate, late):
        failing = eng.submit(fails)
        done, rest = est.wait([*late, failing], timeout=30, return_when="FIRST_EXCEPTION")
        assert done == {failing} and rest == set(late)
        assert failing.exception() is not None
        gate.open()

    def test_as_completed(self, eng, np, gate, late):
        ready = eng.call(np.zeros, 3)
        ready.wait()
        for as_completed, what in ((est.as_completed, rf"{len(late)} of {len(late) + 1} promises are not done within 0\.05 s"), (concurrent.futures.as_completed, None)):
            with pytest.raises(TimeoutError, match=what):
                seen = []
                for promise in as_completed([*late, ready], timeout=0.05):
                    seen.append(promise)
            assert seen == [ready]
        waiting = est.as_completed(late, timeout=30)
        with mock.patch.object(est._promises, "_as_ended", side_effect=TimeoutError("of a handler of a signal")):
            with pytest.raises(TimeoutError, match="of a handler"):
                next(waiting)
        gate.open()
        assert set(est.as_completed([*late, ready], timeout=30)) == {ready, *late}

    def test_mixed_with_futures_of_a_pool(self, eng, late, gate):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            other = pool.submit(time.sleep, 0)
            for wait in (concurrent.futures.wait, est.wait):
                assert wait([other, *late], 30, "FIRST_COMPLETED").done == {other}
            threading.Timer(0.02, gate.open).start()
            for wait in (concurrent.futures.wait, est.wait):
                assert wait([other, *late], timeout=30).done == {other, *late}
            assert set(est.as_completed([other, *late])) == {other, *late}

    def test_two_waits_for_promises_and_the_same_future_of_a_pool_end(self):
        """In a program of its own, since each of the two threads once had what the other one waited for."""
        output, errors = run_program("""
            import concurrent.futures as futures, threading
            import estafette as est

            eng = est.Engine(workers=1)
            gate, held, asked = threading.Event(), threading.Event(), threading.Event()
            first, last = (eng.submit(gate.wait) for _ in range(2))
            between = futures.Future()
            # The order in which a wait acquires their conditions.
            futures._base.id = [first, between, last].index
            acquire = between._condition.acquire

            def acquire_slowly():
                if held.is_set():
                    asked.set()
                acquire()
                held.set()
                asked.wait(30)

            between._condition.acquire = acquire_slowly
            waits = [threading.Thread(target=futures.wait, args=(fs,), daemon=True) for fs in ([between, last], [first, between])]
            waits[0].start()
            held.wait(30)
            waits[1].start()
            gate.set()
            threading.Thread(target=between.set_result, args=(None,), daemon=True).start()
            for wait in waits:
                wait.join(10)
            print([wait.is_alive() for wait in waits])
        """)
        assert output == "[False, False]\n", errors

    def test_the_state_stays_while_the_condition_is_held(self, late, gate):
        """`concurrent.futures.wait` counts twice what is pending."""
        promise, _ = late
        with promise._condition:
            assert promise._state == "PENDING"
            gate.open()
            until(promise.done)
            assert promise._state == "PENDING"
        assert promise._state == "FINISHED"

    def test_on_an_event_loop_what_is_not_done_is_refused(self, late, gate):
        async def main():
            for return_when in ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"):
                with pytest.raises(est.WouldBlockError):
                    est.wait(late, return_when=return_when)
                assert est.wait(late, 0, return_when).not_done == set(late)
            for promises in (late, late[:1]):
                with pytest.raises(est.WouldBlockError):
                    list(est.as_completed(promises))
            gate.open()
            await asyncio.gather(*late)
            assert est.wait(late).done == set(est.as_completed(late)) == set(late)

        asyncio.run(main())

    def test_mistakes(self, np, late, gate):
        with pytest.raises(ValueError, match="return_when is one of"):
            est.wait(late, return_when="SOME_COMPLETED")
        for wait in (est.wait, lambda promises: list(est.as_completed(promises))):
            with pytest.raises(TypeError, match=r"not Tensor: write `\[x\]`"):
                wait(late[0])
            with pytest.raises(TypeError, match="3 is no promise"):
                wait([late[0], 3])
            with pytest.raises(TypeError, match=r"array\(\[1\.\]\) is no promise"):
                wait([late[0], np.ones(1)])
        assert est.wait([]) == (set(), set()) and list(est.as_completed([])) == []
        gate.open()

    def test_a_wait_behind_a_lease_of_its_own_thread_ends(self):
        # In the process of the other tests one of the waits sometimes lasts for its 30 seconds. The cause is not known.
        run_program(OWN_LEASE)

    @pytest.mark.parametrize("return_when", ["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"])
    def test_waiting_retrieves_no_failure(self, caplog, monkeypatch, gate, return_when):
        told = []
        monkeypatch.setattr("sys.unraisablehook", told.append)
        with est.Engine(workers=1, failures="log") as eng:
            op, t = eng.submit(lambda: (gate(), fails()), name="load"), eng.call(fails, name="load")
            threading.Timer(0.02, gate.open).start()
            assert est.wait([op, t], 30, return_when).done
            assert set(est.as_completed([op, t])) == {op, t}
            assert not caplog.records
            del op, t
            # Another thread may drop the last reference. It logs each failure, and then calls the hook.
            until(lambda: len(told) == 2)
            assert sum("never retrieved" in record.getMessage() for record in caplog.records) == 2

    def test_a_future_retrieves_a_failure_when_it_is_asked_for(self, monkeypatch):
        told = []
        monkeypatch.setattr("sys.unraisablehook", told.append)
        for looks in (False, True):
            with est.Engine(workers=1, failures="log") as eng:
                future = eng.submit(fails).future()
                until(future.done)
                if looks:
                    assert future.exception() is not None
                del future
                # The callback's thread may drop the last reference.
                until(lambda: told) if not looks else time.sleep(0.1)
            assert len(told) == 1

    def test_a_cancelled_operation_cancels_what_asyncio_makes_of_its_future(self, np):
        async def main():
            async with est.Engine(workers=1) as eng:
                t = eng.zeros(1, "int8")
                held = np.from_dlpack(t)
                op = eng.submit(lambda t: None, writes=[t])
                wrapped = asyncio.wrap_future(op.future())
                assert op.cancel()
                await asyncio.wait([wrapped], timeout=30)
                assert wrapped.cancelled()
                del held

        asyncio.run(main())

    @pytest.mark.parametrize("is_mixed", [False, True])
    def test_waiting_for_the_first_exception_retrieves_no_failure_that_is_there(self, is_mixed):
        others = [concurrent.futures.Future()] if is_mixed else []
        with pytest.raises(est.OperationError, match="no data"), est.Engine(workers=1) as eng:
            op = eng.submit(fails)
            until(op.is_done)
            assert est.wait([op, *others], 30, "FIRST_EXCEPTION") == ({op}, set(others))

    def test_waits_in_vain_leave_nothing_in_the_queue(self, eng, late, gate):
        for _ in range(100):
            assert est.wait(late, 0.0001).not_done == set(late)
        assert {op.name for op in eng.diagnose().operations} == {"late"}
        gate.open()

    def test_thousands(self, eng, gate):
        v = eng.var()
        eng.submit(gate, writes=[v])
        ops = [eng.submit(lambda: None, reads=[v]) for _ in range(4_000)]
        threading.Timer(0.02, gate.open).start()
        assert len(est.wait(ops, 60).done) == len(set(est.as_completed(ops, 60))) == len(ops)

    def test_a_future_of_the_very_class(self, eng, np, gate, late):
        futures = [promise.future() for promise in late]
        assert all(isinstance(future, concurrent.futures.Future) and not future.done() for future in futures)
        gate.open()
        assert futures[0].result(30) is late[0] and futures[1].result(30) is None
        failing = eng.submit(fails).future()
        assert isinstance(failing.exception(30), est.OperationError)
        y = eng.zeros(1, "int8")
        held = np.from_dlpack(y)
        cancelled = eng.submit(lambda y: None, writes=[y])
        future = cancelled.future()
        assert not future.cancel() and not future.cancelled()
        cancelled.cancel()
        assert concurrent.futures.wait([future], 30).done and future.cancelled() and future.cancel()
        for ask in (future.exception, future.result):
            with pytest.raises(concurrent.futures.CancelledError, match="cancelled before it began") as caught:
                ask()
            assert type(caught.value) is est.CancelledError
        del held

    def test_a_future_ends_as_the_version_it_was_made_of(self, eng, np):
        """Whatever writes the tensor later, before a thread could tell of the end."""
        first, second = Gate(), Gate()
        t = eng.zeros(1, "int8")
        eng.submit(lambda t: (first(), fails()), writes=[t])
        future, busy, free = t.future(), threading.Event(), threading.Event()
        eng.submit(lambda: None).future().add_done_callback(lambda _: (busy.set(), free.wait(30)))
        assert busy.wait(30)
        eng.submit(lambda t: second(), writes=[t])
        first.open()
        try:
            assert isinstance(future.exception(10), est.OperationError) and not t.done()
            called = threading.Event()
            free.set()
            eng.submit(lambda: None).add_done_callback(lambda _: called.set())
            assert called.wait(10)
        finally:
            free.set()
            second.open()
        assert t.result(30) is t

    def test_a_callback_waits_for_a_future_of_a_promise(self, eng, gate, late):
        results, first = [], Gate()

        def waits(_):
            gate.open()
            results.extend(promise.future().result(10) for promise in late)

        eng.submit(first).add_done_callback(waits)
        first.open()
        until(lambda: len(results) == 2)
        assert results == [late[0], None]

    def test_callbacks_of_futures_may_wait_for_others(self, eng, gate, late):
        results, first = [], Gate()
        future = eng.submit(first).future()
        future.add_done_callback(lambda _: (gate.open(), results.extend(promise.future().result(10) for promise in late)))
        first.open()
        until(lambda: len(results) == 2)

    def test_a_second_wait_is_not_notified_of_the_end_of_an_older_version(self, eng):
        first, second = Gate(), Gate()
        t, op = eng.zeros(1, "int8"), eng.submit(first)
        eng.submit(lambda t: first(), writes=[t])
        assert not concurrent.futures.wait([t], 0).done
        eng.submit(lambda t: second(), writes=[t])
        threading.Timer(0.05, first.open).start()
        done, rest = concurrent.futures.wait([t], 0.5)
        second.open()
        assert (done, rest) == (set(), {t})
        assert concurrent.futures.wait([t, op], 30).done == {t, op}

    @pytest.mark.parametrize("return_when", ["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"])
    def test_a_wait_ends_where_each_version_is_written_again(self, eng, return_when):
        """As in a ring of buffers."""
        slots, ends = [eng.zeros(1, "int8") for _ in range(3)], threading.Event()

        def write(t):
            if not ends.is_set():
                time.sleep(0.01)
                eng.submit(write, writes=[t])

        for t in slots:
            eng.submit(write, writes=[t])
        waited = threading.Event()
        thread = threading.Thread(target=lambda: (est.wait(slots, return_when=return_when), waited.set()), daemon=True)
        thread.start()
        try:
            assert waited.wait(10)
        finally:
            ends.set()

    def test_what_asyncio_makes_of_the_future_of_a_failure_retrieves_it(self, monkeypatch):
        told = []
        monkeypatch.setattr("sys.unraisablehook", told.append)

        async def main():
            async with est.Engine(workers=1, failures="log") as eng:
                with pytest.raises(est.OperationError, match="no data"):
                    await asyncio.wrap_future(eng.submit(fails).future())

        asyncio.run(main())
        gc.collect()
        time.sleep(0.1)
        assert not told

    def test_the_failure_of_a_future_leaves_no_cycle(self, eng):
        future = eng.submit(fails).future()
        concurrent.futures.wait([future])
        left = weakref.ref(future)
        gc.disable()
        try:
            try:
                future.result()
            except est.OperationError:
                pass
            del future
            until(lambda: left() is None)
        finally:
            gc.enable()

    def test_ctrl_c_reaches_the_thread_that_makes_a_future(self):
        from estafette import _promises

        class Interrupted:
            def _on_end(self, function):
                function(self, None)

            def _awaited(self):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            _promises.future(Interrupted())

    @pytest.mark.parametrize("way", ["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION", "as_completed"])
    def test_a_cell_of_a_notebook_ends_its_wait_when_a_coroutine_needs_the_loop(self, way):
        """In a program of its own, with what the package asks IPython."""
        output, errors = run_program(f"""
            import asyncio, concurrent.futures, sys, threading, types
            import estafette as est

            shell = types.SimpleNamespace(kernel=None)
            sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
            gate = threading.Event()

            async def function():
                pass

            async def cell():
                eng = est.Engine(workers=1)
                v = eng.var()
                eng.submit(gate.wait, writes=[v])
                op = eng.submit(function, writes=[v])
                other = concurrent.futures.Future()
                op.add_done_callback(lambda op: other.set_result(None))
                third = eng.submit(lambda: None, writes=[v])
                threading.Timer(0.3, gate.set).start()
                try:
                    if {way!r} == "as_completed":
                        list(est.as_completed([third, other]))
                    else:
                        est.wait([third, other], None, {way!r})
                except est.WouldBlockError:
                    print("refused")
                await op

            asyncio.run(cell())
        """)
        assert output == "refused\n", errors

    @pytest.mark.parametrize("is_done", [False, True])
    def test_asyncio_s_own_wait_is_refused_and_takes_a_future_of_the_promise(self, np, is_done):
        async def main():
            async with est.Engine(workers=1) as eng:
                gate = Gate()
                t = eng.call(lambda: (gate(), bytearray(3))[1])
                if is_done:
                    gate.open()
                    await t
                with pytest.raises(TypeError, match="asyncio.ensure_future"):
                    await asyncio.wait([t], timeout=30)
                gate.open()
                done, _ = await asyncio.wait([asyncio.ensure_future(t)], timeout=30)
                assert [future.result() for future in done] == [t]

        asyncio.run(main())

    def test_asyncio(self, np):
        async def main():
            async with est.Engine(workers=1) as eng:
                t = eng.call(np.zeros, 3)
                assert await asyncio.wrap_future(t.future()) is t
                for submit, gate in [(eng.call, Gate()), (eng.submit, Gate())]:
                    promise = submit(lambda gate=gate: (gate(), bytearray(3))[1])
                    with pytest.raises(est.WouldBlockError):
                        promise.result()
                    gate.open()
                    await promise
                    promise.result()

        asyncio.run(main())

    def test_jax_blocks_until_they_are_ready(self, eng, np, jax):
        t = eng.call(lambda: (time.sleep(0.02), np.zeros(3))[1])
        tree = jax.block_until_ready({"x": [t]})
        assert tree["x"][0] is t and t.done()


class TestEnds:
    def test_callbacks_that_are_due_are_called_at_exit(self):
        output, _ = run_program("""
            import time
            import estafette as est
            eng = est.Engine(workers=1)
            t = eng.call(lambda: (time.sleep(0.2), bytearray(3))[1])
            t.add_done_callback(lambda t: print("called", t.shape))
        """)
        assert output == "called (3,)\n"

    def test_a_callback_s_own_future_calls_back_at_exit(self):
        output, _ = run_program("""
            import time
            import estafette as est
            eng = est.Engine(workers=1)

            def called(_):
                # By now the engine has ended what was in flight.
                time.sleep(0.3)
                future = eng.submit(lambda: time.sleep(0.2)).future()
                future.add_done_callback(lambda _: print("called"))

            eng.submit(lambda: time.sleep(0.1)).add_done_callback(called)
        """)
        assert output == "called\n"

    def test_a_forked_child_ends(self):
        output, _ = run_program("""
            import os, threading
            import estafette as est
            eng = est.Engine(workers=1)
            gate = threading.Event()
            t = eng.call(lambda: (gate.wait(), bytearray(3))[1])
            t.add_done_callback(lambda t: print("called", flush=True))
            child = os.fork()
            if child == 0:
                try:
                    t.add_done_callback(print)
                except est.ForkedError:
                    os._exit(7)
                os._exit(1)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            gate.set()
        """)
        assert output.split() == ["7", "called"]


class TestAttributes:
    def test_sizes_and_strides(self, eng, np):
        t = eng.from_dlpack(np.zeros((2, 3, 4), "int16")[:, ::2])
        assert (t.size, t.itemsize, t.nbytes, t.ndim, len(t)) == (16, 2, 32, 3, 2)
        assert t.strides == (12, 8, 1)
        assert eng.empty((), "float64").size == 1 and eng.empty((0, 3), "int8").nbytes == 0

    def test_of_a_promise_without_a_shape(self, eng, gate, late):
        for name in ("size", "itemsize", "nbytes", "strides"):
            with pytest.raises(est.NotDefinedError):
                getattr(late[0], name)
        gate.open()
