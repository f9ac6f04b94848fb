"""What is made of a neighbor's letters, however they come."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from listings import SIGNATURES, listings

from inferway.dispatch.offers import Offer
from inferway.live.node import listing
from inferway.live.node.heard import EXPIRES_S, Heard, MissedError
from inferway.live.node.listing import EMPTY, Change, Listing, listed
from inferway.live.node.telling import Ask, Same, Tell, packed, unpacked
from inferway.live.node.told import REFRESH_S, Told
from inferway.protocol import Signature, Tensor

WIDE = Offer("digits", "wide", "cloud", 0.95, 0.004, 0.01, 50.0, ("metro", "cloud"), True)
TINY = Offer("digits", "tiny", "metro", 0.8, 0.001, 0.0, 100.0, ("metro",), False)
BOTH = Tell(9, 0, 5, 0, 1, Change(offers=(TINY, WIDE)))


def heard(*letters: Tell) -> Heard:
    reader = Heard("edge", "metro", 0.01, Counter())
    for letter in letters:
        assert reader.take(letter, 0.0)
    return reader


def state(reader: Heard) -> tuple[Any, ...]:
    return reader.listing, reader.offers, reader.takes, reader.holds(EXPIRES_S - 0.1)


def test_a_change_goes_on_from_the_listing_that_it_names() -> None:
    reader = heard(BOTH)
    assert reader.take(Tell(9, 5, 6, 0, 1, Change(gone=(0,))), 1.0)
    assert reader.listing == Listing((WIDE,), {})
    assert reader.offers == (msgspec.structs.replace(WIDE, rtt_s=0.02),)
    assert reader.holds(1.0 + EXPIRES_S - 0.1)
    assert not reader.holds(1.0 + EXPIRES_S)
    reader.forget()
    assert (reader.listing, reader.offers, reader.holds(1.0)) == (None, (), False)


@pytest.mark.parametrize(
    "letter",
    [
        Tell(9, 6, 7, 0, 1, Change(gone=(0,))),
        Tell(9, 4, 6, 0, 1, Change(gone=(0,))),
        Tell(8, 5, 6, 0, 1, Change(gone=(0,))),
        Same(9, 6),
        Same(8, 5),
    ],
)
def test_what_does_not_go_on_from_it_is_asked_anew_and_it_stays(letter: Tell | Same) -> None:
    reader = heard(BOTH)
    before = state(reader)
    with pytest.raises(MissedError, match="missed"):
        reader.take(letter, 1.0)
    assert state(reader) == before
    assert not reader.holds(EXPIRES_S)
    with pytest.raises(MissedError, match="missed"):
        heard().take(letter, 1.0)


@pytest.mark.parametrize(
    "letter",
    [
        BOTH,
        Tell(9, 4, 5, 0, 1, Change(gone=(0,))),
        Tell(9, 0, 4, 0, 1, Change()),
        Tell(9, 3, 4, 0, 1, Change()),
        Same(9, 4),
    ],
)
def test_what_comes_late_or_twice_changes_nothing(letter: Tell | Same) -> None:
    reader = heard(BOTH)
    before = state(reader)
    assert not reader.take(letter, 1.0)
    assert state(reader) == before
    assert not reader.holds(EXPIRES_S)


def test_what_is_confirmed_holds_on() -> None:
    reader = heard(BOTH)
    assert not reader.take(Same(9, 5), 4.0)
    assert reader.holds(4.0 + EXPIRES_S - 0.1)


def test_a_neighbor_that_begins_anew_is_heard_though_its_serials_are_lower() -> None:
    reader = heard(BOTH)
    assert reader.take(Tell(8, 0, 1, 0, 1, Change(offers=(WIDE,))), 1.0)
    assert reader.listing == Listing((WIDE,), {})
    assert reader.take(Tell(8, 1, 2, 0, 1, Change(gone=(0,))), 1.0)
    assert reader.listing == EMPTY


def test_parts_count_once_all_are_there_and_in_order() -> None:
    first, last = (
        Tell(9, 5, 6, 0, 2, Change(gone=(0,))),
        Tell(9, 5, 6, 1, 2, Change(rates=((1, 7.0),))),
    )
    reader = heard(BOTH)
    before = state(reader)
    assert not reader.take(first, 0.0)
    assert state(reader) == before
    assert reader.take(last, 0.0)
    assert reader.listing == Listing((msgspec.structs.replace(WIDE, spare_per_s=7.0),), {})
    for before_it, wrong in (
        ([], last),
        ([first], first),
        ([first], Tell(9, 5, 7, 1, 2, Change())),
    ):
        reader = heard(BOTH)
        assert not any(reader.take(letter, 0.0) for letter in before_it)
        with pytest.raises(MissedError, match="out of order"):
            reader.take(wrong, 0.0)
        assert state(reader) == before
        # Half of it may not be waited for: what was there is none of the next.
        assert reader.take(Tell(9, 0, 8, 0, 1, Change()), 0.0)
        assert reader.listing == EMPTY
    with pytest.raises(MissedError, match="out of order"):
        heard().take(Tell(9, 0, 6, 3, 2, Change()), 0.0)


def test_what_cannot_be_is_not_taken() -> None:
    reader = heard(BOTH)
    before = state(reader)
    with pytest.raises(MissedError, match="no change"):
        reader.take(Tell(9, 5, 6, 0, 1, Change(gone=(2,))), 1.0)
    assert state(reader) == before
    counts: Counter[tuple[str, str]] = Counter()
    reader = Heard("edge", "metro", 0.01, counts)
    loop = msgspec.structs.replace(WIDE, path=("metro", "edge", "cloud"))
    bad = Signature((Tensor("x", "FP7", (-1,)),), SIGNATURES[0].outputs)
    told = Change(offers=(loop, TINY), takes=((bad, ("digits",)),))
    assert reader.take(Tell(9, 0, 1, 0, 1, told), 0.0)
    assert [offer.node for offer in reader.offers] == ["metro"]
    assert reader.takes == {}
    assert counts == {("metro", "impossible"): 1, ("metro", "no signature"): 1}
    # Places are those of what was told, not of what was taken of it.
    assert reader.take(Tell(9, 1, 2, 0, 1, Change(rates=((0, 3.0),))), 0.0)
    assert [offer.spare_per_s for offer in reader.offers] == [3.0]


def test_it_is_not_asked_again_at_once() -> None:
    reader = heard()
    assert [reader.may_ask(now) for now in (0.0, 0.1, 0.4, 0.6, 0.7)] == [
        True,
        False,
        False,
        True,
        False,
    ]


class Line:
    """One who tells and one who hears, and between them letters that may come to any harm."""

    def __init__(self) -> None:
        self.now_s, self.run = 0.0, 0
        self.offered = EMPTY
        self.sender, self.reader = Told(0), heard()
        self.mail: list[bytes] = []
        self.asks = 0
        self.ever: list[Listing | None] = [None]

    def news(self, what: Listing, after_s: float) -> None:
        self.offered = what
        self.tell(after_s)

    def tell(self, after_s: float) -> None:
        self.now_s += after_s
        letters = self.sender.tell(self.offered, self.now_s)
        self.mail += [packed(letter) for letter in letters]
        self.ever.append(self.offered)

    def carry(self, which: int, left: int) -> None:
        """Carry a letter, and leave so many copies on the way."""
        if not self.mail:
            return
        data = self.mail.pop(which % len(self.mail))
        self.mail += [data] * left
        self._take(data)

    def lose(self, which: int) -> None:
        if self.mail:
            del self.mail[which % len(self.mail)]

    def garbage(self, where: int) -> None:
        """Turn a bit of a letter over."""
        if self.mail:
            data = bytearray(self.mail[0])
            data[where % len(data)] ^= 1
            self._take(bytes(data))

    def answer(self, lost: bool) -> None:
        if self.asks and not lost:
            self.sender.forget()
        self.asks = 0

    def restart(self, who: str) -> None:
        if who == "sender":
            self.run += 1
            self.sender, self.offered = Told(self.run), EMPTY
        else:
            self.reader = heard()

    def expire(self) -> None:
        if not self.reader.holds(self.now_s):
            self.reader.forget()

    def _take(self, data: bytes) -> None:
        try:
            letter = unpacked(data)
        except ValueError:
            return
        assert not isinstance(letter, Ask)
        try:
            self.reader.take(letter, self.now_s)
        except MissedError:
            self.asks += self.reader.may_ask(self.now_s)


steps = st.one_of(
    st.tuples(st.just("news"), listings, st.sampled_from([0.3, REFRESH_S])),
    st.tuples(st.just("news"), listings, st.just(REFRESH_S)),
    st.tuples(st.just("tell"), st.sampled_from([0.0, 0.3, REFRESH_S])),
    st.tuples(st.just("carry"), st.just(0), st.just(0)),
    st.tuples(st.just("carry"), st.just(0), st.just(0)),
    st.tuples(st.just("carry"), st.integers(0, 5), st.integers(0, 1)),
    st.tuples(st.just("lose"), st.integers(0, 5)),
    st.tuples(st.just("garbage"), st.integers(0, 300)),
    st.tuples(st.just("answer"), st.booleans()),
    st.tuples(st.just("restart"), st.sampled_from(["sender", "reader"])),
    st.tuples(st.just("expire")),
)


@settings(max_examples=300)
@given(st.lists(steps, max_size=30), st.none() | listings, st.sampled_from([1, 2, 500]))
def test_whatever_is_lost_the_next_refresh_makes_it_good(
    story: list[tuple[Any, ...]], last: Listing | None, most: int
) -> None:
    line = Line()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "MOST", most)
        for what, *given_to_it in story:
            getattr(line, what)(*given_to_it)
            # Never a mixture.
            assert line.reader.listing in line.ever
        while line.mail:
            line.carry(-1, 0)
            assert line.reader.listing in line.ever
        line.answer(lost=True)
        line.news(line.offered if last is None else last, REFRESH_S)
        for _ in range(2):
            while line.mail:
                line.carry(0, 0)
            line.answer(lost=False)
            line.tell(0.0)
    assert line.reader.listing == line.offered
    assert line.reader.holds(line.now_s)


def test_a_line_without_losses_asks_for_nothing() -> None:
    line = Line()
    for spare in (100.0, 20.0, 20.0, 21.0):
        busy = msgspec.structs.replace(TINY, spare_per_s=spare)
        line.news(listed([busy, WIDE], {}.get), REFRESH_S)
        while line.mail:
            line.carry(0, 0)
        assert line.reader.listing == line.offered
    assert line.asks == 0
