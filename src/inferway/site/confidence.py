"""Confidence tables: what a class's confidence says of its answer, and of every other class's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.site.difficulty import BINS, accuracy_by_difficulty

if TYPE_CHECKING:
    from inferway.deployment import Task

Floats = NDArray[np.float64]

_LEAST = 1e-9  # Of an accuracy, and of what it is short of 1: its log-odds are finite
_HALVINGS = 80  # Of an interval of 100 log-odds: far below rounding
_ROUNDING = 1e-6  # How far the masses of a class may be from 1 in a file


class ConfidenceTables(NamedTuple):
    """Accuracies by the confidence of one class, jointly for pairs of classes.

    A class with fewer bins than the most of any has bins without mass at its end, which no
    confidence reaches. A class without confidence has no mass at all, and the plain accuracies in
    each bin.

    Attributes
    ----------
    mass
        (K, B) share of the answers of class i whose confidence is in bin b; a row sums to 1, or is
        0 where the class has no confidence.
    expected
        (K, B, K) expected accuracy of class j's answer to a request at which class i's confidence
        was in bin b; ``expected[i, b, i]`` is that of class i's own.
    edges
        (K, B - 1) confidences at which the next bin begins, not falling; inf where there is none.
    """

    mass: Floats
    expected: Floats
    edges: Floats

    @property
    def sure(self) -> NDArray[np.bool_]:
        """(K,) whether a class has a confidence."""
        return self.mass.sum(axis=1) > 0.0

    def expected_accuracy(self) -> Floats:
        """Mean accuracy of each class's own answers over its bins, (K,)."""
        own = np.diagonal(self.expected, axis1=0, axis2=2).T
        return np.where(self.sure, (self.mass * own).sum(axis=1), own[:, 0])

    def corrected(self, before: Floats, after: Floats) -> ConfidenceTables:
        """Lay out the tables for classes of other accuracies; see `corrected`.

        `before` are the (K,) accuracies that the tables are of, and `after` those that hold now.
        """
        return self._replace(expected=corrected(self.expected, before, after))

    def ordered(self, order: NDArray[np.int64]) -> ConfidenceTables:
        """Lay out the tables for classes in another order; also for some of them, or repeated."""
        every = np.arange(self.mass.shape[1])
        return ConfidenceTables(
            np.ascontiguousarray(self.mass[order]),
            np.ascontiguousarray(self.expected[np.ix_(order, every, order)]),
            np.ascontiguousarray(self.edges[order]),
        )

    def checked(self, classes: int) -> ConfidenceTables:
        """Return the tables as arrays of floats for so many classes.

        Raises
        ------
        ValueError
            Where shapes differ or a number is out of its range.
        """
        mass, expected, edges = (np.asarray(one, np.float64) for one in self)
        bins = mass.shape[1] if mass.ndim == 2 else 0
        shapes = ((classes, bins), (classes, bins, classes), (classes, bins - 1))
        if bins < 1 or (mass.shape, expected.shape, edges.shape) != shapes:
            raise ValueError(
                f"confidence tables have shapes {mass.shape}, {expected.shape} and {edges.shape}, "
                f"expected (K, B), (K, B, K) and (K, B - 1) for K = {classes} classes"
            )
        total = mass.sum(axis=1)
        for sound, message in (
            (
                (mass >= 0).all() and ((total == 0) | (np.abs(total - 1) <= _ROUNDING)).all(),
                f"the masses of a class's bins sum to 1, or are all 0, not to {total}",
            ),
            (
                ((expected >= 0) & (expected <= 1)).all(),
                "expected accuracies are in 0..1",
            ),
            (
                not np.isnan(edges).any() and (edges[:, 1:] >= edges[:, :-1]).all(),
                "the edges of a class's bins do not fall",
            ),
        ):
            if not sound:
                raise ValueError(message)
        return ConfidenceTables(mass, expected, edges)


def corrected(expected: Floats | float, before: Floats | float, after: Floats | float) -> Floats:
    """Correct the expected accuracy of an answer for a variant whose accuracy is another one now.

    Of a variant that is right less often than it was thought to be, the same share of its right
    answers is wrong whatever its confidence; of one that is right more often, the same share of its
    wrong answers is right. So the mean over its answers moves from `before` to `after`, whichever
    of them are looked at, a mean of several answers moves as each of them does, and all stay in
    0..1.

    Parameters
    ----------
    expected
        (..., K) expected accuracies, 0..1, or one.
    before, after
        (K,) accuracies of the variants, 0..1, or those of one.
    """
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    right = np.where(before > 0.0, after / np.where(before > 0.0, before, 1.0), 1.0)
    wrong = (1.0 - after) / np.where(before < 1.0, 1.0 - before, 1.0)
    return np.where(after <= before, expected * right, 1.0 - (1.0 - expected) * wrong)


def difficulty_tables(
    accuracy: Floats, quality: float, common: float, *, bins: int = BINS
) -> ConfidenceTables:
    """Tables of classes of which only their accuracies are known, by a normal difficulty.

    Parameters
    ----------
    accuracy
        (K,) accuracies, 0..1; NaN where one is unknown: it counts as 0, and has no confidence.
    quality, common, bins
        As in `inferway.site.difficulty.accuracy_by_difficulty`. Bins are of the same mass, and a
        confidence is the share of answers that are less sure.

    Raises
    ------
    ValueError
        Where a number is out of its range.
    """
    known = ~np.isnan(accuracy)
    plain = np.where(known, accuracy, 0.0)
    expected = accuracy_by_difficulty(plain, quality, common, bins)
    return ConfidenceTables(
        np.where(known[:, None], np.full((len(plain), bins), 1.0 / bins), 0.0),
        np.where(known[:, None, None], expected, plain),
        np.where(known[:, None], np.arange(1, bins) / bins, np.inf),
    )


def confidence_tables(
    task: Task, names: Sequence[str], accuracy: Floats
) -> ConfidenceTables | None:
    """Tables of a task's variants: by its `difficulty`, or as a profile has measured them.

    A profile has bins from one half of its data and accuracies from the other, so the mean over
    bins is not the variant's accuracy. The bins are moved to it: all log-odds of a variant's
    accuracies in another's bins by one amount, such that their mean is the accuracy that the fleet
    has of it (calibration in the large). So one accuracy counts for an answer whether or not its
    confidence is looked at, also where the file states another than the profile; asking a second
    variant is never worth less than not asking; and a bin keeps its place among the others. Where
    the profile has no pair, the second variant's accuracy is the same in all bins.

    Parameters
    ----------
    task
        Its variants have the bins, the task the pairs.
    names
        Variant of each class, K of them; one may stand there more than once, for copies elsewhere.
    accuracy
        (K,) accuracies, 0..1; NaN where one is unknown: it counts as 0, and bins of that class are
        not used.

    Returns
    -------
    ConfidenceTables
        Of the K classes; None where no variant has bins, and the task no difficulty.
    """
    if task.difficulty is not None:
        variants = list(dict.fromkeys(names))
        accuracies = accuracy[[names.index(name) for name in variants]]
        tables = difficulty_tables(accuracies, task.difficulty.quality, task.difficulty.common)
        return tables.ordered(np.array([variants.index(name) for name in names]))
    known = ~np.isnan(accuracy)
    plain = np.where(known, accuracy, 0.0)
    bins = [
        task.variants[name].confidence_bins if name in task.variants else None for name in names
    ]
    bins = [own if graded else None for own, graded in zip(bins, known, strict=True)]
    most = max((len(own.mass) for own in bins if own is not None), default=0)
    if most == 0:
        return None
    pairs = {(pair.first, pair.second): pair.second_accuracy for pair in task.pairs}
    classes = len(names)
    tables = ConfidenceTables(
        np.zeros((classes, most)),
        np.broadcast_to(plain, (classes, most, classes)).copy(),
        np.full((classes, most - 1), np.inf),
    )
    for i, own in enumerate(bins):
        if own is None:
            continue
        count = len(own.mass)
        tables.mass[i, :count] = np.array(own.mass) / np.sum(own.mass)
        tables.edges[i, : count - 1] = own.edges
        for j, name in enumerate(names):
            curve = own.accuracy if name == names[i] else pairs.get((names[i], name), ())
            if len(curve) == count:
                tables.expected[i, :count, j] = curve
        tables.expected[i] = _moved(tables.expected[i], tables.mass[i], plain)
    return tables


def _moved(curves: Floats, mass: Floats, means: Floats) -> Floats:
    """Move each curve's log-odds, (B, K), by one amount, such that its mean is as said, (K,)."""
    clipped = curves.clip(_LEAST, 1.0 - _LEAST)
    odds = np.log(clipped) - np.log1p(-clipped)
    low, high = np.full(len(means), -50.0), np.full(len(means), 50.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        short = mass @ (1.0 / (1.0 + np.exp(-odds - middle))) < means
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    moved = 1.0 / (1.0 + np.exp(-odds - low))
    return np.where((means > 0.0) & (means < 1.0), moved, means)
