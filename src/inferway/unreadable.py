"""Foreign bytes that are no document: what readers of JSON and MessagePack raise.

A reader goes down one level of its own stack for each level of the text, so a text may be sound and
still too deep. That is the writer's fault like any other, and never one of the program.
"""

from __future__ import annotations

from textwrap import shorten
from typing import Final

# What `json` and `msgspec` raise: not the format, not the type, not UTF-8, or nested too deep.
UNREADABLE: Final = (ValueError, RecursionError)

LONGEST_FAULT: Final = 500  # characters of a reader's complaint that are told


def fault(error: BaseException) -> str:
    """Say in one short line what is wrong with the bytes; some readers quote all of them."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return shorten(str(error), LONGEST_FAULT) or type(error).__name__
