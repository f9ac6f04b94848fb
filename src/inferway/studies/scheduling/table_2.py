"""Every scheduler in the bursty and in the normal state ([Tan24], Table 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.scheduling import CODE
from inferway.studies.scheduling.burst import SERVICE_S
from inferway.studies.scheduling.look import LABELS, half_width, written
from inferway.studies.scheduling.shipped import SEEDS
from inferway.studies.scheduling.table_2_claims import (
    OVERLOADED,
    SPLIT,
    TIES,
    all_claims,
    printed,
    value,
)
from inferway.studies.scheduling.trial import learned_point, name_at, point

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = {
    "map": (
        *("lw", "hw", "hw-e", *SEEDS, "rl-fo", "rl-po-b", "rl-fo-b"),
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
    slots, found = settings.slots, []
    for trial in range(settings.trials):
        for workload, rows in settings.chosen.items():
            found += [_row(row, workload, slots, trial) for row in rows]
        found.append(
            point("hw-e, 33.3 ms", "map", slots, trial, policy="hw-e",
                  service_s=[SERVICE_S[0], _FAST_HW_S])
        )  # fmt: skip
        found.append(
            point("sa, 1 %", "map", slots, trial, policy="sa", options={"violations": 0.01})
        )
        found.append(
            point("sa, printed split", "map", slots, trial, policy="split",
                  options={"shares": list(SPLIT)})
        )  # fmt: skip
        found += [
            point(f"sq, {rule}", "map", slots, trial, policy="sq-tied", options={"rule": rule})
            for rule in TIES
        ]
        found += [
            point(f"infaas, {share:g}", "map", slots, trial, policy="infaas",
                  options={"overloaded": share})
            for share in OVERLOADED
        ]  # fmt: skip
        few = settings.event_slots
        rejection = {"event": "rejection"}
        found += [
            point("hand, events", "map", few, trial, policy="hand", events=True),
            point("hand, rejection", "map", few, trial, policy="hand", events=True,
                  options=rejection),
        ]  # fmt: skip
        if "rl-po" in settings.chosen["map"]:
            found += [
                learned_point("rl-po, events", "rl-po", "map", few, trial, trained="rl-po",
                              events=True),
                learned_point("rl-po, rejection", "rl-po", "map", few, trial, trained="rl-po",
                              events=True, options=rejection),
            ]  # fmt: skip
    return found


def _row(row: str, workload: str, slots: int, trial: int) -> Point:
    if not row.startswith("rl-"):
        return point(row, workload, slots, trial)
    policy = row.partition("-seed-")[0]
    trained = name_at(row, workload)
    return learned_point(row, policy, workload, slots, trial, trained=trained)


def figure(settings: Settings, results: Results) -> Figure:
    """Goodput by row and state, measured and printed; below it the periodic workload."""
    from inferway.studies.scheduling.look import Dots, dots

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


_PAPER = Settings()
STUDY = Study(
    name="table-2",
    source="[Tan24], Table 2",
    shows="Goodput, violations and use of the accurate model of every scheduler, bursty and "
    "normal, on the Markovian and the periodic workload.",
    scales={
        "smoke": replace(_PAPER, slots=20_000, trials=1, event_slots=5_000),
        "quick": _PAPER,
        "paper": _PAPER,
    },
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
        "million slots or fewer; each policy's file says for how many, and by which command. With "
        "the paper's own settings and its 250 million slots none has been trained.",
    ),
    code=(*CODE, "studies/scheduling/tied.py"),
)
