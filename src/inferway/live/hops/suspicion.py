"""When a neighbor is asked whether it lives because a request to it is out for too long.

A pure rule: times come in, and whether to ask comes out. Who is asked says it on a connection of
its own (`inferway.live.hops.inquiry`), and that answer decides: a neighbor that lives is slow, and
is asked again after growing waits; one that does not say that it lives is left out.
"""

from __future__ import annotations

from typing import Final

FACTOR: Final = 4.0
LEAST_S: Final = 0.25
"""A request that is out for longer than both, so many times what was predicted and this time, makes
its neighbor suspect."""
MOST_S: Final = 1.25
"""However long was predicted, a request that is out for longer does: asking is cheap, and within
2 s it is to be known whether a neighbor hangs."""
FIRST_WAIT_S: Final = 0.25
LONGEST_WAIT_S: Final = 1.0
"""Between two questions to a neighbor that lives and stays slow: these two and doublings in
between."""
STALL_S: Final = 0.5
STALL_BYTES: Final = 4096
"""An answer that has begun and of which in this time came less than so many bytes is given up,
whatever its neighbor says of itself."""


def suspect_after_s(predicted_s: float) -> float:
    """Tell how long a request may be out before its neighbor is suspect.

    Parameters
    ----------
    predicted_s
        From here and back, the queue there included; 0 where nothing is known.
    """
    return min(max(FACTOR * predicted_s, LEAST_S), MOST_S)


class Suspicion:
    """Decides when to ask one neighbor.

    Attributes
    ----------
    asked
        How often it was asked.
    """

    __slots__ = ("_due_s", "_wait_s", "asked")

    def __init__(self) -> None:
        self._due_s, self._wait_s = 0.0, FIRST_WAIT_S
        self.asked = 0

    def asks(self, now_s: float, overdue_s: float) -> bool:
        """Whether to ask now.

        Parameters
        ----------
        now_s
            The time.
        overdue_s
            When the first of the requests that are out should have been answered at the latest;
            inf where none is out.
        """
        if overdue_s > now_s:
            # Nothing is late: the next that is finds a neighbor that was asked of nothing.
            self._wait_s = FIRST_WAIT_S
            return False
        if now_s < self._due_s:
            return False
        self.asked += 1
        return True

    def cleared(self, now_s: float) -> None:
        """Take into account that it lives: it is slow, and asked again a little later."""
        self._due_s = now_s + self._wait_s
        self._wait_s = min(LONGEST_WAIT_S, 2.0 * self._wait_s)
