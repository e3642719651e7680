"""The `transload` command: ``transload`` where the package's scripts are on the path, or ``python -m transload``."""

import signal
import sys

from ._transload import run_command


def main() -> int:
    """Runs the command with this process's arguments, and returns its exit code."""
    # The command ends by Ctrl-C as any other program does; nothing of Python has to be cleaned up.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    started_as = [sys.executable, "-m", "transload"]
    return run_command(started_as, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
