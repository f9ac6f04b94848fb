"""Options with units, as deployment files write them."""

from __future__ import annotations

import typer


def rate(text: str) -> float:
    """Read a rate above 0, such as 120/s."""
    return _positive(text, "RATE")


def time(text: str) -> float:
    """Read a time above 0, such as 300ms, in s."""
    return _positive(text, "TIME")


def size(text: str) -> float:
    """Read a size above 0, such as 125 MB, in bytes."""
    return _positive(text, "SIZE")


def _positive(text: str, kind: str) -> float:
    from inferway.deployment import units

    try:
        value: float = getattr(units, kind).parse(text)
    except units.QuantityError as error:
        raise typer.BadParameter(str(error)) from None
    if value <= 0:
        raise typer.BadParameter(f"{text} is not above 0")
    return value
