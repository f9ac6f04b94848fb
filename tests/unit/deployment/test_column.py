from __future__ import annotations

from pathlib import Path

import pytest

from inferway.deployment.column import ColumnError, read_column, time_pieces


def times(path: Path) -> list[float]:
    """All times of a file, read two at a time."""
    return [float(time_s) for piece in time_pieces(path, 2) for time_s in piece]


def test_seconds_are_kept_and_a_heading_skipped(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\ufefftime,size\n0.5,3\n\n0.5,4\n1e1,5\n", encoding="utf-8")
    assert times(path) == [0.5, 0.5, 10.0]


def test_timestamps_count_from_the_first_to_the_nanosecond(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,n\n2023-11-16 23:59:59.9799600,1\n2023-11-17 00:00:00.0000001,2\n"
        "2023-11-17 00:00:01,3\n",
        encoding="utf-8",
    )
    assert times(path) == pytest.approx([0, 0.0200401, 1.02004], abs=1e-12)


def test_timestamps_with_a_zone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("2024-01-01T00:00:00.5Z\n2024-01-01T02:00:01+02:00\n", encoding="utf-8")
    assert times(path) == [0.0, 0.5]


def test_measurements_need_no_order(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("3\n1\n2\n", encoding="utf-8")
    assert read_column(path).tolist() == [3, 1, 2]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match="cannot be read"):
        read_column(tmp_path)
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(ColumnError, match="cannot be read"):
        read_column(tmp_path / "b.csv")
