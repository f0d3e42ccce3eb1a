"""The same means with several tensors, or several readers."""

import collections
import contextlib
import itertools
import math
import multiprocessing
import os
import pickle
import socket
import time
import typing
from multiprocessing import shared_memory

import numpy as np
from figures import ROUND_S, TOTAL, TRIPS_MIN, figure, left_out
from hand_overs import Arrow, Estafette, SharedMemory, Torch


class Workload(typing.NamedTuple):
    """Messages of so many tensors to so many processes, of which at most a window is under way."""

    tensors: int
    size: int
    readers: int = 1
    window: int = 1
    # The first process changes every element in place, and the second one reads every element; else the first and the last one.
    is_whole: bool = False


WORKLOADS = {
    "4 readers, 1 MB": Workload(1, 1 << 20, readers=4),
    "updated in place, 1 MB": Workload(1, 1 << 20, is_whole=True),
    "list of 1,000, 1 KB": Workload(1000, 1 << 10),
    "stream, 1 KB, window 1": Workload(1, 1 << 10),
    "stream, 1 KB, window 8": Workload(1, 1 << 10, window=8),
    "stream, 1 KB, window 64": Workload(1, 1 << 10, window=64),
}
READERS = max(workload.readers for workload in WORKLOADS.values())
ANSWER_S = 60


def value_of(array, workload):
    """The value that everything has that is read of an array, or NaN."""
    value = array.item(0)
    is_same = array.min() == array.max() if workload.is_whole else array.item(-1) == value
    return value if is_same else math.nan


class Channel:
    """Means to send messages to other processes. A semaphore of each reader says that a message was read, unless the means says it itself."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.messages, self.readers, self.processes, self.under_way = {}, [], [], 0
        self.prepare()
        for _ in range(READERS):
            near, far = context.Pipe()
            read = context.Semaphore(0)
            arguments = type(self), self.open(context), far, read
            self.processes.append(context.Process(target=read_messages, args=arguments, daemon=True))
            self.processes[-1].start()
            self.readers.append((near, read))
            far.close()
        self.meet()

    def prepare(self):
        pass

    def meet(self):
        pass

    def make(self, workload):
        """The messages of a window."""
        return np.zeros((workload.window, workload.tensors, workload.size // 8))

    def name(self, _workload):
        return None

    def make_room(self, workload):
        if self.under_way < workload.window:
            self.under_way += 1
            return
        for _, read in self.readers[: workload.readers]:
            if not read.acquire(timeout=ANSWER_S):
                raise TimeoutError("a message is not read")

    def write(self, array, value, workload):
        if workload.is_whole:
            array += value - array.item(0)
        else:
            array[0] = array[-1] = value

    def round(self, workload, value):
        """The time of a message, in seconds, and the value of the last one."""
        if workload not in self.messages:
            self.messages[workload] = self.make(workload)
        messages = itertools.cycle(self.messages[workload])
        readers = self.readers[: workload.readers]
        for near, _ in readers:
            near.send((workload, self.name(workload)))
        count, total, began = 0, 0, time.perf_counter()
        while count < TRIPS_MIN * workload.window or time.perf_counter() < began + ROUND_S:
            value += 1
            total += value * workload.tensors
            count += 1
            self.pass_on(next(messages), value, workload)
        self.pass_on(next(messages), TOTAL, workload)
        for near, _ in readers:
            if not near.poll(ANSWER_S):
                raise TimeoutError("no total")
            if (answer := near.recv()) != total:
                raise RuntimeError(f"{answer} was read in all, and it is {total}")
        took = time.perf_counter() - began
        while self.under_way > 0:
            self.under_way -= 1
            for _, read in readers:
                read.acquire()
        return took / (count + 1), value

    def pass_on(self, message, value, workload):
        self.make_room(workload)
        for it in message:
            self.write(it, value, workload)
        for index in range(workload.readers):
            self.send(index, message)

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()


def read_messages(kind, arguments, link, read):
    end = kind.connect(*arguments)
    while True:
        workload, name = link.recv()
        total = 0
        for arrays in kind.receive(end, workload, name):
            is_last = arrays[0].item(0) == TOTAL
            total += 0 if is_last else sum(value_of(array, workload) for array in arrays)
            del arrays
            read.release()
            if is_last:
                break
        link.send(total)


class EstafetteChannel(Channel):
    NAME = Estafette.NAME

    def prepare(self):
        import estafette as est

        self.eng = est.Engine(workers=1, shared=True)
        self.door = self.eng.door()

    def open(self, _context):
        return (self.door.address,)

    def meet(self):
        # They come in any order.
        links = {link.process: link for link in (self.door.accept(ANSWER_S) for _ in self.readers)}
        self.links = [links[process.pid] for process in self.processes]

    def make(self, workload):
        tensors, elements = range(workload.tensors), workload.size // 8
        return [[self.eng.zeros(elements, "float64") for _ in tensors] for _ in range(workload.window)]

    def make_room(self, _workload):
        """Nothing: a write waits for the readers of its tensor."""

    def write(self, x, value, workload):
        with x.write() as view:
            super().write(np.asarray(view), value, workload)

    def send(self, index, message):
        for x in message:
            self.links[index].send(x)

    @staticmethod
    def connect(address):
        import estafette as est

        eng = est.Engine(workers=1)
        return eng, eng.connect(address)

    @staticmethod
    def receive(end, workload, _name):
        while True:
            yield [np.from_dlpack(x) for x in itertools.islice(end[1], workload.tensors)]


class SharedMemoryChannel(Channel):
    """One memory, two semaphores for each reader, and no queue."""

    NAME = SharedMemory.NAME

    def prepare(self):
        self.memory, self.written = {}, []

    def open(self, context):
        self.written.append(context.Semaphore(0))
        return (self.written[-1],)

    def make(self, workload):
        array = super().make(workload)
        self.memory[workload] = shared_memory.SharedMemory(create=True, size=array.nbytes)
        return np.frombuffer(self.memory[workload].buf, np.float64).reshape(array.shape)

    def name(self, workload):
        return self.memory[workload].name

    def send(self, index, _message):
        self.written[index].release()

    @staticmethod
    def connect(written):
        return written, {}

    @staticmethod
    def receive(end, workload, name):
        written, known = end
        if name not in known:
            memory = shared_memory.SharedMemory(name)
            known[name] = memory, np.frombuffer(memory.buf, np.float64)
        for arrays in itertools.cycle(known[name][1].reshape(workload.window, workload.tensors, -1)):
            written.acquire()
            yield arrays

    def close(self):
        super().close()
        self.messages.clear()
        for memory in self.memory.values():
            memory.close()
            memory.unlink()


class TorchChannel(Channel):
    """Tensors go through its queue. Without, its memory is as `SharedMemoryChannel`."""

    NAME = Torch.NAME

    def prepare(self):
        import torch.multiprocessing

        self.context, self.queues = torch.multiprocessing.get_context("spawn"), []

    def open(self, _context):
        self.queues.append(self.context.SimpleQueue())
        return (self.queues[-1],)

    def make(self, workload):
        import torch

        # One memory: each would have a descriptor of its own.
        return [list(it) for it in torch.from_numpy(super().make(workload)).share_memory_()]

    def write(self, tensor, value, workload):
        super().write(tensor.numpy(), value, workload)

    def send(self, index, message):
        self.queues[index].put(message)

    @staticmethod
    def connect(queue):
        return queue

    @staticmethod
    def receive(queue, _workload, _name):
        while True:
            yield [tensor.numpy() for tensor in queue.get()]


class ZeroMQChannel(Channel):
    NAME = "ZeroMQ, pickle 5"

    def prepare(self):
        self.sockets = []

    def open(self, _context):
        import zmq

        self.sockets.append(zmq.Context.instance().socket(zmq.PAIR))
        self.sockets[-1].bind(f"ipc://@estafette-bench-{os.getpid()}-{len(self.sockets)}")
        return (self.sockets[-1].last_endpoint,)

    def send(self, index, message):
        parts = []
        # Small parts are copied anyway, and one after the other.
        is_small = message[0].nbytes < self.sockets[index].copy_threshold
        head = pickle.dumps(list(message), protocol=5, buffer_callback=None if is_small else parts.append)
        self.sockets[index].send_multipart([head, *parts], copy=False)

    @staticmethod
    def connect(endpoint):
        import zmq

        link = zmq.Context.instance().socket(zmq.PAIR)
        link.connect(endpoint)
        return link

    @staticmethod
    def receive(link, _workload, _name):
        while True:
            head, *parts = link.recv_multipart(copy=False)
            yield pickle.loads(head.buffer, buffers=[part.buffer for part in parts])


class ArrowChannel(Channel):
    NAME = Arrow.NAME

    def prepare(self):
        import pyarrow as pa

        self.pa, self.schema, self.pairs = pa, pa.schema([("x", pa.float64())]), []

    def open(self, _context):
        self.pairs.append(socket.socketpair())
        return (self.pairs[-1][1],)

    def meet(self):
        files = [self.pa.PythonFile(near.makefile("wb", 0), "w") for near, _ in self.pairs]
        self.streams = [self.pa.ipc.new_stream(file, self.schema) for file in files]
        for _, far in self.pairs:
            far.close()

    def send(self, index, message):
        batch = self.pa.record_batch([self.pa.array(message.reshape(-1))], schema=self.schema)
        self.streams[index].write_batch(batch)

    @staticmethod
    def connect(link):
        import pyarrow as pa

        return pa.ipc.open_stream(pa.PythonFile(link.makefile("rb"), "r"))

    @staticmethod
    def receive(stream, workload, _name):
        for batch in stream:
            yield batch.column(0).to_numpy().reshape(workload.tensors, -1)


CHANNELS = [EstafetteChannel, SharedMemoryChannel, TorchChannel, ZeroMQChannel, ArrowChannel]


def workloads(rounds):
    channels, figures, value = [], collections.defaultdict(list), 0
    for its in CHANNELS:
        try:
            channels.append(its())
        except ImportError as error:
            left_out(f"{its.NAME}, other workloads", error)
    for number in range(rounds + 1):
        for its in list(channels):
            try:
                for name, workload in WORKLOADS.items():
                    took, value = its.round(workload, value)
                    # The first is to warm up.
                    if number > 0:
                        figures[f"{its.NAME}; {name}"].append(took * 1e6)
            except Exception as error:
                left_out(f"{its.NAME}, other workloads", error)
                channels.remove(its)
                with contextlib.suppress(Exception):
                    its.close()
    for row, its in figures.items():
        figure(row, "us", its)
    for its in channels:
        its.close()
