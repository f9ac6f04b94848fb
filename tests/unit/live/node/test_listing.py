"""How listings differ, against the listings themselves."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from listings import SIGNATURES, listings

from inferway.dispatch.offers import Offer
from inferway.live.node import listing
from inferway.live.node.listing import EMPTY, MOST, Change, Listing, applied, changes, listed

WIDE = Offer("digits", "wide", "cloud", 0.95, 0.004, 0.01, 50.0, ("metro", "cloud"), True)
TINY = Offer("digits", "tiny", "metro", 0.8, 0.001, 0.0, 100.0, ("metro",), False)


@given(listings, listings, st.sampled_from([1, 2, MOST]))
def test_a_change_makes_the_one_of_the_other(before: Listing, after: Listing, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "MOST", most)
        parts = changes(before, after)
    assert applied(before, parts) == after
    assert parts
    for part in parts:
        assert all(len(news) <= most for news in msgspec.structs.astuple(part))


@given(listings)
def test_where_nothing_changes_nothing_is_said(one: Listing) -> None:
    assert changes(one, one) == [Change()]


def test_only_what_has_changed_is_said() -> None:
    slower = msgspec.structs.replace(WIDE, rtt_s=0.03)
    busier = msgspec.structs.replace(TINY, spare_per_s=20.0)
    both = listed([WIDE, TINY], {"digits": SIGNATURES[0]}.get)
    assert both.offers == (TINY, WIDE)

    def change(*after: Offer, takes: dict[str, object] | None = None) -> Change:
        known = both.takes if takes is None else takes
        (one,) = changes(both, listed(after, known.get))  # type: ignore[arg-type]
        return one

    assert change(busier, WIDE) == Change(rates=((0, 20.0),))
    assert change(slower, TINY) == Change(offers=(slower,))
    assert change(WIDE) == Change(gone=(0,))
    assert change(TINY, WIDE, takes={"digits": SIGNATURES[1]}) == Change(
        takes=((SIGNATURES[1], ("digits",)),)
    )
    assert change(TINY, WIDE, takes={}) == Change(takes=((None, ("digits",)),))
    # What a task takes goes with its last offer.
    assert change() == Change(gone=(0, 1))


def test_changes_of_something_else_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Listing((TINY, WIDE), {})
    for change in (Change(gone=(2,)), Change(rates=((2, 1.0),))):
        with pytest.raises(ValueError, match="there is no offer 2 among 2"):
            applied(before, [change])
    monkeypatch.setattr(listing, "MOST", 1)
    monkeypatch.setattr(listing, "PARTS", 1)
    assert applied(EMPTY, [Change(offers=(WIDE,))]).offers == (WIDE,)
    with pytest.raises(ValueError, match="2 offers are more than 1"):
        applied(EMPTY, [Change(offers=(WIDE, TINY))])
