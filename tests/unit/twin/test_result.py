"""What a simulation gives, as JSON and as a frame; and what is nothing."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import inferway as iw
from inferway.deployment.workloads import PoissonArrivals, recorded
from inferway.site import ConfidenceTables
from inferway.twin import Scenario, TwinResult, run
from inferway.twin.kernel.escalation import AnswerSample


def test_json_holds_all_that_is_promised(scenario: Scenario) -> None:
    result = run(scenario, queries=2000, replications=2, seed=1)
    found = json.loads(json.dumps(TwinResult({"words": result}).to_json(), allow_nan=False))
    assert found["schema"] == 1
    task = found["tasks"]["words"]
    assert task["response_time_s"].keys() == {"mean", "stderr", "p50", "p95", "p99"}
    assert task["accuracy"].keys() == {"mean", "stderr"}
    assert task["shares"].keys() == task["classes"].keys() == {"quick", "good"}
    assert sum(task["shares"].values()) == pytest.approx(1)
    for ratio in ("rejected", "dropped", "late", "goodput", "violation_ratio"):
        assert 0 <= task[ratio] <= 1
        assert task["phases"][0][ratio] == task[ratio]
    assert task["goodput"] == pytest.approx(task["accuracy"]["mean"])
    assert task["queries"] == 4000
    assert task["queries_per_cpu_s"] > 10_000
    lengths = task["classes"]["good"]["queue_lengths"]
    assert sum(lengths) == pytest.approx(1, abs=1e-4)
    assert task["classes"]["good"]["utilization"] == pytest.approx(1 - lengths[0], abs=1e-5)
    assert (task["engine"], task["stable"], task["complete"]) == ("markov", True, True)
    assert not {"escalated", "by_labels"} & task.keys()  # nobody is asked again


THREE = """
tasks:
  first: &task {variants: {one: {accuracy: 0.9, service: {mean: 5 ms}}}}
  second: *task
  third: *task
nodes:
  here: {instances: {first/one: 1, second/one: 1, third/one: 1}}
workload:
  first: &half {arrivals: {process: poisson, load: 0.5}}
  second: *half
  third: *half
"""


def test_tasks_are_added_up_by_their_rates(scenario: Scenario) -> None:
    """As many queries of each are simulated, but one task has four times the rate of the other."""
    slow = replace(
        scenario,
        arrivals=PoissonArrivals.read({"process": "poisson", "rate": "0.75/s"}),
        target=0.88,
        deadline_s=4.0,
    )
    results = {
        name: run(one, queries=4000, seed=3, workers=1)
        for name, one in (("busy", scenario), ("slow", slow))
    }
    found = TwinResult(results).to_json()["totals"]
    busy, other = (results[name] for name in ("busy", "slow"))
    assert other.violation_ratio > 0.05
    rate = busy.rate_per_s + other.rate_per_s
    answered = other.rate_per_s * (1.0 - other.dropped - other.rejected)
    whole = busy.rate_per_s + answered
    accuracy = (busy.rate_per_s * busy.accuracy.mean + answered * other.accuracy.mean) / whole
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["shares"]["busy"] == pytest.approx(busy.rate_per_s / whole)
    assert found["shares"]["busy"] > 0.75
    violations = other.rate_per_s * other.violation_ratio
    assert found["violation_ratio"] == pytest.approx(violations / rate)
    assert found["in_time_per_s"] == pytest.approx(rate - violations)
    goodput = busy.rate_per_s * busy.goodput + other.rate_per_s * other.goodput
    assert found["goodput_per_s"] == pytest.approx(goodput)
    assert found["goodput"] == pytest.approx(goodput / rate)
    assert "totals" not in TwinResult({"busy": results["busy"]}).to_json()


def test_a_run_to_the_end_of_its_trace_is_complete(scenario: Scenario) -> None:
    times = np.arange(1, 301) * 0.4
    ended = run(replace(scenario, arrivals=recorded(times)), queries=5000, workers=1)
    assert (ended.queries, ended.complete, ended.notes) == (300, True, ())


def test_json_tells_of_second_answers_where_there_may_be_any(scenario: Scenario) -> None:
    """Half of the quick answers are right, and sure of it; the others never are."""
    tables = ConfidenceTables(
        np.array([[0.5, 0.5], [0.0, 0.0]]),
        np.array([[[0.2, 0.9], [1.0, 0.9]], [[0.6, 0.9], [0.6, 0.9]]]),
        np.array([[0.5], [np.inf]]),
    )
    known = AnswerSample(np.array([[0, 0], [1, 0]]), np.array([[0.0, 1.0], [1.0, 1.0]]))
    sure = replace(scenario.fleet, confidence=tables)
    asked = replace(scenario, fleet=sure, policy="escalate", target=0.75)
    task = run(asked, queries=3000, seed=2, workers=1).to_json()
    assert "by_labels" not in task
    (pair,) = json.loads(json.dumps(task["escalated"]))
    assert (pair["from"], pair["to"]) == ("quick", "good")
    # By way of quick, .2 is exchanged for .9; by way of good, .6 for it.
    shares, first = task["shares"], task["dispatched"]["quick"]
    assert 0.0 < pair["share"] <= shares["good"]
    assert first == pytest.approx(shares["quick"] + pair["share"], abs=0.01)
    expected = 0.6 * first + 0.7 * pair["share"] + 0.9 * (1.0 - first)
    assert task["accuracy"]["mean"] == pytest.approx(expected, abs=0.02)
    labeled = run(replace(asked, answers=known), queries=3000, seed=2, workers=1)
    assert labeled.by_labels is not None
    quick_wrong = 0.5 * labeled.dispatched["quick"] - labeled.escalated[0].share  # type: ignore[index]
    assert labeled.by_labels.mean == pytest.approx(1.0 - quick_wrong, abs=0.02)
    assert labeled.to_json()["by_labels"].keys() == {"mean", "stderr"}


def test_a_frame_has_a_row_for_each_task(scenario: Scenario) -> None:
    result = run(scenario, queries=500, warmup=0)
    frame = TwinResult({"words": result, "images": result}).to_frame()
    assert frame["task"].tolist() == ["words", "images"]
    assert frame["response_time_s.mean"].tolist() == [result.response_time_s.mean] * 2
    assert frame["shares.good"].iloc[0] == result.shares["good"]


def test_where_no_one_is_answered_there_is_no_mean(scenario: Scenario) -> None:
    """Every server is away from the start on."""
    from inferway.twin import SetOutage

    outages = (SetOutage("quick", 2, 0.0, 1e6), SetOutage("good", 3, 0.0, 1e6))
    result = run(replace(scenario, outages=outages), queries=50, warmup=0)
    assert result.rejected == result.violation_ratio == 1
    assert result.goodput == 0
    found = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert found["response_time_s"]["mean"] is None
    assert found["shares"] == {"quick": None, "good": None}


@pytest.mark.parametrize(("replications", "among"), [(1, ""), (4, "in the mean of 4 replications")])
def test_growth_is_told_of_one_replication(
    scenario: Scenario, replications: int, among: str
) -> None:
    """So that it compares with the requests of a recording, which every replication replays."""
    fast = PoissonArrivals.read({"process": "poisson", "rate": "9/s"})
    over = replace(scenario, arrivals=fast)
    result = run(over, queries=2000, replications=replications, warmup=0, seed=3)
    (note,) = result.notes
    found = re.match(r"unstable: (?:(.+), )?(\d+) more .+, ([\d.]+)% of the arrivals", note)
    assert found is not None
    assert (found[1] or "") == among
    assert int(found[2]) / 2000 == pytest.approx(float(found[3]) / 100, abs=5e-4)


def test_what_ctrl_c_comes_before_is_named_and_nothing_is_totaled(tmp_path: Path) -> None:
    (tmp_path / "three.yaml").write_text(THREE)
    stop = threading.Event()
    found = iw.simulate(
        iw.load(tmp_path / "three.yaml"),
        queries=100_000_000,
        workers=1,
        stop=stop,
        progress=lambda task, done: stop.set(),
    )
    assert list(found.tasks) == ["first"]
    assert found.not_begun == ("second", "third")
    assert found.totals is None
    assert found.to_json()["not_begun"] == ["second", "third"]
    assert "All tasks" not in str(found)
    assert "so nothing is totaled: second, third" in str(found)
