"""Exchanges with actors on other machines: one that stands still holds up the objects of no other one."""

# Ray may be missing where types are checked.
# mypy: disable-error-code="misc"

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import ray

from . import default_engine
from ._errors import PeerDiedError
from ._estafette import Tensor
from ._processes import ANSWER_MAX


class Exchanges:
    """Has a thread for each actor that owes an answer. Exchanges with one actor follow each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By the name of an actor, for each that has a thread: the exchanges that have not begun.
        self._waiting: dict[str, collections.deque[tuple[Future[list[Tensor]], Callable[[], list[Tensor]]]]] = {}
        # Actors that have not answered in time. Their next objects are not waited for.
        self._late: set[str] = set()

    def tensors(self, source: str, process: int, count: int, exchange: Callable[[], list[Tensor]]) -> list[Tensor]:
        """What `exchange` returns or raises. If the actor `source` does not answer in time: `count` promises of that.

        `process` is the number of the actor's process.
        """
        future = self._begin(source, exchange)
        try:
            return future.result(0.0 if source in self._late else ANSWER_MAX)
        except TimeoutError:
            if future.done():
                return future.result()
        self._late.add(source)
        future.add_done_callback(lambda _: self._late.discard(source))
        promises: list[Future[Tensor]] = [Future() for _ in range(count)]
        tensors = [default_engine().from_future(promise, name="tensor of another actor") for promise in promises]
        future.add_done_callback(functools.partial(_settle, promises, process))
        return tensors

    def _begin(self, source: str, exchange: Callable[[], list[Tensor]]) -> Future[list[Tensor]]:
        future: Future[list[Tensor]] = Future()
        with self._lock:
            waiting = self._waiting.get(source)
            if waiting is None:
                thread = threading.Thread(target=self._run, args=(source,), name="estafette-ray-source", daemon=True)
                thread.start()
                waiting = self._waiting[source] = collections.deque()
            waiting.append((future, exchange))
        return future

    def _run(self, source: str) -> None:
        while True:
            with self._lock:
                if not self._waiting[source]:
                    del self._waiting[source]
                    return
                future, exchange = self._waiting[source].popleft()
            try:
                future.set_result(exchange())
            except BaseException as error:
                future.set_exception(error)
            # This thread may wait for the next exchange, and the tensors have their leases.
            del future, exchange


def _settle(promises: Sequence[Future[Tensor]], process: int, exchange: Future[list[Tensor]]) -> None:
    error = exchange.exception()
    if isinstance(error, ray.exceptions.RayActorError) and not isinstance(error, ray.exceptions.ActorUnavailableError):
        error = PeerDiedError(f"process {process} died or ended before it had answered: {error}", process)
    for place, promise in enumerate(promises):
        if error is None:
            promise.set_result(exchange.result()[place])
        else:
            promise.set_exception(error)
