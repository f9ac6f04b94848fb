"""One point of a study: a scheduler on the paper's site for so many slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferway.learning.site import Control, evaluate
from inferway.scheduling.neural_policy import fits
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
from inferway.studies.scheduling.deciders import decider_of, learned
from inferway.studies.scheduling.shipped import digest, network
from inferway.twin import run
from inferway.twin.scenario import Scenario

PHASES = {"bursty": BURSTY, "normal": NORMAL}
# Rows that decide request by request, by the twin's engines: what their scenarios differ in.
BY_EVENTS: Mapping[str, Mapping[str, Any]] = {
    "sq": {"policy": "sq", "options": {"ties": "heavy"}, "queue": "central"},
    "sq-uniform": {"policy": "sq", "options": {"ties": "uniform"}, "queue": "central"},
    "sq-tied": {"policy": "./rules.py:Tied", "queue": "central"},
    "hw-e": {"policy": "hw-e"},
    "deadline": {"policy": "deadline"},
    "believed": {"policy": "./rules.py:Believed"},
}
# Light and heavy servers where they are not two of each (Sec. 5.1.7).
_FLEETS = {"lw": (4, 0), "hw": (0, 4), "hw-e": (0, 4)}
_INFAAS_SLOT_S = 0.1
_SITES = 200
_WARMUP = 10_000  # requests of an event-driven run that are not counted


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
        One of `BY_EVENTS`, ``lw``, ``hw``, ``sa``, ``split``, ``infaas``, ``hand``, or a learned
        one's kind.
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
    if policy in BY_EVENTS:
        of_row = {"options": options or {}, **BY_EVENTS[policy]}
        return _by_events(replace(asked, folder=Path(__file__).parent, **of_row), slots, seed)
    if events:
        of_row = {"checkpoint": network(trained).path} if trained else {}
        return _by_events(asked.scheduled(policy, **of_row, **(options or {})), slots, seed)
    return _in_slots(asked, policy, trained, slots, seed, options or {})


def _by_events(asked: Scenario, slots: int, seed: int) -> dict[str, Any]:
    queries = round(slots * mean_rate_per_s())
    phases = run(asked, queries=queries, seed=seed, warmup=_WARMUP, workers=1).phases
    return row_of(
        {
            name: {
                "goodput": phases[place].goodput,
                "violations": phases[place].violation_ratio,
                "rejected": phases[place].rejected + phases[place].dropped,
                "late": phases[place].late,
                "heavy": phases[place].dispatched.get("heavy", 0.0),
            }
            for name, place in PHASES.items()
        }
    )


def _in_slots(
    asked: Scenario,
    policy: str,
    trained: str,
    slots: int,
    seed: int,
    options: Mapping[str, Any],
) -> dict[str, Any]:
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
    heavy = [k for k, variant in enumerate(asked.fleet.variants) if variant == "heavy"]
    arrived = tally.arrived.clip(1)
    return row_of(
        {
            name: {
                "goodput": float(tally.goodput[phase]),
                "violations": float(tally.violations[phase]),
                "rejected": float(tally.rejected[phase] / arrived[phase]),
                "late": float(tally.late[phase] / arrived[phase]),
                "heavy": float(tally.sent[phase, heavy].sum() / arrived[phase]),
            }
            for name, phase in PHASES.items()
        }
    )


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
        row |= {f"{name}_{phase}": of[name] for phase, of in by_phase.items()}
        row[name] = sum(of[name] for of in by_phase.values()) / len(by_phase)
    row |= {f"scheduled_{phase}": of["heavy"] + of["rejected"] for phase, of in by_phase.items()}
    return {**row, "rate": row["goodput"] * mean_rate_per_s()}


def point(
    row: str, workload: str, slots: int, trial: int, *, policy: str | None = None, **arguments: Any
) -> Point:
    """One call of `evaluated`, labeled by row, workload and trial."""
    name, rate = policy or row, {"infaas": 10e-6, "sa": 2e-6, "hand": 2e-6}
    given = {"policy": name, "workload": workload, "slots": slots, "seed": trial + 1, **arguments}
    cost = 2 + 60e-6 * slots if arguments.get("events") else 0.5 + rate.get(name, 4e-6) * slots
    return Point({"row": row, "workload": workload, "trial": trial}, evaluated, given, cost)


def learned_point(
    row: str, policy: str, workload: str, slots: int, trial: int, *, trained: str, **arguments: Any
) -> Point:
    """One call of `evaluated` with a shipped policy."""
    shipped = {"policy": policy, "trained": trained, "file": digest(trained)}
    return point(row, workload, slots, trial, **shipped, **arguments)
