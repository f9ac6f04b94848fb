"""Several requests of one server that its model answers in one run."""

from __future__ import annotations

import math

import numpy as np

from inferway.live.request import Arrays, Outcome, Request
from inferway.runtime import Call


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
