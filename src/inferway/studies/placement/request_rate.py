"""Gain of all policies against the request rate ([SiSalem23], Fig. 9; [SiSalem21], Fig. 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferway.experiments.curves import Drawing, Panel, panels
from inferway.experiments.results import largest, smallest
from inferway.studies import Claim, Point, Results, Study, claim, scales
from inferway.studies.placement.trial import CODE, POLICIES, TUNED, curves, every

_READ = ("olag", "olag-literal", "greedy")
_ENDED = ("static-greedy", "static-greedy-served")
_COSTS = "largest share of its gain that sliding costs"

Gain = Callable[[str, float, bool], float]
"""NTAG of a policy, in ms, at a rate, and whether popularity slides."""


@dataclass(frozen=True)
class Settings:
    """The paper's, but for the slots, which it does not say, and the rates between its ends."""

    system: str = "I"
    rates_per_s: tuple[float, ...] = (7083.0, 7500.0, 8333.0, 9167.0, 10_000.0)
    policies: tuple[str, ...] = (
        "infida", "infida-coupled", "infida-offline", "static-greedy", "static-greedy-served",
        "olag", "olag-literal", "greedy",
    )  # fmt: skip
    alpha: float = 1.0
    copies: int = 3
    slots: int = 480
    trials: int = 5

    def lost(self, ntag: Gain, policy: str) -> float:
        """The largest share of a policy's gain that sliding costs."""
        return largest(
            [1 - ntag(policy, r, True) / ntag(policy, r, False) for r in self.rates_per_s]
        )

    def margins(self, ntag: Gain, policy: str) -> dict[tuple[str, float, bool], float]:
        """INFIDA's gain over a policy's, less 1, at every rate under both popularities."""
        return {
            (policy, r, s): ntag("infida", r, s) / ntag(policy, r, s) - 1
            for r in self.rates_per_s
            for s in (False, True)
        }

    def spread(self, ntag: Gain) -> float:
        """The spread of INFIDA's gain over its mean."""
        mine = [ntag("infida", r, s) for r in self.rates_per_s for s in (False, True)]
        return (max(mine) - min(mine)) / (sum(mine) / len(mine))


_EDGE = Settings(
    system="conference",
    rates_per_s=(5000.0, 7500.0, 10_000.0, 12_500.0, 15_000.0),
    policies=("infida", "infida-coupled", "greedy", "olag"),
    alpha=0.5,
    copies=5,
)


def points(settings: Settings) -> list[Point]:
    """Every policy at every rate under both popularities."""
    edge = settings.system == _EDGE.system
    return every(
        settings,
        {"copies": settings.copies} if edge else {},
        system=[settings.system],
        alpha=[settings.alpha],
        sliding=(False, True),
        policy=settings.policies,
        rate_per_s=settings.rates_per_s,
    )


def figure(settings: Settings, results: Results) -> Drawing:
    """Gain against rate, with popularity fixed and sliding."""
    shown = [
        Panel(
            title,
            "requests per second",
            "NTAG, ms",
            curves(
                results.where(sliding=sliding),
                settings.policies,
                "ntag_ms",
                rate_per_s=settings.rates_per_s,
            ),
        )
        for title, sliding in (("fixed popularity", False), ("sliding popularity", True))
    ]
    where = "86 nodes" if settings.system == _EDGE.system else f"Topology {settings.system}"
    return panels(shown, columns=2, title=f"Gain against the request rate, {where}")


def _gain_of(results: Results) -> Gain:
    def ntag(policy: str, rate: float, sliding: bool) -> float:
        return results.value("ntag_ms", policy=policy, rate_per_s=rate, sliding=sliding)

    return ntag


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-C."""
    where, ntag = "Sec. VI-C, Fig. 9", _gain_of(results)
    low, high = settings.rates_per_s[0], settings.rates_per_s[-1]

    def readings(policies: tuple[str, ...], rate: float, sliding: bool) -> str:
        mine = ntag("infida", rate, sliding)
        said = [
            f"{POLICIES[one].label}: {ntag(one, rate, sliding):.2f} ms, INFIDA "
            f"{100 * (mine / ntag(one, rate, sliding) - 1):+.1f} %"
            for one in policies
        ]
        return f"at {rate:g}/s INFIDA {mine:.2f} ms; " + "; ".join(said)

    def lost(policy: str) -> float:
        return settings.lost(ntag, policy)

    margins = {
        place: margin
        for policy in ("infida-offline", "static-greedy", "olag")
        for place, margin in settings.margins(ntag, policy).items()
    }
    worst = min(margins, key=lambda one: margins[one])
    settled = [
        results.value("late_ms", policy="infida", rate_per_s=r, sliding=False)
        / ntag("infida-offline", r, False)
        for r in settings.rates_per_s
    ]
    return [
        claim(
            where,
            "Under fixed popularity INFIDA converges to the gain of INFIDA-offline.",
            "largest difference in the last quarter of the slots",
            largest([abs(one - 1) for one in settled]),
            "at most 1 %",
        ),
        claim(
            where,
            "That is about 10 % better than OLAG at 7,083 requests per second.",
            "INFIDA's gain over OLAG's, less 1",
            ntag("infida", low, False) / ntag("olag", low, False) - 1,
            "5 to 15 %",
            readings(_READ, low, False),
        ),
        claim(
            where,
            "OLAG deteriorates as the rate grows to 10,000 requests per second.",
            "its gain there over that at the lowest rate, less 1",
            ntag("olag", high, False) / ntag("olag", low, False) - 1,
            "at most -1 %",
            readings(_READ, high, False),
        ),
        claim(
            where,
            "OLAG suffers visibly when popularity changes.",
            _COSTS,
            lost("olag"),
            "at least 2 %",
            "; ".join(f"{POLICIES[one].label}: {100 * lost(one):.1f} %" for one in _READ)
            + f"; INFIDA: {100 * lost('infida'):.1f} %",
        ),
        claim(
            where,
            "INFIDA-offline loses about 8 % under sliding popularity.",
            _COSTS,
            lost("infida-offline"),
            "4 to 12 %",
            f"{ntag('infida-offline', low, True):.2f} ms against "
            f"{ntag('infida-offline', low, False):.2f} ms at {low:g}/s: one static allocation has "
            "room for enough copies under all four popularities",
        ),
        claim(
            where,
            "Static greedy loses about 30 % under sliding popularity.",
            _COSTS,
            lost("static-greedy"),
            "20 to 40 %",
            "it goes on while anything gains; ending once all requests are served, it loses "
            f"{100 * lost('static-greedy-served'):.1f} % ({readings(_ENDED, low, True)})",
        ),
        claim(
            where,
            "INFIDA always converges to the highest gain.",
            "least gain over INFIDA-offline, static greedy and OLAG, less 1",
            smallest(list(margins.values())),
            "at least 0 %",
            f"least against {POLICIES[worst[0]].label} at {worst[1]:g}/s, popularity "
            f"{'sliding' if worst[2] else 'fixed'}; INFIDA's mean includes the slots in which it "
            "learns, and its draws, anew in each slot, spread the budgets",
        ),
        claim(
            where,
            "INFIDA keeps its gain whatever the rate and the popularity.",
            "spread of its gain over its mean",
            settings.spread(ntag),
            "at most 5 %",
        ),
    ]


def edge_claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-B of the conference's paper."""
    where, ntag = "Sec. VI-B, Fig. 4", _gain_of(results)
    low, high = settings.rates_per_s[0], settings.rates_per_s[-1]

    def falls(policy: str) -> float:
        return 1 - ntag(policy, high, False) / ntag(policy, low, False)

    def over(policy: str) -> float:
        return ntag("infida", low, False) / ntag(policy, low, False) - 1

    least_over = {
        policy: smallest(list(settings.margins(ntag, policy).values()))
        for policy in ("greedy", "olag")
    }
    lost = {policy: settings.lost(ntag, policy) for policy in ("greedy", "olag", "infida")}
    return [
        claim(
            where,
            "At 5,000 requests per second greedy performs like INFIDA.",
            "INFIDA's gain over greedy's, less 1",
            over("greedy"),
            "-5 to 5 %",
            "a node that does not count what it serves itself drops what serves well; counting "
            f"what reaches it: {100 * over('olag'):+.1f} %",
        ),
        claim(
            where,
            "At 15,000 requests per second greedy's gain is about 33 % less.",
            "share of its gain lost",
            falls("greedy"),
            "23 to 43 %",
            f"{ntag('greedy', low, False):.1f} ms at {low:g}/s, "
            f"{ntag('greedy', high, False):.1f} ms at {high:g}/s: it drops models that serve well "
            f"at any rate; counting what reaches a node, {100 * falls('olag'):.1f} % are lost",
        ),
        claim(
            where,
            "INFIDA gains more than greedy in general.",
            "least gain over greedy's, less 1",
            least_over["greedy"],
            "at least 0 %",
            f"least over greedy that counts what reaches a node: {100 * least_over['olag']:+.1f} %",
        ),
        claim(
            where,
            "Greedy is visibly perturbed when popularity changes.",
            _COSTS,
            lost["greedy"],
            "at least 2 %",
            f"counting what reaches a node: {100 * lost['olag']:.1f} %; INFIDA: "
            f"{100 * lost['infida']:.1f} %",
        ),
        claim(
            where,
            "INFIDA keeps the same gain at all rates under both popularities.",
            "spread of its gain over its mean",
            settings.spread(ntag),
            "at most 5 %",
        ),
    ]


STUDY = Study(
    name="request-rate",
    source="[SiSalem23], Fig. 9",
    shows="How the gain holds as requests become more.",
    scales=scales(
        Settings(),
        smoke={"slots": 12, "trials": 1, "rates_per_s": (7083.0, 10_000.0)},
        quick={"slots": 240, "trials": 3, "rates_per_s": (7083.0, 8333.0, 10_000.0)},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "Popularity slides every 27,000,000 requests, as in the paper: sooner at higher rates.",
        "OLAG's counters and static greedy's end can be read in several ways: all are run.",
        TUNED,
    ),
    code=CODE,
)
EDGE = Study(
    name="edge-rate",
    source="[SiSalem21], Fig. 4",
    shows="How the gain holds as requests become more, in a network of 86 nodes.",
    scales=scales(
        _EDGE,
        smoke={"slots": 12, "trials": 1, "rates_per_s": (5000.0, 15_000.0)},
        quick={"slots": 240, "trials": 3, "rates_per_s": (5000.0, 10_000.0, 15_000.0)},
    ),
    points=points,
    figure=figure,
    claims=edge_claims,
    departures=("Budgets and single round-trip times are ours, as in edge-tiers.",),
    code=CODE,
)
