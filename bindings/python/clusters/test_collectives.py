"""Collective operations of torch.distributed in two processes, with Gloo: all ranks call them in one order, and none waits for ever."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RANK = Path(__file__).with_name("gloo_rank.py")
# `ESTAFETTE_COLLECTIVES` may ask for many.
LIMIT_S = 900
pytestmark = pytest.mark.timeout(2 * LIMIT_S)


def ranks(folder, order):
    """The outcomes of two ranks: their exit codes and what they printed. What runs for longer is killed."""
    started = [
        subprocess.Popen(
            [sys.executable, RANK, str(rank), str(folder / "store"), order], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outcomes = []
    try:
        for process in started:
            try:
                out, err = process.communicate(timeout=LIMIT_S)
                outcomes.append((process.returncode, out, err))
            except subprocess.TimeoutExpired:
                outcomes.append((None, "", "it hung"))
    finally:
        for process in started:
            process.kill()
            process.wait()
    return outcomes


def test_with_a_variable_for_the_communicator_thousands_of_collectives_agree_and_all_ranks_fail_in_the_same(tmp_path):
    first, second = ranks(tmp_path, "ordered")
    assert first[0] == 0, first[2]
    assert second[0] == 0, second[2]
    failures = json.loads(first[1])
    assert failures == json.loads(second[1])
    assert {text.rpartition(" ")[0] for text in failures.values()} == {f"no input for {step} on rank" for step in failures}
    assert {text[-1] for text in failures.values()} == {"0", "1"}, "inputs of both ranks have failed"


def test_without_it_they_mismatch_or_hang(tmp_path):
    outcomes = ranks(tmp_path, "unordered")
    assert any(code != 0 for code, _out, _err in outcomes), "nothing went wrong without an order"
