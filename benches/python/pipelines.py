"""Whole pipelines of array libraries, by Estafette and by other means: `python benches/python/pipelines.py [OPTION...]`.

Each pipeline runs as a plain loop, by a `ThreadPoolExecutor`, by `asyncio.to_thread`, by Dask's threads, and by Estafette. There each
call is an operation: everything is submitted before anything is waited for, or asyncio has a bounded number of batches in flight, or each
batch is waited for before the next one. In one form a whole batch is one operation, which is what the thread pool is given. The
libraries use one thread each. Every form computes the same from the same input, which is checked. The forms take turns in one process, in an order that changes from round to round; a figure
is the throughput as a multiple of the plain loop's in the same round.

It needs the package `estafette`, NumPy, JAX and PyTorch; Dask is left out where it is missing. `--json` gives a line for each figure.
"""

import argparse
import asyncio
import concurrent.futures
import functools
import gc
import json
import os
import random
import statistics
import sys
import time

# Before the libraries read them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np
import torch

import estafette as est

try:
    import dask
except ImportError:
    dask = None

torch.set_num_threads(1)

# Batches that a program with asyncio has in flight.
IN_FLIGHT = 16
# Approximate time of one run of the plain loop, in seconds.
RUN_S = 0.25
SIZES = {"4 KiB": 1 << 12, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "8 MiB": 1 << 23, "32 MiB": 1 << 25}


class Pipeline:
    def begin(self):
        """Called before the batches of a form."""

    def end(self, batches):
        """Called after the batches of an engine."""

    def expected(self, number):
        return self.batch(number)


class Relay(Pipeline):
    """A batch goes from NumPy to JAX, to PyTorch and back to NumPy."""

    def __init__(self, size, _batches):
        self.batches = [np.random.default_rng(seed).random(size // 4, np.float32) for seed in range(4)]
        self.compiled = jax.jit(lambda x: jnp.tanh(x) * 2 + 1)

    def first(self, batch):
        return np.multiply(batch, np.float32(1.5))

    def second(self, x):
        return self.compiled(x)

    def third(self, x):
        return torch.relu(x - 1)

    def fourth(self, x):
        return x.sum(keepdims=True)

    def batch(self, number):
        """One batch, by hand."""
        x = self.second(jnp.from_dlpack(self.first(self.batches[number % 4])))
        return self.fourth(np.from_dlpack(self.third(torch.from_dlpack(x))))

    def submit(self, eng, number):
        """One batch, as promises."""
        x = eng.call(self.first, self.batches[number % 4])
        x = eng.call(self.second, x, using=jnp.from_dlpack)
        x = eng.call(self.third, x, using=torch.from_dlpack)
        return eng.call(self.fourth, x, using=np.from_dlpack)

    def submit_whole(self, eng, number):
        """One batch, as one promise."""
        return eng.call(self.batch, number)


class Chain(Pipeline):
    """Many short operations on few buffers: each batch updates one of four buffers in eight steps."""

    STEPS = 8

    def __init__(self, size, _batches):
        self.buffers = [np.zeros(size // 4, np.float32) for _ in range(4)]
        self.tensors = {}

    def step(self, y):
        np.add(y, np.float32(1), out=y)

    def steps(self, y):
        for _ in range(self.STEPS):
            self.step(y)

    def batch(self, number):
        y = self.buffers[number % 4]
        self.steps(y)
        return y[:1].copy()

    def column(self, batches, first):
        """The batches of one buffer, whose steps must not overlap."""
        return [self.batch(number) for number in range(first, batches, 4)]

    def begin(self):
        for buffer in self.buffers:
            buffer.fill(0)

    def expected(self, number):
        return np.float32(self.STEPS * (number // 4 + 1))

    def tensor(self, eng, number):
        if eng not in self.tensors:
            self.tensors[eng] = [eng.from_dlpack(np.zeros_like(buffer)) for buffer in self.buffers]
        return self.tensors[eng][number % 4]

    def submit(self, eng, number):
        y = self.tensor(eng, number)
        for _ in range(self.STEPS):
            operation = eng.submit(self.step, writes=[y], using=np.from_dlpack)
        return operation

    def submit_whole(self, eng, number):
        return eng.submit(self.steps, writes=[self.tensor(eng, number)], using=np.from_dlpack)

    def end(self, batches):
        """Checks what the operations have left in the buffers."""
        for tensors in self.tensors.values():
            results = [np.from_dlpack(tensor)[:1] for tensor in tensors]
            check("chain", results, [self.expected(number) for number in range(batches - 4, batches)])
        self.tensors.clear()


class Fan(Pipeline):
    """One writer, two quick readers and one of several times their work."""

    def __init__(self, size, _batches):
        self.batches = [np.random.default_rng(seed).random(size // 4, np.float32) for seed in range(4)]

    def write(self, batch):
        return np.add(batch, np.float32(1))

    def quick(self, x):
        return x.sum(keepdims=True)

    def slow(self, x):
        return np.sqrt(np.sqrt(np.sqrt(x))).sum(keepdims=True)

    def total(self, *parts):
        return np.add.reduce(parts)

    def batch(self, number):
        x = self.write(self.batches[number % 4])
        return self.total(self.quick(x), self.quick(x), self.slow(x))

    def submit(self, eng, number):
        x = eng.call(self.write, self.batches[number % 4])
        parts = [eng.call(f, x, using=np.from_dlpack) for f in (self.quick, self.quick, self.slow)]
        return eng.call(self.total, *parts, using=np.from_dlpack)

    def submit_whole(self, eng, number):
        return eng.call(self.batch, number)


def plain(pipeline, batches):
    return [pipeline.batch(number) for number in range(batches)]


def executor(pipeline, batches):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        if isinstance(pipeline, Chain):
            return in_turn(pool.map(functools.partial(pipeline.column, batches), range(4)))
        return list(pool.map(pipeline.batch, range(batches)))


def in_turn(columns):
    """The results of four buffers, by the numbers of their batches."""
    return [result for results in zip(*columns, strict=True) for result in results]


def bounded(one, batches):
    """Runs `one(number)` for every batch, in so many tasks that the next one begins when one is done."""

    async def main():
        numbers, results = iter(range(batches)), [None] * batches

        async def task():
            for number in numbers:
                results[number] = await one(number)

        await asyncio.gather(*(task() for _ in range(IN_FLIGHT)))
        return results

    return main()


def to_thread(pipeline, batches):
    if isinstance(pipeline, Chain):
        return in_turn(asyncio.run(bounded(functools.partial(asyncio.to_thread, pipeline.column, batches), 4)))
    return asyncio.run(bounded(functools.partial(asyncio.to_thread, pipeline.batch), batches))


def dask_threads(pipeline, batches):
    if dask is None:
        return None
    one, count = pipeline.batch, batches
    if isinstance(pipeline, Chain):
        one, count = functools.partial(pipeline.column, batches), 4
    tasks = [dask.delayed(one, pure=False)(number) for number in range(count)]
    results = dask.compute(*tasks, scheduler="threads", num_workers=2)
    return in_turn(results) if isinstance(pipeline, Chain) else list(results)


def values(promises):
    return [np.array(np.from_dlpack(promise)) if isinstance(promise, est.Tensor) else None for promise in promises]


def submitted(pipeline, batches, whole=False, **options):
    submit = pipeline.submit_whole if whole else pipeline.submit
    with est.Engine(**options) as eng:
        promises = [submit(eng, number) for number in range(batches)]
        eng.wait_all()
        results = values(promises)
        del promises
        pipeline.end(batches)
    return results


def one_by_one(pipeline, batches, **options):
    with est.Engine(**options) as eng:
        results = []
        for number in range(batches):
            promise = pipeline.submit(eng, number)
            promise.wait()
            results += values([promise])
        del promise
        pipeline.end(batches)
    return results


def awaited(pipeline, batches, **options):
    async def main():
        async with est.Engine(**options) as eng:

            async def one(number):
                promise = pipeline.submit(eng, number)
                await promise
                return values([promise])[0]

            results = await bounded(one, batches)
            pipeline.end(batches)
            return results

    return asyncio.run(main())


FORMS = {
    "plain loop": plain,
    "ThreadPoolExecutor(2)": executor,
    "asyncio.to_thread": to_thread,
    "Dask, 2 threads": dask_threads,
    "Estafette": submitted,
    "Estafette, asyncio": awaited,
    "Estafette, one batch at a time": one_by_one,
    "Estafette, a batch an operation": functools.partial(submitted, whole=True),
    "Estafette, 1 worker": functools.partial(submitted, workers=1),
}


def check(name, results, expected):
    for got, wanted in zip(results, expected, strict=True):
        if got is not None and not np.allclose(got, wanted):
            raise RuntimeError(f"{name}: {got} is not {wanted}")


def measure(pipeline_class, size, rounds, forms):
    """Throughput of each form as multiples of the plain loop's, a list of one for each round; and seconds of a plain batch."""
    pipeline = pipeline_class(size, None)
    plain(pipeline, 2)
    began = time.perf_counter()
    plain(pipeline, 4)
    batches = max(4, min(4000, int(RUN_S / ((time.perf_counter() - began) / 4))) // 4 * 4)
    seconds = {name: [] for name in forms}
    for _ in range(rounds):
        names = list(forms)
        random.shuffle(names)
        for name in names:
            pipeline.begin()
            began = time.perf_counter()
            results = FORMS[name](pipeline, batches)
            took = time.perf_counter() - began
            if results is None:
                continue
            seconds[name].append(took)
            check(name, results[:4], [pipeline.expected(number) for number in range(4)])
    ratios = {
        name: [one / other for one, other in zip(seconds["plain loop"], took, strict=True)] for name, took in seconds.items() if took
    }
    return ratios, statistics.median(seconds["plain loop"]) / batches


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", nargs="*", default=["relay", "chain", "fan"], choices=["relay", "chain", "fan"])
    parser.add_argument("--size", nargs="*", default=list(SIZES), choices=list(SIZES), metavar="SIZE")
    parser.add_argument("--form", nargs="*", default=list(FORMS), choices=list(FORMS), metavar="FORM")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    forms = list(dict.fromkeys(["plain loop", *options.form]))
    # Objects that the libraries made at their import are not collected in the middle of a form that happens to be due.
    gc.collect()
    gc.freeze()
    for name in options.pipeline:
        pipeline = {"relay": Relay, "chain": Chain, "fan": Fan}[name]
        for size in options.size:
            ratios, batch_s = measure(pipeline, SIZES[size], options.rounds, forms)
            if not options.json:
                print(f"{name}, {size}: {batch_s * 1e6:.0f} us a batch by the plain loop")
            for form, all_ratios in ratios.items():
                low, median, high = min(all_ratios), statistics.median(all_ratios), max(all_ratios)
                if options.json:
                    figures = {"low": low, "median": median, "high": high, "batch_us": batch_s * 1e6}
                    print(json.dumps({"pipeline": name, "size": size, "form": form, **figures}))
                else:
                    print(f"  {form:31} {median:5.2f}  ({low:.2f} to {high:.2f})")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
