"""Tensors in other processes whose memory is not shared, that come later, and that are passed on."""

import concurrent.futures
import multiprocessing
import pickle
from multiprocessing.reduction import ForkingPickler

import process_functions
import pytest
from test_processes import fill, other, pytestmark  # noqa: F401

import estafette as est
from conftest import peer, run_program


def copied(eng):
    return eng.stats().copied_for_processes


TELL = """
    for x in link:
        try:
            x.wait(60)
            print(x.shape, x.dtype, np.from_dlpack(x).tolist(), x.read_only, flush=True)
        except est.EstafetteError as error:
            print(error, flush=True)
        del x
    """


class TestStaging:
    def test_an_array_of_a_library_is_copied_once_it_is_ready(self, eng, np, gate, other):
        peer = other(eng, TELL)
        before = copied(eng)
        array = np.arange(6, dtype="float32").reshape(2, 3)
        x = eng.from_dlpack(array)
        eng.submit(gate, writes=[x])
        fill(eng, np, x, 7)
        peer.link.send(x)
        assert copied(eng) == before
        later = fill(eng, np, x, 8)
        gate.open()
        assert peer.read() == "(2, 3) float32 [[7.0, 7.0, 7.0], [7.0, 7.0, 7.0]] True"
        later.wait(10)
        assert copied(eng) - before == 24
        # Rows are in order, whatever the strides are.
        peer.link.send(eng.from_dlpack(np.arange(4, dtype="int16").reshape(2, 2).T))
        assert peer.read() == "(2, 2) int16 [[0, 2], [1, 3]] True"
        peer.link.send(eng.from_dlpack(np.zeros((0, 3))))
        assert peer.read() == "(0, 3) float64 [] True"
        peer.link.close()
        assert peer.ended_well()

    def test_a_writer_does_not_wait_for_the_readers_of_a_copy(self, eng, np, other):
        peer = other(eng, "held = [link.receive(60).result(60) for _ in range(2)]; print('has them', flush=True); sys.stdin.readline()")
        x, y = eng.from_dlpack(np.zeros(3)), eng.zeros(3, "int64", shared=True)
        before = copied(eng)
        peer.link.send(x)
        peer.link.send(y, copy=True)
        assert peer.read() == "has them"
        fill(eng, np, x, 1).wait(10)
        fill(eng, np, y, 1).wait(10)
        assert copied(eng) - before == 48
        peer.write("end")
        assert peer.ended_well()

    def test_a_copy_is_refused_where_that_is_asked_for(self, eng, np, gate, other):
        peer = other(eng, TELL)
        before = copied(eng)
        for private in (eng.zeros(3, "int8"), eng.from_dlpack(np.zeros(3))):
            for refused in (lambda: peer.link.send(private, copy=False), lambda: private.ticket(copy=False)):
                with pytest.raises(est.NotSharedError, match="a copy was refused"):
                    refused()
        late = eng.call(lambda: (gate(), np.zeros(3))[1])
        peer.link.send(late, copy=False)
        gate.open()
        assert "a copy was refused" in peer.read()
        peer.link.send(eng.zeros(3, "int8", shared=True), copy=False)
        assert peer.read().startswith("(3,) int8")
        assert copied(eng) == before
        peer.link.close()
        assert peer.ended_well()

    def test_a_tensor_of_torch_crosses(self, eng, other):
        torch = peer("torch")
        process = other(eng, TELL)
        process.link.send(eng.from_dlpack(torch.arange(3)))
        assert process.read() == "(3,) int64 [0, 1, 2] True"
        process.link.close()
        assert process.ended_well()


class TestLater:
    def test_a_result_of_unknown_shape_is_a_promise_in_the_other_process(self, eng, np, gate, other):
        peer = other(
            eng,
            """
            x, y = link.receive(60), eng.from_ticket(bytes.fromhex(sys.stdin.readline()))
            print(x.is_defined(), x.is_ready(), flush=True)
            after = eng.call(np.add, x, y)
            print(after.result(60).shape, np.from_dlpack(x).tolist(), flush=True)
            """,
        )
        x = eng.call(lambda: (gate(), np.full((2, 2), 1.5))[1])
        peer.link.send(x)
        with x.ticket() as ticket:
            peer.write(bytes(ticket).hex())
            assert peer.read() == "False False"
            gate.open()
            assert peer.read() == "(2, 2) [[1.5, 1.5], [1.5, 1.5]]"
        assert peer.ended_well()

    def test_its_failure_crosses(self, eng, gate, other):
        peer = other(eng, TELL)
        x = eng.call(lambda: (gate(), 1 // 0), name="divide")
        peer.link.send(x)
        gate.open()
        text = peer.read()
        assert "ZeroDivisionError" in text and "divide" in text
        with pytest.raises(est.OperationError):
            x.wait()
        peer.link.close()
        assert peer.ended_well()


def test_what_is_passed_on_is_kept_by_its_owner_when_the_process_between_is_dead(eng, np, other):
    between = other(
        eng,
        """
        x = link.receive(60)
        with eng.door() as door:
            print(door.address, flush=True)
            following = door.accept(60)
        following.send(x)
        print(bytes(x.ticket(once=True)).hex(), flush=True)
        sys.stdin.readline()
        """,
    )
    consumer = other(
        eng,
        """
        before = eng.connect(sys.stdin.readline().strip(), 60)
        x = before.receive(60)
        y = eng.from_ticket(bytes.fromhex(sys.stdin.readline()))
        x.wait(60), y.wait(60)
        print("has both", flush=True)
        sys.stdin.readline()
        print(np.from_dlpack(x).tolist(), np.from_dlpack(y).tolist(), eng.stats().copied_for_processes, flush=True)
        sys.stdin.readline()
        """,
    )
    x = eng.zeros(3, "int64", shared=True)
    fill(eng, np, x, 7)
    between.link.send(x)
    consumer.write(between.read())
    consumer.write(between.read())
    assert consumer.read() == "has both"
    later = fill(eng, np, x, 8)
    between.kill()
    between.process.wait(60)
    consumer.write("go on")
    assert consumer.read() == "[7, 7, 7] [7, 7, 7] 0"
    with pytest.raises(TimeoutError):
        later.wait(0.05)
    consumer.write("end")
    assert consumer.ended_well()
    later.wait(10)
    assert np.from_dlpack(x).tolist() == [8, 8, 8]


@pytest.mark.parametrize("end", ["killed", "in good order"])
def test_what_was_ready_is_passed_on_as_a_copy_once_its_owner_has_ended(eng, np, other, end):
    owner = other(eng, "x = eng.zeros(3, 'int64'); link.send(x); sys.stdin.readline(); link.close()")
    reader = other(
        eng,
        """
        x, y = link.receive(60), eng.from_ticket(bytes.fromhex(sys.stdin.readline()))
        print(np.from_dlpack(x).tolist(), np.from_dlpack(y).tolist(), flush=True)
        """,
    )
    x = owner.link.receive(60).result(60)
    if end == "killed":
        owner.kill()
        with pytest.raises(est.PeerDiedError):
            owner.link.receive(60)
    else:
        owner.write("end")
        assert owner.link.receive(60) is None
        assert owner.ended_well()
    before = copied(eng)
    reader.link.send(x)
    reader.write(bytes(x.ticket(once=True)).hex())
    assert reader.read() == "[0, 0, 0] [0, 0, 0]"
    assert copied(eng) - before == 48
    assert reader.ended_well()


class TestWriting:
    def test_what_the_other_process_writes_is_the_next_version(self, eng, np, other):
        peer = other(
            eng,
            """
            x = link.receive(60)
            eng.submit(lambda before, x: np.add(before, 1, out=x), reads=[x], writes=[x], using=np.from_dlpack).wait(60)
            print(x.read_only, flush=True)
            sys.stdin.readline()
            del x
            y = link.receive(60)
            failed = eng.submit(lambda x: 1 // 0, writes=[y], name="divide")
            failed.exception(60)
            del y, failed
            z = link.receive(60)
            z.wait(60)
            print("has it", flush=True)
            sys.stdin.readline()
            """,
        )
        x, y, z = (eng.zeros(3, "int64", shared="write") for _ in range(3))
        fill(eng, np, x, 4)
        peer.link.send(x, access="write")
        reader = eng.call(lambda x: x.tolist(), x, using=np.from_dlpack)
        assert peer.read() == "False"
        with pytest.raises(TimeoutError):
            reader.result(0.05)
        peer.write("go on")
        assert reader.result(60) == [5, 5, 5]
        peer.link.send(y, access="write")
        with pytest.raises(est.EstafetteError, match="ZeroDivisionError"):
            y.wait(60)
        peer.link.send(z, access="write")
        assert peer.read() == "has it"
        peer.kill()
        with pytest.raises(est.EstafetteError, match=f"process {peer.process.pid} died"):
            z.wait(60)
        for healed in (y, z):
            fill(eng, np, healed, 6)
            assert np.from_dlpack(healed).tolist() == [6, 6, 6]

    def test_other_memory_is_refused_for_writing(self, eng, np, other):
        peer = other(eng, TELL)
        for refused in (eng.zeros(3, "int8"), eng.zeros(3, "int8", shared=True), eng.from_dlpack(np.zeros(3))):
            with pytest.raises(est.NotSharedError, match="shared for writing"):
                peer.link.send(refused, access="write")
        x = eng.zeros(3, "int8", shared="write")
        with pytest.raises(est.InvalidError, match="a copy for writing"):
            peer.link.send(x, access="write", copy=True)
        with pytest.raises(est.InvalidError, match='"read" or "write"'):
            peer.link.send(x, access="alias")
        with pytest.raises(TypeError, match="shared is a bool"):
            eng.zeros(3, "int8", shared="read")
        peer.link.send(x, copy=False)
        assert peer.read() == "(3,) int8 [0, 0, 0] True"
        peer.link.close()
        assert peer.ended_well()


class TestQueues:
    def test_a_pool_takes_any_tensor_and_returns_it(self, eng, np):
        before = copied(eng)
        x = eng.from_dlpack(np.full(4, 3.0))
        shared = eng.zeros(4, "float64", shared=True)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            assert np.from_dlpack(pool.submit(process_functions.doubled, x).result(60)).tolist() == [6] * 4
            assert copied(eng) - before == 32
            late = eng.call(np.full, 4, 5.0)
            assert np.from_dlpack(pool.submit(process_functions.doubled, late).result(60)).tolist() == [10] * 4
            # It comes back without a copy: the process between asks this one to show the memory to this one.
            back = pool.submit(process_functions.same, shared).result(60)
            back.wait(60)
        assert back.read_only and np.from_dlpack(back).tolist() == [0] * 4
        assert copied(eng) - before == 64

    def test_an_engine_made_after_multiprocessing_is_enough(self):
        run_program(
            """
            import multiprocessing
            from multiprocessing.reduction import ForkingPickler
            import pickle
            import numpy as np
            import estafette as est

            with est.Engine(workers=1) as eng:
                x = est.default_engine().from_dlpack(np.arange(3))
                again = pickle.loads(ForkingPickler.dumps(x))
                assert np.from_dlpack(again).tolist() == [0, 1, 2]
            """
        )

    def test_the_pickler_takes_what_comes_later(self, eng, np):
        x = eng.call(np.arange, 3)
        again = pickle.loads(ForkingPickler.dumps(x))
        assert np.from_dlpack(again.result(60)).tolist() == [0, 1, 2]
