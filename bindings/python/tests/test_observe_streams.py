"""Observe mode and the streams of PyTorch and CuPy, with doubles that have the signatures of both: no device is needed.

The real libraries are observed in `tests/gpu/python/gpu_observe.py`.
"""

import importlib
import sys
import textwrap

import pytest

import estafette as est
from estafette._kinds.cuda.order import Order, hand_over

FAKES = {
    # As `cupy/cuda/stream.pyx` has it.
    "cupy/cuda/stream.py": """
        _current = []

        class _Stack:
            def __init__(self):
                self.streams = [Stream(0)]

        def get_current_stream(device_id=-1):
            return _stack.streams[-1]

        class Event:
            made = 0

            def __init__(self, block=False, disable_timing=False, interprocess=False):
                Event.made += 1
                self.ptr = 10_000 + Event.made

            @property
            def done(self):
                return True

            def record(self, stream=None):
                pass

            def synchronize(self):
                pass

        class _BaseStream:
            def __enter__(self):
                _stack.streams.append(self)
                return self

            def __exit__(self, *args):
                _stack.streams.pop()

            def use(self):
                _stack.streams[-1] = self
                return self

            @property
            def done(self):
                return True

            def synchronize(self):
                pass

            def record(self, event=None):
                return Event() if event is None else event

            def wait_event(self, event):
                pass

        class Stream(_BaseStream):
            def __init__(self, ptr, non_blocking=True):
                self.ptr, self.is_non_blocking = ptr, non_blocking

        _stack = _Stack()
    """,
    "cupy/cuda/__init__.py": """
        from .stream import Event, Stream, get_current_stream
    """,
    "cupy/__init__.py": """
        from cupy import cuda

        class _Memory:
            def __init__(self, ptr):
                self.ptr = ptr

        class ndarray:
            shape, dtype, nbytes = (4,), "float32", 16

            def __init__(self, ptr):
                self.data = _Memory(ptr)

            def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
                return self

            def __dlpack_device__(self):
                return (2, 0)

            def get(self, stream=None, order="C", out=None, blocking=True):
                return [0.0] * 4

            def item(self):
                return 0.0

        def from_dlpack(array):
            stream = cuda.get_current_stream().ptr or 1
            array.__dlpack__(stream=stream, max_version=(1, 0))
            return ndarray(array.data_ptr() if hasattr(array, "data_ptr") else array.data.ptr)

        def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
            return ndarray(1)

        def asarray(a, dtype=None, order=None, *, blocking=False):
            return ndarray(a.data_ptr() if hasattr(a, "data_ptr") else a.data.ptr)
    """,
}
SEGMENT = 1 << 20


@pytest.fixture
def cupy(tmp_path, monkeypatch):
    for path, text in FAKES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: importlib.import_module("cupy")
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupy"]:
        del sys.modules[name]


class TorchStream:
    """As `torch.cuda.Stream`."""

    stream_id, device_index, device_type = 1, 0, 1

    def __init__(self, handle):
        self.cuda_stream = handle

    def synchronize(self):
        pass

    def query(self):
        return True


class TorchEvent:
    """As `torch.cuda.Event`."""

    made = 0
    cuda_event = 0

    def record(self, stream=None):
        TorchEvent.made += 1
        self.cuda_event = self.cuda_event or 20_000 + TorchEvent.made

    def wait(self, stream=None):
        pass

    def synchronize(self):
        pass

    def query(self):
        return False


class OnCuda:
    """PyTorch's part of a device: a current stream, and memory that belongs to streams."""

    def __init__(self, torch, monkeypatch):
        self.torch, self.now, self.blocks, self.snapshots = torch, 0, {}, 0
        cuda = torch.cuda
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _device: self.now, raising=False)
        monkeypatch.setattr(cuda, "current_device", lambda: 0)
        monkeypatch.setattr(cuda, "_set_stream_by_id", lambda **_ids: None)
        monkeypatch.setattr(cuda, "memory_snapshot", self.snapshot)
        monkeypatch.setattr(cuda, "synchronize", lambda device=None: None)
        monkeypatch.setattr(cuda, "Stream", TorchStream)
        monkeypatch.setattr(cuda, "Event", TorchEvent)

        class Tensor(torch.Tensor):
            """A tensor whose memory is said to be a device's."""

            __torch_function__ = torch._C._disabled_torch_function_impl
            is_cuda, is_cpu = True, False
            device = torch.device("cuda", 0)

            def data_ptr(self):
                return self.pointer

        Tensor.__module__ = "torch"
        self.kind = Tensor

    def snapshot(self):
        self.snapshots += 1
        return [
            {
                "address": begin,
                "total_size": SEGMENT,
                "stream": stream,
                "segment_pool_id": pool,
                "blocks": [{"address": begin, "size": SEGMENT, "state": "active_allocated"}],
            }
            for begin, (stream, pool) in self.blocks.items()
        ]

    def use(self, stream):
        self.now = stream.cuda_stream
        self.torch.cuda.set_stream(stream)

    def tensor(self, pool=(0, 0)):
        """A tensor that is made on the current stream."""
        x = self.torch.ones(1).as_subclass(self.kind)
        x.pointer = SEGMENT * (len(self.blocks) + 1)
        self.blocks[x.pointer] = (self.now, pool)
        return x


@pytest.fixture
def cuda(torch, monkeypatch):
    # PyTorch compares a stream with its own before it orders; the double does nothing of the kind.
    monkeypatch.setattr(torch.Tensor, "__dlpack__", lambda self, *, stream=-1, max_version=None, dl_device=None, copy=None: self)
    return OnCuda(torch, monkeypatch)


DEFAULT, SIDE, OTHER = TorchStream(0), TorchStream(111), TorchStream(222)


def orders(seen):
    data = seen.report().data
    assert data["missing"] == []
    return [(row["order"], row["producer"], row["consumer"]) for row in data["hand_overs"]]


def test_a_tensor_of_a_side_stream_that_nothing_waited_for(cuda, cupy):
    with est.observe() as seen:
        cp = cupy()
        own = cp.cuda.Stream(333)
        cuda.use(SIDE)
        x = cuda.tensor()
        cuda.use(DEFAULT)
        with own:
            cp.from_dlpack(x)
    (row,) = seen.report().data["hand_overs"]
    assert (row["order"], row["producer"], row["consumer"], row["count"]) == ("none", "torch", "cupy", 1)
    assert row["made"].startswith("test_observe_streams.py") and row["taken"].startswith("test_observe_streams.py")
    assert orders(seen) == [("none", "torch", "cupy")]


def by_an_event(torch, cp, own):
    event = torch.cuda.Event()
    event.record(SIDE)
    event.wait(TorchStream(own.ptr))


def by_an_event_of_the_default_stream(torch, cp, own):
    event = torch.cuda.Event()
    event.record(SIDE)
    # The current stream, whose end `from_dlpack` has CuPy wait for.
    event.wait()


def by_an_event_of_cupy(torch, cp, own):
    own.wait_event(cp.cuda.Stream(SIDE.cuda_stream).record())


def by_an_event_on_the_host(torch, cp, own):
    event = cp.cuda.Event()
    event.record(cp.cuda.Stream(SIDE.cuda_stream))
    assert event.done


def by_asking_the_stream(torch, cp, own):
    assert SIDE.query()


def by_the_host(torch, cp, own):
    SIDE.synchronize()


def by_the_device(torch, cp, own):
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    "way",
    [
        by_an_event,
        by_an_event_of_the_default_stream,
        by_an_event_of_cupy,
        by_an_event_on_the_host,
        by_asking_the_stream,
        by_the_host,
        by_the_device,
    ],
)
def test_ordered_tensors_are_not_accused(torch, cuda, cupy, way):
    with est.observe() as seen:
        cp = cupy()
        own = cp.cuda.Stream(333)
        cuda.use(SIDE)
        x = cuda.tensor()
        cuda.use(DEFAULT)
        way(torch, cp, own)
        with own:
            cp.from_dlpack(x)
    assert orders(seen) == []


def test_the_current_stream_of_the_producer_is_waited_for(cuda, cupy):
    with est.observe() as seen:
        cp = cupy()
        cuda.use(SIDE)
        x = cuda.tensor()
        with cp.cuda.Stream(333):
            cp.from_dlpack(x)
        with cp.cuda.Stream(SIDE.cuda_stream):
            cp.asarray(x)
    assert orders(seen) == []


ASKS = {
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "to": lambda x: x.to("cpu"),
    "nonzero": lambda x: x.nonzero(),
    "equal": lambda x: x.equal(x),
    "later": lambda x: x.to("cpu", non_blocking=True),
}


@pytest.mark.parametrize("ask", ASKS)
def test_a_value_on_the_host_waits_for_the_current_stream(torch, cuda, cupy, ask, monkeypatch):
    # The tensor of the double is on the host, and would give itself.
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, non_blocking=False: torch.ones(1))
    with est.observe() as seen:
        cp = cupy()
        cuda.use(SIDE)
        x = cuda.tensor()
        ASKS[ask](x)
        cuda.use(DEFAULT)
        cp.from_dlpack(x)
    # Between the wait and the end of the use of the stream there may have been more work.
    assert orders(seen) == [("none" if ask == "later" else "unknown", "torch", "cupy")]


def test_an_interface_without_a_stream_orders_nothing(cuda, cupy):
    with est.observe() as seen:
        cp = cupy()
        x = cuda.tensor()
        with cp.cuda.Stream(333):
            cp.asarray(x)
        # A stream that waits for the default stream, as all do that are not made otherwise.
        with cp.cuda.Stream(444, non_blocking=False):
            cp.asarray(x)
    assert orders(seen) == [("none", "torch", "cupy")]


def test_a_copy_on_another_stream_reads_as_well(cuda, cupy):
    with est.observe() as seen:
        cp = cupy()
        cuda.use(SIDE)
        x = cuda.tensor()
        cuda.use(DEFAULT)
        cp.array(x)
    assert orders(seen) == [("none", "torch", "cupy")]
    (row,) = seen.report().data["exchanges"]
    assert (row["copies"], row["copied_bytes"]) == (1, 4)


def test_what_was_waited_for_between_two_uses_of_a_stream_is_unknown(torch, cuda, cupy):
    with est.observe() as seen:
        cp = cupy()
        cuda.use(SIDE)
        x = cuda.tensor()
        cuda.use(DEFAULT)
        torch.cuda.synchronize()
        cuda.use(SIDE)
        cuda.use(DEFAULT)
        cp.asarray(x)
    assert orders(seen) == [("unknown", "torch", "cupy")]


def test_what_is_made_after_a_wait_on_a_stream_that_is_still_in_use_is_unknown(torch, cuda, cupy):
    with est.observe() as seen:
        cp = cupy()
        cuda.use(SIDE)
        torch.cuda.synchronize()
        cp.asarray(cuda.tensor())
    assert orders(seen) == [("unknown", "torch", "cupy")]


def test_a_stream_that_waits_for_the_default_stream_passes_that_on(cuda, cupy):
    with est.observe() as seen:
        cp = cupy()
        own = cp.cuda.Stream(333)
        x = cuda.tensor()
        own.wait_event(cp.cuda.Stream(444, non_blocking=False).record())
        with own:
            cp.asarray(x)
    # Of PyTorch's default stream the use never ends.
    assert orders(seen) == [("unknown", "torch", "cupy")]


class Memory:
    """An owner of memory, as a buffer is."""


def test_memory_is_known_as_long_as_its_owner_lives():
    order, owner = Order(), Memory()
    order.write(owner, 4096, SIDE, None, sure=True)
    assert [span.stream for span in order.written(4096)] == [SIDE.cuda_stream]
    del owner
    assert order.written(4096) is None


def test_a_second_use_by_a_kernel_may_have_written_or_read():
    order, owner = Order(), Memory()
    order.write(owner, 4096, SIDE, None, sure=False)
    order.host_waits(SIDE)
    assert order.verdict(order.written(4096), OTHER) is None
    order.write(owner, 4096, SIDE, None, sure=False)
    assert order.verdict(order.written(4096), OTHER)[0] == "unknown"
    order.host_waits(SIDE)
    assert order.verdict(order.written(4096), OTHER) is None
    order.write(owner, 4096, OTHER, None, sure=False)
    assert order.verdict(order.written(4096), OTHER) is None
    assert order.verdict(order.written(4096), DEFAULT)[0] == "unknown"


class NumbaArray:
    """As Numba's array on a stream, whose interface names that stream."""

    stream = SIDE

    class device_ctypes_pointer:
        value = 4096


def test_the_stream_of_an_interface_is_waited_for_on_the_host_by_those_that_do():
    for consumer, options, expected in (("cupy", {}, None), ("numba", {"sync": False}, "none"), ("torch", {}, "none")):
        order, owner = Order(), Memory()
        order.write(owner, 4096, SIDE, None, sure=True)
        verdict = hand_over(order, order.begin(), "numba", NumbaArray, consumer, OTHER, None, options)
        assert (verdict and verdict[0]) == expected, consumer


def test_cuda_core_asks_pytorch_for_its_current_stream(cuda):
    order = Order()
    order.use("torch", SIDE, None)
    cuda.now = SIDE.cuda_stream
    x = cuda.tensor()
    order.use("torch", DEFAULT, None)
    verdict = hand_over(order, order.begin(), "torch", x, "cuda.core", OTHER.cuda_stream, None, {})
    assert verdict is None
    cuda.now = DEFAULT.cuda_stream
    order.use("torch", SIDE, None)
    order.use("torch", DEFAULT, None)
    verdict = hand_over(order, order.begin(), "torch", x, "cuda.core", OTHER.cuda_stream, None, {})
    assert verdict[0] == "unknown"


def test_what_was_made_before_the_observation_is_unknown(torch, cuda, cupy, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    cuda.now = SIDE.cuda_stream
    x = cuda.tensor()
    with est.observe() as seen:
        cp = cupy()
        cuda.use(SIDE)
        cuda.use(DEFAULT)
        cp.from_dlpack(x)
    assert orders(seen) == [("unknown", "torch", "cupy")]


def test_an_allocator_without_segments_leaves_all_unknown(torch, cuda, cupy, monkeypatch):
    def refuse():
        raise RuntimeError("this allocator has no snapshots")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", refuse)
    with est.observe() as seen:
        cp = cupy()
        cuda.use(SIDE)
        x = cuda.tensor()
        cuda.use(DEFAULT)
        cp.from_dlpack(x)
    assert orders(seen) == [("unknown", "torch", "cupy")]


def test_memory_of_a_graph_is_unknown(cuda, cupy):
    with est.observe() as seen:
        cp = cupy()
        cuda.use(SIDE)
        x = cuda.tensor(pool=(0, 1))
        cuda.use(DEFAULT)
        cp.from_dlpack(x)
    assert orders(seen) == [("unknown", "torch", "cupy")]


def test_an_array_of_cupy_on_one_of_two_streams_is_unknown_and_on_the_only_one_is_not(torch, cuda, cupy, monkeypatch):
    monkeypatch.setattr(torch, "as_tensor", lambda data, dtype=None, device=None: cuda.tensor())
    with est.observe() as seen:
        cp = cupy()
        cuda.use(OTHER)
        torch.as_tensor(cp.ndarray(SEGMENT * 1))
        with cp.cuda.Stream(333):
            pass
        cp.cuda.Stream(333).synchronize()
        torch.as_tensor(cp.ndarray(SEGMENT * 2))
    assert sorted(orders(seen)) == [("none", "cupy", "torch"), ("unknown", "cupy", "torch")]


def test_one_stream_asks_for_no_snapshot(cuda, cupy):
    with est.observe() as seen:
        cp = cupy()
        for _ in range(10):
            cp.from_dlpack(cuda.tensor())
    assert orders(seen) == [] and cuda.snapshots == 0


def test_waits_of_cupy_are_noted(cupy):
    with est.observe() as seen:
        cp = cupy()
        x = cp.ndarray(1)
        assert x.item() == 0.0 and x.get() == [0.0] * 4
        cp.cuda.Stream(5).synchronize()
        cp.cuda.Event().synchronize()
    (row,) = [row for row in seen.report().data["exchanges"] if row["consumer"] == "host"]
    assert (row["producer"], row["copies"], row["copied_bytes"]) == ("cupy", 1, 16)
    (row,) = [row for row in seen.report().data["exchanges"] if row["consumer"] == "numpy"]
    assert (row["producer"], row["copies"]) == ("cupy", 1)
