"""The data of a report is what `estafette.typing.ReportData` says, at every depth."""

import threading
import time
import typing

import pytest

import estafette as est
import estafette.typing as types


def mismatches(value, declared, place="data"):
    """Places where a value is not what a type declares: fields that are missing or undeclared, and values of other types."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if typing.is_typeddict(declared):
        fields = typing.get_type_hints(declared)
        if not isinstance(value, dict) or set(value) != set(fields):
            return [f"{place}: {value!r} is no {declared.__name__}"]
        return [wrong for name in fields for wrong in mismatches(value[name], fields[name], f"{place}.{name}")]
    if origin is list:
        if not isinstance(value, list):
            return [f"{place}: {value!r} is no list"]
        return [wrong for at, item in enumerate(value) for wrong in mismatches(item, *arguments, f"{place}[{at}]")]
    matches = value in arguments if origin is typing.Literal else type(value) is declared
    return [] if matches else [f"{place}: {value!r} is no {declared}"]


def test_a_report_has_the_declared_fields(eng, np, tmp_path):
    path = tmp_path / "run.pftrace"
    begun, resume = threading.Event(), threading.Event()

    def slow(x):
        begun.set()
        resume.wait()

    with est.record(path):
        x = eng.zeros(3, "float32")
        eng.submit(slow, writes=[x], using=np.from_dlpack, name="slow")
        fast = eng.submit(lambda x: None, reads=[x], using=np.from_dlpack, name="fast")
        begun.wait()
        resume.set()
        fast.wait()
        kept = np.from_dlpack(x)
        behind = eng.submit(lambda x: None, writes=[x], using=np.from_dlpack, name="behind")
        del kept
        behind.wait()
    data = est.report(path).data
    assert mismatches(data, types.ReportData) == []
    assert [row["cause"] for row in data["causes"]] == list(typing.get_args(types.Cause))
    for rows in ("worst", "operations", "tensors", "run_time", "advice"):
        assert data[rows], f"the report has an example of {rows}"
    assert data["matrix"]["waited_ns"] and data["critical_path"]["names"]


def test_a_replay_ran_from_its_first_node_to_its_last_one(eng, tmp_path):
    y = eng.zeros(1, "int8")
    with eng.program("step") as step:
        for _ in range(3):
            step.submit(lambda y: time.sleep(0.02), writes=[y])
    with est.record(str(tmp_path / "run.pftrace")) as trace:
        step.replay().wait()
    (operation,) = [row for row in trace.report().data["operations"] if row["name"] == "`step`"]
    assert operation["running_ns"] >= 60e6


def test_the_report_of_nothing_has_them_too(tmp_path):
    path = tmp_path / "run.pftrace"
    with est.record(path):
        pass
    assert mismatches(est.report(path).data, types.ReportData) == []


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        ({"change": "x"}, types.ReportAdvice),
        ({"change": "x", "saves_ns": 1, "more": 1}, types.ReportAdvice),
        ({"change": "x", "saves_ns": 1.5}, types.ReportAdvice),
        ("slow", types.Cause),
        ({}, list[int]),
    ],
)
def test_other_data_does_not_match(value, declared):
    assert mismatches(value, declared)


def test_the_names_of_types_are_there_and_documented():
    for name in types.__all__:
        assert hasattr(types, name)
    values = vars(types).values()
    classes = [value for value in values if isinstance(value, type) and value.__module__ == types.__name__]
    assert {value.__name__ for value in classes} <= set(types.__all__)
    assert [value.__name__ for value in classes if not value.__doc__] == []
