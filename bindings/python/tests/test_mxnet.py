"""MXNet 1.9.1 as producer and as consumer. It knows only DLPack capsules before version 1.0, and has no `__dlpack__`:
programs pass its capsules by hand. It runs in an environment of its own, as it needs an old NumPy.
"""

import asyncio
import ctypes
import gc
import threading
import time
import warnings
import weakref

import numpy as np
import pytest

import estafette as est
from capsules import python as c_api
from conftest import until
from peers import MXNET

with warnings.catch_warnings():
    # It asks for `np.bool`, which NumPy 1.20 began to warn of and 1.24 took away. It is set again in this process alone.
    warnings.simplefilter("ignore")
    if not hasattr(np, "bool"):
        np.bool = bool
    import mxnet as mx

# Element types that it makes, asserted below in both directions.
MAKES = MXNET.dtypes
TAKES = MAKES + " bfloat16"
# (It refuses complex128 too, in a message that is no text.)
REFUSES = "bool int16 uint16 uint32 uint64 complex64 float8_e4m3fn"


def make(dtype="float32", size=8):
    return mx.nd.array(np.arange(size), dtype=dtype)


def take(source, **arguments):
    """As a program of MXNet takes a tensor: by a capsule that it asks for itself."""
    return mx.nd.from_dlpack(source.__dlpack__(**arguments))


def address(array):
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value


def is_free(eng, tensor):
    """True if no lease is left on the tensor: a write begins and ends."""
    gc.collect()
    eng.submit(lambda x: None, writes=[tensor]).wait(30)
    return True


@pytest.fixture
def np_shape():
    """MXNet as NumPy understands shapes: 0 is a size, where it means "not known" else."""
    before = mx.util.set_np_shape(True)
    yield
    mx.util.set_np_shape(before)


class TestImport:
    @pytest.mark.parametrize("dtype", MAKES.split())
    def test_an_element_type_comes_in_without_a_copy(self, eng, dtype):
        made = make(dtype)
        t = eng.from_dlpack(made.to_dlpack_for_read())
        assert (t.shape, t.dtype, t.device) == ((8,), dtype, (1, 0))
        assert t.data_ptr == address(made)
        assert take(t, copy=True).asnumpy().tolist() == list(range(8))

    def test_booleans_say_that_they_have_one_bit(self, eng):
        # They have a byte each: a reader that believes the struct sees an eighth of the memory.
        assert eng.from_dlpack(make("bool").to_dlpack_for_read()).dtype == "uint1"

    def test_a_raw_capsule_gives_no_consent_to_write(self, eng):
        made = make()
        for capsule in (made.to_dlpack_for_read(), made.to_dlpack_for_write()):
            assert c_api.PyCapsule_GetName(capsule) == b"dltensor"
            t = eng.from_dlpack(capsule)
            assert c_api.PyCapsule_GetName(capsule) == b"used_dltensor"
            assert t.read_only
            with pytest.raises(est.ConflictError, match="read-only"):
                eng.submit(lambda x: None, writes=[t])
            del t

    def test_a_consumed_capsule_is_refused_by_both(self, eng):
        capsule = make().to_dlpack_for_read()
        assert eng.from_dlpack(capsule).shape == (8,)
        with pytest.raises(ValueError, match="consumed"):
            eng.from_dlpack(capsule)
        with pytest.raises(AssertionError, match="consumed only once"):
            mx.nd.from_dlpack(capsule)

    def test_pending_work_of_its_engine_is_done_when_the_capsule_exists(self, eng):
        array = mx.nd.zeros((256, 256))
        for _ in range(50):
            array = array + 1
        t = eng.from_dlpack(array.to_dlpack_for_read())
        assert (take(t, copy=True).asnumpy() == 50).all()

    def test_shapes_without_elements_and_without_dimensions(self, eng, np_shape):
        for shape in [(), (0,), (3, 0)]:
            assert eng.from_dlpack(mx.nd.zeros(shape).to_dlpack_for_read()).shape == shape

    def test_transposing_copies_on_its_side(self, eng):
        t = eng.from_dlpack(mx.nd.array([[0, 1, 2], [3, 4, 5]]).T.to_dlpack_for_read())
        assert take(t, copy=True).asnumpy().tolist() == [[0, 3], [1, 4], [2, 5]]

    def test_its_memory_lives_as_long_as_the_tensor(self, eng):
        t = eng.from_dlpack(make(size=4096).to_dlpack_for_read())
        gc.collect()
        # Were it free, one of these would have it.
        others = [mx.nd.ones(4096) for _ in range(64)]
        assert all(address(other) != t.data_ptr for other in others)
        assert take(t, copy=True).asnumpy().tolist() == list(range(4096))

    def test_its_memory_is_released_with_the_tensor(self, eng):
        def resident_mb():
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * 4096 // 2**20

        before = resident_mb()
        for _ in range(100):
            t = eng.from_dlpack(mx.nd.ones(4 * 2**20).to_dlpack_for_read())
            assert t.shape == (4 * 2**20,)
            del t
        # 1,600 MB came in and went; the reaper may be a few behind.
        until(lambda: resident_mb() < before + 200)


class TestExport:
    @pytest.mark.parametrize("dtype", TAKES.split())
    def test_an_element_type_goes_out_without_a_copy(self, eng, dtype):
        t = eng.zeros((2, 4), dtype)
        taken = take(t)
        assert address(taken) == t.data_ptr and taken.shape == (2, 4)

    @pytest.mark.parametrize("dtype", REFUSES.split())
    def test_other_element_types_are_refused_and_the_lease_comes_back(self, eng, dtype):
        t = eng.zeros(8, dtype)
        with pytest.raises(mx.base.MXNetError, match="Unknown DLDataType") as caught:
            take(t)
        del caught
        assert is_free(eng, t)

    @pytest.mark.parametrize("layout", ["transposed", "gaps", "reversed"])
    def test_strided_tensors_are_refused_and_the_lease_comes_back(self, eng, layout):
        source = np.arange(64, dtype="float32").reshape(8, 8)
        views = {"transposed": source.T, "gaps": source[::2, ::2], "reversed": source[::-1]}
        t = eng.from_dlpack(views[layout])
        with pytest.raises(mx.base.MXNetError, match="compact") as caught:
            take(t)
        del caught
        assert is_free(eng, t)
        # A copy is compact.
        assert take(t, copy=True).asnumpy().tolist() == views[layout].tolist()

    def test_shapes_without_elements_and_without_dimensions(self, eng, np_shape):
        for shape in [(), (0,)]:
            assert take(eng.zeros(shape, "float32")).shape == shape
        # It multiplies the sizes to find out what is compact, and a size of 0 leaves nothing to compare.
        with pytest.raises(mx.base.MXNetError, match="compact"):
            take(eng.zeros((3, 0), "float32"))

    def test_a_versioned_capsule_is_refused(self, eng):
        t = eng.zeros(4, "float32")
        with pytest.raises(AssertionError, match="Invalid DLPack Tensor"):
            take(t, max_version=(1, 0))
        assert is_free(eng, t)

    def test_read_only_memory_is_refused_since_its_capsules_cannot_say_so(self, eng):
        t = eng.from_dlpack(make().to_dlpack_for_read())
        with pytest.raises(BufferError, match="read-only"):
            take(t)
        assert take(t, copy=True).asnumpy().tolist() == list(range(8))

    def test_it_writes_what_it_was_lent(self, eng):
        # Under a write lease that is in order, and seen by the next reader.
        t = eng.zeros(4, "float32")
        taken = take(t.for_write())
        reading = eng.call(lambda x: x, t, using=lambda x: take(x, copy=True).to_dlpack_for_read())
        taken[:] = 3
        taken.wait_to_read()
        assert not reading.is_ready()
        del taken
        gc.collect()
        reading.wait(30)
        assert take(reading, copy=True).asnumpy().tolist() == [3] * 4

    def test_it_holds_a_lease_until_its_array_is_gone(self, eng):
        t = eng.zeros(16, "float32")
        taken = take(t)
        op = eng.submit(lambda x: None, writes=[t])
        with pytest.raises(est.LeaseHeldError, match="test_mxnet.py"):
            t.wait()
        assert not op.is_done()
        del taken
        gc.collect()
        op.wait(30)

    def test_memory_of_ours_lives_as_long_as_its_array(self, eng):
        source = np.arange(16, dtype="float32")
        alive = weakref.ref(source)
        taken = take(eng.from_dlpack(source))
        del source
        gc.collect()
        assert alive() is not None and taken.asnumpy()[15] == 15
        del taken
        until(lambda: gc.collect() is not None and alive() is None)


class TestPromises:
    def test_an_asynchronous_producer_is_awaited_by_it(self):
        async def main(eng):
            async def produce():
                await asyncio.sleep(0.005)
                return np.arange(8, dtype="float32")

            t = eng.call(produce)
            assert not t.is_ready()
            with pytest.raises(est.WouldBlockError):
                take(t)
            taken = take(await t)
            assert address(taken) == t.data_ptr and taken.asnumpy().tolist() == list(range(8))

        with est.Engine(workers=1) as eng:
            asyncio.run(main(eng))

    def test_a_consumer_that_never_heard_of_us_is_blocked_until_it_is_ready(self, eng, gate):
        def produce():
            gate()
            return make().to_dlpack_for_read()

        t = eng.call(produce)
        assert gate.entered.wait(30) and not t.is_ready()
        threading.Timer(0.02, gate.open).start()
        assert take(t, copy=True).asnumpy().tolist() == list(range(8))

    def test_a_failure_of_the_producer_is_raised_in_the_consumer(self, eng):
        def fails():
            raise RuntimeError("the well is dry")

        t = eng.call(fails, name="draw")
        with pytest.raises(est.OperationError, match="the well is dry"):
            take(t)

    def test_its_operations_are_legs_of_a_relay(self, eng):
        t = eng.zeros(8, "float32")
        for _ in range(10):
            eng.submit(lambda x: x.__iadd__(1).wait_to_read(), writes=[t], using=take)
        assert take(t).asnumpy().tolist() == [10] * 8


def held_ones(eng, gate, size=200):
    """An array of ones that MXNet's engine has once the gate is open."""
    x = mx.nd.zeros((size, size))
    eng.submit(lambda values: (gate(), values.fill(1)), writes=[eng.from_mxnet(x, write=True)], using=np.asarray)
    assert gate.entered.wait(30)
    return x * 1


class TestItsEngine:
    """Its asynchronous engine as a foreign promise: `from_mxnet`."""

    def test_the_host_thread_is_not_blocked_and_order_holds_behind_a_slow_producer(self, eng, gate):
        t = eng.from_mxnet(held_ones(eng, gate))
        total = eng.call(lambda x: np.array([x.sum()]), t, using=np.asarray)
        assert not t.is_ready() and not t.is_defined() and not total.is_ready()
        gate.open()
        t.wait(60)
        assert np.from_dlpack(total)[0] == 200 * 200

    def test_it_is_awaited_on_an_event_loop_that_goes_on_meanwhile(self, gate):
        async def main(eng):
            async def turn():
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not t.is_ready()
                gate.open()

            t = eng.from_mxnet(held_ones(eng, gate))
            turning = asyncio.ensure_future(turn())
            await t
            await turning
            return np.asarray(t).sum()

        with est.Engine(workers=1) as eng:
            assert asyncio.run(main(eng)) == 200 * 200

    def test_memory_is_shared_and_read_only(self, eng):
        made = make()
        t = eng.from_mxnet(made)
        t.wait(30)
        assert (t.shape, t.dtype, t.data_ptr, t.read_only) == ((8,), "float32", address(made), True)
        with pytest.raises(est.ConflictError, match="read-only"):
            eng.submit(lambda x: None, writes=[t])

    def test_its_later_writes_wait_until_the_tensor_is_gone(self, eng, gate):
        x = make()

        def read(values):
            gate()
            return values.copy()

        t = eng.from_mxnet(x)
        seen = eng.call(read, t, using=np.asarray)
        assert gate.entered.wait(30)
        x += 100
        y = x + 0
        del t
        time.sleep(0.02)
        assert address(make()) and not seen.is_ready()
        gate.open()
        assert np.from_dlpack(seen).tolist() == list(range(8)), "it was read before MXNet wrote it again"
        assert y.asnumpy().tolist() == [value + 100 for value in range(8)]

    def test_what_was_asked_for_before_and_after_falls_in_order(self, eng):
        x = mx.nd.zeros((64,))
        seen = []
        for turn in range(50):
            x += 1
            t = eng.from_mxnet(x)
            seen.append((turn, eng.call(np.copy, t, using=np.asarray)))
            del t
        for turn, values in seen:
            assert (np.from_dlpack(values) == turn + 1).all()

    def test_written_here_and_read_there(self, eng, gate):
        x = make()
        t = eng.from_mxnet(x, write=True)

        def add(values):
            gate()
            values += 10

        eng.submit(add, writes=[t], using=np.asarray)
        del t
        y = x * 2
        assert gate.entered.wait(30)
        gate.open()
        assert y.asnumpy().tolist() == [2 * (value + 10) for value in range(8)]

    def test_the_array_may_be_dropped_at_once(self, eng, gate):
        t = eng.from_mxnet(held_ones(eng, gate, 50))
        gc.collect()
        others = [mx.nd.zeros((50, 50)) for _ in range(64)]
        gate.open()
        assert np.asarray(t).sum() == 2500
        assert len(others) == 64

    def test_a_failure_in_its_engine_fails_the_promise(self, eng):
        # A random distribution of negative scale fails when it runs, not when it is asked for.
        bad = mx.nd.random.normal(0, -1, shape=(2,))
        t = eng.from_mxnet(bad)
        with pytest.raises(est.OperationError, match="MXNet skipped it"):
            t.wait(30)
        with pytest.raises(mx.base.MXNetError):
            bad.wait_to_read()

    def test_what_is_no_dense_array_of_its_own_is_refused(self, eng):
        with pytest.raises(TypeError, match="numpy.ndarray is no array of MXNet"):
            eng.from_mxnet(np.zeros(3))
        with pytest.raises(ValueError, match="stored as csr"):
            eng.from_mxnet(mx.nd.zeros((2, 2)).tostype("csr"))

    def test_its_memory_comes_back(self, eng):
        def resident_mb():
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * 4096 // 2**20

        before = resident_mb()
        for _ in range(100):
            eng.from_mxnet(mx.nd.ones(4 * 2**20)).wait(30)
        until(lambda: resident_mb() < before + 200)
