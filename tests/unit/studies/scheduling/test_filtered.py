"""The filter of the workload's phase: the arrivals of the sites, and chances that are true."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.deployment.workloads import MapArrivals
from inferway.learning.site import SlottedSites
from inferway.studies.scheduling import burst
from inferway.studies.scheduling.filtered import PhaseFilter


def test_it_sees_the_arrivals_of_the_sites() -> None:
    control = burst.control("rl-fo")
    run = SlottedSites(control, count=5, seed=3)
    seen = PhaseFilter(control.scenario.arrivals, control.scenario.capacity_per_s, 5, 3)
    routing = np.full((5, 4), 0.25)
    for _ in range(200):
        run.step(routing)
        seen.step(1.0)
        assert (run.arrivals == seen.arrived).all()
        assert (run.phase == seen.phase).all()
    assert seen.arrived.sum() > 0


@pytest.mark.parametrize("d1", [[[3.0, 0.0], [0.0, 0.5]], [[1.0, 2.0], [0.3, 0.2]]])
def test_of_times_with_a_chance_so_many_are_in_the_phase(d1: list[list[float]]) -> None:
    silent = [[0.0, 0.4], [0.2, 0.0]]
    out = [-sum(a) - sum(b) for a, b in zip(silent, d1, strict=True)]
    d0 = [[out[0], silent[0][1]], [silent[1][0], out[1]]]
    arrivals = MapArrivals.read({"process": "map", "d0": d0, "d1": d1})
    seen = PhaseFilter(arrivals, 10.0, 400, 1)
    chances, truth = [], []
    for _ in range(100):
        chances.append(seen.step(0.7)[:, 0].copy())
        truth.append(seen.phase == 0)
    told, held = np.concatenate(chances), np.concatenate(truth)
    for low in np.arange(0.0, 1.0, 0.2):
        here = (told >= low) & (told < low + 0.2)
        if here.sum() > 500:
            error = 5 * np.sqrt(0.25 / here.sum()) * 2  # sites go on, so times are alike
            assert held[here].mean() == pytest.approx(told[here].mean(), abs=error)
    assert np.ptp(told) > 0.3  # it does tell phases apart
