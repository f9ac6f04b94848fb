"""Plans: the fewest instances that hold, limits, and what cannot be planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import inferway
from inferway.deployment import Deployment
from inferway.experiments.planned import plan
from inferway.twin import run, scenario_of

ONE = """\
tasks:
  t:
    deadline: 1.5 s
    LIMIT
    variants:
      a: {accuracy: 0.9, size: 1 GiB, service: {distribution: exponential, rate: 1/s}}
nodes: {here: {NODE}}
dispatch: {policy: jiq-fast}
workload: {t: {arrivals: {process: poisson, rate: 3/s}}}
"""
TWO = """\
tasks:
  t:
    accuracy_target: 0.8
    variants:
      a: {accuracy: 0.7, price: 1, service: {distribution: exponential, rate: 2/s}}
      b: {accuracy: 0.9, price: 2.5, service: {distribution: exponential, rate: 1/s}}
"""


def loaded(path: Path, text: str) -> Deployment:
    file = path / "d.yaml"
    file.write_text(text, encoding="utf-8")
    return inferway.load(file)


def one(path: Path, limit: str = "count: 1", node: str = "hardware: cpu") -> Deployment:
    return loaded(path, ONE.replace("LIMIT", limit).replace("NODE", node))


def test_the_fewest_servers_that_hold(tmp_path: Path) -> None:
    deployment = one(tmp_path)
    found = plan(deployment, queries=60_000).tasks["t"]
    (count,) = found.instances.values()
    assert found.holds
    assert found.cheapest
    assert found.price == count
    # One fewer was tried, or is too few by the bound; both as the twin says by itself.
    for servers, holds in ((count, True), (count - 1, False)):
        node = replace(deployment.nodes["here"], instances={("t", "a"): servers})
        scenario = scenario_of(replace(deployment, nodes={"here": node}), "t")
        result = run(replace(scenario, deadline_s=None), queries=60_000)
        assert (result.stable and result.response_time_s.mean <= 1.5) == holds


def test_two_variants_and_a_file_to_paste(tmp_path: Path) -> None:
    deployment = loaded(tmp_path, TWO)
    found = plan(deployment, rate=4.0, latency=1.2, queries=40_000, tries=20)
    task = found.tasks["t"]
    assert found.holds
    assert set(task.instances) == {"a", "b"}
    assert task.price == task.instances["a"] + 2.5 * task.instances["b"]
    assert task.simulated.response_time_s <= 1.2
    assert task.simulated.accuracy >= 0.8 - 1e-3
    cheaper = [trial for trial in task.trials if price(trial.instances) < task.price]
    assert cheaper
    assert not any(trial.holds for trial in cheaper)
    again = loaded(tmp_path, TWO + found.yaml).nodes["here"].instances
    assert again == {("t", name): count for name, count in task.instances.items()}


def test_who_may_ask_twice_needs_less(tmp_path: Path) -> None:
    text = TWO.replace("  t:\n", "  t:\n    difficulty: {quality: 0.9}\n")
    asked = {}
    for policy, bound in (("priced", "blind"), ("escalate", "escalation")):
        deployment = loaded(tmp_path, f"{text}dispatch: {{policy: {policy}}}\n")
        found = plan(deployment, rate=4.0, latency=1.2, queries=10_000, tries=4)
        assert found.holds
        asked[policy] = found.tasks["t"]
        assert asked[policy].to_json()["bound"] == bound
        said = "Sized by the bound with escalation." in " ".join(str(found).split())
        assert said == (policy == "escalate")
    assert asked["escalate"].price < asked["priced"].price


def test_a_target_that_only_asking_twice_reaches_is_planned(tmp_path: Path) -> None:
    text = TWO.replace("  t:\n", "  t:\n    difficulty: {quality: 0.9, common: 0.3}\n")
    text = text.replace("accuracy_target: 0.8\n", "accuracy_target: 0.91\n")
    twice = loaded(tmp_path, f"{text}dispatch: {{policy: escalate}}\n")
    assert plan(twice, rate=1.0, latency=5.0, queries=5_000, tries=2).holds
    with pytest.raises(ValueError, match=r"the service alone takes 0\.\d+ s or more"):
        plan(twice, rate=1.0, latency=0.6)


def price(instances: dict[str, int]) -> float:
    return instances.get("a", 0) + 2.5 * instances.get("b", 0)


def test_pinned_copies_stay_and_budgets_are_kept(tmp_path: Path) -> None:
    pinned = one(tmp_path, node="instances: {t/a: 7}, pinned: {t/a: 7}")
    assert plan(pinned, queries=20_000).tasks["t"].instances == {"a": 7}
    with pytest.raises(ValueError, match=r"no instances within the node's budget were found"):
        plan(one(tmp_path, node="budget: 3 GiB"), queries=20_000)
    with pytest.raises(
        ValueError, match=r"within `max_instances` were found .*; 1 that could were"
    ):
        plan(one(tmp_path, limit="max_instances: 4"), latency=1.2, queries=20_000)


def test_what_cannot_be_planned_is_said(tmp_path: Path) -> None:
    deployment = one(tmp_path)
    with pytest.raises(ValueError, match=r"answers within 500 ms on average; the service alone"):
        plan(deployment, latency=0.5)
    with pytest.raises(ValueError, match="give the greatest mean response time with --latency"):
        plan(loaded(tmp_path, TWO), rate=1.0)
    with pytest.raises(ValueError, match="no `workload`"):
        plan(loaded(tmp_path, TWO))
    by_load = one(tmp_path).path.read_text().replace("rate: 3/s", "load: 0.5")
    with pytest.raises(ValueError, match="a load is relative to the instances"):
        plan(loaded(tmp_path, by_load))
    with pytest.raises(ValueError, match="unknown node 'there'"):
        plan(deployment, node="there")
