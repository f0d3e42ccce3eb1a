"""The interpreter's exit with everything open: it neither hangs nor crashes. Each test is a program of its own."""

import textwrap
import time

import pytest

from conftest import run_program

PRELUDE = """
import asyncio, gc, sys, threading, time
import numpy as np
import estafette as est
eng = est.Engine(workers=2)
"""


def program(source, **options):
    began = time.monotonic()
    output = run_program(PRELUDE + textwrap.dedent(source), **options)
    assert time.monotonic() - began < 30
    return output


CASES = {
    "nothing at all": "",
    "open exports": "a = np.from_dlpack(eng.zeros(3, 'float64')); b = np.from_dlpack(eng.zeros(3, 'int8').for_write())",
    "live imports": "tensors = [eng.from_dlpack(np.arange(10.0)) for _ in range(100)]",
    "exports in cycles": "c = [np.from_dlpack(eng.zeros(3, 'int8'))]; c.append(c); gc.disable()",
    "operations waiting for a lease": """
        t = eng.zeros(3, 'int8')
        a = np.from_dlpack(t)
        ops = [eng.submit(lambda t: t.fill(1), writes=[t], using=np.from_dlpack) for _ in range(100)]
        z = eng.call(lambda t: t + 1, t, using=np.from_dlpack)
        """,
    "operations running": """
        ops = [eng.submit(lambda: time.sleep(0.2)) for _ in range(20)]
        """,
    "operations busy in Python for ever": """
        def spin():
            while True:
                pass
        eng.submit(spin)
        time.sleep(0.05)
        """,
    "operations asleep for a long time": "eng.submit(lambda: time.sleep(3600)); time.sleep(0.05)",
    "operations waiting inside operations": """
        t = eng.zeros(1, 'int8')
        gate = threading.Event()
        eng.submit(lambda _: gate.wait(1), writes=[t])
        eng.submit(lambda: t.wait())
        eng.submit(lambda: np.from_dlpack(t).sum())
        time.sleep(0.05)
        """,
    "daemon threads that wait": """
        t = eng.zeros(1, 'int8')
        gate = threading.Event()
        eng.submit(lambda _: gate.wait(1), writes=[t])
        for _ in range(4):
            threading.Thread(target=t.wait, daemon=True).start()
        for _ in range(4):
            threading.Thread(target=lambda: np.from_dlpack(t), daemon=True).start()
        time.sleep(0.05)
        """,
    "deleters that are due": """
        for _ in range(10_000):
            eng.from_dlpack(np.zeros(3))
        """,
    "an await that was never resumed": """
        t = eng.zeros(1, 'int8')
        gate = threading.Event()
        eng.submit(lambda _: gate.wait(1), writes=[t])
        loop = asyncio.new_event_loop()
        async def main():
            awaiter = t.__await__()
            next(awaiter)
            return awaiter
        awaiter = loop.run_until_complete(main())
        """,
    "asynchronous bodies on a loop that ended": """
        async def main():
            async def never():
                await asyncio.sleep(3600)
            return eng.submit(never)
        op = asyncio.run(main())
        """,
    "a failed operation that is kept": """
        def fail(): raise ValueError('kept')
        op = eng.submit(fail)
        try:
            op.wait()
        except est.OperationError as error:
            kept = error
        """,
    "the default engine with everything": """
        t = est.from_dlpack(np.arange(4.0))
        a = np.from_dlpack(t)
        est.default_engine().submit(lambda t: None, writes=[t])
        """,
    "scoped leases never left": """
        t = eng.zeros(1, 'int8')
        access = eng.access(writes=[t])
        (view,) = access.__enter__()
        """,
    "futures that never end": """
        from concurrent.futures import Future
        futures = [Future() for _ in range(10)]
        tensors = [eng.from_future(future) for future in futures]
        op = eng.submit(lambda x: None, reads=tensors[:1])
        """,
    "futures of a thread pool under way": """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(2)
        tensors = [eng.from_future(pool.submit(lambda: (time.sleep(0.1), np.ones(3))[1])) for _ in range(6)]
        total = eng.call(lambda *xs: sum(xs), *tensors, using=np.from_dlpack)
        """,
    "futures of daemon threads that end at any moment": """
        from concurrent.futures import Future
        def ends(future):
            time.sleep(0.001 * len(tensors))
            future.set_result(np.ones(3))
        tensors = []
        for _ in range(100):
            future = Future()
            tensors.append(eng.from_future(future))
            threading.Thread(target=ends, args=(future,), daemon=True).start()
        """,
    "coroutines of a loop that ended without them": """
        loop = asyncio.new_event_loop()
        async def main():
            return eng.from_future(asyncio.get_running_loop().create_future())
        tensor = loop.run_until_complete(main())
        """,
    "operations submitted by atexit callbacks": """
        import atexit
        def late():
            try:
                eng.submit(lambda: None).wait(1)
            except (est.EstafetteError, TimeoutError):
                pass
        atexit.register(late)
        """,
}


@pytest.mark.parametrize("case", CASES)
def test_exit_with(np, case):
    output, errors = program(CASES[case])
    assert errors == ""


def test_exit_by_an_exception_keeps_its_exit_code(np):
    _, errors = program("t = eng.zeros(1, 'int8'); a = np.from_dlpack(t); raise SystemExit(9)", expect=9)
    assert not errors
    _, errors = program("a = np.from_dlpack(eng.zeros(1, 'int8')); raise ValueError('end')", expect=1)
    assert "ValueError: end" in errors


def test_exit_from_another_thread_and_with_engines_of_all_ages(np):
    program(
        """
        engines = [est.Engine(workers=2) for _ in range(20)]
        tensors = [engine.zeros(3, 'float32') for engine in engines]
        for engine, tensor in zip(engines, tensors):
            engine.submit(lambda t: t.fill(1), writes=[tensor], using=np.from_dlpack)
        del engines[::2], engine
        threading.Thread(target=lambda: [t.wait() for t in tensors]).start()
        """
    )


def test_deleters_that_are_due_at_exit_are_run(np):
    output, _ = run_program(
        """
        import atexit, weakref
        import numpy as np
        count = 0
        def gone(_):
            global count
            count += 1
        atexit.register(lambda: print(count))       # before the import: runs after the package's exit
        import estafette as est
        eng = est.Engine(workers=1)
        arrays = [np.zeros(3) for _ in range(1000)]
        references = [weakref.ref(array, gone) for array in arrays]
        tensors = [eng.from_dlpack(array) for array in arrays]
        del tensors, arrays
        """
    )
    assert output.strip() == "1000"
