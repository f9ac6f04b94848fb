"""Moves of copies at one node: in the budget, new ones first, old ones while they are needed."""

from __future__ import annotations

import itertools
import random

import pytest

from inferway.placement.moves import Failed, Load, Moves, Rest, Unload

SIZE = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}


def next_move(running, loading, leaving, wanted, size, budget, pinned=(), failed=()):
    """The next move of copies that are what they are called; None for a rest."""
    moves = Moves(size.__getitem__, lambda copy: copy, list(size).index, budget, list(pinned))
    moves.running, moves.loading, moves.leaving = set(running), set(loading), set(leaving)
    moves.wanted = list(wanted)
    moves.failures = {copy: Failed("broken", 1, 1.0, 1.0) for copy in failed}
    move = moves.next(0.0)
    return None if isinstance(move, Rest) else move


def test_what_fits_is_loaded_in_the_order_given() -> None:
    assert next_move("", "", "", "cab", SIZE, 10.0) == Load("c")
    assert next_move("c", "", "", "cab", SIZE, 10.0) == Load("a")
    assert next_move("c", "a", "", "cab", SIZE, 10.0) == Load("b")
    # A smaller one may pass a larger one that does not fit yet.
    assert next_move("b", "", "", "ad", SIZE, 6.0) == Load("d")
    assert next_move("ab", "", "", "ab", SIZE, 7.0) is None


def test_what_is_loading_and_what_is_leaving_counts() -> None:
    assert next_move("", "a", "", "ab", SIZE, 6.0) is None
    assert next_move("", "", "a", "b", SIZE, 6.0) is None
    assert next_move("", "", "a", "b", SIZE, 7.0) == Load("b")


def test_old_copies_go_when_no_load_is_left() -> None:
    assert next_move("ab", "", "", "c", SIZE, 9.0) == Load("c")
    assert next_move("ab", "c", "", "c", SIZE, 9.0) is None
    assert next_move("abc", "", "", "c", SIZE, 9.0) == Unload("a")
    assert next_move("bc", "", "a", "c", SIZE, 9.0) == Unload("b")
    assert next_move("c", "", "", "c", SIZE, 9.0) is None


def test_old_copies_make_room() -> None:
    # The smallest that is enough alone.
    assert next_move("abd", "", "", "c", SIZE, 8.0) == Unload("b")
    assert next_move("ad", "", "b", "c", SIZE, 8.0) is None  # it is on its way out
    assert next_move("ad", "", "", "c", SIZE, 8.0) == Load("c")
    # Where none is enough, the largest first.
    assert next_move("bcd", "", "", "a", SIZE, 6.0) == Unload("b")
    assert next_move("cd", "", "b", "a", SIZE, 6.0) == Unload("d")
    assert next_move("c", "", "bd", "a", SIZE, 6.0) is None


def test_a_copy_that_is_wanted_again_while_it_leaves_comes_back_when_it_has_gone() -> None:
    assert next_move("", "", "a", "a", SIZE, 4.0) is None
    assert next_move("b", "", "a", "a", SIZE, 9.0) is None
    assert next_move("b", "", "", "a", SIZE, 9.0) == Load("a")


def test_pinned_copies_never_go() -> None:
    assert next_move("ab", "", "", "", SIZE, 9.0, pinned="ab") is None
    assert next_move("ab", "", "", "", SIZE, 9.0, pinned="a") == Unload("b")
    assert next_move("ab", "", "", "c", SIZE, 8.0, pinned="a") == Unload("b")
    assert next_move("ab", "", "", "c", SIZE, 8.0, pinned="ab") is None


def test_old_copies_stay_where_the_new_one_failed() -> None:
    assert next_move("a", "", "", "b", SIZE, 9.0, failed="b") is None
    assert next_move("a", "", "", "b", SIZE, 9.0) == Load("b")
    # But not where another load needs the room.
    assert next_move("a", "", "", "bc", SIZE, 5.0, failed="b") == Unload("a")
    # A failure that is over or not wanted keeps nothing.
    assert next_move("ab", "", "", "b", SIZE, 9.0, failed="b") == Unload("a")
    assert next_move("a", "", "", "", SIZE, 9.0, failed="b") == Unload("a")


def test_what_can_never_fit_stops_nothing() -> None:
    assert next_move("d", "", "", "ac", SIZE, 3.0) == Load("c")
    assert next_move("dc", "", "", "ac", SIZE, 3.0) == Unload("d")
    assert next_move("c", "", "", "ac", SIZE, 3.0) is None


def test_without_a_budget_all_is_loaded() -> None:
    assert next_move("", "abc", "", "abcd", SIZE, float("inf")) == Load("d")


@pytest.mark.parametrize("seed", range(30))
def test_it_ends_with_what_is_wanted_and_never_exceeds_the_budget(seed: int) -> None:
    chance = random.Random(seed)
    size = {pair: float(chance.randint(1, 9)) for pair in range(12)}
    pinned = {0}
    running, loading, leaving = {0}, set[int](), set[int]()
    budget = 25.0

    def some() -> list[int]:
        chosen, left = [0], budget - size[0]
        for pair in chance.sample(range(1, 12), 11):
            if size[pair] <= left:
                chosen.append(pair)
                left -= size[pair]
        return chosen

    for _ in range(5):
        wanted = some()
        steps = 0
        while True:
            steps += 1
            assert steps < 300
            move = next_move(running, loading, leaving, wanted, size, budget, pinned)
            match move:
                case Load(pair=pair):
                    loading.add(pair)
                case Unload(pair=pair):
                    running.remove(pair)
                    leaving.add(pair)
                case None if not loading and not leaving:
                    break
            assert sum(size[pair] for pair in itertools.chain(running, loading, leaving)) <= budget
            assert pinned <= running
            # Loads and departures end in any order, some late, some failed.
            if loading and (move is None or chance.random() < 0.3):
                pair = chance.choice(sorted(loading))
                loading.remove(pair)
                if chance.random() < 0.8:
                    running.add(pair)
            if leaving and (move is None or chance.random() < 0.3):
                leaving.remove(chance.choice(sorted(leaving)))
        assert running == set(wanted)
