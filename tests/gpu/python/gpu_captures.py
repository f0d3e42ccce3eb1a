"""Leases that end while a library captures a graph: its capture goes on, and its graph is right."""

from __future__ import annotations

import time
from typing import Any

import estafette as est
import numpy as np
from suite import REHEARSAL, SIMULATOR, Library, Skip, installed, report, run

COUNT, ROUNDS = 1 << 16, 20

FOUND, MISSING = installed()
NAMES = {library.name: library for library in FOUND}


def end_leases(engine: est.Engine, library: Library) -> None:
    """Imports an array, gives it out again, and releases all of it: by the library's stream and by the host."""
    tensor = engine.from_dlpack(library.full(COUNT, 1.0))
    kept = library.using(tensor)
    del kept
    copy = tensor.to_host()
    copy.wait(timeout=60)
    assert (np.asarray(copy) == 1.0).all()
    del tensor, copy


def check_leases_end_beside_a_library() -> None:
    """The part that needs no capture: what ends the leases works by itself."""
    libraries = [library for library in FOUND if library.name != "cuda.core"]
    if not libraries:
        raise Skip("no library has arrays here that tell their stream")
    with est.Engine(workers=1) as engine:
        for library in libraries:
            for _ in range(3):
                end_leases(engine, library)
            report("passed", f"leases that end beside {library.name}")


def check_leases_end_while_torch_captures() -> None:
    if REHEARSAL or SIMULATOR or "torch" not in NAMES:
        raise Skip("needs torch with a device")
    import torch

    library = NAMES["torch"]
    with est.Engine(workers=1) as engine:
        # Taken before, and released while torch records.
        early = [engine.from_dlpack(library.full(COUNT, float(round_))) for round_ in range(ROUNDS)]
        views: list[Any] = [library.using(tensor) for tensor in early]
        torch.cuda.synchronize()
        source, out = torch.full((COUNT,), 3.0, device="cuda"), torch.zeros(COUNT, device="cuda")
        warm = torch.cuda.Stream()
        with torch.cuda.stream(warm):
            torch.mul(source, 2.0, out=out)
        warm.synchronize()
        graph = torch.cuda.CUDAGraph()
        # A capture that forbids only its own thread what captures forbid: this thread's calls and others' go on.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(ROUNDS):
                torch.mul(source, 2.0, out=out)
                views.pop()
                early.pop()
                # Threads of the engine release the memory meanwhile.
                time.sleep(0.002)
        for value in (3.0, 5.0):
            source.fill_(value)
            graph.replay()
            torch.cuda.synchronize()
            assert (out == 2.0 * value).all(), f"the graph made {out[:4]}"
        engine.wait_all(timeout=60)


def check_leases_end_while_jax_works() -> None:
    """XLA captures command buffers of its own when a compiled function runs again and again."""
    if REHEARSAL or SIMULATOR or "jax" not in NAMES:
        raise Skip("needs JAX with a device")
    import jax
    import jax.numpy as jnp

    library = NAMES["jax"]

    @jax.jit
    def work(x: Any) -> Any:
        for _ in range(16):
            x = jnp.sin(x) @ jnp.eye(256, dtype=x.dtype)
        return x

    start = jnp.full((256, 256), 0.5)
    expected = work(start).block_until_ready()
    with est.Engine(workers=1) as engine:
        for _ in range(ROUNDS):
            running = [work(start) for _ in range(4)]
            end_leases(engine, library)
            for result in running:
                assert jnp.array_equal(result, expected), "a compiled function gave another result"
        engine.wait_all(timeout=60)


if __name__ == "__main__":
    for name, reason in MISSING:
        report("skipped", name, reason)
    run(
        [
            check_leases_end_beside_a_library,
            check_leases_end_while_torch_captures,
            check_leases_end_while_jax_works,
        ]
    )
