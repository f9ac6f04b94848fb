"""Assignment to devices against trying all copies, and its bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from inferway.placement.assignment import (
    Asked,
    Assignment,
    Option,
    Slots,
    assign,
    carried_per_s,
    fluid_bound,
)

MISSED = 10.0  # What a request costs that is not served


def option(
    task: str, variant: str, device: str, rate: float, accuracy: float, **more: int
) -> Option:
    size = more.get("size")
    return Option(
        task, variant, device, rate, 1.0 / rate, accuracy, 0.0, 0.0, more.get("slots", 1), size, 0.0
    )


@st.composite
def pools(draw: st.DrawFn) -> tuple[Slots, list[Option], dict[str, Asked]]:
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    slots = Slots({"cpu": draw(st.integers(1, 3)), "gpu": draw(st.integers(1, 2))})
    options = [
        option(task, variant, device, float(rng.uniform(1, 5)), accuracy)
        for task in ("a", "b")
        for variant, accuracy in (("low", 0.6), ("high", 0.9))
        for device in ("cpu", "gpu")
        if rng.random() < 0.7
    ]
    target = draw(st.sampled_from([None, 0.7]))
    asked = {task: Asked(float(rng.uniform(0.5, 6)), target=target) for task in ("a", "b")}
    return slots, options, asked


def value(options: list[Option], counts: tuple[int, ...], asked: dict[str, Asked]) -> float:
    """The best of these copies: a program of its own for each task."""
    total = 0.0
    for task, what in asked.items():
        own = [(one, n) for one, n in zip(options, counts, strict=True) if one.task == task]
        cost = [-one.accuracy for one, _ in own] + [MISSED]
        short = [[what.target - one.accuracy for one, _ in own] + [0.0]] if what.target else None
        solution = linprog(
            cost,
            short,
            None if short is None else [0.0],
            [[1.0] * len(cost)],
            [what.rate_per_s],
            bounds=[*((0, n * one.carried_per_s) for one, n in own), (0, None)],
        )
        total -= solution.fun
    return total


def best(slots: Slots, options: list[Option], asked: dict[str, Asked], every: bool) -> float | None:
    found = None
    for counts in itertools.product(*(range(slots.slots[one.device] + 1) for one in options)):
        used = dict.fromkeys(slots.slots, 0)
        copies = dict.fromkeys(asked, 0)
        for one, n in zip(options, counts, strict=True):
            used[one.device] += n
            copies[one.task] += n
        have = {one.task for one in options}
        if any(used[name] > most for name, most in slots.slots.items()) or (
            every and not all(copies[task] for task in have)
        ):
            continue
        worth = value(options, counts, asked)
        found = worth if found is None else max(found, worth)
    return found


def worth(found: Assignment, options: list[Option]) -> float:
    accuracy = {one.key: one.accuracy for one in options}
    served = sum(accuracy[key] * rate for key, rate in found.traffic_per_s.items())
    return served - MISSED * sum(found.unserved_per_s.values())


@given(pools(), st.booleans())
@settings(max_examples=25)
def test_no_other_copies_are_better(
    pool: tuple[Slots, list[Option], dict[str, Asked]], every: bool
) -> None:
    slots, options, asked = pool
    if len(options) > 6:
        options = options[:6]
    expected = best(slots, options, asked, every)
    found = assign(slots, options, asked, every=every)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert worth(found, options) == pytest.approx(expected, rel=1e-3, abs=1e-3)
    carried = {one.key: one.carried_per_s for one in options}
    for key, rate in found.traffic_per_s.items():
        assert rate <= found.copies[key] * carried[key] * (1 + 1e-6)
    rates = {task: what.rate_per_s for task, what in asked.items()}
    served = worth(found, options) + MISSED * sum(found.unserved_per_s.values())
    assert found.accuracy == pytest.approx(served / sum(rates.values()), abs=1e-9)
    assert served / sum(rates.values()) <= fluid_bound(slots, options, rates) + 1e-6


def test_what_limits_copies() -> None:
    options = [
        option("a", "v", "gpu", 10.0, 0.9, size=3),
        option("a", "w", "gpu", 10.0, 0.8, size=1),
    ]
    asked = {"a": Asked(35.0)}
    assert assign(Slots({"gpu": 4}), options, asked).copies == {("a", "v", "gpu"): 4}
    # 3 bytes or 1 byte each: one of the large ones beside three of the small.
    small = Slots({"gpu": 4}, memory_bytes={"gpu": 6 << 20})
    sized = [replaced(one, (one.size_bytes or 0) << 20) for one in options]
    assert assign(small, sized, asked).copies == {("a", "v", "gpu"): 1, ("a", "w", "gpu"): 3}
    budget = Slots({"gpu": 4}, budget_bytes=6 << 20)
    assert assign(budget, sized, asked).copies == {("a", "v", "gpu"): 1, ("a", "w", "gpu"): 3}
    limited = {"a": Asked(35.0, most=2)}
    assert assign(Slots({"gpu": 4}), options, limited).copies == {
        ("a", "v", "gpu"): 2,
        ("a", "w", "gpu"): 2,
    }
    pinned = {"a": Asked(5.0, least={"w": 2})}
    assert assign(Slots({"gpu": 4}), options, pinned).copies[("a", "w", "gpu")] == 2
    assert assign(Slots({"gpu": 1}), options, pinned) is None


def replaced(one: Option, size: int) -> Option:
    return option(one.task, one.variant, one.device, one.carried_per_s, one.accuracy, size=size)


def test_a_change_is_made_where_it_is_worth_it() -> None:
    options = [option("a", "v", "gpu", 10.0, 0.9), option("a", "w", "gpu", 10.0, 0.8)]
    held = {("a", "w", "gpu"): 1}
    asked = {"a": Asked(10.0)}
    # A point more of ten requests a second; a second of loading costs nine right answers.
    kept = assign(Slots({"gpu": 1}), options, asked, held=held, stay_s=8.0)
    moved = assign(Slots({"gpu": 1}), options, asked, held=held, stay_s=10.0)
    assert kept.copies == held
    assert moved.copies == {("a", "v", "gpu"): 1}
    assert moved.worth == pytest.approx(0.9 - 0.9 * 10.0 / 10.0 / 10.0, abs=1e-4)
    fixed = assign(Slots({"gpu": 1}), options, asked, held=held, fixed=True)
    assert fixed.copies == held
    assert fixed.worth == pytest.approx(0.8, abs=1e-4)


def test_no_task_is_left_without_a_copy_unless_it_may_be() -> None:
    options = [option("a", "v", "gpu", 10.0, 0.9), option("b", "v", "gpu", 0.1, 0.9)]
    asked = {"a": Asked(20.0), "b": Asked(1.0)}
    assert len(assign(Slots({"gpu": 2}), options, asked).of("b")) == 1
    assert assign(Slots({"gpu": 2}), options, asked, every=False).of("b") == {}


def test_what_a_copy_carries_within_a_deadline() -> None:
    # Two runs fit into the deadline; of a longer one, less the less time is left.
    assert carried_per_s(0.1, {}, None) == pytest.approx(10.0)
    assert carried_per_s(0.1, {}, 0.2) == pytest.approx(10.0)
    assert carried_per_s(0.1, {}, 0.15) == pytest.approx(5.0)
    assert carried_per_s(0.1, {}, 0.1) == 0.0
    assert carried_per_s(0.1, {4: 0.2, 8: 0.3}, None) == pytest.approx(8 / 0.3)
    assert carried_per_s(0.1, {4: 0.2, 8: 0.3}, 0.5) == pytest.approx(20.0)


def test_the_bound_of_nothing_is_nothing() -> None:
    options = [option("a", "v", "gpu", 10.0, 0.9)]
    assert fluid_bound(Slots({"gpu": 1}), options, {"a": 0.0}) == 0.0
    assert fluid_bound(Slots({"gpu": 1}), options, {"b": 1.0}) == 0.0
