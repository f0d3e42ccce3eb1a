"""Python's buffer protocol and NumPy's `asarray`: views with a lease that lasts as long as they do."""

import binascii
import gc
import threading

import pytest

import estafette as est
from capsules import Made

FORMATS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "l",
    "uint64": "L",
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "complex64": "Zf",
    "complex128": "Zd",
}


class TestMemoryview:
    @pytest.mark.parametrize("dtype", FORMATS)
    def test_every_type_that_a_buffer_can_describe_has_numpys_letter(self, eng, np, dtype):
        x = np.ones((2, 3), dtype)
        view, expected = memoryview(eng.from_dlpack(x)), memoryview(x)
        assert view.format == expected.format == FORMATS[dtype]
        assert (view.shape, view.strides, view.itemsize, view.nbytes) == (
            expected.shape,
            expected.strides,
            expected.itemsize,
            expected.nbytes,
        )
        assert view.tobytes() == expected.tobytes()

    @pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float4_e2m1fn", "int4", "float32x4"])
    def test_other_types_are_refused_by_name(self, eng, dtype):
        with pytest.raises(BufferError, match=dtype):
            memoryview(eng.zeros(4, dtype))

    @pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,) * 32])
    def test_any_shape(self, eng, np, shape):
        view = memoryview(eng.from_dlpack(np.ones(shape)))
        assert (view.shape, view.ndim) == (shape, len(shape))
        assert view.tobytes() == np.ones(shape).tobytes()

    def test_64_dimensions_are_the_most_that_tensors_and_buffers_have(self, eng):
        assert memoryview(eng.zeros((1,) * 64, "int8")).ndim == 64
        with pytest.raises(est.InvalidTensorError, match="ndim is 65"):
            eng.zeros((1,) * 65, "int8")

    def test_strided_memory_stays_in_place(self, eng, np):
        x = np.arange(24).reshape(4, 6)
        for part in (x.T, x[::2, 1::3], x[::-1], np.broadcast_to(x[0], (3, 6))):
            view = memoryview(eng.from_dlpack(part))
            assert view.strides == part.strides and view.tolist() == part.tolist()
            assert view.c_contiguous == part.flags.c_contiguous
            assert view.f_contiguous == part.flags.f_contiguous

    def test_a_reader_that_wants_no_strides_needs_row_major_order(self, eng, np):
        t = eng.from_dlpack(np.arange(6, dtype="uint8").reshape(2, 3))
        assert bytearray(t) == bytearray(range(6))
        transposed = eng.from_dlpack(np.arange(6, dtype="uint8").reshape(2, 3).T)
        # `binascii` takes simple buffers only.
        assert binascii.hexlify(t) == b"000102030405"
        with pytest.raises(BufferError, match="row-major"):
            binascii.hexlify(transposed)

    def test_a_plain_one_is_for_reading(self, eng):
        t = eng.zeros(4, "uint8")
        view = memoryview(t)
        assert view.readonly
        with pytest.raises(TypeError):
            view[0] = 1
        with pytest.raises((BufferError, TypeError)):
            open("/dev/zero", "rb").readinto(t)

    def test_one_for_writing_writes(self, eng, np):
        t = eng.zeros(4, "uint8")
        with memoryview(t.for_write()) as view:
            assert not view.readonly
            view[1] = 7
            op = eng.submit(lambda t: None, reads=[t])
            assert not op.is_done()
        op.wait(10)
        assert bytes(t) == b"\0\7\0\0"

    def test_of_read_only_memory_there_is_none_for_writing(self, eng):
        t = eng.from_dlpack(Made(flags=1).capsule)
        assert memoryview(t).readonly
        with pytest.raises(est.ConflictError):
            memoryview(t.for_write())

    def test_the_lease_lasts_until_the_last_view_is_released(self, eng):
        t = eng.zeros((4, 4), "float32")
        view = memoryview(t)
        part = view[1:3]
        op = eng.submit(lambda t: None, writes=[t])
        view.release()
        assert not op.is_done()
        part.release()
        op.wait(10)

    def test_an_access_gives_views_under_its_lease(self, eng):
        t = eng.zeros(4, "uint8")
        with t.write() as access:
            with memoryview(access) as view:
                view[0] = 3
        assert bytes(t) == b"\3\0\0\0"

    def test_a_body_sees_its_operands_as_declared(self, eng):
        t = eng.zeros(4, "uint8")

        def fill(t):
            with memoryview(t) as view:
                view[:] = b"abcd"

        eng.submit(fill, writes=[t]).wait(10)
        assert bytes(t) == b"abcd"

    def test_it_waits_until_the_data_is_ready(self, eng, gate):
        t = eng.zeros(4, "uint8")
        eng.submit(gate, writes=[t])
        threading.Timer(0.05, gate.open).start()
        assert bytes(t) == bytes(4) and gate.entered.is_set()

    def test_a_failed_tensor_gives_its_cause(self, eng):
        def fail(_t):
            raise KeyError("lost")

        t = eng.zeros(4, "uint8")
        eng.submit(fail, writes=[t])
        with pytest.raises(est.OperationError, match="lost"):
            memoryview(t)
        t.clear_error()

    def test_the_tensor_lives_as_long_as_its_view(self, eng):
        view = memoryview(eng.zeros(1000, "uint8"))
        gc.collect()
        assert view.tobytes() == bytes(1000)


class TestNumpy:
    def test_asarray_is_a_view_and_array_a_copy(self, eng, np):
        t = eng.from_dlpack(np.arange(6.0).reshape(2, 3))
        view = np.asarray(t)
        assert view.ctypes.data == t.data_ptr and not view.flags.writeable
        op = eng.submit(lambda t: t.fill(1), writes=[t], using=np.from_dlpack)
        assert not op.is_done()
        del view
        gc.collect()
        op.wait(10)
        copied = np.array(t)
        assert copied.flags.writeable and copied.ctypes.data != t.data_ptr
        eng.submit(lambda t: t.fill(2), writes=[t], using=np.from_dlpack).wait(10)
        assert copied.tolist() == [[1, 1, 1], [1, 1, 1]]

    def test_copy_means_what_numpy_2_says(self, eng, np):
        t = eng.zeros(3, "float32")
        assert np.asarray(t, copy=False).ctypes.data == t.data_ptr
        assert np.asarray(t, copy=True).ctypes.data != t.data_ptr
        assert np.asarray(t, dtype="float64").dtype == "float64"
        with pytest.raises(ValueError, match="copy"):
            np.asarray(t, dtype="float64", copy=False)

    def test_the_method_itself_honours_type_and_copy(self, eng, np):
        t = eng.zeros(3, "float32")
        assert t.__array__().ctypes.data == t.data_ptr
        assert t.__array__(copy=False).ctypes.data == t.data_ptr
        assert t.__array__(copy=True).flags.writeable
        assert t.__array__(np.dtype("int8")).dtype == "int8"
        with pytest.raises(ValueError):
            t.__array__(np.dtype("int8"), copy=False)

    def test_numpy_1_which_takes_no_copy_none_is_given_none(self, eng, np, monkeypatch):
        t, array = eng.zeros(3, "float32"), np.array

        def of_numpy_1(value, dtype=None, copy=True):
            assert copy is not None
            return array(value, dtype, copy=copy)

        monkeypatch.setattr(np, "array", of_numpy_1)
        assert t.__array__(np.dtype("int8")).dtype == "int8"
        assert t.__array__(copy=True).flags.writeable

    def test_for_write_gives_an_array_that_writes(self, eng, np):
        t = eng.zeros(3, "float32")
        np.asarray(t.for_write())[:] = 5
        assert np.asarray(t).tolist() == [5, 5, 5]

    def test_a_type_that_numpy_lacks_is_named(self, eng, np):
        # `ml_dtypes` has four bits too, but a byte for each.
        t = eng.zeros(3, "float4_e2m1fn")
        for source in (t, t.alias()):
            with pytest.raises(BufferError, match="float4_e2m1fn"):
                np.asarray(source)
        with t.read() as view, pytest.raises(BufferError, match="float4_e2m1fn"):
            np.asarray(view)

    def test_a_failure_is_not_hidden_in_an_array_of_objects(self, eng, np):
        def fail(_t):
            raise KeyError("lost")

        t = eng.zeros(4, "float32")
        eng.submit(fail, writes=[t])
        with pytest.raises(est.OperationError, match="lost"):
            np.asarray(t)
        t.clear_error()
