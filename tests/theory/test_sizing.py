"""Sizing against trying all numbers of instances."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.dispatch import max_escalation_rate, max_rate, solve, solve_escalation
from inferway.dispatch.joint_bounds import JointMean, TaskDemand, solve_jointly
from inferway.dispatch.sizing import Need, TaskGroup, alone, cheapest, roomiest
from inferway.site import Fleet
from inferway.site.confidence import difficulty_tables


def fleet_of(need: Need, counts: tuple[int, ...]) -> Fleet:
    some = np.flatnonzero(counts)
    return Fleet(
        tuple(need.variants[v] for v in some),
        need.rate[some],
        need.accuracy[some],
        np.array(counts)[some],
        energy=need.energy[some],
        confidence=None if need.confidence is None else need.confidence.ordered(some),
    )


def fits(need: Need, counts: tuple[int, ...], load: float) -> float:
    """The greatest rate, where these instances could do; else 0."""
    if (np.array(counts) < need.least).any() or need.size_bytes @ counts > need.budget_bytes:
        return 0.0
    twice = need.confidence is not None
    try:
        fleet = fleet_of(need, counts)
        most = max_escalation_rate if twice else max_rate
        greatest = most(fleet, need.target, need.energy_budget)
        if greatest * load < need.rate_per_s * (1 - 1e-9):
            return 0.0
        least = solve_escalation if twice else solve
        least_s = least(fleet, need.target, need.rate_per_s, need.energy_budget).response_time_s
    except ValueError:
        return 0.0
    return greatest if least_s <= need.latency_s * (1 + 1e-9) else 0.0


def every(need: Need) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(int(most) + 1) for most in need.most))


@st.composite
def needs(draw: st.DrawFn) -> Need:
    size = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    accuracy, rate = rng.uniform(0.4, 0.99, size), rng.uniform(0.3, 4, size)
    twice = draw(st.booleans())
    tables = difficulty_tables(accuracy, float(rng.uniform(0.3, 0.95)), 0.5, bins=4)
    return Need(
        task="t",
        variants=tuple("abc"[:size]),
        rate_per_s=float(rng.uniform(0.5, 8)),
        latency_s=float(rng.uniform(0.3, 3)),
        target=None if rng.random() < 0.2 else float(rng.uniform(0.3, accuracy.max())),
        energy_budget=None if rng.random() < 0.5 else float(rng.uniform(1, 6)),
        rate=rate,
        accuracy=accuracy,
        energy=rng.uniform(0.5, 5, size),
        price=rng.integers(1, 6, size).astype(float),
        size_bytes=rng.integers(1, 4, size) * 2.0**30,
        least=rng.integers(0, 2, size),
        most=np.full(size, 4.0),
        budget_bytes=float(rng.choice([np.inf, 12 * 2.0**30])),
        confidence=tables if twice else None,
    )


@settings(max_examples=25, deadline=None)
@given(needs(), st.sampled_from([1.0, 0.7]))
def test_nothing_that_could_do_is_cheaper(need: Need, load: float) -> None:
    could = [counts for counts in every(need) if fits(need, counts, load)]
    found = cheapest(alone(need), load=load)
    if found is None:
        assert not could
        return
    assert fits(need, tuple(found.tolist()), load * (1 + 1e-6))
    assert need.price @ found == pytest.approx(min(need.price @ np.array(c) for c in could))


@settings(max_examples=25, deadline=None)
@given(needs(), st.integers(0, 1000))
def test_nothing_that_is_left_has_more_room(need: Need, seed: int) -> None:
    rng = np.random.default_rng(seed)
    failed = [rng.integers(0, 4, len(need.rate)) for _ in range(3)]
    below = float(rng.integers(3, 30))
    left = {
        counts: room
        for counts in every(need)
        if (room := fits(need, counts, 1.0))
        and need.price @ counts < below
        and all((np.array(counts) > few).any() for few in failed)
    }
    found = roomiest(alone(need), below=below, failed=failed)
    if found is None:
        assert not left
        return
    assert left[tuple(found.tolist())] == pytest.approx(max(left.values()), rel=1e-3)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1.0, 0.7]))
def test_nothing_that_could_do_for_several_tasks_is_cheaper(seed: int, load: float) -> None:
    rng = np.random.default_rng(seed)
    tasks = tuple(
        Need(
            task=name,
            variants=("a", "b"),
            rate_per_s=float(rng.uniform(0.5, 3)),
            latency_s=100.0,
            target=float(rng.uniform(0.3, 0.6)) if rng.random() < 0.5 else None,
            energy_budget=None,
            rate=rng.uniform(0.5, 3, 2),
            accuracy=rng.uniform(0.4, 0.99, 2),
            energy=rng.uniform(0.5, 5, 2),
            price=rng.integers(1, 6, 2).astype(float),
            size_bytes=np.full(2, 2.0**30),
            least=np.zeros(2, np.int64),
            most=np.full(2, 3.0),
            budget_bytes=np.inf,
        )
        for name in "tu"
    )
    budget = float(rng.choice([np.inf, 6 * 2.0**30]))
    means = (
        JointMean(("t", "u"), accuracy=float(rng.uniform(0.5, 0.9))),
        *([JointMean(("t", "u"), energy=float(rng.uniform(1, 4)))] if rng.random() < 0.5 else []),
    )
    could: list[float] = []
    for counts in itertools.product(range(4), repeat=4):
        own = np.array(counts[:2]), np.array(counts[2:])
        if sum(counts) * 2.0**30 > budget or not all(one.any() for one in own):
            continue
        demands = {
            need.task: TaskDemand(
                fleet_of(need, tuple(of.tolist())), need.rate_per_s / load, need.target
            )
            for need, of in zip(tasks, own, strict=True)
        }
        with suppress(ValueError):
            solve_jointly(demands, means)
            could.append(sum(need.price @ of for need, of in zip(tasks, own, strict=True)))
    asked = TaskGroup(tasks, means, budget)
    found = cheapest(asked, load=load)
    if found is None:
        assert not could
        return
    assert asked.price @ found == pytest.approx(min(could))


def test_what_highs_prints_stays_inside(capfd: pytest.CaptureFixture[str]) -> None:
    need = Need(
        "t", ("a", "b", "c", "d"), 20.0, 1.0, 0.76, None,
        np.array([2, 1, 0.9, 0.1]), np.array([0.7, 0.75, 0.8, 1.0]), np.zeros(4), np.ones(4),
        np.zeros(4), np.zeros(4, np.int64), np.full(4, np.inf), np.inf,
    )  # fmt: skip
    failed = []
    for load in (1.0, 0.9, 0.8):
        found = cheapest(alone(need), load=load)
        assert found is not None
        failed.append(found)
    assert roomiest(alone(need), below=25.0, failed=failed) is not None
    print("ours")
    assert capfd.readouterr().out == "ours\n"
