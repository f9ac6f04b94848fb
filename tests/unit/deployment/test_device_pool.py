"""The example of a pool of devices: what its comment says of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

import inferway
from inferway.deployment import Deployment
from inferway.deployment.workloads import MapArrivals
from inferway.twin.scenario import scenario_of
from inferway.twin.simulation import run
from inferway.workload import mean_rate


@pytest.fixture(scope="module")
def pool(examples: Path) -> Deployment:
    return inferway.load(examples / "device-pool.yaml")


def needed(pool: Deployment) -> float:
    """Fleets that the most accurate variants would need, if devices could be divided at will."""
    devices = pool.nodes["pool"].devices
    best = {
        name: max(one.variants.values(), key=lambda v: v.accuracy)
        for name, one in pool.tasks.items()
    }
    # The rate of each task on each device, and the part of each device that is in use.
    pairs = [(task, device) for task in best for device in devices]
    use, sums = np.zeros((len(devices), len(pairs) + 1)), np.zeros((len(best), len(pairs) + 1))
    for column, (task, device) in enumerate(pairs):
        kind = devices[device]
        use[list(devices).index(device), column] = (
            best[task].service_on(kind.hardware).mean_s / kind.slots
        )
        sums[list(best).index(task), column] = 1.0
    use[:, -1] = -1.0
    rates = [mean_rate(pool.workload[task].arrivals) for task in best]
    cost = np.zeros(len(pairs) + 1)
    cost[-1] = 1.0
    return float(linprog(cost, use, np.zeros(len(devices)), sums, rates).fun)


def test_the_most_accurate_everywhere_would_need_half_as_many_devices_again(
    pool: Deployment,
) -> None:
    assert needed(pool) >= 1.5
    assert needed(pool) == pytest.approx(1.91, abs=0.01)  # "almost twice as many devices"


def test_nine_tasks_on_forty_devices_of_three_kinds(pool: Deployment) -> None:
    (node,) = pool.nodes.values()
    assert len(pool.tasks) == 9
    assert [device.slots for device in node.devices.values()] == [20, 12, 8]
    held: Counter[str] = Counter()
    for placed in node.placed.values():
        held.update(placed)
    assert held == {name: device.slots for name, device in node.devices.items()}
    for workload in pool.workload.values():
        assert isinstance(workload.arrivals, MapArrivals)
        mean = mean_rate(workload.arrivals)
        highest = max(sum(row) for row in workload.arrivals.d1)
        assert highest == pytest.approx(1.25 * mean)


def test_tasks_on_one_device_whose_copies_can_all_run_at_once_are_simulated(
    pool: Deployment,
) -> None:
    result = run(scenario_of(pool, "forms"), queries=5_000, seed=1)
    assert result.devices is not None
    assert 0.0 < result.devices["small-gpu"] <= 2 / 12
    assert result.violation_ratio < 0.05
