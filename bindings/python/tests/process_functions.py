"""Functions of the processes of `test_queues.py` and `test_processes_staging.py` that `multiprocessing` starts: they import them by name."""

import os
import signal

import numpy as np

import estafette as est


def doubled(x):
    """A promise of this process for four numbers of another, whose shape is not known yet."""
    assert isinstance(x, est.Tensor)
    eng = est.default_engine()
    y = eng.zeros(4, "float64", shared=True)
    eng.submit(lambda x, y: np.multiply(x, 2, out=y), reads=[x], writes=[y], using=np.from_dlpack)
    return y


def same(x):
    return x


def double_all(tensors, results):
    for x in iter(tensors.get, None):
        results.put(doubled(x))
    # A tensor in the queue is this process's until it has been taken.
    tensors.get()


def ends(x):
    x.wait(60)
    os._exit(1)


def takes_and_dies(tensors):
    tensors.get()
    os.kill(os.getpid(), signal.SIGKILL)
