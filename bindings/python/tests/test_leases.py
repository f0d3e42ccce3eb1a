"""Hard cases H1 to H3 of leases: who waits for whom, which error says so, and when memory may be written."""

import asyncio
import gc
import pickle
import threading
import time

import pytest

import estafette as est
from conftest import run_program, until


def fill(value):
    """A body that overwrites its one operand."""
    return lambda array: array.fill(value)


def look(*_arrays):
    """A body that reads and keeps nothing."""


@pytest.fixture
def patient():
    """An engine whose lease timeout is longer than any test: what is refused here is refused at once."""
    engine = est.Engine(workers=2, lease_timeout=600.0)
    yield engine
    gc.collect()
    report = engine.shutdown(5.0)
    assert report.drained, report


def waits(eng, op):
    """True if `op` waits for good: everything that could move has moved."""
    until(lambda: op.is_done() or all(known.status in ("waiting", "held") for known in eng.diagnose().operations))
    return not op.is_done()


class TestHeldByTheWaiterItself:
    def test_every_blocking_wait_is_refused_at_once_naming_the_lease_and_its_owner(self, patient, np):
        t = patient.zeros(4, "float32")
        array = np.from_dlpack(t)
        op = patient.submit(fill(1), writes=[t], using=np.from_dlpack)
        began = time.monotonic()
        waits_of_this_thread = {
            "from_dlpack": lambda: np.from_dlpack(t),
            "for_write": lambda: np.from_dlpack(t.for_write()),
            "tensor": t.wait,
            "operation": op.wait,
            "engine": patient.wait_all,
            "scoped read": t.read().__enter__,
            "scoped access": patient.access(writes=[t]).__enter__,
        }
        for name, wait in waits_of_this_thread.items():
            with pytest.raises(est.LeaseHeldError) as caught:
                wait()
            assert len(caught.value.leases) == 1, name
            for part in ("read lease", "test_every_blocking_wait", "test_leases.py"):
                assert part in caught.value.leases[0], name
                assert part in str(caught.value), name
        assert time.monotonic() - began < 60
        # They were refused, not broken.
        del array
        t.wait()
        assert np.from_dlpack(t).tolist() == [1] * 4

    def test_the_refusal_says_what_ends_the_lease(self, patient, np):
        t = patient.zeros(4, "float32")
        with t.read(using=np.from_dlpack) as array:
            assert array.sum() == 0
        op = patient.submit(fill(1), writes=[t], using=np.from_dlpack)
        with pytest.raises(est.LeaseHeldError, match=r"test_leases.py.*\. An array .*after its `with` block too: `del`") as caught:
            op.wait()
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        del array
        op.wait()

    def test_a_wait_with_a_timeout_is_refused_as_well(self, patient, np):
        t = patient.zeros(4, "float32")
        array = np.from_dlpack(t)
        patient.submit(fill(1), writes=[t], using=np.from_dlpack)
        with pytest.raises(est.LeaseHeldError):
            t.wait(timeout=300)
        del array

    def test_garbage_is_collected_once_before_anything_is_refused(self, patient, np):
        class Node:
            pass

        t = patient.zeros(4, "float32")
        collections = []

        def count(phase, info):
            if phase == "start":
                collections.append(info["generation"])

        gc.collect()
        gc.disable()
        gc.callbacks.append(count)
        try:
            node = Node()
            node.itself, node.array = node, np.from_dlpack(t)
            del node
            patient.submit(fill(1), writes=[t], using=np.from_dlpack)
            t.wait()
            assert collections == [2]
            # A lease that the collector cannot end is refused, after one collection.
            array = np.from_dlpack(t)
            patient.submit(fill(2), writes=[t], using=np.from_dlpack)
            with pytest.raises(est.LeaseHeldError):
                t.wait()
            assert collections == [2, 2]
            del array
        finally:
            gc.callbacks.remove(count)
            gc.enable()
        t.wait()

    def test_await_waits_for_as_long_as_the_lease_timeout_says(self, np):
        async def main(eng):
            t = eng.zeros(4, "float32")
            array = np.from_dlpack(t)
            op = eng.submit(fill(1), writes=[t], using=np.from_dlpack)
            began = time.monotonic()
            with pytest.raises(est.LeaseHeldError, match="read lease.*test_leases.py.*by this thread"):
                await t
            assert time.monotonic() - began >= 0.05
            assert not op.is_done()
            del array
            assert await t is t
            assert np.from_dlpack(t).tolist() == [1] * 4

        with est.Engine(workers=1, lease_timeout=0.05) as eng:
            asyncio.run(main(eng))


class TestHeldBySomebodyElse:
    def test_a_wait_is_refused_only_after_the_lease_timeout(self, np):
        timeout = 0.3
        with est.Engine(workers=1, lease_timeout=timeout) as eng:
            t = eng.zeros(4, "float32")
            held = []
            receiver = threading.Thread(target=lambda: held.append(np.from_dlpack(t)))
            receiver.start()
            receiver.join()
            op = eng.submit(fill(1), writes=[t], using=np.from_dlpack)
            began = time.monotonic()
            with pytest.raises(est.LeaseHeldError, match="read lease taken by <lambda>"):
                op.wait()
            assert time.monotonic() - began >= timeout
            held.clear()
            op.wait()

    def test_a_lease_released_by_another_thread_lets_the_wait_go_on(self, patient, np):
        t = patient.zeros(4, "float32")
        taken = threading.Event()

        def hold():
            array = np.from_dlpack(t)
            taken.set()
            until(lambda: any(known.blocked_by for known in patient.diagnose().operations))
            del array

        receiver = threading.Thread(target=hold)
        receiver.start()
        assert taken.wait(30)
        patient.submit(fill(7), writes=[t], using=np.from_dlpack)
        t.wait()
        assert np.from_dlpack(t).tolist() == [7] * 4
        receiver.join()

    def test_the_diagnosis_names_the_lease_and_who_waits_for_it(self, patient, np):
        t = patient.zeros(4, "float32")
        array = np.from_dlpack(t)
        op = patient.submit(fill(1), writes=[t], using=np.from_dlpack, name="repaint")
        assert waits(patient, op)
        diagnosis = patient.diagnose()
        waiting = next(known for known in diagnosis.operations if known.name == "repaint")
        (blocked,) = waiting.blocked_by
        assert waiting.status == "waiting" and blocked.hazard == "write after read"
        assert "read lease" in blocked.name and "test_leases.py" in blocked.name
        held = next(known for known in diagnosis.operations if known.id == blocked.id)
        assert held.status == "held"
        assert "repaint" in str(diagnosis)
        del array
        op.wait()


class TestRoundTrip:
    def test_what_comes_back_is_derived_and_may_only_be_read(self, patient, np):
        t = patient.zeros(4, "float32")
        u = patient.from_dlpack(np.from_dlpack(t))
        v = patient.from_dlpack(np.from_dlpack(u))
        for derived in (u, v):
            assert derived.data_ptr == t.data_ptr and derived.read_only
            patient.submit(look, reads=[derived], using=np.from_dlpack).wait()
            with pytest.raises(est.ConflictError, match="read lease"):
                patient.submit(look, writes=[derived])
            with pytest.raises(est.ConflictError, match="read lease"):
                np.from_dlpack(derived.for_write())
        # The lease lasts as long as anything derived from it.
        op = patient.submit(fill(1), writes=[t], using=np.from_dlpack)
        del u, derived
        assert waits(patient, op)
        del v
        op.wait()

    def test_a_part_of_it_is_derived_too(self, patient, np):
        t = patient.from_dlpack(np.arange(8, dtype="float32"))
        part = patient.from_dlpack(np.from_dlpack(t)[2:4])
        assert part.data_ptr == t.data_ptr + 8
        with pytest.raises(est.ConflictError):
            patient.submit(look, writes=[part])
        op = patient.submit(fill(1), writes=[t], using=np.from_dlpack)
        assert waits(patient, op)
        assert np.from_dlpack(part).tolist() == [2, 3]
        del part
        op.wait()

    def test_under_a_write_lease_it_may_be_written_and_keeps_others_out(self, patient, np):
        t = patient.zeros(4, "float32")
        u = patient.from_dlpack(np.from_dlpack(t.for_write()))
        assert u.data_ptr == t.data_ptr and not u.read_only
        outside = patient.submit(look, reads=[t])
        for _ in range(50):
            patient.submit(lambda a: a.__iadd__(1), writes=[u], using=np.from_dlpack)
        u.wait()
        assert np.from_dlpack(u).tolist() == [50] * 4
        assert waits(patient, outside)
        del u
        outside.wait()
        assert np.from_dlpack(t).tolist() == [50] * 4

    def test_a_tensor_of_our_own_comes_back_as_itself(self, patient):
        t = patient.zeros(4, "float32")
        assert patient.from_dlpack(t) is t


class TestViewsInABody:
    def test_they_wait_for_nothing_although_others_stand_in_the_queue(self, patient, np, gate):
        t = patient.zeros(4, "float32")

        def body(array):
            gate(array)
            # A second and a third view, while a writer and a reader are queued behind this operation.
            assert np.from_dlpack(t).sum() == 0
            with pytest.raises(ValueError, match="read-only"):
                np.from_dlpack(t)[0] = 1

        first = patient.submit(body, reads=[t], using=np.from_dlpack)
        assert gate.entered.wait(30)
        patient.submit(fill(1), writes=[t], using=np.from_dlpack)
        patient.submit(look, reads=[t])
        gate.open()
        first.wait()
        t.wait()

    def test_they_have_the_mode_that_was_declared(self, patient, np):
        a, b = patient.zeros(2, "float32"), patient.zeros(2, "float32")
        seen = []
        body = lambda x, y: seen.append((x.flags.writeable, y.flags.writeable))
        patient.submit(body, reads=[a], writes=[b], using=np.from_dlpack).wait()
        assert seen == [(False, True)]

    def test_a_write_view_of_something_declared_for_reading_is_a_conflict(self, patient, np):
        t = patient.zeros(2, "float32")
        op = patient.submit(lambda x: np.from_dlpack(x.for_write()), reads=[t])
        with pytest.raises(est.OperationError) as caught:
            op.wait()
        assert isinstance(caught.value.__cause__, est.ConflictError)

    @pytest.mark.parametrize("mode", ["read", "write"])
    def test_those_that_outlive_the_body_become_leases_of_the_same_mode(self, patient, np, mode):
        t = patient.zeros(4, "float32")
        kept = []
        operands = {"reads": [t]} if mode == "read" else {"writes": [t]}
        patient.submit(kept.append, using=np.from_dlpack, **operands).wait()
        until(lambda: any(known.status == "held" for known in patient.diagnose().operations))
        reading = patient.submit(look, reads=[t])
        writing = patient.submit(fill(1), writes=[t], using=np.from_dlpack)
        if mode == "read":
            reading.wait()
        else:
            assert waits(patient, reading)
            kept[0][:] = 5
        assert waits(patient, writing)
        kept.clear()
        writing.wait()
        assert np.from_dlpack(t).tolist() == [1] * 4

    def test_there_is_no_gap_for_a_writer_between_body_and_lease(self, patient, np):
        t = patient.zeros(1, "int64")
        for round in range(200):
            kept = []
            patient.submit(kept.append, reads=[t], using=np.from_dlpack)
            writing = patient.submit(fill(round + 1), writes=[t], using=np.from_dlpack)
            until(lambda: kept)
            assert kept[0][0] == round, "a writer got in between"
            assert not writing.is_done()
            kept.clear()
            writing.wait()

    def test_an_exception_that_is_kept_keeps_no_view(self, patient, np):
        t = patient.zeros(4, "float32")

        def fails(array):
            half = array[:2]
            raise RuntimeError(f"no good: {half.shape}")

        with pytest.raises(est.OperationError) as caught:
            patient.submit(fails, reads=[t], using=np.from_dlpack).wait()
        assert isinstance(caught.value.__cause__, RuntimeError)
        patient.submit(fill(1), writes=[t], using=np.from_dlpack).wait()

    def test_an_asynchronous_body_keeps_its_views_across_awaits(self, np):
        async def main(eng):
            t = eng.zeros(4, "float32")
            begun = asyncio.Event()

            async def body(array):
                begun.set()
                await asyncio.sleep(0)
                array += 1
                await asyncio.sleep(0.01)
                assert np.from_dlpack(t).tolist() == [1] * 4
                array += 1

            first = eng.submit(body, writes=[t], using=np.from_dlpack)
            second = eng.submit(lambda array: array.__imul__(10), writes=[t], using=np.from_dlpack)
            await begun.wait()
            assert not second.is_done()
            await first
            await t
            assert np.from_dlpack(t).tolist() == [20] * 4

        with est.Engine(workers=2) as eng:
            asyncio.run(main(eng))

    def test_a_tensor_that_is_no_operand_is_leased_as_anywhere_else(self, patient, np):
        t, other = patient.zeros(2, "float32"), patient.zeros(2, "float32")
        seen = []
        patient.submit(fill(3), writes=[other], using=np.from_dlpack)
        patient.submit(lambda _: seen.append(np.from_dlpack(other).tolist()), reads=[t]).wait()
        assert seen == [[3, 3]]


class TestScopedLeases:
    def test_several_tensors_are_taken_at_once_reads_first(self, patient, np):
        a, b = patient.zeros(2, "float32"), patient.zeros(3, "float32")
        with patient.access(reads=[a], writes=[b], using=np.from_dlpack) as (x, y):
            assert not x.flags.writeable and x.shape == (2,)
            y[:] = 4
            reading = patient.submit(look, reads=[a])
            writing = patient.submit(fill(1), writes=[a], using=np.from_dlpack)
            reading_b = patient.submit(look, reads=[b])
            reading.wait()
            assert waits(patient, writing) and not reading_b.is_done()
            del x, y
        writing.wait()
        reading_b.wait()
        assert np.from_dlpack(b).tolist() == [4] * 3

    def test_without_using_the_block_gets_views_that_export(self, patient, np):
        t = patient.zeros((2, 3), "int32")
        with t.write() as view:
            assert (view.shape, view.dtype, view.access) == ((2, 3), "int32", "write")
            assert view.device == (1, 0)
            array = np.from_dlpack(view)
            assert array.flags.writeable
            array[:] = 6
            del array
        with t.read() as view:
            assert view.access == "read"
            assert np.from_dlpack(view).sum() == 36
        with pytest.raises(est.ConflictError, match="ended"):
            view.shape
        with pytest.raises(est.ConflictError, match="ended"):
            np.from_dlpack(view)

    def test_an_array_that_outlives_the_block_keeps_the_lease(self, patient, np):
        t = patient.zeros(2, "float32")
        with t.read(using=np.from_dlpack) as array:
            pass
        op = patient.submit(fill(1), writes=[t], using=np.from_dlpack)
        assert waits(patient, op)
        assert array.tolist() == [0, 0]
        del array
        op.wait()

    def test_an_exception_in_the_block_returns_the_leases(self, patient, np):
        t = patient.zeros(2, "float32")
        with pytest.raises(KeyError), t.write():
            raise KeyError
        patient.submit(fill(1), writes=[t], using=np.from_dlpack).wait()

    def test_using_that_fails_returns_the_leases(self, patient, np):
        t = patient.zeros(2, "float32")

        def refuse(_view):
            raise KeyError

        access = t.write(using=refuse)
        with pytest.raises(KeyError):
            access.__enter__()
        patient.submit(fill(1), writes=[t], using=np.from_dlpack).wait()

    def test_an_access_can_be_entered_once_at_a_time(self, patient):
        access = patient.zeros(2, "float32").read()
        with access, pytest.raises(RuntimeError, match="entered already"):
            access.__enter__()
        with access:
            pass

    def test_asking_for_more_while_holding_is_checked(self, patient):
        t = patient.zeros(2, "float32")
        with t.write(), pytest.raises(est.LeaseHeldError, match="write lease"):
            t.read().__enter__()
        with t.read(), t.read():
            pass

    def test_two_owners_of_the_same_tensors_in_crossed_order_do_not_deadlock(self, patient, np):
        a, b = patient.zeros(1, "int64"), patient.zeros(1, "int64")
        rounds = 300

        def take(tensors):
            for _ in range(rounds):
                with patient.access(writes=tensors, using=np.from_dlpack) as (x, y):
                    x += 1
                    y += 1
                    del x, y

        threads = [threading.Thread(target=take, args=(order,)) for order in ([a, b], [b, a])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), patient.diagnose()
        assert (np.from_dlpack(a)[0], np.from_dlpack(b)[0]) == (2 * rounds, 2 * rounds)

    def test_async_with_waits_without_stopping_the_loop(self, np):
        async def main(eng):
            a, b = eng.zeros(2, "float32"), eng.zeros(2, "float32")
            release = asyncio.Event()

            async def holds(_array):
                await release.wait()

            eng.submit(holds, writes=[a], using=np.from_dlpack)
            # The plain form would stop the very loop that the body runs on.
            with pytest.raises(est.WouldBlockError, match="await"):
                a.read().__enter__()
            asyncio.get_running_loop().call_later(0.02, release.set)
            async with eng.access(reads=[a], writes=[b], using=np.from_dlpack) as (x, y):
                y[:] = x + 1
                del x, y
            async with b.read() as view:
                assert np.from_dlpack(view).tolist() == [1, 1]
            async with b.write(using=np.from_dlpack) as array:
                array[:] = 2
                del array
            assert np.from_dlpack(await b).tolist() == [2, 2]

        with est.Engine(workers=2) as eng:
            asyncio.run(main(eng))

    def test_a_cancelled_async_with_gives_up_its_place(self, np):
        async def main(eng):
            t = eng.zeros(2, "float32")
            array = np.from_dlpack(t)

            async def take():
                async with t.write():
                    pass

            taking = asyncio.create_task(take())
            await asyncio.sleep(0.02)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            op = eng.submit(fill(1), writes=[t], using=np.from_dlpack)
            del array
            await op
            assert np.from_dlpack(t).tolist() == [1, 1]

        with est.Engine(workers=1) as eng:
            asyncio.run(main(eng))


class TestModes:
    def test_plain_export_is_a_read_only_view_of_the_same_memory(self, patient, np):
        t = patient.zeros(4, "float32")
        array = np.from_dlpack(t)
        assert not array.flags.writeable
        assert array.ctypes.data == t.data_ptr
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1

    def test_for_write_is_exclusive_and_what_it_writes_is_seen(self, patient, np):
        t = patient.zeros(4, "float32")
        exporter = t.for_write()
        assert exporter.access == "write" and exporter.tensor is t
        array = np.from_dlpack(exporter)
        assert array.flags.writeable and array.ctypes.data == t.data_ptr
        seen = []
        reading = patient.submit(lambda a: seen.append(a.tolist()), reads=[t], using=np.from_dlpack)
        assert waits(patient, reading)
        array[:] = [1, 2, 3, 4]
        del array
        reading.wait()
        assert seen == [[1, 2, 3, 4]]

    def test_for_write_of_read_only_memory_is_a_conflict(self, patient, np):
        source = np.zeros(4)
        source.flags.writeable = False
        t = patient.from_dlpack(source)
        assert t.read_only
        with pytest.raises(est.ConflictError, match="read-only"):
            np.from_dlpack(t.for_write())

    def test_an_alias_is_tracked_by_nobody(self, patient, np):
        t = patient.zeros(4, "float32")
        array = np.from_dlpack(t.alias())
        patient.submit(fill(9), writes=[t], using=np.from_dlpack).wait()
        assert array.tolist() == [9] * 4
        assert patient.diagnose().is_idle
        # An import of it is not derived, but its overlap is seen.
        again = patient.from_dlpack(array)
        patient.submit(fill(8), writes=[again], using=np.from_dlpack)
        assert np.from_dlpack(t).tolist() == [8] * 4

    def test_many_readers_hold_leases_side_by_side(self, patient, np):
        t = patient.zeros(4, "float32")
        arrays = [np.from_dlpack(t) for _ in range(50)]
        op = patient.submit(fill(1), writes=[t], using=np.from_dlpack)
        while arrays:
            assert not op.is_done()
            arrays.pop()
        op.wait()

    def test_writable_waits_for_every_lease(self, np):
        async def main(eng):
            t = eng.zeros(4, "float32")
            array = np.from_dlpack(t)

            async def wait():
                return await t.writable()

            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0.02)
            assert not waiting.done()
            assert await t is t, "it is readable all the time"
            del array
            assert await waiting is t

        with est.Engine(workers=1) as eng:
            asyncio.run(main(eng))

    def test_an_unconsumed_capsule_holds_its_lease_until_it_is_gone(self, patient, np):
        t = patient.zeros(4, "float32")
        capsule = t.__dlpack__(max_version=(1, 0))
        op = patient.submit(fill(1), writes=[t], using=np.from_dlpack)
        assert waits(patient, op)
        del capsule
        op.wait()


class TestShutdownWithLeases:
    def test_what_only_leases_block_is_cancelled_at_the_deadline_and_reported(self, np):
        eng = est.Engine(workers=1, lease_timeout=600)
        t = eng.zeros(4, "float32")
        array = np.from_dlpack(t)
        op = eng.submit(fill(1), writes=[t], using=np.from_dlpack, name="never")
        report = eng.shutdown(timeout=0.05)
        assert report.cancelled == ("never",)
        assert len(report.leases) == 1 and "test_leases.py" in report.leases[0]
        with pytest.raises(est.CancelledError, match="never"):
            op.wait()
        # The array is as it was.
        assert array.tolist() == [0] * 4

    def test_the_end_of_a_with_block_warns_of_them(self, np):
        with pytest.warns(RuntimeWarning, match="never.*test_leases.py"):
            with est.Engine(workers=1, lease_timeout=0.05) as eng:
                t = eng.zeros(4, "float32")
                array = np.from_dlpack(t)
                eng.submit(fill(1), writes=[t], using=np.from_dlpack, name="never")
        assert array.tolist() == [0] * 4

    @pytest.mark.parametrize("kind, run", [("", "main()"), ("async ", "asyncio.run(main())")])
    def test_that_warning_is_of_the_line_of_the_block(self, np, kind, run):
        _, errors = run_program(
            f"""
            import asyncio
            import numpy as np
            import estafette as est

            {kind}def main():
                {kind}with est.Engine(workers=1, lease_timeout=0.05) as eng:
                    t = eng.zeros(4, "float32")
                    array = np.from_dlpack(t)
                    eng.submit(lambda t: None, writes=[t], name="never")

            {run}
            """
        )
        assert "<string>:7: RuntimeWarning" in errors

    def test_arrays_outlive_their_engine(self, np):
        with est.Engine(workers=1) as eng:
            array = np.from_dlpack(eng.from_dlpack(np.arange(5)))
        del eng
        gc.collect()
        assert array.tolist() == [0, 1, 2, 3, 4]


def test_garbage_is_released_also_while_another_thread_collects(eng, np):
    """`gc.collect` does nothing then, and a wait for the lease of an array that no code can reach any more would be refused."""
    entered, resume = threading.Event(), threading.Event()

    class Slow:
        def __init__(self):
            self.itself = self

        def __del__(self):
            entered.set()
            resume.wait(30)

    t = eng.zeros(3, "float32")
    gc.disable()
    try:
        Slow()
        other = threading.Thread(target=gc.collect)
        other.start()
        assert entered.wait(30)
        garbage = [np.from_dlpack(t)]
        garbage.append(garbage)
        del garbage
        threading.Timer(0.2, resume.set).start()
        eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack).wait()
        other.join()
    finally:
        resume.set()
        gc.enable()
