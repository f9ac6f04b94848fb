"""The observation against one that is written down by hand, value after value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferway.dispatch import Dispatcher
from inferway.dispatch.alias import set_routing
from inferway.scheduling import UNKNOWN, Signal
from inferway.scheduling.observation import layout_of, observe
from inferway.site import Fleet, empty_site

SERVICE_S = (0.0107, 0.0429)


def busy(fleet: Fleet) -> Dispatcher:
    """Server 1 serves since 0.04 s, server 2 since 0 s with two behind; the time is 0.05 s."""
    site = Dispatcher(fleet, "alias", target=None, probabilities={"heavy": 1.0})
    for now_s, probabilities in (
        (0.0, [0, 0, 1, 0]),
        (0.01, [0, 0, 1, 0]),
        (0.03, [0, 0, 1, 0]),
        (0.04, [0, 1, 0, 0]),
    ):
        set_routing(site.policy, np.array(probabilities, float))
        site.arrive(now_s, 1)
    site.site.clock_s[0] = 0.05
    return site


def test_by_hand(fleet: Fleet) -> None:
    layout = layout_of(counts=fleet.count, service_s=SERVICE_S, buffer=15)
    assert layout.size == 4 * 33
    expected = np.zeros((4, 33))
    expected[[0, 1, 2, 3], [0, 1, 3, 0]] = 1.0
    expected[1, 16] = 0.01 / 0.0107
    expected[1, 17] = 0.01 / (15 * 0.0429)
    expected[2, 16] = 1.0  # for 0.05 s, longer than its class takes
    expected[2, 17:20] = np.array([0.05, 0.04, 0.02]) / (15 * 0.0429)
    found = observe(layout, busy(fleet).site, UNKNOWN)
    assert found.dtype == np.float32
    assert found == pytest.approx(expected.ravel(), abs=1e-6)


def test_ages_follow_the_ring_and_end_at_one(fleet: Fleet) -> None:
    dispatcher = busy(fleet)
    dispatcher.finish(2, 0.0429, 0.0429)
    dispatcher.site.clock_s[0] = 1.0
    layout = layout_of(counts=fleet.count, service_s=SERVICE_S, buffer=15)
    heavy = observe(layout, dispatcher.site, UNKNOWN).reshape(4, 33)[2]
    assert heavy[:4].tolist() == [0, 0, 1, 0]
    assert heavy[17:20].tolist() == [1, 1, 0]


def test_the_workload_is_seen_where_the_layout_says_so(fleet: Fleet) -> None:
    site = empty_site(fleet, None, 15)
    about: dict[str, Any] = {"counts": fleet.count, "service_s": SERVICE_S, "buffer": 15}
    layout = layout_of(**about, phases=2)
    assert layout.size == 134
    assert observe(layout, site, Signal(1, 7.0))[-2:].tolist() == [0, 1]
    assert observe(layout, site, UNKNOWN)[-2:].tolist() == [0, 0]
    periodic = layout_of(**about, phases=2, longest_phase_s=5000.0)
    assert observe(periodic, site, Signal(0, 1250.0))[-3:].tolist() == [1, 0, 0.25]


def test_batches_in_service(fleet: Fleet) -> None:
    dispatcher = busy(fleet)
    site = dispatcher.site
    site.running[2] = 2
    layout = layout_of(
        counts=fleet.count,
        service_s=SERVICE_S,
        buffer=15,
        batch_sizes=((1, 3, 5), (1, 3, 5)),
        batch_service_s=((0.0107, 0.02, 0.04), (0.0429, 0.1, 0.2)),
    )
    found = observe(layout, site, UNKNOWN)
    assert layout.size == len(found) == 4 * 33 + 4
    assert found[-4:] == pytest.approx([0, 1 / 5, 2 / 5, 0])
    # Elapsed services count by the longest batch.
    assert found.reshape(-1)[33 + 16] == pytest.approx(0.01 / 0.04)


def test_some_of_the_servers(fleet: Fleet) -> None:
    site = busy(fleet).site
    whole = observe(layout_of(counts=[2, 2], service_s=SERVICE_S, buffer=15), site, UNKNOWN)
    part = layout_of(counts=[1, 1], service_s=SERVICE_S, buffer=15)
    found = observe(part, site, UNKNOWN, np.array([1, 2]))
    assert found.tolist() == whole.reshape(4, 33)[[1, 2]].ravel().tolist()
