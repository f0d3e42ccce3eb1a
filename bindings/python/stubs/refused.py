"""Mistakes that type checkers find: in each line with the comment, and in no other. Never run."""

import numpy as np
import numpy.typing as npt

import estafette as est

Array = npt.NDArray[np.float32]


def step(x: Array, k: float, out: Array | None = None) -> Array:
    return np.multiply(x, k, out=out)


async def later(x: Array, k: float) -> Array:
    return x


def of_tensors(x: est.Tensor, n: int) -> None: ...


eng = est.Engine(workers=2)
x = eng.zeros(3, "float32")

# Calls: the number of arguments, names and types of keyword arguments.
print(eng.call(step, x))  # refused
print(eng.call(step, x, 1, x, 1))  # refused
print(eng.call(step))  # refused
print(eng.call(step, x, kk=2.0))  # refused
print(eng.call(step, x, k="two"))  # refused
print(eng.call(np.sqrt))  # refused
print(eng.call(later, x))  # refused
print(eng.call(of_tensors, x, n="one"))  # refused
print(eng.call(5, x))  # refused
print(eng.call(step, x, 2.0, nmae="step"))  # refused
print(eng.call(step, x, 2.0, using=3))  # refused
print(eng.call(step, x, 2.0, like=3))  # refused
print(eng.call(step, x, 2.0, outputs="loss"))  # refused
print(eng.wrap(step, outputs="loss"))  # refused
one: est.Tensor = eng.call(step, x, 2.0, outputs=2)  # refused
operation: est.Operation = eng.call(step, x, 2.0)  # refused


async def calls() -> None:
    await eng.call_async(step, x)  # refused
    await eng.call_async(step, x, 1, x, 1)  # refused
    await eng.call_async(step, x, kk=2.0)  # refused
    await eng.call_async(step, x, k="two")  # refused
    await eng.call_async(step, x, 2.0, like=3)  # refused
    late: est.Operation = await eng.call_async(step, x, 2.0)  # refused
    print(late)


# Functions that submit.
scaled = eng.wrap(step, using=np.from_dlpack)
print(scaled(x))  # refused
print(scaled(x, 1, x, 1))  # refused by pyright
print(scaled(x, kk=1.0))  # refused
operation = scaled(x, 1)  # refused
print(eng.wrap(step, using=np.from_dlpack)(x, kk=1.0))  # refused
print(eng.wrap(step, using=np.from_dlpack)(x, k="two"))  # refused


@eng.op(writes="out")
def scale(x: Array, k: float, out: Array) -> None: ...


print(scale(x, 2.0))  # refused
print(scale(x, 2.0, x, x))  # refused by pyright
one = scale(x, 2.0, x)  # refused
eng.wrap(step, outptus=2)  # refused
eng.wrap(step, using=3)  # refused
eng.op(wites="out")  # refused
eng.op(writes="out", outputs=2)  # refused
eng.op(on_skip=print)  # refused
eng.wrap(step, on_skip=print)  # refused

# The rest.
eng.submit(step, read=[x])  # refused
eng.submit(step, reads=[1])  # refused
est.wait([1])  # refused
print(x.sahpe)  # refused
print(x + 1)  # refused
print(est.report("run.pftrace").data["totals"]["runing_ns"])  # refused
with x.read() as view:
    print(view.shapes)  # refused
