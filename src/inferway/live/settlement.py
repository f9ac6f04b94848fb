"""What becomes of requests that have been run: answers sent, places freed, decisions undone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from inferway.live.batching import Batching
from inferway.live.departures import Departures
from inferway.live.desk import Desk
from inferway.live.health import Health
from inferway.live.instance import Instance
from inferway.live.request import Batch, Job, Outcome, Request
from inferway.protocol.refusal import RefusalError


class Settlement:
    """Settles each request, or batch of them, that an instance has run.

    Parameters
    ----------
    desk
        Tells the dispatcher.
    queues
        What each server holds.
    batching
        Who forms batches; None where none are formed.
    instances, health
        Of the servers.
    departures
        Ends requests.
    names
        Of each class, variant and node.
    class_of
        Class of each server.
    now
        The clock, seconds.
    elsewhere
        Gives a request that was not answered to another variant; False where none may have it.
    idempotent
        Whether requests that may have been run already are given to another variant as well.
    report
        Told of errors that are nobody's answer.
    """

    def __init__(
        self,
        desk: Desk,
        queues: Sequence[deque[Request]],
        batching: Batching | None,
        instances: Sequence[Instance],
        health: Health,
        departures: Departures,
        names: Sequence[tuple[str, str]],
        class_of: Sequence[int],
        now: Callable[[], float],
        elsewhere: Callable[[Request, float], bool],
        idempotent: bool,
        report: Callable[[Exception], None],
    ) -> None:
        self._desk, self._queues, self._batching = desk, queues, batching
        self._instances, self._health, self._departures = instances, health, departures
        self._names, self._class_of = names, class_of
        self._now, self._elsewhere, self._report = now, elsewhere, report
        self._idempotent = idempotent
        self._balance = desk.dispatcher.site.balance

    def __call__(self, job: Job) -> None:
        """Settle what has been run."""
        if isinstance(job, Batch):
            self._batch(job)
        else:
            self._one(job, 0)

    def _batch(self, batch: Batch) -> None:
        assert self._batching is not None
        resting = self._instances[batch.server].resting
        try:
            batch.share_out()
            if (
                batch.outcome in (Outcome.FAILED, Outcome.INVALID)
                and len(batch.members) > 1
                and not resting
            ):
                batch.part()
            measured = batch.rows
            for request in list(batch.members):
                try:
                    # Of the batch's service time the dispatcher learns once.
                    if self._one(request, measured):
                        measured = -1
                except Exception as error:  # the others are to have their answers all the same
                    self._report(error)
        finally:
            self._batching.settled(batch)

    def _one(self, request: Request, measured: int) -> bool:
        """Settle a request that is in a server's queue; whether it has been answered."""
        now_s = self._now()
        server = request.server
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None
        if request.outcome is Outcome.ANSWERED and not request.abandoned:
            k = self._class_of[server]
            request.variant, request.node = self._names[k]
            request.latency_s = now_s - request.received_s
            request.late = now_s > request.deadline_s
            request.balance = self._balance.item()
            passed = request.passed
            if measured >= 0 and passed is None:  # runs are counted where they are
                most = self._instances[server].most_rows
                self._departures.counters.ran(k, measured or request.rows, most)
            # Sent before it is counted: what cannot be sent does not count.
            try:
                request.deliver(request)
            except RefusalError as refusal:
                request.outcome, request.reason = Outcome.INVALID, refusal.reason
            except Exception as error:
                request.outcome = Outcome.FAILED
                request.reason = f"the answer of {request.variant} could not be sent"
                if not request.abandoned:
                    self._report(error)
            else:
                self._queues[server].popleft()
                # What was out of the ordinary on the way is the hop's to learn, for all servers.
                if passed is not None and passed.strayed:
                    measured = -1
                self._desk.dispatcher.finish(server, now_s, request.service_s, measured)
                self._departures.answer(request)
                return True
        self._desk.take_back(request)
        if self._instances[server].resting:
            self._health.rest(server, request.reason)
        if request.abandoned:
            request.reason = "the client went during the service"
            self._departures.cancel(request)
            return False
        again = request.unserved or (request.lost and self._idempotent)
        if again and self._elsewhere(request, now_s):
            return False
        assert request.outcome is not None
        self._departures.end(request, request.outcome, request.reason)
        return False
