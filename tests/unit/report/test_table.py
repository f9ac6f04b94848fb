from __future__ import annotations

import io

import pytest
from rich.console import Console

from inferway.experiments.text import accuracy, milliseconds, percent, seconds, shares, table


@pytest.mark.parametrize(
    ("value", "written"),
    [(1.5, "1.5 s"), (0.0123, "12.3 ms"), (4.2e-5, "42 µs"), (None, "-"), (float("nan"), "-")],
)
def test_seconds(value, written):
    assert seconds(value) == written


def test_the_other_quantities():
    assert milliseconds(0.01234) == "12.3"
    assert percent(0.9512) == "95.1 %"
    assert percent(None) == "-"
    assert accuracy(0.9512) == "0.951"
    assert accuracy(0.9512, (0.94, 0.96)) == "0.951 [0.940, 0.960]"


def test_shares_leave_out_the_least():
    parts = {"tiny": 0.606, "rare": 0.004, "large": 0.39}
    assert shares(parts) == "tiny 61 %, large 39 %"
    assert shares({}) == "-"


def test_table_shows_its_cells():
    out = io.StringIO()
    laid = table("Title", ["name", "number"], [["a", "1"], ["b", "20"]], caption="below")
    Console(file=out, width=60).print(laid)
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert lines[0] == "Title"
    assert "below" in lines
    assert ["b", "20"] in [line.split() for line in lines]


def test_table_refuses_rows_of_another_length():
    with pytest.raises(ValueError, match="1 cells in a table of 2 columns"):
        table("t", ["a", "b"], [["1"]])
