"""Tensors between the actors of Ray, without a copy and before they are ready: a tensor transport of Ray Direct Transport.

The process that makes the actors registers it::

    import ray
    import estafette.ray

    estafette.ray.register()  # before the classes of actors

    @ray.remote
    class Decoder:
        def __init__(self):
            self.eng = est.Engine(shared=True)

        @ray.method(tensor_transport="estafette")
        def frame(self, path):
            ...  # returns a tensor, which may be a promise

Ray's interface for transports is alpha. This module is tested with the newest Ray and the one before.
"""

# Ray may be missing where types are checked, and takes shapes and dtypes of two libraries only.
# mypy: disable-error-code="misc"

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, cast

import ray
from ray.experimental import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
    register_tensor_transport,
)
from ray.experimental.rdt.util import get_tensor_transport_manager

from . import default_engine
from ._errors import EstafetteError, NotDefinedError, NotSharedError
from ._estafette import Tensor, Ticket, _from_tickets
from ._processes import ANSWER_MAX, packed, unpacked
from ._ray_nodes import Readers
from ._ray_sources import Exchanges
from ._ray_values import Receiver, Sender, ask

__all__ = ["NAME", "register"]


def __dir__() -> list[str]:
    return list(__all__)


_LOG = logging.getLogger("estafette")

NAME = "ESTAFETTE"
"""The name for ``tensor_transport=``, in either case."""


# A machine that cannot be reached is known to be so after ten seconds.
_NETWORK_ANSWER_MAX = 30.0


@dataclasses.dataclass
class _Metadata(TensorTransportMetadata):
    """Metadata: the bytes of a ticket for each tensor, the machine that they are of, and the actor there, if an actor made them."""

    tickets: Sequence[bytes] = ()
    node: str = ""
    source: Any = None


@dataclasses.dataclass
class _Transfer(CommunicatorMetadata):
    """One way of an object to an actor: Ray hands it to the receive there, and to the abort of that receive."""

    number: str = ""


def _node() -> str:
    node: str = ray.get_runtime_context().get_node_id()
    return node


def _source() -> Any:
    try:
        return ray.get_runtime_context().current_actor
    except RuntimeError:
        return None


def _transport() -> _Transport:
    return cast(_Transport, get_tensor_transport_manager(NAME))


@dataclasses.dataclass
class _Made:
    """An object that this process has made: the tickets of its tensors, what Ray has in their place, and the tensors."""

    tickets: list[Ticket]
    versions: list[Tensor]
    tensors: list[Tensor]


def _reaching(_actor: Any, obj_id: str, node: str, process: int) -> list[bytes] | str:
    """The tickets of an object for a process on another machine, in the actor that made it, or why there are none."""
    return _transport().reaching(obj_id, node, process)


def _values(_actor: Any, obj_id: str) -> list[tuple[dict[str, Any], list[bytes]]] | None:
    """The values of an object, in the actor that made it; None while one of them is pending."""
    return _transport().values(obj_id)


def _promise(_actor: Any, obj_id: str, number: str, receiver: Any) -> bool:
    """Has the values of an object delivered to `receiver`, by the actor that made it. True if one of them has failed."""
    return _transport().promise(obj_id, number, receiver)


def _deliver(_actor: Any, number: str, values: list[tuple[dict[str, Any], list[bytes]]]) -> None:
    _transport().receiver.deliver(number, values)


def _unknown(_actor: Any, numbers: list[str]) -> tuple[int, list[str]]:
    """The number of this process, which Ray may have started in place of another one, and the transfers that it does not know."""
    return os.getpid(), _transport().sender.unknown(numbers)


# Ray aborts a receive after a minute. An abort that comes after its receive has ended is kept until so many others have come.
_ABORTED_MAX = 4096

# After this an actor that could not be connected to for NIXL is tried again. A try stands in the way of other objects for seconds, so the
# pause doubles with each one that fails.
_UNREACHABLE_FOR = 60.0
_UNREACHABLE_FOR_MAX = 3600.0


@dataclasses.dataclass
class _Unreachable:
    """An actor that could not be connected to for NIXL: when it is tried again, and the pause before that."""

    until: float
    pause: float


def _from_elsewhere(
    obj_id: str,
    metadata: _Metadata,
    unreachable: dict[str, _Unreachable],
    receiver: Receiver,
    number: str,
    check: Callable[[list[Tensor]], None],
    own_actor: Any,
) -> list[Tensor]:
    """The tensors of an object on another machine: promises, by NIXL, or else by way of Ray's object store. Actors that cannot be connected to
    for NIXL are noted in `unreachable`. `check` raises once Ray has given the object up."""
    asked = ask(metadata.source)
    source, why = str(metadata.source), ""
    known = unreachable.get(source)
    if known is None or time.monotonic() >= known.until:
        tickets = ray.get(asked.remote(_reaching, obj_id, _node(), os.getpid()))
        if isinstance(tickets, str):
            why = tickets
        else:
            tensors = _from_tickets(default_engine(), tickets, _NETWORK_ANSWER_MAX)
            # If that actor has not been reached, all of them have failed by now. Or the versions have.
            if not all(tensor.done() and tensor.exception() for tensor in tensors):
                unreachable.pop(source, None)
                return tensors
            why = "".join(str(tensor.exception()) for tensor in tensors[:1])
    if own_actor is None:
        tensors, has_failed = _awaited(obj_id, asked, check)
    else:
        tensors, has_failed = _promised(obj_id, metadata, receiver, number, own_actor)
    # A version that has failed says nothing about the way here.
    if why and not has_failed:
        known_for = _UNREACHABLE_FOR if known is None else min(2 * known.pause, _UNREACHABLE_FOR_MAX)
        unreachable[source] = _Unreachable(time.monotonic() + known_for, known_for)
        _LOG.warning("tensors of %s come by way of Ray's object store, once they are ready: %s", source, why)
    return tensors


def _promised(obj_id: str, metadata: _Metadata, receiver: Receiver, number: str, own_actor: Any) -> tuple[list[Tensor], bool]:
    """Promises of what the actor that made an object delivers to this one, and whether one of them has failed."""
    futures = receiver.expect(number, len(metadata.tickets))
    try:
        # Once this call returns Ray may count the last reference down. So the other actor must hold the versions for this one.
        has_failed = ray.get(ask(metadata.source).remote(_promise, obj_id, number, own_actor))
    except BaseException:
        receiver.give_up(number)
        raise
    receiver.watch(number, metadata.source, Ticket(metadata.tickets[0]).process if metadata.tickets else 0)
    return [default_engine().from_future(future, name="tensor of another actor") for future in futures], has_failed


def _awaited(obj_id: str, asked: Any, check: Callable[[list[Tensor]], None]) -> tuple[list[Tensor], bool]:
    """The values of an object, for a program that waits in `ray.get` and is no actor: nothing can be delivered to it."""
    pause = 0.001
    while (values := ray.get(asked.remote(_values, obj_id))) is None:
        check([])
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    return [unpacked(*value) for value in values], any("failure" in header for header, _frames in values)


def _meta(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    """Shape and type, which nothing here reads; a tensor that comes later has none."""
    try:
        return tensor.shape, str(tensor.dtype)
    except NotDefinedError:
        return (), ""


class _Transport(TensorTransportManager):
    """Ray calls it on threads of its own, which wait for answers of other processes and for no value. A program that is no actor waits for
    the values of machines that NIXL does not reach, in `ray.get`."""

    def __init__(self) -> None:
        # Ray frees each object at most once, on another thread than the one that made it.
        self._lock = threading.Lock()
        self._made: dict[str, _Made] = {}
        # Numbers of transfers that Ray has given up. Their receives may not have begun, as others are before them, or have ended.
        self._aborted: collections.deque[str] = collections.deque(maxlen=_ABORTED_MAX)
        # For each actor used by one thread at a time: that of its exchanges, or that which calls `ray.get`.
        self._unreachable: dict[str, _Unreachable] = {}
        self._readers = Readers()
        self._exchanges = Exchanges()
        self.sender = Sender()
        self.receiver = Receiver(_unknown)

    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        # Otherwise Ray kills both actors after an error.
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Tensor]) -> _Metadata:
        with self._lock:
            made = self._made.get(obj_id)
        # A task that Ray runs again has an object already, whose tensors are versions.
        if made is None:
            tickets = [tensor.ticket() for tensor in rdt_object]
            versions = _from_tickets(default_engine(), list(tickets), 0.0)
            made = _Made(tickets, versions, list(rdt_object))
            with self._lock:
                self._made[obj_id] = made
            # This process takes its own objects out of this list of Ray's. The tensor itself may have another version by then.
            rdt_object[:] = versions
        return _Metadata(
            tensor_meta=[_meta(tensor) for tensor in made.tensors],
            tensor_device="cpu",
            tickets=[bytes(ticket) for ticket in made.tickets],
            node=_node(),
            source=_source(),
        )

    def _object(self, obj_id: str) -> _Made:
        with self._lock:
            made = self._made.get(obj_id)
        if made is None:
            raise NotSharedError(f"object {obj_id} is not here any more: Ray counts no reference to it, or has started this actor again")
        return made

    def reaching(self, obj_id: str, node: str, process: int) -> list[bytes] | str:
        made = self._object(obj_id)
        try:
            tickets = [bytes(ticket._reaching(ray.util.get_node_ip_address())) for ticket in made.tickets]
        except EstafetteError as error:
            return str(error)
        self._readers.add(node, process)
        return tickets

    def values(self, obj_id: str) -> list[tuple[dict[str, Any], list[bytes]]] | None:
        versions = self._object(obj_id).versions
        if not all(version.done() for version in versions):
            return None
        return [packed(version) for version in versions]

    def promise(self, obj_id: str, number: str, receiver: Any) -> bool:
        versions = self._object(obj_id).versions
        self.sender.promise(number, versions, receiver, _deliver)
        return any(version.done() and version.exception() for version in versions)

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> CommunicatorMetadata:
        return _Transfer(number=uuid.uuid4().hex)

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Tensor]:
        if target_buffers:
            raise ValueError("the transport of Estafette copies nothing, so it takes no target buffers")
        assert isinstance(tensor_transport_metadata, _Metadata)
        assert isinstance(communicator_metadata, _Transfer)
        number = communicator_metadata.number
        check = functools.partial(self._check, obj_id, number)
        try:
            if tensor_transport_metadata.node != _node():
                tensors = self._from_elsewhere(obj_id, tensor_transport_metadata, number, check)
            else:
                tensors = self._from_here(tensor_transport_metadata)
            try:
                check(tensors)
            except EstafetteError:
                self.receiver.give_up(number)
                raise
            return tensors
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._aborted.remove(number)

    def _from_elsewhere(self, obj_id: str, metadata: _Metadata, number: str, check: Callable[[list[Tensor]], None]) -> list[Tensor]:
        if metadata.source is None:
            raise NotSharedError(
                f"object {obj_id} was put by a process that is no actor, on Ray's node {metadata.node}, and this is node {_node()}: Ray has no"
                " way to it from here; put an array without _tensor_transport"
            )
        own_actor = _source()
        exchange = functools.partial(
            _from_elsewhere, obj_id, metadata, self._unreachable, self.receiver, number, check, own_actor
        )
        if own_actor is None:
            return exchange()
        process = Ticket(metadata.tickets[0]).process if metadata.tickets else 0
        return self._exchanges.tensors(str(metadata.source), process, len(metadata.tickets), exchange)

    def _from_here(self, metadata: _Metadata) -> list[Tensor]:
        # Once this returns Ray may count the last reference down, which revokes the tickets. So the other process must have seen them.
        # It answers at once, whether the values are ready or not, unless it is stopped or shows this one all that it can. Other objects
        # do not wait for that.
        return _from_tickets(default_engine(), list(metadata.tickets), ANSWER_MAX)

    def send_multiple_tensors(self, *_arguments: Any, **_keywords: Any) -> None:
        raise NotImplementedError("Ray asks one-sided transports to receive, never to send")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: TensorTransportMetadata, tensors: list[Tensor]) -> None:
        with self._lock:
            made = self._made.pop(obj_id, None)
        if made is not None:
            # Ray forgets the tensors by their identities.
            tensors[:] = made.tensors
            for ticket in made.tickets:
                ticket.revoke()

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Ray keeps what comes later for as long as the actor lives, with its leases: so nothing may."""
        assert isinstance(communicator_metadata, _Transfer)
        with self._lock:
            self._aborted.append(communicator_metadata.number)

    def _check(self, obj_id: str, number: str, tensors: list[Tensor]) -> None:
        """Raises once Ray has given up an object that is on its way here, and empties the list of its tensors."""
        with self._lock:
            if number not in self._aborted:
                return
        # Ray keeps the error, which has the frames of the callers.
        tensors.clear()
        raise EstafetteError(
            f"Ray has given up object {obj_id} on its way here, after RAY_rdt_fetch_fail_timeout_milliseconds. Have values that come by way of"
            " Ray's object store ready by then, or take fewer objects at once"
        )


def register() -> None:
    """Registers the tensor transport ``"estafette"`` with Ray, for `estafette.Tensor`. Call it in the process that makes the actors, before
    their classes: Ray registers the transport in the actors. A further call does nothing.

    An actor gets promises of its `estafette.default_engine()`, at once, even if the value comes later. They are read-only. Later writes in
    the actor that made the tensor wait until they are gone, and Ray counts no reference. A tensor whose memory cannot be shown to other
    processes, see ``shared`` of `Engine`, is copied once it is ready.

    An actor on another machine gets promises too, of copies that NIXL makes, if both have the package ``nixl-cu12`` and one connects to
    the other. Otherwise, as the log says, the copies come by way of Ray's object store. A minute later it tries to connect again, and after
    each try that fails it waits twice as long, up to an hour. A program that is no actor waits for such a copy in ``ray.get``.

    Once Ray says that a machine is dead, the leases of actors there end.

    An actor that gets back what it has made gets the version that it returned, as the others do.
    """
    try:
        register_tensor_transport(NAME, ["cpu"], _Transport, Tensor)
    except ValueError as error:
        # By an earlier call, or by Ray, which has registered it in this actor.
        if "already registered" not in str(error):
            raise
