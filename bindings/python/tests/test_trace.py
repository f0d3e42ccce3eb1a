"""Traces: what they note of a program, and that the report's first line names what was planted."""

import asyncio
import contextlib
import ctypes
import functools
import math
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from multiprocessing.reduction import ForkingPickler

import pytest
from conftest import run_program, until

import estafette as est

LONG = 0.08
"""Seconds that a planted stall takes; everything else takes a fraction of it."""


def planted(test):
    """Runs a test with the usual `LONG`; on a machine that is so busy that everything else is not short beside it, with a longer one."""

    @functools.wraps(test)
    def tried(*arguments, **fixtures):
        global LONG
        usual = LONG
        try:
            for LONG in (usual, 8 * usual):
                with contextlib.suppress(AssertionError):
                    return test(*arguments, **fixtures)
            LONG = 60 * usual
            return test(*arguments, **fixtures)
        finally:
            LONG = usual

    return tried


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.pftrace"


def spin(seconds):
    """Runs without releasing the Python lock, as native code does that forgets to."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def first_line(path):
    report = est.report(path, width=10_000)
    assert report.data["missing"] == []
    line = report.text.splitlines()[0]
    assert line == report.headline
    return line


def test_paths_may_be_bytes_as_those_of_open(np, path):
    with est.record(os.fsencode(path)) as trace:
        trace.snapshot(os.fsencode(path) + b".%p")
    page = os.fsencode(path) + b".html"
    report = est.report(os.fsencode(path), html=page)
    assert report.path == trace.path == str(path) and os.path.exists(page)
    assert os.path.exists(f"{path}.{os.getpid()}")
    merged = os.fsencode(path) + b".json"
    est.merge_traces(os.fsencode(path), to=merged)
    with est.observe(merged + b".pftrace"):
        pass
    assert est.report(merged + b".pftrace").path == f"{path}.json.pftrace"
    with pytest.raises(TypeError, match="str, bytes or os.PathLike object, not int"):
        est.record(3)


class TestPlantedStalls:
    @planted
    def test_a_slow_producer(self, eng, np, path):
        batch = eng.zeros((4,), "float32")
        with est.record(path):
            batch.call_in_report("batch")
            eng.submit(lambda x: time.sleep(LONG), writes=[batch], using=np.from_dlpack, name="decode")
            eng.submit(lambda x: None, reads=[batch], using=np.from_dlpack, name="train")
            eng.wait_all()
        line = first_line(path)
        assert "computing (`decode`)" in line and "`decode` was still computing" in line
        data = est.report(path).data
        assert data["advice"][0]["change"] == "make `decode` faster"
        # Both functions get NumPy's arrays.
        assert "numpy" in data["matrix"]["libraries"]

    @planted
    def test_a_lease_kept_too_long(self, eng, np, path):
        batch = eng.zeros((4,), "float32")
        with est.record(path):
            batch.call_in_report("batch")
            kept = np.from_dlpack(batch)
            here = "test_trace.py"
            op = eng.submit(lambda x: None, writes=[batch], using=np.from_dlpack, name="decode")
            time.sleep(LONG)
            del kept
            op.wait()
        line = first_line(path)
        assert "leased (a lease taken by" in line and here in line and "`batch`" in line
        assert "write after read" in line

    @planted
    def test_a_starved_pool(self, np, path):
        with est.Engine(workers=1) as eng, est.record(path):
            for _ in range(8):
                eng.submit(lambda: time.sleep(LONG / 8), name="resize")
            eng.wait_all()
        line = first_line(path)
        assert "no worker (the worker pool)" in line and "`resize` waited" in line

    @planted
    def test_a_blocked_python_lock(self, eng, np, path):
        before = sys.getswitchinterval()
        # The worker does not get the lock between the submission and what keeps it.
        sys.setswitchinterval(10 * LONG)
        try:
            with est.record(path):
                op = eng.submit(lambda: None, name="score")
                spin(LONG)
                op.wait()
        finally:
            sys.setswitchinterval(before)
        line = first_line(path)
        assert "not resumed (the Python lock" in line and "`score`" in line

    @planted
    def test_an_event_loop_that_runs_a_body_late(self, np, path):
        async def fetch():
            await asyncio.sleep(LONG / 8)
            return np.ones(1)

        async def main(eng):
            fetched = eng.call(fetch, name="fetch")
            time.sleep(LONG)
            await eng.call(np.negative, fetched)

        with est.Engine(workers=2) as eng, est.record(path):
            asyncio.run(main(eng))
        line = first_line(path)
        assert "not resumed (the event loop)" in line and "the event loop was busy" in line
        (fetched,) = (operation for operation in est.report(path).data["operations"] if operation["name"] == "`fetch`")
        assert fetched["running_ns"] < LONG / 2 * 1e9 < fetched["waited_ns"]

    @planted
    def test_a_late_consumer(self, eng, np, path):
        t = eng.zeros((4,), "float32")

        async def main():
            eng.submit(lambda x: time.sleep(LONG / 8), writes=[t], using=np.from_dlpack, name="decode")

            async def consume():
                await t

            task = asyncio.ensure_future(consume())
            await asyncio.sleep(0)
            # The loop does something else while the task could go on.
            until(t.is_ready)
            time.sleep(LONG)
            await task

        with est.record(path):
            asyncio.run(main())
        line = first_line(path)
        assert "not resumed (the event loop)" in line and "the event loop was busy" in line


class TestProgramsWithFaults:
    """Faults as they happen in programs: the report says what to change, and where."""

    def advice(self, trace):
        report = trace.report()
        return report.headline, [row["change"] for row in report.data["advice"]]

    @planted
    def test_a_look_at_the_result_in_each_step(self, np, path):
        with est.Engine(workers=2) as eng, est.record(path) as trace:
            loss = eng.zeros((1,), "float32")
            batches = [eng.zeros((4,), "float32") for _ in range(2)]
            for step in range(6):
                batch = batches[step % 2]
                eng.submit(lambda x: time.sleep(LONG / 4), writes=[batch], using=np.from_dlpack, name="load")
                eng.submit(lambda x, y: time.sleep(LONG / 4), reads=[batch], writes=[loss], using=np.from_dlpack, name="train")
                assert float(np.from_dlpack(loss)[0]) == 0
            eng.wait_all()
        _, advice = self.advice(trace)
        assert any(change.startswith("continue without waiting at test_trace.py:") for change in advice), advice

    @planted
    def test_a_scratch_tensor_of_two_branches_and_names_from_before_the_trace(self, np, path):
        with est.Engine(workers=2) as eng:
            scratch, left, right = (eng.zeros((4,), "float32") for _ in range(3))
            scratch.call_in_report("scratch")
            with est.record(path) as trace:
                for name, own in [("blur", left), ("edges", right)] * 3:
                    eng.submit(lambda x, y: time.sleep(LONG / 4), writes=[scratch, own], using=np.from_dlpack, name=name)
                eng.wait_all()
        _, advice = self.advice(trace)
        # The longest of the waits by a hair is a matter of chance.
        assert any("on `scratch`, write after write" in row["sentence"] for row in trace.report().data["worst"])
        assert any(change.startswith("use two of `scratch` in turn") for change in advice), advice

    @planted
    def test_views_that_pile_up_in_a_list(self, eng, np, path):
        batch = eng.zeros((4,), "float32")
        kept, held, resume = [], threading.Event(), threading.Event()

        def consume():
            kept.append(np.from_dlpack(batch))
            held.set()
            resume.wait()
            kept.clear()

        with est.record(path) as trace:
            consumer = threading.Thread(target=consume)
            consumer.start()
            held.wait()
            op = eng.submit(lambda x: None, writes=[batch], using=np.from_dlpack, name="decode")
            time.sleep(LONG)
            resume.set()
            op.wait()
            consumer.join()
        headline, advice = self.advice(trace)
        assert "leased (a lease taken by" in headline and "test_trace.py:" in headline
        assert any(change.startswith("release sooner: a lease taken by") for change in advice), advice

    @planted
    def test_a_program_that_does_the_work_itself(self, eng, path):
        with est.record(path) as trace:
            for _ in range(3):
                time.sleep(LONG)
                eng.submit(lambda: None, name="train").wait()
        headline, advice = self.advice(trace)
        assert headline.startswith("The program itself took ") and "while nothing was under way" in headline
        assert advice[0].startswith("submit earlier: nothing was under way")


class TestTheFile:
    def test_leases_have_the_line_that_took_them_and_flags_are_put_back(self, eng, np, path):
        before = est.record_call_sites(False)
        t = eng.zeros((4,), "float32")
        with est.record(path) as trace:
            assert np.from_dlpack(t).sum() == 0
            t.wait()
        assert est.record_call_sites(before) is False
        report = trace.report(width=80)
        assert report.data["totals"]["leases"] == 1
        assert all(len(line) <= 80 for line in report.text.splitlines())
        assert str(report) == report.text

    def test_imports_have_a_library_and_tensors_a_description(self, eng, np, path):
        with est.record(path):
            t = eng.from_dlpack(np.zeros((2, 3), "float32"))
            eng.submit(lambda x: None, reads=[t], using=np.from_dlpack)
            eng.wait_all()
        names = [row["name"] for row in est.report(path).data["tensors"]]
        assert any(name.startswith("float32[2,3] #") for name in names)

    def test_a_lease_is_of_the_library_that_its_block_was_given(self, eng, np, path):
        t = eng.zeros((4,), "float32")
        with est.record(path) as trace:
            with t.read(np.from_dlpack):
                op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack, name="fill")
                time.sleep(0.02)
            op.wait()
        line = trace.report().headline
        assert "`fill` waited" in line and "a lease taken by numpy at test_trace.py:" in line

    def test_several_traces_at_once(self, eng, np, path, tmp_path):
        before = est.record_call_sites(False)
        t = eng.zeros((4,), "float32")
        outer, inner = est.record(path), est.record(tmp_path / "inner")
        outer.start()
        eng.submit(lambda: None, name="one").wait()
        inner.start()
        eng.submit(lambda: None, name="both").wait()
        outer.stop()
        # Leases still note their lines.
        kept = np.from_dlpack(t)
        assert "test_trace.py:" in str(eng.diagnose())
        del kept
        inner.stop()
        assert est.record_call_sites(before) is False
        names = [{row["name"] for row in trace.report().data["operations"]} for trace in (outer, inner)]
        assert {"`one`", "`both`"} <= names[0] and "`one`" not in names[1] and "`both`" in names[1]
        with pytest.raises(RuntimeError, match="not being recorded"):
            outer.stop()

    def test_snapshots_and_the_end_alone(self, eng, path, tmp_path):
        # A library of another test may have taken the usual ones.
        asks = signal.SIGRTMAX - 1
        with est.record(path, last=0.2, signal=asks) as trace:
            began = -math.inf
            # Else the operation may be older than what is kept.
            while time.monotonic() - began > 0.2:
                began = time.monotonic()
                eng.submit(lambda: None, name="early").wait()
                written = trace.snapshot(tmp_path / "snapshot-%p")
            assert written == str(tmp_path / f"snapshot-{os.getpid()}")
            time.sleep(0.4)
            os.kill(os.getpid(), asks)
            asked = tmp_path / "run.snapshot-1.pftrace"
            # Events older than the kept ones are gone, however late the signal is served.
            while not asked.exists():
                eng.submit(lambda: None, name="late").wait()
            with pytest.raises(OSError, match="nowhere"):
                trace.snapshot(tmp_path / "nowhere" / "x")
        assert "`early`" in [row["name"] for row in est.report(written).data["operations"]]
        assert "`early`" not in [row["name"] for row in est.report(asked).data["operations"]]
        with pytest.raises(RuntimeError, match="not being recorded"):
            trace.snapshot(path)
        for options in ({"last": 0.0}, {"last": -1.0}, {"signal": signal.SIGSEGV}, {"signal": signal.SIGINT}):
            with pytest.raises((ValueError, OSError)):
                est.record(path, **options).start()

    def test_a_page_replaces_nothing_but_an_earlier_page(self, eng, path, tmp_path):
        with est.record(path):
            eng.submit(lambda: None, name="step").wait()
        (tmp_path / "notes.html").write_text("<!doctype html>\n<title>mine</title>")
        (tmp_path / "same").symlink_to(path)
        for other in (path, tmp_path / "same", tmp_path / "notes.html"):
            before = other.read_bytes()
            with pytest.raises(FileExistsError, match=f"{other.name}.*a file of another kind"):
                est.report(path, html=other)
            assert other.read_bytes() == before
        (tmp_path / "empty.html").touch()
        for page in ("new.html", "empty.html", "new.html"):
            est.report(path, html=tmp_path / page)
            assert "</html>" in (tmp_path / page).read_text()

    def test_several_files_are_no_list(self, path):
        with pytest.raises(TypeError, match=r"write `report\(\*paths\)`"):
            est.report([path, path])

    def test_a_second_trace_to_the_same_file_is_refused(self, eng, path):
        before = est.record_call_sites(False)
        with est.record(path):
            with pytest.raises(FileExistsError, match="run.pftrace: another trace of this process records to it already"):
                est.record(path).start()
            eng.submit(lambda: None, name="kept").wait()
        assert est.record_call_sites(before) is False
        assert "`kept`" in [row["name"] for row in est.report(path).data["operations"]]
        with est.record(path):
            pass

    def test_a_trace_to_the_file_of_another_process_is_refused_until_that_is_over(self, eng, path):
        program = f"""
            import estafette as est
            try:
                est.record({str(path)!r}).start()
            except FileExistsError as error:
                print(error)
            """
        with est.record(path):
            output, errors = run_program(program)
            assert output == f"{path}: another process records to it already\n", errors
            eng.submit(lambda: None, name="kept").wait()
        assert "`kept`" in [row["name"] for row in est.report(path).data["operations"]]
        assert run_program(program)[0] == ""

    def test_a_path_that_cannot_be_written_is_an_error_at_once(self, tmp_path):
        with pytest.raises(OSError, match="nowhere") as refused:
            est.record(tmp_path / "nowhere" / "run.pftrace").start()
        # As Python's own errors of files are.
        assert str(refused.value) == f"[Errno 2] No such file or directory: {str(tmp_path / 'nowhere' / 'run.pftrace')!r}"
        # Nothing was begun.
        with est.record(tmp_path / "run.pftrace"):
            pass

    def test_what_is_no_trace_and_what_is_left_of_one(self, eng, np, path, tmp_path):
        with est.record(path):
            for _ in range(100):
                eng.submit(lambda: None, name="step")
            eng.wait_all()
        whole = path.read_bytes()
        half = tmp_path / "half"
        half.write_bytes(whole[: len(whole) * 2 // 3])
        report = est.report(half)
        assert report.data["missing"], "it says what is missing"
        assert "incomplete: " in report.text
        assert report.data["totals"]["operations"] > 0
        wrong = tmp_path / "wrong"
        wrong.write_bytes(b"\xff" * 100)
        with pytest.raises(ValueError, match="is no trace"):
            est.report(wrong)
        with pytest.raises(OSError, match="absent"):
            est.report(tmp_path / "absent")

    def test_memory_is_bounded_and_the_loss_is_reported(self, eng, np, path):
        with est.record(path, memory_max=512 << 10):
            for _ in range(20):
                for _ in range(1_000):
                    eng.submit(lambda: None, name="step")
            eng.wait_all()
        report = est.report(path)
        assert any("did not fit" in missing for missing in report.data["missing"])

    def test_a_page_is_written(self, eng, np, path, tmp_path):
        with est.record(path):
            eng.submit(lambda: None, name="step").wait()
        page = tmp_path / "report.html"
        est.report(path, html=page)
        assert page.read_text().lstrip().lower().startswith("<!doctype html>")

    def test_threads_that_submit_while_it_begins_and_ends(self, eng, np, path):
        stop = threading.Event()
        steps = [0, 0]

        def submit(which):
            while not stop.is_set():
                eng.submit(lambda: None, name="step").wait()
                steps[which] += 1

        threads = [threading.Thread(target=submit, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            with est.record(path):
                # The first of each thread may have been submitted before.
                goal, patience = sum(steps) + 4, time.monotonic() + 30
                while sum(steps) < goal and time.monotonic() < patience:
                    time.sleep(0.001)
            assert est.report(path).data["totals"]["operations"] > 0
        stop.set()
        for thread in threads:
            thread.join()


class TestPrograms:
    PROGRAM = """
        import estafette as est
        eng = est.Engine(workers=1)
        for _ in range(10):
            eng.submit(lambda: None, name="step")
        eng.wait_all()
        """

    def test_the_environment_records_a_program_that_knows_nothing_of_it(self, path):
        _, said = run_program(self.PROGRAM, env={"ESTAFETTE_TRACE": str(path)})
        data = est.report(path).data
        assert data["totals"]["operations"] == 10 and data["missing"] == [] and said == ""
        assert data["program"] == "-c", "the program's name, not the interpreter's"

    def test_the_environment_asks_for_events_in_the_log(self):
        _, said = run_program(self.PROGRAM, env={"RUST_LOG": "info,estafette=debug"})
        assert "submitted (id=" in said and "operation=step" in said
        configured = "import estafette\nimport logging; logging.basicConfig(level=30)\n" + textwrap.dedent(self.PROGRAM)
        _, said = run_program(configured, env={"RUST_LOG": "estafette=debug"})
        assert said.count("submitted (id=") == 10, "each event is there once"
        logger = "import estafette\nimport logging; logger = logging.getLogger('estafette')\n"
        for configured in ("logger.addHandler(logging.StreamHandler())", "logging.basicConfig(level=30); logger.propagate = False"):
            _, said = run_program(f"{logger}{configured}\n" + textwrap.dedent(self.PROGRAM), env={"RUST_LOG": "estafette=debug"})
            assert said.count("submitted (id=") == 10, configured
        _, said = run_program(self.PROGRAM, env={"RUST_LOG": "debug"})
        assert said == "", "events cost something, so they are asked for by name"

    def test_a_program_that_cannot_be_recorded_runs_all_the_same(self, tmp_path):
        run_program(self.PROGRAM, env={"ESTAFETTE_TRACE": str(tmp_path / "nowhere" / "x")})

    def test_a_forked_child_leaves_the_trace_to_its_parent(self, path):
        run_program(
            """
            import os
            import estafette as est
            trace = est.record(os.environ["TRACE"])
            trace.start()
            eng = est.Engine(workers=1)
            eng.submit(lambda: None, name="step").wait()
            child = os.fork()
            if child == 0:
                trace.stop()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            trace.stop()
            """,
            env={"TRACE": str(path)},
        )
        assert est.report(path).data["totals"]["operations"] == 1

    CHILDREN = """
        import subprocess, sys
        import estafette as est
        eng = est.Engine(workers=1)
        for _ in range(%d):
            eng.submit(lambda: None, name="step")
        eng.wait_all()
        """

    def test_a_process_that_inherits_the_variable_records_to_a_file_of_its_own(self, tmp_path):
        path = tmp_path / "run.pftrace"
        child = textwrap.dedent(self.CHILDREN % 3)
        program = self.CHILDREN % 10 + f"""
        for _ in range(2):
            subprocess.run([sys.executable, "-c", {child!r}], check=True)
        """
        run_program(textwrap.dedent(program), env={"ESTAFETTE_TRACE": str(path)})
        assert est.report(path).data["totals"]["operations"] == 10
        others = sorted(tmp_path.glob("run.*.pftrace"))
        assert [est.report(other).data["totals"]["operations"] for other in others] == [3, 3]
        assert len(list(tmp_path.iterdir())) == 3, "nothing unfinished is left"

    def test_a_path_may_have_the_number_of_the_process_in_it(self, eng, tmp_path):
        with est.record(tmp_path / "100%%-%p.pftrace") as trace:
            eng.submit(lambda: None, name="step").wait()
        assert trace.path == str(tmp_path / f"100%-{os.getpid()}.pftrace")
        assert trace.report().data["totals"]["operations"] == 1


class TestEndsThatAreNone:
    """Whatever ends a program: the earlier file stays, and what was noted is there."""

    PROGRAM = """
        import os, signal, sys, time
        import estafette as est
        trace = est.record(sys.argv[1])
        trace.start()
        eng = est.Engine(workers=1)
        x = eng.zeros((4,), "float32")
        x.call_in_report("batch")
        for _ in range(2000):
            eng.submit(lambda _: None, writes=[x], name="step")
        eng.wait_all()
        print("recorded", flush=True)
        """

    @pytest.fixture
    def good(self, eng, path):
        """An earlier trace at the path."""
        with est.record(path):
            eng.submit(lambda: None, name="earlier").wait()
        return path.read_bytes()

    def end(self, path, how):
        program = textwrap.dedent(self.PROGRAM) + how
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", program, str(path)], **pipes, text=True)
        assert process.stdout.readline() == "recorded\n"
        return process

    def left(self, path, process):
        """The report of what the process has left."""
        return est.report(path.with_name(f"{path.name}.{process.pid}.unfinished"), width=100)

    def operations(self, path, process):
        try:
            return self.left(path, process).data["totals"]["operations"]
        except ValueError:  # nothing yet
            return 0

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
    def test_a_process_that_a_signal_ends(self, good, path, number):
        process = self.end(path, "time.sleep(600)\n")
        # It is written several times a second.
        until(lambda: self.operations(path, process) == 2000, 60)
        process.send_signal(number)
        process.communicate()
        assert path.read_bytes() == good
        report = self.left(path, process)
        assert report.data["totals"]["operations"] == 2000
        assert any("before the trace was finished" in missing for missing in report.data["missing"])
        assert "batch" in [row["name"] for row in report.data["tensors"]]

    def test_a_process_that_leaves_without_the_interpreters_end(self, good, path):
        process = self.end(path, "sys.stdin.read()\nos._exit(3)\n")
        until(lambda: self.operations(path, process) == 2000, 60)
        process.communicate()
        assert process.returncode == 3 and path.read_bytes() == good
        assert self.left(path, process).data["totals"]["operations"] == 2000

    def test_a_file_that_cannot_grow_is_an_error_and_the_earlier_one_stays(self, good, path):
        # A full disk fails `write`, for this process alone.
        process = self.end(
            path,
            textwrap.dedent("""
            import resource
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            try:
                trace.stop()
            except OSError as error:
                print(error, error.__notes__, flush=True)
            """),
        )
        said, _ = process.communicate()
        assert process.returncode == 0 and "run.pftrace" in said and "unfinished" in said, said
        assert path.read_bytes() == good
        assert [entry for entry in path.parent.iterdir() if entry.suffix == ".tmp"] == []

    def test_a_trace_of_the_last_seconds_stays_small_on_a_full_disk(self, path):
        source = f"""
            import resource
            import signal
            import time
            import estafette as est

            def resident():
                with open("/proc/self/statm") as about:
                    return int(about.read().split()[1]) * resource.getpagesize()

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            trace = est.record({str(path)!r} + ".ring", last=0.1)
            trace.start()
            with est.Engine(workers=0) as eng:

                def seconds(count):
                    for _ in range(count):
                        for _ in range(20_000):
                            eng.submit(int)
                        eng.wait_all()
                        time.sleep(0.15)

                seconds(3)
                before = resident()
                seconds(3)
                # So many events take 8 MB.
                assert resident() - before < 3 << 20, resident() - before
                try:
                    trace.stop()
                except OSError:
                    pass
        """
        run_program(source)

    @pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
    def test_what_is_no_regular_file_is_refused_at_once(self, tmp_path, kind):
        place = tmp_path / kind
        if kind == "fifo":
            os.mkfifo(place)
        elif kind == "folder":
            place.mkdir()
        else:
            place = "/dev/zero"
        with pytest.raises(OSError, match="no regular file"):
            est.record(place).start()
        with pytest.raises(OSError, match="no regular file"):
            est.report(place)
        # A program that is recorded by the variable runs all the same.
        _, said = run_program(TestPrograms.PROGRAM, env={"ESTAFETTE_TRACE": str(place)})
        assert "nothing is recorded" in said

    def test_a_link_is_replaced_and_not_what_it_points_to(self, eng, tmp_path):
        precious, link = tmp_path / "precious", tmp_path / "run.pftrace"
        precious.write_text("precious")
        link.symlink_to(precious)
        with est.record(link):
            eng.submit(lambda: None, name="step").wait()
        assert precious.read_text() == "precious" and not link.is_symlink()
        assert est.report(link).data["totals"]["operations"] == 1


class TestNames:
    HOSTILE = "\x1b]0;title\x07\x9b2J\r\nforged\u202e"

    def obeyed(self, text):
        return [character for character in text if (not character.isprintable()) and character != "\n"]

    def test_texts_show_a_name_and_data_has_it_as_it_is(self, eng, np, path):
        x = eng.zeros((4,), "float32")
        with est.record(path):
            x.call_in_report(self.HOSTILE)
            kept = np.from_dlpack(x)
            op = eng.submit(lambda x: None, writes=[x], using=np.from_dlpack, name=self.HOSTILE)
            diagnosis = eng.diagnose()
            assert len(str(diagnosis).splitlines()) == len(diagnosis.operations) and self.obeyed(str(diagnosis)) == []
            assert self.HOSTILE in [waiting.name for waiting in diagnosis.operations]
            assert self.obeyed(repr(op)) == []
            del kept
            op.wait()
        report = est.report(path)
        assert self.obeyed(report.text) == [] and self.obeyed(report.headline) == []
        assert self.HOSTILE in [row["name"] for row in report.data["tensors"]]

    def test_errors_show_the_names_in_them(self, eng):
        def body():
            raise ValueError("broke")

        with pytest.raises(est.OperationError) as caught:
            eng.submit(body, name=self.HOSTILE).wait()
        assert self.obeyed(str(caught.value)) == [] and "\\u{1b}]0;title" in str(caught.value)
        assert caught.value.operation == self.HOSTILE
        assert self.obeyed(str(est.OperationError(self.HOSTILE, 1, "broke"))) == []


def test_what_no_trace_can_be_made_with_is_named(tmp_path):
    for options, words in [({"memory_max": -1}, "memory_max.*-1"), ({"memory_max": 1 << 70}, "memory_max"), ({"signal": 100}, "signal.*100")]:
        with pytest.raises(ValueError, match=words):
            est.record(tmp_path / "run.pftrace", **options).start()
    with pytest.raises(ValueError, match="NUL"):
        est.record(f"{tmp_path}/a\0b").start()
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_printed_where_its_characters_cannot_be(tmp_path):
    path = tmp_path / "run.pftrace"
    program = f"""
        import estafette as est
        with est.record({os.fspath(path)!r}):
            est.default_engine().call(lambda: None, name="naïve → 漢").wait()
        print(est.report({os.fspath(path)!r}))
    """
    printed, _ = run_program(program, env={"PYTHONIOENCODING": "ascii"})
    assert "na?ve > ?" in printed
    # Its text is what it is.
    assert "naïve → 漢" in est.report(path).text


def test_a_ticket_has_the_line_of_the_program_that_took_it(tmp_path):
    with est.record(tmp_path / "run.pftrace"), est.Engine(workers=1, shared=True) as eng:
        t = eng.zeros(2, "float64")
        ticket = t.ticket()  # for any process
        packed = ForkingPickler.dumps(t)  # for a queue
        leases = [op.lease for op in eng.diagnose().operations if op.lease is not None]
        ticket.revoke()
        pickle.loads(bytes(packed)).wait()
    lines = pathlib.Path(__file__).read_text().splitlines()
    lines = [at for at, line in enumerate(lines, 1) if line.endswith(("# for any process", "# for a queue"))]
    assert [(lease.file, lease.line) for lease in leases] == [(__file__, line) for line in lines]


def test_a_thread_has_the_name_that_the_program_gave_it(tmp_path):
    path = tmp_path / "run.pftrace"
    with est.record(path), est.Engine(workers=1) as eng:
        loader = threading.Thread(target=lambda: eng.submit(lambda: time.sleep(0.01)).wait(), name="loader")
        loader.start()
        loader.join()
    assert "thread `loader`" in est.report(path).text


def test_a_copy_that_a_library_makes_for_an_import_is_in_the_trace(tmp_path, np):
    path = tmp_path / "run.pftrace"
    with est.record(path), est.Engine(workers=1) as eng:
        eng.from_dlpack(np.ones(1 << 16, "float32"), copy=True).wait()
        eng.from_dlpack(np.ones(4, "float32")).wait()
    data = est.report(path).data
    (row,) = [row for row in data["operations"] if row["name"] == "`copy by numpy`"]
    assert row["count"] == 1
    (ran,) = [row for row in data["run_time"] if row["what"] == "`copy by numpy` ran"]
    assert ran["time_ns"] > 0
    (exchange,) = [row for row in data["exchanges"] if row["producer"] == "numpy"]
    assert (exchange["copies"], exchange["copied_bytes"]) == (1, 4 << 16)
