"""Deviations of the borrowed tests from our results, and the rule that ours follows from."""

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Deviation:
    raises: type[BaseException]
    """The error of the test."""

    match: str
    """A regular expression for its message."""

    rule: str
    """The reason that ours is right."""


class GaveUp(Exception):
    """Raised in place of a test's own skip."""


A_READ_LEASE = Deviation(
    AssertionError,
    "WRITEABLE : False",
    "a plain export is a read lease, so the array made from it is read-only; `t.for_write()` gives one to write",
)
A_BOOL = "`copy` is True, False or None; anything else is of the wrong type"
NO_STREAMS = "host memory has no streams: any but None, and PyTorch's -1, is a wrong value"

NO_QUEUE = Deviation(
    BufferError, "names no queue", "an array on a device that names no queue is refused, since no queue could order it"
)
ALREADY_CONSUMED = Deviation(
    AssertionError, "the capsule was consumed before", "a ValueError too, which says whom to ask for a new one"
)
NO_PARTS = Deviation(
    GaveUp, "Queue could not be created", "Intel's OpenCL driver has no queue of a part in the platform's context"
)
NO_ELEMENTS = Deviation(
    AssertionError, r"== \(1, 1, 1\)", "strides of an array without elements say nothing, and come out row-major"
)
USM_TYPES = "b1 u1 i1 u2 i2 u4 i4 u8 i8 f2 f4 f8 c8 c16".split()

DEVIATIONS = {
    "producer": {
        "TestDLPack::test_writeable": A_READ_LEASE,
        "TestDLPack::test_dunder_dlpack_stream": Deviation(ValueError, "stream must be None", NO_STREAMS),
        "TestDLPack::test_dunder_dlpack_copy": Deviation(TypeError, "copy", A_BOOL),
    },
    "middleman": {
        "TestDLPack::test_writeable": A_READ_LEASE,
    },
    "usm-middleman": {
        **{
            f"test_from_dlpack[{dtype}-{kind}-shape2]": NO_ELEMENTS
            for dtype in USM_TYPES
            for kind in ("shared", "device", "host")
        },
        "test_dlpack_from_subdevice": NO_PARTS,
        "test_dlpack_from_subdevice_to_kdlcpu": NO_PARTS,
        "test_used_dlpack_capsule": ALREADY_CONSUMED,
        "test_used_dlpack_capsule_from_numpy": ALREADY_CONSUMED,
        "test_dlpack_size_0_on_kdlcpu": Deviation(
            AssertionError, "ctypes", "an array on the host without elements has no address: NULL, as the header recommends"
        ),
        "test_copy_via_host": Deviation(
            AssertionError, "'shared' == 'device'", "memory that we make is shared, so that the host can look at it"
        ),
        "test_generic_container_legacy": NO_QUEUE,
        "test_generic_container": NO_QUEUE,
    },
    "host-cupy": {
        "TestNewDLPackConversion::test_from_dlpack_and_conv_errors[device]": Deviation(
            pytest.fail.Exception, "DID NOT RAISE NotImplementedError", "moves and copies are wanted, not refused"
        ),
        "TestNewDLPackConversion::test_conversion_device_to_cpu[device]": Deviation(
            AssertionError, "may_share_memory", "what is on the host already is handed over in place"
        ),
        "TestNewDLPackConversion::test_stream[device]": Deviation(ValueError, "stream must be None", NO_STREAMS),
        "TestDLTensorMemory::test_multiple_consumption_error": ALREADY_CONSUMED,
    },
}
