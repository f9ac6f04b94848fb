"""Write a lock file (PEP 751) as pip's list with hashes, of what an image of Linux can install.

Standard output has each package's version, with its source's hash and those of its wheels for any
machine, or for glibc on x86-64 and ARM and a CPython that is tested.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

# Of every release; the lock says it of each package again.
_EVERYWHERE = re.compile(r"^python_full_version >= '3\.11'(?: and )?")
_PYTHON = re.compile(r"(?:cp31[123]-cp31[123]|cp3\d+-abi3|(?:py2\.)?py3-none)-")
_MACHINE = re.compile(r"-any\.whl$|[-.]manylinux\w+_(?:x86_64|aarch64)(?:\.|$)")


def hashes(package: dict[str, Any]) -> list[str]:
    """Hashes of the files that are kept, in order."""
    files = [package["sdist"]] if "sdist" in package else []
    files += [
        wheel
        for wheel in package.get("wheels", ())
        if _PYTHON.search(wheel["url"]) and _MACHINE.search(wheel["url"])
    ]
    return sorted(file["hashes"]["sha256"] for file in files)


def main(lock: Path) -> None:
    """Write the list."""
    print("# Written by `make constraints`: the versions of constraints.txt, and hashes of their")
    print("# files for Linux, x86-64 and ARM.")
    for package in tomllib.loads(lock.read_text(encoding="utf-8"))["packages"]:
        marker = _EVERYWHERE.sub("", package.get("marker", ""))
        line = f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else "")
        print(" \\\n    --hash=sha256:".join([line, *hashes(package)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
