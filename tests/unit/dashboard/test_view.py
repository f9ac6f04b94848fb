from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lately import SURE, fleet

from inferway.dashboard.past import tables_told
from inferway.dashboard.view import (
    VERDICTS,
    Curves,
    blocks_view,
    prepare,
    quantiles,
    series_of,
    source_view,
    task_view,
)
from inferway.dashboard.watched import WatchedServer
from inferway.dispatch.bounds import max_rate, solve
from inferway.dispatch.escalation_bounds import max_escalation_rate, solve_escalation
from inferway.loadgen import Access
from inferway.site import Fleet
from inferway.site.devices import DeviceSlots

NOW = 1_000_000_000.0
BOUNDS_S = [0.001, 0.002, 0.005, 0.01]
FLEET = Fleet(("tiny", "big"), np.array([1e3, 1e2]), np.array([0.7, 0.9]), np.array([2, 1]))


def variant(accuracy: float, service_s: float, healthy: list[bool]) -> dict[str, Any]:
    return {
        "accuracy": accuracy,
        "profile_service_s": service_s,
        "mean_service_s": service_s,
        "mean_latency_s": 2 * service_s,
        "instances": len(healthy),
        "healthy": healthy,
        "queue": [1] * len(healthy),
        "answers": 100,
        "memory": None,
    }


def row(**given: Any) -> dict[str, Any]:
    keys = (
        "arrivals answered rejected expired failed accuracy latency_mean_s latency_p50_s "
        "latency_p95_s latency_p99_s target mean balance in_flight"
    )
    told: dict[str, Any] = dict.fromkeys(keys.split(), 0.0)
    variants = {"tiny": {"answered": 3.0, "latency_mean_s": 0.002}, "big": {"answered": 1.0}}
    return told | {"variants": variants} | given


def source_of(
    promise: dict[str, Any] | None = None, *, rate: float = 4.0, healthy: bool = True
) -> WatchedServer:
    source = WatchedServer("http://127.0.0.1:8002", Access())
    source.state, source.bounds_s = "answers", BOUNDS_S
    source.status = {
        "ready": True,
        "tasks": {
            "digits": {
                "accuracy_target": None if promise is None else promise["target"],
                "promise": promise,
                "variants": {
                    "big": variant(0.9, 0.01, [healthy]),
                    "tiny": variant(0.7, 0.001, [True, True]),
                },
            }
        },
    }
    source.times = deque(NOW + second for second in range(30))
    source.rows["digits"] = deque(
        row(arrivals=rate, answered=4.0, latency_mean_s=0.003) for _ in range(30)
    )
    source.counts["digits"] = deque(
        [
            (NOW + 10, {"tiny": [5, 0, 0, 0, 0]}),
            (NOW + 29, {"tiny": [5, 60, 30, 0, 0], "big": [0, 0, 0, 9, 1]}),
        ]
    )
    return source


def viewed(source: WatchedServer) -> dict[str, Any]:
    curves: Curves = {}
    assert prepare([source.status], curves, 60.0)
    return task_view(source, "digits", curves)


def test_what_is_asked_again_and_the_bound_of_those_who_may() -> None:
    source = source_of()
    assert viewed(source)["escalations"] is None
    assert viewed(source)["bound"]["escalate"] is None
    source.again["digits"] = deque(
        [
            (NOW + 10, {("tiny", "big"): 5}),
            (NOW + 29, {("tiny", "big"): 25, ("big", "tiny"): 10, ("tiny", "tiny"): 0}),
        ]
    )
    source.status["tasks"]["digits"] |= {"accuracy_target": 0.88, "fleet": fleet(confidence=SURE)}
    shown = viewed(source)
    assert shown["escalations"]["share"] == pytest.approx(0.3)
    assert shown["escalations"]["pairs"] == [
        {"first": "tiny", "then": "big", "share": pytest.approx(0.2)},
        {"first": "big", "then": "tiny", "share": pytest.approx(0.1)},
    ]
    once, twice = shown["bound"], shown["bound"]["escalate"]
    sure = tables_told(fleet(confidence=SURE))
    both = replace(FLEET, confidence=sure)
    assert once["max_rate_per_s"] == pytest.approx(max_rate(FLEET, 0.88))
    assert twice["max_rate_per_s"] == pytest.approx(max_escalation_rate(both, 0.88))
    assert once["least_s"] == pytest.approx(solve(FLEET, 0.88, 4.0).response_time_s)
    assert twice["least_s"] == pytest.approx(solve_escalation(both, 0.88, 4.0).response_time_s)
    assert twice["least_s"] < once["least_s"]
    # Beyond what any policy carries that asks once, this one does not yet promise too much.
    rates = [at for at, _ in twice["curve"]]
    assert rates[0] <= once["max_rate_per_s"] / 20
    assert rates[-1] == twice["max_rate_per_s"]


def test_the_bound_of_those_who_share_devices() -> None:
    source = source_of()
    alone = viewed(source)["bound"]["max_rate_per_s"]
    told = fleet(devices={"cpu": 1, "edge": 2})
    for one, device in zip(told["classes"], ("cpu", "cpu"), strict=True):
        one |= {"device": device, "slots": 1}
    source.status["tasks"]["digits"] |= {"fleet": told}
    shared = viewed(source)["bound"]
    slots = DeviceSlots(
        *(("cpu", "edge"), np.array([1, 2]), np.zeros(2, np.bool_), np.zeros(2)),
        *(np.array([0, 0]), np.array([1, 1])),
    )
    target = source.status["tasks"]["digits"]["accuracy_target"]
    most = max_rate(replace(FLEET, devices=slots), target)
    assert shared["max_rate_per_s"] == pytest.approx(most)
    assert shared["max_rate_per_s"] < 0.9 * alone
    # What the server takes of the device for each request is no more for runs.
    told["overheads_s"] = {"cpu": 0.001, "edge": 0.0}
    most = max_rate(
        replace(FLEET, devices=slots._replace(overhead_s=np.array([1e-3, 0.0]))), target
    )
    assert viewed(source)["bound"]["max_rate_per_s"] == pytest.approx(most)
    assert most < 0.9 * shared["max_rate_per_s"]
    del told["overheads_s"]
    # Where devices have a slot for every copy, all is as without.
    told["devices"]["cpu"] = 3
    assert viewed(source)["bound"]["max_rate_per_s"] == pytest.approx(alone)


def promised(state: str, **given: Any) -> dict[str, Any]:
    told = {"target": 0.8, "mean": 0.81, "balance": 3.0, "answers": 5000, "labels": None}
    return told | {"state": state} | given


@pytest.mark.parametrize(
    ("promise", "rate", "reason"),
    [
        (promised("kept"), 4.0, "The mean of 5,000 answers is at its target or above it."),
        (
            promised("at-risk", balance=-2.5),
            4.0,
            "The mean is at its target yet, but a balance of -2.5 is owed.",
        ),
        (promised("missed", mean=0.7), 4.0, "The mean of 5,000 answers is below its target."),
        (
            promised("unknown", answers=12, mean=None),
            4.0,
            "12 of the 2,000 answers that a verdict needs have been given.",
        ),
        (
            promised("unknown", answers=12, mean=0.7),
            4.0,
            "12 of the 2,000 answers that a verdict needs have been given. Their mean is below its "
            "target.",
        ),
        (
            promised("missed", mean=0.7),
            4000.0,
            "4,000 requests come a second, more than the 200 at which any policy can keep the "
            "target.",
        ),
        (
            promised("missed", target=0.95),
            4.0,
            "No mix of the healthy variants reaches the target.",
        ),
        (None, 4.0, "The task has no accuracy target."),
    ],
)
def test_a_promise_says_in_words_what_became_of_it_and_why(
    promise: dict[str, Any] | None, rate: float, reason: str
) -> None:
    shown = viewed(source_of(promise, rate=rate))["promise"]
    assert shown["reason"] == reason
    assert shown["verdict"] == VERDICTS["none" if promise is None else promise["state"]]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "mean by profile"),
        ({"by": "profile"}, "mean by profile"),
        ({"by": "measured"}, "mean as measured"),
    ],
)
def test_a_promise_says_whose_accuracies_its_mean_is_of(given: dict[str, str], name: str) -> None:
    assert viewed(source_of(promised("kept", **given)))["promise"]["mean_name"] == name


def test_a_promise_of_a_server_that_is_gone_is_not_called_kept() -> None:
    source = source_of(promised("kept"))
    source.state, source.reason = "gone", "http://127.0.0.1:8002 does not answer"
    shown = viewed(source)["promise"]
    assert shown["verdict"] == "not answering"
    assert shown["reason"] == "http://127.0.0.1:8002 does not answer."


def test_the_bound_is_that_of_the_instances_that_are_healthy() -> None:
    shown = viewed(source_of(promised("kept"), rate=100.0))["bound"]
    greatest = max_rate(FLEET, 0.8)
    assert shown["max_rate_per_s"] == pytest.approx(greatest)
    assert shown["load"] == pytest.approx(100.0 / greatest)
    assert shown["least_s"] == pytest.approx(solve(FLEET, 0.8, 100.0).response_time_s, rel=0.02)
    assert shown["curve"][-1] == pytest.approx(
        (greatest, solve(FLEET, 0.8, greatest).response_time_s)
    )
    alone = viewed(source_of(promised("kept"), healthy=False))["bound"]
    assert alone["max_rate_per_s"] is None
    assert alone["curve"] == []


def test_variants_whose_accuracy_nobody_knows_have_a_bound_and_no_number() -> None:
    source = source_of(rate=100.0)
    for one in source.status["tasks"]["digits"]["variants"].values():
        one["accuracy"] = None
    shown = viewed(source)
    assert shown["bound"]["max_rate_per_s"] == pytest.approx(2100.0)
    assert [one["accuracy"] for one in shown["variants"]] == [None, None]
    assert shown["promise"]["reason"] == "The task has no accuracy target."


def test_latency_is_of_the_last_seconds_and_shares_are_of_the_last_minute() -> None:
    shown = viewed(source_of(promised("kept")))
    assert shown["rate_per_s"] == 4.0
    assert shown["latency"]["mean_s"] == pytest.approx(0.003)
    tiny, big = shown["variants"]
    assert (tiny["name"], tiny["share"], big["share"]) == ("tiny", 0.75, 0.25)
    assert (tiny["instances"], tiny["healthy"], tiny["queued"]) == (2, 2, 2)
    assert tiny["per_s"] == 3.0
    times = shown["response_times"]
    assert times["begin_s"] == 0.001
    assert times["variants"] == {"tiny": [60, 30, 0, 0], "big": [0, 0, 9, 1]}
    assert len(times["ends_s"]) == 4


def test_accuracies_are_shown_where_labels_come_and_the_canary_with_them() -> None:
    source = source_of(promised("kept"))
    assert viewed(source)["accuracy"] is None
    told = source.status["tasks"]["digits"]
    # What a variant that has gone was worth comes last.
    measured = {"gone": {"labels": 1}, "big": {"labels": 3}, "tiny": {"labels": 2}}
    told["feedback"] = {"unknown": 0, "lost_answers": 0, "variants": measured}
    shown = viewed(source)["accuracy"]
    labels = [(one["name"], one["labels"]) for one in shown["variants"]]
    assert labels == [("tiny", 2), ("big", 3), ("gone", 1)]
    assert (shown["shadow"], shown["canary"]) == (None, None)
    told["variants"]["tiny:gpu"] = told["variants"].pop("tiny")
    again = viewed(source)["accuracy"]["variants"]
    assert [one["name"] for one in again] == ["tiny", "big", "gone"]
    told["feedback"]["shadow"] = {"busy": 1, "gave_way": 0, "failed": 0}
    told["canary"] = {"variant": "big", "state": "trying"}
    shown = viewed(source)["accuracy"]
    assert (shown["shadow"]["busy"], shown["canary"]["variant"]) == (1, "big")


def test_quantiles_lie_within_their_buckets() -> None:
    found = quantiles([50, 45, 4, 1, 0], BOUNDS_S)
    assert found["p50_s"] == pytest.approx(0.001)
    assert found["p95_s"] == pytest.approx(0.002)
    assert found["p99_s"] == pytest.approx(0.005)
    assert quantiles([0, 0, 0, 0, 3], BOUNDS_S)["p99_s"] == 0.01
    assert quantiles([], BOUNDS_S) == {"p50_s": None, "p95_s": None, "p99_s": None}


def test_series_hold_what_is_newer_and_nothing_that_is_missing() -> None:
    source = source_of(promised("kept"))
    source.rows["digits"][28] = None
    series = series_of(source, "digits", NOW + 26)
    assert series["times"] == [NOW + 27, NOW + 29]
    assert series["arrivals"] == [4.0, 4.0]
    assert series["variants"]["tiny"] == [3.0, 3.0]
    assert not math.isnan(sum(series["times"]))


def test_a_server_shows_its_variants_by_the_memory_of_their_runs() -> None:
    small, large = variant(0.7, 0.001, [True, False]), variant(0.9, 0.01, [True])
    small["memory"] = {"largest_run_bytes": 10}
    large["memory"] = {"largest_run_bytes": 100}
    told = {"digits": {"variants": {"small": small, "large": large}}}
    assert blocks_view(told, None) == [
        {"name": "digits/large", "instances": 1, "healthy": 1, "bytes": 100, "waiting": 1},
        {"name": "digits/small", "instances": 2, "healthy": 1, "bytes": 20, "waiting": 2},
    ]
    small["memory"] = None
    assert [one["bytes"] for one in blocks_view(told, None)] == [100, None]


def test_a_server_shows_its_devices_and_their_load_of_all_tasks() -> None:
    source = source_of()
    assert source_view(source)["devices"] == []
    first = {"cpu": {"slots": 4, "busy": 1, "waiting": 0}}
    other = {
        "cpu": {"slots": 4, "busy": 2, "waiting": 3},
        "gpu": {"slots": 1, "busy": 0, "waiting": 0},
    }
    source.status["tasks"]["digits"]["devices"] = first
    source.status["tasks"]["forms"] = {"variants": {}, "devices": other}
    cpu, gpu = source_view(source)["devices"]
    assert cpu == {"name": "cpu", "slots": 4, "busy": 3, "waiting": 3, "load": 0.75}
    assert gpu["load"] == 0.0
    # Of the last minute, once it has been asked more than once.
    source.busy = {"cpu": deque([0.25, 0.25, 1.0])}
    assert source_view(source)["devices"][0]["load"] == 0.5


def test_a_node_shows_what_it_runs_itself_by_its_budget() -> None:
    variants = {"small": variant(0.7, 0.001, [True]), "large@cloud": variant(0.9, 0.01, [True])}
    node = {"running": {"digits/small": 1}, "running_bytes": {"digits/small": 7}}
    (block,) = blocks_view({"digits": {"variants": variants}}, node)
    assert (block["name"], block["bytes"]) == ("digits/small", 7)
