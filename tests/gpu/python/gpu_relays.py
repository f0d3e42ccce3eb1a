"""Tensors that go from library to library, each computing on the device, with no host in the loop."""

from __future__ import annotations

import itertools
import random
import time

import estafette as est
import numpy as np
from suite import ON, REHEARSAL, SIMULATOR, Library, Skip, installed, note_versions, report, run

COUNT = 1 << 20
#: What a slow producer takes, and how long the host may be busy with handing on what it makes: the interpreter's turns
#: take 5 ms each.
DELAY_MS, FREE_MS = 100.0, 10.0

FOUND, MISSING = installed()


def expected(start: float, steps: int) -> float:
    value = np.float32(start)
    for _ in range(steps):
        value = 2 * value + 1
    return float(value)


def fetch(tensor: est.Tensor, library: Library) -> np.ndarray:
    tensor.wait(timeout=60)
    return np.asarray(library.fetch(library.using(tensor)))


def relay(engine: est.Engine, libraries: list[Library], start: float) -> est.Tensor:
    """The first library makes an array; each one computes with what the one before has made."""
    tensor = engine.from_dlpack(libraries[0].full(COUNT, start))
    for library in libraries:
        tensor = engine.call(library.step, tensor, using=library.using, on=ON, name=library.name)
    return tensor


def check_pairs() -> None:
    """Each library's result is computed with by each other one."""
    if not FOUND:
        raise Skip("no library has a device here")
    with est.Engine(workers=2) as engine:
        for first, second in itertools.permutations(FOUND, 2):
            result = fetch(relay(engine, [first, second, first], 1.0), first)
            assert (result == expected(1.0, 3)).all(), f"{first.name} → {second.name} → {first.name}: {result[:4]}"
            report("passed", f"{first.name} → {second.name} → {first.name}")


def check_long_relays_in_random_order() -> None:
    if not FOUND:
        raise Skip("no library has a device here")
    dice = random.Random(17)
    with est.Engine(workers=2) as engine:
        for _ in range(20):
            order = [dice.choice(FOUND) for _ in range(12)]
            # Several relays are under way at once.
            results = [relay(engine, order, start) for start in (0.0, 1.0, 2.0)]
            for start, result in enumerate(results):
                values = fetch(result, order[0])
                assert (values == expected(start, len(order))).all(), [library.name for library in order]


def slow() -> Library:
    candidates = [library for library in FOUND if library.delay is not None]
    if not candidates:
        raise Skip("no library here can make its stream wait")
    return candidates[0]


def check_a_slow_producer_is_waited_for_and_the_host_is_not_held_up() -> None:
    producer = slow()
    with est.Engine(workers=2) as engine:
        for consumer in FOUND:
            if consumer.name == producer.name:
                continue

            def produce(x: object) -> object:
                assert producer.delay is not None
                producer.delay(DELAY_MS)
                return producer.step(x)

            tensor = engine.from_dlpack(producer.full(COUNT, 3.0))
            tensor.wait()
            for _ in range(2):  # The first time loads kernels.
                begin = time.perf_counter()
                made = engine.call(produce, tensor, using=producer.using, on=ON)
                result = engine.call(consumer.step, made, using=consumer.using, on=ON)
                busy = 1e3 * (time.perf_counter() - begin)
                values = fetch(result, consumer)
                took = 1e3 * (time.perf_counter() - begin)
                assert (values == expected(3.0, 2)).all(), f"{consumer.name}: {values[:4]}"
            if not REHEARSAL:
                assert took >= 0.5 * DELAY_MS, f"the delay was only {took} ms"
                # A thread of the simulator may keep a processor from the host.
                assert busy <= FREE_MS or SIMULATOR, f"the host was busy for {busy} ms"
            report("passed", f"{producer.name}, slow → {consumer.name}", f"host free after {busy:.3f} ms")


def check_without_the_wait_the_consumer_is_too_early() -> None:
    """Control of the checks above, which would prove nothing without it: a consumer that is asked not to wait is wrong."""
    if REHEARSAL:
        raise Skip("there are no streams in host memory")
    names = {library.name for library in FOUND}
    if not {"torch", "cupy"} <= names:
        raise Skip("needs torch and CuPy")
    import cupy
    import torch

    for waits in (True, False):
        x = torch.zeros(COUNT, device="cuda")
        torch.cuda.synchronize()
        producer, consumer = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
        with torch.cuda.stream(producer):
            slow().delay(DELAY_MS) if slow().name == "torch" else torch.cuda._sleep(int(DELAY_MS * 2e6))
            x.fill_(7.0)
            # -1 is the producer's word that no consumer needs to wait.
            capsule = x.__dlpack__(stream=consumer.ptr if waits else -1)
        with consumer:
            y = cupy.from_dlpack(_Capsule(capsule, x)).copy()
            values = cupy.asnumpy(y)
        assert (values == 7.0).all() if waits else (values == 0.0).any(), f"with waits={waits}: {values[:4]}"
        torch.cuda.synchronize()


class _Capsule:
    """Hands on a capsule that was made before."""

    def __init__(self, capsule: object, owner: object) -> None:
        self._capsule, self._owner = capsule, owner

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._owner.__dlpack_device__()  # type: ignore[attr-defined, no-any-return]


def check_a_reader_is_done_before_the_next_write() -> None:
    """A consumer's read lease ends when its device work does, so that a later write does not come before it."""
    reader = slow()
    writers = [library for library in FOUND if library.name in ("torch", "cupy")]
    if not writers:
        raise Skip("needs a library that writes in place")
    writer = writers[-1]
    with est.Engine(workers=2) as engine:
        tensor = engine.from_dlpack(writer.full(COUNT, 1.0))

        def read(x: object) -> object:
            assert reader.delay is not None
            reader.delay(DELAY_MS)
            return reader.step(x)

        def write(x: object) -> None:
            x[...] = 100.0  # type: ignore[index]

        result = engine.call(read, tensor, using=reader.using, on=ON)
        engine.submit(write, writes=[tensor], using=writer.using, on=ON)
        values = fetch(result, reader)
        assert (values == 3.0).all(), values[:4]
        assert (fetch(tensor, writer) == 100.0).all()


if __name__ == "__main__":
    note_versions(FOUND)
    for name, reason in MISSING:
        report("skipped", name, reason)
    run(
        [
            check_pairs,
            check_long_relays_in_random_order,
            check_a_slow_producer_is_waited_for_and_the_host_is_not_held_up,
            check_without_the_wait_the_consumer_is_too_early,
            check_a_reader_is_done_before_the_next_write,
        ]
    )
