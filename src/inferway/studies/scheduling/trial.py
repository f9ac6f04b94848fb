"""One point of a study: a scheduler on the paper's site for so many slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferway.studies import Point
from inferway.studies.scheduling.burst import (
    BURSTY,
    DEADLINE_S,
    HEAVY_PHI,
    LIGHT_PHI,
    NORMAL,
    SERVICE_S,
    mean_rate_per_s,
    scenario,
)
from inferway.studies.scheduling.shipped import at_deadline, digest, network

if TYPE_CHECKING:
    from inferway.learning.evaluation import PhaseTally
    from inferway.twin.result import TaskResult
    from inferway.twin.scenario import Scenario

PHASES = {"bursty": BURSTY, "normal": NORMAL}
EVENTS = ("sq", "sq-uniform", "sq-tied", "hw-e", "deadline", "believed")
"""Rows that decide request by request: they run on the twin's own engines."""
_FLEETS = {"lw": (4, 0), "hw": (0, 4), "hw-e": (0, 4)}
"""Light and heavy servers where they are not two of each (Sec. 5.1.7)."""
_HERE = Path(__file__).parent
_INFAAS_SLOT_S = 0.1
_SITES = 200
_WARMUP = 10_000
"""Requests of an event-driven run that are not counted."""


def evaluated(
    policy: str,
    workload: str,
    slots: int,
    seed: int,
    *,
    deadline_s: float = DEADLINE_S,
    trained: str = "",
    file: str = "",
    events: bool = False,
    service_s: tuple[float, float] = SERVICE_S,
    distribution: str = "deterministic",
    cv: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a row of Table 2.

    Parameters
    ----------
    policy
        One of `EVENTS`, ``lw``, ``hw``, ``sa``, ``split``, ``infaas``, ``hand``, or a learned one's
        kind.
    workload
        ``map`` or ``periodic``.
    slots
        Of a second, over all sites: the paper's 600,000.
    seed
        Of everything.
    deadline_s, service_s, distribution, cv
        As of `burst.scenario`.
    trained
        Which shipped policy, for the learned ones.
    file
        Its `digest`, so that a row is known by what was evaluated.
    options
        Of a scheduler or dispatch policy, where not its defaults; of a learned one with `events`.
    events
        Run what decides in slots on the twin's event-driven engine as well.

    Returns
    -------
    dict
        See `row_of`.
    """
    del file
    asked = scenario(
        workload,
        counts=_FLEETS.get(policy, (2, 2)),
        deadline_s=deadline_s,
        service_s=service_s,
        distribution=distribution,
        cv=cv,
        phis=(LIGHT_PHI, HEAVY_PHI) if policy.endswith("-b") else None,
    )
    if policy in EVENTS or events:
        return _by_events(_scheduled(asked, policy, trained, options or {}), slots, seed)
    return _in_slots(asked, policy, trained, slots, seed, options or {})


def _scheduled(asked: Scenario, policy: str, trained: str, options: Mapping[str, Any]) -> Scenario:
    match policy:
        case "deadline":
            return replace(asked, options=options)
        case "believed":
            return replace(asked, policy="./rules.py:Believed", options=options, folder=_HERE)
        case "sq-tied":
            return replace(
                asked, policy="./rules.py:Tied", options=options, folder=_HERE, queue="central"
            )
        case "sq" | "sq-uniform":
            ties = "uniform" if policy == "sq-uniform" else "heavy"
            return replace(asked, policy="sq", options={"ties": ties}, queue="central")
        case "hw-e":
            return replace(asked, policy="hw-e")
        case _ if trained:
            return asked.scheduled(policy, checkpoint=network(trained).path, **options)
    return asked.scheduled(policy, **options)


def _by_events(asked: Scenario, slots: int, seed: int) -> dict[str, Any]:
    from inferway.twin import run

    queries = round(slots * mean_rate_per_s())
    return row_of(_of_result(run(asked, queries=queries, seed=seed, warmup=_WARMUP, workers=1)))


def _in_slots(
    asked: Scenario,
    policy: str,
    trained: str,
    slots: int,
    seed: int,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    from inferway.learning.evaluation import evaluate
    from inferway.learning.site import Control
    from inferway.scheduling.neural_policy import fits
    from inferway.studies.scheduling.deciders import decider_of, learned

    slot_s = _INFAAS_SLOT_S if policy == "infaas" else 1.0
    control = Control(
        replace(asked, policy="alias"),
        slot_s=slot_s,
        sees_phase=policy in ("sa", "split") or policy.startswith("rl-fo"),
        batches=policy.endswith("-b"),
    )
    if trained:
        known = network(trained)
        fits(known, asked.fleet, policy=policy, deadline_s=asked.deadline_s, slot_s=slot_s)
        decide = learned(known)
    else:
        decide = decider_of(policy, control, **options)
    tally = evaluate(
        decide,
        control,
        slots=round(slots / slot_s),
        sites=min(_SITES, slots),
        seed=seed,
        warmup=round(10 / slot_s),
    )
    return row_of(_of_tally(tally, asked.fleet.variants))


def row_of(by_phase: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The columns of Table 2.

    ``goodput_bursty`` and so on by state; without a state's name, the mean of the two states, which
    is the paper's "overall". ``rate`` is the overall goodput in requests per second. ``heavy``
    counts what heavy instances accepted; ``scheduled`` also what was turned away, as the paper's
    heavyweight model scheduling ratio does: light servers have room for nearly all that comes, so
    that it is the heavy ones that turn away.
    """
    row: dict[str, Any] = {}
    for name in ("goodput", "violations", "rejected", "late", "heavy"):
        for phase, of in by_phase.items():
            row[f"{name}_{phase}"] = of[name]
        row[name] = sum(of[name] for of in by_phase.values()) / len(by_phase)
    for phase, of in by_phase.items():
        row[f"scheduled_{phase}"] = of["heavy"] + of["rejected"]
    row["rate"] = row["goodput"] * mean_rate_per_s()
    return row


def _of_tally(tally: PhaseTally, variants: tuple[str, ...]) -> dict[str, dict[str, float]]:
    heavy = [k for k, variant in enumerate(variants) if variant == "heavy"]
    by_phase = {}
    for name, phase in PHASES.items():
        arrived = max(int(tally.arrived[phase]), 1)
        by_phase[name] = {
            "goodput": float(tally.goodput[phase]),
            "violations": float(tally.violations[phase]),
            "rejected": int(tally.rejected[phase]) / arrived,
            "late": int(tally.late[phase]) / arrived,
            "heavy": int(tally.sent[phase, heavy].sum()) / arrived,
        }
    return by_phase


def _of_result(result: TaskResult) -> dict[str, dict[str, float]]:
    return {
        name: {
            "goodput": (phase := result.phases[place]).goodput,
            "violations": phase.violation_ratio,
            "rejected": phase.rejected + phase.dropped,
            "late": phase.late,
            "heavy": phase.dispatched.get("heavy", 0.0),
        }
        for name, place in PHASES.items()
    }


def point(
    row: str, workload: str, slots: int, trial: int, *, policy: str | None = None, **arguments: Any
) -> Point:
    """One call of `evaluated`, labeled by row, workload and trial."""
    name = policy or row
    given = {"policy": name, "workload": workload, "slots": slots, "seed": trial + 1, **arguments}
    return Point(
        {"row": row, "workload": workload, "trial": trial},
        evaluated,
        given,
        seconds(name, slots, events=bool(arguments.get("events"))),
    )


def learned_point(
    row: str, policy: str, workload: str, slots: int, trial: int, *, trained: str, **arguments: Any
) -> Point:
    """One call of `evaluated` with a shipped policy."""
    shipped = {"policy": policy, "trained": trained, "file": digest(trained)}
    return point(row, workload, slots, trial, **shipped, **arguments)


def seconds(policy: str, slots: int, *, events: bool = False) -> float:
    """About how long `evaluated` takes on one core, s."""
    if events:
        return 2 + 60e-6 * slots
    rate = {"infaas": 10e-6, "sa": 2e-6, "hand": 2e-6}.get(policy, 4e-6)
    return 0.5 + rate * slots


def name_at(policy: str, workload: str, deadline_s: float = DEADLINE_S) -> str:
    """The shipped policy for a workload and deadline."""
    name = at_deadline(policy, deadline_s)
    return f"periodic-{name}" if workload == "periodic" else name
