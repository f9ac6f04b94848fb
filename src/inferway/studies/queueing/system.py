"""The systems of [Anonymous], the calls that simulate one, and how its policies are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from inferway.deployment import ServiceTime
from inferway.deployment.workloads import Arrivals, poisson
from inferway.deployment.workloads import phased as phased_arrivals
from inferway.dispatch import max_rate, solve
from inferway.dispatch.bounds import Optimum
from inferway.experiments.curves import Look, Panel, frame, lines
from inferway.experiments.results import most
from inferway.site import Fleet
from inferway.studies import Point, Results, grid
from inferway.twin.result import TaskResult
from inferway.twin.scenario import Scenario
from inferway.twin.simulation import run

# What the results of calls that simulate a `scenario` of this file depend on.
CODE = ("site", "dispatch", "twin", "workload", "studies/queueing/system.py")

# Of each policy, the same in all figures. As in [Anonymous], Sec. 7: solid lines are bounds,
# dash-dot lines are policies that are told the arrival rate, dashed lines are those that are not.
LOOKS = {
    "tad-op": Look("TAD-OP", 0, "--"),
    "tad": Look("TAD", 1, "--"),
    "r-jiq": Look("R-JIQ", 2, "-."),
    "priced": Look("priced (ours)", 3, "--"),
    "jiq-fast": Look("JIQ, fastest first", 4, "--"),
    "jiq-accurate": Look("JIQ, most accurate first", 5, "--"),
}
BOUND = Look("bound (LP)")  # what no policy can get below


@dataclass(frozen=True)
class System:
    """Server classes without a size."""

    rate: tuple[float, ...]  # mu, 1/s
    accuracy: tuple[float, ...]  # a, in 0..1 (the paper has percent)
    share: tuple[float, ...]  # alpha: part of the servers in each class

    def fleet(self, servers: int, buffer: int | None = None) -> Fleet:
        """The fleet of n servers; ValueError where a class would not have a whole number."""
        count = np.array(self.share) * servers
        if np.abs(count - count.round()).max() > 1e-6 or round(float(count.sum())) != servers:
            raise ValueError(f"{servers} servers do not split into shares {self.share}")
        return Fleet(
            variants=tuple(f"class-{k + 1}" for k in range(len(self.rate))),
            rate=np.array(self.rate),
            accuracy=np.array(self.accuracy),
            count=count.round().astype(np.int64),
            buffer=buffer,
        )

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> System:
        """The system that a point's arguments have."""
        return cls(**{name: tuple(value) for name, value in arguments.items()})

    def arguments(self) -> dict[str, Any]:
        """As a point's arguments have it."""
        return {name: list(value) for name, value in asdict(self).items()}


@cache
def greatest(system: System, servers: int, target: float) -> float:
    """The greatest rate at which n servers keep a target, 1/s."""
    return max_rate(system.fleet(servers), target)


@cache
def lp_optimum(system: System, servers: int, target: float, load: float) -> Optimum:
    """The LP's optimum at a load."""
    return solve(system.fleet(servers), target, load * greatest(system, servers, target))


# Sec. 3.3 and 7.
FOUR_CLASSES = System((2.0, 1.0, 0.9, 0.1), (0.70, 0.75, 0.80, 1.00), (0.25,) * 4)

THREE_CLASSES = System((1.0, 0.5, 0.25), (0.40, 0.50, 1.00), (1 / 3,) * 3)  # examples 1 and 2


def simulated(
    *,
    system: Mapping[str, Any],
    servers: int,
    target: float,
    load: float,
    policy: str,
    queries: int,
    seed: int,
    distribution: str = "exponential",
    options: Mapping[str, Any] | None = None,
    warmup: int | None = None,
    buffer: int | None = None,
    precision: float | None = None,
    most: int = 200_000_000,
) -> dict[str, Any]:
    """Simulate one system (`System.arguments`) under one policy, with Poisson arrivals.

    The load is the rate over the greatest feasible one, a buffer has places at a server, and
    `warmup` is found by the simulator where it is None. With a precision the run is made longer
    until the standard error of the mean response time is below this part of it, or `most` queries
    are reached. Of what is returned ``bound_s`` and ``bound_accuracy`` are the LP's.
    """
    fleet = System.of(system).fleet(servers, buffer)
    rate_per_s = load * max_rate(fleet, target)
    best = solve(fleet, target, rate_per_s)
    asked = scenario(fleet, poisson(rate_per_s), distribution, target, policy, options or {})
    result = precise(
        asked, queries=queries, seed=seed, warmup=warmup, precision=precision, most=most
    )
    return {
        **measured(result),
        "p95_s": result.p95_s,
        "rejected": result.rejected,
        "shares": [result.shares[name] for name in fleet.variants],
        "queries_per_cpu_s": result.queries_per_cpu_s,
        "engine": result.engine,
        "bound_s": best.response_time_s,
        "bound_accuracy": float(best.shares @ fleet.accuracy),
    }


def measured(result: TaskResult) -> dict[str, Any]:
    """Return what all simulations of a site tell."""
    return {
        "response_s": result.response_time_s.mean,
        "response_s_se": result.response_time_s.stderr,
        "accuracy": result.accuracy.mean,
        "accuracy_se": result.accuracy.stderr,
        "stable": result.stable,
        "queries": result.queries,
    }


def precise(
    asked: Scenario,
    *,
    queries: int,
    seed: int,
    warmup: int | None,
    precision: float | None,
    most: int,
) -> TaskResult:
    """Simulate until the mean response time is known well enough; parameters as of `simulated`."""
    while True:
        result = run(asked, queries=queries, seed=seed, warmup=warmup, workers=1)
        error = result.response_time_s.stderr / result.response_time_s.mean
        if precision is None or not result.stable or queries >= most or error <= precision:
            return result
        # The error is an estimate too: a fifth more than it asks for, and no leap in the dark.
        queries = min(int(queries * max(min(1.2 * (error / precision) ** 2, 20.0), 1.5)), most)


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
    """Simulate a site whose load and target change in turn, as behind Figs. 9 and 10.

    Targets and loads, over the greatest feasible one at that target, are by phase of `phase_s`
    each. With `sample_s` the number in the system and the accuracy are sampled so often. Of what is
    returned ``bound_in_system``, by phase, is the bound times the rate, by Little's law.
    """
    site = System.of(system)
    phases = list(zip(targets, loads, strict=True))
    rates = [load * greatest(site, servers, target) for target, load in phases]
    arrivals = phased_arrivals(
        (phase_s, rate_per_s, target) for rate_per_s, target in zip(rates, targets, strict=True)
    )
    result = run(
        scenario(site.fleet(servers), arrivals, "exponential", targets[0], policy, options or {}),
        queries=queries,
        seed=seed,
        warmup=warmup,
        workers=1,
        sample_s=sample_s,
    )
    in_system = [
        lp_optimum(site, servers, target, load).response_time_s * rate_per_s
        for (target, load), rate_per_s in zip(phases, rates, strict=True)
    ]
    row = {
        **measured(result),
        "rate_per_s": rates,
        "bound_s": sum(in_system) / sum(rates),
        "bound_in_system": in_system,
    }
    if (series := result.series) is not None:
        row |= {
            "time_s": series.time_s,
            "in_system": series.in_system[0],
            "sampled_accuracy": series.accuracy[0],
        }
    return row


@dataclass(frozen=True)
class Settings:
    """Of the studies of one site; the defaults are the paper's (Sec. 7), or ours."""

    system: System = FOUR_CLASSES
    servers: int = 64
    # Servers, where they differ.
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    target: float = 0.76
    targets: tuple[float, ...] = (0.72, 0.76, 0.80)
    load: float = 0.5  # arrival rate over the greatest feasible one
    loads: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    policies: tuple[str, ...] = ("r-jiq", "tad", "tad-op", "priced")
    queries: int = 100_000_000  # of a run
    queries_per_server: int = 100_000
    precision: float | None = None
    trials: int = 50
    warmup: int | None = 0

    @property
    def looks(self) -> dict[str, Look]:
        """Of its policies."""
        return {policy: LOOKS[policy] for policy in self.policies}

    def common(self, *names: str) -> dict[str, Any]:
        """Arguments that all points have: the system, and these of the settings."""
        given = {name: getattr(self, name) for name in names}
        listed = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
        return {"system": self.system.arguments(), **listed}

    def points(self, call: Callable[..., Any], *names: str, **axes: Any) -> list[Point]:
        """Points of as many queries and as precise as is set; where no axis is a trial, once.

        An axis is its values, or the name of the settings that has them.
        """
        named = {
            axis: getattr(self, of) if isinstance(of, str) else of for axis, of in axes.items()
        }
        if "trial" in named:
            named["trial"] = range(self.trials)
        shared = self.common(*names, "queries", "precision")
        seed = {} if "trial" in named else {"seed": 1}
        return grid(call, {**shared, **seed}, seconds(self.queries, self.precision), **named)


def every(call: Callable[..., Any], *names: str, **axes: Any) -> Callable[[Settings], list[Point]]:
    """The points of a study's settings, as `Settings.points` makes them."""
    return lambda settings: settings.points(call, *names, **axes)


def seconds(queries: float, precision: float | None = None) -> float:
    """About how long `simulated` takes for so many queries, or to a precision, s."""
    if precision is not None:
        # A response time varies about as much as it is long, and five times as much with others.
        queries = max(queries, (5 / precision) ** 2)
    return 0.3 + queries / 1e7


def scenario(
    fleet: Fleet,
    arrivals: Arrivals,
    distribution: str,
    target: float,
    policy: str,
    options: Mapping[str, Any],
) -> Scenario:
    """The twin's scenario: every class with the same distribution of service times."""
    cv = {"exponential": 1.0, "deterministic": 0.0}[distribution]
    service = tuple(ServiceTime(distribution, 1 / float(mu), cv=cv) for mu in fleet.rate)
    return Scenario(
        fleet=fleet,
        service=service,
        arrivals=arrivals,
        policy=policy,
        options=dict(options),
        target=target,
    )


def response_panel(
    title: str,
    results: Results,
    looks: Mapping[str, Look],
    loads: Sequence[float],
    top: float = 0.0,
    by: str = "policy",
) -> Panel:
    """Response time over the bound's, against load; the frame ends at `top` bounds."""
    bound = BOUND.line(results, "bound_s", load=loads)
    curves = [bound, *lines(results, "response_s", looks, by=by, load=loads)]
    limits = frame(0.9, top, bound.y) if top else None
    return Panel(title, "load", "mean response time, s", curves, limits_up=limits)


def keeps_target(
    says: str, short: Mapping[Any, float], why: str = "", nowhere: Any = math.nan
) -> str:
    """Claim the largest of several shortfalls; `why` says where it is."""
    worst, place = most(short, nowhere)
    return f"""{says}
        - largest shortfall of the mean accuracy: {worst} (at most 0.02 %)
        - {why.format(place)}"""
