"""Reports of leases: who took them, where, for what, and since when, in fields and in words."""

import asyncio
import sys
import threading
import time

import pytest

import estafette as est
from conftest import peer, until


@pytest.fixture
def recorded():
    """Call sites are recorded during the test."""
    before = est.record_call_sites()
    yield
    est.record_call_sites(before)


def blocking(eng, name):
    """The leases that the operation `name` waits for."""
    until(lambda: any(op.name == name and op.status == "waiting" for op in eng.diagnose().operations))
    (waiting,) = [op for op in eng.diagnose().operations if op.name == name]
    assert waiting.lease is None
    return [blocked.lease for blocked in waiting.blocked_by]


def fill(eng, np, tensor):
    return eng.submit(lambda x: x.fill(1), writes=[tensor], using=np.from_dlpack, name="fill")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tickets need Linux")
def test_thousands_of_leases_that_differ_in_age_alone_are_one_clause(np):
    eng = est.Engine(workers=1, lease_timeout=0.05)
    t = eng.zeros(2, "int8", shared=True)
    tickets = [t.ticket(once=True) for _ in range(2000)]
    op = fill(eng, np, t)
    with pytest.raises(est.LeaseHeldError, match=r"by a ticket for one use .* ago \(and 1999 more like it\)\.") as caught:
        op.wait()
    assert len(caught.value.leases) == 2000
    lines = str(eng.diagnose()).splitlines()
    assert len(lines) == 2 and all("1999 more like it" in line and len(line) < 300 for line in lines), lines
    for ticket in tickets:
        ticket.revoke()
    op.wait()
    eng.shutdown()


class TestFields:
    def test_a_lease_knows_access_owner_and_age(self, eng, np):
        t = eng.zeros(2, "int8")
        began = time.monotonic()
        for exporter, access in ((t, "read"), (t.for_write(), "write")):
            array = np.from_dlpack(exporter)
            op = fill(eng, np, t)
            (lease,) = blocking(eng, "fill")
            assert lease.access == access and lease.held
            assert lease.owner.startswith("test_a_lease_knows_access_owner_and_age (test_lease_reports.py:")
            assert 0 <= lease.age <= time.monotonic() - began + 0.05
            # Nothing more is recorded unless it is asked for.
            assert (lease.object, lease.file, lease.line, lease.function) == (None, None, None, None)
            assert str(lease) == lease.text and lease.text.startswith(f"{access} lease taken by {lease.owner}")
            del array
            op.wait()

    def test_the_age_grows(self, eng, np):
        t = eng.zeros(2, "int8")
        array = np.from_dlpack(t)
        op = fill(eng, np, t)
        (before,) = blocking(eng, "fill")
        time.sleep(0.05)
        (after,) = blocking(eng, "fill")
        assert after.age - before.age >= 0.03
        del array
        op.wait()

    def test_held_leases_and_waiting_ones_are_distinguished(self, eng, np):
        t = eng.zeros(2, "int8")
        array = np.from_dlpack(t)
        op = fill(eng, np, t)
        taking = threading.Thread(target=lambda: np.from_dlpack(t))
        taking.start()
        leases = lambda: [op.lease for op in eng.diagnose().operations if op.lease]
        until(lambda: len(leases()) == 2)
        assert sorted(lease.held for lease in leases()) == [False, True]
        assert [op.status for op in eng.diagnose().operations if op.lease] == ["held", "waiting"]
        del array
        op.wait()
        taking.join(20)

    def test_the_error_of_a_wait_has_the_fields_too(self, eng, np, recorded):
        t = eng.zeros(2, "int8")
        array = np.from_dlpack(t)
        op = fill(eng, np, t)
        for wait in (op.wait, t.wait, eng.wait_all):
            with pytest.raises(est.LeaseHeldError) as caught:
                wait()
            (lease,) = caught.value.held
            assert isinstance(lease, est.Lease) and lease.file == __file__ and lease.held
            assert len(caught.value.leases) == 1 and lease.owner in caught.value.leases[0]
        del array
        op.wait()

    def test_every_lease_in_the_way_is_named(self, eng, np, recorded):
        t = eng.zeros(2, "int8")
        first, second = np.from_dlpack(t), np.from_dlpack(t)
        op = fill(eng, np, t)
        leases = blocking(eng, "fill")
        assert len(leases) == 2 and leases[0].line == leases[1].line
        del first
        assert len(blocking(eng, "fill")) == 1
        del second
        op.wait()


class TestCallSites:
    def test_the_switch_says_what_it_was(self):
        before = est.record_call_sites(True)
        assert est.record_call_sites(False) is True
        assert est.record_call_sites(before) is False

    def test_file_line_and_function(self, eng, np, recorded):
        t = eng.zeros(2, "int8")

        def takes():
            return np.from_dlpack(t)

        array = takes()
        op = fill(eng, np, t)
        (lease,) = blocking(eng, "fill")
        assert (lease.file, lease.function) == (__file__, "takes")
        assert lease.line == takes.__code__.co_firstlineno + 1
        del array
        op.wait()

    def test_what_was_taken_before_the_switch_has_none(self, eng, np):
        t = eng.zeros(2, "int8")
        array = np.from_dlpack(t)
        before = est.record_call_sites()
        op = fill(eng, np, t)
        (lease,) = blocking(eng, "fill")
        assert lease.file is None
        est.record_call_sites(before)
        del array
        op.wait()

    @pytest.mark.parametrize("name", ["jax.numpy", "torch"])
    def test_a_library_is_named_and_the_line_is_that_of_its_caller(self, eng, np, recorded, name):
        library = peer(name)
        t = eng.zeros(16, "float32")
        array = library.from_dlpack(t)
        op = fill(eng, np, t)
        (lease,) = blocking(eng, "fill")
        assert lease.library == name.split(".")[0]
        assert (lease.file, lease.function) == (__file__, "test_a_library_is_named_and_the_line_is_that_of_its_caller")
        del array
        op.wait()

    def test_scoped_leases_know_what_using_has_made(self, eng, np, recorded):
        a, b = eng.zeros(2, "int8"), eng.zeros(2, "int8")
        with eng.access(reads=[a], writes=[b], using=np.from_dlpack) as (x, y):
            op = fill(eng, np, a)
            (lease,) = blocking(eng, "fill")
            assert (lease.access, lease.object, lease.file) == ("read", "numpy.ndarray", __file__)
            assert "for a numpy.ndarray" in lease.text
            del x, y
        op.wait()

    def test_asynchronous_scoped_leases_too(self, np, recorded):
        async def main(eng):
            t = eng.zeros(2, "int8")
            async with t.read(np.from_dlpack) as view:
                op = fill(eng, np, t)
                (lease,) = [blocked.lease for op in eng.diagnose().operations for blocked in op.blocked_by]
                assert (lease.object, lease.file, lease.function) == ("numpy.ndarray", __file__, "main")
                del view
            await op

        with est.Engine(workers=1) as eng:
            asyncio.run(main(eng))

    def test_an_array_that_comes_back_tells_what_the_lease_was_for(self, eng, np, recorded):
        t = eng.zeros(2, "int8")
        derived = eng.from_dlpack(np.from_dlpack(t))
        op = fill(eng, np, t)
        (lease,) = blocking(eng, "fill")
        assert lease.object == "numpy.ndarray"
        del derived
        op.wait()


class TestViewsOfBodies:
    def test_a_view_that_outlives_its_body_is_known_by_the_operation(self, eng, np):
        t = eng.zeros(2, "int8")
        kept = []
        eng.submit(kept.append, reads=[t], using=np.from_dlpack, name="keeps it").wait()
        op = fill(eng, np, t)
        (lease,) = blocking(eng, "fill")
        assert (lease.access, lease.owner, lease.held) == ("read", "operation `keeps it`", True)
        kept.clear()
        op.wait()

    def test_one_taken_by_hand_in_the_body_is_known_by_its_line(self, eng, np, recorded):
        t = eng.zeros(2, "int8")
        kept = []

        def keeps(t):
            kept.append(np.from_dlpack(t))

        eng.submit(keeps, reads=[t]).wait()
        op = fill(eng, np, t)
        (lease,) = blocking(eng, "fill")
        assert lease.function == "keeps" and lease.line == keeps.__code__.co_firstlineno + 1
        kept.clear()
        op.wait()


def test_waits_for_readiness_are_no_leases(eng, np, gate):
    t = eng.zeros(2, "int8")
    eng.submit(gate, writes=[t])

    async def main():
        waiting = asyncio.ensure_future(t)
        await asyncio.sleep(0.01)
        assert all(op.lease is None for op in eng.diagnose().operations)
        gate.open()
        await waiting

    asyncio.run(main())
