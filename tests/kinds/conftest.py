"""The wheel of the quick form has the kind. For other wheels `ESTAFETTE_EXTENSION` names an extension that has it."""

import os
import pathlib
import shutil
import sys
import tempfile

_extension = os.environ.get("ESTAFETTE_EXTENSION")
if _extension:
    _folder = pathlib.Path(tempfile.mkdtemp(prefix="estafette-kinds-"))
    _sources = pathlib.Path(__file__).parents[2] / "bindings/python/python/estafette"
    # Its headers are links, which the tests do not need.
    shutil.copytree(_sources, _folder / "estafette", ignore=shutil.ignore_patterns("include", "__pycache__"))
    shutil.copy(_extension, _folder / "estafette/_estafette.abi3.so")
    sys.path.insert(0, str(_folder))
    # For programs that the tests start.
    os.environ["PYTHONPATH"] = str(_folder)


def pytest_unconfigure():
    if _extension:
        shutil.rmtree(_folder)
