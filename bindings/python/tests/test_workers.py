"""Threads that run Python functions, and the work that these threads leave to others."""

import asyncio
import importlib
import itertools
import resource
import sys
import sysconfig
import threading
from pathlib import Path

import pytest

import estafette as est
from conftest import run_program


def test_coverage_and_debuggers_see_functions_on_workers():
    output, _ = run_program("""
        import sys
        import threading

        import estafette as est

        def body(seen):
            seen.append(threading.get_ident())

        traced, profiled = [], []

        def trace(frame, event, argument):
            if frame.f_code is body.__code__:
                traced.append((threading.get_ident(), event))
                return trace

        threading.settrace(trace)
        threading.setprofile(lambda frame, event, argument: profiled.append((frame.f_code, event)))
        eng = est.Engine(workers=1)
        workers = []
        eng.submit(lambda: body(workers)).future().result(60)
        assert workers != [threading.get_ident()]
        assert [(workers[0], event) for event in ("call", "line", "return")] == traced, traced
        assert (body.__code__, "call") in profiled
        print("seen")
    """)
    assert output == "seen\n"


class TestWithoutWorkers:
    @pytest.fixture
    def eng(self):
        with est.Engine(workers=0) as eng:
            yield eng

    def test_a_wait_runs_functions_on_its_own_thread(self, eng, np):
        threads = []
        y = eng.call(lambda: (threads.append(threading.get_ident()), np.arange(3.0))[1])
        z = eng.call(lambda y: (threads.append(threading.get_ident()), y + 1)[1], y, using=np.from_dlpack)
        assert threads == []
        z.wait()
        assert threads == [threading.get_ident()] * 2
        assert np.from_dlpack(z).tolist() == [1.0, 2.0, 3.0]

    def test_a_submission_runs_functions_once_many_are_ready(self, eng):
        threads = []
        for _ in range(100):
            eng.submit(lambda: threads.append(threading.get_ident()))
        assert set(threads) == {threading.get_ident()}
        eng.wait_all()
        assert len(threads) == 100

    def test_functions_of_one_kind_follow_each_other(self, eng, np):
        order = []

        def step(name, *_):
            order.append(name)
            return np.zeros(1)

        for _ in range(100):
            x = eng.call(step, "a")
            x = eng.call(step, "b", x, using=np.from_dlpack)
            eng.call(step, "c", x, using=np.from_dlpack)
        eng.wait_all()
        rows = [len(list(row)) for _, row in itertools.groupby(order)]
        assert sum(rows) == 300 and max(rows) > 20 and len(rows) < 60, order

    def test_an_await_runs_functions_on_another_thread(self, eng, np):
        async def later():
            await asyncio.sleep(0)
            return np.arange(2.0)

        async def main():
            threads = []
            y = eng.call(later)
            await eng.submit(lambda y: threads.append(threading.get_ident()), reads=[y], using=np.from_dlpack)
            return threads

        (thread,) = asyncio.run(asyncio.wait_for(main(), 60))
        assert thread != threading.get_ident()

    def test_a_wait_with_a_timeout_ends_in_time_whatever_is_ready(self, eng):
        gate = threading.Event()
        operation = eng.submit(gate.wait)
        try:
            with pytest.raises(TimeoutError):
                operation.wait(timeout=0.01)
        finally:
            gate.set()
        operation.wait()

    def test_a_failure_on_the_waiting_thread_is_the_operations_own(self, eng):
        operation = eng.submit(lambda: 1 / 0)
        with pytest.raises(est.OperationError) as raised:
            operation.wait()
        assert isinstance(raised.value.__cause__, ZeroDivisionError)

    def test_a_wait_inside_a_function_runs_what_it_waits_for(self, eng):
        order = []

        def outer():
            eng.submit(lambda: order.append("inner")).wait()
            order.append("outer")

        eng.submit(outer).wait()
        assert order == ["inner", "outer"]


class TestWithWorkers:
    """A thread that waits for a function runs it where it comes before a worker."""

    @pytest.fixture(params=[1, 2])
    def eng(self, request):
        with est.Engine(workers=request.param) as eng:
            yield eng

    def test_a_wait_at_once_wakes_nobody(self, eng):
        """A wake-up costs more than a short function; `ru_nvcsw` counts how often a thread of the process has slept."""
        threads = []

        def sleeps_in_waits(waits):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
            for _ in range(waits):
                eng.submit(lambda: threads.append(threading.get_ident())).wait()
            return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before

        assert any(sleeps_in_waits(500) < 250 for _ in range(40))
        assert threading.get_ident() in threads

    def test_a_function_that_nobody_waits_for_is_run_by_a_worker(self, eng):
        for _ in range(200):
            eng.submit(lambda: None).wait()
        ran = threading.Event()
        eng.submit(ran.set)
        assert ran.wait(60)

    @pytest.mark.parametrize("how", ["timeout", "await", "wait_all", "callback"])
    def test_a_wait_that_runs_nothing_leaves_the_function_to_a_worker(self, eng, how):
        threads = []
        for _ in range(200):
            eng.submit(lambda: None).wait()
        operation = eng.submit(lambda: threads.append(threading.get_ident()))
        if how == "timeout":
            operation.wait(timeout=60)
        elif how == "await":
            asyncio.run(asyncio.wait_for(operation, 60))
        elif how == "wait_all":
            eng.wait_all()
        else:
            ended = threading.Event()
            operation.add_done_callback(lambda _: ended.set())
            assert ended.wait(60)
        assert threads and threads != [threading.get_ident()]

    def test_a_wait_for_the_first_of_several_runs_none_of_them(self):
        gate = threading.Event()
        with est.Engine(workers=2) as eng:
            slow, quick = eng.submit(gate.wait), eng.submit(lambda: None)
            done, pending = est.wait([slow, quick], return_when="FIRST_COMPLETED")
            gate.set()
        assert done == {quick} and pending == {slow}

    def test_a_function_on_the_waiting_thread_keeps_no_other_one_from_running(self):
        gate = threading.Event()

        def needs_another_one():
            eng.submit(gate.set)
            gate.wait()

        with est.Engine(workers=2) as eng:
            for _ in range(20):
                gate.clear()
                eng.submit(needs_another_one).wait()

    def test_what_was_submitted_with_others_is_run_by_workers(self, eng):
        threads = set()
        operations = [eng.submit(lambda: threads.add(threading.get_ident())) for _ in range(50)]
        for operation in operations:
            operation.wait()
        assert threads and threading.get_ident() not in threads

    def test_a_wait_inside_a_function_runs_what_it_waits_for(self, eng):
        order = []

        def nested(depth):
            if depth:
                eng.submit(lambda: nested(depth - 1)).wait()
            order.append(depth)

        nested(40)
        assert order == list(range(41))

    def test_without_helping_no_function_runs_here(self, eng, np):
        threads = set()

        def note(x):
            threads.add(threading.get_ident())
            return x

        x = eng.from_dlpack(np.zeros(1))
        with est.without_helping():
            for _ in range(50):
                eng.call(note, x, using=np.from_dlpack).wait()
        assert threads and threading.get_ident() not in threads


@pytest.mark.parametrize("workers", [1, 2])
def test_functions_that_follow_each_other_let_an_event_loop_run(workers):
    """A worker keeps the Python lock from one function to the next; the loop gets it all the same."""
    turns, ran = 0, 0
    done = threading.Event()

    def again():
        nonlocal ran
        ran += 1
        if turns < 20:
            eng.submit(again)
            eng.submit(again) if ran < 100 else None
        else:
            done.set()

    async def main():
        nonlocal turns
        while turns < 20:
            await asyncio.sleep(0)
            turns += 1
        await asyncio.to_thread(done.wait, 60)

    with est.Engine(workers=workers) as eng:
        eng.submit(again)
        asyncio.run(asyncio.wait_for(main(), 60))
        assert done.is_set() and ran > 0


WAYS = [("ready_at_once", 0), ("ready_at_once", 1), ("ready_at_once", 2), ("one_after_the_other", 0), ("in_a_function", 1)]


@pytest.mark.parametrize("how, workers", WAYS)
@pytest.mark.parametrize("kind", ["Python", "C", "NumPy"])
def test_an_event_loop_has_its_turn_beside_many_functions(np, monkeypatch, kind, how, workers):
    """2,000 functions take 0.2 seconds and more. On a busy machine the loop and the functions take longer, and the loop beside a thread pool too."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benches/python")
    event_loop = importlib.import_module("event_loop")
    body = event_loop.BODIES[kind]
    for _ in range(5):
        gaps = event_loop.gaps(lambda: event_loop.by_engine(body, getattr(event_loop, how), workers=workers))
        gap = max(gaps)
        if gap < max(0.05, sum(gaps) / 4) or gap < 3 * max(event_loop.gaps(lambda: event_loop.by_thread_pool(body, workers))):
            return
    raise AssertionError(f"the loop stood still for {gap:.3f} s")


@pytest.mark.parametrize("interval, kind, count", [(0.005, "empty", 40_000), (0.02, "C", 10_000)])
def test_functions_in_c_leave_the_lock_to_a_thread_within_some_switch_intervals(monkeypatch, interval, kind, count):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benches/python")
    event_loop = importlib.import_module("event_loop")
    monkeypatch.setattr(event_loop, "COUNT", count)
    body = {"empty": int, **event_loop.BODIES}[kind]
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        for _ in range(5):
            # On a busy machine the loop waits for longer than its two and a half intervals.
            gaps = event_loop.gaps(lambda: event_loop.by_engine(body, event_loop.ready_at_once, workers=1, in_flight_limit=2 * count))
            if max(gaps) < max(4 * interval + 0.03, sum(gaps) / 4):
                return
    finally:
        sys.setswitchinterval(before)
    raise AssertionError(f"the loop stood still for {max(gaps):.3f} s of {sum(gaps):.3f} s")


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"),
    reason="no free-threaded Python: what the package does without the interpreter's lock has run nowhere",
)
def test_an_interpreter_without_a_lock_has_one_once_the_package_is_loaded():
    out, _ = run_program("import sys, estafette; print(sys._is_gil_enabled())", env={"PYTHON_GIL": ""})
    assert out.strip() == "True"


END = """
    import os
    import threading
    import estafette as est

    class Value:
        def __del__(self):
            {what}
            ended.set()

    def keep():
        local.value = Value()

    local, ended = threading.local(), threading.Event()
    eng = est.Engine(workers=1)
    eng.submit(keep).wait(30)
    eng.shutdown()
    del eng
    # Threads that wait for each other have no end that the interpreter could wait for.
    os._exit(0 if ended.wait(30) else 1)
"""
WHAT = {
    "fork": "os.waitpid(os.fork() or os._exit(0), 0)",
    "wait for a new worker": "est.Engine(workers=1).submit(int).wait(30)",
}


@pytest.mark.parametrize("what", WHAT)
def test_what_a_worker_leaves_in_a_thread_local_may_at_its_end(what):
    run_program(END.format(what=WHAT[what]))


FAULTS = """
    import resource
    import numpy as np
    import estafette as est

    def arrays():
        # Three live at a time, so that memory is free at the end of a heap and in the middle.
        for _ in range(50):
            a, b, c = (np.zeros(1 << 17) + 1 for _ in range(3))

    with est.Engine(workers=1) as eng:
        eng.submit(arrays).wait()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        eng.submit(arrays).wait()
        print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 150)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's thresholds")
def test_memory_of_freed_arrays_is_kept_for_the_next_ones_unless_the_program_says_otherwise():
    ours, _ = run_program(FAULTS)
    assert float(ours) < 25
    released = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    theirs, _ = run_program(FAULTS, env=released)
    assert float(theirs) > 200
