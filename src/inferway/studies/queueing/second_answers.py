"""Simulations of second answers: the zoo on images that the fit has not seen, and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from inferway.deployment.workloads import Arrivals, MapArrivals, poisson
from inferway.dispatch import max_rate, solve
from inferway.dispatch.bounds import UnreachableError
from inferway.dispatch.escalation_bounds import full_load, solve_escalation
from inferway.site.confidence import difficulty_tables
from inferway.studies.queueing import cascade
from inferway.studies.queueing.folds import FOLDS, fold
from inferway.studies.queueing.system import System, measured, scenario
from inferway.twin.result import TaskResult
from inferway.twin.scenario import Scenario
from inferway.twin.simulation import run

CASCADE: Final = "cascade"
DEMO: Final = "demo"  # In place of a load: the demo's bursts

Rate = float | str  # A load, or `DEMO`


def on_images(
    *,
    variants: Sequence[str],
    accuracies: Literal["held", "fitted"],
    fold: int,
    target: float,
    load: Rate,
    demo: Mapping[str, float],
    policy: str,
    queries: int,
    seed: int,
) -> dict[str, Any]:
    """Simulate the zoo, one server of each variant, with requests that the fit has not seen.

    The load is over the greatest rate of policies that choose before they see an answer, with
    Poisson arrivals; or ``demo``, for the bursty stream. Service takes the profile's time, always.
    Nothing but ``reachable`` is returned where the policy cannot keep the target.
    """
    asked = _of_images(tuple(variants), accuracies, fold, target)
    try:
        arrivals: Arrivals = bursts(**demo)
        rate_per_s = demo["mean_per_s"]
        if load != DEMO:
            rate_per_s = float(load) * full_load(asked.fleet, target)
            arrivals = poisson(rate_per_s)
        return _simulated(replace(asked, arrivals=arrivals), policy, rate_per_s, queries, seed)
    except UnreachableError:
        return {"reachable": 0}


def _of_images(
    variants: tuple[str, ...], accuracies: Literal["held", "fitted"], number: int, target: float
) -> Scenario:
    """The scenario of a fold, with arrivals that are to be replaced."""
    own = fold(number, variants, accuracies)
    asked = scenario(own.fleet, poisson(1.0), "deterministic", target, "escalate", {})
    return replace(asked, answers=own.requests)


def bursts(*, mean_per_s: float, swing: float, quiet_s: float, burst_s: float) -> MapArrivals:
    """A stream that switches between two rates, at random, with a mean."""
    part = burst_s / (quiet_s + burst_s)
    quiet = mean_per_s / (1.0 - part + part * swing)
    burst, ends, begins = swing * quiet, 1.0 / burst_s, 1.0 / quiet_s
    return MapArrivals(
        process="map",
        d0=((-quiet - begins, begins), (ends, -burst - ends)),
        d1=((quiet, 0.0), (0.0, burst)),
    )


def on_numbers(
    *,
    system: Mapping[str, Any],
    servers: int,
    target: float,
    quality: float,
    common: float,
    load: float,
    policy: str,
    queries: int,
    seed: int,
) -> dict[str, Any]:
    """Simulate a fleet of numbers with Poisson arrivals and exponential service times.

    Confidence follows the difficulty model; the load is over the blind bound's greatest rate.
    """
    fleet = System.of(system).fleet(servers)
    fleet = replace(fleet, confidence=difficulty_tables(fleet.accuracy, quality, common))
    rate_per_s = load * max_rate(fleet, target)
    asked = scenario(fleet, poisson(rate_per_s), "exponential", target, "escalate", {})
    return _simulated(asked, policy, rate_per_s, queries, seed)


def _simulated(
    asked: Scenario, policy: str, rate_per_s: float, queries: int, seed: int
) -> dict[str, Any]:
    """Run a scenario under a policy; both bounds are beside it, where there are any."""
    chosen = replace(asked, policy=cascade.NAME if policy == CASCADE else policy)
    result = run(chosen, queries=queries, seed=seed, workers=1)
    row = {
        **measured(result),
        "reachable": 1,
        "p95_s": float(result.p95_s),
        "rate_per_s": rate_per_s,
        "escalated": _escalated(result),
    }
    if result.by_labels is not None and math.isfinite(result.by_labels.mean):
        row |= {"labels": result.by_labels.mean, "labels_se": result.by_labels.stderr}
    for name, bound in (("bound_s", solve), ("again_s", solve_escalation)):
        try:
            row[name] = bound(asked.fleet, asked.target, rate_per_s).response_time_s
        except UnreachableError:  # beyond the greatest rate, or the best accuracy
            continue
    return row


def _escalated(result: TaskResult) -> float:
    return sum(one.share for one in result.escalated or ())


def speed(
    *, variants: Sequence[str], target: float, load: float, queries: int
) -> dict[str, float | str]:
    """Compare how fast the twin is with `escalate` and with `priced`, same engine, turn by turn."""
    asked = _of_images(tuple(variants), "held", FOLDS[0], target)
    asked = replace(asked, arrivals=poisson(load * full_load(asked.fleet, target)))
    fastest: dict[str, float] = {}
    engines = set()
    for turn in range(5):
        for policy in ("priced", "escalate"):
            one = run(replace(asked, policy=policy), queries=queries, seed=turn, workers=1)
            fastest[policy] = max(fastest.get(policy, 0.0), one.queries_per_cpu_s)
            engines.add(one.engine)
    (engine,) = engines
    return {**fastest, "ratio": fastest["escalate"] / fastest["priced"], "engine": engine}
