"""A tensor that goes to another machine, which is a network namespace."""

import collections
import os
import sys

from figures import SIZES, TRIPS_MIN, figure, left_out

TICKET_OWNER = """
x = eng.zeros(COUNT, "float64")
fill(x, 1.0)
kept = ticket(x)
next_line()
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
next_line()
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
while next_line():
    times = []
    for _ in range(TRIPS_MIN):
        began = time.perf_counter()
        last = take()
        times.append(time.perf_counter() - began)
        assert last == 1.0
    tell(statistics.median(times))
"""


def with_nixl(rounds):
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../bindings/python/clusters"))
    import nixl_cu12  # noqa: F401
    from machines import NO_MACHINES, Machines

    if NO_MACHINES:
        return left_out("NIXL", NO_MACHINES)
    programs = {
        "NIXL: tensor of a ticket, 64 MB over TCP": (TICKET_OWNER, TICKET_CONSUMER),
        "NIXL: READ by hand, 64 MB over TCP": (READ_OWNER, READ_CONSUMER),
    }
    consumers, figures = {}, collections.defaultdict(list)
    machines = Machines(SIZES["64 MB"] // 8)
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
