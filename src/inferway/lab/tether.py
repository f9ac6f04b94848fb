"""A program that becomes another one, which then ends when its parent does, however that ends.

Run as a file::

    python -I -S tether.py PARENT_PID COMMAND...

Nothing but the standard library is imported, so that this takes milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main(parent: str, *command: str) -> None:
    """Become the command, to be asked to end with the thread that started it."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(parent):  # it ended before it could be noticed
            sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
