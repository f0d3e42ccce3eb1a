"""A hundred thousand exchanges with random drops, from several threads and with every peer: the books balance."""

import asyncio
import gc
import os
import random
import threading

import pytest

import estafette as est
from conftest import peer, until

ROUND_TRIPS = 100_000

# Allocators keep what they once had; that is over after the warm-up.
WARM_UP = 20_000

# The deleters' thread is behind by up to some thousand arrays on a busy machine, and allocators would keep that too.
# So the exchange pauses after this many until it has caught up: what grows then, stays.
CATCH_UP = 1_000
GROWTH_MAX = 2 << 20  # 26 bytes for each round trip after the warm-up


def resident():
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Books:
    """Tensors that the engines of this process have taken and returned since this was made."""

    def __init__(self, eng):
        self.eng = eng
        # The counts are those of the process: what earlier tests have left behind goes first.
        until(lambda: gc.collect() is not None and eng.stats().releasing == 0)
        self.start = eng.stats()

    @property
    def imported(self):
        return self.eng.stats().imported - self.start.imported

    @property
    def deleters(self):
        return self.eng.stats().deleters - self.start.deleters

    def balance(self):
        """Waits until every import was released, and no more than that."""
        until(lambda: gc.collect() is not None and self.deleters >= self.imported, seconds=30)
        now = self.eng.stats()
        assert self.deleters == self.imported
        assert now.leaked == self.start.leaked and now.in_flight == 0
        until(lambda: self.eng.stats().releasing == 0)


def assert_flat(before):
    gc.collect()
    growth = resident() - before
    assert growth < GROWTH_MAX, f"{growth >> 10} KiB more than after the warm-up"


def test_many_round_trips_with_random_drops_leave_nothing_behind(eng, np):
    dice = random.Random(20)
    books = Books(eng)
    kept = [None] * 64
    for step in range(ROUND_TRIPS):
        if step % CATCH_UP == 0:
            until(lambda: eng.stats().releasing == 0)
        if step == WARM_UP:
            gc.collect()
            before = resident()
        source = np.zeros(64, "float32")
        match dice.randrange(5):
            case 0:
                thing = eng.from_dlpack(source)
            case 1:
                thing = np.from_dlpack(eng.from_dlpack(source))
            case 2:
                # A round trip: the second tensor is derived from a lease of the first.
                thing = eng.from_dlpack(np.from_dlpack(eng.from_dlpack(source)))
            case 3:
                # A capsule that no library consumes.
                thing = eng.from_dlpack(source).__dlpack__(max_version=(1, 0))
            case 4:
                tensor = eng.from_dlpack(source)
                thing = (tensor, np.from_dlpack(tensor), np.from_dlpack(tensor))
        kept[dice.randrange(len(kept))] = thing
    assert books.imported >= ROUND_TRIPS
    del thing, tensor
    kept.clear()
    books.balance()
    assert_flat(before)


def test_several_threads_exchange_at_once(eng, np):
    books = Books(eng)
    rounds = 3000
    failures = []

    def exchange(seed):
        try:
            dice = random.Random(seed)
            kept = [None] * 16
            for _ in range(rounds):
                tensor = eng.from_dlpack(np.full(8, seed))
                array = np.from_dlpack(tensor)
                assert (array == seed).all()
                kept[dice.randrange(16)] = dice.choice([tensor, array])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=exchange, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert books.imported == 4 * rounds
    books.balance()


@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_operations_of_each_peer_leave_nothing_behind(eng, name):
    lib = peer("jax.numpy" if name == "jax" else name)
    books = Books(eng)
    for _ in range(100):
        promise = eng.from_dlpack(lib.ones(64))
        for _ in range(5):
            promise = eng.call(lambda array: array + 1, promise, using=lib.from_dlpack)
        promise.wait()
    assert books.imported >= 600
    del promise
    books.balance()


def test_awaits_that_are_given_up_leave_nothing_behind(np):
    async def main(eng):
        books = Books(eng)
        array = np.from_dlpack(blocked := eng.zeros(4, "float32"))
        eng.submit(lambda _: None, writes=[blocked])

        async def wait():
            await blocked

        for _ in range(100):
            tasks = [asyncio.create_task(wait()) for _ in range(50)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        del tasks
        gc.collect()
        assert not [found for found in gc.get_objects() if type(found).__name__ == "_Awaiter"]
        del array
        await blocked
        assert books.imported == books.deleters

    with est.Engine(workers=1) as eng:
        asyncio.run(main(eng))


def test_a_function_that_holds_its_own_tensor_is_released_with_its_operation(eng, np):
    books = Books(eng)
    for _ in range(200):
        tensor = eng.from_dlpack(np.zeros(64))
        eng.submit(lambda array, tensor=tensor: tensor.shape, reads=[tensor], using=np.from_dlpack)
    del tensor
    eng.wait_all()
    books.balance()


def test_the_workers_of_engines_that_are_gone_are_gone_too(np):
    def threads():
        return len(os.listdir("/proc/self/task"))

    def run():
        with est.Engine(workers=4) as eng:
            tensor = eng.from_dlpack(np.zeros(1000))
            eng.submit(lambda array: array.__iadd__(1), writes=[tensor], using=np.from_dlpack)

    # The threads of the process itself, reactor and reaper, are there after the first engine and stay.
    run()
    before = threads()
    for _ in range(20):
        run()
    until(lambda: threads() <= before)
