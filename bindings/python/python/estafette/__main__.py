"""The command ``estafette``, also as ``python -m estafette``."""

import signal
import sys

from ._estafette import _command


def main() -> int:
    """Run the command with the arguments of the process, and return its exit code."""
    # The interpreter would obey Ctrl-C only after the command.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _command(["estafette", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
