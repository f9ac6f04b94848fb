from __future__ import annotations

import json
import math

import pytest

from inferway.studies import SCALES, STUDIES, Claim, Results, named, study


def claim(value, **limits):
    return Claim("Sec. 1", "It holds.", "how much", value, **limits)


@pytest.mark.parametrize(
    ("value", "limits", "reproduced"),
    [
        (0.5, {"at_most": 0.5}, True),
        (0.51, {"at_most": 0.5}, False),
        (0.5, {"at_least": 0.5}, True),
        (0.49, {"at_least": 0.5}, False),
        (0.6, {"at_least": 0.5, "at_most": 0.7}, True),
        (math.inf, {"at_least": 0.5}, True),
        (math.nan, {"at_least": 0.5}, None),
    ],
)
def test_a_claim_reproduces_within_its_limits(value, limits, reproduced):
    assert claim(value, **limits).reproduced is reproduced


def test_a_claim_writes_its_numbers():
    ratio = claim(0.01234, at_most=0.02, unit="%")
    assert ratio.measured == "1.23 %"
    assert ratio.tolerance == "at most 2 %"
    time = claim(1.5, at_least=1.0, at_most=2.0, unit="s")
    assert time.measured == "1.5 s"
    assert time.tolerance == "1 s to 2 s"
    assert claim(math.nan).measured == "not measured"
    assert claim(math.inf).measured == "unbounded"
    assert claim(-2.2e-16, unit="%").measured == "0 %"  # what rounding leaves


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.2, 0.5, "yes"),
        (0.4, 0.6, "not settled"),
        (0.51, 0.6, "no"),
        (-0.2, 0.4, "not settled"),
        (-0.2, -0.1, "no"),
    ],
)
def test_a_claim_is_settled_by_its_whole_interval(low, high, verdict):
    found = claim((low + high) / 2, at_least=0.0, at_most=0.5, low=low, high=high)
    assert found.verdict == verdict
    assert found.reproduced is {"yes": True, "no": False}.get(verdict)
    said = found.to_json()
    assert (said["low"], said["high"], said["verdict"]) == (low, high, verdict)
    assert f"({found.write(low)} to {found.write(high)})" in found.measured


def test_an_unknown_study_names_those_there_are():
    with pytest.raises(ValueError, match=r"unknown study 'fig-9'.*trade-off"):
        study("fig-9")


def test_names_are_taken_once_and_all_without_any():
    assert [one.name for one in named(["blocking", "blocking"])] == ["blocking"]
    assert [one.name for one in named()] == list(STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_whole(name):
    one = study(name)
    assert one.name == name
    assert tuple(one.scales) == SCALES
    for scale in SCALES:
        points = one.points(one.scales[scale])
        labels = [tuple(point.label.items()) for point in points]
        assert len(set(labels)) == len(labels) > 0
        arguments = [json.dumps(point.arguments, sort_keys=True) for point in points]
        assert json.loads(arguments[0]) == dict(points[0].arguments)
        assert all(point.seconds > 0 for point in points)
    assert one.seconds("smoke") < one.seconds("quick") <= one.seconds("paper")


BY_CALCULATION = {"shuffle-pair", "underestimate", "table-2", "batch-sizes", "deadline-bound"}
"""Studies with claims that are true or false by calculation alone, without a run."""


@pytest.mark.parametrize("name", STUDIES)
def test_without_results_there_is_a_figure_and_no_verdict_on_simulations(name):
    one = study(name)
    settings = one.scales["quick"]
    assert one.figure(settings, Results([])) is not None
    for found in one.claims(settings, Results([])):
        assert found.reproduced is None or name in BY_CALCULATION
