"""The comparison of dispatch policies: what is claimed of it, and how it is shown."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from inferway.studies.live.comparison import LiveComparison
from inferway.studies.live.policies import (
    TwoLevels,
    claims,
    latency_table,
    shares_table,
)

_PRICED = {
    "policy": "priced",
    "accuracy": 0.931,
    "accuracy_interval": [0.92, 0.94],
    "profile_accuracy": 0.9305,
    "promise": {"state": "kept"},
    "mean_s": 0.005,
    "p50_s": 0.004,
    "p95_s": 0.02,
    "p99_s": 0.03,
    "rejected": 0.0,
    "failed": 0.0,
    "shares": {"tiny": 0.6, "large": 0.4},
    "offered": 4000,
    "send_lag_p99_s": 1e-4,
}
_POLICIES = (
    _PRICED
    | {
        "policy": "fastest-only",
        "accuracy": 0.55,
        "accuracy_interval": [0.5, 0.6],
        "profile_accuracy": 0.55,
    },
    _PRICED | {"policy": "most-accurate-only", "p95_s": 0.4, "rejected": 0.25},
    _PRICED | {"policy": "tad-op", "p95_s": 0.03},
    _PRICED,
    _PRICED | {"policy": "escalate", "mean_s": 0.0025},
)
_BOUND = {
    "rate_per_s": 150.0,
    "max_rate_per_s": 320.0,
    "least_response_time_s": 0.003,
    "shares": {"tiny": 0.7, "large": 0.3},
    "line": [[0.9, 0.002]],
    "escalate": {
        "max_rate_per_s": 900.0,
        "least_response_time_s": 0.0014,
        "first": {"tiny": 1.0, "large": 0.0},
        "then": [{"from": "tiny", "bin": 0, "to": "large", "share": 0.11}],
        "shares": {"tiny": 0.89, "large": 0.11},
        "line": [[0.9, 0.001]],
    },
}
_LOAD = TwoLevels(300.0, 90.0, 100.0, 225.0)


@pytest.fixture
def result():
    return LiveComparison(
        rows=list(_POLICIES),
        found={"target": 0.93, "policies": list(_POLICIES), "bound": _BOUND},
        claims=claims(0.93, _POLICIES),
        tables=[
            latency_table(0.93, _POLICIES, _BOUND, _LOAD),
            shares_table(0.93, _POLICIES, _BOUND, {"tiny": 0.55, "large": 0.96}),
        ],
        closing=["\nFigure: out/demo.png and demo.svg", "  curl -s localhost:8000/" + "x" * 50],
        seed=1,
        seconds=1.0,
        warnings=["priced: the generator was late"],
    )


def test_json_has_what_scripts_rely_on(result):
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["schema"] == 1
    assert document["target"] == 0.93
    assert document["policies"] == list(_POLICIES)
    assert document["warnings"] == ["priced: the generator was late"]
    assert document["seed"] == 1
    assert document["seconds"] > 0
    assert document["machine"]["cores"] >= 1
    claim = document["claims"][0]
    assert claim == {
        "claim": "tad-op is within 0.001 of the target 0.93",
        "holds": True,
        "measured": "0.9305 by profile, 0.931 measured",
    }


def test_text_shows_every_policy_the_bound_and_whole_commands(result):
    out = io.StringIO()
    console = Console(file=out, width=80)
    for part in result.to_text():
        console.print(part)
    text = out.getvalue()
    for policy in _POLICIES:
        assert policy["policy"] in text
    assert "lower bound (LP)" in text
    fast, shares = (line.split()[2:] for line in text.splitlines() if "bound with" in line)
    assert (fast, shares) == (["1.4"], ["0.9300", "89", "%", "11", "%"])
    assert "large" in text
    assert "40 %" in text
    assert "25.0 %" in text
    assert "0.931 [0.920, 0.940]" in text
    assert "Warning: priced: the generator was late" in text
    assert "yes  fastest-only misses the target (0.550, at most 0.600)" in text
    assert "out/demo.png" in text
    for line in result.closing:
        assert line.strip() in text


def test_claims_hold_on_what_they_describe():
    found = claims(0.93, _POLICIES)
    assert len(found) == 8
    assert all(claim.reproduced for claim in found)


@pytest.mark.parametrize(
    ("index", "changes", "broken"),
    [
        (0, {"accuracy_interval": (0.5, 0.94)}, "fastest-only misses"),
        (0, {"profile_accuracy": 0.93}, "fastest-only misses"),
        (1, {"p95_s": 0.089}, "3 times the p95 of tad-op"),
        (2, {"profile_accuracy": 0.9289}, "tad-op is within"),
        (3, {"accuracy_interval": (0.9, 0.929)}, "priced keeps"),
        (3, {"profile_accuracy": 0.9294}, "priced keeps"),
        (4, {"profile_accuracy": 0.9294}, "escalate keeps"),
        (4, {"accuracy_interval": (0.9, 0.929)}, "escalate keeps"),
        (4, {"mean_s": 0.00251}, "escalate has at most half of the mean of priced"),
    ],
)
def test_claims_fail_when_they_should(index, changes, broken):
    policies = list(_POLICIES)
    policies[index] = policies[index] | changes
    failed = [claim.says for claim in claims(0.93, policies) if not claim.reproduced]
    assert len(failed) == 1
    assert broken in failed[0]


def test_claims_about_policies_that_did_not_run_are_left_out():
    assert [c.says for c in claims(0.93, [_PRICED])] == ["priced keeps the target 0.93"]
