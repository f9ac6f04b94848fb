"""Results as terminals and notebooks show them: tables, lines, and how quantities are written."""

from __future__ import annotations

import functools
import io
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType
    from rich.table import Table

_ABSENT: Final = "-"
_WIDTH: Final = 100
_DPI: Final = 80

_P = ParamSpec("_P")
_Found = TypeVar("_Found")
_Shown = TypeVar("_Shown")


def seconds(value: float | None) -> str:
    """Write a time in the unit that suits it: 0.00123 is `1.23 ms`."""
    if value is None or not math.isfinite(value):
        return _ABSENT
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def milliseconds(value: float | None) -> str:
    """Write a time in milliseconds, so that a column can be compared by eye."""
    if value is None or not math.isfinite(value):
        return _ABSENT
    return f"{value * 1e3:.1f}"


def percent(value: float | None, digits: int = 1) -> str:
    """Write a ratio in percent: 0.9512 is `95.1 %`."""
    if value is None or not math.isfinite(value):
        return _ABSENT
    return f"{value * 100:.{digits}f} %"


def points(difference: float) -> str:
    """Write a difference of accuracies in points: 0.0012 is `+0.12 pt`."""
    return f"{difference * 100:+.2f} pt" if math.isfinite(difference) else _ABSENT


def relative(error: float) -> str:
    """Write a relative error: 0.034 is `+3.4 %`."""
    return f"{error * 100:+.1f} %" if math.isfinite(error) else _ABSENT


def accuracy(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """Write an accuracy with its interval: `0.951 [0.940, 0.960]`."""
    if value is None or not math.isfinite(value):
        return _ABSENT
    text = f"{value:.3f}"
    return text if interval is None else f"{text} [{interval[0]:.3f}, {interval[1]:.3f}]"


def shares(parts: Mapping[str, float]) -> str:
    """Write who gave which part of the answers: `tiny 61 %`; below 0.5 % is left out."""
    shown = [f"{name} {part * 100:.0f} %" for name, part in parts.items() if part >= 0.005]
    return ", ".join(shown) or _ABSENT


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str | None = None,
    left: Sequence[int] = (0,),
) -> Table:
    """Lay out rows of text, those columns aligned left that `left` numbers.

    ValueError where a row does not have a cell for each column.
    """
    from rich import box
    from rich.table import Table

    laid = Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for index, name in enumerate(columns):
        text = index in left
        # In a narrow terminal text gives way, numbers stay whole.
        laid.add_column(
            name, justify="left" if text else "right", overflow="fold", no_wrap=not text
        )
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(columns)} columns")
        laid.add_row(*row)
    return laid


def noted(notes: Iterable[str]) -> list[RenderableType]:
    """Write notes, a line each."""
    from rich.text import Text

    return [Text(f"Note: {note}.", style="yellow") for note in notes]


def text(*what: RenderableType) -> str:
    """Lay tables and lines out as plain text."""
    from rich.console import Console

    # In a notebook, too, this is text: Rich would show it there and then.
    console = Console(
        width=_WIDTH, record=True, file=io.StringIO(), highlight=False, force_jupyter=False
    )
    for one in what:
        console.print(one)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()).rstrip()


def shown_as(
    kind: Callable[[_Found], _Shown],
) -> Callable[[Callable[_P, _Found]], Callable[_P, _Shown]]:
    """Let a function of a lower layer, which knows numbers only, give what can be shown."""

    def of(run: Callable[_P, _Found]) -> Callable[_P, _Shown]:
        @functools.wraps(run)
        def ran(*positional: _P.args, **named: _P.kwargs) -> _Shown:
            return kind(run(*positional, **named))

        return ran

    return of


def register() -> None:
    """Let the notebook that runs this draw figures; without a notebook, do nothing."""
    shell = sys.modules["IPython"].get_ipython()
    if shell is not None:
        formatter = shell.display_formatter.formatters["image/png"]
        # By name: matplotlib is imported with the first figure. What pyplot sets up goes first.
        formatter.for_type_by_name("matplotlib.figure", "Figure", _png)


def _png(figure: Figure) -> bytes:
    """Draw a figure as a notebook keeps it."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    return drawn.getvalue()
