"""A zoo's test images in two halves by originals: tables are fitted on one, requests are the other.

As a profile is made (`inferway.profiling`): confidence bins from one half, accuracies from the
other. In the first fold the halves are those of the zoo's own profile, in the second they are
exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.catalog import zoo
from inferway.catalog.profile import ConfidenceBins, PairBins
from inferway.deployment import Task, Variant
from inferway.profiling.calibration import calibrated
from inferway.profiling.intervals import mean_score
from inferway.profiling.testset import image_answers
from inferway.site.confidence import ConfidenceTables, confidence_tables
from inferway.site.fleet import Fleet
from inferway.twin.kernel.escalation import AnswerSample

FOLDS = (0, 1)

_NAME = "digits"


class Fold(NamedTuple):
    """A fleet with fitted tables, and requests that the fit has not seen.

    Attributes
    ----------
    fleet
        One server of each variant, by the zoo's service times.
    requests
        The images of the other half: bins and right answers of each variant.
    source
        Original of each of these images.
    """

    fleet: Fleet
    requests: AnswerSample
    source: NDArray[np.int64]


@cache
def fold(
    number: int, variants: tuple[str, ...], accuracies: Literal["held", "fitted"] = "held"
) -> Fold:
    """Fit the tables on a half of the originals.

    Parameters
    ----------
    number
        Of the fold: 0 as the zoo's profile, 1 with the halves exchanged.
    variants
        Names, fastest first.
    accuracies
        From which half the variants' accuracies are, to which the tables are moved: ``held``, as in
        a profile, from the requests'; or ``fitted``, from that of the tables.
    """
    known = zoo.load(_NAME)
    answers = image_answers(_NAME, variants)
    fitted = answers.bins if number == 0 else ~answers.bins
    right, sure = answers.right.astype(np.float64), answers.confidence
    accuracy = right[~fitted if accuracies == "held" else fitted].mean(axis=0)
    tables = _tables(variants, sure[fitted], right[fitted], accuracy)
    service_s = np.array([known.profiles[name].mean_s for name in variants])
    ones = np.ones(len(variants), np.int64)
    fleet = Fleet(variants, 1.0 / service_s, accuracy, ones, confidence=tables)
    held = ~fitted
    columns = [
        np.searchsorted(tables.edges[k], sure[held, k], side="right") for k in range(len(variants))
    ]
    requests = AnswerSample(np.stack(columns, axis=1).astype(np.int64), right[held])
    return Fold(fleet, requests, answers.source[held])


def _tables(
    names: Sequence[str],
    sure: NDArray[np.float64],
    right: NDArray[np.float64],
    accuracy: NDArray[np.float64],
) -> ConfidenceTables:
    """Fit bins and pairs, (N, K) confidences and right answers, as a profile does."""
    variants, pairs = {}, []
    for i, name in enumerate(names):
        own = calibrated(sure[:, i], right[:, i])
        edges, curve, mass = (tuple(part.tolist()) for part in own)
        bins = ConfidenceBins(
            kind="probability",
            digest=None,
            softmax=False,
            edges=edges,
            accuracy=curve,
            mass=mass,
            observed=(None,) * len(curve),
            error=0.0,
        )
        variants[name] = replace(Variant(name), confidence_bins=bins)
        for j, other in enumerate(names):
            if j != i:
                both = calibrated(sure[:, i], right[:, j])
                pairs.append(PairBins(name, other, curve, tuple(both.accuracy.tolist())))
    task = replace(Task(_NAME, variants), pairs=tuple(pairs))
    tables = confidence_tables(task, names, accuracy)
    assert tables is not None  # each variant has bins
    return tables


def calibration(*, number: int, variants: Sequence[str], seed: int) -> dict[str, list[float]]:
    """Hold the bins of every variant against the images that the fit has not seen.

    Returns
    -------
    dict
        By bin with images, of all variants in turn: ``promised`` and ``observed`` accuracy,
        ``low`` and ``high``, the 95 % interval of what was observed (originals drawn anew; Wilson's
        of as many rows as originals where all or none are right), and ``weight``, the share of the
        variant's images that are there.
    """
    one = fold(number, tuple(variants))
    tables = one.fleet.confidence
    assert tables is not None
    columns: dict[str, list[float]] = {
        name: [] for name in ("promised", "observed", "low", "high", "weight")
    }
    for k in range(len(variants)):
        for b in np.flatnonzero(tables.mass[k] > 0.0).tolist():
            here = one.requests.bins[:, k] == b
            if not here.any():
                continue
            score = one.requests.score[here, k]
            mean, (low, high) = mean_score(score, one.source[here], seed=seed)
            values = (tables.expected[k, b, k], mean, low, high, here.mean())
            for column, value in zip(columns.values(), values, strict=True):
                column.append(float(value))
    return columns
