"""Work in a process of its own: what it takes, prints or breaks is not this one's."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

_PATIENCE_S: Final = 600.0


def done_apart(
    module: str,
    asked: Any,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Have a module's `answer` called in a new process; what it returns, through JSON.

    Parameters
    ----------
    module
        Of this package.
    asked
        Its argument, an object of ours, which goes from one of our processes to the other.
    folder
        Where the process works.
    environment
        Variables besides those of this process.

    Raises
    ------
    ValueError
        With the last thing that it said, where it fails.
    """
    names = f"from inferway.profiling.apart import serve; from {module} import answer"
    # Without the working folder: a file there may be called as one of ours, or of Python's.
    command = [sys.executable, "-P", "-c", f"{names}; serve(answer)"]
    try:
        done = subprocess.run(
            command,
            input=pickle.dumps(asked),
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(str(error)) from error
    try:
        return json.loads(done.stdout)
    except ValueError:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"the process ended with {done.returncode}"
        raise ValueError(why) from None


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer what standard input asks; what is printed on the way goes to standard error."""
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        found = answer(pickle.load(sys.stdin.buffer))
    except Exception as error:
        sys.stdout.flush()
        print(" ".join(str(error).split()) or type(error).__name__, file=sys.stderr)
        sys.exit(1)
    told.write(json.dumps(found))
    told.close()
