"""Fig. 1 and Examples 1 to 3 of [Anonymous], and TAD-OP without some of its routing tuples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from inferway.dispatch import max_rate, routing_tuples, solve, waterfill
from inferway.experiments.curves import Curve, Drawing, Look, Panel, lines, panels, steady_values
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claims, grid, scales
from inferway.studies.queueing.ablated import NAME
from inferway.studies.queueing.system import (
    BOUND,
    THREE_CLASSES,
    Settings,
    System,
    every,
    greatest,
    lp_optimum,
    response_panel,
    seconds,
    simulated,
)
from inferway.studies.queueing.system import CODE as SYSTEM_CODE

CODE = (*SYSTEM_CODE, "studies/queueing/ablated.py")
_WHOLE = "nothing"  # without which tuples TAD-OP is whole
_ABLATED = {
    _WHOLE: Look("TAD-OP", 0, "-"),
    "shuffles": Look("without pairs that shuffle", 1, "--"),
    "singletons": Look("without singletons", 2, "--"),
    "both": Look("proper pairs only", 4, ":"),
}
_PAIR_LOOKS = {
    _WHOLE: Look("TAD-OP", 3, "--"),
    "shuffles": Look("TAD-OP without pairs that shuffle", 4, "--"),
}
# A beta at which eq. 4's weight vanishes: routing by p*(lambda) alone, as in the example.
_PURE = -1e6
_ROUTINGS = {"lp": Look("routing by the LP", 1, "-."), "eq. 4": Look("R-JIQ (eq. 4)", 2, "-.")}


def ablated(*, without: str, **arguments: Any) -> Mapping[str, Any]:
    """Simulate TAD-OP without some of its routing tuples; other arguments as `simulated`."""
    if without == _WHOLE:
        return simulated(policy="tad-op", **arguments)
    return simulated(policy=NAME, options={"without": without}, **arguments)


def _slower(results: Results, without: str) -> float:
    """Response time without some tuples over that with all; infinite where it is unstable."""
    whole, less = (results.measure("response_s", without=name) for name in (_WHOLE, without))
    if not whole.trials or not less.trials or not whole.stable:
        return math.nan
    return less.mean / whole.mean if less.stable else math.inf


def _ablation_figure(settings: Settings, results: Results) -> Drawing:
    shown = [
        response_panel(
            f"target {100 * target:g} %",
            results.where(target=target),
            *(_ABLATED, settings.loads, 2.5, "without"),
        )
        for target in settings.targets
    ]
    title = f"TAD-OP without some routing tuples, {settings.servers} servers"
    return panels(shown, columns=3, title=title)


def _ablation_claims(settings: Settings, results: Results) -> list[Claim]:
    texts = []
    for without, where in (("shuffles", "Sec. 6.1"), ("singletons", "Sec. 5.2")):
        ratios, short = {}, {}
        for target, load in product(settings.targets, settings.loads):
            here, place = (
                results.where(target=target, load=load),
                f"target {target:g}, load {load:g}",
            )
            whole_s, less_s = (
                here.measure("response_s", without=name).mean for name in (_WHOLE, without)
            )
            ratios[f"{place}: {less_s:.4g} s against {whole_s:.4g} s"] = _slower(here, without)
            short[place] = target - here.measure("accuracy", without=without).mean
        worst, at = most(ratios, "no points are known")
        lost, where_lost = most(short, "")
        pairs = "Pairs that shuffle" if without == "shuffles" else "Singletons"
        texts.append(f"""[{where}] {pairs} are needed.
            - largest response time without them over TAD-OP's, less 1: {worst - 1} (at least 5 %)
            - {at}; accuracy falls short by {100 * lost:.2g} points at most ({where_lost})""")
    return claims(*texts)


def _trade_off_figure(settings: Settings, results: Results) -> Drawing:
    from inferway.experiments.figure import Mark, trade_off

    marks = []
    for policy, look in settings.looks.items():
        accuracy, response = (
            results.measure(column, policy=policy) for column in ("accuracy", "response_s")
        )
        if accuracy.trials:
            half = 2 * accuracy.stderr
            interval = (accuracy.mean - half, accuracy.mean + half)
            marks.append(Mark(look.label, accuracy.mean, interval, response.mean))
    fleet = settings.system.fleet(settings.servers)
    rate_per_s = settings.load * greatest(settings.system, settings.servers, settings.target)
    low, high = float(fleet.accuracy.min()), float(fleet.accuracy.max())
    goals = [low + (high - low) * step / 60 for step in range(61)]
    drawn = trade_off(
        marks,
        bounds={
            "lower bound (LP)": [
                (goal, solve(fleet, goal, rate_per_s).response_time_s)
                for goal in goals
                if max_rate(fleet, goal) >= rate_per_s
            ]
        },
        target=settings.target,
        title=f"{settings.servers} servers, load {settings.load:g} ([Anonymous], Fig. 1)",
        latency_label="mean response time",
    )
    # Less than a decade: the ticks between need their numbers.
    axis = drawn.axes[0].yaxis
    axis.set_minor_formatter(axis.get_major_formatter())
    return drawn


def _trade_off_claims(settings: Settings, results: Results) -> list[Claim]:
    target = settings.target
    fast, accurate, own = (
        results.where(policy=policy) for policy in ("jiq-fast", "jiq-accurate", "tad-op")
    )
    own_s, bound_s = own.value("response_s"), own.value("bound_s")
    slowest = accurate.measure("response_s")
    slowest_s = slowest.mean if slowest.stable else math.inf
    quick, careful, kept = (one.value("accuracy") for one in (fast, accurate, own))
    return claims(f"""
      * [Sec. 1, Fig. 1] Prioritizing faster servers does not reach the desired accuracy.
        - shortfall of its mean accuracy: {target - quick} (at least 0.1 %)
        - accuracy {quick:.4f}
      * Prioritizing more accurate servers results in large latency.
        - its response time over TAD-OP's: {slowest_s / own_s} (at least 1.5)
        - {slowest_s:.3g} s at accuracy {careful:.4f}
      * The proposed policy keeps the desired accuracy.
        - shortfall of its mean accuracy: {target - kept} (at most 0.02 %)
        - accuracy {kept:.5f}
      * The proposed policy has a reasonable latency.
        - its response time over the bound: {own_s / bound_s} (at most 1.25)
        - {own_s:.4f} s, bound {bound_s:.4f} s
    """)


def _class_loads(settings: Settings, told: float) -> list[float]:
    """Load of each class when the LP is solved for another rate than the true one."""
    site = (settings.system, settings.servers, settings.target)
    rate_per_s = settings.load * greatest(*site)
    capacity = settings.system.fleet(settings.servers).capacity
    return list((rate_per_s * lp_optimum(*site, told).shares / capacity).tolist())


def _told_points(settings: Settings) -> list[Point]:
    rate_per_s = greatest(settings.system, settings.servers, settings.target)

    def arguments(routing: str, told: float) -> dict[str, Any]:
        options = {"rate": told * rate_per_s} | ({"beta": _PURE} if routing == "lp" else {})
        return {
            **settings.common("servers", "target", "load", "queries"),
            **{"policy": "r-jiq", "options": options, "seed": 1},
            # At the edge of stability no run is long enough for three digits.
            "precision": settings.precision if routing == "eq. 4" else None,
        }

    cost = seconds(settings.queries, settings.precision)
    return grid(simulated, arguments, cost, routing=tuple(_ROUTINGS), told=settings.loads)


def _told_figure(settings: Settings, results: Results) -> Drawing:
    errors = [100 * (told / settings.load - 1) for told in settings.loads]
    carried = [_class_loads(settings, told)[-1] for told in settings.loads]
    curves = lines(results, "response_s", _ROUTINGS, by="routing", told=settings.loads)
    bound = BOUND.flat(errors, results.measure("bound_s").mean)
    across = "error of the rate, %"
    return panels(
        [
            Panel(
                "slowest class",
                across,
                "its load under the LP's routing",
                [Curve("routing by the LP", errors, carried, color=1, dash="-.")],
                levels=[("full", 1.0)],
            ),
            Panel(
                "all classes",
                across,
                "mean response time, s",
                [bound, *(replace(curve, x=errors) for curve in curves)],
                limits_up=(0.0, 1.2 * max([1.0, *steady_values(curves)])),
            ),
        ],
        columns=2,
        title="A rate told too low ([Anonymous], Example 1)",
    )


def _told_claims(settings: Settings, results: Results) -> list[Claim]:
    told = 0.79
    capacity = settings.system.share[-1] * settings.system.rate[-1]
    pure, mixed = (
        results.measure("response_s", routing=routing, told=told) for routing in _ROUTINGS
    )
    wild, still = (math.nan if not one.trials else int(not one.stable) for one in (pure, mixed))
    return claims(f"""
      * [Sec. 3.4, Example 1]
        Told 0.79 of lambda-max at 0.8, class 3 gets 0.0843 per server and second.
        - lambda p3*(0.79 lambda-max):
          {_class_loads(settings, told)[-1] * capacity} (0.0842 to 0.0844)
        - its capacity is {capacity:.4f}
      * That makes the system unstable.
        - 1 if unstable in simulation, 0 if stable: {wild} (at least 1)
        - mean response time so far {pure.mean:.3g} s, bound
          {results.measure("bound_s").mean:.3g} s
      * [ours] R-JIQ itself is stable there: the mixture of eq. 4 leaves room for the error.
        - 1 if unstable in simulation, 0 if stable: {still} (at most 0)
        - eq. 4 moves part of the traffic to the routing of lambda-max; mean response time
          {mixed.mean:.4g} s
    """)


def _wrong_figure(settings: Settings, results: Results) -> Drawing:
    loads = settings.loads

    def part(k: int, policy: str) -> Sequence[float]:
        every = [results.one("shares", policy=policy, load=load) for load in loads]
        return [math.nan if shares is None else 100 * shares[k] for shares in every]

    parts = [
        Look(f"class {k + 1}, {policy}", k, dash).series(loads, part(k, policy))
        for policy, dash in (("tad", "--"), ("tad-op", "-"))
        for k in range(len(settings.system.rate))
    ]
    response = response_panel("", results, settings.looks, loads, 1.6)
    title = "The pair that TAD picks ([Anonymous], Example 2)"
    shares = Panel("", "load", "part of the requests, %", parts)
    return panels([response, shares], columns=2, title=title)


def _wrong_claims(settings: Settings, results: Results) -> list[Claim]:
    low = min(settings.loads)
    here = results.where(load=low)
    tad_s, best_s = (here.value("response_s", policy=name) for name in ("tad", "tad-op"))
    shares = here.one("shares", policy="tad") or [math.nan] * 3
    return claims(f"""
      * [Sec. 4, Example 2] At low load TAD's response time is 1.5.
        - its mean response time at load {low:g}: {tad_s} (1.495 to 1.505 s)
        - shares of the classes {", ".join(f"{one:.4f}" for one in shares)}
      * Eleven of twelve requests to class 1, one to class 3: accuracy 45, response time 1.25.
        - mean response time of TAD-OP at load {low:g}, which does so: {best_s} (1.245 to 1.255 s)
        - accuracy {here.value("accuracy", policy="tad-op"):.5f}, bound
          {here.value("bound_s", policy="tad-op"):.4f} s
      * That is 16.67 % better than TAD.
        - 1 less the ratio of the two: {1 - best_s / tad_s} (16.17 to 17.17 %)
    """)


def _pair_figure(settings: Settings, results: Results) -> Drawing:
    system, servers, target = settings.system, settings.servers, settings.target
    fleet, highest = system.fleet(servers), greatest(system, servers, target) / servers
    rates = [highest * (step + 1) / 81 for step in range(80)]
    shares = [waterfill(fleet, target, rate * servers).shares for rate in rates]
    traffic = [
        Look(f"class {k + 1}", k).series(
            rates,
            [
                100 * rate * float(share[k]) / system.share[k] / system.rate[k]
                for rate, share in zip(rates, shares, strict=True)
            ],
        )
        for k in range(len(system.rate))
    ]
    part = Panel(
        "waterfilling", "rate per server, 1/s", "part of the class that is busy, %", traffic
    )
    response = response_panel("simulated", results, _PAIR_LOOKS, settings.loads, 1.5, "without")
    title = "A pair that shuffles ([Anonymous], Example 3)"
    return panels([part, response], columns=2, title=title)


def _pair_claims(settings: Settings, results: Results) -> list[Claim]:
    system, target = settings.system, settings.target
    highest = greatest(system, settings.servers, target) / settings.servers
    fleet = system.fleet(settings.servers)
    tuples = {one.classes: one for one in routing_tuples(fleet, target)}
    best = next(one for one in tuples.values() if one.proper)
    # Rate per server at which each pair fills each of its classes.
    rooms = {
        pair: {k: system.share[k] * system.rate[k] / float(tuples[pair].routing[k]) for k in pair}
        for pair in ((0, 2), (1, 2))
    }
    narrow, wide = (min(room.values()) for room in rooms.values())
    fills = [
        ", ".join(f"class {k + 1} is full at {rate:.5f}" for k, rate in room.items())
        for room in rooms.values()
    ]
    last = waterfill(fleet, target, 0.999 * highest * settings.servers)
    # Of several unstable loads the highest is named.
    loads = sorted(settings.loads, reverse=True)
    ratio, load = most(
        {one: _slower(results.where(load=one), "shuffles") for one in loads}, math.nan
    )
    part = float(best.routing[0]) if best.classes == (0, 2) else 0.0
    return claims(f"""
      * [Sec. 6, Example 3] The optimal pair is {{1, 3}} with routing (0.8, 0, 0.2).
        - part of class 1 in the cheapest proper tuple: {part} (0.799 to 0.801)
        - classes {[k + 1 for k in best.classes]}
      * With that pair the greatest rate is 0.0625.
        - least capacity over routing entry of its classes, per server:
          {narrow} (0.0624 to 0.0626)
        - alpha mu / q: {fills[0]}
      * The pair {{2, 3}} allows 0.25.
        - least capacity over routing entry of its classes, per server: {wide} (0.2495 to 0.2505)
        - alpha mu / q: {fills[1]}
      * Choosing {{2, 3}} allows a larger rate than {{1, 3}}.
        - ratio of the two: {wide / narrow} (at least 1.01)
      * Class 3 is full, and class 1 becomes empty in the end: as if never used.
        - share of class 1 that waterfilling gives at 0.999 of the greatest rate:
          {float(last.shares[0])} (at most 0.002)
        - shares {", ".join(f"{one:.4f}" for one in last.shares)}; greatest rate {highest:.5f} per
          server
      * [ours] In the queueing system, too, the shuffle is needed.
        - largest response time of TAD-OP without it over with it: {ratio} (at least 1.02)
        - at load {load:g}; where no tuple is routable TAD-OP takes the idle class of the highest
          number, and while class 3 is busy that is class 2, as the shuffle would have it
    """)


TRADE_OFF = Study(
    name="trade-off",
    source="[Anonymous], Fig. 1",
    shows="Faster servers first misses the accuracy, accurate servers first the latency.",
    scales=scales(
        Settings(policies=("jiq-fast", "tad-op", "priced", "jiq-accurate"), queries=6_400_000),
        smoke={"queries": 20_000, "trials": 1, "warmup": None},
        quick={"queries": 1_000_000, "trials": 1, "warmup": None, "precision": 0.0015},
    ),
    points=every(
        simulated, "servers", "target", "load", "warmup", policy="policies", trial="trials"
    ),
    figure=_trade_off_figure,
    claims=_trade_off_claims,
    departures=(
        "The paper does not say which system Fig. 1 shows: ours is that of Sec. 3.3 with 64 "
        "servers, target 0.76 and load 0.5.",
    ),
)
UNDERESTIMATE = Study(
    name="underestimate",
    source="[Anonymous], Example 1",
    shows="A rate told 1.25 % too low makes a class unstable.",
    scales=scales(
        Settings(
            system=THREE_CLASSES,
            servers=300,
            target=0.52,
            load=0.80,
            loads=(0.77, 0.78, 0.785, 0.79, 0.795, 0.80, 0.805, 0.81, 0.82, 0.84),
            queries=30_000_000,
        ),
        smoke={"loads": (0.79, 0.82), "queries": 60_000},
        quick={"queries": 20_000_000, "precision": 0.0015},
    ),
    points=_told_points,
    figure=_told_figure,
    claims=_told_claims,
    departures=(
        "The example names no size: 300 servers are ours.",
        "Routing by the LP alone runs at the edge of stability: its means have the errors drawn, "
        "not three digits.",
    ),
)
WRONG_PAIR = Study(
    name="wrong-pair",
    source="[Anonymous], Example 2",
    shows="TAD picks a pair of classes that is a fifth slower than the best.",
    scales=scales(
        Settings(
            system=THREE_CLASSES,
            servers=300,
            target=0.45,
            loads=(0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
            policies=("tad", "tad-op", "priced"),
            queries=30_000_000,
        ),
        smoke={"loads": (0.02, 0.5), "queries": 40_000},
        quick={"queries": 2_000_000, "precision": 0.0015},
    ),
    points=every(simulated, "servers", "target", policy="policies", load="loads"),
    figure=_wrong_figure,
    claims=_wrong_claims,
    departures=(
        "The example names no size and calls the rate small: 300 servers and load 0.02 are ours.",
    ),
)
SHUFFLE_PAIR = Study(
    name="shuffle-pair",
    source="[Anonymous], Example 3",
    shows="Why pairs that shuffle traffic between two classes are needed.",
    scales=scales(
        Settings(
            system=System((1.0, 0.5, 0.25), (0.40, 0.50, 1.00), (0.025, 0.95, 0.025)),
            servers=400,
            target=0.52,
            queries=40_000_000,
        ),
        smoke={"loads": (0.9,), "queries": 60_000},
        quick={"queries": 2_000_000, "precision": 0.0015},
    ),
    points=every(ablated, "servers", "target", without=tuple(_PAIR_LOOKS), load="loads"),
    figure=_pair_figure,
    claims=_pair_claims,
    departures=("The example names no size: 400 servers are ours.",),
    code=CODE,
)
ABLATION = Study(
    name="ablation",
    source="[Anonymous], Sec. 5.2 and 6",
    shows="TAD-OP without pairs that shuffle, and without singletons.",
    scales=scales(
        # At 0.78 the bound uses a pair that shuffles from load 0.5 on, at 0.72 a singleton.
        Settings(
            servers=1024,
            targets=(0.72, 0.76, 0.78),
            loads=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
        ),
        smoke={"servers": 64, "targets": (0.78,), "loads": (0.8,), "queries": 40_000},
        quick={
            "targets": (0.72, 0.78),
            "loads": (0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
            "queries": 1_000_000,
            "precision": 0.0015,
        },
    ),
    points=every(ablated, "servers", without=tuple(_ABLATED), target="targets", load="loads"),
    figure=_ablation_figure,
    claims=_ablation_claims,
    departures=("The paper has no figure of this: system, targets and loads are ours.",),
    code=CODE,
)
