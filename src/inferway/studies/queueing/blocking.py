"""R-JIQ with finite buffers: blocking, accuracy, response time ([Anonymous], Lemma 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from inferway.experiments.curves import Curve, Drawing, Look, Panel, line, panels
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.queueing.system import (
    BOUND,
    FOUR_CLASSES,
    System,
    common,
    seconds,
    simulated,
)

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

    def weight(self, servers: int) -> float:
        """n**-gamma of eq. 4, with gamma as Lemma 2 has it."""
        return float(servers ** -(0.5 * (0.5 - self.beta)))

    def bound_s(self, servers: int) -> float:
        """The LP's response time at a size."""
        return self.system.bound(servers, self.target, self.load(servers)).response_time_s

    @property
    def at_greatest_s(self) -> float:
        """The LP's response time at the greatest rate, the same at every size."""
        return self.system.bound(self.sizes[0], self.target, 1.0).response_time_s


def points(settings: Settings) -> list[Point]:
    """Every size and buffer."""

    def arguments(buffer: int, servers: int) -> dict[str, Any]:
        return {
            **common(settings, "target", "queries", "precision"),
            **{"servers": servers, "load": settings.load(servers), "buffer": buffer},
            **{"policy": "r-jiq", "options": {"beta": settings.beta}},
        }

    cost = seconds(settings.queries, settings.precision)
    axes: dict[str, Any] = {
        "buffer": settings.buffers,
        "servers": settings.sizes,
        "trial": range(settings.trials),
    }
    return grid(simulated, arguments, cost, **axes)


def figure(settings: Settings, results: Results) -> Drawing:
    """Blocking against size beside the lemma's order, and response time beside eq. 5."""
    sizes = settings.sizes
    blocked, response = [], []
    for color, buffer in enumerate(settings.buffers):
        here = results.where(buffer=buffer)
        look = Look(f"{buffer} place{'s' if buffer > 1 else ''}", color)
        rejected = [x if x > 0 else math.nan for x in here.means("rejected", servers=sizes)]
        blocked.append(Curve(look.label, sizes, [100 * x for x in rejected], color=color))
        response.append(replace(line(here, "response_s", look, servers=sizes), hollow=()))
    order = [100 * math.log(n) / math.sqrt(n) for n in sizes]
    blocked.append(Curve("ln n / root n (eq. 7, constant 1)", sizes, order, dash=":"))
    response.append(Curve(BOUND.label, sizes, [settings.bound_s(n) for n in sizes]))
    first = [(1 - settings.weight(n)) * settings.bound_s(n) for n in sizes]
    response.append(Curve("first term of eq. 5", sizes, first, dash=":"))
    axis: dict[str, Any] = {"scale_across": "log", "ticks_across": sizes[::2]}
    return panels(
        [
            Panel("", "servers", "blocked, %", blocked, scale_up="log", **axis),
            Panel("", "servers", "mean response time, s", response, **axis),
        ],
        columns=2,
        title=f"R-JIQ with finite buffers, load 1 - n^-{settings.beta:g} ([Anonymous], Lemma 2)",
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """The three statements of Lemma 2."""
    return [
        *_response(settings, results),
        _accuracy(settings, results),
        *_order(settings, results),
    ]


def _response(settings: Settings, results: Results) -> list[Claim]:
    """Eq. 5 as it stands, and with the term put back that its proof drops."""
    small, large = min(settings.sizes), max(settings.sizes)
    excess, over = {}, {}
    for n in (small, large):
        response_s = results.value("response_s", buffer=max(settings.buffers), servers=n)
        first_s = (1 - settings.weight(n)) * settings.bound_s(n)
        excess[n] = (response_s - first_s) * math.sqrt(n) * math.log(n)
        over[n] = response_s / (first_s + settings.weight(n) * settings.at_greatest_s) - 1
    dropped_s = settings.weight(large) * settings.at_greatest_s
    over_s = excess[large] / (math.sqrt(large) * math.log(large))
    return [
        claim(
            "Lemma 2 (1), eq. 5",
            "E[T] exceeds (1 - n^-gamma) T_LP-LB by O(min(n^-gamma, 1 / (root n ln n))) only.",
            f"that excess times root n ln n, at n = {large} over at n = {small}",
            excess[large] / excess[small],
            "at most 2.0",
            f"eq. 46 drops the middle term of eq. 45, n^-gamma p*(lambda-max) / mu = "
            f"{dropped_s:.4f} s at n = {large}, where the whole excess is {over_s:.4f} s; eq. 5 as "
            "it stands would in the end lie below the bound of Lemma 1",
        ),
        claim(
            "App. A, eq. 45",
            "With that term put back, E[T] tends to it: waiting vanishes.",
            f"response time over it at n = {large}, less 1",
            over[large],
            "at most 1 %",
            f"{100 * over[small]:.1f} % at n = {small}",
        ),
    ]


def _accuracy(settings: Settings, results: Results) -> Claim:
    """The lemma speaks of large n, and its proof of two places at least."""
    large, small = max(settings.sizes), min(settings.sizes)
    buffers = [buffer for buffer in settings.buffers if buffer > 1]
    short = {
        (n, buffer): settings.target - results.measure("accuracy", servers=n, buffer=buffer).mean
        for n in (small, large)
        for buffer in buffers
    }
    blocked = results.value("rejected", buffer=min(buffers), servers=small)
    return claim(
        "Lemma 2 (2), eq. 6",
        "The accuracy is at least a*.",
        f"largest shortfall at n = {large}, of what is answered",
        max(short[large, buffer] for buffer in buffers),
        "at most 0.02 %",
        f"at n = {small} with {min(buffers)} places it falls short by "
        f"{100 * short[small, min(buffers)]:.3f} points with {100 * blocked:.2f} % blocked: R-JIQ "
        "draws the class before it looks for room, so classes that block more answer less than "
        "their part",
    )


def _order(settings: Settings, results: Results) -> list[Claim]:
    """Eq. 7 where anything is blocked: over ln n / root n blocking must not grow, size by size."""
    rises, slopes = {}, {}
    for buffer in (buffer for buffer in settings.buffers if buffer > 1):
        here = results.where(buffer=buffer)
        rejected = {n: here.value("rejected", servers=n) for n in settings.sizes}
        # A size with few blocked requests tells nothing of their part.
        known = [n for n, one in rejected.items() if one > 0 and _blocked(here, n) >= _FEW]
        over = {n: rejected[n] / (math.log(n) / math.sqrt(n)) for n in known}
        for n, larger in pairwise(known):
            rises[f"{buffer} places, from n = {n} to {larger}"] = over[larger] / over[n]
        if len(known) > 1:
            first, last = known[0], known[-1]
            power = math.log(rejected[last] / rejected[first]) / math.log(last / first)
            slopes[f"{buffer} places: n = {first} to {last}"] = power
    rise, at = most(rises, "nothing is blocked at two sizes")
    slope, where = most(slopes, "nowhere")
    return [
        claim(
            "Lemma 2 (3), eq. 7",
            "The blocking probability is O(ln n / root n).",
            "largest ratio of blocking over ln n / root n from one size to the next",
            rise,
            "at most 1.0",
            f"{at}; of sizes at which {_FEW} requests or more are blocked",
        ),
        claim(
            "ours",
            "Blocking falls faster than eq. 7 says: by more than the root of n.",
            "power of n with which it falls, over the sizes at which anything is blocked",
            slope,
            "at most -0.5",
            where,
        ),
    ]


def _blocked(results: Results, servers: int) -> float:
    """How many requests were turned away in all trials."""
    rows = results.where(servers=servers).rows
    return float(sum(row["rejected"] * row["queries"] for row in rows))


STUDY = Study(
    name="blocking",
    source="[Anonymous], Lemma 2",
    shows="Blocking, accuracy and response time of R-JIQ with one to three places at a server.",
    scales=scales(
        Settings(),
        smoke={"sizes": (16, 64, 256), "buffers": (2,), "queries": 60_000, "trials": 1},
        quick={"queries": 2_000_000, "precision": 0.003},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "Lemma 2 has no figure: target 0.76 and beta 0.25 are ours, and gamma follows.",
        "One place is a loss system, in which nothing can wait; the lemma is held to 2 and 3.",
    ),
)
