"""Notes by ear, on two SYCL queues: NumPy plays notes, dpnp removes the noise, and JAX recognizes the notes.

    NumPy             queue "up"                queue "clean"           the host              NumPy
    a batch of    ->  a copy to the device  ->  dpnp: window and    ->  JAX: the loudest  ->  the notes
    noisy notes       (a queue operation)       soft clipping           frequency
    (imported view)                             (device memory)         (`eng.call`)          (a scoped read lease)

While dpnp works on one batch, the next batch is copied. No thread waits for a queue: events order the two queues. Host
memory is lent to the copy until the device has done the copy, and the device memory of a batch is reused when its last
reader is done. At the end the example compares the notes with those that plain NumPy recognizes, and checks that every
imported tensor was released.

Run it with `python examples/python/sycl.py`. It needs dpnp and a SYCL device; `pip install dpnp intel-opencl-rt` makes the
processor one. Without them the example prints a message and ends (with `--require`: fails). NumPy replaces JAX where JAX is
missing.
"""

import argparse
import asyncio
import importlib.util
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# PyPI's package of Intel's OpenCL runtime is installed beside the interpreter. Other OpenCL drivers may lack the shared
# memory that SYCL needs.
_driver = Path(sys.prefix, "lib", "libintelocl.so")
if _driver.exists() and "OCL_ICD_FILENAMES" not in os.environ:
    os.environ["OCL_ICD_FILENAMES"] = str(_driver)
    os.environ.setdefault("OCL_ICD_VENDORS", "/none")

import numpy as np

import estafette as est
from closing import Ledger, complain, settled_stats, show

BATCH, LENGTH = 64, 4096
# JAX copies host memory of a smaller alignment.
ALIGNMENT = 64


def host_pointer(array):
    return array.__array_interface__["data"][0]


def device_pointer(array):
    return array.__sycl_usm_array_interface__["data"][0]


def played(batches):
    """Batches of notes with noise, laid out for JAX, and which notes they are: bins of a spectrum of `LENGTH` samples."""
    random = np.random.default_rng(7)
    count = batches * BATCH
    raw = np.empty(count * LENGTH * 4 + ALIGNMENT, np.uint8)
    start = -host_pointer(raw) % ALIGNMENT
    sound = raw[start : start + count * LENGTH * 4].view(np.float32).reshape(batches, BATCH, LENGTH)
    notes = random.integers(8, LENGTH // 4, size=(batches, BATCH))
    time_axis = np.arange(LENGTH, dtype=np.float32) / LENGTH
    for batch, its_notes in zip(sound, notes, strict=True):
        np.sin(2 * np.pi * its_notes[:, None] * time_axis, out=batch, casting="same_kind")
        batch += random.normal(0, 0.5, batch.shape)
    return sound, notes


def loudest_with(library):
    """The last leg: the loudest frequency of each note of a batch."""
    if library.__name__ == "numpy":
        return lambda batch: np.abs(np.fft.rfft(batch)).argmax(axis=1).astype(np.int32)
    import jax

    hear = jax.jit(lambda batch: abs(library.fft.rfft(batch)).argmax(axis=1).astype("int32"))
    # Compiled before the measurement.
    hear(library.zeros((BATCH, LENGTH), "float32"))
    return hear


class Device:
    """The two queues, and what is enqueued on each."""

    def __init__(self, dpctl, dpnp, ledger):
        self.dpnp, self.ledger = dpnp, ledger
        self.uploads_beside = 0
        self.up, self.clean = dpctl.SyclQueue(), dpctl.SyclQueue()
        self.window = dpnp.asarray(np.hanning(LENGTH).astype(np.float32), sycl_queue=self.clean)
        self._busy = None

    def borrow(self, queue):
        """What `using` calls for each operand of an operation on `queue`: a host array, or one that works on the queue."""

        def borrow(tensor):
            array = self.dpnp.from_dlpack(tensor)
            return array if isinstance(array, np.ndarray) else array.to_device(queue)

        return borrow

    def upload(self, batch, raw):
        busy = self._busy
        if busy is not None and busy.execution_status.name != "complete":
            self.uploads_beside += 1
        self.up.memcpy_async(raw.get_array().usm_data, batch, batch.nbytes)
        self.ledger.move(batch.nbytes)

    def filter(self, raw, cleaned):
        self.dpnp.multiply(raw, self.window, out=cleaned)
        self.dpnp.tanh(cleaned, out=cleaned)
        self._busy = self.clean.submit_barrier()


async def run(eng, device, library, hear, sound, in_flight, ledger):
    """Sends every batch along, `in_flight` of them at once; gives what was heard."""
    pointer = host_pointer if library is np else lambda array: array.unsafe_buffer_pointer()
    heard = np.zeros(sound.shape[:2], np.int32)
    todo = iter(range(len(sound)))
    tensors = operations = 0
    where = device.window.__dlpack_device__()

    def borrow(tensor):
        return library.from_dlpack(tensor)

    async def runner():
        nonlocal tensors, operations
        raw, cleaned = (eng.empty((BATCH, LENGTH), "float32", device=where) for _ in range(2))
        for tensor in (raw, cleaned):
            ledger.crossed(tensor.data_ptr, device_pointer(device.dpnp.from_dlpack(tensor)), BATCH * LENGTH * 4)
        tensors += 2
        for index in todo:
            batch = eng.from_dlpack(sound[index])
            ledger.crossed(host_pointer(sound[index]), batch.data_ptr, sound[index].nbytes)
            await eng.submit_async(
                device.upload, reads=[batch], writes=[raw], using=device.borrow(device.up), on=device.up, name="upload"
            )
            # Functions on the same queue run one after the other.
            await eng.submit_async(
                device.filter, reads=[raw], writes=[cleaned], using=device.borrow(device.clean), on=device.clean, name="clean"
            )
            # The copy back is a queue operation too, since JAX reads host memory only.
            back = cleaned.to_host()
            ledger.move(sound[index].nbytes)
            made = []

            def leg(samples, back=back, made=made):
                ledger.crossed(back.data_ptr, pointer(samples), samples.nbytes)
                result = hear(samples)
                made.append(pointer(result))
                return result

            notes = await eng.call_async(leg, back, using=borrow, name="hear")
            tensors, operations = tensors + 3, operations + 4

            began = time.perf_counter()
            async with notes.read(np.from_dlpack) as view:
                ledger.waited += time.perf_counter() - began
                ledger.crossed(made[0], host_pointer(view), view.nbytes)
                heard[index] = view
                # A view that outlives the block would keep the lease.
                del view

    await asyncio.gather(*(runner() for _ in range(in_flight)))
    return heard, tensors, operations


def missing():
    """What the device lacks, or `None`."""
    for module in ("dpctl", "dpnp"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed (no module `{module}`): `pip install dpnp intel-opencl-rt`"
    import dpctl

    if not dpctl.get_devices():
        return "the SYCL runtime knows no device: `pip install intel-opencl-rt` makes one of the processor"
    return None


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--batches", type=int, default=48, help=f"batches of {BATCH} notes")
    arguments.add_argument("--in-flight", type=int, default=4, help="batches on their way at once")
    arguments.add_argument("--require", action="store_true", help="fail where there is no SYCL device or no JAX")
    options = arguments.parse_args()

    if why := missing():
        print(why if options.require else f"{why}; skipped", file=sys.stderr if options.require else sys.stdout)
        return int(options.require)
    import dpctl
    import dpnp

    library = np
    if importlib.util.find_spec("jax"):
        import jax.numpy as library
    else:
        print("JAX is not installed (no module `jax`): skipped, NumPy runs its leg")
        if options.require:
            return 1

    sound, notes = played(options.batches)
    ledger = Ledger()
    listener = "NumPy" if library is np else "JAX"
    print(f"notes: NumPy -> dpnp on {dpctl.select_default_device().name.strip()} -> {listener} -> NumPy")

    with est.Engine(workers=2) as eng:
        device = Device(dpctl, dpnp, ledger)
        before = eng.stats()
        hear = loudest_with(library)
        began = time.perf_counter()
        heard, tensors, operations = asyncio.run(run(eng, device, library, hear, sound, options.in_flight, ledger))
        took = time.perf_counter() - began
        after = settled_stats(eng, before)

    imported, deleters = after.imported - before.imported, after.deleters - before.deleters
    window = np.hanning(LENGTH).astype(np.float32)
    expected = np.stack([loudest_with(np)(np.tanh(batch * window)) for batch in sound])
    agree = (heard == expected).mean()

    rows = [
        ("tensors", f"{tensors:,}"),
        ("handed over", ledger.handed_over()),
        ("copies", f"{ledger.copies:,}"),
        ("host and device", f"{ledger.moves:,} moves, {ledger.moved / 1e6:,.1f} MB"),
        ("overlapped", f"{device.uploads_beside} of {len(sound)} uploads began while the other queue was at work"),
        ("operations", f"{operations:,}"),
        ("time waited", f"{ledger.waited:.3f} s in {options.in_flight} tasks"),
        ("time in all", f"{took:.3f} s"),
        ("deleters run", f"{deleters:,} for {imported:,} tensors imported"),
        ("right", f"{(heard == notes).mean():.1%} of the notes; {agree:.2%} as in plain NumPy"),
    ]
    show(rows)

    # Libraries round differently, so either of two equally loud frequencies may win.
    return complain(
        ("something was copied that is handed over", ledger.copies != 0),
        ("not every imported tensor was released", deleters != imported),
        ("what was heard differs from what plain NumPy hears", agree < 0.999),
    )


if __name__ == "__main__":
    sys.exit(main())
