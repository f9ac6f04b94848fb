"""What a sweep varies: a key and its values, from a command line or from Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inferway.deployment.setting import Setting, SettingError, setting

MOST_POINTS: Final = 10_000
"""Of a sweep, and so of an axis."""


@dataclass(frozen=True)
class Axis:
    """A key and its values, as ``key=start:stop:step`` or ``key=one,two`` says them.

    Attributes
    ----------
    key
        What is set: see `inferway.deployment.setting`.
    values
        In order; numbers with their unit, where they have one.
    """

    key: str
    values: tuple[Setting, ...]

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers of one unit."""
        units = {value.unit for value in self.values}
        return len(units) == 1 and all(value.number is not None for value in self.values)

    @property
    def unit(self) -> str:
        """The values' common unit; empty where they have none."""
        return self.values[0].unit if self.numeric else ""


def axis(text: str) -> Axis:
    """Read ``load=0.1:0.9:0.1`` (both ends included) or ``policy=tad,tad-op``.

    Raises
    ------
    SettingError
        Where a value is missing or makes no sense.
    ValueError
        Where it is neither.
    """
    key, equals, written = (part.strip() for part in text.partition("="))
    if not key or not equals or not written:
        raise ValueError(
            f"a sweep is KEY=START:STOP:STEP or KEY=VALUE,VALUE, such as load=0.1:0.9:0.1 or "
            f"policy=tad,tad-op, not {text!r}"
        )
    parts = written.split(":")
    ends = [setting(part) for part in parts]
    if len(parts) == 3 and all(end.number is not None for end in ends):
        return Axis(key, tuple(_range(key, written, ends)))
    values = tuple(setting(part) for part in written.split(","))
    if any(not value.text for value in values):
        raise SettingError(text, "there is nothing between two commas, or at an end")
    twice = [value.text for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise SettingError(text, f"{twice[0]} is there twice")
    return Axis(key, values)


def _range(key: str, written: str, ends: Sequence[Setting]) -> Iterator[Setting]:
    start, stop, step = (end.number or 0.0 for end in ends)
    units = {end.unit for end in ends if end.unit}
    if len(units) > 1:
        raise SettingError(f"{key}={written}", f"one unit for all three, not {sorted(units)}")
    unit = units.pop() if units else ""
    if step == 0 or (stop - start) / step < 0:
        raise SettingError(
            f"{key}={written}", f"a step of {step:g} does not lead from {start:g} to {stop:g}"
        )
    count = math.floor((stop - start) / step * (1 + 1e-12) + 1e-9) + 1
    if count > MOST_POINTS:
        raise SettingError(f"{key}={written}", f"has {count:,} values, above {MOST_POINTS:,}")
    for i in range(count):
        # 0.1 + 2 * 0.1 is to be 0.3.
        number = float(f"{start + i * step:.12g}")
        yield Setting(f"{number:.12g}{unit}", number, unit)


def axis_of(key: str, values: Any) -> Axis:
    """Make an axis of a list, an array or one value."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    listed = values if isinstance(values, list | tuple | range) else [values]
    return Axis(key, tuple(map(setting, listed)))
