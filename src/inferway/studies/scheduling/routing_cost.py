"""What one routing decision costs ([Tan24], Sec. 5.2.4)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from inferway.dispatch.alias import tabulate
from inferway.experiments.curves import Drawing, Look, Panel, line, panels
from inferway.site import uniform
from inferway.site.view import Floats, Ints
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.scheduling.burst import BURSTY, RATE_PER_S

METHODS = ("alias", "bisection", "scan")
_LABELS = {"alias": "alias table", "bisection": "bisection", "scan": "linear scan"}
_GAP_NS = 1e9 / RATE_PER_S[BURSTY]


@dataclass(frozen=True)
class Settings:
    """Numbers of servers; the paper has 4."""

    servers: tuple[int, ...] = (4, 16, 64, 256, 1024, 4096)
    calls: int = 1_000_000
    rounds: int = 9


def points(settings: Settings) -> list[Point]:
    """One per method and number of servers."""

    def took(servers: int, **_: Any) -> float:
        return 1 + settings.calls * settings.rounds * (0.1e-6 + 1e-9 * servers)

    arguments = {"calls": settings.calls, "rounds": settings.rounds}
    return grid(cost, arguments, took, method=METHODS, servers=settings.servers)


def cost(method: str, servers: int, calls: int, rounds: int) -> dict[str, float]:
    """Nanoseconds of a compiled decision, CPU time, the least of the rounds.

    Returns
    -------
    dict
        ``ns`` with, and ``net_ns`` without the loop and the random number; ``table_us``, what
        setting new probabilities costs once a slot.
    """
    chance = np.random.default_rng(servers)
    probabilities = chance.exponential(size=servers)
    probabilities /= probabilities.sum()
    words = chance.integers(-(2**63), 2**63, calls)
    threshold, other = np.empty(servers), np.empty(servers, np.int64)
    cumulated = np.cumsum(probabilities)
    cumulated[-1] = 1.0
    fill, kernels = _kernels()
    fill(probabilities, threshold, other)
    found = {
        name: _least_s(kernels[name], (words, threshold, other, cumulated), rounds) / calls
        for name in (method, "nothing")
    }
    table_s = math.inf
    for _ in range(rounds):
        start = time.thread_time_ns()
        for _ in range(20):
            if method == "alias":
                fill(probabilities, threshold, other)
            else:
                np.cumsum(probabilities, out=cumulated)
        table_s = min(table_s, (time.thread_time_ns() - start) / 20e9)
    return {
        "ns": 1e9 * found[method],
        "net_ns": 1e9 * (found[method] - found["nothing"]),
        "table_us": 1e6 * table_s,
    }


def _least_s(kernel: Any, arguments: tuple[Any, ...], rounds: int) -> float:
    kernel(*arguments)
    least = math.inf
    for _ in range(rounds):
        start = time.thread_time_ns()
        kernel(*arguments)
        least = min(least, (time.thread_time_ns() - start) / 1e9)
    return least


@cache
def _kernels() -> tuple[Any, dict[str, Any]]:
    functions = {"alias": _alias, "bisection": _bisection, "scan": _scan, "nothing": _nothing}
    return numba.njit(_fill), {name: numba.njit(one) for name, one in functions.items()}


def _fill(probabilities: Floats, threshold: Floats, other: Ints) -> None:
    tabulate(probabilities, threshold, other)


def _alias(words: NDArray[np.int64], threshold: Floats, other: Ints, cumulated: Floats) -> int:
    found = 0
    for word in words:
        u = uniform(word, 0) * threshold.size
        server = int(u)
        if u - server >= threshold[server]:
            server = other[server]
        found += server
    return found


def _bisection(words: NDArray[np.int64], threshold: Floats, other: Ints, cumulated: Floats) -> int:
    found = 0
    for word in words:
        u = uniform(word, 0)
        low, high = 0, cumulated.size - 1
        while low < high:
            middle = (low + high) >> 1
            if cumulated[middle] <= u:
                low = middle + 1
            else:
                high = middle
        found += low
    return found


def _scan(words: NDArray[np.int64], threshold: Floats, other: Ints, cumulated: Floats) -> int:
    found = 0
    for word in words:
        u = uniform(word, 0)
        server = 0
        while cumulated[server] <= u:
            server += 1
        found += server
    return found


def _nothing(words: NDArray[np.int64], threshold: Floats, other: Ints, cumulated: Floats) -> int:
    found = 0
    for word in words:
        found += int(uniform(word, 0) * threshold.size)
    return found


def figure(settings: Settings, results: Results) -> Drawing:
    """Nanoseconds against servers."""
    servers = settings.servers
    shown = [
        Panel(
            "",
            "servers",
            up,
            [
                line(
                    results.where(method=method),
                    column,
                    Look(_LABELS[method], color),
                    errors=False,
                    servers=servers,
                )
                for color, method in enumerate(METHODS)
            ],
            scale_across="log",
            scale_up="log",
            ticks_across=servers,
        )
        for column, up in (("ns", "one decision, ns"), ("table_us", "setting probabilities, us"))
    ]
    return panels(shown, columns=2, title="Probabilistic routing ([Tan24], Sec. 5.2.4)")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """A few nanoseconds, and negligible."""
    first, last = ends = settings.servers[0], settings.servers[-1]
    ns = {method: results.where(method=method).means("ns", servers=ends) for method in METHODS}
    small, large = ns["alias"]
    table_us = results.measure("table_us", method="alias", servers=first).mean
    return [
        claim(
            "Sec. 5.2.4",
            "A request is routed within a few nanoseconds.",
            f"one decision among {first} servers, the random number included",
            small,
            "at most 10.0 ns",
            ", ".join(
                f"{_LABELS[method]} {ns[method][place]:.1f} ns at {servers}"
                for place, servers in enumerate(ends)
                for method in METHODS
            ),
        ),
        claim(
            "Sec. 5.2.4",
            "That is several orders of magnitude less than the mean gap between bursty arrivals.",
            "the gap of 5.56 ms over the decision, as a power of ten",
            math.log10(_GAP_NS / small) if small > 0 else math.nan,
            "at least 3.0",
        ),
        claim(
            "Sec. 3.1.4",
            "With the alias method it scales to any number of servers.",
            f"a decision among {last} servers over one among {first}",
            large / small,
            "at most 3.0",
            f"setting the table takes {table_us:.2g} us once a slot at {first} servers",
        ),
    ]


STUDY = Study(
    name="routing-cost",
    source="[Tan24], Sec. 5.2.4",
    shows="What one probabilistic routing decision costs, by method and number of servers.",
    scales=scales(Settings(), smoke={"servers": (4, 64), "calls": 50_000, "rounds": 5}),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "CPU time of compiled loops, the least of nine; other work on the machine shows in it.",
    ),
    code=("dispatch/alias.py", "site/draw.py"),
)
