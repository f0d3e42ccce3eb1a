"""Programs that type checkers accept in strict mode; `assert_type` says what they infer. Never run."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import estafette as est
from estafette.typing import CallOptions, ReportData, SupportsDLPack, Using

Array = npt.NDArray[np.float32]
Rows = tuple[est.Tensor, ...]


def step(x: Array, k: float, out: Array | None = None) -> Array:
    return np.multiply(x, k, out=out)


async def later(x: Array, k: float) -> Array:
    return x


def halves(x: Array) -> tuple[Array, Array]:
    return x[:1], x[1:]


def total(a: Array, b: Array, c: Array, d: Array, e: Array, f: Array) -> Array:
    return a + b + c + d + e + f


def of_tensors(x: est.Tensor, n: int) -> None: ...


def calls(eng: est.Engine, x: est.Tensor, unknown: Any) -> None:
    assert_type(eng.call(np.sqrt, x), est.Tensor)
    assert_type(eng.call(np.sum, [x, x], axis=0), est.Tensor)
    assert_type(eng.call(np.mean, x, axis=0, keepdims=True), est.Tensor)
    assert_type(eng.call(np.where, x, x, 0.0), est.Tensor)
    assert_type(eng.call(np.concatenate, [x, x], axis=0), est.Tensor)
    assert_type(eng.call(np.ones, 3, dtype="float32"), est.Tensor)
    assert_type(eng.call(np.random.default_rng().normal, size=3), est.Tensor)
    assert_type(eng.call(step, x, 2.0), est.Tensor)
    assert_type(eng.call(step, x, k=2.0), est.Tensor)
    assert_type(eng.call(step, x, 2.0, x), est.Tensor)
    assert_type(eng.call(total, x, x, x, x, x, x), est.Tensor)
    assert_type(eng.call(later, x, 2.0), est.Tensor)
    assert_type(eng.call(of_tensors, x=x, n=1), est.Tensor)
    assert_type(eng.call(unknown, x, 1), est.Tensor)
    assert_type(eng.call(step, unknown, 1), est.Tensor)
    assert_type(eng.call(lambda: np.zeros(3)), est.Tensor)
    assert_type(eng.call(lambda a: a.sum(), x), est.Tensor)
    assert_type(eng.call(lambda a, b: a + b, x, 1), est.Tensor)


def calls_with_options(eng: est.Engine, x: est.Tensor, using: Using | None) -> None:
    assert_type(eng.call(step, x, k=2.0, using=np.from_dlpack), est.Tensor)
    assert_type(eng.call(step, x, 2.0, using=using), est.Tensor)
    assert_type(eng.call(step, x=x, k=2.0, name="step"), est.Tensor)
    assert_type(eng.call(step, x, 2.0, like=((3,), "float32")), est.Tensor)
    assert_type(eng.call(step, x, 2.0, like=x), est.Tensor)
    assert_type(eng.call(step, x, 2.0, on="cuda:0"), est.Tensor)
    assert_type(eng.call(step, x, 2.0, priority=1, copy=True), est.Tensor)
    assert_type(eng.call(lambda a: a[1:], x, alias_of=[x]), est.Tensor)
    assert_type(eng.call(lambda a: (a, a), x, outputs=2), Rows)
    assert_type(eng.call(halves, x, like=[((1,), "float32"), x]), Rows)
    assert_type(eng.call(halves, x, outputs=["head", "tail"]), dict[str, est.Tensor])
    assert_type(eng.call(halves, x, like={"head": ((1,), "float32"), "tail": x}), dict[str, est.Tensor])
    assert_type(eng.call(of_tensors, x, 1, outputs=0), est.Operation)
    head, tail = eng.call(halves, x)
    print(head, tail)


def submissions(eng: est.Engine, x: est.Tensor, z: est.Tensor) -> None:
    op = eng.submit(lambda y, z: np.multiply(y, 2, out=z), reads=[x], writes=[z], using=np.from_dlpack)
    eng.submit(lambda z: z.fill(1), writes=[z], on_skip=lambda error: print(error.operation))
    eng.submit(lambda: None, writes=[eng.var()])
    eng.submit(step, reads=[x], writes=[z], using=np.from_dlpack)
    eng.submit(step, reads=x, writes=eng.var(), using=np.from_dlpack)
    assert_type(op, est.Operation)
    assert_type(op.result(), None)
    with eng.program("count") as count:
        count.submit(lambda y: np.add(y, 1, out=y), writes=[z], using=np.from_dlpack)
    assert_type(count.replay(), est.Operation)
    for done in est.as_completed([x, z, op]):
        print(done)
    for tensor in est.as_completed([x, z]):
        assert_type(tensor, est.Tensor)
    assert_type(est.wait([x, z]).done, set[est.Tensor])
    ended, pending = est.wait([op], return_when="FIRST_EXCEPTION")
    assert_type(ended, set[est.Operation])
    print(pending, est.wait([x, op]).done)
    with ThreadPoolExecutor() as pool:
        mixed: list[est.Tensor | Future[int]] = [x, pool.submit(int)]
        assert_type(est.wait(mixed).not_done, set[est.Tensor | Future[int]])
        for number in est.as_completed([pool.submit(int)]):
            assert_type(number, Future[int])


def submitters(eng: est.Engine, x: est.Tensor, z: est.Tensor, unknown: Any) -> None:
    scaled = eng.wrap(step, using=np.from_dlpack, name="scaled")
    assert_type(scaled(x, 2.0), est.Tensor)
    assert_type(scaled(x, k=2.0), est.Tensor)
    assert_type(eng.wrap(np.add)(x, 1), est.Tensor)
    assert_type(eng.wrap(total)(x, x, x, x, x, x), est.Tensor)
    assert_type(eng.wrap(unknown)(x, 1), est.Tensor)
    assert_type(eng.wrap(halves, outputs=2)(x), Rows)
    assert_type(eng.wrap(halves, like=[x, x])(x), Rows)
    assert_type(eng.wrap(halves, outputs=["head", "tail"])(x), dict[str, est.Tensor])
    assert_type(eng.wrap(of_tensors, outputs=0)(x, 1), est.Operation)

    @eng.op(writes="out", using=np.from_dlpack, on_skip=print)
    def scale(x: Array, factor: float, out: Array) -> None:
        np.multiply(x, factor, out=out)

    assert_type(scale(x, 10, z), est.Operation)
    assert_type(scale(x, factor=10, out=z), est.Operation)

    @eng.op()
    def shifted(x: Array, by: float) -> Array:
        return x + np.float32(by)

    assert_type(shifted(x, by=1.0), est.Tensor)

    @eng.op
    def doubled(x: Array) -> Array:
        return x * 2

    assert_type(doubled(x), est.Tensor)

    @eng.op(outputs=2)
    def split(x: Array) -> tuple[Array, Array]:
        return x, x

    assert_type(split(x), Rows)


def leases(eng: est.Engine, x: est.Tensor, z: est.Tensor) -> None:
    with x.read() as view:
        assert_type(view, est.View)
    with z.write(using=np.from_dlpack) as array:
        array *= 2
    with eng.access(reads=[x], writes=[z], using=np.from_dlpack) as (a, b):
        b[:] = a + 1
    print(np.from_dlpack(z).sum(), np.asarray(z), memoryview(z), np.from_dlpack(z.for_write()))


def reports(data: ReportData) -> int:
    with est.record("run.pftrace") as trace:
        pass
    assert_type(trace.report().data, ReportData)
    return data["totals"]["operations"] + data["causes"][0]["waited_ns"] + data["matrix"]["waited_ns"][0][1]


def any_function(eng: est.Engine, fn: Callable[..., object], arrays: Sequence[SupportsDLPack]) -> None:
    tensors = [eng.from_dlpack(array) for array in arrays]
    options: CallOptions = {"using": np.from_dlpack, "priority": 1}
    assert_type(eng.wrap(fn, **options)(*tensors), est.Tensor)
    assert_type(eng.call(fn, *tensors, axis=0), est.Tensor)
    assert_type(eng.call(fn, *tensors, axis=0, **options), est.Tensor)
    eng.submit(fn, reads=tensors)


async def in_a_coroutine() -> None:
    async with est.Engine() as eng:
        t = await eng.call_async(np.ones, 3)
        assert_type(t, est.Tensor)
        await t
        await eng.submit_async(lambda y: y.fill(1), writes=[t])
        async with t.read(using=np.from_dlpack) as array:
            print(array)


with est.Engine(workers=2, using=np.from_dlpack) as engine:
    one = engine.from_dlpack(np.arange(1024, dtype="float32"))
    assert_type(one, est.Tensor)
    calls(engine, one, step)
    any_function(engine, step, [np.ones(3)])
