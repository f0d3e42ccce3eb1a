"""Code in C beside the package, in one graph with Python: the table of functions, linked libraries, and handles."""

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest

import estafette as est
from conftest import run_program, until
from estafette import _estafette


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


def packaged(*arguments):
    """Answers of pkg-config about the package."""
    environment = {**os.environ, "PKG_CONFIG_PATH": config("--pkgconfig").stdout.strip()}
    command = ["pkg-config", *arguments, "estafette"]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()


@pytest.fixture(scope="module", params=["by the table", "linked", "by pkg-config"])
def stage(request, tmp_path_factory):
    """The library `stage.c`, compiled with what the package says."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("stage") / "libstage.so"
    source = os.path.join(os.path.dirname(__file__), "stage.c")
    if request.param == "by pkg-config":
        if shutil.which("pkg-config") is None:
            pytest.skip("no pkg-config")
        assert packaged("--modversion") == [est.__version__]
        flags, libs = packaged("--cflags"), packaged("--libs")
    else:
        flags, libs = config("--cflags").stdout.split(), config("--libs").stdout.split()
    command = [compiler, "-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", *flags, "-o", str(path), source]
    if request.param != "by the table":
        command += ["-DSTAGE_LINKED", *libs]
    subprocess.run(command, check=True, capture_output=True, text=True)
    library = ctypes.CDLL(str(path))
    handle, out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    library.stage_submit.argtypes = [handle, handle, handle, handle, ctypes.c_float, out]
    library.stage_zeros.argtypes = [handle, handle, ctypes.c_int64, out]
    library.stage_legacy.argtypes = [handle, handle, out]
    library.stage_first.argtypes = [handle, handle, ctypes.POINTER(ctypes.c_float)]
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


def test_the_table_has_the_packages_own_functions_beside_another_copy_in_the_global_scope(tmp_path):
    copy = shutil.copy(_estafette.__file__, tmp_path / "another_copy.so")
    run_program(f"""
        import ctypes
        ctypes.CDLL({str(copy)!r}, ctypes.RTLD_GLOBAL)
        import estafette as est
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        table = ctypes.cast(get(est.c_api(), b"estafette.c_api"), ctypes.POINTER(ctypes.c_void_p))
        # Behind four numbers of 32 bits.
        own = ctypes.cast(ctypes.CDLL(est._estafette.__file__).estafette_version, ctypes.c_void_p).value
        assert table[2] == own
    """)


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


def test_ctrl_c_ends_a_wait_in_c_and_is_raised_in_python():
    output, _ = run_program("""
        import ctypes, os, signal, threading, time
        import numpy as np
        import estafette as est

        wait = ctypes.CDLL(est._estafette.__file__).estafette_wait
        wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        eng = est.Engine(workers=2)
        begun, gate = threading.Event(), threading.Event()
        x = eng.call(lambda: (begun.set(), gate.wait(40), np.arange(4.0))[2], like=((4,), "float64"))
        handle = x.c_handle()
        # A worker runs it, and not the thread that waits.
        assert begun.wait(30)

        def press():
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press).start()
        try:
            wait(handle, 2**64 - 1)
            for _ in range(1000):
                pass
        except KeyboardInterrupt:
            print("raised", x.is_ready())
        gate.set()
        x.wait(30)
    """)
    assert output.strip() == "raised False"


def test_ctrl_c_in_a_function_that_a_wait_in_c_runs_ends_the_wait(stage):
    output, _ = run_program(f"""
        import ctypes, os, signal
        import estafette as est
        from test_c_interface import table

        stage_wait = ctypes.CDLL({stage._name!r}).stage_wait
        stage_wait.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32)]
        stage_wait.restype = None
        eng = est.Engine(workers=0, failures="log")

        def body():
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                pass

        x, status = eng.call(body, like=((4,), "float64")), ctypes.c_int32()
        try:
            stage_wait(table(), x.c_handle(), ctypes.byref(status))
            for _ in range(1000):
                pass
        except KeyboardInterrupt:
            print("raised", status.value)
        del x
    """, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert output.strip() == "raised -14"


def test_a_struct_from_before_dlpack_1_reaches_numpy_and_back(eng, in_c, stage):
    engine, function = in_c
    made, first = ctypes.c_void_p(), ctypes.c_float()
    assert stage.stage_legacy(table(), engine, ctypes.byref(made)) == 0
    t = eng.tensor_from_c(made.value)
    assert function("tensor_release")(made.value) == 0
    assert np.from_dlpack(t).tolist() == [1, 2, 3]
    eng.submit(lambda t: t.fill(7), writes=[t], using=np.from_dlpack)
    assert stage.stage_first(table(), t.c_handle(), ctypes.byref(first)) == 0 and first.value == 7


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


def c(name, *arguments):
    """Calls a function of the library, which takes handles, numbers and addresses."""
    return getattr(ctypes.CDLL(_estafette.__file__), "estafette_" + name)(*map(ctypes.c_uint64, arguments))


@pytest.fixture(params=[2, -1], ids=["workers", "no workers"])
def made(request):
    """A handle of an engine that C makes, and gives up in the end."""
    handle, options = ctypes.c_void_p(), ctypes.create_string_buffer(struct.pack("IiQQQ", 32, request.param, 0, 0, 0))
    assert c("engine_create", ctypes.addressof(options), ctypes.addressof(handle)) == 0
    yield handle.value
    c("engine_destroy", handle.value)


FOREVER = 2**64 - 1


def test_c_makes_an_engine_and_python_submits_to_it_too(made, stage):
    y, op = ctypes.c_void_p(), ctypes.c_void_p()
    assert stage.stage_zeros(table(), made, 4, ctypes.byref(y)) == 0
    eng = est.engine_from_c(made)
    gate = threading.Event()
    x = eng.call(lambda: gate.wait(60) and np.arange(4, dtype=np.float32), like=((4,), "float32"), name="make")
    in_python = eng.tensor_from_c(y.value)
    assert stage.stage_submit(table(), made, x.c_handle(), y, 10, ctypes.byref(op)) == 0
    total = eng.call(np.sum, in_python, name="sum")
    assert {"make", "stage in C", "sum"} <= {op.name for op in eng.diagnose().operations}
    again = est.engine_from_c(made)
    assert eng.stats().in_flight == again.stats().in_flight == 3
    gate.set()
    assert float(np.from_dlpack(total)) == 46
    assert c("op_wait", op.value, FOREVER) == 0 and c("op_release", op.value) == 0
    eng.wait_all(60)
    assert again.stats().in_flight == 0


def test_c_waits_for_functions_of_python(made):
    eng = est.engine_from_c(made)
    seen = []
    for number in range(100):
        eng.submit(lambda number=number: seen.append(number))
    assert c("wait_all", made, FOREVER) == 0
    assert sorted(seen) == list(range(100))


def test_an_engine_of_python_comes_back_from_c_as_it_is():
    eng = est.Engine(workers=1, failures="ignore", using=np.from_dlpack)
    handle = eng.c_handle()
    with est.engine_from_c(handle) as again:
        kinds = []
        again.submit(lambda x: kinds.append(type(x)), reads=[again.zeros(1, "int8")]).wait(60)
        assert again.workers == 1 and kinds == [np.ndarray]
        again.submit(lambda: 1 / 0)
    with pytest.raises(est.ShutdownError):
        eng.submit(print)
    assert c("engine_destroy", handle) == 0


def test_the_end_of_an_engine_of_c_raises_unretrieved_failures(made):
    with pytest.raises(est.OperationError, match="division"):
        with est.engine_from_c(made) as eng:
            kept = eng.submit(lambda: 1 / 0)
    assert kept.is_done()
    eng.shutdown()


def test_either_side_shuts_the_engine_down(made, stage):
    eng = est.engine_from_c(made)
    x, y, op = eng.call(np.ones, 3, "float32"), eng.zeros(3, "float32"), ctypes.c_void_p()
    assert c("engine_shutdown", made, FOREVER) == 0
    assert np.from_dlpack(x).tolist() == [1, 1, 1]
    with pytest.raises(est.ShutdownError):
        eng.submit(print)
    eng.shutdown()
    assert stage.stage_submit(table(), made, x.c_handle(), y.c_handle(), 1, ctypes.byref(op)) == -9


def test_the_handle_of_an_engine_is_given_up_once_and_python_keeps_the_engine(made):
    eng = est.engine_from_c(made)
    assert (c("engine_destroy", made), c("engine_destroy", made)) == (0, -1)
    with pytest.raises(ValueError, match="not in use"):
        est.engine_from_c(made)
    assert np.from_dlpack(eng.call(np.ones, 3, "float32")).tolist() == [1, 1, 1]


def test_what_is_no_engine_is_refused(eng):
    for wrong in (0, 1, 2**64 - 1, eng.zeros(1, "int8").c_handle()):
        with pytest.raises(ValueError, match="^engine"):
            est.engine_from_c(wrong)
    for wrong, error in ((-1, OverflowError), ("x", TypeError)):
        with pytest.raises(error):
            est.engine_from_c(wrong)


FROM_C = """
import ctypes, os, threading
import estafette as est
from estafette import _estafette
c, handle = ctypes.CDLL(_estafette.__file__), ctypes.c_void_p()
assert c.estafette_engine_create(None, ctypes.byref(handle)) == 0
eng = est.engine_from_c(handle.value)
"""


def test_the_exit_waits_for_functions_of_python_in_an_engine_of_c():
    printed, errors = run_program(
        FROM_C
        + """
begun = threading.Event()
eng.submit(lambda: begun.set() or threading.Event().wait(0.3) or print("the first has ended"))
for number in range(20):
    eng.submit(lambda: None)
eng.submit(lambda: print("so has the last"))
begun.wait()
"""
    )
    assert (sorted(printed.splitlines()), errors) == (["so has the last", "the first has ended"], "")


def test_an_engine_of_another_copy_of_the_library_is_refused(tmp_path):
    program = f"""
other, strange = ctypes.CDLL({shutil.copy(_estafette.__file__, tmp_path / "another.so").as_posix()!r}), ctypes.c_void_p()
assert other.estafette_engine_create(None, ctypes.byref(strange)) == 0
try:
    est.engine_from_c(strange.value)
except ValueError as error:
    print(error)
"""
    # An extension has thread-local values where a process has little room for those of libraries that are loaded late.
    room = {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=16384"}
    assert "another copy of the library" in run_program(FROM_C + program, env=room)[0]


def test_a_forked_child_cannot_take_an_engine():
    program = """
child = os.fork()
if child == 0:
    try:
        est.engine_from_c(handle.value)
    except est.ForkedError:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    run_program(FROM_C + program)


def test_a_subinterpreter_cannot_take_an_engine():
    interpreters = pytest.importorskip("_xxsubinterpreters")
    program = f"""
import {interpreters.__name__} as interpreters
try:
    interpreters.run_string(interpreters.create(), f"import estafette; estafette.engine_from_c({{handle.value}})")
except interpreters.RunFailedError as error:
    assert "main interpreter" in str(error), error
else:
    raise AssertionError("it was taken")
eng.submit(lambda: print("still there")).wait()
"""
    assert run_program(FROM_C + program)[0] == "still there\n"


def test_the_command_says_how_to_compile(tmp_path):
    package = os.path.dirname(est.__file__)
    assert config("--cflags").stdout == f"-I{package}/include\n"
    assert config("--libs").stdout.startswith(f"-L{package} -l:_estafette.")
    assert config("--cmake", "--pkgconfig").stdout == f"{package}/cmake\n{package}/pkgconfig\n"
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
