"""Fleets that the tests are about, and random ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from inferway.site import ConfidenceTables, Fleet


def fleet(rate: list[float], accuracy: list[float], count: list[int] | None = None) -> Fleet:
    """A fleet with variants named by their place."""
    names = tuple(f"v{k}" for k in range(len(rate)))
    count = count or [1] * len(rate)
    return Fleet(names, np.array(rate), np.array(accuracy), np.array(count))


def sure(of: Fleet) -> Fleet:
    """The same fleet with three bins of confidence: the surer a class, the more all are right."""
    mass = np.array([0.2, 0.3, 0.5])
    shift = np.array([-0.4, -0.1, 0.22])
    room = np.minimum(of.accuracy, 1.0 - of.accuracy)
    classes = len(of.rate)
    # The others know half of what a class knows of itself.
    share = 0.5 + 0.5 * np.eye(classes)
    expected = of.accuracy + shift[None, :, None] * (share * room)[:, None, :]
    edges = np.tile([0.3, 0.6], (classes, 1))
    return replace(of, confidence=ConfidenceTables(np.tile(mass, (classes, 1)), expected, edges))


def paper_fleet(per_class: int = 16) -> Fleet:
    """[Anonymous], Sec. 3.3."""
    return fleet([2, 1, 0.9, 0.1], [0.7, 0.75, 0.8, 1.0], [per_class] * 4)


@st.composite
def any_fleets(draw: st.DrawFn, max_classes: int = 6) -> Fleet:
    """Fleets of any order: some have dominated classes."""
    classes = draw(st.integers(1, max_classes))
    rate = draw(st.lists(st.floats(0.05, 20), min_size=classes, max_size=classes))
    accuracy = draw(st.lists(st.integers(1, 999), min_size=classes, max_size=classes))
    count = draw(st.lists(st.integers(1, 20), min_size=classes, max_size=classes))
    return sure(fleet(rate, [a / 1000 for a in accuracy], count))


@st.composite
def ordered_fleets(draw: st.DrawFn, max_classes: int = 6) -> Fleet:
    """Fleets ordered as in [Anonymous], Sec. 2.1: slower is more accurate, by a visible step."""
    classes = draw(st.integers(1, max_classes))
    steps = draw(st.lists(st.floats(1.02, 6), min_size=classes, max_size=classes))
    rate = 20 / np.cumprod(steps)
    accuracy = draw(st.sets(st.integers(1, 999), min_size=classes, max_size=classes))
    count = draw(st.lists(st.integers(1, 20), min_size=classes, max_size=classes))
    return fleet(list(rate), [a / 1000 for a in sorted(accuracy)], count)


targets = st.floats(0.0, 1.0)
"""Where the target stands between 0 and the best accuracy."""
loads = st.floats(0.01, 0.99)
