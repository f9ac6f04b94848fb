"""From the copies that a node runs to those that placement wants: loaded, announced, unloaded.

One copy after the other, as `Moves` of `inferway.placement.moves` say: the event twin drives the
same. What comes is in memory and warm before it is announced; what goes takes no more requests,
answers its last, and is freed then. A copy counts against the budget from the moment that it begins
to load until it is gone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

from inferway.live.errors import LoadError, ServeError, WarmUpError
from inferway.live.node.models import LoadedModels, Pair
from inferway.placement.moves import Announce, Load, Moves, Rest, Unload

# Sums of sizes that are not whole numbers of bytes are rounded.
_ROUNDING: Final = 1e-12


class Copy(NamedTuple):
    """One of the copies of a variant at the node."""

    pair: Pair
    number: int


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
        Clock of the waits after failures, s.
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
        for pair, size in sizes.items():
            if not (size >= 0 and math.isfinite(size)):
                raise ValueError(f"{name_of(pair)} has a size of {size:g} bytes; it must be known")
        self._models, self._announce_to = models, announce
        self._sizes, self._now, self._log = dict(sizes), now, log
        place = {pair: k for k, pair in enumerate(self._sizes)}
        # By variant as the sizes are, the last copy of each in front: it goes first.
        self.moves = Moves[Copy, Pair](
            size=lambda copy: self._sizes[copy.pair],
            kind=lambda copy: copy.pair,
            order=lambda copy: (place[copy.pair], -copy.number),
            budget=budget_bytes,
            pinned=self._copies(pinned or {}),
        )
        # Bytes of a file that are here, and that it has; None where nobody says how many.
        self._fetched: tuple[int | None, int | None] = (None, None)
        self._turn = 0
        self._going: asyncio.Future[object] | None = None
        self._going_for: Pair = ("", "")
        self._one_at_a_time = asyncio.Lock()
        self._stirred = asyncio.Event()
        models.freed = self._stirred.set

    @property
    def running(self) -> dict[Pair, int]:
        """Copies that take requests, or will with the next announcement."""
        return dict(Counter(copy.pair for copy in self._in_order(self.moves.running)))

    def status(self) -> dict[str, Any]:
        """Tell what moves and what failed, for people and scripts.

        A copy on its way is ``loading``, ``starting`` while sites take it up, or ``leaving``, with
        the bytes of its file; a variant that failed is tried again in so many seconds.
        """
        moves, now_s = self.moves, self._now()
        steps: list[tuple[str, Iterable[Copy]]] = [
            ("loading", moves.loading),
            ("starting", self._in_order(moves.fresh)),
            ("leaving", self._in_order(moves.leaving)),
        ]
        return {
            "running_bytes": {
                name_of(pair): copies * self._sizes[pair] for pair, copies in self.running.items()
            },
            "used_bytes": moves.used_bytes,
            "moved_bytes": moves.moved_bytes,
            "moving": [
                {
                    "name": name_of(copy.pair),
                    "step": step,
                    "done_bytes": self._fetched[0] if step == "loading" else None,
                    "total_bytes": self._fetched[1] if step == "loading" else None,
                }
                for step, copies in steps
                for copy in copies
            ],
            "failures": [
                {
                    "name": name_of(pair),
                    "reason": one.reason,
                    "times": one.times,
                    "again_s": max(0.0, one.due_s - now_s),
                }
                for pair, one in moves.failures.items()
            ],
        }

    async def toward(self, wanted: Mapping[Pair, int]) -> bool:
        """Have these copies run, and no others; a later call takes the place of this one.

        Copies by task and variant, those to be loaded first in front; pinned ones need not be among
        them. Returns when nothing is left that can be done now, with whether these copies run and
        no others: a variant that fails is tried again by `persist`, or by the next call. Canceled,
        it leaves what runs announced, or to be announced next, and nothing half loaded. ValueError
        for a variant without a size, or a number of copies below 0.
        """
        asked = self.moves.want(self._copies(wanted), self._now())
        self._turn += 1
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
            # What was due by then has been tried, if there was room for it.
            rest = self.moves.next(looked_s)
            until_s = rest.until_s if isinstance(rest, Rest) else math.inf
            wait_s = max(0.0, until_s - self._now()) if until_s < math.inf else None
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stirred.wait()

    async def _proceed(self, turn: int) -> bool:
        moves = self.moves
        async with self._one_at_a_time:
            self._sweep()
            while turn == self._turn:
                move = moves.next(self._now())
                if isinstance(move, Load):
                    await self._go(self._load(move.pair), move.pair.pair)
                elif isinstance(move, Unload):
                    after = moves.successor(move, self._now())
                    # While the old copy still runs: what is not to be had need not take its place.
                    if after is None or self._models.is_ready(*after.pair):
                        moves.unload(move.pair)
                    else:
                        await self._go(self._have(self._models.prepare, after.pair), after.pair)
                elif isinstance(move, Announce):
                    await self._announce()
                else:
                    return moves.done
            return False

    async def _go(self, work: Coroutine[Any, Any, object], pair: Pair) -> None:
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
        moves = self.moves
        moves.load(copy)
        assert moves.used_bytes <= moves.budget * (1 + _ROUNDING), (moves.used_bytes, moves.budget)
        try:
            # Nothing waits between its being loaded and its being counted.
            if await self._have(self._models.load, copy.pair):
                moves.loaded(copy)
        finally:
            moves.loading.discard(copy)

    async def _have(self, get: Callable[..., Awaitable[None]], pair: Pair) -> bool:
        """Load or prepare a variant; whether that went well."""
        try:
            await get(*pair, self._progress)
        except LoadError as error:
            self._fail(pair, str(error))
            return False
        finally:
            self._fetched = (None, None)
        return True

    async def _announce(self) -> None:
        try:
            await self._announce_to(self.running)
        except (LoadError, ServeError, WarmUpError) as error:
            if not self.moves.fresh:
                raise
            for pair in self.moves.refused():
                self._fail(pair, f"{name_of(pair)} could not be taken up: {error}")
        else:
            for copy in self.moves.taken_up():
                self._say("loaded", copy)
            self._sweep()

    def _sweep(self) -> None:
        """Count as gone what has left and whose memory is free."""
        if not self.moves.announced:
            return
        runs = {copy.pair for copy in self.moves.running}
        for copy in self._in_order(self.moves.leaving):
            # Weights that others share stay; those that are still lent go when they come back.
            if copy.pair in runs or self._models.release(*copy.pair):
                self.moves.gone(copy)
                self._say("unloaded", copy)

    def _fail(self, pair: Pair, reason: str) -> None:
        one = self.moves.failed(pair, reason, self._now())
        self._stirred.set()
        if self._log is not None:
            self._log.warning("not loaded", reason=reason, times=one.times, again_s=one.wait_s)

    def _say(self, event: str, copy: Copy) -> None:
        if self._log is not None:
            self._log.info(event, copy=f"{name_of(copy.pair)}#{copy.number}")

    def _progress(self, done_bytes: int, total_bytes: int | None) -> None:
        self._fetched = done_bytes, total_bytes

    def _copies(self, counts: Mapping[Pair, int]) -> list[Copy]:
        """Number the copies: the first of each variant, in their order, then the second ones."""
        for pair, count in counts.items():
            if pair not in self._sizes:
                raise ValueError(f"{name_of(pair)} has no size, so that no budget can hold it")
            if count < 0:
                raise ValueError(f"{count} copies of {name_of(pair)} cannot run; 0 or more can")
        most = max(counts.values(), default=0)
        return [
            Copy(pair, number)
            for number in range(most)
            for pair, count in counts.items()
            if number < count
        ]

    def _in_order(self, copies: set[Copy]) -> list[Copy]:
        return sorted(copies, key=self.moves.order)
