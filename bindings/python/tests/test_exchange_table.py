"""The C exchange table of DLPack 1.3: ours, used as a consumer in C would, and other libraries' used by us."""

import asyncio
import ctypes
import gc
import threading

import pytest

import estafette as est
from capsules import DLDataType, DLDevice, DLTensor, Made
from conftest import peer, until
from exchange_table import Functions, with_table


def prototype(shape=(2, 3), dtype=(2, 32, 1), device=(1, 0)):
    dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    tensor = DLTensor(None, DLDevice(*device), len(shape), DLDataType(*dtype), dims, None, 0)
    tensor.keep = dims
    return tensor


def dims(pointer, count):
    return [pointer[i] for i in range(count)]


class TestOurTable:
    def test_it_is_on_the_types_and_says_its_version(self, eng):
        tensors, exporters, views = map(Functions, (est.Tensor, est.Exporter, est.View))
        for functions in (tensors, exporters, views):
            assert (functions.table.major, functions.table.minor, functions.table.prev_api) == (1, 3, None)
        assert Functions(eng.zeros(1, "int8")).address == tensors.address
        # An access must be held by an owner, so it cannot be described in passing.
        assert (tensors.can_describe, exporters.can_describe, views.can_describe) == (True, False, False)

    def test_a_tensor_is_taken_under_a_read_lease_that_its_deleter_returns(self, eng, np):
        t = eng.zeros((2, 3), "float32")
        managed = Functions(t).take(t)
        assert (managed.struct.major, managed.struct.minor) == (1, 3)
        assert managed.read_only and managed.tensor.data == t.data_ptr
        assert dims(managed.tensor.shape, 2) == [2, 3] and dims(managed.tensor.strides, 2) == [3, 1]
        op = eng.submit(lambda t: t.fill(1), writes=[t], using=np.from_dlpack)
        assert not op.is_done()
        managed.delete()
        op.wait(10)

    def test_accesses_are_taken_as_they_say(self, eng, np):
        t = eng.zeros(3, "float32")
        write = Functions(est.Exporter).take(t.for_write())
        assert not write.read_only
        op = eng.submit(lambda t: None, reads=[t])
        assert not op.is_done()
        write.delete()
        op.wait(10)
        alias = Functions(est.Exporter).take(t.alias())
        eng.submit(lambda t: None, writes=[t]).wait(10)
        alias.delete()
        with t.read() as view:
            managed = Functions(est.View).take(view)
            assert managed.read_only
        op = eng.submit(lambda t: None, writes=[t])
        assert not op.is_done()
        managed.delete()
        op.wait(10)

    def test_what_is_not_ready_is_waited_for(self, eng, np, gate):
        t = eng.zeros(3, "float32")
        eng.submit(gate, writes=[t])
        threading.Timer(0.05, gate.open).start()
        managed = Functions(t).take(t)
        assert gate.entered.is_set()
        managed.delete()

    def test_it_does_not_stop_an_event_loop(self, gate):
        async def main():
            with est.Engine(workers=1) as eng:
                t = eng.zeros(3, "float32")
                eng.submit(gate, writes=[t])
                for function in (Functions(t).take, Functions(t).describe):
                    with pytest.raises(est.WouldBlockError):
                        function(t)
                gate.open()
                await t

        asyncio.run(main())

    def test_a_failed_tensor_gives_its_cause(self, eng):
        def fail(_t):
            raise KeyError("lost")

        t = eng.zeros(3, "float32")
        eng.submit(fail, writes=[t])
        for function in (Functions(t).take, Functions(t).describe):
            with pytest.raises(est.OperationError, match="lost"):
                function(t)
        t.clear_error()

    def test_a_description_is_lent_without_a_lease(self, eng, np):
        t = eng.zeros((4, 5), "float64")
        tensor = Functions(t).describe(t)
        assert tensor.data == t.data_ptr and tensor.ndim == 2 and tensor.byte_offset == 0
        assert dims(tensor.shape, 2) == [4, 5] and dims(tensor.strides, 2) == [5, 1]
        assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (2, 64, 1)
        eng.submit(lambda t: t.fill(1), writes=[t], using=np.from_dlpack).wait(10)

    @pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
    def test_scalars_and_empty_tensors_are_described_as_the_header_says(self, eng, shape):
        t = eng.zeros(shape, "float32")
        tensor = Functions(t).describe(t)
        assert tensor.ndim == len(shape)
        assert bool(tensor.data) == (shape == ())
        assert bool(tensor.shape) == bool(tensor.strides) == bool(shape)

    def test_a_body_is_described_its_own_operands(self, eng):
        seen = []
        t = eng.zeros(3, "float32")
        eng.submit(lambda t: seen.append(Functions(t).describe(t).data), writes=[t]).wait(10)
        assert seen == [t.data_ptr]

    def test_a_managed_tensor_becomes_a_tensor_of_the_default_engine(self, np):
        made = Made(shape=(2, 3))
        t = Functions(est.Tensor).make(ctypes.addressof(made.managed))
        assert type(t) is est.Tensor and t.shape == (2, 3)
        assert np.from_dlpack(t).tolist() == [[0, 1, 2], [3, 4, 5]]
        assert made.deleted == 0
        del t
        gc.collect()
        until(lambda: made.deleted == 1)

    def test_one_that_is_refused_is_released(self):
        made = Made(dtype=(6, 1, 1))
        with pytest.raises(est.InvalidTensorError, match="dtype.bits"):
            Functions(est.Tensor).make(ctypes.addressof(made.managed))
        until(lambda: made.deleted == 1)
        newer = Made(version=(2, 0))
        with pytest.raises(est.InvalidTensorError, match="version"):
            Functions(est.Tensor).make(ctypes.addressof(newer.managed))
        until(lambda: newer.deleted == 1)

    def test_the_allocator_makes_zeroed_memory_for_its_caller_alone(self):
        managed = Functions(est.Tensor).allocate(prototype())
        assert not managed.read_only and managed.tensor.data % 64 == 0
        assert dims(managed.tensor.shape, 2) == [2, 3] and dims(managed.tensor.strides, 2) == [3, 1]
        assert bytes((ctypes.c_char * 24).from_address(managed.tensor.data)) == bytes(24)
        managed.delete()

    def test_the_allocator_tells_what_is_wrong_through_its_callback(self):
        functions = Functions(est.Tensor)
        assert functions.allocate(prototype(device=(2, 0))) == (
            "BufferError",
            "device cuda:0 is not available: tensors are made on cpu:0",
        )
        kind, message = functions.allocate(prototype(shape=(2, -3)))
        assert kind == "BufferError" and "shape[1] is -3" in message

    def test_the_host_has_no_stream_and_other_devices_are_refused(self):
        functions = Functions(est.Tensor)
        for host in (1, 3, 11, 13):
            assert functions.current_stream(host, 0) is None
        # NULL would mean the default stream there.
        with pytest.raises(BufferError, match="cuda:0"):
            functions.current_stream(2, 0)

    def test_an_object_of_another_type_is_a_type_error(self, eng):
        t = eng.zeros(3, "float32")
        with pytest.raises(TypeError, match="dict"):
            Functions(est.Tensor).take({})
        with pytest.raises(TypeError, match="estafette.Tensor"):
            Functions(est.Tensor).describe(t.alias())

    def test_many_threads_take_and_delete(self, eng):
        t = eng.zeros(16, "float32")
        functions = Functions(t)

        def churn():
            for _ in range(2000):
                functions.take(t).delete()

        threads = [threading.Thread(target=churn) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eng.submit(lambda t: None, writes=[t]).wait(10)


class TestConsumersOfIt:
    def test_tvm_ffi_takes_our_tensors_through_it(self, eng, np):
        tvm_ffi = peer("tvm_ffi")
        t = eng.from_dlpack(np.arange(6.0).reshape(2, 3))
        before = eng.stats().exported
        taken = tvm_ffi.from_dlpack(t)
        assert eng.stats().exported == before + 1
        assert taken.shape == (2, 3) and taken.data_ptr() == t.data_ptr
        assert np.from_dlpack(taken).tolist() == [[0, 1, 2], [3, 4, 5]]
        op = eng.submit(lambda t: None, writes=[t])
        assert not op.is_done()
        del taken
        gc.collect()
        op.wait(10)


class TestTablesOfOthers:
    def test_pytorch_is_asked_through_its_table(self, eng, torch, monkeypatch):
        def never(*_arguments, **_keywords):
            raise AssertionError("__dlpack__ was called")

        monkeypatch.setattr(torch.Tensor, "__dlpack__", never)
        x = torch.arange(6.0).reshape(2, 3)
        t = eng.from_dlpack(x)
        assert t.data_ptr == x.data_ptr() and t.shape == (2, 3) and not t.read_only

    def test_subclasses_inherit_the_table(self, eng, torch):
        x = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        assert eng.from_dlpack(x).data_ptr == x.data_ptr()

    @pytest.mark.parametrize("name", ["requires_grad", "is_conj", "is_neg"])
    def test_what_its_struct_cannot_say_is_refused(self, eng, torch, name):
        # PyTorch's table looks at none of these: a conjugated tensor would come through with the wrong sign.
        x = {
            "requires_grad": torch.zeros(3, requires_grad=True),
            "is_conj": torch.zeros(3, dtype=torch.complex64).conj(),
            "is_neg": torch.zeros(3, dtype=torch.complex64).conj().imag,
        }[name]
        with pytest.raises(BufferError):
            eng.from_dlpack(x)
        assert eng.from_dlpack(x.detach().resolve_conj().resolve_neg().contiguous()).shape == (3,)

    def test_a_table_is_preferred_to_the_protocol(self, eng):
        made = Made()
        obj, calls = with_table(made)
        t = eng.from_dlpack(obj)
        assert calls == ["take"] and t.shape == (4, 4)
        del t
        gc.collect()
        until(lambda: made.deleted == 1)

    def test_a_wish_that_a_table_cannot_express_goes_through_the_protocol(self, eng):
        obj, calls = with_table(Made(flags=2))
        eng.from_dlpack(obj, copy=True)
        assert calls == ["protocol"]

    @pytest.mark.parametrize("broken", [{"major": 2}, {"name": b"another name"}])
    def test_a_table_that_we_do_not_understand_is_left_alone(self, eng, broken):
        obj, calls = with_table(Made(), **broken)
        eng.from_dlpack(obj)
        assert calls == ["protocol"]

    def test_what_a_table_refuses_the_protocol_may_give(self, eng):
        obj, calls = with_table(Made(), refuses=True)
        assert eng.from_dlpack(obj).shape == (4, 4)
        assert calls == ["protocol"]

    def test_without_a_protocol_the_refusal_stands(self, eng):
        obj, calls = with_table(Made(), refuses=True)
        del type(obj).__dlpack__
        with pytest.raises(TypeError, match="item deletion"):
            eng.from_dlpack(obj)
        assert calls == []

    def test_pytorch_says_itself_what_it_cannot_export(self, eng, torch):
        with pytest.raises(BufferError, match="layout"):
            eng.from_dlpack(torch.zeros((3, 3)).to_sparse())

    def test_a_bad_struct_is_refused_and_released(self, eng):
        made = Made(dtype=(17, 8, 1))
        obj, _ = with_table(made)
        with pytest.raises(est.InvalidTensorError, match="float4_e2m1fn has 4"):
            eng.from_dlpack(obj)
        until(lambda: made.deleted == 1)

    def test_a_device_that_is_not_here_is_refused_and_released(self, eng):
        made = Made(device=(2, 1))
        obj, calls = with_table(made)
        with pytest.raises(BufferError, match="cuda:1"):
            eng.from_dlpack(obj)
        assert calls == ["take"]
        until(lambda: made.deleted == 1)

    def test_of_memory_that_a_device_may_write_the_stream_is_asked(self, eng):
        made = Made(device=(13, 0))
        obj, calls = with_table(made, stream=7)
        before = eng.stats().unordered
        t = eng.from_dlpack(obj)
        assert calls == ["take", "stream"] and t.device == (13, 0)
        # No thread here can wait for that stream.
        assert eng.stats().unordered == before + 1
