from __future__ import annotations

import math

import pytest

from inferway.studies import Claim, claims


def test_claims_are_read_as_they_are_written():
    assert claims(
        """
      * [Sec. 2 (b)] The excess (1 - x) falls,
        and stays so.
        - largest rise: of all: 0.30000000000000004 (at most 0.5 ms)
        - from 1 to
          2 - 1
      * It holds.
        - how much: nan (1 to 2 %)
        """,
        "[ours] So does this.\n- how much: 3 (at least 1)\n-",
    )[::2] == [
        Claim(
            *("Sec. 2 (b)", "The excess (1 - x) falls, and stays so.", "largest rise: of all"),
            *(0.1 + 0.2, None, 0.5, "ms", "from 1 to 2 - 1"),
        ),
        Claim("ours", "So does this.", "how much", 3.0, 1, None),
    ]


def test_a_claim_stands_where_the_one_before_it_does():
    first, second = claims("* [A] One.\n- x: 1 (at most 1)\n\nTwo.\n- x: nan (0.5 to 1 %)")
    assert (first.where, second.where) == ("A", "A")
    assert math.isnan(second.value)
    assert (second.at_least, second.at_most, second.unit) == (0.005, 0.01, "%")


@pytest.mark.parametrize("text", ["", "It holds.", "It holds.\n- x: 1"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="a claim is a sentence, a measure"):
        claims(text)
