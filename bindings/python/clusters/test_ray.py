"""Tensors between actors of Ray, by the transport of `estafette.ray`. Ray runs here, with a process for each actor."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

import estafette as est
import estafette.ray

estafette.ray.register()
# Workers do not find this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Two nodes. For the transport they are two machines."""
    estafette.ray.register()
    first = {"num_cpus": 4, "object_store_memory": 100 << 20, "resources": {"here": 1}}
    cluster = Cluster(initialize_head=True, head_node_args=first)
    cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"elsewhere": 1})
    ray.init(cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


CONTROL = "control"
"""The methods that run beside others. The others run in the order of their calls."""


class SourceActor:
    """Owns `self.x`, four numbers. A write that is held up waits for `open`."""

    def __init__(self):
        self.eng = est.Engine(workers=2, shared=True, using=np.from_dlpack)
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
        """What the process that makes the actors may call, an actor may too: Ray has registered the transport there."""
        estafette.ray.register()
        estafette.ray.register()

    def fail(self):
        def fails(x):
            raise ValueError("no frame")

        self.writing = self.eng.submit(fails, writes=[self.x])

    @ray.method(concurrency_group=CONTROL)
    def tickets(self):
        """How many objects Ray still counts, or is asked to free."""
        from ray.experimental.rdt.util import get_tensor_transport_manager

        return len(get_tensor_transport_manager(estafette.ray.NAME)._tickets)

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
        self.kept = None
        self.has_pending = threading.Event()

    @ray.method(concurrency_group=CONTROL)
    def pid(self):
        return os.getpid()

    def pending(self, x):
        assert not x.is_ready()
        self.has_pending.set()
        return np.from_dlpack(x).tolist()

    @ray.method(concurrency_group=CONTROL)
    def wait_for_pending(self):
        assert self.has_pending.wait(60), "no tensor that is pending came"

    def value(self, x):
        array = np.from_dlpack(x)
        assert x.read_only
        return array.tolist()

    def keep(self, x):
        self.kept = np.from_dlpack(x)
        self.tensor = x

    def sums(self, *tensors):
        return [float(np.from_dlpack(x).sum()) for x in tensors]

    def read_kept(self):
        return self.kept.tolist()

    def let_go(self):
        self.kept = self.tensor = None

    def copied(self, x):
        assert not x.read_only
        return np.from_dlpack(x).tolist()

    def keep_unread(self, x):
        self.tensor = x

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


@pytest.fixture
def actors():
    source, sink = Source.remote(), Sink.remote()
    yield source, sink
    for actor in (source, sink):
        ray.kill(actor)


def get(reference):
    return ray.get(reference, timeout=100)


def wait_for_end(*pids):
    """Ray kills without waiting."""
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_value_that_comes_later_crosses_at_once(actors):
    source, sink = actors
    get(source.write.remote(1.5, held=True))
    value = sink.pending.remote(source.current.remote())
    get(sink.wait_for_pending.remote())
    get(source.open.remote())
    assert get(value) == [1.5] * 4


def test_a_tensor_that_is_changed_before_it_is_sent_is_not_lost(actors):
    source, sink = actors
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
    get(sink.let_go.remote())
    assert get(source.is_written.remote(60))
    after = source.current.remote()
    assert get(sink.value.remote(after)) == [2.0] * 4


def test_what_ray_counts_no_more_holds_nothing_up(actors):
    source, sink = actors
    objects = [source.current.remote() for _ in range(100)]
    assert [get(sink.value.remote(x)) for x in objects[::10]] == [[0.0] * 4] * 10
    get(source.write.remote(1.0))
    assert not get(source.is_written.remote(0.1))
    del objects
    assert get(source.is_written.remote(60))
    assert get(source.tickets.remote()) == 0


def test_the_process_that_makes_the_actors_gets_and_puts_promises(actors):
    source, sink = actors
    get(source.write.remote(3.0, held=True))
    x = get(source.current.remote())
    assert isinstance(x, est.Tensor)
    assert not x.is_ready()
    get(source.open.remote())
    assert np.from_dlpack(x).tolist() == [3.0] * 4


def test_tensors_are_found_inside_of_what_a_method_returns(actors):
    source, sink = actors
    assert get(sink.values.remote(source.nested.remote())) == ([0.0] * 4, 1, [0, 1, 2])


@pytest.mark.parametrize("like", [True, False])
def test_memory_of_a_library_is_copied_once_it_is_ready_whether_its_shape_is_known_or_not(actors, like):
    source, sink = actors
    value = sink.pending.remote(source.of_a_library.remote(like))
    get(sink.wait_for_pending.remote())
    get(source.open.remote())
    assert get(value) == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_the_death_of_an_actor_reaches_who_holds_its_promises(actors):
    source, sink = actors
    pid = get(source.pid.remote())
    get(source.write.remote(1.0, held=True))
    promise = source.current.remote()
    failure = sink.failure.remote(promise)
    get(sink.wait_for_pending.remote())
    source.end.remote()
    name, text = get(failure)
    assert name == "PeerDiedError"
    assert f"process {pid} died" in text


def test_the_death_of_a_reader_ends_its_leases(actors):
    source, sink = actors
    get(sink.keep.remote(source.current.remote()))
    get(source.write.remote(1.0))
    assert not get(source.is_written.remote(0.1))
    ray.kill(sink)
    assert get(source.is_written.remote(60))


def test_an_asynchronous_actor_awaits_and_takes_a_stream_by_a_link(actors):
    source, _sink = actors
    sink = AsyncSink.remote()
    value = sink.value.remote(source.current.remote())
    address = get(sink.open_door.remote())
    total = sink.sum_of_stream.remote()
    get(source.stream.remote(address, 500))
    assert get(total) == 4 * sum(range(500))
    assert get(value) == [0.0] * 4
    ray.kill(sink)


@pytest.fixture
def far_sink():
    """A sink on the other node."""
    sink = Sink.options(resources=ELSEWHERE).remote()
    yield sink
    ray.kill(sink)


def test_an_actor_on_another_machine_gets_the_value_when_it_is_ready(actors, far_sink):
    source, _sink = actors
    get(source.write.remote(2.0, held=True))
    reference = source.current.remote()
    # The version that was returned, and not the next one.
    get(source.write.remote(3.0))
    value = far_sink.copied.remote(reference)
    get(source.open.remote())
    assert get(value) == [2.0] * 4
    get(source.fail.remote())
    del reference, value
    failure = get(far_sink.failure.remote(source.current.remote()))
    assert failure is not None
    assert "no frame" in failure[1]


def test_two_actors_on_two_machines_take_from_each_other_at_once(actors, far_sink):
    source, sink = actors
    far_source = Source.options(resources=ELSEWHERE).remote()
    get([source.write.remote(1.0, held=True), far_source.write.remote(2.0, held=True)])
    values = [far_sink.copied.remote(source.current.remote()), sink.copied.remote(far_source.current.remote())]
    get([source.open.remote(), far_source.open.remote()])
    assert get(values) == [[1.0] * 4, [2.0] * 4]
    ray.kill(far_source)


def test_the_death_of_an_actor_on_another_machine_is_an_error(actors, far_sink):
    source, _sink = actors
    get(source.write.remote(1.0, held=True))
    value = far_sink.value.remote(source.current.remote())
    ray.kill(source)
    with pytest.raises(ray.exceptions.RayError):
        get(value)


def test_what_no_actor_has_put_is_refused_on_another_machine_with_words():
    transport = estafette.ray._Transport()
    metadata = estafette.ray._Metadata([((1,), "float32")], "cpu", [b"x"], "another")
    with pytest.raises(est.NotSharedError, match="node another"):
        transport.recv_multiple_tensors("id", metadata, None)
    with pytest.raises(ValueError, match="target buffers"):
        transport.recv_multiple_tensors("id", metadata, None, [None])


def test_a_further_registration_does_nothing_in_an_actor_too(actors):
    source, sink = actors
    get(source.register.remote())
    assert get(sink.value.remote(source.current.remote())) == [0.0] * 4


def test_a_source_that_is_killed_at_any_point_harms_nobody(actors):
    first, sink = actors
    sources = [first, *(Source.remote() for _ in range(5))]

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

    for source, point in zip(sources, (method_running, pending, granted, in_use, being_freed)):
        point(source)
    assert get(sink.value.remote(sources[-1].current.remote())) == [0.0] * 4
    ray.kill(sources[-1])


def test_a_destination_that_is_killed_at_any_point_holds_nothing(actors):
    source, first = actors
    sinks = [first, *(Sink.remote() for _ in range(4))]

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


def test_an_actor_that_is_started_again_passes_tensors_again(actors):
    _source, sink = actors
    source = ray.remote(concurrency_groups={CONTROL: 2}, num_cpus=0, resources=HERE, max_restarts=1, max_task_retries=-1)(RestartedActor).remote()
    before = get(source.pid.remote())
    assert get(sink.value.remote(source.current.remote())) == [0.0] * 4
    ray.kill(source, no_restart=False)
    assert get(source.pid.remote()) != before
    get(source.write.remote(5.0))
    assert get(sink.value.remote(source.current.remote())) == [5.0] * 4
    ray.kill(source)


def test_of_ten_thousand_objects_nothing_is_held_at_the_end(actors):
    source, sink = actors
    for _ in range(100):
        # One call takes a hundred objects.
        sums = get(sink.sums.remote(*[source.current.remote() for _ in range(100)]))
        assert sums == [0.0] * 100
    get(source.write.remote(1.0))
    assert get(source.is_written.remote(60))
    assert get(source.tickets.remote()) == 0


DRIVER = """
import sys, time
sys.path.insert(0, sys.argv[2])
import test_ray as it
it.ray.init(sys.argv[1], log_to_driver=False)
source, sink = it.Source.remote(), it.Sink.remote()
it.get(source.write.remote(1.0))
held, x = sink.in_use.remote(source.current.remote()), it.get(source.current.remote())
view = it.np.from_dlpack(x)
it.get(source.write.remote(2.0))  # waits for both readers
it.get(sink.wait_for_pending.remote())
print(it.get(source.pid.remote()), it.get(sink.pid.remote()), flush=True)
time.sleep(600)
"""


def test_a_driver_that_is_killed_ends_with_its_actors(cluster):
    """Nothing of this package keeps a process alive that Ray ends."""
    command = [sys.executable, "-c", DRIVER, cluster.address, os.path.dirname(__file__)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pids = driver.stdout.readline().split()
    assert len(pids) == 2
    driver.kill()
    driver.wait()
    wait_for_end(*pids)


# The last one: a driver that comes later may take the dead node for its own.
def test_a_node_whose_raylet_is_killed_ends_with_what_its_actors_hold(cluster, actors):
    source, sink = actors
    node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"lost": 1})
    lost = {"lost": 0.001}
    far_source, far_sink = Source.options(resources=lost).remote(), Sink.options(resources=lost).remote()
    get([source.write.remote(1.0, held=True), far_source.write.remote(2.0, held=True)])
    values = [sink.value.remote(far_source.current.remote()), far_sink.copied.remote(source.current.remote())]
    get(far_sink.pid.remote())
    cluster.remove_node(node, allow_graceful=False)
    for value in values:
        with pytest.raises(ray.exceptions.RayError):
            get(value)
    del values, value
    get(source.open.remote())
    get(source.write.remote(3.0))
    assert get(source.is_written.remote(60))
    assert get(source.tickets.remote()) == 0
    assert get(sink.value.remote(source.current.remote())) == [3.0] * 4
