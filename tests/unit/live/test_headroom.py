"""Headroom: what may run at once, who waits, and that nobody waits for ever."""

from __future__ import annotations

import random
import threading

import pytest

from inferway.live.headroom import Headroom, memory_need_of, tensors_of, too_many
from inferway.protocol import Signature, Tensor
from inferway.runtime.growth import Growth

MIB = 1024**2
NARROW = Signature((Tensor("x", "FP32", (-1, 4)),), (Tensor("y", "FP32", (-1, 4)),))
WIDE = Signature((Tensor("x", "FP32", (-1, 4)),), (Tensor("y", "FP32", (-1, MIB // 4)),))
OPEN = Signature((Tensor("x", "FP32", (-1, 4)),), (Tensor("y", "FP32", (-1, -1)),))


def test_between_two_sizes_there_is_a_line_and_beyond_the_last_it_goes_on() -> None:
    growth = Growth.of_peaks([(4, 40), (1, 10), (16, 400)])
    assert [growth.bytes(rows) for rows in (1, 2, 4, 10, 16)] == [10, 20, 40, 220, 400]
    assert growth.bytes(20) == 520
    assert [growth.most_rows(limit, 64) for limit in (9, 10, 220, 400, 10**6)] == [0, 1, 10, 16, 64]
    # A peak is no less than that of fewer rows.
    assert Growth.of_peaks([(1, 50), (2, 40)]).bytes(2) == 50
    assert Growth.of_peaks([(1, 5)]).bytes(3) == 15
    for wrong in ([], [(0, 1)], [(1, -1)], [("a", 1)]):
        with pytest.raises(ValueError, match=r"peaks are|invalid literal"):
            Growth.of_peaks(wrong)  # type: ignore[arg-type]


def test_runs_take_half_of_the_room_and_one_row_may_take_it_all() -> None:
    growth = Growth.of_peaks([(1, MIB), (64, 64 * MIB)])
    assert memory_need_of(growth, "measured", NARROW, 64, 200 * MIB).most_rows == 64
    cut = memory_need_of(growth, "measured", NARROW, 64, 40 * MIB)
    assert cut.most_rows == 19  # inputs count with them
    assert cut.runs[-1] <= 20 * MIB
    alone = memory_need_of(growth, "measured", NARROW, 64, int(1.5 * MIB))
    assert (alone.most_rows, alone.rows > 0) == (1, True)
    assert memory_need_of(growth, "measured", NARROW, 64, MIB // 2).rows == 0


def test_an_answer_counts_beside_the_run() -> None:
    growth = Growth.of_peaks([(1, MIB), (64, 64 * MIB)])
    wide = memory_need_of(growth, "measured", WIDE, 64, 100 * MIB)
    assert wide.answer(1) == 4 * MIB
    assert wide.runs[-1] + wide.answer(wide.rows) <= 100 * MIB
    assert wide.most_rows <= wide.rows
    narrow = memory_need_of(growth, "measured", NARROW, 64, 200 * MIB)
    assert (narrow.answer(1), narrow.answer(64)) == (0, 0)
    assert narrow.answer(65) == 65 * 4 * 4 * 4
    assert memory_need_of(growth, "measured", OPEN, 64, 200 * MIB).answer(10_000) == 0
    assert tensors_of(NARROW).bytes(2) == 2 * 4 * 32
    assert too_many(9, 4, 2 * MIB).endswith("2 MiB, leaves room for 4")


def _waits(headroom: Headroom, count: int) -> None:
    for _ in range(100_000):
        if headroom.waiting == count:
            return
        threading.Event().wait(1e-4)
    raise AssertionError(headroom.waiting)


def _begins(headroom: Headroom, run: int, answer: int = 0) -> threading.Thread:
    thread = threading.Thread(target=headroom.begin, args=(run, answer), daemon=True)
    thread.start()
    return thread


def test_who_finds_no_room_waits_and_small_ones_pass_a_while() -> None:
    headroom = Headroom(100)
    headroom.begin(60)
    large = _begins(headroom, 50)
    _waits(headroom, 1)
    for _ in range(64):
        headroom.begin(10)
        headroom.end(10)
    # Now it has been passed often enough.
    small = _begins(headroom, 10)
    _waits(headroom, 2)
    headroom.end(60)
    large.join(20)
    small.join(20)
    assert (headroom.held_bytes, headroom.waiting) == (60, 0)


def test_who_holds_an_answer_can_always_go_on() -> None:
    headroom = Headroom(100)
    headroom.begin(40, 30)
    # There is room for its answer and its run, and then not for the other's next.
    other = _begins(headroom, 50, 30)
    _waits(headroom, 1)
    headroom.end(40)
    _waits(headroom, 1)
    headroom.go_on(40)
    headroom.end(40)
    headroom.settle(40, 30)
    other.join(20)
    assert headroom.held_bytes == 80


def test_any_order_ends_and_never_exceeds_the_limit() -> None:
    headroom, limit = Headroom(100), 100
    wrong: list[int] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(300):
            runs = draw.choice([1, 1, 1, 4])
            run = draw.randint(1, 60)
            answer = draw.randint(1, 40) if runs > 1 else 0
            headroom.begin(run, answer)
            for number in range(runs):
                if number:
                    headroom.end(run)
                    headroom.go_on(run)
                if headroom.held_bytes > limit:
                    wrong.append(headroom.held_bytes)
            headroom.end(run)
            if answer:
                headroom.settle(run, answer)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert (wrong, headroom.held_bytes, headroom.waiting) == ([], 0, 0)
