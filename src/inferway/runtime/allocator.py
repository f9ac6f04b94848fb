"""The C library's allocator, told to give memory back: what a large run took, the next may need.

By default glibc keeps whatever was freed in blocks of up to 32 MiB, in an arena per thread, so that
each instance would keep the memory of the largest request that it ever ran. Elsewhere than with
glibc nothing is done.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

LARGE_BYTES: Final = 4 * 1024**2
"""Blocks from here on go back when they are freed. Smaller ones are as fast as ever; runs that are
large take up to a tenth longer (`docs/benchmarks/memory.md`)."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def _library() -> Any:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None


_LIBRARY: Final = _library()


def give_back() -> None:
    """Have large blocks of this process go back to the system when they are freed."""
    if _LIBRARY is not None:
        _LIBRARY.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        _LIBRARY.mallopt(_TRIM_THRESHOLD, 2 * LARGE_BYTES)


def trim() -> None:
    """Give all free pages back to the system; takes some milliseconds, without the GIL."""
    if _LIBRARY is not None:
        _LIBRARY.malloc_trim(0)
