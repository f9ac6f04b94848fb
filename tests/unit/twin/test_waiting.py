"""The pool of requests against lists."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from inferway.twin.kernel.state import empty_waiting, enlarged, pop, push

push_ = getattr(push, "py_func", push)
pop_ = getattr(pop, "py_func", pop)
QUEUES = 3


@given(st.lists(st.tuples(st.booleans(), st.integers(0, QUEUES - 1)), max_size=80))
def test_queues_are_queues_however_the_pool_grows(steps: list[tuple[bool, int]]) -> None:
    waiting = empty_waiting(QUEUES - 1, 2)
    plain: list[deque[tuple[float, int]]] = [deque() for _ in range(QUEUES)]
    for number, (comes, queue) in enumerate(steps):
        if comes:
            if waiting.free[1] == 0:
                waiting = enlarged(waiting)
            push_(waiting, queue, not plain[queue], float(number), number % 5)
            plain[queue].append((float(number), number % 5))
        elif plain[queue]:
            entry = pop_(waiting, queue)
            expected = plain[queue].popleft()
            assert (waiting.arrived_s[entry], waiting.phase[entry]) == expected
        assert waiting.free[1] == len(waiting.next) - sum(map(len, plain))


def test_a_pool_with_room_may_grow_too() -> None:
    waiting = empty_waiting(1, 3)
    push_(waiting, 0, True, 1.0, 0)
    waiting = enlarged(waiting)
    for number in range(5):
        push_(waiting, 1, number == 0, float(number), 0)
    assert waiting.free[1] == 0
    assert waiting.arrived_s[pop_(waiting, 0)] == 1.0
    assert [waiting.arrived_s[pop_(waiting, 1)] for _ in range(5)] == [0, 1, 2, 3, 4]
