"""Exchanges that could not be ordered are counted, kept and logged; all others are not."""

import gc
import re
from pathlib import Path

import pytest

import estafette as est
from capsules import Made, Producer
from conftest import run_program


@pytest.fixture
def noted(eng):
    """Notes between the making of this and its call."""
    before = eng.stats().unordered

    def noted():
        count = eng.stats().unordered - before
        last = est.unordered_exchanges()
        return [(note.direction, note.reason, note.what) for note in last[len(last) - count :]]

    return noted


def test_host_memory_is_always_ordered(eng, np, noted):
    x = np.arange(3.0)
    t = eng.from_dlpack(x)
    for look in (np.from_dlpack, memoryview, np.asarray, lambda t: np.from_dlpack(t.for_write()), est.Tensor.to_host):
        look(t)
        gc.collect()
    t.__dlpack__(stream=-1, max_version=(1, 3))
    eng.from_dlpack(Made().capsule)
    assert noted() == []


def test_a_device_from_the_future(eng, noted):
    t = eng.from_dlpack(Producer(Made(device=(99, 1)), device=(99, 1)))
    t.__dlpack__(max_version=(1, 3))
    assert noted() == [
        ("import", "unknown device", "device_type(99):1"),
        ("export", "unknown device", "device_type(99):1"),
    ]


def test_a_raw_capsule_of_memory_that_a_device_may_write(eng, noted):
    eng.from_dlpack(Made(device=(13, 0)).capsule)
    assert noted() == [("import", "raw capsule of device memory", "cuda_managed:0")]


def test_memory_that_the_host_reads_although_its_producer_waits_for_no_host(eng, noted):
    eng.from_dlpack(Producer(Made(device=(3, 0)), device=(3, 0)))
    assert noted() == [("import", "device memory read by the host", "cuda_host:0 from a library without a row")]


def test_a_read_lease_in_a_struct_that_cannot_say_so(eng, noted):
    t = eng.zeros(3, "float32")
    t.__dlpack__()
    assert noted() == [("export", "read lease in a struct without flags", "a library without a row")]


def test_a_struct_without_flags_says_enough_of_what_may_be_written(eng, noted):
    t = eng.zeros(3, "float32")
    t.for_write().__dlpack__()
    eng.submit(lambda t: bool(t.__dlpack__()), writes=[t]).wait(10)
    assert noted() == []
    eng.submit(lambda t: bool(t.__dlpack__()), reads=[t]).wait(10)
    assert [reason for _, reason, _ in noted()] == ["read lease in a struct without flags"]


def test_jax_never_writes_so_its_legacy_structs_say_enough(eng, jnp, noted):
    jnp.from_dlpack(eng.zeros((64,), "float32"))
    assert noted() == []


def test_the_place_is_that_of_the_caller(eng):
    eng.from_dlpack(Made(device=(99, 7)).capsule)
    last = est.unordered_exchanges()[-1]
    assert last.what == "device_type(99):7"
    assert last.place.startswith("test_the_place_is_that_of_the_caller (test_unordered.py:")


def test_the_first_of_a_kind_is_logged_and_the_rest_counted():
    _, err = run_program(
        """
        import logging
        logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
        import estafette as est
        from capsules import Made
        with est.Engine(workers=1) as eng:
            for _ in range(100):
                eng.from_dlpack(Made(device=(99, 0)).capsule)
            assert eng.stats().unordered == 100
            assert len(est.unordered_exchanges()) == 64
        """,
        env={"PYTHONPATH": __file__.rsplit("/", 1)[0]},
    )
    assert err.count("estafette WARNING import in <module>") == 1 and "is not ordered" in err


class TestTable:
    def test_every_row_has_a_source_and_a_name_of_its_own(self):
        rows = est.peers()
        assert len({row.name for row in rows}) == len(rows)
        for row in rows:
            assert row.source and row.name
            assert row.stream in ("honoured", "ignored", "host only")
            assert row.omitted_stream in ("default stream", "host wait", "no synchronization")
            assert row.null_stream in ("default stream", "unknown")

    def test_it_says_what_the_peers_here_really_do(self, eng, np, torch, jnp):
        rows = {row.name: row for row in est.peers()}
        t = eng.zeros(3, "float32")
        assert rows["numpy"].honours_read_only == (not np.from_dlpack(t).flags.writeable)
        torch.from_dlpack(t.alias())[0] = 1
        assert not rows["torch"].honours_read_only
        # Immutable arrays cannot be written, whatever their struct says.
        assert rows["jax"].immutable and eng.from_dlpack(jnp.zeros(3)).read_only
        assert rows["torch"].legacy_writable and not rows["torch"].immutable
        with pytest.raises((RuntimeError, ValueError), match="stream"):
            np.zeros(3).__dlpack__(stream=1)
        assert rows["numpy"].stream == "host only"


def test_all_reasons_are_in_the_documents():
    package = Path(__file__).parents[1]
    reasons = re.findall(r'Self::\w+ => "(.+)",', (package / "src/exchange/unordered.rs").read_text())
    assert "unknown device" in reasons
    for place, quote in ((package / "python/estafette/_reports.py", '"'), (package.parents[1] / "docs/exchange.md", "`")):
        text = " ".join(place.read_text().split())
        assert [reason for reason in reasons if f"{quote}{reason}{quote}" not in text] == []
