"""Type checkers in strict mode accept `accepted.py`, and find the mistakes in `refused.py`, each in its line.

mypy is in the environment of the tests. `ESTAFETTE_PYRIGHT` names the command of pyright or basedpyright, to check with
that as well.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE.parent / "python"


def mypy(program, folder):
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", folder, program]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(PACKAGE)})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [(int(line), text) for line, text in re.findall(r"^.*?:(\d+): error: (.*)", done.stdout, re.MULTILINE)]


def pyright(program, folder):
    settings = {"typeCheckingMode": "strict", "include": [str(program)], "extraPaths": [str(PACKAGE)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [os.environ["ESTAFETTE_PYRIGHT"], "--outputjson", "--pythonpath", sys.executable, "--project", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [(row["range"]["start"]["line"] + 1, row["message"]) for row in found if row["severity"] == "error"]


CHECKERS = [mypy] + ([pyright] if "ESTAFETTE_PYRIGHT" in os.environ else [])


@pytest.mark.parametrize("checker", CHECKERS)
def test_typical_programs_are_accepted(checker, tmp_path):
    assert checker(HERE / "accepted.py", tmp_path) == []


@pytest.mark.parametrize("checker", CHECKERS)
def test_mistakes_are_found(checker, tmp_path):
    marks = ("# refused", f"# refused by {checker.__name__}")
    lines = (HERE / "refused.py").read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith(marks)}
    assert len(marked) > 25
    found = checker(HERE / "refused.py", tmp_path)
    assert {number for number, _ in found} == marked, found
