"""Plain data that an engine tells about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ._estafette import _device_text


class Device(NamedTuple):
    """The place of memory, in DLPack's numbers. Equal to a plain ``(type, id)`` tuple."""

    type: int
    """DLPack's device type: 1 is the CPU."""
    id: int
    """Its number among those of that type."""

    def __str__(self) -> str:
        return _device_text(self.type, self.id)


class DeviceInfo(NamedTuple):
    """A row of the device table, or the host."""

    device: tuple[int, int]
    """DLPack's numbers for it."""
    name: str
    """A name for people."""
    host_access: bool
    """True if the host may use memory that is allocated there."""
    context: int
    """The address of the native context that the number stands for; 0 for the host."""
    registrations: int
    """The number of times that the context is registered; 0 for what is there without."""


@dataclass(frozen=True)
class Lease:
    """A tensor that was taken out of the engine's hands: by whom, and since when."""

    access: str
    """``"read"`` or ``"write"``."""
    owner: str
    """Its holder, in words: a function and its line, or an operation whose function has kept a view."""
    age: float
    """Seconds since it was asked for."""
    held: bool
    """True if only its holder keeps others waiting. Before that it waits itself."""
    library: str | None = None
    """The library that asked for it, where that could be seen."""
    object: str | None = None
    """Type of the object that it is for, where that is known and `record_call_sites` is on."""
    file: str | None = None
    """Path of the source file that took it, when `record_call_sites` is on."""
    line: int | None = None
    """Line in that file, from 1."""
    function: str | None = None
    """Function around that line."""
    text: str = field(default="", repr=False)
    """All of this in words."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Blocker:
    """One reason to wait."""

    id: int
    """The operation or lease in the way."""
    name: str
    """Its name, or who took the lease."""
    variable: int
    """The variable that both use."""
    hazard: str
    """``"read after write"``, ``"write after read"`` or ``"write after write"``."""
    lease: Lease | None
    """If a lease is in the way, whose."""


@dataclass(frozen=True)
class OpStatus:
    """One operation in flight."""

    id: int
    """Identity, as in errors."""
    name: str
    """Name given at submission."""
    status: str
    """``"waiting"``, ``"granted"``, ``"fenced"`` (it waits for device work or a promise), ``"running"``,
    ``"cancelled"`` or ``"held"`` (a lease)."""
    age: float
    """Seconds since submission, a few milliseconds coarse."""
    blocked_by: tuple[Blocker, ...]
    """The operations that it waits for directly."""
    lease: Lease | None
    """For a lease, held or still waiting, who takes it; None for everything else."""
    text: str
    """All of this in words."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Release:
    """Memory that has been on its way back to its owner for long."""

    id: int
    """Identity among all releases of this process."""
    what: str
    """The memory in words: the variable of the tensor, its element type, shape, device and address."""
    status: str
    """``"deleting"`` (its deleter has not returned), ``"queued"`` (it waits for another deleter) or ``"fenced"`` (device work that
    uses it has not ended)."""
    age: float
    """Seconds since the deleter was called, for ``"deleting"``; for the others, seconds since the memory was given up."""
    text: str = field(repr=False)
    """All of this in words."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Diagnosis:
    """The operations in flight, and those that each waits for. As a string, one line per operation and release."""

    operations: tuple[OpStatus, ...]
    """Operations in flight, in submission order; leases and waiting futures included."""
    releases: tuple[Release, ...]
    """Memory of this process, of whatever engine, that has been on its way back for long: each deleter that has run for more than
    a quarter of a second, and the oldest memory that waits for such a deleter, or for device work for more than ten seconds."""
    unlisted: int
    """Operations in flight that use no tensor or variable, and permits that no operation has used yet."""
    text: str = field(repr=False)
    """All of this in words."""

    @property
    def is_idle(self) -> bool:
        """True if nothing is in flight, and no memory has been on its way back for long."""
        return not self.operations and not self.unlisted and not self.releases

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<estafette.Diagnosis of {len(self.operations):,} operations and {len(self.releases):,} releases>"

    def _repr_html_(self) -> str:
        from . import _html

        return _html.diagnosis(self)


@dataclass(frozen=True)
class Stats:
    """Counters of an engine and of the process."""

    in_flight: int
    """Operations in flight in this engine."""
    in_flight_limit: int
    """Its limit."""
    imported: int
    """Tensors that came from outside into this process's engines, results of ``call`` included."""
    exported: int
    """Tensors that were handed to other libraries."""
    deleters: int
    """Tensors from outside that were returned to their libraries: the number of deleters that have been called."""
    released: int
    """Tensors of this process, from outside or not, whose memory was released."""
    leaked: int
    """Tensors whose memory is kept for ever, since its last use can never be known to be over."""
    releasing: int
    """Tensors that are on their way back."""
    unordered: int
    """Exchanges of this process that could not be ordered; ``unordered_exchanges`` tells of the last ones."""
    handed_back: int
    """Tensors from outside that were returned while a device was still to use them, behind a wait of the stream that they are
    freed on (``from_dlpack(freed_on=)``)."""
    staging_bytes: int
    """Bytes of host memory that this process keeps pinned for copies from and to devices to go through."""
    copied_for_processes: int
    """Bytes that this process has copied into shared memory for other processes to read, see ``copy`` of `Link.send`."""
    running: int
    """Operations of this engine whose function runs, or whose work has not reported back."""
    ready: int
    """Those that may run, and no worker has taken."""
    queued: int
    """Those stalled behind other operations, or by devices that are not done with their inputs; exports and waits of the program included."""
    leased: int
    """Those stalled by leases alone."""
    oldest_lease: Lease | None
    """The lease of this engine's tensors that has been held longest."""

    def __repr__(self) -> str:
        states = f"{self.running:,} running, {self.ready:,} ready, {self.queued:,} queued, {self.leased:,} leased"
        return f"<estafette.Stats {self.in_flight:,} of {self.in_flight_limit:,} in flight: {states}>"

    def _repr_html_(self) -> str:
        from . import _html

        return _html.stats(self)


@dataclass(frozen=True)
class UnorderedExchange:
    """An exchange that could not be ordered, since neither side could be asked to wait."""

    direction: str
    """``"import"`` or ``"export"``."""
    reason: str
    """``"unknown device"``, ``"raw capsule of device memory"``, ``"device memory read by the host"``,
    ``"no synchronization asked for"``, ``"no stream named; ordered before the default stream only"``,
    ``"producer ignores streams; ordered after its default stream only"``,
    ``"array interface, whose consumer does not report the end of its use"`` or ``"read lease in a struct without flags"``."""
    what: str
    """The library or the device."""
    place: str
    """The function and line that asked for it."""


@dataclass(frozen=True)
class Peer:
    """A library as it is known: a row of the policy table."""

    name: str
    """First part of its modules' names."""
    legacy_writable: bool
    """True if what it hands out in a struct without flags may be written."""
    immutable: bool
    """True if its arrays never change, so that it may be given read-only memory in a struct that cannot say so."""
    honours_read_only: bool
    """True if what it imports under the read-only flag cannot be written through it."""
    stream: str
    """Its use of a consumer's stream: ``"honoured"``, ``"ignored"`` or ``"host only"`` (it has none)."""
    omitted_stream: str
    """Its reading of an omitted stream: ``"default stream"``, ``"host wait"`` or ``"no synchronization"``."""
    null_stream: str
    """The meaning of NULL in its C exchange table on a device: ``"default stream"`` or ``"unknown"``."""
    source: str
    """The source of this."""


@dataclass(frozen=True)
class ShutdownReport:
    """The outcome of a shutdown."""

    drained: bool
    """True if everything that was in flight has ended."""
    cancelled: tuple[str, ...]
    """Operations that were cancelled because only leases held them up."""
    leases: tuple[str, ...]
    """The leases that held them up: those that differ in age alone once, with their number, and ten kinds at most."""
    running: tuple[str, ...]
    """Operations that were still running."""
    unlisted: int
    """Operations without tensors or variables that were still running, and permits that no operation had used yet."""


for _report in (Device, Lease, Blocker, OpStatus, Diagnosis, Stats, UnorderedExchange, Peer, ShutdownReport):
    _report.__module__ = "estafette"
del _report
