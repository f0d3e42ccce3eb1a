"""Each peer as producer and as consumer, against the table of what each does in `peers.py`."""

import asyncio
import gc
import threading
import weakref

import pytest

import estafette as est
from capsules import python as c_api
from conftest import until
from peers import DTYPES, LAYOUTS, PEERS, Plain, aligned, shape_of


@pytest.fixture(params=PEERS)
def lib(request):
    return PEERS[request.param]()


def every_dtype():
    return [pytest.param(kind, dtype, id=f"{kind.name}-{dtype}") for kind in PEERS.values() for dtype in DTYPES.split()]


def every_layout():
    return [pytest.param(kind, layout, id=f"{kind.name}-{layout}") for kind in PEERS.values() for layout in LAYOUTS]


def every_round_trip():
    return [pytest.param(kind, dtype, id=f"{kind.name}-{dtype}") for kind in PEERS.values() for dtype in made_by(kind)]


def made_by(kind):
    """The element types of a peer that its adapter can make an array of."""
    made = kind.rules.dtypes.split()
    if kind.name in ("tvm_ffi", "onnxruntime"):
        # Made by NumPy, which has none of these.
        made = [dtype for dtype in made if not dtype.startswith(("bfloat", "float8", "float6", "float4"))]
    if kind.name == "paddle":
        # It takes them, and its own name "uint16" is another word for bfloat16.
        made = [dtype for dtype in made if dtype not in ("uint16", "uint32", "uint64")]
    return made


# Errors by which a peer says that it does not know an element type.
REFUSED = r"(?i)unsupported|not supported|does not support|unknown|invalid|illegal|only support"


def is_free(eng, tensor):
    """True if no lease is left on the tensor: a write begins and ends."""
    eng.submit(lambda x: None, writes=[tensor], using=lambda x: None).wait(30)
    return True


class TestEachPeer:
    def test_import_and_export_are_without_a_copy(self, eng, lib):
        made = lib.make("float32", 16)
        t = eng.from_dlpack(made)
        assert (t.shape, t.dtype, t.device) == ((16,), "float32", (1, 0))
        assert t.data_ptr == lib.address(made)
        fresh = eng.zeros((4, 4), "float32")
        assert lib.address(lib.from_dlpack(fresh)) == fresh.data_ptr

    @pytest.mark.parametrize("kind, dtype", every_dtype())
    def test_an_element_type_makes_the_round_trip_or_is_refused(self, eng, np, kind, dtype):
        lib, rules = kind(), kind.rules
        fresh = eng.zeros((8,), dtype)
        if dtype in rules.dtypes.split():
            assert lib.dtype(lib.from_dlpack(fresh)) is not None
        elif dtype in rules.widths:
            taken = lib.from_dlpack(fresh)
            assert lib.dtype(taken) == rules.widths[dtype] and lib.address(taken) != fresh.data_ptr
        else:
            with pytest.raises(Exception, match=REFUSED) as caught:
                lib.dtype(lib.from_dlpack(fresh))
            # It is the peer that refuses; and what it was handed it has released.
            assert not isinstance(caught.value, est.EstafetteError)
            del caught
            gc.collect()
        assert is_free(eng, fresh)

    @pytest.mark.parametrize("kind, dtype", every_round_trip())
    def test_what_a_peer_makes_comes_back_to_it_as_it_was(self, eng, kind, dtype):
        lib = kind()
        made = lib.make(dtype)
        t = eng.from_dlpack(made)
        assert t.dtype == dtype
        back = lib.from_dlpack(t, **lib.rules.own_back())
        assert lib.dtype(back) == lib.dtype(made) and shape_of(lib, back) == (8,)
        assert lib.bytes(back) == lib.bytes(made)

    @pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 5)], ids=str)
    def test_tensors_without_elements_cross_both_ways(self, eng, lib, shape):
        t = eng.from_dlpack(lib.zeros(shape))
        assert t.shape == shape
        assert shape_of(lib, lib.from_dlpack(t, **lib.rules.own_back())) == shape
        assert shape_of(lib, lib.from_dlpack(eng.zeros(shape, "float32"))) == shape

    def test_a_scalar_crosses_both_ways(self, eng, lib):
        if not lib.rules.scalars:
            t = eng.zeros((), "float32")
            with pytest.raises(IndexError) as caught:
                lib.from_dlpack(t)
            del caught
            gc.collect()
            assert is_free(eng, t)
            return
        t = eng.from_dlpack(lib.zeros(()))
        assert t.shape == () and shape_of(lib, lib.from_dlpack(t, **lib.rules.own_back())) == ()

    @pytest.mark.parametrize("kind, layout", every_layout())
    def test_a_strided_tensor_is_taken_in_place_or_refused(self, eng, np, kind, layout):
        lib = kind()
        view = LAYOUTS[layout](aligned(np, (8, 8)))
        t = eng.from_dlpack(view)
        if layout in lib.rules.layouts.split():
            taken = lib.from_dlpack(t)
            assert lib.numpy(taken).tolist() == view.tolist()
            # And back, as the producer of a strided tensor.
            assert np.from_dlpack(eng.from_dlpack(taken)).tolist() == view.tolist()
            assert lib.address(taken) == t.data_ptr
            del taken
        elif layout in lib.rules.misreads.split():
            taken = lib.from_dlpack(t)
            assert lib.address(taken) == t.data_ptr
            with pytest.raises(MemoryError):
                lib.numpy(taken)
            del taken
        else:
            with pytest.raises(Exception, match="strid|contiguous") as caught:
                lib.from_dlpack(t)
            assert not isinstance(caught.value, est.EstafetteError)
            del caught
        gc.collect()
        assert is_free(eng, t)

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
        assert lib.numpy(array)[15] == 15
        del array
        until(lambda: gc.collect() is not None and alive() is None)

    def test_a_consumer_holds_a_lease_until_its_array_is_gone(self, eng, lib, np):
        t = eng.zeros(16, "float32")
        array = lib.from_dlpack(t)
        op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        with pytest.raises(est.LeaseHeldError, match="peers.py"):
            t.wait()
        assert not op.is_done() and lib.numpy(array)[0] == 0
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
            array = lib.from_dlpack(await t, **lib.rules.own_back())
            assert (lib.address(array) == t.data_ptr) == (not lib.rules.own_back())
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
        array = lib.from_dlpack(t, **lib.rules.own_back())
        assert lib.bytes(array) == lib.bytes(lib.make("float32"))

    def test_a_failure_of_the_producer_is_raised_in_the_consumer(self, eng, lib):
        def fails():
            raise RuntimeError("the well is dry")

        t = eng.call(fails, name="draw")
        with pytest.raises(est.OperationError, match="the well is dry") as caught:
            lib.from_dlpack(t)
        assert caught.value.operation == "draw"

    def test_a_copy_is_never_overwritten(self, eng, lib, np):
        t = eng.zeros(16, "float32")
        if lib.rules.copies == "no":
            with pytest.raises(TypeError, match="copy"):
                lib.from_dlpack(t, copy=True)
            return
        array = lib.from_dlpack(t, copy=True)
        op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        # A peer that takes the memory itself all the same holds a lease.
        assert (lib.address(array) == t.data_ptr) == (lib.rules.copies == "ignored")
        if lib.rules.copies == "ignored":
            with pytest.raises(est.LeaseHeldError):
                op.wait()
        else:
            op.wait()
        assert lib.numpy(array)[0] == 0
        del array
        gc.collect()
        op.wait()


class TestWhatEachPeerSays:
    def test_what_it_asks_for(self, eng, lib):
        plain = Plain(eng.zeros(4, "float32"))
        if lib.rules.asks is None:
            assert shape_of(lib, lib.from_dlpack(plain)) == (4,)
            # It was the test that asked; a versioned capsule is refused.
            with pytest.raises(Exception, match="dltensor"):
                lib.from_dlpack(plain, max_version=(1, 0))
            return
        assert shape_of(lib, lib.from_dlpack(plain)) == (4,)
        assert plain.asked == [lib.rules.asks]

    def test_what_it_gives(self, lib):
        made = lib.make("float32")
        try:
            capsule = made.__dlpack__(max_version=(1, 3))
        except TypeError:
            capsule = made.__dlpack__()
        assert c_api.PyCapsule_GetName(capsule).decode() == lib.rules.gives

    def test_whether_its_memory_may_be_written(self, eng, lib, np):
        t = eng.from_dlpack(lib.make("float32"))
        assert t.read_only != lib.rules.writable
        if lib.rules.writable:
            eng.submit(lambda x: x.fill(5), writes=[t], using=np.from_dlpack).wait()
            assert np.from_dlpack(t).tolist() == [5] * 8
        else:
            with pytest.raises(est.ConflictError, match="read-only"):
                eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)

    def test_what_it_makes_of_memory_that_may_not_be_written(self, eng, lib, np):
        source = aligned(np, 16)
        source.flags.writeable = False
        plain = Plain(eng.from_dlpack(source))
        if lib.rules.read_only == "cannot ask":
            with pytest.raises(BufferError, match="read-only"):
                lib.from_dlpack(plain)
            return
        taken = lib.from_dlpack(plain)
        assert lib.address(taken) == source.ctypes.data
        if lib.rules.read_only == "keeps":
            assert lib.is_read_only(taken)
            assert not lib.is_read_only(lib.from_dlpack(Plain(eng.zeros(4, "float32").for_write())))
        else:
            # Nothing in it says so any more.
            taken[0] = 7
            assert source[0] == 7
