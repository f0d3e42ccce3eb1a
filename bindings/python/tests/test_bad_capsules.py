"""Bad DLPack input: a precise error that names the field, and the deleter called exactly once where it is owed."""

import pytest

import estafette as est
from capsules import Made, Producer
from conftest import until

MAX = 2**63 - 1

BAD = {
    "negative ndim": (dict(ndim=-1), "ndim is -1"),
    "too many dimensions": (dict(ndim=65), "ndim is 65"),
    "negative shape": (dict(shape=(2, -3), strides=(1, 1)), r"shape\[1\] is -3"),
    "NULL shape": (dict(shape=None, strides=None, ndim=2), "shape is NULL"),
    "shape that overflows": (dict(shape=(MAX, MAX), strides=(1, 1)), "shape"),
    "strides that overflow": (dict(shape=(2, 2), strides=(MAX, MAX)), "strides"),
    "strides out of the address space": (dict(shape=(3,), strides=(MAX // 4,)), "strides"),
    "byte_offset out of the address space": (dict(byte_offset=2**64 - 1), "byte_offset"),
    "NULL data": (dict(data=None), "data is NULL"),
    "zero lanes": (dict(dtype=(2, 32, 0)), "dtype.lanes is 0"),
    "zero bits": (dict(dtype=(2, 0, 1)), "dtype.bits is 0"),
    "fp4 with 8 bits": (dict(dtype=(17, 8, 1)), "dtype.bits"),
    "bool with 1 bit": (dict(dtype=(6, 1, 1)), "dtype.bits"),
}


@pytest.mark.parametrize("legacy", [False, True], ids=["versioned", "legacy"])
@pytest.mark.parametrize("case", BAD)
def test_bad_field_is_named_and_the_deleter_called_once(eng, case, legacy):
    arguments, message = BAD[case]
    made = Made(legacy=legacy, **arguments)
    with pytest.raises(est.InvalidTensorError, match=message):
        eng.from_dlpack(made.capsule)
    assert made.deleted == 1
    assert made.name_now().startswith("used_dltensor")


def test_invalid_tensor_is_both_a_value_error_and_a_buffer_error(eng):
    for kind in (ValueError, BufferError, est.EstafetteError):
        with pytest.raises(kind):
            eng.from_dlpack(Made(ndim=-1).capsule)


@pytest.mark.parametrize("version", [(2, 0), (0, 8)])
def test_another_major_version_is_refused_after_its_deleter_was_called(eng, version):
    made = Made(version=version, ndim=-5)
    with pytest.raises(est.InvalidTensorError, match=rf"version is {version[0]}\.{version[1]}"):
        eng.from_dlpack(made.capsule)
    assert made.deleted == 1


def test_a_newer_minor_version_and_unknown_flags_are_accepted(eng):
    made = Made(version=(1, 99), flags=1 << 40)
    tensor = eng.from_dlpack(made.capsule)
    assert tensor.shape == (4, 4)
    del tensor
    until(lambda: made.deleted == 1)


def test_a_null_deleter_is_just_forgotten(eng, np):
    made = Made(deleter=False)
    tensor = eng.from_dlpack(made.capsule)
    assert np.from_dlpack(tensor)[3, 3] == 15
    del tensor
    assert made.deleted == 0


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5, 2)])
def test_a_tensor_without_elements_needs_no_data(eng, np, shape):
    made = Made(shape=shape, data=None)
    tensor = eng.from_dlpack(made.capsule)
    assert tensor.shape == shape
    assert np.from_dlpack(tensor).shape == shape
    del tensor
    until(lambda: made.deleted == 1)


def test_a_scalar_needs_neither_shape_nor_strides(eng, np):
    made = Made(shape=None, strides=None, ndim=0)
    tensor = eng.from_dlpack(made.capsule)
    assert tensor.shape == () and tensor.ndim == 0
    assert np.from_dlpack(tensor) == 0.0
    del tensor
    until(lambda: made.deleted == 1)


@pytest.mark.parametrize("version", [(1, 0), (1, 3)])
def test_null_strides_mean_row_major(eng, np, version):
    tensor = eng.from_dlpack(Made(strides=None, version=version).capsule)
    assert np.from_dlpack(tensor)[1].tolist() == [4, 5, 6, 7]


def test_strides_may_be_negative_broadcast_or_garbage_that_says_nothing(eng, np):
    backwards = Made(shape=(16,), strides=(-1,), byte_offset=15 * 4)
    assert np.from_dlpack(eng.from_dlpack(backwards.capsule))[0] == 15
    broadcast = Made(shape=(3, 4), strides=(0, 1))
    assert np.from_dlpack(eng.from_dlpack(broadcast.capsule))[2].tolist() == [0, 1, 2, 3]
    garbage = Made(shape=(1, 4), strides=(MAX, 1))
    assert np.from_dlpack(eng.from_dlpack(garbage.capsule))[0].tolist() == [0, 1, 2, 3]


def test_byte_offset_is_honoured(eng, np):
    tensor = eng.from_dlpack(Made(shape=(4,), byte_offset=8).capsule)
    assert np.from_dlpack(tensor).tolist() == [2, 3, 4, 5]


def test_misaligned_data_is_exchanged_all_the_same(eng, np):
    made = Made(shape=(4,), byte_offset=2)
    tensor = eng.from_dlpack(made.capsule)
    assert tensor.data_ptr % 4 == 2
    assert np.from_dlpack(tensor).view(np.uint16)[1] == np.frombuffer(made.memory, np.uint16)[2]


def test_a_consumed_capsule_is_refused(eng):
    made = Made()
    tensor = eng.from_dlpack(made.capsule)
    with pytest.raises(ValueError, match="consumed before"):
        eng.from_dlpack(made.capsule)
    assert made.deleted == 0
    del tensor
    until(lambda: made.deleted == 1)


def test_our_own_capsule_is_consumed_once_too(eng, np):
    tensor = eng.zeros(4, "float32")
    capsule = tensor.__dlpack__(max_version=(1, 3))
    again = eng.from_dlpack(capsule)
    with pytest.raises(ValueError, match="consumed before"):
        eng.from_dlpack(capsule)
    assert again.data_ptr == tensor.data_ptr


@pytest.mark.parametrize("name", ["tensor", "dltensor_versioned2", "DLTENSOR"])
def test_a_capsule_of_another_name_is_refused(eng, name):
    made = Made(name=name)
    with pytest.raises(ValueError, match=f"named `{name}`"):
        eng.from_dlpack(made.capsule)
    assert made.deleted == 0
    assert made.name_now() == name


def test_a_raw_capsule_of_a_device_that_is_not_here_is_refused(eng):
    made = Made(device=(10, 3))
    with pytest.raises(BufferError, match="rocm:3"):
        eng.from_dlpack(made.capsule)
    assert made.deleted == 1


def test_a_device_that_is_not_here_is_refused_before_anything_is_taken(eng):
    producer = Producer(Made(device=(2, 0)), device=(2, 0))
    with pytest.raises(BufferError, match="cuda:0"):
        eng.from_dlpack(producer)
    assert producer.asked == []
    assert producer.made.deleted == 0


def test_a_producer_that_lies_about_its_device_is_refused(eng):
    producer = Producer(Made(device=(10, 0)))
    with pytest.raises(BufferError, match="rocm:0"):
        eng.from_dlpack(producer)
    assert producer.made.deleted == 1


def test_unknown_element_types_are_carried(eng):
    made = Made(dtype=(200, 32, 1))
    tensor = eng.from_dlpack(made.capsule)
    assert "200" in tensor.dtype
    again = eng.from_dlpack(tensor.__dlpack__(max_version=(1, 0)))
    assert again.data_ptr == tensor.data_ptr


def test_objects_that_do_not_speak_dlpack_are_refused(eng):
    with pytest.raises(TypeError, match="__dlpack__"):
        eng.from_dlpack([1, 2, 3])

    class NoCapsule:
        def __dlpack__(self, **_):
            return 7

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(TypeError, match="int, not a capsule"):
        eng.from_dlpack(NoCapsule())


def test_a_producer_that_knows_no_keywords_is_asked_without(eng):
    class Old(Producer):
        def __dlpack__(self):
            return self.made.capsule

    old = Old(Made(legacy=True))
    assert eng.from_dlpack(old).shape == (4, 4)
    assert eng.from_dlpack(Old(Made(legacy=True)), copy=True).wait() is None


def test_a_producer_that_knows_only_max_version_gets_a_copy_made_here(eng, np):
    class Middle(Producer):
        def __dlpack__(self, *, max_version=None):
            self.asked.append(max_version)
            return self.made.capsule

    middle = Middle(Made())
    copied = eng.from_dlpack(middle, copy=True)
    assert middle.asked == [(1, 3)]
    assert np.from_dlpack(copied)[3, 3] == 15
    until(lambda: middle.made.deleted == 1)


def test_errors_of_the_producer_come_through_unchanged(eng):
    class Refusing(Producer):
        def __dlpack__(self, **_):
            raise BufferError("not today")

    with pytest.raises(BufferError, match="not today"):
        eng.from_dlpack(Refusing(Made()))


def test_a_refused_copy_is_an_error(eng):
    made = Made(flags=2)
    with pytest.raises(BufferError, match="copying was refused"):
        eng.from_dlpack(made.capsule, copy=False)
    assert made.deleted == 1


def test_a_legacy_capsule_from_nowhere_is_read_only(eng):
    tensor = eng.from_dlpack(Made(legacy=True).capsule)
    assert tensor.read_only
    with pytest.raises(est.ConflictError, match="read-only"):
        eng.submit(lambda _: None, writes=[tensor])


def test_the_read_only_flag_is_honoured(eng):
    tensor = eng.from_dlpack(Made(flags=1).capsule)
    assert tensor.read_only
    with pytest.raises(est.ConflictError, match="read-only"):
        eng.submit(lambda _: None, writes=[tensor])
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__()
    assert not eng.from_dlpack(Made().capsule).read_only
