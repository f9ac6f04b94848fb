"""One request on its way through a site, how it ends, and batches of them."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from inferway.runtime import Call
from inferway.site import ALL_CLASSES

Arrays = dict[str, NDArray[Any]]

EXPIRED: Final = "the deadline passed while the request was queued"

LONGEST_RETRY_S = 60.0
"""The longest wait that a client is told before another try."""


class Outcome(enum.IntEnum):
    """How a request ended; the values index the counters."""

    ANSWERED = 0
    REJECTED = 1
    """No server had room, or the policy refused it."""
    EXPIRED = 2
    """Its deadline passed before its service began, or a remote server did not answer in time."""
    FAILED = 3
    """The model or the server failed."""
    CANCELED = 4
    """The client went before its answer was ready."""
    INVALID = 5
    """It was malformed or did not fit the signature."""
    UNAVAILABLE = 6
    """The site was not ready."""


STATUS: Final = {
    Outcome.ANSWERED: 200,
    Outcome.REJECTED: 429,
    Outcome.EXPIRED: 504,
    Outcome.FAILED: 500,
    Outcome.INVALID: 400,
    Outcome.UNAVAILABLE: 503,
}
"""The HTTP status of each outcome; whoever has gone is told nothing."""

_OF_STATUS: Final = {status: outcome for outcome, status in STATUS.items()}


def outcome_of(status: int) -> Outcome:
    """Tell how a request ended that was answered with this HTTP status."""
    other = Outcome.INVALID if 400 <= status < 500 else Outcome.FAILED
    return _OF_STATUS.get(status, other)


class Undecoded(Protocol):
    """An input whose data nobody has looked at yet."""

    shape: tuple[int, ...]

    def decoded(self) -> NDArray[Any]:
        """Decode it."""


class Request:
    """What a protocol hands to `Site.submit`, and gets back through `deliver`.

    Plain Python values only: a NumPy scalar read from Python costs 50 to 100 ns each time.

    Attributes
    ----------
    inputs
        Checked arrays by name, first axis of length `rows`. Where some were given `Undecoded`,
        they are decoded when somebody first asks, who gets a `RefusalError` for what is malformed.
    rows
        Answers that it asks for.
    deliver
        Called once, on the event loop, with the request as its argument, when it has ended. An
        answer for which it raises has not been given: it is called again, with the failure.
    context
        Whatever the protocol needs again in `deliver`.
    received_s
        When the request was whole, on the site's clock.
    deadline_s
        Absolute, on the same clock; inf where there is none.
    floor
        Least accuracy that it accepts, 0 where it does not say.
    priority
        1 is the highest; 0 where it does not say.
    classes
        Bit mask of the server classes that may answer.
    counted
        False for a pinned request, which does not move the accuracy balance.
    call
        What stops its run, where the runtime can be stopped; None before the run.
    alone
        It is run by itself, after a batch that it was in has failed.
    together
        Requests, and their rows, that were run at once, this one included; zeros before.
    abandoned
        Nobody waits for its answer: it need not be run, or run to its end.
    id
        What the client, or the server, calls it.
    identity
        Its names in traces, where the protocol gives some; None otherwise.
    dispatched_s, started_s
        When it was decided, where spans are made, and when its run began; 0 before.
    before
        What the policy saw, for explanations; None before the decision.
    server, variant, node
        Which server answers, and the names of its variant and of its node; -1 and "" before the
        decision, the node's also where it is none of a network.
    raw
        What holds the body and its headers as they came (`inferway.live.http.exchange.Exchange`),
        to be forwarded so; None where the protocol has none that another node understands.
    passed
        What another node answered to it (`inferway.live.upstream.headers.Response`), to be passed
        on; None where there is no such answer.
    status
        The HTTP status of a failure, where its outcome does not say it; else 0.
    kept_bytes
        Peak of its largest run, and its answer, where that takes room of its own until it is sent.
    late
        Whether it was answered after its deadline.
    undecoded
        Whether there are inputs to be decoded yet.
    unserved, moved
        Whether its run failed before the model had it; and whether it has been given to another
        variant, which happens once.
    lost
        Whether another node was given it and nobody knows what became of it: it may have been run.
    timer
        What drops it from a queue at its deadline; None where nothing does.
    predicted_s
        Predicted time from dispatch to answer.
    service_s
        What the model took.
    latency_s
        From `received_s` to the answer.
    balance
        The task's accuracy balance when the answer was ready.
    outcome, outputs, reason, retry_after_s
        How it ended; the outputs when answered, else a sentence, and after how many seconds
        a rejected request may be worth another try.
    """

    __slots__ = (
        "_inputs",
        "abandoned",
        "alone",
        "balance",
        "before",
        "call",
        "classes",
        "context",
        "counted",
        "deadline_s",
        "deliver",
        "dispatched_s",
        "floor",
        "id",
        "identity",
        "kept_bytes",
        "late",
        "latency_s",
        "lost",
        "moved",
        "node",
        "outcome",
        "outputs",
        "passed",
        "predicted_s",
        "priority",
        "raw",
        "reason",
        "received_s",
        "retry_after_s",
        "rows",
        "serial",
        "server",
        "service_s",
        "started_s",
        "status",
        "timer",
        "together",
        "undecoded",
        "unserved",
        "variant",
    )

    def __init__(
        self,
        inputs: Arrays,
        rows: int,
        deliver: Callable[[Request], None],
        context: Any = None,
        received_s: float = 0.0,
    ) -> None:
        self._inputs: dict[str, Any] = inputs
        self.undecoded = False
        self.rows = rows
        self.deliver = deliver
        self.context = context
        self.received_s = received_s
        self.deadline_s = math.inf
        self.floor = 0.0
        self.priority = 0
        self.classes = ALL_CLASSES
        self.counted = True
        self.call: Call | None = None
        self.abandoned = False
        self.alone = False
        self.together = (0, 0)
        self.id = b""
        self.identity: Any = None
        self.dispatched_s = 0.0
        self.started_s = 0.0
        self.before: Any = None
        self.serial = 0
        self.server = -1
        self.variant = self.node = ""
        self.raw: Any = None
        self.passed: Any = None
        self.status = 0
        self.kept_bytes: tuple[int, int] | None = None
        self.late = False
        self.unserved = self.moved = self.lost = False
        self.timer: asyncio.TimerHandle | None = None
        self.predicted_s = 0.0
        self.service_s = 0.0
        self.latency_s = 0.0
        self.balance = 0.0
        self.outcome: Outcome | None = None
        self.outputs: Arrays | None = None
        self.reason = ""
        self.retry_after_s = 0.0

    def untime(self) -> None:
        """Let the deadline pass unnoticed."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    @property
    def inputs(self) -> Arrays:  # noqa: D102 - among the attributes
        if self.undecoded:
            self._inputs = {
                name: one.decoded() if hasattr(one, "decoded") else one
                for name, one in self._inputs.items()
            }
            self.undecoded = False
        return self._inputs


class Batch:
    """What an instance runs as if it were one request.

    Attributes
    ----------
    server
        Whose requests they are.
    members
        In the order in which they came; until the run begins, some may leave.
    serial, call, abandoned, started_s, service_s, outcome, outputs, reason, unserved,
    retry_after_s, status, kept_bytes
        As a `Request` has them, of all members together.
    """

    __slots__ = (
        "_inputs",
        "abandoned",
        "call",
        "kept_bytes",
        "members",
        "outcome",
        "outputs",
        "reason",
        "retry_after_s",
        "serial",
        "server",
        "service_s",
        "started_s",
        "status",
        "unserved",
    )

    def __init__(self, server: int, members: list[Request]) -> None:
        self.server = server
        self.members = members
        self.serial = 0
        self.call: Call | None = None
        self.status = 0
        self.kept_bytes: tuple[int, int] | None = None
        self.abandoned = False
        self.started_s = 0.0
        self.service_s = 0.0
        self.outcome: Outcome | None = None
        self.outputs: Arrays | None = None
        self.reason = ""
        self.unserved = False
        self.retry_after_s = 0.0
        self._inputs: Arrays | None = None

    @property
    def deadline_s(self) -> float:
        """Of a lone member; of several, those that are late leave before the run."""
        return self.members[0].deadline_s if len(self.members) == 1 else math.inf

    @property
    def rows(self) -> int:
        """Answers that all members ask for together."""
        return sum(request.rows for request in self.members)

    @property
    def inputs(self) -> Arrays:
        """The members' inputs one behind the other, along the first axis."""
        if self._inputs is None:
            first = self.members[0].inputs
            if len(self.members) == 1:
                self._inputs = first
            else:
                self._inputs = {
                    name: np.concatenate([request.inputs[name] for request in self.members])
                    for name in first
                }
        return self._inputs

    def share_out(self) -> None:
        """Give each member its part of the answer, or of the failure."""
        rows, outputs = self.rows, self.outputs
        if outputs is not None and len(self.members) > 1:
            short = [len(array) for array in outputs.values() if len(array) != rows]
            if short:
                self.outcome = Outcome.FAILED
                self.reason = f"the model answered {short[0]} rows to a batch of {rows}"
        at = 0
        for request in self.members:
            request.started_s, request.service_s = self.started_s, self.service_s
            request.outcome, request.reason = self.outcome, self.reason
            request.status = self.status
            request.unserved, request.retry_after_s = self.unserved, self.retry_after_s
            request.together = (len(self.members), rows)
            if outputs is not None and self.outcome is Outcome.ANSWERED:
                request.outputs = (
                    outputs
                    if len(self.members) == 1
                    else {name: array[at : at + request.rows] for name, array in outputs.items()}
                )
            at += request.rows

    def part(self) -> None:
        """Have each member run again by itself, for one of them may be at fault.

        Those for whom nobody waits stay.
        """
        for request in self.members:
            if not request.abandoned:
                request.alone, request.outcome = True, None
        self.members = [request for request in self.members if request.abandoned]


def fit(one: Request, other: Request) -> bool:
    """Whether two requests can be in one batch: they differ in the first axis at most."""
    return all(
        array.shape[1:] == other.inputs[name].shape[1:] for name, array in one.inputs.items()
    )


Job = Request | Batch
"""What an instance runs at once."""
