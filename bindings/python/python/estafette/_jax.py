"""JAX's arrays of tensors in host memory. Called by the extension, never by users.

`jax.dlpack.from_dlpack` takes 31 µs, of which one function of jaxlib takes 5. The rest finds the stream of a device,
which for the processor raises and catches an exception, and casts the array to the type that it has.
"""

from __future__ import annotations

import numpy

# Further arguments of the function, after the capsule, the device and the stream, from the newest version on: `copy` and DLPack's
# number of the processor.
_TAILS = (None, 1), (None,), ()


def find_conversion():
    """The functions that make arrays, and one that does the same to a capsule of host memory.

    None for a JAX whose private function is absent, or makes another array than `from_dlpack` does. The elements have
    at most 32 bits, or two of 32: without `jax_enable_x64` other types are cast.
    """
    import jax.dlpack
    import jax.numpy

    public = jax.numpy.from_dlpack, jax.dlpack.from_dlpack
    try:
        from jax._src.lib import _jax
        from jax._src.xla_bridge import get_backend

        make = _jax.dlpack_managed_tensor_to_buffer
    except (AttributeError, ImportError):
        return None
    for tail in _TAILS:

        def convert(capsule, tail=tail):
            return make(capsule, get_backend("cpu").device_from_local_hardware_id(0), None, *tail)

        if _does_the_same(convert, jax.dlpack.from_dlpack):
            return *public, convert
    return None


def _does_the_same(convert, from_dlpack):
    # Memory at a multiple of 64 bytes is shared, other memory is copied.
    room = numpy.arange(64, dtype=numpy.float32)
    start = -room.ctypes.data % 64 // room.itemsize
    for source in room[start : start + 16], room[start + 1 : start + 17]:
        try:
            array = convert(source.__dlpack__())
        except Exception:  # a function with other parameters, or of another kind
            return False
        if _described(array, source) != _described(from_dlpack(source), source):
            return False
    return True


def _described(array, source):
    is_shared = array.unsafe_buffer_pointer() == source.ctypes.data
    return type(array), array.aval, array.sharding, array.committed, array.weak_type, array.tolist(), is_shared
