"""A server whose devices are given out anew, slot by slot, as `placement: {policy: assign}` says.

What is wanted `inferway.placement.assign` decides, and in which order devices change hands, as in
the twin. Here the demand is counted, and each step is another fleet for a task: a copy is loaded
and warm before it gets a request, and one that goes answers first what it has. A task's last copy
stays until another of its copies has come, whatever became of its device meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol

from inferway.deployment import Deployment
from inferway.deployment.overhead import MeasuredOverhead
from inferway.deployment.workloads import TraceArrivals
from inferway.dispatch.joint import means_of
from inferway.files import home_folder, write_whole
from inferway.live.copy_moves import CopyMove, CopyMoves
from inferway.live.errors import ServeError, WarmUpError
from inferway.live.options import ServerOptions
from inferway.live.site import TaskSite
from inferway.live.threads import run_detached
from inferway.placement.assign import WINDOW, Assign, Decision, Key, Shift, Step, with_copies
from inferway.unreadable import UNREADABLE
from inferway.workload.arrivals import mean_rate

KEPT: Final = 20
"""Decisions that moved something, or would have, that are told."""
_BARRED_SLOTS: Final = WINDOW  # A variant that could not be loaded is left alone so long
SCHEMA: Final = 1


class Replacing(Protocol):
    """Lets another fleet answer a task: these copies, or none."""

    def __call__(
        self, by: DeviceAssignment, task: str, copies: Mapping[Key, int]
    ) -> Awaitable[asyncio.Task[None] | None]:
        """Return what ends when the fleet before is gone; ServeError, WarmUpError where none is."""
        ...


class DeviceAssignment:
    """Gives out the devices of a server to the copies of all its tasks.

    All methods but the constructor belong to the event loop.

    Parameters
    ----------
    deployment
        Whose placement policy is `assign`.
    before
        The one that this one goes on from; None at a server's start.
    options
        Where copies and demand are kept from one run to the next, whether anything is moved, who is
        told, and by which clock requests are counted.
    log
        Told what moves, and what cannot.
    measured
        What requests are measured to take besides models, where the file does not say it; None
        before that is known.

    Attributes
    ----------
    shift
        The copies that there are, and are wanted.
    moved
        By task, variant, device and ``"loaded"`` or ``"retired"``, how many copies have.
    slots
        How many have ended.

    Raises
    ------
    ServeError
        Where the node lacks what the policy needs.
    """

    def __init__(
        self,
        deployment: Deployment,
        before: DeviceAssignment | None,
        options: ServerOptions,
        log: Any,
        measured: MeasuredOverhead | None = None,
    ) -> None:
        if measured is not None:
            deployment = deployment.with_overhead(measured)
        elif options.times is None:
            deployment = deployment.with_overhead(None)  # nothing is recalled
        assert deployment.placement is not None
        importlib.import_module("scipy.optimize")  # What decides: not when the first requests wait
        (place,) = deployment.nodes.values()
        self._deployment, self._place, self._log = deployment, place, log
        self._moves, self._now, self._told = not options.dry_run, options.now, options.reassigned
        # What is only tried begins with what the file says, and is not kept.
        self._file = None if options.dry_run else options.assigned
        try:
            self.policy = Assign.build(
                place,
                [*deployment.tasks.values()],
                means_of(deployment),
                **deployment.placement.options,
            )
            held = self._begun(before) or self.policy.stated(place, _rates_of(deployment))
        except ValueError as error:
            raise ServeError(f"{deployment.path}: placement: {error}") from error
        self.shift = Shift(self.policy.slots, self.policy.options, held)
        # Before an older one is followed, what it has told goes on.
        self.moved: Counter[tuple[str, str, str, str]] = Counter()
        self.slots = 0
        self.decisions: deque[dict[str, Any]] = deque(maxlen=KEPT)
        if before is not None:
            self.moved, self.slots = before.moved, before.slots
            self.decisions = before.decisions
        self._ended = False
        self._sites: Callable[[], Mapping[str, TaskSite]] = dict
        # What was decided last, for explanations: its number since the start, and why.
        self._decided: int = 0 if before is None else before._decided
        self._reason = ""
        self._running: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        # Of tasks whose last copy has given its device away and serves until another has come.
        self._lingering: dict[str, Counter[Key]] = {}
        # By task and variant, the slot from which on it may be tried again.
        self._barred: dict[tuple[str, str], int] = {}

    def set_overhead(self, measured: MeasuredOverhead) -> None:
        """Weigh copies from now on with what requests are measured to take besides models.

        As copies are weighed by their profiles, what models take beyond these counts as well. Where
        the file says an `overhead`, that stays.
        """
        self._deployment = self._deployment.with_overhead(measured)
        (self._place,) = self._deployment.nodes.values()
        self.policy.weigh(self._place, [*self._deployment.tasks.values()])
        self.shift.weigh(self.policy.options)

    @property
    def held(self) -> dict[Key, int]:
        """Copies that answer requests now."""
        copies = Counter(self.shift.serving)
        for lingering in self._lingering.values():
            copies.update(lingering)
        return {key: count for key, count in copies.items() if count > 0}

    def deployment(self, copies: Mapping[Key, int] | None = None) -> Deployment:
        """The deployment with these copies in place of those that its file lists."""
        place = with_copies(self._place, self.held if copies is None else copies)
        return replace(self._deployment, nodes={place.name: place})

    def begin(self, sites: Callable[[], Mapping[str, TaskSite]], swap: Replacing) -> None:
        """Count and decide from now on."""
        self._sites = sites
        self._running = asyncio.create_task(self._run(sites, swap))

    def retire(self) -> None:
        """Decide and begin nothing more: another one takes over, or the server ends."""
        self._ended = True
        if self._running is not None:
            self._running.cancel()

    async def ended(self, limit_s: float) -> None:
        """Wait until nothing is under way any more, as far as the limit allows."""
        self.retire()
        tasks = [one for one in (self._running, self._moving) if one is not None]
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=limit_s)
            for task in left:
                task.cancel()

    def status(self) -> dict[str, Any]:
        """Tell what there is and what was decided, for people and scripts."""
        return {
            "policy": "assign",
            "slot_s": self.policy.slot_s,
            "slots": self.slots,
            "dry_run": not self._moves,
            "copies": _named(self.held),
            "wanted": _named(self.shift.wanted),
            "moving": self._moving is not None and not self._moving.done(),
            "moves": sum(n for key, n in self.moved.items() if key[3] == "loaded"),
            "barred": ["/".join(pair) for pair in sorted(self._barred)],
            "decisions": [*self.decisions],
        }

    async def _run(self, sites: Callable[[], Mapping[str, TaskSite]], swap: Replacing) -> None:
        loop, slot_s = asyncio.get_running_loop(), self.policy.slot_s
        begun_s, due_s = self._now(), loop.time()
        before = _entered(sites())
        while not self._ended:
            # One that took longer than a slot leaves the slots out that it took.
            due_s = max(due_s + slot_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
            now_s, entered = self._now(), _entered(sites())
            length_s = max(now_s - begun_s, 1e-9)
            rates = {
                name: max(0, entered.get(name, 0) - before.get(name, 0)) / length_s
                for name in self._deployment.tasks
            }
            begun_s, before, self.slots = now_s, entered, self.slots + 1
            try:
                await self._decide(rates, swap)
            except Exception as error:
                self._log.error("nothing decided on devices", exc_info=error)

    async def _decide(self, rates_per_s: Mapping[str, float], swap: Replacing) -> None:
        self._barred = {pair: end for pair, end in self._barred.items() if end > self.slots}
        self.policy.barred = frozenset(self._barred)
        decision = await run_detached(self.policy.step, rates_per_s, self.shift.there)
        if decision.moves:
            self._tell(decision)
            if self._moves:
                self.shift.wanted = decision.copies
                self._decided, self._reason = self._decided + 1, decision.reason
                if self._moving is None or self._moving.done():
                    self._moving = asyncio.create_task(self._move(swap))
        self._keep()

    def _tell(self, decision: Decision) -> None:
        at = time.time()
        told = {"at": at, **decision.to_json(), "dry_run": not self._moves}
        self.decisions.append(told)
        moves = [
            " to ".join(
                "nothing" if one is None else f"{one['variant']} on {one['device']}"
                for one in (move["from"], move["to"])
            )
            for move in told["moves"]
        ]
        event = "devices are given out anew" if self._moves else "devices would be given out anew"
        self._log.info(event, reason=decision.reason, moves=moves)
        if self._told is not None:
            self._told(told)

    async def _move(self, swap: Replacing) -> None:
        """Bring about what is wanted, whatever that becomes meanwhile."""
        leaving: dict[asyncio.Task[None], list[Key]] = {}
        while not self._ended:
            changes: dict[str, list[Step]] = {}
            for step in iter(self.shift.next, None):
                changes.setdefault(step.key[0], []).append(step)
            for task, steps in changes.items():
                await self._change(task, steps, swap, leaving)
            if not changes and not leaving:
                self._keep()
                return
            if leaving:
                wait = asyncio.FIRST_COMPLETED
                limit_s = 0.0 if changes else None
                done, _ = await asyncio.wait(leaving, timeout=limit_s, return_when=wait)
                for one in done:
                    for key in leaving.pop(one):
                        self._retired(key)

    async def _change(
        self,
        task: str,
        steps: Sequence[Step],
        swap: Replacing,
        leaving: dict[asyncio.Task[None], list[Key]],
    ) -> None:
        """Let the task be answered by the copies that it has after some steps."""
        gone = [step.key for step in steps if step.kind == "retire"]
        come = [step.key for step in steps if step.kind == "load"]
        copies = {key: count for key, count in self.shift.there.items() if key[0] == task}
        if not copies and self.shift.wanted_of(task):
            self._lingering.setdefault(task, Counter()).update(gone)
            for key in gone:
                self._retired(key)
            return
        moves = self._moves_of(task)
        coming = [self._noted(moves, key, comes=True) for key in come]
        try:
            left = await swap(self, task, copies)
        except BaseException as error:
            for move in coming:
                moves.undo(move)
            if not isinstance(error, ServeError | WarmUpError | OSError):
                self._undo(task, gone, come)
                raise
            self._failed(task, gone, come, error)
            return
        for move in coming:
            move.ended_s = self._now()
        # What had lingered goes with the fleet that it was in.
        lingering = self._lingering.pop(task, Counter()).elements()
        self._note_leaving(moves, [*gone, *lingering], left)
        for key in come:
            self.shift.loaded(key)
            self.moved[*key, "loaded"] += 1
            self._log.info("copy loaded", task=task, variant=key[1], device=key[2])
        if gone and left is not None:
            leaving[left] = gone
        elif gone:
            for key in gone:
                self._retired(key)

    def _moves_of(self, task: str) -> CopyMoves:
        """Find what explanations of a task go by; of one that is there no more, nothing."""
        site = self._sites().get(task)
        return CopyMoves() if site is None else site.log.moves

    def _noted(self, moves: CopyMoves, key: Key, *, comes: bool) -> CopyMove:
        """Note for explanations that a copy comes or goes from now on."""
        return moves.begin(
            key[1],
            key[2],
            comes=comes,
            reason=self._reason,
            decision=self._decided,
            now_s=self._now(),
        )

    def _note_leaving(
        self, moves: CopyMoves, keys: Sequence[Key], left: asyncio.Task[None] | None
    ) -> None:
        """Note for explanations that copies go, until the fleet that they were in is gone."""
        going = [self._noted(moves, key, comes=False) for key in keys]

        def end(_: object = None) -> None:
            for move in going:
                move.ended_s = min(move.ended_s, self._now())

        if left is None:
            end()
        else:
            left.add_done_callback(end)

    def _retired(self, key: Key) -> None:
        self.shift.drained(key)
        self.moved[*key, "retired"] += 1
        self._log.info("copy retired", task=key[0], variant=key[1], device=key[2])

    def _failed(
        self, task: str, gone: Sequence[Key], come: Sequence[Key], error: Exception
    ) -> None:
        self._undo(task, gone, come)
        if self._ended:
            return
        for key in come:
            self._barred[key[:2]] = self.slots + _BARRED_SLOTS
        # The next slot decides without them.
        self.shift.wanted = self.shift.there
        variants = sorted({key[1] for key in come})
        self._log.warning("copies not moved", task=task, variants=variants, reason=str(error))

    def _undo(self, task: str, gone: Sequence[Key], come: Sequence[Key]) -> None:
        for key in come:
            self.shift.loading[key] -= 1
        for key in gone:
            self.shift.draining[key] -= 1
        self.shift.serving.update(gone)
        self.shift.serving.update(self._lingering.pop(task, Counter()))

    # What is kept from one run to the next.

    def _begun(self, before: DeviceAssignment | None) -> dict[Key, int] | None:
        """Copies and demand to go on from; None where there are none that the devices hold."""
        if before is not None:
            self.policy.forecast.go_on(before.policy.forecast.to_json())
            copies = before.held if self._moves else {}
        else:
            copies = self._recalled()
        return copies if copies and self.policy.holds(copies) else None

    def _recalled(self) -> dict[Key, int]:
        """Copies of the run before, whose demand is gone on from; none where nothing is kept."""
        if self._file is None:
            return {}
        with suppress(OSError, *UNREADABLE, KeyError, TypeError, ValueError, AttributeError):
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            if kept["schema"] == SCHEMA:
                copies = {(str(a), str(b), str(c)): int(n) for a, b, c, n in kept["copies"]}
                self.policy.forecast.go_on(kept["demand"])
                return copies
        return {}

    def _keep(self) -> None:
        if self._file is None:
            return
        kept = {
            "schema": SCHEMA,
            "copies": [[*key, count] for key, count in sorted(self.held.items())],
            "demand": self.policy.forecast.to_json(),
        }
        try:
            write_whole(self._file, json.dumps(kept))
        except OSError as error:
            reason = error.strerror or str(error)
            self._log.warning("copies not kept", file=str(self._file), reason=reason)


def assigned_file(deployment: Path | None) -> Path:
    """File that keeps which copies of a deployment file have which devices."""
    name = "" if deployment is None else str(deployment.resolve())
    return home_folder("state") / "assigned" / f"{sha256(name.encode()).hexdigest()[:16]}.json"


def _named(copies: Mapping[Key, int]) -> dict[str, int]:
    return {"/".join(key[:2]) + f":{key[2]}": count for key, count in sorted(copies.items())}


def _entered(sites: Mapping[str, TaskSite]) -> dict[str, int]:
    return {name: site.entered for name, site in sites.items()}


def _rates_of(deployment: Deployment) -> dict[str, float]:
    """Mean rates of the file's workload, as far as it says them, 1/s."""
    rates = {}
    for name, workload in deployment.workload.items():
        if not isinstance(workload.arrivals, TraceArrivals):
            with suppress(ValueError):
                rates[name] = mean_rate(workload.arrivals)
    return rates
