"""Python's buffer protocol inward: what exports a buffer and does not speak DLPack becomes a tensor in place."""

import array
import ctypes
import gc
import mmap
import struct
import weakref

import pytest

import estafette as est
from conftest import until


class PyBuffer(ctypes.Structure):
    """`Py_buffer`, for what no exporter here makes."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


class TestWhatIsTaken:
    def test_a_bytearray_is_taken_in_place_and_may_be_written(self, eng, np):
        memory = bytearray(range(8))
        t = eng.from_dlpack(memory)
        assert (t.shape, t.dtype, t.device, t.read_only) == ((8,), "uint8", (1, 0), False)
        eng.submit(lambda x: np.add(x, 1, out=x), writes=[t], using=np.from_dlpack).wait(30)
        assert memory == bytearray(range(1, 9))

    def test_bytes_are_read_only(self, eng, np):
        t = eng.from_dlpack(b"abc")
        assert t.read_only and bytes(t) == b"abc"
        with pytest.raises(est.ConflictError, match="declares it read-only"):
            eng.submit(lambda x: None, writes=[t])
        with pytest.raises(BufferError, match="declares it read-only"):
            eng.from_dlpack(b"abc", writable=True)
        copied = eng.from_dlpack(b"abc", copy=True)
        copied.wait(30)
        assert not copied.read_only

    @pytest.mark.parametrize("code", "bBhHiIlLqQfd")
    def test_every_type_of_an_array(self, eng, np, code):
        memory = array.array(code, [1, 2, 3])
        t = eng.from_dlpack(memory)
        assert t.dtype == np.dtype(code).name and t.data_ptr == memory.buffer_info()[0]
        assert np.from_dlpack(t).tolist() == [1, 2, 3]

    @pytest.mark.parametrize("code", ["?", "e", "Zf", "Zd"])
    def test_types_of_numpys_buffers(self, eng, np, code):
        source = np.ones(3, {"Zf": "complex64", "Zd": "complex128"}.get(code, code))
        assert memoryview(source).format == code
        t = eng.from_dlpack(memoryview(source))
        assert t.dtype == source.dtype.name and t.data_ptr == source.ctypes.data

    @pytest.mark.parametrize("kind", [ctypes.c_int16, ctypes.c_int32, ctypes.c_long, ctypes.c_float, ctypes.c_double], ids=str)
    def test_an_array_of_ctypes_whose_format_names_the_byte_order(self, eng, np, kind):
        memory = (kind * 3 * 2)()
        t = eng.from_dlpack(memory)
        assert t.shape == (2, 3) and t.dtype == np.dtype(kind).name and t.data_ptr == ctypes.addressof(memory)

    def test_a_mapped_file(self, eng, tmp_path):
        (tmp_path / "file").write_bytes(bytes(range(16)))
        with open(tmp_path / "file", "r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        t = eng.from_dlpack(mapped)
        assert (t.shape, t.read_only) == ((16,), False) and bytes(t) == bytes(range(16))
        with pytest.raises(BufferError):
            mapped.close()
        del t
        gc.collect()
        mapped.close()

    def test_shape_and_strides_of_a_view(self, eng, np):
        memory = np.arange(24, dtype="int32").reshape(4, 6)
        for part in (memory.T, memory[::2, 1::3], memory[::-1], memory[:0], memory[1:2, 3:4]):
            t = eng.from_dlpack(memoryview(part))
            assert np.from_dlpack(t).tolist() == part.tolist() and t.shape == part.shape
        scalar = eng.from_dlpack(memoryview(np.array(7, "int16")))
        assert (scalar.shape, int(np.from_dlpack(scalar))) == ((), 7)

    def test_a_result_of_an_operation(self, eng):
        assert bytes(eng.call(lambda: bytearray(b"made"))) == b"made"

    def test_a_copy_leaves_the_memory_free(self, eng):
        memory = bytearray(4)
        t = eng.from_dlpack(memory, copy=True)
        t.wait(30)
        until(lambda: resizes(memory))
        assert len(t) == 4


def resizes(memory):
    try:
        memory.append(0)
    except BufferError:
        return False
    return True


class TestHowLong:
    def test_the_exporter_is_held_until_the_tensor_is_gone(self, eng):
        memory = bytearray(4)
        t = eng.from_dlpack(memory)
        with pytest.raises(BufferError, match="re-sized"):
            memory.append(0)
        del t
        memory.append(0)

    def test_the_exporter_is_held_while_an_export_of_the_tensor_lives(self, eng, np):
        memory = bytearray(4)
        view = np.from_dlpack(eng.from_dlpack(memory))
        gc.collect()
        assert not resizes(memory)
        del view
        gc.collect()
        until(lambda: resizes(memory))

    def test_the_exporter_is_held_while_an_operation_uses_the_tensor(self, eng, np, gate):
        memory = bytearray(4)

        def fill(x):
            gate()
            x.fill(9)

        op = eng.submit(fill, writes=[eng.from_dlpack(memory)], using=np.from_dlpack)
        assert gate.entered.wait(30) and not resizes(memory)
        gate.open()
        op.wait(30)
        until(lambda: resizes(memory))
        assert memory[:4] == b"\x09\x09\x09\x09"

    def test_a_memoryview_is_released_when_the_tensor_is_gone(self, eng):
        view = memoryview(bytearray(4))
        t = eng.from_dlpack(view)
        with pytest.raises(BufferError):
            view.release()
        del t
        view.release()

    def test_what_is_refused_is_held_no_longer(self, eng):
        memory = array.array("u", "abc")
        with pytest.raises(BufferError, match="format"):
            eng.from_dlpack(memory)
        memory.append("d")

    def test_overlapping_buffers_are_ordered(self, eng, np, gate):
        memory = bytearray(8)
        low, high = eng.from_dlpack(memory), eng.from_dlpack(memoryview(memory)[2:])

        def fill(x):
            gate()
            x.fill(1)

        eng.submit(fill, writes=[low], using=np.from_dlpack)
        later = eng.submit(lambda x: x.fill(2), writes=[high], using=np.from_dlpack)
        assert gate.entered.wait(30) and not later.is_done()
        gate.open()
        later.wait(30)
        assert memory == bytes([1, 1, 2, 2, 2, 2, 2, 2])

    def test_a_view_of_a_tensor_comes_back_derived(self, eng):
        t = eng.zeros(4, "uint8")
        with memoryview(t) as view:
            assert eng.from_dlpack(view).read_only


class TestWhatIsRefused:
    @pytest.mark.parametrize("make", [lambda: array.array("u", "ab"), lambda: memoryview(b"ab").cast("c")], ids=["text", "chars"])
    def test_elements_that_are_no_numbers(self, eng, make):
        with pytest.raises(BufferError, match="cannot be a tensor: its elements are of format"):
            eng.from_dlpack(make())

    def test_the_other_byte_order(self, eng):
        swapped = ctypes.c_int32.__ctype_be__ if struct.pack("=h", 1) == struct.pack("<h", 1) else ctypes.c_int32.__ctype_le__
        with pytest.raises(BufferError, match="format"):
            eng.from_dlpack((swapped * 2)())

    def test_a_record(self, eng, np):
        with pytest.raises(BufferError, match="format"):
            eng.from_dlpack(memoryview(np.zeros(2, [("a", "i4"), ("b", "f8")])))

    def test_strides_between_elements(self, eng, np):
        records = np.zeros(3, np.dtype([("a", "i4"), ("b", "i2")], align=False))
        with pytest.raises(BufferError, match="strides"):
            eng.from_dlpack(memoryview(records["a"]))

    def test_suboffsets(self, eng):
        rows = (ctypes.POINTER(ctypes.c_ubyte) * 2)((ctypes.c_ubyte * 3)(), (ctypes.c_ubyte * 3)())
        entries = (ctypes.c_ssize_t * 2)
        shape, strides, behind = entries(2, 3), entries(ctypes.sizeof(ctypes.c_void_p), 1), entries(0, -1)
        buffer = PyBuffer(ctypes.addressof(rows), None, 6, 1, 0, 2, b"B", shape, strides, behind, None)
        of_buffer = ctypes.pythonapi.PyMemoryView_FromBuffer
        of_buffer.restype, of_buffer.argtypes = ctypes.py_object, [ctypes.POINTER(PyBuffer)]
        indirect = of_buffer(ctypes.byref(buffer))
        assert indirect.suboffsets == (0, -1)
        with pytest.raises(BufferError, match="suboffsets"):
            eng.from_dlpack(indirect)

    def test_an_object_without_buffer_is_named(self, eng):
        with pytest.raises(TypeError, match="object has no `__dlpack__` and no buffer"):
            eng.from_dlpack(object())


class TestArraysOfJaxOnTheHost:
    def test_an_array_ends_with_the_tensor_of_it(self, eng, jnp):
        array = jnp.arange(6.0).reshape(2, 3)
        kept, t = weakref.ref(array), eng.from_dlpack(array)
        assert (t.shape, t.dtype, t.read_only) == ((2, 3), "float32", True)
        assert t.data_ptr == array.unsafe_buffer_pointer()
        del array
        gc.collect()
        assert kept() is not None
        # JAX keeps what it has given a DLPack struct of until its next call.
        del t
        assert kept() is None

    def test_an_element_type_without_a_format_is_taken_by_its_struct(self, eng, jnp):
        array = jnp.ones(3, "bfloat16")
        t = eng.from_dlpack(array)
        assert (t.dtype, t.data_ptr) == ("bfloat16", array.unsafe_buffer_pointer())

    def test_a_deleted_array_is_refused_by_jax(self, eng, jnp):
        array = jnp.ones(3)
        array.delete()
        with pytest.raises((RuntimeError, TypeError)):
            eng.from_dlpack(array)
