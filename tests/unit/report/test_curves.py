from __future__ import annotations

import math

from inferway.experiments.curves import Curve, Panel, panels
from inferway.experiments.figure import save


def shown(**changed):
    curves = [
        Curve("bound", (0.1, 0.5, 0.9), (1.0, 1.1, 1.2)),
        Curve(
            "policy", (0.1, 0.5, 0.9), (1.1, math.nan, 80.0), (0.01, math.nan, 9.0),
            (False, False, True), color=0, dash="--",
        ),
    ]  # fmt: skip
    return Panel("title", "load", "time, s", curves, **changed)


def lines(axes, marker):
    return [line for line in axes.lines if line.get_marker() == marker]


def test_unstable_points_are_hollow_and_stay_within_the_frame():
    figure = panels([shown(limits_up=(0.5, 2.0))])
    (axes,) = figure.axes
    solid, hollow = lines(axes, "o")
    assert hollow.get_xdata().tolist() == [0.9]
    assert hollow.get_ydata().tolist() == [2.0]
    assert hollow.get_markerfacecolor() == "white"
    # Neither the unstable point nor the one without a number is joined to the others.
    assert solid.get_xdata().tolist() == [0.1]
    assert [text.get_text() for text in figure.legends[0].texts] == [
        "bound",
        "policy",
        "unstable",
    ]


def test_each_label_stands_once_in_the_legend_of_all_panels():
    figure = panels([shown(), shown(), shown(), shown()], columns=2, title="All")
    assert len(figure.axes) == 4
    assert len(figure.legends[0].texts) == 3
    assert figure.get_suptitle() == "All"


def test_the_legend_fits_the_width(tmp_path):
    long = [Curve(f"a rather long name of a policy {i}", (0, 1), (0, 1), color=i) for i in range(5)]
    figure = panels([Panel("", "x", "y", long)])
    save(figure, tmp_path / "figure")
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_levels_scales_and_ticks_are_set():
    figure = panels(
        [
            shown(
                levels=[("target", 1.5)],
                scale_across="log",
                scale_up="log",
                ticks_across=(0.1, 0.9),
            )
        ]
    )
    (axes,) = figure.axes
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert axes.get_xticks().tolist() == [0.1, 0.9]
    assert [text.get_text() for text in axes.texts] == ["target"]


def test_a_point_alone_is_marked_and_a_dense_curve_is_not():
    x = (0.1, 0.5, 0.9)
    curves = [
        Curve("one", (0.5,), (1.0,), color=0, markers=False),
        Curve("one is a number", x, (math.nan, 2.0, math.nan), color=1, markers=False),
        Curve("theory's one", (0.5,), (3.0,)),
        Curve("dense", x, x, color=2, markers=False),
        Curve("theory", x, x),
    ]
    figure = panels([Panel("title", "load", "time, s", curves, limits_across=(0.0, 2.0))])
    (axes,) = figure.axes
    marked = [line.get_marker() not in ("", "None") for line in axes.lines]
    assert marked == [True, True, True, False, False]
    assert axes.get_xlim() == (0.0, 2.0)
