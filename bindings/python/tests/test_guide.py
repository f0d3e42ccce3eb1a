"""The snippets of the guide run as they stand, and its programs pass mypy."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

GUIDE = pathlib.Path(__file__).parents[3] / "docs" / "python.md"


def programs():
    """The main part as one program, and each recipe: name and text."""
    main, *recipes = re.split(r"^### ", GUIDE.read_text(), flags=re.M)
    texts = {"the guide": main} | {recipe.split(":")[0]: recipe for recipe in recipes}
    return {name: "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)) for name, text in texts.items()}


PROGRAMS = programs()


def test_the_guide_has_the_recipes_that_it_should():
    assert list(PROGRAMS) == ["the guide", "PyTorch", "JAX", "ONNX Runtime", "pandas", "Arrow"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_of(name):
    source = PROGRAMS[name]
    for module in set(re.findall(r"^(?:import|from) (\w+)", source, re.M)):
        if not importlib.util.find_spec(module):
            pytest.skip(f"{module} is not installed")
    done = subprocess.run([sys.executable, "-W", "error", "-c", source], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_mypy_accepts_the_program_of(name, tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[name])
    options = ["--strict"]
    if name != "the guide":
        # PyTorch and JAX export names by importing them, some peers have no stubs, and functions have no annotations there.
        options += ["--implicit-reexport", "--ignore-missing-imports", "--allow-untyped-defs", "--allow-untyped-calls"]
    done = subprocess.run([sys.executable, "-m", "mypy", *options, program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
