"""The folder of compiled code: files that many processes write and read, bounded in size."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PACKAGE = __name__.partition(".")[0]
_MOST_BYTES = 1 << 29
"""Size of the folder above which the files go that were not used for longest."""
_FRESH_S = 3600.0
"""A file's time of last use is renewed after this, and a file half written is given up."""
_HASH_BYTES = 32


def cache_root() -> Path | None:
    """The folder of compiled entries; None where the user has no home."""
    home = os.environ.get("XDG_CACHE_HOME")
    if not home:
        try:
            home = str(Path.home() / ".cache")
        except RuntimeError:
            return None
    return Path(home) / PACKAGE / "compiled"


def read(file: Path) -> bytes | None:
    """What was kept, or None. A file that is damaged counts as none."""
    try:
        content = file.read_bytes()
        if time.time() - file.stat().st_mtime > _FRESH_S:
            with suppress(PermissionError):  # where another user keeps it for this one
                os.utime(file)
    except OSError:
        return None
    kept = content[_HASH_BYTES:]
    return kept if hashlib.sha256(kept).digest() == content[:_HASH_BYTES] else None


def write(file: Path, content: bytes) -> None:
    """Keep it. Who reads the file sees the old content or the new. May raise OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(prefix=".", dir=file.parent)
    try:
        with os.fdopen(number, "wb") as stream:
            stream.write(hashlib.sha256(content).digest() + content)
        Path(name).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def prune(root: Path) -> None:
    """Remove what was not used for longest, where there is too much.

    Others may do the same meanwhile: a file that is gone counts as removed, and one that is being
    read stays readable.
    """
    now_s, total = time.time(), 0
    files = []
    for file in root.rglob("*"):
        with suppress(OSError):
            state = file.lstat()
            if file.is_dir():
                file.rmdir()  # of an earlier version; not if there is something in it
            elif file.name.startswith(".") and now_s - state.st_mtime > _FRESH_S:
                file.unlink()
            elif file.suffix == ".nbc" or file.suffix == ".nbi":
                files.append((state.st_mtime, state.st_size, file))
                total += state.st_size
    for _, size, file in sorted(files):
        if total <= _MOST_BYTES:
            break
        total -= size
        with suppress(OSError):
            file.unlink()
