"""Where requests are decided on, and what was seen then is noted."""

from __future__ import annotations

import random
from collections.abc import Callable

from inferway.live.decisions import Decisions
from inferway.live.explain import Snapshot
from inferway.live.health import Health
from inferway.live.queues import Queues
from inferway.live.request import Request

_HALF_WORD = 2**63


class Desk:
    """Gives a dispatcher requests to decide on, and sends them where it says.

    Parameters
    ----------
    dispatcher
        Decides.
    queues
        Where requests go.
    health
        Of the servers, for explanations.
    seed
        Of the random words.
    now
        The clock, seconds.
    """

    def __init__(
        self,
        dispatcher: Decisions,
        queues: Queues,
        health: Health,
        seed: int,
        now: Callable[[], float],
    ) -> None:
        self.dispatcher = dispatcher
        self.stamps = False
        """Whether requests note when they were decided, for spans."""
        self._queues, self._health, self._now = queues, health, now
        self._word = random.Random(seed).getrandbits
        view = dispatcher.site
        self._queue, self._ends_s, self._free_s = view.queue, view.ends_s, view.free_s
        self._row_s, self._balance = view.row_s, view.balance
        self._routed = dispatcher.routed

    def decide(self, request: Request, classes: int, deadline_s: float) -> int:
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
        now_s = self._now()
        request.before = Snapshot(
            now_s,
            self._balance.item(),
            self._queue.tobytes(),
            self._ends_s.tobytes(),
            self._free_s.tobytes(),
            self._row_s.tobytes(),
            self._health.flags,
            self._shares(),
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
            request.dispatched_s = self._now()
        if server >= 0:
            request.predicted_s = dispatcher.predicted_wait_s + dispatcher.predicted_service_s
            self._queues.join(request, server, now_s)
        return server

    def _shares(self) -> bytes:
        routing = self.dispatcher.routing if self._routed else None
        return b"" if routing is None else routing.tobytes()

    def pull(self, server: int) -> tuple[int, int]:
        """Ask the policy how many requests a free server drops and takes: (drop, take)."""
        return self.dispatcher.pull(server, self._now(), self._word(64) - _HALF_WORD)

    def begin(self, server: int, taken: int) -> None:
        """Say that a server serves its first requests together, or waits for more with 0."""
        self.dispatcher.begin(server, taken, self._now())

    def take_back(self, request: Request) -> None:
        """Undo a decision where no answer is sent: the place is freed and the balance moved back.

        The request keeps its server's number, for those who count.
        """
        position = self._queues.leave(request)
        self.dispatcher.withdraw(request.server, position, self._now(), request.counted)
