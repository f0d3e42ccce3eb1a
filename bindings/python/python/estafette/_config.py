"""``estafette config``: how code in C and C++ that Python loads is compiled against the library in this package."""

from __future__ import annotations

import argparse
import os
import shlex

from . import _estafette


def command(arguments: list[str]) -> int:
    """Print what the arguments ask for, in their order in the help, and return the exit code: 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="estafette config",
        description="How code in C and C++ that Python loads is compiled against the library in this package. It has one graph with "
        "Python. A program of its own, without Python, links the C library instead.",
    )
    parser.add_argument("--cflags", action="store_true", help="options of the compiler")
    parser.add_argument("--libs", action="store_true", help="options of the linker")
    parser.add_argument("--cmake", action="store_true", help="the folder for `cmake -Destafette_DIR=`")
    parser.add_argument("--pkgconfig", action="store_true", help="the folder for PKG_CONFIG_PATH")
    wanted = parser.parse_args(arguments)
    library = os.path.abspath(_estafette.__file__)
    folder, name = os.path.split(library)
    if not any(vars(wanted).values()):
        parser.error("say what: --cflags, --libs, --cmake or --pkgconfig")
    if wanted.cflags:
        print(shlex.join([f"-I{os.path.join(folder, 'include')}"]))
    if wanted.libs:
        print(shlex.join([f"-L{folder}", f"-l:{name}", f"-Wl,-rpath,{folder}"]))
    if wanted.cmake:
        print(os.path.join(folder, "cmake"))
    if wanted.pkgconfig:
        print(os.path.join(folder, "pkgconfig"))
    return 0
