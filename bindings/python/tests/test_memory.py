"""Memory comes back: every deleter is called exactly once, and resident memory stays flat."""

import asyncio
import concurrent.futures
import gc
import os
import random
import traceback
import weakref

import pytest

import estafette as est
from capsules import Made
from conftest import examples, until

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident():
    """Bytes of this process in memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def settled(eng):
    """The counts, once what earlier tests have left behind is gone: they are those of the process."""
    gc.collect()
    until(lambda: eng.stats().releasing == 0)
    return eng.stats()


@pytest.fixture
def flat(eng):
    """Runs a round many times and checks that memory grows no more after a warm-up. Gives how many rounds ran.

    A leak grows with every run; what the peers of this process allocate now and then does not.
    """
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("no /proc on this platform: resident memory cannot be read")

    def run(round_, *, warm_up, rounds, allowed):
        def run_rounds(count):
            for _ in range(count):
                round_()
            eng.wait_all(30)
            until(lambda: eng.stats().releasing == 0)

        full, rounds = rounds, examples(rounds)
        # Not less than what peers take now and then.
        allowed = max(allowed * rounds // full, 512 << 10)
        run_rounds(warm_up)
        grown = []
        while not grown or (grown[-1] > allowed and len(grown) < 3):
            before = resident()
            run_rounds(rounds)
            grown.append(resident() - before)
        assert grown[-1] <= allowed, f"{grown} bytes more after {rounds} rounds each"
        return warm_up + rounds * len(grown)

    return run


def test_round_trips_through_numpy_leave_nothing(eng, np, flat):
    before = settled(eng)

    def round_():
        x = np.empty(1000, "float32")
        a = np.from_dlpack(eng.from_dlpack(x))
        assert a.ctypes.data == x.ctypes.data

    ran = flat(round_, warm_up=5_000, rounds=50_000, allowed=2 << 20)
    after = eng.stats()
    assert after.imported - before.imported == after.deleters - before.deleters == ran
    assert after.leaked == before.leaked


def test_operations_and_results_leave_nothing(eng, np, flat):
    def round_():
        x = eng.from_dlpack(np.ones(1000, "float32"))
        y = eng.empty(1000, "float32")
        eng.submit(lambda x, y: np.add(x, 1, out=y), reads=[x], writes=[y], using=np.from_dlpack)
        z = eng.call(lambda y: y * 2, y, using=np.from_dlpack)
        z.wait()
        assert np.from_dlpack(z)[0] == 4

    flat(round_, warm_up=500, rounds=3_000, allowed=2 << 20)


def test_failures_and_cancels_leave_nothing(eng, np, flat):
    def fail(x):
        raise ValueError(x.shape)

    def round_():
        x = eng.from_dlpack(np.ones(10_000, "float32"))
        y = eng.call(fail, x, using=np.from_dlpack)
        eng.submit(lambda y: None, reads=[y]).cancel()
        with pytest.raises(est.OperationError):
            y.wait()

    flat(round_, warm_up=500, rounds=3_000, allowed=2 << 20)


class Kept:
    """Objects that variables of a function own beside tensors."""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["waited", "retrieved", "raised_again", "of_an_operation", "of_a_chain"])
def test_a_failure_keeps_no_variables_of_those_who_waited(workers, kind):
    def fail(*_):
        raise ValueError("no data")

    def use(eng):
        kept = Kept()
        x = eng.zeros(1, "int8")
        t = eng.submit(fail, writes=[x]) if kind == "of_an_operation" else eng.call(fail, x)
        if kind == "of_a_chain":
            t = eng.call(fail, t)
        try:
            try:
                t.wait()
            except est.OperationError as error:
                if kind == "retrieved":
                    saved = t.exception()
                    assert saved.__cause__ is error.__cause__
                if kind not in ("waited", "retrieved"):
                    raise error.__cause__
        except ValueError:
            pass
        return weakref.ref(kept), x, t

    with est.Engine(workers=workers) as eng:
        # The failed tensors live on, as do the failures with the frames of the body.
        kept, *failed = use(eng)
        gc.collect()
        assert kept() is None
        cause = failed[-1].exception().__cause__
        assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["fail"]
        # So do they where a tensor is owned by the variables alone.
        del failed, cause
        kept, *_ = use(eng)
        del _
        gc.collect()
        assert kept() is None


def test_a_cause_that_somebody_owns_keeps_its_traceback(eng):
    def fail():
        raise ValueError("no data")

    def raise_cause(t):
        try:
            t.wait()
        except est.OperationError as error:
            raise error.__cause__

    t = eng.call(fail)
    with pytest.raises(ValueError) as caught:
        raise_cause(t)
    gc.collect()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "raise_cause" in names and names[-1] == "fail"
    assert isinstance(caught.value.__context__, est.OperationError)


@pytest.mark.parametrize("how", ["fails", "is_cancelled"])
def test_a_future_that_fails_keeps_no_variables_of_those_who_set_it(eng, how):
    def use():
        kept, future = Kept(), concurrent.futures.Future()
        t = eng.from_future(future)
        future.set_exception(ValueError("no data")) if how == "fails" else future.cancel()
        with pytest.raises(est.EstafetteError):
            t.wait()
        return weakref.ref(kept)

    kept = use()
    gc.collect()
    assert kept() is None


def test_awaits_leave_nothing(eng, np, flat):
    async def main():
        for _ in range(20):
            x = eng.from_dlpack(np.ones(1000, "float32"))
            y = eng.call(lambda x: x + 1, x, using=np.from_dlpack)
            await y
            with pytest.raises(TimeoutError):
                z = eng.call(lambda y: y + 1, y, using=np.from_dlpack)
                await asyncio.wait_for(asyncio.sleep(1), 0)
            async with z.read(np.from_dlpack) as view:
                assert view[0] == 3
                del view

    flat(lambda: asyncio.run(main()), warm_up=20, rounds=100, allowed=3 << 20)


def test_engines_leave_nothing(np, flat):
    def round_():
        with est.Engine(workers=2) as eng:
            x = eng.zeros(1000, "float32")
            eng.submit(lambda x: x.fill(1), writes=[x], using=np.from_dlpack)

    flat(round_, warm_up=30, rounds=200, allowed=4 << 20)


def test_every_deleter_is_called_once_whatever_the_order(np):
    """Random programs of imports, exports, operations and drops."""
    # Nothing looks at the operations that fail.
    eng = est.Engine(workers=2, lease_timeout=2.0, failures="ignore")
    random.seed(11)
    made, tensors, arrays = [], [], []

    def body(*_views):
        if random.random() < 0.1:
            raise RuntimeError("sometimes")
        if random.random() < 0.1:
            arrays.extend(_views)

    for _ in range(3_000):
        match random.randrange(6):
            case 0 | 1:
                made.append(Made(shape=(16,), legacy=random.random() < 0.3))
                tensors.append(eng.from_dlpack(made[-1].capsule))
            case 2 if tensors:
                arrays.append(np.from_dlpack(random.choice(tensors).alias()))
            case 3 if tensors:
                eng.submit(body, reads=random.sample(tensors, min(3, len(tensors))), using=np.from_dlpack)
            case 4 if tensors:
                del tensors[random.randrange(len(tensors))]
            case 5 if arrays:
                del arrays[random.randrange(len(arrays))]
    eng.wait_all(30)
    assert all(one.deleted <= 1 for one in made)
    until(lambda: any(one.deleted for one in made))
    assert sum(one.deleted for one in made) < len(made)
    tensors.clear()
    arrays.clear()
    gc.collect()
    until(lambda: all(one.deleted == 1 for one in made))


def test_an_import_inside_a_lease_keeps_the_lease(eng, np):
    x = np.arange(4.0)
    gone = weakref.ref(x)
    t = eng.from_dlpack(x)
    derived = eng.from_dlpack(np.from_dlpack(t))
    del x, t
    gc.collect()
    assert gone() is not None and np.from_dlpack(derived)[3] == 3
    del derived
    until(lambda: gone() is None)


@pytest.mark.parametrize("kind", ["engine", "access"])
def test_an_object_whose_method_makes_the_arrays_of_what_it_keeps_is_collected(eng, kind):
    class Owner:
        def __init__(self):
            self.kept = est.Engine(workers=1, using=self.array) if kind == "engine" else eng.zeros(1, "int8").read(using=self.array)

        def array(self, x):
            return x

    gone = weakref.ref(Owner())
    gc.collect()
    assert gone() is None
