"""The command ``estafette``, also as ``python -m estafette``."""

import signal
import sys

from ._estafette import _command


def main() -> int:
    """Run the command with the arguments of the process, and return its exit code."""
    if sys.argv[1:2] == ["observe"]:
        from ._observe import command

        return command(sys.argv[2:])
    if sys.argv[1:2] == ["config"]:
        from ._config import command

        return command(sys.argv[2:])
    # The interpreter would obey Ctrl-C only after the command.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _command(["estafette", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
