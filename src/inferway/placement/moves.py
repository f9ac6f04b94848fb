"""From what runs at a node to what is to run: one copy after another, never over the budget.

A copy takes memory from the moment that it begins to load until it has answered its last request
and gone. New copies are loaded before old ones go, as long as there is room for both.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

Pair = TypeVar("Pair", bound=Hashable)


class Load(NamedTuple, Generic[Pair]):
    """Begin to load a copy."""

    pair: Pair


class Unload(NamedTuple, Generic[Pair]):
    """Take a copy out: it gets no more requests, and goes once it has answered its last."""

    pair: Pair


def next_move(
    running: Collection[Pair],
    loading: Collection[Pair],
    leaving: Collection[Pair],
    wanted: Iterable[Pair],
    size: Mapping[Pair, float],
    budget: float,
    pinned: Collection[Pair] = (),
    failed: Collection[Pair] = (),
) -> Load[Pair] | Unload[Pair] | None:
    """Choose the next move.

    What fits is loaded, in the order of `wanted`. A copy that is not wanted goes when a load needs
    its room, or when no load is left; while one is under way, or has failed, the others stay, so
    that an old copy goes on serving where the new one does not come.

    Parameters
    ----------
    running, loading, leaving
        Copies that serve, that begin to and that end to.
    wanted
        Copies that are to run.
    size
        Bytes of each copy; by its order ties are broken.
    budget
        Bytes for all of them, pinned ones included.
    pinned
        Copies that never go.
    failed
        Copies that are not to be tried now.

    Returns
    -------
    Load, Unload or None
        None where nothing is to be done until something changes: a copy has been loaded or has
        gone, a failed one is to be tried again, others are wanted.
    """
    goal = list(wanted)
    held = {*running, *loading, *leaving}
    used = sum(size[pair] for pair in held)
    missing = [pair for pair in goal if pair not in held and pair not in failed]
    for pair in missing:
        if used + size[pair] <= budget:
            return Load(pair)
    coming = {*loading, *leaving}.intersection(goal)
    if coming:
        return None
    kept = {*goal, *pinned, *loading, *leaving}
    going = [pair for pair in size if pair in running and pair not in kept]
    soon = used - sum(size[pair] for pair in leaving)
    for pair in missing:
        lacking = soon + size[pair] - budget
        if lacking <= 0:
            return None
        if sum(size[other] for other in going) >= lacking:
            return Unload(_for_room(going, size, lacking))
    if not going or any(pair in failed for pair in goal if pair not in running):
        return None
    return Unload(going[0])


def _for_room(going: list[Pair], size: Mapping[Pair, float], lacking: float) -> Pair:
    """Choose the smallest copy that makes the room alone, else the largest."""
    enough = [pair for pair in going if size[pair] >= lacking]
    if enough:
        return min(enough, key=lambda pair: size[pair])
    return max(going, key=lambda pair: size[pair])
