"""Observe mode on a device: planted stalls are found with their lines, and so are hand-overs between streams that nothing ordered."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import estafette as est
from suite import REHEARSAL, SIMULATOR, Skip, figure, installed, report, run

COUNT = 1 << 20
#: How long the device is kept busy for a stall, in milliseconds, and for a hand-over.
STALL, BUSY = 100.0, 20.0

FOUND, MISSING = installed()
LIBRARIES = {library.name: library for library in FOUND}
FILE = pathlib.Path(__file__)


def need(*names: str) -> None:
    if REHEARSAL or not all(name in LIBRARIES for name in names):
        raise Skip(f"needs {' and '.join(names)} with a device")


def line_of(mark: str) -> str:
    """The line of this file with a mark, as reports write it."""
    (at,) = [at for at, line in enumerate(FILE.read_text().splitlines(), 1) if line.endswith(f"# {mark}")]
    return f"{FILE.name}:{at}"


def data_of(seen: est.observe) -> Any:
    data = seen.report().data
    assert not data["missing"], data["missing"]
    return data


def waited(data: Any, function: str, mark: str) -> int:
    """Time that a function was waited for at a line, in nanoseconds."""
    name = f"`{function}` at {line_of(mark)}"
    rows = [row["waited_ns"] for row in data["operations"] if row["name"] == name]
    assert rows, f"no {name} among {[row['name'] for row in data['operations']]}"
    return int(rows[0])


def compare(what: str, measured: int, planted: int) -> None:
    """Reports how well the time of a stall was measured."""
    assert planted / 2 < measured <= planted, f"{measured} of {planted} ns"
    error = abs(measured / planted - 1)
    ours = f"{measured / 1e6:.2f} ms measured"
    figure(f"a stall in {what}", ours, f"{planted / 1e6:.2f} ms planted", "within 5 %", error <= 0.05)


def hand_overs(data: Any, producer: str, consumer: str) -> list[Any]:
    return [row for row in data["hand_overs"] if (row["producer"], row["consumer"]) == (producer, consumer)]


def check_a_planted_synchronize_is_found() -> None:
    need("torch")
    import torch

    delay = LIBRARIES["torch"].delay
    assert delay is not None
    torch.cuda.synchronize()
    with est.observe() as seen:
        delay(STALL)
        began = time.perf_counter_ns()
        torch.cuda.synchronize()  # the synchronize
        planted = time.perf_counter_ns() - began
    compare("torch.cuda.synchronize", waited(data_of(seen), "torch.cuda.synchronize", "the synchronize"), planted)


def check_a_planted_item_is_found() -> None:
    need("torch")
    import torch

    delay = LIBRARIES["torch"].delay
    assert delay is not None
    x = torch.ones(COUNT, device="cuda")
    x.sum().item()
    with est.observe() as seen:
        delay(STALL)
        total = x.sum()
        began = time.perf_counter_ns()
        value = total.item()  # the item
        planted = time.perf_counter_ns() - began
    assert value == COUNT
    data = data_of(seen)
    compare("torch.Tensor.item", waited(data, "torch.Tensor.item", "the item"), planted)
    assert "work of torch and its copy to the host" in data["worst"][0]["blocker"], data["worst"][0]


def check_waits_of_cupy_are_found() -> None:
    need("cupy")
    import cupy

    delay = LIBRARIES["cupy"].delay
    assert delay is not None
    x = cupy.ones(COUNT, dtype=cupy.float32)
    stream, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event()
    # Compiled before.
    delay(1.0)
    assert x.sum().item() == COUNT
    cupy.cuda.Device().synchronize()
    before = vars(cupy.cuda.Device)["synchronize"]
    with est.observe() as seen:
        delay(BUSY)
        cupy.asnumpy(x)  # the copy
        delay(BUSY)
        cupy.cuda.Device().synchronize()  # the device
        with stream:
            delay(BUSY)
            event.record()
        event.synchronize()  # the event
        with stream:
            delay(BUSY)
        stream.synchronize()  # the stream
        delay(BUSY)
        assert x.sum().item() == COUNT  # the value
    assert vars(cupy.cuda.Device)["synchronize"] is before and "item" not in vars(cupy.ndarray)
    data = data_of(seen)
    for function, mark in (
        ("cupy.asnumpy", "the copy"),
        ("cupy.Device.synchronize", "the device"),
        ("cupy.Event.synchronize", "the event"),
        ("cupy.Stream.synchronize", "the stream"),
        ("cupy.ndarray.item", "the value"),
    ):
        assert waited(data, function, mark) > BUSY * 1e6 / 2, function


def check_a_wait_for_jax_is_found() -> None:
    need("jax")
    import jax

    work = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: y @ x / 1024.0, x))
    x = LIBRARIES["jax"].full(1 << 22, 1.0).reshape(2048, 2048)
    work(x).block_until_ready()
    with est.observe() as seen:
        y = work(x)
        began = time.perf_counter_ns()
        y.block_until_ready()  # the array
        planted = time.perf_counter_ns() - began
    compare("block_until_ready", waited(data_of(seen), "jax.Array.block_until_ready", "the array"), planted)


def check_an_unordered_hand_over_is_named() -> None:
    need("torch", "cupy")
    import cupy
    import torch

    delay = LIBRARIES["torch"].delay
    assert delay is not None
    side, own = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    with est.observe() as seen:
        with torch.cuda.stream(side):  # made here
            delay(BUSY)
            x = torch.full((COUNT,), 3.0, device="cuda")
        with own:
            # CuPy's stream waits for PyTorch's current one, which is not the one that fills `x`.
            y = cupy.from_dlpack(x)  # taken here
    torch.cuda.synchronize()
    (row,) = hand_overs(data_of(seen), "torch", "cupy")
    report("note", "an unordered hand-over", str(row))
    assert row["order"] == "none" and row["count"] == 1, row
    assert row["made"] == line_of("made here") and row["taken"] == line_of("taken here"), row
    assert float(y[0]) == 3.0


def check_ordered_hand_overs_are_not_accused() -> None:
    need("torch", "cupy")
    import cupy
    import torch

    delay = LIBRARIES["torch"].delay
    assert delay is not None
    side, own = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    beside = torch.cuda.ExternalStream(own.ptr)

    def fill() -> torch.Tensor:
        with torch.cuda.stream(side):
            delay(BUSY)
            return torch.full((COUNT,), 3.0, device="cuda")

    def by_the_current_stream() -> Any:
        x = fill()
        torch.cuda.current_stream().wait_stream(side)
        with own:
            return cupy.from_dlpack(x)

    def by_an_event() -> Any:
        x = fill()
        beside.wait_event(side.record_event())
        with own:
            return cupy.asarray(x)

    def by_the_host() -> Any:
        x = fill()
        side.synchronize()
        with own:
            return cupy.asarray(x)

    def by_the_stream_argument() -> Any:
        with torch.cuda.stream(side):
            x = fill()
            with own:
                return cupy.from_dlpack(x)

    def on_one_stream() -> Any:
        x = fill()
        with cupy.cuda.ExternalStream(side.cuda_stream):
            return cupy.asarray(x)

    for way in (by_the_current_stream, by_an_event, by_the_host, by_the_stream_argument, on_one_stream):
        with est.observe() as seen:
            y = way()
        torch.cuda.synchronize()
        rows = hand_overs(data_of(seen), "torch", "cupy")
        assert not rows, f"{way.__name__}: {rows}"
        assert (y == 3.0).all()


def check_a_view_of_a_tensor_is_ordered_by_the_current_stream() -> None:
    need("torch", "cuda.core")
    import torch
    from cuda.core import Device
    from cuda.core.utils import StridedMemoryView

    device = Device(0)
    device.set_current()
    delay = LIBRARIES["torch"].delay
    assert delay is not None
    side, own = torch.cuda.Stream(), device.create_stream()
    with est.observe() as seen:
        with torch.cuda.stream(side):  # filled on the side
            delay(BUSY)
            x = torch.full((COUNT,), 3.0, device="cuda")
            StridedMemoryView.from_any_interface(x, stream_ptr=int(own.handle))
        with torch.cuda.stream(side):
            y = torch.full((COUNT,), 4.0, device="cuda")
        StridedMemoryView.from_any_interface(y, stream_ptr=int(own.handle))
    torch.cuda.synchronize()
    # The second fill came after what the first view waited for; of `y` it is not known when in between it was made.
    (row,) = hand_overs(data_of(seen), "torch", "cuda.core")
    assert row["order"] == "unknown" and row["made"] == line_of("filled on the side"), row


def check_a_view_of_cuda_core_is_judged_by_its_stream() -> None:
    need("cuda.core")
    from cuda.core import Device
    from cuda.core.utils import StridedMemoryView

    device = Device(0)
    device.set_current()
    first, second = device.create_stream(), device.create_stream()
    handle = int(second.handle)
    with est.observe() as seen:
        buffer = device.allocate(4096, stream=first)
        buffer.fill(b"\x03", stream=first)  # filled here
        # A buffer of cuda.core takes no notice of the stream.
        StridedMemoryView.from_dlpack(buffer, stream_ptr=handle)  # viewed here
        second.wait(first)
        StridedMemoryView.from_dlpack(buffer, stream_ptr=handle)
        buffer.fill(b"\x04", stream=first)
        first.sync()
        StridedMemoryView.from_any_interface(buffer, stream_ptr=handle)
    (row,) = data_of(seen)["hand_overs"]
    assert row["order"] == "none" and row["made"] == line_of("filled here"), row
    assert row["taken"] == line_of("viewed here"), row
    if SIMULATOR:
        return
    with est.observe() as seen:
        device.sync()
    data_of(seen)


if __name__ == "__main__":
    for name, reason in MISSING:
        report("skipped", name, reason)
    run(
        [
            check_a_planted_synchronize_is_found,
            check_a_planted_item_is_found,
            check_waits_of_cupy_are_found,
            check_a_wait_for_jax_is_found,
            check_an_unordered_hand_over_is_named,
            check_ordered_hand_overs_are_not_accused,
            check_a_view_of_a_tensor_is_ordered_by_the_current_stream,
            check_a_view_of_cuda_core_is_judged_by_its_stream,
        ]
    )
