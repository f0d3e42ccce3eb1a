"""Programs: recorded once, replayed as one operation."""

import asyncio
import contextvars
import gc
import threading
import time
import weakref

import pytest

import estafette as est

from conftest import run_program, until


@pytest.fixture
def eng():
    with est.Engine(workers=2) as engine:
        yield engine


def value(np, tensor):
    return np.from_dlpack(tensor).tolist()


def test_a_replay_runs_the_nodes_in_order_and_is_ordered_with_submissions(np, eng):
    x, y = eng.from_dlpack(np.ones(3)), eng.zeros(3, "float64")
    with eng.program("step") as step:
        assert step.submit(lambda x, y: np.multiply(x, 2, out=y), reads=[x], writes=[y], using=np.from_dlpack) is None
        step.submit(lambda y, x: np.add(x, y, out=x), reads=[y], writes=[x], using=np.from_dlpack, name="add")
    assert (len(step), step.name, step.is_graph, bool(step)) == (2, "step", False, True)
    assert value(np, y) == [0.0] * 3, "nothing runs before a replay"
    expected = 1.0
    for round in range(5):
        step.replay()
        eng.submit(lambda x, round=round: np.add(x, round, out=x), writes=[x], using=np.from_dlpack)
        expected = expected * 3 + round
    last = step.replay()
    assert last.name == "step"
    last.wait(timeout=30)
    assert last.is_done()
    assert value(np, x) == [expected * 3] * 3
    # A tensor in both lists is updated in place.
    with eng.program() as update:
        update.submit(lambda x, _: np.negative(x, out=x), reads=[x], writes=[x], using=np.from_dlpack)
    update.replay().wait(timeout=30)
    assert update.name == "program" and value(np, x) == [-expected * 3] * 3


def test_stages_of_a_program(np, eng):
    p = eng.program("p")
    assert "being recorded" in repr(p) and len(p) == 0
    with pytest.raises(RuntimeError, match="`p` is still being recorded"):
        p.replay()
    p.submit(lambda: None)
    p.finish()
    assert repr(p) == "<estafette.Program `p` of 1 nodes>"
    p.replay().wait(timeout=30)
    for again in (p.finish, p.__enter__, lambda: p.submit(lambda: None)):
        with pytest.raises(RuntimeError, match="`p` is finished"):
            again()
    with pytest.raises(ZeroDivisionError):
        with eng.program("q") as q:
            q.submit(lambda: None)
            1 / 0
    with pytest.raises(RuntimeError, match="`q` was never finished"):
        q.replay()
    with pytest.raises(TypeError, match="not callable"):
        eng.program().submit(3)
    with pytest.raises(est.InvalidError, match="node 0 `work` works on the host"):
        with eng.program(graph=True) as g:
            g.submit(lambda: None, name="work")
    with eng.program("empty") as empty:
        pass
    empty.replay().wait(timeout=30)


def test_a_failure_follows_data_within_a_replay(np, eng):
    x, y, z = (eng.zeros(1, "float64") for _ in range(3))
    called = []

    def fails(x):
        called.append("fails")
        raise ValueError("fate of fails")

    def record(p, name, **operands):
        p.submit(lambda *_: called.append(name), name=name, **operands)

    with eng.program("step") as step:
        step.submit(fails, writes=[x])
        record(step, "reads", reads=[x], writes=[y])
        record(step, "beside", writes=[z])
    replay = step.replay()
    with pytest.raises(est.OperationError, match="fate of fails") as caught:
        replay.wait(timeout=30)
    assert caught.value.operation.endswith("fails")
    assert isinstance(caught.value.__cause__, ValueError)
    assert sorted(called) == ["beside", "fails"]
    for tensor in (x, y, z):
        with pytest.raises(est.OperationError, match="fate of fails"):
            tensor.wait(timeout=30)
    # Pure writes heal.
    with pytest.raises(est.OperationError, match="fate of fails"):
        step.replay().wait(timeout=30)
    assert sorted(called) == ["beside"] * 2 + ["fails"] * 2


def test_an_operand_is_lent_in_the_mode_of_its_node(np, eng):
    x = eng.zeros(2, "float64")
    modes = []
    with eng.program() as p:
        p.submit(lambda x: modes.append(x.flags.writeable), reads=[x], using=np.from_dlpack)
        p.submit(lambda x: modes.append(x.flags.writeable), writes=[x], using=np.from_dlpack)
    p.replay().wait(timeout=30)
    assert modes == [False, True]


def test_a_view_that_is_kept_becomes_a_lease_when_the_replay_ends(np, eng):
    x = eng.zeros(2, "float64")
    kept = []
    with eng.program() as p:
        p.submit(lambda x: kept.append(x), reads=[x], using=np.from_dlpack)
    p.replay().wait(timeout=30)
    write = eng.submit(lambda x: x.fill(1), writes=[x], using=np.from_dlpack)
    time.sleep(0.02)
    assert not write.is_done()
    kept.clear()
    write.wait(timeout=30)
    assert value(np, x) == [1.0, 1.0]


def test_replays_are_awaited(np):
    async def main():
        async with est.Engine(workers=2) as eng:
            x = eng.zeros(1, "float64")

            async def slow(x):
                await asyncio.sleep(0)
                x += 1

            with eng.program("step") as step:
                step.submit(slow, writes=[x], using=np.from_dlpack)
                step.submit(lambda x, _: np.multiply(x, 2, out=x), reads=[x], writes=[x], using=np.from_dlpack)
            assert await step.replay() is None
            op = await step.replay_async()
            await op
            await asyncio.gather(*(step.replay() for _ in range(8)))
            with eng.program("bad") as bad:
                bad.submit(lambda x: 1 / 0, writes=[x])
            with pytest.raises(est.OperationError, match="division") as caught:
                await bad.replay()
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            # A wait that is given up cancels nothing.
            await eng.submit(lambda x: x.fill(0), writes=[x], using=np.from_dlpack)
            waiting = asyncio.ensure_future(asyncio.wait_for(step.replay(), 30))
            await asyncio.sleep(0)
            waiting.cancel()
            await step.replay()
            return value(np, await x)

    assert asyncio.run(main()) == [6.0]


def test_cancelling_a_replay_cancels_each_asynchronous_node_that_runs(eng):
    async def main():
        begun, ended, cancelled = [], [], []

        def node(name, seconds):
            async def sleep():
                begun.append(name)
                try:
                    await asyncio.sleep(seconds)
                    ended.append(name)
                except asyncio.CancelledError:
                    cancelled.append(name)
                    raise

            return sleep

        with eng.program() as p:
            for name, seconds in [("first", 60), ("second", 60), ("short", 0.01)]:
                p.submit(node(name, seconds))
        op = p.replay()
        while len(begun) < 3 or not ended:
            await asyncio.sleep(0.001)
        assert op.cancel()
        with pytest.raises((est.OperationError, est.CancelledError)):
            await op
        assert sorted(cancelled) == ["first", "second"] and ended == ["short"]

    asyncio.run(main())


def test_a_node_runs_in_a_copy_of_the_recorders_context(np, eng):
    variable = contextvars.ContextVar("variable", default=0)
    seen = []

    def node():
        seen.append(variable.get())
        variable.set(99)

    variable.set(7)
    with eng.program() as p:
        p.submit(node)
    variable.set(8)
    for _ in range(3):
        p.replay().wait(timeout=30)
    assert seen == [7, 7, 7] and variable.get() == 8


def test_long_nodes_run_beside_each_other(np, eng):
    """Two nodes that wait for each other, without the Python lock: once it is known that they are long, two threads share them."""
    first = True
    barrier = threading.Barrier(2, timeout=30)

    def node():
        if first:
            time.sleep(0.01)
        else:
            barrier.wait()

    with eng.program() as p:
        p.submit(node)
        p.submit(node)
    p.replay().wait(timeout=30)
    first = False
    # The length of nodes is noted after the end of the replay. A worker that is here has left it.
    for op in [eng.submit(barrier.wait, name="here") for _ in range(2)]:
        op.wait(timeout=30)
    p.replay().wait(timeout=30)


def test_replays_race_with_submissions_of_other_threads(np, eng):
    x = eng.zeros(1, "int64")
    add = lambda x: np.add(x, 1, out=x)
    with eng.program("two") as two:
        two.submit(add, writes=[x], using=np.from_dlpack)
        two.submit(add, writes=[x], using=np.from_dlpack)

    def submits():
        for _ in range(200):
            eng.submit(add, writes=[x], using=np.from_dlpack)

    def replays():
        for _ in range(100):
            two.replay()

    threads = [threading.Thread(target=target) for target in (submits, replays, replays)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(np, x) == [600]


def test_an_engine_closes_while_replays_are_under_way_and_programs_may_be_released(np):
    calls = []
    with est.Engine(workers=2) as eng:
        x = eng.zeros(1, "float64")
        with eng.program() as p:
            p.submit(lambda x: (time.sleep(0.005), calls.append(1)), writes=[x])
        for _ in range(10):
            p.replay()
        kept = p
        del p
        gc.collect()
    assert len(calls) == 10
    with pytest.raises(est.ShutdownError):
        kept.replay()


def test_a_program_is_released_with_what_it_holds(np, eng):
    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)
    x = eng.zeros(1, "float64")
    with eng.program() as p:
        p.submit(lambda x, held=held: None, writes=[x])
    last = p.replay()
    del held, p
    last.wait(timeout=30)
    eng.wait_all(timeout=30)
    # The worker releases the program after it has reported the end of the replay.
    until(lambda: gc.collect() is not None and gone() is None)


def test_a_program_that_its_own_functions_refer_to_is_collected(np, eng):
    class Trainer:
        def __init__(self):
            self.x = eng.zeros(1, "float64")
            self.steps = 0
            with eng.program("step") as self.program:
                self.program.submit(self.step, writes=[self.x])

        def step(self, x):
            self.steps += 1

    trainer = Trainer()
    for _ in range(3):
        trainer.program.replay().wait(timeout=30)
    gc.collect()
    assert trainer.steps == 3
    gone = weakref.ref(trainer)
    # While a replay is under way, nothing of it is taken apart.
    gate = threading.Event()
    eng.submit(lambda x: gate.wait(30), writes=[trainer.x])
    steps = []
    trainer.step_seen = steps
    replay = trainer.program.replay()
    del trainer
    gc.collect()
    gate.set()
    replay.wait(timeout=30)
    eng.wait_all(timeout=30)
    until(lambda: gc.collect() is not None and gone() is None)


def test_ten_thousand_replays_leave_no_memory_behind(np):
    pytest.importorskip("resource")
    # In a process of its own: in one that has loaded every peer, their memory grows at any time.
    out, _ = run_program(
        """
        import gc, os, resource
        import numpy as np, estafette as est

        many = 20_000 if "ESTAFETTE_FEW_EXAMPLES" in os.environ else 40_000
        with est.Engine(workers=1) as eng:
            x, y = eng.zeros(4, "float64"), eng.zeros(4, "float64")
            with eng.program("step") as step:
                step.submit(lambda x, y: np.add(x, 1, out=y), reads=[x], writes=[y], using=np.from_dlpack)
                step.submit(lambda y, x: np.copyto(x, y), reads=[y], writes=[x], using=np.from_dlpack)

            def replays(count):
                for _ in range(count):
                    step.replay()
                eng.wait_all(timeout=60)
                gc.collect()
                return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

            before = replays(5_000)
            after = replays(many)
            assert np.from_dlpack(x.to_host()).tolist() == [5_000.0 + many] * 4
            print((after - before) * 1_000 // many)
        """,
        timeout=120,
    )
    # Two nodes a replay, some hundred bytes each if they were kept: four hundred KiB for a thousand replays at least.
    assert int(out) < 200, f"{out} KiB for a thousand replays"


def test_a_program_of_a_forked_child_is_refused(np, eng):
    import os

    with eng.program() as p:
        p.submit(lambda: None)
    p.replay().wait(timeout=30)
    child = os.fork()
    if child == 0:
        try:
            p.replay()
        except est.ForkedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
