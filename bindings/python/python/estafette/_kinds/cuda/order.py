"""The order of work on the streams of CUDA devices, as far as the observed calls say it.

Every act that orders has a tick. A stream knows up to which tick the work of other streams comes before its own further work. What is
handed over has spans: streams on which it was made, and the ticks between which that was. It is *not ordered* when its consumer's
stream is ordered after nothing that is as late as the beginning of a span; *ordered* when it is ordered after the ends of all of them.
Everything between these is *unknown*, and so is all that the libraries do not tell. An act that cannot be identified orders everything.
"""

from __future__ import annotations

import bisect
import sys
import threading
import weakref
from typing import Any, NamedTuple, TypeAlias

from ..._observe.devices import Act
from ..._observe.notes import Site, Verdict, site
from ..._observe.table import TORCH, TORCH_TAKE, Row, methods, rows

LEGACY = 1
"""The default stream that waits for the others, and they for it."""

EVENTS_MAX = 10_000
"""Events that are remembered. One that is not orders everything."""

STREAMS_MAX = 1_000
"""Streams that are remembered. Those of before are then taken to be ordered."""

FOREIGN_MAX = 10_000
"""Addresses that are remembered not to be of PyTorch's pools."""

WRITES_MAX = 100_000
"""Memory of which the writes are remembered."""

ALL: None = None
"""In the place of a stream: all of them."""

Known: TypeAlias = dict["int | None", int]
"""Up to which tick the work of each stream."""

DEVICES = (2, 13)
"""CUDA's memory, and that which the driver moves, as DLPack numbers them."""

NONE, UNKNOWN = "none", "unknown"
"""The faults that an order may have."""


class Span(NamedTuple):
    """The stream on which memory was written, and the time, in ticks."""

    stream: int
    first: int
    last: int
    place: Site | None


class _Period:
    """The time for which a library had a stream as its current one."""

    def __init__(self, first: int, place: Site | None) -> None:
        self.first, self.place = first, place
        self.last = first
        self.users = 0


def handle_of(stream: Any) -> int:
    """The driver's handle of a library's stream. 0 is the default stream."""
    if stream is None or stream == 0:
        return LEGACY
    if not isinstance(stream, int):
        found = getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
        stream = stream.__cuda_stream__()[1] if found is None else found
    return int(stream) or LEGACY


def event_of(event: Any) -> int:
    """The driver's handle of a library's event."""
    for name in ("cuda_event", "ptr", "handle"):
        found = getattr(event, name, None)
        if found is not None:
            return int(found)
    raise TypeError(f"an event of {type(event).__name__} has no handle")


def _described(stream: Any) -> tuple[int, bool | None]:
    """The handle of a stream, and whether it and the default stream do not wait for each other; `None` where it does not say."""
    handle = handle_of(stream)
    return (handle, None if handle == LEGACY or isinstance(stream, int) else _is_apart(stream))


def _is_apart(stream: Any) -> bool | None:
    if hasattr(stream, "cuda_stream"):
        # Those of PyTorch's pool; others are from anywhere.
        return None if type(stream).__name__ == "ExternalStream" else True
    for name in ("is_non_blocking", "is_nonblocking"):
        if hasattr(stream, name):
            return bool(getattr(stream, name))
    return None


class Order:
    """The order as one observation knows it."""

    def __init__(self) -> None:
        # Taken again by what a collection of garbage calls in between. No library is asked under it.
        self._lock = threading.RLock()
        self._tick = 1
        self._after: dict[int, Known] = {}
        self._host: Known = {}
        self._events: dict[int, Known] = {}
        # Streams that do not wait for the default stream, nor it for them. Of others it is taken that they do.
        self._apart: set[int] = set()
        self._periods: dict[str, dict[int, _Period]] = {}
        self._local = threading.local()
        self._writes: dict[int, tuple[Any, list[Span]]] = {}
        # A library's work before this is not known, nor its waits.
        self._is_cupy_old = "cupy" in sys.modules
        torch = sys.modules.get("torch")
        self._old_blocks: set[int] = set()
        # While another thread imports it, not all of it is there.
        if torch is not None and getattr(getattr(torch, "cuda", None), "is_initialized", bool)():
            self._old_blocks.update(address for segment in _snapshot() for address, _ in _blocks(segment))
        # By address: begin, end, and the stream; `None` where that does not tell who writes.
        self._segments: list[tuple[int, int, int | None]] = []
        self._foreign: set[int] = set()

    # --- What orders ---

    def _seen(self, handle: int, is_apart: bool | None) -> int:
        if is_apart is not None:
            (self._apart.add if is_apart else self._apart.discard)(handle)
        if handle not in self._after:
            if len(self._after) >= STREAMS_MAX:
                self._after.clear()
                self._host[ALL] = self._tick
            self._after[handle] = {}
        return handle

    def _now(self, stream: int) -> Known:
        """The work before an event that is recorded now."""
        self._tick += 1
        known = dict(self._after.get(stream, ()))
        known[stream] = self._tick
        if stream == LEGACY:
            known.update((other, self._tick) for other in self._after if other not in self._apart)
        elif stream not in self._apart:
            known[LEGACY] = self._tick
        return known

    def record(self, event: Any, stream: Any) -> None:
        """An event is recorded on a stream."""
        at, event = _described(stream), event_of(event)
        with self._lock:
            if len(self._events) >= EVENTS_MAX:
                self._events.clear()
            self._events[event] = self._now(self._seen(*at))

    def wait(self, stream: Any, event: Any) -> None:
        """A stream waits for an event."""
        at, event = _described(stream), event_of(event)
        with self._lock:
            _merge(self._after[self._seen(*at)], self._recorded(event))

    def _recorded(self, event: int) -> Known:
        known = self._events.get(event)
        if known is None:
            self._tick += 1
            return {ALL: self._tick}
        return known

    def follow(self, stream: Any, earlier: Any) -> None:
        """A stream waits for all that is on an earlier one."""
        at, before = _described(stream), _described(earlier)
        with self._lock:
            known = self._now(self._seen(*before))
            _merge(self._after[self._seen(*at)], known)

    def host_waits(self, stream: Any) -> None:
        """The host waits for all that is on a stream."""
        at = _described(stream)
        with self._lock:
            _merge(self._host, self._now(self._seen(*at)))

    def host_waits_for_event(self, event: Any) -> None:
        """The host waits for an event."""
        event = event_of(event)
        with self._lock:
            _merge(self._host, self._recorded(event))

    def everything(self) -> None:
        """The host waits for everything; or what is done is not known, and might be that."""
        with self._lock:
            self._tick += 1
            self._host[ALL] = self._tick

    # --- What is made where ---

    def use(self, library: str, stream: Any, place: Site | None) -> None:
        """A library's current stream on this thread is another one."""
        at = _described(stream)
        with self._lock:
            handle = self._seen(*at)
            self._tick += 1
            periods = self._of(library)
            before = self._local.__dict__.get(library, LEGACY)
            if before in periods:
                left = periods[before]
                left.users -= 1
                left.last = self._tick
            period = periods.get(handle)
            if period is None:
                period = periods[handle] = _Period(self._tick, place)
            period.users += 1
            self._local.__dict__[library] = handle

    def _of(self, library: str) -> dict[int, _Period]:
        periods = self._periods.get(library)
        if periods is None:
            # Any thread may be at work on the default stream at any time.
            default = _Period(1, None)
            default.users = 1 << 30
            periods = self._periods[library] = {LEGACY: default}
        return periods

    def begin(self) -> int:
        """The tick of a hand-over: what it orders itself is later, and what was ordered before may have been before the work."""
        with self._lock:
            self._tick += 1
            return self._tick

    def _span(self, stream: int, period: _Period, begun: int) -> Span:
        return Span(stream, period.first, begun if period.users > 0 else period.last, period.place)

    def write(self, owner: Any, pointer: int, stream: Any, place: Site | None, *, sure: bool) -> None:
        """Work that writes to memory is enqueued; unless `sure` it may only read what was written before."""
        at, reference = _described(stream), weakref.ref(owner)
        with self._lock:
            handle = self._seen(*at)
            self._tick += 1
            spans = [Span(handle, self._tick, self._tick, place)]
            entry = self._writes.get(pointer)
            if not sure and entry is not None and entry[0]() is not None:
                # The first use has written, as there was nothing to read. Of the later ones each may have.
                before = next((span for span in entry[1] if span.stream == handle), None)
                spans = [span for span in entry[1] if span is not before]
                spans.append(Span(handle, 0 if before is None else before.first, self._tick, place))
            if len(self._writes) >= WRITES_MAX:
                self._writes.clear()
            self._writes[pointer] = (reference, spans)

    def written(self, pointer: int) -> list[Span] | None:
        """The last writes to memory that lives."""
        entry = self._writes.get(pointer)
        return None if entry is None or entry[0]() is None else entry[1]

    def spans_of_cupy(self, begun: int) -> list[Span]:
        """The streams on which an array of CuPy's may have been made."""
        with self._lock:
            spans = [self._span(*item, begun) for item in self._of("cupy").items()]
        return [span._replace(first=0) for span in spans] if self._is_cupy_old else spans

    def spans_of_torch(self, pointer: int, begun: int, fresh: bool) -> list[Span] | None:
        """The streams on which a tensor of PyTorch's was made, by the stream that its memory belongs to."""
        with self._lock:
            periods = dict(self._of("torch"))
        if len(periods) == 1 and not fresh:
            stream: int | None = LEGACY
        else:
            stream = self._stream_of_block(pointer, fresh)
        period = None if stream is None else periods.get(stream)
        if stream is None or period is None:
            return None
        return [self._span(stream, period, begun)]

    def _stream_of_block(self, pointer: int, fresh: bool) -> int | None:
        if not fresh:
            at = bisect.bisect_right(self._segments, pointer, key=lambda segment: segment[0]) - 1
            if at >= 0 and pointer < self._segments[at][1]:
                return self._segments[at][2]
            if pointer in self._foreign:
                return None
        segments: list[tuple[int, int, int | None]] = []
        found: int | None = None
        for segment in _snapshot():
            begin, end = segment["address"], segment["address"] + segment["total_size"]
            # Memory of graphs and of the program's own pools is written in ways that its stream does not tell.
            is_private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
            stream = None if is_private else int(segment["stream"]) or LEGACY
            segments.append((begin, end, stream))
            if begin <= pointer < end:
                blocks = _blocks(segment)
                block = next((address for address, size in blocks if address <= pointer < address + size), None)
                if block is not None and block not in self._old_blocks:
                    found = stream
        segments.sort(key=lambda segment: segment[0])
        self._segments = segments
        if found is None:
            if len(self._foreign) >= FOREIGN_MAX:
                self._foreign.clear()
            self._foreign.add(pointer)
        return found

    # --- What comes out ---

    def verdict(self, spans: list[Span] | None, consumer: Any) -> Verdict | None:
        """Says if work on a stream, or on one that is not known (`None`), comes after what was handed over."""
        if spans is None:
            return (UNKNOWN, None, "the producer does not say on which stream it was made")
        at = None if consumer is None else _described(consumer)
        with self._lock:
            goal = None if at is None else self._seen(*at)
            states = [self._state(span, goal) for span in spans]
        if all(state is None for state in states):
            return None
        place = next((span.place for span in reversed(spans) if span.place is not None), None)
        if goal is None:
            return (UNKNOWN, place, "the consumer does not say on which stream it works")
        if all(state == NONE for state in states):
            return (NONE, place, "no event, no synchronize and no stream argument is between the streams")
        return (UNKNOWN, place, "it may have been made on several streams, or before or after what was waited for")

    def _state(self, span: Span, goal: int | None) -> str | None:
        known = dict(self._host)
        if goal is not None:
            _merge(known, self._after.get(goal, {}))
            blocking = {span.stream, goal} - {LEGACY} - self._apart
            if span.stream == goal or (LEGACY in (span.stream, goal) and blocking):
                return None
        reached = max(known.get(span.stream, 0), known.get(ALL, 0))
        if reached >= span.last:
            return None
        return NONE if reached < span.first else UNKNOWN


def _merge(known: Known, other: Known) -> None:
    for stream, tick in other.items():
        if tick > known.get(stream, 0):
            known[stream] = tick


def _snapshot() -> list[Any]:
    """The segments of PyTorch's caching allocator; none if another allocator takes its place, which knows of none."""
    torch: Any = sys.modules["torch"]
    try:
        return list(torch.cuda.memory_snapshot())
    except Exception:
        return []


def _blocks(segment: Any) -> list[tuple[int, int]]:
    """Address and size of the blocks of a segment of PyTorch's that are in use."""
    found, address = [], segment["address"]
    for block in segment["blocks"]:
        if block["state"].startswith("active"):
            found.append((block.get("address", address), block["size"]))
        address += block["size"]
    return found


# --- What each function does -------------------------------------------------------------------------------------------


def _torch_stream(device: Any = None) -> int:
    """The current stream of PyTorch."""
    torch: Any = sys.modules["torch"]
    index = getattr(device, "index", device)
    raw = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device() if index is None else index)
    return int(raw) or LEGACY


def _cupy_stream() -> Any:
    return sys.modules["cupy"].cuda.get_current_stream()


def current(library: str, device: Any = None) -> Any:
    """The current stream of a library, if it has one."""
    match library:
        case "torch":
            return _torch_stream(device)
        case "cupy":
            return _cupy_stream()
    return None


def _torch_use(act: Act) -> None:
    stream = act.argument(0, "stream")
    if stream is not None:
        act.order.use("torch", stream, site())


def _torch_use_current(act: Act) -> None:
    """The current stream was changed by a stream of any device."""
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized():
        act.order.use("torch", torch.cuda.current_stream(), site())


def _torch_record(act: Act) -> None:
    stream = act.argument(1, "stream")
    act.order.record(act.args[0], _torch_stream() if stream is None else stream)


def _torch_wait(act: Act) -> None:
    stream = act.argument(1, "stream")
    act.order.wait(_torch_stream() if stream is None else stream, act.args[0])


def _host_waits(act: Act) -> None:
    act.order.host_waits(act.args[0])


def _host_waits_for_event(act: Act) -> None:
    act.order.host_waits_for_event(act.args[0])


def _asked_stream(act: Act) -> None:
    if act.result:
        act.order.host_waits(act.args[0])


def _asked_event(act: Act) -> None:
    if act.result:
        act.order.host_waits_for_event(act.args[0])


def _everything(act: Act) -> None:
    act.order.everything()


def _torch_value(act: Act) -> None:
    """A copy from or to the host, which waits for the current stream unless it is non-blocking."""
    tensor: Any = act.args[0] if act.args else None
    result = act.result
    devices = {getattr(tensor, "is_cuda", None), getattr(result, "is_cuda", None)}
    if True in devices and devices != {True} and not act.kwargs.get("non_blocking", False):
        act.order.host_waits(_torch_stream((tensor if getattr(tensor, "is_cuda", False) else result).device))


def _torch_give(act: Act) -> None:
    stream = act.kwargs.get("stream", -1)
    if act.args[0].is_cuda and stream != -1:
        act.order.follow(stream, _torch_stream(act.args[0].device))


def _cupy_use(act: Act) -> None:
    act.order.use("cupy", _cupy_stream(), site())


def _cupy_record(act: Act) -> None:
    stream = act.argument(1, "stream")
    act.order.record(act.args[0], _cupy_stream() if stream is None else stream)


def _record_on(act: Act) -> None:
    event = act.argument(1, "event")
    act.order.record(act.result if event is None else event, act.args[0])


def _wait_event(act: Act) -> None:
    act.order.wait(act.args[0], act.argument(1, "event"))


def _cupy_value(act: Act) -> None:
    """A copy to the host, which waits unless it is non-blocking."""
    if act.kwargs.get("blocking", True):
        stream = act.kwargs.get("stream")
        act.order.host_waits(_cupy_stream() if stream is None else stream)


def _cupy_give(act: Act) -> None:
    stream = act.kwargs.get("stream")
    if stream != -1:
        act.order.follow(stream, _cupy_stream())


def _numba_record(act: Act) -> None:
    act.order.record(act.args[0], act.argument(1, "stream"))


def _numba_wait(act: Act) -> None:
    act.order.wait(act.argument(1, "stream"), act.args[0])


def _numba_fill(act: Act) -> None:
    """`to_device(obj, stream=0)` and `copy_to_device(self, ary, stream=0)`: a copy on a stream, or one that the host waits for."""
    array, stream = (act.result, act.argument(1, "stream")) if act.result is not None else (act.args[0], act.argument(2, "stream"))
    stream = stream or array.stream
    act.order.write(array.gpu_data, address_of("numba", array) or 0, stream, site(), sure=True)
    if not stream:
        act.order.host_waits(LEGACY)


def _numba_fetch(act: Act) -> None:
    act.order.host_waits(act.argument(2, "stream") or act.args[0].stream)


def _numba_launch(act: Act) -> None:
    """`launch(self, args, griddim, blockdim, stream=0, sharedmem=0)`."""
    for array in act.argument(1, "args"):
        if hasattr(array, "gpu_data"):
            pointer = address_of("numba", array) or 0
            act.order.write(array.gpu_data, pointer, act.argument(4, "stream"), site(), sure=False)


def _core_wait(act: Act) -> None:
    other = act.argument(1, "event_or_stream")
    if hasattr(other, "is_done"):
        act.order.wait(act.args[0], other)
    elif hasattr(other, "__cuda_stream__"):
        act.order.follow(act.args[0], other)
    else:
        act.order.everything()


def _core_fill(act: Act) -> None:
    """`fill(value, *, stream)` and `copy_from(src, *, stream)`."""
    act.order.write(act.args[0], int(act.args[0].handle), act.kwargs["stream"], site(), sure=True)


def _core_copy_to(act: Act) -> None:
    act.order.write(act.result, int(act.result.handle), act.kwargs["stream"], site(), sure=True)


def _core_launch(act: Act) -> None:
    """`launch(stream, config, kernel, *arguments)`."""
    stream = act.args[0]
    if not hasattr(stream, "__cuda_stream__"):
        return
    for argument in act.args[3:]:
        if isinstance(argument, int):
            entry = act.order._writes.get(argument)
            argument = None if entry is None else entry[0]()
        if hasattr(argument, "memory_resource"):
            act.order.write(argument, int(argument.handle), stream, site(), sure=False)


ACTS: dict[str, Any] = {
    act.__name__[1:]: act
    for act in (
        _torch_use,
        _torch_use_current,
        _torch_record,
        _torch_wait,
        _torch_value,
        _torch_give,
        _host_waits,
        _host_waits_for_event,
        _asked_stream,
        _asked_event,
        _everything,
        _cupy_use,
        _cupy_record,
        _cupy_value,
        _cupy_give,
        _record_on,
        _wait_event,
        _numba_record,
        _numba_wait,
        _numba_fill,
        _numba_fetch,
        _numba_launch,
        _core_wait,
        _core_fill,
        _core_copy_to,
        _core_launch,
    )
}
"""By the names that the table has for them."""


# --- Functions of its libraries ----------------------------------------------------------------------------------------

_TORCH_STREAMS = "docs.pytorch.org/docs/stable/notes/cuda.html, CUDA streams; torch/cuda/streams.py and torch/_tensor.py of PyTorch 2.15"
_CUPY = "docs.cupy.dev/en/stable/user_guide/basic.html, Data Transfer; docs.cupy.dev/en/stable/user_guide/interoperability.html"
_CUPY_STREAMS = "docs.cupy.dev/en/stable/user_guide/basic.html, Current Stream; cupy/cuda/stream.pyx of CuPy 14.2"
_NUMBA = "nvidia.github.io/numba-cuda/user/memory.html; numba/cuda/cudadrv/devicearray.py and api.py of numba-cuda 0.30"
_NUMBA_STREAMS = "numba/cuda/cudadrv/driver.py and dispatcher.py of numba-cuda 0.30"
_CORE = "nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html; cuda.core 1.2, _memoryview.pyi and _buffer.pyi"
_CORE_STREAMS = "cuda.core 1.2, _stream.pyi, _event.pyi, _device.pyi and _launcher.pyi"

ROWS: tuple[Row, ...] = (
    *methods("torch", "torch", "Tensor", "move", TORCH, "cuda", "torch_value"),
    *methods("torch", "torch", "Tensor", "give", TORCH_TAKE, "__cuda_array_interface__"),
    *rows("torch", "torch.cuda", "wait", TORCH, "synchronize", "everything"),
    *rows("torch", "torch.cuda", "wait", TORCH, "Stream.synchronize", "host_waits"),
    *rows("torch", "torch.cuda", "wait", TORCH, "Event.synchronize", "host_waits_for_event"),
    *rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "Stream.query", "asked_stream"),
    *rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "Event.query", "asked_event"),
    *rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "Event.record", "torch_record"),
    *rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "Event.wait", "torch_wait"),
    *rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "set_stream", "torch_use"),
    *rows("torch", "torch.cuda", "acts", _TORCH_STREAMS, "empty_cache CUDAGraph.replay", "everything"),
    *rows("torch", "torch", "acts", _TORCH_STREAMS, "Stream.__enter__ Stream.__exit__", "torch_use_current"),
    *rows("torch", "torch.accelerator", "acts", _TORCH_STREAMS, "set_stream", "torch_use_current"),
    # Those of any device do not tell the driver's handles.
    *rows("torch", "torch", "wait", _TORCH_STREAMS, "Stream.synchronize Event.synchronize", "everything"),
    *rows("torch", "torch", "acts", _TORCH_STREAMS, "Stream.wait_event Stream.wait_stream Stream.query", "everything"),
    *rows("torch", "torch", "acts", _TORCH_STREAMS, "Event.wait Event.query", "everything"),
    *rows("torch", "torch.accelerator", "wait", _TORCH_STREAMS, "synchronize", "everything"),
    *rows("cupy", "cupy", "take", _CUPY, "asarray array asanyarray ascontiguousarray from_dlpack"),
    *rows("cupy", "cupy", "to_numpy", _CUPY, "asnumpy ndarray.get", "cupy_value"),
    *rows("cupy", "cupy", "to_host", _CUPY, "ndarray.item ndarray.tolist ndarray.tobytes", "cupy_value"),
    *methods("cupy", "cupy", "ndarray", "to_host", _CUPY, "__float__ __int__ __bool__ __complex__", "cupy_value"),
    *rows("cupy", "cupy", "give", _CUPY, "ndarray.__dlpack__", "cupy_give"),
    *rows("cupy", "cupy", "give", _CUPY, "ndarray.__cuda_array_interface__"),
    *methods("cupy", "cupy.cuda.stream", "_BaseStream", "wait", _CUPY_STREAMS, "synchronize", "host_waits"),
    *methods("cupy", "cupy.cuda.stream", "_BaseStream", "acts", _CUPY_STREAMS, "done", "asked_stream"),
    *methods("cupy", "cupy.cuda.stream", "_BaseStream", "acts", _CUPY_STREAMS, "__enter__ __exit__ use", "cupy_use"),
    *methods("cupy", "cupy.cuda.stream", "_BaseStream", "acts", _CUPY_STREAMS, "record", "record_on"),
    *methods("cupy", "cupy.cuda.stream", "_BaseStream", "acts", _CUPY_STREAMS, "wait_event", "wait_event"),
    *methods("cupy", "cupy.cuda.stream", "Event", "wait", _CUPY_STREAMS, "synchronize", "host_waits_for_event"),
    *methods("cupy", "cupy.cuda.stream", "Event", "acts", _CUPY_STREAMS, "done", "asked_event"),
    *methods("cupy", "cupy.cuda.stream", "Event", "acts", _CUPY_STREAMS, "record", "cupy_record"),
    *rows("cupy", "cupy.cuda.device", "wait", _CUPY_STREAMS, "Device.synchronize", "everything"),
    *rows("cupy", "cupy.cuda.runtime", "wait", _CUPY_STREAMS, "deviceSynchronize", "everything"),
    *rows("cupy", "cupy.cuda.runtime", "wait", _CUPY_STREAMS, "streamSynchronize", "host_waits"),
    *rows("cupy", "cupy.cuda.runtime", "wait", _CUPY_STREAMS, "eventSynchronize streamWaitEvent", "everything"),
    *rows("numba", "numba.cuda", "take", _NUMBA, "as_cuda_array"),
    *rows("numba", "numba.cuda", "take", _NUMBA, "to_device", "numba_fill"),
    *rows("numba", "numba.cuda", "wait", _NUMBA_STREAMS, "synchronize", "everything"),
    *methods("numba", "numba.cuda.cudadrv.devicearray", "DeviceNDArray", "to_numpy", _NUMBA, "copy_to_host __array__", "numba_fetch"),
    *methods("numba", "numba.cuda.cudadrv.devicearray", "DeviceNDArray", "acts", _NUMBA, "copy_to_device", "numba_fill"),
    *methods("numba", "numba.cuda.cudadrv.devicearray", "DeviceNDArrayBase", "give", _NUMBA, "__cuda_array_interface__"),
    *methods("numba", "numba.cuda.cudadrv.driver", "Stream", "wait", _NUMBA_STREAMS, "synchronize", "host_waits"),
    *methods("numba", "numba.cuda.cudadrv.driver", "Event", "wait", _NUMBA_STREAMS, "synchronize", "host_waits_for_event"),
    *methods("numba", "numba.cuda.cudadrv.driver", "Event", "acts", _NUMBA_STREAMS, "query", "asked_event"),
    *methods("numba", "numba.cuda.cudadrv.driver", "Event", "acts", _NUMBA_STREAMS, "record", "numba_record"),
    *methods("numba", "numba.cuda.cudadrv.driver", "Event", "acts", _NUMBA_STREAMS, "wait", "numba_wait"),
    *methods("numba", "numba.cuda.dispatcher", "_Kernel", "acts", _NUMBA_STREAMS, "launch", "numba_launch"),
    *methods("cuda.core", "cuda.core.utils", "StridedMemoryView", "view", _CORE, "from_dlpack from_any_interface"),
    *methods("cuda.core", "cuda.core.utils", "StridedMemoryView", "view", _CORE, "from_cuda_array_interface"),
    *methods("cuda.core", "cuda.core.utils", "StridedMemoryView", "give", _CORE, "__dlpack__"),
    *rows("cuda.core", "cuda.core", "give", _CORE, "Buffer.__dlpack__"),
    *rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "Buffer.fill Buffer.copy_from", "core_fill"),
    *rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "Buffer.copy_to", "core_copy_to"),
    *rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "launch", "core_launch"),
    *rows("cuda.core", "cuda.core", "wait", _CORE_STREAMS, "Stream.sync", "host_waits"),
    *rows("cuda.core", "cuda.core", "wait", _CORE_STREAMS, "Event.sync", "host_waits_for_event"),
    *rows("cuda.core", "cuda.core", "wait", _CORE_STREAMS, "Device.sync", "everything"),
    *rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "Event.is_done", "asked_event"),
    *rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "Stream.record", "record_on"),
    *rows("cuda.core", "cuda.core", "acts", _CORE_STREAMS, "Stream.wait", "core_wait"),
)
"""Those that are observed."""


# --- Hand-overs --------------------------------------------------------------------------------------------------------


def address_of(library: str, array: Any) -> int | None:
    """The address of the memory of an array of one of CUDA's libraries."""
    match library:
        case "cupy":
            return int(array.data.ptr)
        case "numba":
            return int(array.device_ctypes_pointer.value or 0)
        case "cuda.core":
            return int(array.ptr if hasattr(array, "ptr") else array.handle)
    return None


def is_on_device(library: str, array: Any) -> bool:
    """True if an array is in memory of a CUDA device."""
    match library:
        case "torch":
            return bool(getattr(array, "is_cuda", False))
        case "cupy" | "numba":
            return True
        case "cuda.core":
            return bool(getattr(array, "is_device_accessible", False))
        case "jax":
            return any(device.platform in ("gpu", "cuda") for device in array.devices())
    return hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] in DEVICES


def _exported_stream(origin: str, array: Any, library: str) -> Any:
    """The stream that `__cuda_array_interface__` names, for which a consumer waits."""
    match origin:
        case "cupy":
            return _cupy_stream()
        case "numba":
            return array.stream or None
        case "torch" if library == "cuda.core":
            # It names none, but cuda.core asks PyTorch for its current stream (`_tensor_bridge.pyi`).
            return _torch_stream(array.device)
    return None


def hand_over(
    order: Order, begun: int, origin: str, source: Any, library: str, asked: Any, given: Any, options: dict[str, Any]
) -> Verdict | None:
    """The verdict on the order of a hand-over without a copy that has taken place. `begun`: its tick; `asked`: the stream that the consumer named in
    the call; `given`: the one with which the producer's `__dlpack__` was called."""
    # JAX and Estafette order by the stream that they are given; Estafette in every other way as well.
    if origin == "estafette" or (origin == "jax" and given is not None):
        return None
    consumer = asked if asked not in (None, -1) else given if given not in (None, -1) else current(library)
    exported = None if given is not None else _exported_stream(origin, source, library)
    if exported is not None and library == "cuda.core" and asked not in (None, -1):
        order.follow(asked, exported)
    elif exported is not None and library in ("cupy", "numba") and options.get("sync", True):
        order.host_waits(exported)
    match origin:
        case "torch":
            spans = order.spans_of_torch(int(source.data_ptr()), begun, False)
            verdict = order.verdict(spans, consumer)
            if verdict is not None and verdict[0] == NONE:
                # Looked at again before it is said.
                verdict = order.verdict(order.spans_of_torch(int(source.data_ptr()), begun, True), consumer)
            return verdict
        case "cupy":
            return order.verdict(order.spans_of_cupy(begun), consumer)
        case "numba" | "cuda.core":
            pointer = address_of(origin, source)
            return order.verdict(None if pointer is None else order.written(pointer), consumer)
    return order.verdict(None, consumer)
