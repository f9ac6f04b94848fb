from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from inferway.deployment.workloads import MapArrivals, PhasedArrivals, PoissonArrivals
from inferway.workload import PhaseCourse, Span, phases_of, spans


@pytest.fixture
def arrivals() -> PhasedArrivals:
    return PhasedArrivals.read(
        {
            "process": "phases",
            "phases": [
                {"for": "100 ms", "rate": "120/s", "accuracy_target": 0.95},
                {"for": "200 ms", "load": 0.5},
            ],
        }
    )


def test_spans_cycle_and_end_at_the_horizon(arrivals: PhasedArrivals) -> None:
    found = list(spans(arrivals, horizon_s=0.65, capacity_per_s=10))
    assert found[0] == Span(0, 0.0, 0.1, 120.0, 0.95)
    assert (found[1].rate_per_s, found[1].accuracy_target) == (5.0, None)
    assert [span.phase for span in found] == [0, 1, 0, 1, 0]
    assert [span.end_s for span in found] == pytest.approx([0.1, 0.3, 0.4, 0.6, 0.65])
    assert all(one.end_s == other.start_s for one, other in pairwise(found))


def test_the_rate_is_unknown_without_a_capacity(arrivals: PhasedArrivals) -> None:
    assert [s.rate_per_s for s in spans(arrivals, horizon_s=0.3)] == [120.0, None]


def test_the_phase_at_a_time(arrivals: PhasedArrivals) -> None:
    course = PhaseCourse(arrivals)
    at = [0.0, 0.05, 0.1, 0.29, 0.301, 0.55, 0.601]
    assert [course.at(time_s)[0] for time_s in at] == [0, 0, 1, 1, 0, 1, 0]


def test_late_phases_do_not_drift(arrivals: PhasedArrivals) -> None:
    *_, last = spans(arrivals, horizon_s=3000.05)
    assert last.start_s == pytest.approx(3000, abs=1e-9)


def test_each_phase_once(arrivals: PhasedArrivals) -> None:
    one, other = phases_of(arrivals, 10)
    assert one == Span(0, 0.0, 0.1, 120.0, 0.95)
    assert (other.phase, other.rate_per_s, other.accuracy_target) == (1, 5.0, None)
    steady = PoissonArrivals(process="poisson", load=0.5)
    assert phases_of(steady, 10) == (Span(0, 0.0, np.inf, 5.0, None),)
    assert phases_of(steady)[0].rate_per_s is None


def test_the_phases_of_a_markovian_process_have_their_own_rates() -> None:
    written = {"process": "map", "d0": [[-7, 2], [1, -4]], "d1": [[4, 1], [0, 3]]}
    found = phases_of(MapArrivals.read(written))
    assert found == (Span(0, 0.0, np.inf, 5.0, None), Span(1, 0.0, np.inf, 3.0, None))


def test_the_course_of_periodic_phases(arrivals: PhasedArrivals) -> None:
    course = PhaseCourse(arrivals)
    at = [0.0, 0.05, 0.125, 0.25, 0.375, 0.425]
    phases, times_s = zip(*(course.at(time_s) for time_s in at), strict=True)
    assert phases == (0, 0, 1, 1, 0, 1)
    since_s = [0.0, 0.05, 0.025, 0.15, 0.075, 0.025]
    assert list(times_s) == pytest.approx(since_s)


def test_a_process_without_phases_is_in_the_first_for_ever() -> None:
    phase, since_s = PhaseCourse(PoissonArrivals(process="poisson", load=0.5)).at(3.0)
    assert phase == 0
    assert np.isnan(since_s)
