"""An alarm where the labels of a variant say that its accuracy is not what it was.

The detector is ADWIN of the library river, which needs the extra ``drift``: A. Bifet and
R. Gavalda, *Learning from time-changing data with adaptive windowing* (2007,
DOI 10.1137/1.9781611972771.42). It keeps a window of labels, and tells where the means of
an older and a newer part of it differ by more than chance explains. Each look at the window is
wrong with probability `DELTA` at most (Theorem 1), and it is looked at every 32 labels: that is one
false alarm in 3.2 million labels, or fewer. Since when the accuracy has been another one, the least
squares of two means say.

What is watched is how right each answer was less what the profile expected of that very answer, so
that a policy that sends other answers than before is no drift.
"""

from __future__ import annotations

from collections import deque
from importlib.util import find_spec
from typing import Any, Final, Self

import msgspec
import numpy as np

from inferway.dispatch.measured import LabeledAccuracy
from inferway.extras import installing
from inferway.site.view import Floats

DELTA: Final = 1e-5  # ADWIN's significance
KEPT: Final = 2048  # Labels since the last alarm that are kept over a restart


class DriftAlarm(msgspec.Struct, frozen=True):
    """An alarm: the accuracy of a variant was one and is another.

    Attributes
    ----------
    at
        When the label came that raised it, s since 1970; of a twin, s from its beginning.
    before, after
        Accuracy of the answers before and of those since it changed, 0..1, by labels.
    labels
        Labels of the variant until then, this one included.
    """

    at: float
    before: float
    after: float
    labels: int

    @property
    def fell(self) -> bool:
        """Tell whether the accuracy is lower than it was."""
        return self.after < self.before


class DriftWatch:
    """Labels of a variant since the last alarm, and who looks at them.

    Parameters
    ----------
    profile
        Accuracy by the profile that answers are compared with, 0..1; 0 where nothing says it, and
        nothing is expected then.

    Attributes
    ----------
    profile
        The same.
    alarms, last
        Number of alarms, and the last one; None before the first.
    """

    def __init__(self, profile: float) -> None:
        self.profile, self.alarms = profile, 0
        self.last: DriftAlarm | None = None
        self._recent = deque[tuple[float, float]](maxlen=KEPT)
        self._left = list[tuple[float, float]]()
        self._adwin = _adwin()

    def add(
        self, score: float, expected: float | None, at_s: float, labels: int
    ) -> DriftAlarm | None:
        """Take in how right an answer was, and was expected to be; the alarm where one is raised.

        The next one is looked for among the labels that come from then on. With this one, so many
        labels of the variant have come.
        """
        if not self.profile:
            expected = 0.0
        elif expected is None:
            expected = self.profile
        self._recent.append((score, expected))
        adwin = self._adwin
        adwin.update(score - expected)
        if not adwin.drift_detected:
            return None
        recent = [*self._recent]
        apart = np.array([one - other for one, other in recent])
        split = _split(apart)
        self.last = DriftAlarm(
            at_s, self._said(apart[:split].mean()), self._said(apart[split:].mean()), labels
        )
        self.alarms += 1
        self._left = recent[split:]
        self._recent.clear()
        self._adwin = _adwin()
        return self.last

    def _said(self, apart: Any) -> float:
        return min(max(self.profile + float(apart), 0.0), 1.0)

    def relabeled(self, profile: float) -> LabeledAccuracy:
        """Make what counts right after an alarm: the labels since the accuracy has changed.

        The detector's own window still holds many of those before.
        """
        labeled = LabeledAccuracy(profile)
        for score, expected in self._left:
            labeled.add(score, expected)
        return labeled

    def anew(self, profile: float) -> DriftWatch:
        """Begin anew with another profile, whose labels are not to be mixed with those so far."""
        begun = DriftWatch(profile)
        begun.alarms, begun.last = self.alarms, self.last
        return begun

    def pack(self) -> bytes:
        """Write down all that `unpack` needs to go on from here."""
        recent = np.array(self._recent, np.float32).tobytes()
        state = self.profile, self.alarms, self.last, recent
        return msgspec.msgpack.encode(state)

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Go on from what `pack` has written; labels before the last `KEPT` are forgotten.

        Raises
        ------
        ValueError
            Where it is none.
        """
        kind = tuple[float, int, DriftAlarm | None, bytes]
        profile, alarms, last, recent = msgspec.msgpack.decode(packed, type=kind)
        own = cls(profile)
        own.alarms, own.last = alarms, last
        for score, expected in np.frombuffer(recent, np.float32).reshape(-1, 2).tolist():
            own._recent.append((score, expected))
            own._adwin.update(score - expected)
        return own


def unwatched() -> str:
    """Say what drift alarms need and is not installed; empty where it is."""
    if find_spec("river") is not None:
        return ""
    return f"drift alarms need river, which is not installed: {installing('drift')}"


def prepare() -> None:
    """Import what alarms need, which takes a second or more."""
    _adwin()


def _split(values: Floats) -> int:
    """Find where the mean of values has most likely changed, by least squares.

    Parameters
    ----------
    values
        (n,) of them, two or more.

    Returns
    -------
    int
        Position of the first one after the change, 1..n-1.
    """
    count = len(values)
    first = np.arange(1, count)
    before = np.cumsum(values)[:-1]
    after = values.sum() - before
    between = (before / first - after / (count - first)) ** 2 * first * (count - first)
    return int(np.argmax(between)) + 1


def _adwin() -> Any:
    from river.drift import ADWIN

    return ADWIN(delta=DELTA)
