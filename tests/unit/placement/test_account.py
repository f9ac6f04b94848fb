"""Sums by tier and task, against the arrays by option."""

from __future__ import annotations

import naive_placement as naive
import numpy as np
import pytest

from inferway.placement import serve
from inferway.placement.serving import spent, tally


def test_sums_are_those_of_the_options() -> None:
    network = naive.topology_i()
    requests = naive.batches_i(network, 1, sliding=False)[0]
    load = serve(network, requests, naive.some_allocation(network, 1, 0.1))
    options = network.options
    tiers, tasks = tally(network, load)
    type_of = np.repeat(np.arange(len(options.first) - 1), np.diff(options.first))
    for found, part in (
        (tiers, network.tier[options.node]),
        (tasks, network.requests.task[type_of]),
    ):
        for column, value in enumerate((1.0, network.latency_s, network.inaccuracy)):
            expected = np.bincount(part, load * value, len(found))
            assert found[:, column] == pytest.approx(expected)
    assert spent(network, load) == pytest.approx(np.bincount(type_of, load * options.cost))
