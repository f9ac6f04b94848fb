"""How requests leave a site: told, counted, remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferway.live.explain import RequestLog
from inferway.live.instance import EXPIRED
from inferway.live.request import Outcome, Request
from inferway.live.stats import Stats

DROPPED = "the policy dropped the request from its queue; it was not expected to finish in time"


class Departures:
    """Ends requests.

    Parameters
    ----------
    task
        Theirs.
    class_of
        Class of each server.
    accuracy
        Of each class, 0..1.
    counters, memory
        Where ends are counted, and kept for explanations.
    """

    def __init__(
        self,
        task: str,
        class_of: Sequence[int],
        accuracy: Sequence[float],
        counters: Stats,
        memory: RequestLog,
    ) -> None:
        self._task, self._class_of, self._accuracy = task, class_of, accuracy
        self.counters, self._memory = counters, memory
        self.traced: Callable[[str, Request], None] | None = None
        """Told, with the task, each request that has ended: for spans."""

    def end(self, request: Request, outcome: Outcome, reason: str) -> None:
        """End a request without an answer."""
        request.outcome, request.reason = outcome, reason
        self._note(request)
        request.deliver(request)
        self._trace(request)

    def expire(self, request: Request) -> None:
        """End a request whose deadline has passed before its service."""
        self.end(request, Outcome.EXPIRED, EXPIRED)

    def drop(self, request: Request, late: bool) -> None:
        """End a request that a free server would not take: it is late, or the policy said so."""
        self.end(request, Outcome.EXPIRED, EXPIRED if late else DROPPED)

    def cancel(self, request: Request) -> None:
        """Note the end of a request that nobody waits for."""
        request.outcome = Outcome.CANCELED
        self._note(request)
        self._trace(request)

    def answer(self, request: Request) -> None:
        """Note the end of a request whose answer has been sent."""
        k, (_, rows) = self._class_of[request.server], request.together
        if request.late:
            self.counters.late[k] += 1
        # Of a run for several requests, each one's part by its rows.
        part_s = request.service_s * request.rows / rows if rows else request.service_s
        self.counters.answered(k, request.rows, self._accuracy[k], request.latency_s, part_s)
        self._memory.keep(request)
        self._trace(request)

    def _note(self, request: Request) -> None:
        k = self._class_of[request.server] if request.server >= 0 else -1
        assert request.outcome is not None
        self.counters.ended(request.outcome, k)
        self._memory.keep(request)

    def _trace(self, request: Request) -> None:
        if self.traced is not None:
            self.traced(self._task, request)
