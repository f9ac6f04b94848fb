"""Files that ship in one archive: larger models share weights, and so are small together.

A copy is kept in the user's cache, by the archive's hash, and made once. Where nothing can be
written there, each process makes its own and removes it at its end.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import shutil
import tarfile
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from inferway.files import home_folder, write_whole

_SHOWN: Final = 16  # digits of a hash in a folder's name


@cache
def unpacked(archive: Path) -> Path:
    """Name the folder that has an archive's files, and fill it where it is not there.

    OSError where the archive cannot be read, or there is no place for its files.
    """
    packed = archive.read_bytes()
    with suppress(OSError, RuntimeError):  # a home that cannot be written, or none
        folder = home_folder("cache") / "zoo" / hashlib.sha256(packed).hexdigest()[:_SHOWN]
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            try:
                _fill(fresh, packed)
                fresh.chmod(0o755)
                fresh.rename(folder)
            except BaseException as error:
                shutil.rmtree(fresh, ignore_errors=True)
                # Another process may have been first.
                if not (isinstance(error, OSError) and folder.is_dir()):
                    raise
        return folder
    own = Path(tempfile.mkdtemp(prefix="inferway-zoo-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    _fill(own, packed)
    return own


def unpacked_file(archive: Path, name: str) -> Path:
    """Name an archive's file as it is unpacked, and write it again where somebody has removed it.

    A file that the archive does not have either, or for which there is no place, is not there.
    """
    kept = unpacked(archive) / name
    if not kept.is_file():
        with suppress(OSError, KeyError), tarfile.open(archive, "r:xz") as packed:
            source = packed.extractfile(name)
            if source is not None:
                write_whole(kept, source.read())
    return kept


def _fill(folder: Path, packed: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:xz") as archive:
        for entry in archive:
            source = archive.extractfile(entry)
            if source is not None:
                # For good: nobody looks at them again, and the machine may lose its power.
                write_whole(folder / Path(entry.name).name, source.read(), lasting=True)
