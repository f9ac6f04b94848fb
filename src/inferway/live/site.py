"""The loop-owned site: every request of one task passes here, between protocol and instances."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferway.live.batching import Batching
from inferway.live.central import HELD_LIMIT, CentralQueue
from inferway.live.decisions import Decisions
from inferway.live.departures import Departures
from inferway.live.desk import Desk
from inferway.live.explain import RequestLog
from inferway.live.headroom import Headroom, MemoryNeed
from inferway.live.health import Health
from inferway.live.hops.breaker import RetryBudget
from inferway.live.hops.forwarder import Forwarder, Forwarding
from inferway.live.hops.headers import Trail
from inferway.live.hops.watch import Watch
from inferway.live.instance import Instance, join
from inferway.live.predict import Forecast
from inferway.live.queues import Queues
from inferway.live.reassignment import Reassignment
from inferway.live.request import Job, Outcome, Request
from inferway.live.scheduler import SchedulerLoop
from inferway.live.service import OneByOne, Service
from inferway.live.settlement import Settlement
from inferway.live.shedding import Shedding
from inferway.live.stats import Stats
from inferway.live.threads import Wakeup, run_detached
from inferway.live.turn import Turn
from inferway.live.upkeep import Upkeep
from inferway.protocol import Signature
from inferway.runtime import Runtime
from inferway.site import HOLD
from inferway.site.view import WHOLE

if TYPE_CHECKING:
    from inferway.dispatch.batching import Rule
    from inferway.dispatch.recording import Recording
    from inferway.scheduling import Controller


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
        closes them. Where a class stands for another node's offer, a `Forwarding` takes the place.
    seed
        Of the random words.
    target
        Accuracy target for reports, or None.
    deadline_s
        From arrival, for requests that state none; or None.
    drop_late
        Whether a request whose deadline passes in a queue is dropped, or served late. Where late
        ones are served the dispatcher must not narrow by deadlines.
    in_order
        Whether requests wait in the central queue, first come, first served, for an idle server;
        each server must have one place then. Else they wait at servers, and the central queue is
        for those that the policy holds.
    room
        In the central queue.
    rules
        By class, the batches that are offered. None where no batches are formed but, one request
        at a time, by a policy that has `pull`.
    controller
        Sets the routing of the policy once a slot; None leaves it as it is.
    window_s
        Over which the arrival rate is estimated for the policy, again and again; None where the
        policy needs none or has it from the file.
    remember
        Called once a minute and at the end, to keep what was measured; None keeps nothing.
    now
        The clock, seconds, of arrivals, deadlines and service times; instances read it too, each
        in its thread.
    node
        This node's name, where it is one of a network: answers tell it then.
    idempotent
        Whether a request that another node has been given, and that is lost on its way, is given
        to another class: it may be run twice then.
    headroom
        Lets requests run within the memory that there is; None where nothing bounds it.
    demands
        By class, what a request takes; None where that is not known.
    """

    def __init__(
        self,
        task: str,
        signature: Signature,
        dispatcher: Decisions,
        runtimes: Sequence[Runtime | Forwarding],
        *,
        seed: int = 0,
        target: float | None = None,
        deadline_s: float | None = None,
        drop_late: bool = True,
        in_order: bool = False,
        room: int = HELD_LIMIT,
        rules: Sequence[Rule] | None = None,
        controller: Controller | None = None,
        window_s: float | None = None,
        remember: Callable[[], None] | None = None,
        now: Callable[[], float] = time.monotonic,
        node: str = "",
        idempotent: bool = False,
        headroom: Headroom | None = None,
        demands: Sequence[MemoryNeed | None] | None = None,
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
        self.target = target
        self.deadline_s = deadline_s
        self.ready = False
        self.now = now
        self.variants = fleet.variants
        self.accuracy = [float(value) for value in fleet.accuracy]
        self.rate = [float(value) for value in fleet.rate]
        self.first = first
        self.classes = range(len(fleet.variants))
        # Per server, as plain Python values.
        self.class_of = [k for k in self.classes for _ in range(first[k], first[k + 1])]
        self.node = node
        self.trail = Trail(node) if node else None
        """What the node says of itself with its answers; None where it is none of a network."""
        self.names = [
            (one.variant, one.node) if isinstance(one, Forwarding) else (name, node)
            for name, one in ((fleet.variants[k], runtimes[first[k]]) for k in self.classes)
        ]
        """Per class, its variant and its node."""
        self.versions = tuple(dict.fromkeys(variant for variant, _ in self.names))
        """Variants that a request can be pinned to."""
        budget = RetryBudget()
        view = dispatcher.site
        pulls = hasattr(dispatcher.policy, "pull")
        offered = [(1,)] * len(fleet.variants) if rules is None else [rule.sizes for rule in rules]
        self.headroom = headroom
        self.demands = list(demands or [None] * len(fleet.variants))
        self.fits = [WHOLE if one is None else one.rows for one in self.demands]
        """By class, the rows that a request may have."""
        most_rows = [int(view.most_rows[server]) for server in first[:-1]]
        self.instances: list[Any] = [
            Forwarder(name, one, task, signature, node, self._forwarded, drop_late, now, budget)
            if isinstance(one, Forwarding)
            else Instance(
                name,
                one,
                self._finished,
                drop_late,
                now,
                offered[k],
                most_rows[k],
                headroom,
                self.demands[k],
            )
            for name, one, k in zip(self._instance_names(), runtimes, self.class_of, strict=True)
        ]
        self._queues = Queues(
            first[-1], CentralQueue(view.held, room), self._expire if drop_late else None
        )
        self.queues = self._queues.at
        self.held = self._queues.central.requests
        self.forecast = Forecast(view, self.class_of, self.accuracy, now)
        self.health = Health(self.instances, self.class_of, self._mark)
        self._watch = Watch(self.instances, self.health, self.class_of, self._shift)
        self._desk = Desk(dispatcher, self._queues, self.health, seed, now)
        self.arrived = 0
        """Rows that have been asked for."""
        self._drop_late, self._in_order = drop_late, in_order
        self._places = int(view.arrived_s.shape[1])
        if in_order and self._places != 1:
            raise ValueError(
                f"task {task!r} has a central queue and {self._places} places at each server; "
                "there must be one"
            )
        self.told: Callable[[str, bool, str], None] | None = None
        """Told the name of each instance that is healthy no longer, or again, and why not."""
        self.heir: Site | None = None
        """Who has taken the task over."""
        self.left_balance = 0.0
        """The balance at that moment."""
        self.memory = RequestLog(
            fleet.variants, self.accuracy, first, target, self._places, most_rows
        )
        self._departures = Departures(
            task, self.class_of, self.accuracy, Stats(fleet.variants), self.memory
        )
        batching = None
        self._service: Service
        if pulls or rules is not None:
            self._service = batching = Batching(
                self.instances,
                self.queues,
                self._desk,
                rules,
                self.class_of,
                pulls=pulls,
                mixed=any(-1 in tensor.shape[1:] for tensor in signature.inputs),
                late=lambda request: self._left_s(request) < 0.0,
                dropped=self._departures.drop,
                untime=self._queues.untime,
            )
        else:
            self._service = OneByOne(self.instances, self.queues, self._desk)
        self._queues.service = self._service
        self._shedding = Shedding(
            self._queues,
            self._service,
            self._desk,
            self._departures,
            self.forecast,
            self.class_of,
            self._places,
            self._left_s,
        )
        self.steering = (
            None if controller is None else SchedulerLoop(controller, self._desk, now, self._report)
        )
        self._again = Reassignment(
            task,
            self._desk,
            self._queues,
            self.forecast,
            self.health,
            self._departures,
            self.steering,
            self._watch,
            budget,
            self.accuracy,
            self.class_of,
            self._places,
            self._left_s,
            self._report,
        )
        self.moved = self._again.moved
        self._settle = Settlement(
            self._desk,
            self.queues,
            batching,
            self.instances,
            self.health,
            self._departures,
            self.names,
            self.class_of,
            now,
            self._again.elsewhere,
            idempotent,
            self._report,
        )
        self._done: deque[Job] = deque()
        self._stopped = False
        self._upkeep = Upkeep(self, window_s, remember)
        self._doorbell: Wakeup | None = None

    async def start(self) -> list[str]:
        """Warm every instance up and begin to serve.

        Returns
        -------
        list of str
            Names of instances that could not be warmed up, because their signature leaves open
            what would fit.
        """
        loop = asyncio.get_running_loop()
        self._doorbell = Wakeup(loop, self._collect)
        turn = Turn(loop, self._done.append, self._collect)
        cold = [
            server
            for server, instance in enumerate(self.instances)
            if not self._watch.forwards(server) and not await run_detached(instance.warm_up)
        ]
        self.health.start(cold)
        for instance in self.instances:
            instance.start(turn)
        if self.steering is not None:
            self.steering.begin()
        self.ready = True
        for server, instance in enumerate(self.instances):
            if instance.resting:
                self.health.rest(server, f"{instance.name} failed: {instance.complaint}")
        self._watch.begin()
        self._upkeep.begin()
        return [self.instances[server].name for server in cold]

    def record(self, folder: Path, log: Any = None, **options: Any) -> None:
        """Write down from now on what the dispatcher is given and what it decides.

        Parameters
        ----------
        folder
            Where; see `Recording`.
        log
            Told when the disk refuses, and when there is room again.
        options
            Others of `Recording`.

        Raises
        ------
        ValueError
            When the folder holds a recording already.
        OSError
            When nothing can be written there.
        """
        self.dispatcher = self._upkeep.record(self.dispatcher, folder, log, **options)

    @property
    def recording(self) -> Recording | None:
        """Writes down what the dispatcher is given and decides; None where nothing does."""
        return self._upkeep.recording

    @property
    def dispatcher(self) -> Decisions:
        """Decides, or writes down what another decides."""
        return self._desk.dispatcher

    @dispatcher.setter
    def dispatcher(self, dispatcher: Decisions) -> None:
        self._desk.dispatcher = dispatcher

    def trace(self, traced: Callable[[str, Request], None]) -> None:
        """Have each request told, with the task, when it has ended: for spans."""
        self._departures.traced = traced
        self._desk.stamps = True

    @property
    def counters(self) -> Stats:
        """What has happened here."""
        return self._departures.counters

    @counters.setter
    def counters(self, counters: Stats) -> None:
        self._departures.counters = counters

    async def stop(self, limit_s: float = 1.0) -> None:
        """Stop serving; what is queued is run first, as far as the limit allows."""
        self.ready = False
        self._stopped = True
        self.health.stop()
        self._upkeep.stop()
        if self.steering is not None:
            self.steering.stop()
        self._watch.end()
        gone = f"task {self.task!r} is no longer served"
        while self.held:
            request = self.held[0]
            self._queues.release(request)
            self._departures.end(request, Outcome.UNAVAILABLE, gone)
        begun_s = self.now()
        for request in await self._service.end(limit_s):
            self._departures.end(request, Outcome.UNAVAILABLE, gone)
        limit_s = max(0.0, limit_s - (self.now() - begun_s))
        for instance in self.instances:
            instance.stop()
        ended = await asyncio.to_thread(join, self.instances, limit_s, self.now)
        # What has ended since the bell last rang.
        self._collect()
        if not ended:
            for instance in self.instances:
                instance.give_up()
        # A thread that still runs its model keeps the runtime and the bell until the process ends.
        if self._doorbell is not None:
            (self._doorbell.close if ended else self._doorbell.mute)()
        if ended:
            for runtime in {id(one.runtime): one.runtime for one in self.instances}.values():
                runtime.close()
        await self._upkeep.close()

    def flush(self) -> None:
        """Let no request wait for others to make a batch with, from now on: few more will come."""
        self._service.flush()

    async def remember(self) -> None:
        """Keep what was measured, where that is wanted."""
        await self._upkeep.remember()

    @property
    def in_flight(self) -> int:
        """Requests at the servers and in the central queue."""
        return len(self._queues)

    def withdraw(self, offers: Collection[tuple[str, str]]) -> None:
        """Forward nothing to these offers, each variant and node, and to all others as they come.

        What is on its way to them still ends.
        """
        self._watch.withdraw([k for k in self.classes if self.names[k] in offers])

    def mask_of(self, variant: str) -> int:
        """Make the bit mask that pins a request to a variant, whoever serves it."""
        return sum(1 << k for k, (name, _) in enumerate(self.names) if name == variant)

    def forwards(self, classes: int) -> bool:
        """Whether a request that these classes may answer, a bit mask, may go to another node."""
        return any(self._watch.forwards(self.first[k]) for k in self.classes if classes >> k & 1)

    def own_mask(self, variant: str) -> int:
        """Make the bit mask of this node's own class of a variant; 0 where it has none."""
        own = (variant, self.node)
        return sum(1 << k for k in self.classes if self.names[k] == own)

    def serves(self, variant: str | None) -> bool:
        """Whether the task is ready, and a healthy instance of the variant, if one is named."""
        return self.ready and (variant is None or self.health.any_of(self.mask_of(variant)))

    def submit(self, request: Request) -> None:
        """Take a request; its `deliver` is called when it has ended, maybe before this returns."""
        if not self.ready:
            reason = f"task {self.task!r} is not ready"
            self._departures.end(request, Outcome.UNAVAILABLE, reason)
            return
        self.arrived += request.rows
        if self._in_order and self.held:  # first come, first served
            waits = self.forecast.falls_open(request, self._left_s(request), 0)
        else:
            server = self._desk.decide(request, request.classes, request.deadline_s)
            if server >= 0:
                return
            waits = server == HOLD or (self._in_order and self._again.falls_open(request))
        if waits:
            if not self._queues.central.full or self._shedding.in_line(request):
                self._queues.hold(request, self.now())
                return
        elif request.priority and self._shedding.at_servers(request):
            return
        self._again.reject(request)

    def cancel(self, request: Request) -> None:
        """Forget a request whose client has gone: its place is freed.

        In service it is stopped where the runtime can stop; else its answer comes and goes
        nowhere. Neither counts.
        """
        if request.server < 0:
            if request not in self.held:
                return  # it has ended
            self._queues.release(request)
        elif not self._service.recall(request):
            self._service.abandon(request)
            return
        self._departures.cancel(request)
        self._again.pull()

    def _instance_names(self) -> list[str]:
        return [
            f"{self.task}/{self.variants[k]}#{server - self.first[k]}"
            for server, k in enumerate(self.class_of)
        ]

    def _left_s(self, request: Request) -> float:
        # Where late requests are served, nothing is refused for being late.
        return request.deadline_s - self.now() if self._drop_late else math.inf

    def _expire(self, request: Request) -> None:
        if request.server < 0:
            self._queues.release(request)
        elif request.outcome is not None or not self._service.recall(request):
            return
        self._departures.expire(request)
        self._again.pull()

    def _mark(self, server: int, healthy: bool, reason: str) -> None:
        self.dispatcher.mark(server, healthy, self.now())
        if self.steering is not None:
            self.steering.again()
        self.ready = any(self.health.healthy) and not self._stopped
        if self.told is not None and not self._watch.forwards(server):
            self.told(self.instances[server].name, healthy, reason)
        if not healthy:
            queued = [one for one in list(self.queues[server]) if self._service.recall(one)]
            for request in queued:
                request.server = -1
            for request in queued:
                self._again.move(request, self.now())
        self._again.pull()

    def _shift(self, low: int, high: int, by_s: float, least_s: float) -> None:
        self.dispatcher.shift(low, high, by_s, least_s, self.now())

    def _forwarded(self, job: Job) -> None:
        # On the loop already, where the answer came in.
        self._done.append(job)
        self._collect()

    def _finished(self, job: Job) -> None:
        # In an instance's thread.
        self._done.append(job)
        assert self._doorbell is not None
        self._doorbell.ring()

    def _collect(self) -> None:
        done = self._done
        while done:
            job = done.popleft()
            try:
                self._settle(job)
            except Exception as error:  # the others are to have their answers all the same
                self._report(error)
            if job.kept_bytes is not None:
                assert self.headroom is not None
                self.headroom.settle(*job.kept_bytes)
        self._again.pull()

    def _report(self, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"task {self.task!r}: a request was not settled", "exception": error}
        )
