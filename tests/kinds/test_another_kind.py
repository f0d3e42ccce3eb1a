"""A kind of device that only tests know gives streams, fences and arrays to Python: by its folder, and its two lines in `kinds/mod.rs`."""

import pathlib
import re

import another_kind
import another_observer
import pytest
from another_kind import Array, Stream

import estafette as est

SIZE = 64
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def eng():
    with est.Engine(workers=2) as eng:
        yield eng


@pytest.fixture
def x(eng):
    return eng.empty((SIZE,), "uint8", device="another:0")


def test_the_device_is_in_the_table_and_has_a_name(eng, x):
    rows = [row for row in est.devices() if row.name == "another kind"]
    assert [(row.device, row.host_access) for row in rows] == [(tuple(x.device), False)]
    with pytest.raises(ValueError, match='"another:0"'):
        eng.empty((SIZE,), "uint8", device="yet another")
    assert "another_kind" in [row.name for row in est.peers()]


def test_a_function_on_its_queue_has_the_stream_as_the_library_s_current_one(eng, x):
    streams = []

    def fill(x):
        streams.append((another_kind.current_stream().another_stream, est.current_stream()))
        x.fill(5)

    eng.submit(fill, writes=[x], using=another_kind.from_dlpack, on="another:0").wait(timeout=30)
    ((told, own),) = streams
    assert told == own.handle == own.another_stream and repr(own).endswith("of another:0>")
    assert est.current_stream() is None and another_kind.current_stream() is another_kind._default
    assert eng.from_dlpack(x, device="cpu").__array__().tolist() == [5] * SIZE


def test_a_stream_of_the_library_is_a_queue_of_operations(eng, x):
    stream = Stream()
    with stream.blocked():
        fill = eng.submit(lambda x: x.fill(6), writes=[x], using=another_kind.from_dlpack, on=stream)
        fill.wait(timeout=30)
        assert not x.is_ready(), "issued, and not done"
    x.wait(timeout=30)
    assert another_kind.from_dlpack(x).to_bytes() == bytes([6]) * SIZE


def test_a_consumer_s_stream_waits_for_the_work_and_no_thread_does(eng, x):
    stream, consumer = Stream(), Stream()
    with stream.blocked():
        eng.submit(lambda x: x.fill(7), writes=[x], using=another_kind.from_dlpack, on=stream)
        with another_kind.use(consumer):
            # The export comes back although the work has not run.
            array = another_kind.from_dlpack(x)
            copied = Array(SIZE)
            consumer.copy(copied.address, array.address, SIZE)
        assert not x.is_ready()
    with another_kind.use(consumer):
        assert copied.to_bytes() == bytes([7]) * SIZE


def test_the_fence_of_an_array_s_stream_comes_before_readers(eng):
    stream = Stream()
    with another_kind.use(stream):
        array = Array(SIZE)
    with stream.blocked():
        array.fill(8)
        t = eng.from_dlpack(array)
        assert tuple(t.device) == (10, 0) and not t.is_ready()
        on_host = eng.from_dlpack(t, device="cpu")
    assert on_host.__array__().tolist() == [8] * SIZE


def test_an_array_that_a_function_returns_is_its_result(eng):
    result = eng.call(lambda: {"array": Array(SIZE).fill(9)}, on="another:0")
    assert another_kind.from_dlpack(result["array"]).to_bytes() == bytes([9]) * SIZE


def test_what_is_no_stream_of_the_kind_is_refused(x):
    with pytest.raises(TypeError, match="no stream of another_kind"):
        x.__dlpack__(stream="none")


def test_its_libraries_are_observed():
    with est.observe() as seen:
        assert Array(SIZE).fill(1).to_bytes() == bytes([1]) * SIZE
    (row,) = seen.report().data["exchanges"]
    assert (row["producer"], row["consumer"]) == ("another_kind", "host")
    assert another_observer.fetched == [bytes([1]) * SIZE]


def test_nothing_else_of_the_package_names_the_kind():
    folders = ROOT / "bindings/python/src", ROOT / "bindings/python/python", ROOT / "devices/src", ROOT / "engine/src"
    files = [file for folder in folders for end in ("*.rs", "*.py") for file in folder.rglob(end)]
    assert len(files) > 300
    name = re.compile(r"another[-_]kind|\banother::|\bmod another\b")
    lines = [(file.name, line.strip()) for file in files for line in file.read_text().splitlines() if name.search(line)]
    gate = '#[cfg(feature = "another-kind")]'
    assert lines == [("mod.rs", line) for line in (gate, "mod another;", gate, "&another::Another,")]
