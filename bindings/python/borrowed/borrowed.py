"""A pytest plugin that runs other people's DLPack tests on our tensors: `cargo xtask test --suite borrowed`.

The files are run where they are installed, as they are. Only the names that they import mean something else, by role:

- `producer`: NumPy's arrays leave through a tensor of Estafette, so that NumPy's tests of `__dlpack__` are tests of Estafette.
- `middleman`: `np.from_dlpack(x)` takes `x` from a tensor that we made of it.
- `usm-middleman`: the same for dpnp on a SYCL device, whose tests use capsules too: `dpt.from_dlpack(x)` and
  `from_dlpack_capsule(capsule)` take what we give of a tensor that we made.
- `host-cupy`: CuPy's tests, as dpnp has them, on a stand-in for CuPy whose arrays are tensors of Estafette on the host.

What deviates is listed in `deviations.py` with the rule that it follows from. A failure that is not listed fails, so does
a listed one that passes or fails differently, and one that is listed for no test.
"""

import gc
import sys
import time

import numpy
import pytest

import estafette as est
import host_cupy
from deviations import DEVIATIONS, GaveUp
from proxies import DpnpMiddleman, Middleman, Producer

ROLES = {"producer": Producer, "middleman": Middleman, "usm-middleman": None, "host-cupy": None}

# Limit for memory without a holder to go back to its owner.
RELEASED_WITHIN_S = 10.0


def pytest_addoption(parser):
    parser.addoption("--role", required=True, choices=list(ROLES), help="what our tensors are in the tests")


def pytest_configure(config):
    config.estafette_engine = est.Engine(workers=1, lease_timeout=5.0)
    if config.getoption("role") == "host-cupy":
        host_cupy.install(config.estafette_engine, config.args[0])


def pytest_unconfigure(config):
    gc.collect()
    report = config.estafette_engine.shutdown(RELEASED_WITHIN_S)
    assert report.drained, report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """While a file of NumPy's tests is imported, `import numpy` gives it the proxy; dpnp's names are exchanged afterwards."""
    role = collector.config.getoption("role")
    kind = ROLES[role]
    if not isinstance(collector, pytest.Module):
        return (yield)
    engine = collector.config.estafette_engine
    if role == "usm-middleman":
        import dpctl

        # The tests would skip themselves one by one, and loops over no devices would pass.
        if not dpctl.get_devices():
            raise pytest.UsageError("the SYCL runtime knows no device; is OCL_ICD_FILENAMES set?")
        report = yield
        if report.passed:
            for name in ("dpt", "_dlp"):
                setattr(collector.obj, name, DpnpMiddleman(getattr(collector.obj, name), engine))
        return report
    if kind is None:
        return (yield)
    sys.modules["numpy"] = kind(numpy, engine)
    try:
        report = yield
    finally:
        sys.modules["numpy"] = numpy
    if report.passed:
        collector.obj.sys = Counting(engine)
    return report


class Counting:
    """`sys` for tests that count references: our deleters run on a thread of their own, so they are waited for first."""

    def __init__(self, engine):
        self.engine = engine

    def getrefcount(self, thing):
        deadline = time.monotonic() + RELEASED_WITHIN_S
        while self.engine.stats().releasing:
            assert time.monotonic() < deadline, "a deleter has not run"
            time.sleep(0.0005)
        return sys.getrefcount(thing)

    def __getattr__(self, name):
        return getattr(sys, name)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that gives up by itself is a deviation like any other: listed with its reason, or a failure."""
    try:
        return (yield)
    except pytest.skip.Exception as reason:
        if pyfuncitem.config.getoption("role") != "usm-middleman":
            raise
        raise GaveUp(str(reason)) from reason


def pytest_collection_modifyitems(config, items):
    role = config.getoption("role")
    listed = dict(DEVIATIONS[role])
    for item in items:
        if role == "host-cupy":
            # dpnp leaves out what dpnp does not do; we are to do what CuPy does.
            for node in item.listchain():
                node.own_markers[:] = [marker for marker in node.own_markers if marker.name != "skip"]
        deviation = listed.pop(item.nodeid.split("::", 1)[1], None)
        if deviation is not None:
            raises = pytest.RaisesExc(deviation.raises, match=deviation.match)
            item.add_marker(pytest.mark.xfail(raises=raises, strict=True, reason=deviation.rule))
    if listed:
        raise pytest.UsageError(f"deviations are listed for tests that there are not: {', '.join(listed)}")
