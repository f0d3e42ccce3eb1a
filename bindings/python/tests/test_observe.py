"""Observe mode: what it finds in programs that know nothing of Estafette. The programs measure themselves what they have planted."""

import _thread
import asyncio
import concurrent.futures
import contextlib
import importlib.util
import inspect
import io
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import textwrap
import threading
import time
import types
import zipapp

import pytest

import estafette as est
from conftest import peer, run_program, until
from estafette._observe import command, roles
from estafette._observe.patches import Observed, Patches, observed_in
from estafette._observe.table import every


@pytest.fixture
def observed(tmp_path):
    """Runs an unmodified program under the command; gives its report and the numbers that it has printed."""

    def run(source, *arguments):
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(source))
        trace = tmp_path / "program.pftrace"
        done = subprocess.run(
            [sys.executable, "-m", "estafette", "observe", "--trace", trace, script, *arguments],
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == 0, done.stderr
        report = est.report(trace)
        assert report.data["missing"] == []
        # Every moment of the run is spent on one thing.
        assert sum(row["time_ns"] for row in report.data["run_time"]) == report.data["duration_ns"]
        return report, json.loads(done.stdout)

    return run


def waited(report, name):
    """Lengths of the waits of this name and line."""
    (row,) = [row for row in report.data["operations"] if row["name"] == name]
    return row["waited_ns"]


def between(report, one, other):
    (row,) = [row for row in report.data["exchanges"] if (row["producer"], row["consumer"]) == (one, other)]
    return row


def matrix(report, one, other):
    """Time that a library waited for another."""
    names = report.data["matrix"]["libraries"]
    return report.data["matrix"]["waited_ns"][names.index(one)][names.index(other)]


def line_of(source, text):
    return next(at for at, line in enumerate(textwrap.dedent(source).splitlines(), 1) if text in line)


# --- Three programs with planted stalls -------------------------------------------------------------------------------

HIDDEN_COPY = """
    import json
    import time
    import torch

    batch = torch.ones(3_000_000)
    began = time.perf_counter_ns()
    values = batch.tolist()
    print(json.dumps(time.perf_counter_ns() - began))
"""


def test_a_hidden_copy_to_the_host_is_found(observed, torch):
    report, planted = observed(HIDDEN_COPY)
    name = f"`torch.Tensor.tolist` at program.py:{line_of(HIDDEN_COPY, 'tolist')}"
    assert planted / 2 < waited(report, name) <= planted
    assert name in report.data["worst"][0]["sentence"]
    assert "copy from torch to the host" in report.data["worst"][0]["sentence"]
    row = between(report, "torch", "host")
    assert (row["count"], row["copies"], row["copied_bytes"]) == (1, 1, 12_000_000)
    assert matrix(report, "host", "torch") == row["waited_ns"] == waited(report, name)


SYNCHRONIZED_LOOP = """
    import json
    import time
    import jax.numpy as jnp

    x = jnp.ones((1200, 1200))
    x.block_until_ready()
    planted = 0
    for _ in range(5):
        x = x @ x
        began = time.perf_counter_ns()
        x.block_until_ready()
        planted += time.perf_counter_ns() - began
    print(json.dumps(planted))
"""


def test_a_synchronize_inside_a_loop_is_found(observed, jax):
    report, planted = observed(SYNCHRONIZED_LOOP)
    name = f"`jax.Array.block_until_ready` at program.py:{line_of(SYNCHRONIZED_LOOP, '    x.block_until')}"
    assert planted / 2 < waited(report, name) <= planted
    (row,) = [row for row in report.data["operations"] if row["name"] == name]
    assert row["count"] == 5
    assert planted / 2 < matrix(report, "host", "jax")
    assert "work of jax" in report.data["headline"]


SLOW_CONSUMER = """
    import json
    import queue
    import threading
    import time

    items = queue.Queue(maxsize=1)

    def consume():
        while items.get() is not None:
            time.sleep(0.02)

    consumer = threading.Thread(target=consume, name="consumer")
    consumer.start()
    began = time.perf_counter_ns()
    for item in range(20):
        items.put(item)
    print(json.dumps(time.perf_counter_ns() - began))
    items.put(None)
"""


def test_a_slow_consumer_is_found(observed):
    report, planted = observed(SLOW_CONSUMER)
    put = f"`Queue.put` at program.py:{line_of(SLOW_CONSUMER, 'items.put(item)')}"
    assert planted / 2 < waited(report, put) <= planted
    blocker = f"`consume before Queue.get at program.py:{line_of(SLOW_CONSUMER, 'items.get')}`"
    blamed = [row for row in report.data["operations"] if row["name"] == blocker]
    assert blamed and planted / 2 < blamed[0]["blamed_ns"]
    assert blocker in report.data["headline"]


def test_the_first_turn_of_a_thread_at_a_queue_begins_with_the_thread():
    items, before = queue.Queue(1), 60_000_000

    def consume():
        until(lambda: items.not_full._waiters)
        time.sleep(0.001)
        items.get()

    thread = threading.Thread(target=consume)
    with est.observe() as seen:
        began = time.perf_counter_ns()
        until(lambda: time.perf_counter_ns() - began > before)
        began = time.perf_counter_ns()
        thread.start()
        items.put(1)
        items.put(2)
        thread.join()
        took = time.perf_counter_ns() - began
    (turn,) = [row for row in seen.report().data["operations"] if "consume before Queue.get" in row["name"]]
    assert 1_000_000 <= turn["running_ns"] <= took


def test_the_first_turn_of_a_thread_from_before_begins_with_the_observation():
    items, resume = queue.Queue(1), threading.Event()

    def consume():
        resume.wait()
        until(lambda: items.not_full._waiters)
        items.get()

    thread = threading.Thread(target=consume)
    thread.start()
    with est.observe() as seen:
        began = time.perf_counter_ns()
        until(lambda: time.perf_counter_ns() - began > 20_000_000)
        resume.set()
        items.put(1)
        items.put(2)
        thread.join()
    (turn,) = [row for row in seen.report().data["operations"] if "consume before Queue.get" in row["name"]]
    assert turn["running_ns"] >= 20_000_000


def test_a_turn_in_a_function_of_an_executor_begins_with_the_function():
    items, idle = queue.Queue(1), 30_000_000
    with est.observe() as seen, concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        began = time.perf_counter_ns()
        until(lambda: time.perf_counter_ns() - began > idle)
        items.put(1)
        began = time.perf_counter_ns()
        pool.submit(lambda: (until(lambda: items.not_full._waiters), time.sleep(0.001), items.get()))
        items.put(2)
        took = time.perf_counter_ns() - began
    (turn,) = [row for row in seen.report().data["operations"] if "before Queue.get" in row["name"]]
    assert 1_000_000 <= turn["running_ns"] <= took


@pytest.fixture
def one_thread_at_a_time():
    """A thread goes on until it waits."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(10)
    yield
    sys.setswitchinterval(before)


def test_a_wait_at_a_queue_is_for_the_call_that_ended_it(one_thread_at_a_time):
    items = queue.Queue()
    consumer = threading.Thread(target=lambda: items.get())
    with est.observe() as seen:
        consumer.start()
        until(lambda: items.not_empty._waiters)
        time.sleep(0.02)
        items.put(1)  # ends the wait
        items.put(2)  # comes before the consumer runs again
        consumer.join()
    (row,) = [row for row in seen.report().data["worst"] if "Queue.get" in row["sentence"]]
    first = line_of(pathlib.Path(__file__).read_text(), "items.put(1)  # ends")
    assert row["blocker"].endswith(f"before Queue.put at test_observe.py:{first}`"), row["sentence"]
    assert row["waited_ns"] >= 20_000_000


EXECUTOR = """
    import concurrent.futures
    import json
    import threading
    import time

    all_are_submitted = threading.Event()

    def slow(seconds):
        all_are_submitted.wait()
        began = time.perf_counter_ns()
        time.sleep(seconds)
        return time.perf_counter_ns() - began

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(slow, 0.05) for _ in range(3)]
        all_are_submitted.set()
        planted = [future.result() for future in futures]
        began = time.perf_counter_ns()
        time.sleep(0.05)
        planted.append(time.perf_counter_ns() - began)
    print(json.dumps(planted))
"""


def spent(report, what):
    return sum(row["time_ns"] for row in report.data["run_time"] if row["what"] == what)


def test_the_time_of_a_program_with_an_executor_is_that_of_its_functions(observed):
    report, (first, second, third, own) = observed(EXECUTOR)
    assert spent(report, "`slow` ran") >= third
    assert spent(report, "no worker was free") >= first + second
    # The executor's thread has nothing to do then.
    assert spent(report, "the program did something else") >= own
    (cause,) = [row for row in report.data["causes"] if row["cause"] == "no worker"]
    assert cause["waited_ns"] >= 2 * first + second


SLOW_STEPS = """
    import asyncio
    import json
    import time

    planted = []

    def blocks(seconds):
        began = time.perf_counter_ns()
        time.sleep(seconds)
        planted.append(time.perf_counter_ns() - began)

    async def main():
        asyncio.get_running_loop().call_soon(blocks, 0.05)
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        blocks(0.03)

    asyncio.run(main())
    print(json.dumps(planted))
"""


def test_slow_steps_of_a_loop_are_in_the_run_time(observed):
    report, (callback, step) = observed(SLOW_STEPS)
    assert spent(report, "`a step of blocks` ran") >= callback
    assert spent(report, "`a step of main` ran") >= step


# --- What Estafette would change --------------------------------------------------------------------------------------

AWAITED_ONE_BY_ONE = """
    import concurrent.futures
    import json
    import time

    began = time.perf_counter_ns()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(10):
            time.sleep(0.01)
            pool.submit(time.sleep, 0.02).result()
    print(json.dumps(time.perf_counter_ns() - began))
"""


def test_functions_that_are_awaited_one_by_one_could_run_beside_the_program(observed):
    report, planted = observed(AWAITED_ONE_BY_ONE)
    (change,) = report.data["with_graph"]["changes"]
    line = line_of(AWAITED_ONE_BY_ONE, "result()")
    assert (change["call"], change["change"], change["count"]) == (f"`Future.result` at program.py:{line}", "no wait", 10)
    # Nine times the program would have slept while the function did.
    assert 9 * 5_000_000 < change["saves_ns"] <= change["waited_ns"] < planted
    assert report.data["with_graph"]["saves_ns"] == change["saves_ns"]
    assert "What Estafette would change" in report.text
    assert any(row["change"].startswith("continue without waiting: `Future.result`") for row in report.data["advice"])


def test_a_copy_between_libraries_would_not_be_made_and_a_slow_consumer_stays_slow(observed, jax):
    copies = """
        import json
        import numpy as np
        import jax.numpy as jnp

        x = jnp.ones(3_000_000)
        x.block_until_ready()
        for _ in range(5):
            np.array(x)
        print(json.dumps(0))
    """
    report, _ = observed(copies)
    (change,) = [row for row in report.data["with_graph"]["changes"] if "numpy.array" in row["call"]]
    assert (change["change"], change["producer"], change["consumer"], change["count"]) == ("no copy", "jax", "numpy", 5)
    assert 0 < change["saves_ns"] <= change["waited_ns"]
    report, _ = observed(SLOW_CONSUMER)
    put = f"`Queue.put` at program.py:{line_of(SLOW_CONSUMER, 'items.put(item)')}"
    (change,) = [row for row in report.data["with_graph"]["changes"] if row["call"] == put]
    assert change["saves_ns"] < change["waited_ns"] / 4


def test_a_wait_for_the_end_of_a_thread_is_seen():
    resume = threading.Event()
    thread = threading.Thread(target=resume.wait, name="loader")
    with est.observe() as seen:
        thread.start()
        threading.Timer(0.05, resume.set).start()
        thread.join()
    data = seen.report().data
    (row,) = [row for row in data["worst"] if row["sentence"].startswith("`Thread.join` at test_observe.py:")]
    assert row["blocker"] == "`loader until its end`" and row["waited_ns"] >= 20_000_000
    # A thread has to end in any order.
    assert data["with_graph"]["changes"] == []


# --- What else is seen ------------------------------------------------------------------------------------------------


def test_arrays_between_libraries_are_noted_with_their_bytes(np, torch, jnp):
    with est.observe() as seen:
        x = jnp.arange(8.0)
        x.block_until_ready()
        array = np.asarray(x)
        copy = np.array(x)
        tensor = torch.from_dlpack(x)
        same = torch.from_numpy(np.ones(4, "float32"))
        back = same.numpy()
        other = torch.as_tensor(np.ones(2), dtype=torch.float32)
    report = seen.report()
    del array, copy, tensor, back, other
    counts = {(row["producer"], row["consumer"]): row for row in report.data["exchanges"]}
    row = counts["jax", "torch"]
    assert (row["count"], row["bytes"], row["copies"]) == (1, 32, 0)
    row = counts["jax", "numpy"]
    assert row["copies"] == 1 and row["copied_bytes"] == 32 and row["count"] >= 2
    row = counts["numpy", "torch"]
    assert (row["count"], row["bytes"], row["copies"], row["copied_bytes"]) == (2, 32, 1, 16)
    row = counts["torch", "numpy"]
    assert (row["count"], row["bytes"], row["copies"]) == (1, 16, 0)


def test_a_wait_for_a_future_names_the_function(tmp_path):
    resume = threading.Event()

    def slow():
        resume.wait(30)
        return 7

    with est.observe(tmp_path / "run.pftrace") as seen, concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(slow)
        threading.Timer(0.05, resume.set).start()
        assert future.result() == 7
    (row,) = [row for row in seen.report().data["worst"] if "Future.result" in row["sentence"]]
    assert row["blocker"].endswith("slow`") and "test_observe.py" in row["sentence"]
    assert row["waited_ns"] >= 20_000_000


def test_a_wait_for_a_future_of_no_observed_executor_is_for_work_elsewhere():
    future = concurrent.futures.Future()
    with est.observe() as seen:
        threading.Timer(0.02, future.set_result, [1]).start()
        assert future.result() == 1
    (row,) = [row for row in seen.report().data["worst"] if "Future.result" in row["sentence"]]
    assert row["cause"] == "computing" and "`work that is not observed` was still computing" in row["sentence"], row


def test_waits_that_last_when_the_observation_ends_are_missed():
    future = concurrent.futures.Future()
    waits = threading.Thread(target=lambda: future.result())
    with est.observe() as seen:
        waits.start()
        until(lambda: future._condition._waiters)
        with contextlib.suppress(queue.Empty):
            queue.Queue().get(timeout=0.01)
    future.set_result(1)
    waits.join()
    (missing,) = seen.report().data["missing"]
    assert re.match(r"1 wait had not ended, and is not counted: the longest had lasted [\d.]+ s", missing), missing


def test_a_future_that_fails_raises_its_own_exception():
    error = KeyError("mine")

    def fails():
        time.sleep(0.001)
        raise error

    with est.observe(), concurrent.futures.ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyError) as caught:
            pool.submit(fails).result()
        assert caught.value is error
        with pytest.raises(queue.Empty):
            queue.Queue().get(timeout=0.001)


def test_a_step_that_blocks_its_event_loop_is_found():
    async def blocks():
        await asyncio.sleep(0)
        time.sleep(0.05)

    with est.observe() as seen:
        asyncio.run(blocks())
    data = seen.report().data
    (row,) = [row for row in data["worst"] if "asyncio's loop" in row["sentence"]]
    assert "a step of" in row["blocker"] and "blocks" in row["blocker"]
    assert row["waited_ns"] >= 50_000_000


def test_a_function_that_asyncio_gives_a_thread_has_its_own_name():
    with est.observe() as seen:
        asyncio.run(asyncio.to_thread(time.sleep, 0.001))
    names = [row["name"] for row in seen.report().data["operations"]]
    assert "`sleep`" in names and not any("Context" in name for name in names)


def test_a_library_that_is_not_in_the_table_is_seen_by_those_that_are(np, tmp_path, monkeypatch):
    (tmp_path / "devlib.py").write_text(
        textwrap.dedent("""
            import numpy as np

            class DeviceArray:
                shape, dtype, nbytes = (3,), "int8", 3
                def __array__(self, dtype=None, copy=None):
                    return np.arange(3, dtype="int8")

            class Broken(DeviceArray):
                @property
                def shape(self):
                    raise RuntimeError("asked too early")
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    import devlib

    with est.observe() as seen:
        assert np.asarray(devlib.DeviceArray()).tolist() == [0, 1, 2]
        assert np.array(devlib.Broken()).tolist() == [0, 1, 2]
    row = between(seen.report(), "devlib", "numpy")
    assert (row["count"], row["copies"], row["bytes"]) == (2, 2, 3)


def test_every_function_of_the_table_is_there_in_the_libraries_that_are_installed(np, jax, torch):
    tensorflow = importlib.util.find_spec("tensorflow") is not None
    with est.observe():
        for row in every():
            # Numba needs a driver for some of its modules; CuPy and cuda.core may be absent: `bindings/python/cuda` and the suite for
            # devices have them.
            if row.library in ("cupy", "numba", "cuda.core") or (row.library == "tensorflow" and not tensorflow):
                continue
            if row.library == "tensorflow":
                peer("tensorflow")
            assert_observed(row)
    assert all(row.role in roles.ROLES and row.source for row in every())


def assert_observed(row):
    owner = importlib.import_module(row.module)
    *path, name = row.name.split(".")
    for part in path:
        owner = getattr(owner, part)
    assert observed_in(inspect.getattr_static(owner, name)) is not None, row


# --- Programs notice nothing ------------------------------------------------------------------------------------------


def originals():
    import numpy as np
    import torch

    return [
        np.asarray,
        np.from_dlpack,
        torch.from_dlpack,
        vars(torch.Tensor).get("item"),
        vars(torch.Tensor)["__array__"],
        concurrent.futures.Future.result,
        queue.Queue.get,
        asyncio.Handle._run,
        list(sys.meta_path),
    ]


def test_nothing_stays_patched(np, torch):
    before = originals()
    with est.observe():
        assert type(np.asarray) is Observed and type(vars(torch.Tensor)["item"]) is Observed
    after = originals()
    assert before == after
    assert all(one is other for one, other in zip(before[:-1], after[:-1], strict=True))


def test_an_exception_of_the_block_leaves_nothing_patched_and_the_trace_written(np):
    before = np.asarray
    seen = est.observe()
    with pytest.raises(ZeroDivisionError), seen:
        1 / 0  # noqa: B018
    assert np.asarray is before
    assert seen.report().data["totals"]["operations"] == 0


def test_one_observation_at_a_time():
    with est.observe():
        with pytest.raises(est.ConflictError, match="observed already"):
            est.observe().start()
    with est.observe():
        pass
    with pytest.raises(RuntimeError, match="nothing is being observed"):
        est.observe().stop()
    with pytest.raises(RuntimeError, match="was not started"):
        _ = est.observe().path


def test_a_temporary_trace_goes_with_its_observation():
    with est.observe() as seen:
        pass
    path = seen.path
    assert os.path.exists(path)
    del seen
    assert not os.path.exists(os.path.dirname(path))


def test_a_wrapper_of_the_program_stays_in_place_and_works(np):
    original = np.asarray
    calls = []
    with est.observe() as seen:
        inner = np.asarray

        def mine(*args, **kwargs):
            calls.append(args)
            return inner(*args, **kwargs)

        np.asarray = mine
    try:
        assert np.asarray is mine
        assert np.asarray([1, 2]).tolist() == [1, 2] and len(calls) == 1
        with est.observe():
            assert np.asarray([3]).tolist() == [3]
        assert np.asarray is mine
    finally:
        np.asarray = original
    assert seen.report().data["exchanges"] == []


def test_wrapped_functions_are_as_the_functions(np, torch):
    source = """
        import copy, functools, inspect, pickle, types
        import numpy as np
        import torch
        import estafette as est

        def about(f):
            return (f.__name__, f.__qualname__, f.__doc__, repr(f), isinstance(f, types.FunctionType), isinstance(f, types.BuiltinFunctionType),
                    inspect.isroutine(f), callable(f), hash(f))

        functions = lambda: [np.asarray, np.from_dlpack, torch.from_dlpack, torch.Tensor.item, torch.Tensor.__array__]
        plain = functions()
        before = [about(f) for f in functions()]
        with est.observe():
            wrapped = functions()
            assert [about(f) for f in wrapped] == before
            assert wrapped == plain and plain == wrapped
            assert {f: 1 for f in wrapped}[plain[0]] == 1 and {plain[0]: 1}[wrapped[0]] == 1
            assert [f.__module__ for f in wrapped[:3]] == [f.__module__ for f in plain[:3]]
            assert inspect.signature(torch.from_dlpack) == inspect.signature(plain[2])
            part = functools.partial(np.asarray, dtype="int8")
            assert pickle.loads(pickle.dumps(wrapped[0])) is wrapped[0]
            pickled = pickle.dumps(part)
            assert copy.deepcopy(wrapped[0]) is wrapped[0]

            class Mine(torch.Tensor):
                def item(self):
                    return ("mine", super().item())

            assert torch.ones(()).as_subclass(Mine).item() == ("mine", 1.0)
            parameter = torch.nn.Parameter(torch.ones(()))
            assert parameter.item() == 1.0 and isinstance(parameter, torch.Tensor)
            bound = torch.ones(()).item
            assert bound() == 1.0 and bound.__name__ == "item"
        assert pickle.loads(pickled)([1]).dtype == "int8" and part([1]).dtype == "int8"
        assert pickle.loads(pickle.dumps(wrapped[0])) is np.asarray
        assert bound() == 1.0
    """
    run_program(source)


def test_handlers_by_function_are_found(torch):
    source = """
        import torch
        import estafette as est

        with est.observe():
            handlers = {torch.Tensor.cpu: lambda x: "handled"}

            class Mine(torch.Tensor):
                @classmethod
                def __torch_function__(cls, function, types, args=(), kwargs=None):
                    if function in handlers:
                        return handlers[function](*args)
                    return super().__torch_function__(function, types, args, kwargs or {})

            assert torch.ones(3).as_subclass(Mine).cpu() == "handled"
    """
    run_program(source)


def test_functions_that_numba_compiles_are_compiled(np):
    peer("numba")
    source = """
        import numpy as np
        import numba
        import estafette as est

        with est.observe():
            compiled = numba.njit(lambda x: np.asarray(x).sum() + np.array([1.0, 2.0]).sum())
            assert compiled(np.ones(3)) == 6.0
    """
    run_program(source)


def test_a_library_that_is_imported_or_reloaded_meanwhile_is_observed(np):
    source = """
        import importlib
        import estafette as est
        from estafette._observe.patches import Observed

        with est.observe():
            import numpy as np
            assert type(np.asarray) is Observed
            assert type(np.__loader__).__name__ == type(np.__spec__.loader).__name__ == "SourceFileLoader"
            import queue
            old = queue.Queue
            queue = importlib.reload(queue)
            assert queue.Queue is not old
            assert type(queue.Queue.get) is Observed and type(old.get) is Observed
            q = queue.Queue()
            q.put(1)
            assert q.get() == 1
        assert type(np.asarray) is not Observed
        assert type(queue.Queue.get) is type(old.get) is type(lambda: None)
    """
    run_program(source)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_observes_nothing_and_may_end_the_block(np, tmp_path):
    source = f"""
        import os
        import numpy as np
        import estafette as est

        path = {str(tmp_path / "run.pftrace")!r}
        with est.observe(path):
            child = os.fork()
            assert np.asarray([1]).tolist() == [1]
            if child != 0:
                # The child leaves the block, and its own, and has written its own trace only.
                assert os.waitpid(child, 0)[1] == 0
                assert not os.path.exists(path)
        if child == 0:
            with est.observe(path + ".child"):
                assert np.asarray([1]).tolist() == [1]
            os._exit(0 if os.path.exists(path + ".child") else 1)
        assert est.report(path).data["missing"] == []
    """
    run_program(source)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_that_ends_as_programs_do_leaves_the_observation_to_its_parent(tmp_path):
    source = """
        import os
        import sys
        import estafette as est

        with est.observe() as seen:
            child = os.fork()
            if child == 0:
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        assert seen.report().data["missing"] == []
    """
    run_program(source)
    script = tmp_path / "forks.py"
    script.write_text("import os, sys\nchild = os.fork()\nif child == 0:\n    sys.exit(0)\nsys.exit(os.waitpid(child, 0)[1] or 7)\n")
    done = subprocess.run([sys.executable, "-m", "estafette", "observe", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("What the run time was spent on") <= 1


def test_what_is_loaded_while_the_observation_ends_and_later_is_not_observed():
    with est.observe():
        finder = sys.meta_path[0]
        before = finder.find_spec("queue")
    for spec in (before, finder.find_spec("queue")):
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert observed_in(module.Queue.get) is None

    class Queue:
        def get(self):
            pass

    class Ending:
        @property
        def Queue(self):
            patches.remove()
            return Queue

    patches = Patches(every(), roles.ROLES)
    patches.place_in("queue", Ending())
    assert observed_in(Queue.get) is None


def test_an_observation_that_cannot_begin_leaves_nothing_behind(monkeypatch):
    def interrupted(self):
        place(self)
        raise KeyboardInterrupt

    place = Patches.place
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Patches, "place", interrupted)
        est.observe().start()
    assert observed_in(queue.Queue.get) is None
    # Another thread may be importing it.
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    with est.observe():
        pass


def test_a_class_that_cannot_be_hashed_is_converted_all_the_same(np, torch):
    class Meta(type):
        __hash__ = None

    class Values(list, metaclass=Meta):
        pass

    with est.observe() as seen:
        assert np.asarray(Values([1, 2])).tolist() == torch.tensor([1, 2]).tolist()
    (missing,) = seen.report().data["missing"]
    assert "unhashable" in missing


def test_names_and_sizes_that_no_file_can_hold_do_not_lose_the_trace(np, monkeypatch):
    class Negative(list):
        dtype, shape, nbytes = "float32", (1,), -1

        def __array__(self, dtype=None, copy=None):
            return np.ones(1, "float32")

    code = compile("np.array(values)", "folder\udce9/program.py", "exec")
    monkeypatch.setattr(sys, "argv", ["\udce9.py"])
    with est.observe() as seen:
        exec(code, {"__name__": "program", "np": np, "values": Negative()})
    assert [row["copies"] for row in seen.report().data["exchanges"]] == [1]


def test_many_threads_are_observed_at_once(torch):
    def work():
        for _ in range(200):
            assert torch.ones(3).tolist() == [1.0, 1.0, 1.0]

    threads = [threading.Thread(target=work, name=f"worker {at}") for at in range(4)]
    with est.observe() as seen:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    row = between(seen.report(), "torch", "host")
    assert (row["count"], row["copied_bytes"]) == (800, 800 * 12)
    assert seen.report().data["missing"] == []


def test_calls_that_no_python_code_makes_succeed_and_are_noted(np, torch, monkeypatch):
    """The workers of an engine ask so for results."""
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    source = np.ones(2)
    with est.observe() as seen:
        _thread.start_new_thread(torch.ones(2).__dlpack__, ())
        _thread.start_new_thread(torch.from_dlpack, (source,))
        while not (raised or roles.open_notes.broken) and len(roles.open_notes.exchanges) < 2:
            time.sleep(0.001)
    assert raised == []
    data = seen.report().data
    assert sorted(row["producer"] for row in data["exchanges"]) == ["numpy", "torch"] and data["missing"] == []


def test_what_does_not_fit_is_counted(torch, monkeypatch):
    from estafette._observe import notes

    monkeypatch.setattr(notes, "STEPS_MAX", 10)
    with est.observe() as seen:
        for _ in range(20):
            torch.ones(2).tolist()
    (missing,) = seen.report().data["missing"]
    assert "were not kept" in missing


# --- The command ------------------------------------------------------------------------------------------------------


def test_the_command_gives_the_program_its_arguments_and_makes_the_page(tmp_path):
    (tmp_path / "beside.py").write_text("value = 5")
    script = tmp_path / "program.py"
    script.write_text("import sys, beside\nprint(__name__, sys.argv[1:], beside.value)\nsys.exit(3)\n")
    page = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-m", "estafette", "observe", "--html", page, script, "--html", "x"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert done.stdout == "__main__ ['--html', 'x'] 5\n"
    assert "Causes of waiting" in done.stderr
    assert "<!doctype html>" in page.read_text(encoding="utf-8").lower()


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [("sys.exit(3)", 3, []), ("", 0, []), ("raise KeyError('own')", 1, ["KeyError: 'own'"]), ("sys.stderr.close(); sys.exit(4)", 4, None)],
)
@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_a_report_that_cannot_be_written_leaves_the_program_its_exit_code(tmp_path, option, ending, code, said):
    out = tmp_path / "out"
    out.mkdir()
    script = tmp_path / "program.py"
    script.write_text(f"import shutil, sys\nshutil.rmtree({str(out)!r})\n{ending}\n")
    done = subprocess.run(
        [sys.executable, "-m", "estafette", "observe", option, out / "written", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    if said is not None:
        assert "estafette observe: " in done.stderr and "written" in done.stderr, done.stderr
        assert done.stderr.count("Traceback") == len(said) and all(words in done.stderr for words in said)
        # Without a page the report is there.
        assert ("Causes of waiting" in done.stderr) == (option == "--html")


def test_the_command_replaces_no_file_of_another_kind(tmp_path, capsys):
    script, other = tmp_path / "program.py", tmp_path / "other.py"
    for path in (script, other):
        path.write_text("raise AssertionError('it runs')")
    for arguments, words in (
        (["--html", other], "other.py"),
        (["--html", script], "program.py"),
        (["--trace", script], "program.py is the program itself"),
        (["--html", tmp_path], "no regular file"),
        (["--trace", tmp_path], "no regular file"),
        (["--trace", other], "other.py"),
        (["--trace", tmp_path / "one", "--html", tmp_path / "one"], "the same file"),
    ):
        assert command([str(argument) for argument in [*arguments, script]]) == 2
        assert words in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.py", "program.py"]
    assert script.read_text() == other.read_text() == "raise AssertionError('it runs')"


def test_the_command_replaces_an_earlier_trace(tmp_path):
    trace = tmp_path / "program.pftrace"
    for name in ("first", "second"):
        script = tmp_path / f"{name}.py"
        script.touch()
        observe = [sys.executable, "-m", "estafette", "observe", "--trace", trace, script]
        assert subprocess.run(observe, timeout=60).returncode == 0
        assert est.report(trace).data["program"] == script.name


def test_the_command_runs_folders_and_archives_as_the_interpreter_does(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "beside.py").write_text("value = 5")
    (folder / "__main__.py").write_text("import sys, beside\nprint(__name__, sys.argv[1:], beside.value)\nsys.exit(3)\n")
    archive = tmp_path / "program.pyz"
    zipapp.create_archive(folder, archive)
    for program in (folder, archive):
        for command in (["-m", "estafette", "observe"], []):
            done = subprocess.run([sys.executable, *command, program, "x"], capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stdout) == (3, "__main__ ['x'] 5\n"), done.stderr


def test_the_command_keeps_the_paths_of_an_interpreter_that_adds_none(tmp_path):
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "beside.py").write_text("value = 5")
    script = tmp_path / "program.py"
    script.write_text("import beside\nprint(beside.value)\n")
    path = os.pathsep.join([str(tmp_path / "library"), *sys.path])
    for program in ([script], ["-m", "beside"]):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "estafette", "observe", *program],
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | {"PYTHONPATH": path},
        )
        assert done.returncode == 0, done.stderr


def test_the_end_of_a_program_ends_the_threads_of_executors_that_it_never_shut_down(observed):
    """They wait for work until the interpreter's exit, which the command once waited for in vain."""
    report, printed = observed(
        """
        import concurrent.futures, json, time
        pool = concurrent.futures.ThreadPoolExecutor(2)
        last = pool.submit(time.sleep, 0.05)
        print(json.dumps(pool.submit(len, "abc").result()))
        """
    )
    assert printed == 3
    # Up to the end of what was under way.
    assert report.data["duration_ns"] > 40e6


def test_the_command_runs_modules_and_says_what_is_wrong_with_its_arguments(capsys):
    done = subprocess.run(
        [sys.executable, "-m", "estafette", "observe", "-m", "json.tool", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "json" in done.stdout
    assert command([]) == 2
    assert command(["--html"]) == 2
    assert command(["--unknown", "x"]) == 2
    assert "usage:" in capsys.readouterr().err
    for option in ("--html", "--trace"):
        assert command([option, "-", "x"]) == 2
        assert capsys.readouterr().err == f"estafette observe: {option} writes a file and not to the standard output\n"
    # Before the program runs.
    assert command(["--trace", "/nowhere/x", "--html", "/nowhere/y", "nothing.py"]) == 2
    assert capsys.readouterr().err == "estafette observe: cannot write /nowhere/x, cannot write /nowhere/y, cannot read nothing.py\n"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert command(["--help"]) == 0
    assert "usage:" in out.getvalue()


@pytest.mark.parametrize(("program", "why"), [(["."], "__main__"), (["-m", "nope"], "nope"), (["-m", "json"], "json.__main__")])
def test_a_program_that_is_not_there_is_an_error_without_a_report(tmp_path, program, why):
    done = subprocess.run(
        [sys.executable, "-m", "estafette", "observe", *program], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("estafette observe: ") and why in line, line


def test_an_error_of_the_program_itself_has_its_traceback_and_a_report(tmp_path):
    (tmp_path / "mine.py").write_text("import nope\n")
    for program in (["mine.py"], ["-m", "mine"]):
        done = subprocess.run(
            [sys.executable, "-m", "estafette", "observe", *program], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert done.returncode == 1
        assert "Traceback" in done.stderr and "Worst waits" in done.stderr
