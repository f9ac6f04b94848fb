"""Table 2 as measured, in Markdown: `python -m inferway.studies.scheduling.printed`.

`inferway study run table-2` computes the rows; this prints those that are stored, in percent with
95 % intervals over the evaluation seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

HEADINGS = (
    *("row", "goodput", "per second", "violations"),
    *("bursty: goodput", "violations", "rejected", "late", "heavy", "scheduled"),
    *("normal: goodput", "violations", "heavy", "printed goodput"),
)


def markdown(scale: str, out: Path) -> str:
    """The table, a part for each workload.

    Raises
    ------
    ValueError
        Where nothing is stored.
    """
    from inferway.experiments.study import stored
    from inferway.studies.scheduling.table_2 import STUDY, table

    results, missing = stored(STUDY, scale, out=out)
    if not len(results):
        raise ValueError(f"nothing of table-2 is stored in {out}: `inferway study run table-2`")
    lines = [f"{missing} of {missing + len(results)} runs are missing.", ""] if missing else []
    for workload, rows in STUDY.scales[scale].chosen.items():
        lines += ["| " + " | ".join((workload, *HEADINGS[1:])) + " |"]
        lines += ["|" + "---|" * len(HEADINGS)]
        lines += ["| " + " | ".join(row) + " |" for row in table(results, workload, rows)]
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
