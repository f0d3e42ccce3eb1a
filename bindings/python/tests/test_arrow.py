"""Arrow's C device interface with pyarrow, and with arrays made by hand."""

import ctypes
import gc
import threading
import weakref

import pytest

import estafette as est
from arrow_capsules import FailingStream, Made
from conftest import peer, until

DTYPES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


@pytest.fixture
def pa():
    return peer("pyarrow")


class HostOnly:
    """An array behind the plain interface alone."""

    def __init__(self, array):
        self.array = array

    def __arrow_c_array__(self, requested_schema=None):
        return self.array.__arrow_c_array__(requested_schema)


class TestFromArrow:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("wrap", [lambda array: array, HostOnly], ids=["device", "host"])
    def test_an_array_comes_in_in_place(self, eng, np, pa, dtype, wrap):
        array = pa.array(np.arange(8).astype(dtype))
        t = eng.from_arrow(wrap(array))
        assert (t.shape, t.dtype, t.device, t.read_only) == ((8,), dtype, (1, 0), True)
        assert t.data_ptr == array.buffers()[1].address
        assert np.from_dlpack(t).tolist() == list(range(8))

    def test_a_slice_begins_at_its_offset(self, eng, np, pa):
        array = pa.array(range(10), "int32")[3:7]
        t = eng.from_arrow(array)
        assert array.offset == 3 and t.data_ptr == array.buffers()[1].address + 12
        assert np.from_dlpack(t).tolist() == [3, 4, 5, 6]

    def test_a_slice_between_nulls_has_none(self, eng, np, pa):
        array = pa.array([None, 1, 2, None])
        assert np.from_dlpack(eng.from_arrow(array[1:3])).tolist() == [1, 2]
        with pytest.raises(est.InvalidTensorError, match="null_count is 1"):
            eng.from_arrow(array[:3])

    def test_an_array_without_elements(self, eng, pa):
        assert eng.from_arrow(pa.array([], "float32")).shape == (0,)

    @pytest.mark.parametrize(
        "values, kind, what",
        [
            ([True, False], "bool_", "bit-packed"),
            (["text"], "utf8", "text"),
            ([b"bytes"], "binary", "binary"),
            ([1], "date32", "dates"),
            ([None], "null", "nulls alone"),
            ([[1, 2]], lambda pa: pa.list_(pa.int32()), "nested"),
            ([[1, 2]], lambda pa: pa.list_(pa.int32(), 2), "nested"),
            ([{"a": 1}], lambda pa: pa.struct([("a", pa.int32())]), "nested"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_other_types_are_refused_by_name(self, eng, pa, values, kind, what):
        kind = kind(pa) if callable(kind) else getattr(pa, kind)()
        with pytest.raises(est.InvalidTensorError, match=f"format is .*{what}"):
            eng.from_arrow(pa.array(values, kind))

    def test_a_dictionary_is_refused(self, eng, pa):
        with pytest.raises(est.InvalidTensorError, match="dictionary"):
            eng.from_arrow(pa.array([7, 7, 9]).dictionary_encode())

    def test_nobody_writes_an_array(self, eng, np, pa):
        t = eng.from_arrow(pa.array([1.0, 2.0]))
        with pytest.raises(est.ConflictError, match="read-only"):
            eng.submit(lambda x: x.fill(0), writes=[t], using=np.from_dlpack)

    def test_memory_lives_as_long_as_the_tensor(self, eng, np, pa):
        source = np.arange(16.0)
        alive = weakref.ref(source)
        t = eng.from_arrow(pa.array(source))
        assert t.data_ptr == source.ctypes.data
        del source
        gc.collect()
        assert alive() is not None and np.from_dlpack(t)[15] == 15
        del t
        until(lambda: gc.collect() is not None and alive() is None)

    def test_what_speaks_no_arrow_is_refused(self, eng, np):
        with pytest.raises(TypeError, match="numpy.ndarray has none of `__arrow_c_device_array__`"):
            eng.from_arrow(np.zeros(3))
        with pytest.raises(TypeError, match="pair of capsules"):
            eng.from_arrow((1, 2))

    def test_the_only_chunk_of_a_column_comes_in_in_place(self, eng, np, pa):
        column = pa.table({"a": pa.array([1.0, 2.0])})["a"]
        t = eng.from_arrow(column)
        address = column.chunk(0).buffers()[1].address
        assert (t.dtype, t.read_only, t.data_ptr) == ("float64", True, address)
        del column
        gc.collect()
        assert np.from_dlpack(t).tolist() == [1, 2]

    @pytest.mark.usefixtures("pa")  # pandas makes its Arrow arrays by pyarrow.
    def test_a_series_of_pandas_comes_in(self, eng, np):
        values = np.arange(3, dtype="int32")
        t = eng.from_arrow(peer("pandas").Series(values))
        assert t.dtype == "int32" and np.from_dlpack(t).tolist() == [0, 1, 2]

    @pytest.mark.parametrize("chunks, count", [([[1], [2]], "several chunks"), ([], "no chunk")])
    def test_a_column_of_another_number_of_chunks_is_refused_with_a_remedy(self, eng, pa, chunks, count):
        column = pa.chunked_array(chunks, "int64")
        with pytest.raises(est.InvalidTensorError, match=f"stream has {count}.*combine_chunks"):
            eng.from_arrow(column)
        assert eng.from_arrow(column.combine_chunks()).shape == (len(chunks),)

    def test_a_table_is_refused(self, eng, pa):
        with pytest.raises(est.InvalidTensorError, match="nested"):
            eng.from_arrow(pa.table({"a": [1], "b": [2]}))

    def test_a_stream_that_fails_after_its_first_array_says_why_and_keeps_nothing(self, eng):
        made = Made()
        with pytest.raises(est.InvalidTensorError, match="stream fails with code 5: no ink"):
            eng.from_arrow(FailingStream(made))
        assert (made.released, made.schema_released) == (1, 1)


class TestArraysMadeByHand:
    def test_it_is_moved_out_of_its_capsule_and_released_once(self, eng, np):
        made = Made()
        t = eng.from_arrow(made.pair())
        assert made.is_moved() and made.released == 0
        assert np.from_dlpack(t).tolist() == [0, 1, 2, 3]
        del t
        until(lambda: made.released == 1)
        assert made.schema_released == 0, "the schema stays with its owner"

    def test_a_second_import_of_the_same_capsules_is_refused(self, eng):
        made = Made()
        t = eng.from_arrow(made.pair())
        with pytest.raises(est.InvalidTensorError, match="released or moved"):
            eng.from_arrow(made.pair())
        assert t.shape == (4,) and made.released == 0

    @pytest.mark.parametrize(
        "change, what",
        [
            ({"null_count": 2}, "null_count is 2"),
            ({"length": -1}, "length is -1"),
            ({"offset": -1}, "offset is -1"),
            ({"n_buffers": 1}, "n_buffers is 1"),
            ({"n_children": 1}, "n_children is 1"),
            ({"device_type": 2, "device_id": 0}, "cuda:0 is not available"),
            ({"device_type": 9}, "vpi"),
            ({"sync_event": 64}, "sync_event is set"),
        ],
        ids=str,
    )
    def test_what_cannot_be_is_named_and_released(self, eng, change, what):
        made = Made(**change)
        with pytest.raises(est.EstafetteError, match=what):
            eng.from_arrow(made.pair())
        until(lambda: made.released == 1)

    def test_a_released_schema_is_refused_and_the_array_stays_where_it_is(self, eng):
        made = Made(schema_release=False)
        with pytest.raises(est.InvalidTensorError, match="schema has been released"):
            eng.from_arrow(made.pair())
        assert not made.is_moved() and made.released == 0

    def test_capsules_of_other_names_are_refused(self, eng):
        made = Made()
        schema, array = made.pair()
        with pytest.raises(ValueError, match="named `arrow_device_array`; Arrow's is `arrow_schema`"):
            eng.from_arrow((array, schema))
        with pytest.raises(ValueError, match="named `arrow_schema`; Arrow's is `arrow_device_array` or `arrow_array`"):
            eng.from_arrow((schema, schema))
        assert not made.is_moved()


class TestToArrow:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_pyarrow_takes_it_in_place(self, eng, np, pa, dtype):
        t = eng.from_dlpack(np.arange(8).astype(dtype))
        array = pa.array(t)
        assert array.type == pa.from_numpy_dtype(dtype) and array.to_numpy().tolist() == list(range(8))
        assert array.buffers()[1].address == t.data_ptr and array.null_count == 0
        array.validate(full=True)

    def test_an_empty_tensor(self, eng, pa):
        assert len(pa.array(eng.zeros(0, "float32"))) == 0

    def test_a_requested_type_is_left_to_the_consumer(self, eng, pa):
        t = eng.zeros(3, "int32")
        assert pa.array(t, pa.int32()).type == pa.int32()
        pair = t.__arrow_c_device_array__(pa.float64().__arrow_c_schema__())
        assert pa.Array._import_from_c_device_capsule(*pair).type == pa.int32()

    def test_the_plain_interface(self, eng, np, pa):
        t = eng.from_dlpack(np.arange(4))
        array = pa.array(HostOnly(t))
        assert array.to_pylist() == [0, 1, 2, 3] and array.buffers()[1].address == t.data_ptr

    def test_a_consumer_holds_a_lease_until_its_array_is_gone(self, eng, np, pa):
        t = eng.zeros(4, "float32")
        array = pa.array(t)
        op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        with pytest.raises(est.LeaseHeldError, match="test_arrow.py"):
            t.wait()
        assert array.to_pylist() == [0] * 4 and not op.is_done()
        del array
        gc.collect()
        op.wait()

    def test_capsules_that_are_not_consumed_release_the_lease(self, eng, np):
        t = eng.zeros(4, "float32")
        for pair in (t.__arrow_c_device_array__(), t.__arrow_c_array__()):
            op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
            assert not op.is_done()
            del pair
        # The loop's own tuple is gone with its last round.
        op.wait()

    @pytest.mark.parametrize(
        "shape, dtype, what",
        [((2, 2), "int32", "shape is"), ((), "int32", "shape is"), ((3,), "bool", "a bit each"), ((3,), "complex64", "complex64")],
        ids=str,
    )
    def test_what_an_array_cannot_be_is_named_and_the_lease_comes_back(self, eng, np, shape, dtype, what):
        t = eng.zeros(shape, dtype)
        for export in (t.__arrow_c_device_array__, t.__arrow_c_array__):
            with pytest.raises(est.InvalidTensorError, match=what):
                export()
        eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack).wait()

    def test_gaps_are_refused(self, eng, np):
        with pytest.raises(est.InvalidTensorError, match="strides are"):
            eng.from_dlpack(np.arange(8)[::2]).__arrow_c_device_array__()

    def test_arguments_of_later_versions_may_say_nothing(self, eng):
        t = eng.zeros(3, "int8")
        assert len(t.__arrow_c_device_array__(None, later=None)) == 2
        with pytest.raises(NotImplementedError, match="later"):
            t.__arrow_c_device_array__(later=1)

    def test_a_consumer_that_never_heard_of_us_is_blocked_until_it_is_ready(self, eng, np, pa, gate):
        def produce():
            gate()
            return np.arange(3)

        t = eng.call(produce)
        assert gate.entered.wait(30) and not t.is_ready()
        threading.Timer(0.02, gate.open).start()
        assert pa.array(t).to_pylist() == [0, 1, 2]

    def test_a_failure_of_the_producer_is_raised_in_the_consumer(self, eng, pa):
        def fails():
            raise RuntimeError("the well is dry")

        with pytest.raises(est.OperationError, match="the well is dry"):
            pa.array(eng.call(fails))

    def test_an_operation_works_on_arrow_arrays(self, eng, pa):
        import pyarrow.compute as pc

        t = eng.from_arrow(pa.array([3, 1, 2]))
        total = eng.call(lambda x: pa.array([pc.sum(x).as_py()]), t, using=pa.array)
        assert pa.array(total).to_pylist() == [6]

    def test_a_scoped_lease_gives_arrow_arrays(self, eng, np, pa):
        t = eng.from_dlpack(np.arange(4))
        with t.read(using=pa.array) as array:
            assert array.to_pylist() == [0, 1, 2, 3] and array.buffers()[1].address == t.data_ptr
            op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
            assert not op.is_done()
        with eng.access(reads=[eng.zeros(2, "int8")], using=lambda view: pa.array(HostOnly(view))) as (plain,):
            assert plain.to_pylist() == [0, 0]
        del array
        op.wait()

    def test_a_round_trip_is_the_same_memory(self, eng, np, pa):
        t = eng.from_dlpack(np.arange(4))
        back = eng.from_arrow(pa.array(t))
        assert back.data_ptr == t.data_ptr and back.read_only
        # Derived from the lease that pyarrow held: a write waits for it.
        op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        assert not op.is_done()
        del back
        op.wait()

    def test_a_moved_array_is_released_where_it_is(self, eng, np):
        t = eng.zeros(4, "float32")
        taken = Made.take(t.__arrow_c_device_array__())
        assert (taken.length, taken.device_type, taken.device_id, taken.sync_event) == (4, 1, -1, None)
        op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
        gc.collect()
        assert not op.is_done()
        taken.release_now()
        op.wait()
        assert not ctypes.cast(taken.array.release, ctypes.c_void_p)


class TestArraysThroughDLPack:
    """`pyarrow.Array` in the other protocol. (`pyarrow.Tensor` is a peer like others, in `test_peers.py`.)"""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_both_ways_in_place(self, eng, np, pa, dtype):
        array = pa.array(np.arange(8).astype(dtype))
        t = eng.from_dlpack(array)
        assert (t.dtype, t.read_only, t.data_ptr) == (dtype, True, array.buffers()[1].address)
        back = pa.Array.from_dlpack(t)
        assert back.equals(array) and back.buffers()[1].address == t.data_ptr

    def test_what_it_refuses_to_export_comes_through(self, eng, pa):
        for array, what in [(pa.array([1, None]), "no nulls"), (pa.array([True]), "Bit-packed")]:
            with pytest.raises(TypeError, match=what):
                eng.from_dlpack(array)

    def test_it_takes_one_dimension_without_gaps_and_returns_the_lease_of_others(self, eng, np, pa):
        for source in [np.zeros((2, 2)), np.zeros(()), np.zeros(8)[::2]]:
            t = eng.from_dlpack(source)
            with pytest.raises(ValueError, match="one dimensional") as caught:
                pa.Array.from_dlpack(t)
            del caught
            gc.collect()
            eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack).wait()


class TestMemory:
    def test_many_round_trips_leave_nothing(self, eng, pa):
        gc.collect()
        until(lambda: eng.stats().releasing == 0)
        before = eng.stats()
        array = pa.array([1.0, 2.0])
        for _ in range(5_000):
            array = pa.array(eng.from_arrow(array))
        assert array.to_pylist() == [1, 2]
        del array
        gc.collect()
        until(lambda: eng.stats().releasing == 0)
        after = eng.stats()
        assert after.imported - before.imported == 5_000
