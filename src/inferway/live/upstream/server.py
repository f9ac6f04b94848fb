"""A virtual server behind which another Open Inference Protocol server runs the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from inferway.live.headroom import Headroom, MemoryNeed
from inferway.live.instance import Events, PoolTerms
from inferway.live.local import CutShortError, ModelInstance
from inferway.live.request import Job, Outcome
from inferway.live.threads import run_detached
from inferway.live.upstream.remote import RemoteInstance
from inferway.runtime import Arrays, RemoteError, RemoteRuntime


class ServerInstance(ModelInstance, RemoteInstance):
    """Asks a remote server, as a copy that runs here is asked.

    One whose server is down rests from the start: it is probed like any other.
    """

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
        ModelInstance.__init__(self, remote, sizes, most_rows, headroom, demand)
        RemoteInstance.__init__(self, name, terms)
        self._task: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._asking = False

    async def start(self, events: Events) -> None:
        """Run the model on zeros, and begin.

        Raises
        ------
        WarmUpError
            As `LocalInstance.warm_up`.
        """
        self._finished = events.done
        if not self.runtime.down and self.runtime.known_signature is None:
            with suppress(RemoteError):  # it is down then
                await self.runtime.describe()
        if not self._is_down():
            await self._warm_up()

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
        self._probing = asyncio.get_running_loop().create_task(self._try(told))

    async def close(self, limit_s: float) -> bool:
        """Take no more; where the limit passes first, no further run begins."""
        if self._probing is not None:
            self._probing.cancel()
        ended = await super().close(limit_s)
        self._over = not ended
        return ended

    def _send(self, job: Job) -> None:
        self._task = asyncio.get_running_loop().create_task(self._go(job))

    async def _go(self, job: Job) -> None:
        if self._headroom is None or self._demand is None:
            await self._answer(job)
        else:
            await self._serve(job, self._headroom, self._demand)
        self._task = None
        self._end(job)

    async def _run(self, job: Job | None, inputs: Arrays) -> Arrays:
        outputs: Arrays
        if job is None:
            outputs = await self.runtime.infer(inputs)
            return outputs
        gone = CutShortError(Outcome.FAILED, "the client went during the service")
        if job.abandoned:
            raise gone
        self._asking = True
        try:
            outputs = await self.runtime.infer(inputs)
        except asyncio.CancelledError:
            if not job.abandoned:  # the loop ends
                raise
            raise gone from None
        finally:
            self._asking = False
        return outputs

    async def _wait(self, wait: Callable[..., None], *sizes: int) -> None:
        await run_detached(wait, *sizes)
