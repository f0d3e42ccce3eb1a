"""The snippets of the guide, of its pages on operators, observe mode and processes, and of the recipes run as they stand, and their programs
pass mypy."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
RECIPES = [page for page in sorted(ROOT.glob("docs/recipes/*.md")) if page.stem != "index"]
PAGES = [ROOT / "docs/python.md", ROOT / "docs/operators.md", ROOT / "docs/observe.md", ROOT / "docs/processes.md", *RECIPES]


def program(page, info="python"):
    return "\n".join(re.findall(rf"^```{info}\n(.*?)^```", page.read_text(), re.M | re.S))


PROGRAMS = {page.stem: program(page) for page in PAGES if program(page)}


def test_the_recipes_are_those_of_their_list():
    listed = re.findall(r"\((\w+)\.md\)", (ROOT / "docs/recipes/index.md").read_text())
    assert sorted(listed) == [page.stem for page in RECIPES]
    assert len(PROGRAMS) >= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_cannot_run_here_compiles(page):
    compile(program(page, "python notest"), page.name, "exec")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_of(name):
    source = PROGRAMS[name]
    for module in set(re.findall(r"^(?:import|from) (\w+)", source, re.M)):
        if not importlib.util.find_spec(module):
            pytest.skip(f"{module} is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        capture_output=True,
        text=True,
        timeout=100,
        # Ray takes part in no cluster that another program has left running.
        env={**os.environ, "RAY_ADDRESS": "local"},
    )
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr


# One run for all, as mypy reads PyTorch and JAX for longer than the programs. PyTorch and JAX export names by importing them, some peers have no
# stubs, and functions of the recipes have no annotations.
MYPY = """
[mypy]
strict = True
ignore_missing_imports = True
[mypy-estafette.*]
ignore_missing_imports = False
[mypy-jax.*,torch.*]
implicit_reexport = True
[mypy-{recipes}]
allow_untyped_defs = True
allow_untyped_calls = True
"""


def test_mypy_accepts_the_programs(tmp_path):
    pytest.importorskip("mypy")
    # Type checkers do not see what the decorators of Ray make of a class.
    names = PROGRAMS.keys() - {"ray"}
    for name in names:
        (tmp_path / f"{name}_program.py").write_text(PROGRAMS[name])
    recipes = ",".join(f"{name}_program" for name in sorted(names - {"python"}))
    (tmp_path / "mypy.ini").write_text(MYPY.format(recipes=recipes))
    command = [sys.executable, "-m", "mypy", "--config-file", tmp_path / "mypy.ini", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
