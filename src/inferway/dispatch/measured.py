"""Accuracies as labels measure them, and the dispatcher's that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import numpy as np

from inferway.profiling.confidence_sequence import ConfidenceSequence
from inferway.site.confidence import corrected
from inferway.site.fleet import Fleet
from inferway.site.view import Floats, Site

if TYPE_CHECKING:
    from inferway.dispatch.joint import TargetState

ENOUGH: Final = 500  # Labels of a variant from which on their estimate counts, and no limit
MEMORY: Final = 1000.0  # Labels in which the estimate forgets, by the factor e
EXPLORED: Final = 100  # Requests of which one may go to a variant that labels have ruled out
_RULED_OUT: Final = 0.01  # Accuracy below its profile from which on labels have ruled a variant out
_POINTS: Final = 2000  # Steps between an answer that was wrong for certain and one that was right


class LabeledAccuracy:
    """Accuracy of a variant by labels, each compared with what was expected of that very answer.

    Where answers are looked at before they are sent, those that are sent are not like all: a label
    says how right its answer was, and only next to the expected accuracy of that answer how right
    the variant is. So the profile's expectations are corrected, and by labels alone: a label that
    has come is worth the same whatever the profile was measured on.

    Until `ENOUGH` labels have come, the profile's accuracy counts as long as it lies in the
    confidence sequence of what was measured beside what was expected, and the lower limit of that
    as soon as it does not. The limit alone would begin at 0, where no target is within reach. From
    then on the mean counts, in which older labels weigh less and less, as accuracies change.

    Parameters
    ----------
    profile
        Accuracy by the profile that answers are compared with, 0..1. It stays where the variant
        is measured anew and its profile says another one: labels are not to correct that again.

    Attributes
    ----------
    profile
        The same.
    labels
        Number of them.
    right, expected
        Means of how right the answers were, and were expected to be by the profile, 0..1.
    """

    def __init__(self, profile: float) -> None:
        self.profile = profile
        self.labels, self.right, self.expected = 0, 0.0, 0.0
        self._apart = ConfidenceSequence(points=_POINTS)

    def add(self, score: float, expected: float) -> None:
        """Take in how right an answer was, and was expected to be by `profile`, 0..1 both."""
        self.labels += 1
        weight = 1.0 / min(self.labels, MEMORY)
        self.right += weight * (score - self.right)
        self.expected += weight * (expected - self.expected)
        if self.labels < ENOUGH:
            self._apart.add((1.0 + score - expected) / 2.0)

    def accuracy(self, profile: float) -> float:
        """Say the accuracy that counts, 0..1, of a variant that has this one by its profile now."""
        if self.labels >= ENOUGH:
            return float(corrected(self.profile, self.expected, self.right))
        low, high = (self.profile + 2.0 * limit - 1.0 for limit in self._apart.interval)
        if low <= profile <= high:
            return profile
        return min(max(low, 0.0), 1.0)

    def pack(self) -> bytes:
        """Write down all that `unpack` needs to go on from here."""
        apart = self._apart.pack() if self.labels < ENOUGH else b""
        state = self.profile, self.labels, self.right, self.expected, apart
        return msgspec.msgpack.encode(state)

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Go on from what `pack` has written.

        Raises
        ------
        ValueError
            Where it is none.
        """
        kind = tuple[float, int, float, float, bytes]
        profile, *state = msgspec.msgpack.decode(packed, type=kind)
        own = cls(profile)
        own.labels, own.right, own.expected, apart = state
        if own.labels < ENOUGH:
            own._apart = ConfidenceSequence.unpack(apart, points=_POINTS)
        return own


class Exploration:
    """Has a variant asked now and then that labels speak against, so that labels go on coming.

    A variant that is asked no more gets no labels, and an unlucky start, or a fall that is over,
    would count for ever. So one request in `EXPLORED` goes to such a variant, in turn where there
    are several, while a server of it is idle and neither the accuracy balance nor that of a target
    over several tasks is below 0. It counts as labels say, so that the balance owes at most one
    such answer, which the policy makes up for, and the promise is kept as it is without.
    """

    def __init__(self) -> None:
        self._ruled_out: list[int] = []
        self._since = self._turn = 0

    def follow(self, profile: Floats, counted: Floats) -> None:
        """Take up the accuracies of classes, 0..1: by their profiles, and those that count now."""
        self._ruled_out = np.flatnonzero(counted <= profile - _RULED_OUT).tolist()

    def is_due(self) -> bool:
        """Count a request, and tell whether it is one in `EXPLORED` or later."""
        if not self._ruled_out:
            return False
        self._since += 1
        return self._since >= EXPLORED

    def choose(self, site: Site, floor: float = 0.0, targets: Sequence[TargetState] = ()) -> int:
        """Choose the class of a request that is due, with its floor; -1 for none now.

        The targets are those over several tasks that this one is one of.
        """
        if site.balance[0] < 0.0 or site.held[0] > 0:
            return -1
        if any(target.balance < 0.0 for target in targets):
            return -1
        count = len(self._ruled_out)
        for ahead in range(count):
            k = self._ruled_out[(self._turn + ahead) % count]
            if site.idle[k] > 0 and site.accuracy[k] >= floor:
                self._turn += ahead + 1
                return k
        return -1

    def asked(self) -> None:
        """Take note that the class that was chosen has the request."""
        self._since = 0


def by_profile(expected: float, profile: float, counted: float) -> float:
    """Say what the profile expects of an answer of which `expected` was said.

    A variant's accuracy was `counted` then, and is `profile` by its profile; all in 0..1. That of
    the variant itself is said of a correction that leaves nothing to tell answers apart by.
    """
    if counted == profile:
        return expected
    if not 0.0 < counted < 1.0:
        return profile
    if counted < profile:
        return min(1.0, expected * profile / counted)
    return max(0.0, 1.0 - (1.0 - expected) * (1.0 - profile) / (1.0 - counted))


def correct(site: Site, policy: Any, fleet: Fleet, accuracy: Floats) -> None:
    """Have a site and its policy count these accuracies from now on, instead of the fleet's.

    What confidences say is corrected with them; a policy with `correct`, which has plans that
    follow from that, is given the new tables. What has been counted already stays.

    Parameters
    ----------
    site, policy
        Changed in place.
    fleet
        Theirs, with the accuracies of profiles.
    accuracy
        (K,) accuracies, 0..1.

    Raises
    ------
    ValueError
        Where they are none of this fleet's classes; nothing has changed then.
    """
    accuracy = np.asarray(accuracy, np.float64)
    if accuracy.shape != fleet.accuracy.shape:
        classes = len(fleet.accuracy)
        raise ValueError(f"accuracies have shape {accuracy.shape}, expected ({classes},)")
    if not ((accuracy >= 0.0) & (accuracy <= 1.0)).all():
        raise ValueError(f"accuracies are in 0..1, not {accuracy}")
    np.copyto(site.accuracy, accuracy)
    if fleet.confidence is not None:
        tables = fleet.confidence.corrected(fleet.accuracy, accuracy)
        np.copyto(site.bin_accuracy, tables.expected)
        if hasattr(policy, "correct"):
            policy.correct(tables)
