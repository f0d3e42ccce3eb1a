"""`t.dtype`: equal to its name, and understood by NumPy and by what asks NumPy."""

import copy
import gc
import pickle

import pytest

import estafette as est
from conftest import peer

NARROW = (
    "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu"
).split()


def test_it_is_equal_to_its_name_and_a_key_like_it(eng):
    dtype = eng.zeros(1, "float32").dtype
    assert isinstance(dtype, est.DType) and dtype == "float32" and "float32" == dtype
    assert dtype != "float64" and {"float32": 1}[dtype] == 1
    assert (str(dtype), repr(dtype), f"{dtype}") == ("float32", "'float32'", "float32")
    assert dtype is eng.zeros(2, "float32").dtype
    for again in (copy.deepcopy(dtype), pickle.loads(pickle.dumps(dtype))):
        assert (again, again.itemsize, type(again)) == (dtype, 4, est.DType)


def test_it_is_equal_to_the_types_of_libraries(eng, np):
    dtype = eng.zeros(1, "float32").dtype
    for same in (np.float32, np.dtype("float32")):
        assert dtype == same and same == dtype and not dtype != same
    assert eng.zeros(1, "float64").dtype == float
    for other in (np.float64, np.dtype(">f4"), np.zeros(1, "float32"), np.float32(1), object(), None, 3, float):
        assert dtype != other and not np.any(dtype == other)


def test_it_is_equal_to_the_types_of_torch_and_jax(eng):
    torch, jnp = peer("torch"), peer("jax.numpy")
    dtype = eng.zeros(1, "bfloat16").dtype
    assert dtype == torch.bfloat16 and torch.bfloat16 == dtype and dtype != torch.float32
    assert dtype == jnp.bfloat16 and dtype != jnp.float32


@pytest.mark.parametrize("name, itemsize", [("bool", 1), ("int4", 1), ("bfloat16", 2), ("complex128", 16), ("float32x4", 16)])
def test_it_tells_the_bytes_of_one_element(eng, name, itemsize):
    assert eng.zeros(4, name).dtype.itemsize == itemsize


@pytest.mark.parametrize("name", ["bool", "int8", "uint64", "float16", "float32", "complex64"])
def test_numpy_takes_it_and_the_tensor_for_the_dtype(eng, np, name):
    t = eng.zeros(3, name)
    wanted = np.dtype(name)
    assert np.dtype(t.dtype) == np.dtype(t) == np.result_type(t) == t.dtype.dtype == wanted
    assert np.zeros(2, dtype=t.dtype).dtype == wanted and t.dtype == wanted
    with t.read() as view:
        assert view.dtype == name and np.dtype(view) == wanted
    assert eng.zeros(2, t.dtype).dtype == eng.zeros(2, t).dtype == name


@pytest.mark.parametrize("name", ["int4", "float4_e2m1fn", "float6_e2m3fn", "float32x4"])
def test_a_type_that_numpy_lacks_is_no_numpy_dtype(eng, name):
    t = eng.zeros(4, name)
    assert t.dtype == name
    assert not hasattr(t, "__numpy_dtype__")


@pytest.mark.parametrize("name", ["float33", "float8", "bfloat15", "bfloat32", "int7", "uint0", "complex16", "float33x4", "float128", "int128", "uint128", "complex256"])
def test_a_name_of_a_width_that_no_library_has_is_refused(eng, name):
    with pytest.raises(ValueError, match=f"`{name}` is not an element type"):
        eng.zeros(4, name)


def test_only_the_type_of_a_tensor_may_have_any_width(eng, np):
    with pytest.raises(ValueError, match="`float128` is not an element type"):
        eng.zeros(4, np.str_("float128"))
    assert eng.zeros(1, np.str_("float32")).dtype == "float32"


def test_the_names_of_pythons_types_are_theirs_alone(eng):
    class Single:
        """As `pyarrow.float32()`, whose text is "float"."""

        def __str__(self):
            return "float"

    assert [str(eng.zeros(1, kind).dtype) for kind in (float, "float", int, "complex")] == ["float64", "float64", "int64", "complex128"]
    with pytest.raises(ValueError, match="`float` is not an element type"):
        eng.zeros(1, Single())


@pytest.mark.parametrize("name", NARROW)
def test_narrow_floats_are_those_of_ml_dtypes(eng, np, name):
    ml_dtypes = peer("ml_dtypes")
    t = eng.zeros(5, name)
    assert np.dtype(t) == t.dtype.dtype == np.dtype(getattr(ml_dtypes, name))


@pytest.mark.parametrize("name", NARROW)
def test_numpy_sees_narrow_floats_in_place_under_a_lease(eng, np, name):
    ml_dtypes = peer("ml_dtypes")
    t = eng.zeros((2, 3), name)
    with t.write() as view:
        array = np.asarray(view)
        array.view("uint8" if t.dtype.itemsize == 1 else "uint16")[:] = 1
        del array
    array = np.asarray(t)
    assert array.dtype == getattr(ml_dtypes, name) and array.ctypes.data == t.data_ptr and not array.flags.writeable
    assert array.tobytes() == (b"\1" if t.dtype.itemsize == 1 else b"\1\0") * 6
    op = eng.submit(lambda x: None, writes=[t], using=lambda x: None)
    assert not op.is_done()
    del array
    gc.collect()
    op.wait(30)


def test_numpy_sees_a_strided_narrow_tensor_and_one_that_was_pending(eng, np, gate):
    ml_dtypes = peer("ml_dtypes")
    torch = peer("torch")
    source = torch.arange(12).reshape(3, 4).to(torch.bfloat16)

    def produce():
        gate()
        return source.T

    t = eng.call(produce)
    gate.open()
    array = np.asarray(t)
    assert array.dtype == ml_dtypes.bfloat16 and array.shape == (4, 3)
    assert array.astype("float32").tolist() == source.T.float().tolist()
    assert np.array(t, dtype="float32").tolist() == source.T.float().tolist()


class TestJax:
    @pytest.mark.parametrize("name", ["float32", "int8", "bool", "bfloat16", "float8_e5m2"])
    def test_asarray_and_array_take_a_tensor(self, eng, jnp, np, name):
        t = eng.zeros((2, 3), name)
        for take in (jnp.asarray, jnp.array):
            array = take(t)
            assert array.shape == (2, 3) and array.dtype == name and not np.asarray(array).astype("float32").any()

    def test_an_element_type_of_ours_is_one_of_its(self, eng, jnp):
        t = eng.zeros(3, "float32")
        assert jnp.zeros(2, dtype=t.dtype).dtype == "float32"

    def test_a_pending_tensor_is_waited_for(self, eng, jnp, np, gate):
        t = eng.zeros(4, "float32")

        def fill(x):
            gate()
            x.fill(3)

        eng.submit(fill, writes=[t], using=np.from_dlpack)
        assert gate.entered.wait(30) and not t.is_ready()
        gate.open()
        assert jnp.asarray(t).tolist() == [3] * 4
