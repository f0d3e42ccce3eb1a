"""State that a forked child needs anew."""

from __future__ import annotations

import os
import threading


class ForkLock:
    """Has a lock, and a new one in a forked child: another thread may have held it during the fork."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.now = threading.Lock()
