"""The counters of engines as metrics of OpenTelemetry."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

from ._errors import EstafetteError
from ._fork import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.metrics import CallbackOptions, Meter, Observation

    from ._estafette import Engine
    from ._reports import Stats

_STATES = "running", "ready", "queued", "leased"


class _Counter(NamedTuple):
    """A counter of the process, by the name of its field in `Stats`."""

    field: str
    name: str
    unit: str
    description: str
    falls: bool = False


_OF_PROCESS = (
    _Counter("imported", "estafette.tensors.imported", "{tensor}", "Tensors that came from other libraries"),
    _Counter("exported", "estafette.tensors.exported", "{tensor}", "Tensors that were handed to other libraries"),
    _Counter("deleters", "estafette.tensors.returned", "{tensor}", "Tensors that were returned to their libraries"),
    _Counter("released", "estafette.tensors.released", "{tensor}", "Tensors whose memory was released"),
    _Counter("leaked", "estafette.tensors.leaked", "{tensor}", "Tensors whose memory is kept for ever"),
    _Counter("unordered", "estafette.exchanges.unordered", "{exchange}", "Exchanges that could not be ordered"),
    _Counter("releasing", "estafette.tensors.releasing", "{tensor}", "Tensors on their way back", falls=True),
    _Counter("staging_bytes", "estafette.staging", "By", "Pinned memory for copies from and to devices", falls=True),
    _Counter("copied_for_processes", "estafette.copied_for_processes", "By", "Bytes copied into shared memory for other processes"),
)


class _Exporter:
    """The instruments of one meter, and the engines that they look at."""

    def __init__(self, meter: Meter) -> None:
        self.engines: weakref.WeakValueDictionary[str, Engine] = weakref.WeakValueDictionary()
        meter.create_observable_up_down_counter(
            "estafette.operations", [self._operations], "{operation}", "Operations in flight, by state"
        )
        meter.create_observable_gauge(
            "estafette.operations.limit", [self._limits], "{operation}", "Operations that may be in flight"
        )
        for counter in _OF_PROCESS:
            create = meter.create_observable_up_down_counter if counter.falls else meter.create_observable_counter
            create(counter.name, [self._of_process(counter.field)], counter.unit, counter.description)

    def _stats(self) -> Iterator[tuple[str, Stats]]:
        for name, engine in list(self.engines.items()):
            try:
                yield name, engine.stats()
            except EstafetteError:
                # In a forked child it may be the parent's, and metrics must not fail a program.
                continue

    def _operations(self, _options: CallbackOptions) -> Iterator[Observation]:
        from opentelemetry.metrics import Observation

        for name, stats in self._stats():
            for state in _STATES:
                yield Observation(getattr(stats, state), {"estafette.engine": name, "estafette.state": state})

    def _limits(self, _options: CallbackOptions) -> Iterator[Observation]:
        from opentelemetry.metrics import Observation

        for name, stats in self._stats():
            yield Observation(stats.in_flight_limit, {"estafette.engine": name})

    def _of_process(self, field: str) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_options: CallbackOptions) -> Iterator[Observation]:
            from opentelemetry.metrics import Observation

            # Each engine has the same.
            for _name, stats in self._stats():
                yield Observation(getattr(stats, field))
                return

        return observe


_lock = ForkLock()

_exporters: weakref.WeakKeyDictionary[Meter, _Exporter] = weakref.WeakKeyDictionary()


def export_metrics(engine: Engine, name: str = "default", *, meter: Meter | None = None) -> None:
    """Makes the counters of an engine metrics of OpenTelemetry, for as long as the engine lives.

    The meter's readers ask for them: ``estafette.operations`` by state (running, ready, queued, leased) and its limit, with the
    attribute ``estafette.engine``, and what `Stats` counts for the process: tensors imported, exported, returned, released, leaked
    and on their way back, exchanges that could not be ordered, staging memory, bytes copied for other processes.

    name: says which engine it is. One that was exported before under this name by this meter is exported no more.
    meter: default ``opentelemetry.metrics.get_meter("estafette")``. The package ``opentelemetry-api`` must be installed.
    """
    if meter is None:
        try:
            from opentelemetry.metrics import get_meter
        except ImportError as error:
            raise ImportError("export_metrics needs OpenTelemetry: `pip install opentelemetry-sdk`") from error
        from . import __version__

        meter = get_meter("estafette", __version__)
    with _lock.now:
        exporter = _exporters.get(meter)
        if exporter is None:
            exporter = _exporters[meter] = _Exporter(meter)
        exporter.engines[name] = engine
