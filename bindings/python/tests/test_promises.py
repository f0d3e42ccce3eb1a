"""`__estafette_promise__`: readiness as a C struct, both ways, and nobody blocks in between."""

import asyncio
import gc
import threading

import pytest

import estafette as est
import promises
from conftest import until
from promises import FAILED, OK, PENDING, TIMEOUT, Array, Fence, error_of, fence_in


class TestOurs:
    """The promise of our tensors, as a consumer in C sees it."""

    def test_it_is_asked_and_waited_for(self, eng, np, gate):
        def produce():
            gate()
            return np.ones(3)

        t = eng.call(produce)
        capsule = t.__estafette_promise__
        fence = fence_in(capsule)
        assert (fence.version, fence.device_type, fence.device_id) == (1, 1, 0)
        assert fence.query(fence.context) == PENDING
        assert fence.wait(fence.context, 1_000_000) == TIMEOUT
        gate.open()
        assert fence.wait(fence.context, 2**64 - 1) == OK and fence.query(fence.context) == OK

    def test_it_calls_back(self, eng, np, gate):
        t = eng.call(lambda: (gate(), np.ones(3))[1])
        capsule = t.__estafette_promise__
        fence = fence_in(capsule)
        told = threading.Event()
        callback = promises.CALLBACK(lambda argument, status, message: told.set())
        token = promises.ctypes.c_uint64()
        assert fence.subscribe(fence.context, callback, None, promises.ctypes.byref(token)) == OK
        assert not told.is_set()
        gate.open()
        assert told.wait(30)

    def test_it_is_of_the_version_at_the_call_and_outlives_its_tensor(self, eng, np, gate):
        t = eng.zeros(3, "float32")
        capsule = t.__estafette_promise__
        fence = fence_in(capsule)
        eng.submit(gate, writes=[t])
        later = t.__estafette_promise__
        assert fence.query(fence.context) == OK
        del t
        gc.collect()
        assert fence_in(later).query(fence_in(later).context) == PENDING
        gate.open()
        assert fence_in(later).wait(fence_in(later).context, 2**64 - 1) == OK

    def test_a_failure_is_told_with_its_text(self, eng):
        def fails():
            raise RuntimeError("no water")

        t = eng.call(fails, name="draw")
        capsule = t.__estafette_promise__
        fence = fence_in(capsule)
        assert fence.wait(fence.context, 2**64 - 1) == FAILED
        assert b"operation `draw`" in error_of(fence) and b"no water" in error_of(fence)

    def test_a_capsule_that_nobody_takes_gives_its_count_back(self, eng):
        t = eng.zeros(3, "float32")
        for _ in range(1000):
            assert fence_in(t.__estafette_promise__).version == 1
        del t
        gc.collect()


@pytest.mark.parametrize("pushes", [True, False], ids=["pushed", "polled"])
@pytest.mark.parametrize("at_once", [True, False], ids=["memory at once", "memory later"])
class TestTheirs:
    """Objects of frameworks that have their own promises."""

    def test_an_import_does_not_wait_and_order_holds(self, eng, np, pushes, at_once):
        values, fence = np.zeros(3), Fence(pushes)
        theirs = Array(values, fence, at_once)
        t = eng.from_dlpack(theirs)
        total = eng.call(lambda x: x + 1, t, using=np.from_dlpack)
        assert not t.is_ready() and not total.is_ready()
        assert theirs.exports == ([-1] if at_once else [])
        values[:] = [1, 2, 3]
        fence.settle()
        total.wait(30)
        assert np.from_dlpack(total).tolist() == [2.0, 3.0, 4.0]
        assert t.data_ptr == values.ctypes.data

    def test_it_is_awaited(self, np, pushes, at_once):
        async def main(eng):
            fence = Fence(pushes)
            t = eng.from_dlpack(Array(np.ones(2), fence, at_once))
            asyncio.get_running_loop().call_later(0.01, fence.settle)
            await t
            return np.from_dlpack(t).tolist()

        with est.Engine(workers=1) as eng:
            assert asyncio.run(main(eng)) == [1.0, 1.0]

    def test_a_failure_travels_with_its_message(self, eng, np, pushes, at_once):
        fence = Fence(pushes)
        t = eng.from_dlpack(Array(np.ones(2), fence, at_once))
        after = eng.call(lambda x: x, t, using=np.from_dlpack)
        fence.settle(FAILED, b"their paper is jammed")
        for tensor in (t, after):
            with pytest.raises(est.EstafetteError, match="their paper is jammed"):
                tensor.wait(30)

    def test_the_fence_is_given_back(self, eng, np, pushes, at_once):
        fence = Fence(pushes)
        t = eng.from_dlpack(Array(np.ones(2), fence, at_once))
        assert fence.holders >= 1
        fence.settle()
        t.wait(30)
        del t
        until(lambda: gc.collect() is not None and fence.holders == 0)


class TestKept:
    def test_what_is_ready_already_comes_in_as_everything_else(self, eng, np):
        fence = Fence()
        fence.settle()
        theirs = Array(np.arange(3), fence, at_once=True)
        t = eng.from_dlpack(theirs)
        assert t.is_ready() and theirs.exports == [None]

    def test_bad_promises_are_refused(self, eng, np):
        class NoCapsule(Array):
            __estafette_promise__ = 3

        with pytest.raises(TypeError, match="`__estafette_promise__` of .*NoCapsule is no capsule"):
            eng.from_dlpack(NoCapsule(np.ones(1), Fence(), True))
        fence = Fence()
        fence.raw.version = 7
        with pytest.raises(est.InvalidError, match="fence: version is 7"):
            eng.from_dlpack(Array(np.ones(1), fence, True))
        assert fence.holders == 0

    def test_writable_waits_for_readers_that_have_their_own_promises_too(self, eng, np, gate):
        t = eng.zeros(3, "float32")
        eng.submit(gate, reads=[t])

        async def main():
            waiting = asyncio.ensure_future(t.writable())
            await asyncio.sleep(0.01)
            assert gate.entered.is_set() and t.is_ready() and not waiting.done()
            gate.open()
            assert await waiting is t

        assert gate.entered.wait(30)
        asyncio.run(main())
