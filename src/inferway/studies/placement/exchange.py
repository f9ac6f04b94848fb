"""Exchange beside INFIDA and OLAG: on the papers' networks, for long, and on backbones (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from inferway.experiments.claim import percents
from inferway.experiments.curves import Drawing, Panel, panels
from inferway.experiments.results import least, most
from inferway.studies import Claim, Point, Results, claims, scales
from inferway.studies.placement.real_topologies import VARIABLE, found
from inferway.studies.placement.real_topologies import simulated as on_backbone
from inferway.studies.placement.trial import (
    POLICIES,
    Settings,
    curves,
    long_run,
    mean_of,
    placement_study,
    simulated,
    windows,
)

_RIVALS = ("infida", "olag")
_MARGINAL = "infida-marginal"
Case = tuple[str, bool, float]  # System, whether popularity slides, alpha
_GOALS_MS: dict[Case, float] = {("II", False, 3.0): 35.4, ("II", True, 4.0): 23.7,
                                ("I", True, 4.0): 30.8}  # fmt: skip


@dataclass(frozen=True)
class ExchangeSettings(Settings):
    """Fixed and sliding popularity on both topologies, one long run, and backbones."""

    systems: tuple[str, ...] = ("I", "II")
    alphas: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    sliding: tuple[bool, ...] = (False, True)
    policies: tuple[str, ...] = (*_RIVALS, _MARGINAL, "exchange")
    slots: int = 240
    trials: int = 5
    long_slots: int = 1920
    names: tuple[str, ...] = (
        "Abilene", "NSFNET", "Geant2012", "DeutscheTelekom", "Garr201201", "Bellcanada",
        "Uninett2011", "GtsCe", "Interoute", "Colt",
    )  # fmt: skip
    backbone_slots: int = 60
    rate_per_node: float = 1000.0
    budget: float = 2 * 2.0**30

    @property
    def cases(self) -> list[Case]:
        """Every topology, popularity and alpha."""
        return list(product(self.systems, self.sliding, self.alphas))


def _name(case: Case) -> str:
    system, sliding, alpha = case
    return f"{system} {'sliding' if sliding else 'fixed'} {alpha:g}"


def _points(settings: ExchangeSettings) -> list[Point]:
    made = []
    for policy, trial in product(settings.policies, range(settings.trials)):
        shared: dict[str, Any] = {"policy": policy, "seed": trial + 1}
        for system, sliding, alpha in settings.cases:
            case = {"system": system, "sliding": sliding, "alpha": alpha}
            label = {"part": "case", **case, "policy": policy, "trial": trial}
            arguments = {**shared, **case, **settings.given("rate_per_s", "slots")}
            made.append(Point(label, simulated, arguments, POLICIES[policy].cost(settings.slots)))
        for name in found(settings.names):
            label = {"part": "backbone", "name": name, "policy": policy, "trial": trial}
            given = settings.given("alpha", "rate_per_node", "budget")
            arguments = {**shared, **given, "name": name, "slots": settings.backbone_slots}
            cost = 4 * POLICIES[policy].cost(settings.backbone_slots)
            made.append(Point(label, on_backbone, arguments, cost))
    slots = settings.long_slots
    for trial in range(settings.trials):
        label = {"part": "long", "policy": "exchange", "trial": trial}
        of = {"system": "II", "alpha": 3.0, "sliding": False, "rate_per_s": settings.rate_per_s}
        arguments = {**of, "policy": "exchange", "slots": slots, "seed": trial + 1}
        made.append(Point(label, long_run, arguments, POLICIES["exchange"].cost(slots)))
    return made


def _figure(settings: ExchangeSettings, results: Results) -> Drawing:
    shown = []
    for system, sliding in product(settings.systems, settings.sliding):
        here = results.where(part="case", system=system, sliding=sliding)
        title = f"Topology {system}, {'sliding' if sliding else 'fixed'}"
        drawn = curves(here, settings.policies, "ntag_ms", alpha=settings.alphas)
        shown.append(Panel(title, "alpha, ms per point", "gain, ms", drawn))
    return panels(shown, columns=2, title="Exchange beside INFIDA and OLAG")


def _claims(settings: ExchangeSettings, results: Results) -> list[Claim]:
    def of(case: Case, policy: str, column: str = "ntag_ms") -> float:
        system, sliding, alpha = case
        label = {"part": "case", "system": system, "sliding": sliding, "alpha": alpha}
        return results.value(column, **label, policy=policy)

    cases = settings.cases
    short = [case for case in cases if case[2] >= 2]

    def over(rival: str, chosen: list[Case]) -> dict[str, float]:
        return {_name(case): of(case, "exchange") / of(case, rival) - 1 for case in chosen}

    def gains(rival: str) -> str:
        each, loose = over(rival, short), over(rival, [one for one in cases if one[2] < 2])
        return f"""[ours] Exchange gains more than {POLICIES[rival].label} from alpha 2 on.
            - least gain over {POLICIES[rival].label}, less 1: {least(each, "")[0]} (at least 0 %)
            - {percents(each, "+.1f", "{} {}")}; below: {percents(loose, "+.2f", "{} {}")}"""

    def goal(case: Case, ms: float) -> str:
        rivals = ", ".join(f"{POLICIES[one].label} {of(case, one):.2f}" for one in _RIVALS)
        return f"""[ours] On {_name(case)} exchange comes near the bound of the LP.
            - gain: {of(case, "exchange")} (at least {ms} ms)
            - {rivals} ms"""

    late = {
        _name(one): of(one, _MARGINAL, "late_ms") / of(one, "exchange", "late_ms") - 1
        for one in short
        if not one[1]
    }
    slides = {_name(one): of(one, _MARGINAL) / of(one, "exchange") - 1 for one in short if one[1]}
    moved = {_name(one): of(one, "exchange", "mu_mib") / of(one, "infida", "mu_mib")
             for one in cases}  # fmt: skip
    parts = windows(settings.long_slots)
    long = results.where(part="long")
    early, last = (mean_of(long, "windows_ms", k) for k in (min(1, len(parts) - 1), -1))
    names = found(settings.names)
    absent = ", ".join(name for name in settings.names if name not in names)

    def backbones(rival: str) -> str:
        here = results.where(part="backbone")
        each = {
            name: here.value("ntag_ms", name=name, policy="exchange")
            / here.value("ntag_ms", name=name, policy=rival)
            - 1
            for name in names
        }
        missing = f"; not at hand: {absent} (set {VARIABLE})" if absent else ""
        return f"""[ours] On no backbone does exchange gain less than {POLICIES[rival].label}.
            - least gain over {POLICIES[rival].label}, less 1: {least(each, "")[0]} (at least 0 %)
            - {percents(each, "+.1f", "{} {}")}{missing}"""

    return claims(
        *(gains(rival) for rival in _RIVALS),
        *(goal(case, ms) for case, ms in _GOALS_MS.items() if case in cases),
        f"""[ours] Its gain does not decay where INFIDA's does, on Topology II at alpha 3.
            - change from slots {parts[min(1, len(parts) - 1)][0]} on to the last window:
              {last / early - 1} (at least -0.5 %)
            - {early:.2f} to {last:.2f} ms, in slots {parts[-1][0]} to {parts[-1][1]}""",
        f"""[ours] It moves few bytes.
            - largest part of INFIDA's bytes: {most(moved, "")[0]} (at most 5 %)
            - {percents(moved, ".1f", "{} {}")}""",
        *(backbones(rival) for rival in _RIVALS),
        f"""[ours] INFIDA on the real marginals of what is served settles as high, from alpha 2 on.
            - its least gain over exchange's in the last quarter, popularity fixed, less 1:
              {least(late, "")[0]} (at least -1 %)
            - {percents(late, "+.1f", "{} {}")}; it sees the whole network""",
        f"""[ours] It adapts slower.
            - its largest gain over exchange's, popularity sliding, less 1:
              {most(slides, "")[0] if slides else most(late, "")[0]} (at most 0 %)
            - {percents(slides, "+.1f", "{} {}")}""",
    )


STUDY = placement_study(
    name="exchange",
    source="ours",
    shows="Placement by the gain that is really served, beside INFIDA and OLAG.",
    scales=scales(
        ExchangeSettings(),
        smoke={
            **{"slots": 12, "trials": 1, "systems": ("II",), "alphas": (3.0,)},
            **{"long_slots": 40, "names": ("Abilene",), "backbone_slots": 8},
        },
        quick={"alphas": (1.0, 2.0, 3.0, 4.0, 6.0), "backbone_slots": 40},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "OLAG is its strong reading; INFIDA draws anew in each slot, as the paper's does. On real "
        "marginals (ours) its rounding is coupled.",
        "Backbones as in `real-topologies`, with requests for each task at a fifth of the nodes.",
    ),
)
