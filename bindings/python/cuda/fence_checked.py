"""A library for ``python -m dlpack_fence.check fence_checked``: pinned memory that the streams of the simulated driver write."""

import ctypes
import threading

import dlpack_fence
import numpy as np
from conftest import Simulator
from dlpack_fence.libraries import cuda_event

SIZE = 64


class Tensor:
    def __init__(self, sim):
        self.sim, self.stream, self.memory = sim, sim.stream(), sim.pinned_memory(SIZE)
        self.values = np.frombuffer((ctypes.c_ubyte * SIZE).from_address(self.memory), "uint8")
        self.lent, self.write, self.lock = 0, None, threading.Lock()
        sim.block(self.stream)
        sim.fill(self.stream, self.memory, 5, SIZE)

    def __dlpack_fence__(self, *, max_version=None, dl_device=None, copy=None):
        with self.lock:
            self.lent += 1
        return dlpack_fence.give(self.values, cuda_event((2, 0), self.stream), self.over)

    def over(self):
        with self.lock:
            self.lent -= 1
            if self.lent == 0 and self.write is not None:
                self.sim.fill(self.stream, self.memory, self.write, SIZE)


class Checked:
    def __init__(self):
        self._sim, self._tensors = Simulator(), []

    def tensor(self):
        self._tensors.append(Tensor(self._sim))
        return self._tensors[-1]

    def finish(self, tensor, well):
        assert well, "the simulator's work does not fail alone"
        self._sim.unblock(tensor.stream)

    def give(self, tensor):
        return tensor

    def overwrite(self, tensor):
        with tensor.lock:
            tensor.write = 9
            if tensor.lent == 0:
                self._sim.fill(tensor.stream, tensor.memory, 9, SIZE)

    def live(self):
        return sum(tensor.lent for tensor in self._tensors)


fence_check = Checked()
