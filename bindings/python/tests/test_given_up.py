"""Given-up requests leave their queues at once: refused exports and accesses, waits that time out, awaits that are cancelled."""

import asyncio
import threading
import weakref

import pytest

import estafette as est
from conftest import until


@pytest.fixture
def one():
    """An engine of one worker that has to end well."""
    engine = est.Engine(workers=1)
    yield engine
    report = engine.shutdown(5.0)
    assert report.drained, report


def queued(engine):
    """Names of everything in a queue."""
    return [op.name for op in engine.diagnose().operations]


def test_a_refused_write_export_does_not_keep_later_readers_out(one, np):
    t = one.zeros(4, "float32")
    array = np.from_dlpack(t)
    with pytest.raises(est.LeaseHeldError):
        np.from_dlpack(t.for_write())
    second = np.from_dlpack(t)
    assert t.is_ready()
    assert queued(one) == ["lease", "lease"]
    del array, second
    np.from_dlpack(t.for_write())[0] = 1


def test_a_write_refused_on_an_event_loop_does_not_keep_later_readers_out(one):
    t = one.zeros(4, "int8")

    async def main():
        with t.read():
            with pytest.raises(est.WouldBlockError):
                t.write().__enter__()
            with t.read():
                pass
            assert queued(one) == ["lease"]

    asyncio.run(main())


def test_waits_that_time_out_leave_nothing_in_the_queue(one):
    t = one.zeros(4, "int8")
    finish, tensor = pending(one, t)
    for _ in range(200):
        assert_times_out(tensor, 0)
        assert_times_out(tensor, 1e-6)
    assert len(queued(one)) == 1, "the operation that makes it"
    finish()
    tensor.wait()


def test_awaits_that_are_cancelled_leave_nothing_in_the_queue(one):
    t = one.zeros(4, "int8")
    finish, tensor = pending(one, t)

    async def main():
        for _ in range(100):
            for awaited in (wait(tensor), access(tensor.write())):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(awaited, 0.001)
        assert len(queued(one)) == 1, "the operation that makes it"
        finish()
        await tensor

    asyncio.run(main())


def test_a_cancelled_operation_drops_what_its_body_holds_at_once(one):
    t = one.zeros(4, "int8")
    finish, tensor = pending(one, t)

    class Held:
        pass

    held, gone = Held(), []
    weakref.finalize(held, gone.append, True)
    op = one.submit(lambda *_, kept=held: kept, writes=[tensor], name="late")
    del held
    assert not gone and op.cancel()
    until(lambda: gone)
    finish()
    one.wait_all()


async def wait(tensor):
    await tensor


async def access(entered):
    async with entered:
        pass


def assert_times_out(tensor, timeout):
    with pytest.raises(TimeoutError):
        tensor.wait(timeout=timeout)


def pending(engine, t):
    """Makes `t` wait for a body that runs until the function that comes first is called."""
    go = threading.Event()
    engine.submit(lambda _: (go.wait(10), None)[1], writes=[t], name="pending")
    return go.set, t
