"""Tensors between actors of Ray, by the transport of `estafette.ray`. Ray runs here, with a process for each actor.

To start a process takes most of the time, so tests share actors, unless they kill them."""

import concurrent.futures
import contextlib
import ctypes
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import types
import unittest.mock

import numpy as np
import pytest
import ray
from machines import ENV, NO_MACHINES, Machines
from ray.cluster_utils import Cluster
from ray.experimental.rdt.util import get_tensor_transport_manager

import estafette as est
import estafette.ray
from estafette import _ray_nodes, _ray_values

# Ray imports these in each process that has them, for data of theirs. That would take longer than all the rest.
HIDDEN = ("torch", "pyarrow")
with unittest.mock.patch.dict(sys.modules, dict.fromkeys(HIDDEN)):
    estafette.ray.register()
    get_tensor_transport_manager(estafette.ray.NAME)
# Workers do not find this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


REASON = NO_MACHINES or (None if importlib.util.find_spec("nixl_cu12") else "NIXL is not installed")
by_nixl = pytest.mark.skipif(REASON is not None, reason=REASON or "")

WITHOUT_NIXL = ("ESTAFETTE_NIXL_LIBRARY", "/nowhere/libnixl_capi.so")

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET, CLONE_NEWNS = 0x40000000, 0x20000


def go_to(namespace):
    """Takes this thread, and what it starts from now on, to a network namespace, as `ip netns exec` does: UCX finds networks in /sys."""
    with open(namespace) as file:
        assert LIBC.setns(file.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    assert LIBC.unshare(CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
    for command in ("mount --make-rslave /", "umount --lazy /sys", "mount -t sysfs sysfs /sys"):
        subprocess.run(command.split(), check=True)


def start(address):
    # Ray finds all nodes among the files of this machine.
    ray.init(address, _node_ip_address=address.split(":")[0], log_to_driver=False)


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory):
    """Two nodes on two machines, which are network namespaces. Where there can be none they are two machines for the transport alone."""
    estafette.ray.register()
    shape = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_log_monitor": False}
    first, second = {"resources": {"here": 1}, "include_dashboard": False, "no_monitor": True}, {"resources": {"elsewhere": 1}}
    # A machine that does not answer for some 20 seconds is dead, and not for some 60.
    first["_system_config"] = {"health_check_period_ms": 1000, "health_check_timeout_ms": 3000}
    hidden = tmp_path_factory.mktemp("hidden")
    for name in HIDDEN:
        (hidden / f"{name}.py").write_text("raise ModuleNotFoundError(__name__)")
    with pytest.MonkeyPatch.context() as environment, contextlib.ExitStack() as ends:
        environment.setenv("PYTHONPATH", str(hidden), prepend=os.pathsep)
        if not NO_MACHINES:
            for name, value in ENV.items():
                environment.setenv(name, value)
            home = ends.enter_context(open("/proc/self/ns/net"))
            machines = Machines()
            ends.callback(machines.close)
            ends.callback(go_to, f"/proc/self/fd/{home.fileno()}")
            namespaces = [f"/run/netns/{name}" for name in machines.names]
            first["node_ip_address"], second["node_ip_address"] = machines.hosts
            go_to(namespaces[0])
        else:
            # With it the two would find that they are one machine.
            environment.setenv(*WITHOUT_NIXL)
        cluster = Cluster(initialize_head=True, head_node_args={**shape, **first})
        ends.callback(cluster.shutdown)

        if not NO_MACHINES:
            cluster.machines = machines
            go_to(namespaces[1])
        cluster.add_node(**shape, **second)
        if not NO_MACHINES:
            go_to(namespaces[0])
        ends.callback(ray.shutdown)
        start(cluster.address)
        yield cluster


CONTROL = "control"
"""The methods that run beside others. The others run in the order of their calls."""


def stored():
    """Number of objects that Ray has in this actor's store of tensors."""
    return ray._private.worker.global_worker.rdt_manager.rdt_store.get_num_objects()


class SourceActor:
    """Owns `self.x`, four numbers. A write that is held up waits for `open`."""

    def __init__(self):
        self.eng = est.Engine(workers=2, shared=True, using=np.from_dlpack)
        self.begin()

    def begin(self):
        """For the next test."""
        self.x = self.eng.zeros(4, "float64")
        self.gate = threading.Event()

    def write(self, value, held=False):
        gate = self.gate

        def fill(x):
            assert not held or gate.wait(60), "the test never opened the gate"
            x.fill(value)

        self.writing = self.eng.submit(fill, writes=[self.x])

    @ray.method(concurrency_group=CONTROL)
    def is_written(self, timeout):
        try:
            self.writing.wait(timeout)
        except TimeoutError:
            return False
        return True

    @ray.method(concurrency_group=CONTROL)
    def open(self):
        self.gate.set()

    def close(self):
        self.gate.clear()

    def pid(self):
        return os.getpid()

    def register(self):
        """An actor may call all that the process that makes the actors may: Ray has registered the transport there."""
        estafette.ray.register()
        estafette.ray.register()

    def fail(self, held=False):
        gate = self.gate

        def fails(x):
            assert not held or gate.wait(60), "the test never opened the gate"
            raise ValueError("no frame")

        self.writing = self.eng.submit(fails, writes=[self.x])

    @ray.method(concurrency_group=CONTROL)
    def tickets(self):
        """Number of objects that Ray still counts, or is asked to free."""
        return len(get_tensor_transport_manager(estafette.ray.NAME)._made)

    @ray.method(concurrency_group=CONTROL)
    def promised(self):
        """Number of transfers that are promised by way of Ray's object store."""
        return len(get_tensor_transport_manager(estafette.ray.NAME).sender._numbers)

    def leases(self):
        return self.eng.stats().leased

    def stored(self):
        return stored()

    def own(self, x):
        array = np.from_dlpack(x)
        assert x.read_only
        return array.tolist()

    def wait_until_freed(self):
        """True if Ray, too, has forgotten the tensor."""
        ray.experimental.wait_tensor_freed(self.x, timeout=60)
        return True

    @ray.method(tensor_transport="estafette")
    def current(self):
        return self.x

    @ray.method(tensor_transport="estafette")
    def slow(self):
        assert self.gate.wait(60), "the test never opened the gate"
        return self.x

    @ray.method(tensor_transport="estafette")
    def nested(self):
        return {"x": self.x, "list": [1, self.eng.from_dlpack(np.arange(3))]}

    @ray.method(tensor_transport="estafette")
    def of_a_library(self, like):
        gate = self.gate

        def made():
            assert gate.wait(60), "the test never opened the gate"
            return np.arange(6, dtype="float32").reshape(2, 3).T

        return self.eng.call(made, like=np.zeros((3, 2), "float32") if like else None)

    def stream(self, address, count):
        with self.eng.connect(address) as link:
            for value in range(count):
                self.write(value)
                link.send(self.x)
            self.writing.wait()

    @ray.method(concurrency_group=CONTROL)
    def end(self):
        os._exit(1)


class SinkActor:
    def __init__(self):
        self.warnings = []
        handler = logging.Handler()
        handler.emit = lambda record: self.warnings.append(record.getMessage())
        logging.getLogger("estafette").addHandler(handler)
        self.has_pending = threading.Event()
        self.begin()

    def begin(self):
        """For the next test."""
        self.release()
        self.has_pending.clear()

    @ray.method(concurrency_group=CONTROL)
    def pid(self):
        return os.getpid()

    def warned(self):
        return self.warnings

    def pending(self, x):
        assert not x.is_ready()
        self.has_pending.set()
        x.wait(60)
        assert x.read_only
        return np.from_dlpack(x).tolist()

    @ray.method(concurrency_group=CONTROL)
    def wait_for_pending(self):
        assert self.has_pending.wait(60), "no tensor that is pending came"
        self.has_pending.clear()

    def value(self, x):
        array = np.from_dlpack(x)
        assert x.read_only
        return array.tolist()

    def keep(self, x):
        self.kept = np.from_dlpack(x)
        self.tensor = x

    def sums(self, *tensors):
        return [float(np.from_dlpack(x).sum()) for x in tensors]

    def stored(self):
        return stored()

    def read_kept(self):
        return self.kept.tolist()

    def release(self):
        self.kept = self.tensor = None

    @ray.method(tensor_transport="estafette")
    def passed_on(self, x):
        return x

    def copied(self, x):
        """The value of a promise that comes by way of Ray's object store."""
        assert not x.is_ready()
        self.has_pending.set()
        return self.value_of_copy(x)

    def value_of_copy(self, x):
        x.wait(60)
        assert not x.read_only
        return np.from_dlpack(x).tolist()

    @ray.method(concurrency_group=CONTROL)
    def taken(self, tree):
        return isinstance(tree["x"], est.Tensor)

    def keep_unread(self, x):
        self.tensor = x

    def read_unread(self):
        return np.from_dlpack(self.tensor).tolist()

    @ray.method(concurrency_group=CONTROL)
    def answers_may_take(self, seconds):
        estafette.ray.ANSWER_MAX = seconds

    @ray.method(concurrency_group=CONTROL)
    def give_up(self, reference, transfer):
        get_tensor_transport_manager(estafette.ray.NAME).abort_transport(reference, transfer)

    @ray.method(concurrency_group=CONTROL)
    def has_given_up(self):
        return bool(get_tensor_transport_manager(estafette.ray.NAME)._aborted)

    def in_use(self, x):
        view = np.from_dlpack(x)
        self.has_pending.set()
        threading.Event().wait()
        return view

    def values(self, tree):
        return np.from_dlpack(tree["x"]).tolist(), tree["list"][0], np.from_dlpack(tree["list"][1]).tolist()

    def failure(self, x):
        self.has_pending.set()
        try:
            x.wait(60)
        except est.EstafetteError as error:
            return type(error.__cause__).__name__, str(error)
        return None


class AsyncSinkActor:
    async def value(self, x):
        await x
        return np.from_dlpack(x).tolist()

    async def open_door(self):
        self.door = est.default_engine().door()
        return self.door.address

    async def sum_of_stream(self):
        total = 0.0
        async for x in await self.door.accept_async():
            total += float((await x).__array__().sum())
            del x
        return total


HERE, ELSEWHERE = {"here": 0.001}, {"elsewhere": 0.001}
Source = ray.remote(concurrency_groups={CONTROL: 2}, num_cpus=0, resources=HERE)(SourceActor)
Sink = ray.remote(concurrency_groups={CONTROL: 2}, enable_tensor_transport=True, num_cpus=0, resources=HERE)(SinkActor)
AsyncSink = ray.remote(enable_tensor_transport=True, num_cpus=0, resources=HERE)(AsyncSinkActor)


class Actors:
    """Those that the tests share, each made for the first test that wants it."""

    def __init__(self):
        self.made = {}

    def __call__(self, kind, name, **options):
        if name not in self.made:
            self.made[name] = kind.options(**options).remote()
        get(self.made[name].begin.remote())
        return self.made[name]

    def close(self):
        for actor in self.made.values():
            ray.kill(actor)


@pytest.fixture(scope="module")
def shared(cluster):
    shared = Actors()
    yield shared
    shared.close()


@pytest.fixture
def source(shared):
    return shared(Source, "source")


@pytest.fixture
def sink(shared):
    return shared(Sink, "sink")


@pytest.fixture
def far_source(shared):
    """A source on the other machine."""
    return shared(Source, "far source", resources=ELSEWHERE)


@pytest.fixture
def far_sink(shared):
    return shared(Sink, "far sink", resources=ELSEWHERE)


@pytest.fixture
def poor_source(shared):
    """A source on the other machine, which has no NIXL."""
    return shared(Source, "poor source", resources=ELSEWHERE, runtime_env={"env_vars": dict([WITHOUT_NIXL])})


@pytest.fixture
def poor_sink(shared):
    return shared(Sink, "poor sink", resources=ELSEWHERE, runtime_env={"env_vars": dict([WITHOUT_NIXL])})


@pytest.fixture
def own_source():
    """One that the test kills."""
    source = Source.remote()
    yield source
    ray.kill(source)


@pytest.fixture
def own_sink():
    sink = Sink.remote()
    yield sink
    ray.kill(sink)


def get(reference):
    return ray.get(reference, timeout=100)


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_end(*pids):
    """Ray kills without waiting."""
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def test_a_value_that_comes_later_crosses_at_once(source, sink):
    get(source.write.remote(1.5, held=True))
    value = sink.pending.remote(source.current.remote())
    get(sink.wait_for_pending.remote())
    get(source.open.remote())
    assert get(value) == [1.5] * 4


def test_a_tensor_that_is_changed_before_it_is_sent_is_not_lost(source, sink):
    get(source.write.remote(1.0))
    before = source.current.remote()
    # Ray sends nothing before the next line has run.
    get(source.write.remote(2.0))
    get(sink.keep.remote(before))
    assert not get(source.is_written.remote(0.1))
    assert get(sink.read_kept.remote()) == [1.0] * 4
    del before
    # Ray counts no reference any more, and the reader still has its lease.
    assert not get(source.is_written.remote(0.1))
    assert get(sink.read_kept.remote()) == [1.0] * 4
    get(sink.release.remote())
    assert get(source.is_written.remote(60))
    after = source.current.remote()
    assert get(sink.value.remote(after)) == [2.0] * 4


def test_an_actor_gets_back_the_version_that_it_has_returned(source, sink):
    get(source.write.remote(1.0, held=True))
    before = source.current.remote()
    get(source.write.remote(2.0))
    own = source.own.remote(before)
    get(source.open.remote())
    assert get(own) == get(sink.value.remote(before)) == get(source.own.remote(before)) == [1.0] * 4
    assert not get(source.is_written.remote(0.1))
    freed = source.wait_until_freed.remote()
    del before, own
    assert get(freed)
    assert get(source.is_written.remote(60))
    assert get(source.tickets.remote()) == 0


def test_what_a_process_has_put_it_gets_back_as_a_version():
    with est.Engine(workers=1, shared=True, using=np.from_dlpack) as eng:
        x = eng.zeros(4, "float64")
        reference = ray.put(x, _tensor_transport="estafette")
        write = eng.submit(lambda x: x.fill(1), writes=[x])
        version = ray.get(reference)
        assert np.from_dlpack(version).tolist() == [0.0] * 4
        assert version.read_only
        assert not write.done()
        del reference, version
        write.wait(60)


def test_what_ray_counts_no_more_holds_nothing_up(source, sink):
    objects = [source.current.remote() for _ in range(100)]
    assert [get(sink.value.remote(x)) for x in objects[::10]] == [[0.0] * 4] * 10
    get(source.write.remote(1.0))
    assert not get(source.is_written.remote(0.1))
    del objects
    assert get(source.is_written.remote(60))
    assert get(source.tickets.remote()) == 0


def test_the_process_that_makes_the_actors_gets_promises(source):
    get(source.write.remote(3.0, held=True))
    x = get(source.current.remote())
    assert isinstance(x, est.Tensor)
    assert not x.is_ready()
    get(source.open.remote())
    assert np.from_dlpack(x).tolist() == [3.0] * 4


def test_tensors_are_found_inside_of_what_a_method_returns(source, sink):
    assert get(sink.values.remote(source.nested.remote())) == ([0.0] * 4, 1, [0, 1, 2])


@pytest.mark.parametrize("like", [True, False])
def test_memory_of_a_library_is_copied_once_it_is_ready_whether_its_shape_is_known_or_not(source, sink, like):
    value = sink.pending.remote(source.of_a_library.remote(like))
    get(sink.wait_for_pending.remote())
    get(source.open.remote())
    assert get(value) == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_the_death_of_an_actor_reaches_who_holds_its_promises(own_source, sink):
    source = own_source
    pid = get(source.pid.remote())
    get(source.write.remote(1.0, held=True))
    promise = source.current.remote()
    failure = sink.failure.remote(promise)
    get(sink.wait_for_pending.remote())
    source.end.remote()
    name, text = get(failure)
    assert name == "PeerDiedError"
    assert f"process {pid} died" in text


def test_ray_runs_a_task_again_that_a_death_has_failed(tmp_path):
    owner = "import sys, time, estafette as est; eng = est.Engine(workers=1, shared=True); link = eng.connect(sys.argv[1]); x = eng.zeros(1, 'int64'); "
    owner += "eng.submit(lambda x: time.sleep(600), writes=[x]); link.send(x); time.sleep(600)"

    @ray.remote(num_cpus=0, max_retries=1, retry_exceptions=[est.PeerDiedError])
    def attempt(tries):
        with open(tries, "a+") as file:
            file.write("x")
            file.seek(0)
            count = len(file.read())
        if count > 1:
            return count
        with est.Engine(workers=1) as eng, eng.door() as door:
            process = subprocess.Popen([sys.executable, "-c", owner, door.address])
            promise = door.accept(60).receive(60)
            process.kill()
            process.wait()
            promise.wait(60)

    assert get(attempt.remote(str(tmp_path / "tries"))) == 2


def test_the_death_of_a_reader_ends_its_leases(source, own_sink):
    get(own_sink.keep.remote(source.current.remote()))
    get(source.write.remote(1.0))
    assert not get(source.is_written.remote(0.1))
    ray.kill(own_sink)
    assert get(source.is_written.remote(60))


def test_an_asynchronous_actor_awaits_and_takes_a_stream_by_a_link(source):
    sink = AsyncSink.remote()
    value = sink.value.remote(source.current.remote())
    address = get(sink.open_door.remote())
    total = sink.sum_of_stream.remote()
    get(source.stream.remote(address, 500))
    assert get(total) == 4 * sum(range(500))
    assert get(value) == [0.0] * 4
    ray.kill(sink)


@contextlib.contextmanager
def stopped(actor):
    pid = get(actor.pid.remote())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_an_actor_that_stands_still_keeps_no_object_of_others_back(source, own_source, own_sink):
    reference = own_source.current.remote()
    with stopped(own_source):
        kept = own_sink.keep_unread.remote(reference)
        assert get(own_sink.value.remote(source.current.remote())) == [0.0] * 4
        get(kept)
    assert get(own_sink.read_unread.remote()) == [0.0] * 4


def test_an_actor_on_another_machine_that_stands_still_keeps_no_object_of_others_back(source, far_source, own_sink):
    stopped_source = Source.options(resources=ELSEWHERE).remote()
    references = [stopped_source.current.remote() for _ in range(3)]
    pid = get(stopped_source.pid.remote())
    with stopped(stopped_source):
        kept = own_sink.keep_unread.remote(references[0])
        assert get(own_sink.value.remote(source.current.remote())) == [0.0] * 4
        get(kept)
        assert get(own_sink.sums.remote(far_source.current.remote())) == [0.0]
        get(own_sink.keep_unread.remote(references[1]))
    assert get(own_sink.read_unread.remote()) == [0.0] * 4
    os.kill(pid, signal.SIGSTOP)
    failure = own_sink.failure.remote(references[2])
    get(own_sink.wait_for_pending.remote())
    os.kill(pid, signal.SIGKILL)
    name, text = get(failure)
    assert name == "PeerDiedError"
    assert f"process {pid} died" in text


@pytest.fixture
def transfers(monkeypatch):
    """Those that begin, in their order."""
    transport, begun = get_tensor_transport_manager(estafette.ray.NAME), []
    new = transport.get_communicator_metadata
    monkeypatch.setattr(transport, "get_communicator_metadata", lambda *actors: begun.append(new(*actors)) or begun[-1])
    return begun


def test_what_comes_after_ray_has_given_it_up_is_not_held(own_source, transfers):
    sink = Sink.remote()
    get(sink.answers_may_take.remote(60))
    reference = own_source.current.remote()
    with stopped(own_source):
        value = sink.value.remote(reference)
        # The transfer begins once Ray has heard of the object.
        wait_until(lambda: transfers)
        # Ray does so after a time that transfers before this one may prolong.
        get(sink.give_up.remote(reference.hex(), transfers[-1]))
        assert get(sink.has_given_up.remote())
    with pytest.raises(ray.exceptions.RayError):
        get(value)
    assert not get(sink.has_given_up.remote())
    get(own_source.write.remote(1.0))
    del reference, value
    assert get(own_source.is_written.remote(60))
    ray.kill(sink)


def test_an_object_that_ray_has_given_up_once_it_was_there_comes_again(source, sink, transfers):
    reference = source.current.remote()
    assert get(sink.value.remote(reference)) == [0.0] * 4
    get(sink.give_up.remote(reference.hex(), transfers[-1]))
    assert get(sink.value.remote(reference)) == [0.0] * 4


def test_an_abort_ends_its_receive_and_no_other_however_that_ends(monkeypatch):
    transport = estafette.ray._Transport()
    monkeypatch.setattr(estafette.ray, "_node", lambda: "here")
    first, second = (transport.get_communicator_metadata(None, None) for _ in range(2))

    def receive(transfer, node="here"):
        metadata = estafette.ray._Metadata(tensor_meta=[], tensor_device="cpu", node=node)
        transport.recv_multiple_tensors("object", metadata, transfer)

    transport.abort_transport("object", first)
    receive(second)
    with pytest.raises(est.EstafetteError, match="has given up"):
        receive(first)
    assert not transport._aborted
    transport.abort_transport("object", first)
    with pytest.raises(est.NotSharedError):
        receive(first, "elsewhere")
    assert not transport._aborted


def test_an_actor_that_nixl_has_not_reached_is_tried_again_after_pauses_that_double(monkeypatch):
    class Actor:
        """Calls of `_reaching` and `_values` that run nowhere."""

        __ray_call__ = types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=lambda function, *_: function))

    asked, now = [], [1000.0]

    def answer(function):
        asked.append(function)
        return "no way" if function is estafette.ray._reaching else [({"shape": (1,), "dtype": "int64"}, [bytes(8)])]

    monkeypatch.setattr(estafette.ray, "ray", types.SimpleNamespace(get=answer))
    monkeypatch.setattr(estafette.ray, "_node", lambda: "here")
    monkeypatch.setattr(estafette.ray, "time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    metadata = estafette.ray._Metadata(tensor_meta=[], tensor_device="cpu", node="elsewhere", source=Actor())
    unreachable = {}
    tries = []
    for now[0] in (1000.0, 1059.0, 1061.0, 1062.0, 1180.0, 1182.0, 99_999.0):
        [tensor] = estafette.ray._from_elsewhere("object", metadata, unreachable, None, "number", lambda *_: None, None)
        assert tensor.result(60).shape == (1,)
        tries.append(asked.count(estafette.ray._reaching))
    assert tries == [1, 1, 2, 2, 2, 3, 4]
    for _ in range(9):
        now[0] += 3601.0
        estafette.ray._from_elsewhere("object", metadata, unreachable, None, "number", lambda *_: None, None)
    assert asked.count(estafette.ray._reaching) == 13


@by_nixl
def test_a_value_that_comes_later_crosses_to_another_machine_at_once(source, far_sink):
    get(source.write.remote(2.0, held=True))
    reference = source.current.remote()
    # The version that was returned, and not the next one.
    get(source.write.remote(3.0))
    value = far_sink.pending.remote(reference)
    get(far_sink.wait_for_pending.remote())
    get(source.open.remote())
    assert get(value) == [2.0] * 4
    assert not get(source.is_written.remote(0.1))
    del reference, value
    assert get(source.is_written.remote(60))
    assert get(source.tickets.remote()) == 0
    assert get(far_sink.warned.remote()) == []


@by_nixl
def test_what_ray_counts_no_more_still_comes_to_another_machine_and_ends_its_lease(source, far_sink):
    get(source.write.remote(2.0, held=True))
    reference = source.current.remote()
    get(source.write.remote(3.0))
    get(far_sink.keep_unread.remote(reference))
    del reference
    wait_until(lambda: get(source.tickets.remote()) == 0)
    get(source.open.remote())
    # The copy is there, and holds nothing of the source.
    assert get(source.is_written.remote(60))
    assert get(far_sink.read_unread.remote()) == [2.0] * 4


@by_nixl
@pytest.mark.parametrize("held", [False, True])
def test_a_failure_reaches_another_machine(source, far_sink, held):
    get(source.fail.remote(held))
    failure = far_sink.failure.remote(source.current.remote())
    if held:
        get(far_sink.wait_for_pending.remote())
        get(source.open.remote())
    assert "no frame" in get(failure)[1]
    assert get(far_sink.warned.remote()) == []


@by_nixl
def test_what_came_from_another_process_is_passed_on_to_another_machine(source, sink, far_sink):
    for held in (False, True):
        get(source.write.remote(2.0, held))
        value = (far_sink.pending if held else far_sink.value).remote(sink.passed_on.remote(source.current.remote()))
        if held:
            get(far_sink.wait_for_pending.remote())
            get(source.open.remote())
        assert get(value) == [2.0] * 4


@by_nixl
def test_two_actors_on_two_machines_take_from_each_other_at_once(source, sink, far_source, far_sink):
    get([source.write.remote(1.0, held=True), far_source.write.remote(2.0, held=True)])
    values = [far_sink.pending.remote(source.current.remote()), sink.pending.remote(far_source.current.remote())]
    mine = get(far_source.current.remote())
    assert not mine.is_ready()
    get([far_sink.wait_for_pending.remote(), sink.wait_for_pending.remote()])
    get([source.open.remote(), far_source.open.remote()])
    assert get(values) == [[1.0] * 4, [2.0] * 4]
    assert np.from_dlpack(mine).tolist() == [2.0] * 4


@by_nixl
def test_the_death_of_an_actor_on_another_machine_reaches_who_holds_its_promises(own_source, far_sink):
    pid = get(own_source.pid.remote())
    get(own_source.write.remote(1.0, held=True))
    promise = own_source.current.remote()
    failure = far_sink.failure.remote(promise)
    get(far_sink.wait_for_pending.remote())
    began = time.monotonic()
    own_source.end.remote()
    name, text = get(failure)
    assert name == "PeerDiedError"
    assert f"process {pid} on " in text
    assert time.monotonic() - began < 30
    # One that comes later hears it from Ray.
    with pytest.raises(ray.exceptions.RayError):
        get(far_sink.value.remote(promise))


def test_without_nixl_an_actor_on_another_machine_gets_a_promise_of_a_copy_at_once(source, poor_sink):
    get(source.write.remote(2.0, held=True))
    reference = source.current.remote()
    # The version that was returned, and not the next one.
    get(source.write.remote(3.0))
    value = poor_sink.copied.remote(reference)
    get(poor_sink.wait_for_pending.remote())
    # Other objects do not wait for it.
    assert get(poor_sink.taken.remote(source.nested.remote()))
    get(source.open.remote())
    assert get(value) == [2.0] * 4
    get(source.fail.remote())
    del reference, value
    failure = get(poor_sink.failure.remote(source.current.remote()))
    assert failure is not None
    assert "no frame" in failure[1]
    get([source.begin.remote(), poor_sink.value_of_copy.remote(source.current.remote())])
    [warning] = get(poor_sink.warned.remote())
    assert "Ray's object store" in warning and "NIXL is not available" in warning, warning


def test_without_nixl_what_ray_counts_no_more_still_comes_to_another_machine_and_is_held_until_then(source, poor_sink):
    get(source.write.remote(2.0, held=True))
    reference = source.current.remote()
    get(source.write.remote(3.0))
    get(poor_sink.keep_unread.remote(reference))
    del reference
    wait_until(lambda: get(source.tickets.remote()) == 0)
    get(source.open.remote())
    assert get(poor_sink.read_unread.remote()) == [2.0] * 4
    assert get(source.is_written.remote(60))
    wait_until(lambda: get(source.promised.remote()) == 0)


def test_without_nixl_a_receiver_that_dies_holds_nothing(source):
    sink = Sink.options(resources=ELSEWHERE, runtime_env={"env_vars": dict([WITHOUT_NIXL])}).remote()
    get(source.write.remote(2.0, held=True))
    get(sink.keep_unread.remote(source.current.remote()))
    pid = get(sink.pid.remote())
    ray.kill(sink)
    wait_for_end(pid)
    get([source.write.remote(3.0), source.open.remote()])
    assert get(source.is_written.remote(60))
    wait_until(lambda: get(source.promised.remote()) == 0)


def test_two_actors_without_nixl_on_two_machines_take_from_each_other_at_once(source, sink, poor_source, poor_sink):
    get([source.write.remote(1.0, held=True), poor_source.write.remote(2.0, held=True)])
    values = [poor_sink.copied.remote(source.current.remote()), sink.copied.remote(poor_source.current.remote())]
    get([poor_sink.wait_for_pending.remote(), sink.wait_for_pending.remote()])
    get([source.open.remote(), poor_source.open.remote()])
    assert get(values) == [[1.0] * 4, [2.0] * 4]
    assert "NIXL is not available" in "".join(get(sink.warned.remote()))


def test_without_nixl_the_process_that_makes_the_actors_waits_for_the_value(poor_source):
    get(poor_source.write.remote(2.0))
    assert np.from_dlpack(get(poor_source.current.remote())).tolist() == [2.0] * 4


def test_without_nixl_the_death_of_an_actor_on_another_machine_reaches_who_holds_its_promises(own_source, poor_sink):
    pid = get(own_source.pid.remote())
    get(own_source.write.remote(1.0, held=True))
    failure = poor_sink.failure.remote(own_source.current.remote())
    get(poor_sink.wait_for_pending.remote())
    own_source.end.remote()
    name, text = get(failure)
    assert name == "PeerDiedError"
    assert f"process {pid} died" in text


def test_a_callback_of_the_program_that_waits_keeps_no_value_back():
    is_added, has_begun, is_over = threading.Event(), threading.Event(), threading.Event()
    delivered = concurrent.futures.Future()

    def deliver(_function, number, values):
        delivered.set_result((number, values))
        return types.SimpleNamespace(future=concurrent.futures.Future)

    receiver = types.SimpleNamespace(__ray_call__=types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=deliver)))
    with est.Engine(workers=2) as eng:
        eng.call(is_added.wait, 60).add_done_callback(lambda _: has_begun.set() or is_over.wait(60))
        x = eng.call(lambda: np.ones(4) if has_begun.wait(60) else None)
        _ray_values.Sender().promise("7", [x], receiver, lambda *_: None)
        is_added.set()
        try:
            number, [(header, _frames)] = delivered.result(30)
        finally:
            is_over.set()
    assert (number, header["shape"]) == ("7", (4,))


def test_what_no_actor_has_put_is_refused_on_another_machine_with_words():
    transport = estafette.ray._Transport()
    metadata = estafette.ray._Metadata([((1,), "float32")], "cpu", [b"x"], "another")
    transfer = transport.get_communicator_metadata(None, None)
    with pytest.raises(est.NotSharedError, match="node another"):
        transport.recv_multiple_tensors("id", metadata, transfer)
    with pytest.raises(ValueError, match="target buffers"):
        transport.recv_multiple_tensors("id", metadata, transfer, [None])


def test_a_further_registration_does_nothing_in_an_actor_too(source, sink):
    get(source.register.remote())
    assert get(sink.value.remote(source.current.remote())) == [0.0] * 4


def test_a_source_that_is_killed_at_any_point_harms_nobody(source, sink):
    sources = [Source.remote() for _ in range(5)]

    def method_running(source):
        value = sink.value.remote(source.slow.remote())
        ray.kill(source)
        with pytest.raises(ray.exceptions.RayError):
            get(value)

    def pending(source):
        get(source.write.remote(1.0, held=True))
        failure = sink.failure.remote(source.current.remote())
        get(sink.wait_for_pending.remote())
        ray.kill(source)
        assert get(failure)[0] == "PeerDiedError"

    def granted(source):
        get(sink.keep_unread.remote(source.current.remote()))
        ray.kill(source)

    def in_use(source):
        get(source.write.remote(1.0))
        get(sink.keep.remote(source.current.remote()))
        ray.kill(source)
        assert get(sink.read_kept.remote()) == [1.0] * 4

    def being_freed(source):
        references = [source.current.remote() for _ in range(20)]
        get([sink.value.remote(reference) for reference in references])
        del references
        ray.kill(source)

    for victim, point in zip(sources, (method_running, pending, granted, in_use, being_freed)):
        point(victim)
    assert get(sink.value.remote(source.current.remote())) == [0.0] * 4


def test_a_destination_that_is_killed_at_any_point_holds_nothing(source):
    sinks = [Sink.remote() for _ in range(5)]

    def method_running(sink):
        pid = get(sink.pid.remote())
        value = sink.value.remote(source.slow.remote())
        ray.kill(sink)
        wait_for_end(pid)
        get(source.open.remote())
        with pytest.raises(ray.exceptions.RayError):
            get(value)

    def pending(sink):
        get(source.write.remote(1.0, held=True))
        failure = sink.failure.remote(source.current.remote())
        get(sink.wait_for_pending.remote())
        pid = get(sink.pid.remote())
        ray.kill(sink)
        wait_for_end(pid)
        get(source.open.remote())
        with pytest.raises(ray.exceptions.RayError):
            get(failure)

    def granted(sink):
        get(sink.keep_unread.remote(source.current.remote()))
        ray.kill(sink)

    def in_use(sink):
        never = sink.in_use.remote(source.current.remote())
        get(sink.wait_for_pending.remote())
        ray.kill(sink)
        with pytest.raises(ray.exceptions.RayError):
            get(never)

    def being_freed(sink):
        reference = source.current.remote()
        get(sink.value.remote(reference))
        del reference
        ray.kill(sink)

    for sink, point in zip(sinks, (pending, method_running, granted, in_use, being_freed)):
        get(source.close.remote())
        point(sink)
        get(source.write.remote(2.0))
        assert get(source.is_written.remote(60)), f"{point.__name__}: something holds the version of a dead reader"
    assert get(source.tickets.remote()) == 0


class RestartedActor(SourceActor):
    def __init__(self):
        # Ray does not, in an actor that it starts again.
        estafette.ray.register()
        super().__init__()


def test_an_actor_that_is_started_again_passes_tensors_again(sink):
    source = ray.remote(concurrency_groups={CONTROL: 2}, num_cpus=0, resources=HERE, max_restarts=1, max_task_retries=-1)(RestartedActor).remote()
    before = get(source.pid.remote())
    assert get(sink.value.remote(source.current.remote())) == [0.0] * 4
    ray.kill(source, no_restart=False)
    wait_for_end(before)
    assert get(source.pid.remote()) != before
    get(source.write.remote(5.0))
    assert get(sink.value.remote(source.current.remote())) == [5.0] * 4
    ray.kill(source)


# Ray takes some 3 ms for each, and longer on a busy machine.
@pytest.mark.timeout(300)
def test_of_thousands_of_objects_nothing_is_held_at_the_end(source, sink):
    for _ in range(100):
        # One call takes a hundred objects.
        sums = get(sink.sums.remote(*[source.current.remote() for _ in range(100)]))
        assert sums == [0.0] * 100
    get(source.write.remote(1.0))
    assert get(source.is_written.remote(60))
    assert get(source.tickets.remote()) == 0
    assert get(source.leases.remote()) == 0
    # Ray frees what a call has taken some time after it.
    wait_until(lambda: get([source.stored.remote(), sink.stored.remote()]) == [0, 0])


DRIVER = """
import sys, time
sys.path.insert(0, sys.argv[2])
import test_ray as it
it.start(sys.argv[1])
source, sink = it.Source.remote(), it.Sink.remote()
pids = it.get([source.pid.remote(), sink.pid.remote()])
if sys.argv[3] == "method running":
    value = sink.value.remote(source.slow.remote())
elif sys.argv[3] == "pending":
    it.get(source.write.remote(1.0, held=True))
    value, x = sink.pending.remote(source.current.remote()), it.get(source.current.remote())
    it.get(sink.wait_for_pending.remote())
elif sys.argv[3] == "in use":
    it.get(source.write.remote(1.0))
    held, x = sink.in_use.remote(source.current.remote()), it.get(source.current.remote())
    view = it.np.from_dlpack(x)
    it.get(source.write.remote(2.0))  # waits for both readers
    it.get(sink.wait_for_pending.remote())
elif sys.argv[3] == "being freed":
    print(*pids, flush=True)
    while True:
        references = [source.current.remote() for _ in range(20)]
        it.get([sink.value.remote(reference) for reference in references])
        del references
print(*pids, flush=True)
time.sleep(600)
"""


def test_a_driver_that_is_killed_at_any_point_ends_with_its_actors(cluster):
    """Nothing of this package keeps a process alive that Ray ends."""
    command = [sys.executable, "-c", DRIVER, cluster.address, os.path.dirname(__file__)]
    points = ("method running", "pending", "in use", "being freed")
    # At once, as to start takes most of the time.
    drivers = [subprocess.Popen([*command, point], stdout=subprocess.PIPE, text=True) for point in points]
    for driver, point in zip(drivers, points):
        pids = driver.stdout.readline().split()
        assert len(pids) == 2, point
        driver.kill()
        driver.wait()
        wait_for_end(*pids)


def test_a_reader_is_taken_for_dead_with_its_machine_once(monkeypatch):
    declared, readers = [], _ray_nodes.Readers()
    nodes = [{"NodeID": name, "NodeManagerAddress": host, "Alive": True} for name, host in (("a", "192.0.2.0"), ("b", "192.0.2.1"))]
    monkeypatch.setattr(_ray_nodes, "declare_dead", lambda *it: declared.append(it))
    monkeypatch.setattr(_ray_nodes, "_LOOK_S", 3600)
    for reader in (("a", 7), ("b", 8), ("a", 7)):
        readers.add(*reader)
    readers.release_dead(nodes)
    assert declared == []
    nodes[0]["Alive"] = False
    # Ray has started again there.
    nodes.append({"NodeID": "c", "NodeManagerAddress": "192.0.2.0", "Alive": True})
    readers.add("c", 7)
    readers.release_dead(nodes)
    readers.release_dead(nodes)
    assert declared == [("192.0.2.0", 7)]


# From here on a driver that comes later may take a dead node for its own.
def test_a_node_whose_raylet_is_killed_at_any_point_ends_with_what_its_actors_hold(cluster, source, sink):
    node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"lost": 1})
    lost = {"lost": 0.001}
    far_source, far_sink, reader = (kind.options(resources=lost).remote() for kind in (Source, Sink, Sink))
    # Being freed, in use, and pending.
    freed = [far_source.current.remote() for _ in range(20)]
    get([sink.value.remote(reference) for reference in freed])
    in_use = reader.in_use.remote(source.current.remote())
    get(reader.wait_for_pending.remote())
    get([source.write.remote(1.0), far_source.write.remote(2.0, held=True)])
    assert not get(source.is_written.remote(0.1))
    values = [sink.value.remote(far_source.current.remote()), far_sink.pending.remote(source.current.remote())]
    get(far_sink.wait_for_pending.remote())
    del freed
    cluster.remove_node(node, allow_graceful=False)
    for value in (*values, in_use):
        with pytest.raises(ray.exceptions.RayError):
            get(value)
    del values, value, in_use
    get(source.write.remote(3.0))
    assert get(source.is_written.remote(60))
    assert get(source.tickets.remote()) == 0
    assert get(sink.value.remote(source.current.remote())) == [3.0] * 4


@by_nixl
def test_what_an_unreachable_machine_holds_is_released_once_ray_says_that_it_is_dead(cluster, source, far_sink):
    get(source.write.remote(1.0, held=True))
    failure = far_sink.failure.remote(source.current.remote())
    get(far_sink.wait_for_pending.remote())
    cluster.machines.pull()
    get([source.open.remote(), source.write.remote(2.0)])
    with pytest.raises(ray.exceptions.RayError):
        get(failure)
    del failure
    assert get(source.is_written.remote(60))
