"""Reports of simulations: what they say of promises, and that nothing is missing."""

from __future__ import annotations

import re
from typing import Any

import inferway
from inferway.experiments import rehearsal

VARIANTS: dict[str, Any] = {
    "variants": {
        "quick": {"accuracy": 0.7, "service": {"rate": "100/s"}},
        "exact": {"accuracy": 0.9, "service": {"rate": "20/s"}},
    }
}
SITE: dict[str, Any] = {
    "tasks": {"t": VARIANTS | {"accuracy_target": 0.8}},
    "nodes": {"here": {"instances": {"t/quick": 2, "t/exact": 2}}},
    "dispatch": {"policy": "priced"},
    "seed": 1,
    "workload": {"t": {"arrivals": {"process": "poisson", "rate": "30/s"}}},
}
NETWORK: dict[str, Any] = {
    "tasks": {
        "t": {"variants": {"a": {"accuracy": 0.8, "size": "1 MB", "service": {"mean": "10 ms"}}}}
    },
    "network": {
        "tree": [
            {"tier": "cloud", "nodes": 1, "repository": True},
            {"tier": "edge", "nodes": 2, "rtt": "30 ms", "budget": "2 MB"},
        ]
    },
    "placement": {"policy": "static-greedy"},
    "workload": {"t": {"arrivals": {"process": "poisson", "rate": "9/s"}}},
}


def words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.partition("<body>")[2]))


def site(task: dict[str, Any] | None = None, **changes: Any) -> str:
    tasks = SITE["tasks"] if task is None else {"t": VARIANTS | task}
    deployment = inferway.load(SITE | {"tasks": tasks}).with_(**changes)
    result = inferway.simulate(deployment, queries=20_000)
    return rehearsal.of_site(deployment, result)


def state(page: str) -> str:
    (found,) = re.findall(r'<article class="strip" data-state="([\w-]+)"', page)
    return str(found)


def test_a_promise_that_is_kept() -> None:
    page = site()
    assert state(page) in ("kept", "at-risk")  # by a few thousandths of a balance
    said = words(page)
    for part in (
        "Task t", "bound of the mean", "mean by profile", "Latency against the bound",
        "Who answers", "By variant", "Dispatch by priced.",
    ):  # fmt: skip
        assert part in said
    assert page.count('role="img"') == 2


def test_a_promise_that_is_missed_has_the_reason() -> None:
    page = site(policy="fastest-only")
    assert state(page) == "missed"
    assert "The mean of 20,000 answers is below its target." in words(page)


def test_a_deadline_is_told_by_what_was_in_time() -> None:
    page = site({"deadline": "20 ms"}, policy="deadline")
    assert state(page) == "none"
    said = words(page)
    assert re.search(r"\d % in time", said)
    assert "Its deadline is 20 ms: " in said


def test_without_target_and_deadline_nothing_is_promised() -> None:
    said = words(site({}, policy="fastest-only"))
    assert "nothing promised" in said


def test_a_network_has_its_figures_and_tables() -> None:
    deployment = inferway.load(NETWORK)
    found = inferway.simulate(deployment, slots=2).network
    page = rehearsal.of_network(deployment, found)
    assert page.count('role="img"') == 3
    said = words(page)
    for part in ("gain per request", "By tier", "By task", "Map of the nodes"):
        assert part in said


def test_a_sweep_counts_where_the_promise_is_kept() -> None:
    deployment = inferway.load(SITE)
    policies = ["fastest-only", "priced"]
    found = inferway.sweep(deployment, load=[0.2, 0.4], policy=policies, queries=5_000)
    page = rehearsal.of_sweep(deployment, found)
    assert state(page) == "missed"
    assert re.search(r"kept at [012] of 4 points", words(page))
    assert "missed: 2" in words(page)
    assert page.count('role="img"') == 1
