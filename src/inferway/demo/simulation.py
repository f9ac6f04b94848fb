"""A simulation in a process of its own, beside the demo, uncompiled."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["simulation"]


@contextmanager
def simulation(file: Path, options: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """`inferway simulate FILE --json`, killed at the end if it still runs.

    Some thousand requests are done uncompiled long before the compiler would be.
    """
    command = [sys.executable, "-m", "inferway", "simulate", str(file), "--json", *options]
    with tempfile.TemporaryDirectory(prefix="inferway-demo-") as cache:
        # Uncompiled code leaves nothing in the cache of the compiled one.
        environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "XDG_CACHE_HOME": cache}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()
