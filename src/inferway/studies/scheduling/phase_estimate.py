"""How much of the worth of the workload's state an optimal estimate recovers ([Tan24], Sec. 4)."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.experiments.curves import Curve, Drawing, Panel, panels
from inferway.studies import Claim, Point, Results, Study, claims, scales
from inferway.studies.scheduling import CODE
from inferway.studies.scheduling.filtered import CHANCES, LIKELIEST, SEEN, estimated
from inferway.studies.scheduling.look import half_width
from inferway.studies.scheduling.train import digest

_ROWS = {
    "RL-PO": ("rl-po", SEEN),
    "RL-FO, likeliest phase": ("rl-fo", LIKELIEST),
    "RL-FO, chances": ("rl-fo", CHANCES),
    "RL-FO": ("rl-fo", SEEN),
}


@dataclass(frozen=True)
class EstimateSettings:
    """The paper's site and workload."""

    rows: tuple[str, ...] = tuple(_ROWS)
    slots: int = 600_000
    trials: int = 3


def _points(settings: EstimateSettings) -> list[Point]:
    return [
        Point(
            {"row": row, "trial": trial},
            estimated,
            {
                **{"trained": trained, "file": digest(trained), "sees": sees},
                **{"slots": settings.slots, "seed": trial + 1},
            },
            1 + 8e-6 * settings.slots,
        )
        for row in settings.rows
        for trained, sees in [_ROWS[row]]
        for trial in range(settings.trials)
    ]


def _figure(settings: EstimateSettings, results: Results) -> Drawing:
    places = list(range(len(settings.rows)))
    shown = []
    for column, up in (
        ("goodput", "goodput, overall, %"),
        ("goodput_bursty", "goodput in bursts, %"),
        ("violations_bursty", "violations in bursts, %"),
    ):
        curves = [
            Curve(
                row,
                [place],
                [100 * results.measure(column, row=row).mean],
                [100 * half_width(results, column, row=row)],
                color=place,
                dash="",
            )
            for place, row in enumerate(settings.rows)
        ]
        shown.append(Panel("", "", up, curves, ticks_across=places))
    return panels(shown, columns=3, title="What a scheduler knows of the phase ([Tan24], Sec. 4)")


def _claims(settings: EstimateSettings, results: Results) -> list[Claim]:
    po, likeliest, chances, fo = (results.measure("goodput", row=row).mean for row in _ROWS)
    wrong = results.measure("wrong", row="RL-FO").mean
    missed = results.measure("wrong_bursty", row="RL-FO").mean
    told = ", ".join(
        f"{row} {100 * results.measure('goodput', row=row).mean:.2f} % with "
        f"{100 * results.measure('violations', row=row).mean:.2f} % violations"
        for row in settings.rows
    )
    return claims(f"""
      * [Sec. 4] It is meaningless to estimate the MAP's phase: it brings nothing.
        - goodput of RL-FO with the optimal estimate less RL-PO's: {likeliest - po} (at most 0 %)
        - {told}
      * [ours] For this workload the optimal estimate is accurate.
        - share of slots at whose beginning the likeliest phase is wrong: {wrong} (at most 1 %)
        - {100 * missed:.2f} % of the slots that begin in a burst
      * An optimal filter recovers most of what the state is worth.
        - goodput with the likeliest phase less RL-PO's, over RL-FO's less RL-PO's:
          {(likeliest - po) / (fo - po)} (at least 50 %)
        - with the chances in place of the likeliest phase
          {100 * (chances - po) / (fo - po):.1f} %
    """)


STUDY = Study(
    name="phase-estimate",
    source="after [Tan24], Sec. 4",
    shows="An optimal filter of the workload's phase from arrival times, and how much of the "
    "state's worth it recovers.",
    scales=scales(
        EstimateSettings(),
        smoke={"slots": 20_000, "trials": 1},
        quick={},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The filter knows the MAP's matrices and the exact arrival times, as the method that the "
        "paper names does. RL-FO was trained with the true phase and is not trained anew; it is "
        "evaluated without noise.",
    ),
    code=(*CODE, "studies/scheduling/filtered.py"),
)
