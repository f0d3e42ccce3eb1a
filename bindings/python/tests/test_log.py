"""Warnings of the engine in the logger `estafette`: what they say, and who must not be stopped by them."""

import asyncio
import logging
import os
import sys
import threading
import time

import pytest

from capsules import Made
from conftest import run_program, until

import estafette as est

SLOW = "a deleter is slow"


class Slow(Made):
    """A producer whose deleter takes its time, of which the engine warns."""

    def __init__(self):
        super().__init__()
        self.entered = threading.Event()
        self.may_return = threading.Event()

    def _delete(self, managed):
        self.entered.set()
        assert self.may_return.wait(60), "the test never released the deleter"
        super()._delete(managed)


@pytest.fixture
def logged():
    """Records of the logger; a test may replace `logged.then`, which gets each of them on the thread that logs."""

    class Handler(logging.Handler):
        records = []
        then = staticmethod(lambda record: None)

        def emit(self, record):
            self.records.append(record)
            self.then(record)

    handler = Handler()
    handler.records = []
    logger = logging.getLogger("estafette")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def warn(eng):
    """Makes the engine warn once; gives what ends the reason."""
    slow = Slow()
    eng.from_dlpack(slow.capsule)
    assert slow.entered.wait(30)
    # Other memory waits for it.
    eng.from_dlpack(Made().capsule)
    return slow


def messages(logged):
    return [record.getMessage() for record in logged.records]


def test_a_warning_has_its_level_its_text_and_its_fields(eng, logged):
    slow = warn(eng)
    until(lambda: any(SLOW in message for message in messages(logged)))
    slow.may_return.set()
    (record,) = [record for record in logged.records if SLOW in record.getMessage()]
    assert record.levelno == logging.WARNING and "(what=" in record.getMessage()


def test_a_handler_that_raises_stops_nothing(eng, logged, monkeypatch):
    raised = []
    monkeypatch.setattr("sys.unraisablehook", lambda reported: raised.append(str(reported.exc_value)))

    def fails(record):
        raise ValueError("the handler fails")

    logged.then = fails
    slow = warn(eng)
    until(lambda: raised == ["the handler fails"])
    slow.may_return.set()
    logged.then = lambda record: None
    again = warn(eng)
    until(lambda: sum(SLOW in message for message in messages(logged)) == 2)
    again.may_return.set()
    until(lambda: slow.deleted == again.deleted == 1)


def test_a_handler_may_use_the_engine(eng, np, logged):
    results = []

    def uses(record):
        results.append(np.from_dlpack(eng.call(np.full, 2, 7)).tolist())

    logged.then = uses
    slow = warn(eng)
    until(lambda: results)
    slow.may_return.set()
    assert results == [[7, 7]]


def test_a_handler_that_hangs_stops_only_the_log(eng, np, logged):
    release = threading.Event()
    logged.then = lambda record: release.wait(60)
    slow = warn(eng)
    until(lambda: logged.records)
    assert np.from_dlpack(eng.call(np.full, 2, 7)).tolist() == [7, 7]
    more = [warn(eng) for _ in range(3)]
    behind = Made()
    eng.from_dlpack(behind.capsule)
    # The engine warns of each slow deleter, and then goes on with what is behind.
    until(lambda: behind.deleted == 1)
    for each in (slow, *more):
        each.may_return.set()
    until(lambda: all(each.deleted == 1 for each in (slow, *more)))
    release.set()
    until(lambda: sum(SLOW in message for message in messages(logged)) == 4)


@pytest.mark.parametrize("refusals", [0, 1], ids=["at once", "by the thread that tries again"])
def test_a_panic_that_the_engine_contains_is_logged(eng, logged, capfd, monkeypatch, refusals):
    """An exception of PyO3's own class becomes a panic again where the extension gets it: here in a wake-up."""
    with pytest.raises(est.InvalidTensorError):
        eng.zeros(-1, "int8")  # Any error makes the class.
    # Other packages may have such a class too, which is an error like others.
    panics = [kind for kind in BaseException.__subclasses__() if kind.__name__ == "PanicException"]
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    def wake(kind):
        z, gate = eng.zeros(1, "int8"), threading.Event()
        eng.submit(lambda _: gate.wait(30), writes=[z])
        raised = [*[ValueError("not yet")] * refusals, kind("in the wake-up")]

        class Loop(asyncio.SelectorEventLoop):
            def call_soon_threadsafe(self, *call, **options):
                if raised:
                    raise raised.pop(0)
                return super().call_soon_threadsafe(*call, **options)

        async def main():
            wait = asyncio.ensure_future(z)
            await asyncio.sleep(0.01)
            gate.set()
            until(lambda: not raised)
            wait.cancel()
            await asyncio.gather(wait, return_exceptions=True)

        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(main())

    for kind in panics:
        wake(kind)
    until(lambda: any("panicked" in message for message in messages(logged)))
    (record,) = [record for record in logged.records if "panicked" in record.getMessage()]
    assert record.levelno == logging.ERROR and record.name == "estafette"
    eng.submit(lambda: None).wait(30)


def test_a_burst_of_messages_is_bounded_and_says_how_many_are_left_out(logged):
    count, begun = 10_000, threading.Event()

    def slow(record):
        begun.wait(60)
        time.sleep(0.001)

    def reported():
        texts = messages(logged)
        lost = [int(text.split()[0]) for text in texts if text.endswith("more messages came too fast to be logged")]
        # An operation that waits for nothing may be stalled behind a busy worker for a moment.
        return sum(text.startswith("stalled: ") and "lease" in text for text in texts), sum(lost)

    logged.then = slow
    with est.Engine(workers=2, in_flight_limit=2 * count, watchdog=0.01) as eng:
        # Each is stalled by another lease: of what stalls for one reason only the first is logged.
        tensors = [eng.zeros(1, "int8") for _ in range(count)]
        leases = [memoryview(t) for t in tensors]
        waiting = [eng.submit(lambda t: None, writes=[t]) for t in tensors]
        # The engine goes on while the handler does not.
        eng.submit(lambda: None).wait(30)
        begun.set()
        until(lambda: sum(reported()) >= count, 60)
        for lease in leases:
            lease.release()
        assert est.wait(waiting, 60).done == set(waiting)
    stalls, lost = reported()
    assert stalls <= count <= stalls + lost and lost > 0


# Its log has a warning of a slow deleter, whose return `may_return` lets through.
WARNED = """
import logging, os, threading, time
logging.basicConfig(format="%(process)d %(levelname)s %(name)s %(message)s")
import estafette as est
from capsules import Made

class Slow(Made):
    def _delete(self, managed):
        entered.set()
        may_return.wait(30)
        super()._delete(managed)

entered, may_return, behind = threading.Event(), threading.Event(), Made()
eng = est.Engine(workers=1)
eng.from_dlpack(Slow().capsule)
entered.wait(30)
eng.from_dlpack(behind.capsule)
# The engine warns of the slow deleter, and then goes on with what is behind.
while not behind.deleted:
    time.sleep(0.001)
"""


def test_what_was_logged_last_is_there_when_the_program_ends():
    _, errors = run_program(WARNED + "may_return.set()", env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert f"WARNING estafette {SLOW}" in errors


def test_a_forked_child_says_nothing_and_ends():
    forks = """
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
may_return.set()
print(os.getpid())
"""
    output, errors = run_program(WARNED + forks, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert f"{output.strip()} WARNING estafette {SLOW}" in errors
