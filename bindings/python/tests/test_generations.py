"""Leases that outlive their operation do not confuse the next one: the same tensor through many generations, with views
alive across bodies, blocks and awaits."""

import asyncio
import gc
import random
import threading

import pytest

import estafette as est
from conftest import examples, until

GENERATIONS = examples(300)


def held(eng):
    """The leases that are held."""
    return [known for known in eng.diagnose().operations if known.status == "held"]


def test_a_view_kept_by_each_body_holds_up_the_next_writer_and_nobody_else(eng, np):
    t = eng.zeros(1, "int64")
    kept = []
    for generation in range(GENERATIONS):
        eng.submit(kept.append, reads=[t], using=np.from_dlpack).wait()
        reading = eng.submit(lambda x: None, reads=[t])
        writing = eng.submit(lambda x, g=generation: x.fill(g + 1), writes=[t], using=np.from_dlpack)
        reading.wait()
        assert not writing.is_done() and kept[0][0] == generation
        kept.clear()
        writing.wait()
    assert np.from_dlpack(t)[0] == GENERATIONS
    assert eng.diagnose().is_idle


def test_a_view_of_an_older_generation_still_counts_when_newer_ones_are_gone(eng, np):
    t = eng.zeros(1, "int64")
    oldest = np.from_dlpack(t)
    for _ in range(GENERATIONS):
        newer = np.from_dlpack(t)
        del newer
        eng.submit(lambda x: None, reads=[t]).wait()
    assert len(held(eng)) == 1
    writing = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
    # Views of this generation wait behind the writer: only the oldest is in its way.
    (waiting,) = [known for known in eng.diagnose().operations if known.status == "waiting"]
    assert len(waiting.blocked_by) == 1 and waiting.blocked_by[0].id == held(eng)[0].id
    del oldest
    writing.wait()
    assert np.from_dlpack(t)[0] == 1


def test_write_views_that_outlive_their_bodies_pass_the_tensor_on_in_order(eng, np):
    t = eng.zeros(1, "int64")
    ops, baton = [], threading.Semaphore(0)
    kept = []

    def body(x, generation):
        assert x[0] == generation, "another writer got in between"
        kept.append(x)
        baton.release()

    for generation in range(GENERATIONS):
        ops.append(eng.submit(lambda x, g=generation: body(x, g), writes=[t], using=np.from_dlpack))
    for generation in range(GENERATIONS):
        assert baton.acquire(timeout=30)
        # The body has ended or is about to; the view writes on, and the next body sees it.
        view = kept.pop()
        view[0] = generation + 1
        del view
    for op in ops:
        op.wait(30)
    assert np.from_dlpack(t)[0] == GENERATIONS


def test_failures_and_cancellations_between_kept_views_leave_no_lease_behind(eng, np):
    t = eng.zeros(1, "int64")
    kept = []

    def fails(x):
        kept.append(x)
        raise ValueError("no")

    for generation in range(GENERATIONS):
        failing = eng.submit(fails, writes=[t], using=np.from_dlpack)
        behind = eng.submit(lambda x: None, reads=[t])
        cancelled = eng.submit(lambda x: None, writes=[t])
        with pytest.raises(est.OperationError):
            failing.wait()
        # Held up by the view of the body that failed, so it has not begun.
        assert cancelled.cancel()
        kept.clear()
        with pytest.raises(est.OperationError):
            behind.wait()
        eng.submit(lambda x, g=generation: x.fill(g), writes=[t], using=np.from_dlpack).wait()
        assert np.from_dlpack(t)[0] == generation
    assert eng.diagnose().is_idle


def test_tensors_derived_from_leases_of_many_generations(eng, np):
    t = eng.zeros(4, "int64")
    for generation in range(GENERATIONS):
        derived = eng.from_dlpack(np.from_dlpack(t))
        again = eng.from_dlpack(np.from_dlpack(derived)[1:3])
        writing = eng.submit(lambda x, g=generation: x.fill(g + 1), writes=[t], using=np.from_dlpack)
        seen = eng.call(lambda x: x.copy(), again, using=np.from_dlpack)
        assert np.from_dlpack(seen).tolist() == [generation] * 2
        del derived
        assert not writing.is_done()
        del again
        writing.wait()
    until(lambda: eng.diagnose().is_idle)


def test_scoped_leases_of_many_generations_and_what_outlives_them(eng, np):
    a, b = eng.zeros(1, "int64"), eng.zeros(1, "int64")
    outlives = None
    for generation in range(GENERATIONS):
        with eng.access(reads=[a], writes=[b], using=np.from_dlpack) as (x, y):
            y[0] = x[0] + 1
            del y
        # The view of the block before is gone only now: until then it was a reader of `a`.
        outlives = x
        del x
        copying = eng.submit(lambda b, a: np.copyto(a, b), reads=[b], writes=[a], using=np.from_dlpack)
        assert not copying.is_done() and len(held(eng)) == 1
        outlives = None
        copying.wait()
    assert outlives is None
    assert (np.from_dlpack(a)[0], np.from_dlpack(b)[0]) == (GENERATIONS, GENERATIONS)


def test_asynchronous_bodies_whose_views_outlive_them(np):
    async def main(eng):
        t = eng.zeros(1, "int64")
        kept = []

        async def body(x):
            await asyncio.sleep(0)
            kept.append(x)

        for generation in range(GENERATIONS):
            await eng.submit(body, reads=[t], using=np.from_dlpack)
            writing = eng.submit(lambda x, g=generation: x.fill(g + 1), writes=[t], using=np.from_dlpack)
            waiting = asyncio.ensure_future(t)
            await asyncio.sleep(0)
            assert not writing.is_done() and kept[0][0] == generation
            kept.clear()
            assert await waiting is t
            async with t.read(np.from_dlpack) as view:
                assert view[0] == generation + 1
                del view
            await writing
        assert eng.diagnose().is_idle

    with est.Engine(workers=2, lease_timeout=2.0) as eng:
        asyncio.run(main(eng))


def test_tasks_hold_views_of_one_tensor_across_their_awaits(np):
    """Readers and writers of one tensor, each a task that keeps its view while it awaits something else."""

    async def main(eng):
        t = eng.zeros(1, "int64")
        writes = 0

        async def reader():
            async with t.read(np.from_dlpack) as view:
                before = int(view[0])
                await asyncio.sleep(random.random() * 0.002)
                assert view[0] == before, "a writer got in"
                del view

        async def writer():
            nonlocal writes
            async with t.write(np.from_dlpack) as view:
                before = int(view[0])
                await asyncio.sleep(random.random() * 0.002)
                assert view[0] == before, "another writer got in"
                view[0] = before + 1
                writes += 1
                del view

        async def gives_up():
            try:
                async with asyncio.timeout(random.random() * 0.002):
                    async with t.write():
                        await asyncio.sleep(random.random() * 0.002)
            except TimeoutError:
                pass

        kinds = random.Random(7).choices([reader, writer, gives_up], k=400)
        await asyncio.gather(*(kind() for kind in kinds))
        assert np.from_dlpack(t)[0] == writes == kinds.count(writer)

    with est.Engine(workers=2, lease_timeout=5.0) as eng:
        asyncio.run(asyncio.wait_for(main(eng), 60))


def test_views_that_pass_between_threads_and_end_anywhere(eng, np):
    """Each view is taken in one place and dropped in another, at random moments, while writers come all the time."""
    tensors = [eng.zeros(1, "int64") for _ in range(3)]
    lock, pile, written = threading.Lock(), [], [0, 0, 0]

    def drops(seed):
        dice = random.Random(seed)
        while not done.is_set() or pile:
            with lock:
                taken = [pile.pop(dice.randrange(len(pile)))] if pile else []
            for view, before in taken:
                assert view[0] == before, "a writer got in while the view was alive"
            taken.clear()
            view = None

    done = threading.Event()
    threads = [threading.Thread(target=drops, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    dice = random.Random(5)

    def keep(view):
        with lock:
            pile.append((view, int(view[0])))

    for _ in range(examples(2_000)):
        at = dice.randrange(3)
        if dice.random() < 0.3:
            written[at] += 1
            eng.submit(lambda x: x.__iadd__(1), writes=[tensors[at]], using=np.from_dlpack)
        else:
            eng.submit(keep, reads=[tensors[at]], using=np.from_dlpack)
    eng.wait_all(60)
    done.set()
    for thread in threads:
        thread.join(60)
    gc.collect()
    assert [int(np.from_dlpack(t)[0]) for t in tensors] == written
    until(lambda: eng.diagnose().is_idle)
