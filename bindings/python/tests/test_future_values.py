"""Values that DLPack has not given a meaning yet, or that we know and no view can show: carried, not looked at."""

import ctypes

import pytest

import estafette as est
from capsules import Made, Producer
from conftest import until
from test_copies import struct_of

# Code, bits and name of every element type of DLPack 1.3 whose width its code decides.
NARROW = [
    (6, 8, "bool"),
    (7, 8, "float8_e3m4"),
    (8, 8, "float8_e4m3"),
    (9, 8, "float8_e4m3b11fnuz"),
    (10, 8, "float8_e4m3fn"),
    (11, 8, "float8_e4m3fnuz"),
    (12, 8, "float8_e5m2"),
    (13, 8, "float8_e5m2fnuz"),
    (14, 8, "float8_e8m0fnu"),
    (15, 6, "float6_e2m3fn"),
    (16, 6, "float6_e3m2fn"),
    (17, 4, "float4_e2m1fn"),
]
WIDE = [(0, "int"), (1, "uint"), (2, "float"), (3, "handle"), (4, "bfloat"), (5, "complex")]


def again(eng, t):
    """The struct that comes out of the tensor, and the tensor made of it."""
    capsule = t.__dlpack__(max_version=(1, 3))
    struct = struct_of(capsule)
    return struct, eng.from_dlpack(capsule)


class TestElementTypes:
    @pytest.mark.parametrize("code, bits, name", NARROW)
    def test_each_with_a_width_of_its_own_crosses_and_no_other_width_does(self, eng, code, bits, name):
        t = eng.from_dlpack(Made(dtype=(code, bits, 1)).capsule)
        assert t.dtype == name
        struct, back = again(eng, t)
        dtype = struct.dl_tensor.dtype
        assert (dtype.code, dtype.bits, dtype.lanes) == (code, bits, 1)
        assert (back.dtype, back.data_ptr) == (name, t.data_ptr)
        for wrong in {1, 4, 6, 8, 16} - {bits}:
            made = Made(dtype=(code, wrong, 1))
            with pytest.raises(est.InvalidTensorError, match=f"dtype.bits is {wrong}"):
                eng.from_dlpack(made.capsule)
            assert made.deleted == 1

    @pytest.mark.parametrize("code, name", WIDE)
    @pytest.mark.parametrize("bits", [4, 16, 32, 128])
    def test_the_others_cross_with_any_width(self, eng, code, name, bits):
        t = eng.from_dlpack(Made(shape=(2, 1), dtype=(code, bits, 1)).capsule)
        assert t.dtype == f"{name}{bits}"
        assert again(eng, t)[1].dtype == t.dtype

    @pytest.mark.parametrize("lanes", [2, 4, 16])
    def test_lanes_are_part_of_the_element(self, eng, lanes):
        t = eng.from_dlpack(Made(shape=(1,), dtype=(2, 32, lanes)).capsule)
        assert t.dtype == f"float32x{lanes}"
        assert again(eng, t)[0].dl_tensor.dtype.lanes == lanes
        copied = eng.from_dlpack(t, copy=True)
        copied.wait()
        assert copied.dtype == t.dtype

    def test_a_code_from_the_future_is_exchanged_and_copied_byte_by_byte(self, eng, np):
        made = Made(shape=(2, 4), dtype=(18, 64, 1))
        t = eng.from_dlpack(Producer(made))
        assert t.dtype == "code18b64"
        copied = eng.from_dlpack(t, copy=True)
        copied.wait()
        struct, _ = again(eng, copied)
        assert ctypes.string_at(struct.dl_tensor.data, 64) == bytes(made.memory)
        with pytest.raises(BufferError, match="code18b64"):
            memoryview(t)

    def test_packed_and_padded_sub_byte_types_differ_in_size_and_keep_their_flag(self, eng):
        PADDED = 4
        for flags, size in ((0, 3), (PADDED, 5)):
            t = eng.from_dlpack(Made(shape=(5,), dtype=(17, 4, 1), flags=flags).capsule)
            assert again(eng, t)[0].flags & PADDED == flags
            copied = eng.from_dlpack(t, copy=True)
            copied.wait()
            assert again(eng, copied)[0].flags & PADDED == flags
            # Its last byte is ordered with it, and the one behind is a stranger's.
            until(lambda: eng.stats().releasing == 0)
            last, behind = (
                eng.from_dlpack(Made(dtype=(1, 8, 1), shape=(1,), data=t.data_ptr + offset).capsule)
                for offset in (size - 1, size)
            )
            with t.write():
                eng.submit(lambda behind: None, writes=[behind]).wait(10)
                waiting = eng.submit(lambda last: None, writes=[last])
                assert not waiting.is_done()
            waiting.wait(10)

    def test_strided_packed_elements_cannot_be_copied_but_padded_ones_can(self, eng):
        packed = eng.from_dlpack(Made(shape=(4,), strides=(2,), dtype=(17, 4, 1)).capsule)
        with pytest.raises(est.OperationError, match="packed bits"):
            eng.from_dlpack(packed, copy=True).wait()
        padded = eng.from_dlpack(Made(shape=(4,), strides=(2,), dtype=(17, 4, 1), flags=4).capsule)
        eng.from_dlpack(padded, copy=True).wait()


class TestDevices:
    @pytest.mark.parametrize("kind", [22, 99, 1000])
    def test_a_kind_from_the_future_is_carried_from_one_library_to_another(self, eng, kind):
        made = Made(device=(kind, 3), byte_offset=8)
        producer = Producer(made, device=(kind, 3))
        t = eng.from_dlpack(producer)
        assert t.device == (kind, 3) and t.__dlpack_device__() == (kind, 3)
        struct, back = again(eng, t)
        device = struct.dl_tensor.device
        assert (device.device_type, device.device_id) == (kind, 3)
        # A handle is no address: the offset stays apart.
        assert struct.dl_tensor.byte_offset == 8 and back.device == t.device

    def test_its_uses_are_ordered_among_each_other(self, eng, gate):
        t = eng.from_dlpack(Made(device=(99, 0)).capsule)
        eng.submit(gate, writes=[t])
        op = eng.submit(lambda t: None, reads=[t])
        assert not op.is_done()
        gate.open()
        op.wait(10)

    def test_nothing_of_the_host_looks_at_it(self, eng, np):
        t = eng.from_dlpack(Made(device=(99, 0)).capsule)
        with pytest.raises(BufferError, match="host"):
            memoryview(t)
        with pytest.raises(est.OperationError, match="not available in this engine"):
            eng.from_dlpack(t, copy=True).wait()

    @pytest.mark.parametrize("kind", [2, 4, 7, 8, 10, 14, 18, 19, 21])
    def test_a_kind_that_is_known_and_not_here_is_refused_by_name(self, eng, kind):
        # No machine has so many of them.
        producer = Producer(Made(device=(kind, 7777)), device=(kind, 7777))
        with pytest.raises(BufferError, match="is not available|no context is registered"):
            eng.from_dlpack(producer)
        assert producer.asked == []


class TestRank:
    @pytest.mark.parametrize("rank", range(33))
    def test_every_rank_up_to_32_crosses(self, eng, rank):
        shape = (2,) * min(rank, 4) + (1,) * max(rank - 4, 0)
        t = eng.from_dlpack(Made(shape=shape).capsule)
        assert (t.shape, t.ndim) == (shape, rank)
        struct, back = again(eng, t)
        assert struct.dl_tensor.ndim == rank and back.shape == shape

    def test_64_dimensions_cross_as_in_numpy_and_65_are_refused(self, eng):
        t = eng.from_dlpack(Made(shape=(1,) * 64).capsule)
        assert again(eng, t)[1].ndim == 64
        made = Made(shape=(1,) * 65)
        with pytest.raises(est.InvalidTensorError, match="ndim is 65"):
            eng.from_dlpack(made.capsule)
        assert made.deleted == 1
