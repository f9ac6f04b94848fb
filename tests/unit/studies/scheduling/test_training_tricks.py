from __future__ import annotations

from dataclasses import replace

import pytest
from scipy import stats

from inferway.learning.settings import TUNED
from inferway.learning.settings import Settings as Learning
from inferway.studies import Results
from inferway.studies.scheduling.training_tricks import (
    AS_TRAINED,
    PAPER,
    STUDY,
    VARIANTS,
    ahead,
    figure,
)

SETTINGS = STUDY.scales["paper"]
COLUMNS = ("goodput_bursty", "goodput_normal", "heavy_normal", "violations")


def rows_of(goodput):
    """Rows of the study: goodput by variant and trial, the rest alike."""
    return Results(
        [
            {"variant": variant, "trial": trial, "goodput": value, **dict.fromkeys(COLUMNS, 0.5)}
            for variant, values in goodput.items()
            for trial, value in enumerate(values)
        ]
    )


def test_each_variant_takes_back_something_and_all_of_them_are_the_papers():
    left = TUNED
    for variant, changes in VARIANTS.items():
        assert (replace(TUNED, **changes) == TUNED) is (variant == AS_TRAINED)
        left = replace(left, **changes)
    assert replace(left, slots=Learning().slots) == Learning()


def test_the_interval_is_welchs():
    one, other = (0.79, 0.80, 0.78, 0.795), (0.70, 0.78, 0.75)
    wanted = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    difference, half = ahead(rows_of({AS_TRAINED: one, PAPER: other}), PAPER)
    assert (difference - half, difference + half) == pytest.approx((wanted.low, wanted.high))


def test_what_noise_may_have_done_is_claimed_of_none():
    steady = (0.79, 0.791, 0.789)
    few = replace(SETTINGS, variants=(AS_TRAINED, "no baseline", "no shaping", "no symlog", PAPER))
    found = STUDY.claims(
        few,
        rows_of(
            {
                AS_TRAINED: steady,
                "no baseline": (0.76, 0.80, 0.78),
                "no shaping": (0.78, 0.781, 0.779),
                "no symlog": (0.79,),
                PAPER: (0.785, 0.786, 0.784),
            }
        ),
    )
    assert [claim.verdict for claim in found] == ["not settled", "yes", "-", "no"]
    assert "difference 1.00 +- 0.23" in found[1].why
    assert "as trained 79.00 +- 0.25 %" in found[1].why


def test_trainings_that_are_alike_have_no_spread():
    alike = rows_of({AS_TRAINED: (0.75, 0.75), PAPER: (0.5, 0.5)})
    assert ahead(alike, PAPER) == (0.25, 0.0)


def test_the_figure_has_no_printed_values():
    drawn = figure(SETTINGS, rows_of({AS_TRAINED: (0.79, 0.78), PAPER: (0.7, 0.6)}))
    assert not drawn.legends
    first, *_ = drawn.axes
    assert [label.get_text() for label in first.get_yticklabels()] == list(SETTINGS.variants)
