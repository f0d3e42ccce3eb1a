"""Functions that return several arrays, or none: declared, or known when they have returned."""

import asyncio
import collections
import dataclasses
import datetime
import enum
import gc
import pathlib
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import estafette as est
from conftest import until

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class State:
    weight: object
    step: int


class Label(enum.StrEnum):
    LOW = "low"


class Color(enum.IntEnum):
    RED = 1


@pytest.fixture
def x(eng, np):
    return eng.from_dlpack(np.arange(3.0))


def value(np, t):
    return np.from_dlpack(t).tolist()


class TestUnpacked:
    def test_a_tuple_is_unpacked(self, eng, np, x):
        quotient, rest = eng.call(np.divmod, x, 2)
        assert value(np, quotient) == [0.0, 0.0, 1.0] and value(np, rest) == [0.0, 1.0, 0.0]

    def test_the_structure_is_kept(self, eng, np, x):
        def several(x):
            return {"pair": Pair(x + 1, None), "states": [State(x * 2, 7)], "count": 3}

        t = eng.call(several, x, using=np.from_dlpack)
        assert isinstance(t, est.Tensor)
        assert list(t) == ["pair", "states", "count"] and len(t) == 3
        assert type(t["pair"]) is Pair and t["pair"].right is None and t["count"] == 3
        assert type(t["states"][0]) is State and t["states"][0].step == 7
        assert value(np, t["pair"].left) == [1.0, 2.0, 3.0]
        assert value(np, t["states"][0].weight) == [0.0, 2.0, 4.0]
        # The same promises every time.
        assert t["pair"].left is t["pair"].left

    def test_nothing_is_a_result(self, eng, x):
        seen = []
        t = eng.call(lambda x: seen.append(1), x)
        t.wait()
        assert seen == [1] and t.is_ready() and "no single array" in repr(t)

    @pytest.mark.parametrize("value", [7, 0.5, True, 1j, "text", Label.LOW, Color.RED])
    def test_a_number_and_text_are_results(self, eng, np, x, value):
        t = eng.call(lambda x: value, x)
        assert t.result(30) is value and t.future().result(30) is value
        with pytest.raises(TypeError, match=r"no single array.*t\.result"):
            np.from_dlpack(t)
        # Those of NumPy are arrays.
        assert np.from_dlpack(eng.call(lambda x: np.float64(0.5), x)).shape == ()

    @pytest.mark.parametrize(
        "value",
        [b"ab", {1, 2}, frozenset(), pathlib.Path("a"), datetime.datetime(2026, 1, 1), range(3), object(), int, Label],
        ids=lambda value: type(value).__name__,
    )
    def test_what_is_no_array_is_passed_on_alone_and_among_others(self, eng, np, x, value):
        assert eng.call(lambda x: value, x).result(30) is value
        assert eng.call(lambda x: (value, x + 1), x, using=np.from_dlpack)[0] is value

    def test_an_object_of_an_array_library_is_passed_on(self, eng, np):
        made = eng.call(np.random.default_rng, 0).result(30)
        assert type(made) is np.random.Generator
        assert eng.call(lambda: np.dtype("int8")).result(30) == np.int8

    def test_arrays_in_a_deque_become_promises(self, eng, np, x):
        first, second = made = eng.call(lambda x: collections.deque([x + 1, "text"], 3), x, using=np.from_dlpack).result(30)
        assert value(np, first) == [1.0, 2.0, 3.0] and second == "text" and (type(made), made.maxlen) == (collections.deque, 3)

    def test_where_an_array_is_declared_other_results_fail(self, eng):
        for declared in ({"like": ((), "int64")}, {"outputs": 1}):
            t = eng.call(lambda: [object()] if "outputs" in declared else object(), **declared)
            with pytest.raises(est.OperationError, match="object has no `__dlpack__` and no buffer"):
                (t[0] if "outputs" in declared else t).wait(30)

    def test_text_and_classes_of_numpy_are_no_arrays(self, eng, np, x):
        labels = np.array(["low"])
        assert eng.call(lambda: labels[0]).result(30) == "low"
        kind, label, y = eng.call(lambda x: (type(x), labels[0], x + 1), x, using=np.from_dlpack)
        assert kind is np.ndarray and label == "low" and value(np, y) == [1.0, 2.0, 3.0]

    def test_await_gives_what_the_function_returned(self, np):
        async def main():
            async with est.Engine(workers=2) as eng:
                x = eng.from_dlpack(np.arange(3.0))
                quotient, rest = await eng.call(np.divmod, x, 2)
                # They are there: nothing stops the loop.
                assert value(np, quotient) == [0.0, 0.0, 1.0] and value(np, rest) == [0.0, 1.0, 0.0]
                assert await eng.call(lambda: None) is None
                assert value(np, (await eng.call(lambda x: {"y": x + 1}, x, using=np.from_dlpack))["y"]) == [1.0, 2.0, 3.0]
                release = threading.Event()
                late = eng.call(lambda x: (release.wait(), x), x, using=np.from_dlpack)
                with pytest.raises(est.WouldBlockError):
                    late[0]
                release.set()
                assert (await late)[0] is True

        asyncio.run(main())

    @pytest.mark.parametrize(
        ("value", "dtype"), [(7, "int64"), (-0.5, "float64"), (True, "bool"), (1 - 2j, "complex128")]
    )
    def test_a_number_that_was_declared_is_an_array_without_dimensions(self, eng, np, x, value, dtype):
        like = eng.call(lambda x: value, x, like=((), dtype))
        single, array = eng.call(lambda x: (value, x + 1), x, using=np.from_dlpack, outputs=2)
        for t in (like, single):
            result = np.from_dlpack(t)
            assert (result.shape, result.dtype.name, result.tolist()) == ((), dtype, value)
        assert np.from_dlpack(array).tolist() == [1.0, 2.0, 3.0]

    def test_an_integer_of_more_than_64_bits_is_no_array(self, eng):
        with pytest.raises(est.OperationError, match="OverflowError"):
            eng.call(lambda: 1 << 64, like=((), "int64")).wait()

    @pytest.mark.parametrize("pending", [False, True])
    def test_several_results_are_no_array(self, eng, np, x, pending):
        release = threading.Event()
        if not pending:
            release.set()
        t = eng.call(lambda x: (release.wait(), x, x)[1:], x, using=np.from_dlpack)
        if pending:
            threading.Timer(0.05, release.set).start()
        else:
            t.wait()
        uses = [
            lambda: np.from_dlpack(t),
            lambda: np.asarray(t),
            lambda: memoryview(t),
            lambda: eng.from_dlpack(t, copy=True),
            lambda: t.read().__enter__(),
            lambda: t.__arrow_c_array__(),
        ]
        for use in uses:
            with pytest.raises((TypeError, est.OperationError), match="no single array"):
                use()
        with pytest.raises(TypeError, match="no single array"):
            t.shape

    def test_an_operation_does_not_get_several_results_as_an_array(self, eng, np, x):
        release = threading.Event()
        t = eng.call(lambda x: (release.wait(), x), x, using=np.from_dlpack, name="step")
        after = eng.call(np.add, x, t)
        release.set()
        names_both = "tensor 1 among the arguments is the promise of operation `step`, which has returned no single array"
        with pytest.raises(est.OperationError, match=names_both):
            after.wait()
        with pytest.raises(TypeError, match=names_both):
            eng.call(np.add, x, t)

    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize("promised", [{"n": 3}, 3])
    def test_a_function_without_using_does_not_get_several_results_either(self, eng, gate, is_async, promised):
        seen = []

        async def look(t):
            seen.append(t)

        async def run():
            t = eng.call(lambda: (gate(), promised)[1], name="step")
            after = eng.call(look if is_async else seen.append, t)
            gate.open()
            await after

        with pytest.raises(est.OperationError, match="tensor 0 among the arguments is the promise of operation `step`"):
            asyncio.run(run())
        assert seen == []

    def test_the_failure_of_the_function_is_raised_when_unpacking(self, eng, np, x):
        def fails(x):
            raise ValueError("no data")

        t = eng.call(fails, x, name="load")
        for use in (lambda: t[0], lambda: list(t), lambda: t.wait()):
            with pytest.raises(est.OperationError, match="`load`.*no data"):
                use()

    def test_threads_that_unpack_at_the_same_time_get_the_same_promises(self, eng, np):
        with ThreadPoolExecutor(4) as pool:
            for _ in range(300):
                t = eng.call(lambda: (np.ones(2), np.zeros(2)))
                t.wait()
                first, *others = pool.map(lambda _, t=t: t.result(), range(4))
                assert all(other[0] is first[0] and other[1] is first[1] for other in others)
                assert value(np, first[0]) == [1.0, 1.0] and value(np, first[1]) == [0.0, 0.0]

    def test_they_are_there_after_the_end_of_the_engine(self, np):
        with est.Engine(workers=2) as eng:
            t = eng.call(np.divmod, eng.from_dlpack(np.arange(3.0)), 2)
        quotient, rest = t
        assert quotient.is_ready() and value(np, rest) == [0.0, 1.0, 0.0]

    def test_unpacking_waits_for_no_room(self, np, gate):
        async def main():
            async with est.Engine(workers=2, in_flight_limit=2) as eng:
                t = eng.call(lambda: (np.ones(2), np.zeros(2)))
                until(t.done)
                for _ in range(2):
                    eng.submit(gate)
                try:
                    assert value(np, (await t)[0]) == [1.0, 1.0]
                finally:
                    gate.open()

        asyncio.run(main())

    def test_an_error_while_the_structure_is_made_loses_no_array(self, eng, np):
        class Refuses(list):
            def __copy__(self):
                if not copied:
                    copied.append(1)
                    raise ValueError("not now")
                return Refuses(self)

        copied = []
        t = eng.call(lambda: Refuses([np.ones(2)]))
        with pytest.raises(ValueError, match="not now"):
            t.result(30)
        assert value(np, t.result()[0]) == [1.0, 1.0]

    def test_an_error_while_the_structure_is_made_is_that_of_the_future(self, eng, np):
        class Refuses(list):
            def __copy__(self):
                raise ValueError("not now")

        with pytest.raises(ValueError, match="not now"):
            eng.call(lambda: Refuses([np.ones(2)])).future().result(10)

    def test_one_array_has_no_elements_here(self, eng, x):
        with pytest.raises(TypeError, match="elements are taken with a library"):
            x[0]

    def test_results_that_share_memory_are_safe(self, eng, np, x):
        a, b = eng.call(lambda x: (x, x), x, using=np.from_dlpack)
        eng.submit(lambda a: a.fill(9), writes=[a], using=np.from_dlpack).wait()
        assert value(np, x) == [0.0, 1.0, 2.0] and value(np, b) == [0.0, 1.0, 2.0]

    @pytest.mark.parametrize("queued", [False, True])
    def test_views_of_operands_hold_nothing_up_until_they_are_unpacked(self, eng, np, gate, queued):
        xs = [eng.from_dlpack(np.arange(4.0) + n, writable=True) for n in range(3)]
        if queued:
            eng.submit(gate, writes=xs)
        parts = [eng.call(np.split, x, 2) for x in xs]
        if not queued:
            for part in parts:
                part.wait(30)
        written = [eng.submit(lambda x: x.fill(9), writes=[x], using=np.from_dlpack) for x in xs]
        gate.open()
        for op in written:
            op.wait(30)
        assert [[value(np, half) for half in part] for part in parts] == [[[n, n + 1], [n + 2, n + 3]] for n in range(3)]

    @pytest.mark.parametrize("queued", [False, True])
    def test_an_operand_among_results_is_as_the_function_has_seen_it(self, eng, np, gate, queued):
        x = eng.from_dlpack(np.arange(3.0), writable=True)
        if queued:
            eng.submit(gate, writes=[x])
        t = eng.call(lambda x: [x, 1], x, using=lambda x: x)
        if not queued:
            t.wait(30)
        eng.submit(lambda x: x.fill(9), writes=[x], using=np.from_dlpack)
        gate.open()
        assert value(np, x) == [9.0] * 3
        assert value(np, t[0]) == [0.0, 1.0, 2.0]

    def test_views_may_be_declared_aliases(self, eng, np):
        x = eng.from_dlpack(np.arange(4.0), writable=True)
        address = np.from_dlpack(x).ctypes.data
        first, last = eng.call(np.split, x, 2, alias_of=[x])
        assert [np.from_dlpack(half).ctypes.data - address for half in (first, last)] == [0, 16]
        assert value(np, last) == [2.0, 3.0]

    def test_the_structure_is_as_it_was_when_the_function_returned(self, eng, np, x):
        kept = []

        def several(x):
            kept.append({"y": x + 1, "step": 1})
            return kept[0]

        t = eng.call(several, x, using=np.from_dlpack)
        t.wait(30)
        kept[0].update(y=None, step=2)
        assert t["step"] == 1 and value(np, t["y"]) == [1.0, 2.0, 3.0]

    def test_what_is_never_unpacked_is_released(self, eng, np):
        class Array(np.ndarray):
            pass

        gone = []

        def several():
            array = np.zeros(3).view(Array)
            gone.append(weakref.ref(array))
            return array, 3

        t = eng.call(several)
        t.wait()
        assert gone[0]() is not None
        del t
        until(lambda: gc.collect() is not None and gone[0]() is None)

    def test_a_result_that_leads_back_to_its_promise_is_collected(self, eng, np):
        class Model:
            def step(self):
                return np.zeros(3), self

        model = Model()
        model.last = eng.call(model.step)
        assert model.last[1] is model
        gone = weakref.ref(model)
        del model
        until(lambda: gc.collect() is not None and gone() is None)

    def test_collections_look_at_promises_of_calls_alone(self, eng, np):
        assert gc.is_tracked(eng.call(np.zeros, 3))
        assert not gc.is_tracked(eng.from_dlpack(np.zeros(3)))


class TestDeclared:
    def test_promises_are_there_at_once(self, eng, np, x):
        release = threading.Event()

        def several(x):
            release.wait()
            return x + 1, x + 2

        first, second = eng.call(several, x, using=np.from_dlpack, outputs=2)
        after = eng.call(np.add, first, second)
        assert not first.is_ready()
        release.set()
        assert value(np, after) == [3.0, 5.0, 7.0]

    def test_names(self, eng, np, x):
        t = eng.call(lambda x: {"b": x + 1, "a": x}, x, using=np.from_dlpack, outputs=["a", "b"])
        assert list(t) == ["a", "b"] and value(np, t["b"]) == [1.0, 2.0, 3.0]

    def test_a_number_of_numpy(self, eng, np, x):
        (only,) = eng.call(lambda x: [x + 1], x, using=np.from_dlpack, outputs=np.int64(1))
        assert value(np, only) == value(np, eng.call(np.add, x, 1))

    def test_nothing(self, eng, x):
        seen = []
        op = eng.call(lambda x: seen.append(1), x, outputs=0)
        assert isinstance(op, est.Operation)
        op.wait()
        assert seen == [1]

    def test_like_declares(self, eng, np, x):
        like = ((3,), "float64")
        a, b = eng.call(np.divmod, x, 2, like=[like, like])
        assert a.shape == b.shape == (3,)
        named = eng.call(lambda x: {"y": x + 1}, x, using=np.from_dlpack, like={"y": like})
        assert named["y"].shape == (3,) and value(np, named["y"]) == [1.0, 2.0, 3.0]
        wrong = eng.call(np.divmod, x, 2, like=[like, ((4,), "float64")])
        wrong[0].wait()
        with pytest.raises(est.OperationError, match="was declared"):
            wrong[1].wait()

    def test_asynchronously(self, np):
        async def main():
            async with est.Engine(workers=2) as eng:
                x = eng.from_dlpack(np.arange(3.0))

                async def several(x):
                    await asyncio.sleep(0)
                    return x + 1, x + 2

                first, second = await eng.call_async(several, x, using=np.from_dlpack, outputs=2)
                await asyncio.gather(first, second)
                assert value(np, second) == [2.0, 3.0, 4.0]
                op = await eng.call_async(lambda: None, outputs=0)
                assert isinstance(op, est.Operation)
                await op

        asyncio.run(main())

    @pytest.mark.parametrize(
        "outputs, returned, says",
        [
            (3, (1, 2), "a tuple of 2, and outputs=3"),
            (1, 5, "returned int, and outputs=1"),
            (0, (1,), "a tuple of 1, and outputs=0"),
            (2, None, "returned nothing, and outputs=2"),
            (["a"], {"b": 1}, "a dict of 'b', and the outputs 'a'"),
            (["a"], (1,), "a tuple of 1, and the outputs 'a'"),
        ],
    )
    def test_other_results_than_declared_are_the_failure(self, eng, outputs, returned, says):
        t = eng.call(lambda: returned, outputs=outputs)
        promises = t if isinstance(t, tuple) else t.values() if isinstance(t, dict) else [t]
        for promise in promises:
            with pytest.raises(est.OperationError, match=says):
                promise.wait()

    @pytest.mark.parametrize("outputs", [True, -1, "ab", ["a", "a"], [], [1], 2.5])
    def test_wrong_outputs_are_refused(self, eng, outputs):
        with pytest.raises(TypeError, match="outputs is the number of arrays"):
            eng.call(lambda: None, outputs=outputs)

    @pytest.mark.parametrize("outputs", [65_537, 1 << 40, 1 << 70])
    def test_too_many_are_refused(self, eng, outputs):
        with pytest.raises(est.InvalidError, match=f"at most 65,536, not {outputs:,}"):
            eng.call(lambda: None, outputs=outputs)

    def test_what_contradicts_is_refused(self, eng):
        like = ((3,), "float64")
        with pytest.raises(TypeError, match="do not say the same"):
            eng.call(lambda: None, outputs=1, like=[like, like])
        with pytest.raises(TypeError, match="a list or a dict"):
            eng.call(lambda: None, outputs=2, like=like)

    def test_a_failure_reaches_every_promise(self, eng):
        def fails():
            raise ValueError("no data")

        for promise in eng.call(fails, outputs=3, name="load"):
            with pytest.raises(est.OperationError, match="no data"):
                promise.wait()

    def test_a_full_engine_refuses_all_of_them_on_a_loop(self, np, gate):
        async def main():
            ran = []
            async with est.Engine(workers=1, in_flight_limit=1) as eng:
                held = eng.submit(gate)
                with pytest.raises(est.InFlightLimitError):
                    eng.call(lambda: (ran.append(1), 2), outputs=2)
                assert eng.stats().in_flight == 1
                gate.open()
                await held
            assert not ran

        asyncio.run(main())

    @pytest.mark.parametrize("way", ["call", "call_async"])
    def test_several_outputs_need_one_permit(self, np, way):
        async def main():
            async with est.Engine(workers=1, in_flight_limit=2) as eng:
                given = getattr(eng, way)(lambda: tuple(np.full(1, at) for at in range(5)), outputs=5)
                tensors = given if way == "call" else await given
                assert [value(np, await t) for t in tensors] == [[at] for at in range(5)]

        asyncio.run(main())

    def test_a_call_that_raises_has_submitted_nothing(self, eng, np):
        """An alias of another engine's tensor is refused where the promise is described."""
        ran = []
        with est.Engine(workers=1) as other:
            with pytest.raises(est.InvalidError):
                eng.call(lambda: (ran.append(1), (np.ones(1),))[1], outputs=1, alias_of=[other.zeros(1, "int8")], like=[((-1,), "int8")])
        eng.wait_all()
        assert not ran

