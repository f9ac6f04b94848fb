"""An accuracy by labels and by agreement with a better model, joined: prediction-powered inference.

Of some answers it is known how right they were, a label; of others, or the same, whether a more
accurate model agrees, a comparison. Labels are few and are what is meant; comparisons are many and
say something like it. Joined, they say the accuracy with less error than labels alone, and with no
bias, however wrong the better model is.

Sources: the estimate is PPI++ (A. N. Angelopoulos, J. C. Duchi and T. Zrnic, *PPI++: Efficient
Prediction-Powered Inference*, 2023, arXiv 2311.01453), the mean of Example 1 with the power-tuned
weight of its Sec. 6 in 0..1. Two departures: labels without a comparison count as well, and each
comparison weighs what it stands for, the inverse of its propensity.

The interval is a confidence sequence (`inferway.profiling.confidence_sequence`) over terms whose
mean is the accuracy given all that was looked at before,

    X = Y + w (B - f),

a label Y, the comparison f of that answer, the mean B of fresh comparisons of other answers, and a
weight w that follows from earlier terms alone. A comparison that was looked at before its label
would leave the label another mean. So a coin that is thrown with each comparison says whether it is
kept for its own label, or goes into B, and then its own label is none of the terms.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

import msgspec

from inferway.profiling.confidence_sequence import ConfidenceSequence

# Share of the comparisons that are kept for a label of the same answer. The others are all compared
# with; labels of theirs are left out of the interval that joins both. Most answers have no label,
# so that few comparisons are enough to compare with, and more of them would cost labels: with 0.8 a
# fall is noticed after up to two fifths more of them than by labels alone.
KEPT: Final = 0.95
_LEAST_TERMS: Final = 20  # with a comparison, before comparisons weigh anything in the interval


class AnswerComparison(NamedTuple):
    """An answer beside that of a more accurate model to the same request.

    Attributes
    ----------
    reference
        Name of that model.
    agrees
        Share of the answer's rows that agree, 0..1.
    propensity
        Probability with which the answer was to be compared, above 0.
    kept
        Whether it is kept for a label of the same answer: by a coin, thrown before.
    """

    reference: str
    agrees: float
    propensity: float
    kept: bool


class Weighted(msgspec.Struct, array_like=True):
    """Sums over comparisons f of weight w, which say their mean and its variance.

    Attributes
    ----------
    count
        Number of them.
    w, ww, wf, wwf, wwff
        Sums of these products.
    """

    count: int = 0
    w: float = 0.0
    ww: float = 0.0
    wf: float = 0.0
    wwf: float = 0.0
    wwff: float = 0.0

    def add(self, f: float, w: float) -> None:
        """Take in a comparison."""
        self.count += 1
        self.w += w
        self.ww += w * w
        self.wf += w * f
        self.wwf += w * w * f
        self.wwff += w * w * f * f

    def less(self, other: Weighted) -> Weighted:
        """Leave out those that are in another."""
        mine, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Weighted(*(a - b for a, b in zip(mine, theirs, strict=True)))

    @property
    def mean(self) -> float:
        """Weighted mean; there is one at least."""
        return self.wf / self.w

    @property
    def variance(self) -> float:
        """Variance of the mean."""
        mean = self.mean
        return max(0.0, self.wwff - 2.0 * mean * self.wwf + mean * mean * self.ww) / self.w**2


class AgreementTerms(msgspec.Struct, array_like=True):
    """Sums over what the interval has looked at: comparisons, and labels with their own."""

    comparisons: int = 0
    f: float = 0.0
    ff: float = 0.0
    pairs: int = 0
    pair_y: float = 0.0
    pair_f: float = 0.0
    pair_yf: float = 0.0

    def weight(self, size: int) -> float:
        """Weight of comparisons in the next term, 0..1, whose B is the mean of so many."""
        if self.pairs < _LEAST_TERMS or not self.comparisons or not size:
            return 0.0
        mean = self.f / self.comparisons
        variance = self.ff / self.comparisons - mean * mean
        covariance = (self.pair_yf - self.pair_y * self.pair_f / self.pairs) / self.pairs
        if variance <= 1e-9 or covariance <= 0.0:
            return 0.0
        return min(1.0, covariance / (variance * (1.0 + 1.0 / size)))


class PoweredSequence:
    """Values by labels, joined with comparisons, and a confidence sequence of their mean.

    Parameters
    ----------
    sequence
        Of the labels so far; goes on here.
    span
        How far apart comparisons may lie: they are in 0..span.
    terms, fresh
        From a state that was written down.
    """

    def __init__(
        self,
        sequence: ConfidenceSequence,
        span: float = 1.0,
        terms: AgreementTerms | None = None,
        fresh: AgreementTerms | None = None,
    ) -> None:
        self.sequence, self._span = sequence, span
        self.terms = AgreementTerms() if terms is None else terms
        self.fresh = (
            AgreementTerms() if fresh is None else fresh
        )  # Comparisons that no term has looked at

    def compare(self, f: float, *, kept: bool) -> None:
        """Take in a comparison; one that is kept waits for its own label."""
        if not kept:
            self.fresh.comparisons += 1
            self.fresh.f += f
            self.fresh.ff += f * f

    def label(self, y: float, f: float | None = None, *, kept: bool = False) -> None:
        """Take in a label's value, 0..1, with the comparison of the same answer, if there is one.

        Where that was not kept for it, it has been looked at, and the label is left out.
        """
        if f is None:
            self.sequence.add(y)
            return
        if not kept:
            return
        terms, fresh = self.terms, self.fresh
        by = terms.weight(fresh.comparisons)
        value = y
        if by:
            value += by * (fresh.f / fresh.comparisons - f)
        self.sequence.add(value, by * self._span)
        if by or terms.pairs < _LEAST_TERMS:
            terms.comparisons += fresh.comparisons
            terms.f += fresh.f
            terms.ff += fresh.ff
            self.fresh = AgreementTerms()
        terms.comparisons += 1
        terms.f += f
        terms.ff += f * f
        terms.pairs += 1
        terms.pair_y += y
        terms.pair_f += f
        terms.pair_yf += y * f

    def forget_comparisons(self) -> None:
        """Leave out the comparisons so far, as others come that are of another kind."""
        self.terms, self.fresh = AgreementTerms(), AgreementTerms()

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper limit of the mean, 0..1, which may be looked at all the time."""
        return self.sequence.interval


class PoweredAccuracy:
    """Accuracy of a variant by labels and by comparisons with a better one.

    Labels are taken to come at random: each as right in the mean as all answers, given those
    before, and whether its answer was compared.

    Parameters
    ----------
    reference
        Name of what answers are compared with.
    labels
        What has come of labels so far; none by default.

    Attributes
    ----------
    reference
        The same.
    comparisons
        All of them, whose mean is the agreement.
    agreed
        Those whose rows are all answered the same.
    """

    def __init__(self, reference: str, labels: ConfidenceSequence | None = None) -> None:
        self.reference = reference
        sequence = ConfidenceSequence()
        if labels is not None:
            sequence = ConfidenceSequence.unpack(labels.pack())
        self._joined = PoweredSequence(sequence)
        self._labels, self._right = sequence.count, 0.0
        if labels is not None and labels.mean is not None:
            self._right = labels.mean * labels.count
        self.comparisons, self.agreed = Weighted(), 0
        self._paired = Weighted()  # Those whose answer has a label
        self._paired_y = self._paired_yf = 0.0  # Weighted sums over these

    @property
    def agreement(self) -> float | None:
        """Share of answers that agree, 0..1; None before the first comparison."""
        return self.comparisons.mean if self.comparisons.count else None

    def compare(self, agrees: float, propensity: float, *, kept: bool) -> None:
        """Take in a comparison.

        Parameters
        ----------
        agrees
            Share of the answer's rows that agree, 0..1.
        propensity
            Probability with which the answer was to be compared, above 0.
        kept
            Whether it is kept for a label of the same answer: by a coin, thrown before.
        """
        self.comparisons.add(agrees, 1.0 / propensity)
        self.agreed += agrees == 1.0
        self._joined.compare(agrees, kept=kept)

    def label(
        self,
        score: float,
        agrees: float | None = None,
        propensity: float = 1.0,
        *,
        kept: bool = False,
    ) -> None:
        """Take in a label, 0..1, with what `compare` was given of the same answer, if it was."""
        self._labels += 1
        self._right += score
        self._joined.label(score, agrees, kept=kept)
        if agrees is None:
            return
        weight = 1.0 / propensity
        self._paired.add(agrees, weight)
        self._paired_y += weight * score
        self._paired_yf += weight * score * agrees

    @property
    def weight(self) -> float:
        """Weight of comparisons in the estimate, 0..1, which makes its variance the least."""
        paired, others = self._paired, self.comparisons.less(self._paired)
        if paired.count < 2 or others.count < 2:
            return 0.0
        variance = paired.variance + others.variance
        mean_y = self._paired_y / paired.w
        covariance = (self._paired_yf / paired.w - mean_y * paired.mean) / self._labels
        if variance <= 1e-15 or covariance <= 0.0:
            return 0.0
        return min(1.0, covariance / variance)

    @property
    def estimate(self) -> float | None:
        """The accuracy, 0..1; None before the first label."""
        if not self._labels:
            return None
        value = self._right / self._labels
        if by := self.weight:
            others = self.comparisons.less(self._paired)
            value += by * (others.mean - self._paired.mean)
        return min(1.0, max(0.0, value))

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper limit of the accuracy, 0..1, which may be looked at all the time."""
        return self._joined.interval

    def pack(self) -> bytes:
        """Write down all that `unpack` needs to go on from here."""
        state = (
            self.reference,
            self._joined.sequence.pack(),
            (self._labels, self._right, self.agreed, self._paired_y, self._paired_yf),
            (self.comparisons, self._paired),
            (self._joined.terms, self._joined.fresh),
        )
        return msgspec.msgpack.encode(state)

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Go on from what `pack` has written.

        Raises
        ------
        ValueError
            Where it is none.
        """
        numbers = tuple[int, float, int, float, float]
        kind = tuple[
            str, bytes, numbers, tuple[Weighted, Weighted], tuple[AgreementTerms, AgreementTerms]
        ]
        reference, sequence, sums, sides, terms = msgspec.msgpack.decode(packed, type=kind)
        own = cls(reference)
        own._joined = PoweredSequence(ConfidenceSequence.unpack(sequence), 1.0, *terms)
        own._labels, own._right, own.agreed, own._paired_y, own._paired_yf = sums
        own.comparisons, own._paired = sides
        return own
