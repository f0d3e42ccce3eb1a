"""NumPy's arrays are read and made without `__dlpack__`: nothing may tell them from those that DLPack gives."""

import gc
import sys

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
    eng.submit(kept.append, [tensor], using=np.from_dlpack, name="keep").wait()
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
        eng.submit(take, [tensor], using=np.from_dlpack).wait()
