"""Libraries that take a tensor by NumPy's protocols, by iteration or by its buffer: pandas, Zarr, Pillow, `array.array`."""

import array
import asyncio
import gc

import pytest

import estafette as est
from conftest import peer


def is_free(eng, tensor):
    """True if no lease is left on the tensor: a write begins and ends."""
    eng.submit(lambda x: None, writes=[tensor]).wait(30)
    return True


def pending(eng, np, gate, shape, dtype):
    """A tensor of threes that is ready once the gate opens, which it does."""
    t = eng.zeros(shape, dtype)

    def fill(x):
        gate()
        x.fill(3)

    eng.submit(fill, writes=[t], using=np.from_dlpack)
    assert gate.entered.wait(30) and not t.is_ready()
    gate.open()
    return t


class TestPython:
    def test_bytes_bytearray_memoryview_and_array(self, eng, np):
        t = eng.from_dlpack(np.array([1, 2, 3], "int16"))
        assert bytes(t) == bytes(bytearray(t)) == memoryview(t).tobytes() == np.array([1, 2, 3], "int16").tobytes()
        assert array.array("h", t) == array.array("h", memoryview(t)) == array.array("h", [1, 2, 3])
        assert array.array("h", bytes(t)) == array.array("h", [1, 2, 3])
        assert is_free(eng, t)

    def test_a_tensor_with_one_dimension_is_iterated_over_under_a_lease(self, eng, np):
        t = eng.from_dlpack(np.arange(4, dtype="float32"))
        assert list(t) == [0.0, 1.0, 2.0, 3.0] and 2.0 in t and sum(t) == 6
        iterator = iter(t)
        assert next(iterator) == 0
        op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        with pytest.raises(est.LeaseHeldError):
            op.wait(30)
        del iterator
        gc.collect()
        op.wait(30)

    def test_iteration_waits_for_what_is_pending(self, eng, np, gate):
        assert list(pending(eng, np, gate, 3, "int32")) == [3, 3, 3]

    def test_other_shapes_are_not_iterated_over(self, eng):
        for shape in ((), (2, 3)):
            with pytest.raises(TypeError, match=f"a tensor with {len(shape)} dimensions is not iterated over"):
                iter(eng.zeros(shape, "int8"))

    @pytest.mark.parametrize("dtype", ["complex64", "complex128", "float16"])
    def test_elements_that_a_memoryview_does_not_know_are_named(self, eng, dtype):
        t = eng.zeros(2, dtype)
        try:
            known = list(memoryview(t))
        except NotImplementedError:
            with pytest.raises(TypeError, match=f"a tensor of {dtype} is not iterated over.*np.from_dlpack"):
                iter(t)
        else:
            assert list(t) == known

    def test_on_the_thread_of_an_event_loop_iteration_does_not_wait(self, gate):
        async def main(eng):
            t = eng.zeros(3, "int8")
            eng.submit(gate, writes=[t])
            with pytest.raises(est.WouldBlockError):
                list(t)
            gate.open()
            assert list(await t) == [0, 0, 0]

        with est.Engine(workers=1) as eng:
            asyncio.run(main(eng))

    def test_length(self, eng):
        assert (len(eng.zeros((2, 3), "int8")), len(eng.zeros(0, "int8"))) == (2, 0)
        with pytest.raises(TypeError, match="no length"):
            len(eng.zeros((), "int8"))

    def test_a_tensor_in_place_of_a_list_of_tensors_is_the_only_one(self, eng, np):
        a, b, order = eng.zeros(3, "int8"), eng.zeros(3, "int8"), eng.var()
        eng.submit(lambda b: b.fill(2), writes=b, using=np.from_dlpack)
        eng.submit(lambda x, y: np.add(x, y, out=y), reads=(a,), writes=b, using=np.from_dlpack)
        eng.submit(lambda b, a: np.copyto(a, b), reads=b, writes=a, using=np.from_dlpack)
        eng.submit(lambda: None, reads=order, writes=order).wait()
        with eng.access(reads=a, using=np.from_dlpack) as (x,):
            assert x.tolist() == [2] * 3
            del x
        with pytest.raises(TypeError, match=r"`reads` is a list, not int: write `reads=\[x\]`"):
            eng.submit(lambda x: None, reads=3)

    def test_arguments_of_the_function_are_none_of_submit(self, eng):
        x, y = eng.zeros(1, "int8"), eng.zeros(1, "int8")
        with eng.program("p") as program:
            for submit in (eng.submit, eng.submit_async, program.submit):
                with pytest.raises(TypeError, match=r"by name: `reads=.*`eng\.call\(fn, a, b\)`"):
                    submit(print, [x], [y])
            program.submit(print, reads=[x])

    def test_what_is_no_tensor_is_passed_on(self, eng, np):
        for other in (2, np.full(3, 2.0)):
            assert np.from_dlpack(eng.call(np.multiply, eng.from_dlpack(np.ones(3)), other)).tolist() == [2.0] * 3


class TestPandas:
    @pytest.fixture
    def pd(self):
        return peer("pandas")

    @pytest.mark.parametrize("dtype", ["int8", "uint32", "float32", "float64", "bool"])
    def test_a_series_has_the_elements_and_their_type(self, eng, np, pd, dtype):
        t = eng.from_dlpack(np.array([0, 1, 1], dtype))
        for series in (pd.Series(t), pd.DataFrame({"x": t})["x"], pd.DataFrame(t)[0]):
            assert series.dtype == dtype and series.tolist() == np.array([0, 1, 1], dtype).tolist()
        del series
        gc.collect()
        assert is_free(eng, t)

    def test_a_frame_of_two_dimensions(self, eng, np, pd):
        frame = pd.DataFrame(eng.from_dlpack(np.arange(6, dtype="int16").reshape(2, 3)), columns=list("abc"))
        assert frame.to_dict("list") == {"a": [0, 3], "b": [1, 4], "c": [2, 5]} and set(frame.dtypes) == {np.dtype("int16")}

    def test_a_pending_tensor_is_waited_for(self, eng, np, pd, gate):
        assert pd.Series(pending(eng, np, gate, 3, "int32")).tolist() == [3, 3, 3]

    def test_values_of_a_series_are_taken_in_place(self, eng, np, pd):
        series = pd.Series(np.arange(4.0))
        assert eng.from_dlpack(series.values).data_ptr == series.values.ctypes.data


class TestZarr:
    @pytest.fixture
    def zarr(self):
        return peer("zarr")

    @pytest.mark.parametrize("dtype", ["int8", "uint16", "float32", "float64", "bool"])
    def test_a_tensor_is_stored(self, eng, np, zarr, dtype):
        source = np.arange(6).astype(dtype).reshape(2, 3)
        t = eng.from_dlpack(source)
        stored = zarr.zeros((2, 3), dtype=dtype)
        stored[:] = t
        assert stored[:].tolist() == source.tolist() and zarr.array(t)[:].dtype == dtype
        assert is_free(eng, t)

    def test_a_tensor_of_another_type_is_converted(self, eng, np, zarr):
        stored = zarr.zeros(3, dtype="float64")
        stored[:] = eng.from_dlpack(np.array([1, 2, 3], "int32"))
        assert stored[:].tolist() == [1.0, 2.0, 3.0]

    def test_a_pending_tensor_is_refused_by_the_event_loop_that_zarr_converts_it_on(self, eng, np, zarr, gate):
        stored = zarr.zeros(5, dtype="int32")
        t = eng.zeros(3, "int32")
        eng.submit(gate, writes=[t])
        assert gate.entered.wait(30)
        with pytest.raises(est.WouldBlockError):
            stored[1:4] = t
        gate.open()
        t.wait(30)
        stored[1:4] = t
        assert stored[:].tolist() == [0] * 5


class TestPillow:
    @pytest.fixture
    def image(self):
        peer("PIL")
        return peer("PIL.Image")

    def test_an_image_is_made_and_comes_back(self, eng, np, image):
        pixels = np.arange(48, dtype="uint8").reshape(4, 4, 3)
        t = eng.from_dlpack(pixels)
        made = image.fromarray(t)
        assert (made.mode, made.size) == ("RGB", (4, 4)) and np.asarray(made).tolist() == pixels.tolist()
        del made
        gc.collect()
        assert is_free(eng, t)

    def test_a_function_returns_images(self, eng, np, image):
        made = image.new("L", (3, 2), 7)
        assert eng.call(lambda: made).result() is made
        several = eng.call(lambda: {"image": made, "pixels": np.asarray(made)})
        assert several["image"] is made and several["pixels"].tolist() == [[7, 7, 7], [7, 7, 7]]

    def test_an_image_in_place_holds_a_lease(self, eng, np, image):
        t = eng.zeros((4, 4), "uint8")
        made = image.fromarray(t)
        op = eng.submit(lambda x: x.fill(9), writes=[t], using=np.from_dlpack)
        with pytest.raises(est.LeaseHeldError):
            op.wait(30)
        assert made.getpixel((0, 0)) == 0
        del made
        gc.collect()
        op.wait(30)

    def test_a_pending_image_is_waited_for(self, eng, np, image, gate):
        assert image.fromarray(pending(eng, np, gate, (2, 2), "uint8")).getpixel((1, 1)) == 3


class TestArrayInterface:
    def test_it_names_a_view_with_a_lease_and_no_address(self, eng):
        t = eng.zeros((2, 3), "float32")
        interface = t.__array_interface__
        view = interface.pop("data")
        assert interface == {"version": 3, "typestr": "<f4", "shape": (2, 3)}
        assert (type(view), view.readonly, view.shape) == (memoryview, True, (2, 3))
        view.release()
        assert is_free(eng, t)

    def test_what_it_cannot_say_it_does_not_have(self, eng, np):
        for t in (eng.zeros(3, "bfloat16"), eng.from_dlpack(np.zeros((2, 3)).T)):
            assert not hasattr(t, "__array_interface__")

    def test_numpy_takes_it_under_a_lease(self, eng, np):
        class Interface:
            def __init__(self, t):
                self.__array_interface__ = t.__array_interface__

        t = eng.zeros(4, "int32")
        view = np.asarray(Interface(t))
        assert view.ctypes.data == t.data_ptr and not view.flags.writeable
        op = eng.submit(lambda x: x.fill(9), writes=[t], using=np.from_dlpack)
        with pytest.raises(est.LeaseHeldError):
            op.wait(30)
        del view
        gc.collect()
        op.wait(30)
