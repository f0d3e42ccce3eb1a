"""Forked children: a clear error for what they inherit, engines of their own, an untouched parent. Each test is a program of its own."""

import re
import sys
from pathlib import Path

import pytest

from conftest import run_program

pytestmark = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork on this platform")

PRELUDE = """
import concurrent.futures, os, sys, gc, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import numpy as np
import estafette as est

def in_child(check):
    pid = os.fork()
    if pid == 0:
        try:
            check()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
"""


def program(source, **options):
    import textwrap

    return run_program(PRELUDE + textwrap.dedent(source), **options)


def test_every_use_in_a_forked_child_is_a_clear_error(np):
    program(
        """
        eng = est.Engine(workers=2)
        x = eng.from_dlpack(np.arange(3.0))
        y = eng.zeros(3, "float32")
        op = eng.submit(lambda y: y.fill(1), writes=[y], using=np.from_dlpack)
        op.wait()
        var = eng.var()
        exporter = y.for_write()

        def check():
            uses = [
                lambda: eng.submit(print), lambda: eng.call(print), lambda: eng.zeros(1, "int8"),
                lambda: eng.from_dlpack(np.zeros(1)), lambda: eng.wait_all(), lambda: eng.stats(),
                lambda: eng.diagnose(), lambda: eng.var(), lambda: eng.shutdown(), lambda: eng.access(reads=[x]),
                lambda: x.wait(), lambda: x.is_ready(), lambda: x.shape, lambda: x.dtype, lambda: x.device,
                lambda: x.__dlpack__(), lambda: x.__dlpack_device__(), lambda: x.clear_error(),
                lambda: np.from_dlpack(exporter), lambda: x.read().__enter__(), lambda: x.__await__(),
                lambda: op.wait(), lambda: op.cancel(), lambda: op.name, lambda: var.id,
                lambda: eng.from_future(concurrent.futures.Future()),
            ]
            for number, use in enumerate(uses):
                try:
                    use()
                except est.ForkedError as error:
                    assert "spawn" in str(error), error
                else:
                    raise AssertionError(f"use {number} did not fail")
            assert "parent" in repr(x) and "parent" in repr(eng) and "parent" in repr(op)

        in_child(check)
        assert np.from_dlpack(y).tolist() == [1, 1, 1]
        eng.submit(lambda y: y.fill(2), writes=[y], using=np.from_dlpack).wait(10)
        eng.shutdown()
        """
    )


def test_a_child_that_was_forked_in_a_function_starts_no_thread_of_its_parents_engine(np):
    program(
        """
        eng = est.Engine(workers=1)

        def check():
            own = est.Engine(workers=1)
            own.submit(lambda: None).wait(10)
            names = {open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")}
            # Others would be spare threads.
            assert {name for name in names if name[-1].isdigit()} == {"estafette-0"}, names

        eng.submit(lambda: in_child(check)).wait(20)
        """
    )


def test_a_child_drops_what_it_inherited_without_touching_the_parent(np):
    program(
        """
        eng = est.Engine(workers=2)
        source = np.arange(3.0)
        x = eng.from_dlpack(source)
        array = np.from_dlpack(x)
        written = np.from_dlpack(eng.zeros(3, "float32").for_write())

        def check():
            global x, array, written, eng, source
            del x, array, written, eng, source
            gc.collect()

        in_child(check)
        assert array.tolist() == [0, 1, 2]
        op = eng.submit(lambda x: x.fill(5), writes=[x], using=np.from_dlpack)
        assert not op.is_done()
        del array
        op.wait(10)
        assert source.tolist() == [5, 5, 5]
        before = eng.stats()
        del x
        import time
        while eng.stats().deleters == before.deleters:
            time.sleep(0.001)
        assert eng.stats().leaked == before.leaked
        eng.shutdown()
        """
    )


def test_a_fork_with_operations_in_flight_hurts_nobody(np):
    program(
        """
        import threading, time
        eng = est.Engine(workers=2)
        x = eng.zeros(1000, "int64")
        for i in range(300):
            eng.submit(lambda a, b: np.add(a, 1, out=b), reads=[x], writes=[x], using=np.from_dlpack)
            if i % 60 == 0:
                in_child(lambda: None)
        x.wait()
        assert (np.from_dlpack(x) == 300).all()
        eng.shutdown()
        """
    )


def test_futures_that_end_in_a_child_end_nothing_of_the_parents(np):
    program(
        """
        eng = est.Engine(workers=1)
        futures = [concurrent.futures.Future() for _ in range(3)]
        tensors = [eng.from_future(future) for future in futures]

        def check():
            global futures, tensors
            futures[0].set_result(np.zeros(1))
            futures[1].cancel()
            del futures, tensors
            gc.collect()

        in_child(check)
        assert not any(tensor.is_ready() for tensor in tensors)
        for future in futures:
            future.set_result(np.ones(1))
        assert [np.from_dlpack(tensor)[0] for tensor in tensors] == [1, 1, 1]
        eng.shutdown()
        """
    )


def test_a_child_exits_normally_through_pythons_exit(np):
    program(
        """
        eng = est.Engine(workers=2)
        x = eng.from_dlpack(np.arange(3.0))
        array = np.from_dlpack(x)
        pid = os.fork()
        if pid == 0:
            sys.exit(7)      # runs atexit and finalizes the interpreter
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        eng.shutdown()
        """
    )


def test_a_child_forked_before_any_engine_may_have_one(np):
    program(
        """
        def check():
            with est.Engine(workers=1) as eng:
                x = eng.zeros(3, "float32")
                eng.submit(lambda x: x.fill(1), writes=[x], using=np.from_dlpack)
                x.wait()

        in_child(check)
        """
    )


def test_children_forked_with_work_in_flight_have_engines_of_their_own(np):
    program(
        """
        import asyncio, signal
        eng = est.Engine(workers=2)
        x = eng.zeros(1, "int64")
        default = est.default_engine()

        def adds(a):
            a += 1

        def child(how):
            signal.alarm(60)
            own = est.Engine(workers=how % 3)
            y = own.zeros(1, "int64")
            for _ in range(50):
                own.submit(adds, writes=[y], using=np.from_dlpack)
            assert np.from_dlpack(y).tolist() == [50]
            with y.read():
                pass

            async def waits():
                return await own.call(np.square, y, using=np.from_dlpack)

            assert np.from_dlpack(asyncio.run(waits())).tolist() == [2500]
            for use in (lambda: own.submit(print, reads=[x]), lambda: own.call(np.square, x, using=np.from_dlpack), lambda: eng.zeros(1, "int8")):
                try:
                    use()
                except est.ForkedError:
                    continue
                os._exit(4)
            assert est.default_engine() is not default
            assert np.from_dlpack(est.from_dlpack(np.ones(1))).tolist() == [1]
            if how % 2:
                own.submit(lambda: None)
                os._exit(7)
            sys.exit(7)

        for how in range(12):
            for _ in range(10):
                eng.submit(adds, writes=[x], using=np.from_dlpack)
            pid = os.fork()
            if pid == 0:
                child(how)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 7, (how, status)
        assert np.from_dlpack(x).tolist() == [120]
        eng.shutdown()
        """
    )


def test_a_pool_of_forked_processes_and_the_workers_of_a_data_loader(np):
    pytest.importorskip("torch")
    guide = (Path(__file__).parents[3] / "docs/python.md").read_text()
    (data_loader,) = re.findall(r"^```python notest\n(.*?)^```", guide, re.M | re.S)
    program(
        f"""
        import multiprocessing
        import torch

        multiprocessing.set_start_method("fork")

        exec({data_loader!r})

        def square(n):
            with est.Engine(workers=1) as eng:
                return float(np.from_dlpack(eng.call(np.square, eng.from_dlpack(np.full(2, float(n))), using=np.from_dlpack))[0])

        eng = est.Engine(workers=2)
        x = eng.zeros(1, "int64")
        for _ in range(50):
            eng.submit(lambda a: a.__iadd__(1), writes=[x], using=np.from_dlpack)
        batches = list(loader)
        assert torch.cat(batches)[:, 0].tolist() == [float(i * i) for i in range(32)]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(square, range(6)) == [float(n * n) for n in range(6)]
        assert np.from_dlpack(x).tolist() == [50]
        eng.shutdown()
        """
    )


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(np, tmp_path, method):
    import os
    import subprocess

    script = tmp_path / "program.py"
    script.write_text(
        f"""
import multiprocessing, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import numpy as np
import estafette as est

def child(connection):
    with est.Engine(workers=1) as eng:
        x = eng.zeros(3, "float32")
        eng.submit(lambda x: x.fill(4), writes=[x], using=np.from_dlpack)
        x.wait()
        connection.send(np.from_dlpack(x).tolist())

if __name__ == "__main__":
    with est.Engine(workers=2) as eng:
        y = eng.zeros(3, "float32")
        context = multiprocessing.get_context({method!r})
        ours, theirs = context.Pipe()
        process = context.Process(target=child, args=(theirs,))
        process.start()
        print(ours.recv())
        process.join(20)
        assert process.exitcode == 0, process.exitcode
        eng.submit(lambda y: y.fill(1), writes=[y], using=np.from_dlpack).wait(10)
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[4.0, 4.0, 4.0]"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_failure_in_a_process_of_multiprocessing_is_heard(tmp_path, method):
    import os
    import subprocess

    script = tmp_path / "program.py"
    script.write_text(
        f"""
import logging, multiprocessing, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import estafette as est

kept = []

def child():
    eng = est.Engine(workers=1)
    x = eng.zeros(3, "float32")
    eng.submit(lambda x: 1 / 0, writes=[x])
    # The tensor holds the failure until the process ends.
    kept.extend([eng, x])

if __name__ == "__main__":
    process = multiprocessing.get_context({method!r}).Process(target=child)
    process.start()
    process.join(20)
    assert process.exitcode == 0, process.exitcode
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ZeroDivisionError") == 1, done.stderr


def test_a_child_may_record_and_be_shown_although_another_thread_was_at_that(np, tmp_path):
    program(
        f"""
        import signal
        from estafette import _trace, _top

        os.environ["XDG_RUNTIME_DIR"] = {str(tmp_path)!r}

        def check():
            signal.alarm(20)
            with est.record({str(tmp_path / "child.pftrace")!r}):
                pass
            est.serve_top()

        os.makedirs({str(tmp_path / "estafette")!r}, 0o700)
        with _trace._sites._lock.now, _top._lock.now:
            in_child(check)
        """
    )
