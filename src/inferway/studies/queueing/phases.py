"""Load or target that changes in phases: the call behind Figs. 9 and 10 of [Anonymous]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferway.studies.queueing.system import System, scenario


def phased(
    *,
    system: Mapping[str, Any],
    servers: int,
    targets: Sequence[float],
    loads: Sequence[float],
    phase_s: float,
    policy: str,
    queries: int,
    seed: int,
    options: Mapping[str, Any] | None = None,
    sample_s: float | None = None,
    warmup: int | None = None,
) -> dict[str, Any]:
    """Simulate a site whose load and target change in turn.

    Parameters
    ----------
    system, servers, policy, options, queries, seed, warmup
        As in `inferway.studies.queueing.system.simulated`.
    targets, loads
        By phase: accuracy target, and rate over the greatest feasible one at that target.
    phase_s
        How long each phase lasts.
    sample_s
        Where given, the number in the system and the accuracy are sampled so often.

    Returns
    -------
    dict
        Response time and accuracy; ``bound_s`` and, by phase, ``bound_in_system`` (the bound times
        the rate, by Little's law); with `sample_s` the samples.
    """
    from inferway.deployment.workloads import phased as phased_arrivals
    from inferway.dispatch import max_rate, solve
    from inferway.twin.simulation import run

    fleet = System(**{name: tuple(value) for name, value in system.items()}).fleet(servers)
    rates = [load * max_rate(fleet, a) for load, a in zip(loads, targets, strict=True)]
    arrivals = phased_arrivals(
        (phase_s, rate_per_s, target) for rate_per_s, target in zip(rates, targets, strict=True)
    )
    result = run(
        scenario(fleet, arrivals, "exponential", targets[0], policy, options or {}),
        queries=queries,
        seed=seed,
        warmup=warmup,
        workers=1,
        sample_s=sample_s,
    )
    bounds_s = [
        solve(fleet, target, rate_per_s).response_time_s
        for rate_per_s, target in zip(rates, targets, strict=True)
    ]
    in_system = [bound * rate_per_s for bound, rate_per_s in zip(bounds_s, rates, strict=True)]
    found = {
        "response_s": result.response_time_s.mean,
        "response_s_se": result.response_time_s.stderr,
        "accuracy": result.accuracy.mean,
        "accuracy_se": result.accuracy.stderr,
        "stable": result.stable,
        "queries": result.queries,
        "rate_per_s": rates,
        "bound_s": sum(in_system) / sum(rates),
        "bound_in_system": in_system,
    }
    if sample_s is not None:
        series = result.series
        assert series is not None
        found |= {
            "time_s": series.time_s,
            "in_system": series.in_system[0],
            "sampled_accuracy": series.accuracy[0],
        }
    return found
