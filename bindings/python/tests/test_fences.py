"""`__dlpack_fence__`: tensors with fences of both sides, both ways, and nothing blocks in between."""

import asyncio
import contextlib
import gc
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest

import estafette as est
from conftest import until

ROOT = pathlib.Path(__file__).parents[3]
FENCES, EXAMPLES = ROOT / "bindings/fence", ROOT / "examples/fences"
sys.path.insert(0, str(FENCES / "python"))

import dlpack_fence  # noqa: E402
from dlpack_fence import DESCRIBED_LATE, DONE, FAILED, PENDING, Flag, take  # noqa: E402


class Array:
    """An array of a library with fences. A fence that does not push has only `query`, which is polled."""

    def __init__(self, values, pushes=True):
        self.values, self.ready, self.back = values, Flag(), 0
        if not pushes:
            self.ready.raw.subscribe = type(self.ready.raw.subscribe)()
            self.ready.raw.unsubscribe = type(self.ready.raw.unsubscribe)()

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        raise AssertionError("a wait in here would have blocked the consumer")

    def __dlpack_fence__(self, *, max_version=None, dl_device=None, copy=None):
        return dlpack_fence.give(self.values, self.ready, self._over)

    def _over(self):
        self.back += 1


class TestOurs:
    """Our tensors, as a consumer with fences sees them."""

    def test_a_tensor_that_is_not_defined_is_described_late(self, eng, np, gate):
        t = eng.call(lambda: (gate(), np.arange(3.0))[1])
        taken, heard = take(t), []
        assert taken.raw.fence_flags == DESCRIBED_LATE and taken.ready.state() == PENDING
        taken.when_ready(lambda status, message: heard.append(status))
        gate.open()
        taken.wait()
        until(lambda: heard == [DONE])
        assert taken.numpy().tolist() == [0, 1, 2] and not taken.numpy().flags.writeable
        taken.close()

    def test_a_tensor_that_is_ready_has_a_fence_that_is_done(self, eng):
        t = eng.zeros(3, "float32")
        taken = take(t)
        assert taken.raw.fence_flags == 0 and taken.ready.state() == DONE
        assert taken.numpy().ctypes.data == t.data_ptr
        taken.close()

    def test_it_is_of_the_version_at_the_call(self, eng, np, gate):
        t = eng.zeros(3, "float32")
        before = take(t)
        write = eng.submit(lambda x: (gate(), x.fill(1)), writes=[t], using=np.from_dlpack)
        after = take(t)
        assert before.ready.state() == DONE and after.ready.state() == PENDING
        assert before.numpy().tolist() == [0, 0, 0]
        before.close()
        gate.open()
        write.wait()
        after.wait()
        assert after.numpy().tolist() == [1, 1, 1]
        after.close()

    def test_a_write_waits_for_the_deleter_and_the_consumers_fences(self, eng, np):
        t = eng.zeros(3, "float32")
        taken, works = take(t), [Flag(), Flag()]
        values = taken.numpy()
        for work in works:
            assert taken.add_done(work)
        write = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        assert not write.is_done()
        taken.close()
        works[0].settle()
        with pytest.raises(TimeoutError):
            write.wait(0.05)
        assert values.tolist() == [0, 0, 0]
        works[1].settle()
        write.wait(30)
        assert values.tolist() == [1, 1, 1]
        until(lambda: not any(work._holders for work in works))

    def test_a_consumer_may_be_done_before_the_tensor_is_ready(self, eng, np, gate):
        t = eng.zeros(3, "float32")
        eng.submit(lambda x: (gate(), x.fill(2)), writes=[t], using=np.from_dlpack)
        taken, work = take(t), Flag()
        ready = taken.ready.retained()
        assert taken.add_done(work)
        taken.close()
        write = eng.submit(lambda x: x.fill(3), writes=[t], using=np.from_dlpack)
        gate.open()
        until(lambda: ready.state() == DONE)
        ready.drop()
        with pytest.raises(TimeoutError):
            write.wait(0.05)
        work.settle()
        write.wait(30)

    def test_write_access(self, eng, np):
        t = eng.zeros(3, "float32")
        taken = take(t.for_write())
        taken.wait()
        assert taken.numpy().flags.writeable
        read = eng.call(lambda x: x + 1, t, using=np.from_dlpack)
        assert not read.done()
        taken.numpy()[:] = 7
        taken.close()
        assert np.from_dlpack(read).tolist() == [8, 8, 8]

    def test_a_failure_has_its_text(self, eng):
        def fails():
            raise RuntimeError("no water")

        t = eng.call(fails, name="draw")
        taken = take(t)
        with pytest.raises(RuntimeError, match=r"operation `draw`.*no water"):
            taken.wait()
        assert taken.ready.state() == FAILED
        taken.close()

    def test_a_capsule_that_no_consumer_takes_ends_its_lease(self, eng, np):
        t = eng.zeros(3, "float32")
        for _ in range(1000):
            t.__dlpack_fence__()
        eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack).wait(30)

    def test_what_has_no_fences_is_a_buffer_error(self, eng, np):
        t = eng.zeros(3, "float32")
        for arguments in ({"copy": True}, {"dl_device": (2, 0)}, {"max_version": (0, 8)}):
            with pytest.raises(BufferError, match="call `__dlpack__`"):
                t.__dlpack_fence__(**arguments)
        with pytest.raises(BufferError):
            t.alias().__dlpack_fence__()
        eng.submit(lambda x: pytest.raises(BufferError, x.__dlpack_fence__), reads=[t]).wait(30)
        t.__dlpack_fence__(dl_device=(1, 0), copy=False)

    def test_it_does_not_wait_on_an_event_loop(self, eng, np, gate):
        t = eng.call(lambda: (gate(), np.ones(1))[1])

        async def main():
            taken = take(t)
            ended, loop = asyncio.get_running_loop().create_future(), asyncio.get_running_loop()
            taken.when_ready(lambda status, message: loop.call_soon_threadsafe(ended.set_result, status))
            gate.open()
            assert await ended == DONE
            taken.close()

        asyncio.run(main())


@pytest.mark.parametrize("pushes", [True, False], ids=["pushed", "polled"])
class TestTheirs:
    """Objects of libraries with fences."""

    def test_an_import_does_not_wait_and_order_holds(self, eng, np, pushes):
        theirs = Array(np.zeros(3), pushes)
        t = eng.from_dlpack(theirs)
        total = eng.call(lambda x: x + 1, t, using=np.from_dlpack)
        assert not t.is_ready() and not total.is_ready()
        theirs.values[:] = [1, 2, 3]
        theirs.ready.settle()
        total.wait(30)
        assert np.from_dlpack(total).tolist() == [2.0, 3.0, 4.0]
        assert t.data_ptr == theirs.values.ctypes.data

    def test_it_is_awaited(self, np, pushes):
        async def main(eng):
            theirs = Array(np.ones(2), pushes)
            t = eng.from_dlpack(theirs)
            asyncio.get_running_loop().call_later(0.01, theirs.ready.settle)
            await t
            return np.from_dlpack(t).tolist()

        with est.Engine(workers=1) as eng:
            assert asyncio.run(main(eng)) == [1.0, 1.0]

    def test_a_failure_travels_with_its_message(self, eng, np, pushes):
        theirs = Array(np.ones(2), pushes)
        t = eng.from_dlpack(theirs)
        after = eng.call(lambda x: x, t, using=np.from_dlpack)
        theirs.ready.settle(FAILED, "their paper is jammed")
        for tensor in (t, after):
            with pytest.raises(est.EstafetteError, match="their paper is jammed"):
                tensor.wait(30)

    def test_struct_and_fence_are_released(self, eng, np, pushes):
        theirs = Array(np.ones(2), pushes)
        t = eng.from_dlpack(theirs)
        assert theirs.ready._holders > 0 and theirs.back == 0
        theirs.ready.settle()
        t.wait(30)
        del t
        until(lambda: gc.collect() is not None and theirs.back == 1 and theirs.ready._holders == 0)


class TestImports:
    def test_what_is_ready_already_is_ready_at_once(self, eng, np):
        theirs = Array(np.arange(3))
        theirs.ready.settle()
        assert eng.from_dlpack(theirs).is_ready()

    def test_what_operations_may_not_write_is_not_waited_for_either(self, eng, np):
        theirs = Array(np.zeros(3))
        t = eng.from_dlpack(theirs, writable=False)
        assert t.read_only and not t.is_ready()
        theirs.ready.settle()
        t.wait(30)
        assert not eng.from_dlpack(theirs).read_only

    @pytest.mark.parametrize("arguments", [{"copy": True}, {"device": "cpu", "copy": True}])
    def test_a_copy_that_operations_may_not_write_is_the_librarys_own(self, eng, np, arguments):
        class Copies(Array):
            def __dlpack__(self, **arguments):
                return self.values.__dlpack__(**arguments)

        theirs = Copies(np.arange(3))
        copy = eng.from_dlpack(theirs, writable=False, **arguments)
        assert copy.read_only and copy.data_ptr != theirs.values.ctypes.data
        # Memory that is not copied is not waited for.
        assert not eng.from_dlpack(theirs, writable=False, device="cpu", copy=False).is_ready()
        theirs.ready.settle()

    def test_a_copy_is_made_only_where_it_is_asked_for(self, eng, np):
        theirs = Array(np.arange(3))
        theirs.ready.settle()
        for arguments in ({"device": "cpu"}, {"copy": False}, {"device": "cpu", "copy": False}):
            assert eng.from_dlpack(theirs, **arguments).data_ptr == theirs.values.ctypes.data
        copy = eng.from_dlpack(theirs, device="cpu", copy=True)
        copy.wait(30)
        assert copy.data_ptr != theirs.values.ctypes.data and np.from_dlpack(copy).tolist() == [0, 1, 2]
        with pytest.raises(BufferError, match="on cpu:0, and is not moved to cuda:0"):
            eng.from_dlpack(theirs, device="cuda", copy=False)

    def test_a_tensor_that_is_described_late_comes_back_through_two_engines(self, eng, np, gate):
        t = eng.call(lambda: (gate(), np.arange(4.0))[1])

        class Passes:
            def __dlpack_fence__(self, **arguments):
                return t.__dlpack_fence__(**arguments)

        with est.Engine(workers=1) as other:
            again = other.from_dlpack(Passes())
            assert not again.is_ready()
            gate.open()
            again.wait(30)
            assert np.from_dlpack(again).tolist() == [0, 1, 2, 3]
            del again

    @pytest.mark.parametrize("other", [False, True], ids=["one engine", "two engines"])
    def test_a_tensor_that_is_written_comes_back_without_a_copy(self, eng, np, gate, other):
        t = eng.zeros(3, "float32")
        write = eng.submit(lambda x: (gate(), x.fill(1)), writes=[t], using=np.from_dlpack)

        class Passes:
            def __dlpack_fence__(self, **arguments):
                return t.__dlpack_fence__(**arguments)

        with est.Engine(workers=1) if other else contextlib.nullcontext(eng) as engine:
            again = engine.from_dlpack(Passes())
            assert again.shape == (3,) and again.data_ptr == t.data_ptr and not again.is_ready()
            later = eng.submit(lambda x: x.fill(2), writes=[t], using=np.from_dlpack)
            with pytest.raises(est.ConflictError, match="would wait for itself"):
                eng.submit(lambda x, y: None, reads=[again], writes=[t], using=np.from_dlpack)
            gate.open()
            write.wait(30)
            again.wait(30)
            assert np.from_dlpack(again).tolist() == [1, 1, 1]
            with pytest.raises(est.LeaseHeldError, match="__dlpack_fence__"):
                later.wait(30)
            del again
            later.wait(30)

    @pytest.mark.parametrize("fenced", [False, True], ids=["without a fence", "with a fence"])
    def test_what_else_is_imported_meanwhile_waits_for_the_writer(self, eng, np, gate, fenced):
        values = np.zeros(3)
        t = eng.from_dlpack(values)
        write = eng.submit(lambda x: (gate(), x.fill(1)), writes=[t], using=np.from_dlpack)
        taken = take(t)
        theirs = Array(values)
        again = eng.from_dlpack(theirs if fenced else values)
        theirs.ready.settle()
        assert not again.is_ready() and taken.ready.state() == PENDING
        gate.open()
        write.wait(30)
        again.wait(30)
        assert np.from_dlpack(again).tolist() == [1, 1, 1]
        taken.wait()
        taken.close()

    def test_an_import_outlasts_the_consumer_whose_lease_it_is_derived_from(self, eng, np, gate):
        values = np.zeros(3)
        t = eng.from_dlpack(values)
        write = eng.submit(lambda x: (gate(), x.fill(1)), writes=[t], using=np.from_dlpack)
        taken = take(t)
        theirs = Array(values)
        again = eng.from_dlpack(theirs)
        theirs.ready.settle()
        taken.close()
        gate.open()
        write.wait(30)
        later = eng.submit(lambda x: x.fill(2), writes=[t], using=np.from_dlpack)
        with pytest.raises(est.LeaseHeldError):
            later.wait(30)
        assert np.from_dlpack(again).tolist() == [1, 1, 1]
        del again
        later.wait(30)

    def test_a_library_may_refuse_and_is_asked_for_plain_memory(self, eng, np):
        class Refuses(Array):
            def __dlpack_fence__(self, **_):
                raise BufferError("not for this array")

            def __dlpack__(self, **arguments):
                return self.values.__dlpack__(**arguments)

        assert eng.from_dlpack(Refuses(np.ones(1))).is_ready()

    def test_bad_answers_are_refused_and_nothing_is_lost(self, eng, np):
        class NoCapsule(Array):
            def __dlpack_fence__(self, **_):
                return 3

        with pytest.raises(TypeError, match=r"`__dlpack_fence__` of .*NoCapsule returned no capsule"):
            eng.from_dlpack(NoCapsule(np.ones(1)))
        for field, value in (("version", 7), ("size", 8), ("fence_flags", 64)):

            class Spoiled(Array):
                def __dlpack_fence__(self, field=field, value=value, **arguments):
                    capsule = super().__dlpack_fence__()
                    pointer = dlpack_fence._python.PyCapsule_GetPointer(capsule, dlpack_fence.FENCED)
                    setattr(dlpack_fence.Fenced.from_address(pointer), field, value)
                    return capsule

            theirs = Spoiled(np.ones(1))
            with pytest.raises(est.InvalidTensorError, match=r"fence version|fence_flags"):
                eng.from_dlpack(theirs)
            until(lambda theirs=theirs: theirs.back == 1)
        theirs = Array(np.ones(1))
        theirs.ready.raw.version = 7
        with pytest.raises(est.InvalidError, match="fence: version is 7"):
            eng.from_dlpack(theirs)
        until(lambda: theirs.back == 1)

    def test_writable_waits_for_readers(self, eng, np, gate):
        t = eng.zeros(3, "float32")
        eng.submit(gate, reads=[t])

        async def main():
            waiting = asyncio.ensure_future(t.writable())
            await asyncio.sleep(0.01)
            assert gate.entered.is_set() and t.is_ready() and not waiting.done()
            gate.open()
            assert await waiting is t

        assert gate.entered.wait(30)
        asyncio.run(main())


def python(*arguments, folders=(), **environment):
    """Runs a program that sees `dlpack_fence` and `folders`."""
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    path = os.pathsep.join(map(str, [FENCES / "python", *folders, *inherited]))
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def c_libraries(tmp_path_factory):
    """The C libraries of `examples/fences` as one shared library."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("fences") / "libfences.so"
    command = [compiler, "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-pthread", "-I", FENCES / "include", "-o", library]
    subprocess.run([*command, EXAMPLES / "pool.c", EXAMPLES / "reader.c"], check=True)
    return library


class TestLibraries:
    """The libraries of `examples/fences`."""

    def test_python_and_c_exchange_without_estafette(self, np, c_libraries):
        ran = python(EXAMPLES / "producer.py", c_libraries)
        assert (ran.returncode, ran.stdout) == (0, "late, overwritten, failed and taken: done\n"), ran.stderr

    def test_they_exchange_through_estafette(self, eng, np, c_libraries, monkeypatch):
        monkeypatch.syspath_prepend(EXAMPLES)
        import producer

        c = producer.CLibrary(c_libraries)
        reader, opened = c.reader_create(), threading.Event()
        theirs = producer.Array(10, lambda out: (opened.wait(), out.fill(2)))
        squared = eng.call(lambda x: x * x, eng.from_dlpack(theirs), using=np.from_dlpack)
        address = producer.struct_of(squared)
        assert not squared.is_ready()
        opened.set()
        assert c.sum(reader, address) == 40
        c.reader_destroy(reader)

    @pytest.mark.parametrize(("module", "folder"), [("producer", EXAMPLES), ("fence_checked", pathlib.Path(__file__).parent)])
    def test_they_keep_the_rules(self, np, module, folder):
        ran = python("-m", "dlpack_fence.check", module, folders=[folder])
        passed = [line for line in ran.stdout.splitlines() if line.startswith("ok ")]
        assert (ran.returncode, len(passed)) == (0, 16), ran.stdout + ran.stderr

    @pytest.mark.parametrize(
        ("before", "after", "check"),
        [
            ("        self._ready.follow(self._task)\n\n    # Con", "        self._ready.settle()\n\n    # Con", "producer_late_readiness"),
            ("self._ready, is_back)", "dlpack_fence.Flag(), is_back)", "producer_late_readiness"),
            ("            consumers[0] += 1\n", "            pass\n", "producer_writes_wait"),
            ("consumers[0] -= 1\n", "consumers[0] = 0\n", "producer_two_consumers"),
            ("            taken.close()\n            use.append(result)", "            use.append(result)", "consumer_late_readiness"),
            ("if status == dlpack_fence.DONE:", "if True:", "consumer_a_tensor_that_fails"),
            ("        taken.when_ready(ready)\n", "        ready(0, None)\n", "consumer_late_readiness"),
        ],
    )
    def test_a_mutant_is_caught(self, np, tmp_path, before, after, check):
        text = (EXAMPLES / "producer.py").read_text()
        assert before in text
        (tmp_path / "producer.py").write_text(text.replace(before, after, 1))
        ran = python("-m", "dlpack_fence.check", "producer", check, folders=[tmp_path], DLPACK_FENCE_PATIENCE_MS="1000")
        assert ran.returncode != 0, ran.stdout


def test_the_helper_refuses_a_tensor_after_its_close_and_a_status_that_settles_nothing():
    np = pytest.importorskip("numpy")
    back = []
    ready = Flag()
    taken = dlpack_fence.Taken(dlpack_fence.give(np.arange(4.0), ready, lambda: back.append(1)))
    for status in (None, "x", 1, 1.0, -(2**31) - 1):
        with pytest.raises(ValueError, match="a status that settles"):
            ready.settle(status)
    assert ready.state() == PENDING
    ready.settle()
    assert list(taken.numpy()) == [0, 1, 2, 3]
    taken.close()
    taken.close()
    assert back == [1]
    uses = (taken.numpy, taken.wait, taken.__dlpack_device__, taken.__dlpack__, lambda: taken.add_done(Flag()), lambda: taken.ready)
    for use in uses:
        with pytest.raises(ValueError, match="closed"):
            use()
