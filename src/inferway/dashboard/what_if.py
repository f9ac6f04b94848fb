"""The last minutes under another setting: a question, and the twin's answer.

The twin replays the very requests that a server had, with service times as these had them, once
with the setting in force and once with that of the question. How far the first of the two is from
what the server did is the twin's error, and goes with the second as a band.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
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
from inferway.deployment.workloads import TraceArrivals, Workload, poisson, recorded
from inferway.dispatch.joint import means_of, told_targets, without_others
from inferway.dispatch.joint_bounds import JointMean
from inferway.live.recent import read_rows
from inferway.twin.engine import engine_of
from inferway.twin.joint_mean import mean_over
from inferway.twin.kernel.state import ANSWERED, LATE, Records
from inferway.twin.replication import replicate, replicate_together, summarize
from inferway.twin.result import TaskResult
from inferway.twin.scenario import Scenario, ordinary, scenario_of
from inferway.twin.trace import calibrated, departures

REPLICATIONS: Final = 4
"""Replays of each setting; the arrivals are the same each time."""
_WITHIN: Final = (0.05, 0.95)
"""Shares of the stretches below and above the twin's band."""
_NODE: Final = "here"
_ELSEWHERE: Final = "of-other-servers"
"""Device of what runs at remote servers, where the others share some: nobody waits for it."""
_MOST_ELSEWHERE: Final = 2000


class Replayed(NamedTuple):
    """One setting's replay; `means` are those of targets over several tasks, by name."""

    result: TaskResult
    course: Course
    means: dict[str, float]


class Canceled(Exception):  # noqa: N818 - it is no error
    """Somebody has asked something newer."""


def prepared(told: ObservedTask) -> None:
    """Compile what the setting in force needs; ValueError as `answer`."""
    deployment, _ = rehearsal(told)
    times_s = np.linspace(0.0, 1.0, 3)
    for one in (told, *told.beside):
        _compiled(_scenario(deployment, times_s, one.fleet))


def answer(
    question: Question,
    told: ObservedTask,
    stop: Event,
    progress: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    """Replay the last minutes with what is in force, and with what is asked for.

    Other tasks that targets over several, or devices, join it with are replayed beside it, as they
    were.

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
    deployment, name = rehearsal(told)
    past = _past(told)
    pasts, notes = {name: past}, list[str]()
    for one in told.beside:
        try:
            pasts[one.fleet["task"]] = _past(one, since_s=past.from_s)
        except PastError as error:
            notes.append(f"{one.fleet['task']} is not replayed beside it: {error}")
    deployment = without_others(deployment, pasts)
    fleets = {one.fleet["task"]: one.fleet for one in (told, *told.beside)}
    begun = {of: _balance(one.fleet, pasts[of]) for of, one in _by_task(told, pasts).items()}
    balances = {
        target: told.balances[target] - _gained(mean, pasts)
        for target, mean in means_of(deployment).items()
        if target in told.balances
    }
    progress("replaying what was")
    arrivals = {of: one.trace.arrived_s + (one.from_s - past.from_s) for of, one in pasts.items()}
    scenarios = {}
    rates = {of: one.trace.told_rate_per_s for of, one in pasts.items()}
    for of, scenario in _scenarios(deployment, arrivals, fleets, rates).items():
        scenario = replace(scenario, balance=begun[of])
        rate_per_s = rates[of]
        if rate_per_s is not None and scenario.options.get("rate") is None:
            # What the file's workload said to the live policy, it says to this one.
            scenario = replace(scenario, options={**scenario.options, "rate": rate_per_s})
        scenarios[of] = scenario
    notes = [*departures(scenarios[name], past.trace), *notes]
    written = told.content.get("tasks", {}).get(told.fleet["kind"], {})
    if (canary := written.get("canary")) is not None:
        notes.append(ordinary(str(canary["variant"])))
    present = _replayed(_as_measured(scenarios, pasts), name, past, balances, deployment, stop)
    progress("replaying what might have been")
    changed = without_others(_changed(rehearsal(told)[0], told.fleet, question, name), pasts)
    arrivals[name] = scaled(arrivals[name], question.rate)
    first = window(arrivals[name], MOST)
    if first:
        notes.append(f"of {len(arrivals[name]):,} requests the last {MOST:,} are replayed")
    if len(arrivals[name]) - first < 2:
        raise WhatIfError("so few requests are left that there is nothing to replay")
    since_s = float(arrivals[name][first])
    arrivals = {
        of: kept
        for of, times_s in arrivals.items()
        if len(kept := times_s[first:] if of == name else times_s[times_s >= since_s]) > 1
    }
    changed = without_others(changed, arrivals)
    asked = {
        of: replace(
            scenario,
            # Another promise counts from its beginning, as it does in a server.
            balance=0.0
            if of == name and question.target not in (None, told.fleet["target"])
            else begun[of],
        )
        for of, scenario in _scenarios(changed, arrivals, fleets, None).items()
    }
    what_if = _replayed(_as_measured(asked, pasts), name, past, balances, changed, stop)
    found = _document(past, present, what_if, changed.tasks[name].accuracy_target, notes)
    found["targets"] = {
        target: {
            "tasks": list(mean.tasks),
            "accuracy" if mean.energy is None else "energy": (
                mean.accuracy if mean.energy is None else mean.energy
            ),
            **_told(
                {
                    "live": _mean(mean, pasts),
                    "present": present.means[target],
                    "what_if": what_if.means.get(target, math.nan),
                }
            ),
        }
        for target, mean in means_of(deployment).items()
    }
    for one in told.fleet["classes"]:
        found["notes"] = [
            note.replace(written_name(one["name"]), one["name"]) for note in found["notes"]
        ]
    return found


def _past(told: ObservedTask, since_s: float = -np.inf) -> Past:
    try:
        return past_of(*read_rows(told.requests), told.fleet, since_s=since_s)
    except PastError:
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise WhatIfError(f"the server's last requests cannot be read: {error}") from error


def _by_task(told: ObservedTask, names: Collection[str]) -> dict[str, ObservedTask]:
    every = {str(one.fleet["task"]): one for one in (told, *told.beside)}
    return {name: one for name, one in every.items() if name in names}


def _balance(fleet: Mapping[str, Any], past: Past) -> float:
    """Accuracy balance of a task when its past began; 0 without a target."""
    balance = fleet["balance"]
    return 0.0 if balance is None else float(balance) - past.gained(fleet["target"])


def _gained(mean: JointMean, pasts: Mapping[str, Past]) -> float:
    """By how much the answers of a past have moved the balance of a target over several tasks."""
    of = [pasts[name] for name in mean.tasks]
    if mean.energy is not None:
        return sum(mean.energy * one.counted - one.energy_j for one in of)
    return sum(one.gained(mean.accuracy) for one in of)


def _mean(mean: JointMean, pasts: Mapping[str, Past]) -> float:
    """The mean that a target over several tasks is of, as it was; nan without an answer."""
    of = [pasts[name] for name in mean.tasks]
    if not (counted := sum(one.counted for one in of)):
        return math.nan
    return sum(one.earned if mean.energy is None else one.energy_j for one in of) / counted


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
    task = str(fleet["task"])
    every = [told, *told.beside]
    named = content.get("scheduling", {}).get("tasks") or ()
    here = {of.fleet["kind"] for of in every} & {*named}
    if here and len(named) > 1:
        raise WhatIfError(
            f"one policy schedules {' and '.join(map(str, named))} together, and what is "
            "replayed here is one task's doing: `inferway simulate FILE --trace` replays all"
        )
    if named and not here:  # whoever schedules other tasks plays no part
        del content["scheduling"]
    node = {key: fleet[key] for key in ("buffer", "queue", "late") if fleet[key] is not None}
    node["instances"] = {
        f"{of.fleet['task']}/{written_name(one['name'])}": one["instances"]
        for of in every
        for one in of.fleet["classes"]
        if one["instances"]
    }
    if devices := fleet.get("devices"):
        classes = [one for of in every for one in of.fleet["classes"]]
        exclusive = {one["device"] for one in classes if "load_s" in one}
        node["devices"] = {
            name: {"cores": slots, **({"exclusive": True} if name in exclusive else {})}
            for name, slots in devices.items()
        }
        if any(one["device"] is None for of in every for one in of.fleet["classes"]):
            node["devices"][_ELSEWHERE] = {"cores": _MOST_ELSEWHERE}
    data: dict[str, Any] = {
        key: content[key] for key in ("dispatch", "scheduling", "cost", "seed") if key in content
    }
    tasks = {str(one.fleet["task"]): _written(one.fleet, content) for one in every}
    if told.beside:
        data["targets"] = {
            name: one
            for name, one in content.get("targets", {}).items()
            if {*one["tasks"]} <= {*tasks}
        }
    data |= {"tasks": tasks, "nodes": {_NODE: node}}
    data["workload"] = {name: {"arrivals": {"process": "poisson", "rate": "1/s"}} for name in tasks}
    if not ({"dispatch", "scheduling"} & data.keys() or "dispatch" in tasks[task]):
        # What is in force where the file names none may go by what this one has not.
        data["dispatch"] = {"policy": fleet["policy"]}
    alpha = content.get("cost", {}).get("alpha")
    for about in tasks.values():
        chosen = about.get("dispatch", data.get("dispatch"))
        if alpha is not None and chosen is not None and chosen.get("policy") == "least-cost":
            chosen.setdefault("alpha", alpha)
    return build(_sourced(data, told.folder)), task


def _written(fleet: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Write a task as a file has it, of what a server says of its fleet."""
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
    about["variants"] = {written_name(one["name"]): _variant(one) for one in fleet["classes"]}
    return about


def _variant(one: Mapping[str, Any]) -> dict[str, Any]:
    mean = {"mean": f"{one['service_s']!r} s"}
    found: dict[str, Any] = {"service": mean}
    if "device" in one:  # each class has its own, so that its copies need not say on which they run
        found = {"service": {one["device"] or _ELSEWHERE: mean}, "threads": max(1, one["slots"])}
    if "load_s" in one:  # which is known, however short
        found["load_time"] = f"{max(one['load_s'], 1e-9)!r} s"
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
    goal: dict[str, Any] = {}
    if question.target is not None:
        goal[f"tasks.{task}.accuracy_target"] = question.target
    return deployment.with_(policy=question.policy, instances=instances or None, **goal)


def _scenarios(
    deployment: Deployment,
    arrivals: Mapping[str, Floats],
    fleets: Mapping[str, Mapping[str, Any]],
    rates_per_s: Mapping[str, float | None] | None,
) -> dict[str, Scenario]:
    """Make the scenarios of tasks that are replayed together.

    Policies of targets over several are told these rates, or those of the arrivals without any.
    """
    made = {
        name: _scenario(deployment, times_s, fleets[name]) for name, times_s in arrivals.items()
    }
    if not deployment.targets:
        return made
    workload = {
        name: Workload(arrivals=one.arrivals if rates_per_s is None else poisson(rate))
        for name, one in made.items()
        for rate in [0.0 if rates_per_s is None else rates_per_s[name] or 0.0]
        if rates_per_s is None or rate > 0.0
    }
    targets = tuple(told_targets(replace(deployment, workload=workload)))
    return {
        name: replace(one, targets=targets if one.targets else ()) for name, one in made.items()
    }


def _as_measured(
    scenarios: Mapping[str, Scenario], pasts: Mapping[str, Past]
) -> dict[str, Scenario]:
    return {name: calibrated(one, pasts[name].trace) for name, one in scenarios.items()}


def _scenario(deployment: Deployment, times_s: Floats, fleet: Mapping[str, Any]) -> Scenario:
    """Make the scenario of a rehearsal, with what confidences say at the server, if anything."""
    made = scenario_of(deployment, str(fleet["task"]))
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


def _replayed(
    scenarios: Mapping[str, Scenario],
    task: str,
    past: Past,
    balances: Mapping[str, float],
    deployment: Deployment,
    stop: Event,
) -> Replayed:
    """Run scenarios several times; the course of a task is over the stretches of its past.

    Those of several tasks run together; `balances` are what targets over several begin with.
    """
    outcomes, columns = [], list[Any]()
    times_s = {}
    for name, one in scenarios.items():
        assert isinstance(one.arrivals, TraceArrivals)
        times_s[name] = one.arrivals.times_s

    def keep(replication: int, rows: Records) -> None:
        size = int(rows.size[0])
        columns.append([
            getattr(rows, name)[:size].copy()
            for name in ("arrived_s", "left_s", "server", "outcome")
        ])  # fmt: skip

    for number in range(REPLICATIONS):
        if stop.is_set():
            raise Canceled
        settings: dict[str, Any] = {"seed": scenario_seed(number), "replication": number}
        if len(scenarios) > 1 or deployment.targets:
            rate_per_s = max(one.rate_per_s for one in scenarios.values())
            horizon_s = max(float(one[-1]) for one in times_s.values())
            outcomes.append(
                replicate_together(
                    scenarios,
                    # None is cut off where one is at its end sooner than on average.
                    queries=1 + math.ceil(2.0 * rate_per_s * horizon_s),
                    kinds=dict.fromkeys(scenarios, "general"),
                    sinks={task: keep},
                    stop=stop,
                    progress={},
                    balances=balances,
                    **settings,
                )
            )
        else:
            alone = replicate(
                scenarios[task],
                queries=len(times_s[task]),
                kind="general",
                sink=keep,
                stop=stop,
                **settings,
            )
            outcomes.append({task: alone})
    if stop.is_set():
        raise Canceled
    arrived_s, left_s, server, outcome = (np.concatenate(one) for one in zip(*columns, strict=True))
    fleet = scenarios[task].fleet
    accuracy = np.where(fleet.graded, fleet.accuracy, np.nan).repeat(fleet.count)
    answered = np.isin(outcome, (ANSWERED, LATE))
    drawn = course(
        arrived_s[answered],
        (left_s - arrived_s)[answered] + past.lead_s,
        accuracy[server[answered]],
        past.ends_s,
    )
    results = {
        name: summarize(scenarios[name], [one[name] for one in outcomes]) for name in outcomes[0]
    }
    result = results[task]
    if result.escalated is not None:
        # Which accuracy each answer was expected to have is known of all together.
        by_variant = float(np.mean(accuracy[server[answered]]))
        drawn = drawn._replace(accuracy=drawn.accuracy + result.accuracy.mean - by_variant)
    fleets = {name: one.fleet for name, one in scenarios.items()}
    means = {name: mean_over(mean, fleets, results) for name, mean in means_of(deployment).items()}
    return Replayed(result, drawn, means)


def scenario_seed(number: int) -> int:
    """Seed of a replication; the same for every setting, so that they differ by that alone."""
    return 1000 + number


def _document(
    past: Past,
    present: Replayed,
    what_if: Replayed,
    target: float | None,
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
    return {
        "from_s": past.from_s,
        "ends_s": listed(past.ends_s),
        "requests": len(past.trace.arrived_s),
        "target": target,
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
