"""Tensors as numbers of Python: `item`, `tolist`, `float`, `int`, `bool`."""

import asyncio
import operator
import threading

import pytest

import estafette as est
from conftest import peer

TYPES = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", TYPES)
def test_elements_are_numbers_of_python(eng, np, dtype):
    numbers = {"b": [True, False], "u": [0, 1, 200], "i": [0, -3, 100], "f": [0, -3, 5e-8, 0.1, 65504], "c": [0, 1j, 2.5 - 3j]}
    values = np.array(numbers[dtype[0]], dtype)
    t = eng.from_dlpack(values)
    assert t.tolist() == values.tolist()
    assert list(map(type, t.tolist())) == list(map(type, values.tolist()))
    for value in values:
        one = eng.from_dlpack(np.array([[value]]))
        assert (one.item(), bool(one)) == (value.item(), bool(value)) and type(one.item()) is type(value.item())


def test_floats_of_16_bits_that_are_no_numbers(eng, np):
    inf, nan, negative = eng.from_dlpack(np.array([np.inf, np.nan, -0.0], "float16")).tolist()
    assert inf == float("inf") and nan != nan and str(negative) == "-0.0"


def test_methods_of_arrays_are_missing_and_say_what_to_write(eng):
    t = eng.zeros(2, "int8")
    for name in ("mean", "sum", "reshape"):
        assert not hasattr(t, name)
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': .*`eng\.call\(np\.{name}, t\)`"):
            getattr(t, name)()
    with pytest.raises(TypeError, match=r"np\.from_dlpack\(t\)\[\.\.\.\]"):
        t[0]


def test_bfloat16(eng):
    torch = peer("torch")
    values = torch.tensor([1.5, -2e30, 0.1], dtype=torch.bfloat16)
    assert eng.from_dlpack(values).tolist() == values.tolist()


def test_elements_that_python_has_no_number_for(eng):
    with pytest.raises(TypeError, match="elements of type float8_e5m2 are no numbers of Python"):
        eng.zeros(1, "float8_e5m2").tolist()


def test_lists_are_nested_as_the_dimensions(eng, np):
    x = np.arange(24).reshape(2, 3, 4)[:, ::-1, ::2]
    assert eng.from_dlpack(x).tolist() == x.tolist()
    assert (eng.zeros((2, 0), "int8").tolist(), eng.zeros((), "int8").tolist()) == ([[], []], 0)


def test_conversions(eng, np):
    t = eng.from_dlpack(np.array(2.75))
    assert (float(t), int(t), f"{float(t):.1f}") == (2.75, 2, "2.8")
    assert ["a", "b"][eng.from_dlpack(np.array(1, "uint8"))] == "b"
    for other in (t, eng.from_dlpack(np.array(True)), eng.from_dlpack(np.array([1]))):
        with pytest.raises(TypeError, match="only a tensor of integers"):
            operator.index(other)
    with pytest.raises(TypeError, match="complex"):
        float(eng.from_dlpack(np.array(1j)))


def test_a_number_is_formatted(eng, np):
    t = eng.call(np.sum, eng.from_dlpack(np.array([2.75, 0])))
    assert (f"{t:.1f}", f"{eng.call(lambda: 7):03}") == ("2.8", "007")
    assert f"{t}" == str(t) and "float64" in str(t)
    with pytest.raises(TypeError, match="only a tensor of one element"):
        format(eng.zeros(2, "int64"), ".1f")


def test_the_truth_of_a_result(eng, np):
    x = eng.from_dlpack(np.arange(3))
    assert eng.call(np.any, x) and not eng.call(np.all, x)
    # Of what is no array, too.
    assert not eng.call(lambda: False) and not eng.call(lambda: None) and eng.call(lambda: "text")
    assert (float(eng.call(lambda: 7)), int(eng.call(lambda: 7.5)), eng.call(lambda: 7).tolist()) == (7.0, 7, 7)
    for use in (float, lambda t: t.item(), lambda t: t.tolist()):
        with pytest.raises(TypeError, match="no single array"):
            use(eng.call(lambda: "7"))


@pytest.mark.parametrize("shape", [(2,), (0,)])
def test_more_elements_or_none_are_no_number(eng, shape):
    t = eng.zeros(shape, "int64")
    with pytest.raises(ValueError, match="the truth value of a tensor with.* is ambiguous"):
        bool(t)
    with pytest.raises(ValueError, match=f"a tensor of {shape[0]} elements"):
        t.item()
    for kind in (float, int, operator.index):
        with pytest.raises(TypeError, match="only a tensor of one element"):
            kind(t)


def test_they_wait_and_leave_no_lease(eng, np):
    release = threading.Event()
    t = eng.zeros(1, "int64")
    eng.submit(lambda t: (release.wait(60), t.fill(7)), writes=[t], using=np.from_dlpack)
    threading.Timer(0.05, release.set).start()
    assert t.item() == 7
    eng.submit(lambda t: t.fill(8), writes=[t], using=np.from_dlpack)
    assert int(t) == 8
    failed = eng.call(lambda: 1 / 0)
    with pytest.raises(est.OperationError, match="ZeroDivisionError"):
        bool(failed)


def test_a_function_takes_the_number_of_its_operand(eng):
    seen = []
    op = eng.submit(lambda t: seen.append(t.item()), reads=[eng.zeros((), "int8")])
    op.wait()
    assert seen == [0]


def test_in_a_coroutine_the_value_is_awaited_first(np):
    async def main(eng):
        release = threading.Event()
        t = eng.call(lambda: (release.wait(60), np.array(3))[1])
        for use in (bool, float, int, lambda t: t.item(), lambda t: t.tolist()):
            with pytest.raises(est.WouldBlockError, match="await"):
                use(t)
        release.set()
        assert int(await t) == 3 and t

    with est.Engine(workers=1) as eng:
        asyncio.run(main(eng))


def test_the_bytes_of_a_tensor_with_dimensions_are_those_of_its_elements(eng, np):
    for values in ([65], [65, 66]):
        array = np.array(values, "uint8")
        assert bytes(eng.from_dlpack(array)) == bytes(bytearray(eng.from_dlpack(array))) == bytes(array)
