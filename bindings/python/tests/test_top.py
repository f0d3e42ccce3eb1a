"""`estafette top` and a process that it shows."""

import argparse
import json
import os
import re
import socket
import stat
import subprocess
import sys
import textwrap

import pytest
from estafette import _top

PROGRAM = """
import sys
import threading

import numpy as np
import estafette as est

go = threading.Event()
eng = est.Engine(workers=2)
x, y = eng.zeros(4, "int8"), eng.zeros(4, "int8")
begun = threading.Event()

def slow(x):
    begun.set()
    go.wait()

eng.submit(slow, writes=[x], name="slow")
begun.wait()
eng.submit(lambda x: None, writes=[x], name="stalled")
array = np.from_dlpack(y)
eng.submit(lambda y: None, writes=[y], name="held up")
print("ready", flush=True)
sys.stdin.readline()
go.set()
del array
eng.shutdown()
"""


@pytest.fixture
def environment(tmp_path):
    return {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "ESTAFETTE_TOP": "1"}


@pytest.fixture
def process(environment):
    """A process that is ready; a line lets it end."""
    process = start(environment)
    yield process
    if process.poll() is None:
        process.communicate("\n", timeout=60)
    assert process.returncode in (0, -9)


def start(environment, *program):
    command = [sys.executable, *(program or ("-c", textwrap.dedent(PROGRAM)))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout.readline() == "ready\n"
    return process


def top(environment, *arguments):
    command = [sys.executable, "-m", "estafette", "top", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def test_a_frame_has_what_runs_what_waits_and_who_holds_leases(environment, process):
    shown = top(environment, "--once")
    assert shown.returncode == 0, shown.stderr
    first, engine, *operations = [re.sub(r"; submitted .*", "", line) for line in shown.stdout.splitlines()]
    assert first == f"{process.pid} -c, imported 0, exported 1, released 0"
    assert engine == "engine 1: 3 of 4,096 in flight: 1 running, 0 ready, 1 queued, 1 leased"
    slow, stalled, lease, held_up = operations
    assert slow.endswith("`slow` is running")
    assert re.search("`stalled` waits for operation [0-9]+ `slow`", stalled)
    assert "is a read lease taken by <module>" in lease
    assert re.search("`held up` waits for operation [0-9]+ read lease taken by <module>", held_up)
    frame = json.loads(top(environment, process.pid, "--once", "--json").stdout)
    statuses = {operation["name"]: operation["status"] for operation in frame["engines"][0]["operations"]}
    assert (statuses["slow"], statuses["stalled"]) == ("running", "waiting")
    (stalled,) = [operation for operation in frame["engines"][0]["operations"] if operation["name"] == "stalled"]
    assert [(blocker["name"], blocker["hazard"]) for blocker in stalled["blocked_by"]] == [("`slow`", "write after write")]


def test_frames_follow_each_other_until_the_process_ends(environment, process):
    command = [sys.executable, "-m", "estafette", "top", "--json", "--interval", "0.01"]
    viewer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    frames = [json.loads(viewer.stdout.readline()) for _ in range(3)]
    assert frames[0]["seconds"] < frames[1]["seconds"] < frames[2]["seconds"]
    process.communicate("\n", timeout=60)
    _rest, said = viewer.communicate(timeout=60)
    assert viewer.returncode == 1 and said.startswith("estafette top: "), said


def test_only_the_user_may_look_and_nothing_is_left(environment, process, tmp_path):
    socket = tmp_path / "estafette" / f"{process.pid}.sock"
    assert stat.S_IMODE(socket.lstat().st_mode) == 0o600 and stat.S_IMODE(socket.parent.lstat().st_mode) == 0o700
    process.communicate("\n", timeout=60)
    assert not socket.exists()
    killed = start(environment)
    killed.kill()
    killed.wait()
    ended = top(environment, "--once")
    assert ended.returncode == 1 and "ESTAFETTE_TOP=1" in ended.stderr
    assert list(socket.parent.iterdir()) == []


def test_a_process_that_was_not_asked_or_is_one_of_several(environment, process):
    environment_off = {**environment, "ESTAFETTE_TOP": "0"}
    quiet, other = start(environment_off), start(environment)
    refused = top(environment, "--once", quiet.pid)
    assert refused.returncode == 1 and f"no process {quiet.pid}: " in refused.stderr
    several = top(environment, "--once")
    assert several.returncode == 1 and "say which process: " in several.stderr
    assert str(other.pid) in several.stderr and str(process.pid) in several.stderr
    assert top(environment, "--once", other.pid).stdout.startswith(f"{other.pid} ")
    for program in (quiet, other):
        program.communicate("\n", timeout=60)


def test_a_folder_that_others_may_use_is_refused_and_the_program_runs(environment, tmp_path):
    (tmp_path / "estafette").mkdir(mode=0o755)
    program = [sys.executable, "-c", "import estafette; estafette.Engine(workers=1).shutdown()"]
    ended = subprocess.run(program, capture_output=True, text=True, env=environment, timeout=60)
    assert ended.returncode == 0 and ended.stderr.startswith("estafette: ESTAFETTE_TOP: ") and "0700" in ended.stderr
    assert top(environment, "--once").returncode == 1


def test_a_program_whose_path_is_no_text_is_shown(environment, tmp_path):
    path = os.fsencode(tmp_path) + b"/program-\xff.py"
    with open(path, "w") as file:
        file.write(textwrap.dedent(PROGRAM))
    program = start(environment, path)
    shown = top(environment, "--once")
    program.communicate("\n", timeout=60)
    assert shown.returncode == 0 and "program-?.py" in shown.stdout, shown


def test_an_output_that_is_read_no_further_ends_it_well(environment, process):
    command = [sys.executable, "-m", "estafette", "top", "--json", "--interval", "0.001"]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_process_that_does_not_answer_is_shown_as_it_was_last(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_top, "_SECONDS", 0.05)
    frame = {"pid": 7, "program": "train.py", "seconds": 1.0, "counters": {}, "engines": [], "releases": []}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "7.sock"))
        listener.listen()
        viewer = _top._Viewer(tmp_path / "7.sock")
        process, _ = listener.accept()
        process.sendall(json.dumps(frame).encode() + b"\n")
        shown = []

        def note(text, wanted):
            shown.append(text)
            if len(shown) == 3:
                process.sendall(b'{"pid": 7, "program": "train.py", "seconds": 9.0, ')
            elif len(shown) == 4:
                process.sendall(b'"counters": {}, "engines": [], "releases": ["later"]}\n')
            return len(shown) < 5

        monkeypatch.setattr(_top, "_print", note)
        wanted = argparse.Namespace(once=False, json=False, interval=0.001)
        _top._show(viewer, 7, wanted)
        assert [re.sub(r"[0-9]+ s", "N s", text) for text in shown] == [
            "7 train.py",
            *["7 does not answer (N s)\n7 train.py"] * 3,
            "7 train.py\nlater",
        ]
        # It was asked twice, not once more for each time that it did not answer.
        assert process.recv(100) == b"{}\n{}\n"
        wanted.once = True
        with pytest.raises(TimeoutError, match=r"7 does not answer \([0-9]+ s\)"):
            _top._show(viewer, 7, wanted)
