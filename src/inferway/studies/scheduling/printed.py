"""Table 2 as measured, in Markdown: `python -m inferway.studies.scheduling.printed`.

`inferway study run table-2` computes the rows; this prints those that are stored, in percent with
95 % intervals over the evaluation seeds.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from inferway.experiments.study import stored
from inferway.studies.scheduling import table_2
from inferway.studies.scheduling.look import LABELS, written

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
    """The table, a part for each workload; ValueError where nothing is stored."""
    results, missing = stored(table_2.STUDY, scale, out=out)
    if not len(results):
        raise ValueError(f"nothing of table-2 is stored in {out}: `inferway study run table-2`")
    lines = [f"{missing} of {missing + len(results)} runs are missing.", ""] if missing else []
    for workload, rows in table_2.STUDY.scales[scale].chosen.items():
        lines += ["| " + " | ".join((workload, *HEADINGS[1:])) + " |"]
        lines += ["|" + "---|" * len(HEADINGS)]
        for row in rows:
            here = results.where(workload=workload, row=row)
            cells = {column: written(here, column) for column in COLUMNS}
            cells["rate"] = f"{here.measure('rate').mean:.2f}"
            said = table_2.printed(workload, row, "goodput")
            last = "-" if math.isnan(said) else f"{100 * said:.2f}"
            lines.append("| " + " | ".join([LABELS[row], *cells.values(), last]) + " |")
        lines.append("")
    return "\n".join(lines)


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
