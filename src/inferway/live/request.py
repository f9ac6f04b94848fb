"""One request on its way through a site, how it ends, and batches of them."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from inferway.runtime import Arrays, Call
from inferway.site import ALL_CLASSES

# Status of an answer that whoever was asked has lost.
BAD_GATEWAY: Final = 502
EXPIRED: Final = "the deadline passed while the request was queued"
DROPPED: Final = (
    "the policy dropped the request from its queue; it was not expected to finish in time"
)

# The longest wait that a client is told before another try.
LONGEST_RETRY_S = 60.0


class Outcome(enum.IntEnum):
    """End of a request; the values index the counters."""

    ANSWERED = 0
    # No server had room, or the policy refused it.
    REJECTED = 1
    # Its deadline passed before its service began, or a remote server did not answer in time.
    EXPIRED = 2
    # The model or the server failed.
    FAILED = 3
    # The client went before its answer was ready.
    CANCELED = 4
    # It was malformed or did not fit the signature.
    INVALID = 5
    # The site was not ready.
    UNAVAILABLE = 6


# The HTTP status of each outcome; whoever has gone is told nothing.
STATUS: Final = {
    Outcome.ANSWERED: 200,
    Outcome.REJECTED: 429,
    Outcome.EXPIRED: 504,
    Outcome.FAILED: 500,
    Outcome.INVALID: 400,
    Outcome.UNAVAILABLE: 503,
}

_OF_STATUS: Final = {status: outcome for outcome, status in STATUS.items()}


def outcome_of(status: int) -> Outcome:
    """Tell how a request ended that was answered with this HTTP status."""
    other = Outcome.INVALID if 400 <= status < 500 else Outcome.FAILED
    return _OF_STATUS.get(status, other)


@dataclass
class NodeCondition:
    """A node as it tells of itself with its answers and in its spans.

    `degraded` says in a sentence why answers are not what they could be; it is empty while they
    are.
    """

    name: str
    degraded: str = ""


class AnswerInHand(msgspec.Struct, frozen=True, gc=False):
    """An answer that is kept while another variant is asked.

    Attributes
    ----------
    server
        Whose it is.
    outputs
        Its tensors.
    worth
        Its expected accuracy.
    started_s, service_s, together
        Of its run, as in `InferRequest`.
    passed
        Where another node gave it, that node's headers, as in `InferRequest`.
    """

    server: int
    outputs: Arrays
    worth: float
    started_s: float
    service_s: float
    together: tuple[int, int]
    passed: Any = None


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The decision on a first answer that has come: it is sent, or another server is asked.

    Attributes
    ----------
    server
        Whose answer it is.
    worth
        Its expected accuracy.
    then
        The server that is asked as well; -1 where the answer is accepted.
    then_s
        Predicted wait and service there, s; 0 where none is asked.
    price_s
        What the policy had an accuracy of 1 cost then, s; nan where it says no price.
    """

    server: int
    worth: float
    then: int = -1
    then_s: float = 0.0
    price_s: float = math.nan


class _Job(msgspec.Struct, eq=False, kw_only=True):
    """An instance's note of what it runs, a request or a batch."""

    serial: int = 0  # its number at the instance
    call: Call | None = None  # stops its run, where the runtime can be stopped; None before the run
    abandoned: bool = False  # nobody waits for its answer: it need not be run, or run to its end
    started_s: float = 0.0  # when its run began, 0 before
    service_s: float = 0.0  # what the model took
    # How it ended; outputs when answered, else a sentence, and after how many seconds a rejected
    # request may be worth another try.
    outcome: Outcome | None = None
    outputs: Arrays | None = None
    reason: str = ""
    retry_after_s: float = 0.0
    unserved: bool = False  # its run failed before the model had it
    died: bool = False  # what ran it ended before it had answered
    status: int = 0  # the HTTP status of a failure, where its outcome does not say it
    # Peak of its largest run, and its answer, where that takes room of its own until it is sent.
    kept_bytes: tuple[int, int] | None = None


class InferRequest(_Job, eq=False):
    """A request as a protocol hands it to `TaskSite.submit`, and gets it back through `deliver`.

    `deliver` is called once, on the event loop, with the request as its argument, when it has
    ended. An answer for which it raises has not been given: it is called again, with the failure.

    Inputs are arrays by name, each checked, its first axis of length `rows`. What has a method
    `decoded` instead is decoded when somebody first asks for `inputs`, who gets a `RefusalError`
    for what is malformed.

    Plain Python values only: a NumPy scalar read from Python costs 50 to 100 ns each time.
    """

    given: dict[str, Any]  # inputs, some of them maybe undecoded
    rows: int  # answers that it asks for
    deliver: Callable[[InferRequest], None]
    context: Any = None  # whatever the protocol needs again in `deliver`
    received_s: float = 0.0  # when the request was whole, on the site's clock
    deadline_s: float = math.inf  # on the same clock
    floor: float = 0.0  # the least accuracy that it accepts
    priority: int = 0  # 1 is the highest; 0 where it does not say
    classes: int = ALL_CLASSES  # bit mask of the server classes that may answer
    counted: bool = True  # False for a pinned request, which does not move the accuracy balance
    alone: bool = False  # it is run by itself, after a batch that it was in has failed
    # Requests, and their rows, that were run at once, this one included; zeros before.
    together: tuple[int, int] = (0, 0)
    id: bytes = b""  # what the client, or the server, calls it
    identity: Any = None  # its names in traces, where the protocol gives some
    # Where spans are made: when it was last decided on, from when to when, and how often that was;
    # what its first answer took, where that came from here (`inferway.live.tracing.Attempt`); and,
    # of an answer in hand that is sent, the request that its second server may still have.
    decided_s: float = 0.0
    dispatched_s: float = 0.0
    decisions: int = 0
    attempts: Any = ()
    origin: Any = None
    before: Any = None  # what the policy saw, for explanations; None before the decision
    # Which server answers, and the names of its variant and of its node, if it is of a network.
    server: int = -1
    variant: str = ""
    node: str = ""
    # What holds the body and its headers as they came (`inferway.live.http.exchange.Exchange`), to
    # be forwarded so; None where the protocol has none that another node understands.
    raw: Any = None
    # What another node answered to it (`inferway.live.upstream.headers.Response`), to be passed on;
    # with `outputs`, which have been read from its body, its headers alone count.
    passed: Any = None
    late: bool = False  # it was answered after its deadline
    undecoded: bool = False  # there are inputs to be decoded yet
    moved: bool = False  # it has been given to another variant, which happens once
    # `canary`, `explored` or `tried` where its variant was chosen for that; `beside` where it was
    # kept from a canary; else empty.
    chosen_for: str = ""
    deaths: int = 0  # how many instances have ended while they ran it
    # Another node was given it and nobody knows what became of it: it may have been run.
    lost: bool = False
    timer: asyncio.TimerHandle | None = None  # drops it from a queue at its deadline
    predicted_s: float = 0.0  # predicted time from dispatch to answer
    latency_s: float = 0.0  # from `received_s` to the answer
    # The task's accuracy balance when the answer was ready; None without a target.
    balance: float | None = None
    # What the balance counts of its answer, 0..1, where a second variant may be asked or the
    # promise is on what is measured. Where a second one may be asked, whether that is the expected
    # accuracy of an answer that has come, mean confidence of the first answer, that answer while
    # another is asked, and whether it has been sent meanwhile.
    credit: float = 0.0
    settled: bool = False
    confidence: float | None = None
    hand: AnswerInHand | None = None
    settlement: Settlement | None = None  # of the first answer
    sent: bool = False
    escalated_from: str = ""  # the variant that was asked before the one that answers
    first_node: str = ""  # and the node of that one, as `node`

    def untime(self) -> None:
        """Let the deadline pass unnoticed."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    @property
    def inputs(self) -> Arrays:  # noqa: D102 - among the attributes
        if self.undecoded:
            self.given = {
                name: one.decoded() if hasattr(one, "decoded") else one
                for name, one in self.given.items()
            }
            self.undecoded = False
        return self.given


class ShadowRun(InferRequest, eq=False):
    """A run whose answer is compared with another variant's, and never sent.

    It stands in no queue and counts nowhere; `deliver` is called with it when it has ended, or has
    given way, `abandoned` then.
    """


class RequestBatch(_Job, eq=False):
    """Requests of a server that its instance runs as if they were one, in the order they came.

    Until the run begins, some may leave. The model runs `padded` rows, where that is more than
    there are: those beyond the members' repeat the last one.
    """

    server: int
    members: list[InferRequest]
    padded: int = 0
    joined: Arrays | None = None

    @property
    def deadline_s(self) -> float:
        """Of a lone member; of several, those that are late leave before the run."""
        return self.members[0].deadline_s if len(self.members) == 1 else math.inf

    @property
    def rows(self) -> int:
        """Answers that all members ask for together."""
        return sum(request.rows for request in self.members)

    @property
    def run_rows(self) -> int:
        """Rows that the model runs."""
        return max(self.rows, self.padded)

    @property
    def inputs(self) -> Arrays:
        """The members' inputs one behind the other, along the first axis, padded to `run_rows`."""
        if self.joined is None:
            self.joined = {}
            beyond = self.run_rows - self.rows
            for name, array in self.members[0].inputs.items():
                parts = [array, *(request.inputs[name] for request in self.members[1:])]
                if beyond:
                    parts.append(parts[-1][-1:].repeat(beyond, axis=0))
                self.joined[name] = np.concatenate(parts) if len(parts) > 1 else array
        return self.joined

    def share_out(self) -> None:
        """Give each member its part of the answer, or of the failure."""
        rows, outputs, run_rows = self.rows, self.outputs, self.run_rows
        lone = len(self.members) == 1 and run_rows == rows
        if outputs is not None and not lone:
            short = [len(array) for array in outputs.values() if len(array) != run_rows]
            if short:
                self.outcome = Outcome.FAILED
                self.reason = f"the model answered {short[0]} rows to a batch of {run_rows}"
        at = 0
        for request in self.members:
            request.started_s, request.service_s = self.started_s, self.service_s
            request.outcome, request.reason = self.outcome, self.reason
            request.status, request.retry_after_s = self.status, self.retry_after_s
            request.unserved, request.died = self.unserved, self.died
            request.together = len(self.members), rows
            end = at + request.rows
            if outputs is not None and self.outcome is Outcome.ANSWERED:
                parts = {name: array[at:end] for name, array in outputs.items()}
                request.outputs = outputs if lone else parts
            at = end

    def part(self) -> None:
        """Have each member run again by itself, for one of them may be at fault.

        Those for whom nobody waits stay.
        """
        for request in self.members:
            if not request.abandoned:
                request.alone, request.outcome = True, None
        self.members = [request for request in self.members if request.abandoned]


def fit(one: InferRequest, other: InferRequest) -> bool:
    """Tell whether two requests can be in one batch: they differ in the first axis at most."""
    return all(
        array.shape[1:] == other.inputs[name].shape[1:] for name, array in one.inputs.items()
    )


# What an instance runs at once.
Job = InferRequest | RequestBatch
