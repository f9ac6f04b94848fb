"""The last copies of a task that came and went as devices were given out anew, for explanations."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

KEPT: Final = 64
"""Moves of a task that are remembered; older ones are in no explanation."""


@dataclass(slots=True, eq=False)
class CopyMove:
    """A copy that comes or goes, s on the site's clock.

    Attributes
    ----------
    variant, device
        Its names.
    comes
        Whether it is loaded; else it takes no more requests, and then it is away.
    reason
        Why, as the decision has it.
    decision
        Which one it was.
    begun_s, ended_s
        From when to when it was on its way; inf where it still is.
    until_s
        When a copy that went was no longer missed: one of its variant came, or another file.
    paired
        Whether a copy of its variant goes, or comes, on another place by the same decision.
    instead_of
        The copy that is missed no more, where this one comes.
    """

    variant: str
    device: str
    comes: bool
    reason: str
    decision: int
    begun_s: float
    ended_s: float = math.inf
    until_s: float = math.inf
    paired: bool = False
    instead_of: CopyMove | None = None

    def state_at(self, time_s: float) -> str | None:
        """Say what the copy was then; None where it is not worth a word."""
        if self.begun_s <= time_s < self.ended_s:
            return "warming" if self.comes else "draining"
        away = not self.comes and self.ended_s <= time_s < self.until_s
        return "away" if away else None


class CopyMoves:
    """The last `KEPT` moves of a task."""

    def __init__(self) -> None:
        self._kept: deque[CopyMove] = deque(maxlen=KEPT)

    def begin(
        self, variant: str, device: str, *, comes: bool, reason: str, decision: int, now_s: float
    ) -> CopyMove:
        """Note that a copy is loaded from now on, or takes no more requests."""
        move = CopyMove(variant, device, comes, reason, decision, now_s)
        other = next(self._counterparts(move), None)
        if other is not None:
            gone = other if comes else move
            gone.until_s = now_s
            move.instead_of = other if comes else None
            if other.decision == decision:
                other.paired = move.paired = True
        self._kept.append(move)
        return move

    def undo(self, move: CopyMove) -> None:
        """Forget a copy that did not come, or stays; what went before it is missed again."""
        if move in self._kept:
            self._kept.remove(move)
        gone = move.instead_of
        if gone is not None and move.ended_s == math.inf:  # else there is another file
            gone.until_s, gone.paired = math.inf, False

    def begin_anew(self, now_s: float) -> None:
        """Miss no copy any more that went before: there is another file."""
        for move in self._kept:
            move.ended_s, move.until_s = min(move.ended_s, now_s), min(move.until_s, now_s)

    def at(self, time_s: float) -> list[dict[str, Any]]:
        """List the copies that were on their way or away then, the last first; times in ms."""
        return [
            {
                "variant": move.variant,
                "device": move.device,
                "state": state,
                "since_ms": round(since_s * 1e3, 4),
                "reason": move.reason,
            }
            for move in reversed(self._kept)
            if (state := move.state_at(time_s)) is not None
            for since_s in [time_s - (move.ended_s if state == "away" else move.begun_s)]
        ]

    def _counterparts(self, move: CopyMove) -> Iterator[CopyMove]:
        """Copies of its variant that went and are missed, where it comes.

        Where it goes, those that came by the same decision, in place of it.
        """
        for other in self._kept:
            if other.variant != move.variant or other.comes == move.comes or other.paired:
                continue
            if other.until_s == math.inf if move.comes else other.decision == move.decision:
                yield other


def in_words(moves: list[dict[str, Any]]) -> str:
    """Say what was on its way or away; empty for nothing."""
    told = list(
        dict.fromkeys(f"{one['variant']} on {one['device']} {one['state']}" for one in moves)
    )
    return f"as devices are given out anew, there was {', '.join(told)}" if told else ""
