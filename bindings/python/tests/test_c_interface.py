"""Code in C beside the package, in one graph with Python: the table of functions, linked libraries, and handles."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import estafette as est
from conftest import until


class Table(ctypes.Structure):
    """The head of `estafette_api`."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("size", "version_major", "version_minor", "reserved")]


def table():
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return ctypes.pythonapi.PyCapsule_GetPointer(est.c_api(), b"estafette.c_api")


def config(*arguments):
    command = [sys.executable, "-m", "estafette", "config", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module", params=["by the table", "linked"])
def stage(request, tmp_path_factory):
    """The library `stage.c`, compiled with what the package says."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("stage") / "libstage.so"
    source = os.path.join(os.path.dirname(__file__), "stage.c")
    flags = config("--cflags").stdout.split()
    if request.param == "linked":
        flags += ["-DSTAGE_LINKED"]
    command = [compiler, "-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", *flags, "-o", str(path), source]
    if request.param == "linked":
        command += config("--libs").stdout.split()
    subprocess.run(command, check=True, capture_output=True, text=True)
    library = ctypes.CDLL(str(path))
    handle, out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    library.stage_submit.argtypes = [handle, handle, handle, handle, ctypes.c_float, out]
    library.stage_zeros.argtypes = [handle, handle, ctypes.c_int64, out]
    return library


@pytest.fixture
def in_c(eng):
    """A handle of the engine, and a function of the table by its name."""
    functions = re.findall(r"\(\*(\w+)\)\(", members_of_the_header())
    first = table() + ctypes.sizeof(Table)

    def function(name):
        address = ctypes.cast(first + 8 * functions.index(name), ctypes.POINTER(ctypes.c_void_p))[0]
        return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(address)

    engine = eng.c_handle()
    yield engine, function
    assert function("engine_destroy")(engine) == 0


def members_of_the_header():
    folder = os.path.join(os.path.dirname(est.__file__), "include")
    with open(os.path.join(folder, "estafette.h"), encoding="utf-8") as header:
        return header.read().split("struct estafette_api {")[1].split("};")[0]


def test_the_table_says_its_version_and_has_all_functions_of_the_header():
    head = ctypes.cast(table(), ctypes.POINTER(Table)).contents
    assert (head.version_major, head.version_minor) == tuple(int(part) for part in est.__version__.split(".")[:2])
    functions = re.findall(r"\(\*(\w+)\)\(", members_of_the_header())
    assert len(functions) > 60 and head.size == ctypes.sizeof(Table) + 8 * len(functions)
    assert repr(est.c_api()).startswith('<capsule object "estafette.c_api"')


def test_an_operation_in_c_is_in_one_graph_with_those_of_python(eng, in_c, stage):
    engine, _ = in_c
    gate = threading.Event()
    x = eng.call(lambda: gate.wait(60) and np.arange(4, dtype=np.float32), like=((4,), "float32"), name="make")
    y = eng.zeros(4, "float32")
    op = ctypes.c_void_p()
    assert stage.stage_submit(table(), engine, x.c_handle(), y.c_handle(), 10, ctypes.byref(op)) == 0
    total = eng.call(np.sum, y, name="sum")
    # It waits for Python, and Python for it; a diagnosis of the one engine names both.
    waiting = {op.name: op for op in eng.diagnose().operations}
    assert {"make", "stage in C", "sum"} <= set(waiting)
    assert [blocker.name for blocker in waiting["sum"].blocked_by] == ["`stage in C`"]
    in_python = eng.operation_from_c(op.value)
    assert in_python.name == "stage in C" and not in_python.is_done()
    gate.set()
    assert float(np.from_dlpack(total)) == 46
    in_python.wait(timeout=60)
    assert np.from_dlpack(y).tolist() == [10, 11, 12, 13]
    assert in_c[1]("op_release")(op.value) == 0


def test_a_failure_in_python_skips_the_operation_in_c(eng, in_c, stage):
    def fails():
        raise ValueError("no frame")

    x, y = eng.call(fails, like=((4,), "float32"), name="read"), eng.zeros(4, "float32")
    op = ctypes.c_void_p()
    assert stage.stage_submit(table(), in_c[0], x.c_handle(), y.c_handle(), 1, ctypes.byref(op)) == 0
    with pytest.raises(est.OperationError, match="no frame"):
        eng.operation_from_c(op.value).wait(timeout=60)
    with pytest.raises(est.OperationError, match="no frame"):
        y.wait(timeout=60)
    assert in_c[1]("op_release")(op.value) == 0


def test_a_tensor_that_c_makes_is_one_in_python(eng, in_c, stage):
    engine, function = in_c
    made = ctypes.c_void_p()
    assert stage.stage_zeros(table(), engine, 3, ctypes.byref(made)) == 0
    t = eng.tensor_from_c(made.value)
    eng.submit(lambda x: x.fill(2), writes=[t], using=np.from_dlpack)
    again = eng.tensor_from_c(t.c_handle())
    assert function("tensor_release")(made.value) == 0
    assert again.data_ptr == t.data_ptr and np.from_dlpack(again).tolist() == [2, 2, 2]


def test_a_trace_has_what_c_and_python_did(eng, in_c, stage, tmp_path):
    with est.record(tmp_path / "both.pftrace") as trace:
        x, y = eng.call(np.zeros, 4, "float32", name="make"), eng.zeros(4, "float32")
        op = ctypes.c_void_p()
        x.wait()
        assert stage.stage_submit(table(), in_c[0], x.c_handle(), y.c_handle(), 1, ctypes.byref(op)) == 0
        y.wait()
    assert in_c[1]("op_release")(op.value) == 0
    named = " ".join(operation["name"] for operation in trace.report().data["operations"])
    assert "`make`" in named and "`stage in C`" in named


def test_what_is_no_handle_is_refused(eng, in_c):
    for call in (eng.tensor_from_c, eng.operation_from_c):
        for wrong in (0, 1, 2**64 - 1, in_c[0]):
            with pytest.raises(ValueError, match="handle|op"):
                call(wrong)
        for wrong, error in ((-1, OverflowError), ("x", TypeError)):
            with pytest.raises(error):
                call(wrong)
    t = eng.zeros(1, "int8")
    handle = t.c_handle()
    assert in_c[1]("tensor_release")(handle) == 0
    with pytest.raises(ValueError, match="handle"):
        eng.tensor_from_c(handle)
    assert in_c[1]("tensor_release")(handle) == -1


def test_handles_keep_a_tensor_until_they_are_given_up(eng, in_c):
    x = np.zeros(4, np.float32)
    before = sys.getrefcount(x)
    t = eng.from_dlpack(x)
    handle = t.c_handle()
    del t
    assert sys.getrefcount(x) > before
    assert in_c[1]("tensor_release")(handle) == 0
    until(lambda: sys.getrefcount(x) == before)


def test_the_command_says_how_to_compile(tmp_path):
    package = os.path.dirname(est.__file__)
    assert config("--cflags").stdout == f"-I{package}/include\n"
    assert config("--libs").stdout.startswith(f"-L{package} -l:_estafette.")
    assert config("--cmake").stdout == f"{package}/cmake\n"
    for arguments in ((), ("--wrong",)):
        done = config(*arguments)
        assert done.returncode == 2 and "usage: estafette config" in done.stderr


def test_cmake_finds_the_package(tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("no CMake")
    source = os.path.join(os.path.dirname(__file__), "stage.c")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(stage C)\nfind_package(estafette REQUIRED)\n"
        f'add_library(stage SHARED "{source}")\ntarget_compile_definitions(stage PRIVATE STAGE_LINKED)\n'
        "target_link_libraries(stage PRIVATE estafette::estafette)\n"
    )
    cmake = ["cmake", "-S", ".", "-B", "build", f"-Destafette_DIR={config('--cmake').stdout.strip()}"]
    subprocess.run(cmake, cwd=tmp_path, check=True, capture_output=True, text=True)
    subprocess.run(["cmake", "--build", "build"], cwd=tmp_path, check=True, capture_output=True, text=True)
    ctypes.CDLL(str(tmp_path / "build/libstage.so"))
