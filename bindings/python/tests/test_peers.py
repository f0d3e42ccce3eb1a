"""NumPy, JAX and PyTorch, each as producer and as consumer, and relays across all three."""

import asyncio
import gc
import itertools
import threading
import weakref

import pytest

import estafette as est
from conftest import peer, until

NAMES = ("numpy", "jax", "torch")


def aligned(np, shape, dtype="float32"):
    """A NumPy array of counting numbers whose first element lies on a cache line: JAX copies what does not."""
    size = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, "uint8")
    skip = -memory.ctypes.data % 64
    array = memory[skip : skip + size].view(dtype).reshape(shape)
    array[...] = np.arange(array.size).reshape(shape)
    return array


class Numpy:
    name = "numpy"
    dtypes = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"

    def __init__(self):
        self.np = peer("numpy")
        self.from_dlpack = self.np.from_dlpack

    def view_of(self, array):
        return array

    def make(self, dtype, size=8):
        return self.np.arange(size).astype(dtype)

    def address(self, array):
        return array.ctypes.data

    def bytes(self, array):
        return array.tobytes()

    def zeros(self, shape):
        return self.np.zeros(shape, "float32")

    def plus_one(self, array):
        return self.np.add(array, 1, out=aligned(self.np, array.shape, array.dtype))


class Jax:
    name = "jax"
    dtypes = (
        "bool int8 int16 int32 uint8 uint16 uint32 float16 bfloat16 float32 complex64 "
        "float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
        "float8_e8m0fnu"
    )

    def __init__(self):
        peer("jax")
        import jax.numpy as jnp

        self.jnp = jnp
        self.from_dlpack = jnp.from_dlpack

    def view_of(self, array):
        return self.jnp.from_dlpack(array)

    def make(self, dtype, size=8):
        return self.jnp.arange(size).astype(dtype)

    def address(self, array):
        return array.unsafe_buffer_pointer()

    def bytes(self, array):
        return peer("numpy").asarray(array).tobytes()

    def zeros(self, shape):
        return self.jnp.zeros(shape, "float32")

    def plus_one(self, array):
        return array + self.jnp.float32(1)


class Torch:
    name = "torch"
    dtypes = (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 "
        "complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
    )

    def __init__(self):
        self.torch = peer("torch")
        self.from_dlpack = self.torch.from_dlpack

    def view_of(self, array):
        return self.torch.from_numpy(array)

    def make(self, dtype, size=8):
        if dtype.startswith("float8"):
            return self.torch.arange(size, dtype=self.torch.uint8).view(getattr(self.torch, dtype))
        return self.torch.arange(size).to(getattr(self.torch, dtype))

    def address(self, array):
        return array.data_ptr()

    def bytes(self, array):
        return array.contiguous().view(self.torch.uint8).numpy().tobytes()

    def zeros(self, shape):
        return self.torch.zeros(shape)

    def plus_one(self, array):
        return array + 1


PEERS = {kind.name: kind for kind in (Numpy, Jax, Torch)}


@pytest.fixture(params=NAMES)
def lib(request):
    return PEERS[request.param]()


def pairs_of_dtypes():
    pairs = [(kind, dtype) for kind in PEERS.values() for dtype in kind.dtypes.split()]
    return [pytest.param(kind, dtype, id=f"{kind.name}-{dtype}") for kind, dtype in pairs]


class TestEachPeer:
    def test_import_and_export_are_without_a_copy(self, eng, lib):
        made = lib.make("float32", 16)
        t = eng.from_dlpack(made)
        assert (t.shape, t.dtype, t.device) == ((16,), "float32", (1, 0))
        assert t.data_ptr == lib.address(made)
        fresh = eng.zeros((4, 4), "float32")
        assert lib.address(lib.from_dlpack(fresh)) == fresh.data_ptr

    @pytest.mark.parametrize("kind, dtype", pairs_of_dtypes())
    def test_every_element_type_makes_the_round_trip(self, eng, kind, dtype):
        lib = kind()
        made = lib.make(dtype)
        t = eng.from_dlpack(made)
        assert t.dtype == dtype
        back = lib.from_dlpack(t)
        assert back.dtype == made.dtype and tuple(back.shape) == (8,)
        assert lib.bytes(back) == lib.bytes(made)

    @pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 5)], ids=str)
    def test_tensors_without_elements_cross_both_ways(self, eng, lib, shape):
        t = eng.from_dlpack(lib.zeros(shape))
        assert t.shape == shape
        for tensor in (t, eng.zeros(shape, "float32")):
            assert tuple(lib.from_dlpack(tensor).shape) == shape

    def test_a_scalar_crosses_both_ways(self, eng, lib):
        t = eng.from_dlpack(lib.zeros(()))
        assert t.shape == () and tuple(lib.from_dlpack(t).shape) == ()

    def test_a_transposed_tensor_crosses_both_ways(self, eng, lib, np):
        source = aligned(np, (2, 3))
        back = lib.from_dlpack(eng.from_dlpack(lib.view_of(source).T))
        assert np.asarray(back).tolist() == source.T.tolist()

    def test_memory_of_a_producer_lives_as_long_as_the_tensor(self, eng, lib, np):
        source = aligned(np, 16)
        alive = weakref.ref(source)
        t = eng.from_dlpack(lib.view_of(source))
        assert t.data_ptr == source.ctypes.data
        del source
        gc.collect()
        assert alive() is not None
        assert np.from_dlpack(t)[15] == 15
        del t
        until(lambda: gc.collect() is not None and alive() is None)

    def test_memory_of_ours_lives_as_long_as_the_consumer(self, eng, lib, np):
        source = aligned(np, 16)
        alive = weakref.ref(source)
        array = lib.from_dlpack(eng.from_dlpack(source))
        del source
        gc.collect()
        assert alive() is not None
        assert float(array[15]) == 15
        del array
        until(lambda: gc.collect() is not None and alive() is None)

    def test_a_consumer_holds_a_lease_until_its_array_is_gone(self, eng, lib, np):
        t = eng.zeros(16, "float32")
        array = lib.from_dlpack(t)
        op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        with pytest.raises(est.LeaseHeldError, match="test_peers.py"):
            t.wait()
        assert not op.is_done() and float(array[0]) == 0
        del array
        gc.collect()
        op.wait()

    def test_an_asynchronous_producer_is_awaited_by_it(self, lib):
        async def main(eng):
            async def produce():
                await asyncio.sleep(0.005)
                return lib.make("float32")

            t = eng.call(produce)
            assert not t.is_ready()
            with pytest.raises(est.WouldBlockError):
                lib.from_dlpack(t)
            array = lib.from_dlpack(await t)
            assert lib.address(array) == t.data_ptr
            assert lib.bytes(array) == lib.bytes(lib.make("float32"))

        with est.Engine(workers=1) as eng:
            asyncio.run(main(eng))

    def test_a_consumer_that_never_heard_of_us_is_blocked_until_it_is_ready(self, eng, lib, gate):
        def produce():
            gate()
            return lib.make("float32")

        t = eng.call(produce)
        assert gate.entered.wait(30) and not t.is_ready()
        threading.Timer(0.02, gate.open).start()
        assert lib.bytes(lib.from_dlpack(t)) == lib.bytes(lib.make("float32"))

    def test_a_failure_of_the_producer_is_raised_in_the_consumer(self, eng, lib):
        def fails():
            raise RuntimeError("the well is dry")

        t = eng.call(fails, name="draw")
        with pytest.raises(est.OperationError, match="the well is dry") as caught:
            lib.from_dlpack(t)
        assert caught.value.operation == "draw"

    def test_a_consumer_that_refuses_returns_the_lease(self, eng, lib, np):
        backwards = eng.from_dlpack(np.arange(6.0, dtype="float32")[::-1])
        try:
            array = lib.from_dlpack(backwards)
        except Exception as error:
            # PyTorch knows no negative strides, JAX only compact ones.
            assert lib.name != "numpy" and not isinstance(error, est.EstafetteError), error
        else:
            assert np.asarray(array)[0] == 5
            del array
        eng.submit(lambda x: x.fill(1), writes=[backwards], using=np.from_dlpack).wait()

    def test_a_copy_is_never_overwritten(self, eng, lib, np):
        t = eng.zeros(16, "float32")
        array = lib.from_dlpack(t, copy=True)
        op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        if lib.address(array) == t.data_ptr:
            # JAX 0.10 takes the memory itself all the same, and does not ask for a copy; then it holds a lease.
            assert lib.name == "jax"
            with pytest.raises(est.LeaseHeldError):
                op.wait()
        else:
            op.wait()
        assert float(array[0]) == 0
        del array
        gc.collect()
        op.wait()


class TestReadOnly:
    def test_numpy_honours_it(self, eng, np):
        assert not np.from_dlpack(eng.zeros(4, "float32")).flags.writeable
        assert np.from_dlpack(eng.zeros(4, "float32").for_write()).flags.writeable
        source = np.zeros(4)
        source.flags.writeable = False
        t = eng.from_dlpack(source)
        assert t.read_only and not np.from_dlpack(t).flags.writeable

    def test_pytorch_ignores_it_and_writes_under_for_write_are_ordered(self, eng, np, torch):
        t = eng.zeros(4, "float32")
        array = torch.from_dlpack(t.for_write())
        array += 3
        reading = eng.call(lambda x: x.sum(keepdims=True), t, using=np.from_dlpack)
        del array
        assert np.from_dlpack(reading) == 12

    def test_pytorch_writes_in_operations_that_declare_it(self, eng, np, torch):
        t = eng.zeros(4, "float32")
        eng.submit(lambda x: x.add_(2), writes=[t], using=torch.from_dlpack)
        assert np.from_dlpack(t).tolist() == [2] * 4

    def test_tensors_of_pytorch_may_be_written_in_place(self, eng, np, torch):
        source = torch.zeros(4)
        t = eng.from_dlpack(source)
        assert not t.read_only
        eng.submit(lambda x: x.fill(5), writes=[t], using=np.from_dlpack).wait()
        assert source.tolist() == [5] * 4

    def test_arrays_of_jax_never_change(self, eng, jnp, np):
        t = eng.from_dlpack(jnp.arange(4.0))
        assert t.read_only
        with pytest.raises(est.ConflictError, match="read-only"):
            eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        with pytest.raises(est.ConflictError, match="read-only"):
            np.from_dlpack(t.for_write())
        produced = eng.call(lambda: jnp.ones(3))
        produced.wait()
        assert produced.read_only

    def test_jax_gets_read_only_memory_since_its_arrays_are_immutable(self, eng, jnp, np):
        source = aligned(np, 16)
        source.flags.writeable = False
        t = eng.from_dlpack(source)
        array = jnp.from_dlpack(t)
        assert array.unsafe_buffer_pointer() == t.data_ptr
        # Anybody else who only knows legacy structs is refused.
        with pytest.raises(BufferError, match="read-only"):
            t.__dlpack__()

    def test_jax_copies_what_is_not_aligned_and_the_copy_holds_no_lease(self, eng, jnp, np):
        t = eng.from_dlpack(aligned(np, 17)[1:])
        array = jnp.from_dlpack(t)
        assert array.unsafe_buffer_pointer() != t.data_ptr
        eng.submit(lambda x: x.fill(0), writes=[t], using=np.from_dlpack).wait()
        assert float(array[0]) == 1

    def test_what_pytorch_refuses_to_export_comes_through(self, eng, torch):
        with pytest.raises(BufferError, match="gradient"):
            eng.from_dlpack(torch.ones(3, requires_grad=True))
        with pytest.raises(BufferError, match="conjugate"):
            eng.from_dlpack(torch.ones(3, dtype=torch.complex64).conj())

    def test_what_numpy_refuses_to_export_comes_through(self, eng, np):
        with pytest.raises(BufferError):
            eng.from_dlpack(np.array(["text"]))
        with pytest.raises(BufferError, match="byte order"):
            eng.from_dlpack(np.array([1.0], ">f4"))


class TestRelays:
    @pytest.mark.parametrize("order", list(itertools.permutations(NAMES)), ids=str)
    def test_a_baton_goes_through_all_three_without_a_copy(self, eng, np, order):
        libs = [PEERS[name]() for name in order]
        made, seen = {}, {}

        def leg(index, lib):
            def run(array):
                seen[index] = lib.address(array)
                made[index] = lib.plus_one(array)
                return made[index]

            return run

        start = aligned(np, (8, 8))
        promises = [eng.from_dlpack(start)]
        for index, lib in enumerate(libs):
            promises.append(eng.call(leg(index, lib), promises[-1], using=lib.from_dlpack))
        result = np.from_dlpack(promises[-1])
        assert result.tolist() == (start + 3).tolist()
        for index, lib in enumerate(libs):
            assert seen[index] == promises[index].data_ptr, f"{lib.name} copied its input"
            assert lib.address(made[index]) == promises[index + 1].data_ptr, f"the result of {lib.name} was copied"

    @pytest.mark.parametrize("first, second", list(itertools.combinations(NAMES, 2)), ids=str)
    def test_updates_in_place_and_reads_by_two_libraries_are_ordered(self, eng, np, first, second):
        libs = [PEERS[first](), PEERS[second]()]
        t = eng.from_dlpack(aligned(np, 4))
        reads = []
        for _ in range(20):
            eng.submit(lambda x: x.__iadd__(1), writes=[t], using=np.from_dlpack)
            reads += [eng.call(lib.plus_one, t, using=lib.from_dlpack) for lib in libs]
        for index, read in enumerate(reads):
            step = index // 2
            assert np.from_dlpack(read).tolist() == [step + 2, step + 3, step + 4, step + 5]
