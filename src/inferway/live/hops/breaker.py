"""Who is asked no more for a while: a circuit breaker per neighbor, and a budget for retries."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

FAILURES: Final = 3
"""Failures in a row that open a breaker."""
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 2.0
"""Waits before a half-open probe: these two and doublings in between. A neighbor that is back must
not stay unused for long."""


class Breaker:
    """Closed while a neighbor answers, open after failures, half open for one probe at a time.

    One that answers its probes and fails at requests would be asked again and again: where that
    may be, a probe's answer puts it on trial, and one request shows whether it works.

    Parameters
    ----------
    now
        The clock, seconds.
    failures
        In a row, that open it.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, failures: int = FAILURES) -> None:
        self.now, self._most = now, failures
        self._strikes = 0
        self._wait_s = FIRST_WAIT_S
        self.closed = True
        """Whether requests may go."""
        self.trial = False
        """Whether one request may, where it is not closed."""
        self.due_s = math.inf
        """When the next probe may go, on the clock; inf while closed."""
        self.opened = self.tried = 0
        """How often it has opened, and how often it was on trial."""

    def allows(self) -> bool:
        """Whether a request may go now; where it is open, one may as a probe when that is due."""
        if self.closed:
            return True
        if self.now() < self.due_s:
            return False
        # Whoever asked has the probe: nobody else has it before this one could have failed.
        self.due_s = self.now() + self._wait_s
        return True

    def succeeded(self) -> bool:
        """Take an answer into account; whether that has closed it."""
        self._strikes = 0
        if self.closed:
            return False
        self.closed, self.trial = True, False
        self.due_s, self._wait_s = math.inf, FIRST_WAIT_S
        return True

    def probed(self) -> None:
        """Put it on trial, as its probe has been answered: the next request decides."""
        self.trial, self.due_s = True, math.inf
        self.tried += 1

    def failed(self, *, certain: bool = False) -> bool:
        """Take a failure into account; whether that has opened it.

        Parameters
        ----------
        certain
            Whether the neighbor is certainly of no use now, as one that refuses a connection is.
        """
        if not self.closed:
            self.trial = False
            self._wait_s = min(LONGEST_WAIT_S, 2.0 * self._wait_s)
            self.due_s = self.now() + self._wait_s
            return False
        self._strikes += 1
        if self._strikes < self._most and not certain:
            return False
        self.closed, self._strikes = False, 0
        self.opened += 1
        self.due_s = self.now() + self._wait_s
        return True
