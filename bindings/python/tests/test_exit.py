"""The interpreter's exit with everything open: it neither hangs nor crashes. Each test is a program of its own."""

import re
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
    "operations running": """
        ops = [eng.submit(lambda: time.sleep(0.2)) for _ in range(20)]
        """,
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
    "a failed operation that is kept": """
        def fail(): raise ValueError('kept')
        op = eng.submit(fail)
        try:
            op.wait()
        except est.OperationError as error:
            kept = error
        """,
    "scoped leases never left": """
        t = eng.zeros(1, 'int8')
        access = eng.access(writes=[t])
        (view,) = access.__enter__()
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


# Failures at the end that nothing has looked at are reported. A loop may be gone by then or not, with what it had to run.
FAILING = {
    "asynchronous bodies on a loop that ended": """
        async def main():
            async def never():
                await asyncio.sleep(3600)
            return eng.submit(never)
        # `asyncio.run` would cancel what has begun by then, which is no failure.
        loop = asyncio.new_event_loop()
        op = loop.run_until_complete(main())
        loop.close()
        """,
    "coroutines of a loop that ended without them": """
        loop = asyncio.new_event_loop()
        async def main():
            return eng.from_future(asyncio.get_running_loop().create_future())
        tensor = loop.run_until_complete(main())
        """,
}


@pytest.mark.parametrize("case", FAILING)
def test_exit_reports_what_fails_with(np, case):
    _, errors = program(FAILING[case])
    assert errors.count("never retrieved") + errors.count("abandoned at exit") == 1, errors
    assert "`Future`" in errors or "`main.<locals>.never`" in errors, errors


# Operations that cannot end are named.
ABANDONED = {
    "operations waiting for a lease": """
        t = eng.zeros(3, 'int8')
        a = np.from_dlpack(t)
        ops = [eng.submit(lambda t: t.fill(1), writes=[t], using=np.from_dlpack) for _ in range(100)]
        z = eng.call(lambda t: t + 1, t, using=np.from_dlpack)
        """,
    "operations busy in Python for ever": """
        def spin():
            while True:
                pass
        eng.submit(spin)
        time.sleep(0.05)
        """,
    "operations asleep for a long time": "eng.submit(lambda: time.sleep(3600)); time.sleep(0.05)",
    "futures that never end": """
        from concurrent.futures import Future
        futures = [Future() for _ in range(10)]
        tensors = [eng.from_future(future) for future in futures]
        op = eng.submit(lambda x: None, reads=tensors[:1])
        """,
    "the default engine with everything": """
        t = est.from_dlpack(np.arange(4.0))
        a = np.from_dlpack(t)
        est.default_engine().submit(lambda t: None, writes=[t])
        """,
}


@pytest.mark.parametrize("case", ABANDONED)
def test_exit_names_what_it_abandons_with(np, case):
    _, errors = program(ABANDONED[case])
    assert errors.count("estafette: operations are abandoned at exit") == 1, errors
    assert len(errors.splitlines()) > 1 and "Traceback" not in errors, errors


@pytest.mark.parametrize("case", CASES)
def test_exit_with(np, case):
    output, errors = program(CASES[case])
    assert errors == ""


def test_exit_by_an_exception_keeps_its_exit_code(np):
    _, errors = program("t = eng.zeros(1, 'int8'); a = np.from_dlpack(t); raise SystemExit(9)", expect=9)
    assert not errors
    _, errors = program("a = np.from_dlpack(eng.zeros(1, 'int8')); raise ValueError('end')", expect=1)
    assert "ValueError: end" in errors


def test_exit_while_a_function_in_c_comes_back_to_an_interpreter_that_finalizes(np):
    # The function blocks in C, without the Python lock, until an object goes that only the end of the interpreter drops. Then it
    # wants the lock.
    output, errors = program(
        """
        import ctypes, os
        read_end, write_end = os.pipe()
        read = ctypes.CDLL(None).read
        class Last:
            def __del__(self, write=os.write, sleep=time.sleep):
                write(write_end, b"!")
                sleep(1)
        sys.modules["last"] = Last()
        eng.submit(lambda: read(read_end, ctypes.create_string_buffer(1), 1))
        eng.submit(lambda: None).wait()
        print("said before the end")
        sys.exit(7)
        """,
        expect=7,
    )
    assert output == "said before the end\n"
    assert errors.count("estafette: operations are abandoned at exit") == 1, errors


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


@pytest.mark.parametrize("workers", [0, 1])
def test_finalizers_after_the_end_use_what_is_left_and_get_clear_errors_for_the_rest(workers):
    output, errors = run_program(
        f"""
        import atexit

        def late(where, est, eng, t):
            def said(use):
                try:
                    return use()
                except est.EstafetteError as error:
                    return f"{{type(error).__name__}}: {{error}}"

            print(where, said(lambda: eng.zeros(2, "int8").shape), said(lambda: memoryview(t).tolist()))
            print(said(lambda: eng.submit(len, name="late").wait(5)), type(eng.submit(len).exception(5)).__name__)
            print(said(lambda: memoryview(eng.call(bytes, using=None))), said(eng.wait_all))
            uses = lambda: est.Engine(workers=1), eng.stats, lambda: eng.call(len, x=1), lambda: t.future(), eng.diagnose
            print({{said(use) for use in (uses[:1] if where == "atexit" else uses)}})

        # A function that was registered before the package was imported is called after the package's own.
        atexit.register(lambda: late("atexit", est, eng, t))
        import estafette as est
        eng = est.Engine(workers={workers}, failures="ignore")
        t = eng.zeros(1, "int8")
        t.wait()

        class Late:
            def __del__(self, late=late, arguments=(est, eng, t)):
                late("finalizer", *arguments)

        def generator(late=late, arguments=(est, eng, t)):
            try:
                yield
            finally:
                late("generator", *arguments)

        finalized, generated = Late(), generator()
        next(generated)
        """
    )
    why = "the Python interpreter is shutting down"
    output = re.sub(r"\(op \d+\)", "(op)", output).splitlines()
    for lines, where in zip((output[:4], output[4:8], output[8:]), ("atexit", "finalizer", "generator"), strict=True):
        assert lines == [
            f"{where} (2,) [0]",
            f"OperationError: operation `late` (op) failed: {why} OperationError",
            f"OperationError: operation `bytes` (op) failed: {why} None",
            str({f"ShutdownError: {why}"}),
        ], (output, errors)
    assert not errors, errors


class TestPending:
    """Operations in flight when the program ends run to their end, as with `concurrent.futures`."""

    def test_runs_to_its_end(self):
        output, errors = program(
            """
            t = eng.zeros(1, "int8")
            for number in range(20):
                eng.submit(lambda t, number=number: sys.stdout.write(f"{number}\\n"), writes=[t])
            eng.submit(lambda: sys.stdout.write("without operands\\n"))
            """
        )
        assert errors == ""
        assert [line for line in output.split("\n") if line.isdigit()] == [str(number) for number in range(20)]
        assert "without operands" in output

    def test_may_use_threads_and_executors(self):
        output, errors = program(
            """
            from concurrent.futures import ThreadPoolExecutor
            pool = ThreadPoolExecutor(1)
            def body():
                thread = threading.Thread(target=lambda: print("by a thread"))
                thread.start()
                thread.join()
                print(pool.submit(lambda: "by an executor").result())
            var = eng.var()
            ending = threading.Event()
            threading._register_atexit(ending.set)      # called first, since it is registered last
            eng.submit(ending.wait, writes=[var])
            op = eng.submit(body, writes=[var])
            """
        )
        assert errors == ""
        assert "by a thread" in output and "by an executor" in output

    def test_of_threads_that_outlive_the_main_one_runs_too(self):
        output, errors = program(
            """
            def late():
                threading.main_thread().join()
                op = eng.submit(lambda: print("late"))
            threading.Thread(target=late).start()
            """
        )
        assert errors == "" and output == "late\n"

    def test_that_fails_is_reported(self):
        _, errors = program(
            """
            t = eng.zeros(1, "int8")
            eng.submit(lambda t: time.sleep(0.1), writes=[t])
            eng.submit(lambda t: 1 / 0, writes=[t], name="last")
            """
        )
        assert errors.count("never retrieved") == 1 and "`last`" in errors, errors

    @pytest.mark.parametrize("workers", [0, 1])
    def test_of_an_engine_that_no_object_has_any_more_runs_and_is_reported(self, workers):
        output, errors = program(
            f"""
            def main():
                own = est.Engine(workers={workers})
                t = own.zeros(1, "int8")
                view = np.from_dlpack(t)
                own.submit(lambda t: print("ran"), writes=[t])
                own.submit(lambda t: 1 / 0, writes=[t], name="last")
                return view
            view = main()
            threading.Timer(0.3, lambda: globals().pop("view")).start()
            """
        )
        assert output == "ran\n" and errors.count("never retrieved") == 1 and "`last`" in errors, (output, errors)

    def test_that_never_ends_is_named(self):
        _, errors = program(
            """
            def endless():
                time.sleep(3600)
            t = eng.zeros(1, "int8")
            eng.submit(endless)
            eng.submit(lambda t: time.sleep(3600), writes=[t], name="holds_t")
            eng.submit(lambda t: None, writes=[t], name="behind")
            del t, eng
            """
        )
        assert "endless" in errors and "`holds_t` is running" in errors and "`behind` waits for" in errors, errors

    def test_is_named_alone_where_functions_have_ended_between_its_own_on_other_threads(self):
        _, errors = program(
            """
            # The thread that waits runs the function.
            eng = est.Engine(workers=0)
            events = begun, entered, leave, left = [threading.Event() for _ in range(4)]
            def other():
                begun.set()
                leave.wait(60)
            def inner():
                entered.set()
                left.wait(60)
            def outer():
                eng.submit(inner).wait()
                time.sleep(3600)
            waits = [threading.Thread(target=lambda op=eng.submit(f): op.wait(), daemon=True) for f in (other, outer)]
            waits[0].start()
            begun.wait(60)
            waits[1].start()
            entered.wait(60)
            leave.set()
            waits[0].join()
            left.set()
            """
        )
        assert "`outer` is running" in errors and "inner" not in errors, errors

    def test_that_submits_itself_for_ever_does_not_keep_the_program(self):
        _, errors = program(
            """
            def again():
                time.sleep(0.001)
                eng.submit(again)
            eng.submit(again)
            """
        )
        assert "abandoned at exit" in errors, errors

    def test_is_abandoned_by_ctrl_c(self):
        _, errors = program(
            """
            import os, signal
            from estafette._estafette import _before_threads_end
            signal.signal(signal.SIGINT, signal.default_int_handler)
            def exit_waits():
                frame = sys._current_frames()[threading.main_thread().ident]
                return frame.f_code.co_name == "_shutdown" and frame.f_locals["atexit_call"].func is _before_threads_end
            def endless():
                while not exit_waits():
                    time.sleep(0.001)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(3600)
            eng.submit(endless)
            """
        )
        assert "the wait for them was interrupted" in errors and "endless" in errors, errors
        assert "Traceback" not in errors, errors

    def test_is_reported_also_where_ctrl_c_comes_while_it_is_reported(self):
        _, errors = program(
            """
            import os, signal
            import estafette._failures as failures
            signal.signal(signal.SIGINT, signal.default_int_handler)
            say = failures.say_abandoned
            def interrupted(*args):
                failures.say_abandoned = say
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(3600)
            failures.say_abandoned = interrupted
            def endless():
                time.sleep(3600)
            eng.submit(endless)
            """
        )
        assert "the wait for them was interrupted" in errors and "endless" in errors, errors
        assert "Traceback" not in errors, errors
