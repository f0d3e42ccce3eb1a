"""Machines for tests and measurements: network namespaces with a cable between them, and processes on them."""

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time

NUMBER = itertools.count()
COUNT = 1 << 20
"""Numbers of 8 bytes in a tensor: long enough for a transfer to be cut."""


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)


def why_not():
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"est{os.getpid()}"
    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces: {getattr(error, 'stderr', '') or error}"
    ip("netns", "del", name)
    return None


NO_MACHINES = why_not()
"""The reason that there can be none here, or None."""

ENV = {"UCX_TLS": "tcp,self", "UCX_LOG_LEVEL": "error"}
"""Without this UCX sees that both are one machine."""

PRELUDE = """
import sys
import time
import numpy as np
import estafette as est

eng = est.Engine(workers=2, shared=True, using=np.from_dlpack, lease_timeout=LEASE_TIMEOUT)

def fill(x, value):
    eng.submit(lambda x: x.fill(value), writes=[x])

def ticket(x, **options):
    ticket = x.ticket(reach=HOST, deadline=DEADLINE, **options)
    print(bytes(ticket).hex(), flush=True)
    return ticket

def is_free(x, timeout):
    "Whether a write gets its turn."
    try:
        eng.submit(lambda x: x.fill(-1.0), writes=[x]).wait(timeout)
    except TimeoutError:
        return False
    return True

def until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not (met := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)
    return met

def from_ticket():
    return eng.from_ticket(bytes.fromhex(sys.stdin.readline()))

def tell(what):
    print(what, flush=True)

def next_line():
    return sys.stdin.readline().strip()
"""


def clock(ahead):
    """Prefix of a command that runs with a monotonic clock ahead of the machine's by so many seconds."""
    return ["unshare", "--time", "--monotonic", str(ahead), "--fork", "--kill-child"] if ahead else []


class Process:
    """A process on a machine. What it prints is read, and it reads what is written to it, by lines."""

    def __init__(self, machine, host, source, count, deadline, lease_timeout, ahead, env):
        prelude = f"HOST, COUNT, DEADLINE, LEASE_TIMEOUT = {host!r}, {count}, {deadline}, {lease_timeout}\n" + PRELUDE
        program = prelude + textwrap.dedent(source)
        command = [*clock(ahead), "ip", "netns", "exec", machine, sys.executable, "-X", "faulthandler", "-c", program]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        self.pid = self.process.pid

    def read(self):
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return line.strip()

    def write(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(30) == 0


class Machines:
    """Two machines with a cable between them. Programs there have `count` as `COUNT`."""

    def __init__(self, count=COUNT):
        self.count = count
        number = next(NUMBER)
        self.names = [f"est{os.getpid()}{side}{number}" for side in "ab"]
        self.devices = [f"ve{os.getpid() % 100000}{side}{number}" for side in "ab"]
        self.hosts = ["10.211.77.1", "10.211.77.2"]
        self.processes = []
        for name in self.names:
            ip("netns", "add", name)
        self.connect()
        for name, device, host in zip(self.names, self.devices, self.hosts):
            ip("-n", name, "addr", "add", f"{host}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
        self.until_up()

    def until_up(self):
        # The kernel says up to a second later that they are, and until then UCX does not see them.
        for name, device in zip(self.names, self.devices):
            while "LOWER_UP" not in ip("-n", name, "link", "show", device).stdout:
                time.sleep(0.01)

    def connect(self):
        (a, b), (x, y) = self.names, self.devices
        ip("link", "add", x, "netns", a, "type", "veth", "peer", "name", y, "netns", b)

    def slow(self):
        """A cable on which eight megabytes take seven seconds: they are under way until a busy machine has pulled it."""
        for name, device in zip(self.names, self.devices):
            shape = ["qdisc", "add", "dev", device, "root", "tbf", "rate", "10mbit", "burst", "64kb", "latency", "50ms"]
            subprocess.run(["tc", "-n", name, *shape], check=True, capture_output=True)

    def pull(self):
        ip("-n", self.names[1], "link", "set", self.devices[1], "down")

    def put_back(self):
        ip("-n", self.names[1], "link", "set", self.devices[1], "up")
        self.until_up()

    def start(self, side, source, deadline=10.0, lease_timeout=30.0, ahead=0, **env):
        env = {**ENV, **env}
        process = Process(self.names[side], self.hosts[0], source, self.count, deadline, lease_timeout, ahead, env)
        self.processes.append(process)
        return process

    def both(self, owner, consumer, deadline=10.0, lease_timeout=30.0):
        return self.start(0, owner, deadline, lease_timeout), self.start(1, consumer, deadline)

    def close(self):
        for process in self.processes:
            if process.process.poll() is None:
                process.kill()
        for name in self.names:
            ip("netns", "del", name, check=False)


class FarMachines(Machines):
    """Two machines whose packets take a while, and of which some are lost: a thread carries them. Not every kernel has `tc netem`."""

    DELAY = 0.005
    LOST = 0.02

    def connect(self):
        self.ends, self.lost = [], 0
        for name, device in zip(self.names, self.devices):
            end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            self.ends.append(end)
            # TUNSETIFF; IFF_TUN | IFF_NO_PI.
            fcntl.ioctl(end, 0x400454CA, struct.pack("16sH14x", device.encode(), 0x1001))
            ip("link", "set", device, "netns", name)
        self.stop, self.stopped = os.pipe()
        self.carrier = threading.Thread(target=self.carry)
        self.carrier.start()

    def carry(self):
        dice, under_way, numbers = random.Random(1), [], itertools.count()
        while True:
            pause = max(0, under_way[0][0] - time.monotonic()) if under_way else None
            ready = select.select([*self.ends, self.stop], [], [], pause)[0]
            if self.stop in ready:
                return
            for end in ready:
                packet = os.read(end, 1 << 16)
                if dice.random() < self.LOST:
                    self.lost += 1
                else:
                    other = self.ends[1 - self.ends.index(end)]
                    heapq.heappush(under_way, (time.monotonic() + self.DELAY, next(numbers), other, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _due, _number, end, packet = heapq.heappop(under_way)
                with contextlib.suppress(OSError):  # the other end is not up
                    os.write(end, packet)

    def close(self):
        os.close(self.stopped)
        self.carrier.join()
        super().close()
        for end in (self.stop, *self.ends):
            os.close(end)
