"""Wait of an event loop for its turn beside functions that run: `python benches/python/event_loop.py [--rounds 5] [--json]`.

2,000 functions of about 100 microseconds run on other threads, by Estafette and by a `ThreadPoolExecutor`, while the loop sleeps for one
millisecond at a time. A figure is the time from one turn of the loop to the next, that millisecond included: its median and the longest
one of each round, as medians of all rounds.

Functions are of three kinds: Python code, which gives the interpreter's lock away when another thread has asked for it, and two in C that
keep the lock.
"""

import argparse
import asyncio
import concurrent.futures
import ctypes
import functools
import json
import statistics
import time

import numpy as np

import estafette as est

COUNT = 2000


def spin():
    until = time.perf_counter() + 1e-4
    while time.perf_counter() < until:
        pass


# They return nothing, as to look at a result may take Python code.
usleep = ctypes.PyDLL(None).usleep
usleep.restype = None
BODIES = {
    "Python": spin,
    "C": functools.partial(usleep, 50),
    "NumPy": functools.partial(np.copyto, np.empty(50_000, object), np.empty(50_000, object)),
}


def ready_at_once(eng, body):
    """A lease holds all functions up. Without workers the submissions after that run them."""
    held, gate = eng.zeros(1, "int8"), eng.var()
    with held.read():
        eng.submit(lambda _: None, writes=[held, gate])
        for _ in range(COUNT):
            eng.submit(body, reads=[gate])
    for _ in range(40):
        eng.submit(body)
    eng.wait_all()


def one_after_the_other(eng, body):
    """The thread that waits for the last function may run them all."""
    order = eng.var()
    for _ in range(COUNT):
        last = eng.submit(body, writes=[order])
    last.wait()


def in_a_function(eng, body):
    """The wait is inside a function."""
    eng.submit(lambda: one_after_the_other(eng, body)).wait()


def by_engine(body, how=ready_at_once, **options):
    with est.Engine(**options) as eng:
        how(eng, body)


def by_thread_pool(body, workers):
    with concurrent.futures.ThreadPoolExecutor(max(1, workers)) as pool:
        concurrent.futures.wait([pool.submit(body) for _ in range(COUNT)])


def gaps(run):
    """The seconds from each turn of an event loop to its next one while `run` runs on another thread."""

    async def main():
        running = asyncio.ensure_future(asyncio.to_thread(run))
        turns = [time.perf_counter()]
        while not running.done():
            await asyncio.sleep(0.001)
            turns.append(time.perf_counter())
        await running
        return [later - earlier for earlier, later in zip(turns, turns[1:])]

    return asyncio.run(asyncio.wait_for(main(), 120))


FORMS = {
    "Estafette": by_engine,
    "Estafette, 1 worker": functools.partial(by_engine, workers=1),
    "Estafette, no worker": functools.partial(by_engine, how=one_after_the_other, workers=0),
    "ThreadPoolExecutor(2)": functools.partial(by_thread_pool, workers=2),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for kind, body in BODIES.items():
        rounds = {form: [] for form in FORMS}
        for _ in range(options.rounds):
            for form, run in FORMS.items():
                rounds[form].append([gap * 1e3 for gap in gaps(functools.partial(run, body))])
        for form, measured in rounds.items():
            median, longest = (statistics.median(map(of, measured)) for of in (statistics.median, max))
            if options.json:
                print(json.dumps({"kind": kind, "form": form, "median_ms": median, "longest_ms": longest}))
            else:
                print(f"{kind:7} {form:26} median {median:6.2f} ms   longest {longest:6.2f} ms", flush=True)


if __name__ == "__main__":
    main()
