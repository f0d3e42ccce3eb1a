"""Common part of the Python files of the GPU suite: reporting, and the libraries that this machine has.

Each ``gpu_*.py`` runs by itself and prints a line of JSON for every check, figure and skip; the program ``gpu-suite`` reads them.
With ``--rehearse`` the same code runs in host memory, as far as it goes, and with ``--simulator`` on the simulated driver, with the
libraries that call nothing but the driver: that shows that the files are in order, and nothing else.
"""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import importlib
import json
import os
import pathlib
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

REHEARSAL = "--rehearse" in sys.argv[1:]
SIMULATOR = "--simulator" in sys.argv[1:]

#: Where operations run: on the device, or on the host when nothing but the code is tried.
ON = None if REHEARSAL else "cuda"


if SIMULATOR:
    _simulator = ctypes.CDLL("libcuda.so.1")
    _simulator.cusim_violations.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    _simulator.cusim_violations.restype = ctypes.c_size_t
    # A version that NVIDIA's own Python libraries are made for.
    _simulator.cusim_driver_version(13000)


def violations() -> list[str]:
    """Findings of the simulated driver since the last time, such as uses of memory that nothing orders; a real one has none to report."""
    if not SIMULATOR:
        return []
    text = ctypes.create_string_buffer(_simulator.cusim_violations(None, 0) + 1)
    _simulator.cusim_violations(text, len(text) - 1)
    _simulator.cusim_forget_violations()
    return text.value.decode().splitlines()


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


#: After so many seconds a check hangs. The next one begins beside it; what the two do to each other is seen there.
PATIENCE = 60.0
#: How a file ends of which a check has failed.
FAILED = 4


def run(checks: list[Callable[[], None]]) -> None:
    """Runs the checks of a file, each with a limit of its own. Exits with 4 when one failed."""
    failed = False
    for check in checks:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        outcome: list[BaseException | None] = []

        def contained(check: Callable[[], None] = check, outcome: list[BaseException | None] = outcome) -> None:
            try:
                check()
            except BaseException as error:
                outcome.append(error)
            else:
                outcome.append(None)

        thread = threading.Thread(target=contained, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        if not outcome:
            failed = True
            faulthandler.dump_traceback(all_threads=True)
            report("failed", name, f"hung: no end within {PATIENCE:.0f} s")
            continue
        (error,) = outcome
        if error is None and (found := violations()):
            error = AssertionError(f"the simulated driver found: {found[0]}")
        if error is None:
            report("passed", name)
        elif isinstance(error, Skip):
            report("skipped", name, str(error))
        else:
            failed = True
            traceback.print_exception(error)
            report("failed", name, f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    # Not by way of the interpreter's end, which a thread that hangs, or a library without its device, may hold up.
    os._exit(FAILED if failed else 0)


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
    if SIMULATOR:
        raise Skip("torch calls more than the driver, and so finds nothing on the simulator")
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
    if SIMULATOR:
        raise Skip("CuPy calls more than the driver, and so finds nothing on the simulator")
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

    if SIMULATOR:
        raise Skip("JAX calls more than the driver, and so finds nothing on the simulator")
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
    try:
        available = cuda.is_available()
    except Exception as error:
        # It looks for NVIDIA's compiler library, and says so in many lines.
        text = str(error).splitlines() or [type(error).__name__]
        raise Skip(f"Numba cannot compile kernels here: {text[0]}") from None
    if not available:
        raise Skip("Numba finds no CUDA device")
    import estafette as est
    import numpy as np

    @cuda.jit
    def kernel(out, x):  # type: ignore[no-untyped-def]
        index = cuda.grid(1)
        if index < x.size:
            out[index] = 2 * x[index] + 1

    try:
        kernel[1, 1](cuda.device_array(1, np.float32), cuda.device_array(1, np.float32))
    except Exception as error:
        text = str(error).splitlines() or [type(error).__name__]
        raise Skip(f"Numba cannot compile kernels here: {text[0]}") from None

    def step(x: Any) -> Any:
        stream = est.current_stream()
        assert stream is not None, "an operation with on= has a stream"
        native = cuda.external_stream(stream.handle)
        out = cuda.device_array(x.shape, np.float32, stream=native)
        kernel[(x.size + 255) // 256, 256, native](out, x)
        return out

    def fetch(x: Any) -> Any:
        values = x.copy_to_host()
        if x.stream:
            x.stream.synchronize()
        return values

    return Library(
        "numba",
        __version__,
        lambda n, value: cuda.to_device(np.full(n, value, np.float32)),
        step,
        # Without a wait on the host: what it does with the array goes to the stream that the array names.
        lambda x: cuda.as_cuda_array(x, sync=False),
        fetch,
    )


def kernels() -> bytes:
    """The suite's kernels as PTX: beside this file in a package, else where the program has them."""
    here = pathlib.Path(__file__).resolve().parent
    for place in (here, here.parent / "src"):
        if (place / "kernels.ptx").exists():
            return (place / "kernels.ptx").read_bytes()
    raise Skip("kernels.ptx is not here")


def cuda_core() -> Library:
    """NVIDIA's own bindings, with the kernels of the suite."""
    if REHEARSAL:
        raise Skip("cuda.core has no arrays in host memory")
    try:
        from cuda.core import Buffer, Device, LaunchConfig, ObjectCode, Stream, __version__, launch
        from cuda.core.utils import StridedMemoryView
    except ImportError as error:
        raise Skip(f"cuda.core is not installed: {error}") from None
    import estafette as est
    import numpy as np

    device = Device(0)
    device.set_current()
    own = device.create_stream()
    code = ObjectCode.from_ptx(kernels())
    scale, add, spin = (code.get_kernel(name) for name in ("scale_f32", "add_f32", "delay_ns"))

    def here() -> Any:
        # Each thread has a context of its own to make current; in an operation the engine has.
        device.set_current()
        stream = est.current_stream()
        return own if stream is None else Stream.from_handle(stream.handle)

    def view(buffer: Any) -> Any:
        return StridedMemoryView.from_buffer(buffer, (buffer.size // 4,), dtype=np.dtype("float32"))

    def upload(values: Any, stream: Any) -> Any:
        buffer = device.allocate(values.nbytes, stream=stream)
        # The host's memory is over when the copy is.
        driver_copy(int(buffer.handle), values.ctypes.data, values.nbytes, int(stream.handle))
        stream.sync()
        return buffer

    def driver_copy(to: int, source: int, size: int, stream: int) -> None:
        from cuda.bindings import driver

        (code,) = driver.cuMemcpyAsync(to, source, size, stream)
        assert int(code) == 0, f"cuMemcpyAsync: {code}"

    ones: dict[int, Any] = {}

    making = threading.Lock()

    def ones_of(n: int) -> Any:
        # Two workers that made them at once would drop one of them while a kernel reads it.
        with making:
            if n not in ones:
                ones[n] = upload(np.ones(n, np.float32), own)
            return ones[n]

    def full(n: int, value: float) -> Any:
        device.set_current()
        return view(upload(np.full(n, value, np.float32), own))

    def step(x: Any) -> Any:
        stream = here()
        count = x.shape[0]
        out = device.allocate(4 * count, stream=stream)
        config = LaunchConfig(grid=(count + 255) // 256, block=256)
        launch(stream, config, scale, out, x.ptr, ctypes.c_float(2.0), ctypes.c_uint64(count))
        launch(stream, config, add, out, out, ones_of(count), ctypes.c_uint64(count))
        return view(out)

    def fetch(x: Any) -> Any:
        values = np.empty(x.shape[0], np.float32)
        driver_copy(values.ctypes.data, x.ptr, values.nbytes, int(own.handle))
        own.sync()
        return values

    def delay(milliseconds: float) -> None:
        launch(here(), LaunchConfig(grid=1, block=1), spin, ctypes.c_uint64(int(milliseconds * 1e6)))

    return Library(
        "cuda.core",
        __version__,
        full,
        step,
        lambda x: StridedMemoryView.from_dlpack(x, stream_ptr=int(here().handle)),
        fetch,
        delay,
    )


def installed() -> tuple[list[Library], list[tuple[str, str]]]:
    """The libraries that this machine has, and the others with what they lack."""
    found, missing = [], []
    for make in (torch, cupy, jax, numba, cuda_core):
        try:
            found.append(make())
        except Skip as reason:
            missing.append((make.__name__, str(reason)))
        except Exception as error:
            if SIMULATOR and not isinstance(error, ImportError):
                raise
            # One that is broken here must not take the others along.
            missing.append((make.__name__, f"does not work here: {type(error).__name__}: {error}"))
    return found, missing


def note_versions(libraries: list[Library]) -> None:
    """Origin of the record's figures."""
    for library in libraries:
        report("note", library.name, library.version)
    report("note", "Python", sys.version.split()[0])
    for name in ("estafette", "numpy"):
        report("note", name, getattr(importlib.import_module(name), "__version__", "unknown"))


def microseconds(function: Callable[[], Any], times: int) -> Iterator[float]:
    """Time of each of so many calls. What the function returns is dropped outside of the measured time."""
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
