"""Which process of a neighbor lives, and which letters are its own.

Tokens and letters come by different ways, and overtake each other: what a process wrote last may
come after it was seen to have gone, and what it wrote first before it was seen to have come. So
each letter names the process that wrote it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

# A neighbor restarts seldom, and nothing is on its way for longer than a few restarts.
_REMEMBERED: Final = 8


class Early(NamedTuple):
    """A letter of a process that has not been seen yet.

    Attributes
    ----------
    writer
        The process.
    kind, data
        The letter's.
    """

    writer: str
    kind: str
    data: bytes


class Incarnation:
    """The process of one neighbor that counts, its letters, and those of others.

    Parameters
    ----------
    limit_bytes
        Most that may wait for its writer to be seen.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._lives: str | None = None
        self._gone: deque[str] = deque(maxlen=_REMEMBERED)
        self._early: list[Early] = []
        self._bytes = 0

    def comes(self, writer: str) -> tuple[list[Early], int]:
        """Take note of the process that counts from now on.

        Returns
        -------
        list of Early
            Its letters so far, in their order.
        int
            How many of others are dropped.
        """
        early, self._early, self._bytes = self._early, [], 0
        self._lives = writer
        if writer in self._gone:  # it was there all the time
            self._gone.remove(writer)
        own = [letter for letter in early if letter.writer == writer]
        return own, len(early) - len(own)

    def goes(self, writer: str) -> None:
        """Take note of a process that does not count any more."""
        self._lives = None
        self._gone.append(writer)

    def takes(self, writer: str, kind: str, data: bytes) -> str | None:
        """Say what to do with a letter.

        Returns
        -------
        str or None
            None where it is to be read now; ``early`` where it waits here for its writer to be
            seen; ``gone`` where the writer has gone, and ``flood`` where too much waits.
        """
        if writer == self._lives:
            return None
        if writer in self._gone:
            return "gone"
        if self._bytes + len(data) > self._limit:
            return "flood"
        self._early.append(Early(writer, kind, data))
        self._bytes += len(data)
        return "early"
