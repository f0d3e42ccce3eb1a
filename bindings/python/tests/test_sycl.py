"""Exchange with dpnp and dpctl on the real SYCL runtime, with the processor as the device."""

import gc
import time

import numpy as np
import pytest

import estafette as est
from conftest import until

dpctl = pytest.importorskip("dpctl", reason="dpctl is not in this environment")
dpnp = pytest.importorskip("dpnp", reason="dpnp is not in this environment")

if not dpctl.get_devices():
    pytest.skip("the SYCL runtime knows no device", allow_module_level=True)

ONE_API = 14


@pytest.fixture
def eng():
    with est.Engine(workers=2) as engine:
        yield engine


@pytest.mark.parametrize("kind", ["device", "shared", "host"])
def test_memory_of_every_kind_goes_in_and_out_without_a_copy(eng, kind):
    x = dpnp.arange(1000, dtype="float32", usm_type=kind)
    t = eng.from_dlpack(x)
    assert tuple(t.device) == x.__dlpack_device__() == (ONE_API, 0)
    y = dpnp.from_dlpack(t)
    pointer = lambda array: array.__sycl_usm_array_interface__["data"][0]
    assert pointer(y) == pointer(x) == t.data_ptr
    assert y.usm_type == kind
    np.testing.assert_array_equal(dpnp.asnumpy(y), np.arange(1000, dtype="float32"))


def test_work_that_is_still_on_the_arrays_queue_comes_first(eng):
    for _ in range(5):
        x = dpnp.ones((1 << 20,), dtype="float32")
        for _ in range(5):
            x = x * 2
        # Whatever dpnp has enqueued, the host sees it finished.
        assert np.from_dlpack(eng.from_dlpack(x).to_host())[-1] == 32


def test_strided_memory_comes_to_the_host_in_its_own_order(eng):
    x = dpnp.reshape(dpnp.arange(12, dtype="int32"), (3, 4))
    expected = np.arange(12, dtype="int32").reshape(3, 4)
    for view, wanted in [(x.T, expected.T), (x[::-1, ::2], expected[::-1, ::2]), (x[1:2], expected[1:2])]:
        np.testing.assert_array_equal(np.from_dlpack(eng.from_dlpack(view).to_host()), wanted)


def test_import_to_the_host_is_a_copy_and_refusing_the_copy_is_an_error(eng):
    x = dpnp.arange(4, dtype="int64")
    t = eng.from_dlpack(x, device="cpu")
    assert tuple(t.device) == (1, 0)
    assert np.from_dlpack(t).tolist() == [0, 1, 2, 3]
    with pytest.raises((BufferError, ValueError)):
        eng.from_dlpack(x, device="cpu", copy=False)


def test_an_operation_ends_with_what_its_function_enqueued(eng):
    x = dpnp.full((1 << 20,), 3, dtype="float32")
    t = eng.from_dlpack(x)
    u = eng.empty((1 << 20,), "float32", device="sycl:cpu")
    assert tuple(u.device) == (ONE_API, 0)
    multiply = lambda a, b: dpnp.multiply(a, 7, out=b)
    eng.submit(multiply, reads=[t], writes=[u], using=dpnp.from_dlpack, on=x.sycl_queue)
    z = eng.call(dpnp.negative, u, using=dpnp.from_dlpack)
    assert np.from_dlpack(z.to_host())[[0, -1]].tolist() == [-21, -21]


def test_a_stream_is_a_queue_of_the_tensors_context(eng):
    x = dpnp.arange(8, dtype="float32")
    t = eng.from_dlpack(x)
    queue = dpctl.SyclQueue(x.sycl_device)
    for stream in (None, -1, queue, queue._get_capsule()):
        assert "dltensor" in repr(t.__dlpack__(stream=stream, max_version=(1, 2)))
    for stream in (1, 0, "queue"):
        with pytest.raises(ValueError, match="SYCL queue"):
            t.__dlpack__(stream=stream)
    part = x.sycl_device.create_sub_devices(partition=1)[0]
    elsewhere = dpctl.SyclQueue(dpctl.SyclContext(part), part)
    with pytest.raises(ValueError, match="another context"):
        t.__dlpack__(stream=elsewhere)


@pytest.mark.parametrize("on", ["sycl", "sycl:cpu", "sycl:0", "oneapi:0", (ONE_API, 0)])
def test_a_device_stands_for_the_queue_that_its_libraries_agree_on(eng, on):
    x = dpnp.full((1 << 20,), 3, dtype="float32")
    u = eng.empty((1 << 20,), "float32", device=on)
    queues = []

    def multiply(a, b):
        queues.extend([a.sycl_queue, b.sycl_queue])
        for _ in range(20):
            dpnp.multiply(a, 7, out=b)

    eng.submit(multiply, reads=[eng.from_dlpack(x)], writes=[u], using=dpnp.from_dlpack, on=on)
    # No thread waits for the queue but the tensor.
    assert np.from_dlpack(u.to_host())[[0, -1]].tolist() == [21, 21]
    assert queues == [x.sycl_queue] * 2
    z = eng.call(dpnp.negative, u, using=dpnp.from_dlpack, on=on)
    assert np.from_dlpack(z.to_host())[[0, -1]].tolist() == [-21, -21]


def test_a_device_that_is_not_there_and_a_context_without_a_queue_are_errors(eng):
    part = dpctl.SyclDevice("cpu").create_sub_devices(partition=1)[0]
    own = dpctl.SyclContext(part)
    number = est.register_context(own)
    try:
        with pytest.raises(ValueError, match=f"oneapi:{number[1]}: of a registered context name the queue"):
            eng.submit(lambda: None, on=number)
    finally:
        est.unregister_context(number)
    with pytest.raises(ValueError, match="no such device"):
        eng.submit(lambda: None, on="sycl:gpu")
    with pytest.raises(BufferError, match="no context is registered"):
        eng.submit(lambda: None, on="sycl:77")
    with pytest.raises(ValueError, match="no such device"):
        eng.empty((1,), "float32", device="sycl:gpu")
    with pytest.raises(BufferError, match="no context is registered"):
        eng.empty((1,), "float32", device="oneapi:77")


def test_memory_that_no_other_process_can_be_shown_is_named(eng):
    with pytest.raises(est.NotSharedError, match="cannot be shown to other processes"):
        eng.empty((1,), "float32", device="sycl:cpu", shared=True)


def test_memory_goes_back_when_its_last_user_is_gone(eng):
    x = dpnp.arange(16, dtype="float32")
    t = eng.from_dlpack(x)
    y = dpnp.from_dlpack(t)
    del x, t
    gc.collect()
    assert dpnp.asnumpy(y).sum() == 120
    released = eng.stats().released
    del y
    gc.collect()
    until(lambda: eng.stats().released > released)


def test_contexts_have_numbers_while_they_are_registered():
    device = dpctl.SyclDevice("cpu")
    default = dpctl.SyclQueue(device).sycl_context
    assert est.register_context(default) == (ONE_API, 0), "dpctl's own number"
    est.unregister_context((ONE_API, 0))
    own = dpctl.SyclContext(device.create_sub_devices(partition=1)[0])
    number = est.register_context(own)
    assert number[0] == ONE_API and number[1] >= 1 << 16
    assert est.register_context(own) == number
    row = next(row for row in est.devices() if row.device == number)
    assert row.registrations == 2
    est.unregister_context(number)
    est.unregister_context(number)
    with pytest.raises(ValueError, match="registered no more"):
        est.unregister_context(number)
    with pytest.raises(ValueError, match="numbers of their own"):
        est.register_context(own, device_type=2)


def numbers(array):
    return dpnp.asnumpy(array).tolist()


def test_a_copy_stays_on_the_device(eng):
    x = dpnp.arange(12, dtype="int32").reshape(3, 4)
    for view in (x, x.T, x[::-1, ::2]):
        t = eng.from_dlpack(view)
        y = dpnp.from_dlpack(t, copy=True)
        assert y.__dlpack_device__() == x.__dlpack_device__()
        assert numbers(y) == numbers(view)
        y[...] = 0
    assert numbers(x) == np.arange(12).reshape(3, 4).tolist()


def test_another_context_gets_a_copy_or_an_error():
    part = dpctl.SyclDevice("cpu").create_sub_devices(partition=1)[0]
    own = dpctl.SyclContext(part)
    queue = dpctl.SyclQueue(own, part)
    number = est.register_context(own)
    try:
        with est.Engine(workers=2) as eng:
            x = dpnp.arange(12, dtype="float32").reshape(3, 4)
            t = eng.from_dlpack(x.T)
            assert "dltensor" in repr(t.__dlpack__(dl_device=number))
            with pytest.raises(BufferError, match=f"cannot be exported to oneapi:{number[1]} without a copy"):
                t.__dlpack__(dl_device=number, copy=False)
            with pytest.raises(BufferError, match="no context is registered"):
                t.__dlpack__(dl_device=(ONE_API, number[1] + 1000))

            # There and back again, each time by a copy.
            class There:
                """A tensor in the other context."""

                sycl_queue = queue

                def __dlpack_device__(self):
                    return number

                def __dlpack__(self, **arguments):
                    return t.__dlpack__(dl_device=number, max_version=(1, 0), copy=True)

            u = eng.from_dlpack(There())
            assert tuple(u.device) == number
            assert u.data_ptr != t.data_ptr
            back = eng.from_dlpack(u.__dlpack__(dl_device=x.__dlpack_device__(), max_version=(1, 0)))
            assert tuple(back.device) == x.__dlpack_device__()
            for tensor in (u, back):
                np.testing.assert_array_equal(np.from_dlpack(tensor.to_host()), dpnp.asnumpy(x).T)
            with pytest.raises(ValueError, match="another context"):
                u.__dlpack__(stream=x.sycl_queue)
            del u, back
            gc.collect()
            eng.wait_all()
    finally:
        est.unregister_context(number)


def test_an_import_moves_to_the_device_that_is_asked_for(eng):
    part = dpctl.SyclDevice("cpu").create_sub_devices(partition=1)[0]
    own = dpctl.SyclContext(part)
    number = est.register_context(own)
    try:
        with est.Engine(workers=2) as eng:
            x = dpnp.arange(12, dtype="float32").reshape(3, 4)
            wanted = dpnp.asnumpy(x).T
            host = np.arange(12, dtype="float32").reshape(3, 4).T
            for source, device in [(x.T, number), (host, number), (host, (ONE_API, 0)), (host, "sycl:cpu")]:
                t = eng.from_dlpack(source, device=device)
                t.wait()
                assert tuple(t.device) == (device if isinstance(device, tuple) else (ONE_API, 0))
                np.testing.assert_array_equal(np.from_dlpack(t.to_host()), wanted)
                with pytest.raises(BufferError, match=r"cannot be imported on oneapi:\d+ without a copy"):
                    eng.from_dlpack(source, device=device, copy=False)
            # A tensor of Estafette moves too, and one that is there already does not.
            t = eng.from_dlpack(x)
            there = eng.from_dlpack(t, device=number)
            there.wait()
            assert tuple(there.device) == number
            assert eng.from_dlpack(there, device=number).data_ptr == there.data_ptr
            np.testing.assert_array_equal(np.from_dlpack(there.to_host()), dpnp.asnumpy(x))
            with pytest.raises(BufferError):
                eng.from_dlpack(t, device=number, copy=False)
            with pytest.raises(BufferError, match="no context is registered"):
                eng.from_dlpack(x, device=(ONE_API, number[1] + 1000))
            copy = eng.from_dlpack(x, copy=True)
            copy.wait()
            assert tuple(copy.device) == (ONE_API, 0)
            assert copy.data_ptr != t.data_ptr
            del t, there, copy
            gc.collect()
            eng.wait_all()
    finally:
        est.unregister_context(number)


class Described:
    """An object that has nothing but the array interface."""

    def __init__(self, interface, keep=None):
        self.__sycl_usm_array_interface__ = interface
        self.keep = keep


@pytest.mark.parametrize("view", [np.s_[:], np.s_[1:, ::2], np.s_[::-1]])
@pytest.mark.parametrize("of", ["queue", "queue capsule", "context", "context capsule", "filter string"])
def test_the_usm_array_interface_is_imported_without_a_copy(eng, view, of):
    x = dpnp.arange(12, dtype="int32").reshape(3, 4)
    queue = x.sycl_queue
    interface = dict(x[view].__sycl_usm_array_interface__)
    interface["syclobj"] = {
        "queue": queue,
        "queue capsule": queue._get_capsule(),
        "context": queue.sycl_context,
        "context capsule": queue.sycl_context._get_capsule(),
        "filter string": "opencl:cpu",
    }[of]
    queue.wait()
    t = eng.from_dlpack(Described(interface, x))
    assert tuple(t.device) == (ONE_API, 0)
    wanted = np.arange(12, dtype="int32").reshape(3, 4)[view]
    np.testing.assert_array_equal(np.from_dlpack(t.to_host()), wanted)
    # The same memory: what is written there is seen here.
    x[...] = 5
    queue.wait()
    assert (np.from_dlpack(t.to_host()) == 5).all()


def test_dpctls_memory_is_imported_and_kept_until_its_last_use(eng):
    import dpctl.memory
    import weakref

    memory = dpctl.memory.MemoryUSMShared(256)
    memory.copy_from_host(np.arange(256, dtype="uint8"))
    described = Described(memory.__sycl_usm_array_interface__, memory)
    alive = weakref.ref(described)
    t = eng.from_dlpack(described)
    del described
    gc.collect()
    assert alive() is not None
    assert np.from_dlpack(t.to_host()).tolist() == list(range(256))
    # As it comes, without an object of Estafette around it. It says that it is read-only.
    u = eng.from_dlpack(memory)
    assert u.data_ptr == t.data_ptr
    with pytest.raises(est.EstafetteError):
        eng.submit(lambda a: None, writes=[u])
    del t, u
    until(lambda: gc.collect() is not None and alive() is None)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"version": 2}, ValueError, "version 2"),
        ({"shape": None}, ValueError, 'has no "shape"'),
        ({"typestr": "|V7"}, TypeError, r'typestr "\|V7"'),
        ({"typestr": ">i4"}, TypeError, "typestr"),
        ({"syclobj": 3}, TypeError, "no SYCL queue, context or filter string"),
        ({"syclobj": None}, ValueError, 'has no "syclobj"'),
        ({"data": (1 << 40, False)}, BufferError, "no unified shared memory"),
        ({"offset": 1 << 62}, ValueError, "offset"),
        ({"shape": (-1,)}, (ValueError, BufferError), "shape"),
    ],
)
def test_a_bad_usm_array_interface_is_refused_by_name(eng, change, error, words):
    x = dpnp.arange(12, dtype="int32")
    interface = dict(x.__sycl_usm_array_interface__, **change)
    with pytest.raises(error, match=words):
        eng.from_dlpack(Described(interface, x))


def test_our_tensors_have_the_usm_array_interface(eng):
    import dpctl.memory

    x = dpnp.arange(12, dtype="float32").reshape(3, 4)
    t = eng.from_dlpack(x[1:, ::2])
    interface = t.__sycl_usm_array_interface__
    assert interface["shape"] == (2, 2)
    assert interface["strides"] == (4, 2)
    assert interface["typestr"] == "<f4"
    assert interface["data"] == (t.data_ptr, True)
    assert interface["syclobj"] == x.sycl_context
    before = len(est.unordered_exchanges())
    memory = dpctl.memory.as_usm_memory(t)
    assert memory._pointer == t.data_ptr
    assert len(est.unordered_exchanges()) > before or before == 64
    # Under a lease it is one that is tracked, and says whether it may be written.
    u = eng.empty((4,), "int64", device="sycl:cpu")
    with u.write() as view:
        assert view.__sycl_usm_array_interface__["data"] == (u.data_ptr, False)
    with u.read() as view:
        assert view.__sycl_usm_array_interface__["data"] == (u.data_ptr, True)
    host = eng.from_dlpack(np.zeros(3))
    assert not hasattr(host, "__sycl_usm_array_interface__")


def test_host_memory_goes_to_a_device_by_a_copy(eng):
    t = eng.from_dlpack(np.arange(6, dtype="int16").reshape(2, 3))
    y = dpnp.from_dlpack(eng.from_dlpack(t.__dlpack__(dl_device=(ONE_API, 0), max_version=(1, 0))))
    assert y.__dlpack_device__() == (ONE_API, 0)
    assert numbers(y) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(BufferError, match="without a copy"):
        t.__dlpack__(dl_device=(ONE_API, 0), copy=False)


def test_what_has_no_elements_or_runs_backwards_is_taken_by_dpnp(eng):
    empty = dpnp.empty((3, 0), dtype="int8")
    assert dpnp.from_dlpack(eng.from_dlpack(empty)).shape == (3, 0)
    x = dpnp.arange(10, dtype="int64")[::-3]
    y = dpnp.from_dlpack(eng.from_dlpack(x))
    assert y.strides == x.strides
    assert numbers(y) == [9, 6, 3, 0]


def test_exchanges_with_dpnp_are_ordered(eng):
    before = len(est.unordered_exchanges())
    t = eng.from_dlpack(dpnp.arange(3))
    dpnp.from_dlpack(t)
    assert len(est.unordered_exchanges()) == before


def test_functions_on_one_queue_take_turns(eng):
    # Two threads that enqueue with dpnp on one queue at once have blocked each other for ever.
    queue = dpctl.SyclQueue()
    here = []
    together = []

    def body(a, b):
        here.append(1)
        time.sleep(0.002)
        together.append(len(here))
        dpnp.add(a, 1, out=b)
        here.pop()

    def borrow(tensor):
        return dpnp.from_dlpack(tensor).to_device(queue)

    tensors = [eng.from_dlpack(dpnp.full((1 << 16,), n, dtype="int32", sycl_queue=queue)) for n in range(8)]
    results = [eng.empty((1 << 16,), "int32", device="sycl:cpu") for _ in tensors]
    for source, result in zip(tensors, results):
        # A wrapper of the same queue each time.
        on = dpctl.SyclQueue(queue._get_capsule())
        eng.submit(body, reads=[source], writes=[result], using=borrow, on=on)
    assert [int(np.from_dlpack(result.to_host())[-1]) for result in results] == list(range(1, 9))
    assert together == [1] * 8

    # A function that fails holds nothing up.
    def fail():
        raise RuntimeError("on purpose")

    failed = eng.submit(fail, on=queue)
    after = eng.submit(lambda: None, on=queue)
    after.wait()
    with pytest.raises(est.OperationError):
        failed.wait()
