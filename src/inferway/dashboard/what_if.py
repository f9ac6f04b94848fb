"""The last minutes under another setting: a question, and the twin's answer.

The twin replays the very requests that a server had, with service times as these had them, once
with the setting in force and once with that of the question. How far the first of the two is from
what the server did is the twin's error, and goes with the second as a band.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

import numpy as np

from inferway.dashboard.past import (
    MOST,
    Course,
    Floats,
    Past,
    PastError,
    course,
    listed,
    past_of,
    scaled,
    tables_told,
    window,
    written_name,
)
from inferway.dashboard.question import POLICIES, ObservedTask, Question, WhatIfError
from inferway.deployment import Deployment
from inferway.deployment.deployment import build
from inferway.deployment.policies import FILE_POLICY
from inferway.deployment.source import given
from inferway.deployment.workloads import TraceArrivals, recorded
from inferway.live.recent import read_rows
from inferway.twin.engine import engine_of
from inferway.twin.kernel.state import ANSWERED, LATE, Records
from inferway.twin.replication import replicate, summarize
from inferway.twin.result import TaskResult
from inferway.twin.scenario import Scenario, ordinary, scenario_of
from inferway.twin.trace import calibrated, departures

REPLICATIONS: Final = 4
"""Replays of each setting; the arrivals are the same each time."""
_WITHIN: Final = (0.05, 0.95)
"""Shares of the stretches below and above the twin's band."""
_NODE: Final = "here"


class Replayed(NamedTuple):
    """One setting's replay."""

    result: TaskResult
    course: Course


class Canceled(Exception):  # noqa: N818 - it is no error
    """Somebody has asked something newer."""


def prepared(told: ObservedTask) -> None:
    """Compile what the setting in force needs; ValueError as `answer`."""
    deployment, name = rehearsal(told)
    times_s = np.linspace(0.0, 1.0, 3)
    _compiled(_scenario(deployment, name, times_s, told.fleet))


def answer(
    question: Question,
    told: ObservedTask,
    stop: Event,
    progress: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    """Replay the last minutes with what is in force, and with what is asked for.

    Parameters
    ----------
    question
        What is asked for.
    told
        By the server.
    stop
        Ends it early once it is set; `Canceled` is raised then.
    progress
        Told in words what is being done.

    Raises
    ------
    WhatIfError, PastError
        Where the question makes no sense, or there is too little to replay.
    ValueError
        Where there is no such setting: an unknown policy, a target out of reach.
    """
    if not 0.0 < question.rate <= 100.0:
        raise WhatIfError(f"the rate is multiplied by up to 100, not by {question.rate:g}")
    try:
        past = past_of(*read_rows(told.requests), told.fleet)
    except PastError:
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise WhatIfError(f"the server's last requests cannot be read: {error}") from error
    deployment, name = rehearsal(told)
    balance, target = told.fleet["balance"], told.fleet["target"]
    begun = 0.0 if balance is None else balance - past.gained
    progress("replaying what was")
    times_s = past.trace.arrived_s
    scenario = replace(_scenario(deployment, name, times_s, told.fleet), balance=begun)
    rate_per_s = past.trace.told_rate_per_s
    if rate_per_s is not None and scenario.options.get("rate") is None:
        # What the file's workload said to the live policy, it says to this one.
        scenario = replace(scenario, options={**scenario.options, "rate": rate_per_s})
    present = _replayed(calibrated(scenario, past.trace), past, stop)
    notes = departures(scenario, past.trace)
    written = told.content.get("tasks", {}).get(told.fleet["kind"], {})
    if (canary := written.get("canary")) is not None:
        notes.append(ordinary(str(canary["variant"])))
    progress("replaying what might have been")
    changed = _changed(deployment, told.fleet, question, name)
    times_s = scaled(times_s, question.rate)
    first = window(times_s, MOST)
    if first:
        notes.append(f"of {len(times_s):,} requests the last {MOST:,} are replayed")
    if len(times_s) - first < 2:
        raise WhatIfError("so few requests are left that there is nothing to replay")
    asked = replace(
        _scenario(changed, name, times_s[first:], told.fleet),
        # Another promise counts from its beginning, as it does in a server.
        balance=begun if question.target in (None, target) else 0.0,
    )
    what_if = _replayed(calibrated(asked, past.trace), past, stop)
    found = _document(past, present, what_if, changed, notes)
    for one in told.fleet["classes"]:
        found["notes"] = [
            note.replace(written_name(one["name"]), one["name"]) for note in found["notes"]
        ]
    return found


def rehearsal(told: ObservedTask) -> tuple[Deployment, str]:
    """Make a deployment of one task's fleet, which the twin can run anywhere; and the task's name.

    It has no models and no addresses: of each class the accuracy and the service time that the
    server has measured. Classes of other nodes are variants of their own.

    Raises
    ------
    ValueError
        Where the deployment makes none, or its policy is code that is not run here.
    """
    fleet, content = told.fleet, deepcopy(told.content)
    if shared := fleet.get("targets"):
        raise WhatIfError(
            f"the task shares the target {', '.join(shared)} with other tasks, and what if replays "
            "one task alone"
        )
    task = str(fleet["task"])
    written = content.get("tasks", {}).get(fleet["kind"], {})
    about: dict[str, Any] = {
        key: written[key] for key in ("dispatch", "energy_budget") if key in written
    }
    for key, value, unit in (
        ("accuracy_target", fleet["target"], ""),
        ("deadline", fleet["deadline_s"], " s"),
    ):
        if value is not None:
            about[key] = f"{value!r}{unit}" if unit else value
    if fleet.get("confidence") is not None:
        # That something is known of confidences; what, `_scenario` says.
        about["difficulty"] = {"quality": 0.5}
    classes = fleet["classes"]
    about["variants"] = {written_name(one["name"]): _variant(one) for one in classes}
    node = {key: fleet[key] for key in ("buffer", "queue", "late") if fleet[key] is not None}
    node["instances"] = {
        f"{task}/{written_name(one['name'])}": one["instances"]
        for one in classes
        if one["instances"]
    }
    data: dict[str, Any] = {
        key: content[key] for key in ("dispatch", "scheduling", "cost", "seed") if key in content
    }
    data |= {"tasks": {task: about}, "nodes": {_NODE: node}}
    data["workload"] = {task: {"arrivals": {"process": "poisson", "rate": "1/s"}}}
    if not ({"dispatch", "scheduling"} & data.keys() or "dispatch" in about):
        # What is in force where the file names none may go by what this one has not.
        data["dispatch"] = {"policy": fleet["policy"]}
    chosen = about.get("dispatch", data.get("dispatch"))
    alpha = content.get("cost", {}).get("alpha")
    if alpha is not None and chosen is not None and chosen.get("policy") == "least-cost":
        chosen.setdefault("alpha", alpha)
    return build(_sourced(data, told.folder)), task


def _variant(one: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"service": {"mean": f"{one['service_s']!r} s"}}
    if one["accuracy"] is not None:
        found["accuracy"] = one["accuracy"]
    if one["energy"]:
        found["energy"] = f"{one['energy']!r} J"
    if one["price"]:
        found["price"] = one["price"]
    if (batch := one["batch"]) is not None:
        found["batch"] = {
            **{key: batch[key] for key in ("sizes", "min", "max", "pad")},
            "service": [f"{took_s!r} s" for took_s in batch["service_s"]],
            "wait": f"{batch['wait_s']!r} s",
        }
    return found


def _sourced(data: dict[str, Any], folder: str | None) -> Any:
    source = given(data)
    if folder is not None:
        return replace(source, path=Path(folder) / "deployment.yaml")
    # What another process says is not run here.
    for section in (data.get("dispatch"), data.get("scheduling"), *data["tasks"].values()):
        spec = section.get("dispatch", section) if isinstance(section, dict) else {}
        policy = str(spec.get("policy", ""))
        if FILE_POLICY.fullmatch(policy) or "checkpoint" in spec:
            raise WhatIfError(
                f"{policy} is a file at the server, which only a page that is started with it "
                "runs: inferway serve FILE --dashboard"
            )
    return source


def _changed(
    deployment: Deployment, fleet: Mapping[str, Any], question: Question, task: str
) -> Deployment:
    if question.policy is not None and question.policy not in POLICIES:
        raise WhatIfError(f"there is no policy {question.policy[:64]!r} to try")
    names = {one["name"] for one in fleet["classes"]}
    for name, count in question.instances.items():
        if name not in names or not 0 <= count <= 1000:
            raise WhatIfError(f"there are no {count} instances of {name[:64]!r} to try")
    counts = dict(question.instances)
    if question.lost:
        gone = [
            one["name"] for one in fleet["classes"] if question.lost in (one["node"], one["by"])
        ]
        if not gone:
            raise WhatIfError(f"nothing here is answered by node {question.lost[:64]!r}")
        counts |= dict.fromkeys(gone, 0)
    instances = {f"{task}/{written_name(name)}": count for name, count in counts.items()}
    return deployment.with_(
        policy=question.policy, target=question.target, instances=instances or None
    )


def _scenario(
    deployment: Deployment, task: str, times_s: Floats, fleet: Mapping[str, Any]
) -> Scenario:
    """Make the scenario of a rehearsal, with what confidences say at the server, if anything."""
    made = scenario_of(deployment, task)
    tables = tables_told(fleet)
    if tables is not None:
        names = [written_name(one["name"]) for one in fleet["classes"]]
        order = np.array([names.index(name) for name in made.fleet.variants])
        made = replace(made, fleet=replace(made.fleet, confidence=tables.ordered(order)))
    return replace(made, arrivals=recorded(times_s))


def _compiled(scenario: Scenario) -> None:
    engine = engine_of(scenario, seed=0, kind="general", records=True)
    engine.advance(0)
    engine.drain()


def _replayed(scenario: Scenario, past: Past, stop: Event) -> Replayed:
    """Run a scenario several times; its course is over the stretches of the past."""
    outcomes, columns = [], list[Any]()
    assert isinstance(scenario.arrivals, TraceArrivals)
    requests = len(scenario.arrivals.times_s)

    def keep(replication: int, rows: Records) -> None:
        size = int(rows.size[0])
        columns.append([
            getattr(rows, name)[:size].copy()
            for name in ("arrived_s", "left_s", "server", "outcome")
        ])  # fmt: skip

    for number in range(REPLICATIONS):
        if stop.is_set():
            raise Canceled
        outcomes.append(
            replicate(
                scenario,
                queries=requests,
                seed=scenario_seed(number),
                replication=number,
                kind="general",
                sink=keep,
                stop=stop,
            )
        )
    if stop.is_set():
        raise Canceled
    arrived_s, left_s, server, outcome = (np.concatenate(one) for one in zip(*columns, strict=True))
    fleet = scenario.fleet
    accuracy = np.where(fleet.graded, fleet.accuracy, np.nan).repeat(fleet.count)
    answered = np.isin(outcome, (ANSWERED, LATE))
    drawn = course(
        arrived_s[answered],
        (left_s - arrived_s)[answered] + past.lead_s,
        accuracy[server[answered]],
        past.ends_s,
    )
    result = summarize(scenario, outcomes)
    if result.escalated is not None:
        # Which accuracy each answer was expected to have is known of all together.
        by_variant = float(np.mean(accuracy[server[answered]]))
        drawn = drawn._replace(accuracy=drawn.accuracy + result.accuracy.mean - by_variant)
    return Replayed(result, drawn)


def scenario_seed(number: int) -> int:
    """Seed of a replication; the same for every setting, so that they differ by that alone."""
    return 1000 + number


def _document(
    past: Past,
    present: Replayed,
    what_if: Replayed,
    changed: Deployment,
    notes: list[str],
) -> dict[str, Any]:
    names = Course._fields
    bands = {name: _band(name, past.live, present.course, what_if.course) for name in names}
    live = _numbers_of(past)
    was, would = (_numbers(one.result, past.lead_s) for one in (present, what_if))
    error = {
        "mean": was["mean_s"] / live["mean_s"] - 1.0,
        "p99": was["p99_s"] / live["p99_s"] - 1.0,
        "accuracy": was["accuracy"] - live["accuracy"],
    }
    (task,) = changed.tasks.values()
    return {
        "from_s": past.from_s,
        "ends_s": listed(past.ends_s),
        "requests": len(past.trace.arrived_s),
        "target": task.accuracy_target,
        "live": {name: listed(getattr(past.live, name)) for name in names},
        "twin": {name: listed(getattr(what_if.course, name)) for name in names},
        "band": {name: [listed(low), listed(high)] for name, (low, high) in bands.items()},
        "numbers": {"live": _told(live), "present": _told(was), "what_if": _told(would)},
        "error": _told(error),
        "notes": [*notes, *what_if.result.notes],
    }  # fmt: skip


def _band(name: str, live: Course, present: Course, what_if: Course) -> tuple[Floats, Floats]:
    """Draw the band in which the twin was right in nine of ten stretches of what was.

    Times differ by factors, accuracies by differences.
    """
    was, ran, would = (getattr(one, name) for one in (live, present, what_if))
    with np.errstate(invalid="ignore", divide="ignore"):
        off = was - ran if name == "accuracy" else np.log(was / ran)
    off = off[np.isfinite(off)]
    if len(off) == 0:
        return would, would
    # The twin itself lies in its band.
    low, high = (
        np.minimum(0.0, np.quantile(off, _WITHIN[0])),
        np.maximum(0.0, np.quantile(off, _WITHIN[1])),
    )
    if name == "accuracy":
        return np.clip(would + low, 0.0, 1.0), np.clip(would + high, 0.0, 1.0)
    return would * np.exp(low), would * np.exp(high)


def _numbers_of(past: Past) -> dict[str, float]:
    trace = past.trace
    answered = trace.answered
    took_s = (trace.left_s - trace.arrived_s)[answered] + past.lead_s
    total = len(answered)
    span_s = float(trace.arrived_s[-1])
    if not answered.any():
        raise WhatIfError("none of the last requests was answered, so there is nothing to compare")
    return {
        "rate_per_s": (total - 1) / span_s,
        "mean_s": float(took_s.mean()),
        "p50_s": float(np.quantile(took_s, 0.5)),
        "p95_s": float(np.quantile(took_s, 0.95)),
        "p99_s": float(np.quantile(took_s, 0.99)),
        "accuracy": float(past.expected[answered].mean()),
        "unanswered": 1.0 - float(answered.mean()),
    }


def _numbers(result: TaskResult, lead_s: float) -> dict[str, float]:
    return {
        "rate_per_s": result.rate_per_s,
        "mean_s": result.response_time_s.mean + lead_s,
        "p50_s": result.p50_s + lead_s,
        "p95_s": result.p95_s + lead_s,
        "p99_s": result.p99_s + lead_s,
        "accuracy": result.accuracy.mean,
        "unanswered": result.rejected + result.dropped,
    }


def _told(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return dict(zip(numbers, listed(list(numbers.values())), strict=True))
