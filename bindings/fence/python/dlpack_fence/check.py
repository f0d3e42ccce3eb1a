"""Does a library keep the rules of `dlpack_fence.h`? ``python -m dlpack_fence.check MODULE``

The module has an object ``fence_check`` with these methods, of a producer, of a consumer, or of both. None of them waits.

producer: ``tensor()`` returns a tensor of at least 64 bytes on the host whose content comes after ``finish(tensor, well)``, which lets it
be written or (``well`` is False) fail; ``give(tensor)`` returns the object whose ``__dlpack_fence__`` is called; ``overwrite(tensor)`` begins to
write another content; ``live()`` counts consumers' structs that the library still keeps memory for.

consumer: ``take(x)`` takes an object with ``__dlpack_fence__``, a vector of float32, and begins to sum it; ``result(use)`` returns None, the sum,
or an exception.

Each check runs in an interpreter of its own, so what crashes or hangs fails its check and no other. The exit code is 0 if all pass.
"""

import ctypes
import importlib
import mmap
import os
import subprocess
import sys
import threading
import time

import dlpack_fence
from dlpack_fence import DEVICE, DONE, FAILED, PENDING, Flag, take

PAUSE = 0.03


def patience():
    return float(os.environ.get("DLPACK_FENCE_PATIENCE_MS", 20000)) / 1000


class Broken(Exception):
    """A rule of the header is broken."""


def rule(number, kept, what):
    if not kept:
        raise Broken(f"{number} is broken: {what}")


def comes(number, what, text):
    end = time.monotonic() + patience()
    while not what() and time.monotonic() < end:
        time.sleep(0.001)
    rule(number, what(), text)


def state(taken):
    return taken.ready.state()


def bytes_of(taken):
    tensor = taken.raw.managed.dl_tensor
    return ctypes.string_at(tensor.data + tensor.byte_offset, 64)


def given(library, tensor):
    taken = take(library.give(tensor))
    raw = taken.raw
    rule("R2", raw.version == 1 and raw.size >= ctypes.sizeof(dlpack_fence.Fenced), "version or size of the struct")
    rule("R2", raw.ready.version == 1 and raw.ready.size >= ctypes.sizeof(dlpack_fence.Fence), "version or size of `ready`")
    rule("R2", bool(raw.managed.deleter) and bool(raw.add_done), "a function is missing")
    rule("R2", bool(raw.ready.retain) == bool(raw.ready.release), "retain and release go together")
    return taken


def finished(library):
    """A tensor with its content, and one struct of it."""
    tensor = library.tensor()
    library.finish(tensor, True)
    taken = given(library, tensor)
    comes("R5", lambda: state(taken) == DONE, "`ready` is never done")
    return tensor, taken


def all_back(library):
    comes("R11", lambda: library.live() == 0, "memory is kept after its last use")


def producer_late_readiness(library):
    tensor = library.tensor()
    taken = given(library, tensor)
    time.sleep(PAUSE)
    rule("R7", state(taken) == PENDING, "`ready` is done before the content is there")
    library.finish(tensor, True)
    comes("R5", lambda: state(taken) == DONE, "`ready` is never done")
    now = bytes_of(taken)
    time.sleep(PAUSE)
    rule("R4", state(taken) == DONE and bytes_of(taken) == now, "what was done has changed")
    taken.close()
    all_back(library)


def producer_failure(library):
    tensor = library.tensor()
    taken = given(library, tensor)
    library.finish(tensor, False)
    comes("R5", lambda: state(taken) < 0, "a failure is not reported")
    first = state(taken)
    rule("error", not taken.ready.error or taken.ready.text(), "a failure has no text")
    time.sleep(PAUSE)
    rule("R4", state(taken) == first, "a failure has changed")
    taken.close()
    all_back(library)


def producer_subscriptions(library):
    tensor = library.tensor()
    taken = given(library, tensor)
    calls = []
    taken.when_ready(lambda status, message: calls.append(status))
    time.sleep(PAUSE)
    rule("subscribe", not calls, "a subscription is called too early")
    library.finish(tensor, True)
    comes("subscribe", lambda: calls == [DONE], "a subscription is not called")
    taken.when_ready(lambda status, message: calls.append(status))
    comes("subscribe", lambda: calls == [DONE, DONE], "a late subscription hears nothing")
    taken.close()
    all_back(library)


def producer_a_retained_fence_outlives_its_tensor(library):
    tensor = library.tensor()
    taken = given(library, tensor)
    ready = taken.ready.retained()
    taken.close()
    rule("R1", ready.state() == PENDING, "a retained fence has changed by the deleter")
    library.finish(tensor, True)
    comes("R1", lambda: ready.state() == DONE, "a retained fence is never done")
    ready.drop()
    all_back(library)


def producer_a_capsule_that_is_dropped(library):
    tensor = library.tensor()
    library.finish(tensor, True)
    library.give(tensor).__dlpack_fence__(max_version=(1, 3))
    all_back(library)


def producer_writes_wait(library, status=DONE, polled=False):
    tensor, taken = finished(library)
    now, work = bytes_of(taken), Flag()
    described = taken.raw.managed.dl_tensor
    address = described.data + described.byte_offset
    if polled:
        work.raw.subscribe, work.raw.unsubscribe = type(work.raw.subscribe)(), type(work.raw.unsubscribe)()
    rule("R9", taken.add_done(work), "a fence is not accepted")
    rule("R9", work._holders > 0, "a fence is not retained")
    taken.close()
    library.overwrite(tensor)
    time.sleep(PAUSE)
    rule("R11", ctypes.string_at(address, 64) == now, "memory is written during the consumer's work")
    work.settle(status, "the checks let it fail" if status < 0 else None)
    comes("R11", lambda: ctypes.string_at(address, 64) != now, "a write never begins")
    if status == DONE:  # a failure may be remembered as long as its tensor
        comes("R1", lambda: work._holders == 0, "a fence is not released")


def producer_polled_fences(library):
    producer_writes_wait(library, polled=True)


def producer_work_that_fails_ends_its_use(library):
    producer_writes_wait(library, FAILED)


def producer_a_write_after_a_fault_of_a_device_begins(library):
    producer_writes_wait(library, dlpack_fence.DEVICE)


def producer_two_consumers(library):
    tensor, first = finished(library)
    second, now, works = given(library, tensor), bytes_of(first), [Flag(), Flag()]
    described = first.raw.managed.dl_tensor
    address = described.data + described.byte_offset
    for taken, work in zip((first, second), works, strict=True):
        rule("R9", taken.add_done(work), "a fence is not accepted")
        taken.close()
    library.overwrite(tensor)
    for work in works:
        time.sleep(PAUSE)
        rule("R12", ctypes.string_at(address, 64) == now, "memory is written before the last consumer is done")
        work.settle()
    comes("R12", lambda: ctypes.string_at(address, 64) != now, "a write never begins")


def producer_other_threads(library):
    tensor, first = finished(library)
    all_taken = [first] + [given(library, tensor) for _ in range(3)]
    # Each may have a fence of its own, such as an event, which is done a moment later.
    comes("R5", lambda: all(state(taken) == DONE for taken in all_taken), "`ready` is never done")
    wrong = []

    def use(taken):
        done = Flag()
        done.settle()
        if state(taken) != DONE or not taken.add_done(done):
            wrong.append(taken)
        taken.close()

    threads = [threading.Thread(target=use, args=(taken,)) for taken in all_taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rule("R3", not wrong, "a function fails on another thread")
    all_back(library)


def producer_a_forked_child(library):
    taken = given(library, library.tensor())
    child = os.fork()
    if child == 0:
        taken.ready.state()
        os._exit(0)
    end = time.monotonic() + patience()
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.001)
    if ended[0] == 0:
        os.kill(child, 9)
    rule("R6", ended == (child, 0), "`query` does not return in a forked child")


class Guarded:
    """A vector in a page that nothing may touch before it is ready, and after the consumer is done."""

    LENGTH = 64

    def __init__(self, refuses=False):
        import numpy as np

        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self.values = np.frombuffer(self._page, "float32", self.LENGTH)
        self.ready, self.added, self.back = Flag(), [], 0
        self._address = self.values.ctypes.data
        self._refuses = refuses
        self.protect(0)

    def protect(self, access):
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(self._address), mmap.PAGESIZE, access)

    def __dlpack_fence__(self, *, max_version=None, dl_device=None, copy=None):
        capsule = dlpack_fence.give(self.values, self.ready, self._over)
        if self._refuses:
            address = dlpack_fence._python.PyCapsule_GetPointer(capsule, dlpack_fence.FENCED)
            ctypes.cast(address, ctypes.POINTER(dlpack_fence.Fenced)).contents.add_done = _refuse
        return capsule

    def _over(self):
        self.back += 1

    def fill(self):
        self.protect(3)
        self.values[:] = range(self.LENGTH)
        self.protect(1)
        self.ready.settle()


_refuse = type(dlpack_fence._add_done)(lambda address, done: PENDING)


def consumer_late_readiness(library, refuses=False):
    x = Guarded(refuses)
    use = library.take(x)
    time.sleep(PAUSE)
    rule("R7", library.result(use) is None, "there is a result before the tensor is ready")
    rule("R9", x.back == 0, "the consumer says that it is done before the tensor is ready")
    x.fill()
    comes("R9", lambda: x.back == 1, "the deleter is not called, or a fence never settles")
    x.protect(0)
    comes("R5", lambda: library.result(use) is not None, "there is no result")
    rule("R7", library.result(use) == sum(range(64)), f"the result is {library.result(use)}")
    comes("R1", lambda: x.ready._holders == 0, "`ready` is not released")
    time.sleep(PAUSE)
    rule("R10", x.back == 1, "the deleter is called twice")


def consumer_a_producer_that_accepts_no_fence(library):
    consumer_late_readiness(library, refuses=True)


def consumer_a_tensor_that_fails(library, status=FAILED):
    x = Guarded()
    use = library.take(x)
    x.ready.settle(status, "the checks let it fail")
    comes("R7", lambda: library.result(use) is not None, "a failure does not arrive")
    rule("R7", isinstance(library.result(use), Exception), "a failed tensor has a result")
    comes("R10", lambda: x.back == 1, "a failed tensor is not released")


def consumer_a_tensor_whose_device_breaks(library):
    consumer_a_tensor_that_fails(library, DEVICE)


def checks_of(library):
    roles = [role for role, method in (("producer", "give"), ("consumer", "take")) if hasattr(library, method)]
    return [name for name in globals() if name.split("_")[0] in roles and callable(globals()[name])]


def main(arguments):
    module, *names = arguments
    if names:
        try:
            globals()[names[0]](importlib.import_module(module).fence_check)
        except Broken as broken:
            print(f"  {broken}")
            sys.stdout.flush()
            os._exit(1)
        sys.stdout.flush()
        # Threads that a library leaves running are not waited for.
        os._exit(0)
    failed = 0
    for name in checks_of(importlib.import_module(module).fence_check):
        command = [sys.executable, "-m", "dlpack_fence.check", module, name]
        try:
            code = subprocess.run(command, timeout=10 + 4 * patience(), check=False).returncode
        except subprocess.TimeoutExpired:
            code = "it hangs"
        print(f"ok      {name}" if code == 0 else f"FAILED  {name} ({code})", flush=True)
        failed += code != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) != 0)
