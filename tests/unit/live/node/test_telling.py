"""Letters about offers, written and read; among them what nobody could have meant."""

from __future__ import annotations

import contextlib
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from listings import listings

from inferway.live.node.listing import EMPTY, MOST, PARTS, Change, Listing, changes
from inferway.live.node.telling import RUN_BITS, Ask, Letter, Same, Tell, packed, unpacked

LAST_RUN = (1 << RUN_BITS) - 1


@given(listings)
def test_letters_are_read_as_they_were_written(one: Listing) -> None:
    (change,) = changes(EMPTY, one)
    letters: list[Letter] = [Tell(LAST_RUN, 6, 7, 2, 3, change), Same(0, 7), Ask()]
    assert [unpacked(packed(letter)) for letter in letters] == letters


def test_what_only_confirms_is_short() -> None:
    assert len(packed(Same(LAST_RUN, 100_000))) < 30
    assert len(packed(Ask())) < 15


@pytest.mark.parametrize(
    "wrong",
    [
        Tell(1, 6, 7, 0, PARTS + 1, Change()),
        Tell(1, 6, 7, PARTS, PARTS, Change()),
        Tell(1, 6, 7, 0, 0, Change()),
        Tell(LAST_RUN + 1, 6, 7, 0, 1, Change()),
        Tell(1, -1, 7, 0, 1, Change()),
        Tell(1, 6, 7, -1, 1, Change()),
        Tell(1, 6, 7, 0, 1, Change(gone=(-1,))),
        Tell(1, 6, 7, 0, 1, Change(rates=((-1, 5.0),))),
        Tell(1, 6, 7, 0, 1, Change(gone=tuple(range(MOST + 1)))),
        Same(1, 1 << 63),
    ],
)
def test_numbers_have_bounds(wrong: Letter) -> None:
    with pytest.raises(ValueError, match=r"Expected .* - at `\$"):
        unpacked(packed(wrong))


@given(st.binary(max_size=64))
def test_garbage_is_no_letter(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpacked(data)
    with contextlib.suppress(ValueError):
        unpacked(zlib.compress(data))


def test_letters_that_go_on_or_in_too_far_are_none() -> None:
    whole = packed(Same(1, 7))
    assert unpacked(whole) == Same(1, 7)
    bomb = zlib.compress(bytes(32 << 20))
    # A field that is not known, and so passed over.
    known = msgspec.msgpack.encode([1, 1, 7])
    deep = zlib.compress(b"\x94" + known[1:] + b"\x91" * 1_000_000 + b"\x90")
    for data in (whole[:-3], bomb, deep):
        with pytest.raises(ValueError, match=r"."):
            unpacked(data)
