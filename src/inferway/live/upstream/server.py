"""A virtual server behind which another Open Inference Protocol server runs the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from inferway.live.errors import WarmUpError
from inferway.live.headroom import Headroom, MemoryNeed
from inferway.live.instance import FAILURES, RETRY_S, Events, PoolTerms
from inferway.live.local import (
    WARM_UP_RUNS,
    CutShortError,
    batches_of,
    check_batch,
    check_room,
    check_wanted,
    join_rows,
    no_batches,
    spoken,
    zeros,
)
from inferway.live.request import EXPIRED, Arrays, Job, Outcome
from inferway.live.threads import run_detached
from inferway.live.upstream.remote import RemoteInstance
from inferway.protocol.refusal import RefusalError
from inferway.runtime import Fault, RemoteError, RemoteRuntime


class Verdict(NamedTuple):
    """How a failed run is judged.

    It counts as so many failures. An instance rests after a `certain` one without being run on
    zeros first. Where it is `unserved`, the model has certainly not run, and another variant may be
    asked. `retry_after_s` says when another try may be worth it.
    """

    outcome: Outcome
    weight: int = 1
    certain: bool = False
    unserved: bool = False
    retry_after_s: float = 0.0


_FAILED: Final = Verdict(Outcome.FAILED)
_MALFORMED: Final = Verdict(Outcome.INVALID, weight=0)
_OF_FAULT: Final = {
    Fault.REFUSED: Verdict(Outcome.INVALID),
    # It works; it has too much to do.
    Fault.OVERLOADED: Verdict(Outcome.REJECTED, weight=0),
    Fault.UNAVAILABLE: Verdict(Outcome.UNAVAILABLE, certain=True),
    Fault.UNREACHABLE: Verdict(Outcome.UNAVAILABLE, weight=FAILURES, certain=True),
    # To run a server on zeros that does not answer would take as long again.
    Fault.LATE: Verdict(Outcome.EXPIRED, certain=True),
    Fault.BROKEN: _FAILED,
    Fault.UNFIT: Verdict(Outcome.FAILED, weight=FAILURES, certain=True),
}


def verdict(error: Exception) -> Verdict:
    """Judge why a request has no answer."""
    if isinstance(error, RefusalError):  # of data that nobody had decoded before
        return _MALFORMED
    if not isinstance(error, RemoteError):
        return _FAILED
    judged = _OF_FAULT[error.fault]._replace(unserved=error.unserved)
    if error.hung:
        judged = judged._replace(weight=FAILURES)
    if judged.outcome in (Outcome.REJECTED, Outcome.UNAVAILABLE):
        judged = judged._replace(retry_after_s=error.retry_after_s or RETRY_S)
    return judged


class ServerInstance(RemoteInstance):
    """Asks a remote server, as a copy that runs here is asked.

    A request of more rows than a run may have is answered in several runs, one after the other. One
    whose server is down rests from the start: it is probed like any other. `sizes` are the rows
    that it may be given together, to be tried while it warms up.
    """

    group = None

    def __init__(
        self,
        name: str,
        remote: RemoteRuntime,
        terms: PoolTerms,
        *,
        sizes: Sequence[int],
        most_rows: int,
        headroom: Headroom | None = None,
        demand: MemoryNeed | None = None,
    ) -> None:
        super().__init__(name, terms)
        self.runtime, self._sizes, self._most_rows = remote, sizes, most_rows
        self._headroom, self._demand = headroom, demand
        # Of the request in service: its present run's peak, and how long it waited between two.
        self._run_bytes, self._waited_s = 0, 0.0
        self._strikes = 0
        # Where open axes of length 1 do not fit, the last request answered shows what does.
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._task: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._asking = self._over = False

    async def start(self, events: Events) -> None:
        """Run the model on zeros, and begin.

        Raises
        ------
        WarmUpError
            As `LocalInstance.warm_up`.
        """
        self._finished = events.done
        if self._is_down():
            return
        try:
            if self.runtime.known_signature is None:
                await self.runtime.describe()
            inputs = zeros(self.runtime.signature)
            for _ in range(WARM_UP_RUNS):
                await self.runtime.infer(inputs)
        except RemoteError as error:
            if self._is_down():
                return
            self.cold = any(-1 in tensor.shape[1:] for tensor in self.runtime.signature.inputs)
            if self.cold:
                return
            raise WarmUpError(f"{self.name} failed its warm-up: {spoken(error)}") from error
        for rows, many in batches_of(inputs, self._sizes):
            try:
                outputs = await self.runtime.infer(many)
            except RemoteError as error:
                raise no_batches(self.name, rows, error) from error
            check_batch(self.name, rows, outputs)

    def _is_down(self) -> bool:
        self.complaint = self.runtime.down
        self.resting = self.complaint != ""
        return self.resting

    def put(self, job: Job) -> None:
        """Take a request, or a batch; one that rests keeps it until it is given to another."""
        if self.resting:
            self._waiting.append(job)
        else:
            super().put(job)

    def abort(self, job: Job) -> None:
        """Give up a request that is on its way: its connection ends."""
        job.abandoned = True
        if job is self._job and self._task is not None and self._asking:
            self._task.cancel()

    def probe(self, told: Callable[[str], None]) -> None:
        """Run the model on zeros; one that leaves open what would fit goes on unprobed."""
        self._probing = asyncio.get_running_loop().create_task(self._probe(told))

    async def close(self, limit_s: float) -> bool:
        """Take no more; where the limit passes first, no further run begins."""
        if self._probing is not None:
            self._probing.cancel()
        ended = await super().close(limit_s)
        self._over = not ended
        return ended

    async def _probe(self, told: Callable[[str], None]) -> None:
        failure = "" if self.cold else await self._failure()
        if not failure:
            # On trial: one more failure has it run on zeros, until it has answered.
            self._strikes, self.resting = FAILURES - 1, False
        told(failure)

    async def _failure(self) -> str:
        """Run the model on zeros; why it failed, or an empty string."""
        try:
            await self.runtime.infer(zeros(self.runtime.signature, self._shapes))
        except RemoteError as error:
            return spoken(error)
        return ""

    def _send(self, job: Job) -> None:
        self._task = asyncio.get_running_loop().create_task(self._serve(job))

    async def _serve(self, job: Job) -> None:
        headroom, demand = self._headroom, self._demand
        if headroom is None or demand is None:
            await self._answer(job)
        else:
            await self._answer_within(headroom, demand, job)
        self._task = None
        self._end(job)

    async def _answer_within(self, headroom: Headroom, demand: MemoryNeed, job: Job) -> None:
        rows, most = job.rows, demand.most_rows
        self._run_bytes = largest = demand.runs[min(rows, most)]
        answer = demand.answer(rows)
        if not headroom.begin_now(largest, answer):
            await run_detached(headroom.begin, largest, answer)
        if answer:
            job.kept_bytes = largest, answer
        try:
            await self._answer(job)
        finally:
            headroom.end(self._run_bytes)
            self._waited_s = 0.0
        if answer and job.outcome is not Outcome.ANSWERED:
            job.kept_bytes = None
            headroom.settle(largest, answer)

    async def _answer(self, job: Job) -> None:
        now = self._now
        if self._drop_late and job.deadline_s < now():
            job.outcome, job.reason = Outcome.EXPIRED, EXPIRED
            return
        job.started_s = started_s = now()
        try:
            job.outputs = await self._outputs(job)
            job.outcome = Outcome.ANSWERED
            self._strikes = 0
            if self.cold:
                self._shapes = {name: array.shape for name, array in job.inputs.items()}
        except CutShortError as error:
            job.outcome, job.reason = error.outcome, str(error)
        except Exception as error:
            job.service_s = now() - started_s - self._waited_s
            await self._fail(job, error)
            return
        job.service_s = now() - started_s - self._waited_s

    async def _fail(self, job: Job, error: Exception) -> None:
        judged = verdict(error)
        job.outcome, job.unserved = judged.outcome, judged.unserved
        job.retry_after_s = judged.retry_after_s
        job.reason = f"{self.name} failed: {spoken(error)}"
        if isinstance(error, RefusalError):
            job.status, job.reason = error.status, spoken(error)
        # Where zeros do not fit either, nothing tells a bad request from a bad model.
        blamed = judged.outcome is Outcome.INVALID and self.cold
        if not judged.weight or blamed or job.abandoned:  # somebody stopped it
            return
        self.proven |= self._strikes == 0
        self._strikes += judged.weight
        if self._strikes >= FAILURES:
            self.resting = judged.certain or await self._failure() != ""
            self._strikes = 0

    async def _outputs(self, job: Job) -> Arrays:
        rows, most = job.rows, self._most_rows
        if rows <= most:
            return await self._infer(job, job.inputs)
        inputs, whole = job.inputs, Arrays()
        for at in range(0, rows, most):
            if at:
                late = self._drop_late and job.deadline_s < self._now()
                check_wanted(job, at // most, -(-rows // most), over=self._over, late=late)
                await self._wait_for_room(min(most, rows - at))
            part = {name: array[at : at + most] for name, array in inputs.items()}
            try:
                outputs = await self._infer(job, part)
            except RemoteError as error:
                # What has run before cannot be called unserved.
                error.unserved = error.unserved and at == 0
                raise
            if not at and self._headroom is not None:
                check_room(self._headroom.limit_bytes, outputs, rows, most)
            join_rows(whole, outputs, at, most, rows)
        return whole

    async def _infer(self, job: Job, inputs: Arrays) -> Arrays:
        gone = CutShortError(Outcome.FAILED, "the client went during the service")
        if job.abandoned:
            raise gone
        self._asking = True
        try:
            return await self.runtime.infer(inputs)
        except asyncio.CancelledError:
            if not job.abandoned:  # the loop ends
                raise
            raise gone from None
        finally:
            self._asking = False

    async def _wait_for_room(self, rows: int) -> None:
        """Have the room of the last run become that of the next, of so many rows."""
        if self._headroom is None or self._demand is None:
            return
        begun_s = self._now()
        self._headroom.end(self._run_bytes)
        self._run_bytes = self._demand.runs[rows]
        await run_detached(self._headroom.go_on, self._run_bytes)
        self._waited_s += self._now() - begun_s
