"""The loop-owned site: every request of one task passes here, between protocol and instances."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from inferway.live.explain import RequestLog
from inferway.live.pool import Pool
from inferway.live.request import EXPIRED, InferRequest, Job, NodeCondition, Outcome, RequestBatch
from inferway.live.stats import Stats
from inferway.protocol import Signature
from inferway.protocol.refusal import RefusalError
from inferway.site import HOLD, REJECT

DROPPED: Final = (
    "the policy dropped the request from its queue; it was not expected to finish in time"
)
GAVE_WAY: Final = "a request of higher priority took the place of this one; try again later"
_POLL_S: Final = 0.01
UNSAID: Final = 1 << 15
"""How low a request stands that states no priority: below all that do."""


class Balance(NamedTuple):
    """A task's accuracy balance.

    Attributes
    ----------
    target
        The accuracy target that it is measured by, 0..1.
    balance
        The sum of what the answers' accuracies were above it; below 0, they were below.
    """

    target: float
    balance: float


class TaskSite:
    """One task on this node for the life of the process, whichever fleet answers it, or none.

    All methods but the constructor belong to the event loop.

    Parameters
    ----------
    task
        Name that clients ask for.
    target
        Accuracy target that the balance is measured by, or None.
    now
        The clock, seconds.
    node
        This node, where it is one of a network: answers tell of it then.

    Attributes
    ----------
    present
        The fleet that answers; None where none does.
    balance
        What answers were above the target, below 0 what they were below, in sum: an array of one
        that every fleet's dispatcher writes to.
    """

    def __init__(
        self,
        task: str,
        target: float | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        node: NodeCondition | None = None,
    ) -> None:
        self.task, self.target, self.now, self.node = task, target, now, node
        self.present: Pool | None = None
        self.balance = np.zeros(1)
        self.ready = False
        self.stats = Stats()
        self.log = RequestLog()
        # Told the name of each instance that is healthy no longer, or again, and why not.
        self.told: Callable[[str, bool, str], None] | None = None
        # Fleets that answer what they have, and go.
        self._retiring: dict[Pool, asyncio.Task[None]] = {}
        self._traced: Callable[[str, InferRequest], None] | None = None
        self._stopped = False

    @classmethod
    def of(cls, pool: Pool) -> TaskSite:
        """Make the site of a fleet's task, which the fleet answers from `start` on."""
        options = pool.options
        node = NodeCondition(options.node) if options.node else None
        site = cls(pool.task, options.target, now=pool.now, node=node)
        site.present, site.balance = pool, pool.balance
        pool.owner, pool.columns = site, site.stats.columns(pool.variants)
        return site

    async def start(self) -> list[str]:
        """Warm every instance up and begin to serve.

        Returns
        -------
        list of str
            Names of instances that could not be warmed up, because their signature leaves open
            what would fit.
        """
        cold = await self.prepare(self.pool)
        self.begin()
        return cold

    def begin(self) -> None:
        """Serve from now on, with the fleet that has been prepared."""
        self.ready = any(self.pool.health.healthy)

    async def prepare(self, pool: Pool) -> list[str]:
        """Warm up another fleet, which answers nothing before `swap`; returns as `start`."""
        pool.owner, pool.stamps = self, self._traced is not None
        return await pool.start()

    def swap(self, pool: Pool | None) -> asyncio.Task[None] | None:
        """Have another fleet, which has been prepared, answer from now on, or none.

        The one before gets no more requests, answers what it has, and goes. The balance goes on
        where the promise is the same.

        Returns
        -------
        asyncio.Task or None
            Ends when it has gone; None where there was none.
        """
        before, self.present, self.ready = self.present, pool, False
        if pool is not None:
            pool.columns = self.stats.columns(pool.variants)
            if pool.options.target == self.target:
                pool.follow(self.balance, before)
            else:
                self.target, self.balance = pool.options.target, pool.balance
            self.ready = any(pool.health.healthy) and not self._stopped
        if before is None:
            return None
        before.flush()
        self._retiring[before] = leaving = asyncio.create_task(self._retire(before))
        return leaving

    async def _retire(self, pool: Pool) -> None:
        while pool.in_flight:
            await asyncio.sleep(_POLL_S)
        await self.close(pool, 1.0)
        del self._retiring[pool]

    def trace(self, traced: Callable[[str, InferRequest], None]) -> None:
        """Have each request told, with the task, when it has ended: for spans."""
        self._traced = traced
        if self.present is not None:
            self.present.stamps = True

    async def stop(self, limit_s: float = 1.0) -> None:
        """Stop serving; what is queued is run first, as far as the limit allows."""
        self.ready, self._stopped = False, True
        begun_s, pools = self.now(), [*self._retiring]
        if self.present is not None:
            pools.insert(0, self.present)
        for leaving in self._retiring.values():
            leaving.cancel()
        for pool in pools:
            await self.close(pool, max(0.0, limit_s - (self.now() - begun_s)))

    async def close(self, pool: Pool, limit_s: float = 1.0) -> None:
        """Let go of a fleet; what is queued is run first, as far as the limit allows."""
        gone = f"task {self.task!r} is no longer served"
        while pool.held:
            request = pool.held[0]
            pool.release(request)
            self._end(pool, request, Outcome.UNAVAILABLE, gone)
        begun_s = pool.now()
        for request in await pool.drain(limit_s):
            self._end(pool, request, Outcome.UNAVAILABLE, gone)
        await pool.close(max(0.0, limit_s - (pool.now() - begun_s)))

    def flush(self) -> None:
        """Let no request wait for others to make a batch with, from now on: few more will come."""
        if self.present is not None:
            self.present.flush()

    # What a protocol asks of a task.

    @property
    def pool(self) -> Pool:
        """The fleet that answers; only where there is one."""
        assert self.present is not None, f"no fleet answers task {self.task!r}"
        return self.present

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of all variants of the task."""
        return self.pool.signature

    @property
    def versions(self) -> Sequence[str]:
        """Variants that a request can be pinned to."""
        return self.pool.versions

    @property
    def in_flight(self) -> int:
        """Requests at the servers and in the central queue."""
        pools = [*self._retiring, *([] if self.present is None else [self.present])]
        return sum(pool.in_flight for pool in pools)

    @property
    def unready(self) -> str:
        """Refusal of requests while the task is not ready, whichever protocol brings them."""
        if self.present is None:
            return f"nothing that can answer task {self.task!r} is within reach now"
        return f"task {self.task!r} is not ready"

    def serves(self, variant: str | None) -> bool:
        """Tell whether the task is ready, and a healthy instance of the variant, if one is
        named.
        """
        if not self.ready or variant is None:
            return self.ready
        return self.pool.health.any_of(self.pool.mask_of(variant))

    # A request's life.

    def submit(self, request: InferRequest) -> None:
        """Take a request; its `deliver` is called when it has ended, maybe before this returns."""
        pool = self.present
        if pool is None or not self.ready:
            self._end(pool, request, Outcome.UNAVAILABLE, self.unready)
            return
        pool.arrived += request.rows
        in_order = pool.options.in_order
        if in_order and pool.held:  # first come, first served
            waits = pool.forecast.falls_open(request, pool.left_s(request), 0)
        else:
            server = pool.decide(request, request.classes, request.deadline_s)
            if server >= 0:
                return
            waits = server == HOLD or (in_order and _falls_open(pool, request))
        if waits:
            if not pool.full or self._gave_way_in_line(pool, request):
                pool.hold(request)
                return
        elif request.priority and self._gave_way_at_servers(pool, request):
            return
        self._reject(pool, request)

    def cancel(self, request: InferRequest) -> None:
        """Forget a request whose client has gone: its place is freed.

        In service it is stopped where the runtime can stop; else its answer comes and goes
        nowhere. Neither counts.
        """
        pool = self.present
        if self._retiring and (pool is None or not pool.has(request)):
            pool = next((one for one in self._retiring if one.has(request)), pool)
        if pool is None:
            return
        if request.server < 0:
            if request not in pool.held:
                return  # it has ended
            pool.release(request)
        elif not pool.recall(request):
            pool.abort(request)
            return
        self._note_cancel(pool, request)
        self.pull(pool)

    def settle(self, pool: Pool, job: Job) -> None:
        """Settle what has been run: answers sent, places freed, decisions undone."""
        if not isinstance(job, RequestBatch):
            self._settle(pool, job, 0)
            return
        assert pool.batcher is not None
        resting = pool.instances[job.server].resting
        try:
            job.share_out()
            if (
                job.outcome in (Outcome.FAILED, Outcome.INVALID)
                and len(job.members) > 1
                and not resting
            ):
                job.part()
            measured = job.rows
            for request in list(job.members):
                try:
                    # Of the batch's service time the dispatcher learns once.
                    if self._settle(pool, request, measured):
                        measured = -1
                except Exception as error:  # the others are to have their answers all the same
                    pool.report(error)
        finally:
            pool.batcher.settled(job)

    def _settle(self, pool: Pool, request: InferRequest, measured: int) -> bool:
        """Settle a request that is in a server's queue; whether it has been answered."""
        now_s = pool.now()
        server = request.server
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None
        if request.outcome is Outcome.ANSWERED and not request.abandoned:
            k = pool.class_of[server]
            request.variant, request.node = pool.names[k]
            request.latency_s = now_s - request.received_s
            request.late = now_s > request.deadline_s
            request.balance = pool.balance.item()
            passed = request.passed
            if measured >= 0 and passed is None:  # runs are counted where they are
                self.stats.ran(pool.columns[k], measured or request.rows, pool.most_rows[k])
            # Sent before it is counted: what cannot be sent does not count.
            try:
                request.deliver(request)
            except RefusalError as refusal:
                request.outcome, request.reason = Outcome.INVALID, refusal.reason
            except Exception as error:
                request.outcome = Outcome.FAILED
                request.reason = f"the answer of {request.variant} could not be sent"
                if not request.abandoned:
                    pool.report(error)
            else:
                pool.queues[server].popleft()
                # What was out of the ordinary on the way is the hop's to learn, for all servers.
                if passed is not None and passed.strayed:
                    measured = -1
                pool.dispatcher.finish(server, now_s, request.service_s, measured)
                self._note_answer(pool, request, k)
                return True
        pool.take_back(request)
        if pool.instances[server].resting:
            pool.health.rest(server, request.reason)
        if request.abandoned:
            request.reason = "the client went during the service"
            self._note_cancel(pool, request)
            return False
        again = request.unserved or (request.lost and pool.options.idempotent)
        if again and self._retry(pool, request):
            return False
        assert request.outcome is not None
        self._end(pool, request, request.outcome, request.reason)
        return False

    # Second decisions.

    def moved_out(self, pool: Pool, requests: Sequence[InferRequest]) -> None:
        """As `Owner.moved_out`."""
        for request in requests:
            self._move(pool, request)

    def _move(self, pool: Pool, request: InferRequest) -> None:
        """Find a request that stands nowhere another server.

        It was taken, and so it is not refused for want of room or time elsewhere.
        """
        for limit_s in (request.deadline_s, math.inf):
            if self._again(pool, request, limit_s) >= 0:
                return
        if _falls_open(pool, request):
            pool.hold(request)
        else:
            self._reject(pool, request)

    def _retry(self, pool: Pool, request: InferRequest) -> bool:
        """Give a request that was not answered to another class; False where none may have it.

        That happens to a request once. Where the budget is spent, no other node is asked: only what
        runs here may still have it, and is nobody else's load. What a neighbor had that is left out
        as a whole costs nothing of the budget: that neighbor gets nothing more, so the others get
        no more than if it had been left out a little earlier.
        """
        server = request.server
        k, health, out = pool.class_of[server], pool.health, pool.out(server)
        # Of a neighbor that is left out, the other classes get nothing either.
        others = pool.forecast.mask(request) & ~(1 << k)
        if out:
            others &= ~pool.behind(server)
        if request.moved or pool.left_s(request) < 0.0 or not health.any_of(others):
            return False
        retried = pool.instances[server].group is not None and not out
        if retried and not pool.budget.spend():
            others &= pool.own
            if not health.any_of(others):
                request.reason += "; the budget of retries is spent"
                return False
        # What has lost it is asked again only where nobody else can be, even for another class.
        apart = others & ~pool.behind(server)
        if request.lost and health.any_of(apart):
            others = apart
        self.stats.moved[pool.columns[k]] += 1
        request.moved, request.classes = True, others
        request.outcome, request.server, request.unserved = None, -1, False
        request.passed, request.status, request.started_s = None, 0, 0.0
        self._move(pool, request)
        return True

    def pull(self, pool: Pool) -> None:
        """Decide on the head of the central queue again: a server fell free, or the head has gone.

        It stays the head where the policy still holds it, or what it needs is still taken.
        """
        while pool.held:
            request = pool.next_held()
            timer, request.timer = request.timer, None
            if pool.left_s(request) < 0.0:
                self.dropped(pool, request, late=True)
            else:
                server = self._again(pool, request, request.deadline_s)
                if server == HOLD or (server == REJECT and _falls_open(pool, request)):
                    request.timer = timer
                    pool.put_back(request)
                    return
                if server == REJECT:
                    self._reject(pool, request)
            if timer is not None:
                timer.cancel()

    def _again(self, pool: Pool, request: InferRequest, deadline_s: float) -> int:
        try:
            return pool.decide(request, request.classes, deadline_s)
        except Exception as error:  # a policy that breaks must not cost others their answers
            pool.report(error)
            return REJECT

    # Who gives way to a newcomer of higher priority where there is no room.

    def _gave_way_at_servers(self, pool: Pool, newcomer: InferRequest) -> bool:
        """Make room at a full server for a request that the policy refused; whether it is there."""
        victim = _victim(pool, newcomer)
        if victim is None or not pool.recall(victim):
            return False
        placed = pool.decide(newcomer, newcomer.classes, newcomer.deadline_s) >= 0
        # The policy may refuse the newcomer all the same; then the place is the victim's again,
        # whose class and deadline have been decided on.
        if not placed:
            k = pool.class_of[victim.server]
            victim.server = -1
            if pool.decide(victim, 1 << k, math.inf) >= 0:
                return False
        victim.server = -1
        self._give_way(pool, victim)
        return placed

    def _gave_way_in_line(self, pool: Pool, newcomer: InferRequest) -> bool:
        """Make room in the full central queue; the lowest there goes, of these the last."""
        victim = max(reversed([*pool.held]), key=rank, default=newcomer)
        if not 0 < newcomer.priority < rank(victim):
            return False
        pool.release(victim)
        self._give_way(pool, victim)
        return True

    def _give_way(self, pool: Pool, victim: InferRequest) -> None:
        victim.retry_after_s = pool.forecast.idle_s(pool.forecast.mask(victim))
        self._end(pool, victim, Outcome.REJECTED, GAVE_WAY)

    # How requests end: told, counted, remembered.

    def _reject(self, pool: Pool, request: InferRequest) -> None:
        """End a request that nobody takes, and say why."""
        outcome, reason, request.retry_after_s = _rejection(pool, request)
        if pool.scheduler is not None and outcome is Outcome.REJECTED:
            pool.scheduler.rejected()
        self._end(pool, request, outcome, reason)

    def dropped(self, pool: Pool, request: InferRequest, late: bool) -> None:
        """As `Owner.dropped`."""
        self._end(pool, request, Outcome.EXPIRED, EXPIRED if late else DROPPED)

    def _end(self, pool: Pool | None, request: InferRequest, outcome: Outcome, reason: str) -> None:
        """End a request without an answer."""
        request.outcome, request.reason = outcome, reason
        self._note(pool, request)
        request.deliver(request)
        if self._traced is not None:
            self._traced(self.task, request)

    def _note_cancel(self, pool: Pool, request: InferRequest) -> None:
        """Note the end of a request that nobody waits for."""
        request.outcome = Outcome.CANCELED
        self._note(pool, request)
        if self._traced is not None:
            self._traced(self.task, request)

    def _note_answer(self, pool: Pool, request: InferRequest, k: int) -> None:
        """Note the end of a request whose answer has been sent."""
        rows, column = request.together[1], pool.columns[k]
        if request.late:
            self.stats.late[column] += 1
        # Of a run for several requests, each one's part by its rows.
        part_s = request.service_s * request.rows / rows if rows else request.service_s
        self.stats.answered(column, request.rows, pool.accuracy[k], request.latency_s, part_s)
        self.log.keep(request, pool.facts)
        if self._traced is not None:
            self._traced(self.task, request)

    def _note(self, pool: Pool | None, request: InferRequest) -> None:
        assert request.outcome is not None
        if pool is None:
            self.stats.ended(request.outcome)
            return
        column = pool.columns[pool.class_of[request.server]] if request.server >= 0 else -1
        self.stats.ended(request.outcome, column)
        self.log.keep(request, pool.facts)

    # What else a pool tells.

    def marked(self, pool: Pool, server: int, healthy: bool, reason: str) -> None:
        """As `Owner.marked`."""
        if pool is self.present:
            self.ready = any(pool.health.healthy) and not self._stopped
        instance = pool.instances[server]
        if self.told is not None and instance.group is None:
            self.told(instance.name, healthy, reason)


def balances_of(sites: Iterable[TaskSite]) -> dict[str, Balance]:
    """Tell the balances of tasks that have a target, by task, as of now; those at 0 left out."""
    return {
        site.task: Balance(site.target, site.balance.item())
        for site in sites
        if site.target is not None and site.balance[0]
    }


def take_up(sites: Mapping[str, TaskSite], saved: Mapping[str, Balance]) -> None:
    """Go on from saved balances, as far as the promise is still the same."""
    for task, (target, balance) in saved.items():
        if task in sites and sites[task].target == target:
            sites[task].balance[0] += balance


def _falls_open(pool: Pool, request: InferRequest) -> bool:
    """Tell whether waiting for one of the full servers makes sense."""
    return pool.forecast.falls_open(request, pool.left_s(request), pool.places)


def rank(request: InferRequest) -> int:
    """Rank of a request: 1 is the highest."""
    return request.priority or UNSAID


def _victim(pool: Pool, newcomer: InferRequest) -> InferRequest | None:
    """Of the requests queued at full servers that may answer the newcomer, the one to go.

    It is the lowest in priority, of these the last to have come, where the newcomer would be in
    time behind the others. None where none is lower, or where it is not for want of room that
    the newcomer was refused.
    """
    victim, lowest = None, newcomer.priority
    forecast, left_s = pool.forecast, pool.left_s(newcomer)
    mask = forecast.mask(newcomer)
    for server, k in enumerate(pool.class_of):
        if not mask >> k & 1:
            continue
        queue = pool.queues[server]
        if len(queue) < pool.places:
            return None
        behind_s = forecast.wait_s(server) + forecast.service_s(server, newcomer.rows)
        # Nobody gives up a service.
        for queued in islice(queue, pool.begun(server), None):
            stands = rank(queued)
            lower = stands > lowest or (
                stands == lowest and victim is not None and queued.received_s > victim.received_s
            )
            if lower and behind_s - forecast.service_s(server, queued.rows) <= left_s:
                victim, lowest = queued, stands
    return victim


def _rejection(pool: Pool, request: InferRequest) -> tuple[Outcome, str, float]:
    """Say how a request ends that no server takes, why, and when another try may be worth it."""
    mask, left_s = pool.forecast.mask(request), pool.left_s(request)
    if not mask:
        best = max(a for k, a in enumerate(pool.accuracy) if request.classes >> k & 1)
        reason = f"accuracy is {request.floor}; the most accurate variant here has {best:g}"
        return Outcome.INVALID, reason, 0.0
    if not pool.health.any_of(mask):
        reason = f"no instance of task {pool.task!r} that may answer this request is healthy now"
        return Outcome.UNAVAILABLE, reason, pool.health.retry_s(mask)
    if left_s < math.inf:
        earliest_s = pool.forecast.earliest_s(mask, request.rows)
        if earliest_s > left_s:
            reason = (
                f"no answer is predicted before {max(1e-3, earliest_s * 1e3):.3g} ms, and the "
                f"deadline is in {max(0.0, left_s * 1e3):.3g} ms"
            )
            return Outcome.REJECTED, reason, earliest_s - max(0.0, left_s)
    reason = f"task {pool.task!r} has no room for this request now; try again later"
    return Outcome.REJECTED, reason, pool.forecast.idle_s(mask)
