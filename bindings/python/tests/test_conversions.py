"""Arrays that functions get without a call of their library's `from_dlpack`, and that are what it makes."""

import importlib

import pytest

import estafette as est
from conftest import run_program, until


@pytest.fixture(params=["jax.numpy", "jax.dlpack"])
def using(request, jnp):
    return importlib.import_module(request.param).from_dlpack


def described(array):
    return type(array), array.aval, array.sharding, array.committed, array.weak_type, array.unsafe_buffer_pointer()


def aligned(np, count, dtype="float32"):
    """An array at a multiple of 64 bytes, as JAX wants what it shares."""
    room = np.zeros(count * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + count * np.dtype(dtype).itemsize].view(dtype)


@pytest.fixture
def functions(monkeypatch, np, jnp, eng):
    """The calls of JAX's own function from here on."""
    from jax._src import dlpack

    import estafette._jax

    assert estafette._jax.find_conversion() is not None, "this JAX has no such function, or another one"
    # The extension finds it as well.
    eng.submit(len, reads=[eng.from_dlpack(np.zeros(3, np.float32))], using=jnp.from_dlpack).wait()
    called = []
    place = dlpack._place_array

    def noted(*args):
        called.append("from_dlpack")
        return place(*args)

    monkeypatch.setattr(dlpack, "_place_array", noted)
    return called


def seen(eng, look, t, using):
    """Result of `look` for the array that a function gets of a tensor."""
    results = []
    eng.submit(lambda x: results.append(look(x)), reads=[t], using=using).wait()
    return results.pop()


DTYPES = ["float32", "float16", "int8", "uint32", "bool", "complex64"]
WIDE = ["float64", "int64", "complex128"]


class TestJax:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_is_what_jax_makes_without_its_function(self, eng, np, using, functions, dtype):
        source = aligned(np, 12, dtype)
        source[:] = np.arange(12) % 2
        t = eng.from_dlpack(source)
        got = seen(eng, lambda x: (*described(x), x.tolist()), t, using)
        assert functions == []
        assert got == (*described(using(source)), source.tolist())

    @pytest.mark.parametrize("dtype", WIDE)
    @pytest.mark.parametrize("x64", [False, True])
    def test_types_of_64_bits_are_cast_by_jax(self, eng, np, jax, using, functions, dtype, x64):
        source = np.arange(3).astype(dtype)
        t = eng.from_dlpack(source)

        def dtype_of(x):
            return str(x.dtype), x.tolist()

        before = jax.config.jax_enable_x64
        jax.config.update("jax_enable_x64", x64)
        try:
            assert seen(eng, dtype_of, t, using) == dtype_of(using(source))
        finally:
            jax.config.update("jax_enable_x64", before)
        assert functions == ["from_dlpack"] * 2

    @pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
    def test_has_the_shape(self, eng, np, using, functions, shape):
        t = eng.from_dlpack(np.ones(shape, np.float32))
        assert seen(eng, lambda x: (x.shape, x.tolist()), t, using) == (shape, np.ones(shape).tolist())
        assert functions == []

    def test_has_memory_that_may_not_be_written(self, eng, np, using, functions):
        source = aligned(np, 3)
        source.flags.writeable = False
        t = eng.from_dlpack(source)
        assert seen(eng, lambda x: x.unsafe_buffer_pointer(), t, using) == source.ctypes.data
        assert functions == []

    def test_strides_that_jax_refuses_are_refused_as_by_jax(self, eng, np, using):
        t = eng.from_dlpack(np.zeros(8, np.float32)[::2])
        with pytest.raises(Exception) as by_hand:
            using(t)
        with pytest.raises(est.OperationError) as raised:
            seen(eng, len, t, using)
        assert f"{type(by_hand.value).__name__}: {by_hand.value}" in str(raised.value)


def test_a_function_of_jax_finds_it_without_an_argument(eng, np, jnp, functions):
    t = eng.from_dlpack(np.full(3, 2.0, np.float32))
    assert np.from_dlpack(eng.call(jnp.square, t)).tolist() == [4.0] * 3
    assert functions == []


def test_an_array_that_the_function_keeps_holds_the_memory(eng, np, jnp, using):
    source = aligned(np, 3)
    t = eng.from_dlpack(source)
    kept = []
    eng.submit(kept.append, reads=[t], using=using).wait()
    write = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
    with pytest.raises((est.LeaseHeldError, TimeoutError)):
        write.wait(timeout=0.05)
    assert kept.pop().tolist() == [0.0] * 3
    # JAX releases memory in its next call.
    until(lambda: jnp.zeros(1) is not None and write.done())
    assert source.tolist() == [1.0] * 3


def test_a_function_in_place_of_jax_own_is_called(eng, np, jnp, monkeypatch):
    t = eng.from_dlpack(np.zeros(3, np.float32))
    eng.submit(len, reads=[t], using=jnp.from_dlpack).wait()
    monkeypatch.setattr(jnp, "from_dlpack", lambda x: ("another function", x))
    assert seen(eng, lambda x: x, t, jnp.from_dlpack) == ("another function", t)


class TestTorch:
    DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int64", "uint32", "bool", "complex64", "complex128"]

    @pytest.fixture
    def calls(self, monkeypatch, torch):
        """The calls of PyTorch's own function from here on."""
        called = []
        make = torch._C._from_dlpack
        monkeypatch.setattr(torch._C, "_from_dlpack", lambda *args: called.append(args) or make(*args))
        return called

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(12,), (), (0, 2), (3, 4)])
    def test_is_what_torch_makes_without_its_function(self, eng, np, torch, calls, dtype, shape):
        source = (np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape)
        t = eng.from_dlpack(source)

        def described(x):
            return type(x), x.dtype, x.shape, x.stride(), x.data_ptr(), x.requires_grad, x.is_conj(), x.tolist()

        got = seen(eng, described, t, torch.from_dlpack)
        assert calls == []
        assert got == described(torch.from_dlpack(source))

    def test_types_of_torch_come_back(self, eng, np, torch, calls):
        source = torch.ones(3, dtype=torch.bfloat16)
        t = eng.from_dlpack(source)
        assert seen(eng, lambda x: (x.dtype, x.data_ptr()), t, torch.from_dlpack) == (source.dtype, source.data_ptr())
        assert calls == []

    def test_a_type_that_not_every_library_has_is_left_to_torch(self, eng, np, torch, calls):
        source = torch.ones(3, dtype=torch.float8_e4m3fn)
        t = eng.from_dlpack(source)
        assert seen(eng, lambda x: x.dtype, t, torch.from_dlpack) == source.dtype
        assert len(calls) == 1

    def test_has_strides_and_memory_that_may_not_be_written(self, eng, np, torch, calls):
        source = np.arange(12, dtype=np.float32).reshape(3, 4).T[1:]
        source.flags.writeable = False
        t = eng.from_dlpack(source)
        assert seen(eng, lambda x: (x.stride(), x.tolist()), t, torch.from_dlpack) == ((1, 4), source.tolist())
        assert calls == []

    def test_strides_that_torch_refuses_are_refused_as_by_torch(self, eng, np, torch):
        t = eng.from_dlpack(np.arange(3.0)[::-1])
        with pytest.raises(Exception) as by_hand:
            torch.from_dlpack(t)
        with pytest.raises(est.OperationError) as raised:
            seen(eng, len, t, torch.from_dlpack)
        assert str(by_hand.value).splitlines()[0] in str(raised.value)

    def test_a_written_array_is_the_memory(self, eng, np, torch, calls):
        source = np.zeros(3, np.float32)
        t = eng.from_dlpack(source)
        eng.submit(lambda x: x.fill_(2), writes=[t], using=torch.from_dlpack).wait()
        assert source.tolist() == [2.0] * 3
        assert calls == []

    def test_an_array_that_the_function_keeps_holds_the_memory(self, eng, np, torch, calls):
        t = eng.from_dlpack(np.zeros(3, np.float32))
        kept = []
        eng.submit(kept.append, reads=[t], using=torch.from_dlpack).wait()
        write = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        with pytest.raises((est.LeaseHeldError, TimeoutError)):
            write.wait(timeout=0.05)
        assert kept.pop().tolist() == [0.0] * 3
        write.wait(timeout=20)
        assert calls == []

    def test_a_function_of_torch_finds_it_without_an_argument(self, eng, np, torch, calls):
        t = eng.from_dlpack(np.full(3, 2.0, np.float32))
        assert np.from_dlpack(eng.call(torch.square, t)).tolist() == [4.0] * 3
        assert calls == []


@pytest.mark.parametrize("name", ["jax", "torch", None])
def test_a_function_that_names_a_library_as_its_module_is_called(eng, np, name):
    def using(x):
        return ["made", x]

    using.__module__ = name
    t = eng.from_dlpack(np.zeros(3, np.float32))
    assert seen(eng, lambda x: x, t, using) == ["made", t]


def test_an_attribute_that_raises_does_not_fail_the_operation(eng, np):
    class Using:
        @property
        def __module__(self):
            raise ValueError("no module")

        def __call__(self, x):
            return ["made", x]

    t = eng.from_dlpack(np.zeros(3, np.float32))
    assert seen(eng, lambda x: x, t, Using()) == ["made", t]


class TestAnotherJax:
    """Versions of JAX whose private function is absent, takes something else, or does something else."""

    RUN = """
import types
import jax, jax.numpy as jnp, numpy as np
import jax._src.dlpack as dlpack
from jax._src.lib import _jax

make = _jax.dlpack_managed_tensor_to_buffer
# JAX's own function stays as it is.
dlpack._jax = types.SimpleNamespace(**{name: getattr(_jax, name) for name in dir(_jax)})
CHANGE
import estafette as est, estafette._jax

with est.Engine() as eng:
    t = eng.from_dlpack(np.full(3, 2, np.float32))
    for _ in range(2):
        eng.submit(lambda x: print(x.tolist()), reads=[t], using=jnp.from_dlpack).wait()
print(estafette._jax.find_conversion() is None)
"""

    @pytest.mark.parametrize(
        ("change", "is_refused"),
        [
            ("del _jax.dlpack_managed_tensor_to_buffer", True),
            ("_jax.dlpack_managed_tensor_to_buffer = lambda: None", True),
            ("_jax.dlpack_managed_tensor_to_buffer = lambda *args: make(*args) + 1", True),
            ("_jax.dlpack_managed_tensor_to_buffer = lambda a, b, c, d: make(a, b, c, d, 1)", False),
        ],
    )
    def test_gives_the_same_arrays(self, jax, change, is_refused):
        output, _ = run_program(self.RUN.replace("CHANGE", change))
        assert output.splitlines() == ["[2.0, 2.0, 2.0]"] * 2 + [str(is_refused)]
