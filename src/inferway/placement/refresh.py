"""When models may move: refresh period B, and the one that stretches ([SiSalem23], Sec. VI-B)."""

from __future__ import annotations

from typing import NamedTuple


class Refresh(NamedTuple):
    """A period in slots that goes from `start` to `target` over `stretch` slots, linearly."""

    start: float = 1.0
    target: float = 1.0
    stretch: float = 0.0

    def period(self, slot: int) -> float:
        """Slots between two changes of the integral allocation, at a slot counted from 0."""
        done = 1.0 if self.stretch <= 0 else min(1.0, slot / self.stretch)
        return self.start + (self.target - self.start) * done

    def due(self, slot: int, last: int) -> bool:
        """Whether the allocation may change after `slot`, having changed last after `last`."""
        return slot - last >= int(self.period(slot))


def refresh_of(value: int | Refresh | tuple[float, float, float]) -> Refresh:
    """Read a refresh period: slots, or (first period, last one, slots that the change takes).

    Raises
    ------
    ValueError
        For a period below one slot.
    """
    found = Refresh(value, value) if isinstance(value, int) else Refresh(*value)
    if min(found.start, found.target) < 1 or found.stretch < 0:
        raise ValueError(f"a refresh period is one slot or more, not {value}")
    return found
