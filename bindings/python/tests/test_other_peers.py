"""Peers that do not fit the table of `peers.py`, in the environment of the suite `other-peers`: MLX, which copies what it takes,
OpenVINO, which exchanges through NumPy, and functions made with nanobind; and what is particular to Warp and PaddlePaddle."""

import gc
import importlib
import resource
import subprocess
import sys
import sysconfig
import weakref
from pathlib import Path

import pytest

import estafette as est
from conftest import peer, until
from peers import DTYPES, LAYOUTS, Plain, aligned


def writes(eng, np, tensor):
    """An operation that fills the tensor with ones. It waits until no lease is left on it."""
    return eng.submit(lambda x: x.fill(1), writes=[tensor], using=np.from_dlpack)


class TestPaddle:
    @pytest.fixture
    def paddle(self):
        return peer("paddle")

    @pytest.mark.parametrize("export", ["read", "write", "copy", "capsule"])
    def test_each_export_comes_back_and_its_memory_with_it(self, eng, np, paddle, export):
        """PaddlePaddle calls a deleter only where the struct has a context."""
        ways = {
            "read": lambda t: paddle.from_dlpack(t),
            "write": lambda t: paddle.from_dlpack(t.for_write()),
            "copy": lambda t: paddle.from_dlpack(t, copy=True),
            "capsule": lambda t: paddle.utils.dlpack.from_dlpack(t.__dlpack__()),
        }
        source = np.zeros(16, "float32")
        alive = weakref.ref(source)
        t = eng.from_dlpack(source)
        array = ways[export](t)
        assert array.shape == [16]
        del array
        gc.collect()
        writes(eng, np, t).wait(30)
        del t, source
        until(lambda: gc.collect() is not None and alive() is None)

    def test_fifty_exports_leave_no_memory_behind(self, eng, paddle):
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()

        def exchange():
            array = paddle.from_dlpack(eng.zeros(1 << 20, "float32"))
            assert float(array[0]) == 0

        for _ in range(5):
            exchange()
        before = resident()
        for _ in range(50):
            exchange()
        gc.collect()
        until(lambda: eng.stats().releasing == 0)
        # Fifty tensors of 4 MiB, had they been leaked.
        assert resident() - before < 100 << 20

    def test_its_device_without_a_number_is_understood(self, eng, paddle):
        made = paddle.arange(4).astype("float32")
        assert made.__dlpack_device__()[1] is None
        t = eng.from_dlpack(made, copy=True)
        t.wait(30)
        assert t.data_ptr != made.data_ptr() and list(t) == [0, 1, 2, 3]


class TestWarp:
    @pytest.fixture
    def warp(self):
        warp = peer("warp")
        warp.config.quiet = True
        warp.init()
        return warp

    def test_what_came_from_it_goes_back_to_it(self, eng, warp):
        made = warp.zeros(8, dtype=warp.float32, device="cpu")
        assert warp.from_dlpack(eng.from_dlpack(made)).ptr == made.ptr

    def test_it_writes_in_an_operation(self, eng, np, warp):
        t = eng.zeros(8, "float32")
        eng.submit(lambda x: x.fill_(3), writes=[t], using=warp.from_dlpack)
        assert np.from_dlpack(t).tolist() == [3] * 8


class TestMlx:
    @pytest.fixture
    def mx(self):
        return peer("mlx.core")

    @pytest.fixture(params=["array", "from_dlpack"])
    def take(self, request, mx):
        return getattr(mx, request.param)

    def address(self, np, array):
        return np.asarray(memoryview(array)).ctypes.data

    def test_an_import_is_in_place_and_keeps_the_array(self, eng, np, mx):
        made = mx.arange(8, dtype=mx.float32) + 1
        t = eng.from_dlpack(made)
        assert (t.shape, t.dtype, t.data_ptr) == ((8,), "float32", self.address(np, made))
        del made
        gc.collect()
        assert list(t) == [1, 2, 3, 4, 5, 6, 7, 8]

    def test_its_export_is_a_struct_that_cannot_say_who_may_write(self, mx):
        from capsules import python as c_api

        assert c_api.PyCapsule_GetName(mx.zeros(4).__dlpack__(max_version=(1, 3))) == b"dltensor"

    def test_its_memory_may_not_be_written_unless_its_owner_vouches(self, eng, np, mx):
        made = mx.zeros(4)
        later = made + 1
        t = eng.from_dlpack(made)
        with pytest.raises(est.ConflictError, match="cannot say whether it may be written"):
            eng.submit(lambda x: None, writes=[t])
        vouched = eng.from_dlpack(made, writable=True)
        writes(eng, np, vouched).wait(30)
        # The reason that it is not the default: an expression that was not evaluated yet sees the write.
        assert made.tolist() == [1] * 4 and later.tolist() == [2] * 4

    def test_an_export_is_a_copy_without_a_lease(self, eng, np, take):
        t = eng.zeros(8, "float32")
        array = take(t)
        assert self.address(np, array) != t.data_ptr
        writes(eng, np, t).wait(30)
        assert array.tolist() == [0] * 8

    @pytest.mark.parametrize("dtype", DTYPES.split())
    def test_an_element_type_is_taken_or_refused(self, eng, np, mx, dtype):
        t = eng.zeros(8, dtype)
        kept = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 complex64"
        taken = {name: name for name in kept.split()}
        taken |= {"float64": "float32", "complex128": "complex64"}
        if dtype in taken:
            assert str(mx.from_dlpack(t).dtype) == f"mlx.core.{taken[dtype]}"
        else:
            with pytest.raises(ValueError, match="(?i)cannot convert"):
                mx.from_dlpack(t)
        gc.collect()
        eng.submit(lambda x: None, writes=[t]).wait(30)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_strided_tensor_is_copied_or_refused(self, eng, np, take, layout):
        view = LAYOUTS[layout](aligned(np, (8, 8)))
        t = eng.from_dlpack(view)
        if layout == "reversed":
            with pytest.raises(ValueError, match="strides"):
                take(t)
        else:
            assert take(t).tolist() == view.tolist()

    def test_a_pending_tensor_is_waited_for(self, eng, np, take, gate):
        t = eng.zeros(4, "float32")

        def fill(x):
            gate()
            x.fill(3)

        eng.submit(fill, writes=[t], using=np.from_dlpack)
        assert gate.entered.wait(30) and not t.is_ready()
        gate.open()
        assert take(t).tolist() == [3] * 4

    def test_what_it_computes_is_a_result(self, eng, np, mx):
        t = eng.from_dlpack(np.arange(4, dtype="float32"))
        made = eng.call(lambda x: mx.add(x, 1), t, using=mx.from_dlpack)
        assert np.from_dlpack(made).tolist() == [1, 2, 3, 4]

    def test_bfloat16_crosses_by_from_dlpack_both_ways(self, eng, mx):
        t = eng.from_dlpack(mx.ones(4, dtype=mx.bfloat16))
        assert t.dtype == "bfloat16" and mx.from_dlpack(t).tolist() == [1] * 4


class TestOpenVino:
    @pytest.fixture
    def ov(self):
        return peer("openvino")

    def test_it_takes_memory_for_writing_in_place_and_holds_the_lease(self, eng, np, ov):
        t = eng.zeros(8, "float32")
        tensor = ov.Tensor(np.from_dlpack(t.for_write()), shared_memory=True)
        assert tensor.data.ctypes.data == t.data_ptr
        tensor.data[:] = 5
        op = writes(eng, np, t)
        with pytest.raises(est.LeaseHeldError):
            op.wait(30)
        assert tensor.data.tolist() == [5] * 8
        del tensor
        gc.collect()
        op.wait(30)

    def test_it_refuses_to_share_memory_that_may_not_be_written(self, eng, np, ov):
        t = eng.zeros(8, "float32")
        with pytest.raises(ValueError, match="not writeable") as caught:
            ov.Tensor(np.from_dlpack(t), shared_memory=True)
        del caught
        gc.collect()
        writes(eng, np, t).wait(30)

    def test_its_own_is_taken_in_place_and_may_be_written(self, eng, np, ov):
        made = ov.Tensor(ov.Type.f32, ov.Shape([4]))
        t = eng.from_dlpack(made.data)
        assert t.data_ptr == made.data.ctypes.data and not t.read_only
        writes(eng, np, t).wait(30)
        assert made.data.tolist() == [1] * 4
        with pytest.raises(TypeError, match="no `__dlpack__` and no buffer"):
            eng.from_dlpack(made)

    def test_a_tensor_without_memory_of_its_own_is_a_copy(self, eng, np, ov):
        t = eng.zeros(8, "float32")
        tensor = ov.Tensor(np.from_dlpack(t))
        assert tensor.data.ctypes.data != t.data_ptr
        writes(eng, np, t).wait(30)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """The module `nanobind_arrays`, compiled."""
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        pytest.skip("Python.h is not installed (on Debian: `apt-get install python3-dev`)")
    folder = tmp_path_factory.mktemp("nanobind")
    library = Path(peer("nanobind").__file__).parent
    module = folder / f"nanobind_arrays{sysconfig.get_config_var('EXT_SUFFIX')}"
    source = Path(__file__).with_name("nanobind_arrays.cpp")
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing"]
    command += [f"-I{library / 'include'}", f"-I{library / 'ext' / 'robin_map' / 'include'}"]
    command += [f"-I{headers}", str(source), str(library / "src" / "nb_combined.cpp")]
    subprocess.run([*command, "-o", str(module)], check=True)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("nanobind_arrays")
    finally:
        sys.path.remove(str(folder))


class TestNanobind:
    @pytest.mark.parametrize("dtype", [*DTYPES.split(), "int4"])
    def test_a_parameter_takes_every_element_type_in_place(self, eng, compiled, dtype):
        t = eng.zeros(8, dtype)
        assert compiled.address(t) == t.data_ptr

    def test_a_constant_parameter_reads_and_one_that_is_not_needs_for_write(self, eng, np, compiled):
        t = eng.from_dlpack(np.arange(4, dtype="float32"))
        assert compiled.total(t) == 6
        with pytest.raises(TypeError, match="incompatible"):
            compiled.fill(t, 1.0)
        compiled.fill(t.for_write(), 2.0)
        assert list(t) == [2] * 4

    def test_a_function_without_the_interpreter_lock_is_a_body_as_it_is(self, eng, compiled):
        t = eng.zeros(4, "float32")
        eng.submit(lambda x: compiled.fill(x, 3.0), writes=[t])
        total = eng.call(lambda x: __import__("numpy").array(compiled.total(x)), t)
        total.wait(30)
        assert list(t) == [3] * 4

    def test_an_array_that_is_kept_holds_its_lease(self, eng, np, compiled):
        t = eng.zeros(4, "float32")
        holder = compiled.Holder(t)
        op = writes(eng, np, t)
        with pytest.raises(est.LeaseHeldError):
            op.wait(30)
        del holder
        gc.collect()
        op.wait(30)

    @pytest.mark.parametrize("flavour, read_only", [("array_api", False), ("array_api_const", True), ("numpy", False), ("bare", True)])
    def test_what_each_flavour_of_result_may_be_used_for(self, eng, np, compiled, flavour, read_only):
        t = eng.from_dlpack(getattr(compiled, flavour)(4))
        assert (t.shape, t.dtype, t.read_only) == ((4,), "float32", read_only)
        if not read_only:
            writes(eng, np, t).wait(30)
            assert list(t) == [1] * 4

    def test_one_without_a_framework_is_a_capsule_for_which_its_owner_vouches(self, eng, np, compiled):
        t = eng.from_dlpack(compiled.bare(4), writable=True)
        writes(eng, np, t).wait(30)
        assert list(t) == [1] * 4
        with pytest.raises(BufferError, match="declares it read-only"):
            eng.from_dlpack(compiled.array_api_const(4), writable=True)

    def test_a_pending_tensor_is_waited_for(self, eng, np, compiled, gate):
        t = eng.zeros(4, "float32")

        def fill(x):
            gate()
            x.fill(3)

        eng.submit(fill, writes=[t], using=np.from_dlpack)
        assert gate.entered.wait(30) and not t.is_ready()
        gate.open()
        assert compiled.total(t) == 12


def test_each_of_them_has_a_row_in_the_table():
    rows = {row.name: row for row in est.peers()}
    assert all(rows[name].legacy_writable for name in ("warp", "onnxruntime", "paddle"))
    assert not rows["mlx"].legacy_writable and not rows["mlx"].immutable
    assert rows["openvino"].honours_read_only and rows["nanobind"].honours_read_only
    assert all(rows[name].source for name in ("warp", "onnxruntime", "paddle", "mlx", "openvino", "nanobind"))
