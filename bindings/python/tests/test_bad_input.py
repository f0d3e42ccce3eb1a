"""Bad input beyond the single fields of `test_bad_capsules`: all fields at once, results of operations, and bad requests."""

import ctypes

import hypothesis
import pytest
from hypothesis import strategies as st

import estafette as est
from capsules import Made, Producer, python
from conftest import examples, run_program, until

NDIM_MAX = 64
I64_MAX = 2**63 - 1
HOST_DEVICES = (1, 3, 11, 13)


def expected(ndim, shape, strides, dtype, byte_offset, data):
    """The first field that is wrong, in plain integers without any width; None when nothing is."""
    code, bits, lanes = dtype
    if not 0 <= ndim <= NDIM_MAX:
        return "ndim"
    if lanes == 0:
        return "dtype.lanes"
    fixed = 8 if code == 6 or 7 <= code <= 14 else 6 if code in (15, 16) else 4 if code == 17 else None
    if bits == 0 or fixed not in (None, bits):
        return "dtype.bits"
    itemsize = -(-bits * lanes // 8)
    shape = shape[:ndim]
    count = 1
    for size in shape:
        if size < 0:
            return "shape"
        count *= max(size, 1)
    if count * itemsize > I64_MAX:
        return "shape"
    if 0 in shape:
        return None
    if strides is None:
        low, high = 0, count - 1
    else:
        reaches = [(size - 1) * stride for size, stride in zip(shape, strides)]
        low, high = sum(reach for reach in reaches if reach < 0), sum(reach for reach in reaches if reach > 0)
        if any(size > 1 and not -I64_MAX - 1 <= (size - 1) * stride <= I64_MAX for size, stride in zip(shape, strides)):
            return "strides"
        if not (-I64_MAX - 1 <= low * itemsize and high * itemsize <= I64_MAX):
            return "strides"
    if data and data + byte_offset >= 2**64:
        return "byte_offset"
    if not data:
        return "data"
    first = data + byte_offset + (low * bits * lanes >> 3)
    end = data + byte_offset + ((high + 1) * bits * lanes + 7 >> 3)
    return "strides" if first < 0 or end >= 2**64 else None


dimensions = st.one_of(st.integers(0, 5), st.sampled_from([-1, 2**31, 2**62, I64_MAX, -I64_MAX - 1]))
steps = st.one_of(st.integers(-9, 9), st.sampled_from([2**40, -(2**61), I64_MAX, -I64_MAX - 1]))


@st.composite
def tensors(draw):
    """Mostly sensible tensors with one or two fields that are not. The arrays are longer than any `ndim` looks at."""
    usual = draw(st.integers(0, 4))
    sensible = lambda good, any: draw(st.one_of(good, good, good, any))
    return dict(
        ndim=sensible(st.just(usual), st.sampled_from([-(2**31), -1, NDIM_MAX, NDIM_MAX + 1, 2**31 - 1])),
        shape=(sensible(st.lists(st.integers(1, 6), min_size=4, max_size=4), st.lists(dimensions, min_size=4, max_size=4)))
        + [1] * NDIM_MAX,
        strides=sensible(st.none(), st.lists(steps, min_size=4, max_size=4).map(lambda strides: strides + [0] * NDIM_MAX)),
        dtype=(
            sensible(st.sampled_from([0, 1, 2, 5]), st.integers(0, 255)),
            sensible(st.sampled_from([8, 16, 32, 64]), st.integers(0, 255)),
            sensible(st.just(1), st.sampled_from([0, 2, 65535])),
        ),
        byte_offset=sensible(st.integers(0, 64), st.sampled_from([2**63, 2**64 - 1])),
        data=sensible(st.just(2**32), st.sampled_from([0, 1, 2**64 - 8])),
    )


@pytest.fixture(scope="module")
def one_engine():
    with est.Engine(workers=1) as eng:
        yield eng


@hypothesis.settings(max_examples=examples(1500), deadline=None, database=None)
@hypothesis.given(fields=tensors(), legacy=st.booleans())
def test_any_tensor_is_accepted_or_refused_by_its_first_wrong_field(one_engine, fields, legacy):
    made = Made(legacy=legacy, **{**fields, "data": fields["data"] or None})
    wrong = expected(**fields)
    if wrong is None:
        tensor = one_engine.from_dlpack(made.capsule)
        assert tensor.shape == tuple(fields["shape"][: fields["ndim"]])
        assert tensor.data_ptr == (fields["data"] + fields["byte_offset"]) % 2**64 or 0 in tensor.shape or not fields["data"]
        assert made.deleted == 0
        del tensor
        until(lambda: made.deleted == 1)
    else:
        with pytest.raises(est.InvalidTensorError) as caught:
            one_engine.from_dlpack(made.capsule)
        assert str(caught.value).removeprefix("invalid tensor: ").startswith(wrong), f"expected {wrong} to be named"
        assert made.deleted == 1


@hypothesis.settings(max_examples=examples(200), deadline=None, database=None)
@hypothesis.given(kind=st.integers(1, 21), id=st.integers(-(2**31), 2**31 - 1))
def test_any_device_that_is_known_and_not_here_is_named(one_engine, kind, id):
    # 5 and 6 are numbers that DLPack does not use.
    hypothesis.assume(kind not in HOST_DEVICES and kind not in (5, 6))
    # 14 is SYCL's, whose numbers are looked up in the device table; some of them may be there.
    hypothesis.assume(kind != 14 or (kind, id) not in {row.device for row in est.devices()})
    made = Made(device=(kind, id))
    with pytest.raises(est.ExchangeError, match="device .* is not available|no context is registered as|SYCL is not available"):
        one_engine.from_dlpack(made.capsule)
    assert made.deleted == 1


def test_of_another_major_version_nothing_but_version_and_deleter_is_touched():
    # Only the first 24 bytes of the struct can be read: code that reads on gets a segmentation fault.
    out, _ = run_program(
        """
        import ctypes, mmap, sys
        import estafette as est

        PAGE = mmap.PAGESIZE
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        pages = libc.mmap(None, 2 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        assert libc.mprotect(ctypes.c_void_p(pages + PAGE), ctypes.c_size_t(PAGE), 0) == 0
        deleted = []
        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleted.append)
        head = pages + PAGE - 24
        (ctypes.c_uint32 * 2).from_address(head)[:] = [2, 0]
        ctypes.c_void_p.from_address(head + 16).value = ctypes.cast(deleter, ctypes.c_void_p).value
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        name = b"dltensor_versioned"
        try:
            est.Engine(workers=1).from_dlpack(new(head, name, None))
        except est.InvalidTensorError as error:
            print(error, deleted == [head])
        """
    )
    assert "version is 2.0" in out and out.strip().endswith("True")


class TestResultsOfOperations:
    @pytest.mark.parametrize("legacy", [False, True], ids=["versioned", "legacy"])
    def test_a_bad_result_fails_its_promise_and_is_deleted_once(self, eng, legacy):
        made = Made(shape=(2, -3), strides=(1, 1), legacy=legacy)
        promise = eng.call(lambda: made.capsule, name="produce")
        with pytest.raises(est.OperationError, match=r"shape\[1\] is -3") as caught:
            promise.wait()
        assert caught.value.operation == "produce"
        until(lambda: made.deleted == 1)

    def test_a_consumed_result_fails_its_promise(self, eng):
        made = Made()
        tensor = eng.from_dlpack(made.capsule)
        with pytest.raises(est.OperationError, match="consumed before"):
            eng.call(lambda: made.capsule).wait()
        assert made.deleted == 0
        del tensor
        until(lambda: made.deleted == 1)

    def test_a_result_on_a_device_that_is_not_here_fails_its_promise(self, eng):
        made = Made(device=(2, 1))
        with pytest.raises(est.OperationError, match="cuda:1"):
            eng.call(lambda: made.capsule).wait()
        until(lambda: made.deleted == 1)

    def test_a_good_result_is_deleted_once_when_its_promise_is_gone(self, eng, np):
        made = Made()
        promise = eng.call(lambda: made.capsule)
        assert np.from_dlpack(promise)[3, 3] == 15
        assert made.deleted == 0
        del promise
        until(lambda: made.deleted == 1)


class TestOddProducers:
    @pytest.mark.parametrize("device", [None, 1, (1,), ("cpu", 0), (1, 0, 0), (2**40, 0)], ids=str)
    def test_a_device_that_is_no_pair_of_integers_is_a_type_error(self, eng, device):
        producer = Producer(Made(), device=device)
        with pytest.raises(TypeError, match="__dlpack_device__"):
            eng.from_dlpack(producer)
        assert producer.asked == [] and producer.made.deleted == 0

    def test_a_producer_without_a_device_is_asked_all_the_same(self, eng):
        made = Made()

        class NoDevice:
            def __dlpack__(self, **_):
                return made.capsule

        assert eng.from_dlpack(NoDevice()).shape == (4, 4)

    @pytest.mark.parametrize("error", [KeyError("k"), KeyboardInterrupt(), MemoryError()], ids=repr)
    def test_whatever_it_raises_comes_through(self, eng, error):
        class Raising(Producer):
            def __dlpack__(self, **_):
                raise error

        with pytest.raises(type(error)):
            eng.from_dlpack(Raising(Made()))

    def test_a_type_error_from_inside_it_is_not_hidden(self, eng):
        class Broken(Producer):
            def __dlpack__(self, **_):
                raise TypeError("broken inside")

        with pytest.raises(TypeError, match="broken inside"):
            eng.from_dlpack(Broken(Made()))

    def test_a_capsule_with_a_null_name_is_refused(self, eng):
        memory = (ctypes.c_char * 80)()
        capsule = python.PyCapsule_New(ctypes.addressof(memory), None, None)
        with pytest.raises(ValueError, match="no name"):
            eng.from_dlpack(capsule)

    def test_devices_whose_memory_the_host_can_read_are_accepted(self, eng, np):
        for kind in HOST_DEVICES:
            made = Made(device=(kind, 0))
            tensor = eng.from_dlpack(made.capsule)
            assert tensor.device == (kind, 0)
            assert np.from_dlpack(tensor)[3, 3] == 15
            del tensor
            until(lambda: made.deleted == 1)


class TestBadRequests:
    """Wrong questions of consumers to our `__dlpack__`."""

    @pytest.fixture(params=["tensor", "for_write", "alias", "view"])
    def exporter(self, request, eng):
        t = eng.zeros(4, "float32")
        if request.param == "view":
            with t.write() as view:
                yield view
        else:
            yield t if request.param == "tensor" else getattr(t, request.param)()

    @pytest.mark.parametrize("stream", [0, 1, 2, 7, -2, "1", 1.5, object()], ids=repr)
    def test_a_stream_for_host_memory_is_a_value_error(self, exporter, stream):
        with pytest.raises(ValueError, match="stream"):
            exporter.__dlpack__(stream=stream)

    @pytest.mark.parametrize("stream", [None, -1])
    def test_no_stream_is_right(self, exporter, stream):
        exporter.__dlpack__(stream=stream)

    @pytest.mark.parametrize("device", [(2, 0), (1, 1), (99, 0)])
    def test_another_device_is_a_buffer_error(self, exporter, device):
        with pytest.raises(BufferError, match="cannot be exported|is not available"):
            exporter.__dlpack__(dl_device=device, max_version=(1, 0))
        exporter.__dlpack__(dl_device=(1, 0), max_version=(1, 0))

    @pytest.mark.parametrize("version", [1, (1,), "1.0", (1, 0, 0), (-1, 0), (1.5, 0)], ids=repr)
    def test_a_version_that_is_none_is_a_type_error(self, exporter, version):
        with pytest.raises(TypeError, match="max_version"):
            exporter.__dlpack__(max_version=version)

    @pytest.mark.parametrize("version, name", [(None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"), ((9, 9), "dltensor_versioned")], ids=repr)
    def test_the_version_decides_the_kind_of_capsule(self, exporter, version, name):
        assert f'"{name}"' in repr(exporter.__dlpack__(max_version=version))

    def test_a_refused_request_leaves_no_lease_behind(self, eng):
        t = eng.zeros(4, "float32")
        for arguments in (dict(stream=3), dict(dl_device=(2, 0)), dict(max_version=1)):
            with pytest.raises((ValueError, BufferError, TypeError)):
                t.__dlpack__(**arguments)
        eng.submit(lambda _: None, writes=[t]).wait()

    def test_a_copy_is_flagged_and_holds_no_lease(self, eng, np):
        t = eng.zeros(4, "float32")
        capsule = t.__dlpack__(max_version=(1, 0), copy=True)
        eng.submit(lambda array: array.fill(1), writes=[t], using=np.from_dlpack).wait()
        copied = eng.from_dlpack(capsule)
        assert copied.data_ptr != t.data_ptr and not copied.read_only
        assert np.from_dlpack(copied).tolist() == [0] * 4
        with pytest.raises(BufferError, match="copying was refused"):
            eng.from_dlpack(Producer(Made(flags=2)), copy=False)
