"""What the Python files of the GPU suite share: reporting, and the libraries that this machine has.

Each ``gpu_*.py`` runs by itself and prints a line of JSON for every check, figure and skip; the program ``gpu-suite`` reads them.
With ``--rehearse`` the same code runs in host memory, as far as it goes: that shows that the files are in order, and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

REHEARSAL = "--rehearse" in sys.argv[1:]

#: Where operations run: on the device, or on the host when nothing but the code is tried.
ON = None if REHEARSAL else "cuda"


class Skip(Exception):
    """Something cannot run here; says why."""


def report(kind: str, name: str, remark: str = "", **rest: Any) -> None:
    """Prints one line for the program that reads them."""
    print(json.dumps({"kind": kind, "name": name, "remark": remark, **rest}), flush=True)


def figure(name: str, ours: str, baseline: str, target: str, met: bool) -> None:
    """Reports a figure, or in a rehearsal only that it was tried."""
    if REHEARSAL:
        report("passed", name, f"rehearsed in host memory, not a result: {ours}; {baseline}")
    else:
        report("figure", name, ours=ours, baseline=baseline, target=target, met=met)


def run(checks: list[Callable[[], None]]) -> None:
    """Runs the checks of a file. Exits with 1 when one failed."""
    failed = False
    for check in checks:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        try:
            check()
        except Skip as reason:
            report("skipped", name, str(reason))
        except Exception as error:
            failed = True
            traceback.print_exc()
            report("failed", name, f"{type(error).__name__}: {error}")
        else:
            report("passed", name)
    sys.exit(1 if failed else 0)


@dataclasses.dataclass(frozen=True)
class Library:
    """A library as the relays use it."""

    name: str
    version: str
    #: Makes an array of float32 numbers on the device.
    full: Callable[[int, float], Any]
    #: One step of a relay: a new array of ``2 x + 1``, enqueued on the current stream.
    step: Callable[[Any], Any]
    #: Makes the library's array of one of our tensors.
    using: Callable[[Any], Any]
    #: Reads an array on the host.
    fetch: Callable[[Any], Any]
    #: Enqueues something that takes so many milliseconds on the current stream; None if it cannot.
    delay: Callable[[float], None] | None = None


def torch() -> Library:
    try:
        import torch
    except ImportError:
        raise Skip("torch is not installed") from None
    device = "cpu" if REHEARSAL else "cuda"
    if not REHEARSAL and not torch.cuda.is_available():
        raise Skip("torch finds no CUDA device")

    def delay(milliseconds: float) -> None:
        if not REHEARSAL:
            torch.cuda._sleep(int(milliseconds * 2e6))

    return Library(
        "torch",
        torch.__version__,
        lambda n, value: torch.full((n,), value, dtype=torch.float32, device=device),
        lambda x: 2 * x + 1,
        torch.from_dlpack,
        lambda x: x.cpu().numpy(),
        delay,
    )


def cupy() -> Library:
    if REHEARSAL:
        raise Skip("CuPy has no arrays in host memory")
    try:
        import cupy
    except ImportError:
        raise Skip("CuPy is not installed") from None
    if cupy.cuda.runtime.getDeviceCount() == 0:
        raise Skip("CuPy finds no CUDA device")
    spin = cupy.RawKernel(
        r"""
        extern "C" __global__ void spin(long long nanoseconds) {
            long long begin, now;
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
            do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - begin < nanoseconds);
        }
        """,
        "spin",
    )
    return Library(
        "cupy",
        cupy.__version__,
        lambda n, value: cupy.full(n, value, dtype=cupy.float32),
        lambda x: 2 * x + 1,
        cupy.from_dlpack,
        lambda x: cupy.asnumpy(x),
        lambda milliseconds: spin((1,), (1,), (int(milliseconds * 1e6),)),
    )


def jax() -> Library:
    try:
        import jax
    except ImportError:
        raise Skip("JAX is not installed") from None
    import jax.numpy as jnp
    import numpy as np

    try:
        device = jax.devices("cpu" if REHEARSAL else "gpu")[0]
    except RuntimeError as error:
        raise Skip(f"JAX finds no GPU: {error}") from None
    return Library(
        "jax",
        jax.__version__,
        lambda n, value: jax.device_put(np.full(n, value, np.float32), device),
        lambda x: 2 * x + 1,
        jnp.from_dlpack,
        np.asarray,
    )


def numba() -> Library:
    if REHEARSAL:
        raise Skip("Numba's CUDA arrays are not in host memory")
    try:
        from numba import __version__, cuda
    except ImportError:
        raise Skip("Numba is not installed") from None
    if not cuda.is_available():
        raise Skip("Numba finds no CUDA device")
    import estafette as est
    import numpy as np

    @cuda.jit
    def kernel(out, x):  # type: ignore[no-untyped-def]
        index = cuda.grid(1)
        if index < x.size:
            out[index] = 2 * x[index] + 1

    def step(x: Any) -> Any:
        stream = est.current_stream()
        assert stream is not None, "an operation with on= has a stream"
        native = cuda.external_stream(stream.handle)
        out = cuda.device_array(x.shape, np.float32, stream=native)
        kernel[(x.size + 255) // 256, 256, native](out, x)
        return out

    return Library(
        "numba",
        __version__,
        lambda n, value: cuda.to_device(np.full(n, value, np.float32)),
        step,
        cuda.as_cuda_array,
        lambda x: x.copy_to_host(),
    )


def installed() -> tuple[list[Library], list[tuple[str, str]]]:
    """The libraries that this machine has, and the others with what they lack."""
    found, missing = [], []
    for make in (torch, cupy, jax, numba):
        try:
            found.append(make())
        except Skip as reason:
            missing.append((make.__name__, str(reason)))
    return found, missing


def microseconds(function: Callable[[], Any], times: int) -> Iterator[float]:
    """How long each of so many calls took. What the function returns is dropped outside of the measured time."""
    for _ in range(times):
        begin = time.perf_counter_ns()
        kept = function()
        elapsed = time.perf_counter_ns() - begin
        del kept
        yield elapsed / 1e3


def spread(values: list[float], unit: str) -> str:
    """Median, tenth and ninetieth part."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[len(ordered) * 9 // 10]
    return f"{statistics.median(ordered):.2f} {unit} [{low:.2f} to {high:.2f}]"
