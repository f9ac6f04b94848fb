"""One fleet of a task: who decides, the servers, a queue for each of them, and their batches."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from inferway.live.background import SchedulerLoop, keep_recording
from inferway.live.explain import FleetFacts, Snapshot
from inferway.live.headroom import is_closed
from inferway.live.health import Health
from inferway.live.instance import Instance, PoolTerms, RetryBudget
from inferway.live.local import LocalInstance
from inferway.live.options import PoolOptions
from inferway.live.predict import Forecast
from inferway.live.request import InferRequest, Job, RequestBatch, fit
from inferway.live.threads import InlineRunner, Wakeup
from inferway.live.upstream.remote import Forwarding
from inferway.live.upstream.server import ServerInstance
from inferway.live.upstream.upstream import Upstream
from inferway.protocol import Signature
from inferway.runtime import RemoteRuntime, Served
from inferway.site.view import WHOLE, Floats

if TYPE_CHECKING:
    from inferway.dispatch.batching import Rule
    from inferway.dispatch.dispatcher import Dispatcher
    from inferway.dispatch.recording import Recording

REMEMBER_S: Final = 60.0
"""How often the measured service times are kept."""
WITHDRAWN: Final = "the node does not offer this any more"
_HALF_WORD: Final = 2**63


class Owner(Protocol):
    """Whose requests a pool has, and who is told what becomes of them; always on the loop."""

    def settle(self, pool: Pool, job: Job) -> None:
        """Settle a request, or a batch, that has been run."""

    def pull(self, pool: Pool) -> None:
        """Decide on the head of the central queue again: something may have fallen free."""

    def dropped(self, pool: Pool, request: InferRequest, late: bool) -> None:
        """End a request that stands nowhere any more: it is late, or the policy said so."""

    def moved_out(self, pool: Pool, requests: Sequence[InferRequest]) -> None:
        """Find other servers for requests whose server takes none any more."""

    def marked(self, pool: Pool, server: int, healthy: bool, reason: str) -> None:
        """Say that a server takes requests from now on, or why it does not."""


class Pool:
    """A dispatcher, its instances, and what is on the way between them.

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
    names
        Per class, its variant and its node.
    versions
        Variants that a request can be pinned to.
    places
        At each server.
    fits, most_rows
        By class, the rows that a request may have, and those of one run.
    facts
        For explanations.
    columns
        Where the task's statistics have each class.
    own
        Classes that run here, as a bit mask.
    queues
        What each server holds, in the dispatcher's order; those in service come first.
    held
        The central queue: requests that no server has yet, as they came.
    batcher
        Forms batches; None where instances take one request after the other by themselves.
    arrived
        Rows that have been asked for.
    stamps
        Whether requests note when they were decided, for spans.
    recording
        Writes down what the dispatcher is given and decides; None where nothing does.
    """

    owner: Owner
    soon: Callable[[Callable[[], Job | None]], None]

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
        first = [int(server) for server in fleet.first]
        if len(runtimes) != first[-1]:
            raise ValueError(
                f"task {task!r} has {first[-1]} servers and {len(runtimes)} runtimes; "
                "there must be one per server"
            )
        self.task, self.signature, self.dispatcher = task, signature, dispatcher
        self.variants, self.first = fleet.variants, first
        # As plain Python values.
        self.accuracy = [float(value) for value in fleet.accuracy]
        self.rate = [float(value) for value in fleet.rate]
        self.classes = range(len(fleet.variants))
        self.class_of = [k for k in self.classes for _ in range(first[k], first[k + 1])]
        self.runtimes = list(runtimes)
        self.names = [
            (one.variant, one.node) if isinstance(one, Forwarding) else (name, options.node)
            for name, one in ((fleet.variants[k], runtimes[first[k]]) for k in self.classes)
        ]
        self.versions = tuple(dict.fromkeys(variant for variant, _ in self.names))
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
            fleet.variants, self.accuracy, first, options.target, self.places, self.most_rows
        )
        self.columns = list(self.classes)
        self.budget = RetryBudget()
        self.instances = self._instances()
        self._led = {self.instances[low]: (low, high) for low, high in pairwise(first)}
        # A class is another node's, or this one's.
        self.own = sum(
            1 << k for k in self.classes if not isinstance(runtimes[first[k]], Forwarding)
        )
        self._groups: dict[Upstream, list[int]] = {}
        for server, instance in enumerate(self.instances):
            if instance.group is not None:
                self._groups.setdefault(instance.group, []).append(server)
        self._watchers: list[tuple[Upstream, Callable[[bool, str], None]]] = []
        self._withdrawn: frozenset[int] = frozenset()
        self.queues: list[deque[InferRequest]] = [deque() for _ in self.instances]
        self.held: deque[InferRequest] = deque()
        self.forecast = Forecast(view, self.class_of, self.accuracy, self.now)
        self.health = Health(self.instances, self.class_of, self._mark)
        pulls = hasattr(dispatcher.policy, "pull")
        batches = pulls or options.rules is not None
        self.batcher = Batcher(self, options.rules, pulls=pulls) if batches else None
        self.scheduler = (
            None
            if options.controller is None
            else SchedulerLoop(options.controller, lambda: self.dispatcher, self.now, self.report)
        )
        self.arrived, self.stamps = 0, False
        self._word = random.Random(options.seed).getrandbits
        self._queue, self._ends_s, self._free_s = view.queue, view.ends_s, view.free_s
        self._row_s, self.balance, self._held = view.row_s, view.balance, view.held
        self._routed = dispatcher.routed
        self.recording: Recording | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._done: deque[Job] = deque()
        self._wakeup: Wakeup | None = None

    def _instances(self) -> list[Instance]:
        options, made = self.options, list[Instance]()
        late, now = options.drop_late, options.now
        terms = PoolTerms(self.task, self.signature, options.node, late, now, self.budget)
        for server, (k, one) in enumerate(zip(self.class_of, self.runtimes, strict=True)):
            name = f"{self.task}/{self.variants[k]}#{server - self.first[k]}"
            bounds: dict[str, Any] = {
                "sizes": (1,) if options.rules is None else options.rules[k].sizes,
                "most_rows": self.most_rows[k],
                "headroom": options.headroom,
                "demand": self.demands[k],
            }
            if isinstance(one, Forwarding):
                made.append(one.instance(name, terms))
            elif isinstance(one, RemoteRuntime):
                made.append(ServerInstance(name, one, terms, **bounds))
            else:
                made.append(LocalInstance(name, one, drop_late=late, now=now, **bounds))
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
        self.soon = InlineRunner(loop, self._done.append, self.collect).plan
        for instance in self.instances:
            await instance.start(self)
        if self.scheduler is not None:
            self.scheduler.begin()
        for server, instance in enumerate(self.instances):
            if instance.resting:
                self.health.rest(server, f"{instance.name} failed: {instance.complaint}")
        for group, servers in self._groups.items():
            watcher = partial(self._mark_group, servers)
            self._watchers.append((group, watcher))
            group.watch(watcher)
            if group.works and self._withdrawn:
                watcher(True, "")
        options = self.options
        if options.window_s is not None:
            self._tasks.append(asyncio.create_task(self._follow_rate(options.window_s)))
        if options.remember is not None:
            self._tasks.append(asyncio.create_task(self._keep()))
        return [instance.name for instance in self.instances if instance.cold]

    async def drain(self, limit_s: float) -> list[InferRequest]:
        """Run what waits, as far as the limit allows; health, plans and schedules stay as they are.

        Returns
        -------
        list of InferRequest
            Those that were left, in no queue any more; what instances have, `close` waits for.
        """
        self.health.stop()
        for task in self._tasks:
            task.cancel()
        if self.scheduler is not None:
            self.scheduler.stop()
        for group, watcher in self._watchers:
            group.unwatch(watcher)
        self._watchers.clear()
        return [] if self.batcher is None else await self.batcher.drain(limit_s)

    async def close(self, limit_s: float) -> None:
        """End every instance after what it has, as far as the limit allows."""
        ended = all(await asyncio.gather(*(one.close(limit_s) for one in self.instances)))
        # What has ended since the loop was last woken.
        self.collect()
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
        if self.scheduler is not None:
            if before.scheduler is not None:
                self.scheduler.go_on(before.scheduler)
            self.scheduler.again()  # what was taught holds the old routing

    def flush(self) -> None:
        """Let no request wait for others to make a batch with, from now on: few more will come."""
        if self.batcher is not None:
            self.batcher.flush()

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
        own = (variant, self.options.node)
        return sum(1 << k for k in self.classes if self.names[k] == own)

    def forwards(self, classes: int) -> bool:
        """Tell whether a request that these classes may answer, a bit mask, may go to another
        node.
        """
        return bool(classes & ~self.own & ((1 << len(self.variants)) - 1))

    def withdraw(self, offers: Collection[tuple[str, str]]) -> None:
        """Forward nothing to these offers, each variant and node, and to all others as they come.

        What is on its way to them still ends.
        """
        before = self._withdrawn
        self._withdrawn = frozenset(k for k in self.classes if self.names[k] in offers)
        turned = before ^ self._withdrawn
        for group, servers in self._groups.items():
            those = [server for server in servers if self.class_of[server] in turned]
            self._mark_group(those, group.works, group.reason)

    def behind(self, server: int) -> int:
        """Classes whose servers fail together with a server's, as a bit mask; 0 where none does."""
        group, mask = self.instances[server].group, 0
        if group is not None:
            for other in self._groups[group]:
                mask |= 1 << self.class_of[other]
        return mask

    def out(self, server: int) -> bool:
        """Tell whether the server fails together with others, and has: it gets nothing more."""
        group = self.instances[server].group
        return group is not None and group.out

    # Decisions.

    def decide(self, request: InferRequest, classes: int, deadline_s: float) -> int:
        """Have a request decided on; one that gets a server goes there.

        Parameters
        ----------
        request
            It stands in no queue.
        classes
            Bit mask of the classes that may answer it.
        deadline_s
            That the policy is told.

        Returns
        -------
        int
            A server, REJECT or HOLD.
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
            self.health.flags,
            b"" if routing is None else routing.tobytes(),
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
        if self.stamps:
            request.dispatched_s = self.now()
        if server >= 0:
            request.predicted_s = dispatcher.predicted_wait_s + dispatcher.predicted_service_s
            request.server = server
            queue = self.queues[server]
            queue.append(request)
            if self.batcher is None:
                self.instances[server].put(request)
                waits = len(queue) > 1
            else:
                waits = self.batcher.put(request)
            if waits and request.deadline_s < math.inf:
                self._time(request, now_s)
        return server

    def ask(self, server: int) -> tuple[int, int]:
        """Ask the policy how many requests a free server drops and takes: (drop, take)."""
        return self.dispatcher.pull(server, self.now(), self._word(64) - _HALF_WORD)

    def begin(self, server: int, taken: int) -> None:
        """Say that a server serves its first requests together, or waits for more with 0."""
        self.dispatcher.begin(server, taken, self.now())

    def take_back(self, request: InferRequest) -> None:
        """Undo a decision where no answer is sent: the place is freed and the balance moved back.

        The request keeps its server's number, for those who count.
        """
        server = request.server
        queue = self.queues[server]
        position = queue.index(request)
        del queue[position]
        request.untime()
        self.dispatcher.withdraw(server, position, self.now(), request.counted)

    def recall(self, request: InferRequest) -> bool:
        """Take a request from its server and undo its decision; False when its run has begun."""
        if self.batcher is not None:
            return self.batcher.cancel(request)
        if not self.instances[request.server].cancel(request):
            return False
        self.take_back(request)
        return True

    def abort(self, request: InferRequest) -> None:
        """Nobody waits for this request, whose run has begun: it is stopped where it can be."""
        if self.batcher is not None:
            self.batcher.abort(request)
        else:
            self.instances[request.server].abort(request)

    def begun(self, server: int) -> int:
        """Number of a server's requests in service; they stand before the others."""
        if self.batcher is not None:
            return self.batcher.begun(server)
        return min(1, len(self.queues[server]))

    def left_s(self, request: InferRequest) -> float:
        """Time until a request's deadline."""
        # Where late requests are served, nothing is refused for being late.
        return request.deadline_s - self.now() if self.drop_late else math.inf

    # The central queue; policies see how many wait there.

    @property
    def full(self) -> bool:
        """Tell whether the central queue has no room."""
        return len(self.held) >= self.options.room

    def hold(self, request: InferRequest) -> None:
        """Let a request wait behind all others in the central queue."""
        self.held.append(request)
        self._held[0] = len(self.held)
        if request.deadline_s < math.inf:
            self._time(request, self.now())

    def release(self, request: InferRequest) -> None:
        """Let a request go from the central queue, wherever it stands."""
        self.held.remove(request)
        self._held[0] = len(self.held)
        request.untime()

    def next_held(self) -> InferRequest:
        """Take the first out, to be decided on; its deadline goes on."""
        request = self.held.popleft()
        self._held[0] = len(self.held)
        return request

    def put_back(self, request: InferRequest) -> None:
        """Let a request be the first again."""
        self.held.appendleft(request)
        self._held[0] = len(self.held)

    def _time(self, request: InferRequest, now_s: float) -> None:
        # Whoever asked should know at once, not when a server comes to it.
        if self.drop_late:
            left_s = max(0.0, request.deadline_s - now_s)
            loop = asyncio.get_running_loop()
            request.timer = loop.call_later(left_s, self._pass, request)

    def _pass(self, request: InferRequest) -> None:
        request.timer = None
        if request.server < 0:
            self.release(request)
        elif request.outcome is not None or not self.recall(request):
            return
        self.owner.dropped(self, request, late=True)
        self.owner.pull(self)

    # What instances and batches tell.

    def done(self, job: Job) -> None:
        """As `Events.done`: another node's answer has come in."""
        self._done.append(job)
        self.collect()

    def posted(self, job: Job) -> None:
        """As `Events.posted`."""
        self._done.append(job)
        assert self._wakeup is not None
        self._wakeup.ring()

    def collect(self) -> None:
        """Have everything settled that has ended."""
        done, owner = self._done, self.owner
        while done:
            job = done.popleft()
            try:
                owner.settle(self, job)
            except Exception as error:  # the others are to have their answers all the same
                self.report(error)
            if job.kept_bytes is not None:
                assert self.options.headroom is not None
                self.options.headroom.settle(*job.kept_bytes)
        if self.held:
            owner.pull(self)

    def leads(self, instance: Instance) -> bool:
        """As `Events.leads`."""
        return instance in self._led

    def slower(self, instance: Instance, by_s: float, least_s: float) -> None:
        """As `Events.slower`."""
        low, high = self._led[instance]
        self.dispatcher.shift(low, high, by_s, least_s, self.now())

    def report(self, error: Exception) -> None:
        """Say an error that is nobody's answer."""
        message = f"task {self.task!r}: a request was not settled"
        context = {"message": message, "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)

    def _mark(self, server: int, healthy: bool, reason: str) -> None:
        self.dispatcher.mark(server, healthy, self.now())
        if self.scheduler is not None:
            self.scheduler.again()
        self.owner.marked(self, server, healthy, reason)
        if not healthy:
            queued = [one for one in list(self.queues[server]) if self.recall(one)]
            for request in queued:
                request.server = -1
            self.owner.moved_out(self, queued)
        self.owner.pull(self)

    def _mark_group(self, servers: Sequence[int], works: bool, reason: str) -> None:
        # All rest before the first is marked: what it had queued is not to go to the next of them.
        able = [works and self.class_of[server] not in self._withdrawn for server in servers]
        for server, takes in zip(servers, able, strict=True):
            self.instances[server].resting = not takes
        for server, takes in zip(servers, able, strict=True):
            if takes:
                self.health.again(server)
            else:
                self.health.rest(server, reason or WITHDRAWN, probed=True)

    # Beside the requests, again and again while it serves.

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
        from inferway.dispatch.recording import Recording

        assert not isinstance(self.dispatcher, Recording)
        self.dispatcher = self.recording = Recording(self.dispatcher, folder, **options)
        keeping = keep_recording(self.recording, self.task, log)
        self._tasks.append(asyncio.create_task(keeping))

    async def remember(self) -> None:
        """Keep what was measured, where that is wanted."""
        if self.options.remember is not None:
            await asyncio.to_thread(self.options.remember)

    async def _follow_rate(self, window_s: float) -> None:
        before, before_s = 0, self.now()
        while True:
            await asyncio.sleep(window_s)
            arrived, now_s = self.arrived, self.now()
            rate_per_s = (arrived - before) / (now_s - before_s)
            before, before_s = arrived, now_s
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


class Batcher:
    """Requests wait here and not at the instances, each of which has one batch at most.

    A free server is asked what it takes when a request comes to it and when it falls free. What it
    takes is rounded down to a size that its class offers, counted in rows.

    By class, `rules` are the sizes offered, and how batches are formed where the policy does not
    say (`pulls`); None where requests are run one at a time.
    """

    def __init__(self, pool: Pool, rules: Sequence[Rule] | None, *, pulls: bool) -> None:
        self._pool = pool
        self._instances, self._queues = pool.instances, pool.queues
        self._rules = [None if rules is None else rules[k] for k in pool.class_of]
        self._pulls = pulls
        # Whether requests of the task may differ in more than their first axis.
        self._mixed = not is_closed(pool.signature)
        self._serving: list[RequestBatch | None] = [None] * len(pool.class_of)
        self._flushing = False
        self._idle: asyncio.Event | None = None

    def put(self, request: InferRequest) -> bool:
        """Take a request that has just come to its server; whether it is left waiting there."""
        self._ask(request.server)
        if request.outcome is not None or request.server < 0:
            return False
        batch = self._serving[request.server]
        return batch is None or request not in batch.members

    def cancel(self, request: InferRequest) -> bool:
        """Take a request from its server and undo its decision; False when its run has begun.

        A batch that has not begun goes on without the request.
        """
        if request.outcome is not None:
            return False  # it has ended, or is about to
        server = request.server
        batch = self._serving[server]
        if batch is not None and request in batch.members:
            if not self._instances[server].cancel(batch):
                return False
            batch.members.remove(request)
            self._pool.take_back(request)
            if batch.members:
                self._pool.begin(server, len(batch.members))
                self._instances[server].put(batch)
            else:
                self._serving[server] = None
                self._ask(server)
            return True
        self._pool.take_back(request)
        if batch is None and self._queues[server]:
            self._pool.begin(server, 0)
        self._look()
        return True

    def abort(self, request: InferRequest) -> None:
        """Nobody waits for a request; its batch is stopped when that is so of all its answers."""
        request.abandoned = True
        batch = self._serving[request.server]
        if batch is not None and all(one.abandoned for one in batch.members):
            self._instances[request.server].abort(batch)

    def begun(self, server: int) -> int:
        """Number of a server's requests in service; they stand before the others."""
        batch = self._serving[server]
        return 0 if batch is None else len(batch.members)

    def settled(self, batch: RequestBatch) -> None:
        """Let the server of a batch whose members have left, or wait again, take the next."""
        self._serving[batch.server] = None
        self._ask(batch.server)
        self._look()

    def flush(self) -> None:
        """Let nobody wait for requests that will not come: a server takes what there is."""
        self._flushing = True
        for server in range(len(self._instances)):
            self._ask(server)

    async def drain(self, limit_s: float) -> list[InferRequest]:
        """Run what waits, as far as the limit allows; what was left, which stands nowhere now."""
        self.flush()
        self._idle = asyncio.Event()
        self._look()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)
        waiting = [one for queue in self._queues for one in queue]
        return [request for request in waiting if self.cancel(request)]

    def _look(self) -> None:
        if self._idle is not None and not any(self._serving) and not any(self._queues):
            self._idle.set()

    def _ask(self, server: int) -> None:
        queue = self._queues[server]
        if self._serving[server] is not None or not queue:
            return
        gone: list[tuple[InferRequest, bool]] = []
        if queue[0].alone:
            take = 1
        else:
            rule = self._rules[server]
            if self._pulls:
                drop, take = self._pool.ask(server)
            else:
                drop, take = 0, 1 if rule is None else rule.take(len(queue))
            for _ in range(min(drop, len(queue))):
                gone.append((queue[0], False))
                self._pool.take_back(queue[0])
            while queue and self._pool.left_s(queue[0]) < 0.0:
                gone.append((queue[0], True))
                self._pool.take_back(queue[0])
            if self._flushing and take <= 0:
                take = len(queue)
        members = self._first(server, take)
        if members:
            for request in members:
                request.untime()
            self._pool.begin(server, len(members))
            self._serving[server] = batch = RequestBatch(server, members)
            self._instances[server].put(batch)
        elif queue:
            self._pool.begin(server, 0)
        # Told last: whoever hears of it may send the next request at once.
        for request, late in gone:
            self._pool.owner.dropped(self._pool, request, late)

    def _first(self, server: int, take: int) -> list[InferRequest]:
        """Those at the head of the queue that make the largest batch offered."""
        queue = self._queues[server]
        if not queue or take <= 0:
            return []
        first, rule = queue[0], self._rules[server]
        members = [first]
        if rule is not None and not first.alone:
            for request in islice(queue, 1, take):
                if request.alone or (self._mixed and not fit(first, request)):
                    break
                members.append(request)
            rows = sum(request.rows for request in members)
            room = rule.rounded(rows)
            while len(members) > 1 and rows > room:
                rows -= members.pop().rows
        return members


def _teach(new: Any, old: Any) -> None:
    # A policy that does not learn has plans, which belong to its own fleet.
    policy = old.policy
    if not hasattr(policy, "learn") or policy._fields != new.policy._fields:
        return
    said = [(one.policy_name, one.options, one.fleet.variants) for one in (new, old)]
    mine, theirs = (np.stack((one.fleet.rate, one.fleet.accuracy)) for one in (new, old))
    if said[0] != said[1] or not np.array_equal(mine, theirs):
        return
    learned = [
        pair for pair in zip(new.policy, policy, strict=True) if isinstance(pair[0], np.ndarray)
    ]
    if all(mine.shape == theirs.shape for mine, theirs in learned):
        for mine, theirs in learned:
            mine[:] = theirs
