"""Second decisions: on requests that have lost their server, or wait for one in line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from inferway.live.departures import Departures
from inferway.live.desk import Desk
from inferway.live.health import Health
from inferway.live.hops.breaker import RetryBudget
from inferway.live.hops.watch import Watch
from inferway.live.predict import Forecast
from inferway.live.queues import Queues
from inferway.live.rejection import rejection
from inferway.live.request import Outcome, Request
from inferway.live.scheduler import SchedulerLoop
from inferway.site import HOLD, REJECT


class Reassignment:
    """Has requests decided on again, and refuses those that nobody takes.

    Parameters
    ----------
    task
        Theirs.
    desk
        Has them decided.
    queues
        Where they go.
    forecast, health
        Of the servers.
    departures
        Ends requests.
    steering
        Told of those that are refused; None where no controller is.
    watch
        Knows which servers fail together.
    budget
        Of retries with other nodes.
    accuracy
        Of each class, 0..1.
    class_of
        Class of each server.
    places
        At each server.
    left_s
        Time until a request's deadline.
    report
        Told of errors that are nobody's answer.
    """

    def __init__(
        self,
        task: str,
        desk: Desk,
        queues: Queues,
        forecast: Forecast,
        health: Health,
        departures: Departures,
        steering: SchedulerLoop | None,
        watch: Watch,
        budget: RetryBudget,
        accuracy: Sequence[float],
        class_of: Sequence[int],
        places: int,
        left_s: Callable[[Request], float],
        report: Callable[[Exception], None],
    ) -> None:
        self._task, self._desk, self._queues = task, desk, queues
        self._forecast, self._health, self._departures = forecast, health, departures
        self._steering, self._watch, self._budget = steering, watch, budget
        self._accuracy, self._class_of, self._places = accuracy, class_of, places
        self._left_s, self._report = left_s, report
        self._own = 0
        """Classes that run here, as a bit mask."""
        for server, k in enumerate(class_of):
            if not watch.forwards(server):
                self._own |= 1 << k
        self.moved = [0] * len(accuracy)
        """Per class, requests that it did not serve and that others were given."""

    def move(self, request: Request, now_s: float) -> None:
        """Find a request that stands nowhere another server.

        It was taken, and so it is not refused for want of room or time elsewhere.
        """
        for limit_s in (request.deadline_s, math.inf):
            if self._again(request, limit_s) >= 0:
                return
        if self.falls_open(request):
            self._queues.hold(request, now_s)
        else:
            self.reject(request)

    def elsewhere(self, request: Request, now_s: float) -> bool:
        """Give a request that was not answered to another class; False where none may have it.

        That happens to a request once. Where the budget is spent, no other node is asked: only what
        runs here may still have it, and is nobody else's load. What a neighbor had that is left out
        as a whole costs nothing of the budget: that neighbor gets nothing more, so the others get
        no more than if it had been left out a little earlier.
        """
        server = request.server
        k = self._class_of[server]
        others = self._forecast.mask(request) & ~self._watch.beside(server)
        if request.moved or self._left_s(request) < 0.0 or not self._health.any_of(others):
            return False
        retried = self._watch.forwards(server) and not self._watch.out(server)
        if retried and not self._budget.spend():
            others &= self._own
            if not self._health.any_of(others):
                request.reason += "; the budget of retries is spent"
                return False
        # What has lost it is asked again only where nobody else can be, even for another class.
        apart = others & ~self._watch.behind(server)
        if request.lost and self._health.any_of(apart):
            others = apart
        self.moved[k] += 1
        request.moved, request.classes = True, others
        request.outcome, request.server, request.unserved = None, -1, False
        request.passed, request.status, request.started_s = None, 0, 0.0
        self.move(request, now_s)
        return True

    def pull(self) -> None:
        """Decide on the head of the central queue again: a server fell free, or the head has gone.

        It stays the head where the policy still holds it, or what it needs is still taken.
        """
        central = self._queues.central
        while central.requests:
            request = central.take()
            timer, request.timer = request.timer, None
            if self._left_s(request) < 0.0:
                self._departures.expire(request)
            else:
                server = self._again(request, request.deadline_s)
                if server == HOLD or (server == REJECT and self.falls_open(request)):
                    request.timer = timer
                    central.put_back(request)
                    return
                if server == REJECT:
                    self.reject(request)
            if timer is not None:
                timer.cancel()

    def falls_open(self, request: Request) -> bool:
        """Whether waiting for one of the full servers makes sense."""
        return self._forecast.falls_open(request, self._left_s(request), self._places)

    def reject(self, request: Request) -> None:
        """End a request that nobody takes, and say why."""
        outcome, reason, request.retry_after_s = rejection(
            request,
            self._task,
            self._accuracy,
            self._forecast,
            self._health,
            self._left_s(request),
        )
        if self._steering is not None and outcome is Outcome.REJECTED:
            self._steering.rejected()
        self._departures.end(request, outcome, reason)

    def _again(self, request: Request, deadline_s: float) -> int:
        try:
            return self._desk.decide(request, request.classes, deadline_s)
        except Exception as error:  # a policy that breaks must not cost others their answers
            self._report(error)
            return REJECT
