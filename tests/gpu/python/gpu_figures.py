"""Figures that need libraries: handing a tensor over, and a pipeline of two libraries."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import estafette as est
from suite import ON, REHEARSAL, SIMULATOR, Skip, figure, installed, microseconds, report, run, spread

FOUND, MISSING = installed()
NAMES = {library.name: library for library in FOUND}


def check_handing_over() -> None:
    """Host time from one library's array on its stream to another's, against the two libraries alone, in turn."""
    # Numba has no DLPack, and cuda.core takes no other library's streams: between them and others there is no such baseline.
    apart = {"numba", "cuda.core"}
    pairs = [(a, b) for a, b in itertools.permutations(FOUND, 2) if not apart & {a.name, b.name}]
    if not pairs:
        raise Skip("needs two libraries with DLPack and a device")
    rounds, calls = (3, 20) if REHEARSAL else (41, 200)
    with est.Engine(workers=1) as engine:
        for producer, consumer in pairs:
            x = producer.full(1024, 1.0)

            def ours(x: Any = x, consumer: Any = consumer) -> Any:
                return consumer.using(engine.from_dlpack(x))

            def theirs(x: Any = x, consumer: Any = consumer) -> Any:
                return consumer.using(x)

            kept: tuple[list[float], list[float]] = ([], [])
            for round_ in range(rounds):
                for times, function in zip(kept, (ours, theirs), strict=True):
                    measured = statistics.median(microseconds(function, calls))
                    if round_ > 0:
                        times.append(measured)
                engine.wait_all(timeout=60)
            ratio = statistics.median(a / b for a, b in zip(*kept, strict=True))
            figure(
                f"handing over, {producer.name} → {consumer.name}",
                f"{spread(kept[0], 'µs')}, {ratio:.2f} × the libraries alone",
                f"`__dlpack__` and `from_dlpack` {spread(kept[1], 'µs')}",
                "≤ 15 µs, or no more than the libraries alone",
                statistics.median(kept[0]) <= 15.0 or ratio <= 1.0,
            )


def check_reads_of_memory_that_is_kept() -> None:
    """Host time of a library that takes a tensor and drops it, for the first time and for the thousandth: what readers leave does not gather."""
    takers = [library for library in FOUND if library.name != "numba"]
    if len(FOUND) < 2 or not takers:
        raise Skip("needs two libraries with DLPack and a device")
    with est.Engine(workers=1) as engine:
        for producer, consumer in zip(takers, [*takers[1:], takers[0]], strict=True):
            x = producer.full(1024, 1.0)
            kept = engine.from_dlpack(x)

            def take(kept: Any = kept, consumer: Any = consumer) -> None:
                consumer.using(kept)

            def once_more(x: Any = x, consumer: Any = consumer) -> None:
                consumer.using(engine.from_dlpack(x))

            for what, function in (("a kept tensor", take), ("memory imported again and again", once_more)):
                times = [list(microseconds(function, 200 if REHEARSAL else 500)) for _ in range(4 if REHEARSAL else 8)]
                first, last = (statistics.median(part) for part in (times[1], times[-1]))
                figure(
                    f"{what}, {producer.name} → {consumer.name}, taken and dropped",
                    f"{last:.2f} µs after {len(times) * len(times[0])} times, {last / first:.2f} × the first ones",
                    f"the first ones {first:.2f} µs",
                    "≤ 1.5 × the first ones",
                    last <= 1.5 * first,
                )
            engine.wait_all(timeout=60)


def check_the_host_is_never_blocked_by_handing_over() -> None:
    producers = [library for library in FOUND if library.delay is not None]
    if REHEARSAL or not producers:
        raise Skip("needs a library that can make its stream wait")
    with est.Engine(workers=1) as engine:
        for producer, consumer in itertools.product(producers, FOUND):
            if producer.name == consumer.name or consumer.name == "jax":
                continue
            if producer.name == "cuda.core":
                # Its arrays say nothing of streams: an import comes after the default stream, which is not its own.
                continue
            times = []
            for _ in range(3):  # The first time loads kernels, and another thread may hold up any one.
                x = producer.full(1024, 1.0)
                producer.delay(100.0)  # type: ignore[misc]
                begin = time.perf_counter()
                view = consumer.using(engine.from_dlpack(x))
                times.append(1e3 * (time.perf_counter() - begin))
                del view
                engine.wait_all(timeout=60)
            took = min(times)
            assert took <= 5.0 or SIMULATOR, f"{producer.name} → {consumer.name}: the host was busy for {took} ms"
            report("passed", f"{producer.name} → {consumer.name} behind 100 ms of work", f"{took:.3f} ms")


CHUNKS, MIB = 16, 64
#: How many buffers each stage has, so that a stage may be one chunk ahead.
BUFFERS = 3


class Pipeline:
    """Copy in, compute in torch, compute in CuPy, copy out, chunk by chunk."""

    def __init__(self) -> None:
        import cupy
        import torch

        self.torch, self.cupy = torch, cupy
        count = (MIB << 20) // 4
        self.source = [torch.rand(count).pin_memory() for _ in range(2)]
        self.target = [torch.empty(count).pin_memory() for _ in range(CHUNKS)]
        self.x = [torch.empty(count, device="cuda") for _ in range(BUFFERS)]
        self.y = [torch.empty(count, device="cuda") for _ in range(BUFFERS)]
        self.z = [cupy.empty(count, dtype=cupy.float32) for _ in range(BUFFERS)]
        torch.cuda.synchronize()

    def copy_in(self, chunk: int, x: Any) -> None:
        x.copy_(self.source[chunk % 2], non_blocking=True)

    def in_torch(self, x: Any, y: Any) -> None:
        self.torch.mul(x, 2.0, out=y)
        for _ in range(8):
            y.sin_()

    def in_cupy(self, y: Any, z: Any) -> None:
        self.cupy.multiply(y, 0.5, out=z)
        for _ in range(8):
            self.cupy.cos(z, out=z)

    def copy_out(self, chunk: int, z: Any) -> None:
        self.target[chunk].copy_(z, non_blocking=True)

    def verify(self) -> None:
        for chunk in (0, 1, CHUNKS - 1):
            expected = 2.0 * self.source[chunk % 2]
            for _ in range(8):
                expected.sin_()
            expected *= 0.5
            for _ in range(8):
                expected.cos_()
            assert self.torch.allclose(self.target[chunk], expected, atol=1e-4), f"chunk {chunk} is wrong"
        for target in self.target:
            target.zero_()

    def with_a_barrier_at_each_hand_over(self) -> None:
        """Code of people who have no other means."""
        torch, cupy = self.torch, self.cupy
        for chunk in range(CHUNKS):
            x, y, z = (buffers[chunk % BUFFERS] for buffers in (self.x, self.y, self.z))
            self.copy_in(chunk, x)
            torch.cuda.synchronize()
            self.in_torch(x, y)
            torch.cuda.synchronize()
            self.in_cupy(cupy.from_dlpack(y), z)
            cupy.cuda.Device().synchronize()
            self.copy_out(chunk, torch.from_dlpack(z))
            torch.cuda.synchronize()

    def by_hand(self) -> None:
        """Copies on one stream, computing on another, and all events by hand."""
        torch, cupy = self.torch, self.cupy
        copies, work = torch.cuda.Stream(), torch.cuda.Stream()
        out = torch.cuda.Stream()
        cupy_work = cupy.cuda.ExternalStream(work.cuda_stream)
        views = [cupy.from_dlpack(y) for y in self.y], [torch.from_dlpack(z) for z in self.z]
        free_x: list[Any] = [None] * BUFFERS
        free_z: list[Any] = [None] * BUFFERS
        for chunk in range(CHUNKS):
            place = chunk % BUFFERS
            with torch.cuda.stream(copies):
                if free_x[place] is not None:
                    copies.wait_event(free_x[place])
                self.copy_in(chunk, self.x[place])
                filled = copies.record_event()
            with torch.cuda.stream(work):
                work.wait_event(filled)
                self.in_torch(self.x[place], self.y[place])
                free_x[place] = work.record_event()
                if free_z[place] is not None:
                    work.wait_event(free_z[place])
            with cupy_work:
                self.in_cupy(views[0][place], self.z[place])
            computed = work.record_event()
            with torch.cuda.stream(out):
                out.wait_event(computed)
                self.copy_out(chunk, views[1][place])
                free_z[place] = out.record_event()
        for stream in (copies, work, out):
            stream.synchronize()

    def through(self, engine: est.Engine) -> Callable[[], None]:
        """The same four functions as operations, which say what they read and write and nothing else."""
        torch, cupy = self.torch, self.cupy
        x, y, z = ([engine.from_dlpack(buffer) for buffer in buffers] for buffers in (self.x, self.y, self.z))
        streams = [torch.cuda.Stream() for _ in range(3)]

        def go() -> None:
            for chunk in range(CHUNKS):
                place = chunk % BUFFERS

                def copy_in(x: Any, chunk: int = chunk) -> None:
                    self.copy_in(chunk, x)

                def copy_out(z: Any, chunk: int = chunk) -> None:
                    self.copy_out(chunk, z)

                engine.submit(copy_in, writes=[x[place]], using=torch.from_dlpack, on=streams[0])
                reads, writes = [x[place]], [y[place]]
                engine.submit(self.in_torch, reads=reads, writes=writes, using=torch.from_dlpack, on=streams[1])
                reads, writes = [y[place]], [z[place]]
                engine.submit(self.in_cupy, reads=reads, writes=writes, using=cupy.from_dlpack, on=streams[1])
                engine.submit(copy_out, reads=[z[place]], using=torch.from_dlpack, on=streams[2])
            engine.wait_all(timeout=120)
            streams[2].synchronize()

        return go


def check_pipeline_of_two_libraries() -> None:
    if REHEARSAL or not {"torch", "cupy"} <= NAMES.keys():
        raise Skip("needs torch and CuPy with a device")
    pipeline = Pipeline()
    with est.Engine(workers=2) as engine:
        variants = [pipeline.through(engine), pipeline.by_hand, pipeline.with_a_barrier_at_each_hand_over]
        times: list[list[float]] = [[], [], []]
        for round_ in range(8):
            for kept, variant in zip(times, variants, strict=True):
                begin = time.perf_counter()
                variant()
                elapsed = 1e3 * (time.perf_counter() - begin)
                pipeline.verify()
                if round_ > 0:
                    kept.append(elapsed)
    ours, by_hand, barrier = times
    ratio = statistics.median(a / b for a, b in zip(ours, by_hand, strict=True))
    figure(
        f"pipeline of torch and CuPy, {CHUNKS} tensors of {MIB} MiB",
        f"{spread(ours, 'ms')}, {ratio:.3f} × by hand",
        f"by hand with events {spread(by_hand, 'ms')}; a barrier at each hand-over {spread(barrier, 'ms')}",
        "≤ 1.05 × by hand",
        ratio <= 1.05,
    )


if __name__ == "__main__":
    assert ON is None or ON == "cuda"
    for name, reason in MISSING:
        report("skipped", name, reason)
    run([check_handing_over, check_reads_of_memory_that_is_kept, check_the_host_is_never_blocked_by_handing_over, check_pipeline_of_two_libraries])
