"""What Python lays out in memory is what compiled code reads."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba import typeof
from numba.core.errors import TypingError
from numba.core.types import float32, int32, int64

from inferway.site.compiled import call_of, entry
from inferway.site.handle import Handle, pin


class Inner(NamedTuple):
    flag: bool
    pair: tuple[int, int]
    table: np.ndarray


class Whole(NamedTuple):
    first: bool
    small: Any
    narrow: Any
    inner: Inner
    nothing: None
    last: bool
    word: str
    series: np.ndarray


def _read(whole: Any, place: int) -> Any:
    whole.series[place] += 1
    return (
        (whole.first, whole.inner.flag, whole.last, whole.nothing is None),
        (whole.small, whole.narrow, whole.inner.pair[1]),
        (whole.inner.table[1, 2], whole.inner.table.shape, whole.series[place]),
        whole.word == "some words",
    )


def _read_numbers(whole: Any, place: int) -> Any:
    whole.series[place] += 1
    return (
        (whole.first, whole.inner.flag, whole.last, whole.nothing is None),
        (whole.small, whole.narrow, whole.inner.pair[1]),
        (whole.inner.table[1, 1], whole.inner.table.shape, whole.series[place]),
    )


READ = entry(_read)


def whole(**changed: Any) -> Whole:
    table = np.arange(20.0).reshape(4, 5)[:, ::2]
    inner = Inner(True, (3, 4), table)
    fields = (
        True,
        np.int32(-5),
        np.float32(0.5),
        inner,
        None,
        False,
        "some words",
        np.zeros(3, int),
    )
    return Whole(*fields)._replace(**changed)


def test_compiled_code_reads_and_writes_what_python_laid_out() -> None:
    given = whole()
    pinned = pin(given)
    for turn in range(3):
        flags, numbers, table, word = call_of(READ, pinned.kind, int64)(pinned.handle, 2)
        assert flags == (True, True, False, True)
        assert numbers == (-5, 0.5, 4)
        assert table == (given.inner.table[1, 2], (4, 3), turn + 1)
        assert word
    assert given.series.tolist() == [0, 0, 3]


def test_what_is_read_is_still_there_afterwards() -> None:
    word = "".join(["some ", "words"])
    pinned = pin(whole(word=word))
    before = sys.getrefcount(word)
    for _ in range(100):
        assert call_of(READ, pinned.kind, int64)(pinned.handle, 0)[3]
    assert sys.getrefcount(word) == before


def test_what_has_no_type_is_said() -> None:
    with pytest.raises(TypingError, match="Cannot determine Numba type"):
        pin(whole(word=object()))


def test_a_type_that_is_known_already_is_that_of_numba() -> None:
    square, fixed = np.arange(9.0).reshape(3, 3), np.arange(9.0).reshape(3, 3)
    fixed.flags.writeable = False
    several = (
        *(square, square.T, square[:, ::2], fixed, square[0], square.astype(np.float32)),
        *(np.zeros((0, 3)), np.frombuffer(bytes(9), np.float64, 1, 1)),
        *(True, 1, 2**62, -(2**63) + 1, 2**63, 1.0, None, np.int64(1), np.float64(1.0), "word"),
        *((1, 2), (1, 2.0), (1, 2, 3), ()),
    )
    for part in (*several, *reversed(several)):
        given = whole(small=part)
        try:
            kind = typeof(given)
        except ValueError:
            with pytest.raises(TypingError):
                pin(given)
        else:
            assert pin(given).kind is Handle.to(kind)


def test_a_type_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = whole(word=None)
    pin(given)
    monkeypatch.setattr(numba, "typeof", lambda part: int32 if part == -5 else float32)
    assert pin(given).kind is Handle.to(typeof(given))


def test_what_takes_the_place_of_another_is_read_by_the_same_handle() -> None:
    series = np.zeros(3, int)
    before = pin(whole(word=None))
    inner = Inner(False, (3, 9), np.arange(12.0).reshape(3, 4)[:, ::2])
    after = pin(whole(word=None, small=np.int32(7), inner=inner, series=series), before)
    assert (after.handle, after.kind) == (before.handle, before.kind)
    read = call_of(entry(_read_numbers), after.kind, int64)
    flags, numbers, seen = read(after.handle, 1)
    assert flags == (True, False, False, True)
    assert numbers == (7, 0.5, 9)
    assert seen == (inner.table[1, 1], (3, 2), 1)
    assert series.tolist() == [0, 1, 0]
    with pytest.raises(TypingError, match="cannot take the place of"):
        pin(whole(word=None, series=np.zeros(3)), after)


class Ended(NamedTuple):
    series: np.ndarray
    table: np.ndarray
    last: Any


class Long(NamedTuple):
    numbers: np.ndarray
    flag: bool


class Short(NamedTuple):
    flag: bool = True


def _sum(ended: Any) -> float:
    ended.series[0] += 1.0
    return ended.series.sum() + ended.table.sum()


def test_another_last_field_leaves_the_others_where_they_are() -> None:
    given = Ended(np.zeros(2), np.ones((2, 3)), Long(np.zeros(4), False))
    pinned = pin(given)
    short = pinned.ending(Short())
    assert short.handle == pinned.handle
    assert short.kind is Handle.to(typeof(given._replace(last=Short())))
    assert call_of(entry(_sum), short.kind)(short.handle) == 7.0
    assert given.series.tolist() == [1.0, 0.0]
