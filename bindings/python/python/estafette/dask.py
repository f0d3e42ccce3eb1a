"""Tensors between the workers of Dask on one machine, without a copy and before they are ready.

A client registers it for its workers::

    import estafette.dask

    client = distributed.Client(...)
    estafette.dask.register(client)

    x = client.submit(decode, path)  # the task returns a tensor, which may be a promise
    y = client.submit(infer, x)      # on another worker: the same memory
"""

# Dask may be missing where types are checked, and has few of its own.
# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-call,untyped-decorator,misc"

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from dask.sizeof import sizeof
from distributed import Client, WorkerPlugin
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from . import default_engine
from ._errors import EstafetteError, OperationError
from ._estafette import Tensor

__all__ = ["register"]

_WEIGHT = 256
"""Bytes. Dask spills what weighs much, and a tensor that others read would stay in memory all the same."""


def register(client: Client) -> None:
    """Lets tensors cross between the workers of a cluster and this client, those that come later too. A further call does nothing.

    A task gets promises of its worker's `estafette.default_engine()`, at once, even if the value comes later. They are read-only, and
    later writes wait for them. A tensor whose memory cannot be shown to other processes, see ``shared`` of `Engine`, is copied once it is
    ready. What crosses to another machine, or to the disk, is waited for and copied.

    Fails as `distributed.Client.register_plugin` does.
    """
    client.register_plugin(_Plugin())


class _Plugin(WorkerPlugin):
    """Brings this module to each worker: what it does is done by importing it."""

    name = "estafette"

    def setup(self, worker: Any) -> None:
        pass


def _is_on_this_machine(context: Mapping[str, Any] | None) -> bool:
    """Whether both ends of a connection have the same network address."""
    if context is None:
        # For the disk.
        return False
    hosts = [urlsplit(context[end].get("address", "")).hostname for end in ("sender", "recipient")]
    return hosts[0] is not None and hosts[0] == hosts[1]


@dask_serialize.register(Tensor)
def _serialize(tensor: Tensor, context: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[Any]]:
    if _is_on_this_machine(context):
        return {"ticket": bytes(tensor.ticket(once=True))}, []
    try:
        with tensor.to_host().read() as view:
            frame = np.asarray(view).tobytes()
    except OperationError as error:
        return {"failure": str(error)}, []
    return {"shape": tensor.shape, "dtype": str(tensor.dtype)}, [frame]


@dask_deserialize.register(Tensor)
def _deserialize(header: dict[str, Any], frames: list[Any]) -> Tensor:
    eng = default_engine()
    if "ticket" in header:
        return eng.from_ticket(header["ticket"])
    if "failure" in header:
        failed: Future[Any] = Future()
        failed.set_exception(EstafetteError(header["failure"]))
        return eng.from_future(failed, name="tensor of another process")
    tensor = eng.empty(header["shape"], header["dtype"])
    with tensor.write() as view:
        np.asarray(view)[...] = np.frombuffer(b"".join(frames), tensor.__numpy_dtype__).reshape(tensor.shape)
    return tensor


@sizeof.register(Tensor)
def _sizeof(tensor: Tensor) -> int:
    return _WEIGHT
