"""What Python lays out in memory is what compiled code reads."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core.errors import TypingError
from numba.core.types import int64

from inferway.site.compiled import call_of, entry
from inferway.site.handle import pin


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
