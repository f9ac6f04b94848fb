"""Options with units, as deployment files write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from inferway.deployment.units import Quantity


def rate(text: str) -> float:
    """Read a rate above 0, such as 120/s."""
    from inferway.deployment.units import RATE

    return _positive(text, RATE)


def time(text: str) -> float:
    """Read a time above 0, such as 300ms, in s."""
    from inferway.deployment.units import TIME

    return _positive(text, TIME)


def _positive(text: str, quantity: Quantity) -> float:
    from inferway.deployment.units import QuantityError

    try:
        value = quantity.parse(text)
    except QuantityError as error:
        raise typer.BadParameter(str(error)) from None
    if value <= 0:
        raise typer.BadParameter(f"{text} is not above 0")
    return value
