from __future__ import annotations

from dataclasses import replace

import pytest

from inferway.studies import run
from inferway.studies.scheduling import printed, table_2


def test_table_2_in_markdown(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="nothing of table-2 is stored"):
        printed.markdown("smoke", tmp_path)
    few = replace(table_2.STUDY.scales["smoke"], rows={"map": ("lw", "hand")}, slots=4_000)
    one = replace(table_2.STUDY, scales={"smoke": few})
    monkeypatch.setattr(table_2, "STUDY", one)
    wanted = [point for point in one.points(few) if point.label["row"] in ("lw", "hand")]
    monkeypatch.setattr(table_2, "STUDY", replace(one, points=lambda _: wanted))
    run(table_2.STUDY, "smoke", out=tmp_path, workers=0)
    lines = printed.markdown("smoke", tmp_path).splitlines()
    assert lines[0].startswith("| map | goodput")
    assert all(line.count("|") == len(printed.HEADINGS) + 1 for line in lines if line)
    cells = [cell.strip() for cell in lines[2].split("|")[1:-1]]
    assert (cells[0], cells[3], cells[-1]) == ("LW", "0.00", "77.69")
    assert float(cells[1]) == pytest.approx(77.69, abs=0.02)
