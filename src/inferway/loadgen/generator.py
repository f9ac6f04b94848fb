"""The sending side: an event loop that writes each request when it is due, whatever comes back."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

import msgspec
import numpy as np

from inferway.loadgen.access import OPEN, Access
from inferway.loadgen.alarm import alarm
from inferway.loadgen.answer import decode
from inferway.loadgen.plan import SendOutcome, SendPlan
from inferway.loadgen.pool import NOTHING, Reply, RequestPool, Said
from inferway.unreadable import UNREADABLE

_FIRST_CONNECTIONS: Final = 32
_FIRST_CONNECTIONS_EACH: Final = 4
_REPORT_S: Final = 0.1
_AHEAD_S: Final = 0.01
_MOST_REASONS: Final = 8
"""Sentences that are kept of each status."""
_LONGEST_REASON: Final = 200

UNANSWERED: Final = "no answer before the end"
UNSENT: Final = "no connection was free before the end"
NO_ANSWER: Final = "the answer is no inference answer"

Report = Callable[[int, int], None]


class _ErrorBody(msgspec.Struct):
    error: str = ""


class _Generator:
    """Sends a plan's requests at their times, records what comes back.

    Arrivals are never delayed by answers: a due request takes an idle connection, or a new one is
    opened, up to the plan's number; only beyond that it waits, and that wait is in its latency.
    """

    def __init__(
        self,
        plan: SendPlan,
        access: Access,
        loop: asyncio.AbstractEventLoop,
        report: Report | None,
    ) -> None:
        self._plan = plan
        self._access = access
        self._loop = loop
        self._report = report
        self._heads = [one + access.lines for one in plan.heads]
        self._bodies = plan.bodies
        self._due_s: list[float] = plan.due_s.tolist()
        self._head: list[int] = plan.head.tolist()
        self._body: list[int] = plan.body.tolist()
        self._pools = [
            RequestPool(one, plan.connections, self, access.context if one.tls else None)
            for one in plan.addresses
        ]
        self._pool_of = [self._pools[target] for target in plan.target]
        count = len(self._due_s)
        self._sent = [math.nan] * count
        self._done = [math.nan] * count
        self._status = [0] * count
        self._variant = [-1] * count
        self._class = [-1] * count
        self._predicted = [math.nan] * count
        self._waited = [False] * count
        self._reason = [-1] * count
        self._said_by = [-1] * count
        self._variants: dict[str, int] = {}
        self._reasons: dict[str, int] = {}
        self._reasons_of: dict[int, dict[str, int]] = {}
        self._said: dict[Said, int] = {NOTHING: 0}
        self._next = 0
        self._ended = 0
        self._start = 0.0
        self._began = math.nan
        self._finished = asyncio.Event()
        self._stopped = False
        self._alarm = alarm(loop, self._send_due)

    async def run(self) -> SendOutcome:
        first = max(_FIRST_CONNECTIONS // max(len(self._pools), 1), _FIRST_CONNECTIONS_EACH)
        await asyncio.gather(*(pool.connect(first) for pool in self._pools))
        if any(not pool.connected for pool in self._pools):
            self._close()
            return self._outcome(0.0)
        # Nothing below makes reference cycles worth a collection's pause.
        gc.collect()
        gc.freeze()
        gc.disable()
        cpu = time.process_time()
        wall, ahead = time.time(), _AHEAD_S
        if (every := self._plan.every_s) > 0:
            ahead += -(wall + ahead) % every
        self._start, self._began = time.monotonic() + ahead, wall + ahead
        if self._due_s:
            self._alarm.set(self._start + self._due_s[0])
            reporting = self._loop.create_task(self._progress())
            await self._finished.wait()
            reporting.cancel()
        outcome = self._outcome(time.process_time() - cpu)
        self._close()
        gc.enable()
        return outcome

    def stop(self) -> None:
        """End the run now; what was due until now is kept."""
        self._stopped = True
        self._finished.set()

    # The pools report here.

    def message(self, request: int) -> bytes:
        self._sent[request] = time.monotonic() - self._start
        return self._heads[self._head[request]] + self._bodies[self._body[request]]

    def waits(self, request: int) -> None:
        self._waited[request] = True

    def ended(self, request: int, reply: Reply, now_s: float) -> None:
        self._done[request] = now_s - self._start
        status, body, json_length, said = reply
        self._said_by[request] = self._said.setdefault(said, len(self._said))
        if status == 200:
            answer = decode(body, json_length)
            if answer is None:
                self._blame(request, 0, NO_ANSWER)
            else:
                self._status[request] = status
                index = self._variants.setdefault(answer.variant, len(self._variants))
                self._variant[request] = index
                self._class[request] = answer.predicted_class
                self._predicted[request] = answer.predicted_s
        else:
            self._status[request] = status
            self._blame(request, status, self._sentence(body))
        self._end()

    def failed(self, request: int, reason: str) -> None:
        self._done[request] = time.monotonic() - self._start
        self._blame(request, 0, reason)
        self._end()

    def _sentence(self, body: bytes) -> str:
        """Say in one line what an error's body says."""
        try:
            text = msgspec.json.decode(body, type=_ErrorBody).error
        except UNREADABLE:
            text = body.decode("utf-8", "replace")
        line = self._access.hidden(text.strip().partition("\n")[0])[:_LONGEST_REASON]
        return line or "the server gave no reason"

    def _blame(self, request: int, status: int, sentence: str) -> None:
        """Write down why a request has no inference answer: the first sentences of each status."""
        known = self._reasons_of.setdefault(status, {})
        if sentence not in known:
            if len(known) >= _MOST_REASONS:
                sentence = "other reasons"
            known[sentence] = self._reasons.setdefault(sentence, len(self._reasons))
        self._reason[request] = known[sentence]

    # Sending.

    def _send_due(self) -> None:
        due_s, start = self._due_s, self._start
        count = len(due_s)
        now = time.monotonic() - start
        while self._next < count and due_s[self._next] <= now:
            request = self._next
            self._next += 1
            self._pool_of[self._head[request]].submit(request)
            now = time.monotonic() - start
        if self._next < count:
            self._alarm.set(start + due_s[self._next])
        else:
            self._loop.call_later(self._plan.grace_s, self._finished.set)

    def _end(self) -> None:
        self._ended += 1
        if self._ended == len(self._due_s):
            self._finished.set()

    async def _progress(self) -> None:
        while self._report is not None:
            self._report(self._next, self._ended)
            await asyncio.sleep(_REPORT_S)

    def _close(self) -> None:
        self._alarm.close()
        for pool in self._pools:
            pool.close()

    def _outcome(self, cpu_s: float) -> SendOutcome:
        count = self._next
        for request in range(count):
            if self._status[request] == 0 and self._reason[request] < 0:
                sent = math.isfinite(self._sent[request])
                self._blame(request, 0, UNANSWERED if sent else UNSENT)
        nodes, paths, degradations = zip(*map(_text, self._said), strict=True)
        missing = [pool for pool in self._pools if not pool.connected]
        return SendOutcome(
            variants=tuple(self._variants),
            sent_s=np.array(self._sent[:count]),
            done_s=np.array(self._done[:count]),
            status=np.array(self._status[:count], np.int16),
            variant=np.array(self._variant[:count], np.int16),
            predicted_class=np.array(self._class[:count], np.int32),
            predicted_s=np.array(self._predicted[:count]),
            waited=np.array(self._waited[:count], np.bool_),
            reasons=tuple(self._reasons),
            reason=np.array(self._reason[:count], np.int16),
            said=np.array(self._said_by[:count], np.int32),
            nodes=nodes,
            paths=paths,
            degradations=tuple(map(self._access.hidden, degradations)),
            cpu_s=cpu_s,
            interrupted=self._stopped,
            refused=""
            if self._next or not missing
            else f"{missing[0].address.url}: {missing[0].refused or 'it ended at once'}",
            began_s=self._began,
        )


def _text(said: Said) -> tuple[str, str, str]:
    """Read headers; names of nodes stand percent-encoded in them."""
    node, path, degraded = (part.decode("utf-8", "replace") for part in said)
    return unquote(node), unquote(path), degraded


async def generate(
    plan: SendPlan,
    access: Access = OPEN,
    *,
    report: Report | None = None,
    started: Callable[[Callable[[], None]], None] | None = None,
) -> SendOutcome:
    """Send a plan's requests at their times.

    Parameters
    ----------
    plan
        What to send, when, and where.
    access
        What all its servers ask for.
    report
        Called ten times a second with the numbers of requests that are due and ended so far.
    started
        Called once with a function that ends the run early.

    Returns
    -------
    outcome
        One entry per request that was due until the end.
    """
    generator = _Generator(plan, access, asyncio.get_running_loop(), report)
    if started is not None:
        started(generator.stop)
    return await generator.run()
