"""Programs that are started after a line of Python has set their process up.

`preexec_fn` would run it in a fork of this process. Where that has had gRPC, whose threads do not
survive a fork, the fork may abort before the program begins.
"""

from __future__ import annotations

import sys

INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)"
"""A shell has its programs in the background ignore Ctrl-C, and so all that they start."""


def limited(name: str, most: int) -> str:
    """Write the line that limits a resource, such as ``RLIMIT_AS``, in its own unit."""
    return f"import resource; resource.setrlimit(resource.{name}, ({most}, {most}))"


def prepared(line: str, *command: str) -> list[str]:
    """Write the command that runs a line, and then becomes the command."""
    become = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", f"{line}\n{become}", *command]
