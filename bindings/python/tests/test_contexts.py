"""Consumers that call a deleter only where the struct has a context (PaddlePaddle 3.3 is one): ours always has one."""

import ctypes
import gc

import pytest

from capsules import DELETER, DLManagedTensor, DLManagedTensorVersioned
from capsules import python as c_api
from exchange_table import Functions

c_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
c_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
c_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

VERSIONS = {None: (b"dltensor", DLManagedTensor), (1, 3): (b"dltensor_versioned", DLManagedTensorVersioned)}
USED = {name: b"used_" + name for name, _ in VERSIONS.values()}


def consume(capsule, version):
    """Such a consumer's use of a capsule: it takes the struct, and looks at the context before it calls the deleter."""
    name, kind = VERSIONS[version]
    address = c_api.PyCapsule_GetPointer(capsule, name)
    assert c_api.PyCapsule_SetName(capsule, USED[name]) == 0
    managed = kind.from_address(address)
    if managed.manager_ctx is not None:
        DELETER(managed.deleter)(address)


@pytest.mark.parametrize("version", VERSIONS, ids=["legacy", "versioned"])
@pytest.mark.parametrize("export", ["read", "write", "copy"])
def test_a_consumer_that_asks_for_a_context_first_releases_the_lease(eng, np, version, export):
    t = eng.zeros(4, "float32")
    source = t.for_write() if export == "write" else t
    consume(source.__dlpack__(max_version=version, copy=True if export == "copy" else None), version)
    gc.collect()
    eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack).wait(30)


def test_the_struct_of_the_c_exchange_table_has_a_context_too(eng, np):
    t = eng.zeros(4, "float32")
    managed = Functions(t).take(t)
    assert managed.struct.manager_ctx is not None
    managed.delete()
    eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack).wait(30)
