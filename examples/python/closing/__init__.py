"""What the examples count on the way, and the table that they close with."""

import gc
import sys
import threading
import time


class Ledger:
    """Counts what crossed a border, and checks each time that it was the same memory on both sides."""

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
        """A copy that has to be: between the host and a device."""
        with self._lock:
            self.moves, self.moved = self.moves + 1, self.moved + nbytes

    def handed_over(self):
        return f"{self.crossings:,} times, {self.bytes / 1e6:,.1f} MB"


def settled_stats(eng, before, seconds=10):
    """What `eng.stats()` says once all that was imported since `before` was given back: libraries let go of device memory when its
    queue is done with it. Or after so many seconds."""
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
    """Prints what is wrong, of pairs of a sentence and whether it is so; gives the exit status."""
    problems = [text for text, wrong in checks if wrong]
    for problem in problems:
        print("error:", problem, file=sys.stderr)
    return 1 if problems else 0
