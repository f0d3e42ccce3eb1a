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


@pytest.mark.parametrize("recipes", [False, True], ids=["the guide", "the others"])
def test_mypy_accepts_the_programs_of(recipes, tmp_path):
    pytest.importorskip("mypy")
    options = ["--strict"]
    if recipes:
        # PyTorch and JAX export names by importing them, some peers have no stubs, and functions have no annotations there.
        options += ["--implicit-reexport", "--ignore-missing-imports", "--allow-untyped-defs", "--allow-untyped-calls"]
    # Type checkers do not see what the decorators of Ray make of a class.
    for name in PROGRAMS.keys() - {"ray"}:
        if (name != "python") == recipes:
            (tmp_path / f"{name}_program.py").write_text(PROGRAMS[name])
    done = subprocess.run([sys.executable, "-m", "mypy", *options, tmp_path], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
