"""Forks and exits beyond the plain cases of `test_fork` and `test_exit`: at awkward moments, and with peers' arrays open.

Each case is a program of its own, so that what it does to its process is not done to the tests'.
"""

import importlib
import sys
import textwrap
from pathlib import Path

import estafette as est
import pytest

from conftest import peer, run_program

PRELUDE = f"""
import asyncio, gc, os, sys, threading, time, warnings
sys.path.insert(0, {str(Path(__file__).parent)!r})
warnings.simplefilter("ignore", DeprecationWarning)  # From 3.12 on, Python warns of forks beside threads.
import numpy as np
import estafette as est

def exit_code_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def program(source, *, abandons=False, **options):
    """Runs `source` and gives what it printed. It complains about nothing but operations that it abandons at its end; with `abandons`
    of None it may do either."""
    out, err = run_program(PRELUDE + textwrap.dedent(source), **options)
    named = err.startswith("estafette: operations are abandoned at exit")
    assert (err == "" or named) if abandons is None else named if abandons else err == "", err
    return out


@pytest.fixture(autouse=True)
def _numpy(np):
    """Every program here uses it."""


class TestFork:
    @pytest.mark.parametrize("end, code", [("sys.exit(3)", 3), ("sys.exit('so it ends')", 1), ("return", 0), ("1 / 0", 1)])
    def test_a_child_that_is_forked_inside_of_a_body_ends_with_the_body(self, end, code):
        out, err = run_program(
            PRELUDE
            + textwrap.dedent(
                f"""
                import signal
                eng = est.Engine(workers=1)
                codes = []
                def body():
                    child = os.fork()
                    if child == 0:
                        signal.alarm(20)
                        print("in the child")
                        {end}
                        return
                    codes.append(exit_code_of(child))
                eng.submit(body).wait(60)
                eng.submit(lambda: None).wait(60)
                print(codes)
                """
            )
        )
        assert out.splitlines()[-1] == str([code]), (out, err)
        assert out.count("in the child") == 1, out
        assert ("so it ends" in err) == (code == 1 and "exit" in end), err
        assert ("ZeroDivisionError" in err) == ("1 / 0" in end), err

    def test_deleters_of_the_parent_are_called_once_and_never_in_the_child(self):
        out = program(
            """
            from capsules import Made
            made = [Made() for _ in range(50)]
            eng = est.Engine(workers=1)
            tensors = [eng.from_dlpack(one.capsule) for one in made]
            arrays = [np.from_dlpack(tensor) for tensor in tensors]
            child = os.fork()
            if child == 0:
                tensors.clear()
                arrays.clear()
                gc.collect()
                time.sleep(0.1)
                os._exit(sum(one.deleted for one in made))
            assert exit_code_of(child) == 0
            tensors.clear()
            arrays.clear()
            while not all(one.deleted for one in made):
                time.sleep(0.001)
            print({one.deleted for one in made})
            """
        )
        assert out == "{1}\n"

    def test_a_fork_inside_an_operation_leaves_the_operation_to_the_parent(self):
        out = program(
            """
            eng = est.Engine(workers=2)
            t = eng.zeros(2, "int64")

            def forks(array):
                child = os.fork()
                if child == 0:
                    try:
                        eng.submit(lambda: None)
                    except est.ForkedError:
                        os._exit(5)
                    os._exit(1)
                array[:] = exit_code_of(child)

            eng.submit(forks, writes=[t], using=np.from_dlpack).wait()
            print(np.from_dlpack(t).tolist())
            """
        )
        assert out == "[5, 5]\n"

    def test_a_fork_while_other_threads_wait_and_submit(self):
        out = program(
            """
            eng = est.Engine(workers=2)
            t = eng.zeros(1, "int64")
            stop = threading.Event()
            rounds = []

            def works():
                while not stop.is_set():
                    eng.submit(lambda x: x.__iadd__(1), writes=[t], using=np.from_dlpack).wait()
                    rounds.append(1)

            threads = [threading.Thread(target=works) for _ in range(3)]
            for thread in threads:
                thread.start()
            codes = set()
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    try:
                        t.wait()
                    except est.ForkedError:
                        os._exit(5)
                    os._exit(1)
                codes.add(exit_code_of(child))
            stop.set()
            for thread in threads:
                thread.join()
            print(codes, np.from_dlpack(t)[0] == len(rounds))
            """
        )
        assert out == "{5} True\n"

    def test_children_of_a_busy_process_end_as_programs_do(self):
        """A thread's cache of the engine goes at its end, when locks of the engine may be held for ever."""
        out = program(
            """
            eng = est.Engine(workers=2)
            tensors = [eng.zeros(1, "int64") for _ in range(4)]
            stop = threading.Event()

            def works(t):
                while not stop.is_set():
                    for _ in range(50):
                        eng.submit(lambda x: None, writes=[t])
                    eng.from_dlpack(np.zeros(1))
                    t.wait()

            threads = [threading.Thread(target=works, args=(t,)) for t in tensors[1:]]
            for thread in threads:
                thread.start()
            codes = set()
            for number in range(20):
                for _ in range(number):
                    eng.submit(lambda x: None, writes=tensors[:1])
                child = os.fork()
                if child == 0:
                    sys.exit(7)
                codes.add(exit_code_of(child))
            stop.set()
            for thread in threads:
                thread.join()
            print(codes)
            """
        )
        assert out == "{7}\n"

    def test_a_forked_child_that_awaits_gets_an_error(self):
        out = program(
            """
            eng = est.Engine(workers=1)
            t = eng.zeros(4, "float32")

            async def waits():
                return await t

            async def enters():
                async with t.read():
                    pass

            child = os.fork()
            if child == 0:
                for use in (waits, enters):
                    try:
                        asyncio.run(use())
                    except est.ForkedError as error:
                        assert "spawn" in str(error)
                    else:
                        os._exit(1)
                os._exit(5)
            print(exit_code_of(child), asyncio.run(waits()) is t)
            """
        )
        assert out == "5 True\n"

    def test_programs_started_by_an_operation_run(self):
        out = program(
            """
            import subprocess
            eng = est.Engine(workers=2)
            run = lambda: np.frombuffer(subprocess.check_output(["echo", "hello"]), "uint8").copy()
            print(np.from_dlpack(eng.call(run)).tobytes())
            """
        )
        assert out == "b'hello\\n'\n"


class TestImport:
    def test_it_starts_no_thread_and_brings_nothing_that_takes_long_to_import(self):
        # Each of them takes as long as all of the package. What an environment imports at its start is no matter.
        out, _ = run_program(
            """
            import os, sys
            before = set(sys.modules)
            import estafette
            print(len(os.listdir("/proc/self/task")))
            print({"asyncio", "dataclasses", "inspect", "json", "numpy", "typing"} & (set(sys.modules) - before))
            """
        )
        assert out == "1\nset()\n"

    def test_what_is_imported_at_its_first_use_is_listed_and_a_wrong_name_is_an_error(self):
        assert set(est.__all__) <= set(dir(est))
        assert all(hasattr(est, name) for name in est.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'Devise'"):
            est.Devise

    @pytest.mark.parametrize("name", ["dask", "ray", "typing"])
    def test_a_module_that_the_program_has_not_imported_is_named(self, name):
        with pytest.raises(AttributeError, match=f"`import estafette.{name}`"):
            est.__getattr__(name)

    @pytest.mark.parametrize("name", ["estafette", "estafette.typing", "estafette.dask", "estafette.ray"])
    def test_dir_lists_what_the_module_offers_and_no_imports_of_its_own(self, name):
        if name != "estafette":
            peer(name.removeprefix("estafette."))
        module = importlib.import_module(name)
        submodules = {name.split(".")[1] for name in sys.modules if name.startswith("estafette.")}
        public = {name for name in dir(module) if not name.startswith("_")}
        assert public - submodules == {name for name in module.__all__ if not name.startswith("_")}


class TestMultiprocessing:
    def test_a_pool_of_spawned_workers_exchanges_arrays_and_refuses_tensors(self, tmp_path):
        script = tmp_path / "main.py"
        script.write_text(
            PRELUDE
            + textwrap.dedent(
                """
                import multiprocessing, pickle

                def double(array):
                    eng = est.default_engine()
                    return np.array(np.from_dlpack(eng.call(lambda x: x * 2, eng.from_dlpack(array), using=np.from_dlpack)))

                if __name__ == "__main__":
                    with est.Engine(workers=2) as eng, multiprocessing.get_context("spawn").Pool(2) as pool:
                        t = eng.call(lambda: np.arange(3))
                        print([array.tolist() for array in pool.map(double, [np.from_dlpack(t)] * 3)])
                        try:
                            pickle.dumps(t)
                        except TypeError as error:
                            print("t.ticket()" in str(error))
                """
            )
        )
        out, _ = run_program(f"import subprocess, sys; subprocess.run([sys.executable, {str(script)!r}], check=True)")
        assert out == "[[0, 2, 4], [0, 2, 4], [0, 2, 4]]\nTrue\n"


class TestExit:
    OPEN = {
        "a view that its body left behind": "kept = []; eng.submit(kept.append, writes=[t], using=np.from_dlpack).wait()",
        "a capsule that no library consumed": "capsule = t.__dlpack__()",
        "a tensor derived from its own lease": "u = eng.from_dlpack(np.from_dlpack(t)); v = np.from_dlpack(u)",
        "things in a module that is cleared late": "sys.modules['late'] = np.late = (eng, t, np.from_dlpack(t))",
        "thousands of operations": """
            ops = [eng.submit(lambda x: x.__iadd__(1), writes=[t], using=np.from_dlpack) for _ in range(5000)]
        """,
        "a daemon thread that submits for ever": """
            def submits():
                while True:
                    eng.submit(lambda x: x.__iadd__(1), writes=[t], using=np.from_dlpack)
            threading.Thread(target=submits, daemon=True).start()
            time.sleep(0.05)
        """,
        "daemon threads that exchange for ever": """
            def exchanges():
                while True:
                    np.from_dlpack(eng.from_dlpack(np.zeros(3)))
            for _ in range(3):
                threading.Thread(target=exchanges, daemon=True).start()
            time.sleep(0.05)
        """,
        "an event loop in a daemon thread": """
            async def awaits():
                while True:
                    await eng.call(lambda x: x + 1, t, using=np.from_dlpack)
            threading.Thread(target=lambda: asyncio.run(awaits()), daemon=True).start()
            time.sleep(0.05)
        """,
        "an engine that was shut down": "a = np.from_dlpack(t); eng.shutdown()",
    }

    @pytest.mark.parametrize("case", OPEN)
    def test_nothing_that_is_open_stands_in_the_way(self, case):
        source = """
            eng = est.Engine(workers=2)
            t = eng.from_dlpack(np.zeros(4, "float32"))
        """
        # Endless submissions may never be fewer: then the exit gives up, and names them.
        abandons = None if case == "a daemon thread that submits for ever" else False
        source = textwrap.dedent(source) + textwrap.dedent(self.OPEN[case]) + "\nprint('end')"
        assert program(source, abandons=abandons) == "end\n"

    @pytest.mark.parametrize("name", ["jax", "torch"])
    def test_arrays_of_peers_open_both_ways(self, name):
        peer(name)
        module = "jax.numpy" if name == "jax" else name
        out = program(
            f"""
            import {module} as lib
            eng = est.Engine(workers=2)
            t = eng.zeros(16, "float32")
            ours = lib.from_dlpack(t)
            theirs = eng.from_dlpack(lib.ones(16))
            pending = [eng.call(lambda x: x + 1, theirs, using=lib.from_dlpack) for _ in range(50)]
            blocked = eng.submit(lambda x: None, writes=[t])
            cycle = [lib.from_dlpack(theirs)]
            cycle.append(cycle)
            print("end")
            """,
            abandons=True,
        )
        assert out == "end\n"

    @pytest.mark.parametrize("how, code", [("sys.exit(3)", 3), ("os._exit(3)", 3), ("os.kill(os.getpid(), 15)", -15)])
    def test_exits_of_other_kinds_keep_their_code(self, how, code):
        program(
            f"""
            eng = est.Engine(workers=2)
            t = eng.zeros(4, "float32")
            array = np.from_dlpack(t)
            eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
            eng.submit(lambda: time.sleep(0.1))
            {how}
            """,
            expect=code,
            abandons=code == 3 and how.startswith("sys"),
        )
