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
# mypy: disable-error-code="import-not-found,import-untyped,misc"

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import ray
from ray.experimental import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
    register_tensor_transport,
)

from . import default_engine
from ._errors import NotDefinedError, NotSharedError
from ._estafette import Tensor, Ticket, _from_tickets

__all__ = ["NAME", "register"]

NAME = "ESTAFETTE"
"""What ``tensor_transport=`` takes, in either case."""


@dataclasses.dataclass
class _Metadata(TensorTransportMetadata):
    """What crosses: the bytes of a ticket for each tensor, and the machine that they are of."""

    tickets: Sequence[bytes] = ()
    node: str = ""


def _node() -> str:
    node: str = ray.get_runtime_context().get_node_id()
    return node


def _meta(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    """Shape and type, which nothing here reads; a tensor that comes later has none."""
    try:
        return tensor.shape, str(tensor.dtype)
    except NotDefinedError:
        return (), ""


class _Transport(TensorTransportManager):
    """Ray calls it on threads of its own. Nothing here waits for a value."""

    def __init__(self) -> None:
        # Ray frees each object at most once, on another thread than the one that made it.
        self._lock = threading.Lock()
        self._tickets: dict[str, list[Ticket]] = {}

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
        tickets = [tensor.ticket() for tensor in rdt_object]
        with self._lock:
            self._tickets[obj_id] = tickets
        return _Metadata(
            tensor_meta=[_meta(tensor) for tensor in rdt_object],
            tensor_device="cpu",
            tickets=[bytes(ticket) for ticket in tickets],
            node=_node(),
        )

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> CommunicatorMetadata:
        return CommunicatorMetadata()

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
        if tensor_transport_metadata.node != _node():
            raise NotSharedError(
                f"object {obj_id} is in memory of Ray's node {tensor_transport_metadata.node}, and this actor is on node"
                f" {_node()}: tensors cross between processes of one machine only; return an array without tensor_transport"
            )
        # Once this returns Ray may count the last reference down, which revokes the tickets. So the other process must have seen them.
        # It answers at once, whether the values are ready or not.
        return _from_tickets(default_engine(), list(tensor_transport_metadata.tickets))

    def send_multiple_tensors(self, *_arguments: Any, **_keywords: Any) -> None:
        raise NotImplementedError("Ray asks one-sided transports to receive, never to send")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: TensorTransportMetadata, tensors: list[Tensor]) -> None:
        with self._lock:
            tickets = self._tickets.pop(obj_id, [])
        for ticket in tickets:
            ticket.revoke()

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """What came is dropped by Ray, and with it the leases."""


_registered = False


def register() -> None:
    """Registers the tensor transport ``"estafette"`` with Ray, for `estafette.Tensor`. Call it in the process that makes the actors, before
    their classes: Ray registers the transport in the actors. A further call does nothing.

    An actor gets promises of its `estafette.default_engine()`, at once, even if the value comes later. They are read-only. Later writes in
    the actor that made the tensor wait until they are gone, and Ray counts no reference. A tensor whose memory cannot be shown to other
    processes, see ``shared`` of `Engine`, is copied once it is ready.
    """
    global _registered
    if not _registered:
        register_tensor_transport(NAME, ["cpu"], _Transport, Tensor)
        _registered = True
