"""Functions whose call runs nothing yet: generators are refused, coroutines run on the submitter's event loop."""

import asyncio
import collections.abc
import functools
import gc
from unittest import mock

import pytest

import estafette as est
from conftest import Gate


def generator(*_operands):
    yield


async def asynchronous_generator(*_operands):
    yield


class Generates:
    def __call__(self, *_operands):
        yield


class Awaits:
    async def __call__(self, *operands):
        await asyncio.sleep(0)
        for operand in operands:
            operand[:] = 7

    async def method(self, *operands):
        await self(*operands)


GENERATORS = {
    "function": generator,
    "asynchronous function": asynchronous_generator,
    "partial": functools.partial(generator, 1),
    "partial of a partial": functools.partial(functools.partial(asynchronous_generator, 1), 2),
    "object": Generates(),
    "method": Generates().__call__,
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_is_refused_when_it_is_submitted(eng, kind):
    t = eng.zeros(3, "int8")
    for submit in (eng.submit, eng.call, eng.submit_async):
        with pytest.raises(TypeError, match="generator function.*runs nothing.*`async for`"):
            submit(GENERATORS[kind])
    with pytest.raises(TypeError, match="generator function"):
        eng.submit(GENERATORS[kind], writes=[t])
    t.wait()


def test_a_generator_is_refused_as_a_node_and_as_an_operator(eng):
    with pytest.raises(TypeError, match="generator function"):
        with eng.program("p") as program:
            program.submit(generator)
    for options in ({}, {"using": generator}, {"infer": asynchronous_generator}):
        function = (lambda x: x) if options else generator
        with pytest.raises(TypeError, match="generator function"):
            eng.operators.register("generates", function, **options)
    assert "generates" not in eng.operators


@pytest.mark.parametrize("submit", ["submit", "call", "call_async"])
def test_a_coroutine_is_no_function(eng, submit):
    coroutine = Awaits()()
    with pytest.raises(TypeError, match=r"is not callable: pass the `async def` function.*eng\.from_future"):
        getattr(eng, submit)(coroutine)
    coroutine.close()


@pytest.mark.parametrize("made", [generator, asynchronous_generator])
def test_a_generator_is_no_future(eng, made):
    with pytest.raises(TypeError, match="is no future"):
        eng.from_future(made())


@pytest.mark.parametrize("made", [generator, asynchronous_generator])
def test_a_function_that_returns_a_generator_fails(eng, made):
    t = eng.zeros(3, "int8")
    op = eng.submit(lambda t: made(t), writes=[t])
    with pytest.raises(est.OperationError, match="generator.*runs nothing"):
        op.wait()
    with pytest.raises(est.OperationError) as raised:
        t.wait()
    assert isinstance(raised.value.__cause__, TypeError)
    with pytest.raises(est.OperationError, match="generator"):
        eng.call(lambda: made()).wait()


@pytest.mark.parametrize("made", [generator, asynchronous_generator, lambda *operands: fills(*operands), lambda *operands: Request(fills(*operands))])
def test_nodes_and_operators_that_return_what_runs_nothing_fail(eng, made):
    t = eng.zeros(3, "int8")
    with eng.program("p") as program:
        program.submit(lambda t: made(t), writes=[t])
    eng.operators.register("made", lambda t: made(t))
    try:
        for promise in (program.replay(), eng.operators["made"](eng.zeros(3, "int8"))):
            with pytest.raises(est.OperationError, match="generator.*runs nothing|coroutine.*event loop") as raised:
                promise.wait(30)
            assert isinstance(raised.value.__cause__, TypeError)
    finally:
        eng.operators.unregister("made")
    eng.submit(lambda t: None, writes=[t]).wait(30)


def test_the_way_out_that_the_error_names_works(eng, np):
    import collections

    def fill(t):
        t[:] = 7
        yield

    t = eng.zeros(3, "int8")
    eng.submit(lambda *tensors: collections.deque(fill(*tensors), maxlen=0), writes=[t], using=np.from_dlpack)
    assert np.from_dlpack(t).tolist() == [7, 7, 7]


async def fills(*operands):
    await asyncio.sleep(0)
    for operand in operands:
        operand[:] = 7


class Request(collections.abc.Coroutine):
    """As what the methods of `aiohttp.ClientSession` return: awaitable, with a coroutine within."""

    def __init__(self, coroutine):
        self.send, self.throw, self.close = coroutine.send, coroutine.throw, coroutine.close
        self._coroutine = coroutine

    def send(self, value):
        raise AssertionError("of the instance")

    throw = send

    def __await__(self):
        return self._coroutine.__await__()


ASYNCHRONOUS = {
    "function": fills,
    "partial": functools.partial(fills),
    "object": Awaits(),
    "method": Awaits().method,
    "partial of an object": functools.partial(Awaits()),
    "lambda that returns a coroutine": lambda t: fills(t),
    "lambda that calls an object": lambda t: Awaits()(t),
    "lambda that returns a coroutine of a library": lambda t: Request(fills(t)),
}


@pytest.mark.parametrize("kind", ASYNCHRONOUS)
def test_what_gives_a_coroutine_runs_as_a_task(np, kind):
    async def main():
        async with est.Engine(workers=1) as eng:
            t = eng.zeros(3, "int8")
            eng.submit(ASYNCHRONOUS[kind], writes=[t], using=np.from_dlpack)
            await t
            return t.to_list() if hasattr(t, "to_list") else np.array(np.from_dlpack(t)).tolist()

    assert asyncio.run(main()) == [7, 7, 7]


@pytest.mark.parametrize("kind", ASYNCHRONOUS)
def test_what_gives_a_coroutine_runs_where_tasks_are_made_without_a_context(eng, np, kind):
    async def main():
        asyncio.get_running_loop().set_task_factory(lambda loop, coroutine: asyncio.Task(coroutine, loop=loop))
        t = eng.zeros(3, "int8")
        await asyncio.wait_for(eng.submit(ASYNCHRONOUS[kind], writes=[t], using=np.from_dlpack), 10)
        return np.array(np.from_dlpack(t)).tolist()

    assert asyncio.run(main()) == [7, 7, 7]


@pytest.mark.parametrize("kind", ASYNCHRONOUS)
def test_what_gives_a_coroutine_fails_where_no_task_is_made(eng, recwarn, kind):
    def refuse(*_arguments, **_options):
        raise LookupError("no task today")

    async def main():
        loop, told = asyncio.get_running_loop(), []
        # Keeps what the error has in its frames.
        loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))
        loop.set_task_factory(refuse)
        try:
            with pytest.raises(est.OperationError, match="no task today") as caught:
                await eng.submit(ASYNCHRONOUS[kind], writes=[eng.zeros(3, "int8")])
        finally:
            loop.set_task_factory(None)
        assert told == [caught.value.__cause__]

    loop = asyncio.new_event_loop()
    watch = loop.call_later(10, loop.stop)
    loop.run_until_complete(main())
    watch.cancel()
    loop.close()
    gc.collect()
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


def test_a_coroutine_that_a_plain_function_returned_is_the_operation(np):
    async def main():
        async with est.Engine(workers=1) as eng:
            seen = []

            async def body(t, entered, opened):
                entered.set()
                await opened.wait()
                seen.append(asyncio.current_task() is not None)
                return t + 1

            entered, opened = asyncio.Event(), asyncio.Event()
            x = eng.zeros(3, "int8")
            y = eng.call(lambda t: body(t, entered, opened), x, using=np.from_dlpack)
            await entered.wait()
            assert not y.is_ready()
            opened.set()
            await y
            assert np.array(np.from_dlpack(y)).tolist() == [1, 1, 1]
            assert seen == [True]
            with pytest.raises(est.OperationError, match="in the task"):
                async def fails():
                    raise ValueError("in the task")

                await eng.submit(lambda: fails())

    asyncio.run(main())


def test_nodes_that_are_coroutines_run_on_the_loop_that_recorded_them(np):
    # Each node fails on a closed loop.
    with est.Engine(workers=1, failures="ignore") as eng:
        t = eng.zeros(3, "int8")

        async def main():
            with eng.program("p") as program:
                program.submit(fills, writes=[t], using=np.from_dlpack)
                program.submit(lambda t: fills(t), writes=[t], using=np.from_dlpack)
            await asyncio.gather(*(program.replay() for _ in range(100)))
            assert np.array(np.from_dlpack(t)).tolist() == [7, 7, 7]
            return program

        program = asyncio.run(main())
        with pytest.raises(est.OperationError, match="closed"):
            program.replay().wait(30)


def test_asynchronous_objects_and_coroutines_need_an_event_loop(eng):
    with pytest.raises(RuntimeError, match="none is running"):
        eng.submit(Awaits())
    with pytest.raises(est.OperationError, match="coroutine.*event loop") as raised:
        eng.submit(lambda: fills()).wait()
    assert isinstance(raised.value.__cause__, TypeError)


def test_a_coroutine_whose_event_loop_is_closed_meanwhile_fails(recwarn):
    engine, gate = est.Engine(workers=1), Gate()

    async def main():
        t = engine.zeros(3, "int8")
        engine.submit(gate, writes=[t])
        return engine.submit(lambda t: fills(), writes=[t])

    op = asyncio.run(main())
    gate.open()
    with pytest.raises(est.OperationError, match="closed"):
        op.wait()
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


def test_a_masked_array_is_refused(eng, np):
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    for refused in (lambda: eng.from_dlpack(masked), lambda: est.from_dlpack(masked, copy=True)):
        with pytest.raises(TypeError, match="masked array.*no mask"):
            refused()
    assert np.from_dlpack(eng.from_dlpack(masked.data)).tolist() == [1.0, 2.0]
    y = eng.call(lambda: np.ma.masked_array([1.0, 2.0], mask=[False, True]))
    with pytest.raises(est.OperationError, match="masked array.*no mask") as raised:
        y.wait()
    assert isinstance(raised.value.__cause__, TypeError)
    z = eng.call(lambda: np.ma.masked_array([1.0, 2.0], mask=[False, True]).filled(0.0))
    assert np.from_dlpack(z).tolist() == [1.0, 0.0]


def test_an_object_that_has_any_attribute_is_called_as_its_class(eng):
    op = eng.submit(mock.Mock())
    op.wait()
    assert op.name == "Mock"
