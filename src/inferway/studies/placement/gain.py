"""Gain, latency and inaccuracy against alpha and against the request rate.

[SiSalem23], Figs. 6, 7, 9 and 10; [SiSalem21], Figs. 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product

from inferway.experiments.claim import percents
from inferway.experiments.curves import Drawing, Panel, panels
from inferway.experiments.results import largest, most, smallest
from inferway.studies import Claim, Results, claims, scales
from inferway.studies.placement.trial import (
    POLICIES,
    TUNED,
    Settings,
    every,
    pairs,
    placement_study,
)

_RIVALS = ("static-greedy", "olag")
_READ = ("olag", "olag-literal", "greedy")
_ENDED = ("static-greedy", "static-greedy-served")
_ACROSS = "alpha, ms per point"
_COSTS = "largest share of its gain that sliding costs"
Cases = list[tuple[float, float, Results]]  # rate, alpha, and the rows there


def _alpha_figure(settings: Settings, results: Results) -> Drawing:
    edge = settings.system != "I"
    shown = [
        settings.panel(title, _ACROSS, up, results, column, alpha=settings.alphas)
        for title, column, up in (
            ("inaccuracy", "inaccuracy", "points" if edge else "100 - mAP, points"),
            ("latency", "latency_ms", "mean latency, ms"),
            ("gain", "ntag_ms", "NTAG, ms"),
        )[: 3 if edge else 2]
    ]
    title = "86 nodes with a fifth of the memory" if edge else "Latency and inaccuracy of INFIDA"
    return panels(shown, columns=3, title=title)


def wrong_way(values: Sequence[float], *, rising: bool) -> float:
    """The largest step against the direction, 0 if there is none; NaN where a value is."""
    if any(map(math.isnan, values)):
        return math.nan
    return max(0.0, *(a - b if rising else b - a for a, b in pairwise(values)))


def _quick(alpha: float, latency_ms: float, why: str = "") -> str:
    return f"""With alpha near 0 INFIDA achieves very low latency, a few milliseconds.
        - mean latency at alpha = {alpha:g}: {latency_ms} (at most 10.0 ms)
        - {why}"""


def _falls(ntag: Sequence[float], why: str = "") -> str:
    return f"""The gain decreases as alpha increases.
        - largest step upwards of INFIDA's gain: {wrong_way(ntag, rising=False)} (at most 0.5 ms)
        - {why}"""


def _alpha_claims(settings: Settings, results: Results) -> list[Claim]:
    alphas, here = settings.alphas, results.where(policy="infida")
    latency, inaccuracy, edges = (
        here.values(column, alpha=alphas)
        for column in ("latency_ms", "inaccuracy", "served by base")
    )
    steps = [b - a for a, b in pairwise(latency)]
    top = max(range(len(steps)), key=lambda k: steps[k])
    at_base = f"{100 * edges[0]:.1f} % of the requests are served at base stations"
    return claims(f"""
      * [Sec. VI-A, Fig. 6] {_quick(alphas[0], latency[0], at_base)}
      * Inaccuracy decreases with alpha.
        - largest step upwards: {wrong_way(inaccuracy, rising=False)} (at most 0.2 points)
        - from {inaccuracy[0]:.1f} to {inaccuracy[-1]:.1f} points
      * Latency increases with alpha.
        - largest step downwards: {wrong_way(latency, rising=True)} (at most 0.5 ms)
        - from {latency[0]:.1f} to {latency[-1]:.1f} ms
      * Where accuracy matters, models close to the cloud lead to a sudden, significant increase of
        latency.
        - largest step over the mean step:
          {steps[top] * len(steps) / (latency[-1] - latency[0])} (at least 2.0)
        - the largest is from alpha {alphas[top]:g} to {alphas[top + 1]:g}: {steps[top]:.1f} ms
      * {_exchange_over(settings, results, "infida")}
    """)


def _exchange_over(settings: Settings, results: Results, *rivals: str, since: float = 2) -> str:
    """Compare what exchange gains with the most that others do, from an alpha on."""
    own, *others = (
        results.where(policy=policy).values("ntag_ms", alpha=settings.alphas)
        for policy in ("exchange", *rivals)
    )
    each = {
        alpha: mine / max(theirs) - 1
        for alpha, mine, *theirs in zip(settings.alphas, own, *others, strict=True)
    }
    high = {alpha: one for alpha, one in each.items() if alpha >= since}
    names = " and ".join(POLICIES[rival].label for rival in rivals)
    return f"""[ours] Exchange gains more than {names} from alpha {since:g} on.
        - least gain over the most of them, less 1: {smallest(list(high.values()))} (at least 0 %)
        - {percents(each, "+.2f", "{1} at alpha {0:g}")}"""


def _edge_alpha_claims(settings: Settings, results: Results) -> list[Claim]:
    alphas, here = settings.alphas, results.where(policy="infida")
    latency, ntag = (here.values(column, alpha=alphas) for column in ("latency_ms", "ntag_ms"))
    ends = zip(pairwise(alphas), pairwise(latency), strict=True)
    slopes = {
        (low + high) / 2: (after - before) / (high - low) for (low, high), (before, after) in ends
    }
    (literal, at, mine, theirs), (reaching, at_reaching, *_) = (
        max(
            (one / other, alpha, one, other)
            for alpha, one, other in zip(
                alphas,
                ntag,
                results.where(policy=rival).values("ntag_ms", alpha=alphas),
                strict=True,
            )
        )
        for rival in ("greedy", "olag")
    )
    cloud = percents(here.by("served by cloud", alpha=alphas), ".0f", "{:g}: {}")
    return claims(f"""
      * [Sec. VI-A, Fig. 3] {_quick(alphas[0], latency[0])}
      * At alpha about 4 both curves have a kink, as INFIDA starts to prefer the cloud.
        - middle of the steepest rise of latency:
          {most(slopes, math.nan)[1]} (3.5 to 4.5 ms per point)
        - {cloud} served in the cloud
      * {_falls(ntag)}
      * INFIDA's gain is up to 2.5 times as high as greedy's.
        - largest ratio: {literal} (2.0 to 3.0)
        - at alpha {at:g}, {mine:.2f} against {theirs:.2f} ms; {reaching:.2f} over
          {POLICIES["olag"].label}, which counts what reaches a node, at alpha {at_reaching:g}
      * {_exchange_over(settings, results, "infida", "olag")}
      * {_exchange_over(settings, results, "infida-strict", "infida-coupled", "olag")}
    """)


def _gain_figure(settings: Settings, results: Results) -> Drawing:
    shown = [
        settings.panel(
            f"Topology {system}",
            *(_ACROSS, "NTAG, ms", results.where(system=system), "ntag_ms"),
            alpha=settings.alphas,
        )
        for system in settings.systems
    ]
    return panels(shown, columns=2, title="Gain under sliding popularity")


# Where a sentence stands, the sentence, who gains over the best of whom, and at least how much.
_LEAST = (
    (
        "Sec. VI-A, Fig. 7", "INFIDA-offline is consistently better than static greedy.",
        "infida-offline", ("static-greedy",), 0,
    ),
    (
        "Sec. VI-A, Fig. 7",
        "Under sliding popularity the offline policies do worse than INFIDA, which adapts.",
        "infida", ("infida-offline", "static-greedy"), 0,
    ),
    ("Sec. VI-A, Fig. 7", "INFIDA gains more than OLAG.", "infida", ("olag",), 0),
    (
        "ours", "INFIDA gains more than literal OLAG, where replicas keep their counters.",
        "infida", ("olag-literal",), 0,
    ),
    (
        "ours", "INFIDA gains more than greedy by counters of what is forwarded.",
        "infida", ("greedy",), 0,
    ),
    ("ours", "Coupled rounding gains as much as the paper's.", "infida-coupled", ("infida",), -4),
    (
        "ours", "Exchange gains as much as the best of the others that learn, or more.",
        "exchange", ("infida", "infida-coupled", "olag", "olag-literal", "greedy"), -0.5,
    ),
    (
        "ours", "Under sliding popularity exchange gains more than hindsight does at once.",
        "exchange", ("infida-offline", "static-greedy"), -0.5,
    ),
)  # fmt: skip


def _gain_claims(settings: Settings, results: Results) -> list[Claim]:
    texts, alphas = [], settings.alphas
    for system in settings.systems:
        ntag = {
            policy: results.where(system=system, policy=policy).values("ntag_ms", alpha=alphas)
            for policy in settings.policies
        }
        own = ntag["infida"]
        why = f"from {own[0]:.1f} to {own[-1]:.1f} ms"
        texts.append(f"[Sec. VI-A, Fig. 7, Topology {system}] {_falls(own, why)}")
        for where, says, policy, others, limit in _LEAST:
            gains = zip(ntag[policy], *(ntag[one] for one in others), strict=True)
            margins = [mine / max(theirs) - 1 for mine, *theirs in gains]
            each = dict(zip(alphas, margins, strict=True))
            names = " and ".join(POLICIES[one].label for one in others)
            texts.append(f"""[{where}, Topology {system}] {says}
                - least gain over {names}, less 1: {smallest(margins)} (at least {limit} %)
                - {percents(each, "+.2f", "{1} at alpha {0:g}")}""")
    return claims(*texts)


def _plane_figure(settings: Settings, results: Results) -> Drawing:
    shown = [
        Panel(
            f"{rate:g} requests per second",
            "inaccuracy, points",
            "mean latency, ms",
            [
                pairs(
                    POLICIES[policy].look,
                    results.where(policy=policy, rate_per_s=rate),
                    *("inaccuracy", "latency_ms"),
                    alpha=settings.alphas,
                )
                for policy in settings.policies
            ],
        )
        for rate in settings.rates_per_s
    ]
    return panels(shown, columns=2, title=f"Topology {settings.system}, one point per alpha")


def _plane_claims(settings: Settings, results: Results) -> list[Claim]:
    cases = [
        (rate, alpha, results.where(rate_per_s=rate, alpha=alpha))
        for rate, alpha in product(settings.rates_per_s, settings.alphas)
    ]
    both = ("infida", "infida-offline")
    margins = []
    for _, _, here in cases:
        mine, bound = (here.value("ntag_ms", policy=policy) for policy in both)
        margins.append(bound / mine - 1)
    return claims(
        f"[Sec. VI-C, Fig. 10] {_not_beaten(cases, both[0])}",
        _not_beaten(cases, both[1]),
        *(_least_cost(cases, policy) for policy in both),
        f"""INFIDA-offline, in hindsight, bounds the latency and inaccuracy that can be reached.
        - least gain over INFIDA's, less 1: {smallest(margins)} (at least 0 %)
        - rounding its average keeps the budgets; INFIDA's elastic ones are exceeded by up to a
          model per node""",
        f"[ours] {_not_beaten(cases, 'exchange', ('infida', *_RIVALS))}",
    )


def _not_beaten(cases: Cases, policy: str, rivals: Sequence[str] = _RIVALS) -> str:
    beaten = [
        f"by {POLICIES[rival].label} at alpha {alpha:g}, {rate:g}/s"
        for rate, alpha, here in cases
        for rival in rivals
        if all(
            here.value(column, policy=rival) < here.value(column, policy=policy)
            for column in ("latency_ms", "inaccuracy")
        )
    ]
    points = len(beaten) if any(len(here) for *_, here in cases) else math.nan
    return f"""
        No other policy has both less latency and less inaccuracy than {POLICIES[policy].label}.
        - points where one has: {points} (at most 0)
        - {"; ".join(beaten) or f"of {len(cases)}"}""".strip()


def _least_cost(cases: Cases, policy: str) -> str:
    excess = {}
    for rate, alpha, here in cases:
        costs = {
            one: here.value("latency_ms", policy=one) + alpha * here.value("inaccuracy", policy=one)
            for one in (policy, *_RIVALS)
        }
        best = min(_RIVALS, key=lambda one: costs[one])
        said = f"largest at alpha {alpha:g}, {rate:g}/s: {costs[policy]:.2f} ms against "
        excess[f"{said}{costs[best]:.2f} ms of {POLICIES[best].label}"] = (
            costs[policy] / costs[best] - 1
        )
    worst, at = most(excess, "no point is known")
    return f"""{POLICIES[policy].label} consistently provides the least latency and inaccuracy.
        - largest cost over the best rival's, less 1: {worst} (at most 0.2 %)
        - {at}"""


class _Gains:
    """NTAG, in ms, of a study's policies, under fixed and sliding popularity."""

    def __init__(self, settings: Settings, results: Results) -> None:
        self.rates, self.results = settings.rates_per_s, results
        self.low, self.high = self.rates[0], self.rates[-1]

    def ms(self, policy: str, rate: float, sliding: bool = False) -> float:
        return self.results.value("ntag_ms", policy=policy, rate_per_s=rate, sliding=sliding)

    def over(self, policy: str, rate: float, sliding: bool = False) -> float:
        """INFIDA's over a policy's, less 1."""
        return self.ms("infida", rate, sliding) / self.ms(policy, rate, sliding) - 1

    def exchanged(self) -> str:
        """Compare exchange with INFIDA, a claim."""
        least = smallest([1 / (1 + self.over("exchange", *one)) - 1 for one in self._places])
        spread = self.lost("exchange")
        return f"""[ours] At these alphas, where memory is left, exchange gains as much as INFIDA.
            - its least gain over INFIDA's, less 1: {least} (at least -0.5 %)
            - {self.read(("exchange",), self.high)}; sliding costs exchange {100 * spread:.1f} %"""

    @property
    def _places(self) -> list[tuple[float, bool]]:
        return list(product(self.rates, (False, True)))

    def margins(self, *policies: str) -> dict[tuple[str, float, bool], float]:
        places = product(policies, self.rates, (False, True))
        return {place: self.over(*place) for place in places}

    def change(self, policy: str) -> float:
        """From the lowest rate to the highest, as a part of it."""
        return self.ms(policy, self.high) / self.ms(policy, self.low) - 1

    def lost(self, policy: str) -> float:
        return largest([1 - self.ms(policy, r, True) / self.ms(policy, r) for r in self.rates])

    @property
    def spread(self) -> float:
        own = [self.ms("infida", r, s) for r in self.rates for s in (False, True)]
        return (max(own) - min(own)) / (sum(own) / len(own))

    def read(self, policies: tuple[str, ...], rate: float, sliding: bool = False) -> str:
        """INFIDA's at a rate, and that of other readings of a policy."""
        said = [
            f"{POLICIES[one].label}: {self.ms(one, rate, sliding):.2f} ms, INFIDA "
            f"{100 * self.over(one, rate, sliding):+.1f} %"
            for one in policies
        ]
        return f"at {rate:g}/s INFIDA {self.ms('infida', rate, sliding):.2f} ms; " + "; ".join(said)


def _rate_figure(settings: Settings, results: Results) -> Drawing:
    shown = [
        settings.panel(
            f"{popularity} popularity",
            *("requests per second", "NTAG, ms"),
            *(results.where(sliding=sliding), "ntag_ms"),
            rate_per_s=settings.rates_per_s,
        )
        for popularity, sliding in (("fixed", False), ("sliding", True))
    ]
    where = "86 nodes" if settings.system == "conference" else f"Topology {settings.system}"
    return panels(shown, columns=2, title=f"Gain against the request rate, {where}")


def _rate_claims(settings: Settings, results: Results) -> list[Claim]:
    of = _Gains(settings, results)
    low, high = of.low, of.high
    margins = of.margins("infida-offline", "static-greedy", "olag")
    worst, at, sliding = min(margins, key=lambda one: margins[one])
    late = results.where(policy="infida", sliding=False).by("late_ms", rate_per_s=of.rates)
    settled = [abs(one / of.ms("infida-offline", rate) - 1) for rate, one in late.items()]
    readings = "; ".join(f"{POLICIES[one].label}: {100 * of.lost(one):.1f} %" for one in _READ)
    return claims(f"""
      * [Sec. VI-C, Fig. 9] Under fixed popularity INFIDA converges to the gain of INFIDA-offline.
        - largest difference in the last quarter of the slots: {largest(settled)} (at most 1 %)
      * That is about 10 % better than OLAG at 7,083 requests per second.
        - INFIDA's gain over OLAG's, less 1: {of.over("olag", low)} (5 to 15 %)
        - {of.read(_READ, low)}
      * OLAG deteriorates as the rate grows to 10,000 requests per second.
        - its gain there over that at the lowest rate, less 1: {of.change("olag")} (at most -1 %)
        - {of.read(_READ, high)}
      * OLAG suffers visibly when popularity changes.
        - {_COSTS}: {of.lost("olag")} (at least 2 %)
        - {readings}; INFIDA: {100 * of.lost("infida"):.1f} %
      * INFIDA-offline loses about 8 % under sliding popularity.
        - {_COSTS}: {of.lost("infida-offline")} (4 to 12 %)
        - {of.ms("infida-offline", low, True):.2f} ms against {of.ms("infida-offline", low):.2f} ms
          at {low:g}/s: one static allocation has room for enough copies under all four popularities
      * Static greedy loses about 30 % under sliding popularity.
        - {_COSTS}: {of.lost("static-greedy")} (20 to 40 %)
        - it goes on while anything gains; ending once all requests are served, it loses
          {100 * of.lost("static-greedy-served"):.1f} % ({of.read(_ENDED, low, True)})
      * INFIDA always converges to the highest gain.
        - least gain over INFIDA-offline, static greedy and OLAG, less 1:
          {smallest(list(margins.values()))} (at least 0 %)
        - least against {POLICIES[worst].label} at {at:g}/s, popularity
          {"sliding" if sliding else "fixed"}; INFIDA's mean includes the slots in which it learns,
          and its draws, anew in each slot, spread the budgets
      * INFIDA keeps its gain whatever the rate and the popularity.
        - spread of its gain over its mean: {of.spread} (at most 5 %)
      * {of.exchanged()}
    """)


def _edge_rate_claims(settings: Settings, results: Results) -> list[Claim]:
    of = _Gains(settings, results)
    low, high = of.low, of.high
    greedy, olag = (smallest(list(of.margins(one).values())) for one in ("greedy", "olag"))
    return claims(f"""
      * [Sec. VI-B, Fig. 4] At 5,000 requests per second greedy performs like INFIDA.
        - INFIDA's gain over greedy's, less 1: {of.over("greedy", low)} (-5 to 5 %)
        - a node that does not count what it serves itself drops what serves well; counting what
          reaches it: {100 * of.over("olag", low):+.1f} %
      * At 15,000 requests per second greedy's gain is about 33 % less.
        - share of its gain lost: {-of.change("greedy")} (23 to 43 %)
        - {of.ms("greedy", low):.1f} ms at {low:g}/s, {of.ms("greedy", high):.1f} ms at {high:g}/s:
          it drops models that serve well at any rate; counting what reaches a node,
          {-100 * of.change("olag"):.1f} % are lost
      * INFIDA gains more than greedy in general.
        - least gain over greedy's, less 1: {greedy} (at least 0 %)
        - least over greedy that counts what reaches a node: {100 * olag:+.1f} %
      * Greedy is visibly perturbed when popularity changes.
        - {_COSTS}: {of.lost("greedy")} (at least 2 %)
        - counting what reaches a node: {100 * of.lost("olag"):.1f} %; INFIDA:
          {100 * of.lost("infida"):.1f} %
      * INFIDA keeps the same gain at all rates under both popularities.
        - spread of its gain over its mean: {of.spread} (at most 5 %)
      * {of.exchanged()}
    """)


ALPHA = placement_study(
    name="placement-alpha",
    source="[SiSalem23], Fig. 6",
    shows="The trade-off that alpha sets: latency rises as inaccuracy falls.",
    scales=scales(
        # Alphas are read off the figure.
        Settings(
            alphas=(0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0),
            policies=("infida", "infida-coupled", "exchange"),
        ),
        smoke={"slots": 20, "trials": 1, "alphas": (0.0, 2.0, 4.0, 6.0)},
        quick={"slots": 240, "trials": 3},
    ),
    points=every("system", "rate_per_s", "sliding", "policy", "alpha", given=("copies",)),
    figure=_alpha_figure,
    claims=_alpha_claims,
    departures=(TUNED,),
)
EDGE_ALPHA = placement_study(
    name="edge-alpha",
    source="[SiSalem21], Fig. 3",
    shows="The trade-off that alpha sets where memory is scarce.",
    scales=scales(
        Settings(
            system="conference, smaller",
            alphas=(0.0, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0),
            policies=(
                *("infida", "infida-strict", "infida-coupled", "exchange"),
                *("greedy", "olag"),
            ),
            rate_per_s=5000.0,
            copies=5,
        ),
        smoke={"slots": 12, "trials": 1, "alphas": (0.0, 3.0, 4.0, 5.0)},
        quick={"slots": 120, "trials": 3},
    ),
    points=every("system", "rate_per_s", "sliding", "policy", "alpha", given=("copies",)),
    figure=_alpha_figure,
    claims=_edge_alpha_claims,
    departures=(
        "Nodes are smaller by up to 5 times, says the paper: here all budgets are a fifth.",
        "Budgets and single round-trip times are ours, as in edge-tiers.",
    ),
)
GAIN = placement_study(
    name="placement-gain",
    source="[SiSalem23], Fig. 7",
    shows="The gain over the cloud alone, of INFIDA and its rivals.",
    scales=scales(
        Settings(
            systems=("I", "II"),
            sliding=(True,),
            alphas=(0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
            policies=(
                *("infida", "infida-coupled", "exchange", "infida-offline", "static-greedy"),
                *("olag", "olag-literal", "greedy"),
            ),
        ),
        smoke={"slots": 12, "trials": 1, "alphas": (1.0, 4.0), "systems": ("II",)},
        quick={"slots": 240, "trials": 3},
    ),
    points=every("system", "rate_per_s", "sliding", "policy", "alpha"),
    figure=_gain_figure,
    claims=_gain_claims,
    departures=(
        "The paper does not say how many slots it ran: 240, each popularity once, at quick scale.",
        TUNED,
        "Policies in hindsight know the mean requests of every slot, not their counts.",
    ),
)
PLANE = placement_study(
    name="latency-inaccuracy",
    source="[SiSalem23], Fig. 10",
    shows="Which pairs of latency and inaccuracy each policy reaches.",
    scales=scales(
        Settings(
            system="II",
            alphas=(0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
            rates_per_s=(7500.0, 10_000.0),
            policies=(
                *("infida", "infida-coupled", "exchange"),
                *("infida-offline", "static-greedy", "olag"),
            ),
        ),
        smoke={"slots": 12, "trials": 1, "alphas": (1.0, 4.0), "rates_per_s": (7500.0,)},
        quick={"slots": 120, "trials": 3},
    ),
    points=every("system", "sliding", "rate_per_s", "policy", "alpha"),
    figure=_plane_figure,
    claims=_plane_claims,
    departures=(TUNED,),
)
RATE = placement_study(
    name="request-rate",
    source="[SiSalem23], Fig. 9",
    shows="How the gain holds as requests become more.",
    scales=scales(
        # The paper does not say the rates between its ends.
        Settings(
            sliding=(False, True),
            rates_per_s=(7083.0, 7500.0, 8333.0, 9167.0, 10_000.0),
            policies=("infida", "infida-coupled", "exchange", "infida-offline", *_ENDED, *_READ),
        ),
        smoke={"slots": 12, "trials": 1, "rates_per_s": (7083.0, 10_000.0)},
        quick={"slots": 240, "trials": 3, "rates_per_s": (7083.0, 8333.0, 10_000.0)},
    ),
    points=every("system", "alpha", "sliding", "policy", "rate_per_s"),
    figure=_rate_figure,
    claims=_rate_claims,
    departures=(
        "Popularity slides every 27,000,000 requests, as in the paper: sooner at higher rates.",
        "OLAG's counters and static greedy's end can be read in several ways: all are run.",
        TUNED,
    ),
)
EDGE_RATE = placement_study(
    name="edge-rate",
    source="[SiSalem21], Fig. 4",
    shows="How the gain holds as requests become more, in a network of 86 nodes.",
    scales=scales(
        Settings(
            system="conference",
            sliding=(False, True),
            rates_per_s=(5000.0, 7500.0, 10_000.0, 12_500.0, 15_000.0),
            policies=("infida", "infida-coupled", "exchange", "greedy", "olag"),
            alpha=0.5,
            copies=5,
        ),
        smoke={"slots": 12, "trials": 1, "rates_per_s": (5000.0, 15_000.0)},
        quick={"slots": 240, "trials": 3, "rates_per_s": (5000.0, 10_000.0, 15_000.0)},
    ),
    points=every("system", "alpha", "sliding", "policy", "rate_per_s", given=("copies",)),
    figure=_rate_figure,
    claims=_edge_rate_claims,
    departures=("Budgets and single round-trip times are ours, as in edge-tiers.",),
)
