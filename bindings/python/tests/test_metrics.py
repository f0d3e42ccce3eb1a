"""Counters as metrics of OpenTelemetry, read by the reader of its own SDK."""

import sys

import numpy as np
import pytest
from opentelemetry.metrics import get_meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import estafette as est
from conftest import run_program


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def meter(reader):
    provider = MeterProvider([reader])
    yield provider.get_meter("test")
    provider.shutdown()


def read(reader):
    """By name: the values, by the attributes."""
    data = reader.get_metrics_data()
    metrics = [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics]
    assert len({metric.name for metric in metrics}) == len(metrics)
    return {
        metric.name: {tuple(sorted(point.attributes.items())): point.value for point in metric.data.data_points}
        for metric in metrics
    }


def test_what_is_in_flight_is_a_metric_by_state(eng, meter, reader, gate):
    est.export_metrics(eng, "main", meter=meter)
    x = eng.zeros(4, "int8")
    eng.submit(lambda x: gate(), writes=[x])
    assert gate.entered.wait(30)
    eng.submit(lambda x: None, writes=[x])
    states = {
        dict(attributes)["estafette.state"]: value for attributes, value in read(reader)["estafette.operations"].items()
    }
    assert (states["running"], states["queued"], states["leased"]) == (1, 1, 0)
    gate.open()
    eng.wait_all()
    assert set(read(reader)["estafette.operations"].values()) == {0}
    assert read(reader)["estafette.operations.limit"] == {(("estafette.engine", "main"),): eng.stats().in_flight_limit}


def test_exchanges_are_counted_once_for_all_engines(eng, meter, reader):
    with est.Engine(workers=1) as other:
        est.export_metrics(eng, "main", meter=meter)
        est.export_metrics(other, "other", meter=meter)
        before = read(reader)
        tensors = [eng.from_dlpack(np.zeros(4)) for _ in range(3)]
        arrays = [np.from_dlpack(tensor) for tensor in tensors]
        after = read(reader)
        rise = {name: after[name][()] - before[name][()] for name in after if name.startswith("estafette.tensors.")}
        assert (rise["estafette.tensors.imported"], rise["estafette.tensors.exported"]) == (3, 3)
        assert {dict(attributes)["estafette.engine"] for attributes in after["estafette.operations"]} == {"main", "other"}
        del tensors, arrays


def test_metrics_keep_no_engine(meter, reader):
    engine = est.Engine(workers=1)
    est.export_metrics(engine, meter=meter)
    est.export_metrics(engine, meter=meter)
    assert read(reader)["estafette.operations"]
    before = sys.getrefcount(engine)
    engine.shutdown()
    assert read(reader)["estafette.operations"] and sys.getrefcount(engine) == before
    del engine
    data = reader.get_metrics_data()
    assert data is None or not read_points(data)


def read_points(data):
    return [
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]


def test_the_meter_of_the_process_is_the_default(eng):
    # Without a provider it records nothing, and is not in the way.
    est.export_metrics(eng)
    assert get_meter("estafette") is not None


def test_without_the_package_the_error_says_what_to_install():
    program = """
    import sys
    import estafette as est

    sys.modules["opentelemetry"] = sys.modules["opentelemetry.metrics"] = None
    with est.Engine(workers=1) as eng:
        try:
            est.export_metrics(eng)
        except ImportError as error:
            assert "pip install opentelemetry-sdk" in str(error)
        else:
            raise AssertionError("there is no such package")
    """
    run_program(program)
