"""R-JIQ with finite buffers: blocking, accuracy, response time ([Anonymous], Lemma 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Measure, Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.queueing.system import FOUR_CLASSES, System, seconds, simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEW = 30
"""Blocked requests that say something of how many there are."""


@dataclass(frozen=True)
class Settings:
    """Ours: Lemma 2 has no figure."""

    system: System = FOUR_CLASSES
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    buffers: tuple[int, ...] = (1, 2, 3)
    """Places at a server, the one in service included; o(root of ln n) is at most 3 here."""
    target: float = 0.76
    beta: float = 0.25
    """Load is 1 - n**-beta."""
    queries: int = 100_000_000
    precision: float | None = None
    trials: int = 3

    def load(self, servers: int) -> float:
        """The load at a size."""
        return round(1 - math.pow(servers, -self.beta), 6)

    def gamma(self) -> float:
        """Of eq. 4, as Lemma 2 has it."""
        return 0.5 * (0.5 - self.beta)


def points(settings: Settings) -> list[Point]:
    """Every size and buffer."""
    return [
        Point(
            {"buffer": buffer, "servers": servers, "trial": trial},
            simulated,
            {
                "system": settings.system.arguments(),
                "servers": servers,
                "target": settings.target,
                "load": settings.load(servers),
                "policy": "r-jiq",
                "options": {"beta": settings.beta},
                "buffer": buffer,
                "queries": settings.queries,
                "precision": settings.precision,
                "seed": trial + 1,
            },
            seconds(settings.queries, settings.precision),
        )
        for buffer in settings.buffers
        for servers in settings.sizes
        for trial in range(settings.trials)
    ]


def figure(settings: Settings, results: Results) -> Figure:
    """Blocking against size beside the lemma's order, and response time beside eq. 5."""
    from inferway.experiments.curves import Curve, Panel, panels

    sizes = settings.sizes
    blocked, response = [], []
    for color, buffer in enumerate(settings.buffers):
        here = results.where(buffer=buffer)
        label = f"{buffer} place{'s' if buffer > 1 else ''}"
        rejected = [100 * here.measure("rejected", servers=n).mean for n in sizes]
        blocked.append(
            Curve(label, sizes, [x if x > 0 else math.nan for x in rejected], color=color)
        )
        found = [here.measure("response_s", servers=n) for n in sizes]
        response.append(
            Curve(label, sizes, [x.mean for x in found], [2 * x.stderr for x in found], color=color)
        )
    order = [100 * math.log(n) / math.sqrt(n) for n in sizes]
    blocked.append(Curve("ln n / root n (eq. 7, constant 1)", sizes, order, dash=":"))
    response.append(Curve("bound (LP)", sizes, [_bound_s(settings, n) for n in sizes]))
    first = [(1 - n ** -settings.gamma()) * _bound_s(settings, n) for n in sizes]
    response.append(Curve("first term of eq. 5", sizes, first, dash=":"))
    return panels(
        [
            Panel(
                "",
                "servers",
                "blocked, %",
                blocked,
                scale_across="log",
                scale_up="log",
                ticks_across=sizes[::2],
            ),
            Panel(
                "",
                "servers",
                "mean response time, s",
                response,
                scale_across="log",
                ticks_across=sizes[::2],
            ),
        ],
        columns=2,
        title=f"R-JIQ with finite buffers, load 1 - n^-{settings.beta:g} ([Anonymous], Lemma 2)",
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """The three statements of Lemma 2."""
    return [
        _response(settings, results),
        _above_bound(settings, results),
        _accuracy(settings, results),
        *_order(settings, results),
    ]


def _response(settings: Settings, results: Results) -> Claim:
    """Eq. 5: is what exceeds its first term of the order that it says?"""
    buffer = max(settings.buffers)
    excess = {}
    for n in settings.sizes:
        response_s = results.value("response_s", buffer=buffer, servers=n)
        over_s = response_s - (1 - n ** -settings.gamma()) * _bound_s(settings, n)
        excess[n] = over_s * math.sqrt(n) * math.log(n)
    small, large = min(settings.sizes), max(settings.sizes)
    dropped_s = large ** -settings.gamma() * _at_greatest_s(settings)
    over_s = excess[large] / (math.sqrt(large) * math.log(large))
    return Claim(
        "Lemma 2 (1), eq. 5",
        "E[T] exceeds (1 - n^-gamma) T_LP-LB by O(min(n^-gamma, 1 / (root n ln n))) only.",
        f"that excess times root n ln n, at n = {large} over at n = {small}",
        excess[large] / excess[small],
        at_most=2.0,
        why=f"eq. 46 drops the middle term of eq. 45, n^-gamma p*(lambda-max) / mu = "
        f"{dropped_s:.4f} s at n = {large}, where the whole excess is {over_s:.4f} s; eq. 5 as it "
        "stands would in the end lie below the bound of Lemma 1",
    )


def _above_bound(settings: Settings, results: Results) -> Claim:
    """With the dropped term put back, eq. 5 holds."""
    buffer = max(settings.buffers)
    over = {}
    for n in settings.sizes:
        weight = n ** -settings.gamma()
        mixed_s = (1 - weight) * _bound_s(settings, n) + weight * _at_greatest_s(settings)
        over[n] = results.value("response_s", buffer=buffer, servers=n) / mixed_s - 1
    large = max(settings.sizes)
    return Claim(
        "App. A, eq. 45",
        "With that term put back, E[T] tends to it: waiting vanishes.",
        f"response time over it at n = {large}, less 1",
        over[large],
        at_most=0.01,
        unit="%",
        why=f"{100 * over[min(settings.sizes)]:.1f} % at n = {min(settings.sizes)}",
    )


def _accuracy(settings: Settings, results: Results) -> Claim:
    """The lemma speaks of large n, and its proof of two places at least."""
    large, small = max(settings.sizes), min(settings.sizes)
    short = {
        (n, buffer): settings.target - _measured(results, n, buffer).mean
        for n in (small, large)
        for buffer in settings.buffers
        if buffer > 1
    }
    least = min(buffer for _, buffer in short)
    blocked = results.value("rejected", buffer=least, servers=small)
    return Claim(
        "Lemma 2 (2), eq. 6",
        "The accuracy is at least a*.",
        f"largest shortfall at n = {large}, of what is answered",
        max(short[large, buffer] for n, buffer in short if n == large),
        at_most=0.0002,
        unit="%",
        why=f"at n = {small} with {least} places it falls short by "
        f"{100 * short[small, least]:.3f} points with {100 * blocked:.2f} % blocked: R-JIQ draws "
        "the class before it looks for room, so classes that block more answer less than their "
        "part",
    )


def _measured(results: Results, servers: int, buffer: int) -> Measure:
    return results.measure("accuracy", servers=servers, buffer=buffer)


def _order(settings: Settings, results: Results) -> list[Claim]:
    """Eq. 7 where anything is blocked: over ln n / root n blocking must not grow, size by size."""
    rise, at, steepest = math.nan, "nothing is blocked at two sizes", []
    for buffer in settings.buffers:
        if buffer < 2:
            continue
        found = {
            n: results.value("rejected", buffer=buffer, servers=n) / (math.log(n) / math.sqrt(n))
            for n in settings.sizes
        }
        # A size with few blocked requests tells nothing of their part.
        known = [n for n, one in found.items() if one > 0 and _blocked(results, n, buffer) >= _FEW]
        for n, larger in pairwise(known):
            if not found[larger] / found[n] <= rise:
                rise = found[larger] / found[n]
                at = f"{buffer} places, from n = {n} to {larger}"
        if len(known) > 1:
            last = known[-1]
            ends = [results.value("rejected", buffer=buffer, servers=n) for n in (known[0], last)]
            slope = math.log(ends[1] / ends[0]) / math.log(last / known[0])
            steepest.append((slope, f"{buffer} places: n = {known[0]} to {last}"))
    slope, where = max(steepest, default=(math.nan, "nowhere"))
    return [
        Claim(
            "Lemma 2 (3), eq. 7",
            "The blocking probability is O(ln n / root n).",
            "largest ratio of blocking over ln n / root n from one size to the next",
            rise,
            at_most=1.0,
            why=f"{at}; of sizes at which {_FEW} requests or more are blocked",
        ),
        Claim(
            "ours",
            "Blocking falls faster than eq. 7 says: by more than the root of n.",
            "power of n with which it falls, over the sizes at which anything is blocked",
            slope,
            at_most=-0.5,
            why=where,
        ),
    ]


def _blocked(results: Results, servers: int, buffer: int) -> float:
    """How many requests were turned away in all trials."""
    rows = results.where(servers=servers, buffer=buffer).rows
    return float(sum(row["rejected"] * row["queries"] for row in rows))


@cache
def _bound_s(settings: Settings, servers: int) -> float:
    from inferway.dispatch import max_rate, solve

    fleet = settings.system.fleet(servers)
    rate_per_s = settings.load(servers) * max_rate(fleet, settings.target)
    return solve(fleet, settings.target, rate_per_s).response_time_s


@cache
def _at_greatest_s(settings: Settings) -> float:
    from inferway.dispatch import max_rate, solve

    fleet = settings.system.fleet(settings.sizes[0])
    return solve(fleet, settings.target, max_rate(fleet, settings.target)).response_time_s


_PAPER = Settings()
STUDY = Study(
    name="blocking",
    source="[Anonymous], Lemma 2",
    shows="Blocking, accuracy and response time of R-JIQ with one to three places at a server.",
    scales={
        "smoke": replace(_PAPER, sizes=(16, 64, 256), buffers=(2,), queries=60_000, trials=1),
        "quick": replace(_PAPER, queries=2_000_000, precision=0.003),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "Lemma 2 has no figure: target 0.76 and beta 0.25 are ours, and gamma follows.",
        "One place is a loss system, in which nothing can wait; the lemma is held to 2 and 3.",
    ),
)
