"""A stand-in for CuPy in dpnp's copy of its tests: arrays that are tensors of Estafette, in host memory.

The tests import dpnp and dpctl, which would need a SYCL device. They get the few names that they use from here.
"""

import sys
import types

import numpy
import pytest


class Array:
    """The interface that the tests look at: data, type, and DLPack's two methods, which are our tensor's."""

    def __init__(self, engine, tensor):
        self._engine = engine
        self._tensor = tensor
        self.data = types.SimpleNamespace(ptr=tensor.data_ptr)
        # A queue belongs to a device; the host has none.
        self.sycl_context = self.sycl_device = None

    def astype(self, dtype):
        return Array(self._engine, self._engine.from_dlpack(numpy.from_dlpack(self._tensor).astype(dtype)))

    def toDlpack(self):  # CuPy's name
        return self._tensor.__dlpack__()

    def get(self):
        return numpy.asarray(self)

    @property
    def device(self):
        return self._tensor.device

    @property
    def dtype(self):
        return numpy.dtype(self._tensor.dtype)

    def __dlpack__(self, **arguments):
        return self._tensor.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()

    def __array__(self, dtype=None, copy=None):
        return numpy.array(numpy.from_dlpack(self._tensor), dtype=dtype)


class SyclQueue:
    """Something that is no stream of the host."""

    def __init__(self, *_arguments, **_named):
        pass


def install(engine, test):
    """Puts the stand-ins where `test`, a file in a package `dpnp` that is not otherwise imported, looks for them."""
    folder = test[: test.rindex("/dpnp/tests/") + len("/dpnp")]
    cupy = module("dpnp", __path__=[folder])
    module("dpnp.tests", __path__=[f"{folder}/tests"])
    for name in ("bool_", "float32", "integer", "unsignedinteger", "floating", "complexfloating", "issubdtype"):
        setattr(cupy, name, getattr(numpy, name))
    cupy.asarray = lambda array, sycl_queue=None: Array(engine, engine.from_dlpack(numpy.asarray(array)))
    cupy.empty = lambda shape: Array(engine, engine.empty(shape, "float64"))
    cupy.from_dlpack = lambda source, **arguments: Array(engine, engine.from_dlpack(source, **arguments))
    cupy.fromDlpack = lambda capsule: Array(engine, engine.from_dlpack(capsule))
    cupy.VisibleDeprecationWarning = numpy.exceptions.VisibleDeprecationWarning
    cupy.tensor = module("dpnp.tensor", __path__=[])
    cupy.tensor._dlpack = module(
        "dpnp.tensor._dlpack", from_dlpack_capsule=lambda capsule: Array(engine, engine.from_dlpack(capsule))
    )
    module("dpctl", SyclQueue=SyclQueue)
    module(
        "dpnp.tests.third_party.cupy.testing",
        for_all_dtypes=for_all_dtypes,
        assert_array_equal=lambda a, b: numpy.testing.assert_array_equal(numpy.asarray(a), numpy.asarray(b)),
    )


def module(name, **contents):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(contents)
    return sys.modules[name]


def for_all_dtypes(no_bool=False):
    """CuPy's decorator: the test runs once with each element type."""
    names = [*"bhilqBHILQefdFD", *([] if no_bool else ["?"])]
    return pytest.mark.parametrize("dtype", [numpy.dtype(name).type for name in names])
