"""Definition and aliases: when a promise has a shape, and which tensors are known to share memory."""

import asyncio
import threading

import pytest

import estafette as est
from conftest import peer, until


def fill(value):
    return lambda array: array.fill(value)


class TestDefinition:
    def test_attributes_of_an_undefined_tensor_raise_while_waits_wait(self, eng, np, gate):
        y = eng.call(lambda: (gate(), np.arange(3, dtype="float32"))[1])
        assert not y.is_defined() and not y.is_ready()
        for attribute in ("shape", "ndim", "dtype", "device", "data_ptr", "read_only"):
            with pytest.raises(est.NotDefinedError):
                getattr(y, attribute)
        assert "no shape yet" in repr(y)
        threading.Timer(0.02, gate.open).start()
        # Protocol methods wait until it is defined.
        assert y.__dlpack_device__() == (1, 0)
        assert np.from_dlpack(y).tolist() == [0, 1, 2]
        assert (y.shape, y.dtype, y.device) == ((3,), "float32", (1, 0))

    @pytest.mark.parametrize("form", ["pair", "array"])
    def test_like_declares_shape_and_type_at_once(self, eng, np, gate, form):
        like = ((2, 3), "float64") if form == "pair" else np.empty((2, 3))
        y = eng.call(lambda: (gate(), np.ones((2, 3)))[1], like=like)
        assert (y.shape, y.ndim, y.dtype) == ((2, 3), 2, "float64")
        assert not y.is_ready()
        gate.open()
        assert np.from_dlpack(y).sum() == 6

    def test_a_result_unlike_what_was_declared_is_a_failure(self, eng, np):
        y = eng.call(lambda: np.ones(4), like=((2, 2), "float64"))
        with pytest.raises(est.OperationError, match=r"\[4\].*\[2, 2\]"):
            y.wait()

    def test_operations_chain_on_what_is_not_defined_yet(self, eng, np, gate):
        a = eng.call(lambda: (gate(), np.arange(4.0))[1])
        b = eng.call(lambda x: x * 2, a, using=np.from_dlpack)
        total = eng.empty(1, "float64")
        eng.submit(lambda x, out: out.__setitem__(0, x.sum()), reads=[b], writes=[total], using=np.from_dlpack)
        assert not b.is_defined() and not total.is_ready()
        gate.open()
        assert np.from_dlpack(total)[0] == 12

    def test_a_promise_whose_producer_failed_has_no_shape_and_gives_the_cause(self, eng, np):
        def fails():
            raise RuntimeError("no such data")

        y = eng.call(fails, name="load")
        for use in (y.wait, lambda: np.from_dlpack(y), y.__dlpack_device__):
            with pytest.raises(est.OperationError, match="no such data") as caught:
                use()
            assert caught.value.operation == "load"
            assert isinstance(caught.value.__cause__, RuntimeError)
        with pytest.raises(est.EstafetteError):
            y.shape


class TestResults:
    def test_a_fresh_result_is_not_copied(self, eng, np):
        made = []

        def make():
            made.append(np.arange(5.0))
            return made[0]

        y = eng.call(make)
        y.wait()
        assert y.data_ptr == made[0].ctypes.data

    def test_one_that_overlaps_known_memory_is_copied(self, eng, np):
        source = np.arange(6.0)
        t = eng.from_dlpack(source)
        y = eng.call(lambda a: a[1:3], t, using=np.from_dlpack)
        y.wait()
        assert y.data_ptr != t.data_ptr + 8
        eng.submit(fill(0), writes=[t], using=np.from_dlpack).wait()
        assert np.from_dlpack(y).tolist() == [1, 2]

    def test_or_refused_when_copying_is_off(self, eng, np):
        t = eng.from_dlpack(np.arange(6.0))
        y = eng.call(lambda a: a[1:3], t, using=np.from_dlpack, copy=False)
        with pytest.raises(est.OperationError, match="overlaps") as caught:
            y.wait()
        assert isinstance(caught.value.__cause__, est.ConflictError)
        # A result of its own is no copy.
        z = eng.call(lambda a: a + 1, t, using=np.from_dlpack, copy=False)
        assert np.from_dlpack(z)[0] == 1

    def test_copy_true_always_copies(self, eng, np):
        made = []

        def make():
            made.append(np.arange(5.0))
            return made[0]

        y = eng.call(make, copy=True)
        assert np.from_dlpack(y).tolist() == made[0].tolist()
        assert y.data_ptr != made[0].ctypes.data

    def test_alias_of_shares_the_memory_and_the_order(self, eng, np, gate):
        t = eng.from_dlpack(np.arange(6.0))
        y = eng.call(lambda a: a[1:3], t, using=np.from_dlpack, alias_of=[t])
        y.wait()
        assert y.data_ptr == t.data_ptr + 8
        reading = eng.submit(gate, reads=[y])
        writing = eng.submit(fill(7), writes=[t], using=np.from_dlpack)
        assert gate.entered.wait(30)
        assert not writing.is_done()
        gate.open()
        reading.wait()
        # Ordered, not leased: the write goes on although `y` is alive.
        writing.wait()
        assert np.from_dlpack(y).tolist() == [7, 7]

    def test_a_result_that_is_one_of_our_tensors_is_taken_as_it_is(self, eng, np):
        y = eng.call(lambda: eng.from_dlpack(np.arange(4.0)))
        assert np.from_dlpack(y).tolist() == [0, 1, 2, 3]

    def test_a_result_that_is_no_array_is_a_failure(self, eng):
        y = eng.call(object, like=((), "int8"))
        with pytest.raises(est.OperationError, match="__dlpack__") as caught:
            y.wait()
        assert isinstance(caught.value.__cause__, TypeError)


class TestOverlaps:
    def test_imports_that_overlap_are_ordered_and_others_are_not(self, eng, np, gate):
        memory = np.zeros(12)
        a, b, c = (eng.from_dlpack(part) for part in (memory[:6], memory[4:9], memory[9:]))
        eng.submit(gate, reads=[a])
        assert gate.entered.wait(30)
        overlapping = eng.submit(fill(1), writes=[b], using=np.from_dlpack)
        eng.submit(fill(2), writes=[c], using=np.from_dlpack).wait()
        assert not overlapping.is_done()
        gate.open()
        overlapping.wait()
        assert memory.tolist() == [0] * 4 + [1] * 5 + [2] * 3

    def test_the_same_array_twice_is_one_memory(self, eng, np, gate):
        memory = np.zeros(3)
        a, b = eng.from_dlpack(memory), eng.from_dlpack(memory)
        eng.submit(gate, writes=[a])
        assert gate.entered.wait(30)
        reading = eng.submit(lambda _: None, reads=[b])
        assert not b.is_ready()
        gate.open()
        reading.wait()
        assert b.version == a.version == 1

    def test_overlaps_are_seen_across_engines(self, eng, np, gate):
        memory = np.zeros(4)
        a = eng.from_dlpack(memory)
        with est.Engine(workers=1) as other:
            b = other.from_dlpack(memory[2:])
            eng.submit(gate, reads=[a])
            assert gate.entered.wait(30)
            writing = other.submit(fill(5), writes=[b], using=np.from_dlpack)
            # And a tensor of one engine is an operand of another's operation.
            seen = []
            reading = other.submit(lambda x: seen.append(x.tolist()), reads=[a], using=np.from_dlpack)
            assert not writing.is_done()
            gate.open()
            reading.wait()
            assert seen == [[0, 0, 5, 5]]

    def test_a_tensor_that_overlaps_very_many_others_is_ordered_with_all(self, eng, np):
        memory = np.zeros(200)
        parts = [eng.from_dlpack(memory[i : i + 1]) for i in range(200)]
        for index, part in enumerate(parts):
            eng.submit(fill(index), writes=[part], using=np.from_dlpack)
        whole = eng.from_dlpack(memory)
        seen = []
        eng.submit(lambda a: seen.append(a.tolist()), reads=[whole], using=np.from_dlpack)
        for part in parts:
            eng.submit(fill(-1), writes=[part], using=np.from_dlpack)
        eng.wait_all()
        assert seen == [list(range(200))]
        assert (memory == -1).all()

    def test_a_duplicate_operand_is_merged(self, eng, np):
        t = eng.from_dlpack(np.ones(3))
        eng.submit(lambda x, y, out: np.add(x, y, out=out), reads=[t, t], writes=[t], using=np.from_dlpack).wait()
        assert np.from_dlpack(t).tolist() == [2, 2, 2]

    def test_memory_that_was_released_is_forgotten(self, eng, np):
        for _ in range(100):
            t = eng.from_dlpack(np.zeros(1000))
            eng.submit(fill(1), writes=[t], using=np.from_dlpack)
        eng.wait_all()
        del t
        before = eng.stats()
        until(lambda: eng.stats().releasing == 0)
        assert eng.stats().leaked == before.leaked


def own_arrays(name):
    """An array of the library with memory of its own, and another one of the same memory."""
    numpy = peer("numpy")
    if name == "torch":
        memory = peer("torch").zeros(4)
        return memory, memory.view(2, 2)
    memory = numpy.frombuffer(bytearray(16), "float32") if name == "bytearray" else numpy.zeros(4, "float32")
    return memory, memory.reshape(2, 2)


class TestTheOwnersArrayOnceMore:
    """A tensor that is imported again from its owner is not under the lease of another consumer, although the address is the same."""

    @pytest.mark.parametrize("library", ["numpy", "bytearray", "torch"])
    def test_while_an_operation_runs_it_waits_for_that(self, eng, np, gate, library):
        memory, other = own_arrays(library)
        t = eng.from_dlpack(memory)

        def write(view):
            gate()
            view.fill(1)

        writing = eng.submit(write, writes=[t], using=np.from_dlpack)
        assert gate.entered.wait(30)
        again = eng.from_dlpack(other)
        seen = []
        reading = eng.submit(lambda a: seen.append(a.tolist()), reads=[again], using=np.from_dlpack)
        assert not again.is_ready()
        gate.open()
        reading.wait()
        assert seen == [[[1, 1], [1, 1]]]
        # And it holds no lease.
        writing.wait()
        eng.submit(fill(2), writes=[t], using=np.from_dlpack).wait()

    @pytest.mark.parametrize("library", ["numpy", "bytearray", "torch"])
    @pytest.mark.parametrize("access", ["read", "write"])
    def test_while_an_array_is_out_it_waits_for_that(self, eng, np, library, access):
        memory, other = own_arrays(library)
        t = eng.from_dlpack(memory)
        view = np.from_dlpack(t if access == "read" else t.for_write())
        again = eng.from_dlpack(other)
        writing = eng.submit(fill(3), writes=[again], using=np.from_dlpack)
        with pytest.raises(est.LeaseHeldError):
            writing.wait()
        del view
        writing.wait()
        eng.submit(lambda a: np.add(a, 1, out=a), writes=[t], using=np.from_dlpack).wait()
        assert np.from_dlpack(again).tolist() == [[4, 4], [4, 4]]

    @pytest.mark.parametrize("form", ["array", "buffer", "torch"])
    def test_what_comes_from_the_lease_still_carries_it(self, eng, np, form):
        t = eng.from_dlpack(np.arange(4.0))
        view = np.asarray(t) if form == "buffer" else np.from_dlpack(t)
        part = view[1:].reshape(3)
        if form == "torch":
            part = peer("torch").from_dlpack(t)[1:]
        u = eng.from_dlpack(part)
        del view, part
        writing = eng.submit(fill(0), writes=[t], using=np.from_dlpack)
        # It does not wait for the write that waits for it.
        assert np.from_dlpack(u).tolist() == [1, 2, 3]
        with pytest.raises(est.ConflictError):
            eng.submit(fill(1), writes=[u], using=np.from_dlpack)
        assert not writing.is_done()
        del u
        writing.wait()

    def test_an_asynchronous_body_has_its_own_views(self, eng, np):
        async def main():
            t = eng.from_dlpack(np.zeros(2))

            async def body(view):
                await asyncio.sleep(0)
                inside = eng.from_dlpack(view)
                await eng.submit_async(fill(5), writes=[inside], using=np.from_dlpack)
                await inside

            await eng.submit(body, writes=[t], using=np.from_dlpack)
            # The view ends with `inside`, whose memory is released by another thread.
            await t
            return np.from_dlpack(t).tolist()

        assert asyncio.run(asyncio.wait_for(main(), 30)) == [5, 5]
