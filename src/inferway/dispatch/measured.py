"""Accuracies as labels measure them, joined with comparisons, and the dispatcher's that follow.

Source: where answers are compared with a better model's, the estimate is that of PPI++ (A. N.
Angelopoulos, J. C. Duchi and T. Zrnic, *PPI++: Efficient Prediction-Powered Inference*, 2023,
arXiv 2311.01453), and the limits are those of `inferway.profiling.prediction_powered`. One
departure: older labels and comparisons weigh less and less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import numpy as np

from inferway.profiling.confidence_sequence import ConfidenceSequence
from inferway.profiling.prediction_powered import AgreementTerms, AnswerComparison, PoweredSequence
from inferway.site.confidence import corrected
from inferway.site.fleet import Fleet
from inferway.site.view import Floats, Site

if TYPE_CHECKING:
    from inferway.dispatch.joint import TargetState

ENOUGH: Final = 500  # Labels of a variant from which on their estimate counts, and no limit
MEMORY: Final = 1000.0  # Labels in which the estimate forgets, by the factor e
EXPLORED: Final = 100  # Requests of which one may go to a variant that labels have ruled out
_RULED_OUT: Final = 0.01  # Accuracy below its profile from which on labels have ruled a variant out
_HALF: Final = 0.5  # Which has what lies in -1..1 lie in 0..1, beside another half
_POINTS: Final = 2000  # Steps between an answer that was wrong for certain and one that was right


class _Compared(msgspec.Struct, array_like=True):
    """What answers were compared with, and weighted sums over comparisons f.

    `weight`, `f` and `ff` are of all comparisons. Those whose answer has a label, with how right it
    was less what was expected, y, have `pairs`, their number, and the other sums.
    """

    reference: str = ""
    weight: float = 0.0
    f: float = 0.0
    ff: float = 0.0
    pairs: float = 0.0
    pair_weight: float = 0.0
    pair_f: float = 0.0
    pair_y: float = 0.0
    pair_yf: float = 0.0

    def add(self, f: float, weight: float) -> None:
        """Take in a comparison."""
        self.weight += weight
        self.f += weight * f
        self.ff += weight * f * f

    def label(self, y: float, f: float, weight: float) -> None:
        """Take in a label of an answer that was compared."""
        self.pairs += 1.0
        self.pair_weight += weight
        self.pair_f += weight * f
        self.pair_y += weight * y
        self.pair_yf += weight * y * f

    def fade(self, factor: float) -> None:
        """Have all that has come so far weigh less."""
        for name in self.__struct_fields__[1:]:
            setattr(self, name, factor * getattr(self, name))

    def shift(self, labels: float) -> float:
        """Say what all comparisons add to the mean of so many labels, which some of them are of.

        The weight of comparisons makes the variance least: the slope of y along f, by the share of
        the labels that have a comparison.
        """
        if not self.pair_weight or not self.weight:
            return 0.0
        mean, pair_mean = self.f / self.weight, self.pair_f / self.pair_weight
        variance = self.ff / self.weight - mean * mean
        covariance = (self.pair_yf - self.pair_y * pair_mean) / self.pair_weight
        if variance <= 1e-9 or covariance <= 0.0:
            return 0.0
        share = min(1.0, self.pairs / labels)
        return share * min(1.0, covariance / variance) * (mean - pair_mean)


class _State(msgspec.Struct, array_like=True):
    """A `LabeledAccuracy` as it is written down; without comparisons, the last two may be away."""

    profile: float
    labels: int
    right: float
    expected: float
    apart: bytes
    compared: _Compared = msgspec.field(default_factory=_Compared)
    terms: tuple[AgreementTerms, AgreementTerms] = msgspec.field(
        default_factory=lambda: (AgreementTerms(), AgreementTerms())
    )


class LabeledAccuracy:
    """Accuracy of a variant by labels, each compared with what was expected of that very answer.

    Where answers are looked at before they are sent, those that are sent are not like all: a label
    says how right its answer was, and only next to the expected accuracy of that answer how right
    the variant is. So the profile's expectations are corrected by labels: a label that has come is
    worth the same whatever the profile was measured on. Answers that were compared with a better
    model's, shadows, say beside labels what these alone would take longer to say. They correct
    nothing by themselves, for the better model is not always right either.

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
        Means of how right the answers were, and were expected to be by the profile, 0..1; of the
        answers that have a label.
    """

    def __init__(self, profile: float) -> None:
        self.profile = profile
        self.labels, self.right, self.expected = 0, 0.0, 0.0
        self._compared = _Compared()
        # Of half of what an answer was righter than expected, plus a half.
        self._apart = PoweredSequence(ConfidenceSequence(points=_POINTS), _HALF)

    def compare(self, comparison: AnswerComparison) -> None:
        """Take in a comparison; with another reference those so far count no more."""
        compared = self._compared
        if comparison.reference != compared.reference:
            self._compared = compared = _Compared(comparison.reference)
            self._apart.forget_comparisons()
        compared.add(comparison.agrees, 1.0 / comparison.propensity)
        if self.labels < ENOUGH:
            self._apart.compare(_HALF * comparison.agrees, kept=comparison.kept)

    def add(
        self, score: float, expected: float, comparison: AnswerComparison | None = None
    ) -> None:
        """Take in how right an answer was, and was expected to be by `profile`, 0..1 both.

        With what `compare` was given of the same answer, if it was.
        """
        if comparison is not None and comparison.reference != self._compared.reference:
            comparison = None
        self.labels += 1
        weight = 1.0 / min(self.labels, MEMORY)
        self.right += weight * (score - self.right)
        self.expected += weight * (expected - self.expected)
        if self.labels > MEMORY and self._compared.reference:
            self._compared.fade(1.0 - weight)
        if comparison is not None:
            self._compared.label(score - expected, comparison.agrees, 1.0 / comparison.propensity)
        if self.labels < ENOUGH:
            apart = _HALF * (1.0 + score - expected)
            if comparison is None:
                self._apart.label(apart)
            else:
                self._apart.label(apart, _HALF * comparison.agrees, kept=comparison.kept)

    @property
    def joint(self) -> float:
        """Mean of how right answers were, 0..1, by labels and comparisons."""
        shift = self._compared.shift(min(self.labels, MEMORY)) if self.labels else 0.0
        return min(max(self.right + shift, 0.0), 1.0)

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper limit of the accuracy before `ENOUGH` labels, at every step at once.

        Of a variant that was expected to be as right as `profile` in the mean; they may lie outside
        of 0..1.
        """
        low, high = (self.profile + 2.0 * limit - 1.0 for limit in self._apart.interval)
        return low, high

    def accuracy(self, profile: float) -> float:
        """Say the accuracy that counts, 0..1, of a variant that has this one by its profile now."""
        if self.labels >= ENOUGH:
            return float(corrected(self.profile, self.expected, self.joint))
        low, high = self.interval
        if low <= profile <= high:
            return profile
        return min(max(low, 0.0), 1.0)

    def pack(self) -> bytes:
        """Write down all that `unpack` needs to go on from here."""
        apart, terms = b"", (AgreementTerms(), AgreementTerms())
        if self.labels < ENOUGH:
            apart, terms = self._apart.sequence.pack(), (self._apart.terms, self._apart.fresh)
        means = self.right, self.expected
        state = _State(self.profile, self.labels, *means, apart, self._compared, terms)
        return msgspec.msgpack.encode(state)

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Go on from what `pack` has written.

        Raises
        ------
        ValueError
            Where it is none.
        """
        state = msgspec.msgpack.decode(packed, type=_State)
        own = cls(state.profile)
        own.labels, own.right, own.expected = state.labels, state.right, state.expected
        own._compared = state.compared
        if own.labels < ENOUGH:
            sequence = ConfidenceSequence.unpack(state.apart, points=_POINTS)
            own._apart = PoweredSequence(sequence, _HALF, *state.terms)
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

    def go_on(self, before: Exploration) -> None:
        """Count on from where that of another fleet of the task is."""
        self._since, self._turn = before._since, before._turn

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
