"""Cost of tracing for a program in Python: the relay of `examples/python/relay.py`, with and without.

Pairs of runs in one process, one with a trace and one without, in an order that is drawn; the ratio of each pair, their
median, and an interval in which the median lies with 95 % (the bootstrap's, with 2,000 draws). Only the time of the relay
itself counts: libraries are compiled and imported before, and the file is written afterwards.

    python benches/python/tracing.py [--pairs 30] [--rounds 10] [--loop] [--observe exchanges|nothing|stalls]

With `--loop`, a loop of three cheap exchanges per turn takes the place of the relay, in microseconds per turn. With `--observe` it is
observe mode that is measured, by a program without an engine: turns of some two milliseconds of NumPy's work, each with two
exchanges of NumPy, PyTorch and the host (`exchanges`), or with the work alone (`nothing`); two processes take turns then, an
observed one and another. With `stalls` it is how well observe mode measures: waits of 5, 20 and 100 ms for a future, as the program measures them and as the report
gives them.
"""

import argparse
import asyncio
import contextlib
import io
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "python"))

import estafette as est
import relay as example
from closing import Ledger

DRAWS = 2_000


def relay_of(rounds):
    """The relay as a function that runs it once, and the number of its batches."""
    images, labels = example.digits()
    model = example.train(images, labels)
    ledger = Ledger()
    legs = example.runners(ledger)
    # Compiled once, and not in each run.
    project = example.project_with(legs[1], *model[:2])
    example.project_with = lambda *_: project
    eng = est.Engine(workers=2)

    def run():
        with contextlib.redirect_stderr(io.StringIO()):
            asyncio.run(example.relay(eng, rounds, 8, images, labels, model, ledger, legs))

    return run, rounds * len(labels) // example.BATCH


def loop_of(turns):
    """Import, call and read under a lease, one after the other."""
    eng = est.Engine(workers=1)
    a = np.zeros((64, 64), "float32")

    def run():
        for _ in range(turns):
            b = eng.from_dlpack(a)
            c = eng.call(np.negative, b, using=np.from_dlpack, name="negate")
            with c.read(np.from_dlpack) as view:
                view.argmin(axis=1)
                del view

    return run, turns


def observed_of(turns, exchanges):
    """Work of NumPy, and in each turn a crossing to PyTorch and a value back, if there are exchanges."""
    import torch

    a = np.ones(600_000, "float32")
    small = np.ones(64, "float32")

    def run():
        for _ in range(turns):
            for _ in range(48):
                np.multiply(a, 1.0, out=a)
            if exchanges:
                torch.from_numpy(small).sum().item()

    return run, turns


def stalls(times):
    """The error of each of so many waits, by their length in milliseconds: how much the report differs from the program's own clock."""
    import concurrent.futures

    errors = {}
    for milliseconds in (5, 20, 100):
        for _ in range(times):
            with concurrent.futures.ThreadPoolExecutor(1) as pool, est.observe() as seen:
                future = pool.submit(time.sleep, milliseconds / 1e3)
                began = time.perf_counter_ns()
                future.result()
                planted = time.perf_counter_ns() - began
            (row,) = [row for row in seen.report().data["operations"] if "Future.result" in row["name"]]
            errors.setdefault(milliseconds, []).append(row["waited_ns"] / planted - 1)
    return errors


def in_processes(pairs, what):
    """The processor's seconds of runs without and with observation, in two processes that take turns in an order that is drawn. The processes are
    new after every ten pairs: the memory of one may lie better than that of the other."""
    found = {"without": [], "observed": []}
    for _ in range(-(-pairs // 10)):
        command = [sys.executable, __file__, "--observe", what, "--way"]
        pipe = subprocess.PIPE
        both = {way: subprocess.Popen([*command, way], stdin=pipe, stdout=pipe, text=True) for way in found}
        for process in both.values():
            process.stdout.readline()
        for _ in range(10):
            for way in random.sample(list(found), 2):
                both[way].stdin.write("\n")
                both[way].stdin.flush()
                found[way].append(float(both[way].stdout.readline()))
        for process in both.values():
            process.stdin.close()
            if process.wait() != 0:
                raise SystemExit("a process of the pairs failed")
    return found["without"], found["observed"]


def one_process(what, way):
    """A run for each line that comes, and its seconds as a line, with everything compiled and warm before."""
    run, _ = observed_of(300, what == "exchanges")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if way == "observed":
            stack.enter_context(est.observe(os.path.join(folder, "run.pftrace")))
        # The processor's time of this thread: while two processes take turns, others of the machine do not.
        seconds(run, None)
        print(flush=True)
        for _ in sys.stdin:
            print(seconds(run, None, clock=time.thread_time), flush=True)


def seconds(run, path, tool=est.record, clock=time.perf_counter):
    """Time of `run`, recorded to the file `path` unless there is none."""
    trace = tool(path) if path else contextlib.nullcontext()
    with trace:
        began = clock()
        run()
        return clock() - began


def interval(samples):
    """Median and the interval of it."""
    medians = sorted(
        statistics.median(random.choices(samples, k=len(samples))) for _ in range(DRAWS)
    )
    return statistics.median(samples), medians[DRAWS // 40], medians[-DRAWS // 40]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--pairs", type=int, default=30)
    arguments.add_argument("--rounds", type=int, default=10, help="how often the digits go around in one run")
    arguments.add_argument("--loop", action="store_true")
    arguments.add_argument("--observe", choices=("exchanges", "nothing", "stalls"))
    arguments.add_argument("--way", choices=("without", "observed"), help="one process of the pairs, for itself")
    options = arguments.parse_args()

    if options.way:
        one_process(options.observe, options.way)
        return
    if options.observe == "stalls":
        for milliseconds, errors in stalls(options.pairs).items():
            middle = statistics.median(errors)
            print(f"{milliseconds:4} ms: {middle:+.3%} [{min(errors):+.3%} to {max(errors):+.3%}], {len(errors)} stalls")
        return
    what = "turn" if options.loop or options.observe else "batch"
    if options.observe:
        steps = 300
        without, recorded = in_processes(options.pairs, options.observe)
    else:
        run, steps = loop_of(2_000) if options.loop else relay_of(options.rounds)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.pftrace")
            seconds(run, None), seconds(run, path)
            without, recorded = [], []
            for _ in range(options.pairs):
                for place in random.sample([None, path], 2):
                    (recorded if place else without).append(seconds(run, place))
    for name, samples in ("without", without), ("recorded", recorded):
        each = [sample / steps * 1e6 for sample in samples]
        print(f"{name:9} {statistics.median(each):8.2f} us per {what} [{min(each):.2f}-{max(each):.2f}]")
    ratio, low, high = interval([b / a for a, b in zip(without, recorded, strict=True)])
    print(f"recorded / without: {ratio:.3f} [{low:.3f}-{high:.3f}], {options.pairs} pairs")


if __name__ == "__main__":
    main()
