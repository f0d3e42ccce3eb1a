"""What the calls of the Python package cost: `python benches/python/bench.py [NAME...] [--json]`.

One engine and one warm-up run for each workload, then as many measured runs as asked for. Times are of a plain loop around the
call, some 10 ns of which are the loop's own; the garbage collector is off meanwhile, as in `timeit`. With `--json` each
workload gives a line in the format that `benches/README.md` describes. It needs the package `estafette` and NumPy.
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import queue
import statistics
import sys
import threading
import time

import numpy as np

import estafette as est

# Small, so that nothing is measured but the call.
SHAPE = (16, 16)

# After this time without work the event loop's thread is asleep, as it is where awaiting is worth while.
ASLEEP_AFTER_S = 0.0001

# How long the deleters of a run may take before it counts as a leak.
RELEASED_WITHIN_S = 30.0


def nothing():
    """The body of an operation."""


def submit(engine, n):
    """`eng.submit` of an empty function, until all of them have run."""
    operation = None
    began = time.perf_counter_ns()
    for _ in itertools.repeat(None, n):
        operation = engine.submit(nothing)
    submitted = time.perf_counter_ns()
    engine.wait_all()
    ended = time.perf_counter_ns()
    if not operation.is_done():
        raise RuntimeError("an operation was lost: nothing is in flight, but it is not done")
    return {"ns_per_op": (ended - began) / n, "push_ns": (submitted - began) / n}


def import_numpy(engine, n):
    """`eng.from_dlpack` of a NumPy array, and letting go of it."""
    array = np.zeros(SHAPE, np.float32)
    before = engine.stats().released
    began = time.perf_counter_ns()
    for _ in itertools.repeat(None, n):
        engine.from_dlpack(array)
    ended = time.perf_counter_ns()
    # Deleters run on a thread of their own: not measured, but a run must not begin among those of the one before.
    wait_until(lambda: engine.stats().released >= before + n)
    return {"ns_per_op": (ended - began) / n}


def export_numpy(engine, n):
    """`np.from_dlpack` of a finished tensor, and letting go of the array."""
    tensor = engine.zeros(SHAPE, "float32")
    tensor.wait()
    began = time.perf_counter_ns()
    for _ in itertools.repeat(None, n):
        np.from_dlpack(tensor)
    ended = time.perf_counter_ns()
    # A lease that was not returned would hold this up.
    engine.submit(lambda view: None, writes=[tensor]).wait(RELEASED_WITHIN_S)
    return {"ns_per_op": (ended - began) / n}


def await_finished(engine, n):
    """`await` of a finished tensor."""
    tensor = engine.zeros(SHAPE, "float32")
    tensor.wait()

    async def awaiting():
        began = time.perf_counter_ns()
        for _ in itertools.repeat(None, n):
            await tensor
        return time.perf_counter_ns() - began

    return {"ns_per_op": asyncio.run(awaiting()) / n}


def resume(engine, n):
    """From the end of an operation's function, on a worker, until the coroutine that awaits its output goes on; and beside
    it what `call_soon_threadsafe` alone takes from another thread. Medians of a run; the two take turns."""
    tensor = engine.zeros(SHAPE, "float32")
    ended = 0
    jobs = queue.SimpleQueue()
    ours, bare = [], []

    def body(_view):
        nonlocal ended
        time.sleep(ASLEEP_AFTER_S)
        ended = time.perf_counter_ns()

    def finish(loop):
        nonlocal ended
        for future in iter(jobs.get, None):
            time.sleep(ASLEEP_AFTER_S)
            ended = time.perf_counter_ns()
            loop.call_soon_threadsafe(future.set_result, None)

    async def awaiting():
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=finish, args=(loop,))
        thread.start()
        for _ in itertools.repeat(None, n):
            engine.submit(body, writes=[tensor])
            await tensor
            ours.append(time.perf_counter_ns() - ended)
            future = loop.create_future()
            jobs.put(future)
            await future
            bare.append(time.perf_counter_ns() - ended)
        jobs.put(None)
        thread.join()

    asyncio.run(awaiting())
    return {"ns_per_op": statistics.median(ours), "bare_ns": statistics.median(bare)}


def round_trip(engine, n):
    """NumPy to here and back to NumPy, and letting go of both: one import, one export, two deleters."""
    before = settled(engine)
    resident = resident_kib()
    began = time.perf_counter_ns()
    for _ in itertools.repeat(None, n):
        np.from_dlpack(engine.from_dlpack(np.empty(SHAPE, np.float32)))
    ended = time.perf_counter_ns()
    after = settled(engine)
    if not after.imported - before.imported == after.deleters - before.deleters == n:
        raise RuntimeError(f"{n} tensors came in, but the counters went from {before} to {after}")
    return {"ns_per_op": (ended - began) / n, "grown_kib": resident_kib() - resident}


def settled(engine):
    """The counters, once every deleter has run."""
    wait_until(lambda: engine.stats().releasing == 0)
    return engine.stats()


def resident_kib():
    """Memory of this process, where the system says; else 0."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    except OSError:
        return 0


WORKLOADS = {
    "python-submit": submit,
    "python-import": import_numpy,
    "python-export": export_numpy,
    "python-await": await_finished,
    "python-resume": resume,
    "python-round-trip": round_trip,
}


def wait_until(condition):
    deadline = time.monotonic() + RELEASED_WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not everything was released within {RELEASED_WITHIN_S:.0f} s")
        time.sleep(0.001)


def measure(name, n, workers, rounds):
    """The record of one workload."""
    with est.Engine(workers=workers) as engine:
        WORKLOADS[name](engine, n)
        samples = [WORKLOADS[name](engine, n) for _ in range(rounds)]
    record = {"workload": name, "engine": "estafette", "workers": workers, "n": n, "rounds": rounds}
    for quantity in samples[0]:
        values = [sample[quantity] for sample in samples]
        spread = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        record[quantity] = {part: round(value, 3) for part, value in spread.items()}
    return record


def text(record):
    """A line for people."""
    spreads = [
        f"{name} {value['median']:.0f} [{value['min']:.0f}-{value['max']:.0f}]"
        for name, value in record.items()
        if isinstance(value, dict)
    ]
    head = f"{record['workload']:<22} {record['workers']:>7} {record['n']:>9} {record['rounds']:>6}"
    return f"{head}  {', '.join(spreads)}"


def whole_number(least):
    """A parser of whole numbers that are not less."""

    def parse(argument):
        number = int(argument)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--n", type=whole_number(1), default=20_000, help="calls of one run (default 20,000)")
    parser.add_argument("--workers", type=whole_number(1), default=1, help="worker threads (default 1)")
    parser.add_argument("--rounds", type=whole_number(1), default=5, help="measured runs (default 5)")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each workload")
    options = parser.parse_args()
    for name in options.names:
        if name not in WORKLOADS:
            parser.error(f"no workload `{name}`; there are {', '.join(WORKLOADS)}")
    if not options.json:
        print(f"{'workload':<22} {'workers':>7} {'n':>9} {'rounds':>6}  quantities: median [min-max]")
    gc.disable()
    for name in options.names or WORKLOADS:
        record = measure(name, options.n, options.workers, options.rounds)
        print(json.dumps(record, separators=(",", ":")) if options.json else text(record))
        sys.stdout.flush()
        gc.collect()


if __name__ == "__main__":
    main()
