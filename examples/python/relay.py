"""The relay: handwritten digits pass from NumPy to JAX to PyTorch and back to NumPy, and no thread blocks.

    NumPy                JAX                      PyTorch                   NumPy
    a batch of digits -> its principal parts   -> distance to each class -> the nearest class
    (imported view)      (a promise, `eng.call`)   (a buffer, `eng.submit`)   (a scoped read lease)

Many batches are in flight at once; asyncio only waits for results. Every crossing is zero-copy, and the example checks
that: it compares the pointer that a library sees with the pointer that the tensor had before. At the end it compares the
predictions with those of a plain loop, and checks that every imported tensor was released.

Run it with `python examples/python/relay.py`. At the end it prints where the time went, and writes a trace to
`relay.pftrace` (for https://ui.perfetto.dev) and a timeline to `relay.html`. It needs NumPy. NumPy replaces JAX and
PyTorch where they are not installed. The digits come from scikit-learn; without it, generated patterns replace them.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

import estafette as est
from closing import Ledger, complain, settled_stats, show

BATCH = 64
PARTS = 16
CLASSES = 10
# JAX copies host memory of a smaller alignment.
ALIGNMENT = 64
TRACE, PAGE = "relay.pftrace", "relay.html"


class Runner:
    """One library: how it borrows a tensor, and how it gives the address of its memory."""

    def __init__(self, name, from_dlpack, pointer, ledger):
        self.name = name
        self._from_dlpack, self._pointer, self._ledger = from_dlpack, pointer, ledger

    def borrow(self, tensor):
        """Called by `using`, for each operand of an operation."""
        array = self._from_dlpack(tensor)
        # Only a tensor has a pointer to compare with; a scoped view has none.
        if isinstance(tensor, est.Tensor):
            self._ledger.crossed(tensor.data_ptr, self._pointer(array), array.nbytes)
        return array

    def pointer(self, array):
        return self._pointer(array)


def numpy_pointer(array):
    return array.__array_interface__["data"][0]


def runners(ledger):
    """The libraries of the three legs. NumPy replaces libraries that are missing."""
    first = Runner("NumPy", np.from_dlpack, numpy_pointer, ledger)
    second = third = first
    if importlib.util.find_spec("jax"):
        import jax

        second = Runner("JAX", jax.numpy.from_dlpack, lambda array: array.unsafe_buffer_pointer(), ledger)
    if importlib.util.find_spec("torch"):
        import torch

        third = Runner("PyTorch", torch.from_dlpack, lambda array: array.data_ptr(), ledger)
    for name, module, runner in (("JAX", "jax", second), ("PyTorch", "torch", third)):
        if runner is first:
            print(f"{name} is not installed (no module `{module}`): skipped, NumPy runs its leg")
    return first, second, third


def project_with(runner, mean, parts):
    """The second leg: a batch in the coordinates of its principal parts."""
    if runner.name != "JAX":
        return lambda batch: (batch - mean) @ parts
    import jax

    mean, parts = jax.numpy.asarray(mean), jax.numpy.asarray(parts)
    return jax.jit(lambda batch: (batch - mean) @ parts)


def measure_with(runner, centres):
    """The third leg: writes the squared distance of each digit to the centre of each class into `out`."""
    if runner.name != "PyTorch":

        def measure(batch, out):
            np.sum((batch[:, None, :] - centres[None]) ** 2, axis=2, out=out)

        return measure
    import torch

    centres = torch.from_numpy(centres.copy())
    torch.set_num_threads(1)

    def measure(batch, out):
        torch.sum((batch[:, None, :] - centres[None]) ** 2, dim=2, out=out)

    return measure


def digits():
    """The digits, of 8 x 8 pixels, and their labels: a whole number of batches, aligned."""
    if importlib.util.find_spec("sklearn"):
        from sklearn.datasets import load_digits

        data = load_digits()
        pixels, labels = data.data / 16, data.target
    else:
        print("scikit-learn is not installed: skipped its digits, ten noisy patterns run instead")
        random = np.random.default_rng(7)
        labels = random.integers(CLASSES, size=1797)
        pixels = random.random((CLASSES, 64))[labels] + random.normal(0, 0.7, (1797, 64))
    count = len(labels) // BATCH * BATCH
    raw = np.empty(count * 64 * 4 + ALIGNMENT, np.uint8)
    start = -numpy_pointer(raw) % ALIGNMENT
    images = raw[start : start + count * 64 * 4].view(np.float32).reshape(count, 64)
    images[:] = pixels[:count]
    return images, labels[:count]


def train(images, labels):
    """Principal parts and the centre of each class among them."""
    mean = images.mean(axis=0)
    _, _, directions = np.linalg.svd(images - mean, full_matrices=False)
    parts = np.ascontiguousarray(directions[:PARTS].T)
    projected = (images - mean) @ parts
    return mean, parts, np.stack([projected[labels == digit].mean(axis=0) for digit in range(CLASSES)])


class Progress:
    """Progress: a bar on a terminal, and a line now and then elsewhere."""

    def __init__(self, total):
        self._total, self._done, self._shown = total, 0, -1
        self._terminal = sys.stderr.isatty()

    def step(self):
        self._done += 1
        tenths = self._done * 40 // self._total if self._terminal else self._done * 4 // self._total
        if tenths == self._shown:
            return
        self._shown = tenths
        if self._terminal:
            bar = "#" * tenths + "." * (40 - tenths)
            print(f"\r[{bar}] {self._done}/{self._total} batches", end="", file=sys.stderr, flush=True)
            if self._done == self._total:
                print(file=sys.stderr)
        else:
            print(f"{self._done}/{self._total} batches", file=sys.stderr, flush=True)


async def relay(eng, rounds, in_flight, images, labels, model, ledger, legs):
    """Sends every batch around `rounds` times, `in_flight` of them at once. Returns the predictions."""
    first, second, third = legs
    mean, parts, centres = model
    project, measure = project_with(second, mean, parts), measure_with(third, centres)
    predictions = np.zeros((rounds, len(labels)), np.int64)
    batches = [(turn, row) for turn in range(rounds) for row in range(0, len(labels), BATCH)]
    progress = Progress(len(batches))
    tensors = operations = 0
    # Result buffers are reused: the engine delays a write of a buffer until its last reader is done.
    buffers: asyncio.Queue[est.Tensor] = asyncio.Queue()
    for _ in range(in_flight):
        buffers.put_nowait(eng.empty((BATCH, CLASSES), "float32"))
        tensors += 1
    todo = iter(batches)

    async def runner():
        nonlocal tensors, operations
        for turn, row in todo:
            view = images[row : row + BATCH]
            batch = eng.from_dlpack(view)
            ledger.crossed(numpy_pointer(view), batch.data_ptr, view.nbytes)

            made = []

            def leg(batch):
                result = project(batch)
                made.append(second.pointer(result))
                return result

            projected = await eng.call_async(leg, batch, using=second.borrow, name="project")
            distances = await buffers.get()
            await eng.submit_async(measure, reads=[projected], writes=[distances], using=third.borrow, name="measure")
            tensors, operations = tensors + 2, operations + 2

            began = time.perf_counter()
            async with distances.read(first.borrow) as view:
                ledger.waited += time.perf_counter() - began
                ledger.crossed(distances.data_ptr, numpy_pointer(view), view.nbytes)
                predictions[turn, row : row + BATCH] = view.argmin(axis=1)
                # A view that outlives the block would keep the lease.
                del view
            ledger.crossed(made[0], projected.data_ptr, BATCH * PARTS * 4)
            buffers.put_nowait(distances)
            progress.step()

    await asyncio.gather(*(runner() for _ in range(in_flight)))
    return predictions, tensors, operations


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=25, help="how often the digits go around")
    arguments.add_argument("--in-flight", type=int, default=8, help="batches on their way at once")
    arguments.add_argument("--no-report", action="store_true", help="do not record where the time goes: to compare")
    options = arguments.parse_args()

    images, labels = digits()
    model = train(images, labels)
    ledger = Ledger()
    legs = runners(ledger)
    print("relay:", " -> ".join([*(leg.name for leg in legs), "NumPy"]))

    began = time.perf_counter()
    trace = None if options.no_report else est.record(TRACE)
    with trace or contextlib.nullcontext(), est.Engine(workers=2) as eng:
        before = eng.stats()
        predictions, tensors, operations = asyncio.run(
            relay(eng, options.rounds, options.in_flight, images, labels, model, ledger, legs)
        )
        took = time.perf_counter() - began
        after = settled_stats(eng, before)

    imported, deleters = after.imported - before.imported, after.deleters - before.deleters
    mean, parts, centres = model
    projected = (images - mean) @ parts
    expected = ((projected[:, None, :] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    agree = (predictions == expected).mean()

    rows = [
        ("tensors", f"{tensors:,}"),
        ("handed over", ledger.handed_over()),
        ("copies", f"{ledger.copies:,}"),
        ("operations", f"{operations:,}"),
        ("time waited", f"{ledger.waited:.3f} s in {options.in_flight} tasks"),
        ("time in all", f"{took:.3f} s"),
        ("deleters run", f"{deleters:,} for {imported:,} tensors imported"),
        ("right", f"{(predictions == labels).mean():.1%} of the digits; {agree:.2%} as in a plain loop"),
    ]
    show(rows)

    if trace is not None:
        print("", trace.report(short=True, html=PAGE), f"the timeline: {PAGE}", sep="\n")

    # Libraries add in different orders, so a digit half-way between two classes may get either.
    return complain(
        ("something was copied", ledger.copies != 0),
        ("not every imported tensor was released", deleters != imported),
        ("the predictions differ from those of a plain loop", agree < 0.999),
    )


if __name__ == "__main__":
    sys.exit(main())
