"""When slots end, on clocks that tests set."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from inferway.live.node.placement import Slot, SlotClock


class Clocks:
    """A wall clock and a steady one; who sleeps lets time pass."""

    def __init__(self, wall_s: float) -> None:
        self.wall_s, self.steady_s = wall_s, 5.0
        self.sleeps: list[float] = []
        self.sets: dict[int, float] = {}
        """By how much the wall clock is set in a sleep, by the sleep's number."""

    async def sleep(self, by_s: float) -> None:
        self.wall_s += by_s + self.sets.get(len(self.sleeps), 0.0)
        self.steady_s += by_s
        self.sleeps.append(by_s)

    def slots(self, slot_s: float, count: int) -> list[Slot]:
        clock = SlotClock(
            slot_s,
            wall=lambda: self.wall_s,
            steady=lambda: self.steady_s,
            sleep=self.sleep,
        )

        async def main() -> list[Slot]:
            return [await clock.ended() for _ in range(count)]

        return asyncio.run(main())


def test_slots_end_at_multiples_of_their_length() -> None:
    slots = Clocks(600.0).slots(60.0, 3)
    assert slots == [Slot(11, 60.0, 0.0), Slot(12, 60.0, 0.0), Slot(13, 60.0, 0.0)]


def test_nodes_that_start_at_any_time_agree_on_the_numbers() -> None:
    ends = {}
    for start in (600.0, 613.7, 629.0, 631.0, 659.9):
        clocks = Clocks(start)
        slots = clocks.slots(60.0, 3)
        ends[start] = [slot.number for slot in slots]
        assert clocks.wall_s == pytest.approx(slots[-1].number * 60.0)
    # A slot that has only just begun is no slot yet.
    assert ends[600.0] == ends[613.7] == ends[629.0] == [11, 12, 13]
    assert ends[631.0] == ends[659.9] == [12, 13, 14]


def test_short_slots_end_in_time_though_the_clock_is_looked_at_seldom() -> None:
    clocks = Clocks(1000.0)
    assert [slot.number for slot in clocks.slots(0.1, 5)] == [10001, 10002, 10003, 10004, 10005]
    assert max(clocks.sleeps) <= 0.1 + 1e-9


def test_a_clock_set_forward_over_many_slots_ends_them_together() -> None:
    clocks = Clocks(600.0)
    clocks.sets = {39: 3600.0}  # after 40 s
    first, second, third = clocks.slots(60.0, 3)
    assert first == Slot(70, 40.0, 3600.0)  # noticed within a second
    assert second == Slot(72, 80.0, 0.0)  # the next end came after 20 s
    assert third == Slot(73, 60.0, 0.0)


def test_a_clock_set_forward_early_in_a_slot_lengthens_it() -> None:
    clocks = Clocks(600.0)
    clocks.sets = {9: 3600.0}
    first, second = clocks.slots(60.0, 2)
    assert first == Slot(71, 60.0, 3600.0)
    assert second == Slot(72, 60.0, 0.0)


@pytest.mark.parametrize("back_s", [0.01, 5.0, 29.0, 45.0, 60.0, 3600.0])
def test_a_clock_set_back_is_followed(back_s: float) -> None:
    clocks = Clocks(600.0)
    clocks.sets = {70: -back_s}  # eleven seconds after the end of the first
    first, second, third = clocks.slots(60.0, 3)
    assert first.number == 11
    assert second.number * 60.0 == pytest.approx(670.0 + second.lasted_s - 10.0 - back_s)
    assert 30.0 <= second.lasted_s <= 120.0
    assert second.jumped_s == pytest.approx(-back_s)
    assert third.number == second.number + 1
    assert third.lasted_s == pytest.approx(60.0)


def test_a_clock_that_trembles_ends_no_slot_twice() -> None:
    for k in range(60):
        clocks = Clocks(600.0)
        clocks.sets = {n: (-0.02 if n % 2 else 0.02) for n in range(k, 400)}
        numbers = [slot.number for slot in clocks.slots(10.0, 6)]
        assert numbers == list(range(numbers[0], numbers[0] + 6))


def test_letters_are_waited_for_by_the_steady_clock() -> None:
    clocks = Clocks(600.0)
    clock = SlotClock(
        60.0,
        wall=lambda: clocks.wall_s,
        steady=lambda: clocks.steady_s,
        sleep=clocks.sleep,
    )

    async def main() -> None:
        await clock.ended()
        at = clocks.steady_s
        clocks.sets = dict.fromkeys(range(len(clocks.sleeps), 1000), -100.0)
        await clock.letters()
        assert clocks.steady_s == pytest.approx(at + 6.0)
        await clock.letters()  # over already
        assert clocks.steady_s == pytest.approx(at + 6.0)

    asyncio.run(main())


def test_slots_never_lie_closer_than_half_a_length_whatever_happens_once() -> None:
    for back, at in itertools.product((-200.0, -31.0, -1.0, 1.0, 29.0, 31.0, 200.0), range(150)):
        clocks = Clocks(600.0)
        clocks.sets = {at: back}
        for slot in clocks.slots(60.0, 4):
            assert 30.0 <= slot.lasted_s <= 120.0, (back, at)
