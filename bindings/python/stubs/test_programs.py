"""Type checkers in strict mode accept `accepted.py` and the program of the guide, and find the mistakes in `refused.py`, each in its line."""

import importlib.util
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
GUIDE = HERE.parents[2] / "docs/python.md"


def mypy(folder):
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", folder, *PROGRAMS]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(PACKAGE)})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(.*?):(\d+): error: (.*)", done.stdout, re.MULTILINE)
    return [(pathlib.Path(file).name, int(line), text) for file, line, text in found]


def pyright(folder):
    # `test_guide.py` has mypy check that of the guide.
    guide = folder / "guide.py"
    guide.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)))
    programs = [*map(str, PROGRAMS), str(guide)]
    settings = {"typeCheckingMode": "strict", "include": programs, "extraPaths": [str(PACKAGE)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "--project", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert json.loads(done.stdout)["summary"]["filesAnalyzed"] == len(programs)
    found = [row for row in json.loads(done.stdout)["generalDiagnostics"] if row["severity"] == "error"]
    return [(pathlib.Path(row["file"]).name, row["range"]["start"]["line"] + 1, row["message"]) for row in found]


@pytest.fixture(scope="module", params=[mypy, pyright], ids=lambda checker: checker.__name__)
def checked(request, tmp_path_factory):
    """The checker's name, and the errors that it finds in all programs: it reads the package once."""
    if request.param is pyright and not importlib.util.find_spec("basedpyright"):
        pytest.skip("basedpyright is not installed")
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
