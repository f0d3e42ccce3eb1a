"""Values passed as a stream, by people and by libraries that mean something else by them: every value is right or refused by name.

| value | where it is from |
|---|---|
| bool, float, text, None in a pair | mistakes |
| 0 | CuPy's null stream, and what many write for "the default" |
| -1 | "do not synchronize" |
| -2, 2**64, 2**127 | no handle of any stream |
| `__cuda_stream__` that raises, gives rubbish, or is of another version | the protocol, by others |
"""

import ctypes
import fractions

import numpy as np
import pytest
from doubles import Described, Library, Stream

import estafette as est

SIZE = 64


class Says:
    """An object whose `__cuda_stream__` gives whatever it was made with."""

    def __init__(self, given):
        self.given = given

    def __cuda_stream__(self):
        if isinstance(self.given, BaseException):
            raise self.given
        return self.given


class Attribute:
    """The protocol's first version: no method."""

    def __init__(self, handle):
        self.__cuda_stream__ = (0, handle)


class Index:
    """An object that acts as an integer, as NumPy's do."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


WRONG = {
    "true": (True, TypeError, "bool"),
    "false": (False, TypeError, "bool"),
    "float": (1.0, TypeError, "no CUDA stream"),
    "fraction": (fractions.Fraction(1), TypeError, "no CUDA stream"),
    "text": ("1", TypeError, "no CUDA stream"),
    "pair": ((0, 1), TypeError, "no CUDA stream"),
    "zero": (0, ValueError, "1 for the legacy one"),
    "minus two": (-2, ValueError, "-2 is no handle"),
    "too large": (2**64, ValueError, "no handle"),
    "much too large": (2**127, ValueError, "too large for a handle"),
    "raises": (Says(RuntimeError("its own trouble")), RuntimeError, "its own trouble"),
    "gives nothing": (Says(None), TypeError, "did not give a pair"),
    "gives one": (Says((0,)), TypeError, "did not give a pair"),
    "gives three": (Says((0, 1, 2)), TypeError, "did not give a pair"),
    "gives text": (Says((0, "1")), TypeError, "did not give a pair"),
    "gives a negative handle": (Says((0, -1)), TypeError, "did not give a pair"),
    "gives too large a handle": (Says((0, 2**64)), TypeError, "did not give a pair"),
    "gives bools": (Says((False, True)), TypeError, "did not give a pair"),
    "of another version": (Says((1, 2)), ValueError, "version 1"),
    "a dangling handle": (0x5E00_7777_0000, ValueError, "stream"),
}


@pytest.fixture
def lib(sim):
    return Library(sim)


@pytest.fixture
def x(sim, eng):
    x = eng.empty((SIZE,), "uint8", device="cuda")
    x.wait(timeout=30)
    return x


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_stream_is_refused_and_nothing_is_held(sim, eng, x, case):
    stream, error, words = WRONG[case]
    for ask in (
        lambda: x.__dlpack__(stream=stream, max_version=(1, 0)),
        lambda: x.__dlpack__(stream=stream),
        lambda: x.alias().__dlpack__(stream=stream, max_version=(1, 0)),
    ):
        with pytest.raises(error, match=words):
            ask()
    if case == "a dangling handle":
        # The simulator says so as well.
        found = sim.violations()
        assert found and all("never made or is destroyed" in line for line in found)
        sim.forget()
    assert eng.stats().leased == 0
    # A writer waits for no reader.
    eng.submit(lambda x: None, writes=[x], using=lambda t: t.data_ptr, on="cuda").wait(timeout=30)


@pytest.mark.parametrize("case", ["true", "float", "text", "raises", "gives nothing", "of another version"])
def test_what_is_no_queue_of_an_operation_is_refused(sim, eng, case):
    stream = WRONG[case][0]
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        eng.submit(lambda: None, on=stream)
    assert eng.stats().in_flight == 0


@pytest.mark.parametrize("case", ["true", "float", "zero", "minus two", "too large", "gives nothing"])
def test_an_array_interface_with_no_stream_for_a_stream_is_refused(sim, eng, lib, case):
    stream, error, words = WRONG[case]
    array = lib.full(1)
    before = eng.stats().imported
    with pytest.raises(error, match=words):
        eng.from_dlpack(Described(array, stream=stream))
    assert eng.stats().imported == before
    assert array.bytes() == b"\x01" * SIZE


@pytest.mark.parametrize("make", [Says, Attribute], ids=["method", "attribute"])
def test_both_versions_of_the_protocol_are_understood(sim, eng, lib, x, make):
    stream = make((0, lib.current)) if make is Says else make(lib.current)
    capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
    del capsule
    # 0 is the legacy stream in this protocol, and in no other place.
    capsule = x.__dlpack__(stream=Says((0, 0)), max_version=(1, 0))
    del capsule


def test_whatever_is_an_integer_is_a_handle(sim, eng, lib, x):
    for stream in (np.int64(lib.current), np.uint64(lib.current), Index(lib.current), ctypes.c_uint64(lib.current).value):
        capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
        del capsule
    for stream in (np.int64(-1), Index(-1)):
        before = eng.stats().unordered
        capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
        assert eng.stats().unordered == before + 1
        del capsule


def test_a_stream_of_another_device_is_refused_by_both_names(sim, eng, x):
    y = eng.empty((SIZE,), "uint8", device="cuda:1")
    handles = []
    eng.submit(lambda y: handles.append(est.current_stream().handle), writes=[y], using=lambda t: t.data_ptr, on="cuda:1").wait()
    with pytest.raises(ValueError, match="cuda:0"):
        x.__dlpack__(stream=handles[0], max_version=(1, 0))
    with pytest.raises(ValueError, match="cuda:0"):
        x.__dlpack__(stream=Stream(handles[0]), max_version=(1, 0))
    assert eng.stats().leased == 0


@pytest.mark.parametrize("stream", [1, 2, "handle"])
def test_streams_are_for_memory_that_has_some(sim, eng, lib, stream):
    stream = lib.current if stream == "handle" else stream
    host = eng.zeros((SIZE,), "uint8")
    with pytest.raises(ValueError, match="None"):
        host.__dlpack__(stream=stream, max_version=(1, 0))
    # The host's own word for "nothing to do", as PyTorch says it.
    capsule = host.__dlpack__(stream=-1, max_version=(1, 0))
    del capsule
    managed = eng.empty((SIZE,), "uint8", device=(13, 0))
    capsule = managed.__dlpack__(stream=stream, max_version=(1, 0))
    del capsule
