"""Tickets: tensors of one process for another, without a link, through anything that carries bytes."""

import os
import pickle
import signal
import socket
import threading

import pytest

import estafette as est
from conftest import until
from estafette._estafette import _from_tickets
from test_processes import fill, other, pytestmark  # noqa: F401


def test_a_ticket_goes_through_anything_and_is_a_promise_at_the_other_end(eng, np, gate, other):
    peer = other(
        eng,
        """
        import pickle
        ticket = pickle.loads(bytes.fromhex(sys.stdin.readline()))
        x, y = eng.from_ticket(ticket), eng.from_ticket(bytes(ticket))
        print(ticket.process, x.is_ready(), flush=True)
        print(eng.call(np.add, x, y).result().shape, int(np.from_dlpack(x)[0]), flush=True)
        del x, y
        sys.stdin.readline()
        late = eng.from_ticket(ticket)
        try:
            late.wait(60)
        except est.OperationError as error:
            print(error, flush=True)
        """,
    )
    x = eng.zeros(3, "int64", shared=True)
    eng.submit(gate, writes=[x])
    fill(eng, np, x, 7)
    ticket = x.ticket()
    later = fill(eng, np, x, 8)
    peer.write(pickle.dumps(ticket).hex())
    assert peer.read() == f"{os.getpid()} False"
    gate.open()
    assert peer.read() == "(3,) 7"
    with pytest.raises(TimeoutError):
        later.wait(0.05)
    ticket.revoke()
    later.wait(10)
    peer.write("go on")
    assert "not valid any more" in peer.read()
    assert peer.ended_well()


def test_a_deadline_is_for_other_machines(eng):
    t = eng.zeros(1, "int8")
    with pytest.raises(est.InvalidError, match="deadline is given without reach"):
        t.ticket(deadline=3.0)
    t.ticket(deadline=10.0).revoke()


@pytest.mark.parametrize("once", [False, True])
def test_the_lease_of_a_ticket_names_the_process_that_uses_it(eng, np, other, once):
    peer = other(
        eng,
        """
        x = eng.from_ticket(bytes.fromhex(sys.stdin.readline()))
        x.wait(60)
        print("used", flush=True)
        sys.stdin.readline()
        """,
    )
    x = eng.zeros(3, "int64", shared=True)
    ticket = x.ticket(once=once)
    later = fill(eng, np, x, 1)
    owner = "a ticket for one use" if once else "a ticket"
    assert f"taken by {owner} " in str(eng.diagnose()) and "in use by" not in str(eng.diagnose())
    peer.write(bytes(ticket).hex())
    assert peer.read() == "used"
    assert f"taken by {owner} in use by process {peer.process.pid} " in str(eng.diagnose())
    ticket.revoke()
    peer.write("go on")
    assert peer.ended_well()
    later.wait(10)


def test_the_tickets_of_a_dead_process_fail(eng, other):
    peer = other(
        eng,
        """
        x = eng.zeros(3, "int64")
        ticket = x.ticket()
        print(bytes(ticket).hex(), flush=True)
        sys.stdin.readline()
        """,
    )
    ticket = est.Ticket(bytes.fromhex(peer.read()))
    assert ticket.process == peer.process.pid
    x = eng.from_ticket(ticket)
    x.wait(60)
    peer.kill()
    peer.process.wait(60)

    def died():
        with pytest.raises(est.PeerDiedError) as caught:
            eng.from_ticket(ticket).wait(60)
        return caught.value.process == peer.process.pid

    until(died)
    assert bytes(x) == bytes(24)


def test_a_ticket_of_a_process_that_has_ended_in_good_order_says_so(eng, other):
    peer = other(eng, 'print(bytes(eng.zeros(3, "int64").ticket(once=True)).hex(), flush=True)')
    ticket = peer.read()
    assert peer.ended_well()
    x = eng.from_ticket(bytes.fromhex(ticket))
    with pytest.raises(est.PeerDiedError, match="died or ended before the tensor was taken") as caught:
        x.wait(60)
    assert caught.value.process == peer.process.pid


def test_a_process_that_stands_still_answers_later(eng, other):
    """`_from_tickets` gives up its wait, and the tensor comes all the same."""
    peer = other(
        eng,
        """
        x = eng.zeros(3, "int64")
        print(bytes(x.ticket(once=True)).hex(), flush=True)
        sys.stdin.readline()
        """,
    )
    ticket = bytes.fromhex(peer.read())
    peer.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, peer.process.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        [x] = _from_tickets(eng, [ticket], 0.01)
        assert not x.is_ready()
    finally:
        peer.process.send_signal(signal.SIGCONT)
    x.wait(60)
    assert bytes(x) == bytes(24)


def test_a_process_that_hangs_up_and_has_no_door_any_more_has_died(eng):
    """Result of another process whose owner dies just then."""
    address = f"estafette-{os.urandom(16).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(f"\0{address}")
        door.listen()

        def dies():
            came, _ = door.accept()
            door.close()
            came.close()

        owner = threading.Thread(target=dies)
        owner.start()
        x = eng.from_ticket(address.encode() + (4711).to_bytes(4, "little") + bytes(24))
        with pytest.raises(est.PeerDiedError) as caught:
            x.wait(60)
        owner.join()
    assert caught.value.process == 4711
