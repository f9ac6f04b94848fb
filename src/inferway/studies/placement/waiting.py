"""What waiting takes of the gain of placement, and what prices of waiting give back (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from inferway.deployment import Deployment, load
from inferway.experiments.claim import percents
from inferway.experiments.curves import Drawing, Look, Panel, panels
from inferway.experiments.results import least
from inferway.network.layout import deployed
from inferway.placement.contract import expected_batches
from inferway.placement.exact import relaxation
from inferway.studies import Claim, Point, Results, Study, claims, scales
from inferway.studies.placement.trial import CODE, SYSTEMS, Settings
from inferway.twin.network.events import simulate_events
from inferway.twin.slots import simulate_slots

# 1 / (1 - rho) of servers that are busy three fifths of the time.
_WAIT_PRICE = 2.5


class Way(NamedTuple):
    """What decides about copies and requests."""

    look: Look
    policy: str
    waiting: bool = False
    wait_price: float = 1.0
    delays: str = "file"


WAYS = {
    "infida": Way(Look("INFIDA", 0, "-"), "infida"),
    "plain": Way(Look("exchange", 5, "-"), "exchange"),
    "copies": Way(Look("exchange, copies priced", 1, "--"), "exchange", waiting=True),
    "both": Way(
        Look("exchange, copies and requests priced", 2, "-"), "exchange", True, _WAIT_PRICE
    ),
    "measured": Way(
        Look("exchange, prices as waits are measured", 3, "-"),
        "exchange",
        True,
        _WAIT_PRICE,
        "measured",
    ),
    "sojourns": Way(
        Look("exchange, measured sojourns as delays", 4, "--"), "exchange", delays="sojourns"
    ),
}
# What is run in the case of goals alone.
_GOAL_ONLY = ("infida", "sojourns")


@dataclass(frozen=True)
class WaitingSettings(Settings):
    """Topology II at several rates, where memory is short, and Topology I; slots of 20 s."""

    system: str = "II"
    rates_per_s: tuple[float, ...] = (1000.0, 4000.0, 7500.0)
    # System, rate and alpha of what is run beside it.
    others: tuple[tuple[str, float, float], ...] = (("II", 7500.0, 3.0), ("I", 7500.0, 1.0))
    slots: int = 30
    warm: int = 10  # Slots that are for learning
    slot_s: float = 20.0
    trials: int = 5

    @property
    def cases(self) -> list[tuple[str, float, float]]:
        """System, rate and alpha of all; the last rate of the first system is the one of goals."""
        return [*((self.system, rate, self.alpha) for rate in self.rates_per_s), *self.others]

    @property
    def goal(self) -> tuple[str, float, float]:
        """System, rate and alpha where waiting is looked into."""
        return self.system, self.rates_per_s[-1], self.alpha


def written(
    system: str, *, alpha: float, rate_per_s: float, slot_s: float, way: str, seed: int
) -> Deployment:
    """Write down a deployment of one of the papers' networks, under fixed popularity."""
    one = WAYS[way]
    tree = []
    for level in SYSTEMS[system]:
        entry: dict[str, Any] = {"tier": level.name.replace(" ", "-"), "nodes": level.nodes}
        entry |= {"hardware": level.hardware}
        if level.repository:
            entry |= {"repository": True}
        else:
            entry |= {"rtt": f"{level.rtt_s} s", "budget": f"{level.budget:.0f} B"}
        tree.append(entry)
    placement: dict[str, Any] = {"policy": one.policy, "slot": f"{slot_s} s"}
    if one.waiting:
        placement |= {"waiting": True}
    if one.delays != "file":
        placement |= {"delays": one.delays}
    return load(
        {
            "tasks": {
                "detection": {"catalog": {"name": "paper/yolov4"}, "count": 20, "max_instances": 3}
            },
            "network": {"tree": tree},
            "cost": {"alpha": alpha},
            "placement": placement,
            "dispatch": {"policy": "least-cost", "wait_price": one.wait_price},
            "seed": seed,
            "workload": {
                "detection": {
                    "arrivals": {"process": "constant", "rate": f"{rate_per_s}/s"},
                    "popularity": {"zipf": 1.2},
                    "entries": {"tier": "base", "per_task": 2},
                }
            },
        }
    )


def rehearsed(
    system: str,
    alpha: float,
    rate_per_s: float,
    way: str,
    slots: int,
    warm: int,
    slot_s: float,
    seed: int,
) -> dict[str, Any]:
    """Run a network by events and by slots, with models that move at once.

    Gains are in ms per request, of the slots after the first `warm`: by events, by slots under the
    same policy, and the most that any allocation and any dispatch gains, by the LP over paths.
    """
    deployment = written(
        system, alpha=alpha, rate_per_s=rate_per_s, slot_s=slot_s, way=way, seed=seed
    )
    by_events = simulate_events(deployment, slots=slots, fetch_rate=1e15, start_s=0.0)
    by_slots = simulate_slots(deployment, slots=slots)
    network, demand = deployed(deployment)
    mean = expected_batches(demand, 1)
    counted = slice(warm, None)
    return {
        "events_ms": float(by_events.gain[counted].sum() / by_events.requests[counted].sum()),
        "slots_ms": float(by_slots.gain[counted].sum() / by_slots.requests[counted].sum()),
        "bound_ms": relaxation(network, mean) / float(mean.sum()),
        "p99_ms": 1e3 * by_events.p99_s,
        "moved_mib": float(by_events.moved[counted].mean()) / 2**20,
        "lost": by_events.lost,
    }


def _points(settings: WaitingSettings) -> list[Point]:
    made = []
    for trial in range(settings.trials):
        for case in settings.cases:
            system, rate_per_s, alpha = case
            of = {"system": system, "rate_per_s": rate_per_s, "alpha": alpha}
            for way in WAYS:
                if way in _GOAL_ONLY and case != settings.goal:
                    continue
                arguments = {**of, "way": way, **settings.given("slots", "warm", "slot_s")}
                cost = 1.0 + settings.slots * settings.slot_s * rate_per_s / 100_000
                label = {**of, "way": way, "trial": trial}
                made.append(Point(label, rehearsed, {**arguments, "seed": trial + 1}, cost))
    return made


def _figure(settings: WaitingSettings, results: Results) -> Drawing:
    here = results.where(system=settings.system, alpha=settings.alpha)
    rates = settings.rates_per_s
    drawn = [
        WAYS[way].look.line(here.where(way=way), "events_ms", rate_per_s=rates)
        for way in ("plain", "copies", "both", "measured")
    ]
    plain = here.where(way="plain")
    drawn.append(Look("exchange, by slots", 5, ":").line(plain, "slots_ms", rate_per_s=rates))
    drawn.append(Look("bound", -1, "--").line(plain, "bound_ms", rate_per_s=rates))
    title = f"Topology {settings.system}, alpha {settings.alpha:g}"
    return panels([Panel(title, "requests per second", "gain, ms", drawn)], columns=1)


def _claims(settings: WaitingSettings, results: Results) -> list[Claim]:
    def of(case: tuple[str, float, float], way: str, column: str = "events_ms") -> float:
        system, rate_per_s, alpha = case
        label = {"system": system, "rate_per_s": rate_per_s, "alpha": alpha, "way": way}
        return results.value(column, **label)

    goal = settings.goal
    elsewhere = [case for case in settings.cases if case != goal]
    slots, plain, bound = (
        of(goal, "plain", column) for column in ("slots_ms", "events_ms", "bound_ms")
    )

    def name(case: tuple[str, float, float]) -> str:
        return f"{case[0]} {case[1]:g}/s alpha {case[2]:g}"

    def over(way: str, column: str = "events_ms") -> dict[str, float]:
        return {
            name(case): of(case, way, column) / of(case, "plain", column) - 1 for case in elsewhere
        }

    def back(way: str) -> float:
        return (of(goal, way) - plain) / (slots - plain)

    infida = of(goal, "infida"), of(goal, "infida", "slots_ms")
    moved = ", ".join(f"{WAYS[w].look.label} {of(goal, w, 'moved_mib'):,.0f}" for w in WAYS)
    made = [
        f"""[ours] On Topology II at 7,500/s waiting takes a quarter of INFIDA's gain.
            - part of its gain by slots that it lacks by events:
              {1 - infida[0] / infida[1]} (at least 20 %)
            - {infida[1]:.2f} ms by slots, {infida[0]:.2f} ms by events; exchange {slots:.2f} and
              {plain:.2f} ms""",
        f"""[ours] Prices of copies and of requests give back half of what waiting takes of
            exchange's.
            - part of the loss: {back("both")} (at least 50 %)
            - {of(goal, "both"):.2f} ms by events; bound {bound:.2f} ms; p99
              {of(goal, "plain", "p99_ms"):.0f} and {of(goal, "both", "p99_ms"):.0f} ms""",
        f"""[ours] Copies alone, with requests sent as before, give some of it back.
            - part of the loss: {back("copies")} (at least 0 %)
            - {of(goal, "copies"):.2f} ms by events; MiB fetched a slot: {moved}""",
        f"""[ours] With prices the gain comes near what no allocation and no dispatch exceeds.
            - its part of the bound: {of(goal, "both") / bound} (at least 95 %)
            - the LP over paths counts no waits; without prices {100 * plain / bound:.1f} %""",
        f"""[ours] With prices that follow the waits that nodes measure, half of it is given back.
            - part of the loss: {back("measured")} (at least 50 %)
            - {of(goal, "measured"):.2f} ms by events""",
        f"""[ours] Measured sojourns, waits included, as eq. 5's delays give none of it back.
            - part of the loss: {back("sojourns")} (at most 0 %)
            - {of(goal, "sojourns"):.2f} ms by events""",
    ]
    if elsewhere:
        each = over("both", "slots_ms")
        made.append(
            f"""[ours] By slots, where nothing waits, copies that are bought against waits cost
                next to nothing.
                - least gain over exchange without prices, less 1:
                  {least(each, "")[0]} (at least -0.5 %)
                - {percents(each, "+.2f", "{} {}")}"""
        )
    for way in ("copies", "both", "measured") if elsewhere else ():
        each = over(way)
        made.append(
            f"""[ours] Elsewhere {WAYS[way].look.label.replace("exchange, ", "")} loses next to
                nothing.
                - least gain over exchange without prices, less 1:
                  {least(each, "")[0]} (at least -0.5 %)
                - {percents(each, "+.2f", "{} {}")}"""
        )
    return claims(*made)


STUDY = Study(
    name="waiting",
    source="ours",
    shows="What waiting takes of the gain of placement, and what prices of waiting give back.",
    scales=scales(
        WaitingSettings(),
        smoke={"slots": 3, "warm": 1, "trials": 1, "rates_per_s": (400.0,), "others": ()},
        quick={"slots": 5, "warm": 3, "trials": 3},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "Slots last 20 s and popularity stays; models move at once, so that only queues differ.",
        "A gain by events counts from what repositories alone cost without waits.",
    ),
    code=(*CODE, "dispatch", "deployment", "twin"),
)
