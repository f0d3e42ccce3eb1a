"""Exchange with the real peers, in both directions: nothing is copied, and no library is imported for it."""

import gc

import pytest

import estafette as est
from conftest import run_program, until

DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128"]


def test_estafette_imports_no_peer():
    run_program(
        """
        import sys
        import estafette
        engine = estafette.Engine(workers=1)
        t = engine.zeros(3, "float32")
        engine.submit(lambda t: None, writes=[t]).wait()
        engine.from_dlpack(t.__dlpack__(max_version=(1, 0)))
        engine.shutdown()
        for peer in ("numpy", "jax", "torch", "cupy", "tensorflow"):
            assert peer not in sys.modules, peer
        """
    )


class TestNumPy:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_round_trip_keeps_the_pointer(self, eng, np, dtype):
        x = np.ones((2, 3), dtype)
        t = eng.from_dlpack(x)
        assert (t.dtype, t.shape) == (dtype, (2, 3))
        back = np.from_dlpack(t)
        assert back.ctypes.data == t.data_ptr == x.ctypes.data
        assert back.dtype == x.dtype and (back == x).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_memory_of_the_engine_is_seen_in_place(self, eng, np, dtype):
        t = eng.zeros((3, 2), dtype)
        back = np.from_dlpack(t)
        assert back.ctypes.data == t.data_ptr and back.dtype == dtype and not back.any()

    def test_strided_views_stay_strided(self, eng, np):
        x = np.arange(24.0).reshape(4, 6)
        for view in (x.T, x[::2, 1::3], x[::-1], np.broadcast_to(x[0], (3, 6))):
            t = eng.from_dlpack(view)
            back = np.from_dlpack(t)
            assert back.strides == view.strides and (back == view).all()
            assert back.ctypes.data == view.ctypes.data

    @pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (1,) * 32])
    def test_any_shape(self, eng, np, shape):
        x = np.ones(shape)
        back = np.from_dlpack(eng.from_dlpack(x))
        assert back.shape == shape and (back == x).all()

    def test_a_read_lease_gives_a_read_only_array(self, eng, np):
        t = eng.zeros(3, "float32")
        assert not np.from_dlpack(t).flags.writeable
        assert np.from_dlpack(t.for_write()).flags.writeable
        assert np.from_dlpack(t.alias()).flags.writeable

    def test_a_read_only_array_stays_read_only(self, eng, np):
        x = np.arange(3.0)
        x.flags.writeable = False
        t = eng.from_dlpack(x)
        assert t.read_only
        for view in (t, t.alias()):
            assert not np.from_dlpack(view).flags.writeable
        with pytest.raises(est.ConflictError, match="read-only"):
            np.from_dlpack(t.for_write())
        with pytest.raises(est.ConflictError, match="read-only"):
            eng.submit(lambda t: None, writes=[t])

    def test_copy_and_device_are_honoured(self, eng, np):
        t = eng.from_dlpack(np.arange(3.0))
        copied = np.from_dlpack(t, copy=True)
        assert copied.ctypes.data != t.data_ptr and copied.flags.writeable
        assert np.from_dlpack(t, copy=False).ctypes.data == t.data_ptr
        assert np.from_dlpack(t, device="cpu").ctypes.data == t.data_ptr

    def test_a_copy_takes_no_lease(self, eng, np):
        t = eng.zeros(3, "float32")
        copied = np.from_dlpack(t, copy=True)
        eng.submit(lambda t: t.fill(1), writes=[t], using=np.from_dlpack).wait(10)
        assert not copied.any()

    def test_the_array_lives_as_long_as_its_tensor(self, eng, np):
        import weakref

        x = np.arange(3.0)
        gone = weakref.ref(x)
        t = eng.from_dlpack(x)
        del x
        assert gone() is not None
        del t
        until(lambda: gone() is None)

    def test_operations_keep_their_operands(self, eng, np, gate):
        t = eng.from_dlpack(np.arange(3.0))
        held = eng.submit(gate, reads=[t])
        out = eng.call(lambda t: t * 2, t, using=np.from_dlpack)
        del t
        gc.collect()
        gate.open()
        held.wait()
        out.wait()
        assert np.from_dlpack(out).tolist() == [0, 2, 4]


class TestJax:
    def test_round_trip_keeps_the_pointer(self, eng, jnp):
        x = jnp.arange(1024, dtype="float32")
        t = eng.from_dlpack(x)
        assert t.data_ptr == x.unsafe_buffer_pointer()
        back = jnp.from_dlpack(t)
        assert back.unsafe_buffer_pointer() == t.data_ptr
        assert (back == x).all()

    def test_memory_of_the_engine_is_seen_in_place(self, eng, jnp):
        t = eng.zeros((64, 64), "float32")
        assert jnp.from_dlpack(t).unsafe_buffer_pointer() == t.data_ptr

    def test_arrays_are_immutable_although_their_struct_cannot_say_so(self, eng, np, jnp):
        t = eng.from_dlpack(jnp.arange(4, dtype="float32"))
        assert t.read_only
        assert not np.from_dlpack(t).flags.writeable
        with pytest.raises(est.ConflictError, match="read-only"):
            eng.submit(lambda t: None, writes=[t])

    def test_read_only_memory_may_go_to_jax_which_never_writes(self, eng, np, jnp):
        x = np.arange(4.0, dtype="float32")
        x.flags.writeable = False
        t = eng.from_dlpack(x)
        assert jnp.from_dlpack(t).tolist() == [0, 1, 2, 3]
        with pytest.raises(BufferError, match="read-only"):
            t.__dlpack__()

    def test_operations_of_jax(self, eng, np, jnp):
        x = eng.from_dlpack(np.linspace(0, 1, 4096, dtype="float32"))
        y = eng.call(jnp.sqrt, x, using=jnp.from_dlpack)
        z = eng.call(lambda x, y: x - y * y, x, y, using=jnp.from_dlpack)
        z.wait()
        assert y.read_only and abs(np.from_dlpack(z)).max() < 1e-6

    def test_a_result_of_jax_keeps_its_pointer(self, eng, jax, jnp):
        made = []

        def double(x):
            made.append(jax.block_until_ready(x * 2))
            return made[0]

        y = eng.call(double, eng.zeros(1024, "float32"), using=jnp.from_dlpack)
        y.wait()
        assert y.data_ptr == made[0].unsafe_buffer_pointer()

    def test_work_that_jax_has_not_finished_holds_its_operands(self, eng, np, jax, jnp):
        x = eng.from_dlpack(np.ones((400, 400), "float32"))
        kept = []

        @jax.jit
        def slow(x):
            for _ in range(20):
                x = x @ x / 400
            return x

        # The body ends while JAX may still read; the write must wait for it.
        eng.submit(lambda x: kept.append(slow(x)), reads=[x], using=jnp.from_dlpack)
        eng.submit(lambda x: x.fill(-1), writes=[x], using=np.from_dlpack)
        x.wait()
        assert (kept[0] == 1).all()


class TestTorch:
    @pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES])
    def test_round_trip_keeps_the_pointer(self, eng, torch, dtype):
        x = torch.ones((2, 3), dtype=getattr(torch, dtype))
        t = eng.from_dlpack(x)
        assert (t.dtype, t.shape) == (dtype, (2, 3))
        back = torch.from_dlpack(t)
        assert back.data_ptr() == t.data_ptr == x.data_ptr()
        assert back.dtype == x.dtype and bool((back == x).all())

    def test_bfloat16_travels(self, eng, torch):
        x = torch.ones(4, dtype=torch.bfloat16)
        t = eng.from_dlpack(x)
        assert t.dtype == "bfloat16"
        assert torch.from_dlpack(t).dtype == torch.bfloat16

    def test_memory_of_the_engine_is_seen_in_place(self, eng, torch):
        t = eng.zeros((3, 2), "float32")
        assert torch.from_dlpack(t).data_ptr() == t.data_ptr
        assert torch.utils.dlpack.from_dlpack(t.__dlpack__()).data_ptr() == t.data_ptr

    def test_tensors_may_be_written(self, eng, torch):
        x = torch.zeros(3)
        t = eng.from_dlpack(x)
        eng.submit(lambda _, t: t.add_(1), reads=[t], writes=[t], using=torch.from_dlpack).wait()
        assert x.tolist() == [1, 1, 1]

    def test_a_tensor_that_requires_grad_is_refused_by_torch(self, eng, torch):
        with pytest.raises(BufferError):
            eng.from_dlpack(torch.zeros(3, requires_grad=True))

    def test_work_of_torch_is_ordered(self, eng, torch):
        x = eng.zeros(1000, "float32")
        for i in range(100):
            eng.submit(lambda a, b, i=i: b.copy_(a * 2 + i % 2), reads=[x], writes=[x], using=torch.from_dlpack)
        expected = torch.zeros(1000)
        for i in range(100):
            expected = expected * 2 + i % 2
        x.wait()
        assert torch.equal(torch.from_dlpack(x), expected)


class TestRelay:
    def test_numpy_to_jax_to_torch_to_numpy_without_a_copy(self, eng, np, jnp, torch):
        # JAX copies what is not aligned to 64 bytes, which NumPy's own memory need not be.
        source = np.from_dlpack(eng.empty(1 << 12, "float32").alias())
        source[:] = np.arange(1 << 12)
        pointers = {}

        def noting(name, function, pointer):
            def body(*arrays):
                pointers[name] = [pointer(array) for array in arrays]
                return function(*arrays)

            return body

        x = eng.from_dlpack(source)
        y = eng.call(noting("jax", jnp.sqrt, lambda a: a.unsafe_buffer_pointer()), x, using=jnp.from_dlpack)
        z = eng.empty((1 << 12,), "float32")
        double = noting("torch", lambda y, z: torch.mul(y, 2, out=z), lambda a: a.data_ptr())
        eng.submit(double, reads=[y], writes=[z], using=torch.from_dlpack)
        z.wait()
        result = np.from_dlpack(z)
        assert pointers == {"jax": [source.ctypes.data], "torch": [y.data_ptr, z.data_ptr]}
        assert result.ctypes.data == z.data_ptr
        assert np.allclose(result, 2 * np.sqrt(source))


class TestProtocol:
    def test_streams_do_not_exist_on_the_host(self, eng):
        t = eng.zeros(3, "float32")
        for stream in (0, 1, 2, 12345, "default"):
            with pytest.raises(ValueError, match="stream must be None"):
                t.__dlpack__(stream=stream)
        assert t.__dlpack__(stream=None) and t.__dlpack__(stream=-1)

    def test_versions_choose_the_struct(self, eng):
        t = eng.zeros(3, "float32")
        for version, name in (
            (None, "dltensor"),
            ((0, 8), "dltensor"),
            ((1, 0), "dltensor_versioned"),
            ((1, 3), "dltensor_versioned"),
            ((9, 9), "dltensor_versioned"),
        ):
            assert f'"{name}"' in repr(t.__dlpack__(max_version=version))
        with pytest.raises(TypeError, match="max_version"):
            t.__dlpack__(max_version=1)

    def test_other_devices_are_refused(self, eng):
        t = eng.zeros(3, "float32")
        assert t.__dlpack__(dl_device=(1, 0))
        with pytest.raises(BufferError, match="cuda:0"):
            t.__dlpack__(dl_device=(2, 0))
        with pytest.raises(BufferError, match="cuda:0"):
            eng.from_dlpack(t, device="cuda")

    def test_arguments_are_keywords(self, eng):
        with pytest.raises(TypeError):
            eng.zeros(3, "float32").__dlpack__(None)

    def test_nothing_is_leased_when_the_arguments_are_refused(self, eng, np):
        t = eng.zeros(3, "float32")
        for wrong in (dict(stream=1), dict(dl_device=(2, 0))):
            with pytest.raises((ValueError, BufferError)):
                t.__dlpack__(**wrong)
        eng.submit(lambda t: t.fill(1), writes=[t], using=np.from_dlpack).wait(10)

    def test_a_capsule_that_nobody_takes_returns_its_lease(self, eng, np):
        t = eng.zeros(3, "float32")
        for version in (None, (1, 0)):
            capsule = t.__dlpack__(max_version=version)
            op = eng.submit(lambda t: t.fill(1), writes=[t], using=np.from_dlpack)
            assert not op.is_done()
            del capsule
            op.wait(10)

    def test_views_and_exporters_speak_the_protocol_too(self, eng, np):
        t = eng.zeros((2, 3), "float32")
        for exporter in (t.for_write(), t.alias()):
            assert exporter.__dlpack_device__() == (1, 0)
            assert exporter.tensor is t
        assert (t.for_write().access, t.alias().access) == ("write", "alias")
        with t.read() as view:
            assert (view.shape, view.dtype, view.device, view.access) == ((2, 3), "float32", (1, 0), "read")
            assert view.__dlpack_device__() == (1, 0)
            assert not np.from_dlpack(view).flags.writeable
        with pytest.raises(est.ConflictError, match="has ended"):
            np.from_dlpack(view)

    def test_everything_but_the_wait_is_exact_about_its_producer(self, eng, np):
        from capsules import Made, Producer

        producer = Producer(Made())
        eng.from_dlpack(producer)
        assert producer.asked == [{"max_version": (1, 3)}]
        producer = Producer(Made(flags=2))
        eng.from_dlpack(producer, copy=True, device="cpu")
        assert producer.asked == [{"max_version": (1, 3), "copy": True}]
        producer = Producer(Made(), device=(13, 0))
        eng.from_dlpack(producer, device="cpu")
        assert producer.asked == [{"max_version": (1, 3), "dl_device": (1, 0)}]
