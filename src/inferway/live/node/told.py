"""What a neighbor has been told, and what it is to be told next."""

from __future__ import annotations

import math
from typing import Final

from inferway.live.node.listing import EMPTY, Listing, changes, differ
from inferway.live.node.telling import Letter, Same, Tell

REFRESH_S: Final = 2.0
"""After so long a neighbor is told again, changed or not."""


class Told:
    """What one neighbor has been told.

    Letters may be lost: the neighbor then asks for all.

    Parameters
    ----------
    run
        Number of the sender's run.
    """

    def __init__(self, run: int) -> None:
        self._run, self._serial = run, 0
        self._listing: Listing | None = None
        self._said_s = -math.inf

    def forget(self) -> None:
        """Tell all the next time: the neighbor may know nothing of it."""
        self._listing = None

    def tell(self, listing: Listing, now_s: float) -> list[Letter]:
        """Say what makes of what it was told what is now offered.

        Parameters
        ----------
        listing
            What is offered to the neighbor.
        now_s
            The time, s.

        Returns
        -------
        list
            Letters to be sent, in this order. None where nothing, or too little, has changed and a
            refresh is not due.
        """
        before = self._listing
        # A little before its time, so that a refresh never waits for the next one.
        due = now_s - self._said_s > 0.9 * REFRESH_S
        if before is not None and not due and not differ(before.offers, listing.offers):
            return []
        self._said_s = now_s
        if before == listing:
            return [Same(self._run, self._serial)]
        since = 0 if before is None else self._serial
        self._serial, self._listing = self._serial + 1, listing
        parts = changes(before or EMPTY, listing)
        return [
            Tell(self._run, since, self._serial, part, len(parts), change)
            for part, change in enumerate(parts)
        ]
