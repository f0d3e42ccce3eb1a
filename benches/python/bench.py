"""Cost of the calls of the Python package: `python benches/python/bench.py [NAME...] [--json]`.

One engine and one warm-up run for each workload, then as many measured runs as asked for. Times are of a plain loop around the
call, some 10 ns of which are the loop's own; the garbage collector is off meanwhile, as in `timeit`. With `--json` each
workload gives a line in the format that `benches/README.md` describes. It needs the package `estafette` and NumPy; some workloads
need PyTorch, JAX, `apache-tvm-ffi` or a C compiler, and are left out where one is missing.
"""

import argparse
import asyncio
import ctypes
import gc
import itertools
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import estafette as est

# Small, so that nothing is measured but the call.
SHAPE = (16, 16)

# After this time without work the event loop's thread is asleep, as it is where awaiting is worth while.
ASLEEP_AFTER_S = 0.0001
# Two calls that are compared take turns this often in one run.
BLOCKS = 10

# The deleters of a run may take this long before it counts as a leak.
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


def in_turn(n, ours, reference):
    """Costs of two calls, in blocks that take turns: machines drift, and their ratio does not."""

    def loop(function, argument, n):
        began = time.perf_counter_ns()
        for _ in itertools.repeat(None, n):
            function(argument)
        return time.perf_counter_ns() - began

    block = max(n // BLOCKS, 1)
    ours_ns, reference_ns = [], []
    for _ in range(BLOCKS):
        ours_ns.append(loop(*ours, block) / block)
        reference_ns.append(loop(*reference, block) / block)
    ours_ns, reference_ns = statistics.median(ours_ns), statistics.median(reference_ns)
    return {"ns_per_op": ours_ns, "reference_ns": reference_ns, "ratio": ours_ns / reference_ns}


def import_numpy(engine, n):
    """`eng.from_dlpack` of a NumPy array, and releasing it; the reference is NumPy's own import."""
    array = np.zeros(SHAPE, np.float32)
    figures = in_turn(n, (engine.from_dlpack, array), (np.from_dlpack, array))
    # Some deleters may run on a thread of their own: a run must not begin among those of the one before.
    wait_until(lambda: engine.stats().releasing == 0)
    return figures


def export_numpy(engine, n):
    """`np.from_dlpack` of a finished tensor, and releasing the array; the reference is of a NumPy array."""
    tensor = engine.zeros(SHAPE, "float32")
    tensor.wait()
    figures = in_turn(n, (np.from_dlpack, tensor), (np.from_dlpack, np.zeros(SHAPE, np.float32)))
    # A lease that was not returned would hold this up.
    engine.submit(lambda view: None, writes=[tensor]).wait(RELEASED_WITHIN_S)
    return figures


def import_torch(engine, n):
    """`eng.from_dlpack` of a PyTorch tensor through PyTorch's C exchange table; the reference is PyTorch's own import."""
    import torch

    tensor = torch.zeros(SHAPE)
    figures = in_turn(n, (engine.from_dlpack, tensor), (torch.from_dlpack, tensor))
    wait_until(lambda: engine.stats().releasing == 0)
    return figures


def export_table(engine, n):
    """`tvm_ffi.from_dlpack` of a finished tensor through our C exchange table; the reference is PyTorch's table."""
    import torch
    import tvm_ffi

    tensor = engine.zeros(SHAPE, "float32")
    tensor.wait()
    return in_turn(n, (tvm_ffi.from_dlpack, tensor), (tvm_ffi.from_dlpack, torch.zeros(SHAPE)))


def table_in_c(engine, n):
    """The functions of our C exchange table from a loop in C: a tensor taken and returned, and one described."""
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "table.so")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "table.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        consumer = ctypes.PyDLL(library)
    tensor = engine.zeros(SHAPE, "float32")
    tensor.wait()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer_of(est.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    figures = {}
    for quantity, function in (("ns_per_op", consumer.take), ("describe_ns", consumer.describe)):
        function.restype, function.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.py_object, ctypes.c_int64]
        blocks = [function(table, tensor, max(n // BLOCKS, 1)) for _ in range(BLOCKS)]
        if min(blocks) < 0:
            raise RuntimeError(f"the table refused a finished tensor ({quantity})")
        figures[quantity] = statistics.median(blocks)
    return figures


def call(engine, n):
    """`eng.call` of a function of two operands, and the wait for its result; the reference is the function alone."""
    array = np.zeros(SHAPE, np.float32)
    tensor = engine.from_dlpack(array)
    return in_turn(n, (lambda t: engine.call(np.add, t, t).wait(), tensor), (lambda a: np.add(a, a), array))


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
    resumed, reference = statistics.median(ours), statistics.median(bare)
    return {"ns_per_op": resumed, "reference_ns": reference, "ratio": resumed / reference}


def round_trip(engine, n):
    """NumPy to here and back to NumPy, and releasing both: one import, one export, two deleters."""
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


# Operations of the loop that is replayed.
LOOP = 100


def replay(engine, n):
    """One operation of a loop of a hundred that pass a tensor on: as a node of a replayed program, and submitted."""
    x, counted = engine.zeros(SHAPE, "float32"), engine.var()
    with engine.program("loop") as program:
        for _ in range(LOOP):
            program.submit(nothing_with, writes=[x, counted])

    def submits(turns):
        for _ in itertools.repeat(None, turns * LOOP):
            engine.submit(nothing_with, writes=[x, counted])
        engine.wait_all()

    def replays(turns):
        for _ in itertools.repeat(None, turns):
            program.replay()
        engine.wait_all()

    # Blocks that take turns, as in `in_turn`; in each, what wakes a thread up is shared by many.
    turns = max(n // LOOP // BLOCKS, 1)
    times = {replays: [], submits: []}
    for _ in range(BLOCKS):
        for block, samples in times.items():
            began = time.perf_counter_ns()
            block(turns)
            samples.append((time.perf_counter_ns() - began) / (turns * LOOP))
    if counted.version != BLOCKS * turns * (1 + LOOP):
        raise RuntimeError(f"{BLOCKS * turns} turns, replayed and submitted, left the version {counted.version}")
    replayed_ns, submitted_ns = (statistics.median(samples) for samples in times.values())
    return {"ns_per_op": replayed_ns, "submitted_ns": submitted_ns, "ratio": replayed_ns / submitted_ns}


# Operations of one turn of the pipeline.
STAGES = 3


def pipeline(engine, n):
    """A stage of NumPy -> JAX -> PyTorch -> NumPy, where the loop waits for each turn; the reference is the same loop without an engine.

    The first stages give new arrays, and the last writes into the array that the next turn begins with.
    """
    import jax
    import jax.numpy as jnp
    import torch

    to_jax = jax.jit(lambda x: jnp.tanh(x) + 1)

    def to_torch(y):
        return torch.relu(torch.from_dlpack(y))

    def back(z, x):
        np.multiply(np.from_dlpack(z), 0.5, out=np.from_dlpack(x))

    x = np.zeros(SHAPE, np.float32)
    tensor = engine.from_dlpack(np.zeros(SHAPE, np.float32))

    def ours(turns):
        for _ in itertools.repeat(None, turns):
            y = engine.call(to_jax, tensor, using=jnp.from_dlpack)
            z = engine.call(to_torch, y)
            engine.submit(back, reads=[z], writes=[tensor])
            tensor.wait()

    def alone(turns):
        for _ in itertools.repeat(None, turns):
            back(to_torch(to_jax(jnp.from_dlpack(x)).block_until_ready()), x)

    turns = max(n // STAGES // BLOCKS, 1)
    times = {ours: [], alone: []}
    for _ in range(BLOCKS):
        for block, samples in times.items():
            began = time.perf_counter_ns()
            block(turns)
            samples.append((time.perf_counter_ns() - began) / (turns * STAGES))
    if not np.allclose(np.from_dlpack(tensor), x):
        raise RuntimeError("the two loops do not agree")
    ours_ns, alone_ns = (statistics.median(samples) for samples in times.values())
    return {"ns_per_op": ours_ns, "reference_ns": alone_ns, "ratio": ours_ns / alone_ns}


def nothing_with(_):
    """The body of an operation with an operand."""


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
    "python-call": call,
    "python-replay": replay,
    "python-import": import_numpy,
    "python-export": export_numpy,
    "python-import-torch": import_torch,
    "python-export-table": export_table,
    "python-table-c": table_in_c,
    "python-await": await_finished,
    "python-resume": resume,
    "python-round-trip": round_trip,
    "python-pipeline": pipeline,
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
        f"{name} {figure(value['median'])} [{figure(value['min'])}-{figure(value['max'])}]"
        for name, value in record.items()
        if isinstance(value, dict)
    ]
    head = f"{record['workload']:<22} {record['workers']:>7} {record['n']:>9} {record['rounds']:>6}"
    return f"{head}  {', '.join(spreads)}"


def figure(value):
    """As many digits as say something."""
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


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
        try:
            record = measure(name, options.n, options.workers, options.rounds)
        except (ImportError, FileNotFoundError) as missing:
            if options.names:
                parser.error(f"`{name}` cannot run: {missing}")
            print(f"{name} is left out: {missing}", file=sys.stderr)
            continue
        print(json.dumps(record, separators=(",", ":")) if options.json else text(record))
        sys.stdout.flush()
        gc.collect()


if __name__ == "__main__":
    main()
