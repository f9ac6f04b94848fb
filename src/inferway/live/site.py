"""One task on a node, whichever fleet answers it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from inferway.dispatch.promise import Promise, promise_of
from inferway.live.answers import AnswerBook
from inferway.live.explain import RequestLog
from inferway.live.pool import Pool
from inferway.live.request import InferRequest, NodeCondition, Outcome
from inferway.live.stats import Stats

_POLL_S: Final = 0.01


class Balance(NamedTuple):
    """A task's accuracy balance.

    Attributes
    ----------
    target
        The accuracy target that it is measured by, 0..1.
    balance
        The sum of what the answers' accuracies were above it; below 0, they were below.
    measured
        Whether these accuracies were as measured, not of profiles.
    """

    target: float
    balance: float
    measured: bool = False


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
    measured
        Whether the promise is on what feedback measures.

    Attributes
    ----------
    present
        The fleet that answers; None where none does.
    balance
        What answers were above the target, below 0 what they were below, in sum: an array of one
        that every fleet's dispatcher writes to.
    answers
        Keeps them for feedback; None where the task keeps none.
    entered
        Rows of the requests that have come.
    told
        Called with the name of each instance that is healthy no longer, or again, and why not.
    """

    told: Callable[[str, bool, str], None] | None = None

    def __init__(
        self,
        task: str,
        target: float | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        node: NodeCondition | None = None,
        measured: bool = False,
    ) -> None:
        self.task, self.target, self.now, self.node = task, target, now, node
        self.measured = measured
        self.present: Pool | None = None
        self.answers: AnswerBook | None = None
        self.balance = np.zeros(1)
        self.ready = self._stopped = False
        self.entered = 0
        self.stats, self.log = Stats(), RequestLog()
        # Fleets that answer what they have, and go.
        self._retiring: dict[Pool, asyncio.Task[None]] = {}
        self._noted: Callable[[InferRequest, int], None] | None = None
        self._traced: Callable[[str, InferRequest], None] | None = None

    @classmethod
    def of(cls, pool: Pool) -> TaskSite:
        """Make the site of a fleet's task, which the fleet answers from `start` on."""
        options = pool.options
        node = NodeCondition(options.node) if options.node else None
        site = cls(pool.task, options.target, now=pool.now, node=node, measured=options.measured)
        site.present, site.balance = pool, pool.balance
        pool.columns = site.stats.columns(pool.variants)
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
        pool.stats, pool.log = self.stats, self.log
        pool.noted, pool.traced = self._noted, self._traced
        pool.changed = partial(self._changed, pool)
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
            options = pool.options
            if (options.target, options.measured) == (self.target, self.measured):
                pool.follow(self.balance, before)
            else:
                self.target, self.balance = options.target, pool.balance
                self.measured = options.measured
                self.stats.promise_anew()
            self.ready = any(pool.health.healthy) and not self._stopped
        if before is None:
            return None
        before.servers.flush()
        self._retiring[before] = leaving = asyncio.create_task(self._retire(before))
        return leaving

    async def _retire(self, pool: Pool) -> None:
        while pool.in_flight:
            await asyncio.sleep(_POLL_S)
        await pool.close(1.0)
        del self._retiring[pool]

    def note(self, noted: Callable[[InferRequest, int], None]) -> None:
        """Have each request noted when it has ended, with the column of its variant."""
        self._noted = noted
        if self.present is not None:
            self.present.noted = noted

    def trace(self, traced: Callable[[str, InferRequest], None]) -> None:
        """Have each request told, with the task, when it has ended: for spans."""
        self._traced = traced
        if self.present is not None:
            self.present.traced = traced

    async def stop(self, limit_s: float = 1.0) -> None:
        """Stop serving; what is queued is run first, as far as the limit allows."""
        self.ready, self._stopped = False, True
        ends_s, pools = self.now() + limit_s, self.pools
        for leaving in self._retiring.values():
            leaving.cancel()
        for pool in pools:
            await pool.close(max(0.0, ends_s - self.now()))

    def flush(self) -> None:
        """Let no request wait for others to make a batch with, from now on: few more will come."""
        if self.present is not None:
            self.present.servers.flush()

    def _changed(self, pool: Pool, server: int, healthy: bool, reason: str) -> None:
        if pool is self.present:
            self.ready = any(pool.health.healthy) and not self._stopped
        instance = pool.instances[server]
        if self.told is not None and instance.group is None:
            self.told(instance.name, healthy, reason)

    # What a protocol asks of a task.

    @property
    def pool(self) -> Pool:
        """The fleet that answers; only where there is one."""
        assert self.present is not None, f"no fleet answers task {self.task!r}"
        return self.present

    @property
    def versions(self) -> frozenset[str] | None:
        """Variants that a request can be pinned to; None where no fleet answers."""
        return None if self.present is None else frozenset(self.present.versions)

    @property
    def pools(self) -> list[Pool]:
        """List the fleet that answers, and those that answer what they have and go."""
        return [*([] if self.present is None else [self.present]), *self._retiring]

    @property
    def promise(self) -> Promise | None:
        """The verdict on the task's accuracy target so far; None without one."""
        stats = self.stats
        verdict = promise_of(
            self.target,
            stats.promised,
            stats.promised_sum,
            balance=self.balance.item(),
            by="measured" if self.measured else "profile",
        )
        # To tell whether too many requests come takes long, and only changes this one.
        if verdict is None or verdict.state != "kept":
            return verdict
        overloaded = self.present is not None and self.present.overloaded
        return verdict._replace(state="at-risk") if overloaded else verdict

    @property
    def in_flight(self) -> int:
        """Requests at the servers and in the central queue."""
        return sum(pool.in_flight for pool in self.pools)

    @property
    def thread_cpu_s(self) -> float:
        """CPU time of the threads of instances, s."""
        return sum(pool.thread_cpu_s for pool in self.pools)

    @property
    def run_cpu_s(self) -> dict[int, float]:
        """CPU time of this process that models have taken, s, by what ran them."""
        return {key: took_s for pool in self.pools for key, took_s in pool.run_cpu_s.items()}

    @property
    def stretched_s(self) -> dict[int, float]:
        """CPU time of models beyond their profiles, s, below 0 where less, by what ran them."""
        return {key: took_s for pool in self.pools for key, took_s in pool.stretched_s.items()}

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

    def submit(self, request: InferRequest) -> None:
        """Take a request; its `deliver` is called when it has ended, maybe before this returns."""
        pool = self.present
        self.entered += request.rows
        if pool is not None and self.ready:
            pool.submit(request)
            return
        request.outcome, request.reason = Outcome.UNAVAILABLE, self.unready
        self.stats.ended(Outcome.UNAVAILABLE)
        if pool is not None:
            self.log.keep(request, pool.facts)
        request.deliver(request)
        if self._traced is not None:
            self._traced(self.task, request)

    def cancel(self, request: InferRequest) -> None:
        """Forget a request whose client has gone: its place is freed.

        In service it is stopped where the runtime can stop; else its answer comes and goes
        nowhere. Neither counts.
        """
        for pool in self.pools:
            if pool.has(request):
                pool.cancel(request)


def balances_of(sites: Iterable[TaskSite]) -> dict[str, Balance]:
    """Tell the balances of tasks that have a target, by task, as of now; those at 0 left out."""
    return {
        site.task: Balance(site.target, site.balance.item(), site.measured)
        for site in sites
        if site.target is not None and site.balance[0]
    }


def take_up(sites: Mapping[str, TaskSite], saved: Mapping[str, Balance]) -> None:
    """Go on from saved balances, as far as the promise is still the same."""
    for task, (target, balance, measured) in saved.items():
        site = sites.get(task)
        if site is not None and (site.target, site.measured) == (target, measured):
            site.balance[0] += balance
