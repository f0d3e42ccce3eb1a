"""NumPy's arrays are read and made without `__dlpack__`: nothing may tell them from those that DLPack gives."""

import gc
import sys
import threading
import traceback
import weakref

import pytest

import estafette as est

TYPES = ["?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d", "F", "D"]
LAYOUTS = {
    "no dimensions": lambda x: x[:1, :1].reshape(()),
    "rows": lambda x: x,
    "columns": lambda x: x.T,
    "every second": lambda x: x[:, ::2],
    "backwards": lambda x: x[::-1, ::-1],
    "one column": lambda x: x[:, 2:3],
    "eight dimensions": lambda x: x.reshape(1, 2, 1, 3, 1, 2, 1, 2),
    "nine dimensions": lambda x: x.reshape(1, 2, 1, 3, 1, 2, 1, 2, 1),
    "nothing": lambda x: x[:0],
}


class Relayed:
    """An array that is imported by DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def facts(tensor):
    return tensor.shape, tensor.strides, tensor.dtype, tensor.device, tensor.read_only, tensor.data_ptr


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_is_imported_as_by_dlpack(np, eng, layout):
    for letter in TYPES:
        array = LAYOUTS[layout](np.arange(24).astype(letter).reshape(4, 6))
        read, asked = facts(eng.from_dlpack(array)), facts(eng.from_dlpack(Relayed(array)))
        assert read == asked
        assert np.array_equal(np.from_dlpack(eng.from_dlpack(array)), array)


def test_read_only_memory_stays_so(np, eng):
    array = np.zeros(3)
    array.flags.writeable = False
    assert eng.from_dlpack(array).read_only
    with pytest.raises(BufferError, match="read-only"):
        eng.from_dlpack(array, writable=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda np: np.zeros(3, ">f4"),
        lambda np: np.zeros(3, "f4,i4"),
        lambda np: np.zeros(3, object),
        lambda np: np.zeros(3, "M8[s]"),
        lambda np: np.zeros(3, "U2"),
        lambda np: np.zeros(3, "f4,i1")["f0"],
    ],
    ids=["swapped", "structured", "objects", "times", "text", "strides between elements"],
)
def test_what_dlpack_cannot_say_is_refused_by_numpy(np, eng, make):
    array = make(np)
    with pytest.raises(BufferError) as ours:
        eng.from_dlpack(array)
    with pytest.raises(BufferError) as numpys:
        array.__dlpack__(max_version=(1, 3))
    assert str(ours.value) == str(numpys.value)


def test_a_class_that_inherits_from_ndarray_says_itself_what_it_is(np, eng):
    class Loud(np.ndarray):
        def __dlpack__(self, **arguments):
            raise BufferError("not me")

    with pytest.raises(BufferError, match="not me"):
        eng.from_dlpack(np.zeros(3).view(Loud))


def test_an_imported_array_lives_as_long_as_its_tensor(np, eng):
    array = np.arange(3.0)
    before = sys.getrefcount(array)
    tensor = eng.from_dlpack(array)
    assert sys.getrefcount(array) == before + 1
    address = array.ctypes.data
    del array
    gc.collect()
    assert tensor.data_ptr == address
    assert np.from_dlpack(tensor).tolist() == [0, 1, 2]
    array = np.zeros(3)
    tensor = eng.from_dlpack(array)
    del tensor
    assert sys.getrefcount(array) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_function_gets_the_array_that_numpy_makes(np, eng, layout):
    """A lambda in place of `np.from_dlpack` is asked for by DLPack."""
    for letter in TYPES:
        array = LAYOUTS[layout](np.arange(24).astype(letter).reshape(4, 6))
        tensor, got = eng.from_dlpack(array), []

        def look(x, got=got):
            address = x.ctypes.data if x.size else None
            got.append((type(x), x.shape, x.strides, x.dtype, x.dtype.num, str(x.flags), address, x.tolist()))

        for using in np.from_dlpack, lambda tensor: np.from_dlpack(tensor):
            for operands in {"reads": [tensor]}, {"writes": [tensor]}:
                eng.submit(look, using=using, **operands).wait()
        assert got[:2] == got[2:]
        # An array of nothing has memory of its own.
        assert not array.size or ["WRITEABLE : True" in flags for *_, flags, _, _ in got[:2]] == [False, True]


def test_an_array_that_a_function_keeps_is_a_lease(np, eng):
    tensor, kept = eng.zeros(3, "int64"), []
    eng.submit(kept.append, reads=[tensor], using=np.from_dlpack, name="keep").wait()
    write = eng.submit(lambda x: x.fill(7), writes=[tensor], using=np.from_dlpack, name="fill")
    (waiting,) = [operation for operation in eng.diagnose().operations if operation.name == "fill"]
    assert waiting.blocked_by[0].lease.access == "read"
    assert "operation `keep`" in str(waiting.blocked_by[0].lease)
    assert kept[0].tolist() == [0, 0, 0]
    kept.clear()
    write.wait(30)
    assert np.from_dlpack(tensor).tolist() == [7, 7, 7]


def test_the_memory_of_an_array_in_a_function_cannot_be_taken_twice(np, eng):
    tensor = eng.zeros(3, "int64")

    def take(x):
        eng.from_dlpack(x.base)

    with pytest.raises(est.OperationError, match="the capsule is named"):
        eng.submit(take, reads=[tensor], using=np.from_dlpack).wait()


def blocked(eng, name):
    """The access of the lease that an operation waits for."""
    (waiting,) = [operation for operation in eng.diagnose().operations if operation.name == name]
    return waiting.blocked_by[0].lease.access


@pytest.mark.parametrize(
    "keep",
    [
        lambda x: x,
        lambda x: x[1:],
        lambda x: x.base,
        memoryview,
        lambda x: x.T.flags,
        lambda x: [x],
    ],
    ids=["the array", "a view", "its base", "a buffer", "an owner", "a list"],
)
@pytest.mark.parametrize("access", ["reads", "writes"])
def test_what_a_function_keeps_of_an_array_keeps_its_lease_and_no_longer(np, eng, keep, access):
    tensor, kept = eng.zeros(3, "int64"), []
    for _ in range(3):
        eng.submit(lambda x: kept.append(keep(x)), **{access: [tensor]}, using=np.from_dlpack, name="keep").wait()
        write = eng.submit(lambda x: x.fill(7), writes=[tensor], using=np.from_dlpack, name="fill")
        assert blocked(eng, "fill") == access[:-1]
        kept.clear()
        write.wait(30)
    assert np.from_dlpack(tensor).tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    "change",
    [
        lambda np, x: setattr(x, "shape", (3, 2)),
        lambda np, x: setattr(x, "strides", (0, 8)),
        lambda np, x: setattr(x, "dtype", "float64"),
        lambda np, x: setattr(x, "dtype", np.dtype("int64", metadata={"of": "mine"})),
        lambda np, x: x.setflags(write=False),
        lambda np, x: x.setflags(align=False),
        lambda np, x: x.__setstate__((1, (2,), np.dtype("int64"), False, bytes(16))),
        lambda np, x: x.swapaxes(0, 1),
    ],
    ids=["shape", "strides", "dtype", "metadata", "read-only", "unaligned", "other memory", "nothing"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_never_gets_an_array_that_another_one_has_changed(np, eng, change):
    tensor, got = eng.from_dlpack(np.arange(6).reshape(2, 3)), []

    def look(x):
        got.append((x.shape, x.strides, x.dtype, x.dtype.metadata, str(x.flags), x.ctypes.data, x.tolist()))

    for turn in look, lambda x: change(np, x), look:
        eng.submit(turn, writes=[tensor], using=np.from_dlpack).wait()
    assert got[0] == got[1]


def test_an_array_that_is_referred_to_weakly_is_gone_with_its_function(np, eng):
    tensor, weak, died = eng.zeros(3, "int64"), [], []
    for _ in range(3):
        eng.submit(lambda x: weak.append(weakref.ref(x, died.append)), writes=[tensor], using=np.from_dlpack).wait()
    assert died == weak and [ref() for ref in weak] == [None] * 3
    eng.submit(lambda x: x.fill(7), writes=[tensor], using=np.from_dlpack).wait()
    assert np.from_dlpack(tensor).tolist() == [7, 7, 7]


def test_two_functions_at_once_have_arrays_of_their_own(np, eng):
    tensor, both, arrays = eng.zeros(3, "int64"), threading.Barrier(2), []

    def meet(x):
        arrays.append(id(x))
        both.wait(30)

    eng.submit(lambda x: None, reads=[tensor], using=np.from_dlpack).wait()
    with est.Engine(workers=2) as other:
        for _ in range(2):
            other.submit(meet, reads=[tensor], using=np.from_dlpack)
        other.wait_all()
    assert len(set(arrays)) == 2


def test_one_tensor_twice_is_two_arrays(np, eng):
    tensor, kept = eng.zeros(3, "int64"), []

    def take(x, y):
        kept.append(y)
        return x is y

    assert not np.from_dlpack(eng.call(lambda x, y: np.array(take(x, y)), tensor, tensor, using=np.from_dlpack))
    write = eng.submit(lambda x: x.fill(7), writes=[tensor], using=np.from_dlpack, name="fill")
    assert blocked(eng, "fill") == "read"
    kept.clear()
    write.wait(30)


@pytest.mark.parametrize("keeps", [False, True])
def test_memory_that_a_function_imports_from_its_array_is_used_under_its_access(np, eng, keeps):
    """Otherwise the operation within would wait for the one that it is in."""
    tensor, kept = eng.zeros(3, "int64"), []

    def within(x):
        part = eng.from_dlpack(x[1:])
        eng.submit(lambda y: y.fill(7), writes=[part], using=np.from_dlpack).wait(30)
        if keeps:
            kept.append(part)

    eng.submit(within, writes=[tensor], using=np.from_dlpack).wait(30)
    read = eng.submit(lambda x: None, reads=[tensor], using=np.from_dlpack, name="read")
    assert not keeps or blocked(eng, "read") == "write"
    kept.clear()
    read.wait(30)
    assert np.from_dlpack(tensor).tolist() == [0, 7, 7]


def test_an_array_in_the_frames_of_an_error_is_released(np, eng):
    tensor = eng.zeros(3, "int64")

    def fail(x):
        raise ValueError("no")

    failed = eng.submit(fail, reads=[tensor], using=np.from_dlpack)
    error = failed.exception()
    eng.submit(lambda x: x.fill(7), writes=[tensor], using=np.from_dlpack).wait(30)
    assert "no" in str(error)


def test_the_frames_of_an_error_that_the_waiting_thread_handles_are_left_alone():
    ran = []

    def fail():
        ran.append(threading.get_ident())
        raise ValueError("no")

    def begin():
        noted = [1, 2]
        raise KeyError(len(noted))

    with est.Engine(workers=0) as eng:
        failed = eng.submit(fail)
        try:
            begin()
        except KeyError as error:
            assert failed.exception().__cause__.args == ("no",)
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert ran == [threading.get_ident()]
    assert frames[-1].f_locals["noted"] == [1, 2]


@pytest.mark.parametrize("how", ["group", "context beside a cause"])
def test_an_array_in_the_frames_of_every_error_behind_an_error_is_released(np, eng, how):
    tensor = eng.zeros(3, "int64")

    def fail(x):
        raise ValueError("no")

    def fail_twice(x):
        errors = []
        try:
            fail(x)
        except ValueError as error:
            if how != "group":
                raise KeyError("no") from TypeError()
            errors.append(error)
        raise ExceptionGroup("no", errors)

    error = eng.submit(fail_twice, reads=[tensor], using=np.from_dlpack).exception()
    eng.submit(lambda x: x.fill(7), writes=[tensor], using=np.from_dlpack).wait(30)
    assert "no" in str(error)
