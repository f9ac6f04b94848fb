"""The bound of several tasks against closed forms, and against each task's own bound."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.dispatch import solve
from inferway.dispatch.bounds import UnreachableError
from inferway.dispatch.joint_bounds import JointMean, TaskDemand, best_mean, solve_jointly
from inferway.site import Fleet


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
