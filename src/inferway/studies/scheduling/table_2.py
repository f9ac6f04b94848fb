"""Every scheduler in the bursty and in the normal state ([Tan24], Table 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from inferway.experiments.curves import Drawing
from inferway.studies import Claim, Point, Results, Study, claims, scales
from inferway.studies.scheduling import CODE
from inferway.studies.scheduling.burst import LEAVING_PER_S, RATE_PER_S, SERVICE_S
from inferway.studies.scheduling.look import LABELS, Dots, dots, half_width, written
from inferway.studies.scheduling.train import SEEDS
from inferway.studies.scheduling.trial import point

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


# In the table's order; ``rate`` in requests per second.
COLUMNS = (
    *("goodput", "rate", "violations"),
    *("goodput_bursty", "violations_bursty", "rejected_bursty", "late_bursty", "heavy_bursty"),
    *("goodput_normal", "violations_normal", "rejected_normal", "late_normal", "heavy_normal"),
)

_ROWS = {
    ("map", "lw"): "77.69 14.72 0     77.69 0     0     0     -     77.69 0     0 0     -",
    ("map", "hw"): "41.43 7.851 49.95 0.089 99.89 48.11 51.78 -     82.78 0.007 0 0.007 -",
    ("map", "hw-e"): "69.05 13.08 16.61 55.31 33.19 33.19 0     -     82.78 0     0 0     -",
    ("map", "rl-po"): "79.24 15.01 1.447 75.85 2.891 1.499 1.393 12.78 82.62 0.003 0 0.003 96.25",
    ("map", "rl-fo"): "80.14 15.18 0.366 77.64 0.732 0.293 0.439 10.66 82.62 0     0 0     97.25",
    ("map", "rl-po-b"): "79.49 15.05 0.884 76.56 1.594 1.499 1.393 3.664 82.43 0.174 0 0.174 93.14",
    ("map", "rl-fo-b"): "80.18 15.19 0.079 77.82 0.161 0.064 0.096 5.099 82.54 0     0 0     93.69",
    ("map", "sq"): "79.59 15.08 0     78.86 0     0     0     22.85 80.37 0     0 0     52.65",
    ("map", "sa"): "80.39 15.23 0.499 78.01 0.998 0.102 0.895 19.99 82.78 0     0 0     99.99",
    ("map", "infaas"): "78.22 14.82 1.695 76.12 3.389 0.001 3.388 24.22 80.35 0     0 0     52.18",
    ("periodic", "lw"): "77.69 14.72 0     77.69 0     0     0     -     77.69 0     0 0     -",
    ("periodic", "hw"): "41.45 7.854 49.93 0.125 99.85 48.14 51.71 -     82.77 0.011 0 0.011 -",
    ("periodic", "hw-e"): "69.05 13.08 16.59 55.32 33.17 33.17 0     -     82.78 0     0 0     -",
    ("periodic", "rl-po"): "79.23 15.01 1.553 75.75 3.103 2.246 .857 12.11 82.72 .003 0 .003 98.78",
    ("periodic", "rl-fo"): "80.27 15.21 0.329 77.76 0.651 0.563 .008 11.63 82.77 .008 0 .008 99.93",
}


# By workload and row, as ratios.
PRINTED = {
    place: {
        name: float(cell.replace("-", "nan")) / (1 if name == "rate" else 100)
        for name, cell in zip(COLUMNS, text.split(), strict=True)
    }
    for place, text in _ROWS.items()
}
TIES = ("light", "coin", "pair")  # of `tied`, besides those that `sq` has
# Thresholds of InFaaS besides its default, as shares of the deadline.
OVERLOADED = (0.25, 0.4, 0.75, 1.0)
# What SA sends to the heavy servers as printed, bursty and normal.
SPLIT = (PRINTED["map", "sa"]["heavy_bursty"], PRINTED["map", "sa"]["heavy_normal"])
_BASELINES = ("lw", "hw", "hw-e", "sq", "sa", "infaas")
_CLOSE = 0.003  # how near to a printed ratio a baseline's comes where it reproduces

_POINTS = "points of 100"  # written with four digits, where percent have three

Rows = Mapping[str, Sequence[str]]  # by workload


# Of Sec. 5.2.1: a sentence; what is measured; of which rows, one less the other, and its limit.
_SENTENCES = """\
Without the workload's state, RL-PO meets the P98 requirement.
its overall violation ratio
violations rl-po | at most 2 %
In the normal state RL-PO sends more than 96 % to the heavy model.
heavy share
heavy_normal rl-po | at least 96 %
In the bursty state RL-PO has less than 3 % violations.
violation ratio
violations_bursty rl-po | at most 3 %
RL-PO is more than 1.5 points above LW, the best conventional approach.
goodput less LW's
goodput rl-po, goodput lw | at least 1.5 %
With the workload's state (RL-FO) there are less than 0.4 % violations.
violation ratio
violations rl-fo | at most 0.4 %
Seeing the workload's state improves goodput, mostly in the bursty state.
RL-FO's bursty goodput less RL-PO's
goodput_bursty rl-fo, goodput_bursty rl-po | at least 0.5 %
RL-PO is about 1.1 points above InFaaS, with fewer violations.
goodput less that of InFaaS
goodput rl-po, goodput infaas | at least 0.8 %
RL-PO sends no more than 15 % of the bursty requests to the heavy model.
heavy share, as the paper counts it: with those that heavy servers turn away
scheduled_bursty rl-po | at most 15 %
Batching lowers RL-PO's violations.
RL-PO's violation ratio less RL-PO-B's
violations rl-po, violations rl-po-b | at least 0 %
"""


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
            prefix = "periodic-" if workload == "periodic" else ""
            for row in rows:
                policy, at = policy_of(row), (workload, settings.slots, trial)
                trained = f"{prefix}{row}" if policy.startswith("rl-") else ""
                made.append(point(row, *at, policy=policy, trained=trained))
        for label, (policy, more) in explaining.items():
            made.append(point(label, *run, policy=policy, **more))
        for policy in ("hand", "rl-po") if "rl-po" in settings.chosen["map"] else ("hand",):
            trained = policy if policy == "rl-po" else ""
            for world, more in worlds.items():
                label = f"{policy}, {world}"
                made.append(point(label, *few, policy=policy, trained=trained, **more))
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


class Table(Results):
    """Rows of the table as measured."""

    def of(self, column: str, row: str, workload: str = "map") -> float:
        """Mean over the trials."""
        return self.measure(column, workload=workload, row=row).mean

    def said(self, column: str, row: str) -> str:
        """On the MAP, in percent with its interval."""
        return written(self, column, workload="map", row=row)

    def beside(self, workload: str, row: str) -> str:
        """Both states of a row, and what is printed of them."""
        here = self.where(workload=workload, row=row)
        states = ("bursty", "normal")
        said = "; ".join(
            f"{state} {written(here, f'goodput_{state}')} % with {written(here, f'heavy_{state}')} "
            f"% heavy and {100 * here.measure(f'violations_{state}').mean:.3f} % violations"
            for state in states
        )
        there = [f"{100 * printed(workload, row, f'goodput_{state}'):g}" for state in states]
        return f"{said}; printed {' and '.join(there)} %"


def printed(workload: str, row: str, column: str) -> float:
    """Figures of Table 2 for a row; NaN for nothing."""
    name = {"sq-uniform": "sq"}.get(row, policy_of(row))
    return PRINTED.get((workload, name), {}).get(column, math.nan)


def policy_of(row: str) -> str:
    """Name the policy of a row, whichever settings and seed trained it."""
    return row.removeprefix("paper-").partition("-seed-")[0]


def _claims(settings: Settings, results: Results) -> list[Claim]:
    rows, table = settings.chosen, Table(results.rows)
    parts = _rows(rows, table), _sentences(rows, table), _not_reconciled(table), _ours(rows, table)
    return claims(*(text for part in parts for text in part))


def _near(printed_ratio: float) -> str:
    low, high = 100 * (printed_ratio - _CLOSE), 100 * (printed_ratio + _CLOSE)
    return f"{low!r} to {high!r} {_POINTS}"


def _rows(rows: Rows, table: Table) -> list[str]:
    made: dict[bool, list[str]] = {False: [], True: []}  # by whether they are learned
    for workload, row in ((workload, row) for workload, there in rows.items() for row in there):
        said, late = (printed(workload, row, one) for one in ("goodput", "violations"))
        is_learned = policy_of(row).startswith("rl-")
        if math.isnan(said) or (not is_learned and row not in _BASELINES):
            continue
        name = LABELS[row] + (", periodic workload" if workload == "periodic" else "")
        limit = f"at least {100 * said!r} {_POINTS}" if is_learned else _near(said)
        made[is_learned].append(f"""
            [Table 2] {name}: {100 * said:g} % overall goodput.
            - goodput: {100 * table.of("goodput", row, workload)!r} ({limit})
            - {table.beside(workload, row)}
            """)
        if is_learned:
            # As many digits as the table has.
            top = round(late + 0.00005, 4)
            made[True].append(f"""
                {name}: no more than {100 * top:g} % violations.
                - violation ratio: {table.of("violations", row, workload)!r}
                  (at most {100 * top:.6g} %)
                - printed {100 * late:g} %
                """)
    return made[False] + made[True]


def _sentences(rows: Rows, table: Table) -> list[str]:
    there = rows["map"]
    if "rl-po" not in there or "rl-fo" not in there:
        return []
    made, lines = [], _SENTENCES.splitlines()
    for says, measure, limited in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        if "rl-po-b" not in limited or "rl-po-b" in there:
            places, limit = limited.split(" | ")
            value, *less = (table.of(*place.split()) for place in places.split(", "))
            made.append(f"[Sec. 5.2.1] {says}\n- {measure}: {value - sum(less)!r} ({limit})")
    if "rl-fo" in rows.get("periodic", ()):
        better = table.of("goodput", "rl-fo", "periodic") - table.of("goodput", "rl-fo")
        made.append(f"""
            [Sec. 5.2.3] RL-FO is slightly better on the periodic workload, which can be foreseen.
            - its goodput there less that on the MAP: {better!r} (at least 0 %)
            """)
    return made


def _not_reconciled(table: Table) -> list[str]:
    def percent(column: str, row: str) -> str:
        return f"{100 * table.of(column, row):.2f} %"

    def of(column: str, row: str) -> float:
        return PRINTED["map", row][column]

    heavy = partial(table.of, "heavy_normal")
    ties = {"heavy first": heavy("sq"), "any idle": heavy("sq-uniform")}
    ties |= {rule: heavy(f"sq, {rule}") for rule in TIES}
    infaas = {
        share: (heavy(row), table.of("violations_bursty", row))
        for share, row in (*((one, f"infaas, {one:g}") for one in OVERLOADED), (0.5, "infaas"))
    }
    nearest = min(ties.values(), key=lambda one: abs(one - of("heavy_normal", "sq")))
    near_infaas, _ = min(
        infaas.values(), key=lambda one: abs(one[0] - of("heavy_normal", "infaas"))
    )
    summed = of("rejected_bursty", "rl-po-b") + of("late_bursty", "rl-po-b")
    # Of eq. 12, by the rate of leaving the bursty state, 1/s.
    back = LEAVING_PER_S[1]
    rates = {
        leaving: (back * RATE_PER_S[0] + leaving * RATE_PER_S[1]) / (back + leaving)
        for leaving in (LEAVING_PER_S[0], 0.036)
    }
    printed_rate = of("rate", "lw") / of("goodput", "lw")
    split = "sa, printed split"
    by_share = (f"{one:g}: {100 * a:.2f} and {100 * b:.2f} %" for one, (a, b) in infaas.items())
    return [
        f"""
        [Table 2] HW-E has 33.19 % violations in the bursty state.
        - violation ratio: {table.of("violations_bursty", "hw-e")!r} (32.89 to 33.49 %)
        - four servers of 42.9 ms serve 93.2 of 180 requests per second, and the row of HW, 48.11 %
          rejected, needs these ({percent("rejected_bursty", "hw")} measured); 33.19 % needs 33.3 ms
          ({percent("violations_bursty", "hw-e, 33.3 ms")} measured)

        SQ's heavy share in the normal state is 52.65 %, with ties broken by some rule.
        - the nearest of five rules: {nearest!r} (51.65 to 53.65 %)
        - {", ".join(f"{rule} {100 * share:.2f} %" for rule, share in ties.items())}; with any idle
          server the light ones get {100 * (1 - ties["any idle"]):.2f} %, and the bursty column is
          that of this rule, {percent("heavy_bursty", "sq-uniform")} heavy against 22.85 % printed

        RL-PO-B's rejected and delayed requests in the bursty state sum to its violations.
        - printed sum less printed violations:
          {summed - of("violations_bursty", "rl-po-b")!r} (-0.01 to 0.01 %)
        - both cells are those of RL-PO, {100 * of("rejected_bursty", "rl-po"):.3f} % and
          {100 * of("late_bursty", "rl-po"):.3f} %

        [eq. 12] The printed D0 is that of the evaluation.
        - mean rate with it over that of Table 2: {rates[0.036] / printed_rate!r} (0.99 to 1.01)
        - bursts would last 27.8 s, 180 times less than the normal state, not 18 times; with 0.0036
          in place of 0.036 the rate is {rates[LEAVING_PER_S[0]]:.2f}/s, with 0.036
          {rates[0.036]:.2f}/s, in Table 2 {printed_rate:.2f}/s; the second row of the printed
          matrices sums to -0.0018, not to 0

        [Table 2] InFaaS sends 52.18 % to the heavy model in the normal state.
        - heavy share with the nearest of five thresholds: {near_infaas!r} (51.18 to 53.18 %)
        - servers that are not overloaded are alike, so that four that hardly ever are get half
          each; overloaded from these shares of the deadline on, normal heavy share and bursty
          violations: {", ".join(by_share)}; printed 3.39 % violations

        [Sec. 5.2.1] SA has about 0.5 % violations.
        - violation ratio: {table.of("violations", "sa")!r} (0.3 to 0.7 %)
        - the program of Appendix F is not in the text; with at most 1 % late requests in a state in
          place of 2 % it has {table.said("violations", "sa, 1 %")} % and
          {percent("goodput", "sa, 1 %")} goodput, with 2 % {percent("goodput", "sa")}; printed
          80.39 %

        [Table 2] With the split that it prints, {100 * SPLIT[0]:.2f} % heavy in the bursty state,
        SA has the goodput that it prints.
        - goodput: {100 * table.of("goodput", split)!r} ({_near(of("goodput", "sa"))})
        - violations {table.said("violations", split)} %, printed 0.499 %; bursty goodput
          {table.said("goodput_bursty", split)} %, printed {100 * of("goodput_bursty", "sa"):g} %
        """
    ]


def _ours(rows: Rows, table: Table) -> list[str]:
    of = table.of
    others = {row: of("goodput", row) for row in rows["map"] if row not in ("deadline", "sq")}
    best = max(others, key=lambda row: others[row], default="lw")
    literal, own = of("goodput", "sq"), of("goodput", "deadline")
    most = max(row["goodput"] for row in PRINTED.values())
    made = [
        f"""
        [ours] `deadline` is above every other row.
        - goodput less that of the best other: {own - max([literal, *others.values()])!r}
          (at least 0 %)
        - {100 * own:.2f} %, violations {100 * of("violations", "deadline"):.4f} %; SQ, heavy first,
          {100 * literal:.2f} %; {LABELS[best]} {100 * others.get(best, math.nan):.2f} %

        SQ as its sentence says (heavy first) is above every row that the paper prints.
        - goodput less the greatest printed: {literal - most!r} (at least 0 %)
        - {100 * literal:.2f} % against {100 * most:.2f} %

        One comparison in what RL-PO observes, the hand rule, reaches RL-PO's printed row.
        - goodput of the hand rule: {100 * of("goodput", "hand")!r}
          (at least {100 * PRINTED["map", "rl-po"]["goodput"]!r} {_POINTS})
        - {table.beside("map", "hand").partition("; printed")[0]}
        """
    ]
    for row in (row for row in ("hand", "rl-po") if row in rows["map"]):
        slotted, at_once = (of("goodput", f"{row}, {world}") for world in ("events", "rejection"))
        gaps = {
            column: of(column, f"{row}, events") - of(column, row)
            for column in ("goodput_bursty", "violations_bursty", "heavy_normal")
        }
        worst = max(gaps, key=lambda column: abs(gaps[column]))
        made.append(f"""
            [Sec. 6.2] {LABELS[row]}: deciding also after a rejection is possible, and helps.
            - goodput less that of deciding in slots alone: {at_once - slotted!r} (at least 0 %)
            - {100 * at_once:.2f} % with {table.said("violations", f"{row}, rejection")} %
              violations against {100 * slotted:.2f} % with
              {table.said("violations", f"{row}, events")} %, both on the event-driven engine

            [ours] Slotted sites and the event-driven engine agree on {LABELS[row]}.
            - largest difference of three ratios ({worst}): {abs(gaps[worst])!r} (at most 0.4 %)
            - {", ".join(f"{column} {100 * gap:+.3f}" for column, gap in gaps.items())}
            """)
    return made


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
