"""Numbers with units, as people write them: ``300 ms``, ``120/s``, ``16 GiB``, ``75 %``.

Inside the code times are seconds, rates are per second, sizes are bytes, energies joules and ratios
lie in 0..1.
A bare number where a unit is needed is refused: 300 of what? Values are computed as exact
fractions and rounded once, so ``10.7 ms`` is the float 0.0107 and not its neighbor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, Strict, WithJsonSchema

from inferway.deployment.errors import refuse, shown

_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+(?:[eE][+-]?[0-9]{1,3})?"
_LONGEST = 64  # characters; no sensible quantity is longer, and fractions of huge ones are slow


class QuantityError(ValueError):
    """A text that is not the quantity that was expected."""


@dataclass(frozen=True)
class Quantity:
    """A kind of number with a unit.

    Attributes
    ----------
    noun
        Name in errors, with its article: "a time".
    example
        A good value, shown in errors and to editors.
    units
        Size in the base unit by unit as written, smallest first.
    whole
        True where only whole numbers of the base unit make sense (bytes).
    bare
        True where a plain number is understood as well (ratios).
    """

    noun: str
    example: str
    units: Mapping[str, Fraction]
    whole: bool = False
    bare: bool = False

    @property
    def pattern(self) -> str:
        """Regular expression (also for JSON Schema) of the texts that are understood."""
        units = "|".join(re.escape(unit) for unit in self.units)
        return rf"^\s*(?:{_NUMBER})\s*(?:{units})\s*$"

    def parse(self, value: object) -> float:
        """Turn a value of the file into the base unit.

        Raises
        ------
        QuantityError
            With one sentence that says what was expected.
        """
        such = f'{self.noun} such as "{self.example}"'
        if (number := _plain(value)) is not None:
            if self.bare:
                return float(number)
            raise QuantityError(f"{number:g} has no unit; write {such}")
        if not isinstance(value, str):
            raise QuantityError(f"expected {such}, got {shown(value, None)}")
        units = "|".join(re.escape(unit) for unit in sorted(self.units, key=len, reverse=True))
        match = re.fullmatch(rf"\s*([+-]?)({_NUMBER})\s*({units})?\s*", value[: _LONGEST + 1])
        short = value if len(value) <= 40 else value[:37] + "..."
        if match is None or len(value) > _LONGEST:
            raise QuantityError(
                f'"{short}" is not {self.noun}; write a number and a unit '
                f'({", ".join(self.units)}), such as "{self.example}"'
            )
        sign, digits, unit = match.groups()
        if unit is None:
            raise QuantityError(f"{short.strip()} has no unit; write {such}")
        exact = Fraction(digits) * self.units[unit] * (-1 if sign == "-" else 1)
        try:
            return float(round(exact)) if self.whole else float(exact)
        except OverflowError:
            raise QuantityError(f"{value.strip()} is too large for {self.noun}") from None

    def write(self, value: float) -> str:
        """Write a value in the unit that reads best; ``parse`` gives the same value back."""
        for unit, size in reversed(list(self.units.items())):
            scaled = float(Fraction(value) / size)
            text = f"{scaled:g}{'' if unit.startswith('/') else ' '}{unit}"
            if 1 <= abs(scaled) < 10_000 and self.parse(text) == value:
                return text
        base = next(unit for unit, size in self.units.items() if size == 1)
        digits = repr(int(value)) if self.whole else repr(float(value))
        return f"{digits}{'' if base.startswith('/') else ' '}{base}"


def _units(text: str) -> dict[str, Fraction]:
    words = iter(text.split())
    return {unit: Fraction(size) for unit, size in zip(words, words, strict=True)}


# A micro is written with its sign, U+00B5, or the Greek letter, U+03BC, of many keyboards.
TIME = Quantity(
    "a time", "300 ms", _units("ns 1e-9 us 1e-6 µs 1e-6 μs 1e-6 ms 1e-3 s 1 min 60 h 3600 d 86400")
)
RATE = Quantity("a rate", "120/s", _units("/d 1/86400 /h 1/3600 /min 1/60 /s 1 /ms 1e3 /us 1e6"))
SIZE = Quantity(
    "a size",
    "16 GiB",
    _units(
        "B 1 kB 1e3 KiB 1024 MB 1e6 MiB 1048576 GB 1e9 GiB 1073741824 TB 1e12 TiB 1099511627776"
    ),
    whole=True,
)
ENERGY = Quantity(
    "an energy", "300 mJ", _units("uJ 1e-6 µJ 1e-6 μJ 1e-6 mJ 1e-3 J 1 kJ 1e3 Wh 3600")
)
RATIO = Quantity("a ratio", "75 %", _units("% 1/100"), bare=True)


def _plain(value: object) -> float | int | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _read(quantity: Quantity, *, above_zero: bool = False) -> tuple[BeforeValidator, Any]:
    def read(value: Any) -> float | int:
        try:
            number = quantity.parse(value)
        except QuantityError as error:
            raise refuse(str(error)) from None
        if number < 0 or (above_zero and number == 0):
            bound = "above 0" if above_zero else "0 or more"
            raise refuse(
                f"{value} is refused: {quantity.noun} must be {bound}, such as {quantity.example}"
            )
        return int(number) if quantity.whole else number

    schema = {"type": "string", "pattern": quantity.pattern, "examples": [quantity.example]}
    return BeforeValidator(read), WithJsonSchema(schema)


def _read_bare(expected: str, value: Any) -> float:
    try:
        return RATIO.parse(value)
    except QuantityError:
        raise refuse(f"expected {expected}, got {shown(value, None)}") from None


def _read_ratio(value: Any) -> float:
    number = _read_bare("a number in 0..1 such as 0.95", value)
    if not 0 <= number <= 1:  # also refuses nan
        hint = f" (write {number / 100:g}, not {value})" if 2 <= number <= 100 else ""
        raise refuse(f"{value} is not in 0..1{hint}")
    return number


def _read_change(value: Any) -> float:
    number = _read_bare("a change of a ratio such as -0.1 or -10 %", value)
    if not -1 <= number <= 1:  # also refuses nan
        raise refuse(f"{value} is not in -1..1")
    return number


def _read_number(value: Any) -> float:
    number = _plain(value)
    if number is None or not math.isfinite(number):
        raise refuse(f"expected a plain number, got {shown(value, None)}")
    return float(number)


def _ratio(limits: dict[str, int], *examples: Any) -> WithJsonSchema:
    text = {"type": "string", "pattern": RATIO.pattern}
    schema = {"anyOf": [{"type": "number", **limits}, text], "examples": list(examples)}
    return WithJsonSchema(schema)


Seconds = Annotated[float, *_read(TIME)]
PositiveSeconds = Annotated[float, *_read(TIME, above_zero=True)]
Joules = Annotated[float, *_read(ENERGY)]
PositiveJoules = Annotated[float, *_read(ENERGY, above_zero=True)]
PositiveRate = Annotated[float, *_read(RATE, above_zero=True)]
Bytes = Annotated[int, *_read(SIZE, above_zero=True)]
Ratio = Annotated[
    float, BeforeValidator(_read_ratio), _ratio({"minimum": 0, "maximum": 1}, 0.95, "95 %")
]
RatioChange = Annotated[
    float,
    BeforeValidator(_read_change),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": -1, "maximum": 1},
                {"type": "string", "pattern": RATIO.pattern.replace("^\\s*", "^\\s*[+-]?", 1)},
            ],
            "examples": [-0.1, "-10 %"],
        }
    ),
]
Load = Annotated[
    float,
    BeforeValidator(partial(_read_bare, "a load such as 0.7 or 70 %")),
    Field(gt=0, lt=10),
    _ratio({"exclusiveMinimum": 0, "exclusiveMaximum": 10}, 0.7, "70 %"),
]
Number = Annotated[float, BeforeValidator(_read_number), Field(ge=0)]
PositiveNumber = Annotated[float, BeforeValidator(_read_number), Field(gt=0)]
AnyNumber = Annotated[float, BeforeValidator(_read_number)]
# Of anything that a file counts: what a number alone makes must fit into memory.
MOST: Final = 1_000_000
# Of what is worked through one by one where it is used, such as stages of a service time.
FEW: Final = 1_000
Count = Annotated[int, Strict(), Field(ge=1, le=MOST)]
FewCount = Annotated[int, Strict(), Field(ge=1, le=FEW)]
