"""Every scheduler in the bursty and in the normal state ([Tan24], Table 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferway.experiments.curves import Drawing
from inferway.studies import Claim, Point, Results, Study, scales
from inferway.studies.scheduling import CODE
from inferway.studies.scheduling.burst import SERVICE_S
from inferway.studies.scheduling.look import LABELS, Dots, dots, half_width
from inferway.studies.scheduling.shipped import SEEDS
from inferway.studies.scheduling.table_2_claims import (
    OVERLOADED,
    SPLIT,
    TIES,
    Table,
    claims_of,
    policy_of,
    printed,
)
from inferway.studies.scheduling.trial import learned_point, point

# By workload; those on the periodic one that the paper has not printed are ours.
ROWS = {
    "map": (
        *("lw", "hw", "hw-e", *SEEDS, "rl-fo", "rl-po-b", "rl-fo-b"),
        *("paper-rl-po", "paper-rl-fo"),
        *("sq", "sq-uniform", "sa", "infaas", "hand", "deadline"),
    ),
    "periodic": (
        *("lw", "hw", "hw-e", "rl-po", "rl-fo"),
        *("sq", "sq-uniform", "sa", "infaas", "hand", "deadline"),
    ),
}

_FAST_HW_S = 0.0333


@dataclass(frozen=True)
class Settings:
    """The paper's, with three seeds in place of one."""

    slots: int = 600_000
    trials: int = 3
    # Of the runs that check slotted sites against the event-driven engine.
    event_slots: int = 100_000
    rows: dict[str, tuple[str, ...]] | None = None  # other rows than `ROWS`, by workload

    @property
    def chosen(self) -> dict[str, tuple[str, ...]]:
        """Rows by workload."""
        return ROWS if self.rows is None else self.rows


def _points(settings: Settings) -> list[Point]:
    learned = "rl-po" in settings.chosen["map"]
    # By label: the policy, and what differs.
    explaining: dict[str, tuple[str, dict[str, Any]]] = {
        "hw-e, 33.3 ms": ("hw-e", {"service_s": [SERVICE_S[0], _FAST_HW_S]}),
        "sa, 1 %": ("sa", {"options": {"violations": 0.01}}),
        "sa, printed split": ("split", {"options": {"shares": list(SPLIT)}}),
        **{f"sq, {rule}": ("sq-tied", {"options": {"rule": rule}}) for rule in TIES},
        **{
            f"infaas, {share:g}": ("infaas", {"options": {"overloaded": share}})
            for share in OVERLOADED
        },
    }
    worlds: dict[str, dict[str, Any]] = {
        "events": {"events": True},
        "rejection": {"events": True, "options": {"event": "rejection"}},
    }
    made = []
    for trial in range(settings.trials):
        run, few = ("map", settings.slots, trial), ("map", settings.event_slots, trial)
        for workload, rows in settings.chosen.items():
            for row in rows:
                policy, at = policy_of(row), (workload, settings.slots, trial)
                if policy.startswith("rl-"):
                    trained = f"periodic-{row}" if workload == "periodic" else row
                    made.append(learned_point(row, policy, *at, trained=trained))
                else:
                    made.append(point(row, *at))
        for label, (policy, more) in explaining.items():
            made.append(point(label, *run, policy=policy, **more))
        for world, more in worlds.items():
            made.append(point(f"hand, {world}", *few, policy="hand", **more))
        if learned:
            for world, more in worlds.items():
                label = f"rl-po, {world}"
                made.append(learned_point(label, "rl-po", *few, trained="rl-po", **more))
    return made


def _figure(settings: Settings, results: Results) -> Drawing:
    places = [(workload, row) for workload, rows in settings.chosen.items() for row in rows]
    measured = Table(results.rows)
    shown = [
        Dots(
            title,
            [100 * measured.of(column, row, at) for at, row in places],
            [100 * half_width(results, column, workload=at, row=row) for at, row in places],
            [100 * printed(*place, column) for place in places],
        )
        for title, column in (
            ("goodput, overall, %", "goodput"),
            ("goodput, bursty, %", "goodput_bursty"),
            ("violations, bursty, %", "violations_bursty"),
            ("heavy share, normal, %", "heavy_normal"),
        )
    ]
    names = [LABELS[row] + (", periodic" if at == "periodic" else "") for at, row in places]
    return dots(names, shown, title="Schedulers under bursts, deadline 300 ms ([Tan24], Table 2)")


def _claims(settings: Settings, results: Results) -> list[Claim]:
    return claims_of(settings.chosen, results)


STUDY = Study(
    name="table-2",
    source="[Tan24], Table 2",
    shows="Goodput, violations and use of the accurate model of every scheduler, bursty and "
    "normal, on the Markovian and the periodic workload.",
    scales=scales(Settings(), smoke={"slots": 20_000, "trials": 1, "event_slots": 5_000}),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The bursty state is left at 0.0036 per second; service takes 42.9 and 10.7 ms, which the "
        "paper does not print; overall is the mean of the two states, as in its table.",
        "What decides in slots runs on 200 sites of 3,000 slots each, every one begun somewhere in "
        "the workload's long run, and 10 slots before these; the rest in one run of 600,000 s.",
        "The heavy share is that of the arrivals that heavy instances accepted; the paper's counts "
        "all that are scheduled to them, those that they turn away too: `scheduled`.",
        "InFaaS: a server is overloaded where serving what it has takes half of the deadline; the "
        "paper does not say when it is.",
        "The learned rows are policies of our training settings, the defaults of `inferway train` "
        "(another discount and trace, rewards scaled and symlog, a falling rate), trained for 25 "
        "million slots or fewer, but for the two rows that are named so: trained once with the "
        "paper's own settings and its 250 million slots. Each policy's file says for how many, "
        "and by which command.",
    ),
    code=(*CODE, "studies/scheduling/rules.py"),
)
