"""Points of every combination of some values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from inferway.experiments.runner import Point


def combinations(**axes: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of values by name; the last one changes fastest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def grid(
    call: Callable[..., Any],
    arguments: Mapping[str, Any],
    seconds: float | Callable[..., float],
    *,
    label: Mapping[str, Any] | None = None,
    **axes: Iterable[Any],
) -> list[Point]:
    """Make a point of every combination of values.

    Parameters
    ----------
    call, arguments
        What each point computes, and the arguments that all have.
    seconds
        About how long each takes; a function is given the combination.
    label
        A part of all labels that is no argument.
    axes
        What else a point is labeled with, and its other arguments. Of ``trial`` its seed is made,
        which is one more.
    """
    points = []
    for values in combinations(**axes):
        own = {name: value for name, value in values.items() if name != "trial"}
        if "trial" in values:
            own["seed"] = values["trial"] + 1
        cost = seconds(**values) if callable(seconds) else seconds
        points.append(Point({**(label or {}), **values}, call, {**arguments, **own}, cost))
    return points
