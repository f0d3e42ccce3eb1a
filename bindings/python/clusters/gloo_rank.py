"""One of two processes with collective operations of torch.distributed, for `test_collectives.py`.

Both submit the same random collectives, in one order. Each makes their inputs after delays of its own, and some of them fail.
Arguments: the rank, a file for the group, and whether a variable orders the collectives. Prints what failed, as JSON.
`ESTAFETTE_COLLECTIVES` says how many they are.
"""

import datetime
import json
import os
import random
import sys
import time

import torch
import torch.distributed as dist

import estafette as est

COUNT = int(os.environ.get("ESTAFETTE_COLLECTIVES", "2000"))
TENSORS = 16
FAILING = 0.02
"""The part of the inputs that fail, on one rank."""


def main(rank, path, is_ordered):
    store = dist.FileStore(path, 2)
    # A rank that waits for another one for so long waits for ever.
    patience = datetime.timedelta(seconds=15)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=patience)
    program, delays = random.Random(1), random.Random(rank)
    eng = est.Engine(workers=4, using=torch.from_dlpack)
    communicator = eng.var()
    tensors = [eng.zeros(program.randrange(1, 5000), "float32") for _ in range(TENSORS)]

    def agree(is_good):
        """True if the inputs of all ranks are good."""
        flag = torch.tensor([float(is_good)])
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        return bool(flag)

    def make(step, delay, fails, x):
        time.sleep(delay)
        if fails:
            raise ValueError(f"no input for {step} on rank {rank}")
        x.fill_(step + rank)

    def all_reduce(step, x, _):
        if not agree(True):
            raise RuntimeError(store.get(str(step)).decode())
        dist.all_reduce(x)

    def broadcast(step, source, x, _):
        if not agree(True):
            raise RuntimeError(store.get(str(step)).decode())
        dist.broadcast(x, source)

    def tell(step, error):
        store.set(str(step), str(error.__cause__))
        agree(False)

    def check(value, x):
        assert bool((x == value).all()), f"{x[0]} in place of {value}"

    ops = []
    for step in range(COUNT):
        x = program.choice(tensors)
        fails = program.random() < FAILING and program.randrange(2) == rank
        eng.submit(lambda x, step=step, delay=delays.random() * 1e-4, fails=fails: make(step, delay, fails, x), writes=[x])
        source = program.randrange(2)
        if program.random() < 0.5:
            function, value = (lambda x, _, step=step: all_reduce(step, x, _)), 2 * step + 1
        else:
            function, value = (lambda x, _, step=step, source=source: broadcast(step, source, x, _)), step + source
        # Without the variable only the tensor orders them.
        writes = [x, communicator] if is_ordered else [x]
        ops.append(eng.submit(function, reads=[x], writes=writes, on_skip=lambda error, step=step: tell(step, error)))
        ops.append(eng.submit(lambda x, value=value: check(value, x), reads=[x]))
    failures = {}
    for at, op in enumerate(ops):
        error = op.exception()
        if error is not None:
            failures.setdefault(at // 2, str(error.__cause__))
            if not str(error.__cause__).startswith("no input"):
                print(f"step {at // 2}: {error}", file=sys.stderr, flush=True)
                # Others that are in flight may wait for ever.
                os._exit(1)
    eng.shutdown()
    # The other rank may still need this one.
    dist.barrier()
    print(json.dumps(failures), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "ordered")
