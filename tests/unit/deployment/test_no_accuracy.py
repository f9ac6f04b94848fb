"""Variants whose accuracy nothing says: served for the least latency, and refused to a target."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.deployment import DeploymentError, check, load
from inferway.dispatch.deployed import dispatcher_of
from inferway.site import fleet_of

Write = Callable[..., Path]


def blank(task: str = "", *, quick: str = "", more: str = "") -> str:
    """Write a file of two variants, `slow` and `quick`, of which only the latter may have more."""
    return (
        f"tasks:\n  t:\n    {task}\n    variants:\n"
        "      slow: {size: 2 GiB, service: {mean: 40 ms}}\n"
        f"      quick: {{size: 1 GiB, service: {{mean: 10 ms}}{quick}}}\n{more}"
    )


def strict(text: str) -> Any:
    """Read JSON, which has no NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_variant_needs_none_where_nothing_weighs_it(write: Write) -> None:
    deployment = load(write(blank()))
    slow = deployment.tasks["t"].variants["slow"]
    assert (slow.graded, math.isnan(slow.accuracy)) == (False, True)
    fleet = fleet_of(deployment, "t")
    assert (fleet.accuracy.tolist(), fleet.grades) == ([0.0, 0.0], [None, None])


@pytest.mark.parametrize("task", ["", "deadline: 100 ms"])
def test_latency_alone_decides_where_no_accuracy_is_known(write: Write, task: str) -> None:
    deployment = load(write(blank(task)))
    assert deployment.policy_of("t").policy == "least-cost"
    dispatcher = dispatcher_of(deployment, "t")
    # The fourth that waits at the quick one would take as long as the slow one.
    assert [dispatcher.arrive(0.0, 0) for _ in range(5)] == [0, 0, 0, 0, 1]


def test_what_is_known_comes_before_what_is_not(write: Write) -> None:
    deployment = load(write(blank(quick=", accuracy: 0.5")))
    assert deployment.policy_of("t").policy == "deadline"
    dispatcher = dispatcher_of(deployment, "t")
    assert [dispatcher.arrive(0.0, 0) for _ in range(5)] == [0] * 5
    assert fleet_of(deployment, "t").grades == [0.5, None]


def test_check_says_so_once_for_each_task(write: Write) -> None:
    path = write(blank(quick=", accuracy: 0.5") + "  u: {variants: {a: {service: {mean: 1 s}}}}\n")
    with_two = write(blank(), "two.yaml")
    (first, second), (both,) = check(load(path)), check(load(with_two))
    assert (first.kind, first.line, first.field) == ("no-accuracy", 2, "tasks.t")
    assert first.message == (
        f"slow has no `accuracy`, which `inferway profile {path} --data TEST --write` measures; "
        "without, the task is served without a target"
    )
    assert second.message.startswith("a has no `accuracy`")
    assert both.message.startswith("slow, quick have no `accuracy`")


PHASES = "workload: {t: {arrivals: {process: phases, phases: [{for: 1 s, rate: 1/s%s}]}}}\n"
NETWORK = (
    "network: {links: [{between: [a, b], rtt: 1 ms}]}\nnodes: {a: {}, b: {repository: true}}\n"
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            blank("accuracy_target: 0.5"),
            "3: tasks.t.accuracy_target: a target needs every accuracy",
        ),
        (
            blank(more=PHASES % ", accuracy_target: 0.5"),
            "7: workload.t.arrivals.phases[0].accuracy_target: a target needs every accuracy",
        ),
        (
            blank(more="dispatch: {policy: most-accurate-only}\n"),
            "7: dispatch: most-accurate-only needs every accuracy",
        ),
        (
            blank("dispatch: {policy: jiq-accurate}"),
            "3: tasks.t.dispatch: jiq-accurate needs every accuracy",
        ),
        (blank(more="dispatch: {policy: hw-e}\n"), "7: dispatch: hw-e needs every accuracy"),
        (blank(more="scheduling: {policy: hw}\n"), "7: scheduling: hw needs every accuracy"),
        (
            blank(more=NETWORK),
            "2: tasks.t: a network, which weighs accuracy against latency, needs every accuracy",
        ),
    ],
)
def test_who_weighs_accuracies_needs_them_all(write: Write, text: str, sentence: str) -> None:
    path = write(text)
    with pytest.raises(DeploymentError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path}:{sentence}, but slow, quick have no `accuracy`, which `inferway profile {path} "
        "--data TEST --write` measures"
    )


@pytest.mark.parametrize("policy", ["fastest-only", "deadline", "least-cost", "sq", "jiq-fast"])
def test_other_policies_do_without(write: Write, policy: str) -> None:
    deployment = load(write(blank(more=f"dispatch: {{policy: {policy}}}\n")))
    assert dispatcher_of(deployment, "t").arrive(0.0, 0) == 0


def test_a_target_that_is_set_later_is_refused_too(write: Write) -> None:
    deployment = load(write(blank(quick=", accuracy: 0.5")))
    with pytest.raises(DeploymentError, match="needs every accuracy, but slow has no `accuracy`"):
        deployment.with_(target=0.4)


def test_a_simulation_knows_no_accuracy_and_says_none(write: Write) -> None:
    rate = "workload: {t: {arrivals: {process: poisson, rate: 120/s}}}\n"
    deployment = load(write(blank(quick=", accuracy: 0.5", more=rate)))
    result = inferway.simulate(deployment, queries=2_000, policy="least-cost")
    told = strict(json.dumps(result.to_json()))["tasks"]["t"]
    assert told["accuracy"] == {"mean": None, "stderr": None}
    assert (told["goodput"], told["balance"]) == (None, None)
    assert "accuracy  " in str(result)
    assert "nan" not in str(result)
    (row,) = result.to_frame().to_dict("records")
    assert row["accuracy.mean"] is None


def test_a_plan_and_a_bound_go_by_times_alone(write: Write) -> None:
    rate = "workload: {t: {arrivals: {process: poisson, rate: 60/s}}}\n"
    deployment = load(write(blank(more=rate)))
    found = inferway.plan(deployment, latency=0.05, queries=2_000)
    assert strict(json.dumps(found.to_json()))["tasks"]["t"]["simulated"]["accuracy"] is None
    assert "nan" not in str(found)
    assert inferway.bound(deployment)["t"].max_rate_per_s == pytest.approx(125.0)
