"""The machine, in the words that a recorded number needs beside it."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine(packages: Sequence[str] = ("numpy", "numba")) -> dict[str, Any]:
    """Cores, processor, system, and versions of Python and of these packages."""
    return {
        "cores": cores(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


@cache
def machine_hash() -> str:
    """Hash what service times depend on of the machine: processor, cores, architecture.

    Two machines of one kind have the same: times of the one hold for the other.
    """
    facts = f"{_processor()}\n{cores()}\n{platform.system()} {platform.machine()}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def made_on() -> str:
    """The machine and its versions in words."""
    facts = machine()
    return (
        f"{facts['cores']} cores, {facts['processor']}, {facts['system']}, Python "
        f"{facts['python']}, NumPy {facts['numpy']}, Numba {facts['numba']}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
