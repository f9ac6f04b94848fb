"""From the copies that a node runs to those that placement wants: loaded, announced, unloaded.

One copy after the other, as `inferway.placement.moves` chooses. What comes is in memory and warm
before it is announced; what goes takes no more requests, answers its last, and is freed then. A
copy counts against the budget from the moment that it begins to load until it is gone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

from inferway.live.errors import LoadError, ServeError, WarmUpError
from inferway.live.node.models import LoadedModels, Pair
from inferway.placement.moves import Load, Unload, next_move

FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0
"""A variant that failed is tried again after these: each wait is twice the one before."""

# Sums of sizes that are not whole numbers of bytes are rounded.
_ROUNDING: Final = 1e-12


class Copy(NamedTuple):
    """One of the copies of a variant at the node."""

    task: str
    variant: str
    number: int

    @property
    def pair(self) -> Pair:
        """Pair of which it is a copy."""
        return self.task, self.variant


@dataclass(frozen=True)
class Moving:
    """A copy on its way.

    Attributes
    ----------
    name
        ``TASK/VARIANT``.
    step
        ``loading``, ``starting`` while sites take it up, or ``leaving``.
    done_bytes, total_bytes
        What has been fetched of its file; None where nothing is fetched, or nobody says how much
        it will be.
    """

    name: str
    step: str
    done_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True)
class LoadFailure:
    """A variant that could not be loaded.

    Attributes
    ----------
    name
        ``TASK/VARIANT``.
    reason
        Why, in one sentence.
    times
        How often in a row.
    again_s
        Seconds until it is tried again, while it is wanted; 0 where it is due.
    """

    name: str
    reason: str
    times: int
    again_s: float


@dataclass(frozen=True)
class MovesStatus:
    """Replicas that run and that move.

    Attributes
    ----------
    running
        Copies that take requests, by ``TASK/VARIANT``.
    moving
        Copies on their way.
    failures
        Variants that could not be loaded.
    budget_bytes
        Of the node; None without a bound.
    used_bytes
        Of the budget, by what runs, comes and goes.
    moved_bytes
        Loaded since the start, pinned copies left out, as the network twin counts them.
    """

    running: dict[str, int]
    moving: tuple[Moving, ...]
    failures: tuple[LoadFailure, ...]
    budget_bytes: float | None
    used_bytes: float
    moved_bytes: float


class Failed(NamedTuple):
    """Failure to load a variant: the reason, how often in a row, and when it is tried again."""

    reason: str
    times: int
    due_s: float


def name_of(pair: Pair) -> str:
    """Write ``TASK/VARIANT``."""
    return "/".join(pair)


class Reconciler:
    """Moves a node's copies; for one event loop.

    Parameters
    ----------
    models
        Holds the models.
    announce
        Called with the copies that are to take requests from now on, by task and variant; returns
        when no others do any more. It borrows from the models, and gives back what it borrowed for
        those that left. Where a new copy cannot be taken up, it raises `LoadError`, `ServeError` or
        `WarmUpError`, and is called again without it. After it was canceled it is called again.
    sizes
        Bytes of one copy, by task and variant.
    budget_bytes
        For all copies; infinite without a bound.
    pinned
        Copies that are always wanted and never unloaded, by task and variant.
    now
        Clock of the waits after failures, seconds; the loop's.
    log
        Where events go.

    Raises
    ------
    ValueError
        For a size or a budget that is none.
    """

    def __init__(
        self,
        models: LoadedModels,
        announce: Callable[[Mapping[Pair, int]], Awaitable[object]],
        *,
        sizes: Mapping[Pair, float],
        budget_bytes: float = math.inf,
        pinned: Mapping[Pair, int] | None = None,
        now: Callable[[], float] = time.monotonic,
        log: Any = None,
    ) -> None:
        if not budget_bytes >= 0:
            raise ValueError(f"a budget of {budget_bytes:g} bytes is refused; it must be 0 or more")
        for (task, variant), size in sizes.items():
            if not (size >= 0 and math.isfinite(size)):
                raise ValueError(f"{task}/{variant} has a size of {size:g} bytes; it must be known")
        self._models, self._announce_to = models, announce
        self._sizes, self._budget = dict(sizes), budget_bytes
        self._order = {pair: k for k, pair in enumerate(self._sizes)}
        self._now, self._log = now, log
        self._pinned = tuple(self._copies(pinned or {}))
        self._wanted: tuple[Copy, ...] = ()
        self._running: set[Copy] = set()
        self._leaving: set[Copy] = set()
        self._loading: Copy | None = None
        self._fetched: tuple[int, int | None] | None = None
        self._fresh: set[Copy] = set()
        """Loaded, and not announced yet."""
        self._told = True
        """Whether what runs has been announced."""
        self._failed: dict[Pair, Failed] = {}
        self._moved = 0.0
        self._turn = 0
        self._going: asyncio.Future[None] | None = None
        self._going_for: Pair = ("", "")
        self._one_at_a_time = asyncio.Lock()
        self._stirred = asyncio.Event()
        models.freed = self._stirred.set

    @property
    def pinned(self) -> dict[Pair, int]:
        """Copies that are always wanted."""
        return dict(Counter(copy.pair for copy in self._pinned))

    @property
    def running(self) -> dict[Pair, int]:
        """Copies that take requests, or will with the next announcement."""
        return dict(sorted(Counter(copy.pair for copy in self._running).items(), key=self._place))

    @property
    def used_bytes(self) -> float:
        """Bytes of the budget held by what runs, what is loading and what is not gone yet."""
        return math.fsum(self._sizes[copy.pair] for copy in self._held())

    @property
    def moved_bytes(self) -> float:
        """Bytes of all copies loaded since the start but the pinned ones."""
        return self._moved

    def status(self) -> MovesStatus:
        """Tell what runs, what moves and what failed."""
        settled = self._in_order(self._running - self._fresh)
        steps = (("starting", self._fresh), ("leaving", self._leaving))
        moving = [
            Moving(name_of(copy.pair), step)
            for step, copies in steps
            for copy in self._in_order(copies)
        ]
        if self._loading is not None:
            done = (None, None) if self._fetched is None else self._fetched
            moving.insert(0, Moving(name_of(self._loading.pair), "loading", *done))
        return MovesStatus(
            running=dict(Counter(name_of(copy.pair) for copy in settled)),
            moving=tuple(moving),
            failures=tuple(
                LoadFailure(name_of(pair), one.reason, one.times, max(0.0, one.due_s - self._now()))
                for pair, one in self._failed.items()
            ),
            budget_bytes=self._budget if math.isfinite(self._budget) else None,
            used_bytes=self.used_bytes,
            moved_bytes=self._moved,
        )

    async def toward(self, wanted: Mapping[Pair, int]) -> bool:
        """Have these copies run, and no others; a later call takes the place of this one.

        Returns when nothing is left that can be done now: a variant that fails is tried again by
        `persist`, or by the next call. Canceled, it leaves what runs announced, or to be announced
        next, and nothing half loaded.

        Parameters
        ----------
        wanted
            Copies, by task and variant, those to be loaded first in front. Pinned ones need not be
            among them.

        Returns
        -------
        done
            Whether these copies run and no others.

        Raises
        ------
        ValueError
            For a variant without a size, or a number of copies below 0.
        """
        copies = self._copies(wanted)
        self._wanted = (*self._pinned, *(one for one in copies if one not in self._pinned))
        self._turn += 1
        asked = {copy.pair for copy in self._wanted}
        for pair in [one for one in self._failed if one not in asked]:
            self._models.forget(*pair)
            if self._failed[pair].due_s <= self._now():
                del self._failed[pair]
        for pair in self._sizes.keys() - asked:
            self._models.forget(*pair)
        if self._going is not None and self._going_for not in asked:
            self._going.cancel()
        try:
            return await self._proceed(self._turn)
        finally:
            self._stirred.set()

    async def persist(self) -> NoReturn:
        """Try again, when it is time, what failed; go on when memory falls free. Until canceled."""
        while True:
            self._stirred.clear()
            looked_s = self._now()
            await self._proceed(self._turn)
            pairs = {copy.pair for copy in self._wanted if copy not in self._running}
            # What was due by then has been tried, if there was room for it.
            due = [
                one.due_s
                for pair, one in self._failed.items()
                if pair in pairs and one.due_s > looked_s
            ]
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(due) - self._now()) if due else None):
                    await self._stirred.wait()

    async def _proceed(self, turn: int) -> bool:
        async with self._one_at_a_time:
            self._sweep()
            while turn == self._turn:
                move = self._next(self._running, self._leaving)
                if isinstance(move, Load) and (self._told or move.pair.pair in self._models):
                    await self._go(self._load(move.pair), move.pair.pair)
                # What has come is taken up before anything goes: where it cannot be, the old stays.
                elif isinstance(move, Unload) and not self._fresh:
                    before = self._awaited(move)
                    # While the old copy still runs: what is not to be had need not take its place.
                    if before is not None and not self._models.is_ready(*before):
                        await self._go(self._prepare(before), before)
                        continue
                    self._running.remove(move.pair)
                    self._leaving.add(move.pair)
                    self._told = False
                elif not self._told:
                    await self._announce()
                else:
                    return self._running == set(self._wanted) and not self._leaving
            return False

    def _next(self, running: set[Copy], leaving: set[Copy]) -> Load[Copy] | Unload[Copy] | None:
        now = self._now()
        known = self._in_order({*running, *leaving, *self._wanted})
        off = {pair for pair, one in self._failed.items() if one.due_s > now}
        return next_move(
            running,
            (),
            leaving,
            self._wanted,
            {copy: self._sizes[copy.pair] for copy in known},
            self._budget,
            self._pinned,
            {copy for copy in self._wanted if copy.pair in off},
        )

    def _awaited(self, move: Unload[Copy]) -> Pair | None:
        """For which load a copy goes; None where none comes."""
        running: set[Copy] = set(self._running)
        following: Load[Copy] | Unload[Copy] | None = move
        while isinstance(following, Unload):
            running.remove(following.pair)
            following = self._next(running, set())
        return None if following is None else following.pair.pair

    async def _go(self, work: Coroutine[Any, Any, None], pair: Pair) -> None:
        """Do what a later `toward` may cancel; whoever is canceled meanwhile waits for its end."""
        self._going, self._going_for = asyncio.ensure_future(work), pair
        going = self._going
        try:
            await asyncio.wait({going})
        except asyncio.CancelledError:
            going.cancel()
            await asyncio.wait({going})
            raise
        finally:
            self._going = None
        if not going.cancelled():
            going.result()

    async def _load(self, copy: Copy) -> None:
        self._loading = copy
        self._check_budget()
        try:
            await self._models.load(*copy.pair, self._progress)
        except LoadError as error:
            self._fail(copy.pair, str(error))
        else:
            # Nothing waits between here and the copy's being counted.
            self._running.add(copy)
            self._fresh.add(copy)
            self._told = False
            if copy not in self._pinned:
                self._moved += self._sizes[copy.pair]
        finally:
            self._loading = self._fetched = None

    async def _prepare(self, pair: Pair) -> None:
        try:
            await self._models.prepare(*pair, self._progress)
        except LoadError as error:
            self._fail(pair, str(error))
        finally:
            self._fetched = None

    async def _announce(self) -> None:
        fresh = frozenset(self._fresh)
        try:
            await self._announce_to(self.running)
        except (LoadError, ServeError, WarmUpError) as error:
            if not fresh:
                raise
            for pair in {copy.pair for copy in fresh}:
                self._fail(pair, f"{name_of(pair)} could not be taken up: {error}")
            self._running -= fresh
            self._leaving |= fresh
        else:
            self._told = True
            for copy in fresh:
                self._failed.pop(copy.pair, None)
                self._say("loaded", copy)
            self._sweep()
        self._fresh.clear()

    def _sweep(self) -> None:
        """Count as gone what has left and whose memory is free."""
        if not self._told:
            return
        runs = {copy.pair for copy in self._running}
        for copy in self._in_order(self._leaving):
            # Weights that others share stay; those that are still lent go when they come back.
            if copy.pair in runs or self._models.release(*copy.pair):
                self._leaving.remove(copy)
                self._say("unloaded", copy)

    def _fail(self, pair: Pair, reason: str) -> None:
        times = self._failed[pair].times + 1 if pair in self._failed else 1
        wait_s = min(FIRST_S * 2.0 ** min(times - 1, 60), LONGEST_S)
        self._failed[pair] = Failed(reason, times, self._now() + wait_s)
        self._stirred.set()
        if self._log is not None:
            self._log.warning("not loaded", reason=reason, times=times, again_s=wait_s)

    def _say(self, event: str, copy: Copy) -> None:
        if self._log is not None:
            self._log.info(event, copy=f"{name_of(copy.pair)}#{copy.number}")

    def _progress(self, done_bytes: int, total_bytes: int | None) -> None:
        self._fetched = done_bytes, total_bytes

    def _held(self) -> set[Copy]:
        held = self._running | self._leaving
        return held if self._loading is None else held | {self._loading}

    def _check_budget(self) -> None:
        used = self.used_bytes
        assert used <= self._budget * (1 + _ROUNDING), (used, self._budget)

    def _copies(self, counts: Mapping[Pair, int]) -> list[Copy]:
        """Number the copies: the first of each variant, in their order, then the second ones."""
        for pair, count in counts.items():
            if pair not in self._sizes:
                raise ValueError(f"{name_of(pair)} has no size, so that no budget can hold it")
            if count < 0:
                raise ValueError(f"{count} copies of {name_of(pair)} cannot run; 0 or more can")
        most = max(counts.values(), default=0)
        return [
            Copy(*pair, number)
            for number in range(most)
            for pair, count in counts.items()
            if number < count
        ]

    def _in_order(self, copies: set[Copy]) -> list[Copy]:
        """By variant as the sizes are, the last copy of each in front: it goes first."""
        return sorted(copies, key=lambda copy: (self._order[copy.pair], -copy.number))

    def _place(self, item: tuple[Pair, int]) -> int:
        return self._order[item[0]]
