"""One fleet of a task: who decides, its servers, and each request from decision to answer."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from inferway.dispatch.batching import Rule, most_per_s, row_s_of
from inferway.dispatch.dispatcher import Dispatcher
from inferway.dispatch.joint import TargetState
from inferway.dispatch.measured import Exploration
from inferway.dispatch.promise import overloads
from inferway.dispatch.recording import Recording
from inferway.live.background import Scheduler, SchedulerLoop, keep_recording
from inferway.live.canary import CanaryTrial
from inferway.live.errors import WarmUpError
from inferway.live.exclusive import HeldVariants
from inferway.live.explain import FleetFacts, RequestLog, Snapshot
from inferway.live.instance import RETRY_S, Events, Instance, PoolTerms, RetryBudget
from inferway.live.local import LocalInstance
from inferway.live.options import PoolOptions
from inferway.live.request import (
    EXPIRED,
    AnswerInHand,
    InferRequest,
    Job,
    Outcome,
    RequestBatch,
    Settlement,
    ShadowRun,
)
from inferway.live.servers import HALF_WORD, Health, ServerQueues
from inferway.live.stats import Stats
from inferway.live.threads import InlineRunner, Wakeup, run_detached
from inferway.live.tracing import attempts_of
from inferway.live.upstream.remote import Forwarding, NodeInstance, ServerInstance
from inferway.protocol import RefusalError, Signature
from inferway.runtime import ArtifactError, AwaitedRuntime, Served
from inferway.scheduling import Controller
from inferway.site import HOLD, REJECT
from inferway.site.chances import TRIED
from inferway.site.view import ALL_CLASSES, WHOLE, Floats

# Over which the arrival rate is measured where the policy asks for no other window.
RATE_WINDOW_S: Final = 10.0
# How often the measured service times are kept.
REMEMBER_S: Final = 60.0
# Instances that may end under one request: it may be what ends them.
MOST_DEATHS: Final = 3
GAVE_WAY: Final = "a request of higher priority took the place of this one; try again later"
_UNSURE: Final = np.zeros(0)
# How low a request stands that states no priority: below all that do.
_UNSAID: Final = 1 << 15


class Pool:
    """A dispatcher, its instances, and the requests on the way between them.

    All methods but the constructor belong to the event loop.

    Parameters
    ----------
    task
        Name that clients ask for.
    signature
        What all variants of the task take and give.
    dispatcher
        Decides; this pool is its only caller.
    runtimes
        One per server of the fleet, in its order; servers of a class may share one. The pool
        closes them. A class that stands for another node's offer has a `Forwarding` instead.
    options
        How it serves.

    Attributes
    ----------
    stats, log, noted, traced
        Of the task: where its requests are counted and remembered, who notes each that has ended
        with the column of its variant, and who is told of it, with the task, for spans; None where
        nobody is.
    columns, names
        Per class, where the statistics have it, and its variant and its node.
    changed
        Called with a server, whether it takes requests from now on, and why not.
    versions
        Variants that a request can be pinned to.
    accuracy, grades, graded
        By class, the accuracy that counts and that by profile, None where it is unknown; whether
        any is known.
    fits, most_rows
        By class, the rows that a request may have, and those of one run.
    own
        Classes that run here, as a bit mask.
    queues
        What each server holds, in the dispatcher's order; those in service come first.
    held
        The central queue: requests that no server has yet, as they came. Policies see how many.
    arrivals_per_s
        Rows that came a second in the last window; NaN before the first has ended.
    canary
        Which requests a new variant gets until labels decide on it; None where none is tried.
    recording
        Writes down what the dispatcher is given and decides; None where nothing does.
    """

    stats: Stats
    log: RequestLog
    noted: Callable[[InferRequest, int], None] | None = None
    traced: Callable[[str, InferRequest], None] | None = None
    changed: Callable[[int, bool, str], None]
    _wakeup: Wakeup | None = None

    def __init__(
        self,
        task: str,
        signature: Signature,
        dispatcher: Dispatcher | Recording,
        runtimes: Sequence[Served | Forwarding],
        options: PoolOptions | None = None,
    ) -> None:
        self.options = options = options or PoolOptions()
        fleet, view = dispatcher.fleet, dispatcher.site
        first: list[int] = fleet.first.tolist()
        if len(runtimes) != first[-1]:
            raise ValueError(
                f"task {task!r} has {first[-1]} servers and {len(runtimes)} runtimes; "
                "there must be one per server"
            )
        self.task, self.signature, self.dispatcher = task, signature, dispatcher
        self.variants, self.first, self.runtimes = fleet.variants, first, list(runtimes)
        self.accuracy, self.grades = fleet.grades, fleet.grades
        self.graded = bool(fleet.graded.any())
        self.rate: list[float] = fleet.rate.tolist()
        self.classes = range(len(fleet.variants))
        self.class_of = [k for k in self.classes for _ in range(first[k], first[k + 1])]
        leads = [runtimes[server] for server in first[:-1]]
        self.names = [
            (one.variant, one.node) if isinstance(one, Forwarding) else (name, options.node)
            for name, one in zip(fleet.names, leads, strict=True)
        ]
        self.versions = tuple(dict.fromkeys(variant for variant, _ in self.names))
        self.own = sum(1 << k for k, one in enumerate(leads) if not isinstance(one, Forwarding))
        self.now, self.drop_late = options.now, options.drop_late
        self.places = int(view.arrived_s.shape[1])
        if options.in_order and self.places != 1:
            raise ValueError(
                f"task {task!r} has a central queue and {self.places} places at each server; "
                "there must be one"
            )
        self.demands = list(options.demands or [None] * len(fleet.variants))
        self.fits = [WHOLE if one is None else one.rows for one in self.demands]
        self.most_rows = [int(view.most_rows[server]) for server in first[:-1]]
        self.facts = FleetFacts(
            *(fleet.variants, self.accuracy, first, options.target, self.places, self.most_rows),
            dispatcher.predictions,
            fleet.confidence,
            energy=fleet.energy.tolist(),
        )
        self.columns = list(self.classes)
        self.budget = RetryBudget()
        self.instances = self._instances()
        self.held_variants = HeldVariants.of(task, fleet, leads)
        self.servers = ServerQueues(
            *(dispatcher, self.instances, self.class_of, signature, options, self._expire),
            held=self.held_variants,
            unloaded=self._unloaded,
        )
        servers = self.servers
        self.queues, self.left_s, self._draw = servers.queues, servers.left_s, servers.draw
        self.held: deque[InferRequest] = deque()
        servers.held, servers.pull = self.held, self._pull_own
        self.health = Health(self.instances, self.class_of, self._mark)
        self.scheduler: Scheduler | None = None
        if options.controller is not None:
            schedule(options.controller, [self])
        self._arrived, self.arrivals_per_s = 0, math.nan
        self._queue, self._ends_s, self._free_s = view.queue, view.ends_s, view.free_s
        self._row_s, self.balance, self._held = view.row_s, view.balance, view.held
        self._chance_at = view.again
        self._running, self._waiting_rows = view.running, view.waiting_rows
        shares = dispatcher.fleet.devices is not None
        self._holds: Floats | None = view.devices.holds if shares else None
        self._leads = view.devices.lead_s.tobytes() if shares else b""
        self._routed, self._settles = dispatcher.routed, dispatcher.settles
        self._credits = dispatcher.settles or options.measured
        self._exploration = Exploration() if options.measured else None
        terms = options.canary
        self.canary = None if terms is None else CanaryTrial(terms, self.mask_of(terms.variant))
        # Targets over several tasks that this one is one of, and the prices that go by them.
        self.targets: list[TargetState] = []
        self._prices: tuple[Floats, ...] = ()
        self.recording: Recording | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._done: deque[Job] = deque()

    def _instances(self) -> list[Instance]:
        options, made = self.options, list[Instance]()
        late, now = options.drop_late, options.now
        terms = PoolTerms(
            *(self.task, self.signature, options.node, late, now, self.budget),
            settles=self.dispatcher.settles,
        )
        for server, (k, one) in enumerate(zip(self.class_of, self.runtimes, strict=True)):
            name = f"{self.task}/{self.variants[k]}#{server - self.first[k]}"
            bounds: dict[str, Any] = {
                "sizes": (1,) if options.rules is None else options.rules[k].sizes,
                "most_rows": self.most_rows[k],
                "headroom": options.headroom,
                "demand": self.demands[k],
            }
            if isinstance(one, Forwarding):
                made.append(NodeInstance(name, one, terms))
            elif isinstance(one, AwaitedRuntime):
                made.append(ServerInstance(name, one, terms, **bounds))
            else:
                local = LocalInstance(name, one, drop_late=late, now=now, **bounds)
                if options.profiled_s is not None:
                    local.profiled_s = options.profiled_s[k]
                made.append(local)
        return made

    async def start(self) -> list[str]:
        """Warm every instance up and begin to serve.

        Returns
        -------
        list of str
            Names of instances that could not be warmed up, because their signature leaves open
            what would fit.
        """
        loop = asyncio.get_running_loop()
        self._wakeup = Wakeup(loop, self.collect)
        soon = InlineRunner(loop, self._done.append, self.collect).plan
        ends = dict(pairwise(self.first))
        await self._reserve(ends)
        for server, end in ends.items():
            async with self.servers.loading(self.class_of[server]):
                for one in range(server, end):
                    slower = partial(self._slower, one, end) if one == server else None
                    await self.instances[one].start(Events(self._take, self._post, soon, slower))
        if self.held_variants is not None:
            await self._hold_first(self.held_variants)
        if self.scheduler is not None:
            self.scheduler.begin()
        self.health.start()
        if self.options.window_s is not None or self.options.target is not None:
            self._tasks.append(asyncio.create_task(self._follow_rate()))
        if self.options.remember is not None:
            self._tasks.append(asyncio.create_task(self._keep()))
        return [instance.name for instance in self.instances if instance.cold]

    async def _hold_first(self, held: HeldVariants) -> None:
        """Have each exclusive device hold its first variant, now that all have been loaded once."""
        for k in held.first.values():
            await self.servers.hold(k)

    def expect_loads(self, before: Pool) -> None:
        """Predict that variants take as long to load as another fleet of the task has measured."""
        if self.held_variants is None or before.held_variants is None:
            return
        known_s = before.held_variants.load_s | self.held_variants.load_s
        for k in self.held_variants.device_of:
            if self.variants[k] in known_s:
                self.dispatcher.set_load_time(k, known_s[self.variants[k]])

    def _unloaded(self, server: int, reason: str) -> None:
        """Rest the class of a server whose variant could not be loaded; another may answer."""
        k = self.class_of[server]
        told = f"{self.instances[server].name} could not be loaded: {reason}"
        others = range(self.first[k], self.first[k + 1])
        for other in others:
            self.instances[other].resting = True
        for request in [*self.queues[server]][:1]:
            request.outcome, request.unserved = Outcome.UNAVAILABLE, True
            request.reason, request.retry_after_s = told, RETRY_S
            try:
                self._settle(request, 0)
            except Exception as error:  # the others are to have their answers all the same
                self.report(error)
        for other in others:
            self.health.rest(other, told)

    async def _reserve(self, ends: Mapping[int, int]) -> None:
        """Have a process for each instance of the classes that run in processes of their own."""
        # Copies of a variant on several devices have one runtime.
        wanted: dict[int, int] = {}
        for first, end in ends.items():
            key = id(self.runtimes[first])
            wanted[key] = wanted.get(key, 0) + end - first
        for k, first in enumerate(ends):
            reserve = getattr(self.runtimes[first], "reserve", None)
            count = wanted.pop(id(self.runtimes[first]), 0)
            if reserve is None or count == 0:
                continue
            try:
                await run_detached(reserve, count)
            except ArtifactError as error:
                raise WarmUpError(f"{self.task}/{self.variants[k]}: {error}") from error

    async def close(self, limit_s: float) -> None:
        """Let go of everything; what is queued is run first, as far as the limit allows."""
        gone, ends_s = f"task {self.task!r} is no longer served", self.now() + limit_s
        while self.held:
            request = self.held[0]
            self._release(request)
            self._end(request, Outcome.UNAVAILABLE, gone)
        self.health.stop()
        self.servers.end_shadows()
        for task in self._tasks:
            task.cancel()
        if self.scheduler is not None:
            self.scheduler.stop()
        for request in await self.servers.drain(limit_s):
            if request.hand is not None:
                self._send_first(request)
            else:
                self._end(request, Outcome.UNAVAILABLE, gone)
        left_s = max(0.0, ends_s - self.now())
        if self.held_variants is not None:
            await self.held_variants.ended(left_s)
            left_s = max(0.0, ends_s - self.now())
        ended = all(await asyncio.gather(*(one.close(left_s) for one in self.instances)))
        # What has ended since the loop was last woken.
        self.collect()
        self.servers.leave()
        # A thread that still runs its model keeps the runtime and the wake-up until the process
        # ends.
        if self._wakeup is not None:
            (self._wakeup.close if ended else self._wakeup.mute)()
        if ended:
            for runtime in {id(one): one for one in self.runtimes}.values():
                runtime.close()
        if self.recording is not None:
            self.recording.close()
        await self.remember()

    def follow(self, balance: Floats, before: Pool | None) -> None:
        """Go on with a task's balance, and where another pool of it is.

        What its policy has learned goes along where the policy is the same, of the same classes.
        """
        assert self.recording is None
        self.dispatcher.share_balance(balance)
        self.balance = balance
        if before is None:
            return
        _teach(self.dispatcher, before.dispatcher)
        if self._exploration is not None and before._exploration is not None:
            self._exploration.go_on(before._exploration)
        if self.held_variants is not None and before.held_variants is not None:
            self.held_variants.go_on(before.held_variants)
        if self.scheduler is not None:
            if before.scheduler is not None:
                self.scheduler.go_on(before.scheduler)
            self.scheduler.again()  # what was taught holds the old routing

    def go_on_trying(self, before: Pool) -> None:
        """Go on with the requests that a canary was given, where another pool tries the same."""
        mine, other = self.canary, before.canary
        if mine is not None and other is not None and mine.terms == other.terms:
            name = mine.terms.variant
            if self.options.models.get(name) == before.options.models.get(name):
                mine.requests = other.requests

    def share_targets(self, shared: Floats, targets: list[TargetState]) -> None:
        """Keep these targets over several tasks, in memory that the pools of all of them share."""
        assert self.recording is None
        self.dispatcher.share_targets(shared)
        self.targets = self.servers.targets = targets
        self._prices = (self.dispatcher.policy.price, *(one.row for one in targets))
        told = tuple((one.name, one.tasks, one.kind, one.goal) for one in targets)
        self.facts = self.facts._replace(targets=told)

    def correct(self, accuracies: Mapping[str, float]) -> None:
        """Count these accuracies of variants from now on, 0..1; those of others stay.

        A variant's is that of whichever node answers by it.
        """
        dispatcher = self.dispatcher
        before = dispatcher.site.accuracy
        now = np.array(
            [accuracies.get(name, one) for (name, _), one in zip(self.names, before, strict=True)]
        )
        if np.array_equal(now, before):
            return
        dispatcher.correct(now)
        if self._exploration is not None:
            self._exploration.follow(dispatcher.fleet.accuracy, now)
        values = now.tolist()
        self.servers.accuracy = values
        self.accuracy = [
            None if one is None else value for one, value in zip(self.accuracy, values, strict=True)
        ]
        fleet = dispatcher.fleet
        tables = fleet.confidence
        if tables is not None:
            tables = tables.corrected(fleet.accuracy, now)
        self.facts = self.facts._replace(accuracy=self.accuracy, confidence=tables)

    def set_overhead(self, seconds: float) -> None:
        """Predict from now on that each request takes so long besides its model, where a device
        does what nothing has said.
        """
        name, devices = self.options.leading, self.dispatcher.fleet.devices
        if not name or devices is None:
            return
        self.dispatcher.set_overhead(devices.names.index(name), seconds)
        self._leads = self.dispatcher.site.devices.lead_s.tobytes()

    @property
    def thread_cpu_s(self) -> float:
        """CPU time of the threads of instances, s."""
        return sum(one.clock.seconds for one in self.instances if isinstance(one, LocalInstance))

    @property
    def run_cpu_s(self) -> Mapping[int, float]:
        """CPU time of this process that models have taken, s, by what ran them."""
        return {id(one): one.run_cpu_s for one in self.instances if isinstance(one, LocalInstance)}

    @property
    def stretched_s(self) -> Mapping[int, float]:
        """CPU time of models beyond their profiles, s, below 0 where less, by what ran them."""
        return {
            id(one): one.stretched_s for one in self.instances if isinstance(one, LocalInstance)
        }

    @property
    def in_flight(self) -> int:
        """Requests at the servers and in the central queue."""
        return sum(map(len, self.queues)) + len(self.held)

    def has(self, request: InferRequest) -> bool:
        """Tell whether a request is at a server here, or in the central queue."""
        server = request.server
        if server < 0:
            return request in self.held
        return server < len(self.queues) and request in self.queues[server]

    # Classes of servers.

    def mask_of(self, variant: str) -> int:
        """Make the bit mask that pins a request to a variant, whoever serves it."""
        return sum(1 << k for k, (name, _) in enumerate(self.names) if name == variant)

    def own_mask(self, variant: str) -> int:
        """Make the bit mask of this node's own class of a variant; 0 where it has none."""
        return self.own & self.mask_of(variant)

    def forwards(self, classes: int) -> bool:
        """Tell whether a request that these classes may answer, a bit mask, may go to another
        node.
        """
        return bool(classes & ~self.own & ((1 << len(self.variants)) - 1))

    def withdraw(self, offers: Collection[tuple[str, str]]) -> None:
        """Forward nothing to these offers, each variant and node, and to all others as they come.

        What is on its way to them still ends.
        """
        self.health.withdraw(frozenset(k for k in self.classes if self.names[k] in offers))

    # Decisions.

    def submit(self, request: InferRequest) -> None:
        """Decide on a request that has come; its `deliver` is called when it has ended."""
        self._arrived += request.rows
        in_order = self.options.in_order
        if self.canary is not None and self._tried(self.canary, request):
            return
        if in_order and self.held:  # first come, first served
            waits = self.servers.falls_open(request, 0)
        else:
            if self._exploration is not None and self._explored(request):
                return
            server = self._decide(request, request.classes, request.deadline_s)
            if server >= 0:
                return
            waits = server == HOLD or (in_order and self.servers.falls_open(request, self.places))
        if waits:
            if len(self.held) < self.options.room or self._gave_way_in_line(request):
                self._hold(request)
                return
        elif request.priority and self._gave_way_at_servers(request):
            return
        self._reject(request)

    def _explored(self, request: InferRequest) -> bool:
        """Give a request to a variant that labels have ruled out, if that is due; whether it is."""
        exploration = self._exploration
        assert exploration is not None
        if not exploration.is_due() or request.classes != ALL_CLASSES or not request.counted:
            return False
        k = exploration.choose(self.dispatcher.site, request.floor, self.targets)
        if k < 0 or not self.servers.has_place(request, 1 << k):
            return False
        request.chosen_for = "explored"
        if self._decide(request, 1 << k, request.deadline_s) < 0:
            request.chosen_for = ""
            return False
        exploration.asked()
        return True

    def _tried(self, canary: CanaryTrial, request: InferRequest) -> bool:
        """Give a share of the requests to a canary, and keep the others from it.

        Whether nothing is left to be done: the canary has the request, or it was pinned to one that
        has been taken back. Where a canary cannot take its own, the others do.
        """
        whole = request.classes
        if request.counted and canary.takes(self._draw(64)) and (mine := canary.only(whole)):
            waits = self.options.in_order and self.held  # first come, first served
            # It is asked of no policy that would refuse it: a recording has that as a request.
            if not waits and self.servers.has_place(request, mine):
                request.chosen_for = "canary"
                if self._decide(request, mine, request.deadline_s) >= 0:
                    canary.requests += 1
                    # Where the canary fails, or rests, another one is asked.
                    return True
        if request.counted or canary.state == "taken-back":
            request.classes = canary.without(whole)
            request.chosen_for = "" if request.classes == whole else "beside"
            if not request.classes:
                reason = f"variant {canary.terms.variant!r} has been taken back: {canary.reason}"
                self._end(request, Outcome.UNAVAILABLE, reason)
                return True
        return False

    def _decide(self, request: InferRequest, classes: int, deadline_s: float) -> int:
        """Have a request that stands in no queue decided on: a server, REJECT or HOLD.

        One that gets a server goes there. The policy is told which classes may answer, a bit mask,
        and the deadline.
        """
        dispatcher = self.dispatcher
        now_s = self.now()
        routing = dispatcher.routing if self._routed else None
        request.before = Snapshot(
            now_s,
            self.balance.item(),
            self._queue.tobytes(),
            self._ends_s.tobytes(),
            self._free_s.tobytes(),
            self._row_s.tobytes(),
            self._running.tobytes() if self.servers.batches else b"",
            self._waiting_rows.tobytes() if self.servers.batches else b"",
            self.health.flags,
            b"" if routing is None else routing.tobytes(),
            b"" if self._holds is None else self._holds.tobytes(),
            b"".join([one.tobytes() for one in self._prices]),
        )
        server = dispatcher.arrive(
            now_s,
            self._draw(64) - HALF_WORD,
            deadline_s,
            request.floor,
            request.priority,
            classes,
            request.rows,
            request.counted,
        )
        if self.held_variants is not None:
            request.before.foreseen = dispatcher.foreseen
        if self._holds is not None:
            request.before.others = self.servers.others()
            request.before.leads = self._leads
        if self.traced is not None:
            request.decided_s, request.dispatched_s = now_s, self.now()
            request.decisions += 1
        if server >= 0:
            request.predicted_s = dispatcher.predicted_wait_s + dispatcher.predicted_service_s
            request.server = server
            if self._credits:
                request.credit = dispatcher.credit
            if not request.chosen_for and self._chance_at.item(server) == TRIED:
                request.chosen_for = "tried"
            if self.servers.put(request) and request.deadline_s < math.inf:
                self._time(request, now_s)
        return server

    # The central queue.

    def _hold(self, request: InferRequest) -> None:
        self.held.append(request)
        self._held[0] = len(self.held)
        if request.deadline_s < math.inf:
            self._time(request, self.now())

    def _release(self, request: InferRequest) -> None:
        self.held.remove(request)
        self._held[0] = len(self.held)
        request.untime()

    def _pull(self) -> None:
        """Decide on central queues again: this one's, and of all that share devices with it."""
        if self._holds is None:
            self._pull_own()
        else:
            self.servers.gate.pull()

    def _pull_own(self) -> None:
        """Decide on the head of the central queue again: a server fell free, or the head has gone.

        It stays the head where the policy still holds it, or what it needs is still taken.
        """
        while self.held:
            request = self.held.popleft()
            self._held[0] = len(self.held)
            timer, request.timer = request.timer, None
            if self.left_s(request) < 0.0:
                self._expire(request)
            else:
                server = self._again(request, request.deadline_s)
                if server == REJECT and not self.servers.falls_open(request, self.places):
                    self._reject(request)
                elif server < 0:
                    request.timer = timer
                    self.held.appendleft(request)
                    self._held[0] = len(self.held)
                    return
            if timer is not None:
                timer.cancel()

    def _time(self, request: InferRequest, now_s: float) -> None:
        # Whoever asked should know at once, not when a server comes to it.
        if self.drop_late:
            left_s = max(0.0, request.deadline_s - now_s)
            loop = asyncio.get_running_loop()
            request.timer = loop.call_later(left_s, self._pass, request)

    def _pass(self, request: InferRequest) -> None:
        request.timer = None
        if request.server < 0:
            self._release(request)
        elif request.outcome is not None or not self.servers.recall(request):
            return
        self._expire(request)
        self._pull()

    def cancel(self, request: InferRequest) -> None:
        """Forget a request that it has, whose client has gone."""
        if request.server < 0:
            self._release(request)
        else:
            if request.hand is not None:  # nor is there anybody to send that to
                request.abandoned = True
            if not self.servers.recall(request):
                self.servers.abort(request)
                return
        self._end(request, Outcome.CANCELED, request.reason)
        self._pull()

    # What instances tell: what has been run is settled.

    def _take(self, job: Job) -> None:
        self._done.append(job)
        self.collect()

    def _post(self, job: Job) -> None:
        self._done.append(job)
        assert self._wakeup is not None
        self._wakeup.ring()

    def _slower(self, low: int, high: int, by_s: float, least_s: float) -> None:
        self.dispatcher.shift(low, high, by_s, least_s, self.now())

    def collect(self) -> None:
        """Settle everything that has ended: answers sent, places freed, decisions undone."""
        done = self._done
        while done:
            job = done.popleft()
            kept_bytes = job.kept_bytes  # another server may have the request in a moment
            try:
                if isinstance(job, RequestBatch):
                    self._settle_batch(job)
                elif isinstance(job, ShadowRun):
                    self._end_shadow(job)
                else:
                    self._settle(job, 0)
            except Exception as error:  # the others are to have their answers all the same
                self.report(error)
            if kept_bytes is not None and self.options.headroom is not None:
                self.options.headroom.settle(*kept_bytes)
        if self.held or self._holds is not None:
            self._pull()

    def _end_shadow(self, shadow: ShadowRun) -> None:
        self.servers.forget_shadow(shadow)
        if self.instances[shadow.server].resting:
            self.health.rest(shadow.server, shadow.reason)
        shadow.deliver(shadow)

    def _settle_batch(self, batch: RequestBatch) -> None:
        self.servers.ended(batch.server)
        try:
            batch.share_out()
            failed = batch.outcome in (Outcome.FAILED, Outcome.INVALID)
            if failed and len(batch.members) > 1 and not self.instances[batch.server].resting:
                batch.part()
            measured = batch.run_rows
            for request in list(batch.members):
                try:
                    # Of the batch's service time the dispatcher learns once.
                    if self._settle(request, measured):
                        measured = -1
                except Exception as error:  # the others are to have their answers all the same
                    self.report(error)
        finally:
            self.servers.settled(batch)

    def _settle(self, request: InferRequest, measured: int) -> bool:
        """Settle a request that is in a server's queue; whether it has been answered.

        Its service time was `measured` over so many rows, 0 for its own, or is known already, -1.
        """
        now_s = self.now()
        server = request.server
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None
        if request.outcome is Outcome.ANSWERED and not (request.abandoned or request.sent):
            k = self.class_of[server]
            if self._settles and self._ask_again(request, k, now_s, measured):
                return True
            column, stats, passed = self.columns[k], self.stats, request.passed
            request.variant, request.node = self.names[k]
            request.latency_s = now_s - request.received_s
            request.late = now_s > request.deadline_s
            request.balance = None if self.options.target is None else self.balance.item()
            if measured >= 0 and passed is None:  # runs are counted where they are
                rows, most = measured or request.rows, self.most_rows[k]
                stats.ran(column, rows, most, request.service_s)
            # Sent before it is counted: what cannot be sent does not count.
            try:
                request.deliver(request)
            except RefusalError as refusal:
                request.outcome, request.reason = Outcome.INVALID, refusal.reason
            except Exception as error:
                request.outcome = Outcome.FAILED
                request.reason = f"the answer of {request.variant} could not be sent"
                if not request.abandoned:
                    self.report(error)
            else:
                self.queues[server].popleft()
                # What was out of the ordinary on the way is the hop's to learn, for all servers.
                if passed is not None and passed.strayed:
                    measured = -1
                self.dispatcher.finish(server, now_s, request.service_s, measured)
                stats.answered_s[column] = now_s
                stats.run_sum_s[column] += request.service_s
                self._count(request, k)
                return True
        self.servers.take_back(request)
        if self.instances[server].resting:
            self.health.rest(server, request.reason)
        if request.sent:
            return False
        if request.hand is not None and not request.abandoned:
            self._send_first(request)
            return False
        if request.abandoned:
            self._end(request, Outcome.CANCELED, "the client went during the service")
            return False
        again = request.unserved or ((request.lost or request.died) and self.options.idempotent)
        if not again or not self._retry(request):
            assert request.outcome is not None
            self._end(request, request.outcome, request.reason)
        return False

    # Second answers.

    def _ask_again(self, request: InferRequest, k: int, now_s: float, measured: int) -> bool:
        """Have an answer of class k decided on; whether another server has the request now.

        Then the answer is in hand, and the server that gave it is free.
        """
        server, hand = request.server, request.hand
        confidence = _UNSURE
        if hand is None and request.counted:
            try:
                read = self.options.confidences[k]
                if read is not None and request.outputs is not None:
                    confidence = read(request.outputs)
                    request.confidence = float(confidence.mean())
            except Exception as error:  # what is not known of an answer does not take it away
                self.report(error)
        try:
            to = self.dispatcher.settle(
                server,
                now_s,
                self._draw(64) - HALF_WORD,
                confidence,
                request.credit,
                1 if hand is None else 2,
                request.received_s,
                request.deadline_s,
                request.floor,
                request.priority,
                request.classes,
                request.rows,
                request.counted,
            )
        except Exception as error:  # nor does a policy that breaks
            self.report(error)
            request.hand = None
            return False
        request.credit, request.settled = self.dispatcher.credit, True
        if hand is None:
            request.settlement = self._settlement(server, request.credit, to)
        if to < 0:
            request.hand = None
            return False
        assert request.outputs is not None
        passed = request.passed
        if self.traced is not None:
            if passed is None:
                request.attempts = attempts_of(request, now_s)
            request.decided_s, request.dispatched_s = now_s, self.now()
            request.decisions += 1
        request.hand = AnswerInHand(
            *(server, request.outputs, self.dispatcher.in_hand),
            *(request.started_s, request.service_s, request.together),
            passed=passed,
        )
        request.escalated_from, request.first_node = self.names[k]
        self.stats.escalated(self.columns[k], self.columns[self.class_of[to]])
        if passed is not None:
            if passed.strayed:
                measured = -1
        elif measured >= 0:
            rows, most = measured or request.rows, self.most_rows[k]
            self.stats.ran(self.columns[k], rows, most, request.service_s)
        self.stats.run_sum_s[self.columns[k]] += request.service_s
        self.queues[server].popleft()
        self.dispatcher.finish(server, now_s, request.service_s, measured)
        request.outcome, request.outputs, request.call = None, None, None
        request.kept_bytes, request.passed, request.status = None, None, 0
        request.server, request.started_s, request.together = to, 0.0, (0, 0)
        waits_s = self.dispatcher.predicted_wait_s + self.dispatcher.predicted_service_s
        request.predicted_s = now_s - request.received_s + waits_s
        self.servers.put(request)
        if request.deadline_s < math.inf:
            left_s = max(0.0, request.deadline_s - now_s)
            loop = asyncio.get_running_loop()
            request.timer = loop.call_later(left_s, self._send_in_time, request)
        return True

    def _settlement(self, server: int, credit: float, to: int) -> Settlement:
        """Note what has been decided on a first answer."""
        dispatcher = self.dispatcher
        price = getattr(dispatcher.policy, "price", None)
        price_s = price.item() if isinstance(price, np.ndarray) and price.size == 1 else math.nan
        if to < 0:
            return Settlement(server, credit, price_s=price_s)
        then_s = dispatcher.predicted_wait_s + dispatcher.predicted_service_s
        return Settlement(server, dispatcher.in_hand, to, then_s, price_s)

    def _send_in_time(self, request: InferRequest) -> None:
        """Send the answer in hand at a request's deadline, wherever the second one is."""
        request.timer = None
        if request.outcome is not None:
            return  # it has come, or is about to
        if self.servers.recall(request):
            self._send_first(request)
            self._pull()
        else:  # its place is freed when its run has ended, or has been stopped
            request.sent = True
            self._send_first(request)
            self.servers.abort(request)

    def _send_first(self, request: InferRequest) -> None:
        """Send the answer in hand: the second one is not there, or not in time."""
        hand = request.hand
        assert hand is not None
        k, now_s = self.class_of[hand.server], self.now()
        variant, node = self.names[k]
        # A copy, as the request may be in its second server's hands.
        first = msgspec.structs.replace(
            request,
            origin=request,
            server=hand.server,
            variant=variant,
            node=node,
            outputs=hand.outputs,
            outcome=Outcome.ANSWERED,
            reason="",
            started_s=hand.started_s,
            service_s=hand.service_s,
            together=hand.together,
            passed=hand.passed,
            status=0,
            credit=hand.worth,
            escalated_from="",
            first_node="",
            latency_s=now_s - request.received_s,
            late=now_s > request.deadline_s,
            balance=None if self.options.target is None else self.balance.item(),
        )
        try:
            first.deliver(first)
        except Exception as error:
            self.balance[0] -= request.rows * (hand.worth - (self.options.target or 0.0))
            if not isinstance(error, RefusalError):
                self.report(error)
            self._end(first, Outcome.FAILED, f"the answer of {variant} could not be sent")
            return
        self._count(first, k)

    def _count(self, request: InferRequest, k: int) -> None:
        """Count an answer of class k that has been sent, and remember it."""
        column, stats = self.columns[k], self.stats
        # Of a run for several requests, each one's part by its rows.
        rows = request.together[1]
        part_s = request.service_s * request.rows / rows if rows else request.service_s
        accuracy = self.accuracy[k]
        if self._credits and accuracy is not None:  # what it counts for in the balance
            accuracy = request.credit
        stats.answered(
            column,
            request.rows,
            accuracy,
            request.latency_s,
            part_s,
            request.counted,
            request.late,
        )
        self.log.keep(request, self.facts)
        if self.noted is not None:
            self.noted(request, column)
        if self.traced is not None:
            self.traced(self.task, request)

    # Second decisions.

    def _again(self, request: InferRequest, deadline_s: float) -> int:
        try:
            return self._decide(request, request.classes, deadline_s)
        except Exception as error:  # a policy that breaks must not cost others their answers
            self.report(error)
            return REJECT

    def _move(self, request: InferRequest) -> None:
        """Find a request that stands nowhere another server.

        It was taken, and so it is not refused for want of room or time elsewhere.
        """
        if request.chosen_for:
            alone = request.chosen_for in ("explored", "tried")
            request.chosen_for = "" if alone else "beside"
        for limit_s in (request.deadline_s, math.inf):
            if self._again(request, limit_s) >= 0:
                return
        if self.servers.falls_open(request, self.places):
            self._hold(request)
        else:
            self._reject(request)

    def _retry(self, request: InferRequest) -> bool:
        """Give a request that was not answered to another class; False where none may have it.

        That happens to a request once. Where the budget is spent, no other node is asked: only what
        runs here may still have it, and is nobody else's load. What a neighbor had that is left out
        as a whole costs nothing of the budget: that neighbor gets nothing more, so the others get
        no more than if it had been left out a little earlier.

        What an instance could not answer that fails by itself and rests now, another of its class
        may have, too, and as often as that happens: each time there is one less. A request under
        which `MOST_DEATHS` have ended goes to no other.
        """
        server, health = request.server, self.health
        instance, k, behind = self.instances[server], self.class_of[server], health.behind(server)
        group, apart = instance.group, instance.apart and instance.resting
        out = group is not None and not group.breaker.closed
        others = self.servers.mask(request)
        if not apart:
            others &= ~(1 << k)
        # Of a neighbor that is left out, the other classes get nothing either.
        if out:
            others &= ~behind
        if request.died:
            request.deaths += 1
            if request.deaths >= MOST_DEATHS:
                request.reason += f"; {request.deaths} instances have ended under this request"
                return False
        if request.moved and not apart:
            return False
        if self.left_s(request) < 0.0 or not health.any_of(others):
            return False
        if group is not None and not out and not self.budget.spend():
            others &= self.own
            if not health.any_of(others):
                request.reason += "; the budget of retries is spent"
                return False
        # What has lost it is asked again only where nobody else can be, even for another class.
        if request.lost and health.any_of(others & ~behind):
            others &= ~behind
        self.stats.moved[self.columns[k]] += 1
        request.moved, request.classes = True, others
        request.outcome, request.server, request.unserved = None, -1, False
        request.died = False
        request.passed, request.status, request.started_s = None, 0, 0.0
        self._move(request)
        return True

    def _mark(self, server: int, healthy: bool, reason: str) -> None:
        self.dispatcher.mark(server, healthy, self.now())
        if self.scheduler is not None:
            self.scheduler.again()
        self.changed(server, healthy, reason)
        if not healthy:
            queued = [one for one in list(self.queues[server]) if self.servers.recall(one)]
            for request in queued:
                request.server = -1
            for request in queued:
                if request.hand is not None:
                    self._send_first(request)
                else:
                    self._move(request)
        self._pull()

    # Who gives way to a newcomer of higher priority where there is no room.

    def _gave_way_at_servers(self, newcomer: InferRequest) -> bool:
        """Make room at a full server for a request that the policy refused; whether it is there."""
        victim = self._victim(newcomer)
        if victim is None or not self.servers.recall(victim):
            return False
        placed = self._decide(newcomer, newcomer.classes, newcomer.deadline_s) >= 0
        # The policy may refuse the newcomer all the same; then the place is the victim's again,
        # whose class and deadline have been decided on.
        if not placed:
            k = self.class_of[victim.server]
            victim.server = -1
            if self._decide(victim, 1 << k, math.inf) >= 0:
                return False
        victim.server = -1
        self._give_way(victim)
        return placed

    def _victim(self, newcomer: InferRequest) -> InferRequest | None:
        """Of the requests queued at full servers that may answer the newcomer, the one to go.

        It is the lowest in priority, of these the last to have come, where the newcomer would be in
        time behind the others. None where none is lower, or where it is not for want of room that
        the newcomer was refused.
        """
        victim, lowest = None, newcomer.priority
        servers, left_s = self.servers, self.left_s(newcomer)
        mask = servers.mask(newcomer)
        for server, k in enumerate(self.class_of):
            if not mask >> k & 1:
                continue
            queue = self.queues[server]
            if len(queue) < self.places:
                return None
            behind_s = sum(servers.predict(server, newcomer.rows))
            # Nobody gives up a service; those in service stand before the others.
            for queued in islice(queue, self.servers.begun(server), None):
                stands = _rank(queued)
                lower = stands > lowest or (
                    stands == lowest
                    and victim is not None
                    and queued.received_s > victim.received_s
                )
                # Nobody gives up an answer either.
                lower = lower and queued.hand is None
                if lower and behind_s - servers.service_s(server, queued.rows) <= left_s:
                    victim, lowest = queued, stands
        return victim

    def _gave_way_in_line(self, newcomer: InferRequest) -> bool:
        """Make room in the full central queue; the lowest there goes, of these the last."""
        victim = max(reversed([*self.held]), key=_rank, default=newcomer)
        if not 0 < newcomer.priority < _rank(victim):
            return False
        self._release(victim)
        self._give_way(victim)
        return True

    def _give_way(self, victim: InferRequest) -> None:
        victim.retry_after_s = self.servers.idle_s(self.servers.mask(victim))
        self._end(victim, Outcome.REJECTED, GAVE_WAY)

    # Ends without an answer: told, counted, remembered.

    def _reject(self, request: InferRequest) -> None:
        """End a request that nobody takes, and say why, and when another try may be worth it."""
        servers, left_s, reason = self.servers, self.left_s(request), ""
        mask = servers.mask(request)
        outcome, after_s = Outcome.REJECTED, 0.0
        if not mask:
            best = max(a or 0.0 for k, a in enumerate(self.accuracy) if request.classes >> k & 1)
            outcome = Outcome.INVALID
            reason = f"accuracy is {request.floor}; the most accurate variant here has {best:g}"
        elif not self.health.any_of(mask):
            outcome, after_s = Outcome.UNAVAILABLE, self.health.retry_s(mask)
            reason = (
                f"no instance of task {self.task!r} that may answer this request is healthy now"
            )
        elif (earliest_s := servers.earliest_s(mask, request.rows)) > left_s:
            after_s = earliest_s - max(0.0, left_s)
            reason = (
                f"no answer is predicted before {max(1e-3, earliest_s * 1e3):.3g} ms, and the "
                f"deadline is in {max(0.0, left_s * 1e3):.3g} ms"
            )
        else:
            after_s = servers.idle_s(mask)
            reason = f"task {self.task!r} has no room for this request now; try again later"
        request.retry_after_s = after_s
        if self.scheduler is not None and outcome is Outcome.REJECTED:
            self.scheduler.rejected()
        self._end(request, outcome, reason)

    def _expire(self, request: InferRequest, reason: str = EXPIRED) -> None:
        if request.hand is not None:
            self._send_first(request)
        else:
            self._end(request, Outcome.EXPIRED, reason)

    def _end(self, request: InferRequest, outcome: Outcome, reason: str) -> None:
        request.outcome, request.reason = outcome, reason
        column = self.columns[self.class_of[request.server]] if request.server >= 0 else -1
        self.stats.ended(outcome, column, self.now() - request.received_s)
        self.log.keep(request, self.facts)
        if self.noted is not None:
            self.noted(request, column)
        if outcome is not Outcome.CANCELED:  # nobody waits for that
            request.deliver(request)
        if self.traced is not None:
            self.traced(self.task, request)

    def report(self, error: Exception) -> None:
        """Say an error that is nobody's answer."""
        message = f"task {self.task!r}: a request was not settled"
        context = {"message": message, "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)

    # Beside the requests, again and again while it serves.

    def record(self, folder: Path, log: Any = None, **options: Any) -> None:
        """Write down in a folder, from now on, what the dispatcher is given and what it decides.

        The log is told when the disk refuses, and when there is room again; the options are those
        of `Recording`. ValueError when the folder holds a recording already, OSError when nothing
        can be written there.
        """
        assert not isinstance(self.dispatcher, Recording)
        recording = Recording(self.dispatcher, folder, **options)
        self.dispatcher = self.servers.dispatcher = self.recording = recording
        self._tasks.append(asyncio.create_task(keep_recording(recording, self.task, log)))

    async def remember(self) -> None:
        """Keep what was measured, where that is wanted."""
        if self.options.remember is not None:
            await asyncio.to_thread(self.options.remember)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(REMEMBER_S)
            await self.remember()

    @property
    def overloaded(self) -> bool:
        """Tell whether requests came faster in the last window than the target allows."""
        site, rules = self.dispatcher.site, self.options.rules
        rates = [
            most_per_s(row_s_of(site, k), rules[k] if rules is not None else Rule())
            for k in self.classes
        ]
        fleet = replace(
            self.dispatcher.fleet,
            rate=np.array(rates),
            accuracy=site.accuracy,
            confidence=self.facts.confidence,
        )
        budget = self.dispatcher.options.get("energy_budget")
        policy = self.dispatcher.policy_name
        return overloads(self.arrivals_per_s, fleet, self.options.target, budget, policy=policy)

    async def _follow_rate(self) -> None:
        """Measure the arrival rate, window by window, and tell the policy that asks for it."""
        window_s = self.options.window_s
        before, before_s = self._arrived, self.now()
        while True:
            await asyncio.sleep(window_s or RATE_WINDOW_S)
            arrived, now_s = self._arrived, self.now()
            self.arrivals_per_s = rate_per_s = (arrived - before) / (now_s - before_s)
            before, before_s = arrived, now_s
            if window_s is None or rate_per_s <= 0.0:
                continue
            # Planned in another thread: linear programs take milliseconds, which the loop has not
            # to give. Adopted here, between two decisions, where a replay can put it too.
            with suppress(ValueError):  # the policy goes on with the plan that it has
                plan = await asyncio.to_thread(self.dispatcher.plan, rate_per_s)
                self.dispatcher.adopt(plan)


def _rank(request: InferRequest) -> int:
    return request.priority or _UNSAID  # 1 is the highest


def _teach(new: Any, old: Any) -> None:
    """Give a dispatcher what another one's policy has learned, if it is the same of the same fleet.

    A policy that does not learn has plans, which belong to its own fleet.
    """
    if not hasattr(old.policy, "learn") or old.policy._fields != new.policy._fields:
        return
    mine, theirs = (
        (one.policy_name, one.options, one.fleet.variants, *one.fleet.rate, *one.fleet.accuracy)
        for one in (new, old)
    )
    fields = getattr(new.policy, "learned", new.policy._fields)
    pairs = [
        (to, getattr(old.policy, name))
        for name in fields
        if isinstance(to := getattr(new.policy, name), np.ndarray)
    ]
    if mine == theirs and all(to.shape == learned.shape for to, learned in pairs):
        for to, learned in pairs:
            to[:] = learned


def schedule(controller: Controller, pools: Sequence[Pool]) -> None:
    """Let a controller route the requests of pools, which have not started yet.

    They are in the order of its tasks: one, as a rule.
    """
    first, begun = pools[0], [False] * len(pools)
    loop = SchedulerLoop(
        controller, lambda: [pool.dispatcher for pool in pools], first.now, first.report
    )
    for place, pool in enumerate(pools):
        pool.scheduler = Scheduler(loop, begun, place)
