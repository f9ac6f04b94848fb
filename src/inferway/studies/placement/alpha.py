"""Latency, inaccuracy and gain against alpha ([SiSalem23], Figs. 6, 7, 10; [SiSalem21], Fig. 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from inferway.experiments.curves import Drawing, Panel, panels
from inferway.experiments.results import most, smallest
from inferway.studies import Claim, Results, Study, claim, scales
from inferway.studies.placement.trial import CODE, POLICIES, TUNED, Settings, every, pairs
from inferway.studies.sentences import percents

_EDGE = "conference, smaller"
_RIVALS = ("static-greedy", "olag")
_ACROSS = "alpha, ms per point"
Cases = list[tuple[float, float, Results]]  # rate, alpha, and the rows there


def _figure(settings: Settings, results: Results) -> Drawing:
    edge = settings.system == _EDGE
    columns = [
        ("inaccuracy", "inaccuracy", "points" if edge else "100 - mAP, points"),
        ("latency", "latency_ms", "mean latency, ms"),
        ("gain", "ntag_ms", "NTAG, ms"),
    ]
    shown = [
        settings.panel(title, _ACROSS, up, results, column, alpha=settings.alphas)
        for title, column, up in columns[: 3 if edge else 2]
    ]
    title = "86 nodes with a fifth of the memory" if edge else "Latency and inaccuracy of INFIDA"
    return panels(shown, columns=3, title=title)


def wrong_way(values: Sequence[float], *, rising: bool) -> float:
    """The largest step against the direction, 0 if there is none; NaN where a value is."""
    if any(math.isnan(one) for one in values):
        return math.nan
    steps = [after - before for before, after in pairwise(values)]
    return max(0.0, *(-one if rising else one for one in steps))


def _quick(where: str, alpha: float, latency_ms: float, why: str = "") -> Claim:
    return claim(
        where,
        "With alpha near 0 INFIDA achieves very low latency, a few milliseconds.",
        f"mean latency at alpha = {alpha:g}",
        latency_ms,
        "at most 10.0 ms",
        why,
    )


def _falls(where: str, ntag: Sequence[float], why: str = "") -> Claim:
    return claim(
        where,
        "The gain decreases as alpha increases.",
        "largest step upwards of INFIDA's gain",
        wrong_way(ntag, rising=False),
        "at most 0.5 ms",
        why,
    )


def _claims(settings: Settings, results: Results) -> list[Claim]:
    where, alphas = "Sec. VI-A, Fig. 6", settings.alphas
    paper, here = partial(claim, where), results.where(policy="infida")
    latency, inaccuracy, edges = (
        here.values(column, alpha=alphas)
        for column in ("latency_ms", "inaccuracy", "served by base")
    )
    steps = [b - a for a, b in pairwise(latency)]
    top = max(range(len(steps)), key=lambda k: steps[k])
    at_base = f"{100 * edges[0]:.1f} % of the requests are served at base stations"
    return [
        _quick(where, alphas[0], latency[0], at_base),
        paper(
            "Inaccuracy decreases with alpha.",
            "largest step upwards",
            wrong_way(inaccuracy, rising=False),
            "at most 0.2 points",
            f"from {inaccuracy[0]:.1f} to {inaccuracy[-1]:.1f} points",
        ),
        paper(
            "Latency increases with alpha.",
            "largest step downwards",
            wrong_way(latency, rising=True),
            "at most 0.5 ms",
            f"from {latency[0]:.1f} to {latency[-1]:.1f} ms",
        ),
        paper(
            "Where accuracy matters, models close to the cloud lead to a sudden, significant "
            "increase of latency.",
            "largest step over the mean step",
            steps[top] * len(steps) / (latency[-1] - latency[0]),
            "at least 2.0",
            f"the largest is from alpha {alphas[top]:g} to {alphas[top + 1]:g}: "
            f"{steps[top]:.1f} ms",
        ),
    ]


def _edge_claims(settings: Settings, results: Results) -> list[Claim]:
    where, alphas = "Sec. VI-A, Fig. 3", settings.alphas
    paper, here = partial(claim, where), results.where(policy="infida")
    latency, ntag, cloud = (
        here.values(column, alpha=alphas) for column in ("latency_ms", "ntag_ms", "served by cloud")
    )
    slopes = {
        (low + high) / 2: (after - before) / (high - low)
        for (low, high), (before, after) in zip(pairwise(alphas), pairwise(latency), strict=True)
    }
    rivals = (
        results.where(policy=rival).values("ntag_ms", alpha=alphas) for rival in ("greedy", "olag")
    )
    (literal, at, mine, theirs), (reaching, at_reaching, *_) = (
        max(
            (one / other, alpha, one, other)
            for alpha, one, other in zip(alphas, ntag, rival, strict=True)
        )
        for rival in rivals
    )
    return [
        _quick(where, alphas[0], latency[0]),
        paper(
            "At alpha about 4 both curves have a kink, as INFIDA starts to prefer the cloud.",
            "middle of the steepest rise of latency",
            most(slopes, math.nan)[1],
            "3.5 to 4.5 ms per point",
            percents(dict(zip(alphas, cloud, strict=True)), ".0f", "{:g}: {}")
            + " served in the cloud",
        ),
        _falls(where, ntag),
        paper(
            "INFIDA's gain is up to 2.5 times as high as greedy's.",
            "largest ratio",
            literal,
            "2.0 to 3.0",
            f"at alpha {at:g}, {mine:.2f} against {theirs:.2f} ms; {reaching:.2f} over "
            f"{POLICIES['olag'].label}, which counts what reaches a node, at alpha {at_reaching:g}",
        ),
    ]


def _gain_figure(settings: Settings, results: Results) -> Drawing:
    labels = (_ACROSS, "NTAG, ms")
    shown = [
        settings.panel(
            f"Topology {system}",
            *labels,
            results.where(system=system),
            "ntag_ms",
            alpha=settings.alphas,
        )
        for system in settings.systems
    ]
    return panels(shown, columns=2, title="Gain under sliding popularity")


# Where a sentence stands, the sentence, who gains over the best of whom, and the limit.
_LEAST = (
    (
        "Sec. VI-A, Fig. 7",
        "INFIDA-offline is consistently better than static greedy.",
        "infida-offline",
        ("static-greedy",),
        "at least 0 %",
    ),
    (
        "Sec. VI-A, Fig. 7",
        "Under sliding popularity the offline policies do worse than INFIDA, which adapts.",
        "infida",
        ("infida-offline", "static-greedy"),
        "at least 0 %",
    ),
    ("Sec. VI-A, Fig. 7", "INFIDA gains more than OLAG.", "infida", ("olag",), "at least 0 %"),
    (
        "ours",
        "INFIDA gains more than literal OLAG, where replicas keep their counters.",
        "infida",
        ("olag-literal",),
        "at least 0 %",
    ),
    (
        "ours",
        "INFIDA gains more than greedy by counters of what is forwarded.",
        "infida",
        ("greedy",),
        "at least 0 %",
    ),
    (
        "ours",
        "Coupled rounding gains as much as the paper's.",
        "infida-coupled",
        ("infida",),
        "at least -4 %",
    ),
)


def _gain_claims(settings: Settings, results: Results) -> list[Claim]:
    made, alphas = [], settings.alphas
    for system in settings.systems:
        here = results.where(system=system)
        ntag = {
            policy: here.where(policy=policy).values("ntag_ms", alpha=alphas)
            for policy in settings.policies
        }
        own = ntag["infida"]
        why = f"from {own[0]:.1f} to {own[-1]:.1f} ms"
        made.append(_falls(f"Sec. VI-A, Fig. 7, Topology {system}", own, why))
        for where, says, policy, others, limit in _LEAST:
            gains = zip(ntag[policy], *(ntag[one] for one in others), strict=True)
            margins = [mine / max(theirs) - 1 for mine, *theirs in gains]
            names = " and ".join(POLICIES[one].label for one in others)
            made.append(
                claim(
                    f"{where}, Topology {system}",
                    says,
                    f"least gain over {names}, less 1",
                    smallest(margins),
                    limit,
                    ", ".join(
                        f"{100 * margin:+.2f} % at alpha {alpha:g}"
                        for alpha, margin in zip(alphas, margins, strict=True)
                    ),
                )
            )
    return made


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
                    "inaccuracy",
                    "latency_ms",
                    alpha=settings.alphas,
                )
                for policy in settings.policies
            ],
        )
        for rate in settings.rates_per_s
    ]
    return panels(shown, columns=2, title=f"Topology {settings.system}, one point per alpha")


def _plane_claims(settings: Settings, results: Results) -> list[Claim]:
    mine, offline = "infida", "infida-offline"
    cases = [
        (rate, alpha, results.where(rate_per_s=rate, alpha=alpha))
        for rate in settings.rates_per_s
        for alpha in settings.alphas
    ]
    # INFIDA-offline bounds what INFIDA reaches.
    margins = [
        here.value("ntag_ms", policy=offline) / here.value("ntag_ms", policy=mine) - 1
        for _, _, here in cases
    ]
    paper = partial(claim, "Sec. VI-C, Fig. 10")
    return [
        *(paper(*_not_beaten(cases, policy)) for policy in (mine, offline)),
        *(paper(*_least_cost(cases, policy)) for policy in (mine, offline)),
        paper(
            "INFIDA-offline, in hindsight, bounds the latency and inaccuracy that can be reached.",
            "least gain over INFIDA's, less 1",
            smallest(margins),
            "at least 0 %",
            "rounding its average keeps the budgets; INFIDA's elastic ones are exceeded by up to "
            "a model per node",
        ),
    ]


def _not_beaten(cases: Cases, policy: str) -> tuple[str, str, float, str, str]:
    """At how many points a rival has both less latency and less inaccuracy."""
    columns = ("latency_ms", "inaccuracy")
    beaten = [
        f"by {POLICIES[rival].label} at alpha {alpha:g}, {rate:g}/s"
        for rate, alpha, here in cases
        for rival in _RIVALS
        if all(here.value(one, policy=rival) < here.value(one, policy=policy) for one in columns)
    ]
    return (
        f"No other policy has both less latency and less inaccuracy than {POLICIES[policy].label}.",
        "points where one has",
        float(len(beaten)) if any(len(here) for _, _, here in cases) else math.nan,
        "at most 0",
        "; ".join(beaten) or f"of {len(cases)}",
    )


def _least_cost(cases: Cases, policy: str) -> tuple[str, str, float, str, str]:
    """Extra cost over the best rival: latency and alpha times inaccuracy."""
    excess = {}
    for rate, alpha, here in cases:
        costs = {
            one: here.value("latency_ms", policy=one) + alpha * here.value("inaccuracy", policy=one)
            for one in (policy, *_RIVALS)
        }
        best = min(_RIVALS, key=lambda one: costs[one])
        said = f"largest at alpha {alpha:g}, {rate:g}/s: {costs[policy]:.2f} ms against "
        said += f"{costs[best]:.2f} ms of {POLICIES[best].label}"
        excess[said] = costs[policy] / costs[best] - 1
    worst, at = most(excess, "no point is known")
    return (
        f"{POLICIES[policy].label} consistently provides the least latency and inaccuracy.",
        "largest cost over the best rival's, less 1",
        worst,
        "at most 0.2 %",
        at,
    )


STUDY = Study(
    name="placement-alpha",
    source="[SiSalem23], Fig. 6",
    shows="The trade-off that alpha sets: latency rises as inaccuracy falls.",
    scales=scales(
        # Alphas are read off the figure.
        Settings(
            alphas=(0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0),
            policies=("infida", "infida-coupled"),
        ),
        smoke={"slots": 20, "trials": 1, "alphas": (0.0, 2.0, 4.0, 6.0)},
        quick={"slots": 240, "trials": 3},
    ),
    points=every("system", "rate_per_s", "sliding", "policy", "alpha", given=("copies",)),
    figure=_figure,
    claims=_claims,
    departures=(TUNED,),
    code=CODE,
)
EDGE = Study(
    name="edge-alpha",
    source="[SiSalem21], Fig. 3",
    shows="The trade-off that alpha sets where memory is scarce.",
    scales=scales(
        Settings(
            system=_EDGE,
            alphas=(0.0, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0),
            policies=("infida", "infida-coupled", "greedy", "olag"),
            rate_per_s=5000.0,
            copies=5,
        ),
        smoke={"slots": 12, "trials": 1, "alphas": (0.0, 3.0, 4.0, 5.0)},
        quick={"slots": 120, "trials": 3},
    ),
    points=every("system", "rate_per_s", "sliding", "policy", "alpha", given=("copies",)),
    figure=_figure,
    claims=_edge_claims,
    departures=(
        "Nodes are smaller by up to 5 times, says the paper: here all budgets are a fifth.",
        "Budgets and single round-trip times are ours, as in edge-tiers.",
    ),
    code=CODE,
)
GAIN = Study(
    name="placement-gain",
    source="[SiSalem23], Fig. 7",
    shows="The gain over the cloud alone, of INFIDA and its rivals.",
    scales=scales(
        Settings(
            systems=("I", "II"),
            sliding=(True,),
            alphas=(0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
            policies=(
                *("infida", "infida-coupled", "infida-offline", "static-greedy"),
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
    code=CODE,
)
PLANE = Study(
    name="latency-inaccuracy",
    source="[SiSalem23], Fig. 10",
    shows="Which pairs of latency and inaccuracy each policy reaches.",
    scales=scales(
        Settings(
            system="II",
            alphas=(0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
            rates_per_s=(7500.0, 10_000.0),
            policies=("infida", "infida-coupled", "infida-offline", "static-greedy", "olag"),
        ),
        smoke={"slots": 12, "trials": 1, "alphas": (1.0, 4.0), "rates_per_s": (7500.0,)},
        quick={"slots": 120, "trials": 3},
    ),
    points=every("system", "sliding", "rate_per_s", "policy", "alpha"),
    figure=_plane_figure,
    claims=_plane_claims,
    departures=(TUNED,),
    code=CODE,
)
