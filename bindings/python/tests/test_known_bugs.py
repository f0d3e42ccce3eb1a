"""Bugs that others had in such exchanges, one test for each kind that can happen on the host, with the issues that tell of it.

What needs streams, captures or several devices cannot happen here.
"""

import asyncio
import ctypes
import gc
import threading
import weakref

import pytest

import estafette as est
from capsules import DELETER, KEPT, DLManagedTensorVersioned, Made, Producer, python
from conftest import until
from exchange_table import Functions
from test_copies import struct_of


def test_memory_is_not_reused_while_a_consumer_reads(eng, np):
    """dmlc/dlpack#176, NVIDIA/cuCascade#186: a view is gone before its reader is done, and the producer reuses the memory."""
    x = np.arange(1000.0)
    gone = weakref.ref(x)
    t = eng.from_dlpack(x)
    view = np.from_dlpack(t)
    started, resume, seen = threading.Event(), threading.Event(), []

    def read(t):
        mine = np.from_dlpack(t)
        started.set()
        assert resume.wait(30)
        seen.append(mine.sum())

    eng.submit(read, reads=[t])
    reuse = eng.submit(lambda t: t.fill(0), writes=[t], using=np.from_dlpack)
    assert started.wait(30)
    del x, t, view
    gc.collect()
    assert gone() is not None and not reuse.is_done()
    resume.set()
    reuse.wait(10)
    assert seen == [999 * 500.0]
    del read
    until(lambda: gone() is None)


def test_a_consumer_never_sees_data_before_it_is_there(eng, np, gate):
    """pytorch/pytorch#150217, tensorflow/tensorflow#61420, apache/mxnet#12823: an export that does not wait for its writer."""
    t = eng.zeros(3, "float32")

    def fill(t):
        gate()
        t.fill(7)

    eng.submit(fill, writes=[t], using=np.from_dlpack)
    threading.Timer(0.05, gate.open).start()
    assert np.from_dlpack(t).tolist() == [7, 7, 7]


def test_a_deleter_may_be_called_on_any_thread_without_the_python_lock(eng):
    """dmlc/dlpack#103, numpy/numpy#22507, CVCUDA/CV-CUDA#298: a deleter that assumes whose thread it is on."""
    t = eng.zeros(3, "float32")
    managed = [Functions(t).take(t) for _ in range(20)]
    waiting = eng.submit(lambda t: None, writes=[t])
    # A foreign function call releases the lock.
    threads = [threading.Thread(target=each.delete) for each in managed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waiting.wait(10)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_deleter_that_raises_harms_nobody(eng):
    """triton-inference-server/python_backend#198: what goes wrong in a deleter ends the thread that called it."""

    def fail(_managed):
        raise RuntimeError("in the deleter")

    made = Made()
    callback = DELETER(fail)
    KEPT.append(callback)
    made.managed.deleter = ctypes.cast(callback, ctypes.c_void_p).value
    t = eng.from_dlpack(made.capsule)
    before = eng.stats().deleters
    del t
    gc.collect()
    until(lambda: eng.stats().deleters > before)
    another = Made()
    eng.from_dlpack(another.capsule)
    until(lambda: another.deleted == 1)


def test_a_capsule_is_consumed_once_whatever_fails(eng):
    """pytorch/pytorch#56789, cupy/cupy#1445: an error after the capsule was taken, and both sides call the deleter."""
    for wrong in ({"dtype": (17, 8, 1)}, {"ndim": -1}, {"device": (2, 0)}, {"version": (2, 0)}):
        made = Made(**wrong)
        with pytest.raises((BufferError, ValueError)):
            eng.from_dlpack(made.capsule)
        assert made.deleted == 1 and made.name_now() == "used_dltensor_versioned"
        with pytest.raises(ValueError, match="consumed"):
            eng.from_dlpack(made.capsule)
        assert made.deleted == 1


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_the_deleter_of_an_empty_tensor_is_called(eng, shape):
    """pytorch/pytorch#117273: tensors without elements leak."""
    for data in ("memory", None):
        made = Made(shape=shape, data=data)
        t = eng.from_dlpack(made.capsule)
        assert t.shape == shape
        del t
        gc.collect()
        until(lambda made=made: made.deleted == 1)


def test_empty_tensors_and_single_elements_have_harmless_strides(eng, np):
    """dmlc/dlpack#177, pytorch/pytorch#83069, NVIDIA/cccl#11605: consumers compare strides that mean nothing."""
    garbage = Made(shape=(1, 4), strides=(123456, 1))
    struct = struct_of(eng.from_dlpack(garbage.capsule).__dlpack__(max_version=(1, 3)))
    assert [struct.dl_tensor.strides[i] for i in range(2)] == [4, 1]
    empty = Made(shape=(3, 0), strides=(-7, 99))
    struct = struct_of(eng.from_dlpack(empty.capsule).__dlpack__(max_version=(1, 3)))
    assert not struct.dl_tensor.data
    assert all(struct.dl_tensor.strides[i] >= 0 for i in range(2))


def test_strides_are_written_out_for_every_tensor_with_dimensions(eng):
    """dmlc/dlpack#178: NULL strides are for those below 1.2."""
    t = eng.from_dlpack(Made(strides=None).capsule)
    struct = struct_of(t.__dlpack__(max_version=(1, 3)))
    assert [struct.dl_tensor.strides[i] for i in range(2)] == [4, 1]


def test_an_offset_moves_the_first_element_and_is_not_lost(eng, np):
    """pytorch/pytorch#168177, NVIDIA/cuda-python#2576, wjakob/nanobind#1338: `byte_offset` ignored, or added twice."""
    made = Made(shape=(4,), byte_offset=16)
    t = eng.from_dlpack(made.capsule)
    assert np.from_dlpack(t).tolist() == [4, 5, 6, 7] and memoryview(t).tolist() == [4, 5, 6, 7]
    struct = struct_of(t.__dlpack__(max_version=(1, 3)))
    assert struct.dl_tensor.data == t.data_ptr and struct.dl_tensor.byte_offset == 0
    again = eng.from_dlpack(Producer(Made(shape=(2,), byte_offset=8, data=t.data_ptr)))
    assert np.from_dlpack(again).tolist() == [6, 7]


def test_read_only_memory_stays_so_through_every_way_out(eng, np):
    """data-apis/array-api#191, numpy/numpy#20337, jax-ml/jax#40789: the flag is lost on the way."""
    t = eng.from_dlpack(Made(flags=1).capsule)
    assert not np.from_dlpack(t).flags.writeable and memoryview(t).readonly
    assert not np.from_dlpack(t.alias()).flags.writeable
    assert Functions(t).take(t).read_only
    with pytest.raises(BufferError, match="read-only"):
        t.__dlpack__()
    with pytest.raises(est.ConflictError):
        eng.submit(lambda t: None, writes=[t])


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "complex64", "float8_e5m2"])
def test_types_that_others_lost_cross(eng, torch, dtype):
    """pytorch/pytorch#94463 (bool), cupy/cupy#9670 (bfloat16), dmlc/dlpack#156 (complex), dmlc/dlpack#146 (8 bits)."""
    x = torch.zeros(4, dtype=getattr(torch, dtype))
    t = eng.from_dlpack(x)
    assert t.dtype == dtype and torch.from_dlpack(t).dtype == x.dtype


def test_a_wrong_device_is_a_buffer_error(eng, np):
    """numpy/numpy#30937, pytorch/pytorch#181024: the kind of error, and the number of the device."""
    t = eng.zeros(3, "float32")
    for device in ((2, 0), (1, 1)):
        with pytest.raises(BufferError):
            t.__dlpack__(dl_device=device)


def test_what_is_not_aligned_is_exchanged_all_the_same(eng, np):
    """data-apis/array-api#293, NVIDIA/warp#550: memory that is aligned to its elements only, or not even to those."""
    memory = np.zeros(64, "uint8")
    for skip in (1, 4):
        x = memory[skip : skip + 32].view("float32")
        t = eng.from_dlpack(x)
        assert np.from_dlpack(t).ctypes.data == x.ctypes.data
        assert memoryview(t).tolist() == [0] * 8


def test_a_pending_exception_survives_the_end_of_a_capsule(eng):
    """dmlc/dlpack: docs/source/python_spec.rst: a destructor that runs while an exception is on its way must leave it alone."""
    t = eng.zeros(3, "float32")
    capsules = [t.__dlpack__(max_version=(1, 3))]

    async def main():
        # The end of the lease calls the loop.
        task = asyncio.ensure_future(t.writable())
        await asyncio.sleep(0.01)
        with pytest.raises(ZeroDivisionError):
            # The capsule is nowhere but on the stack, which is emptied before the exception is handled.
            print(capsules.pop(), 1 / 0)
        await asyncio.wait_for(task, 10)

    asyncio.run(main())


def test_structs_of_two_exports_are_two(eng):
    """NVIDIA/cudnn-frontend#547: one struct in two capsules, deleted twice."""
    t = eng.zeros(3, "float32")
    first, second = t.__dlpack__(max_version=(1, 3)), t.__dlpack__(max_version=(1, 3))
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    assert python.PyCapsule_GetPointer(first, b"dltensor_versioned") != python.PyCapsule_GetPointer(
        second, b"dltensor_versioned"
    )
    assert isinstance(struct_of(first), DLManagedTensorVersioned)
    del first
    waiting = eng.submit(lambda t: None, writes=[t])
    assert not waiting.is_done()
    del second
    waiting.wait(10)
