"""Results as terminals and notebooks show them: tables, lines, and how quantities are written."""

from __future__ import annotations

import functools
import io
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import RenderableType
    from rich.table import Table

    from inferway.dispatch.promise import Promise
    from inferway.dispatch.totals import Totals

# By name: these libraries are imported where something is laid out or drawn.
Frame: TypeAlias = "pd.DataFrame"
Drawing: TypeAlias = "Figure"
Laid: TypeAlias = "RenderableType"

_ABSENT: Final = "-"

_P = ParamSpec("_P")
_Found = TypeVar("_Found")
_Shown = TypeVar("_Shown")


class Shown:
    """A result as terminals and notebooks show it; its kind says which frame and tables it has."""

    to_frame: Callable[..., Frame]

    def tables(self) -> Iterable[Laid]:
        """Lay out what there is to see."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False))

    def __str__(self) -> str:
        return text(*self.tables())


def frame(rows: Iterable[Any], columns: list[str] | None = None) -> Frame:
    """Make a frame of rows, where pandas is imported first."""
    import pandas as pd

    return pd.DataFrame(list(rows), columns=columns)


def seconds(value: float | None) -> str:
    """Write a time in the unit that suits it: 0.00123 is `1.23 ms`."""
    if value is None or not math.isfinite(value):
        return _ABSENT
    size, unit = next((one for one in ((1.0, "s"), (1e-3, "ms")) if abs(value) >= one[0]), (0, ""))
    return f"{value / size:.3g} {unit}" if unit else f"{value * 1e6:.3g} µs"


def number(value: float | None, form: str) -> str:
    """Write a number in a form such as `{:.4f}`; a dash where there is none."""
    return _ABSENT if value is None or not math.isfinite(value) else form.format(value)


def milliseconds(value: float | None) -> str:
    """Write a time in milliseconds, so that a column can be compared by eye."""
    return number(value and value * 1e3, "{:.1f}")


def percent(value: float | None, digits: int = 1) -> str:
    """Write a ratio in percent: 0.9512 is `95.1 %`."""
    return number(value and value * 100, f"{{:.{digits}f}} %")


def points(difference: float) -> str:
    """Write a difference of accuracies in points: 0.0012 is `+0.12 pt`."""
    return number(difference * 100, "{:+.2f} pt")


def relative(error: float) -> str:
    """Write a relative error: 0.034 is `+3.4 %`."""
    return number(error * 100, "{:+.1f} %")


def accuracy(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """Write an accuracy with its interval: `0.951 [0.940, 0.960]`."""
    between = "" if interval is None else " [{:.3f}, {:.3f}]".format(*interval)
    return number(value, f"{{:.3f}}{between}")


def promise(one: Promise | None) -> str:
    """Write a promise: its verdict, `0.9204 of 0.92` and how many answers, a line each."""
    if one is None or one.mean is None:
        return _ABSENT if one is None else one.state
    return f"{one.state}\n{one.mean:.4f} of {one.target:g}\nin {one.answers:,} answers"


def totals(all_tasks: Totals | None, *, accuracy: str = "accuracy") -> list[Laid]:
    """Lay out what all tasks together got, below those of each; nothing of a single task."""
    if all_tasks is None:
        return []
    rows = [
        [accuracy, number(all_tasks.accuracy, "{:.5f}")],
        ["goodput", percent(all_tasks.goodput, 2)],
        ["accuracy in time, per second", number(all_tasks.goodput_per_s, "{:.5g}/s")],
        ["answers in time", number(all_tasks.in_time_per_s, "{:.5g}/s")],
        ["rejected, dropped or late", percent(all_tasks.violation_ratio, 3)],
        *([f"answers of {name}", percent(part, 2)] for name, part in all_tasks.shares.items()),
    ]
    rows = [row for row in rows if row[1] != _ABSENT]
    return [table("All tasks", ["", "total"], rows)]


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
        # In a narrow terminal text gives way, numbers stay whole.
        words = index in left
        laid.add_column(
            name, justify="left" if words else "right", overflow="fold", no_wrap=not words
        )
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(columns)} columns")
        laid.add_row(*row)
    return laid


def noted(notes: Iterable[str]) -> list[Laid]:
    """Write notes, a line each."""
    from rich.text import Text

    return [Text(f"Note: {note}.", style="yellow") for note in notes]


def text(*what: Laid) -> str:
    """Lay tables and lines out as plain text."""
    from rich.console import Console

    # In a notebook, too, this is text: Rich would show it there and then.
    console = Console(
        width=100, record=True, file=io.StringIO(), highlight=False, force_jupyter=False
    )
    for one in what:
        console.print(one)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()).rstrip()


def shown_as(kind: Callable[..., _Shown], run: Callable[_P, _Found]) -> Callable[_P, _Shown]:
    """Let a function of a lower layer, which knows numbers only, give what can be shown."""

    @functools.wraps(run)
    def ran(*positional: _P.args, **named: _P.kwargs) -> _Shown:
        return kind(**vars(run(*positional, **named)))

    return ran


def register() -> None:
    """Let the notebook that runs this draw figures; without a notebook, do nothing."""

    def png(figure: Figure) -> bytes:
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=80)
        return drawn.getvalue()

    if (shell := sys.modules["IPython"].get_ipython()) is not None:
        formatter = shell.display_formatter.formatters["image/png"]
        # By name: matplotlib is imported with the first figure. What pyplot sets up goes first.
        formatter.for_type_by_name("matplotlib.figure", "Figure", png)
