"""Objects that lie about their arrays: any dictionary, any buffer, any answer. Each is taken as NumPy sees it, or refused by an exception
that is documented, and what was kept of it comes back."""

import sys

import hypothesis
import pytest
from hypothesis import strategies as st

import estafette as est
from capsules import Made
from conftest import examples, until

# Errors that `from_dlpack` documents. `InvalidTensorError` and `ExchangeError` are among them, by inheritance.
DOCUMENTED = (TypeError, ValueError, BufferError, OverflowError, AttributeError)
SETTINGS = hypothesis.settings(
    max_examples=examples(300),
    deadline=None,
    database=None,
    derandomize=True,
    # A machine that stalls is no failure.
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)

integers = st.one_of(st.integers(-9, 9), st.sampled_from([2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 2**64, 2**200]))
odd = st.one_of(
    st.none(), st.booleans(), integers, st.floats(), st.text(max_size=3), st.binary(max_size=3), st.just(object()), st.just({})
)


class Broken(Exception):
    """Raised by objects below, so it may come through."""


def raising(*_, **__):
    raise Broken


@pytest.fixture(scope="module")
def one_engine():
    with est.Engine(workers=1) as eng:
        yield eng


def take(eng, owner, check):
    """Imports `owner`, hands the tensor to `check`, or None if it is refused, and sees that nothing is kept of it afterwards."""
    before = sys.getrefcount(owner)
    try:
        tensor = eng.from_dlpack(owner)
    except (*DOCUMENTED, Broken) as error:
        assert isinstance(error, Broken) or str(error), "an error says what is wrong"
        tensor = None
        # Its traceback has frames with the owner in them.
        error.__traceback__ = None
    check(tensor)
    del tensor
    until(lambda: sys.getrefcount(owner) == before)


def interfaces():
    usual = {
        "version": st.integers(0, 4),
        "shape": st.lists(integers, max_size=4).map(tuple),
        "strides": st.one_of(st.none(), st.lists(integers, max_size=4).map(tuple)),
        "typestr": st.sampled_from(["<f4", ">f4", "|u1", "<c16", "|V8", "<f16", "|b1", "<M8[s]", ""]),
        "data": st.tuples(st.sampled_from([0, 1, 4096, 2**63, 2**64 - 1, -1, 2**64]), st.booleans()),
        "descr": odd,
        "mask": st.one_of(st.none(), odd),
        "stream": st.one_of(st.none(), integers),
    }
    lie = {key: st.one_of(value, value, value, odd) for key, value in usual.items()}
    return st.fixed_dictionaries({}, optional=lie)


class Interface:
    """Has one array interface, which raises or gives one dictionary after the other."""

    def __init__(self, name, answers):
        self.name, self.answers = name, list(answers)

    def __getattr__(self, name):
        if name != self.__dict__.get("name"):
            raise AttributeError(name)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return raising() if answer is Broken else answer


@SETTINGS
@hypothesis.given(
    name=st.sampled_from(["__cuda_array_interface__", "__sycl_usm_array_interface__", "__array_interface__"]),
    answers=st.lists(st.one_of(interfaces(), interfaces(), interfaces(), odd, st.just(Broken)), min_size=1, max_size=3),
)
def test_any_array_interface_is_refused_by_a_documented_error_and_nothing_is_kept(one_engine, name, answers):
    owner = Interface(name, answers)

    def check(tensor):
        # Memory at such addresses belongs to no device. What has no elements needs none.
        assert tensor is None or 0 in tensor.shape

    take(one_engine, owner, check)


@SETTINGS
@hypothesis.given(
    code=st.sampled_from(["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "F", "D", "g", "S3", "U2", "M8[s]", ">i4", ">f8"]),
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    steps=st.lists(st.sampled_from([1, 2, -1, -2]), min_size=4, max_size=4),
    order=st.permutations(range(4)),
    repeated=st.booleans(),
    writable=st.booleans(),
)
def test_any_buffer_is_the_array_that_numpy_sees_or_is_refused(one_engine, code, shape, steps, order, repeated, writable):
    np = pytest.importorskip("numpy")
    whole = np.zeros(tuple(2 * size for size in shape), code)
    flat = whole.reshape(-1).view("u1")
    flat[:] = np.arange(flat.size) % 2
    array = whole[(*(slice(None, None, step) for step, _ in zip(steps, shape)), ...)]
    array = array.transpose([axis for axis in order if axis < len(shape)])
    if repeated:
        array = np.broadcast_to(array, (3, *array.shape))
    if array.flags.writeable and not writable:
        array.flags.writeable = False
    try:
        owner = memoryview(array)
    except ValueError:
        # NumPy itself has no format for it.
        return

    def check(tensor):
        if tensor is None:
            # Numbers in the byte order of this machine are never refused.
            assert code not in "?bBhHiIqQefdFD"
        else:
            assert tensor.shape == array.shape and str(tensor.dtype) == array.dtype.name
            assert tensor.read_only == (not array.flags.writeable)
            assert np.array_equal(np.from_dlpack(tensor), array)

    take(one_engine, owner, check)


@SETTINGS
@hypothesis.given(
    device=st.one_of(st.just((1, 0)), st.tuples(integers, integers), odd),
    answers=st.lists(st.one_of(st.sampled_from(["good", "bad", "used", Broken]), odd), min_size=1, max_size=3),
)
def test_any_answer_of_a_producer_is_taken_once_or_refused(one_engine, device, answers):
    mades = []

    class Producer:
        def __dlpack_device__(self):
            return raising() if device is Broken else device

        def __dlpack__(self, **_):
            # Another thing at the second ask.
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if answer is Broken:
                raise Broken
            if answer not in ("good", "bad", "used"):
                return answer
            made = Made(shape=(2, -3), strides=(1, 1)) if answer == "bad" else Made()
            mades.append((answer, made))
            if answer == "used":
                one_engine.from_dlpack(made.capsule)
            return made.capsule

    def check(tensor):
        assert tensor is None or (tensor.shape == (4, 4) and mades[-1][0] == "good")

    take(one_engine, Producer(), check)
    # Each is deleted once; one that was given away before, by whom it was given to.
    until(lambda: all(made.deleted == 1 for _, made in mades))


@SETTINGS
@hypothesis.given(
    name=st.sampled_from(["__arrow_c_array__", "__arrow_c_device_array__"]),
    answer=st.one_of(
        odd, st.tuples(), st.tuples(odd), st.tuples(odd, odd), st.tuples(odd, odd, odd), st.sampled_from([Broken, "capsules", "half"])
    ),
)
def test_any_answer_that_is_no_pair_of_arrow_capsules_is_refused(one_engine, name, answer):
    mades = [Made(), Made()]

    def export(*_, **__):
        if answer is Broken:
            raise Broken
        if answer in ("capsules", "half"):
            # Of DLPack, not of Arrow.
            return (mades[0].capsule, mades[1].capsule if answer == "capsules" else None)
        return answer

    owner = type("Arrow", (), {name: staticmethod(export)})()
    before = sys.getrefcount(owner)
    with pytest.raises((*DOCUMENTED, Broken)):
        one_engine.from_arrow(owner)
    assert sys.getrefcount(owner) == before
    assert [made.deleted for made in mades] == [0, 0]
