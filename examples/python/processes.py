"""A producer and a consumer in two processes, with a ring of three buffers between them: no copy, and no wait but for a free buffer.

    python examples/python/processes.py
"""

from __future__ import annotations

import multiprocessing

import numpy as np

import estafette as est

ITEMS, LENGTH, BUFFERS = 300, 100_000, 3


def consume(address: str, results: multiprocessing.SimpleQueue[float]) -> None:
    """The other process: sums up what comes."""
    total = 0.0
    with est.Engine(workers=1) as eng, eng.connect(address) as link:
        for x in link:
            array = np.from_dlpack(x)  # waits until the producer has written it
            total += float(array.sum())
            del array, x  # the producer may write that buffer again
    results.put(total)


def main() -> None:
    processes = multiprocessing.get_context("spawn")
    results: multiprocessing.SimpleQueue[float] = processes.SimpleQueue()
    with est.Engine(workers=2, using=np.from_dlpack) as eng:
        with eng.door() as door:
            consumer = processes.Process(target=consume, args=(door.address, results))
            consumer.start()
            link = door.accept(timeout=60)
        ring = [eng.zeros(LENGTH, "float64", shared=True) for _ in range(BUFFERS)]
        with link:
            for item in range(ITEMS):
                buffer = ring[item % BUFFERS]
                eng.submit(lambda x, item=item: x.fill(item), writes=[buffer])
                link.send(buffer)  # a promise
            eng.wait_all()
        total = results.get()
        consumer.join()
    assert total == sum(range(ITEMS)) * LENGTH, total
    print(f"{ITEMS} tensors of {LENGTH * 8 // 1000} kB in {BUFFERS} buffers; the sum is {total:.0f}")


if __name__ == "__main__":
    main()
