"""Requests as a site takes them, whatever protocol brought them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from inferway.live.headroom import too_many
from inferway.live.http.exchange import Limits
from inferway.live.request import InferRequest
from inferway.live.site import TaskSite
from inferway.protocol import RefusalError
from inferway.protocol.messages import AnswerParameters, InferParameters
from inferway.protocol.schema import TaskSchema, check_parameters
from inferway.runtime import Arrays
from inferway.site import ALL_CLASSES
from inferway.site.view import WHOLE

# Names of what is served that a refusal lists.
_NAMED: Final = 10


class Intake:
    """Turns what a client asks of a task, or of one of its variants, into a checked request.

    `own` says that the variant is pinned to this node: another one has decided on its requests.
    """

    def __init__(
        self, site: TaskSite, variant: str | None, limits: Limits, *, own: bool = False
    ) -> None:
        self.site, self.limits = site, limits
        self.counted, self._variant, self._own = variant is None, variant, own
        self._see()

    def _see(self) -> None:
        """Look at the fleet that answers now: its classes, and what they take."""
        self._pool = pool = self.site.pool
        self.classes, self._deadline_s = ALL_CLASSES, pool.options.deadline_s
        if self._variant is not None:
            mask = pool.own_mask if self._own else pool.mask_of
            self.classes = mask(self._variant)
        allowed = [k for k in pool.classes if self.classes >> k & 1]
        self._fits = {k: pool.fits[k] for k in allowed}
        self._least_fits = min(self._fits.values(), default=WHOLE)
        # What the task takes and gives.
        self.schema = TaskSchema(pool.signature, self.limits.elements)

    def follow(self) -> bool:
        """Look at the fleet that answers now, where another has taken over; tell whether one has.

        Where none answers, the site says so.
        """
        pool = self.site.present
        if pool is self._pool or pool is None:
            return False
        self._see()
        return True

    def sees(self, site: TaskSite) -> bool:
        """Tell whether it is of this task's site, and of the fleet that answers there now."""
        return self.site is site and self._pool is site.present

    def request(
        self,
        arrays: Arrays,
        parameters: InferParameters | None,
        deliver: Callable[[InferRequest], None],
        context: Any,
        received_s: float,
    ) -> InferRequest:
        """Make the request of inputs that the schema has checked, each and together.

        The parameters are what the client says of the request as a whole; the rest is as in
        `InferRequest`. RefusalError when a parameter is out of range, or there is no memory for so
        many rows.
        """
        self.follow()
        if not self.classes:
            raise RefusalError(404, unknown([self.site], self.site.task, self._variant))
        rows = next(iter(arrays.values())).shape[0]
        request = InferRequest(arrays, rows, deliver, context, received_s)
        request.classes, request.counted = self.classes, self.counted
        if rows > self._least_fits:
            # Within the memory that there is.
            request.classes = sum(1 << k for k, most in self._fits.items() if rows <= most)
            headroom = self._pool.options.headroom
            if not request.classes and headroom is not None:
                raise RefusalError(
                    413, too_many(rows, max(self._fits.values()), headroom.limit_bytes)
                )
        if self._deadline_s is not None:
            request.deadline_s = received_s + self._deadline_s
        if parameters is None:
            return request
        check_parameters(parameters)
        request.priority = parameters.priority
        if parameters.accuracy:
            if not self._pool.graded:
                raise RefusalError(
                    400,
                    f"no variant of task {self.site.task!r} has a known accuracy, so that none can "
                    f"be held to {parameters.accuracy:g}; leave `accuracy` out",
                )
            request.floor = parameters.accuracy
        if parameters.timeout:  # Triton: 0 is none
            request.deadline_s = received_s + parameters.timeout / 1e6
        if parameters.deadline_ms is not None:
            request.deadline_s = received_s + parameters.deadline_ms / 1e3
        return request


def unknown(sites: Iterable[TaskSite], task: str, variant: str | None) -> str:
    """Say what there is where a client named a task, or a variant, that is not served."""
    served = {site.task: site for site in sites}
    site = served.get(task)
    if site is None:
        return f"unknown task {task!r}; there is {_some(sorted(served, key=_by_number))}"
    return f"task {task!r} has no variant {variant!r}; there is {_some(site.pool.versions)}"


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sort numbers within names by their size, however long."""
    return [(len(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    first = ", ".join(names[:_NAMED]) or "none yet"
    return f"{first} and {more} more" if more > 0 else first


def answer_parameters(request: InferRequest) -> AnswerParameters:
    """Say of an answer how it came about."""
    return AnswerParameters(
        request.variant,
        round(request.latency_s * 1e3, 4),
        round(request.predicted_s * 1e3, 4),
        request.balance,
        True if request.late else None,
        request.node or None,
        None if request.confidence is None else round(request.confidence, 6),
        request.escalated_from or None,
        round(request.credit, 6) if request.settled else None,
    )
