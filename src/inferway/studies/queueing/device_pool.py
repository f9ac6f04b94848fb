"""A pool of devices that nine tasks share: given out anew, and once for all, beside the bound.

The file is `examples/device-pool.yaml`, as it was before devices were given out anew. Its arrivals
swing by phases of a Markov process; beside them stand those of a recorded trace, one piece of it
for each task, where a folder has it.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from ruamel.yaml import YAML

from inferway.deployment import Deployment, load
from inferway.experiments.claim import ours
from inferway.experiments.curves import Curve, Drawing, Panel, panels
from inferway.placement.assign import Key
from inferway.placement.assignment import Asked, assign, options_of, slots_of
from inferway.studies import Claim, Point, Results, Study, grid, scales
from inferway.twin import simulate
from inferway.workload.arrivals import mean_rate

FILE: Final = Path(__file__).with_name("device-pool.yaml")
VARIABLE: Final = "INFERWAY_TRACES"  # names a folder with the Azure LLM inference traces
TRACES: Final = {
    "conversation": "AzureLLMInferenceTrace_conv.csv",
    "code": "AzureLLMInferenceTrace_code.csv",
}
WINDOW_S: Final = 60.0  # Over which a trace's rate is taken
_NODE: Final = "pool"
_WARM_S: Final = 60.0
_STEP: Final = 7  # Windows by which each trial begins later in a trace
_PEAK: Final = 1.25  # Times the mean rate: the highest of the file's phases
_SEEN: Final = 1.2  # Times the rate seen, as by default
_ROOM: Final = 1.1  # Times the rate known in hindsight
WAYS: Final = {
    "assign": "given out anew, room for 1.2 times the rate seen",
    "assign-p95": "given out anew, 95th percentile of the slots",
    "mean": "once, for the mean rates",
    "peak": "once, for 1.25 times these",
    "hindsight": "once, for 1.1 times the rates that come",
    "infaas": "once, as for 1.25 times, requests by the rule infaas",
}


@dataclass(frozen=True)
class PoolSettings:
    """Ours."""

    ways: tuple[str, ...] = tuple(WAYS)
    seconds: float = 3600.0  # That count
    trials: int = 5


def trace(kind: str) -> Path | None:
    """The recorded trace, where its folder is named and has it."""
    folder = os.environ.get(VARIABLE)
    file = None if folder is None else Path(folder) / TRACES[kind]
    return file if file is not None and file.is_file() else None


def _points(settings: PoolSettings) -> list[Point]:
    kinds = ["map", *(kind for kind in TRACES if trace(kind) is not None)]
    return grid(
        pooled,
        {"seconds": settings.seconds},
        settings.seconds / 40.0,
        kind=kinds,
        way=settings.ways,
        trial=range(settings.trials),
    )


def pooled(*, kind: str, way: str, seconds: float, seed: int) -> dict[str, Any]:
    """Run all tasks for some time under one way to give out the devices.

    Returns
    -------
    dict
        Over the requests of all tasks: ``goodput``, the accuracy of the answers in time, and
        ``violations``, the part without one; the fluid ``bound`` on that goodput, slot by slot, and
        ``gap``, what is missing to it; ``moves`` of devices.
    """
    document: dict[str, Any] = YAML(typ="safe").load(FILE.read_text(encoding="utf-8"))
    file = load(document)
    rates = {name: mean_rate(one.arrivals) for name, one in file.workload.items()}
    if kind != "map":
        found = trace(kind)
        assert found is not None
        document["workload"] = _replayed(found, rates, _WARM_S + seconds, seed)
    moving = way.startswith("assign")
    peak = {"assign-p95": "p95"}.get(way, _SEEN)
    document["placement"] = {"policy": "assign", "peak": peak}
    asked = {"mean": 1.0, "hindsight": _ROOM}.get(way, _PEAK)
    document["nodes"][_NODE]["instances"] = _written(planned(file, rates, asked))
    whole = sum(rates.values()) / len(rates)
    terms: dict[str, Any] = {"seed": seed, "workers": 1}
    counts: dict[str, Any] = terms | {
        "queries": round(seconds * whole),
        "warmup": round(_WARM_S * whole),
    }
    result = simulate(load(document), **counts, dry_run=not moving)
    if way == "hindsight":
        assert result.placement is not None
        span_s = result.placement.slots * result.placement.slot_s
        came = {name: one.queries / span_s for name, one in result.tasks.items()}
        document["nodes"][_NODE]["instances"] = _written(planned(file, came, asked))
        result = simulate(load(document), **counts, dry_run=True)
    assert result.placement is not None
    assert result.totals is not None
    goodput, violations = result.totals.goodput, result.totals.violation_ratio
    if way == "infaas":
        goodput, violations = _ruled(document, rates, seconds, terms)
    return {
        "goodput": goodput,
        "violations": violations,
        "bound": result.placement.bound,
        "gap": result.placement.bound - goodput,
        "moves": result.placement.moves,
    }


def planned(file: Deployment, rates_per_s: Mapping[str, float], times: float) -> dict[Key, int]:
    """Copies of the best assignment for so many times some rates, 1/s; each task has one."""
    node, tasks = file.nodes[_NODE], [*file.tasks.values()]
    options = options_of(node, tasks, {task.name: task.deadline_s for task in tasks})
    asked = {name: Asked(times * rate) for name, rate in rates_per_s.items()}
    found = assign(slots_of(node), options, asked, gap=1e-3)
    assert found is not None
    return found.copies


def _written(copies: Mapping[Key, int]) -> dict[str, dict[str, int]]:
    """Copies as a file lists them."""
    instances: dict[str, dict[str, int]] = {}
    for (task, variant, device), count in copies.items():
        instances.setdefault(f"{task}/{variant}", {})[device] = count
    return instances


def _ruled(
    document: Mapping[str, Any],
    rates: Mapping[str, float],
    seconds: float,
    terms: Mapping[str, Any],
) -> tuple[float, float]:
    """Goodput and violations where requests go by a rule, task by task, for the same time."""
    ruled = {name: one for name, one in document.items() if name not in ("placement", "dispatch")}
    file = load({**ruled, "scheduling": {"policy": "infaas"}})
    sums = np.zeros(3)
    for name, rate in rates.items():
        counts: dict[str, Any] = {"queries": round(seconds * rate), "warmup": round(_WARM_S * rate)}
        (one,) = simulate(file, tasks=(name,), **counts, **terms).tasks.values()
        sums += rate * np.array([one.goodput, one.violation_ratio, 1.0])
    goodput, violations = (sums[:2] / sums[2]).tolist()
    return goodput, violations


def _replayed(
    file: Path, rates: Mapping[str, float], seconds: float, seed: int
) -> dict[str, dict[str, Any]]:
    """Workloads with the course of a trace: each task's begins at another place in it."""
    with file.open(encoding="utf-8", newline="") as lines:
        stamps = [row["TIMESTAMP"][:26] for row in csv.DictReader(lines)]
    first = datetime.fromisoformat(stamps[0])
    at_s = [(datetime.fromisoformat(one) - first).total_seconds() for one in stamps]
    counts, _ = np.histogram(at_s, np.arange(0.0, max(at_s), WINDOW_S))
    course = np.maximum(counts / counts.mean(), 1e-3)
    windows = math.ceil(seconds / WINDOW_S)
    workload = {}
    for k, (name, rate) in enumerate(rates.items()):
        begin = k * len(course) // len(rates) + _STEP * seed
        levels = rate * course[(begin + np.arange(windows)) % len(course)]
        phases = [{"for": f"{WINDOW_S:g} s", "rate": f"{one:.6g}/s"} for one in levels.tolist()]
        workload[name] = {"arrivals": {"process": "phases", "phases": phases}}
    return workload


def _figure(settings: PoolSettings, results: Results) -> Drawing:
    places = list(range(len(settings.ways)))
    found = []
    for kind in results.distinct("kind"):
        here = results.where(kind=kind)
        found.append(
            Panel(
                f"{kind}: {', '.join(f'{k} {way}' for k, way in enumerate(settings.ways))}",
                "way",
                "points",
                [
                    Curve(
                        said,
                        places,
                        [100.0 * _mean(here, column, way) for way in settings.ways],
                        color=color,
                    )
                    for color, (said, column) in enumerate(
                        (
                            ("missing to the bound", "gap"),
                            ("without an answer in time", "violations"),
                        )
                    )
                ],
                levels=[("goals", 1.0)],
            )
        )
    return panels(found, columns=1, title="A pool of forty devices for nine tasks (ours)")


def _mean(results: Results, column: str, way: str) -> float:
    values = [row[column] for row in results.where(way=way).rows]
    return float(np.mean(values)) if values else math.nan


_ARRIVALS: Final = {
    "map": "the file's arrivals",
    "conversation": "the conversation trace",
    "code": "the code trace, which has bursts that no window foretells",
}


def _claims(settings: PoolSettings, results: Results) -> Sequence[Claim]:
    made: list[Claim] = []
    for kind in results.distinct("kind"):
        here, arrivals = results.where(kind=kind), _ARRIVALS[kind]
        made += [
            ours(
                f"Given out anew, the devices come near the fluid bound under {arrivals}.",
                "what goodput, each answer in time by its accuracy, is below the bound",
                _mean(here, "gap", "assign"),
                "at most 1 %",
                f"goodput {_mean(here, 'goodput', 'assign'):.4f}, bound "
                f"{_mean(here, 'bound', 'assign'):.4f}; "
                f"{_mean(here, 'moves', 'assign'):.0f} moves; {_each(settings, here, 'gap')}",
            ),
            ours(
                f"Hardly a request is without an answer in time then, under {arrivals}.",
                "part of the requests",
                _mean(here, "violations", "assign"),
                "at most 1 %",
                _each(settings, here, "violations"),
            ),
        ]
        others = {
            "peak": "than given out once for 1.25 times the mean rates",
            "mean": "than given out once for the mean rates",
            "hindsight": "than given out once for what was to come",
            "infaas": "than given out once with the rule infaas",
        }
        made += [
            ours(
                f"They answer better {said}, under {arrivals}.",
                "goodput above its goodput",
                _mean(here, "goodput", "assign") - _mean(here, "goodput", way),
                "at least 0 %",
                f"{_mean(here, 'goodput', way):.4f}, with "
                f"{100 * _mean(here, 'violations', way):.2g} % without an answer in time",
            )
            for way, said in others.items()
            if way in settings.ways
        ]
    return made


def _each(settings: PoolSettings, results: Results, column: str) -> str:
    return ", ".join(
        f"{way} {100 * _mean(results, column, way):.2f} %"
        for way in settings.ways
        if way != "assign"
    )


STUDY = Study(
    name="device-pool",
    source="ours",
    shows="Forty devices of three kinds for nine tasks whose demand shifts: given out anew slot by "
    "slot, or once, beside the fluid bound.",
    scales=scales(
        PoolSettings(),
        smoke={"seconds": 60.0, "trials": 1, "ways": ("assign", "mean", "peak", "infaas")},
        quick={"seconds": 600.0, "trials": 3},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The bound is solved for the requests that came in each slot of 10 s, and divides devices "
        "at will.",
        "A trace gives the course of the rate, minute by minute, in place of the mean that the "
        "file states; each task's begins at another ninth of it, and each trial's seven minutes "
        "later. Arrivals within a minute are Poisson.",
    ),
    code=("site", "dispatch", "twin", "workload", "placement/assign.py", "placement/assignment.py"),
)
