"""Compilation with a disk cache that notices every change of the code that it holds.

Numba stamps a cached function with its own file alone. A policy is inlined into the entry that
calls it, so an edited policy would go on running from the cache of an unedited entry. Here the
cache lives in a folder named by the content of all code that an entry may contain.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

_SETTING = Lock()
_PACKAGE = Path(__file__).parents[1]
# What may be inlined into a compiled entry, the layers in their order.
_INLINED = ("site", "dispatch", "placement", "twin/kernel")


def jit(function: F) -> F:
    """Compile a kernel that other kernels call; it is cached with them."""
    return numba.njit(function)


def entry(function: F, *, sources: tuple[Path, ...] = ()) -> F:
    """Compile a function that Python calls, with a cache keyed by its code.

    Parameters
    ----------
    function
        Plain function; its arguments' types choose the policy.
    sources
        Files outside this package that may be inlined: a user's policy.

    Returns
    -------
    callable
        The compiled function, without a disk cache where no folder can be written.
    """
    if numba.config.DISABLE_JIT:
        return function
    folder = str(_cache_root() / fingerprint(sources, function.__module__))
    # The setting is the whole process's, and sites are made in threads.
    with _SETTING:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = folder
        try:
            return numba.njit(cache=True, nogil=True)(function)
        except (RuntimeError, OSError):  # no writable folder: compile in memory only
            return numba.njit(nogil=True)(function)
        finally:
            numba.config.CACHE_DIR = before


def fingerprint(sources: tuple[Path, ...] = (), module: str = "") -> str:
    """Hash of all code that an entry may contain, 16 hexadecimal digits.

    Parameters
    ----------
    sources
        Files outside this package.
    module
        The entry's; code of layers above it cannot be in it.
    """
    digest = hashlib.sha256(_package_digest(_layers_of(module)))
    for source in sources:  # the path too: a cached type names the module, and so the file
        digest.update(str(source).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _layers_of(module: str) -> int:
    """How many of the layers, from below, an entry of this module may contain."""
    for place, folder in enumerate(_INLINED):
        if module.startswith(f"{__package__.partition('.')[0]}.{folder.replace('/', '.')}."):
            return place + 1
    return len(_INLINED)


@cache
def _package_digest(layers: int) -> bytes:
    digest = hashlib.sha256()
    for folder in _INLINED[:layers]:
        for file in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.digest()


def _cache_root() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "inferway" / "compiled"
