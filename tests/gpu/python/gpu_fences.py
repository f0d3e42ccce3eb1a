"""`dlpack_fence.libraries` on a device: PyTorch and CuPy exchange with fences, and nothing of Estafette takes part."""

from __future__ import annotations

import pathlib
import sys
import time
from typing import Any

from suite import REHEARSAL, SIMULATOR, Skip, cupy, report, run, torch

COUNT, DELAY_MS, FREE_MS = 1 << 20, 100.0, 10.0
HERE = pathlib.Path(__file__).resolve().parent
# Beside this file in a package, else where the headers are.
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "bindings" / "fence" / "python")] if len(HERE.parents) > 2 else [str(HERE)]


def check_fences_between_torch_and_cupy() -> None:
    if REHEARSAL or SIMULATOR:
        raise Skip("needs a device")
    torch()
    cupy()
    import cupy as cp
    import torch as th
    from dlpack_fence import PENDING, libraries, take

    streams: dict[str, Any] = {"torch": th.cuda.Stream(), "cupy": cp.cuda.Stream(non_blocking=True)}
    spin = cupy().delay
    within = {"torch": lambda: th.cuda.stream(streams["torch"]), "cupy": lambda: streams["cupy"]}
    full = {
        "torch": lambda value: th.full((COUNT,), value, device="cuda"),
        "cupy": lambda value: cp.full(COUNT, value, dtype=cp.float32),
    }
    delay = {"torch": lambda: th.cuda._sleep(int(DELAY_MS * 2e6)), "cupy": lambda: spin(DELAY_MS)}
    lend = {"torch": libraries.pytorch, "cupy": libraries.cupy}
    using = {"torch": th.from_dlpack, "cupy": cp.from_dlpack}
    address = {"torch": lambda x: x.data_ptr(), "cupy": lambda x: x.data.ptr}

    def is_free(library: str, place: int) -> bool:
        """True if the library's pool gives the memory out again."""
        with within[library]():
            return place in [address[library](x) for x in [full[library](0.0) for _ in range(4)]]

    for producer, consumer in (("torch", "cupy"), ("cupy", "torch")):
        for is_warm in (False, True):  # The first time loads kernels, which takes longer than the delay.
            with within[producer]():
                x = full[producer](1.0)
                delay[producer]()
                x += 1
                lent = lend[producer](x)
                begin = time.perf_counter()
                taken = take(lent)
            with within[consumer]():
                assert not is_warm or taken.ready.state() == PENDING, "the work of the producer takes its time"
                y = using[consumer](taken)
                delay[consumer]()
                z = 2 * y
            place = address[producer](x)
            del x, y, lent, taken
            busy = 1e3 * (time.perf_counter() - begin)
            assert not is_warm or not is_free(producer, place), "the memory is used until the consumer's work is over"
            streams[consumer].synchronize()
            took = 1e3 * (time.perf_counter() - begin)
            assert float(z.min()) == float(z.max()) == 4.0, f"{producer} → {consumer}: {z[:4]}"
            end = time.monotonic() + 10
            while not is_free(producer, place):
                assert time.monotonic() < end, "the memory is not released"
                time.sleep(0.001)
        assert took >= DELAY_MS, f"the delay was only {took} ms"
        assert busy <= FREE_MS, f"the host was busy for {busy} ms"
        report("passed", f"fences, {producer} → {consumer}", f"host free after {busy:.3f} ms")


if __name__ == "__main__":
    run([check_fences_between_torch_and_cupy])
