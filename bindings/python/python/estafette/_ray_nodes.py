"""Processes on other machines that read tensors of this one: once Ray says that their machine is dead, their leases end."""

# Ray may be missing where types are checked.
# mypy: disable-error-code="misc"

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray

from ._estafette import declare_dead

_LOG = logging.getLogger("estafette")

_LOOK_S = 5.0
"""The time after which Ray is asked again, by a process that others read. Ray itself takes some ten seconds to take a machine for dead."""


class Readers:
    """Ray reports no death to who has lent something, so that it is asked.

    It is not asked for actors: the end of a process is known without Ray as long as its machine is there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The identity that Ray has for the machine, and the number of the process.
        self._known: set[tuple[str, int]] = set()
        self._is_watching = False

    def add(self, node: str, process: int) -> None:
        with self._lock:
            self._known.add((node, process))
            if not self._is_watching:
                self._is_watching = True
                threading.Thread(target=self._keep_watch, name="estafette-ray-nodes", daemon=True).start()

    def release_dead(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Takes the processes on dead machines for dead. A machine that Ray starts on again has another identity."""
        dead = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes if not node["Alive"]}
        with self._lock:
            released = [(dead[node], process) for node, process in self._known if node in dead]
            self._known = {(node, process) for node, process in self._known if node not in dead}
        for host, process in released:
            _LOG.warning("process %s on %s is taken for dead, as Ray says that its machine is", process, host)
            declare_dead(host, process)

    def _keep_watch(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            with self._lock:
                if not self._known:
                    self._is_watching = False
                    return
            try:
                nodes = ray.nodes()
            except Exception as error:
                # Ray's own directory cannot be reached, which says nothing about the readers.
                _LOG.debug("Ray does not say which machines are dead: %s", error)
            else:
                self.release_dead(nodes)
