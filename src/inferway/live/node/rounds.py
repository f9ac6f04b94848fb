"""What a node does at the end of each slot: measure, exchange letters, decide, save, move."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from inferway.live.aside import aside
from inferway.live.node.accounts import Accounts
from inferway.live.node.position import Position
from inferway.live.node.post import Post
from inferway.live.node.slots import SlotClock
from inferway.live.node.state import NodeState, Saved, StateError
from inferway.placement.local import LocalPolicy, loads_of, variants_of

__all__ = ["Rounds"]


class Rounds:
    """A node's part of placement, slot by slot.

    Parameters
    ----------
    position
        The node's.
    policy
        Its part of the placement policy.
    post
        Carries the policy's letters; None where it has none.
    accounts
        What was measured.
    clock
        When slots end.
    memory
        Where the state is kept.
    running
        Tells which copies run, by (task, variant).
    wanted
        Given, at the start and after each slot, the copies that are to run from now on.
    log
        Where events go.
    """

    def __init__(
        self,
        position: Position,
        policy: LocalPolicy,
        post: Post | None,
        accounts: Accounts,
        clock: SlotClock,
        memory: NodeState,
        *,
        running: Callable[[], Mapping[tuple[str, str], int]],
        wanted: Callable[[dict[tuple[str, str], int]], None],
        log: Any,
    ) -> None:
        network = position.deployed.network
        self._position, self.policy, self._post = position, policy, post
        self._accounts, self._clock, self._memory = accounts, clock, memory
        self._running, self._wanted, self._log = running, wanted, log
        self.slot = 0
        """Number of the last slot that has ended; 0 before the first."""
        self.ended = 0
        """Slots that have ended since the start."""
        self._names = variants_of(network, position.number)
        first, last = network.pairs.first[position.number : position.number + 2]
        models = network.models
        self._tasks = [
            network.tasks[models.task[model]] for model in network.pairs.model[first:last]
        ]
        # A repository's copies are planned for the greatest demand there may be (eq. 9); more of
        # them than processors serve nobody sooner.
        most = os.cpu_count() or 1
        self._copies = [min(max(1, int(count)), most) for count in network.pairs.pinned[first:last]]

    async def begin(self) -> None:
        """Take up what was saved, and say what is to run.

        Raises
        ------
        StateError
            Where what was saved is another network's, or damaged.
        """
        saved = await aside(self._memory.load)
        if saved is not None:
            try:
                self.policy.restore(saved.infida, closed=int(saved.random or b"0"))
            except ValueError as error:
                raise StateError(f"the node's state cannot be taken up: {error}") from error
            self.slot = int(saved.random or b"0")
            self._log.info("goes on", slot=self.slot, loaded=list(saved.loaded))
        if self._post is not None:
            self._post.open()
        self._say()

    async def go_on(self) -> None:
        """End one slot after another."""
        while True:
            slot = await self._clock.ended()
            if abs(slot.jumped_s) > 1.0:
                self._log.warning("the clock was set", by_s=round(slot.jumped_s, 3))
            try:
                await self._end(slot.number)
            except Exception as error:  # one slot must not cost all that follow
                self._log.error("a slot was not ended", slot=slot.number, exc_info=error)
            self.slot, self.ended = slot.number, self.ended + 1
            await self.save()

    async def _end(self, number: int) -> None:
        measured = self._accounts.cut()
        load = loads_of(self._position.data, self._names, measured.served, self.policy.x)
        if self._post is not None:
            self._post.close_slot(number, measured.arrived, load)
            await self._clock.letters()
            self._post.step()
        else:
            self.policy.close_slot(measured.arrived, measured.reached, load, slot=number)
            self.policy.step()
        self._say()

    async def save(self) -> None:
        """Keep the state; a disk that fails is reported, and the node goes on."""
        loaded = [
            f"{task}/{variant}#{copy}"
            for (task, variant), copies in self._running().items()
            for copy in range(copies)
        ]
        # All draws follow from the seed and the slot's number, which is their whole state.
        saved = Saved.copied(self.policy.state, loaded, str(self.slot).encode())
        try:
            await aside(self._memory.save, saved)
        except StateError as error:
            self._log.error("the state was not saved", reason=str(error))

    @property
    def wanted(self) -> dict[tuple[str, str], int]:
        """Copies that are to run, by (task, variant)."""
        found: dict[tuple[str, str], int] = {}
        for task, variant, on, copies in zip(
            self._tasks, self._names, self.policy.x.tolist(), self._copies, strict=True
        ):
            if on:
                found[task, variant] = found.get((task, variant), 0) + copies
        return found

    def _say(self) -> None:
        self._wanted(self.wanted)
