"""The bound of several tasks against closed forms, and against each task's own bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferway.dispatch import max_escalation_rate, max_rate, solve, solve_escalation
from inferway.dispatch.bounds import UnreachableError
from inferway.dispatch.joint_bounds import (
    JointMean,
    TaskDemand,
    best_mean,
    bound_jointly,
    greatest_factor,
    solve_jointly,
)
from inferway.site import Fleet
from inferway.site.confidence import difficulty_tables
from inferway.site.devices import DeviceSlots


def two(fast_s: float, slow_s: float, low: float, high: float, energy: float = 1.0) -> Fleet:
    return Fleet(
        ("fast", "slow"),
        1.0 / np.array([fast_s, slow_s]),
        np.array([low, high]),
        np.array([100, 100]),
        energy=np.array([energy, 3.0 * energy]),
    )


EASY, HARD = two(0.01, 0.02, 0.8, 0.9), two(0.01, 0.1, 0.6, 0.7)
DEMANDS = {"easy": TaskDemand(EASY, 30.0), "hard": TaskDemand(HARD, 10.0)}
BOTH = ("easy", "hard")


def test_accuracy_is_bought_where_it_costs_the_least_time() -> None:
    """A point costs easy 1 ms and hard 9 ms, so that hard buys what easy has not."""
    # With all fast the mean is .75, easy all slow adds .075.
    found = solve_jointly(DEMANDS, [JointMean(BOTH, accuracy=0.8)])
    assert found.shares["easy"] == pytest.approx([1 / 3, 2 / 3])
    assert found.shares["hard"] == pytest.approx([1.0, 0.0])
    assert found.prices == (pytest.approx(0.1),)  # s per unit of accuracy
    assert found.response_time_s == pytest.approx(0.75 * (0.01 + 0.01 * 2 / 3) + 0.25 * 0.01)
    found = solve_jointly(DEMANDS, [JointMean(BOTH, accuracy=0.835)])
    assert found.shares["easy"] == pytest.approx([0.0, 1.0])
    assert found.shares["hard"] == pytest.approx([0.6, 0.4])
    assert found.prices == (pytest.approx(0.9),)


def test_a_tasks_own_target_holds_as_well() -> None:
    demands = DEMANDS | {"hard": TaskDemand(HARD, 10.0, target=0.65)}
    found = solve_jointly(demands, [JointMean(BOTH, accuracy=0.8)])
    assert found.shares["hard"] == pytest.approx([0.5, 0.5])
    # Hard has brought .0125 of the .05 that are missing, so that easy brings half a point each.
    assert found.shares["easy"] == pytest.approx([0.5, 0.5])


def test_energy_is_saved_where_it_costs_the_least_time() -> None:
    wanted = {name: one._replace(target=0.85 if name == "easy" else None) for name, one in
              DEMANDS.items()}  # fmt: skip
    free = solve_jointly(wanted, [])
    assert free.shares["easy"] == pytest.approx([0.5, 0.5])
    least = best_mean(wanted, JointMean(BOTH, energy=9.0))
    assert least == pytest.approx(0.75 * 2.0 + 0.25)
    with pytest.raises(UnreachableError, match="no mix of the variants keeps all targets"):
        solve_jointly(wanted, [JointMean(BOTH, energy=1.7)])
    assert solve_jointly(wanted, [JointMean(BOTH, energy=1.8)]).response_time_s == pytest.approx(
        free.response_time_s
    )


def test_a_single_task_has_the_bound_that_it_has_alone() -> None:
    fleet = Fleet(
        ("a", "b", "c"),
        np.array([8.0, 3.0, 1.0]),
        np.array([0.6, 0.8, 0.95]),
        np.array([2, 2, 3]),
    )
    alone = solve(fleet, 0.8, 6.0)
    found = solve_jointly({"t": TaskDemand(fleet, 6.0, target=0.8)}, [])
    assert found.response_time_s == pytest.approx(alone.response_time_s)
    joint = solve_jointly({"t": TaskDemand(fleet, 6.0)}, [JointMean(("t",), accuracy=0.8)])
    assert joint.response_time_s == pytest.approx(alone.response_time_s)
    assert joint.prices[0] == pytest.approx(alone.price_s)


def test_together_is_never_slower_than_each_by_itself() -> None:
    generator = np.random.default_rng(5)
    for _ in range(30):
        fleets = {
            name: two(*np.sort(generator.uniform(0.01, 0.2, 2)), *np.sort(generator.random(2)))
            for name in "ab"
        }
        goal = min(float(one.accuracy.max()) for one in fleets.values()) * 0.95
        rates = dict(zip("ab", generator.uniform(1.0, 50.0, 2).tolist(), strict=True))
        own = {name: TaskDemand(one, rates[name], target=goal) for name, one in fleets.items()}
        apart = solve_jointly(own, [])
        free = {name: one._replace(target=None) for name, one in own.items()}
        together = solve_jointly(free, [JointMean(("a", "b"), accuracy=goal)])
        assert together.response_time_s <= apart.response_time_s * (1 + 1e-9)


SURE = Fleet(
    ("a", "b", "c"),
    np.array([8.0, 3.0, 1.0]),
    np.array([0.6, 0.8, 0.95]),
    np.array([2, 2, 3]),
    confidence=difficulty_tables(np.array([0.6, 0.8, 0.95]), 0.9, 0.5, bins=4),
)


@pytest.mark.parametrize("target", [0.7, 0.82, 0.9])
def test_a_single_task_that_may_ask_twice_has_the_bound_that_it_has_alone(target: float) -> None:
    mean = JointMean(("t",), accuracy=target)
    most = max_escalation_rate(SURE, target)
    for part in (0.2, 0.9):
        alone = solve_escalation(SURE, target, part * most)
        demand = {"t": TaskDemand(SURE, part * most)}
        found = solve_jointly(demand, [mean], twice=True)
        assert found.response_time_s == pytest.approx(alone.response_time_s)
        assert found.again["t"] == pytest.approx(alone.then.sum(), abs=1e-6)
        assert greatest_factor(demand, [mean], twice=True) == pytest.approx(1.0 / part)
    assert greatest_factor({"t": TaskDemand(SURE, 1.0)}, [mean]) == pytest.approx(
        max_rate(SURE, target)
    )


def test_tasks_that_share_a_device_are_carried_as_often_as_it_has_slots_for() -> None:
    def sharing(of: Fleet) -> Fleet:
        devices = DeviceSlots(
            names=("cpu",),
            slots=np.array([4]),
            exclusive=np.zeros(1, bool),
            overhead_s=np.zeros(1),
            device=np.array([0, 0]),
            taken=np.array([1, 1]),
        )
        return replace(of, devices=devices)

    demands = {"easy": TaskDemand(sharing(EASY), 30.0), "hard": TaskDemand(sharing(HARD), 10.0)}
    mean = JointMean(BOTH, accuracy=0.8)
    # Of the bound at low load: easy 16.7 ms, hard 10 ms, of four cores.
    assert greatest_factor(demands, [mean]) == pytest.approx(4.0 / (30.0 / 60.0 + 10.0 * 0.01))
    found = bound_jointly(demands, {"both": mean})
    assert found.escalate is None
    assert found.blind.prices == {"both": pytest.approx(0.1)}
    assert found.blind.shares is not None
    assert found.blind.shares["easy"]["slow"] == pytest.approx(2 / 3)
    full = {name: one._replace(rate_per_s=one.rate_per_s * 7.0) for name, one in demands.items()}
    short = bound_jointly(full, {"both": mean}, escalate=True)
    for one in (short.blind, short.escalate):
        assert one is not None
        assert one.max_factor == pytest.approx(4.0 / 0.6 / 7.0)
        assert one.least_response_time_s is None
