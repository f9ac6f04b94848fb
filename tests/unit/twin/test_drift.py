"""A variant falls in the twin: by profiles nobody notices, by labels the mean comes back."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.deployment import Drift
from inferway.dispatch.joint import BALANCE
from inferway.experiments.driven import twin_of
from inferway.twin.drift import Labeling
from inferway.twin.engine import engine_of
from inferway.twin.result import TaskResult
from inferway.twin.scenario import scenario_of

TARGET, SHARE = 0.9, 0.05
FILE: dict[str, Any] = {
    "tasks": {
        "t": {
            "accuracy_target": {"mean": TARGET, "by": "measured"},
            "feedback": {},
            "drift": {
                "variant": "c",
                "at": "600 s",
                "accuracy": "-10 %",
                "labels": SHARE,
                "alarm": False,
            },
            "difficulty": {"quality": 0.8},
            "variants": {
                "a": {"accuracy": 0.82, "service": {"mean": "5 ms"}},
                "b": {"accuracy": 0.93, "service": {"mean": "20 ms"}},
                "c": {"accuracy": 0.95, "service": {"mean": "15 ms"}},
            },
        }
    },
    "nodes": {"here": {"instances": {"t/a": 2, "t/b": 3, "t/c": 2}}},
    "workload": {"t": {"arrivals": {"process": "poisson", "rate": "100/s"}}},
}


@cache
def simulated(by: str, policy: str, queries: int = 300_000) -> TaskResult:
    deployment = inferway.load(FILE).with_(policy=policy, **{"tasks.t.accuracy_target.by": by})
    return inferway.simulate(deployment, queries=queries, seed=3).tasks["t"]


@pytest.mark.parametrize("policy", ["priced", "tad", "escalate"])
def test_after_a_fall_the_mean_of_labels_comes_back_by_what_is_measured(policy: str) -> None:
    measured, profile = (simulated(by, policy).drift for by in ("measured", "profile"))
    assert measured is not None
    assert profile is not None
    for one in (measured, profile):
        assert one.before == pytest.approx(TARGET, abs=0.004)
        assert one.last_labels == 2_000
    assert measured.last_mean >= TARGET - measured.half_width
    assert profile.last_mean < TARGET - profile.half_width
    assert measured.after > profile.after + 0.01


def test_what_counts_is_what_is_measured_and_what_is_true_is_told_beside_it() -> None:
    result = simulated("measured", "priced")
    drift, true = result.drift, result.by_labels
    assert drift is not None
    assert true is not None
    assert result.accuracy.mean == pytest.approx(TARGET, abs=0.001)
    assert drift.labels == pytest.approx(SHARE * result.queries, rel=0.03)
    # 600 s of 3,000 were before.
    assert true.mean == pytest.approx(0.2 * drift.before + 0.8 * drift.after, abs=0.0005)
    assert result.to_json()["drift"]["by"] == "measured"
    assert result.warmup == 0
    shares = simulated("profile", "priced").shares
    assert result.shares["b"] > shares["b"] + 0.2  # who is the best by now


def test_without_a_drift_nothing_is_told_of_one() -> None:
    task = {name: one for name, one in FILE["tasks"]["t"].items() if name != "drift"}
    deployment = inferway.load(FILE | {"tasks": {"t": task}})
    result = inferway.simulate(deployment, queries=2_000).tasks["t"]
    assert (result.drift, "drift" in result.to_json()) == (None, False)


def test_the_report_shows_it() -> None:
    deployment = inferway.load(FILE).with_(policy="priced")
    text = str(inferway.simulate(deployment, queries=2_000))
    assert "true accuracy until 600 s" in text
    assert "and after, c drifted" in text


def test_no_label_changes_nothing() -> None:
    deployment = inferway.load(FILE).with_(policy="priced", **{"tasks.t.drift.labels": 0})
    result = inferway.simulate(deployment, queries=100_000, seed=3).tasks["t"]
    assert result.drift is not None
    assert result.drift.labels == 0
    assert math.isnan(result.drift.last_mean)
    assert result.drift.after == pytest.approx(simulated("profile", "priced").drift.after, abs=0.01)  # type: ignore[union-attr]


def test_a_variant_falls_on_every_device_that_its_copies_run_on() -> None:
    task = {
        "accuracy_target": {"mean": 0.6, "by": "measured"},
        "feedback": {},
        "drift": {
            "variant": "c",
            "at": "50 s",
            "accuracy": "-20 %",
            "labels": 0.5,
            "alarm": False,
        },
        "variants": {
            "c": {"accuracy": 0.9, "service": {"cpu": {"mean": "20 ms"}, "tpu": {"mean": "10 ms"}}}
        },
    }
    node = {
        "devices": {"cpu": {"cores": 2}, "tpu": {"count": 1}},
        "instances": {"t/c": {"cpu": 2, "tpu": 1}},
    }
    deployment = inferway.load(FILE | {"tasks": {"t": task}, "nodes": {"here": node}})
    result = inferway.simulate(deployment, queries=20_000, seed=3).tasks["t"]
    assert set(result.shares) == {"c:cpu", "c:tpu"}
    assert min(result.shares.values()) > 0.1
    drift = result.drift
    assert drift is not None
    assert (drift.before, drift.after) == pytest.approx((0.9, 0.7))
    # What counts falls behind the truth for as long as it takes to label 500 answers.
    assert result.accuracy.mean == pytest.approx(0.25 * 0.9 + 0.75 * 0.7, abs=0.04)
    assert drift.last_mean == pytest.approx(0.7, abs=2 * drift.half_width)


def test_what_is_driven_does_not_rehearse_a_fall() -> None:
    node = {"here": {"instances": {"t/a": 1, "t/c": 2}}}
    falls = inferway.load(FILE | {"nodes": node}).with_(policy="priced")
    record: Any = SimpleNamespace(task="t", intended_s=np.arange(3_000) / 100)
    tasks = {"t": replace(falls.tasks["t"], drift=Drift("c", 0.0, -0.6, 1.0, False))}
    fallen = twin_of(replace(falls, tasks=tasks), {"t": record}, {"t": None}, seed=1)
    tasks = {"t": replace(falls.tasks["t"], drift=None)}
    plain = twin_of(replace(falls, tasks=tasks), {"t": record}, {"t": None}, seed=1)
    assert fallen == plain


def test_a_variant_that_is_not_here_cannot_fall() -> None:
    nodes = {"here": {"instances": {"t/a": 2, "t/b": 3}}}
    deployment = inferway.load(FILE | {"nodes": nodes})
    with pytest.raises(ValueError, match="a drift of c, which is none of the variants here: a, b"):
        inferway.simulate(deployment, queries=2_000)


def followed(engine: Any, labeling: Labeling, until_s: float) -> list[float]:
    """Run an engine with labels, and tell the accuracy that counts for the last class, by time."""
    counted = []
    ends = {"look": labeling.every_s, "explore": labeling.explore_s}
    due = dict(ends)
    while engine.now_s < until_s:
        name = min(due, key=lambda one: due[one] or math.inf)
        engine.advance(1_000_000, due[name])
        due[name] += ends[name]  # type: ignore[operator]
        if name == "look":
            labeling.look()
        elif (k := labeling.explored()) >= 0:
            engine.explore(k)
        counted.append(float(engine.site.accuracy[labeling._fleet.variants.index("c")]))
    return counted


@pytest.mark.parametrize(
    ("policy", "start", "right", "until_s"),
    [
        ("priced", 60, 0.5, 1_800.0),
        pytest.param("tad", 60, 0.5, 1_800.0, marks=pytest.mark.slow),
        pytest.param("tad", 600, 0.6, 4_000.0, marks=pytest.mark.slow),
        pytest.param("priced", 600, 0.6, 5_000.0, marks=pytest.mark.slow),
    ],
)
def test_a_variant_that_labels_have_ruled_out_is_used_again(
    policy: str, start: int, right: float, until_s: float
) -> None:
    """It had an unlucky start, or was bad for a while, and is as its profile says from then on."""
    deployment = inferway.load(FILE).with_(
        policy=policy, **{"tasks.t.drift.labels": 0.5, "tasks.t.drift.at": "1000000 s"}
    )
    scenario = scenario_of(deployment, "t")
    engine = engine_of(scenario, seed=5)
    engine.count_anew()
    fleet = scenario.fleet
    labeling = Labeling(engine, fleet, scenario.drift, measured=True, rate_per_s=100.0, seed=(5, 0))
    k = fleet.variants.index("c")
    for number in range(start):
        labeling._labeled[k].add(float(number % 10 < 10 * right), 0.95)
    counted = followed(engine, labeling, until_s)
    assert min(counted) < 0.7
    assert counted[-1] > 0.93
    answered = engine.tally.answered.sum(axis=0)
    assert answered[k] > 0.05 * answered.sum()
    # What was promised is kept all the while, and by labels.
    scores = np.array(labeling.labels.scores)
    assert len(scores) == 2_000
    assert scores.mean() >= TARGET - 1.96 * scores.std() / math.sqrt(len(scores))
    assert labeling.right / answered.sum() >= TARGET - 0.002


def test_a_variant_that_stays_as_bad_is_asked_for_one_answer_in_a_hundred() -> None:
    deployment = inferway.load(FILE).with_(
        policy="priced", **{"tasks.t.drift.at": "0 s", "tasks.t.drift.accuracy": "-60 %"}
    )
    drift = inferway.simulate(deployment, queries=300_000, seed=3).tasks["t"]
    assert drift.shares["c"] == pytest.approx(0.01, abs=0.003)
    assert drift.drift is not None
    assert drift.drift.last_mean >= TARGET - drift.drift.half_width
    assert drift.by_labels is not None
    assert drift.by_labels.mean >= TARGET - 0.003


def test_an_alarm_is_rehearsed_and_makes_what_counts_follow_sooner() -> None:
    pytest.importorskip("river.drift", reason="alarms need river: pip install 'inferway[drift]'")
    quiet = simulated("measured", "priced").drift
    deployment = inferway.load(FILE).with_(policy="priced", **{"tasks.t.drift.alarm": True})
    told = inferway.simulate(deployment, queries=300_000, seed=3).tasks["t"].drift
    assert quiet is not None
    assert told is not None
    assert (quiet.alarms, math.isnan(quiet.alarm_s)) == (0, True)
    assert (told.alarms, told.false_alarms) == (1, 0)
    assert 0.0 < told.alarm_s < 600.0
    assert told.after > quiet.after - 0.002
    assert told.last_mean >= TARGET - told.half_width


def test_without_river_an_alarm_is_not_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferway.dispatch.drift_alarm.find_spec", lambda name: None)
    deployment = inferway.load(FILE).with_(policy="priced", **{"tasks.t.drift.alarm": True})
    with pytest.raises(ValueError, match=r"drift alarms need river.*or say `alarm"):
        inferway.simulate(deployment, queries=2_000)


def test_nobody_explores_while_a_target_over_several_tasks_is_behind() -> None:
    other = {"variants": {"a": {"accuracy": 0.9, "service": {"mean": "5 ms"}}}}
    deployment = inferway.load(
        FILE
        | {
            "tasks": FILE["tasks"] | {"u": other},
            "targets": {"both": {"tasks": ["t", "u"], "accuracy": 0.85}},
            "nodes": {"here": {"instances": {"t/a": 2, "t/b": 3, "t/c": 2, "u/a": 1}}},
            "workload": FILE["workload"]
            | {"u": {"arrivals": {"process": "poisson", "rate": "50/s"}}},
        }
    )
    scenario = scenario_of(deployment.with_(policy="priced"), "t")
    engine = engine_of(scenario, seed=5)
    engine.count_anew()
    accuracy = scenario.fleet.accuracy
    labeling = Labeling(
        engine, scenario.fleet, scenario.drift, measured=True, rate_per_s=100.0, seed=(5, 0)
    )
    labeling._exploration.follow(accuracy, accuracy - 0.2)
    engine.site.balance[0], explored = 1.0, []
    for balance in (-1.0, 1.0):
        engine.policy.shared[0, BALANCE] = balance
        explored.append(labeling.explored() >= 0)
    assert explored == [False, True]


def shadowing(share: float) -> dict[str, Any]:
    """Have the least accurate variant fall, which is compared with the best."""
    task = FILE["tasks"]["t"]
    falls = task["drift"] | {"variant": "a", "labels": 0.02}
    return FILE | {"tasks": {"t": task | {"drift": falls, "shadow": {"share": share}}}}


def test_shadows_are_rehearsed_while_the_most_accurate_variant_is_idle() -> None:
    found = {}
    for share in (0.0, 0.5):
        deployment = inferway.load(shadowing(share)).with_(policy="priced")
        drift = inferway.simulate(deployment, queries=100_000, seed=3).tasks["t"].drift
        assert drift is not None
        found[share] = drift
    assert found[0.0].compared == 0
    assert 5_000 < found[0.5].compared < 50_000
    assert found[0.5].before == pytest.approx(TARGET, abs=0.004)


def test_by_shadows_what_counts_is_nearer_to_what_is_true() -> None:
    """While the policy is the same: nothing follows, so that the mix of variants is one."""
    errors = []
    for share in (0.0, 1.0):
        apart = []
        for seed in range(6):
            deployment = inferway.load(shadowing(share)).with_(
                policy="priced",
                **{
                    "tasks.t.drift.at": "0 s",
                    "tasks.t.drift.accuracy": "-15 %",
                },
            )
            scenario = scenario_of(deployment, "t")
            engine = engine_of(scenario, seed=seed)
            engine.count_anew()
            labeling = Labeling(
                engine,
                scenario.fleet,
                scenario.drift,
                measured=False,
                rate_per_s=100.0,
                seed=(seed, 0),
                shadow=scenario.shadow,
            )
            for turn in range(1, 150):
                engine.advance(1_000_000, turn * labeling.every_s)
                labeling.look()
            one = labeling._labeled[scenario.fleet.variants.index("a")]
            assert one.labels > 500
            apart.append(one.accuracy(0.82) - 0.67)
        errors.append(float(np.sqrt(np.mean(np.square(apart)))))
    assert errors[1] < 0.9 * errors[0]
