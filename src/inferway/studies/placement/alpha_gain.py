"""Gain of all policies against alpha, on both topologies ([SiSalem23], Fig. 7)."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.experiments.curves import Drawing, Panel, panels
from inferway.experiments.results import smallest
from inferway.studies import Claim, Point, Results, Study, claim, scales
from inferway.studies.placement.alpha import wrong_way
from inferway.studies.placement.trial import CODE, POLICIES, TUNED, curves, every


@dataclass(frozen=True)
class Settings:
    """The paper's, but for the slots, which it does not say."""

    systems: tuple[str, ...] = ("I", "II")
    alphas: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    policies: tuple[str, ...] = (
        "infida", "infida-coupled", "infida-offline", "static-greedy", "olag", "olag-literal",
        "greedy",
    )  # fmt: skip
    rate_per_s: float = 7500.0
    slots: int = 480
    trials: int = 5


def points(settings: Settings) -> list[Point]:
    """Every policy at every alpha on every topology."""
    return every(
        settings,
        system=settings.systems,
        rate_per_s=[settings.rate_per_s],
        sliding=[True],
        policy=settings.policies,
        alpha=settings.alphas,
    )


def figure(settings: Settings, results: Results) -> Drawing:
    """A panel for each topology."""
    shown = [
        Panel(
            f"Topology {system}",
            "alpha, ms per point",
            "NTAG, ms",
            curves(
                results.where(system=system), settings.policies, "ntag_ms", alpha=settings.alphas
            ),
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


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-A."""
    made = []
    for system in settings.systems:
        here = results.where(system=system)
        ntag = {
            policy: here.where(policy=policy).values("ntag_ms", alpha=settings.alphas)
            for policy in settings.policies
        }
        own = ntag["infida"]
        made.append(
            claim(
                f"Sec. VI-A, Fig. 7, Topology {system}",
                "The gain decreases as alpha increases.",
                "largest step upwards of INFIDA's gain",
                wrong_way(own, rising=False),
                "at most 0.5 ms",
                f"from {own[0]:.1f} to {own[-1]:.1f} ms",
            )
        )
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
                        for alpha, margin in zip(settings.alphas, margins, strict=True)
                    ),
                )
            )
    return made


STUDY = Study(
    name="placement-gain",
    source="[SiSalem23], Fig. 7",
    shows="The gain over the cloud alone, of INFIDA and its rivals.",
    scales=scales(
        Settings(),
        smoke={"slots": 12, "trials": 1, "alphas": (1.0, 4.0), "systems": ("II",)},
        quick={"slots": 240, "trials": 3},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The paper does not say how many slots it ran: 240, each popularity once, at quick scale.",
        TUNED,
        "Policies in hindsight know the mean requests of every slot, not their counts.",
    ),
    code=CODE,
)
