"""Single peers and memory that may not be written, and what they refuse to export."""

import gc
import weakref

import pytest

import estafette as est
from conftest import peer, until
from peers import aligned


class TestOnnxRuntime:
    def test_memory_that_only_its_object_keeps_lives_as_long_as_the_tensor(self, eng, np):
        """An `OrtValue` made of a NumPy array has the array's memory, and its struct does not keep the array."""
        runtime = peer("onnxruntime")
        source = np.arange(16, dtype="float32")
        alive = weakref.ref(source)
        value = runtime.OrtValue.ortvalue_from_numpy(source)
        t = eng.from_dlpack(value)
        assert t.data_ptr == source.ctypes.data
        del source, value
        gc.collect()
        assert alive() is not None
        view = np.from_dlpack(t)
        del t
        gc.collect()
        assert alive() is not None and view.tolist() == list(range(16))
        del view
        until(lambda: gc.collect() is not None and alive() is None)

    def test_what_only_a_result_refers_to_lives_as_long_as_the_result(self, eng, np):
        runtime = peer("onnxruntime")
        made = []

        def produce():
            source = np.arange(16, dtype="float32")
            made.append(weakref.ref(source))
            return runtime.OrtValue.ortvalue_from_numpy(source)

        t = eng.call(produce)
        t.wait(30)
        gc.collect()
        assert made[0]() is not None and np.from_dlpack(t).tolist() == list(range(16))
        del t
        until(lambda: gc.collect() is not None and made[0]() is None)

    def test_a_value_of_its_own_is_written_and_comes_back(self, eng, np):
        runtime = peer("onnxruntime")
        value = runtime.OrtValue.ortvalue_from_shape_and_type([4], np.float32)
        t = eng.from_dlpack(value)
        eng.submit(lambda x: x.fill(3), writes=[t], using=np.from_dlpack).wait(30)
        assert value.numpy().tolist() == [3] * 4
        assert runtime.OrtValue.from_dlpack(t).data_ptr() == value.data_ptr()


class TestReadOnly:
    def test_numpy_honours_it(self, eng, np):
        assert not np.from_dlpack(eng.zeros(4, "float32")).flags.writeable
        assert np.from_dlpack(eng.zeros(4, "float32").for_write()).flags.writeable
        source = np.zeros(4)
        source.flags.writeable = False
        t = eng.from_dlpack(source)
        assert t.read_only and not np.from_dlpack(t).flags.writeable

    def test_pytorch_ignores_it_and_writes_under_for_write_are_ordered(self, eng, np, torch):
        t = eng.zeros(4, "float32")
        array = torch.from_dlpack(t.for_write())
        array += 3
        reading = eng.call(lambda x: x.sum(keepdims=True), t, using=np.from_dlpack)
        del array
        assert np.from_dlpack(reading) == 12

    def test_pytorch_writes_in_operations_that_declare_it(self, eng, np, torch):
        t = eng.zeros(4, "float32")
        eng.submit(lambda x: x.add_(2), writes=[t], using=torch.from_dlpack)
        assert np.from_dlpack(t).tolist() == [2] * 4

    def test_tensors_of_pytorch_may_be_written_in_place(self, eng, np, torch):
        source = torch.zeros(4)
        t = eng.from_dlpack(source)
        assert not t.read_only
        eng.submit(lambda x: x.fill(5), writes=[t], using=np.from_dlpack).wait()
        assert source.tolist() == [5] * 4

    def test_arrays_of_jax_never_change(self, eng, jnp, np):
        t = eng.from_dlpack(jnp.arange(4.0))
        assert t.read_only
        with pytest.raises(est.ConflictError, match="read-only"):
            eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        with pytest.raises(est.ConflictError, match="read-only"):
            np.from_dlpack(t.for_write())
        produced = eng.call(lambda: jnp.ones(3))
        produced.wait()
        assert produced.read_only

    def test_jax_gets_read_only_memory_since_its_arrays_are_immutable(self, eng, jnp, np):
        source = aligned(np, 16)
        source.flags.writeable = False
        t = eng.from_dlpack(source)
        array = jnp.from_dlpack(t)
        assert array.unsafe_buffer_pointer() == t.data_ptr
        # Any other consumer that only knows legacy structs is refused.
        with pytest.raises(BufferError, match="read-only"):
            t.__dlpack__()

    def test_jax_copies_what_is_not_aligned_and_the_copy_holds_no_lease(self, eng, jnp, np):
        t = eng.from_dlpack(aligned(np, 17)[1:])
        array = jnp.from_dlpack(t)
        assert array.unsafe_buffer_pointer() != t.data_ptr
        eng.submit(lambda x: x.fill(0), writes=[t], using=np.from_dlpack).wait()
        assert float(array[0]) == 1

    def test_what_pytorch_refuses_to_export_comes_through(self, eng, torch):
        with pytest.raises(BufferError, match="gradient"):
            eng.from_dlpack(torch.ones(3, requires_grad=True))
        with pytest.raises(BufferError, match="conjugate"):
            eng.from_dlpack(torch.ones(3, dtype=torch.complex64).conj())

    def test_what_numpy_refuses_to_export_comes_through(self, eng, np):
        with pytest.raises(BufferError):
            eng.from_dlpack(np.array(["text"]))
        with pytest.raises(BufferError, match="byte order"):
            eng.from_dlpack(np.array([1.0], ">f4"))
