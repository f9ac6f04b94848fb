"""The network demo's figure: gain by slot of each policy, measured and by both twins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inferway.demo.network_result import PolicyResult
from inferway.experiments.curves import Curve, Panel, panels
from inferway.experiments.figure import save

__all__ = ["draw"]


def draw(path: Path, policies: Sequence[PolicyResult], slot_s: float) -> tuple[Path, Path]:
    """Draw and save it; PNG and SVG."""
    shown = []
    for one in policies:
        curves = [_curve("measured", one.gain_ms, slot_s, 0, "-")]
        if one.twin is not None:
            curves += [
                _curve("event twin", one.twin.gain_ms, slot_s, 1, "--"),
                _curve("slot twin", one.twin.slot_gain_ms, slot_s, 2, ":"),
            ]
        shown.append(Panel(one.policy, "time, s", "gain per request, ms", curves))
    values = [
        value
        for panel in shown
        for curve in panel.curves
        for value in curve.y
        if value == value  # slots without a request have none
    ]
    low, high = min([0.0, *values]), max([0.0, *values])
    room = 0.05 * max(high - low, 1.0)
    limits = (low - room, high + room)
    shown = [Panel(p.title, p.across, p.up, p.curves, limits_up=limits) for p in shown]
    title = "Gain by slot, the same requests for each policy"
    return save(panels(shown, columns=2, title=title), path)


def _curve(label: str, gain_ms: Sequence[float], slot_s: float, color: int, dash: str) -> Curve:
    middle = [(slot + 0.5) * slot_s for slot in range(len(gain_ms))]
    return Curve(label, middle, list(gain_ms), color=color, dash=dash)
