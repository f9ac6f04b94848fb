"""Cost of one routing decision ([Tan24], Sec. 5.2.4)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np

from inferway.dispatch.alias import tabulate
from inferway.experiments.curves import Drawing, Look, Panel, lines, panels
from inferway.site import uniform
from inferway.site.view import Floats, Ints
from inferway.studies import Claim, Point, Results, Study, claims, grid, scales
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


def _points(settings: Settings) -> list[Point]:
    calls, rounds = settings.calls, settings.rounds
    return grid(
        cost,
        {"calls": calls, "rounds": rounds},
        lambda servers, **_: 1 + calls * rounds * (0.1e-6 + 1e-9 * servers),
        method=METHODS,
        servers=settings.servers,
    )


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
    whole_s, loop_s = (
        _least_s(kernels[name], (words, threshold, other, cumulated), rounds)
        for name in (method, "nothing")
    )
    if method == "alias":
        set_s = _least_s(fill, (probabilities, threshold, other), rounds, times=20)
    else:
        set_s = _least_s(np.cumsum, (probabilities, None, None, cumulated), rounds, times=20)
    return {
        "ns": 1e9 * whole_s / calls,
        "net_ns": 1e9 * (whole_s - loop_s) / calls,
        "table_us": 1e6 * set_s / 20,
    }


def _least_s(call: Any, arguments: tuple[Any, ...], rounds: int, times: int = 1) -> float:
    """CPU time of so many calls, the least of the rounds."""
    call(*arguments)
    took_ns = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        for _ in range(times):
            call(*arguments)
        took_ns.append(time.thread_time_ns() - start)
    return min(took_ns) / 1e9


@cache
def _kernels() -> tuple[Any, dict[str, Any]]:
    choices = {
        "alias": _alias,
        "bisection": _bisection,
        "scan": _scan,
        "nothing": lambda u, threshold, other, cumulated: int(u * threshold.size),
    }
    fill = numba.njit(
        lambda probabilities, threshold, other: tabulate(probabilities, threshold, other)
    )
    return fill, {name: _summed(choose) for name, choose in choices.items()}


def _summed(choose: Any) -> Any:
    """A compiled loop over random words that adds up the servers that are chosen."""
    chosen = numba.njit(choose)

    def kernel(words: Ints, threshold: Floats, other: Ints, cumulated: Floats) -> int:
        total = 0
        for word in words:
            total += chosen(uniform(word, 0), threshold, other, cumulated)
        return total

    return numba.njit(kernel)


def _alias(u: float, threshold: Floats, other: Ints, cumulated: Floats) -> int:
    scaled = u * threshold.size
    server = int(scaled)
    return server if scaled - server < threshold[server] else other[server]


def _bisection(u: float, threshold: Floats, other: Ints, cumulated: Floats) -> int:
    low, high = 0, cumulated.size - 1
    while low < high:
        middle = (low + high) >> 1
        if cumulated[middle] <= u:
            low = middle + 1
        else:
            high = middle
    return low


def _scan(u: float, threshold: Floats, other: Ints, cumulated: Floats) -> int:
    server = 0
    while cumulated[server] <= u:
        server += 1
    return server


def _figure(settings: Settings, results: Results) -> Drawing:
    servers = settings.servers
    looks = {method: Look(_LABELS[method], color) for color, method in enumerate(METHODS)}
    drawn: dict[str, Any] = {"by": "method", "errors": False, "servers": servers}
    axes: dict[str, Any] = {"scale_across": "log", "scale_up": "log", "ticks_across": servers}
    shown = [
        Panel("", "servers", up, lines(results, column, looks, **drawn), **axes)
        for column, up in (("ns", "one decision, ns"), ("table_us", "setting probabilities, us"))
    ]
    return panels(shown, columns=2, title="Probabilistic routing ([Tan24], Sec. 5.2.4)")


def _claims(settings: Settings, results: Results) -> list[Claim]:
    first, last = ends = settings.servers[0], settings.servers[-1]
    ns = {method: results.where(method=method).means("ns", servers=ends) for method in METHODS}
    small, large = ns["alias"]
    table_us = results.measure("table_us", method="alias", servers=first).mean
    every = ", ".join(
        f"{_LABELS[method]} {ns[method][place]:.1f} ns at {servers}"
        for place, servers in enumerate(ends)
        for method in METHODS
    )
    return claims(f"""
        [Sec. 5.2.4] A request is routed within a few nanoseconds.
        - one decision among {first} servers, the random number included: {small!r}
          (at most 10.0 ns)
        - {every}

        That is several orders of magnitude less than the mean gap between bursty arrivals.
        - the gap of 5.56 ms over the decision, as a power of ten:
          {math.log10(_GAP_NS / small) if small > 0 else math.nan!r} (at least 3.0)

        [Sec. 3.1.4] With the alias method it scales to any number of servers.
        - a decision among {last} servers over one among {first}: {large / small!r} (at most 3.0)
        - setting the table takes {table_us:.2g} us once a slot at {first} servers
        """)


STUDY = Study(
    name="routing-cost",
    source="[Tan24], Sec. 5.2.4",
    shows="What one probabilistic routing decision costs, by method and number of servers.",
    scales=scales(Settings(), smoke={"servers": (4, 64), "calls": 50_000, "rounds": 5}),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "CPU time of compiled loops, the least of nine; other work on the machine shows in it.",
    ),
    code=("dispatch/alias.py", "site/draw.py"),
)
