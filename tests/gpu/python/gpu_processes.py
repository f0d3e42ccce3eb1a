"""Memory of a device between processes: two real processes with a context each, and PyTorch's own queue beside them."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import estafette as est
from suite import ON, REHEARSAL, SIMULATOR, Skip, figure, report, run, spread, torch

COUNT, DELAY_MS, FREE_MS = 1 << 20, 100.0, 10.0
#: How the program that this one starts gets its task.
OTHER = "--other"
LIMIT = 60.0


def needs_torch() -> None:
    if SIMULATOR:
        raise Skip("torch calls more than the driver, and so finds nothing on the simulator")
    torch()


def delay() -> None:
    made = torch().delay
    assert made is not None
    made(DELAY_MS)


def using(x: Any) -> Any:
    import torch as th

    return th.from_dlpack(x)


class Process:
    """Another process, which does what `role` names, and the link to it."""

    def __init__(self, engine: est.Engine, role: Callable[..., None]) -> None:
        with engine.door() as door:
            command = [sys.executable, "-u", __file__, OTHER, role.__name__, door.address]
            command += ["--rehearse"] if REHEARSAL else []
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                self.link = door.accept(LIMIT)
            except BaseException:
                self.process.kill()
                raise

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def shared(engine: est.Engine) -> est.Tensor:
    return engine.empty((COUNT,), "float32", device=ON or "cpu", shared=True)


def fill(engine: est.Engine, x: est.Tensor, value: float, *, slow: bool = False) -> None:
    def body(x: Any) -> None:
        if slow:
            delay()
        x.fill_(value)

    engine.submit(body, writes=[x], using=using, on=ON)


def limits(engine: est.Engine, x: est.Tensor, *, slow: bool = False) -> tuple[float, float]:
    """The least and the greatest value, as the device reads them."""

    def body(x: Any) -> Any:
        if slow:
            delay()
        return x.aminmax()

    least, greatest = engine.call(body, x, using=using, on=ON, outputs=2)
    return float(using(least)), float(using(greatest))


def read_elsewhere(engine: est.Engine, other: Process) -> est.Tensor:
    """Ones that the other process has received, and read once."""
    x = shared(engine)
    fill(engine, x, 1.0)
    other.link.send(x, copy=False)
    assert other.line() == "1.0 1.0"
    return x


# Role of the other process.


def reads(engine: est.Engine, link: est.Link) -> None:
    """Receives tensors, and says which values they have, and where."""
    for x in link:
        print(*limits(engine, x), x.device)
        del x


def reads_slowly(engine: est.Engine, link: est.Link) -> None:
    limits(engine, link.receive(LIMIT))  # Loads kernels.
    x = link.receive(LIMIT)
    print("has it")
    print(*limits(engine, x, slow=True))


def keeps(engine: est.Engine, link: est.Link) -> None:
    x = link.receive(LIMIT)
    print(*limits(engine, x))
    sys.stdin.read()
    del x


def owns(engine: est.Engine, link: est.Link) -> None:
    x = shared(engine)
    fill(engine, x, 5.0)
    link.send(x, copy=False)
    x.wait(LIMIT)
    sys.stdin.read()


def writes(engine: est.Engine, link: est.Link) -> None:
    """Writes memory that was lent for reading, past the engine."""
    x = link.receive(LIMIT)
    print(*limits(engine, x))
    import torch as th

    try:
        view = th.from_dlpack(x)
        view.fill_(9.0)
        th.cuda.synchronize()
        print("written")
    except RuntimeError as error:
        print("stopped:", str(error).splitlines()[0])
    # The context is broken, and nothing can be released.
    sys.stdout.flush()
    sys.stdin.read()


def sums(engine: est.Engine, link: est.Link) -> None:
    """Adds up tensors; nothing here waits for a sum."""
    for x in link:
        engine.call(lambda x: x.sum(), x, using=using, on=ON)
        # The name would keep it until the next one comes.
        del x


# The checks.


def check_tensors_cross_without_a_copy() -> None:
    needs_torch()
    with est.Engine(workers=2) as engine, Process(engine, reads) as other:
        x = shared(engine)
        before = engine.stats().copied_for_processes
        for value in range(20):
            fill(engine, x, float(value))
            other.link.send(x, copy=False)
        for value in range(20):
            assert other.line() == f"{float(value)} {float(value)} {x.device}"
        assert engine.stats().copied_for_processes == before


def check_a_slow_writer_is_waited_for_and_the_host_is_not_held_up() -> None:
    needs_torch()
    if REHEARSAL:
        raise Skip("there are no streams in host memory")
    with est.Engine(workers=2) as engine, Process(engine, reads) as other:
        x = shared(engine)
        for value in range(3):  # The first time loads kernels.
            begin = time.perf_counter()
            fill(engine, x, float(value), slow=True)
            other.link.send(x, copy=False)
            busy = 1e3 * (time.perf_counter() - begin)
            assert other.line() == f"{float(value)} {float(value)} {x.device}"
            took = 1e3 * (time.perf_counter() - begin)
        assert took >= 0.5 * DELAY_MS, f"the delay was only {took} ms"
        assert busy <= FREE_MS, f"the host was busy for {busy} ms"
        report("passed", "to another process behind 100 ms of work", f"host free after {busy:.3f} ms")


def check_the_next_write_waits_for_a_slow_reader_in_another_process() -> None:
    needs_torch()
    if REHEARSAL:
        raise Skip("there are no streams in host memory")
    with est.Engine(workers=2) as engine, Process(engine, reads_slowly) as other:
        x = shared(engine)
        fill(engine, x, 0.0)
        other.link.send(x, copy=False)
        fill(engine, x, 1.0)
        other.link.send(x, copy=False)
        fill(engine, x, 2.0)
        assert other.line() == "has it"
        begin = time.perf_counter()
        x.wait(LIMIT)
        took = 1e3 * (time.perf_counter() - begin)
        assert other.line() == "1.0 1.0", "the reader saw the write that came after it"
        assert took >= 0.5 * DELAY_MS, f"the write came after {took} ms"
        assert limits(engine, x) == (2.0, 2.0)


def check_a_reader_that_is_killed_releases_all() -> None:
    needs_torch()
    with est.Engine(workers=2) as engine, Process(engine, keeps) as other:
        x = read_elsewhere(engine, other)
        fill(engine, x, 2.0)
        time.sleep(0.05)
        assert not x.is_ready(), "the write waits for the lease"
        other.process.kill()
        begin = time.perf_counter()
        x.wait(LIMIT)
        took = 1e3 * (time.perf_counter() - begin)
        assert limits(engine, x) == (2.0, 2.0)
        report("passed", "memory that a killed reader had is written", f"{took:.1f} ms after the kill")


def check_memory_of_an_owner_that_is_killed_stays() -> None:
    needs_torch()
    with est.Engine(workers=2) as engine, Process(engine, owns) as other:
        x = other.link.receive(LIMIT)
        assert limits(engine, x) == (5.0, 5.0)
        other.process.kill()
        other.process.wait()
        for _ in range(20):
            assert limits(engine, x) == (5.0, 5.0)


def check_what_is_lent_for_reading_cannot_be_written() -> None:
    needs_torch()
    if REHEARSAL:
        raise Skip("memory of a device is meant")
    with est.Engine(workers=2) as engine, Process(engine, writes) as other:
        x = read_elsewhere(engine, other)
        outcome = other.line()
        assert outcome.startswith("stopped"), outcome
        other.process.kill()
        assert limits(engine, x) == (1.0, 1.0)
        report("passed", "a write of another process", outcome)


def check_many_pieces_cross_and_come_back() -> None:
    """Pieces of different sizes in one another's places, all of which the other process reads in order."""
    needs_torch()
    with est.Engine(workers=2) as engine, Process(engine, reads) as other:
        for value in range(20):
            x = engine.empty((1 + 1013 * value,), "float32", device=ON or "cpu", shared=True)
            fill(engine, x, float(value))
            other.link.send(x, copy=False)
        for value in range(20):
            assert other.line() == f"{float(value)} {float(value)} {x.device}"


def check_memory_of_torch_is_copied_on_its_device() -> None:
    needs_torch()
    import torch as th

    with est.Engine(workers=2) as engine, Process(engine, reads) as other:
        for value in range(3):
            tensor = th.full((1 << 24,), float(value), device="cpu" if REHEARSAL else "cuda")
            x = engine.from_dlpack(tensor)
            x.wait(LIMIT)
            before, begin = engine.stats().copied_for_processes, time.perf_counter()
            other.link.send(x)
            engine.wait_all(LIMIT)
            took = 1e3 * (time.perf_counter() - begin)
            assert engine.stats().copied_for_processes - before == x.nbytes
            assert other.line() == f"{float(value)} {float(value)} {x.device}"
        report("passed", "64 MB of torch's own memory, copied for another process", f"copied after {took:.3f} ms")


def queue_of_torch(sent: Any, answers: Any) -> None:
    import torch as th

    while (x := sent.get()) is not None:
        x.sum()
        th.cuda.synchronize()
        del x
        answers.put(None)


def check_hand_overs_to_another_process() -> None:
    """Filled here, added up there, and filled again: against a queue of torch with an answer."""
    needs_torch()
    if REHEARSAL:
        raise Skip("memory of a device is meant")
    import torch as th
    import torch.multiprocessing as processes

    rounds, calls = 7, 50
    sizes = {"1 KB": 256, "64 MB": 1 << 24}
    context = processes.get_context("spawn")
    sent, answers = context.Queue(), context.Queue()
    queue = context.Process(target=queue_of_torch, args=(sent, answers), daemon=True)
    queue.start()
    with est.Engine(workers=2) as engine, Process(engine, sums) as other:
        for name, count in sizes.items():
            x = engine.empty((count,), "float32", device="cuda", shared=True)
            tensor = th.empty(count, device="cuda")

            def ours(x: est.Tensor = x) -> float:
                begin = time.perf_counter()
                for value in range(calls):
                    fill(engine, x, float(value))
                    other.link.send(x, copy=False)
                engine.submit(lambda x: None, writes=[x]).wait(LIMIT)
                return 1e6 * (time.perf_counter() - begin) / calls

            def theirs(tensor: Any = tensor) -> float:
                begin = time.perf_counter()
                for value in range(calls):
                    tensor.fill_(float(value))
                    sent.put(tensor)
                    answers.get(timeout=LIMIT)
                return 1e6 * (time.perf_counter() - begin) / calls

            kept: tuple[list[float], list[float]] = ([], [])
            for round_ in range(rounds + 1):
                for times, function in zip(kept, (ours, theirs), strict=True):
                    measured = function()
                    if round_ > 0:
                        times.append(measured)
            ratio = sorted(a / b for a, b in zip(*kept, strict=True))[rounds // 2]
            figure(
                f"to another process and back, {name}",
                f"{spread(kept[0], 'µs')}, {ratio:.2f} × torch.multiprocessing",
                f"a queue of torch.multiprocessing {spread(kept[1], 'µs')}",
                "≤ torch.multiprocessing",
                ratio <= 1.0,
            )
    sent.put(None)
    queue.join(LIMIT)


def run_other(role: str, address: str) -> None:
    roles = (reads, reads_slowly, keeps, owns, writes, sums)
    with est.Engine(workers=2) as engine:
        link = engine.connect(address)
        next(itertools.dropwhile(lambda known: known.__name__ != role, roles))(engine, link)


if __name__ == "__main__":
    if OTHER in sys.argv:
        run_other(*sys.argv[sys.argv.index(OTHER) + 1 :][:2])
        sys.exit()
    run(
        [
            check_tensors_cross_without_a_copy,
            check_many_pieces_cross_and_come_back,
            check_memory_of_torch_is_copied_on_its_device,
            check_a_slow_writer_is_waited_for_and_the_host_is_not_held_up,
            check_the_next_write_waits_for_a_slow_reader_in_another_process,
            check_a_reader_that_is_killed_releases_all,
            check_memory_of_an_owner_that_is_killed_stays,
            check_what_is_lent_for_reading_cannot_be_written,
            check_hand_overs_to_another_process,
        ]
    )
