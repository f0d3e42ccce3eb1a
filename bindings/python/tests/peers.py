"""The libraries that tensors are exchanged with: how a test makes, reads and looks at an array of each, and the table of
what each does.

The table is asserted by `test_peers.py` (for MXNet by `test_mxnet.py`) in both directions: a newer version of a peer that
does more, or less, or asks differently fails there, so that the table stays true. `docs/peers.md` shows it to users;
`python bindings/python/tests/peers.py` prints the tables for it.
"""

import importlib.util
import os
from dataclasses import dataclass, field

from conftest import peer

# Every element type that a test offers to every peer.
DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128 "
    "float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu float6_e2m3fn float6_e3m2fn float4_e2m1fn"
)

# Every kind of view that a test offers to every peer, made of a square array.
LAYOUTS = {
    "transposed": lambda array: array.T,
    "gaps": lambda array: array[::2, ::2],
    "reversed": lambda array: array[::-1],
}


@dataclass(frozen=True)
class Rules:
    """Rules of a peer."""

    dtypes: str
    """Element types that make the round trip."""

    gives: str
    """The struct of its exports when asked for the newest: `dltensor` or `dltensor_versioned`."""

    asks: dict | None
    """Arguments of `__dlpack__` at its import; `None` if it takes a capsule and asks nothing itself."""

    layouts: str
    """The layouts that it takes without a copy, of those in `LAYOUTS`; it refuses the others."""

    read_only: str
    """Memory that may not be written: it *keeps* the flag, *ignores* it, or *cannot ask* for a struct that has one."""

    writable: bool
    """True if its exports may be written in place."""

    copies: str
    """`copy=True`: *asked* of the producer, *ignored*, or there is *no* such argument."""

    misreads: str = ""
    """Layouts that it takes without a word, and whose elements it cannot read."""

    scalars: bool = True
    """True if it has arrays without dimensions."""

    widths: dict = field(default_factory=dict)
    """Element types that it takes, but as another one, with a copy of its own."""

    def own_back(self):
        """The arguments with which it takes back what it has made.

        No library may write arrays of TensorFlow, and the capsules that it takes cannot say so: it needs a copy. Those of JAX
        come back as they are, since it is seen to be JAX that asks.
        """
        return {"copy": True} if self.asks is None and not self.writable else {}


def aligned(np, shape, dtype="float32"):
    """A NumPy array of counting numbers whose first element lies on a cache line: JAX copies what does not."""
    size = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, "uint8")
    skip = -memory.ctypes.data % 64
    array = memory[skip : skip + size].view(dtype).reshape(shape)
    array[...] = np.arange(array.size).reshape(shape)
    return array


class Plain:
    """A tensor behind DLPack's two methods alone, which remembers how it was asked."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.asked = []

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        return self.tensor.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class Numpy:
    name = "numpy"
    rules = Rules(
        dtypes=(
            "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
        ),
        gives="dltensor_versioned",
        asks={"dl_device": None, "copy": None, "max_version": (1, 0)},
        layouts="transposed gaps reversed",
        read_only="keeps",
        writable=True,
        copies="asked",
    )

    def __init__(self):
        self.np = peer("numpy")
        self.from_dlpack = self.np.from_dlpack

    def view_of(self, array):
        return array

    def make(self, dtype, size=8):
        return self.np.arange(size).astype(dtype)

    def dtype(self, array):
        return array.dtype

    def address(self, array):
        return array.ctypes.data

    def numpy(self, array):
        return array

    def bytes(self, array):
        return array.tobytes()

    def zeros(self, shape):
        return self.np.zeros(shape, "float32")

    def plus_one(self, array):
        return self.np.add(array, 1, out=aligned(self.np, array.shape, array.dtype))

    def is_read_only(self, array):
        return not array.flags.writeable


class Jax:
    name = "jax"
    rules = Rules(
        dtypes=(
            "bool int8 int16 int32 uint8 uint16 uint32 float16 bfloat16 float32 complex64 "
            "float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
            "float8_e8m0fnu"
        ),
        # Its `__dlpack__` knows neither `max_version` nor flags.
        gives="dltensor",
        asks={"stream": None},
        layouts="transposed",
        read_only="cannot ask",
        writable=False,
        copies="ignored",
        # It knows 64 bits only where the program has asked for them.
        widths={"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"},
    )

    def __init__(self):
        peer("jax")
        import jax.numpy as jnp

        self.jnp = jnp
        self.from_dlpack = jnp.from_dlpack

    def view_of(self, array):
        return self.jnp.from_dlpack(array)

    def make(self, dtype, size=8):
        return self.jnp.arange(size).astype(dtype)

    def dtype(self, array):
        return array.dtype

    def address(self, array):
        return array.unsafe_buffer_pointer()

    def numpy(self, array):
        return peer("numpy").asarray(array)

    def bytes(self, array):
        return self.numpy(array).tobytes()

    def zeros(self, shape):
        return self.jnp.zeros(shape, "float32")

    def plus_one(self, array):
        return array + self.jnp.float32(1)


class Torch:
    name = "torch"
    rules = Rules(
        dtypes=(
            "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 "
            "complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
        ),
        gives="dltensor_versioned",
        asks={"max_version": (1, 0)},
        layouts="transposed gaps",
        read_only="ignores",
        writable=True,
        copies="asked",
    )

    def __init__(self):
        self.torch = peer("torch")
        self.from_dlpack = self.torch.from_dlpack

    def view_of(self, array):
        return self.torch.from_numpy(array)

    def make(self, dtype, size=8):
        if dtype.startswith("float8"):
            return self.torch.arange(size, dtype=self.torch.uint8).view(getattr(self.torch, dtype))
        return self.torch.arange(size).to(getattr(self.torch, dtype))

    def dtype(self, array):
        return array.dtype

    def address(self, array):
        return array.data_ptr()

    def numpy(self, array):
        return array.numpy()

    def bytes(self, array):
        return array.contiguous().view(self.torch.uint8).numpy().tobytes()

    def zeros(self, shape):
        return self.torch.zeros(shape)

    def plus_one(self, array):
        return array + 1


class TensorFlow:
    name = "tensorflow"
    rules = Rules(
        dtypes=(
            "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128"
        ),
        # Its `__dlpack__` takes any argument and looks at none.
        gives="dltensor",
        # `tf.experimental.dlpack.from_dlpack` takes a legacy capsule, which the program asks for.
        asks=None,
        layouts="",
        read_only="cannot ask",
        writable=False,
        copies="asked",
    )

    def __init__(self):
        # Its C++ side writes what it finds on the machine to the standard error stream.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        self.tf = peer("tensorflow")

    def from_dlpack(self, source, **arguments):
        return self.tf.experimental.dlpack.from_dlpack(source.__dlpack__(**arguments))

    def view_of(self, array):
        return self.from_dlpack(array)

    def make(self, dtype, size=8):
        return self.tf.cast(self.tf.range(size), dtype)

    def dtype(self, array):
        return array.dtype

    def address(self, array):
        return peer("numpy").from_dlpack(array).ctypes.data

    def numpy(self, array):
        return array.numpy()

    def bytes(self, array):
        return array.numpy().tobytes()

    def zeros(self, shape):
        return self.tf.zeros(shape)

    def plus_one(self, array):
        return array + 1


class TvmFfi:
    name = "tvm_ffi"
    rules = Rules(
        dtypes=(
            "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
            "float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
            "float8_e8m0fnu float6_e2m3fn float6_e3m2fn float4_e2m1fn"
        ),
        gives="dltensor_versioned",
        # Of objects without the C exchange table.
        asks={},
        layouts="transposed gaps reversed",
        read_only="cannot ask",
        writable=True,
        copies="no",
    )

    def __init__(self):
        self.tvm_ffi = peer("tvm_ffi")
        self.np = peer("numpy")
        self.from_dlpack = self.tvm_ffi.from_dlpack

    def view_of(self, array):
        return self.tvm_ffi.from_dlpack(array)

    def make(self, dtype, size=8):
        return self.tvm_ffi.from_dlpack(self.np.arange(size).astype(dtype))

    def dtype(self, array):
        # Complex tensors it takes and gives, but cannot name.
        return str(array.dtype)

    def address(self, array):
        return array.data_ptr()

    def numpy(self, array):
        return self.np.from_dlpack(array)

    def bytes(self, array):
        return self.numpy(array).tobytes()

    def zeros(self, shape):
        return self.tvm_ffi.from_dlpack(self.np.zeros(shape, "float32"))

    def plus_one(self, array):
        shape = tuple(array.shape)
        return self.tvm_ffi.from_dlpack(self.np.add(self.numpy(array), 1, out=aligned(self.np, shape)))


class PyArrow:
    """`pyarrow.Tensor`, which has dimensions. `pyarrow.Array` is in `test_arrow.py`."""

    name = "pyarrow"
    rules = Rules(
        dtypes="int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64",
        gives="dltensor_versioned",
        asks={"max_version": (1, 3), "dl_device": None, "copy": None},
        layouts="transposed gaps",
        read_only="keeps",
        writable=True,
        copies="asked",
    )

    def __init__(self):
        self.Tensor = peer("pyarrow").Tensor
        self.np = peer("numpy")
        self.from_dlpack = self.Tensor.from_dlpack

    def view_of(self, array):
        return self.Tensor.from_numpy(array)

    def make(self, dtype, size=8):
        return self.view_of(self.np.arange(size).astype(dtype))

    def dtype(self, array):
        return array.type

    def address(self, array):
        return array.to_numpy().ctypes.data

    def numpy(self, array):
        return array.to_numpy()

    def bytes(self, array):
        return array.to_numpy().tobytes()

    def zeros(self, shape):
        return self.view_of(self.np.zeros(shape, "float32"))

    def plus_one(self, array):
        return self.view_of(self.np.add(array.to_numpy(), 1, out=aligned(self.np, tuple(array.shape))))

    def is_read_only(self, array):
        return not array.is_mutable


class OnnxRuntime:
    """`onnxruntime.OrtValue`, which sessions read and write."""

    name = "onnxruntime"
    rules = Rules(
        dtypes=(
            "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
            "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn"
        ),
        # Its `__dlpack__` knows the stream alone.
        gives="dltensor",
        asks={},
        layouts="",
        read_only="cannot ask",
        writable=True,
        copies="no",
    )

    def __init__(self):
        self.OrtValue = peer("onnxruntime").OrtValue
        self.np = peer("numpy")
        self.from_dlpack = self.OrtValue.from_dlpack

    def view_of(self, array):
        return self.from_dlpack(array)

    def make(self, dtype, size=8):
        return self.OrtValue.ortvalue_from_numpy(self.np.arange(size).astype(dtype))

    def dtype(self, array):
        return array.data_type()

    def shape(self, array):
        return tuple(array.shape())

    def address(self, array):
        return array.data_ptr()

    def numpy(self, array):
        return self.np.from_dlpack(array)

    def bytes(self, array):
        return self.numpy(array).tobytes()

    def zeros(self, shape):
        return self.OrtValue.ortvalue_from_numpy(self.np.zeros(shape, "float32"))

    def plus_one(self, array):
        return self.OrtValue.ortvalue_from_numpy(self.numpy(array) + 1)


class Warp:
    name = "warp"
    rules = Rules(
        dtypes="bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64",
        # Its `__dlpack__` knows the stream alone.
        gives="dltensor",
        asks={"stream": None},
        layouts="transposed gaps reversed",
        scalars=False,
        read_only="cannot ask",
        writable=True,
        copies="no",
    )

    def __init__(self):
        self.warp = peer("warp")
        self.warp.config.quiet = True
        self.warp.init()
        self.np = peer("numpy")
        self.from_dlpack = self.warp.from_dlpack

    def view_of(self, array):
        return self.from_dlpack(array)

    def make(self, dtype, size=8):
        kind = getattr(self.warp, dtype)
        return self.warp.array(self.np.arange(size).astype("float32"), dtype=kind, device="cpu")

    def dtype(self, array):
        return array.dtype

    def address(self, array):
        return array.ptr

    def numpy(self, array):
        return array.numpy()

    def bytes(self, array):
        return array.contiguous().numpy().tobytes()

    def zeros(self, shape):
        return self.warp.zeros(shape, dtype=self.warp.float32, device="cpu")

    def plus_one(self, array):
        return self.warp.array(array.numpy() + 1, device="cpu")


class Paddle:
    name = "paddle"
    rules = Rules(
        dtypes=(
            "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 "
            "complex128 float8_e4m3fn float8_e5m2"
        ),
        gives="dltensor_versioned",
        # Of objects without the C exchange table.
        asks={"max_version": (1, 2)},
        layouts="transposed gaps",
        misreads="reversed",
        read_only="ignores",
        writable=True,
        copies="asked",
    )

    def __init__(self):
        self.paddle = peer("paddle")
        self.from_dlpack = self.paddle.from_dlpack

    def view_of(self, array):
        return self.from_dlpack(array)

    def make(self, dtype, size=8):
        return self.paddle.arange(size).astype(dtype)

    def dtype(self, array):
        return array.dtype

    def address(self, array):
        return array.data_ptr()

    def numpy(self, array):
        return array.numpy()

    def bytes(self, array):
        return array.contiguous().view(self.paddle.uint8).numpy().tobytes()

    def zeros(self, shape):
        return self.paddle.zeros(shape, "float32")

    def plus_one(self, array):
        return array + 1


# MXNet 1.9.1, which lives in an environment of its own.
MXNET = Rules(
    dtypes="int8 int32 int64 uint8 float16 float32 float64",
    gives="dltensor",
    # Programs pass its capsules by hand.
    asks=None,
    layouts="",
    read_only="cannot ask",
    # A raw capsule does not say whose it is.
    writable=False,
    copies="asked",
)

TOGETHER = {kind.name: kind for kind in (Numpy, Jax, Torch, TensorFlow, TvmFfi, PyArrow, OnnxRuntime)}

# Those of the suite `other-peers`, which live in an environment of their own: PaddlePaddle pins what JAX depends on to another version.
APART = {kind.name: kind for kind in (Warp, Paddle)}

PEERS = APART if importlib.util.find_spec("paddle") else TOGETHER


def shape_of(lib, array):
    """The shape of a peer's array."""
    return lib.shape(array) if hasattr(lib, "shape") else tuple(array.shape)


def tables():
    """The rules of the peers, as Markdown."""
    rules = {**{name: kind.rules for name, kind in (TOGETHER | APART).items()}, "mxnet": MXNET}
    return "\n".join([*conduct(rules), "", *types(rules), ""])


def conduct(rules):
    yield "| peer | asks `__dlpack__` for | gives | takes in place | memory that may not be written | its own may be written | `copy=True` is |"
    yield "|---|---|---|---|---|---|---|"
    for name, its in rules.items():
        asks = "the program asks" if its.asks is None else f"`{its.asks}`" if its.asks else "nothing"
        layouts = ", ".join(["contiguous", *its.layouts.split()])
        writable = "yes" if its.writable else "no"
        copies = "no argument" if its.copies == "no" else its.copies
        yield f"| {name} | {asks} | `{its.gives}` | {layouts} | {its.read_only} | {writable} | {copies} |"


def types(rules):
    yield f"| element type | {' | '.join(rules)} |"
    yield f"|---|{'---|' * len(rules)}"
    for dtype in DTYPES.split():
        row = ["yes" if dtype in its.dtypes.split() else its.widths.get(dtype, "–") for its in rules.values()]
        yield f"| {dtype} | {' | '.join(row)} |"


if __name__ == "__main__":
    print(tables(), end="")
