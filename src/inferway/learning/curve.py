"""Learning curves: a line of CSV per update, and the same figures for TensorBoard."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Curve"]


class Curve:
    """``curve.csv`` in a folder, and ``tensorboard`` beside it.

    Parameters
    ----------
    folder
        Exists.
    slots
        Lines after so many are of a run that was cut off after its last checkpoint: they are
        dropped, as what they tell is computed again.
    tensorboard
        Whether to log for TensorBoard, too.
    """

    def __init__(self, folder: Path, slots: int, *, tensorboard: bool = True) -> None:
        self.path = folder / "curve.csv"
        lines = _known(self.path, slots)
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(lines), encoding="utf-8")
        fresh.replace(self.path)
        self._begun = bool(lines)
        self._file = self.path.open("a", encoding="utf-8")
        self._writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=slots + 1)

    def add(self, row: Mapping[str, float]) -> None:
        """Add a line; `slots` is one of its figures, and all lines have the same."""
        text = io.StringIO()
        line = csv.writer(text, lineterminator="\n")
        if not self._begun:
            line.writerow(row)
            self._begun = True
        line.writerow(
            f"{value:.9g}" if isinstance(value, float) else value for value in row.values()
        )
        self._file.write(text.getvalue())
        self._file.flush()
        if self._writer is not None:
            for name, value in row.items():
                if name != "slots":
                    self._writer.add_scalar(name, value, int(row["slots"]))

    def close(self) -> None:
        """Write out what is left."""
        self._file.close()
        if self._writer is not None:
            self._writer.close()


def _known(path: Path, slots: int) -> list[str]:
    """The header and the lines up to `slots`, none of them cut short."""
    if not path.exists() or slots == 0:
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if not lines or "slots" not in lines[0].rstrip("\n").split(","):
        return []
    names = lines[0].rstrip("\n").split(",")
    place, kept = names.index("slots"), [lines[0]]
    for line in lines[1:]:
        cells = line.rstrip("\n").split(",")
        if line.endswith("\n") and len(cells) == len(names) and int(cells[place]) <= slots:
            kept.append(line)
    return kept
