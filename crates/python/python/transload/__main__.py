"""The `transload` command: ``python -m transload``."""

import signal
import sys

from ._transload import run_command

if __name__ == "__main__":
    # The command ends by Ctrl-C as any other program does; nothing of Python has to be cleaned up.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    started_as = [sys.executable, "-m", "transload"]
    sys.exit(run_command(started_as, sys.argv[1:]))
