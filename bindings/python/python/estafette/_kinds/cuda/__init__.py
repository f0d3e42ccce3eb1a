"""CUDA: its libraries, their streams, and the order of work that an observation sees."""

from .. import Kind
from .streams import ROWS, Stream


class KIND(Kind):
    """CUDA's devices, and pinned and managed memory."""

    arrays = ("__cuda_array_interface__",)
    stream = Stream
    streams = ROWS
    libraries = ("cupy", "numba", "cuda.core")
    names = {"cuda": "cuda.core"}
    modules = ("cuda", "cupy", "cupyx", "numba", "numba_cuda")
    paths = ("torch.cuda", "torch.accelerator", "cupy.cuda.runtime", "numba.cuda")
    host_waits = ("cupy", "numba")
    observer = "estafette._kinds.cuda.order"
