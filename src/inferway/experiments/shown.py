"""Results that a person looks at: their text is what the command prints."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH = 100

_P = ParamSpec("_P")
_Found = TypeVar("_Found")
_Shown = TypeVar("_Shown")


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
