from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.deployment.units import RATE, RATIO, SIZE, TIME, Quantity, QuantityError

KINDS = [TIME, RATE, SIZE]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (TIME, "300 ms", 0.3),
        (TIME, "300ms", 0.3),
        (TIME, " 10.7 ms ", 0.0107),
        (TIME, "1e3 ns", 1e-6),
        (TIME, "5 us", 5e-6),
        (TIME, "5 µs", 5e-6),
        (TIME, "5 μs", 5e-6),
        (TIME, ".5 s", 0.5),
        (TIME, "2. s", 2.0),
        (TIME, "1.5 min", 90.0),
        (TIME, "2 h", 7200.0),
        (TIME, "1 d", 86400.0),
        (RATE, "120/s", 120.0),
        (RATE, "7500 /s", 7500.0),
        (RATE, "3/min", 0.05),
        (RATE, "2/h", 2 / 3600),
        (RATE, "1.5/ms", 1500.0),
        (SIZE, "7 B", 7),
        (SIZE, "1 kB", 1000),
        (SIZE, "1 GB", 10**9),
        (SIZE, "16 GiB", 2**34),
        (SIZE, "1.5 TiB", 3 * 2**39),
        (RATIO, "75 %", 0.75),
        (RATIO, 0.75, 0.75),
    ],
)
def test_reads_what_people_write(kind: Quantity, text: object, value: float) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (TIME, 300, '300 has no unit; write a time such as "300 ms"'),
        (TIME, "300", '300 has no unit; write a time such as "300 ms"'),
        (RATE, 0.5, '0.5 has no unit; write a rate such as "120/s"'),
        (SIZE, 16, '16 has no unit; write a size such as "16 GiB"'),
        (TIME, None, 'expected a time such as "300 ms", got nothing'),
        (TIME, True, 'expected a time such as "300 ms", got true'),
        (TIME, [1], 'expected a time such as "300 ms", got a list'),
        (TIME, {}, 'expected a time such as "300 ms", got a mapping'),
        (SIZE, "1e999 GiB", "1e999 GiB is too large for a size"),
    ],
)
def test_says_what_was_expected(kind: Quantity, value: object, sentence: str) -> None:
    if "too large" in sentence:
        with pytest.raises(QuantityError, match="too large"):
            kind.parse(value)
        return
    with pytest.raises(QuantityError, match=f"^{re.escape(sentence)}$"):
        kind.parse(value)


@pytest.mark.parametrize(
    "text", ["ms", "5 MS", "5 parsec", "1,5 s", "5 s s", "", "1e9999 s", "∞ s"]
)
def test_refuses_other_texts(text: str) -> None:
    with pytest.raises(QuantityError, match="is not a time"):
        TIME.parse(text)


def test_an_endless_number_is_refused_at_once() -> None:
    with pytest.raises(QuantityError, match="is not a time"):
        TIME.parse("9" * 1_000_000 + " s")


@given(
    st.sampled_from(KINDS),
    st.floats(min_value=1e-12, max_value=1e15, allow_nan=False, allow_infinity=False),
)
def test_writing_and_reading_gives_the_value_back(kind: Quantity, value: float) -> None:
    value = float(math.ceil(value)) if kind.whole else value
    assert kind.parse(kind.write(value)) == value


@given(st.sampled_from(KINDS), st.integers(0, 9999), st.integers(0, 999), st.data())
def test_every_unit_scales_exactly(
    kind: Quantity, whole: int, rest: int, data: st.DataObject
) -> None:
    unit = data.draw(st.sampled_from(sorted(kind.units)))
    thousandths = whole * 1000 + rest
    exact = kind.units[unit] * thousandths / 1000
    expected = float(round(exact)) if kind.whole else float(exact)
    text = f"{whole}.{rest:03d} {unit}"
    assert kind.parse(text) == expected
    assert re.fullmatch(kind.pattern, text)


@given(st.sampled_from(KINDS), st.text(max_size=12))
def test_the_published_pattern_agrees_with_the_reader(kind: Quantity, text: str) -> None:
    try:
        kind.parse(text)
        read = True
    except QuantityError:
        read = False
    assert read == bool(re.search(kind.pattern, text))
