"""A relay of two C++ frameworks and Python libraries in one process, without a thread that blocks.

::

    python examples/delegate/delegate.py build/libdelegate.so

*Mill* has a pool of threads and calls back; *Tide* has a loop and can only be asked. Both delegate their crossings to
Estafette's C interface. Per frame: Mill computes and doubles a ramp, Tide takes it as doubles, NumPy (or PyTorch, or JAX) squares
it in the schedule of Estafette's Python package, and Mill sums it up. All frames are submitted before the first is there.
"""

import ctypes
import importlib.util
import sys
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
            "delegate_create": (p,),
            "delegate_destroy": (None, p),
            "delegate_made": (ctypes.c_int, p),
            "delegate_given_back": (ctypes.c_int, p),
            "mill_ramp": (p, p, ctypes.c_float, i, ctypes.c_int),
            "mill_double": (p, p, p),
            "mill_sum": (p, p, p),
            "mill_query": (ctypes.c_int, p),
            "mill_value": (ctypes.c_float, p),
            "mill_drop": (None, p),
            "tide_take": (p, p, p),
            "tide_turn": (i, p),
            "tide_fenced": (p, p, p),
            "tide_drop": (None, p),
            "fenced_delete": (None, p),
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


_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
# Signatures for destructors, which must not take a new reference to their object.
_raw = ctypes.PyDLL(None)
_raw.PyCapsule_IsValid.argtypes = _raw.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_raw.PyCapsule_GetPointer.restype = ctypes.c_void_p

FENCED, USED = b"dltensor_fenced", b"used_dltensor_fenced"


class TideArray:
    """A tensor of Tide, for Python libraries."""

    def __init__(self, lib, world, tensor):
        self._lib, self._world, self._tensor = lib, world, tensor

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def give_back(capsule):
            if _raw.PyCapsule_IsValid(capsule, FENCED):
                lib.fenced_delete(_raw.PyCapsule_GetPointer(capsule, FENCED))

        # Lives as long as the library: a capsule may outlive this object.
        lib.__dict__.setdefault("kept", []).append(give_back)
        self._give_back = ctypes.cast(give_back, ctypes.c_void_p)

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        raise BufferError("Tide never waits: call `__dlpack_fence__`")

    def __dlpack_fence__(self, *, max_version=None, dl_device=None, copy=None):
        return _python.PyCapsule_New(self._lib.tide_fenced(self._world, self._tensor), FENCED, self._give_back)


def hand_over(lib, world, tensor):
    """Passes a tensor of the Python package to Mill, ready or not, without a copy."""
    capsule = tensor.__dlpack_fence__(max_version=(1, 3))
    fenced = _python.PyCapsule_GetPointer(capsule, FENCED)
    _python.PyCapsule_SetName(capsule, USED)
    return lib.mill_sum(world, fenced)


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
    world = lib.delegate_create()
    kinds = list(squares())
    frames, drops = [], []
    with est.Engine(workers=2) as eng:
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
            x = eng.from_dlpack(TideArray(lib, world, taken))
            y = eng.empty(LENGTH, "float64")
            eng.submit(square, reads=[x], writes=[y], using=using, name=name)
            total = hand_over(lib, world, y)
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
    while lib.delegate_given_back(world) < lib.delegate_made(world) and time.monotonic() < deadline:
        time.sleep(0.001)
    made, given_back = lib.delegate_made(world), lib.delegate_given_back(world)
    lib.delegate_destroy(world)

    alone = FRAMES * MILLISECONDS / 1000
    rows = [
        ("leg", "crossings", "data", "ready"),
        ("Mill > Tide", FRAMES, "C interface", "a fence that pushes; Tide asks in each turn"),
        ("Tide > " + ", ".join(name for name, *_ in kinds), FRAMES, "DLPack", "a fence that only answers, polled"),
        ("Python > Mill", FRAMES, "DLPack", "Estafette's fence, as a C struct"),
    ]
    for leg, crossings, data, ready in rows:
        print(f"{leg:<30}{crossings:>10}  {data:<13}{ready}")
    print()
    print(f"{FRAMES} frames submitted in {submitted * 1e3:.1f} ms, {early} of them done by then; all after {took * 1e3:.1f} ms")
    print(f"Mill's own work takes {alone * 1e3:.0f} ms, shared by 2 threads; Tide's loop turned {turns} times and never blocked")
    print(f"sums right: {right} of {FRAMES}; memory given back: {given_back} of {made}")
    if right != FRAMES or given_back != made or early == FRAMES:
        raise SystemExit("something was not as it should be")


if __name__ == "__main__":
    main(*sys.argv[1:])
