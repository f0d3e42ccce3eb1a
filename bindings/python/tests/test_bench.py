"""The script that measures the package: every workload gives its record, and what makes no sense is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benches/python/bench.py"

# Those of the second kind need PyTorch, JAX, tvm-ffi or a C compiler.
WORKLOADS = [
    "python-submit",
    "python-call",
    "python-replay",
    "python-import",
    "python-export",
    "python-await",
    "python-resume",
    "python-round-trip",
]
WORKLOADS_WITH_MORE = ["python-import-torch", "python-export-table", "python-table-c", "python-pipeline"]


def bench(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=120)


def test_every_workload_gives_a_record_with_its_quantities(np):
    done = bench("--n", "50", "--rounds", "3", "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    measured = [record["workload"] for record in records]
    assert [name for name in measured if name not in WORKLOADS_WITH_MORE] == WORKLOADS
    # Forms that are not measured are said to be left out, and nothing else is said.
    left_out = [line.split(" is left out: ")[0] for line in done.stderr.splitlines()]
    assert sorted(left_out + measured) == sorted(WORKLOADS + WORKLOADS_WITH_MORE), done.stderr
    for record in records:
        assert (record["n"], record["rounds"], record["workers"]) == (50, 3, 2)
        spread = record["ns_per_op"]
        assert 0 < spread["min"] <= spread["median"] <= spread["max"]
    assert records[0]["push_ns"]["median"] <= records[0]["ns_per_op"]["max"]


def test_for_people_there_is_a_heading_and_a_line(np):
    done = bench("python-await", "--n", "10", "--rounds", "1")
    heading, line = done.stdout.splitlines()
    assert heading.startswith("workload") and line.startswith("python-await")


@pytest.mark.parametrize("arguments", [("python-walk",), ("--n", "0"), ("--n", "x")])
def test_what_makes_no_sense_is_refused_with_exit_code_2(np, arguments):
    done = bench(*arguments)
    assert done.returncode == 2
    assert "error: " in done.stderr and done.stdout == ""
