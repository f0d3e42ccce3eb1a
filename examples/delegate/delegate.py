"""A relay of two C++ frameworks and Python libraries in one process, without a thread that blocks.

::

    python examples/delegate/delegate.py build/libdelegate.so

*Mill* has a pool of threads and calls back; *Tide* has a loop and can only be asked. Both delegate their crossings to the C interface
in Estafette's Python package, so all operations are in one graph and one trace. Per frame: Mill computes and doubles a ramp, Tide takes
it as doubles, NumPy (or PyTorch, or JAX) squares it, and Mill sums it up. All frames are submitted before the first is there.
"""

import ctypes
import importlib.util
import os
import sys
import tempfile
import time

import numpy as np

import estafette as est

FRAMES, LENGTH, MILLISECONDS = 24, 1000, 3


class CLibrary:
    """The functions of `delegate.cpp`, with their types."""

    def __init__(self, path):
        c, p, i = ctypes.CDLL(path), ctypes.c_void_p, ctypes.c_int64
        types = {
            "delegate_error": (ctypes.c_char_p,),
            "delegate_create": (p, p),
            "delegate_destroy": (None, p),
            "delegate_made": (ctypes.c_int, p),
            "delegate_released": (ctypes.c_int, p),
            "mill_ramp": (p, p, ctypes.c_float, i, ctypes.c_int),
            "mill_double": (p, p, p),
            "mill_sum": (p, p, p),
            "mill_query": (ctypes.c_int, p),
            "mill_value": (ctypes.c_float, p),
            "mill_drop": (None, p),
            "tide_take": (p, p, p),
            "tide_turn": (i, p),
            "tide_tensor": (p, p, p),
            "tide_drop": (None, p),
            "tensor_drop": (None, p),
        }
        for name, (result, *arguments) in types.items():
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
            if result is p:
                function.errcheck = self._not_null
            setattr(self, name, function)

    def _not_null(self, result, _function, _arguments):
        if result is None:
            raise RuntimeError(self.delegate_error().decode())
        return result


def squares():
    """By library: a function that squares a vector into another one, and a function that borrows tensors."""
    yield "NumPy", np.from_dlpack, lambda x, y: np.multiply(x, x, out=y)
    if importlib.util.find_spec("torch"):
        import torch

        yield "PyTorch", torch.from_dlpack, lambda x, y: torch.mul(x, x, out=y)
    if importlib.util.find_spec("jax"):
        import jax

        jax.config.update("jax_enable_x64", True)

        def square(x, y):
            np.copyto(np.from_dlpack(y), np.asarray(jax.numpy.square(jax.numpy.from_dlpack(x))))

        yield "JAX", None, square


def main(path):
    lib = CLibrary(path)
    kinds = list(squares())
    frames, drops = [], []
    file = os.path.join(tempfile.mkdtemp(), "relay.pftrace")
    with est.record(file) as trace, est.Engine(workers=2) as eng:
        world = lib.delegate_create(eng.c_handle())
        for name, using, square in kinds:
            # The first call of a library is slow.
            x, y = eng.zeros(1, "float64"), eng.zeros(1, "float64")
            eng.submit(square, reads=[x], writes=[y], using=using, name=name).wait()

        began = time.perf_counter()
        for frame in range(FRAMES):
            name, using, square = kinds[frame % len(kinds)]
            ramp = lib.mill_ramp(world, frame, LENGTH, MILLISECONDS)
            doubled = lib.mill_double(world, ramp)
            taken = lib.tide_take(world, doubled)
            handle = lib.tide_tensor(world, taken)
            x = eng.tensor_from_c(handle)
            lib.tensor_drop(handle)
            y = eng.empty(LENGTH, "float64")
            eng.submit(square, reads=[x], writes=[y], using=using, name=name)
            total = lib.mill_sum(world, y.c_handle())
            frames.append((name, total))
            drops += [(lib.mill_drop, ramp), (lib.mill_drop, doubled), (lib.tide_drop, taken), (lib.mill_drop, total)]
        submitted = time.perf_counter() - began
        early = sum(lib.mill_query(total) for _, total in frames)

        # This thread turns Tide's loop, and is free between turns.
        turns = 0
        while not all(lib.mill_query(total) for _, total in frames):
            if lib.tide_turn(world) < 0:
                raise RuntimeError(lib.delegate_error().decode())
            turns += 1
            time.sleep(0.0002)
        took = time.perf_counter() - began
        del x, y

    right = 0
    for frame, (_name, total) in enumerate(frames):
        if lib.mill_query(total) < 0:
            raise RuntimeError(lib.delegate_error().decode())
        exact = float(np.sum((2.0 * (frame + np.arange(LENGTH))) ** 2))
        right += abs(lib.mill_value(total) - exact) <= 1e-6 * exact
    for drop, tensor in drops:
        drop(tensor)
    deadline = time.monotonic() + 30
    while lib.delegate_released(world) < lib.delegate_made(world) and time.monotonic() < deadline:
        time.sleep(0.001)
    made, released = lib.delegate_made(world), lib.delegate_released(world)
    lib.delegate_destroy(world)

    alone = FRAMES * MILLISECONDS / 1000
    rows = [
        ("leg", "crossings", "data", "ready"),
        ("Mill > Tide", FRAMES, "C interface", "a fence that pushes; Tide asks in each turn"),
        ("Tide > " + ", ".join(name for name, *_ in kinds), FRAMES, "a handle", "a fence that only answers, polled"),
        ("Python > Mill", FRAMES, "a handle", "a dependency in the graph that both use"),
    ]
    for leg, crossings, data, ready in rows:
        print(f"{leg:<30}{crossings:>10}  {data:<13}{ready}")
    print()
    print(f"{FRAMES} frames submitted in {submitted * 1e3:.1f} ms, {early} of them done by then; all after {took * 1e3:.1f} ms")
    print(f"Mill's own work takes {alone * 1e3:.0f} ms, shared by 2 threads; Tide's loop turned {turns} times and never blocked")
    operations = trace.report().data["operations"]

    def count(*names):
        return sum(row["count"] for row in operations if any(f"`{name}`" in row["name"] for name in names))

    in_python, in_mill = count(*(name for name, *_ in kinds)), count("mill sum")
    print(f"one trace: {in_python} operations of Python, {in_mill} of Mill")
    print(f"sums right: {right} of {FRAMES}; memory released: {released} of {made}")
    if in_python < FRAMES or in_mill != FRAMES:
        raise SystemExit("the trace lacks operations")
    if right != FRAMES or released != made or early == FRAMES:
        raise SystemExit("something was not as it should be")


if __name__ == "__main__":
    main(*sys.argv[1:])
