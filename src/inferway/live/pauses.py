"""The garbage collector's pauses: measured, and kept short."""

from __future__ import annotations

import gc
import time
from bisect import bisect_left
from contextlib import suppress
from typing import Any, Final

PAUSE_BOUNDS_S: Final = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Upper ends of the histogram's buckets, in seconds; one more bucket has no end."""


class Pauses:
    """Counts the pauses of this process: nothing else runs in it while the collector does.

    Attributes
    ----------
    buckets
        Pauses by length; see `PAUSE_BOUNDS_S`.
    sum_s
        All of them together.
    longest_s
        The longest.
    """

    def __init__(self) -> None:
        self.buckets = [0] * (len(PAUSE_BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.longest_s = 0.0
        self._begun_s = 0.0

    def begin(self) -> None:
        """Count from now on."""
        gc.callbacks.append(self._hear)

    def end(self) -> None:
        """Count no more."""
        with suppress(ValueError):
            gc.callbacks.remove(self._hear)

    def _hear(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._begun_s = time.perf_counter()
            return
        pause_s = time.perf_counter() - self._begun_s
        self.buckets[bisect_left(PAUSE_BOUNDS_S, pause_s)] += 1
        self.sum_s += pause_s
        self.longest_s = max(self.longest_s, pause_s)


def settle() -> None:
    """Keep the collector from what stands now: it need not look at it again during requests."""
    gc.collect()
    gc.freeze()
