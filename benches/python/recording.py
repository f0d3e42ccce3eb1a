"""What recording costs a program in Python: the relay of `examples/python/relay.py`, with and without.

Pairs of runs in one process, one with a recording and one without, in an order that is drawn; the ratio of each pair, their
median, and an interval in which the median lies with 95 % (the bootstrap's, with 2,000 draws). Only the time of the relay
itself counts: libraries are compiled and imported before, and the file is written afterwards.

    python benches/python/recording.py [--pairs 30] [--rounds 10] [--loop] [--observe exchanges|nothing]

With `--loop`, a loop of three cheap exchanges per turn takes the place of the relay, in microseconds per turn. With `--observe` it is
observe mode that is measured, by a program without an engine: turns of some two milliseconds of NumPy's work, each with two
exchanges of NumPy, PyTorch and the host (`exchanges`), or with the work alone (`nothing`).
"""

import argparse
import asyncio
import contextlib
import io
import os
import random
import statistics
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


def seconds(run, path, tool=est.record):
    """How long `run` takes, recorded to the file `path` unless there is none."""
    recording = tool(path) if path else contextlib.nullcontext()
    with recording:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began


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
    arguments.add_argument("--observe", choices=("exchanges", "nothing"))
    options = arguments.parse_args()

    tool = est.observe if options.observe else est.record
    if options.observe:
        run, steps = observed_of(300, options.observe == "exchanges")
    else:
        run, steps = loop_of(2_000) if options.loop else relay_of(options.rounds)
    what = "turn" if options.loop or options.observe else "batch"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.pftrace")
        seconds(run, None), seconds(run, path, tool)
        without, recorded = [], []
        for _ in range(options.pairs):
            for place in random.sample([None, path], 2):
                (recorded if place else without).append(seconds(run, place, tool))
    for name, samples in ("without", without), ("recorded", recorded):
        each = [sample / steps * 1e6 for sample in samples]
        print(f"{name:9} {statistics.median(each):8.2f} us per {what} [{min(each):.2f}-{max(each):.2f}]")
    ratio, low, high = interval([b / a for a, b in zip(without, recorded, strict=True)])
    print(f"recorded / without: {ratio:.3f} [{low:.3f}-{high:.3f}], {options.pairs} pairs")


if __name__ == "__main__":
    main()
