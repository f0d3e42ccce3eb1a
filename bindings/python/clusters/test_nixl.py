"""Tensors between machines, which are two network namespaces here. Each test has a process in each."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from machines import NO_MACHINES, FarMachines, Machines, clock, ip

pytestmark = pytest.mark.skipif(NO_MACHINES is not None, reason=NO_MACHINES or "")


@pytest.fixture(params=[Machines])
def machines(request):
    machines = request.param()
    yield machines
    machines.close()


HAS_TUN = pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="no /dev/net/tun for a slow network")
far = pytest.mark.parametrize("machines", [pytest.param(FarMachines, marks=HAS_TUN, id="far")], indirect=True)


READER = """
    y = from_ticket()
    try:
        y.wait()
        tell(f"{np.from_dlpack(y).min()} {np.from_dlpack(y).max()}")
    except est.EstafetteError as error:
        tell(f"{type(error).__name__} {type(error.__cause__).__name__}: {error}".replace("\\n", " "))
    next_line()
"""


def test_a_tensor_crosses_and_the_owner_writes_after_the_lease_has_returned(machines):
    owner, consumer = machines.both(
        """
        x = eng.zeros(COUNT, "float64")
        fill(x, 7.0)
        with ticket(x):
            next_line()
            assert not is_free(x, 0)  # the ticket itself
        x.wait()
        tell("written")
        """,
        READER,
    )
    consumer.write(owner.read())
    assert consumer.read() == "7.0 7.0"
    owner.write("has come")
    assert owner.read() == "written"
    owner.end()
    consumer.end()


def test_a_pending_value_and_a_ticket_for_one_use_cross(machines):
    owner, consumer = machines.both(
        """
        import threading
        gate = threading.Event()
        x = eng.zeros(COUNT, "float64")
        eng.submit(lambda x: (gate.wait(60), x.fill(3.0)), writes=[x])
        ticket(x, once=True)
        next_line()
        gate.set()
        assert is_free(x, 60)  # once it was read
        tell("written")
        """,
        """
        y = from_ticket()
        try:
            y.wait(0.2)
        except TimeoutError:
            tell("pending")
        y.wait()
        assert (np.from_dlpack(y) == 3.0).all()
        tell("ready")
        """,
    )
    consumer.write(owner.read())
    assert consumer.read() == "pending"
    owner.write("go on")
    assert consumer.read() == "ready"
    assert owner.read() == "written"
    consumer.end()
    owner.end()


def test_a_ticket_may_be_revoked_once_the_other_machine_has_asked_although_the_value_is_pending(machines):
    owner, consumer = machines.both(
        """
        import threading
        gate = threading.Event()
        x = eng.zeros(COUNT, "float64")
        eng.submit(lambda x: (gate.wait(60), x.fill(3.0)), writes=[x])
        with ticket(x):
            next_line()
        gate.set()
        next_line()
        """,
        """
        from estafette._estafette import _from_tickets
        [y] = _from_tickets(eng, [bytes.fromhex(sys.stdin.readline())])
        assert not y.is_ready()
        tell("kept")
        y.wait()
        assert (np.from_dlpack(y) == 3.0).all()
        tell("ready")
        """,
    )
    consumer.write(owner.read())
    assert consumer.read() == "kept"
    owner.write("revoke")
    assert consumer.read() == "ready"
    owner.write("end")
    owner.end()
    consumer.end()


def test_what_turns_out_to_be_memory_of_a_third_process_is_copied(machines):
    owner = machines.start(
        0,
        """
        import threading
        gate = threading.Event()
        x = eng.zeros(COUNT, "float64")
        eng.submit(lambda x: (gate.wait(60), x.fill(3.0)), writes=[x])
        with x.ticket() as kept:
            tell(bytes(kept).hex())
            next_line()
            gate.set()
            next_line()
        assert is_free(x, 30)
        tell("free")
        """,
    )
    between = machines.start(
        0,
        """
        y = from_ticket()
        kept = ticket(y)  # nothing is known of its memory
        next_line()
        del y, kept
        next_line()
        """,
    )
    consumer = machines.start(1, READER)
    between.write(owner.read())
    consumer.write(between.read())
    owner.write("go on")
    assert consumer.read() == "3.0 3.0"
    between.write("release")
    owner.write("revoke")
    assert owner.read() == "free"
    for process in (owner, between, consumer):
        process.end()


def test_a_result_of_unknown_shape_in_private_memory_crosses(machines):
    owner, consumer = machines.both(
        """
        import threading
        gate = threading.Event()
        x = eng.call(lambda: (gate.wait(60), np.arange(COUNT, dtype="float64"))[1])
        ticket(x, once=True)
        next_line()
        gate.set()
        next_line()
        assert eng.stats().copied_for_processes == 8 * COUNT
        """,
        """
        y = from_ticket()
        assert not y.is_defined()
        tell("pending")
        y.wait()
        tell(f"{y.shape} {np.from_dlpack(y)[-1]}")
        """,
    )
    consumer.write(owner.read())
    assert consumer.read() == "pending"
    owner.write("go on")
    assert consumer.read() == "(1048576,) 1048575.0"
    owner.write("has come")
    consumer.end()
    owner.end()


def test_a_failure_crosses_with_its_cause_and_a_void_ticket_is_refused(machines):
    owner, consumer = machines.both(
        """
        x = eng.zeros(4, "float64")
        def fails(x):
            raise RuntimeError("the camera is off")
        eng.submit(fails, writes=[x])
        kept = ticket(x)
        y = eng.zeros(4, "float64")
        ticket(y).revoke()
        next_line()
        x.clear_error()
        """,
        """
        for _ in range(2):
            y = from_ticket()
            try:
                y.wait()
            except est.EstafetteError as error:
                tell(str(error).replace("\\n", " "))
        """,
    )
    consumer.write(owner.read())
    failure = consumer.read()
    assert "the camera is off" in failure and f"process {owner.pid} on 10.211.77.1" in failure, failure
    consumer.write(owner.read())
    assert "not valid any more" in consumer.read()
    owner.write("end")
    owner.end()
    consumer.end()


def test_strides_empty_tensors_and_many_tensors_cross(machines):
    owner, consumer = machines.both(
        """
        base = eng.zeros((64, 64), "float32")
        eng.submit(lambda x: np.copyto(x, np.arange(4096).reshape(64, 64)), writes=[base])
        part = eng.from_dlpack(np.from_dlpack(base)[3:60:2, 5:9])
        kept = [ticket(part), ticket(eng.zeros((0, 3), "int8"))]
        many = [eng.zeros(100, "int64") for _ in range(200)]
        for number, x in enumerate(many):
            fill(x, number)
            kept.append(ticket(x))
        next_line()
        kept.clear()
        """,
        """
        y = from_ticket()
        y.wait()
        assert (np.from_dlpack(y) == np.arange(4096).reshape(64, 64)[3:60:2, 5:9]).all()
        y = from_ticket()
        y.wait()
        assert y.shape == (0, 3)
        many = [from_ticket() for _ in range(200)]
        for number, y in enumerate(many):
            y.wait()
            assert (np.from_dlpack(y) == number).all()
        try:
            eng.submit(lambda y: y.fill(0), writes=[y])
        except est.EstafetteError as error:
            assert "read-only" in str(error), error
            tell("all")
        """,
    )
    for _ in range(202):
        consumer.write(owner.read())
    assert consumer.read() == "all"
    owner.write("end")
    owner.end()
    consumer.end()


def test_memory_that_its_owner_has_released_goes_although_the_connection_is_in_use(machines):
    rounds = 600
    owner, consumer = machines.both(
        f"""
        def segments():
            with open("/proc/self/maps") as maps:
                return sum("estafette-segment" in line for line in maps)

        for value in range({rounds}):
            x = eng.zeros(8, "float64", shared="write")  # in a segment of its own
            fill(x, value)
            ticket(x, once=True)
            del x
            next_line()
        until(lambda: segments() < 300, 20)  # an unused connection is closed after 30 s
        tell("gone")
        """,
        f"""
        for value in range({rounds}):
            y = from_ticket()
            y.wait()
            tell(np.from_dlpack(y).max())
        next_line()
        """,
    )
    for value in range(rounds):
        consumer.write(owner.read())
        assert consumer.read() == str(float(value))
        owner.write("go on")
    assert owner.read() == "gone"
    owner.end()
    consumer.end()


def test_an_owner_that_dies_while_it_is_read_fails_the_reader(machines):
    machines.slow()
    owner, consumer = machines.both(
        """
        x = eng.zeros(COUNT, "float64")
        ticket(x, once=True)
        next_line()
        """,
        READER,
    )
    consumer.write(owner.read())
    wait_for_traffic(machines)
    owner.kill()
    text = consumer.read()
    assert f"process {owner.pid} on 10.211.77.1 died" in text and "PeerDiedError" in text, text
    consumer.end()


def test_a_consumer_that_dies_while_it_reads_releases_its_lease(machines):
    machines.slow()
    owner, consumer = machines.both(
        """
        x = eng.zeros(COUNT, "float64")
        ticket(x, once=True)
        next_line()
        x.wait()
        assert is_free(x, 30)
        tell("free")
        """,
        READER,
    )
    consumer.write(owner.read())
    wait_for_traffic(machines)
    consumer.kill()
    owner.write("look")
    assert owner.read() == "free"
    owner.end()


def wait_for_traffic(machines, least=1 << 20):
    """Until a part of the tensor has crossed."""
    file = f"/sys/class/net/{machines.devices[1]}/statistics/rx_bytes"
    deadline = time.monotonic() + 120
    read = lambda: int(
        subprocess.run(["ip", "netns", "exec", machines.names[1], "cat", file], capture_output=True, text=True).stdout
    )
    while read() < least:
        assert time.monotonic() < deadline, "nothing was read"
        time.sleep(0.01)


def test_a_cable_that_is_put_back_before_the_deadline_goes_on(machines):
    machines.slow()
    owner, consumer = machines.both(
        """
        x = eng.zeros(COUNT, "float64")
        fill(x, 5.0)
        ticket(x, once=True)
        assert is_free(x, 60)
        tell("free")
        """,
        READER,
        deadline=20.0,
    )
    consumer.write(owner.read())
    wait_for_traffic(machines)
    machines.pull()
    machines.put_back()
    assert consumer.read() == "5.0 5.0"
    assert owner.read() == "free"
    owner.end()
    consumer.end()


@far
def test_delay_and_loss_lose_nothing_and_nobody_is_suspected(machines):
    owner, consumer = machines.both(
        """
        import threading
        gate = threading.Event()
        large, late, failed = eng.zeros(COUNT // 8, "float64"), eng.zeros(4, "float64"), eng.zeros(4, "float64")
        fill(large, 7.0)
        eng.submit(lambda x: (gate.wait(60), x.fill(3.0)), writes=[late])
        def fails(x):
            raise RuntimeError("the camera is off")
        eng.submit(fails, writes=[failed])
        for x in (large, late, failed):
            ticket(x, once=True)
        many = [eng.zeros(4, "float64") for _ in range(50)]
        for number, x in enumerate(many):
            fill(x, number)
            ticket(x, once=True)
        next_line()
        gate.set()
        for x in (large, late, *many):
            while not is_free(x, 0.1):  # once it was read
                assert "suspected" not in str(eng.diagnose())
        failed.clear_error()
        tell("written")
        """,
        """
        large, late, failed = [from_ticket() for _ in range(3)]
        many = [from_ticket() for _ in range(50)]
        for number, y in enumerate(many):
            y.wait()
            assert (np.from_dlpack(y) == number).all()
        assert not late.is_ready()
        tell("pending")
        for y, value in ((large, 7.0), (late, 3.0)):
            y.wait()
            assert (np.from_dlpack(y) == value).all()
        try:
            failed.wait()
        except est.EstafetteError as error:
            assert "the camera is off" in str(error), error
            tell("ready")
        """,
    )
    for _ in range(53):
        consumer.write(owner.read())
    assert consumer.read() == "pending"
    owner.write("go on")
    assert consumer.read() == "ready"
    assert owner.read() == "written"
    assert machines.lost > 0
    owner.end()
    consumer.end()


def test_an_agent_is_left_alone_once_the_destructors_of_nixl_may_run(machines):
    """At the end of the owner, as its consumer ends too."""
    owner, consumer = machines.both(
        """
        import ctypes
        libc = ctypes.CDLL(None)
        # Registered before NIXL is loaded, so called after it is gone: the exit is seen, and goes on later.
        for handler, argument in ((libc.usleep, 2_000_000), (libc.close, 1)):
            libc.__cxa_atexit(handler, ctypes.c_void_p(argument), None)
        x = eng.zeros(4, "float64")
        fill(x, 7.0)
        ticket(x, once=True)
        next_line()
        """,
        READER,
    )
    consumer.write(owner.read())
    assert consumer.read() == "7.0 7.0"
    owner.process.stdin.close()
    assert owner.process.stdout.read() == ""
    folder = f"/proc/{owner.pid}/fd"
    before = os.listdir(folder)
    consumer.end()
    time.sleep(0.5)
    assert os.listdir(folder) == before
    owner.end()


@pytest.mark.parametrize("module", ["libplugin_UCX", "libuct_cma"])
def test_the_exit_waits_for_the_agent_that_is_being_made(machines, module):
    """While its backend is loaded, and while that starts."""
    owner, consumer = machines.both(
        """
        x = eng.zeros(4, "float64")
        ticket(x, once=True)
        next_line()
        """,
        """
        import ctypes
        libc = ctypes.CDLL(None)
        # As above. What has no statics any more has the time to fail.
        libc.__cxa_atexit(libc.usleep, ctypes.c_void_p(500_000), None)
        x = eng.from_ticket(bytes.fromhex(next_line()))
        until(lambda: MODULE in open("/proc/self/maps").read())
        libc.exit(0)
        """.replace("MODULE", repr(module)),
    )
    consumer.write(owner.read())
    assert consumer.process.wait(60) == 0
    owner.end()


@far
@pytest.mark.parametrize("dies", ["owner", "consumer"])
def test_a_death_behind_delay_and_loss_is_known(machines, dies):
    machines.slow()
    owner, consumer = machines.both(
        """
        x = eng.zeros(8 * COUNT, "float64")
        ticket(x, once=True)
        assert is_free(x, 60)
        tell("free")
        """,
        READER,
    )
    consumer.write(owner.read())
    wait_for_traffic(machines, 1 << 18)
    if dies == "owner":
        owner.kill()
        text = consumer.read()
        assert f"process {owner.pid} on 10.211.77.1" in text and "PeerDiedError" in text, text
        consumer.end()
    else:
        consumer.kill()
        assert owner.read() == "free"
        owner.end()


SUSPICIOUS = """
    x = eng.zeros(COUNT, "float64")
    ticket(x, once=True)
    next_line()
    write = eng.submit(lambda x: x.fill(-1.0), writes=[x])
    def suspicion():
        "What a wait says that only the silent process holds up."
        try:
            write.wait()
        except est.LeaseHeldError as error:
            return str(error) if "suspected" in str(error) else ""
    tell(until(suspicion))
    next_line()
    assert "suspected" in str(eng.diagnose())
    assert not write.done()  # silence is not death
    if next_line() == "declare":
        est.declare_dead("10.211.77.2")
    until(write.done)
    write.wait()
    assert "suspected" not in str(eng.diagnose())
    tell("free")
"""


AGAIN = """
    z = eng.zeros(4, "float64")
    fill(z, 9.0)
    kept = ticket(z)
    next_line()
"""


def test_a_silent_consumer_keeps_its_lease_until_the_cable_is_put_back(machines):
    machines.slow()
    owner, consumer = machines.both(SUSPICIOUS + AGAIN, READER + READER, deadline=2.0, lease_timeout=0.1)
    consumer.write(owner.read())
    wait_for_traffic(machines)
    machines.pull()
    owner.write("look")
    suspicion = owner.read()
    assert f"process {consumer.pid} on 10.211.77.2 is suspected" in suspicion, suspicion
    text = consumer.read()
    assert "has been silent" in text and "PeerDiedError" in text, text
    owner.write("look")
    machines.put_back()
    owner.write("wait")
    assert owner.read() == "free"
    consumer.write("go on")
    consumer.write(owner.read())
    assert consumer.read() == "9.0 9.0"
    owner.write("end")
    owner.end()
    consumer.end()


def test_a_lease_ends_after_a_cut_that_is_longer_than_a_socket_tries_by_itself(machines):
    machines.slow()
    # Three seconds, and not a quarter of an hour.
    tries = ["sh", "-c", "echo 3 > /proc/sys/net/ipv4/tcp_retries2"]
    subprocess.run(["ip", "netns", "exec", machines.names[0], *tries], check=True)
    owner, consumer = machines.both(SUSPICIOUS, READER, deadline=2.0, lease_timeout=0.1)
    consumer.write(owner.read())
    wait_for_traffic(machines)
    machines.pull()
    owner.write("look")
    assert "suspected" in owner.read()
    assert "has been silent" in consumer.read()
    time.sleep(6)
    owner.write("look")
    machines.put_back()
    owner.write("wait")
    assert owner.read() == "free"
    owner.end()
    consumer.end()


def test_a_consumer_that_dies_releases_its_lease_although_its_forked_child_lives(machines):
    machines.slow()
    owner, consumer = machines.both(
        """
        x = eng.zeros(COUNT, "float64")
        ticket(x, once=True)
        next_line()
        assert is_free(x, 30)
        tell("free")
        """,
        """
        import os
        y = from_ticket()
        next_line()
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        tell(child)
        next_line()
        """,
    )
    consumer.write(owner.read())
    wait_for_traffic(machines)
    consumer.write("fork")
    child = int(consumer.read())
    consumer.kill()
    owner.write("look")
    assert owner.read() == "free"
    os.kill(child, signal.SIGKILL)
    owner.end()


def test_a_transfer_whose_ports_are_closed_fails_and_names_them(machines):
    (a, b), (_, device) = machines.names, machines.devices
    # UCX of the owner is at an address from which nothing comes back.
    ip("-n", a, "link", "add", "ucx0", "type", "veth", "peer", "name", "ucx1")
    ip("-n", a, "addr", "add", "10.211.78.1/24", "dev", "ucx0")
    for name in ("ucx0", "ucx1"):
        ip("-n", a, "link", "set", name, "up")
    ip("-n", b, "neigh", "add", "10.211.77.9", "lladdr", "02:00:00:00:00:09", "dev", device)
    ip("-n", b, "route", "add", "10.211.78.0/24", "via", "10.211.77.9")
    source = """
        x = eng.zeros(COUNT, "float64")
        ticket(x, once=True)
        assert is_free(x, 60)
        tell("free")
        """
    owner = machines.start(0, source, 2.0, UCX_NET_DEVICES="ucx0")
    consumer = machines.start(1, READER, 2.0)
    consumer.write(owner.read())
    text = consumer.read()
    assert "its ports of UCX may be closed" in text and f"process {owner.pid} on 10.211.77.1" in text, text
    assert owner.read() == "free"
    owner.end()
    consumer.end()


IN_C = """
    import ctypes
    import os
    import re
    from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

    eng.zeros(1, "int8").ticket(reach=HOST, deadline=DEADLINE)  # which finds NIXL among the packages of Python
    ctypes.pythonapi.PyCapsule_GetPointer.restype = c_void_p
    ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, c_char_p]
    FIRST = ctypes.pythonapi.PyCapsule_GetPointer(est.c_api(), b"estafette.c_api") + 16
    with open(os.path.join(os.path.dirname(est.__file__), "include", "estafette.h")) as header:
        NAMES = re.findall(r"\\(\\*(\\w+)\\)\\(", header.read().split("struct estafette_api {")[1])

    def in_c(name, *types):
        address = ctypes.cast(FIRST, POINTER(c_void_p))[NAMES.index(name)]
        return ctypes.CFUNCTYPE(c_int32, *types)(address)

    class Options(ctypes.Structure):
        _fields_ = [
            ("size", c_uint32), ("once", c_int32), ("copy", c_int32), ("reach", c_char_p), ("deadline_ns", c_uint64)
        ]

    def ticket(x, once):
        options = Options(ctypes.sizeof(Options), once, 0, HOST.encode(), int(DEADLINE * 1e9))
        made, text, size = c_void_p(), (c_uint8 * 384)(), c_size_t()
        create = in_c("ticket_create", c_void_p, POINTER(Options), POINTER(c_void_p))
        assert create(x.c_handle(), byref(options), byref(made)) == 0
        bytes_of = in_c("ticket_bytes", c_void_p, POINTER(c_uint8), c_size_t, POINTER(c_size_t))
        assert bytes_of(made, text, 384, byref(size)) == 0
        tell(bytes(text[: size.value]).hex())

    def declare_dead(host):
        assert in_c("declare_dead", c_char_p, c_uint32)(host.encode(), 0) == 0

    est.declare_dead = declare_dead
"""


@pytest.mark.parametrize("language", ["", IN_C], ids=["Python", "C"])
def test_a_silent_consumer_keeps_its_lease_until_it_is_declared_dead(machines, language):
    machines.slow()
    owner, consumer = machines.both(language + SUSPICIOUS, READER, deadline=2.0, lease_timeout=0.1)
    consumer.write(owner.read())
    wait_for_traffic(machines)
    machines.pull()
    owner.write("look")
    assert "suspected" in owner.read()
    owner.write("look")
    owner.write("declare")
    assert owner.read() == "free"
    owner.end()


def test_an_owner_that_is_not_there_any_more_and_one_that_never_listened(machines):
    owner, consumer = machines.both(
        """
        x = eng.zeros(4, "float64")
        ticket(x)
        tell(bytes(x.ticket()).hex())
        next_line()
        """,
        READER,
    )
    known, local = owner.read(), owner.read()
    owner.kill()
    consumer.write(known)
    text = consumer.read()
    assert f"process {owner.pid} on 10.211.77.1 died" in text, text
    consumer.write("end")
    other = machines.start(1, READER)
    other.write(local)
    text = other.read()
    assert "NotSharedError" in text and "another network namespace" in text, text
    other.end()
    consumer.end()


def test_without_nixl_both_sides_say_what_is_missing(machines):
    owner, consumer = machines.both(
        """
        x = eng.zeros(4, "float64")
        ticket(x)
        next_line()
        """,
        "",
    )
    consumer.end()
    lost = {"ESTAFETTE_NIXL_LIBRARY": "/nowhere/libnixl_capi.so"}
    consumer = machines.start(1, READER, **lost)
    consumer.write(owner.read())
    text = consumer.read()
    assert "NIXL is not available: cannot load /nowhere/libnixl_capi.so" in text, text
    assert "ESTAFETTE_NIXL_LIBRARY" in text and "10.211.77.1" in text, text
    lost = machines.start(
        0,
        """
        try:
            ticket(eng.zeros(4, "float64"))
        except est.EstafetteError as error:
            tell(error)
        """,
        **lost,
    )
    assert "NIXL is not available" in lost.read()
    lost.end()
    owner.write("end")
    owner.end()
    consumer.end()


def test_addresses_that_are_none_are_refused_in_words(machines):
    process = machines.start(
        0,
        """
        x = eng.zeros(4, "float64")
        for wrong in [{"reach": "10.9.9.9"}, {"reach": "host:port"}, {"reach": ""}, {"reach": HOST, "deadline": 0.0}]:
            try:
                x.ticket(**wrong)
            except est.EstafetteError as error:
                tell(error)
        """,
    )
    assert "listening for other machines" in process.read()
    assert process.read() == '"host:port" is no address of this machine: it is `host` or `host:port`'
    assert "no address of this machine" in process.read()
    assert "a deadline of 0ns" in process.read()
    process.end()


def test_a_stranger_at_the_port_learns_nothing_and_harms_nothing(machines):
    owner, consumer = machines.both(
        """
        x = eng.zeros(4, "float64")
        kept = ticket(x)
        next_line()
        """,
        """
        import socket, struct
        ticket = bytes.fromhex(sys.stdin.readline())
        reach = ticket[42 + 4 + 8 + 16:]
        key, port = reach[:16], struct.unpack("<H", reach[20:22])[0]
        hello = b"estafette net 1\\0" + key + struct.pack("<II", 1, 1000)
        frame = lambda kind, body: struct.pack("<IB", len(body), kind) + body
        nonsense = [
            b"GET / HTTP/1.1\\r\\n\\r\\n" * 100,
            frame(1, b"estafette net 1\\0" + bytes(16) + struct.pack("<II", 1, 1000)),
            frame(3, bytes(24)),
            frame(1, hello) + frame(3, bytes(3)),
            frame(1, hello) + frame(4, bytes(100)),
            frame(1, hello) + frame(9, b""),
            frame(1, hello) + frame(1, hello),
        ]
        for bytes_ in nonsense:
            with socket.create_connection((HOST, port)) as stranger:
                stranger.settimeout(30)
                stranger.sendall(bytes_)
                try:
                    while stranger.recv(1000):
                        pass
                except ConnectionResetError:
                    pass
        y = eng.from_ticket(ticket)
        y.wait()
        tell("all")
        """,
    )
    consumer.write(owner.read())
    assert consumer.read() == "all"
    owner.write("end")
    owner.end()
    consumer.end()


def test_a_process_that_reaches_no_machine_has_no_thread_for_it_and_does_not_load_nixl(machines):
    process = machines.start(
        0,
        """
        import pathlib
        x = eng.zeros(4, "float64")
        bytes(x.ticket())
        names = {path.joinpath("comm").read_text().strip() for path in pathlib.Path("/proc/self/task").iterdir()}
        assert not any(name.startswith("estafette-netw") for name in names), names
        assert "nixl" not in pathlib.Path("/proc/self/maps").read_text()
        """,
    )
    process.end()


def has_clocks():
    with contextlib.suppress(OSError):
        return subprocess.run([*clock(1), "true"], capture_output=True).returncode == 0
    return False


@pytest.mark.skipif(not has_clocks(), reason="no time namespaces")
@pytest.mark.parametrize("machines", [Machines, pytest.param(FarMachines, marks=HAS_TUN, id="far")], indirect=True)
@pytest.mark.parametrize("ahead", [(86_400, 0), (0, 86_400)], ids=["owner ahead", "consumer ahead"])
def test_a_report_of_two_machines_is_on_one_axis_although_their_clocks_differ_by_a_day(machines, ahead, tmp_path):
    paths = [str(tmp_path / f"{name}.pftrace") for name in ("owner", "consumer")]
    owner = machines.start(
        0,
        f"""
        import threading
        gate = threading.Event()
        with est.record({paths[0]!r}):
            x = eng.zeros(COUNT, "float64")
            eng.submit(lambda x: (gate.wait(60), x.fill(3.0)), writes=[x], name="produce")
            ticket(x, once=True)
            next_line()
            time.sleep(0.2)
            gate.set()
            next_line()
            eng.submit(lambda x: None, reads=[x], name="later").wait()
        tell("saved")
        """,
        ahead=ahead[0],
    )
    consumer = machines.start(
        1,
        f"""
        with est.record({paths[1]!r}):
            y = from_ticket()
            z = eng.call(lambda y: y.sum(), y, name="consume")
            tell("asked")
            z.wait()
        tell("used")
        """,
        ahead=ahead[1],
    )
    consumer.write(owner.read())
    assert consumer.read() == "asked"
    owner.write("go on")
    assert consumer.read() == "used"
    owner.write("go on")
    assert owner.read() == "saved"
    for process in (owner, consumer):
        process.end()
    chrome = tmp_path / "both.json"
    command = [sys.executable, "-m", "estafette", "report", *paths]

    def report(*arguments):
        return subprocess.run([*command, *arguments], check=True, capture_output=True, text=True, timeout=60).stdout

    data = json.loads(report("--json", "--chrome", chrome))
    [words] = data["clocks"]
    said = re.search(r"differ by 86400 s ± ([0-9.]+) (ns|µs|ms), and their times are shifted", words)
    assert said, words
    assert "clocks: the clocks of" in report("--short") or "clocks: the clocks of" in report()
    # The chain of causes: `produce`, then `consume` on the other machine, then `later`. Three digits of the uncertainty were printed.
    uncertainty = 1.01 * float(said[1]) * {"ns": 1e-3, "µs": 1, "ms": 1e3}[said[2]]
    assert uncertainty < 200_000, words
    spans = {}
    for event in json.loads(chrome.read_text())["traceEvents"]:
        name = event["name"].split(" @")[0]
        if event.get("ph") == "X" and name in ("produce", "consume", "later") and event.get("cat") == "operation":
            spans[name] = (event["ts"], event["ts"] + event["dur"])
    assert spans["produce"][1] <= spans["consume"][0] + uncertainty, (spans, words)
    assert spans["consume"][1] <= spans["later"][0] + uncertainty, (spans, words)
    # The operation on the other machine is named as what the wait was for.
    [produce] = [row for row in data["operations"] if row["name"].startswith("`produce @")]
    assert produce["blamed_ns"] >= 150_000_000, data["operations"]
