"""Where the borrowed tests expect something else than we do, and the rule that ours follows from."""

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Deviation:
    raises: type[BaseException]
    """What the test fails with."""

    match: str
    """What is in its message, as a regular expression."""

    rule: str
    """Why it is right that way."""


A_READ_LEASE = Deviation(
    AssertionError,
    "WRITEABLE : False",
    "a plain export is a read lease, so the array made from it is read-only; `t.for_write()` gives one to write",
)
A_BOOL = "`copy` is True, False or None; anything else is of the wrong type"
NO_STREAMS = "host memory has no streams: any but None, and PyTorch's -1, is a wrong value"

DEVIATIONS = {
    "producer": {
        "TestDLPack::test_writeable": A_READ_LEASE,
        "TestDLPack::test_dunder_dlpack_stream": Deviation(ValueError, "stream must be None", NO_STREAMS),
        "TestDLPack::test_dunder_dlpack_copy": Deviation(TypeError, "copy", A_BOOL),
    },
    "middleman": {
        "TestDLPack::test_writeable": A_READ_LEASE,
    },
    "usm-middleman": {},
    "host-cupy": {
        "TestNewDLPackConversion::test_from_dlpack_and_conv_errors[device]": Deviation(
            pytest.fail.Exception, "DID NOT RAISE NotImplementedError", "moves and copies are wanted, not refused"
        ),
        "TestNewDLPackConversion::test_conversion_device_to_cpu[device]": Deviation(
            AssertionError, "may_share_memory", "what is on the host already is handed over in place"
        ),
        "TestNewDLPackConversion::test_stream[device]": Deviation(ValueError, "stream must be None", NO_STREAMS),
        "TestDLTensorMemory::test_multiple_consumption_error": Deviation(
            AssertionError, "the capsule was consumed before", "a ValueError too, which says whom to ask for a new one"
        ),
    },
}
