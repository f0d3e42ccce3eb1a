"""Counters of the examples, and the table that they print at the end."""

import gc
import sys
import threading
import time


class Ledger:
    """Counts crossings between libraries, and checks that the memory stays the same."""

    def __init__(self):
        self._lock = threading.Lock()
        self.crossings = self.bytes = self.copies = 0
        self.moves = self.moved = 0
        self.waited = 0.0

    def crossed(self, pointer_before, pointer_after, nbytes):
        with self._lock:
            self.crossings += 1
            self.bytes += nbytes
            self.copies += pointer_before != pointer_after

    def move(self, nbytes):
        """Counts a copy between the host and a device."""
        with self._lock:
            self.moves, self.moved = self.moves + 1, self.moved + nbytes

    def handed_over(self):
        return f"{self.crossings:,} times, {self.bytes / 1e6:,.1f} MB"


def settled_stats(eng, before, seconds=10):
    """Returns `eng.stats()` once all tensors imported since `before` were released, or after `seconds`. Libraries release
    device memory when its queue is done."""
    gc.collect()
    deadline = time.monotonic() + seconds
    while True:
        now = eng.stats()
        owed = now.imported - before.imported
        if not now.releasing and now.deleters - before.deleters >= owed or time.monotonic() > deadline:
            return now
        time.sleep(0.001)


def show(rows):
    """Prints rows of a name and a value."""
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {value}" for name, value in rows))


def complain(*checks):
    """Takes pairs of a sentence and a bool. Prints the sentences that are true, and returns the exit status."""
    problems = [text for text, wrong in checks if wrong]
    for problem in problems:
        print("error:", problem, file=sys.stderr)
    return 1 if problems else 0
