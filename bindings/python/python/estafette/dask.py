"""Tensors between the workers of Dask on one machine, without a copy and before they are ready.

A client registers it for its workers::

    import estafette.dask

    client = distributed.Client(...)
    estafette.dask.register(client)

    x = client.submit(decode, path)  # the task returns a tensor, which may be a promise
    y = client.submit(infer, x)      # on another worker: the same memory
"""

# Dask may be missing where types are checked, and has few of its own.
# mypy: disable-error-code="no-untyped-call,untyped-decorator,misc"

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from dask.sizeof import sizeof
from distributed import Client, WorkerPlugin
from distributed.protocol.serialize import check_dask_serializable, dask_deserialize, dask_serialize
from distributed.worker_state_machine import FreeKeysEvent

from . import default_engine
from ._errors import CancelledError, EstafetteError, NotSharedError, OperationError
from ._estafette import Tensor, Ticket, _from_tickets, _stand_for
from ._processes import failed, failed_by_death, machine, packed, unpacked

__all__ = ["register"]


def __dir__() -> list[str]:
    return list(__all__)


_BY_SCHEDULER = (
    "the tensor has come from another machine by way of Dask's scheduler, which passes on what it was sent as for its own machine; "
    "use `scatter` and `gather` with `direct=True`, or `Client(direct_to_workers=True)`"
)

_made: contextvars.ContextVar[list[Ticket] | None] = contextvars.ContextVar("estafette_dask_made", default=None)
"""Tickets in the message that a worker is sending."""

_WEIGHT = 256
"""Bytes. Dask spills what weighs much, and a tensor that others read would stay in memory all the same."""


def register(client: Client) -> Any:
    """Lets tensors cross between the workers of a cluster and this client, those that come later too. A further call does nothing.

    A task gets promises of its worker's `estafette.default_engine()`, at once, even if the value comes later. They are read-only, and
    later writes wait for them. A tensor whose memory cannot be shown to other processes, see ``shared`` of `Engine`, is copied once it is
    ready. What another machine asks a worker for is copied once it is ready, too. What is spilled to the disk, or scattered to another
    machine, is waited for and copied; the event loop of its process stands still meanwhile.

    Returns and fails as `distributed.Client.register_plugin` does: the result is to be awaited where the client is asynchronous.
    """
    return client.register_plugin(_Plugin())


class _Plugin(WorkerPlugin):
    """Brings this module to each worker, awaits what other machines ask it for, revokes what a lost message had in it, and has what a dead
    process has promised computed again."""

    name = "estafette"

    def setup(self, worker: Any) -> None:
        self._worker = worker
        self._get_data = worker.handlers["get_data"]
        worker.handlers["get_data"] = self._get_ready_data

    def teardown(self, worker: Any) -> None:
        # Another plugin may have replaced it.
        if worker.handlers["get_data"] == self._get_ready_data:
            worker.handlers["get_data"] = self._get_data

    async def _get_ready_data(self, comm: Any, keys: Collection[Any], serializers: Any = None, **arguments: Any) -> Any:
        """As Dask's handler, which serializes on the event loop: nothing may be waited for there.

        Dask passes `serializers` by name only if the signature has it.
        """
        if not _is_on_this_machine({"sender": comm.local_info, "recipient": comm.remote_info}):
            for tensor in _tensors([self._in_memory(key) for key in keys]):
                # A failure crosses.
                with contextlib.suppress(EstafetteError):
                    await tensor
        made: list[Ticket] = []
        token = _made.set(made)
        try:
            # The receiver acknowledges what it has.
            return await self._get_data(comm, keys=keys, serializers=serializers, **arguments)
        except BaseException:
            for ticket in made:
                ticket.revoke()
            raise
        finally:
            _made.reset(token)

    def transition(self, key: Any, start: str, finish: str, **_keywords: Any) -> None:
        value = self._in_memory(key) if finish == "memory" else None
        if isinstance(value, Tensor) and self._may_be_better_again(key, start):
            # The thread of `add_done_callback` calls one after the other, and one of the program may wait.
            value._on_end(functools.partial(self._is_done, key))

    def _in_memory(self, key: Any) -> Any:
        """The value of a key, unless it is spilled: this is the event loop, which reads no disk."""
        data = self._worker.data
        return getattr(data, "fast", data).get(key)

    def _may_be_better_again(self, key: Any, start: str) -> bool:
        """True if others have a part in how the value ends. What a task has made by itself from good inputs fails again."""
        if start not in ("executing", "long-running"):
            return True
        dependencies = self._worker.state.tasks[key].dependencies
        inputs = [self._in_memory(task.key) for task in dependencies if task.type is Tensor]
        # An input that has failed may have been spilled or dropped meanwhile.
        return any(tensor is None or not tensor.done() or tensor._failed() for tensor in inputs)

    def _is_done(self, key: Any, tensor: Tensor, _failure: Any) -> None:
        error: BaseException | None = None
        # A later write is not waited for.
        with contextlib.suppress(CancelledError, TimeoutError):
            error = tensor.exception(0)
        if failed_by_death(error):
            self._worker.loop.add_callback(self._drop, key, tensor)

    def _drop(self, key: Any, tensor: Tensor, begun: frozenset[Any] = frozenset()) -> None:
        """Gives the worker's copy up. To Dask it is a value; without a copy anywhere the scheduler has it computed again."""
        # Of what is spilled Dask has the same object for as long as that lives.
        if self._worker.data.get(key) is not tensor:
            return
        # A task that begins takes its inputs in the next turn of the loop; without them it would fail with a `KeyError`.
        now = frozenset(task for task in self._worker.state.tasks[key].dependents if task.state in ("executing", "long-running"))
        if now <= begun:
            self._worker.handle_stimulus(FreeKeysEvent(keys=[key], stimulus_id=f"estafette-peer-died-{time.time()}"))
        else:
            self._worker.loop.add_callback(self._drop, key, tensor, now)


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in a value which Dask serializes as such."""
    if isinstance(value, Tensor):
        return [value]
    # Dask pickles other values as a whole.
    if type(value) not in (list, set, tuple, dict) or not check_dask_serializable(value):
        return []
    return [tensor for part in (value.values() if type(value) is dict else value) for tensor in _tensors(part)]


def _is_on_this_machine(context: Mapping[str, Any] | None) -> bool:
    """True if both ends of a connection have the same network address."""
    if context is None:
        # For the disk.
        return False
    hosts = [urlsplit(context[end].get("address", "")).hostname for end in ("sender", "recipient")]
    return hosts[0] is not None and hosts[0] == hosts[1]


@dask_serialize.register(Tensor)
def _serialize(tensor: Tensor, context: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[Any]]:
    if _is_on_this_machine(context):
        ticket = tensor.ticket(once=True)
        if (made := _made.get()) is not None:
            made.append(ticket)
        return {"ticket": bytes(ticket), "machine": machine()}, []
    # A tensor that cannot be put on the disk now stays in memory, where Dask logs the error.
    crossing = OperationError if context is None else EstafetteError
    if asyncio._get_running_loop() is None:
        return packed(tensor, crossing)
    # Dask needs the bytes at once, on the thread of its event loop, which may not wait.
    with ThreadPoolExecutor(1, "estafette-serialize", _stand_for, (threading.get_ident(),)) as helper:
        return helper.submit(packed, tensor, crossing).result()


@dask_deserialize.register(Tensor)
def _deserialize(header: dict[str, Any], frames: list[Any]) -> Tensor:
    if "ticket" not in header:
        return unpacked(header, frames)
    if header["machine"] != machine():
        return failed(NotSharedError(_BY_SCHEDULER))
    # The ticket is for one use: a refusal at the in-flight limit would lose the tensor. Nothing is waited for.
    [tensor] = _from_tickets(default_engine(), [header["ticket"]], 0.0)
    return tensor


@sizeof.register(Tensor)
def _sizeof(tensor: Tensor) -> int:
    return _WEIGHT
