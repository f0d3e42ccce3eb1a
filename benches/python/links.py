"""A tensor handed to another process, by Estafette and by other means: `python benches/python/links.py PART [--rounds N]`.

A *hand-over* goes from one process to another and back: the first process has changed the tensor, the second has it as a NumPy array and
reads its first element, and the first one may change it again. Everything that can be made beforehand is. No process is bound to a
core. The means take turns; a figure of a round is the median of its hand-overs. *Awake*: one hand-over behind the
other. *Idle*: with a pause before each. What the second process reads is checked each time, or at the end of a round.

`local` has what two processes do by themselves, `workloads` the same means with several tensors or readers, `ray` actors of Ray,
`dask` workers of Dask, `tickets` the way of a ticket, `nixl` a tensor that goes to another machine. A line is a figure for each
round, or what is left out and why, between tabulators; `cargo xtask links` makes a table of them.
"""

import argparse
import collections
import contextlib
import itertools
import math
import multiprocessing
import os
import pickle
import signal
import socket
import statistics
import sys
import time
import typing
from multiprocessing import shared_memory

import numpy as np

SIZES = {"1 KB": 1 << 10, "1 MB": 1 << 20, "64 MB": 1 << 26}
# In this time a process that waits has gone to sleep.
PAUSE_S = 0.001
# How long the hand-overs of a round take, about, and how many they are.
ROUND_S = 0.1
TRIPS_MIN, TRIPS_MAX = 3, 300
# What the second process is sent for its total.
TOTAL = -1


class Means:
    """How tensors are handed over to a process of its own, which runs `consume`."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.answers = context.SimpleQueue()
        self.arrays = {}
        self.prepare(context)
        self.process = context.Process(target=self.consume, args=(*self.arguments(), self.answers), daemon=True)
        self.process.start()
        self.meet()

    def meet(self):
        pass

    def array(self, size):
        """The memory of the first process."""
        if size not in self.arrays:
            self.arrays[size] = self.make(size)
        return self.arrays[size]

    def make(self, size):
        return np.zeros(size // 8)

    def trip(self, size, value):
        """The time of a hand-over, in seconds."""
        array = self.array(size)
        array[0] = value
        began = time.perf_counter()
        self.hand(array)
        answer = self.answer()
        took = time.perf_counter() - began
        if answer != value:
            raise RuntimeError(f"{self.NAME}: {answer} was read, and it is {value}")
        return took

    def answer(self):
        return self.answers.get()

    def check(self, total):
        """Compares all that was read in a round, where a hand-over tells it not."""

    def close(self):
        self.process.kill()
        self.process.join()


class Estafette(Means):
    NAME = "Estafette"

    def prepare(self, _context):
        import estafette as est

        self.eng = est.Engine(workers=1, shared=True)
        self.door = self.eng.door()

    def arguments(self):
        return (self.door.address,)

    def meet(self):
        self.link = self.door.accept(60)

    def make(self, size):
        return self.eng.zeros(size // 8, "float64")

    @staticmethod
    def consume(address, answers):
        import estafette as est

        total = 0
        with est.Engine(workers=1) as eng, eng.connect(address) as link:
            for x in link:
                array = np.from_dlpack(x)
                value = int(array[0])
                del array, x
                if value == TOTAL:
                    answers.put(total)
                    total = 0
                else:
                    total += value

    def write(self, x, value):
        with x.write() as view:
            np.asarray(view)[0] = value

    def trip(self, size, value):
        x = self.array(size)
        self.write(x, value)
        began = time.perf_counter()
        self.link.send(x)
        with x.write():
            return time.perf_counter() - began

    def check(self, total):
        x = self.array(8)
        self.write(x, TOTAL)
        self.link.send(x)
        answer = self.answer()
        if answer != total:
            raise RuntimeError(f"{answer} was read in all, and it is {total}")


class SharedMemory(Means):
    NAME = "shared_memory, made once"

    def prepare(self, context):
        self.names = context.SimpleQueue()
        self.memory = {}

    def arguments(self):
        return (self.names,)

    def make(self, size):
        self.memory[size] = shared_memory.SharedMemory(create=True, size=size)
        return np.frombuffer(self.memory[size].buf, np.float64)

    def hand(self, array):
        self.names.put(self.memory[array.nbytes].name)

    @staticmethod
    def consume(names, answers):
        known = {}
        while True:
            name = names.get()
            if name not in known:
                memory = shared_memory.SharedMemory(name)
                known[name] = memory, np.frombuffer(memory.buf, np.float64)
            answers.put(int(known[name][1][0]))

    def close(self):
        super().close()
        self.arrays.clear()
        for memory in self.memory.values():
            memory.close()
            memory.unlink()


class SharedMemoryEach(SharedMemory):
    NAME = "shared_memory, one for each tensor"

    def make(self, size):
        return np.zeros(size // 8)

    def hand(self, array):
        memory = shared_memory.SharedMemory(create=True, size=array.nbytes)
        np.frombuffer(memory.buf, np.float64)[:] = array
        self.names.put(memory.name)
        self.last = memory

    def answer(self):
        answer = super().answer()
        self.last.close()
        self.last.unlink()
        return answer

    @staticmethod
    def consume(names, answers):
        while True:
            memory = shared_memory.SharedMemory(names.get())
            answer = int(np.frombuffer(memory.buf, np.float64)[0])
            memory.close()
            answers.put(answer)


class Torch(Means):
    NAME = "torch.multiprocessing, shared before"

    def prepare(self, _context):
        import torch.multiprocessing

        self.tensors = torch.multiprocessing.get_context("spawn").SimpleQueue()

    def arguments(self):
        return (self.tensors,)

    def make(self, size):
        import torch

        return torch.zeros(size // 8, dtype=torch.float64).share_memory_()

    def hand(self, tensor):
        self.tensors.put(tensor)

    @staticmethod
    def consume(tensors, answers):
        while True:
            tensor = tensors.get()
            answer = int(tensor.numpy()[0])
            del tensor
            answers.put(answer)


class TorchEach(Torch):
    NAME = "torch.multiprocessing, a fresh tensor"

    def hand(self, tensor):
        self.tensors.put(tensor.clone())


class ZeroMQ(Means):
    NAME = "ZeroMQ, pickle 5 out of band"

    def prepare(self, _context):
        import zmq

        self.socket = zmq.Context.instance().socket(zmq.PAIR)
        self.port = self.socket.bind(f"ipc://@estafette-bench-{os.getpid()}")

    def arguments(self):
        return (self.socket.last_endpoint,)

    def hand(self, array):
        parts = []
        head = pickle.dumps(array, protocol=5, buffer_callback=parts.append)
        self.socket.send_multipart([head, *parts], copy=False)

    def answer(self):
        return int(self.socket.recv())

    @staticmethod
    def consume(endpoint, _answers):
        import zmq

        link = zmq.Context.instance().socket(zmq.PAIR)
        link.connect(endpoint)
        while True:
            head, *parts = link.recv_multipart(copy=False)
            array = pickle.loads(head.buffer, buffers=[part.buffer for part in parts])
            link.send(b"%d" % int(array[0]))


class Arrow(Means):
    NAME = "Arrow IPC, unix socket"

    def prepare(self, _context):
        import pyarrow as pa

        self.pa = pa
        self.socket, self.far = socket.socketpair()
        self.schema = pa.schema([("x", pa.float64())])
        self.stream = None

    def arguments(self):
        return (self.far,)

    def meet(self):
        self.far.close()
        self.stream = self.pa.ipc.new_stream(self.pa.PythonFile(self.socket.makefile("wb", 0), "w"), self.schema)

    def hand(self, array):
        self.stream.write_batch(self.pa.record_batch([self.pa.array(array)], schema=self.schema))

    def answer(self):
        return int(self.socket.recv(32))

    @staticmethod
    def consume(link, _answers):
        import pyarrow as pa

        for batch in pa.ipc.open_stream(pa.PythonFile(link.makefile("rb"), "r")):
            link.send(b"%d" % int(batch.column(0).to_numpy()[0]))


class Iceoryx(Means):
    NAME = "iceoryx2, both poll"

    def prepare(self, _context):
        import iceoryx2 as iox

        iox.set_log_level(iox.LogLevel.Error)
        self.node, self.publishers, self.replies = open_iceoryx(iox, os.getpid(), "publisher", "subscriber")

    def arguments(self):
        return (os.getpid(),)

    def meet(self):
        self.answer()
        self.check(0)

    def trip(self, size, value):
        import ctypes

        os.kill(self.process.pid, signal.SIGCONT)
        # Made before, as memory that is written in place would be.
        sample = self.publishers[size].loan_slice_uninit(size)
        ctypes.cast(sample.payload_ptr, ctypes.POINTER(ctypes.c_double))[0] = value
        sample = sample.assume_init()
        began = time.perf_counter()
        sample.send()
        while (reply := self.replies.receive()) is None:
            pass
        took = time.perf_counter() - began
        answer = ctypes.cast(reply.payload_ptr, ctypes.POINTER(ctypes.c_double))[0]
        reply.delete()
        if answer != value:
            raise RuntimeError(f"{answer} was read, and it is {value}")
        return took

    def check(self, _total):
        # The other means would have a core less.
        os.kill(self.process.pid, signal.SIGSTOP)

    @staticmethod
    def consume(owner, answers):
        import ctypes

        import iceoryx2 as iox

        iox.set_log_level(iox.LogLevel.Error)
        _node, subscribers, replies = open_iceoryx(iox, owner, "subscriber", "publisher")
        answers.put("What is sent before is lost.")
        while True:
            for subscriber in subscribers.values():
                if (sample := subscriber.receive()) is not None:
                    value = ctypes.cast(sample.payload_ptr, ctypes.POINTER(ctypes.c_double))[0]
                    sample.delete()
                    reply = replies.loan_slice_uninit(8)
                    ctypes.cast(reply.payload_ptr, ctypes.POINTER(ctypes.c_double))[0] = value
                    reply.assume_init().send()


def open_iceoryx(iox, owner, data, reply):
    """A node, the ports of each size, and that of replies."""
    import ctypes

    node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)

    def port(kind, name, size):
        service = node.service_builder(iox.ServiceName.new(f"estafette-bench-{owner}-{name}"))
        service = service.publish_subscribe(iox.Slice[ctypes.c_uint8]).payload_alignment(iox.Alignment.new(8)).open_or_create()
        if kind == "subscriber":
            return service.subscriber_builder().create()
        return service.publisher_builder().initial_max_slice_len(size).create()

    return node, {size: port(data, size, size) for size in SIZES.values()}, port(reply, "reply", 8)


LOCAL = [Estafette, SharedMemory, SharedMemoryEach, Torch, TorchEach, ZeroMQ, Arrow, Iceoryx]


def print_line(*fields):
    print("\t".join(str(field) for field in fields), flush=True)


def figure(row, unit, figures):
    print_line("figure", row, unit, " ".join(f"{it:.4g}" for it in figures))


def left_out(what, why):
    print_line("left out", what, str(why).splitlines()[0] if str(why) else type(why).__name__)


def hand_overs(means, sizes, states, rounds):
    """Prints a figure of each round for each of the means, and closes them."""
    figures, failed, value = collections.defaultdict(list), {}, 0
    for number in range(rounds + 1):
        for its in means:
            for size in sizes:
                for state in states:
                    key = its.NAME, size, state
                    if its in failed:
                        continue
                    try:
                        median, value = one_round(its, SIZES[size], state == "idle", value)
                    except Exception as error:
                        failed[its] = error
                        # At once: its process may poll a core.
                        with contextlib.suppress(Exception):
                            its.close()
                        continue
                    # The first is to warm up.
                    if number > 0:
                        figures[key].append(median * 1e6)
    for (name, size, state), its in figures.items():
        figure(f"{name}; {size}; {state}", "us", its)
    for its, error in failed.items():
        left_out(its.NAME, error)
    for its in means:
        if its not in failed:
            its.close()


def one_round(means, size, is_idle, value):
    times, total, end = [], 0, time.perf_counter() + ROUND_S
    while len(times) < TRIPS_MIN or len(times) < TRIPS_MAX and time.perf_counter() < end:
        value += 1
        total += value
        if is_idle:
            time.sleep(PAUSE_S)
        times.append(means.trip(size, value))
    means.check(total)
    return statistics.median(times), value


def local(rounds):
    means = []
    for its in LOCAL:
        try:
            means.append(its())
        except ImportError as error:
            left_out(its.NAME, error)
    hand_overs(means, SIZES, ["awake", "idle"], rounds)


# Several tensors, or several readers.


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
    """How messages reach other processes. A semaphore of each reader says that a message was read, unless the means says it itself."""

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


# A ticket, in the process that uses it.


def tickets(rounds):
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=use_tickets, args=(far, rounds), daemon=True)
    import estafette as est

    with est.Engine(workers=1, shared=True) as eng, eng.zeros(128, "float64").ticket() as ticket:
        process.start()
        near.send_bytes(bytes(ticket))
        for row, figures in near.recv():
            figure(row, "us", figures)
        process.join()


def use_tickets(pipe, rounds):
    import estafette as est

    ticket, rows = est.Ticket(pipe.recv_bytes()), collections.defaultdict(list)
    with est.Engine(workers=1) as eng:
        eng.from_ticket(ticket).wait(60)
        for _ in range(rounds):
            times = collections.defaultdict(list)
            for _ in range(TRIPS_MAX):
                time.sleep(PAUSE_S / 4)
                began = time.perf_counter()
                x = eng.from_ticket(ticket)
                times["returns"].append(time.perf_counter() - began)
                x.wait(60)
                times["ready"].append(time.perf_counter() - began)
                del x
            for what, its in times.items():
                rows[f"Python: from_ticket, {what}"].append(statistics.median(its) * 1e6)
    pipe.send(list(rows.items()))


# Clusters.


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
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
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
        """What a worker keeps from task to task."""
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


# Two machines, which are network namespaces.

TICKET_OWNER = """
x = eng.zeros(COUNT, "float64")
fill(x, 1.0)
kept = ticket(x)
told()
"""
TICKET_CONSUMER = """
name = bytes.fromhex(sys.stdin.readline())

def take():
    x = eng.from_ticket(name)
    x.wait(60)
    return np.from_dlpack(x)[-1]
"""
READ_OWNER = """
import logging
logging.disable()  # it goes to the standard output
import nixl_cu12._api as nixl

agent, x = nixl.nixl_agent("owner"), np.ones(COUNT)
agent.register_memory([(x.ctypes.data, x.nbytes, 0, "")], "DRAM")
print(agent.get_agent_metadata().hex(), x.ctypes.data, flush=True)
told()
"""
READ_CONSUMER = """
import logging, os
logging.disable()
import nixl_cu12._api as nixl

agent, x = nixl.nixl_agent("consumer"), np.zeros(COUNT)
agent.register_memory([(x.ctypes.data, x.nbytes, 0, "")], "DRAM")
metadata, address = sys.stdin.readline().split()
owner = agent.add_remote_agent(bytes.fromhex(metadata))
here, there = ([(it, x.nbytes, 0)] for it in (x.ctypes.data, int(address)))
read = agent.initialize_xfer("READ", agent.get_xfer_descs(here, "DRAM"), agent.get_xfer_descs(there, "DRAM"), owner)

def take():
    state = agent.transfer(read)
    while state == "PROC":
        os.sched_yield()
        state = agent.check_xfer_state(read)
    assert state == "DONE", state
    return x[-1]
"""
TAKE_OFTEN = """
import statistics
while told():
    times = []
    for _ in range(TRIPS_MIN):
        began = time.perf_counter()
        last = take()
        times.append(time.perf_counter() - began)
        assert last == 1.0
    tell(statistics.median(times))
"""


def with_nixl(rounds):
    clusters = os.path.join(os.path.dirname(__file__), "../../bindings/python/clusters")
    sys.path.insert(0, clusters)
    import nixl_cu12  # noqa: F401
    import test_nixl

    if test_nixl.REASON:
        return left_out("NIXL", test_nixl.REASON)
    test_nixl.COUNT = SIZES["64 MB"] // 8
    programs = {
        "NIXL: tensor of a ticket, 64 MB over TCP": (TICKET_OWNER, TICKET_CONSUMER),
        "NIXL: READ by hand, 64 MB over TCP": (READ_OWNER, READ_CONSUMER),
    }
    consumers, figures = {}, collections.defaultdict(list)
    machines = test_nixl.Machines()
    try:
        for name, (owner, consumer) in programs.items():
            owner, consumers[name] = machines.both(owner, f"TRIPS_MIN = {TRIPS_MIN}\n{consumer}{TAKE_OFTEN}")
            consumers[name].write(owner.read())
        for number in range(rounds + 1):
            for name, consumer in consumers.items():
                consumer.write("go on")
                took = float(consumer.read())
                # The first is to warm up.
                if number > 0:
                    figures[name].append(took * 1e6)
    finally:
        machines.close()
    for name, its in figures.items():
        figure(name, "us", its)


PARTS = {"local": local, "workloads": workloads, "tickets": tickets, "ray": with_ray, "dask": with_dask, "nixl": with_nixl}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    try:
        PARTS[options.part](options.rounds)
    except ImportError as error:
        left_out(options.part, error)


if __name__ == "__main__":
    main()
