"""The command ``estafette``, also as ``python -m estafette``."""

import importlib
import signal
import sys

from ._estafette import _command

# Subcommands that are not in the extension, which has the others.
_IN_PYTHON = {"config": "_config", "merge": "_merge", "observe": "_observe", "top": "_top"}


def main() -> int:
    """Run the command with the arguments of the process, and return its exit code."""
    if len(sys.argv) == 3 and sys.argv[1] == "help" and sys.argv[2] in _IN_PYTHON:
        sys.argv[1:] = [sys.argv[2], "--help"]
    module = _IN_PYTHON.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if module is not None:
        code: int = importlib.import_module(f"estafette.{module}").command(sys.argv[2:])
        return code
    # The interpreter would obey Ctrl-C only after the command.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = _command(["estafette", *sys.argv[1:]])
    if sys.argv[1:] in (["--help"], ["-h"], ["help"]):
        print(f"\nThe package has {', '.join(_IN_PYTHON)} as well, each with a --help of its own")
    return code


if __name__ == "__main__":
    sys.exit(main())
