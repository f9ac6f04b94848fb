"""The machine, in the words that a recorded number needs beside it."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any


def machine(packages: Sequence[str] = ("numpy", "numba")) -> dict[str, Any]:
    """Cores, processor, system, and versions of Python and of these packages."""
    return {
        "cores": cores(),
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


@cache
def machine_hash() -> str:
    """Hash what service times depend on of the machine: processor, cores, architecture.

    Two machines of one kind have the same: times of the one hold for the other.
    """
    facts = f"{processor()}\n{cores()}\n{platform.system()} {platform.machine()}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def is_here(host: str) -> bool:
    """Tell whether an address, or all that a name stands for, are this machine's."""
    import psutil

    try:
        found = {
            str(address[0]).partition("%")[0]
            for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        }
    except OSError:  # nobody knows it
        return False
    own = {one.address.partition("%")[0] for ones in psutil.net_if_addrs().values() for one in ones}
    return all(
        one in own or ip_address(one).is_loopback or ip_address(one).is_unspecified for one in found
    )


def made_on() -> str:
    """The machine and its versions in words."""
    facts = machine()
    return (
        f"{facts['cores']} cores, {facts['processor']}, {facts['system']}, Python "
        f"{facts['python']}, NumPy {facts['numpy']}, Numba {facts['numba']}"
    )


def processor(system: Path = Path("/proc")) -> str:
    """Name the processor as Linux does: by its model, else by its board and the parts in it."""
    found: dict[str, dict[str, None]] = {}
    for line in _read(system / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), {})[value.strip()] = None
    if "model name" in found:
        return next(iter(found["model name"]))
    board = _read(system / "device-tree" / "model").strip("\0\n ")
    parts = [
        f"{key} {', '.join(found[key])}" for key in ("CPU implementer", "CPU part") if key in found
    ]
    named = ", ".join(filter(None, [board, *parts]))
    return named or platform.processor() or platform.machine()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux, or no such board
        return ""
