"""A program that uses the Python package while calls of the system fail, and keeps account.

Only calls that the extension makes are counted. Prints what the judge in tests/programs/src/bin/failing_system reads: "struck N", "error ...",
"lost ...", "ended ...", "whole".
"""

import asyncio
import atexit
import contextlib
import ctypes
import gc
import os
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path

import numpy as np

LONG = 20
"""Seconds: longer than anything here takes; what takes longer is lost."""

LARGE = 1 << 24
"""Elements of the tensor whose memory may be refused."""

folder = Path(sys.argv[1])
system = ctypes.CDLL(None)
losses = []
"""Only what a forked child loses."""


def lost(name, what):
    losses.append(name)
    print(f"lost {name}: {what}", flush=True)


@contextlib.contextmanager
def may_fail(name):
    """Notes an exception, with its causes."""
    try:
        yield
    except TimeoutError as error:
        lost(name, f"it never ended: {error!r}")
    except Exception as error:
        text = " < ".join(traceback.format_exception(error)).replace("\n", " ")
        print(f"error {name}: {text}", flush=True)


def twice(name, make):
    """Once more where the first try was refused: what fails once does not fail again."""
    for _ in range(2):
        with may_fail(name):
            return make()
    return None


class Body:
    """Counts its calls."""

    def __init__(self, name, body=lambda *_: None):
        self.name = name
        self.body = body
        self.ran = 0
        self.op = None

    def __call__(self, *arrays):
        self.ran += 1
        return self.body(*arrays)

    def submit(self, eng, **operands):
        with may_fail(self.name):
            self.op = eng.submit(self, name=self.name, **operands)
        return self

    def settle(self):
        """Waits for the operation, if it was accepted, and compares."""
        if self.op is not None:
            with may_fail(self.name):
                self.op.wait(LONG)
                if self.ran != 1:
                    lost(self.name, f"it ended well and ran {self.ran} times")
        if self.ran > 1:
            lost(self.name, f"it ran {self.ran} times")


def tensors_and_arrays(eng):
    array = np.arange(4.0)
    collected = weakref.ref(array)
    tensor = result = None
    with may_fail("import"):
        tensor = eng.from_dlpack(array)
    del array
    if tensor is None:
        return collected
    bodies = [Body(f"add {i}", lambda array: np.add(array, 1, out=array)) for i in range(3)]
    for body in bodies:
        body.submit(eng, writes=[tensor], using=np.from_dlpack)
    with may_fail("call"):
        result = eng.call(lambda array: array * 2, tensor, using=np.from_dlpack)
    for body in bodies:
        body.settle()
    if result is not None:
        with may_fail("export"):
            result.wait(LONG)
            found = np.from_dlpack(result)[0]
            # An addition that was refused is not a part of it.
            if found != 2 * sum(body.op is not None for body in bodies):
                lost("call", f"its result is {found}")
    with may_fail("lease"):
        view = np.from_dlpack(tensor)
        behind = Body("behind a lease").submit(eng, writes=[tensor])
        del view
        behind.settle()
    with may_fail("memory"):
        eng.zeros(LARGE, "float32")
    return collected


async def awaits(eng):
    tensor = eng.zeros(2, "float64")

    async def body(array):
        await asyncio.sleep(0.001)
        array[0] += 1

    op = None
    with may_fail("submit what is asynchronous"):
        op = eng.submit(body, writes=[tensor], using=np.from_dlpack)
    if op is not None:
        with may_fail("await"):
            await asyncio.wait_for(tensor, LONG)
            if np.from_dlpack(tensor)[0] != 1:
                lost("asynchronous", "it ended well and did not run")
    with may_fail("await a submission"):
        op = await asyncio.wait_for(eng.submit_async(lambda: None), LONG)
        await asyncio.wait_for(op, LONG)
    with may_fail("a future"):
        future = asyncio.get_running_loop().create_future()
        promise = eng.from_future(future)
        future.set_result(np.ones(3))
        await asyncio.wait_for(promise, LONG)


def waits_inside(eng):
    inner = [Body(f"inside {i}", lambda: time.sleep(0.001)) for i in range(3)]
    outer = [Body(f"waits inside {i}", lambda body=body: body.submit(eng).op.wait(LONG)) for i, body in enumerate(inner)]
    for body in outer:
        body.submit(eng)
    for body in outer:
        if body.op is not None:
            with may_fail(body.name):
                body.op.wait(LONG)
    for body in inner:
        body.settle()


def replays(eng):
    node = Body("node")
    with may_fail("a program"):
        variable = eng.var()
        with eng.program("program") as program:
            program.submit(node, writes=[variable])
        for _ in range(3):
            before = node.ran
            program.replay().wait(LONG)
            if node.ran != before + 1:
                lost("replay", "its node did not run once")


def failures(eng):
    tensor = eng.zeros(1, "float32")

    def fails(_):
        raise ValueError("on purpose")

    with may_fail("fails"):
        eng.submit(fails, writes=[tensor])
        try:
            tensor.wait(LONG)
        except est.OperationError as error:
            if "on purpose" not in str(error):
                raise
        else:
            lost("failure", "the wait ended well")


def forks(eng, tensor):
    gate = threading.Event()
    body = Body("at the fork", lambda _: gate.wait(LONG)).submit(eng, writes=[tensor])
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        losses.clear()
        uses = {
            "submit": lambda: eng.submit(lambda: None),
            "zeros": lambda: eng.zeros(1, "int8"),
            "import": lambda: eng.from_dlpack(np.zeros(1)),
            "export": lambda: np.from_dlpack(tensor),
            "wait for all": lambda: eng.wait_all(LONG),
        }
        for name, use in uses.items():
            try:
                use()
            except est.ForkedError:
                pass
            except BaseException as error:
                lost(name, f"{error!r} in a forked child")
            else:
                lost(name, "no error in a forked child")
        try:
            own = est.Engine(workers=1)
            own.submit(lambda: None).wait(LONG)
            own.wait_all(LONG)
        except (est.ForkedError, TimeoutError) as error:
            lost("own engine", f"{error!r} in a forked child")
        except BaseException:
            # The system refuses something.
            pass
        sys.stdout.flush()
        os._exit(3 if losses else 0)
    until = time.monotonic() + LONG
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > until:
            os.kill(child, 9)
            lost("fork", "the child hangs")
            break
        time.sleep(0.001)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        print(f"ended a forked child by signal {-code}", flush=True)
    elif code:
        lost("fork", "the child was not well")
    gate.set()
    body.settle()


def everything():
    """Gives a weak reference to what was imported."""
    eng = twice("start an engine", lambda: est.Engine(workers=2, failures="ignore"))
    if eng is None:
        return lambda: None
    collected = tensors_and_arrays(eng)
    with may_fail("a loop"):
        asyncio.run(awaits(eng))
    waits_inside(eng)
    replays(eng)
    failures(eng)
    with may_fail("fork"):
        forks(eng, eng.zeros(1, "int8"))
    eng.diagnose()
    with may_fail("shut down"):
        report = eng.shutdown(LONG)
        if not report.drained or eng.stats().in_flight:
            lost("engine", f"it does not drain: {report}")
    return collected


def recorded(path):
    trace = est.record(path)
    trace.start()
    collected = everything()
    with may_fail("write the trace"):
        trace.stop()
    return collected


collected = None


def close_the_account():
    """Called after the package's own function for the exit, which has the deleters run that are due."""
    if collected is not None and collected() is not None:
        lost("deleter", "an imported array is still there")
    print(f"struck {system.failing_system_struck()}")
    print("whole", flush=True)


atexit.register(close_the_account)
system.failing_system_arm(1)
with may_fail("import the package"):
    import estafette as est
if "estafette" in sys.modules:
    trace = folder / "python.pftrace"
    collected = twice("record", lambda: recorded(trace))
    if trace.exists():
        with may_fail("read the trace"):
            est.report(trace)
gc.collect()
# As long as the thread of the deleters is refused, they are due: the exit tries once more.
system.failing_system_arm(0)
