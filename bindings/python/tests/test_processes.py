"""Tensors of one process in another, in two real processes. Each test starts a program of its own and talks to it by links and pipes."""

import asyncio
import contextlib
import copy
import gc
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler

import pytest

import estafette as est
from conftest import run_program, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="links between processes need Linux")

PRELUDE = """
import sys
import time
import numpy as np
import estafette as est

eng = est.Engine(workers=2, shared=True)
link = eng.connect(sys.argv[1])
"""


class Other:
    """Another process with a link to this one. It has `eng` and `link`."""

    def __init__(self, eng, source):
        with eng.door() as door:
            program = PRELUDE + textwrap.dedent(source)
            command = [sys.executable, "-X", "faulthandler", "-c", program, door.address]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.link = door.accept(60)
        assert self.link.process == self.process.pid

    def read(self):
        line = self.process.stdout.readline()
        assert line, "the other process has ended"
        return line.strip()

    def write(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()

    def ended_well(self):
        return self.process.wait(60) == 0


@pytest.fixture
def other():
    """Starts other processes, and leaves none behind."""
    with contextlib.ExitStack() as stack:

        def start(eng, source):
            made = Other(eng, source)
            stack.callback(made.process.stdin.close)
            stack.callback(made.process.stdout.close)
            stack.callback(made.process.wait)
            stack.callback(made.kill)
            stack.callback(made.link.close)
            return made

        yield start


def fill(eng, np, tensor, value):
    return eng.submit(lambda x: x.fill(value), writes=[tensor], using=np.from_dlpack, name="fill")


def test_a_value_that_comes_later_is_a_promise_in_the_other_process(eng, np, gate, other):
    peer = other(
        eng,
        """
        x = link.receive(60)
        print(x.shape, x.dtype, x.is_ready(), x.read_only, flush=True)
        print(np.from_dlpack(x).tolist(), flush=True)
        """,
    )
    x = eng.zeros((2, 2), "float32", shared=True)
    eng.submit(gate, writes=[x])
    fill(eng, np, x, 1.5)
    peer.link.send(x)
    assert peer.read() == "(2, 2) float32 False True"
    gate.open()
    assert peer.read() == "[[1.5, 1.5], [1.5, 1.5]]"
    assert peer.ended_well()


def test_a_write_waits_until_the_other_process_is_done_with_the_version(eng, np, other):
    peer = other(
        eng,
        """
        x = link.receive(60)
        array = np.from_dlpack(x)
        print("has it", flush=True)
        sys.stdin.readline()
        print(array.tolist(), flush=True)
        del array, x
        sys.stdin.readline()
        """,
    )
    x = eng.zeros(3, "int64", shared=True)
    fill(eng, np, x, 7)
    peer.link.send(x)
    assert peer.read() == "has it"
    later = fill(eng, np, x, 8)
    with pytest.raises(TimeoutError):
        later.wait(0.05)
    assert f"process {peer.process.pid}" in str(eng.diagnose())
    peer.write("go on")
    assert peer.read() == "[7, 7, 7]"
    later.wait(10)
    assert np.from_dlpack(x).tolist() == [8, 8, 8]
    peer.write("end")
    assert peer.ended_well()


def test_one_report_of_both_processes_names_the_others_operation_and_line(eng, np, gate, other, tmp_path):
    own, others = tmp_path / "own.pftrace", tmp_path / "others.pftrace"
    peer = other(
        eng,
        f"""
        def consume(x):
            return x + 1

        with est.record({str(others)!r}):
            x = link.receive(60); line = sys._getframe().f_lineno
            y = eng.call(consume, x, using=np.from_dlpack)
            print(line, flush=True)
            y.wait()
            print("used", flush=True)
            sys.stdin.readline()
            del x, y
        """,
    )
    with est.record(own):
        x = eng.zeros(4, "float64", shared=True)
        eng.submit(gate, writes=[x], name="produce")
        peer.link.send(x)
        line = peer.read()
        time.sleep(0.05)
        gate.open()
        assert peer.read() == "used"
        eng.submit(lambda x: None, writes=[x], name="overwrite")
        peer.write("go on")
        x.wait(60)
        assert peer.ended_well()
    here, there = os.getpid(), peer.process.pid
    both, chrome = est.report(own, others), tmp_path / "both.json"
    assert both.paths == (str(own), str(others)) and both.data["program"].endswith(f"@{there}")
    command = [sys.executable, "-m", "estafette", "report", own, others, "--chrome", chrome, "--csv"]
    assert f"consume @{there}" in subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    # The lease that the other process had names its line.
    leases = [event["args"] for event in json.loads(chrome.read_text())["traceEvents"] if event.get("cat") == "lease"]
    lines = [(it["file"], it["line"]) for it in leases if it["owner"].endswith(f"@{there}") and "file" in it]
    assert ("<string>", int(line)) in lines, leases

    def blamed(report, name):
        return sum(row["blamed_ns"] for row in report.data["operations"] if row["name"] == name)

    # The other process waited for the work that made the value, too: from before the pause of 50 ms until it was over.
    assert blamed(both, f"`produce @{here}`") - blamed(est.report(own), "`produce`") >= 49_000_000
    singles = [est.report(path).data["totals"]["waited_ns"] for path in (own, others)]
    assert both.data["totals"]["waited_ns"] == sum(singles)
    with pytest.raises(ValueError, match=f"two traces are of process {here}"):
        est.report(own, own)


def test_a_ring_of_three_buffers_takes_a_thousand_items(eng, np, other):
    peer = other(
        eng,
        """
        count = total = 0
        for x in link:
            array = np.from_dlpack(x)
            assert (array == array[0]).all(), "half of a version"
            assert array[0] == count, (array[0], count)
            count, total = count + 1, total + int(array.sum())
        print(count, total, flush=True)
        """,
    )
    ring = [eng.zeros(1000, "int64", shared=True) for _ in range(3)]
    for item in range(1000):
        fill(eng, np, ring[item % 3], item)
        peer.link.send(ring[item % 3])
    eng.wait_all(60)
    for buffer in ring:
        buffer.wait(60)
    peer.link.close()
    assert peer.read() == f"1000 {sum(range(1000)) * 1000}"
    assert peer.ended_well()


def test_the_death_of_an_owner_fails_what_it_had_promised_and_leaves_what_was_ready(eng, np, other):
    peer = other(
        eng,
        """
        ready, pending = eng.zeros(3, "int64"), eng.zeros(3, "int64")
        eng.submit(lambda x: x.fill(5), writes=[ready], using=np.from_dlpack)
        eng.submit(lambda x: time.sleep(600), writes=[pending])
        link.send(ready)
        link.send(pending)
        sys.stdin.readline()
        """,
    )
    ready, pending = peer.link.receive(60), peer.link.receive(60)
    after = eng.call(lambda x: x, pending)
    ready.wait(60)
    waiting = threading.Timer(0.05, peer.kill)
    waiting.start()
    for promise in (pending, after):
        with pytest.raises(est.PeerDiedError, match=f"process {peer.process.pid} died") as caught:
            promise.wait(60)
        for error in (caught.value, promise.exception(), pickle.loads(pickle.dumps(caught.value))):
            assert isinstance(error, est.OperationError)
            assert isinstance(error, est.PeerDiedError)
            assert error.process == peer.process.pid
            assert str(error) == str(caught.value)
        assert type(caught.value.__cause__) is est.PeerDiedError
    with pytest.raises(est.PeerDiedError, match=f"process {peer.process.pid} died") as caught:
        peer.link.receive(60)
    assert caught.value.process == peer.process.pid
    assert np.from_dlpack(ready).tolist() == [5, 5, 5]


def test_the_death_of_a_consumer_ends_its_leases(eng, np, other):
    peer = other(
        eng,
        """
        held = [np.from_dlpack(link.receive(60)) for _ in range(2)]
        print("has them", flush=True)
        sys.stdin.readline()
        """,
    )
    x, y = (eng.zeros(3, "int64", shared=True) for _ in range(2))
    with x.ticket():
        peer.link.send(x)
        peer.link.send(y)
    assert peer.read() == "has them"
    later = [fill(eng, np, tensor, 8) for tensor in (x, y)]
    with pytest.raises(TimeoutError):
        later[0].wait(0.05)
    peer.kill()
    for op in later:
        op.wait(10)
    assert np.from_dlpack(x).tolist() == np.from_dlpack(y).tolist() == [8, 8, 8]
    with pytest.raises(est.PeerDiedError, match=f"process {peer.process.pid} died"):
        peer.link.send(x)


@pytest.mark.parametrize("by", ["link", "ticket"])
def test_a_failure_crosses_with_its_text_and_the_name_of_its_operation(eng, np, other, by):
    peer = other(
        eng,
        """
        ticket = sys.stdin.readline()
        x = eng.from_ticket(bytes.fromhex(ticket)) if ticket.strip() else link.receive(60)
        try:
            x.wait(60)
        except est.EstafetteError as error:
            print(error.operation, error, flush=True)
        """,
    )
    x = eng.zeros(3, "int64", shared=True)
    eng.submit(lambda x: 1 // 0, writes=[x], name="divide")
    if by == "link":
        peer.link.send(x)
        peer.write("")
    else:
        ticket = x.ticket()
        peer.write(bytes(ticket).hex())
    text = peer.read()
    assert text.startswith("divide operation `") and "operation `divide` (op " in text and "ZeroDivisionError" in text
    assert text.endswith(f" (in process {os.getpid()})")
    with pytest.raises(est.OperationError):
        x.wait()
    assert peer.ended_well()


@pytest.mark.parametrize("first", ["shape", "call"])
@pytest.mark.parametrize("second", ["shape", "call"])
def test_a_death_is_known_to_a_third_process_that_waits_for_what_depended_on_it(eng, np, other, first, second):
    promise = {
        "shape": "x = eng.zeros(3, 'int64'); eng.submit(lambda x: time.sleep(60), writes=[x]); link.send(x)",
        "call": "link.send(eng.call(time.sleep, 60))",
    }
    owner = other(eng, f"{promise[first]}; sys.stdin.readline()")
    x = owner.link.receive(60)
    if second == "call":
        y = eng.call(np.negative, x, using=np.from_dlpack)
    else:
        y = eng.zeros(3, "int64", shared=True)
        eng.submit(lambda x, y: np.copyto(y, x), reads=[x], writes=[y], using=np.from_dlpack)
    reader = other(
        eng,
        """
        y = link.receive(60)
        try:
            y.wait(60)
        except est.OperationError as error:
            print(repr(error.__cause__), flush=True)
        """,
    )
    reader.link.send(y)
    owner.kill()
    cause = reader.read()
    assert cause.startswith("PeerDiedError(") and f"process {owner.process.pid} died (in process {os.getpid()})" in cause
    assert reader.ended_well()


def test_a_death_that_a_function_raises_again_is_one_in_the_next_process(eng, other):
    reader = other(
        eng,
        """
        for _ in range(3):
            error = link.receive(60).exception(60)
            print(isinstance(error, est.PeerDiedError), error, flush=True)
        """,
    )

    def fails(error):
        raise error

    died = est.PeerDiedError("process 7 died", 7)
    first = eng.call(fails, died)
    for promise in (first, eng.call(fails, first.exception(60)), eng.call(fails, ValueError("process 7 died"))):
        reader.link.send(promise)
    answers = [reader.read() for _ in range(3)]
    assert [answer.split()[0] for answer in answers] == ["True", "True", "False"]
    assert all("process 7 died" in answer for answer in answers)
    assert first.exception(60).process == 7
    assert reader.ended_well()


def test_a_death_that_crosses_as_a_copy_keeps_its_process(eng):
    from estafette._processes import packed, unpacked

    def fails():
        raise est.PeerDiedError("process 7 died", 7)

    error = unpacked(*packed(eng.call(fails))).exception(60)
    assert isinstance(error, est.PeerDiedError) and error.process == 7


def test_the_promise_of_several_results_that_is_sent_before_they_are_known_fails_there(eng, np, gate):
    several = eng.call(lambda: (gate(), (np.ones(2), 3.5))[1], name="stats")
    with several.ticket() as ticket:
        there = eng.from_ticket(ticket)
        gate.open()
        with pytest.raises(est.OperationError, match="operation `stats` has returned no single array.*: unpack the promise"):
            there.wait(60)
    assert several.result(60)[1] == 3.5


def test_a_lease_of_what_was_passed_on_names_the_process_that_has_it(eng, np, other):
    between = other(
        eng,
        """
        x = link.receive(60)
        print(bytes(x.ticket(once=True)).hex(), flush=True)
        sys.stdin.readline()
        del x
        sys.stdin.readline()
        """,
    )
    last = other(
        eng,
        """
        x = eng.from_ticket(bytes.fromhex(sys.stdin.readline()))
        x.wait(60)
        print("has it", flush=True)
        sys.stdin.readline()
        """,
    )
    x = eng.zeros(3, "int64", shared=True)
    between.link.send(x)
    last.write(between.read())
    assert last.read() == "has it"
    later, (first, second) = fill(eng, np, x, 8), (between.process.pid, last.process.pid)
    between.write("release")
    until(lambda: f"taken by process {first}, in use by process {second}, " in str(eng.diagnose()))
    between.kill()
    with pytest.raises(TimeoutError, match=f"in use by process {second}"):
        later.wait(0.05)
    last.kill()
    later.wait(10)


def test_what_came_over_a_link_has_its_process_in_its_failure(eng, other):
    peer = other(eng, "x = eng.zeros(3, 'int64'); eng.submit(lambda x: time.sleep(60), writes=[x]); link.send(x); sys.stdin.readline()")
    x = peer.link.receive(60)
    peer.kill()
    with pytest.raises(est.OperationError, match="died") as caught:
        x.wait(60)
    assert caught.value.operation == f"tensor of process {peer.process.pid}"


def test_the_error_of_a_wait_names_the_process_whose_value_is_missing(eng, np, other):
    peer = other(
        eng,
        """
        x = eng.zeros(3, "int64")
        eng.submit(lambda x: sys.stdin.readline() and None, writes=[x])
        link.send(x)
        x.wait()
        sys.stdin.readline()
        """,
    )
    x = peer.link.receive(60)
    missing = f"a value of process {peer.process.pid}"
    with pytest.raises(TimeoutError, match=f"not ready within 50ms: .*{missing}"):
        x.wait(0.05)
    later = eng.call(np.negative, x)
    with pytest.raises(TimeoutError, match=f"`negative` waits for .*{missing}"):
        later.wait(0.05)
    peer.write("go on")
    later.wait(60)
    peer.write("end")
    assert peer.ended_well()


def test_a_write_that_has_failed_elsewhere_keeps_no_link(eng, np):
    x = eng.zeros(3, "int64", shared="write")

    def dies_while_it_writes():
        peer = Other(eng, "x = link.receive(60)\nx.wait()\nprint('there', flush=True)\nsys.stdin.readline()")
        peer.link.send(x, access="write")
        assert peer.read() == "there"
        peer.kill()
        with pytest.raises(est.OperationError, match=f"process {peer.process.pid} died"):
            x.wait(60)
        peer.process.wait(60)
        peer.link.close()
        peer.process.stdin.close()
        peer.process.stdout.close()
        fill(eng, np, x, 1).wait(60)

    def open_now():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    dies_while_it_writes()
    before = open_now()
    for _ in range(3):
        dies_while_it_writes()
    until(lambda: open_now() <= before)


class TestEventLoops:
    def test_links_are_awaited(self, eng, np, other):
        source = """
            import asyncio

            async def main():
                async for x in link:
                    await x
                    y = eng.zeros(3, "int64")
                    eng.submit(lambda x, y: np.multiply(x, 2, out=y), reads=[x], writes=[y], using=np.from_dlpack)
                    await link.send_async(y)

            asyncio.run(main())
            """
        peer = other(eng, source)

        async def main():
            x = eng.zeros(3, "int64", shared=True)
            for value in range(20):
                fill(eng, np, x, value)
                await peer.link.send_async(x)
                doubled = await asyncio.wait_for(peer.link.receive_async(), 60)
                await doubled
                assert np.from_dlpack(doubled).tolist() == [2 * value] * 3
            with pytest.warns(RuntimeWarning, match="'Link.send_async' was never awaited"):
                peer.link.send_async(x)
            with pytest.raises(est.WouldBlockError):
                peer.link.receive()

        asyncio.run(main())
        peer.link.close()
        assert peer.ended_well()

    def test_a_cancelled_receive_takes_nothing(self, eng, np, other):
        peer = other(eng, "sys.stdin.readline(); link.send(eng.zeros(3, 'int64')); sys.stdin.readline()")

        async def main():
            waiting = [asyncio.ensure_future(peer.link.receive_async()) for _ in range(3)]
            await asyncio.sleep(0.02)
            for task in waiting[:2]:
                task.cancel()
            peer.write("send")
            assert (await asyncio.wait_for(waiting[2], 60)).shape == (3,)

        asyncio.run(main())
        peer.write("end")
        assert peer.ended_well()

    def test_what_is_closed_ends_the_awaits_of_it(self, eng, other):
        peer = other(eng, "assert [*link] == []")

        async def main():
            async def iterate():
                async for _ in peer.link:
                    pass

            with eng.door() as door:
                waiting = [asyncio.ensure_future(it) for it in (iterate(), peer.link.receive_async(), door.accept_async())]
                await asyncio.sleep(0.02)
                peer.link.close()
            for task in waiting:
                with pytest.raises(est.InvalidError, match="the (link|door) is closed"):
                    await asyncio.wait_for(task, 60)

        asyncio.run(main())
        assert peer.ended_well()

    def test_doors_and_links_are_made_without_a_block(self, eng):
        async def main():
            with eng.door() as door:
                link, accepted = await asyncio.gather(eng.connect_async(door.address), door.accept_async())
            with link, accepted:
                assert link.process == accepted.process == os.getpid()
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(accepted.receive_async(), 0.02)
            assert await accepted_end(eng)

        asyncio.run(main())


def test_what_is_closed_ends_the_waits_for_it_on_other_threads(eng, other):
    peer = other(eng, "assert [*link] == []")
    door = eng.door()
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(peer.link.receive), pool.submit(list, peer.link), pool.submit(door.accept)]
        time.sleep(0.05)
        peer.link.close()
        door.close()
        for wait in waits:
            with pytest.raises(est.InvalidError, match="the (link|door) is closed"):
                wait.result(60)
    # The waits have not kept the link open.
    assert peer.ended_well()


def test_a_send_that_waits_for_room_leaves_the_processor_alone(eng, other):
    peer = other(eng, "time.sleep(1); print(sum(1 for x in link), flush=True)")
    x = eng.zeros(1, "int8", shared=True)
    before = time.thread_time()
    for _ in range(2000):
        peer.link.send(x)
    assert time.thread_time() - before < 0.5
    peer.link.close()
    assert peer.read() == "2000"
    assert peer.ended_well()


def test_memory_of_tensors_that_are_gone_goes_in_the_other_process_too(eng, np, other):
    """More tensors with a segment of their own than a link shows at a time."""
    peer = other(
        eng,
        """
        for x in link:
            assert np.from_dlpack(x)[0] == 7
            del x
        """,
    )
    own, others = (pathlib.Path(f"/proc/{process}/maps") for process in ("self", peer.process.pid))
    before = own.read_text().count("estafette-segment")
    for _ in range(11):
        for _ in range(100):
            x = eng.zeros(3, "int64", shared="write")
            fill(eng, np, x, 7)
            peer.link.send(x)
        del x
        until(lambda: own.read_text().count("estafette-segment") == before)
        until(lambda: others.read_text().count("estafette-segment") == 0)
    peer.link.close()
    assert peer.ended_well()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_body_that_waits_for_a_link_leaves_the_engine_to_others(workers):
    eng = est.Engine(workers=workers, shared=True)
    order = []

    def receives():
        order.append("waits")
        assert far.receive(60).shape == (3,)
        order.append("received")

    def sends():
        near.send(eng.zeros(3, "float64"), 60)

    def accepts():
        with door.accept(60) as link:
            assert link.receive(60) is None

    with eng.door() as door:
        accepting = eng.submit(accepts)
        eng.submit(lambda: eng.connect(door.address, 60).close()).wait(60)
        accepting.wait(60)
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(eng.connect, door.address, 60)
            near, far = door.accept(60), connecting.result()
    waiting, sending = eng.submit(receives), eng.submit(sends)
    sending.wait(60)
    waiting.wait(60)
    assert order == ["waits", "received"]
    near.close()
    far.close()
    eng.shutdown()


async def accepted_end(eng):
    """True if a link that the other end has closed ends."""
    with eng.door() as door:
        link, accepted = await asyncio.gather(eng.connect_async(door.address), door.accept_async())
    link.close()
    with accepted:
        return await accepted.receive_async() is None and [x async for x in accepted] == []


async def joined(eng, other):
    """A link of `eng`, and its other end."""
    with eng.door() as door:
        return await asyncio.gather(door.accept_async(), other.connect_async(door.address))


def test_the_end_of_an_engine_ends_a_thread_that_iterates_over_its_link():
    program = """
    import threading
    import estafette as est

    def iterates():
        try:
            for x in link:
                received.set()
        except est.ShutdownError:
            print("shut down", flush=True)

    other, received = est.Engine(workers=1, shared=True), threading.Event()
    with est.Engine(workers=1) as eng:
        with eng.door() as door:
            made = []
            thread = threading.Thread(target=lambda: made.append(other.connect(door.address, 60)))
            thread.start()
            link = door.accept(60)
            thread.join()
        threading.Thread(target=iterates).start()  # no daemon: the exit waits for it
        made[0].send(other.zeros(3, "float64"))
        assert received.wait(60)
    """
    assert run_program(program)[0] == "shut down\n"


def test_the_end_of_an_engine_ends_tasks_that_wait_for_its_links_and_doors(eng):
    async def iterate(link):
        return [x async for x in link]

    async def receive(link):
        return await link.receive_async()

    async def accept(door):
        return await door.accept_async()

    async def main():
        async with est.Engine(workers=1) as ending:
            (link, _far), (another, _another) = await joined(ending, eng), await joined(ending, eng)
            door = ending.door()
            tasks = [asyncio.ensure_future(task) for task in (iterate(link), receive(another), accept(door))]
            await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
        done, pending = await asyncio.wait(tasks, timeout=60)
        assert not pending
        assert [type(task.exception()) for task in done] == [est.ShutdownError] * 3

    asyncio.run(main())


def test_a_coroutine_of_an_engine_that_ends_still_waits_for_its_link(eng):
    async def main():
        ending = est.Engine(workers=1)
        near, far = await joined(ending, eng)
        begun = asyncio.Event()

        async def receives():
            begun.set()
            assert (await near.receive_async()).shape == (3,)

        received = ending.submit(receives)
        await begun.wait()
        ends = asyncio.ensure_future(asyncio.to_thread(ending.shutdown))
        while ending._is_usable():
            await asyncio.sleep(0.001)
        far.send(eng.zeros(3, "float64", shared=True))
        await received
        assert (await ends).drained

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_received_tensor_that_comes_back_through_a_library_keeps_its_lease(eng, np, other):
    peer = other(
        eng,
        """
        x = link.receive(60)
        array = np.from_dlpack(x)
        again = eng.from_dlpack(array)
        assert again.read_only
        try:
            eng.submit(lambda x: None, writes=[again])
        except est.EstafetteError as error:
            print(type(error).__name__, flush=True)
        """,
    )
    peer.link.send(eng.zeros(3, "int64", shared=True))
    assert peer.read() == "ConflictError"
    assert peer.ended_well()


def test_a_write_to_received_memory_ends_the_process_that_does_it(eng, np, other):
    peer = other(
        eng,
        """
        import ctypes
        x = link.receive(60)
        x.wait(60)
        ctypes.memset(x.data_ptr, 1, 1)
        """,
    )
    x = eng.zeros(3, "int64", shared=True)
    fill(eng, np, x, 7)
    peer.link.send(x)
    assert peer.process.wait(60) == -signal.SIGSEGV
    assert np.from_dlpack(x).tolist() == [7, 7, 7]
    fill(eng, np, x, 8).wait(10)


def test_a_process_that_ends_in_good_order_closes_its_links(eng, other):
    sources = [
        "",
        "raise SystemExit(0)",
        "import threading; threading.Thread(target=link.receive, daemon=True).start(); time.sleep(0.1)",
        # The traceback keeps the globals of the program, and nothing frees those.
        """
        op = eng.submit(lambda: 1 / 0)
        try:
            op.wait()
        except est.OperationError:
            pass
        """,
    ]
    for source in sources:
        peer = other(eng, source)
        assert peer.link.receive(60) is None
        assert peer.ended_well()


@pytest.mark.parametrize("end", ["link.close(); sys.stdin.readline()", ""])
def test_a_link_is_closed_while_a_coroutine_waits_for_it_whose_loop_stands_still(eng, other, end):
    program = """
    import asyncio

    async def one():
        return await link.receive_async()

    loop = asyncio.new_event_loop()
    task = loop.create_task(one())
    loop.run_until_complete(asyncio.sleep(0.1))
    # The traceback keeps the globals of the program, and nothing frees those.
    op = eng.submit(lambda: 1 / 0)
    try:
        op.wait()
    except est.OperationError:
        pass
    """
    peer = other(eng, textwrap.dedent(program) + end)
    assert peer.link.receive(60) is None
    peer.process.stdin.close()
    assert peer.ended_well()


def test_a_door_is_closed_while_a_coroutine_waits_at_it_whose_loop_stands_still(eng):
    door = eng.door()

    async def one():
        return await door.accept_async()

    loop = asyncio.new_event_loop()
    task = loop.create_task(one())
    loop.run_until_complete(asyncio.sleep(0))
    door.close()
    with pytest.raises(est.DeviceError, match=f"connecting to the door at {door.address}: "):
        eng.connect(door.address, 60)
    with pytest.raises(est.InvalidError, match="the door is closed"):
        loop.run_until_complete(task)
    loop.close()


@pytest.mark.parametrize("result", ["eng.submit(late, writes=[x], using=np.from_dlpack)", "x = eng.call(late)"])
def test_a_promise_is_kept_after_its_link_is_closed(eng, np, other, result):
    program = f"""
    import threading
    gate, x = threading.Event(), eng.zeros(3, "int64")
    def late(x=None):
        gate.wait(60)
        if x is None:
            return np.arange(3)
        x[:] = np.arange(3)
    {result}
    link.send(x)
    link.close()
    sys.stdin.readline()
    gate.set()
    sys.stdin.readline()
    """
    peer = other(eng, program)
    x = peer.link.receive(60)
    assert peer.link.receive(60) is None
    assert not x.is_ready()
    peer.write("go on")
    x.wait(60)
    assert np.from_dlpack(x).tolist() == [0, 1, 2]


def test_a_promise_of_a_closed_link_fails_with_its_process(eng, other):
    peer = other(
        eng,
        """
        x = eng.zeros(3, "int64")
        eng.submit(lambda x: time.sleep(600), writes=[x])
        link.send(x)
        link.close()
        """,
    )
    x = peer.link.receive(60)
    assert peer.link.receive(60) is None
    peer.process.kill()
    with pytest.raises(est.PeerDiedOperationError, match=f"process {peer.process.pid} died"):
        x.wait(60)


class TestBadInput:
    def test_engines_and_what_is_part_of_them_are_not_pickled(self, eng):
        t, variable = eng.zeros(1, "int8"), eng.var()
        with t.read() as view:
            for thing in (eng, variable, eng.submit(int, writes=[variable]), eng.program(), t.write(), view):
                for refused in (pickle.dumps, ForkingPickler.dumps, copy.copy):
                    with pytest.raises(TypeError, match=r"estafette\.\w+' object: .*makes an engine of its own"):
                        refused(thing)

    def test_a_tensor_is_not_pickled(self, eng):
        t = eng.zeros(3, "int8", shared=True)
        for refused in (lambda: pickle.dumps(t), lambda: copy.deepcopy(t)):
            with pytest.raises(TypeError, match=r"t\.ticket\(\).*link\.send"):
                refused()

    @pytest.mark.parametrize("address", ["", "nowhere", "estafette-" + "g" * 32, "estafette-" + "0" * 31])
    def test_an_address_that_is_none(self, eng, address):
        with pytest.raises(est.InvalidError, match=f'"{address}" is no address of a door'):
            eng.connect(address)

    def test_a_door_that_is_not_there(self, eng):
        with pytest.raises(est.DeviceError, match=f"connecting to the door at estafette-{'0' * 32}: "):
            eng.connect("estafette-" + "0" * 32)
        with eng.door() as door:
            pass
        with pytest.raises(est.InvalidError, match="closed"):
            door.accept()

    def test_an_engine_that_is_shut_down_makes_no_door_and_no_link(self, eng):
        shut = est.Engine(workers=1)
        door = shut.door()
        shut.shutdown()
        with eng.door() as other:
            for refused in (shut.door, door.accept, *(lambda make=make: make(other.address) for make in (shut.connect, shut.connect_async))):
                with pytest.raises(est.ShutdownError):
                    refused()
            with pytest.raises(TimeoutError):
                other.accept(0)

    def test_a_tensor_for_writing_beyond_the_limit_of_a_link_says_what_to_do(self):
        program = """
        import resource, threading, time
        import estafette as est

        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        eng = est.Engine(workers=1)
        with eng.door() as door:
            made = []
            thread = threading.Thread(target=lambda: made.append(eng.connect(door.address)))
            thread.start()
            link = door.accept(60)
            thread.join()
        kept = [eng.zeros(1, "int8", shared="write") for _ in range(1025)]
        for x in kept[:-1]:
            link.send(x, access="write")
            made[0].receive(60)
        while True:
            try:
                link.send(kept[-1], access="write")
                break
            except est.InvalidError as error:
                print(error)
            del kept[:-1]
            time.sleep(0.01)
        """
        text, _ = run_program(program)
        assert "shows 1024 segments" in text and "release such tensors, or make another link" in text

    def test_bytes_that_are_no_ticket(self, eng):
        for wrong in (b"", b"estafette", bytes(70)):
            with pytest.raises(est.InvalidError, match="ticket"):
                eng.from_ticket(wrong)
        with pytest.raises(TypeError, match="Ticket"):
            eng.from_ticket("estafette")

    def test_nothing_comes_within_the_time(self, eng, other):
        peer = other(eng, "sys.stdin.readline()")
        with pytest.raises(TimeoutError, match=f"process {peer.process.pid}"):
            peer.link.receive(0.02)
        with eng.door() as door, pytest.raises(TimeoutError):
            door.accept(0)
        peer.link.close()
        with pytest.raises(est.InvalidError, match="the link is closed"):
            peer.link.receive()

    def test_more_shared_memory_than_there_is(self, eng):
        for shared in (True, "write"):
            with pytest.raises(est.OutOfMemoryError, match="Cannot allocate memory"):
                eng.zeros(1 << 50, "int8", shared=shared)

    def test_device_memory_is_not_lent_for_writing(self, eng):
        with pytest.raises(est.InvalidError, match="cannot be lent to other processes for writing"):
            eng.empty(3, "int8", device=(2, 0), shared="write")


def test_ctrl_c_ends_a_wait_and_loses_nothing(eng, other):
    peer = other(eng, "sys.stdin.readline(); link.send(eng.zeros(3, 'int64')); sys.stdin.readline()")
    # A program that was started in the background of a shell ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # Late enough for the wait to have begun: what a signal raises within a callback of the garbage collector is ignored.
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        peer.link.receive()
    signal.signal(signal.SIGINT, before)
    peer.write("send")
    assert peer.link.receive(60).shape == (3,)
    peer.write("end")
    assert peer.ended_well()


def test_a_forked_child_is_refused_and_its_end_changes_nothing(eng, np):
    run_program(
        """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import estafette as est

        eng = est.Engine(workers=1, shared=True)
        door = eng.door()
        link = eng.connect(door.address)
        other = door.accept(60)
        x = eng.zeros(3, "int64")
        ticket = x.ticket()
        pid = os.fork()
        if pid == 0:
            uses = [door.accept, lambda: link.send(x), link.receive, x.ticket, lambda: eng.from_ticket(ticket)]
            for use in [*uses, eng.door, lambda: eng.connect(door.address)]:
                try:
                    use()
                except est.ForkedError:
                    continue
                os._exit(1)
            door.close(), link.close(), ticket.revoke()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        link.send(x)
        assert other.receive(60).result(60).shape == (3,)
        assert eng.from_ticket(ticket).result(60).shape == (3,)
        """
    )


def test_an_engine_without_a_link_has_no_thread_and_no_descriptor_more():
    run_program(
        """
        import os
        import time
        import estafette as est

        def names():
            return {open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")}

        before = len(os.listdir("/proc/self/fd"))
        with est.Engine(workers=1) as eng:
            eng.submit(lambda: None).wait()
            assert not {name for name in names() if name.startswith(("estafette-link", "estafette-live"))}, names()
            assert len(os.listdir("/proc/self/fd")) == before
            eng.door().close()
            # A thread gives itself its name.
            deadline = time.monotonic() + 60
            while not {"estafette-links", "estafette-alive"} <= names():
                assert time.monotonic() < deadline, names()
        """
    )


def test_nothing_is_left_of_links_that_are_over(eng, np, other):
    """Not of one that was closed, not of the death of a peer, and not of tickets."""

    def once(is_killed):
        peer = other(
            eng,
            """
            x = eng.from_ticket(bytes.fromhex(sys.stdin.readline()))
            y = link.receive(60)
            x.wait(60), y.wait(60)
            z = eng.zeros(3, "int64")
            link.send(z)
            own = z.ticket()
            print(bytes(own).hex(), flush=True)
            sys.stdin.readline()
            """,
        )
        x = eng.zeros(3, "int64", shared=True)
        with x.ticket() as ticket:
            peer.write(bytes(ticket).hex())
            peer.link.send(x)
            z, own = peer.link.receive(60), est.Ticket(bytes.fromhex(peer.read()))
            again = eng.from_ticket(own)
            again.wait(60)
        peer.kill() if is_killed else peer.write("end")
        peer.process.wait(60)
        fill(eng, np, x, 1).wait(10)
        del z, again
        peer.link.close()
        peer.process.stdin.close()
        peer.process.stdout.close()

    def open_now():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def maps():
        with open("/proc/self/maps") as lines:
            return sum("estafette" in line for line in lines)

    once(False)
    before = open_now(), maps()
    for number in range(6):
        once(number % 2 == 0)
    until(lambda: (open_now(), maps()) <= before)
