"""Every scheduler in the bursty and in the normal state ([Tan24], Table 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferway.experiments.curves import Drawing
from inferway.studies import Claim, Point, Results, Study, scales
from inferway.studies.scheduling import CODE
from inferway.studies.scheduling.burst import SERVICE_S
from inferway.studies.scheduling.look import LABELS, Dots, dots, half_width, written
from inferway.studies.scheduling.shipped import SEEDS
from inferway.studies.scheduling.table_2_claims import (
    OVERLOADED,
    SPLIT,
    TIES,
    all_claims,
    policy_of,
    printed,
    value,
)
from inferway.studies.scheduling.trial import learned_point, name_at, point

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
"""By workload; those on the periodic one that the paper has not printed are ours."""

_FAST_HW_S = 0.0333


@dataclass(frozen=True)
class Settings:
    """The paper's, with three seeds in place of one."""

    slots: int = 600_000
    trials: int = 3
    event_slots: int = 100_000
    """Of the runs that check slotted sites against the event-driven engine."""
    rows: dict[str, tuple[str, ...]] | None = None
    """Other rows than `ROWS`, by workload."""

    @property
    def chosen(self) -> dict[str, tuple[str, ...]]:
        """Rows by workload."""
        return ROWS if self.rows is None else self.rows


def points(settings: Settings) -> list[Point]:
    """All rows, and what explains those that do not reconcile."""
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
        run = ("map", settings.slots, trial)
        few = ("map", settings.event_slots, trial)
        made += [
            _row(row, workload, settings.slots, trial)
            for workload, rows in settings.chosen.items()
            for row in rows
        ]
        made += [
            point(label, *run, policy=policy, **more)
            for label, (policy, more) in explaining.items()
        ]
        made += [
            point(f"hand, {world}", *few, policy="hand", **more) for world, more in worlds.items()
        ]
        if learned:
            made += [
                learned_point(f"rl-po, {world}", "rl-po", *few, trained="rl-po", **more)
                for world, more in worlds.items()
            ]
    return made


def _row(row: str, workload: str, slots: int, trial: int) -> Point:
    policy = policy_of(row)
    if not policy.startswith("rl-"):
        return point(row, workload, slots, trial)
    trained = name_at(row, workload)
    return learned_point(row, policy, workload, slots, trial, trained=trained)


def figure(settings: Settings, results: Results) -> Drawing:
    """Goodput by row and state, measured and printed; below it the periodic workload."""
    places = [(workload, row) for workload, rows in settings.chosen.items() for row in rows]
    shown = [
        Dots(
            title,
            [100 * value(results, column, *place) for place in places],
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
    names = [
        LABELS[row] + (", periodic" if workload == "periodic" else "") for workload, row in places
    ]
    return dots(names, shown, title="Schedulers under bursts, deadline 300 ms ([Tan24], Table 2)")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Rows, sentences of Sec. 5.2.1 and 5.2.3, what does not reconcile, and ours."""
    return all_claims(settings.chosen, results)


def table(results: Results, workload: str, rows: Sequence[str]) -> list[list[str]]:
    """Rows of the table as text, in percent with 95 % intervals; last the printed goodput."""
    columns = (
        *("goodput", "rate", "violations", "goodput_bursty", "violations_bursty"),
        *("rejected_bursty", "late_bursty", "heavy_bursty", "scheduled_bursty"),
        *("goodput_normal", "violations_normal"),
        "heavy_normal",
    )
    found = []
    for row in rows:
        here = results.where(workload=workload, row=row)
        cells = [
            f"{here.measure(column).mean:.2f}" if column == "rate" else written(here, column)
            for column in columns
        ]
        said = printed(workload, row, "goodput")
        last = "-" if math.isnan(said) else f"{100 * said:.2f}"
        found.append([LABELS[row], *cells, last])
    return found


STUDY = Study(
    name="table-2",
    source="[Tan24], Table 2",
    shows="Goodput, violations and use of the accurate model of every scheduler, bursty and "
    "normal, on the Markovian and the periodic workload.",
    scales=scales(Settings(), smoke={"slots": 20_000, "trials": 1, "event_slots": 5_000}),
    points=points,
    figure=figure,
    claims=claims,
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
