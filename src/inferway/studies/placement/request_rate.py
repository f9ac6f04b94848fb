"""Gain of all policies against the request rate ([SiSalem23], Fig. 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.placement.look import POLICIES, curves
from inferway.studies.placement.trial import CODE, every

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_READ = ("olag", "olag-literal", "greedy")
_ENDED = ("static-greedy", "static-greedy-served")


@dataclass(frozen=True)
class Settings:
    """The paper's, but for the slots, which it does not say, and the rates between its ends."""

    rates_per_s: tuple[float, ...] = (7083.0, 7500.0, 8333.0, 9167.0, 10_000.0)
    policies: tuple[str, ...] = (
        "infida", "infida-coupled", "infida-offline", "static-greedy", "static-greedy-served",
        "olag", "olag-literal", "greedy",
    )  # fmt: skip
    alpha: float = 1.0
    slots: int = 480
    trials: int = 5


def points(settings: Settings) -> list[Point]:
    """Every policy at every rate under both popularities."""
    return every(
        settings,
        system=["I"],
        alpha=[settings.alpha],
        sliding=(False, True),
        policy=settings.policies,
        rate_per_s=settings.rates_per_s,
    )


def figure(settings: Settings, results: Results) -> Figure:
    """A panel for each popularity."""
    return gains(settings.policies, settings.rates_per_s, results, "Topology I")


def gains(
    policies: Sequence[str], rates_per_s: Sequence[float], results: Results, where: str
) -> Figure:
    """Draw gain against rate, with popularity fixed and sliding."""
    from inferway.experiments.curves import Panel, panels

    shown = [
        Panel(
            title,
            "requests per second",
            "NTAG, ms",
            curves(results, policies, "rate_per_s", rates_per_s, "ntag_ms", sliding=sliding),
        )
        for title, sliding in (("fixed popularity", False), ("sliding popularity", True))
    ]
    return panels(shown, columns=2, title=f"Gain against the request rate, {where}")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-C."""
    where = "Sec. VI-C, Fig. 9"
    low, high = settings.rates_per_s[0], settings.rates_per_s[-1]

    def ntag(policy: str, rate: float, sliding: bool) -> float:
        return results.value("ntag_ms", policy=policy, rate_per_s=rate, sliding=sliding)

    def lost(policy: str) -> float:
        """The largest share of the gain that sliding costs."""
        return _most(
            [1 - ntag(policy, r, True) / ntag(policy, r, False) for r in settings.rates_per_s]
        )

    def readings(policies: tuple[str, ...], rate: float, sliding: bool) -> str:
        mine = ntag("infida", rate, sliding)
        said = [
            f"{POLICIES[one].label}: {ntag(one, rate, sliding):.2f} ms, INFIDA "
            f"{100 * (mine / ntag(one, rate, sliding) - 1):+.1f} %"
            for one in policies
        ]
        return f"at {rate:g}/s INFIDA {mine:.2f} ms; " + "; ".join(said)

    margins = {
        (policy, rate, sliding): ntag("infida", rate, sliding) / ntag(policy, rate, sliding) - 1
        for policy in ("infida-offline", "static-greedy", "olag")
        for rate in settings.rates_per_s
        for sliding in (False, True)
    }
    worst = min(margins, key=lambda one: margins[one])
    mine = [ntag("infida", r, s) for r in settings.rates_per_s for s in (False, True)]
    ended = _most(
        [
            1 - ntag("static-greedy-served", r, True) / ntag("static-greedy-served", r, False)
            for r in settings.rates_per_s
        ]
    )
    return [
        Claim(
            where,
            "Under fixed popularity INFIDA converges to the gain of INFIDA-offline.",
            "largest difference in the last quarter of the slots",
            _most(
                [
                    abs(
                        results.value("late_ms", policy="infida", rate_per_s=r, sliding=False)
                        / ntag("infida-offline", r, False)
                        - 1
                    )
                    for r in settings.rates_per_s
                ]
            ),
            at_most=0.01,
            unit="%",
        ),
        Claim(
            where,
            "That is about 10 % better than OLAG at 7,083 requests per second.",
            "INFIDA's gain over OLAG's, less 1",
            ntag("infida", low, False) / ntag("olag", low, False) - 1,
            at_least=0.05,
            at_most=0.15,
            unit="%",
            why=readings(_READ, low, False),
        ),
        Claim(
            where,
            "OLAG deteriorates as the rate grows to 10,000 requests per second.",
            "its gain there over that at the lowest rate, less 1",
            ntag("olag", high, False) / ntag("olag", low, False) - 1,
            at_most=-0.01,
            unit="%",
            why=readings(_READ, high, False),
        ),
        Claim(
            where,
            "OLAG suffers visibly when popularity changes.",
            "largest share of its gain that sliding costs",
            lost("olag"),
            at_least=0.02,
            unit="%",
            why="; ".join(f"{POLICIES[one].label}: {100 * lost(one):.1f} %" for one in _READ)
            + f"; INFIDA: {100 * lost('infida'):.1f} %",
        ),
        Claim(
            where,
            "INFIDA-offline loses about 8 % under sliding popularity.",
            "largest share of its gain that sliding costs",
            lost("infida-offline"),
            at_least=0.04,
            at_most=0.12,
            unit="%",
            why=f"{ntag('infida-offline', low, True):.2f} ms against "
            f"{ntag('infida-offline', low, False):.2f} ms at {low:g}/s: one static allocation has "
            "room for enough copies under all four popularities",
        ),
        Claim(
            where,
            "Static greedy loses about 30 % under sliding popularity.",
            "largest share of its gain that sliding costs",
            lost("static-greedy"),
            at_least=0.2,
            at_most=0.4,
            unit="%",
            why=f"it goes on while anything gains; ending once all requests are served, it loses "
            f"{100 * ended:.1f} % ({readings(_ENDED, low, True)})",
        ),
        Claim(
            where,
            "INFIDA always converges to the highest gain.",
            "least gain over INFIDA-offline, static greedy and OLAG, less 1",
            _most([-one for one in margins.values()]) * -1,
            at_least=0.0,
            unit="%",
            why=f"least against {POLICIES[worst[0]].label} at {worst[1]:g}/s, popularity "
            f"{'sliding' if worst[2] else 'fixed'}; INFIDA's mean includes the slots in which it "
            "learns, and its draws, anew in each slot, spread the budgets",
        ),
        Claim(
            where,
            "INFIDA keeps its gain whatever the rate and the popularity.",
            "spread of its gain over its mean",
            (max(mine) - min(mine)) / (sum(mine) / len(mine)),
            at_most=0.05,
            unit="%",
        ),
    ]


def _most(values: list[float]) -> float:
    return math.nan if any(math.isnan(one) for one in values) else max(values)


_PAPER = Settings()
STUDY = Study(
    name="request-rate",
    source="[SiSalem23], Fig. 9",
    shows="How the gain holds as requests become more.",
    scales={
        "smoke": replace(_PAPER, slots=12, trials=1, rates_per_s=(7083.0, 10_000.0)),
        "quick": replace(_PAPER, slots=240, trials=3, rates_per_s=(7083.0, 8333.0, 10_000.0)),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "Popularity slides every 27,000,000 requests, as in the paper: sooner at higher rates.",
        "OLAG's counters and static greedy's end can be read in several ways: all are run.",
        "The learning rate, which the paper does not give, tunes itself.",
    ),
    code=CODE,
)
