"""A small array library on NumPy, with a pool of threads: its operations return at once, and its arrays say by a fence when they are there.

It knows `dlpack_fence` and no library that takes its arrays. `python producer.py LIBRARY` hands arrays to the C library of `reader.c` and
`pool.c`, which is the shared library LIBRARY, and takes one of the pool's; nothing else is in the process. See `README.md`.
"""

import ctypes
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import dlpack_fence

_pool = ThreadPoolExecutor(2, thread_name_prefix="producer")
_lent = threading.Condition()


class Array:
    """An array whose content `compute(out)` writes on the pool's threads."""

    def __init__(self, shape, compute, dtype="float32"):
        self._values = np.empty(shape, dtype)
        self._consumers = [0]  # of the present content
        self._ready = dlpack_fence.Flag()
        self._task = _pool.submit(compute, self._values)
        self._ready.follow(self._task)

    # Consumers that know no fences wait, as ever.
    def __dlpack_device__(self):
        return self._values.__dlpack_device__()

    def __dlpack__(self, **arguments):
        self._task.result()
        return self._values.__dlpack__(**arguments)

    def __dlpack_fence__(self, *, max_version=None, dl_device=None, copy=None):
        if copy or dl_device not in (None, (1, 0)):
            raise BufferError("only the memory itself has fences")
        consumers = self._consumers
        with _lent:
            consumers[0] += 1

        def is_back():
            with _lent:
                consumers[0] -= 1
                _lent.notify_all()

        return dlpack_fence.give(self._values, self._ready, is_back)

    def overwrite(self, compute):
        """Computes another content in place, after the consumers of the present one. What is given from here on is the new content."""
        before, consumers = self._task, self._consumers
        self._ready, self._consumers = dlpack_fence.Flag(), [0]

        def write():
            before.exception()
            with _lent:
                _lent.wait_for(lambda: consumers[0] == 0)
            compute(self._values)

        self._task = _pool.submit(write)
        self._ready.follow(self._task)


def arange(first, length):
    return Array(length, lambda out: np.copyto(out, np.arange(first, first + length)))


class CLibrary:
    """The functions of `pool.h` and `reader.h`."""

    def __init__(self, path):
        c, p, f = ctypes.CDLL(path), ctypes.c_void_p, ctypes.c_float
        types = {
            "pool_create": (p, ctypes.c_int),
            "pool_ramp": (p, p, f, ctypes.c_int64, ctypes.c_int),
            "pool_scale": (p, p, p, f),
            "pool_export": (p, p),
            "pool_drop": (None, p),
            "pool_live": (ctypes.c_int, p),
            "pool_destroy": (None, p),
            "reader_create": (p,),
            "reader_destroy": (None, p),
            "reader_sum": (p, p, p),
            "sum_get": (ctypes.c_char_p, p, ctypes.POINTER(ctypes.c_double)),
            "sum_drop": (None, p),
        }
        for name, (result, *arguments) in types.items():
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def sum(self, reader, address):
        """The reader's sum of the struct at `address`, which the reader adopts."""
        made, value = self.reader_sum(reader, address), ctypes.c_double()
        failure = self.sum_get(made, ctypes.byref(value))
        failure = failure and failure.decode()
        self.sum_drop(made)
        if failure:
            raise RuntimeError(failure)
        return value.value


def struct_of(x):
    """The struct that `x` gives: the caller's from here on."""
    return dlpack_fence.take(x)._address


def main(path):
    c = CLibrary(path)
    pool, reader = c.pool_create(2), c.reader_create()

    # From Python to C: the content comes late.
    gate = threading.Event()
    late = Array(100, lambda out: (gate.wait(), out.fill(3)))
    scaled = c.pool_scale(pool, struct_of(late), 2)
    gate.set()
    assert c.sum(reader, c.pool_export(scaled)) == 600
    c.pool_drop(scaled)

    # A write of the producer waits for a consumer in C.
    x = arange(0, 10)
    address = struct_of(x)
    x.overwrite(lambda out: out.fill(-1))
    assert c.sum(reader, address) == 45 and c.sum(reader, struct_of(x)) == -10

    # A failure, with its text.
    def fails(out):
        raise ValueError("no ink")

    try:
        c.sum(reader, struct_of(Array(4, fails)))
    except RuntimeError as error:
        assert str(error) == "ValueError: no ink"
    else:
        raise AssertionError("it has not failed")

    # From C to Python.
    ramp = c.pool_ramp(pool, 1, 5, 10)
    class OfPool:
        def __dlpack_fence__(self, **_):
            address = c.pool_export(ramp)
            return dlpack_fence._python.PyCapsule_New(address, dlpack_fence.FENCED, None)

    taken = dlpack_fence.take(OfPool())
    taken.wait()
    assert taken.numpy().tolist() == [1, 2, 3, 4, 5]
    taken.close()
    c.pool_drop(ramp)

    c.reader_destroy(reader)
    c.pool_destroy(pool)  # returns once all memory of the pool was released
    assert "estafette" not in sys.modules
    print("late, overwritten, failed and taken: done")


class Checked:
    """For ``python -m dlpack_fence.check producer``: this library as a producer, and as a consumer that sums on its threads."""

    def __init__(self):
        self._gates = []

    def tensor(self):
        gate = threading.Event()

        def compute(out):
            gate.wait()
            if not gate.well:
                raise ValueError("the checks let it fail")
            out[:] = range(len(out))

        self._gates.append((array := Array(64, compute), gate))
        return array

    def finish(self, tensor, well):
        gate = next(gate for array, gate in self._gates if array is tensor)
        gate.well = well
        gate.set()

    def give(self, tensor):
        return tensor

    def overwrite(self, tensor):
        tensor.overwrite(lambda out: out.fill(-1))

    def live(self):
        with _lent:
            return sum(array._consumers[0] for array, _ in self._gates)

    def take(self, x):
        taken, use = dlpack_fence.take(x), []

        def add_up():
            result = float(taken.numpy().sum())
            taken.close()
            use.append(result)

        def ready(status, message):
            if status == dlpack_fence.DONE:
                _pool.submit(add_up)
            else:
                use.append(RuntimeError(message))
                _pool.submit(taken.close)

        taken.when_ready(ready)
        return use

    def result(self, use):
        return use[0] if use else None


fence_check = Checked()

if __name__ == "__main__":
    main(*sys.argv[1:])
