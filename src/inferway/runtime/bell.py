"""A bell: a pipe by which workers tell an event loop that a call has ended."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final
from weakref import finalize

from inferway.runtime.worker import RING

# Messages that are read at once; workers have a call each, so that there are seldom more.
_MOST: Final = 1024


class Bell:
    """Tells whoever reads the numbers of workers whose calls have ended.

    Workers ring it when they have answered, and whoever sees one end rings it for that one. What is
    written before a ring can be read after it.

    Attributes
    ----------
    file
        Where workers write; it stays open as long as somebody has the bell.
    heard_at
        Where it is read; never waited at.

    Raises
    ------
    OSError
        When there is no pipe.
    """

    def __init__(self) -> None:
        self.heard_at, self.file = os.pipe()
        os.set_blocking(self.heard_at, False)
        self._unheard, rest = (finalize(self, os.close, end) for end in (self.heard_at, self.file))
        self._unheard.atexit = rest.atexit = False

    def ring(self, number: int) -> None:
        """Tell that a worker has ended; after `close`, nobody hears it."""
        with suppress(BrokenPipeError):
            os.write(self.file, RING.pack(2 * number))

    def heard(self) -> list[tuple[int, bool]]:
        """Read what there is: numbers of workers, and whether each has answered."""
        try:
            read = os.read(self.heard_at, _MOST * RING.size)
        except BlockingIOError:
            return []
        return [(word >> 1, word & 1 == 1) for (word,) in RING.iter_unpack(read)]

    def close(self) -> None:
        """Hear no more; a second call does nothing."""
        self._unheard()
