"""The study of drifting accuracies tells what is right from what is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from inferway.profiling.confidence_sequence import ConfidenceSequence
from inferway.studies import Claim, Results, study
from inferway.studies.queueing import drift
from inferway.studies.queueing.drift import covered, fallen, followed, quiet


def claim_of(beginning: str, rows: list[Mapping[str, Any]]) -> Claim:
    one = study("drift")
    claims = one.claims(one.scales["quick"], Results(rows))
    (found,) = [claim for claim in claims if claim.says.startswith(beginning)]
    return found


def test_an_interval_that_is_too_narrow_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"accuracy": 0.9, "compared": 0.2, "labeled": 0.5, "runs": 40, "labels": 150}
    held = covered(**arguments, seed=1)
    narrow = partial(ConfidenceSequence, 0.3)
    monkeypatch.setattr(drift, "ConfidenceSequence", narrow)
    monkeypatch.setattr("inferway.profiling.prediction_powered.ConfidenceSequence", narrow)
    missed = covered(**arguments, seed=1)
    label = {"kind": "held", "accuracy": 0.9, "compared": 0.2}
    for interval, beginning in (
        ("alone", "The interval by labels holds"),
        ("joint", "The interval by labels and"),
    ):
        assert held[interval] <= 3
        assert missed[interval] >= 10
        assert claim_of(beginning, [{**label, **held, "runs": 1_000}]).verdict == "yes"
        assert claim_of(beginning, [{**label, **missed}]).verdict == "no"


@pytest.mark.parametrize(("alarms", "verdict"), [(0, "yes"), (5, "not settled"), (40, "no")])
def test_false_alarms_are_held_against_one_in_a_million(alarms: int, verdict: str) -> None:
    row = {"kind": "quiet", "accuracy": 0.9, "labels": 10_000_000, "alarms": alarms}
    assert claim_of("Where nothing changes", [row]).verdict == verdict


def test_a_run_without_an_alarm_counts_as_one_that_is_late() -> None:
    row = {"kind": "fallen", "accuracy": 0.9, "runs": 4, "seen": [300, 2_001], "early": 0}
    within = claim_of("A fall of 10 points raises one", [row])
    assert (within.value, within.verdict) == (0.25, "no")
    assert claim_of("Half of them", [row]).verdict == "no"


@pytest.mark.parametrize(
    "point",
    [
        partial(quiet, accuracy=0.9, labels=10, seed=1),
        partial(fallen, accuracy=0.9, fall=0.1, runs=1, before=10, after=10, seed=1),
        partial(
            followed,
            policy="priced",
            way="measured, alarm",
            target=0.9,
            labeled=0.05,
            fall=0.1,
            at_s=10.0,
            queries=2_000,
            seed=1,
        ),
    ],
)
def test_without_river_a_point_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, point: Callable[[], Any]
) -> None:
    monkeypatch.setattr("inferway.dispatch.drift_alarm.find_spec", lambda name: None)
    with pytest.raises((RuntimeError, ValueError), match=r"^drift alarms need river.*way\[drift"):
        point()
