"""Labels and comparisons joined: right at every step, nearer than labels alone, no bias."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from inferway.profiling.confidence_sequence import ConfidenceSequence
from inferway.profiling.prediction_powered import KEPT, PoweredAccuracy

ACCURACY = 0.85


def answers(
    random: np.random.Generator, count: int, share: float, *, use: bool = True
) -> Iterator[tuple[float, float | None, bool]]:
    """Yield of each answer how right it is, how far it agrees where it is compared, and the coin.

    A fifth of the requests are hard. The reference is right in 97 of 100 whatever they are, and
    without `use` it is anything but that.
    """
    for hard, right, better, other, compared, kept in random.random((count, 6)):
        correct = right < (0.4 if hard < 0.2 else 0.9625)
        agrees = better < 0.97 if correct else better >= 0.97 and other < 0.3
        if not use:
            agrees = other < 0.3
        yield float(correct), float(agrees) if compared < share else None, kept < KEPT


def run(
    seed: int, count: int, *, share: float, labels: float, use: bool = True
) -> tuple[PoweredAccuracy, ConfidenceSequence, bool]:
    """Join a run; both, and whether the interval ever left the accuracy out."""
    random = np.random.default_rng(seed)
    both, alone, wrong = PoweredAccuracy("reference"), ConfidenceSequence(), False
    for correct, agrees, kept in answers(random, count, share, use=use):
        if agrees is not None:
            both.compare(agrees, share, kept=kept)
        if random.random() < labels:
            alone.add(correct)
            both.label(correct, agrees, share, kept=kept)
            low, high = both.interval
            wrong |= not low <= ACCURACY <= high
    return both, alone, wrong


@pytest.mark.parametrize(("share", "labels"), [(1.0, 0.3), (0.5, 0.6), (0.2, 1.0)])
def test_it_holds_at_every_step_in_95_of_100_runs(share: float, labels: float) -> None:
    runs = 80
    assert sum(run(seed, 900, share=share, labels=labels)[2] for seed in range(runs)) <= 0.05 * runs


def test_a_label_that_was_looked_at_before_is_none_of_the_terms() -> None:
    """With all that is known of it the interval would be about another mean."""
    both = PoweredAccuracy("reference")
    for _ in range(200):
        both.compare(1.0, 0.1, kept=False)
        both.label(1.0, 1.0, 0.1, kept=False)
    assert both.interval == (0.0, 1.0)
    assert both.estimate == 1.0


def test_comparisons_bring_it_closer_than_labels_alone() -> None:
    found = [run(seed, 6_000, share=1.0, labels=0.05) for seed in range(12)]
    both, alone = (
        np.array([one.estimate if at == 0 else one.mean for one in column])
        for at, column in enumerate(zip(*(pair[:2] for pair in found), strict=True))
    )
    assert np.sqrt(np.mean((both - ACCURACY) ** 2)) < 0.8 * np.sqrt(
        np.mean((alone - ACCURACY) ** 2)
    )
    widths = [
        np.subtract(*one.interval) / np.subtract(*labels.interval) for one, labels, _ in found
    ]
    assert np.mean(widths) < 0.95


def test_a_reference_that_says_nothing_does_no_harm() -> None:
    found = [run(seed, 4_000, share=0.5, labels=0.1, use=False) for seed in range(20)]
    estimates = np.array([both.estimate for both, _, _ in found])
    assert max(both.weight for both, _, _ in found) < 0.3
    assert abs(estimates.mean() - ACCURACY) < 4 * estimates.std() / np.sqrt(len(found))
    assert np.mean([abs(both.estimate - alone.mean) for both, alone, _ in found]) < 0.004  # type: ignore[operator]


def test_comparisons_weigh_what_they_stand_for() -> None:
    both = PoweredAccuracy("reference")
    assert both.agreement is None
    for number in range(100):  # one in a hundred of these was compared, and all agree
        both.compare(1.0, 0.01, kept=True)
        both.compare(0.0, 0.1, kept=number % 2 == 0)
    assert both.agreement == pytest.approx(10 / 11)
    assert (both.comparisons.count, both.agreed) == (200, 100)


def test_without_comparisons_it_is_what_labels_say() -> None:
    random, before, both = np.random.default_rng(2), ConfidenceSequence(), None
    for number, right in enumerate(random.random(300) < 0.8):
        if number == 100:
            both = PoweredAccuracy("reference", before)
        if both is not None:
            both.label(float(right))
        before.add(float(right))
    assert both is not None
    assert both.interval == before.interval
    assert both.estimate == pytest.approx(before.mean)


def test_it_goes_on_where_it_was() -> None:
    random = np.random.default_rng(4)
    whole, part = PoweredAccuracy("reference"), PoweredAccuracy("reference")
    for number, (correct, agrees, kept) in enumerate(answers(random, 800, 0.5)):
        if number == 400:
            part = PoweredAccuracy.unpack(part.pack())
        for one in (whole, part):
            if agrees is not None:
                one.compare(agrees, 0.5, kept=kept)
            one.label(correct, agrees, 0.5, kept=kept)
    assert part.pack() == whole.pack()
    assert (part.estimate, part.interval) == (whole.estimate, whole.interval)
    with pytest.raises(ValueError, match="Expected"):
        PoweredAccuracy.unpack(b"\x94\x00")
