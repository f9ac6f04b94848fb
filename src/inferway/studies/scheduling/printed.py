"""Table 2 as measured, in Markdown: `python -m inferway.studies.scheduling.printed`.

`inferway study run table-2` computes the rows; this prints those that are stored, in percent with
95 % intervals over the evaluation seeds.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from inferway.experiments.study import stored
from inferway.studies import Results
from inferway.studies.scheduling import table_2
from inferway.studies.scheduling.look import LABELS, written
from inferway.studies.scheduling.table_2_claims import printed

COLUMNS = {
    "goodput": "goodput",
    "rate": "per second",
    "violations": "violations",
    "goodput_bursty": "bursty: goodput",
    "violations_bursty": "violations",
    "rejected_bursty": "rejected",
    "late_bursty": "late",
    "heavy_bursty": "heavy",
    "scheduled_bursty": "scheduled",
    "goodput_normal": "normal: goodput",
    "violations_normal": "violations",
    "heavy_normal": "heavy",
}
HEADINGS = ("row", *COLUMNS.values(), "printed goodput")


def markdown(scale: str, out: Path) -> str:
    """The table, a part for each workload.

    Raises
    ------
    ValueError
        Where nothing is stored.
    """
    results, missing = stored(table_2.STUDY, scale, out=out)
    if not len(results):
        raise ValueError(f"nothing of table-2 is stored in {out}: `inferway study run table-2`")
    lines = [f"{missing} of {missing + len(results)} runs are missing.", ""] if missing else []
    for workload, rows in table_2.STUDY.scales[scale].chosen.items():
        lines += ["| " + " | ".join((workload, *HEADINGS[1:])) + " |"]
        lines += ["|" + "---|" * len(HEADINGS)]
        lines += ["| " + " | ".join(_cells(results, workload, row)) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def _cells(results: Results, workload: str, row: str) -> list[str]:
    """A row as text, in percent with 95 % intervals; last the printed goodput."""
    here, said = results.where(workload=workload, row=row), printed(workload, row, "goodput")
    cells = [
        f"{here.measure(column).mean:.2f}" if column == "rate" else written(here, column)
        for column in COLUMNS
    ]
    return [LABELS[row], *cells, "-" if math.isnan(said) else f"{100 * said:.2f}"]


def main() -> None:
    """Print."""
    parser = argparse.ArgumentParser(
        prog="python -m inferway.studies.scheduling.printed",
        description="Table 2 as measured, in Markdown.",
    )
    parser.add_argument("--scale", default="quick", choices=("smoke", "quick", "paper"))
    parser.add_argument("--out", type=Path, default=Path("out/studies"))
    arguments = parser.parse_args()
    try:
        print(markdown(arguments.scale, arguments.out))
    except ValueError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
