"""Actors of Ray and workers of Dask, with Estafette and without."""

import statistics
import sys
import time

import numpy as np
from figures import PAUSE_S, SIZES, TRIPS_MAX, figure, hand_overs, left_out, one_round
from workloads import WORKLOADS, value_of


class Cluster:
    """Hands over between processes of a cluster; a trip is what the program that started it waits."""

    def check(self, total):
        pass

    def close(self):
        pass

    def trip(self, size, value):
        began = time.perf_counter()
        answer = self.go(size, value)
        took = time.perf_counter() - began
        if answer != value:
            raise RuntimeError(f"{self.NAME}: {answer} was read, and it is {value}")
        return took


def with_ray(rounds):
    import ray

    import estafette.ray

    estafette.ray.register()
    # Actors find neither file.
    for name in (__name__, value_of.__module__):
        ray.cloudpickle.register_pickle_by_value(sys.modules[name])
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)

    @ray.remote(enable_tensor_transport=True)
    class Actor:
        def __init__(self):
            import estafette as est

            self.eng = est.Engine(workers=1, shared=True)
            self.arrays, self.tensors = {}, {}

        def array(self, size, value):
            array = self.arrays.setdefault(size, np.zeros(size // 8))
            array[0] = value
            return array

        @ray.method(tensor_transport="estafette")
        def tensor(self, size):
            # Written once: a later write would wait until Ray has counted all references down, which takes it many milliseconds.
            if size not in self.tensors:
                self.tensors[size] = self.eng.zeros(size // 8, "float64")
                with self.tensors[size].write() as view:
                    np.asarray(view)[0] = size
            return self.tensors[size]

        def arrays_of(self, workload, value):
            shape = workload.tensors, workload.size // 8
            arrays = self.arrays.setdefault(shape, np.zeros(shape))
            arrays[:, 0] = arrays[:, -1] = value
            return list(arrays)

        def use_array(self, array):
            return int(array[0])

        def use_arrays(self, arrays, workload):
            return sum(value_of(array, workload) for array in arrays) / len(arrays)

        def use_tensor(self, x):
            return int(np.from_dlpack(x)[0])

        def address(self):
            self.door = self.eng.door()
            return self.door.address

        def serve(self, address):
            with self.eng.connect(address) as link:
                for x in link:
                    np.from_dlpack(x)[0]
                    del x

        def link_trips(self, size, is_idle):
            if not hasattr(self, "link"):
                self.link = self.door.accept(60)
            x, times = self.eng.zeros(size // 8, "float64"), []
            for _ in range(TRIPS_MAX):
                if is_idle:
                    time.sleep(PAUSE_S)
                began = time.perf_counter()
                self.link.send(x)
                with x.write():
                    times.append(time.perf_counter() - began)
            return statistics.median(times)

    source, sink, server = (Actor.remote() for _ in range(3))
    ray.get([actor.address.remote() for actor in (source, sink)])

    class Objects(Cluster):
        NAME = "Ray objects"

        def go(self, size, value):
            return ray.get(sink.use_array.remote(source.array.remote(size, value)))

    class Tensors(Cluster):
        NAME = "estafette.ray"

        def go(self, size, value):
            return value if ray.get(sink.use_tensor.remote(source.tensor.remote(size))) == size else None

    readers = [sink, server, Actor.remote(), Actor.remote()]

    class Workloads(Objects):
        def go(self, workload, value):
            made = source.arrays_of.remote(workload, value)
            used = [reader.use_arrays.remote(made, workload) for reader in readers[: workload.readers]]
            answers = set(ray.get(used))
            return answers.pop() if len(answers) == 1 else None

    for name in ["4 readers, 1 MB", "list of 1,000, 1 KB"]:
        trips = [one_round(Workloads(), WORKLOADS[name], False, 0)[0] for _ in range(rounds + 1)]
        figure(f"{Objects.NAME}; {name}", "us", [trip * 1e6 for trip in trips[1:]])
    means = [Objects(), Tensors()]
    for its in (CompiledGraph, Gloo):
        try:
            means.append(its(ray))
        except Exception as error:
            left_out(its.NAME, error)
    hand_overs(means, SIZES, ["awake"], rounds)
    # It serves for ever, and is never awaited.
    _serving = server.serve.remote(ray.get(source.address.remote()))
    for state in ["awake", "idle"]:
        trips = [ray.get(source.link_trips.remote(SIZES["1 KB"], state == "idle")) for _ in range(rounds)]
        figure(f"link between actors of Ray; 1 KB; {state}", "us", [trip * 1e6 for trip in trips])
    ray.shutdown()


class Actors(Cluster):
    """Hands over between two actors of a class, which end with it."""

    def __init__(self, ray, actor):
        self.ray, self.source, self.sink = ray, actor.remote(), actor.remote()
        try:
            self.join()
        except BaseException:
            Actors.close(self)
            raise

    def close(self):
        for actor in (self.source, self.sink):
            self.ray.kill(actor)


class CompiledGraph(Actors):
    NAME = "Ray compiled graph"

    def __init__(self, ray):
        @ray.remote
        class Actor:
            def __init__(self):
                self.arrays = {}

            def array(self, size, value):
                array = self.arrays.setdefault(size, np.zeros(size // 8))
                array[0] = value
                return array

            def use(self, array):
                return int(array[0])

        super().__init__(ray, Actor)

    def join(self):
        from ray.dag import InputNode

        with InputNode() as given:
            graph = self.sink.use.bind(self.source.array.bind(given[0], given[1]))
        # Buffers that are large enough are not made anew.
        self.graph = graph.experimental_compile(_buffer_size_bytes=2 * max(SIZES.values()))

    def go(self, size, value):
        return self.graph.execute(size, value).get()

    def close(self):
        try:
            # Else it may wait for ever for an actor.
            self.graph.teardown(kill_actors=True)
        finally:
            super().close()


class Gloo(Actors):
    NAME = "Ray RDT, Gloo"

    def __init__(self, ray):
        import torch

        @ray.remote
        class Actor:
            def __init__(self):
                self.tensors = {}

            @ray.method(tensor_transport="gloo")
            def tensor(self, size, value):
                tensor = self.tensors.setdefault(size, torch.zeros(size // 8, dtype=torch.float64))
                tensor[0] = value
                return tensor

            def use(self, tensor):
                return int(tensor[0])

        super().__init__(ray, Actor)

    def join(self):
        from ray.experimental.collective import create_collective_group

        create_collective_group([self.source, self.sink], backend="torch_gloo")

    def go(self, size, value):
        return self.ray.get(self.sink.use.remote(self.source.tensor.remote(size, value)))


def with_dask(rounds):
    import distributed
    from distributed import get_worker

    import estafette.dask

    def kept(name, make):
        """State that a worker keeps from task to task."""
        worker = get_worker()
        if not hasattr(worker, name):
            setattr(worker, name, make())
        return getattr(worker, name)

    def array(size, value):
        array = kept(f"array{size}", lambda: np.zeros(size // 8))
        array[0] = value
        return array

    def tensor(size, value):
        import estafette as est

        # A value is released some time after its last use.
        ring = kept(f"ring{size}", lambda: [est.default_engine().zeros(size // 8, "float64", shared=True) for _ in range(4)])
        with ring[value % 4].write() as view:
            np.asarray(view)[0] = value
        return ring[value % 4]

    def use_array(array):
        return int(array[0])

    def use_tensor(x):
        return int(np.from_dlpack(x)[0])

    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None, silence_logs=40) as cluster,
        distributed.Client(cluster) as client,
    ):
        estafette.dask.register(client)
        first, second = client.scheduler_info()["workers"]

        class Arrays(Cluster):
            NAME, make, use = "Dask", array, use_array

            def go(self, size, value):
                make, use = type(self).make, type(self).use
                made = client.submit(make, size, value, workers=[first], pure=False)
                return client.submit(use, made, workers=[second], pure=False).result()

        class Tensors(Arrays):
            NAME, make, use = "estafette.dask", tensor, use_tensor

        hand_overs([Arrays(), Tensors()], SIZES, ["awake"], rounds)
