from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from inferway.demo.load import Load
from inferway.demo.result import DemoResult, LowerBound, PolicyResult, claims

_PRICED = PolicyResult(
    policy="priced",
    accuracy=0.931,
    accuracy_interval=(0.92, 0.94),
    profile_accuracy=0.9305,
    mean_s=0.005,
    p50_s=0.004,
    p95_s=0.02,
    p99_s=0.03,
    rejected=0.0,
    failed=0.0,
    shares={"tiny": 0.6, "large": 0.4},
    offered=4000,
    send_lag_p99_s=1e-4,
)
_POLICIES = (
    replace(
        _PRICED,
        policy="fastest-only",
        accuracy=0.55,
        accuracy_interval=(0.5, 0.6),
        profile_accuracy=0.55,
    ),
    replace(_PRICED, policy="most-accurate-only", p95_s=0.4, rejected=0.25),
    replace(_PRICED, policy="tad-op", p95_s=0.03),
    _PRICED,
)


@pytest.fixture
def result(tmp_path):
    return DemoResult(
        task="digits",
        target=0.93,
        policies=_POLICIES,
        bound=LowerBound(150.0, 320.0, 0.003, {"tiny": 0.7, "large": 0.3}, ((0.9, 0.002),)),
        load=Load(300.0, 90.0, 100.0, 225.0),
        service_s={"tiny": 0.0005, "large": 0.011},
        accuracies={"tiny": 0.55, "large": 0.96},
        figure=(Path("out/demo.png"), Path("out/demo.svg")),
        request=Path("out/request.json"),
        next_steps=(
            "inferway serve examples/digits.yaml",
            "curl -s localhost:8000/" + "x" * 50,
        ),
        machine={"cores": 2},
        seed=1,
        seconds=100.0,
        warnings=("priced: the generator was late",),
    )


def test_json_has_what_scripts_rely_on(result):
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["schema"] == 1
    assert document["target"] == 0.93
    assert [p["policy"] for p in document["policies"]] == [p.policy for p in _POLICIES]
    wanted = {
        "policy",
        "accuracy",
        "accuracy_interval",
        "profile_accuracy",
        "p50_s",
        "p95_s",
        "p99_s",
        "rejected",
        "shares",
    }
    for policy in document["policies"]:
        assert wanted <= set(policy)
    assert document["policies"][3]["accuracy_interval"] == [0.92, 0.94]
    assert document["policies"][1]["rejected"] == 0.25
    assert document["policies"][0]["shares"] == {"tiny": 0.6, "large": 0.4}
    assert document["bound"]["least_response_time_s"] == 0.003
    assert document["load"]["mean_per_s"] == pytest.approx(100 * 2 / 3 + 225 / 3)


def test_text_shows_every_policy_the_bound_and_whole_commands(result):
    out = io.StringIO()
    console = Console(file=out, width=80)
    for part in result.to_text():
        console.print(part)
    text = out.getvalue()
    for policy in _POLICIES:
        assert policy.policy in text
    assert "lower bound (LP)" in text
    assert "large" in text
    assert "40 %" in text
    assert "25.0 %" in text
    assert "0.931 [0.920, 0.940]" in text
    assert "Warning: priced: the generator was late" in text
    assert "out/demo.png" in text
    for step in result.next_steps:
        assert f"  {step}" in text


def test_claims_hold_on_what_they_describe():
    found = claims(0.93, _POLICIES)
    assert len(found) == 5
    assert all(claim.holds for claim in found)


@pytest.mark.parametrize(
    ("index", "changes", "broken"),
    [
        (0, {"accuracy_interval": (0.5, 0.94)}, "fastest-only misses"),
        (0, {"profile_accuracy": 0.93}, "fastest-only misses"),
        (1, {"p95_s": 0.089}, "3 times the p95 of tad-op"),
        (2, {"profile_accuracy": 0.9289}, "tad-op keeps"),
        (3, {"accuracy_interval": (0.9, 0.929)}, "priced keeps"),
    ],
)
def test_claims_fail_when_they_should(index, changes, broken):
    policies = list(_POLICIES)
    policies[index] = replace(policies[index], **changes)
    failed = [claim.claim for claim in claims(0.93, policies) if not claim.holds]
    assert len(failed) == 1
    assert broken in failed[0]


def test_claims_about_policies_that_did_not_run_are_left_out():
    assert [c.claim for c in claims(0.93, [_PRICED])] == ["priced keeps the target 0.93"]
