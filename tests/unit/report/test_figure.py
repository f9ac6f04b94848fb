from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from inferway.experiments.figure import Mark, save, trade_off

_POINTS = [
    Mark("quick", 0.6, (0.58, 0.62), 0.001, 0.002),
    Mark("careful", 0.95, (0.94, 0.96), 0.2, 0.5),
    Mark("between", 0.9, (0.89, 0.91), 0.01),
]
_BOUNDS = {
    "lower bound (LP)": [(0.6 + 0.01 * i, 0.001 * 1.1**i) for i in range(30)],
    "another": [(0.6 + 0.01 * i, 0.0008 * 1.05**i) for i in range(36)],
}


def test_everything_given_is_drawn_within_the_axes():
    figure = trade_off(_POINTS, bounds=_BOUNDS, target=0.92, title="Title", latency_label="mean")
    (axes,) = figure.axes
    texts = {text.get_text() for text in axes.texts}
    assert texts == {"quick", "careful", "between", *_BOUNDS, "target 0.92"}
    lines = [line for line in axes.lines if len(line.get_xdata()) in (30, 36)]
    assert [line.get_linestyle() for line in lines] == ["-", "--"]
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "mean"
    low, high = axes.get_xlim()
    assert low < 0.58
    assert high > 0.96
    bottom, top = axes.get_ylim()
    assert bottom < 0.0008
    assert top > 0.5
    whisker = axes.containers[0].lines[2][1].get_segments()[0]
    assert whisker[:, 1].tolist() == pytest.approx([0.001, 0.002])


def test_points_without_numbers_are_left_out():
    nan = float("nan")
    figure = trade_off([Mark("none", nan, (nan, nan), nan), *_POINTS])
    assert "none" not in {text.get_text() for text in figure.axes[0].texts}


def test_saved_as_png_and_svg_with_searchable_text(tmp_path):
    png, svg = save(trade_off(_POINTS, bounds=_BOUNDS, target=0.92), tmp_path / "new" / "f.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    root = ET.parse(svg).getroot()
    text = "".join(root.itertext())
    assert "careful" in text
    assert "10 ms" in text
    first = svg.read_bytes()
    save(trade_off(_POINTS, bounds=_BOUNDS, target=0.92), tmp_path / "new" / "f")
    assert svg.read_bytes() == first


def test_pyplot_is_never_loaded():
    code = "import sys, inferway.experiments.figure; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
