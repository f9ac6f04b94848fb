"""Pack a zoo's larger models and its test set into the archive that ships, in place of their files.

::

    python zoo/pack.py [src/inferway/catalog/digits/data]

The ensemble has the weights of its members again, which one archive has once. The same files give
the same bytes, and unpacked they are what the profiles' digests say.
"""

from __future__ import annotations

import io
import lzma
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from inferway.catalog.zoo import ARCHIVE, TESTSET, load
from inferway.files import write_whole

LEAST_BYTES: Final = 100_000
"""Smaller ones are files of their own: what starts with them unpacks nothing."""
PRESET: Final = 9 | lzma.PRESET_EXTREME


def packed(files: Iterable[Path]) -> bytes:
    """Bytes of an archive, `.tar.xz`, of files by name."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for file in sorted(files):
            entry = tarfile.TarInfo(file.name)
            entry.size = file.stat().st_size
            with file.open("rb") as source:
                archive.addfile(entry, source)
    return lzma.compress(content.getvalue(), preset=PRESET)


def main() -> None:
    """Write the archive and remove the files that it has."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else load().folders[-1]
    files = [*folder.glob("*.onnx"), *folder.glob(TESTSET)]
    large = [one for one in files if one.stat().st_size >= LEAST_BYTES]
    if not large:
        sys.exit(f"{folder} has no files of {LEAST_BYTES:,} bytes or more to pack")
    write_whole(folder / ARCHIVE, packed(large))
    for file in large:
        file.unlink()
    print(f"{folder / ARCHIVE}: {', '.join(one.name for one in sorted(large))}")


if __name__ == "__main__":
    main()
