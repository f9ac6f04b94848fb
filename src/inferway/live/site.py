"""The loop-owned site: every request of one task passes here, between protocol and instances."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from inferway.live.counters import Counters
from inferway.live.doorbell import Doorbell
from inferway.live.explanation import Memory
from inferway.live.http.refusal import RefusalError
from inferway.live.instance import EXPIRED, Instance
from inferway.live.request import Outcome, Request
from inferway.runtime import Runtime, Signature
from inferway.site import HOLD, REJECT, Fleet
from inferway.site.view import SIZES

if TYPE_CHECKING:
    from inferway.dispatch.dispatcher import Plan

_HALF_WORD = 2**63
HELD_LIMIT = 1024
"""Requests in the central queue before it refuses more."""
UNSAID = 1 << 15
"""How low a request stands that states no priority: below all that do."""
FLUSH_S = 1.0
"""A process that dies loses what has been recorded for so long at most."""
REMEMBER_S = 60.0
"""How often the measured service times are kept."""


class Decisions(Protocol):
    """What a site needs of `inferway.dispatch.Dispatcher`."""

    fleet: Fleet
    site: Any
    """The view that its policy sees."""

    @property
    def predicted_wait_s(self) -> float:
        """Predicted wait of the last request dispatched."""

    @property
    def predicted_service_s(self) -> float:
        """Predicted service time of the last request dispatched."""

    @property
    def balance(self) -> float:
        """The accuracy balance."""

    def arrive(
        self,
        now_s: float,
        draw: int,
        deadline_s: float,
        floor: float,
        priority: int,
        classes: int,
        rows: int,
        counted: bool,
    ) -> int:
        """Choose a server and admit the request there."""

    def finish(self, server: int, now_s: float, service_s: float) -> None:
        """The request in service has been answered."""

    def withdraw(self, server: int, position: int, now_s: float, counted: bool) -> None:
        """A request leaves with no answer, from this place in the server's queue."""

    def plan(self, rate_per_s: float) -> Plan:
        """What the policy would keep at another arrival rate; may be called in any thread."""

    def adopt(self, plan: Plan) -> None:
        """Go on by a plan."""


class Written(Protocol):
    """What a site needs of `inferway.dispatch.recording.Recording`, besides its decisions."""

    error: OSError | None
    """Why it ended before its time."""

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""

    def close(self) -> None:
        """Write the last rows."""


class Site:
    """One task on this node: its dispatcher, its instances and what is on the way between them.

    All methods but the constructor belong to the event loop.

    Parameters
    ----------
    task
        Name that clients ask for.
    signature
        What all variants of the task take and give.
    dispatcher
        Decides; this site is its only caller.
    runtimes
        One per server of the fleet, in its order; servers of a class may share one. The site
        closes them.
    seed
        Of the random words.
    target
        Accuracy target for reports, or None.
    deadline_s
        From arrival, for requests that state none; or None.
    drop_late
        Whether a request whose deadline passes in a queue is dropped, or served late.
    window_s
        Over which the arrival rate is estimated for the policy, again and again; None where the
        policy needs none or has it from the file.
    remember
        Called once a minute and at the end, to keep what was measured; None keeps nothing.
    """

    def __init__(
        self,
        task: str,
        signature: Signature,
        dispatcher: Decisions,
        runtimes: Sequence[Runtime],
        *,
        seed: int = 0,
        target: float | None = None,
        deadline_s: float | None = None,
        drop_late: bool = True,
        window_s: float | None = None,
        remember: Callable[[], None] | None = None,
    ) -> None:
        fleet = dispatcher.fleet
        first = [int(server) for server in fleet.first]
        if len(runtimes) != first[-1]:
            raise ValueError(
                f"task {task!r} has {first[-1]} servers and {len(runtimes)} runtimes; "
                "there must be one per server"
            )
        self.task = task
        self.signature = signature
        self.dispatcher = dispatcher
        self.target = target
        self.deadline_s = deadline_s
        self.ready = False
        self.variants = fleet.variants
        self.accuracy = [float(value) for value in fleet.accuracy]
        self.rate = [float(value) for value in fleet.rate]
        self.first = first
        self.counters = Counters(fleet.variants)
        # Per server, as plain Python values.
        self.class_of = [
            k for k in range(len(fleet.variants)) for _ in range(first[k], first[k + 1])
        ]
        self.instances = [
            Instance(
                f"{task}/{fleet.variants[k]}#{server - first[k]}",
                runtime,
                self._finished,
                drop_late,
            )
            for (server, k), runtime in zip(enumerate(self.class_of), runtimes, strict=True)
        ]
        # What each server holds, in the dispatcher's order: the first is in service.
        self.queues: list[deque[Request]] = [deque() for _ in self.instances]
        self.held: deque[Request] = deque()
        self._drop_late = drop_late
        self._places = int(dispatcher.site.arrived_s.shape[1])
        self.traced: Callable[[str, Request], None] | None = None
        """Told the task and each request that has ended, for spans; None makes none."""
        self.heir: Site | None = None
        """Who has taken the task over."""
        self.left_balance = 0.0
        """The balance at that moment."""
        self.memory = Memory(fleet.variants, self.accuracy, first, target, self._places)
        view = dispatcher.site
        self._queue, self._ends_s, self._free_s = view.queue, view.ends_s, view.free_s
        self._row_s, self._held = view.row_s, view.held
        self._balance = view.balance
        self._word = random.Random(seed).getrandbits
        self._done: deque[Request] = deque()
        self._arrived = 0
        self._window_s = window_s
        self._remember = remember
        self._recording: Written | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._doorbell: Doorbell | None = None

    async def start(self) -> list[str]:
        """Warm every instance up and begin to serve.

        Returns
        -------
        list of str
            Names of instances that could not be warmed up, because their signature leaves open
            what would fit.
        """
        self._doorbell = Doorbell(asyncio.get_running_loop(), self._collect)
        cold = [
            instance.name
            for instance in self.instances
            if not await asyncio.to_thread(instance.warm_up)
        ]
        for instance in self.instances:
            instance.start()
        self.ready = True
        if self._window_s is not None:
            self._tasks.append(asyncio.create_task(self._estimate_rate(self._window_s)))
        if self._remember is not None:
            self._tasks.append(asyncio.create_task(self._keep()))
        return cold

    def record(self, folder: Path) -> None:
        """Write down from now on what the dispatcher is given and what it decides.

        Raises
        ------
        ValueError
            When the folder holds a recording already.
        OSError
            When nothing can be written there.
        """
        from inferway.dispatch.recording import Recording

        given: Any = self.dispatcher
        self.dispatcher = self._recording = Recording(given, folder)
        self._tasks.append(asyncio.create_task(self._flush(self._recording)))

    @property
    def recorded(self) -> bool:
        """Whether what the dispatcher decides is written down."""
        return self._recording is not None and self._recording.error is None

    async def stop(self, limit_s: float = 1.0) -> None:
        """Stop serving; what is queued is run first, as far as the limit allows."""
        self.ready = False
        for task in self._tasks:
            task.cancel()
        while self.held:
            request = self.held[0]
            self._unhold(request)
            self._end(request, Outcome.UNAVAILABLE, f"task {self.task!r} is no longer served")
        for instance in self.instances:
            instance.stop()
        deadline = time.monotonic() + limit_s
        ended = True
        for instance in self.instances:
            left_s = max(0.0, deadline - time.monotonic())
            ended &= await asyncio.to_thread(instance.join, left_s)
        # What has ended since the bell last rang.
        self._collect()
        # A thread that still runs its model keeps the runtime and the bell until the process ends.
        if self._doorbell is not None:
            (self._doorbell.close if ended else self._doorbell.mute)()
        if ended:
            for runtime in {id(one.runtime): one.runtime for one in self.instances}.values():
                runtime.close()
        if self._recording is not None:
            self._recording.close()
        await self.remember()

    async def remember(self) -> None:
        """Keep what was measured, where that is wanted."""
        if self._remember is not None:
            with suppress(OSError):  # what cannot be kept is measured again
                await asyncio.to_thread(self._remember)

    @property
    def in_flight(self) -> int:
        """Requests at the servers and in the central queue."""
        return sum(map(len, self.queues)) + len(self.held)

    def mask_of(self, variant: str) -> int:
        """Make the bit mask that pins a request to a variant."""
        return 1 << self.variants.index(variant)

    def submit(self, request: Request) -> None:
        """Take a request; its `deliver` is called when it has ended, maybe before this returns."""
        if not self.ready:
            self._end(request, Outcome.UNAVAILABLE, f"task {self.task!r} is not ready")
            return
        self._arrived += request.rows
        server = self._dispatch(request, request.classes, request.deadline_s)
        if server >= 0:
            return
        if server == HOLD:
            if len(self.held) < HELD_LIMIT or self._shed_held(request):
                self._hold(request)
                return
        elif request.priority and self._shed(request):
            return
        self._reject(request)

    def cancel(self, request: Request) -> None:
        """Forget a request whose client has gone: its place is freed.

        In service it is stopped where the runtime can stop; else its answer comes and goes
        nowhere. Neither counts.
        """
        if request.server < 0:
            if request not in self.held:
                return  # it has ended
            self._unhold(request)
        elif self.instances[request.server].cancel(request):
            self._leave(request)
            self._pull()
        else:
            request.abandoned = True
            if request.call is not None:
                request.call.terminate = True
            return
        request.outcome = Outcome.CANCELED
        self.counters.ended(Outcome.CANCELED, self._class(request))
        self.memory.keep(request)

    def _dispatch(self, request: Request, classes: int, deadline_s: float) -> int:
        dispatcher = self.dispatcher
        now_s = time.monotonic()
        request.before = (
            now_s,
            self._balance.item(),
            self._queue.tobytes(),
            self._ends_s.tobytes(),
            self._free_s.tobytes(),
            self._row_s.tobytes(),
        )
        server = dispatcher.arrive(
            now_s,
            self._word(64) - _HALF_WORD,
            deadline_s,
            request.floor,
            request.priority,
            classes,
            request.rows,
            request.counted,
        )
        if self.traced is not None:
            request.dispatched_s = time.monotonic()
        if server >= 0:
            request.server = server
            request.predicted_s = dispatcher.predicted_wait_s + dispatcher.predicted_service_s
            queue = self.queues[server]
            queue.append(request)
            self.instances[server].put(request)
            if request.deadline_s < math.inf and len(queue) > 1:
                self._time(request, now_s)
        return server

    def _time(self, request: Request, now_s: float) -> None:
        if request.deadline_s < math.inf and self._drop_late:
            left_s = max(0.0, request.deadline_s - now_s)
            loop = asyncio.get_running_loop()
            request.timer = loop.call_later(left_s, self._expire, request)

    def _hold(self, request: Request) -> None:
        self.held.append(request)
        self._held[0] = len(self.held)
        self._time(request, time.monotonic())

    def _unhold(self, request: Request) -> None:
        self.held.remove(request)
        self._held[0] = len(self.held)
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None

    def _expire(self, request: Request) -> None:
        # Its deadline passes in a queue: whoever asked should know at once, not when a server
        # comes to it.
        request.timer = None
        if request.server < 0:
            self._unhold(request)
            self._end(request, Outcome.EXPIRED, EXPIRED)
        elif request.outcome is None and self.instances[request.server].cancel(request):
            self._leave(request)
            self._end(request, Outcome.EXPIRED, EXPIRED)
            self._pull()

    def _shed(self, request: Request) -> bool:
        # Where every server that may answer is full, the newcomer takes the place of a queued
        # request of lower priority: the lowest one, of these the last, where the newcomer would
        # be in time behind the others.
        victim, lowest = None, request.priority
        mask = self._mask(request)
        left_s = request.deadline_s - time.monotonic()
        for server, (queue, k) in enumerate(zip(self.queues, self.class_of, strict=True)):
            if not mask >> k & 1:
                continue
            if len(queue) < self._places:
                return False  # not for want of room that it was refused
            behind_s = self._wait_s(server) + self._service_s(server, request.rows)
            for queued in islice(queue, 1, None):
                rank = queued.priority or UNSAID
                lower = rank > lowest or (
                    rank == lowest and victim is not None and queued.received_s > victim.received_s
                )
                if lower and behind_s - self._service_s(server, queued.rows) <= left_s:
                    victim, lowest = queued, rank
        if victim is None or not self.instances[victim.server].cancel(victim):
            return False
        self._leave(victim)
        placed = self._dispatch(request, request.classes, request.deadline_s) >= 0
        # The policy may refuse the newcomer all the same; then the place is the victim's again,
        # whose class and deadline have been decided on.
        if not placed:
            k = self.class_of[victim.server]
            victim.server = -1
            if self._dispatch(victim, 1 << k, math.inf) >= 0:
                return False
        victim.server = -1
        self._give_way(victim)
        return placed

    def _shed_held(self, request: Request) -> bool:
        # The same where the central queue is full.
        lowest = max(reversed(self.held), key=lambda held: held.priority or UNSAID)
        if not 0 < request.priority < (lowest.priority or UNSAID):
            return False
        self._unhold(lowest)
        self._give_way(lowest)
        return True

    def _give_way(self, victim: Request) -> None:
        victim.retry_after_s = self.drain_s(self._mask(victim))
        reason = "a request of higher priority took the place of this one; try again later"
        self._end(victim, Outcome.REJECTED, reason)

    def _mask(self, request: Request) -> int:
        # Classes that may answer, by pin and accuracy floor.
        mask = 0
        for k, accuracy in enumerate(self.accuracy):
            if request.classes >> k & 1 and accuracy >= request.floor:
                mask |= 1 << k
        return mask

    def _finished(self, request: Request) -> None:
        # In an instance's thread.
        self._done.append(request)
        assert self._doorbell is not None
        self._doorbell.ring()

    def _collect(self) -> None:
        done = self._done
        while done:
            try:
                self._settle(done.popleft())
            except Exception as error:  # the others are to have their answers all the same
                self._report(error)
        if self.held:
            self._pull()

    def _settle(self, request: Request) -> None:
        now_s = time.monotonic()
        dispatcher = self.dispatcher
        server = request.server
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None
        k = self.class_of[server]
        if request.outcome is Outcome.ANSWERED and not request.abandoned:
            request.variant = self.variants[k]
            request.latency_s = latency_s = now_s - request.received_s
            request.late = now_s > request.deadline_s
            request.balance = self._balance.item()
            # Sent before it is counted: what cannot be sent does not count.
            try:
                request.deliver(request)
            except RefusalError as refusal:
                request.outcome, request.reason = Outcome.INVALID, refusal.reason
            except Exception as error:
                request.outcome = Outcome.FAILED
                request.reason = f"the answer of {self.variants[k]} could not be sent"
                if not request.abandoned:
                    self._report(error)
            else:
                self.queues[server].popleft()
                dispatcher.finish(server, now_s, request.service_s)
                if request.late:
                    self.counters.late[k] += 1
                self.counters.answered(
                    k, request.rows, self.accuracy[k], latency_s, request.service_s
                )
                self.memory.keep(request)
                if self.traced is not None:
                    self.traced(self.task, request)
                return
        self._leave(request)
        if request.abandoned:
            request.outcome = Outcome.CANCELED
            request.reason = "the client went during the service"
            self.counters.ended(Outcome.CANCELED, k)
            self.memory.keep(request)
            return
        assert request.outcome is not None
        self._end(request, request.outcome, request.reason)

    def _report(self, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"task {self.task!r}: a request was not settled", "exception": error}
        )

    def _leave(self, request: Request) -> None:
        # Without an answer: the place is freed and the accuracy balance undone.
        queue = self.queues[request.server]
        position = queue.index(request)
        del queue[position]
        self.dispatcher.withdraw(request.server, position, time.monotonic(), request.counted)
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None

    def _pull(self) -> None:
        # A server fell free: the head of the central queue is decided again, and stays the head
        # when the policy still holds it.
        while self.held:
            request = self.held[0]
            deadline_s = request.deadline_s if self._drop_late else math.inf
            if deadline_s < time.monotonic():
                self._unhold(request)
                self._end(request, Outcome.EXPIRED, EXPIRED)
                continue
            timer, request.timer = request.timer, None
            server = self._dispatch(request, request.classes, deadline_s)
            if server == HOLD:
                request.timer = timer
                return
            if timer is not None:
                timer.cancel()
            self.held.popleft()
            self._held[0] = len(self.held)
            if server == REJECT:
                self._reject(request)

    async def _estimate_rate(self, window_s: float) -> None:
        seen, seen_s = 0, time.monotonic()
        while True:
            await asyncio.sleep(window_s)
            arrived, now_s = self._arrived, time.monotonic()
            rate_per_s = (arrived - seen) / (now_s - seen_s)
            seen, seen_s = arrived, now_s
            if rate_per_s <= 0.0:
                continue
            # Planned in another thread: linear programs take milliseconds, which the loop has not
            # to give. Adopted here, between two decisions, where a replay can put it too.
            with suppress(ValueError):  # the policy goes on with the plan that it has
                plan = await asyncio.to_thread(self.dispatcher.plan, rate_per_s)
                self.dispatcher.adopt(plan)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(REMEMBER_S)
            await self.remember()

    async def _flush(self, recording: Written) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            recording.flush()

    def _reject(self, request: Request) -> None:
        mask = self._mask(request)
        if not mask:
            best = max(a for k, a in enumerate(self.accuracy) if request.classes >> k & 1)
            reason = f"accuracy is {request.floor}; the most accurate variant here has {best:g}"
            self._end(request, Outcome.INVALID, reason)
            return
        request.retry_after_s = self.drain_s(mask)
        reason = f"task {self.task!r} has no room for this request now; try again later"
        if request.deadline_s < math.inf:
            left_s = request.deadline_s - time.monotonic()
            earliest_s = self._earliest_s(mask, request.rows)
            if earliest_s > left_s:
                request.retry_after_s = earliest_s - max(0.0, left_s)
                reason = (
                    f"no answer is predicted before {max(1e-3, earliest_s * 1e3):.3g} ms, and the "
                    f"deadline is in {max(0.0, left_s * 1e3):.3g} ms"
                )
        self._end(request, Outcome.REJECTED, reason)

    def _earliest_s(self, mask: int, rows: int) -> float:
        # Predicted time until the first of these classes has answered a newcomer.
        return min(
            self._wait_s(server) + self._service_s(server, rows)
            for server, k in enumerate(self.class_of)
            if mask >> k & 1
        )

    def _wait_s(self, server: int) -> float:
        # As policies predict it (`inferway.site.selection`).
        if not self.queues[server]:
            return 0.0
        ends_s: float = self._ends_s.item(server)
        free_s: float = self._free_s.item(server)
        return max(0.0, ends_s - time.monotonic()) + (free_s - ends_s)

    def _service_s(self, server: int, rows: int) -> float:
        row_s: float = self._row_s.item(server, min(SIZES - 1, (rows - 1).bit_length()))
        return rows * row_s

    def _end(self, request: Request, outcome: Outcome, reason: str) -> None:
        request.outcome = outcome
        request.reason = reason
        self.counters.ended(outcome, self._class(request))
        self.memory.keep(request)
        request.deliver(request)
        if self.traced is not None:
            self.traced(self.task, request)

    def _class(self, request: Request) -> int:
        return self.class_of[request.server] if request.server >= 0 else -1

    def drain_s(self, classes: int) -> float:
        """Predict in how many seconds the first server of these classes is idle."""
        times = [self._wait_s(server) for server, k in enumerate(self.class_of) if classes >> k & 1]
        return min(times, default=math.inf)
