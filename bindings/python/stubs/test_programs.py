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


PROGRAMS = [HERE / "accepted.py", HERE / "refused.py"]


def mypy(folder):
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", folder, *PROGRAMS]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(PACKAGE)})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(.*?):(\d+): error: (.*)", done.stdout, re.MULTILINE)
    return [(pathlib.Path(file).name, int(line), text) for file, line, text in found]


def pyright(folder):
    settings = {"typeCheckingMode": "strict", "include": list(map(str, PROGRAMS)), "extraPaths": [str(PACKAGE)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [os.environ["ESTAFETTE_PYRIGHT"], "--outputjson", "--pythonpath", sys.executable, "--project", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    found = [row for row in json.loads(done.stdout)["generalDiagnostics"] if row["severity"] == "error"]
    return [(pathlib.Path(row["file"]).name, row["range"]["start"]["line"] + 1, row["message"]) for row in found]


CHECKERS = [mypy] + ([pyright] if "ESTAFETTE_PYRIGHT" in os.environ else [])


@pytest.fixture(scope="module", params=CHECKERS, ids=lambda checker: checker.__name__)
def checked(request, tmp_path_factory):
    """The checker's name, and the errors that it finds in both programs: it reads the package once."""
    return request.param.__name__, request.param(tmp_path_factory.mktemp("checked"))


def test_typical_programs_are_accepted(checked):
    _, found = checked
    assert [error for error in found if error[0] != "refused.py"] == []


def test_mistakes_are_found(checked):
    checker, found = checked
    marks = ("# refused", f"# refused by {checker}")
    lines = (HERE / "refused.py").read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith(marks)}
    assert len(marked) > 25
    assert {line for file, line, _ in found if file == "refused.py"} == marked, found
