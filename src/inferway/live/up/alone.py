"""One ``up`` in each run folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from inferway.live.up.error import UpError


def alone(folder: Path) -> int:
    """Hold a folder, which must exist, until what is returned is closed or the process ends.

    Raises
    ------
    UpError
        If another ``up`` holds it.
    OSError
        If nothing can be written there.
    """
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UpError(
            f"another `up` runs in {folder}: stop it first, or name another folder with --run"
        ) from None
    except OSError:
        os.close(lock)
        raise
    return lock
