"""A tensor handed to another process by Estafette and by other means, and the way of a ticket there."""

import collections
import multiprocessing
import os
import pickle
import signal
import socket
import statistics
import time
from multiprocessing import shared_memory

import numpy as np
from figures import PAUSE_S, SIZES, TOTAL, TRIPS_MAX, figure, hand_overs, left_out


class Means:
    """Means to hand tensors over to a process of its own, which runs `consume`."""

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


def local(rounds):
    means = []
    for its in LOCAL:
        try:
            means.append(its())
        except ImportError as error:
            left_out(its.NAME, error)
    hand_overs(means, SIZES, ["awake", "idle"], rounds)


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
