"""What a neighbor is told, and when."""

from __future__ import annotations

import msgspec

from inferway.dispatch.offers import Offer
from inferway.live.node.listing import Change, Listing
from inferway.live.node.telling import Same, Tell
from inferway.live.node.told import REFRESH_S, Told

WIDE = Offer("digits", "wide", "cloud", 0.95, 0.004, 0.01, 50.0, ("metro", "cloud"), True)
TINY = Offer("digits", "tiny", "metro", 0.8, 0.001, 0.0, 100.0, ("metro",), False)


def spare(rate: float) -> Listing:
    return Listing((msgspec.structs.replace(TINY, spare_per_s=rate), WIDE), {})


def test_all_is_told_once_then_what_changes() -> None:
    told = Told(9)
    whole = Change(offers=spare(100.0).offers)
    assert told.tell(spare(100.0), 0.0) == [Tell(9, 0, 1, 0, 1, whole)]
    assert told.tell(spare(100.0), 0.1) == []
    assert told.tell(spare(20.0), 0.2) == [Tell(9, 1, 2, 0, 1, Change(rates=((0, 20.0),)))]
    assert told.tell(Listing((WIDE,), {}), 0.3) == [Tell(9, 2, 3, 0, 1, Change(gone=(0,)))]
    told.forget()
    assert told.tell(spare(100.0), 0.4) == [Tell(9, 0, 4, 0, 1, whole)]


def test_a_refresh_confirms_or_tells_small_changes() -> None:
    told = Told(9)
    told.tell(spare(100.0), 0.0)
    assert told.tell(spare(100.0), REFRESH_S) == [Same(9, 1)]
    assert told.tell(spare(95.0), REFRESH_S + 0.5) == []
    assert told.tell(spare(95.0), 2 * REFRESH_S) == [
        Tell(9, 1, 2, 0, 1, Change(rates=((0, 95.0),)))
    ]
    assert told.tell(spare(95.0), 2 * REFRESH_S + 0.5) == []
    assert told.tell(spare(95.0), 3 * REFRESH_S) == [Same(9, 2)]


def test_nothing_is_told_too() -> None:
    told = Told(9)
    assert told.tell(Listing((), {}), 0.0) == [Tell(9, 0, 1, 0, 1, Change())]
    assert told.tell(Listing((), {}), REFRESH_S) == [Same(9, 1)]
