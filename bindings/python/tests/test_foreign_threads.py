"""Deleters on threads that are not Python's, with the Python lock and without it, and after the interpreter has ended.

A consumer in C takes the struct out of our capsule and calls its deleter wherever it likes. Here that consumer is the C
library: `pthread_create` starts a thread with the deleter as its function, `__cxa_atexit` has the process call it at its
very end.
"""

import ctypes
import gc
import sys
import threading

import pytest

import estafette as est
from conftest import run_program, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses the C library of Linux")

# Also the beginning of the programs below.
SOURCE = '''
import ctypes
from ctypes import c_char_p, c_void_p, py_object

python = ctypes.pythonapi
python.PyCapsule_GetPointer.restype = c_void_p
python.PyCapsule_GetPointer.argtypes = [py_object, c_char_p]
python.PyCapsule_SetName.argtypes = [py_object, c_char_p]
libc = ctypes.CDLL(None)

USED = b"used_dltensor_versioned"


def taken(capsule):
    """The struct of a capsule, as a consumer takes it: address and deleter."""
    managed = python.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
    python.PyCapsule_SetName(capsule, USED)
    # Version (two 32-bit numbers) and context come before it.
    return managed, c_void_p.from_address(managed + 16).value


def on_a_foreign_thread(function, argument):
    """Calls a C function on a thread that Python knows nothing of; gives what to wait for it with."""
    thread = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, c_void_p(function), c_void_p(argument)) == 0
    return lambda: libc.pthread_join(thread, None)
'''
exec(SOURCE)

VERSION = (1, 0)


def program(source, *, abandons=False, **options):
    """Runs `source`, which complains about nothing but operations that it abandons at its end."""
    output, errors = run_program(SOURCE + source, **options)
    assert errors.startswith("estafette: operations are abandoned at exit") if abandons else errors == ""
    return output


def capsules(tensor, count):
    return [tensor.__dlpack__(max_version=VERSION) for _ in range(count)]


def waits_until_all_are_released(eng, np, tensor, call):
    views = [taken(capsule) for capsule in capsules(tensor, 20)]
    writing = eng.submit(lambda x: x.fill(1), writes=[tensor], using=np.from_dlpack)
    for managed, deleter in views:
        assert not writing.is_done()
        call(deleter, managed)
    writing.wait(20)
    assert np.from_dlpack(tensor)[0] == 1


def test_with_the_python_lock_on_a_thread_of_pythons(eng, np):
    with_the_lock = lambda deleter, managed: ctypes.PYFUNCTYPE(None, c_void_p)(deleter)(managed)
    waits_until_all_are_released(eng, np, eng.zeros(4, "float32"), with_the_lock)


def test_without_the_python_lock_on_a_thread_of_pythons(eng, np):
    without = lambda deleter, managed: ctypes.CFUNCTYPE(None, c_void_p)(deleter)(managed)
    waits_until_all_are_released(eng, np, eng.zeros(4, "float32"), without)


def test_on_a_thread_that_python_does_not_know(eng, np):
    waits_until_all_are_released(
        eng, np, eng.zeros(4, "float32"), lambda deleter, managed: on_a_foreign_thread(deleter, managed)()
    )


def test_on_such_a_thread_while_another_holds_the_python_lock_all_the_time(eng, np):
    """The deleter needs no Python lock of Estafette: it ends although no thread releases the lock meanwhile."""
    tensor = eng.from_dlpack(np.zeros(4, "float32"))
    (capsule,) = capsules(tensor, 1)
    managed, deleter = taken(capsule)
    thread = ctypes.c_ulong()
    # `pythonapi` calls keep the lock, so the deleter has to run to its end without it.
    keeping = ctypes.PyDLL(None)
    assert keeping.pthread_create(ctypes.byref(thread), None, c_void_p(deleter), c_void_p(managed)) == 0
    assert keeping.pthread_join(thread, None) == 0
    eng.submit(lambda x: x.fill(1), writes=[tensor], using=np.from_dlpack).wait(20)


def test_the_last_use_of_a_foreign_array_may_end_there_too(eng, np):
    """Then the array's own deleter, which needs the Python lock, runs on the reaper's thread."""
    import weakref

    array = np.zeros(4, "float32")
    gone = weakref.ref(array)
    tensor = eng.from_dlpack(array)
    (capsule,) = capsules(tensor, 1)
    managed, deleter = taken(capsule)
    del array, tensor
    gc.collect()
    assert gone() is not None
    on_a_foreign_thread(deleter, managed)()
    until(lambda: gone() is None)


def test_what_others_do_at_the_same_time_does_not_matter(eng, np):
    tensors = [eng.zeros(4, "int64") for _ in range(5)]
    done = threading.Event()

    def works():
        while not done.is_set():
            for tensor in tensors:
                eng.submit(lambda x: x.__iadd__(1), writes=[tensor], using=np.from_dlpack).wait(20)

    worker = threading.Thread(target=works)
    worker.start()
    for _ in range(100):
        # One lease of each: behind a writer that waits for the first, a second one would never come.
        views = [taken(capsule) for tensor in tensors for capsule in capsules(tensor, 1)]
        joins = [on_a_foreign_thread(deleter, managed) for managed, deleter in views]
        for join in joins:
            join()
    done.set()
    worker.join(60)
    assert not worker.is_alive()
    until(lambda: eng.diagnose().is_idle)


EXIT = """
import numpy as np
import estafette as est
eng = est.Engine(workers=2)
t = {tensor}
views = [taken(t.__dlpack__(max_version=(1, 0))) for _ in range(10)]
libc.__cxa_atexit.argtypes = [c_void_p, c_void_p, c_void_p]
for managed, deleter in views:
    # Called when the interpreter is gone.
    assert libc.__cxa_atexit(deleter, managed, None) == 0
{more}
print("end")
"""


@pytest.mark.parametrize("tensor", ["eng.zeros(4, 'float32')", "eng.from_dlpack(np.zeros(4, 'float32'))"])
@pytest.mark.parametrize(
    "more",
    [
        "",
        "del t",
        "op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)",
        "eng.shutdown()",
    ],
    ids=["open", "released", "a writer waits", "shut down"],
)
def test_after_the_interpreter_has_ended(np, tensor, more):
    # The writer cannot run, as the views are never returned.
    assert program(EXIT.format(tensor=tensor, more=more), abandons="eng.submit" in more) == "end\n"


def test_in_a_forked_child_that_ends_as_programs_do(np):
    more = """
import os, sys, warnings
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""
    assert program(EXIT.format(tensor="eng.from_dlpack(np.zeros(4))", more=more)) == "end\n"


TIMERS = """
import time

class Notify(ctypes.Structure):
    # `struct sigevent` of the C library, for a thread that runs a function.
    _fields_ = [("value", c_void_p), ("signal", ctypes.c_int), ("how", ctypes.c_int), ("function", c_void_p),
                ("attributes", c_void_p), ("rest", ctypes.c_char * 32)]

SIGEV_THREAD, CLOCK_MONOTONIC = 2, 1

def after(nanoseconds, function, argument):
    timer, notify = c_void_p(), Notify(argument, 0, SIGEV_THREAD, function, None)
    assert libc.timer_create(CLOCK_MONOTONIC, ctypes.byref(notify), ctypes.byref(timer)) == 0
    when = (ctypes.c_long * 4)(0, 0, 0, nanoseconds)
    assert libc.timer_settime(timer, 0, when, None) == 0

late = [taken(t.__dlpack__(max_version=(1, 0))) for _ in range(60)]
# After the interpreter's end the process stays a while, in which the last threads come.
usleep = ctypes.cast(libc.usleep, c_void_p)
assert libc.__cxa_atexit(usleep, 100_000, None) == 0
for number, (managed, deleter) in enumerate(late):
    after(1 + number * 2_000_000, deleter, managed)
"""


@pytest.mark.parametrize("tensor", ["eng.zeros(4, 'float32')", "eng.from_dlpack(np.zeros(4, 'float32'))"])
def test_on_foreign_threads_before_during_and_after_the_end_of_the_interpreter(np, tensor):
    for more in (TIMERS, TIMERS + "del t\n", TIMERS + "eng.submit(lambda x: None, writes=[t])\n"):
        assert program(EXIT.format(tensor=tensor, more=more), abandons="eng.submit" in more) == "end\n"
