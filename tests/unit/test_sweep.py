"""Sweeps: what is varied, what is refused, and what a figure shows of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import inferway
from inferway import load
from inferway.deployment.overhead import MeasuredOverhead
from inferway.experiments.sweep import Axis, Sweep, axis, draw, points_of, settled

FILE = """
tasks:
  words:
    accuracy_target: 0.75
    variants:
      small: {accuracy: 0.7, service: {distribution: exponential, mean: 1 s}}
      large: {accuracy: 0.9, service: {distribution: exponential, mean: 4 s}}
nodes: {here: {instances: {words/small: 4, words/large: 4}, buffer: 8}}
dispatch: {policy: tad-op}
workload: {words: {arrivals: {process: poisson, load: 0.5}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "words.yaml"
    path.write_text(FILE)
    return path


def numbers(text: str) -> list[float | None]:
    return [value.number for value in axis(text).values]


def test_a_range_holds_both_ends_and_no_dust() -> None:
    assert numbers("load=0.1:0.5:0.1") == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert len(numbers("load=0.1:0.95:0.05")) == 18
    assert numbers("load=0.1:0.95:0.05")[-1] == 0.95
    assert numbers("x=3:1:-1") == [3.0, 2.0, 1.0]
    assert numbers("x=1:2:0.4") == [1.0, 1.4, 1.8]
    assert [one.text for one in axis("deadline=100 ms:300 ms:100 ms").values] == [
        "100ms",
        "200ms",
        "300ms",
    ]


def test_lists_are_numbers_if_all_are() -> None:
    assert axis("load=0.1,0.2").numeric
    assert not axis("policy=tad,tad-op").numeric
    assert not axis("deadline=1 s,100 ms").numeric
    assert axis("deadline=50 ms,100 ms").unit == "ms"
    assert [one.text for one in axis("policy=./mine.py:Mine,tad").values] == [
        "./mine.py:Mine",
        "tad",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("load", "KEY=START:STOP:STEP"),
        ("=1,2", "KEY=START:STOP:STEP"),
        ("load=0.1:0.5:-0.1", "does not lead from 0.1 to 0.5"),
        ("load=0.1:0.5:0", "does not lead"),
        ("load=0:1:1e-9", "values, above"),
        ("load=1,,2", "nothing between two commas"),
        ("load=1,1", "twice"),
        ("deadline=1 s:2 ms:1 s", "one unit"),
    ],
)
def test_what_is_no_sweep_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        axis(text)


def test_every_combination_is_a_deployment(file: Path) -> None:
    texts = ["load=0.2,0.4", "policy=tad,priced", "instances.words/large=1,2", "seed=3"]
    points = points_of(load(file), [axis(text) for text in texts])
    assert len(points) == 8
    last = points[-1]
    assert last.label == {
        "load": 0.4,
        "policy": "priced",
        "instances.words/large": 2.0,
        "seed": 3.0,
    }
    assert last.arguments["seed"] == 3
    deployment = last.arguments["deployment"]
    assert deployment.policy_of("words").policy == "priced"
    assert deployment.nodes["here"].instances["words", "large"] == 2
    assert deployment.workload["words"].arrivals.load == 0.4  # type: ignore[union-attr]


def test_a_deadline_a_rate_and_any_path(file: Path) -> None:
    texts = ["deadline=2", "rate=3", "nodes.here.buffer=5", "accuracy_target=0.8"]
    (point,) = points_of(load(file), [axis(text) for text in texts])
    task = point.arguments["deployment"].tasks["words"]
    assert (task.deadline_s, task.accuracy_target) == (2.0, 0.8)
    assert point.arguments["deployment"].nodes["here"].buffer == 5
    arrivals = point.arguments["deployment"].workload["words"].arrivals
    assert (arrivals.rate, arrivals.load) == (3.0, None)  # type: ignore[union-attr]


def test_phases_keep_their_shape(file: Path) -> None:
    phases = "{process: phases, phases: [{for: 3 s, load: 0.2}, {for: 1 s, load: 0.6}]}"
    file.write_text(FILE.replace("{process: poisson, load: 0.5}", phases))
    (point,) = points_of(load(file), [axis("load=0.6")])
    found = point.arguments["deployment"].workload["words"].arrivals.phases  # type: ignore[union-attr]
    assert [one.load for one in found] == pytest.approx([0.4, 1.2])
    with pytest.raises(ValueError, match="set load instead"):
        points_of(load(file), [axis("rate=1,2")])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lode=1,2", "did you mean load"),
        ("zebra=1,2", "instances.TASK/VARIANT"),
        ("load=-1,2", r"load=-1: workload.words.arrivals.load: must be above 0"),
        ("accuracy_target=0.8,2", r"accuracy_target=2: .*not in 0\.\.1"),
        ("policy=tadop", "did you mean tad-op"),
        ("instances.words/lrge=1,2", "the file has words/small, words/large"),
        ("nodes.there.buffer=1,2", "nothing at 'there.buffer'"),
        ("nodes.here.bufer=1,2", "did you mean buffer"),
        ("seed=1.5", "whole number"),
    ],
)
def test_wrong_keys_and_values_are_one_sentence(file: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        points_of(load(file), [axis(text)])
    assert "\n" not in str(caught.value)


def test_a_key_is_given_once(file: Path) -> None:
    with pytest.raises(ValueError, match="given twice"):
        points_of(load(file), [axis("load=0.1"), axis("load=0.2")])


def a_sweep(axes: list[Axis], mean_s: list[float], stable: list[bool]) -> Sweep:
    rows = [
        {"load": load, "policy": policy, "task": "words"}
        for load in (0.2, 0.4, 0.6)
        for policy in ("tad", "priced")
    ]
    frame = pd.DataFrame(rows)
    frame["response_time_s.mean"] = mean_s
    frame["response_time_s.stderr"] = 0.01
    frame["accuracy.mean"] = 0.75
    frame["accuracy.stderr"] = 1e-5
    frame["accuracy_target"] = 0.75
    frame["stable"] = stable
    frame["bound.response_time_s"] = [1.0, 1.0, 1.1, 1.1, np.nan, np.nan]
    return Sweep(tuple(axes), frame, 6, 6, 0, Path("sweep.parquet"))


def test_the_figure_has_a_line_per_policy_the_bound_and_hollow_points() -> None:
    axes = [axis("policy=tad,priced"), axis("load=0.2:0.6:0.2")]
    shown = a_sweep(axes, [1.2, 1.1, 1.4, 1.3, 900.0, 2.0], [True] * 4 + [False, True])
    figure = draw(shown.axes, shown.frame)
    assert figure is not None
    times, accuracies = figure.axes
    by_label = {line.get_label(): line for line in figure.legends[0].get_lines()}
    assert {"LP bound", "tad", "priced", "target"} <= set(by_label)
    drawn = {tuple(np.round(line.get_ydata(), 3)) for line in times.get_lines()}
    assert (1.2, 1.4) in drawn  # tad, without the unstable point
    assert (1.1, 1.3, 2.0) in drawn
    assert (1.0, 1.1) in drawn  # the bound, where there is one
    low, high = times.get_ylim()
    assert low < 1.0
    assert 2.0 < high < 3.0
    (hollow,) = [line for line in times.get_lines() if line.get_markerfacecolor() == "white"]
    assert hollow.get_xdata().tolist() == [0.6]
    assert hollow.get_ydata().tolist() == [high]
    assert accuracies.get_ylim()[1] - accuracies.get_ylim()[0] >= 0.01


def test_a_mean_that_has_not_settled_is_hollow() -> None:
    axes = [axis("load=0.2:0.6:0.2"), axis("policy=tad,priced")]
    shown = a_sweep(axes, [1.2, 1.1, 1.4, 1.3, 900.0, 2.0], [True] * 6)
    shown.frame.loc[4, "response_time_s.stderr"] = 400.0
    assert settled(shown.frame).tolist() == [True] * 4 + [False, True]


def test_without_numbers_there_is_no_figure() -> None:
    shown = a_sweep([axis("policy=tad,priced")], [1.0] * 6, [True] * 6)
    assert draw(shown.axes, shown.frame) is None


def test_points_of_another_overhead_are_other_points(tmp_path: Path) -> None:
    """What a server has measured meanwhile is not mixed with what it had measured before."""
    path = tmp_path / "words.yaml"
    text = FILE.replace("{here: {", "{here: {devices: {cpu: {cores: 6}}, ")
    path.write_text(text.replace("policy: tad-op", "policy: priced"))
    plain = load(path)

    def swept(seconds: float) -> Sweep:
        took = MeasuredOverhead(seconds, 1e9, tmp_path / "times.json", seconds)
        return inferway.sweep(
            plain.with_overhead(took), load=[0.3, 0.5], queries=2_000, out=tmp_path / "out"
        )

    first, other = swept(0.0), swept(0.5)
    assert (first.kept, other.kept) == (0, 0)
    mean = "response_time_s.mean"
    assert (other.frame[mean] > first.frame[mean] + 0.3).all()
    again = swept(0.5)
    assert again.kept == 2
    assert again.frame[mean].tolist() == other.frame[mean].tolist()
