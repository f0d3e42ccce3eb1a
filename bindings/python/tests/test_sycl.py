"""Exchange with dpnp and dpctl on the real SYCL runtime, with the processor as the device."""

import gc
import time

import numpy as np
import pytest

import estafette as est

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


def test_operations_name_a_queue_and_not_a_device(eng):
    with pytest.raises(ValueError, match="name the queue"):
        eng.submit(lambda: None, on="sycl:cpu")
    with pytest.raises(ValueError, match="no such device"):
        eng.empty((1,), "float32", device="sycl:gpu")
    with pytest.raises(BufferError, match="no context is registered"):
        eng.empty((1,), "float32", device="oneapi:77")


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
    for _ in range(200):
        if eng.stats().released > released:
            break
        time.sleep(0.01)
    assert eng.stats().released > released


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
