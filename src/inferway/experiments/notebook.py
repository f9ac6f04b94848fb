"""Figures in notebooks: those that are made without pyplot are shown, too."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 80


def register() -> None:
    """Let the notebook that runs this draw figures; without a notebook, do nothing."""
    shell = sys.modules["IPython"].get_ipython()
    if shell is not None:
        formatter = shell.display_formatter.formatters["image/png"]
        # By name: matplotlib is imported with the first figure. What pyplot sets up goes first.
        formatter.for_type_by_name("matplotlib.figure", "Figure", png)


def png(figure: Figure) -> bytes:
    """Draw a figure as a notebook keeps it."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    return drawn.getvalue()
