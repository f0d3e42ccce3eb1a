"""Values of tensors that go to other actors of Ray by way of its object store, once they are ready: where NIXL reaches no memory."""

# Ray may be missing where types are checked.
# mypy: disable-error-code="misc"

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ray

from ._errors import EstafetteError, PeerDiedError
from ._estafette import Tensor
from ._processes import failure_of, packed, unpacked

_LOG = logging.getLogger("estafette")

_LOOK_S = 1.0
"""The time after which an actor that values are expected of is asked again, as Ray says nothing of its death."""


def ask(actor: Any) -> Any:
    """Calls a function in an actor, with the actor as its first argument: ``ask(actor).remote(function, ...)``.

    Ray has two threads for such calls in each actor. The first one takes objects, so two actors that wait there for each other would
    wait for ever. Nothing waits on the second one.
    """
    return actor.__ray_call__.options(concurrency_group="_ray_system_error")


class Sender:
    """Versions that this actor has promised to others, by the number of their transfer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: set[str] = set()
        # To pack copies, and Ray may wait for room in its store. The values go one after the other.
        self._packing = ThreadPoolExecutor(1, "estafette-ray-values")

    def promise(self, number: str, versions: Sequence[Tensor], receiver: Any, deliver: Callable[..., None]) -> None:
        """Calls ``deliver(_, number, values)`` in the actor `receiver`, once all of the versions are ready or have failed. Holds them until then."""
        with self._lock:
            self._numbers.add(number)
        self._when_ready(number, versions, receiver, deliver)

    def unknown(self, numbers: Sequence[str]) -> list[str]:
        """Those of the transfers that this actor has not promised, or has delivered."""
        with self._lock:
            return [number for number in numbers if number not in self._numbers]

    def _when_ready(self, number: str, versions: Sequence[Tensor], receiver: Any, deliver: Callable[..., None], *_end: Any) -> None:
        for version in versions:
            if not version.done():
                # The thread of `add_done_callback` calls one after the other, and one of the program may wait.
                version._on_end(functools.partial(self._when_ready, number, versions, receiver, deliver))
                return
        self._packing.submit(self._deliver, number, versions, receiver, deliver)

    def _deliver(self, number: str, versions: Sequence[Tensor], receiver: Any, deliver: Callable[..., None]) -> None:
        try:
            values = [packed(version) for version in versions]
            delivered = ask(receiver).remote(deliver, number, values)
            # Nothing is held for a receiver that has died.
            delivered.future().add_done_callback(functools.partial(self._is_delivered, number, receiver))
        except Exception:
            # The receiver finds that its transfer is unknown.
            _LOG.exception("a value could not be passed on to %s", receiver)
            self._forget(number)

    def _is_delivered(self, number: str, receiver: Any, delivered: Future[None]) -> None:
        error = delivered.exception()
        if error is not None:
            _LOG.warning("a value could not be passed on to %s: %s", receiver, error)
        self._forget(number)

    def _forget(self, number: str) -> None:
        with self._lock:
            self._numbers.discard(number)


class Receiver:
    """Versions that other actors have promised to this one."""

    def __init__(self, look: Callable[..., tuple[int, list[str]]]) -> None:
        self._lock = threading.Lock()
        # By the number of a transfer.
        self._expected: dict[str, list[Future[Tensor]]] = {}
        # The actor that the values come from, and the number of its process.
        self._sources: dict[str, tuple[Any, int]] = {}
        self._is_watching = False
        # Called in an actor: the number of its process, and the transfers that it does not know.
        self._look = look

    def expect(self, number: str, count: int) -> list[Future[Tensor]]:
        """Futures of the tensors of a transfer."""
        futures: list[Future[Tensor]] = [Future() for _ in range(count)]
        with self._lock:
            self._expected[number] = futures
        return futures

    def watch(self, number: str, source: Any, process: int) -> None:
        """The actor `source` has promised the values. They fail if its process dies."""
        with self._lock:
            # They may have come.
            if number not in self._expected:
                return
            self._sources[number] = source, process
            if not self._is_watching:
                self._is_watching = True
                threading.Thread(target=self._keep_watch, name="estafette-ray-watch", daemon=True).start()

    def deliver(self, number: str, values: Sequence[tuple[dict[str, Any], list[bytes]]]) -> None:
        for future, (header, frames) in zip(self._taken(number), values):
            try:
                error = failure_of(header)
                if error is None:
                    future.set_result(unpacked(header, frames))
                else:
                    future.set_exception(error)
            except Exception as error:
                future.set_exception(error)

    def give_up(self, number: str) -> None:
        for future in self._taken(number):
            future.cancel()

    def _taken(self, number: str) -> list[Future[Tensor]]:
        with self._lock:
            self._sources.pop(number, None)
            return self._expected.pop(number, [])

    def _keep_watch(self) -> None:
        """Fails what comes no more, for as long as something is expected."""
        looks: dict[str, tuple[list[str], int, Any]] = {}
        while True:
            time.sleep(_LOOK_S)
            with self._lock:
                expected = [(number, source, process) for number, (source, process) in self._sources.items()]
                if not expected:
                    self._is_watching = False
                    return
            try:
                self._look_once(looks, expected)
            except Exception as error:
                # Without this thread what comes no more would never fail.
                looks.clear()
                _LOG.warning("actors that owe values could not be asked: %s", error)

    def _look_once(self, looks: dict[str, tuple[list[str], int, Any]], expected: Sequence[tuple[str, Any, int]]) -> None:
        """Asks the actors that are not being asked. `looks`: the questions without an answer."""
        for name in {str(source) for _, source, _ in expected} - set(looks):
            of_it = [it for it in expected if str(it[1]) == name]
            numbers = [number for number, _, _ in of_it]
            looks[name] = numbers, of_it[0][2], ask(of_it[0][1]).remote(self._look, numbers)
        # An actor that stands still answers none.
        ready, _ = ray.wait([answer for _, _, answer in looks.values()], num_returns=len(looks), timeout=_LOOK_S)
        for name, (numbers, process, answer) in list(looks.items()):
            if answer in ready:
                del looks[name]
                self._learn(numbers, process, answer)

    def _learn(self, numbers: Sequence[str], process: int, answer: Any) -> None:
        error: EstafetteError
        try:
            now, lost = ray.get(answer)
            if now == process:
                error = EstafetteError(f"process {process} could not pass a value on: its log says why")
            else:
                error = PeerDiedError(f"process {process} died before it had passed a value on", process)
        except ray.exceptions.ActorUnavailableError:
            # It may live.
            return
        except ray.exceptions.RayError as why:
            lost = numbers
            error = PeerDiedError(f"process {process} died or ended before it had passed a value on: {why}", process)
        for number in lost:
            for future in self._taken(number):
                future.set_exception(error)
