"""Copies are operations: ordered like any other, named in diagnoses, and their receiver's alone."""

import asyncio
import threading
from ctypes import c_char_p, c_void_p, py_object

import pytest

import estafette as est
from capsules import DLManagedTensorVersioned, Made, Producer, python
from conftest import until


def struct_of(capsule):
    python.PyCapsule_GetPointer.restype = c_void_p
    python.PyCapsule_GetPointer.argtypes = [py_object, c_char_p]
    return DLManagedTensorVersioned.from_address(python.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))


class TestExport:
    def test_a_copy_is_flagged_writable_and_elsewhere(self, eng, np):
        x = np.arange(6.0).reshape(2, 3).T
        t = eng.from_dlpack(x)
        capsule = t.__dlpack__(max_version=(1, 3), copy=True)
        struct = struct_of(capsule)
        assert struct.flags == 2 and struct.dl_tensor.data != t.data_ptr
        # Row-major, whatever the original was.
        assert [struct.dl_tensor.strides[i] for i in range(2)] == [2, 1]
        assert np.from_dlpack(t, copy=True).tolist() == x.tolist()

    def test_a_legacy_copy_of_read_only_memory_may_leave(self, eng):
        t = eng.from_dlpack(Made(flags=1).capsule)
        assert '"dltensor"' in repr(t.__dlpack__(copy=True))

    def test_a_copy_stands_in_the_queue_by_name(self, eng, np, gate):
        t = eng.zeros(3, "float32")
        eng.submit(gate, writes=[t], name="filling")
        made = []
        thread = threading.Thread(target=lambda: made.append(np.from_dlpack(t, copy=True)))
        thread.start()
        until(lambda: any(op.name == "copy" for op in eng.diagnose().operations))
        copying = next(op for op in eng.diagnose().operations if op.name == "copy")
        assert [blocked.name for blocked in copying.blocked_by] == ["`filling`"]
        gate.open()
        thread.join()
        assert made[0].tolist() == [0, 0, 0]

    def test_it_does_not_stop_an_event_loop(self, np, gate):
        async def main():
            with est.Engine(workers=1) as eng:
                t = eng.zeros(3, "float32")
                eng.submit(gate, writes=[t])
                with pytest.raises(est.WouldBlockError):
                    np.from_dlpack(t, copy=True)
                gate.open()
                await t
                assert np.from_dlpack(t, copy=True).tolist() == [0, 0, 0]

        asyncio.run(main())

    def test_after_the_shutdown_copies_are_still_made(self, np):
        engine = est.Engine(workers=1)
        t = engine.zeros(3, "float32")
        engine.shutdown()
        copied = np.from_dlpack(t, copy=True)
        assert copied.ctypes.data != t.data_ptr and copied.flags.writeable

    def test_in_a_body_a_copy_of_an_operand_is_made_at_once(self, eng, np):
        t = eng.zeros(3, "float32")
        kept = []
        eng.submit(lambda t: kept.append(np.from_dlpack(t, copy=True)), writes=[t]).wait(10)
        eng.submit(lambda t: t.fill(1), writes=[t], using=np.from_dlpack).wait(10)
        assert kept[0].tolist() == [0, 0, 0]

    def test_a_refused_copy_copies_nothing(self, eng):
        t = eng.zeros(3, "float32")
        with pytest.raises(BufferError, match="cuda:0"):
            t.__dlpack__(copy=True, dl_device=(2, 0))
        with pytest.raises(ValueError, match="stream"):
            t.__dlpack__(copy=True, stream=5)
        assert not any(op.name == "copy" for op in eng.diagnose().operations)


class TestToHost:
    def test_what_is_on_the_host_is_itself(self, eng):
        t = eng.zeros(3, "float32")
        assert t.to_host() is t

    def test_what_only_the_host_can_read_is_copied_there(self, eng, np):
        t = eng.from_dlpack(Producer(Made(device=(3, 0)), device=(3, 0)))
        host = t.to_host()
        assert t.device == (3, 0) and np.from_dlpack(host).tolist() == np.arange(16.0).reshape(4, 4).tolist()
        assert host.device == (1, 0) and host.data_ptr != t.data_ptr

    def test_a_promise_is_promised_on(self, eng, np, gate):
        def make():
            gate()
            return np.arange(3.0)

        t = eng.call(make)
        host = t.to_host()
        assert not host.is_defined()
        gate.open()
        assert np.from_dlpack(host).tolist() == [0, 1, 2]

    def test_memory_that_the_host_cannot_read_is_refused(self, eng):
        t = eng.from_dlpack(Made(device=(99, 0)).capsule)
        with pytest.raises(BufferError, match=r"99\):0"):
            t.to_host()


class TestImport:
    def test_copy_true_is_an_operation_of_its_own_memory(self, eng, np):
        x = np.arange(3.0)
        t = eng.from_dlpack(x, copy=True)
        x[:] = 9
        t.wait()
        assert t.data_ptr != x.ctypes.data

    def test_copy_false_refuses_a_producer_that_copies(self, eng):
        made = Made(flags=2)
        with pytest.raises(BufferError, match="copying was refused"):
            eng.from_dlpack(Producer(made), copy=False)
        assert made.deleted == 1


class TestMoves:
    """From memory that only the host's own code can read, to the host's."""

    def test_a_producer_moves_to_the_host_when_asked(self, eng, np):
        t = eng.from_dlpack(Producer(Made(device=(3, 0)), device=(3, 0)))
        struct = struct_of(t.__dlpack__(max_version=(1, 3), dl_device=(1, 0)))
        assert struct.flags == 2 and struct.dl_tensor.device.device_type == 1
        assert np.from_dlpack(t, device="cpu").ctypes.data != t.data_ptr
        with pytest.raises(BufferError, match="cpu:0"):
            t.__dlpack__(max_version=(1, 3), dl_device=(1, 0), copy=False)

    def test_what_its_producer_does_not_move_is_moved_here(self, eng, np):
        producer = Producer(Made(device=(3, 0)), device=(3, 0))
        t = eng.from_dlpack(producer, device="cpu")
        assert producer.asked[0]["dl_device"] == (1, 0)
        t.wait()
        assert t.device == (1, 0) and np.from_dlpack(t)[3, 3] == 15
        made = Made(device=(3, 0))
        with pytest.raises(BufferError, match="not on cpu:0 as asked"):
            eng.from_dlpack(Producer(made, device=(3, 0)), device="cpu", copy=False)
        until(lambda: made.deleted == 1)

    def test_a_tensor_of_ours_is_moved_too_or_refused(self, eng):
        pinned = eng.from_dlpack(Producer(Made(device=(3, 0)), device=(3, 0)))
        moved = eng.from_dlpack(pinned, device="cpu")
        moved.wait()
        assert moved.device == (1, 0)
        t = eng.zeros(3, "float32")
        assert eng.from_dlpack(t, device="cpu") is t and eng.from_dlpack(t, copy=False) is t
        with pytest.raises(BufferError, match="cuda:0"):
            eng.from_dlpack(t, device=(2, 0))
        with pytest.raises(BufferError):
            eng.from_dlpack(pinned, device="cpu", copy=False)
