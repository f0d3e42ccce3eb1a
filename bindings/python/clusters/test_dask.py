"""Tensors between workers of Dask, each a process, and the client."""

import asyncio
import concurrent.futures
import contextlib
import subprocess
import sys
import textwrap
import threading
import time
import unittest.mock

import cloudpickle
import dask
import distributed
import numpy as np
import pytest
from distributed.protocol import deserialize, serialize
from distributed.spill import SpillBuffer

import estafette as est
import estafette.dask

# Workers do not find this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def eng():
    with est.Engine(workers=2) as engine:
        yield engine


@pytest.fixture(scope="module")
def client():
    # Each worker needs a thread for what opens the gate while a task holds it.
    with distributed.Client(n_workers=2, threads_per_worker=4, dashboard_address=":0") as client:
        estafette.dask.register(client)
        estafette.dask.register(client)
        yield client


@pytest.fixture
def workers(client):
    """The addresses of two workers."""
    first, second = client.scheduler_info()["workers"]
    return first, second


STATE = {}
"""Of each worker: its engine, its gate, its tensor."""


def on(client, worker, function, *arguments):
    return client.submit(function, *arguments, workers=[worker], pure=False)


def filled(value, held):
    """A promise of four numbers, which come once the gate is open."""
    import estafette as est

    eng = STATE.setdefault("eng", est.Engine(workers=2, shared=True, using=np.from_dlpack))
    gate = STATE["gate"] = threading.Event()
    x = STATE["x"] = eng.zeros(4, "float64")

    def fill(x):
        assert not held or gate.wait(60), "the test never opened the gate"
        x.fill(value)

    eng.submit(fill, writes=[x])
    return x


def open_gate():
    STATE["gate"].set()


def of_a_library():
    return est.default_engine().call(lambda: np.arange(6, dtype="float32").reshape(2, 3).T, like=np.zeros((3, 2), "float32"))


def write_later():
    STATE["writing"] = STATE["eng"].submit(lambda x: x.fill(7), writes=[STATE["x"]])


def is_held_up():
    """True if the write waits for a lease, and for nothing else."""
    return STATE["eng"].stats().leased == 1 and not STATE["writing"].done()


def wait_until_written():
    STATE["writing"].wait(60)


def pending(x):
    has_begun = distributed.Event("begun")
    assert not x.is_ready()
    has_begun.set()
    return np.from_dlpack(x).tolist()


def value(x):
    return np.from_dlpack(x).tolist()


def keep(x):
    STATE["kept"] = np.from_dlpack(x)


def kept():
    return STATE["kept"].tolist()


def release():
    del STATE["kept"]


def in_use(x):
    """Holds a lease for as long as its process lives."""
    view = np.from_dlpack(x)
    distributed.Event("begun").set()
    threading.Event().wait()
    return view.tolist()


def leases():
    return STATE["eng"].stats().leased


def cause(x):
    """The failure of `x`."""
    distributed.Event("begun").set()
    try:
        x.wait(60)
    except est.EstafetteError as error:
        return type(error.__cause__).__name__
    return None


def publish_cause(x):
    """Says why `x` fails before it ends: Dask begins a task anew if the scheduler hears that its input is lost before that."""
    distributed.Variable("cause").set(cause(x))


def value_again(x):
    """As `value`. If the process that promised `x` has died, the task is begun anew."""
    distributed.Event("begun").set()
    try:
        x.wait(60)
    except est.EstafetteError:
        raise distributed.Reschedule from None
    return np.from_dlpack(x).tolist()


def failed_early(x):
    """`x`. If the process that promised it has died, it has failed by the end of the task, and the worker gets to know it later."""
    is_over, is_added = threading.Event(), threading.Event()
    # One thread makes all such calls, but those of what has ended already.
    est.default_engine().call(is_added.wait, 60)._on_end(lambda *_: is_over.wait(60))
    is_added.set()
    distributed.Event("begun").set()
    with contextlib.suppress(est.EstafetteError):
        x.wait(60)
    threading.Timer(1, is_over.set).start()
    return x


def value_or_handled(x):
    """The value of `x`. If `x` fails, this goes on once `x` is computed again."""
    distributed.Event("begun").set()
    try:
        x.wait(60)
    except est.EstafetteError:
        assert distributed.Event("again").wait(60)
        return "handled"
    return value(x)


def redeemed(ticket):
    STATE["redemptions"] = STATE.get("redemptions", 0) + 1
    return est.default_engine().from_ticket(ticket)


def redemptions():
    return STATE["redemptions"]


def begun(client):
    assert distributed.Event("begun", client=client).wait(60)
    distributed.Event("begun", client=client).clear()


def test_a_value_that_comes_later_crosses_at_once(client, workers):
    first, second = workers
    x = on(client, first, filled, 1.5, True)
    values = on(client, second, pending, x)
    begun(client)
    on(client, first, open_gate).result(60)
    assert values.result(60) == [1.5] * 4


def test_the_client_gets_a_promise(client, workers):
    x = on(client, workers[0], filled, 2.5, True).result(60)
    assert isinstance(x, est.Tensor)
    assert not x.is_ready()
    on(client, workers[0], open_gate).result(60)
    assert np.from_dlpack(x).tolist() == [2.5] * 4


def test_a_write_waits_for_readers_on_another_worker(client, workers):
    first, second = workers
    x = on(client, first, filled, 1.0, False)
    on(client, second, keep, x).result(60)
    on(client, first, write_later).result(60)
    assert on(client, first, is_held_up).result(60)
    assert on(client, second, kept).result(60) == [1.0] * 4
    del x
    on(client, second, release).result(60)
    on(client, first, wait_until_written).result(90)


def test_memory_of_a_library_is_copied(client, workers):
    first, second = workers
    assert on(client, second, value, on(client, first, of_a_library)).result(60) == [[0, 3], [1, 4], [2, 5]]


def test_tensors_of_the_client_are_scattered(client, workers):
    with est.Engine(workers=1, shared=True, using=np.from_dlpack) as eng:
        x = eng.zeros(3, "int64")
        eng.submit(lambda x: x.fill(3), writes=[x])
        scattered = client.scatter(x, workers=[workers[1]], direct=True)
        assert on(client, workers[1], value, scattered).result(60) == [3, 3, 3]


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_bytes_cross_to_disks_and_other_machines(shape, dtype):
    eng = est.default_engine()
    x = eng.zeros(shape, dtype)
    with x.write() as view:
        np.asarray(view)[...] = np.arange(x.size).reshape(shape)
    for context in (None, ELSEWHERE):
        header, frames = serialize(x, context=context, serializers=["dask"])
        y = deserialize(header, frames)
        assert isinstance(y, est.Tensor)
        assert y.shape == shape
        assert y.dtype == dtype
        assert not y.read_only
        assert np.array_equal(np.asarray(y), np.asarray(x))


def run(coroutine):
    """As `asyncio.run`, which leaves the thread without the event loop that Dask asks for."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


def test_what_is_serialized_on_an_event_loop_is_waited_for(eng):
    gate = threading.Event()
    x = eng.call(lambda: (gate.wait(60), np.arange(3.0))[1])

    def open_once_waited_for():
        while not any(thread.name.startswith("estafette-serialize") for thread in threading.enumerate()):
            time.sleep(0.001)
        gate.set()

    threading.Thread(target=open_once_waited_for, daemon=True).start()

    async def on_loop():
        return serialize(x, context=None, serializers=["dask"])

    header, frames = run(on_loop())
    assert np.from_dlpack(deserialize(header, frames)).tolist() == [0.0, 1.0, 2.0]


def test_what_only_the_event_loop_could_make_is_not_serialized_there(eng):
    async def on_loop():
        release = asyncio.Event()

        async def late():
            await release.wait()
            return np.arange(3.0)

        x = eng.call(late)
        while eng.stats().running == 0:
            await asyncio.sleep(0.001)
        with pytest.raises(est.WouldDeadlockError, match="resumes when"):
            estafette.dask._serialize(x)
        release.set()
        await x
        return estafette.dask._serialize(x)

    assert np.from_dlpack(estafette.dask._deserialize(*run(on_loop()))).tolist() == [0.0, 1.0, 2.0]


@pytest.fixture
def far():
    """Two workers at two addresses, which are two machines: the client and their addresses."""
    options = {"nthreads": 4, "dashboard": False}
    hosts = {"owner": "127.0.0.2", "asker": "127.0.0.1"}
    workers = {name: {"cls": distributed.Nanny, "options": {"host": host, **options}} for name, host in hosts.items()}
    scheduler = {"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "dashboard": False}}
    with distributed.SpecCluster(workers, scheduler) as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(2)
        estafette.dask.register(client)
        addresses = {its["name"]: address for address, its in client.scheduler_info()["workers"].items()}
        yield client, addresses["owner"], addresses["asker"]


def failing(held):
    """As `filled`, and fails once the gate is open."""
    x = filled(0, held)

    def fails(x):
        raise ValueError("no frame")

    STATE["eng"].submit(fails, reads=[x], writes=[x])
    return x


def filled_inside(value, held):
    return {"x": [filled(value, held)]}


def value_inside(x):
    return value(x["x"][0])


async def is_asked():
    """True if the event loop of this worker waits for a promise for another machine."""

    def waits(coroutine):
        while coroutine is not None and getattr(coroutine, "__name__", None) != "_get_ready_data":
            coroutine = getattr(coroutine, "cr_await", None)
        return coroutine is not None

    return any(waits(task.get_coro()) for task in asyncio.all_tasks())


def test_a_promise_that_another_machine_asks_for_holds_no_event_loop_up(far):
    client, owner, asker = far
    cases = (filled, value, [1.5] * 4), (filled_inside, value_inside, [1.5] * 4), (failing, cause, "EstafetteError")
    for make, use, outcome in cases:
        arguments = (True,) if make is failing else (1.5, True)
        x = on(client, owner, make, *arguments)
        used = on(client, asker, use, x)
        deadline = time.monotonic() + 60
        while not client.run(is_asked, workers=[owner])[owner]:
            assert time.monotonic() < deadline
        # The event loop of the owner takes this.
        on(client, owner, open_gate).result(60)
        assert used.result(60) == outcome


ELSEWHERE = {"sender": {"address": "tcp://192.0.2.1:1"}, "recipient": {"address": "tcp://192.0.2.2:1"}}


def test_an_asynchronous_client_awaits_its_registration(client, workers):
    async def registered():
        async with distributed.Client(client.scheduler.address, asynchronous=True) as other:
            return await estafette.dask.register(other)

    assert set(run(registered())) == set(workers)


def test_what_keeps_a_value_from_crossing_crosses_as_a_failure_and_stays_off_the_disk():
    with est.Engine(workers=1, lease_timeout=0.1) as eng:
        x = eng.zeros(3, "int64")
        array = np.from_dlpack(x)
        eng.submit(lambda _: None, writes=[x])
        header, frames = estafette.dask._serialize(x, ELSEWHERE)
        with pytest.raises(est.LeaseHeldError):
            estafette.dask._serialize(x)
        del array
    with pytest.raises(est.OperationError, match="read lease"):
        estafette.dask._deserialize(header, frames).wait(60)


@pytest.fixture
def spilling(tmp_path):
    """The plugin of a worker that spills, has no task but `x`, and calls back at once."""
    worker = unittest.mock.Mock(data=SpillBuffer(str(tmp_path), 1 << 20), handlers={"get_data": None})
    worker.state.tasks = {"x": unittest.mock.Mock(dependencies=(), dependents=())}
    worker.loop.add_callback.side_effect = lambda call, *arguments: call(*arguments)
    plugin = estafette.dask._Plugin()
    plugin.setup(worker)
    return plugin, worker


def test_a_promise_that_is_on_the_disk_when_its_process_has_died_is_given_up(spilling):
    plugin, worker = spilling
    death = concurrent.futures.Future()
    worker.data["x"] = est.default_engine().from_future(death)
    plugin.transition("x", "flight", "memory")
    threading.Timer(0.2, death.set_exception, [est.PeerDiedError("process 7 died", 7)]).start()
    worker.data.evict()
    assert not worker.data.fast
    deadline = time.monotonic() + 60
    while not worker.handle_stimulus.called:
        assert time.monotonic() < deadline, "it is not given up"
        time.sleep(0.01)
    assert worker.handle_stimulus.call_args[0][0].keys == ["x"]


def test_a_callback_of_the_program_that_waits_keeps_no_death_back(eng, spilling):
    plugin, worker = spilling
    is_added, has_begun, is_over, death = threading.Event(), threading.Event(), threading.Event(), concurrent.futures.Future()
    eng.call(is_added.wait, 60).add_done_callback(lambda _: has_begun.set() or is_over.wait(60))
    is_added.set()
    assert has_begun.wait(60)
    worker.data["x"] = est.default_engine().from_future(death)
    plugin.transition("x", "flight", "memory")
    death.set_exception(est.PeerDiedError("process 7 died", 7))
    deadline = time.monotonic() + 30
    try:
        while not worker.handle_stimulus.called:
            assert time.monotonic() < deadline, "it is not given up"
            time.sleep(0.01)
    finally:
        is_over.set()


def test_the_plugin_reads_no_disk_for_what_a_task_has_made(spilling):
    plugin, worker = spilling
    worker.data["x"] = est.default_engine().zeros(3, "int64")
    worker.data.evict()
    worker.state.tasks["y"] = unittest.mock.Mock(dependencies=[unittest.mock.Mock(key="x", type=est.Tensor)])
    worker.data["y"] = est.default_engine().zeros(3, "int64")
    plugin.transition("x", "flight", "memory")
    plugin.transition("y", "executing", "memory")
    assert set(worker.data.fast) == {"y"}


HERE = {"sender": {"address": "tcp://192.0.2.1:1"}, "recipient": {"address": "tcp://192.0.2.1:2"}}


def test_what_the_scheduler_has_passed_on_to_another_machine_says_so():
    x = est.default_engine().zeros(3, "int64", shared=True)
    header, frames = estafette.dask._serialize(x, HERE)
    with pytest.raises(est.OperationError, match="direct=True") as caught:
        estafette.dask._deserialize(header | {"machine": "another"}, frames).wait(60)
    assert isinstance(caught.value.__cause__, est.NotSharedError)
    # The header says it, and on this machine the ticket is good.
    assert bytes(estafette.dask._deserialize(header, frames)) == bytes(24)


def test_a_message_of_a_worker_that_is_lost_holds_nothing():
    async def get_data(comm, keys, serializers=None):
        # As Dask does where there is much.
        header, _frames = await distributed.utils.offload(estafette.dask._serialize, x, HERE)
        if keys == ["lost"]:
            raise OSError("the other worker has died")
        return header["ticket"]

    worker = unittest.mock.Mock(data={}, handlers={"get_data": get_data})
    estafette.dask._Plugin().setup(worker)
    comm = unittest.mock.Mock(local_info=HERE["sender"], remote_info=HERE["recipient"])
    with est.Engine(workers=1, shared=True, lease_timeout=0.5) as eng:
        x = eng.zeros(3, "int64")
        with pytest.raises(OSError):
            run(worker.handlers["get_data"](comm, ["lost"]))
        eng.submit(lambda _: None, writes=[x]).wait(60)
        ticket = run(worker.handlers["get_data"](comm, ["x"]))
        assert np.from_dlpack(est.default_engine().from_ticket(ticket)).tolist() == [0, 0, 0]


def test_a_tensor_comes_on_an_event_loop_although_its_engine_is_full():
    eng = est.default_engine()
    x, busy, gate = eng.zeros(3, "int64", shared=True), eng.zeros(1, "int64"), threading.Event()
    header, frames = estafette.dask._serialize(x, HERE)
    eng.submit(lambda _: gate.wait(60), writes=[busy])
    stats = eng.stats()
    for _ in range(stats.in_flight_limit - stats.in_flight):
        eng.submit(lambda _: None, reads=[busy])

    async def on_loop():
        return estafette.dask._deserialize(header, frames), estafette.dask._deserialize({"failure": "no data", "died": False}, [])

    y, failed = run(on_loop())
    gate.set()
    assert np.from_dlpack(y).tolist() == [0] * 3
    with pytest.raises(est.OperationError, match="no data"):
        failed.wait(60)


def test_a_death_crosses_as_a_death():
    death = concurrent.futures.Future()
    death.set_exception(est.PeerDiedError("process 7 died", 7))
    x = est.default_engine().from_future(death)
    y = est.default_engine().call(np.add, x, 1)
    for tensor in (x, y):
        copy = deserialize(*serialize(tensor, context=None, serializers=["dask"]))
        with pytest.raises(est.OperationError, match="process 7 died") as caught:
            copy.wait(60)
        assert isinstance(caught.value.__cause__, est.PeerDiedError)


def test_a_failure_crosses_as_a_failure(client, workers):
    eng = est.default_engine()
    x = eng.zeros(1, "float32", shared=True)
    eng.submit(lambda x: 1 / 0, writes=[x], using=np.from_dlpack)
    for context in (None, HERE):
        header, frames = serialize(x, context=context, serializers=["dask"])
        with pytest.raises(est.OperationError, match="division by zero"):
            deserialize(header, frames).wait(60)


@pytest.fixture
def two():
    """A cluster of its own, one of whose workers a test kills: the client, their addresses, and what kills the first one."""
    with (
        # Every two seconds it drops copies of which another worker has one, and so may let a promise be lost with its worker.
        dask.config.set({"distributed.scheduler.active-memory-manager.start": False}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=4, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        estafette.dask.register(client)
        first, second = client.scheduler_info()["workers"]

        def kill():
            (owner,) = (nanny for nanny in cluster.workers.values() if nanny.worker_address == first)
            owner.process.process.kill()

        yield client, first, second, kill


def test_the_death_of_a_worker_reaches_who_holds_its_promises(two):
    client, first, second, kill = two
    x = on(client, first, filled, 1.0, True)
    published = on(client, second, publish_cause, x)
    begun(client)
    # Until the scheduler knows that the second worker has the promise, Dask takes it for lost with the first one.
    while len(client.who_has([x])[x.key]) < 2:
        time.sleep(0.01)
    kill()
    assert distributed.Variable("cause", client=client).get(60) == "PeerDiedError"
    published.cancel()


def test_the_death_of_a_worker_ends_the_leases_that_it_holds_and_none_that_it_has_given(two):
    client, first, second, kill = two
    given, held = on(client, first, filled, 1.0, False), on(client, second, filled, 2.0, False)
    on(client, second, keep, given).result(60)
    never = on(client, first, in_use, held)
    begun(client)
    # Dask would have it done again.
    never.cancel()
    on(client, second, write_later).result(60)
    assert on(client, second, is_held_up).result(60)
    kill()
    on(client, second, wait_until_written).result(90)
    assert on(client, second, leases).result(60) == 0
    # The memory is there although its owner is not.
    assert on(client, second, kept).result(60) == on(client, second, value, given).result(60) == [1.0] * 4


def filled_or_held():
    """As `filled`, the first time with a held value."""
    if distributed.Event("first time").is_set():
        distributed.Event("first time").clear()
        return filled(1.5, True)
    distributed.Event("again").set()
    return filled(1.5, False)


def made_by(client, first):
    """The promise of `first`, and another worker if that one has died."""
    distributed.Event("first time", client=client).set()
    return client.submit(filled_or_held, workers=[first], allow_other_workers=True, pure=False)


@pytest.mark.parametrize("passed_on", [False, True])
def test_what_a_dead_worker_has_promised_is_computed_again(two, passed_on):
    client, first, second, kill = two
    x = made_by(client, first)
    value = on(client, second, value_again, on(client, second, failed_early, x) if passed_on else x)
    begun(client)
    kill()
    assert value.result(90) == [1.5] * 4


def test_what_a_task_makes_of_a_failure_is_thrown_away_once_its_input_is_given_up(two):
    client, first, second, kill = two
    outcome = on(client, second, value_or_handled, made_by(client, first))
    begun(client)
    kill()
    assert outcome.result(90) == [1.5] * 4


def test_a_restart_ends_the_leases_that_workers_hold_and_none_that_they_have_given(two):
    client, first, second, _kill = two
    with est.Engine(workers=1, shared=True, using=np.from_dlpack) as eng:
        x = eng.zeros(3, "int64")
        here, there = [client.scatter(x, workers=[worker], direct=True, hash=False) for worker in (first, second)]
        on(client, first, keep, here).result(60)
        _never = on(client, second, in_use, there)
        ready, promised = on(client, first, filled, 1.0, False).result(60), on(client, second, filled, 2.0, True).result(60)
        kept = np.from_dlpack(ready)
        begun(client)
        write = eng.submit(lambda x: x.fill(3), writes=[x])
        assert not write.done()
        client.restart()
        write.wait(60)
        with pytest.raises(est.OperationError, match="died") as caught:
            promised.wait(60)
        assert isinstance(caught.value.__cause__, est.PeerDiedError)
        assert kept.tolist() == [1.0] * 4
        # Workers that Dask has started again have the plugin.
        again = client.scatter(x, direct=True)
        assert client.submit(value, again, pure=False).result(60) == [3] * 3


def spilled(dask_worker):
    """Number of values on the disk, and number in memory."""
    return len(dask_worker.data.slow), len(dask_worker.data.fast)


def test_what_is_spilled_keeps_its_value_and_no_lease_but_those_of_others(tmp_path):
    # Each worker has always more memory than this, and so spills what it has.
    memory = {"target": False, "spill": 0.001, "pause": False, "terminate": False}
    with (
        dask.config.set({f"distributed.worker.memory.{name}": part for name, part in memory.items()}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=4, dashboard_address=":0", memory_limit="4 GiB", local_directory=str(tmp_path)
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        estafette.dask.register(client)
        first, second = client.scheduler_info()["workers"]
        x = on(client, first, filled, 1.0, False)
        on(client, second, keep, x).result(60)
        deadline = time.monotonic() + 60
        # The result of `keep` is on the second one too.
        while [fast for _, fast in client.run(spilled).values()] != [0, 0]:
            assert time.monotonic() < deadline, client.run(spilled)
            time.sleep(0.05)
        assert client.run(spilled, workers=[first])[first] == (1, 0)
        on(client, first, write_later).result(60)
        # The array of the second worker holds it up. Other leases, of what was written to the disk, may last a moment.
        while not on(client, first, is_held_up).result(60):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert on(client, second, kept).result(60) == [1.0] * 4
        on(client, second, release).result(60)
        on(client, first, wait_until_written).result(90)
        # The first one still has the tensor itself, and the second one nothing but what it has written to the disk.
        assert on(client, first, value, x).result(60) == [7.0] * 4
        assert on(client, second, value, x).result(60) == [1.0] * 4


class _DropsInputs(distributed.WorkerPlugin):
    """Has the inputs of the first task dropped while it begins, as if they had failed just then."""

    name = "drops inputs"

    def setup(self, worker):
        self.worker = worker
        self.is_done = False

    def transition(self, key, start, finish, **_keywords):
        if finish == "executing" and not self.is_done:
            self.is_done = True
            for task in self.worker.state.tasks[key].dependencies:
                drop = self.worker.plugins["estafette"]._drop
                self.worker.loop.add_callback(drop, task.key, self.worker.data[task.key])


def test_a_task_that_begins_keeps_an_input_that_is_given_up(client, workers):
    first, second = workers
    # If no worker had the value any more, the scheduler would have both tasks begin anew.
    x = on(client, first, filled, 1.5, False)
    distributed.wait(x)
    client.register_plugin(_DropsInputs())
    try:
        assert on(client, second, value, x).result(60) == [1.5] * 4
    finally:
        client.unregister_worker_plugin("drops inputs")


def test_what_a_task_has_asked_of_a_dead_process_by_itself_fails_once_and_for_all(client, workers):
    program = """
    import concurrent.futures, time
    import estafette as est
    never = concurrent.futures.Future()
    x = est.default_engine().from_future(never)
    print(bytes(x.ticket(once=True)).hex(), flush=True)
    time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True) as owner:
        ticket = bytes.fromhex(owner.stdout.readline())
        x = on(client, workers[0], redeemed, ticket)
        failed = on(client, workers[0], cause, x)
        begun(client)
        owner.kill()
    assert failed.result(60) == "PeerDiedError"
    with pytest.raises(est.OperationError, match=f"process {owner.pid} died"):
        x.result(60).wait(60)
    assert on(client, workers[0], redemptions).result(60) == 1
